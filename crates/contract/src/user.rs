//! The user API: tasks, queues, schedules, dead letters.

mod dead_letter;
mod queue;
mod schedule;
mod task;

use serde::{Deserialize, Serialize};

pub use dead_letter::{DeadLetter, Redrive, RedriveFilter, RedriveRequest};
pub use queue::{
    PushSettings, Queue, QueueChange, QueueCounts, QueueDeleted, QueueLimits, QueuePaused, QueuePush, QueueRate,
    QueueSettings, Rate,
};
pub use schedule::{
    Schedule, ScheduleChange, ScheduleDeleted, ScheduleFiring, ScheduleSubmission, ScheduleTrigger, ScheduleTriggered,
};
pub use task::{
    Attempt, BatchItem, BatchSubmission, BatchSubmitted, CallbackAttempt, CancelRequest, Canceled, LateReport,
    Resources, Retried, RetryPolicy, SandboxCommand, SandboxRuntime, Submitted, Task, TaskLogLine, TaskLogs,
    TaskRuntime, TaskSubmission, Why, WhyReason,
};

/// A page of a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Send it back as `cursor` for the next page; null on the last.
    pub next_cursor: Option<String>,
}

pub type TaskPage = Page<Task>;
pub type AttemptPage = Page<Attempt>;
pub type QueuePage = Page<Queue>;
pub type SchedulePage = Page<Schedule>;
pub type DeadLetterPage = Page<DeadLetter>;
/// A page of redrives.
pub type RedrivePage = Page<Redrive>;

/// By hand, because the derived schema of a generic type repeats the item in place of referring to it.
#[cfg(feature = "openapi")]
mod page {
    use std::borrow::Cow;

    use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, Schema, SchemaType, Type};
    use utoipa::openapi::{Ref, RefOr};

    use super::Page;

    impl<T: utoipa::ToSchema> utoipa::PartialSchema for Page<T> {
        fn schema() -> RefOr<Schema> {
            let cursor = ObjectBuilder::new()
                .schema_type(SchemaType::Array(vec![Type::String, Type::Null]))
                .description(Some("Send it back as `cursor` for the next page; null on the last."));
            ObjectBuilder::new()
                .description(Some("A page of a list."))
                .property("items", ArrayBuilder::new().items(Ref::from_schema_name(T::name())))
                .property("next_cursor", cursor)
                .required("items")
                .required("next_cursor")
                .into()
        }
    }

    impl<T: utoipa::ToSchema> utoipa::ToSchema for Page<T> {
        fn name() -> Cow<'static, str> {
            format!("{}Page", T::name()).into()
        }

        fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
            schemas.push((T::name().into_owned(), T::schema()));
            T::schemas(schemas);
        }
    }
}

/// Answer of `/api/v1/health`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Health {
    /// Of `/health` `ok`, of `/live` `alive`, of `/ready` `ready`; otherwise what is wrong.
    #[cfg_attr(feature = "openapi", schema(pattern = "^(ok|alive|ready|not_ready|unavailable)$"))]
    pub status: String,
    pub version: String,
    /// Such as `2h30m15s`.
    #[serde(default)]
    pub uptime: String,
    /// `sqlite` or `postgres`.
    #[cfg_attr(feature = "openapi", schema(pattern = "^(sqlite|postgres)$"))]
    pub store: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Of `/ready` on a server with sandboxes: the providers of its workers, and how many work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub providers: Option<Vec<ProviderState>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_providers: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_providers: Option<u64>,
}

/// Whether a provider works, for everybody to see.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProviderState {
    pub name: String,
    pub healthy: bool,
    #[serde(default)]
    pub default: bool,
}
