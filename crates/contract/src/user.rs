//! The user API: tasks, queues, dead letters.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Json;
use crate::pull::{JobError, JobMetrics};
use crate::words::{AttemptState, RedriveState, TaskState};

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
pub type DeadLetterPage = Page<DeadLetter>;

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

/// Body of `POST /api/v1/tasks`, and an entry of a batch.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(example = json!({"queue": "etl", "operator": "extract", "payload": {"day": "2025-01-15"},
    "max_attempts": 5, "tags": {"team": "etl"}, "idempotency_key": "extract-2025-01-15"})))]
#[serde(deny_unknown_fields)]
pub struct TaskSubmission {
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 128, pattern = r"^\S+$"))]
    pub queue: String,
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 128, pattern = r"^\S+$"))]
    pub operator: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Json>,
    /// 0..=9, lower first, default 5.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 9))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 31_622_400_000_i64))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<i64>,
    /// In place of `delay_ms`.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_at: Option<String>,
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 256))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<i64>,
    /// 1..=3600.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 3600))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ttl_seconds: Option<i64>,
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 3599))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat_interval_seconds: Option<i64>,
    /// Bounds one attempt.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 2_592_000))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<i64>,
    /// In place of `timeout_seconds`.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 2_592_000_000_i64))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<i64>,
    /// Absolute end of the whole task.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 3_600_000))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_grace_period_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryPolicy>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<BTreeMap<String, String>>,
    #[cfg_attr(feature = "openapi", schema(pattern = "^[a-z0-9_-]{1,64}$"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    #[cfg_attr(feature = "openapi", schema(pattern = "^[a-z0-9_-]{1,64}$"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 256, pattern = r"^\S+$"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// Names the code to run, for callback workers; else the operator does.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 256, pattern = r"^\S+$"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asset_id: Option<String>,
    /// Told to callback workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// How long the tokens of an attempt live. Has to cover its dispatch, its run and the grace of a cancel.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 7200))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_ttl_seconds: Option<i64>,
    /// In place of `heartbeat_interval_seconds`.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_800_000))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat_interval_ms: Option<i64>,
    /// In place of `lease_ttl_seconds`. At least twice the interval.
    #[cfg_attr(feature = "openapi", schema(minimum = 1_000, maximum = 3_600_000))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat_timeout_ms: Option<i64>,
}

/// What an attempt may use.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Resources {
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 9_007_199_254_740_991_i64))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<i64>,
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 9_007_199_254_740_991_i64))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_millicores: Option<i64>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RetryPolicy {
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 604_800_000))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial_backoff_ms: Option<i64>,
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 100))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub factor: Option<f64>,
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 604_800_000))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_backoff_ms: Option<i64>,
    /// `full` or `none`.
    #[cfg_attr(feature = "openapi", schema(pattern = "^(full|none)$"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(example = json!({"task_id": "018c385a-9fb1-9509-0e89-33fe3b7b1aa9", "state": "Ready", "created": true})))]
pub struct Submitted {
    pub task_id: String,
    pub state: TaskState,
    pub created: bool,
}

/// Body of `POST /api/v1/tasks/batch`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BatchSubmission {
    /// 1..=10000, all or nothing.
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 10_000))]
    pub tasks: Vec<TaskSubmission>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BatchSubmitted {
    /// How many are new.
    pub created: usize,
    pub tasks: Vec<BatchItem>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BatchItem {
    pub index: usize,
    pub task_id: String,
    pub state: TaskState,
    pub created: bool,
}

/// A task as `GET /api/v1/tasks/{id}` shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(example = json!({"task_id": "018c385a-9fb1-9509-0e89-33fe3b7b1aa9", "queue": "etl", "operator": "extract",
    "state": "Running", "priority": 5, "attempt": 1, "max_attempts": 5, "fence": 1, "payload": {"day": "2025-01-15"},
    "tags": {"team": "etl"}, "tenant": "default", "workspace": "default", "cancel_requested": false,
    "created_at": "2025-01-15T10:00:00Z", "run_at": "2025-01-15T10:00:00Z", "started_at": "2025-01-15T10:00:01Z",
    "worker_id": "w-1", "lease_expires_at": "2025-01-15T10:01:01Z"})))]
pub struct Task {
    pub task_id: String,
    pub queue: String,
    pub operator: String,
    pub state: TaskState,
    pub priority: u8,
    pub attempt: u32,
    pub max_attempts: u32,
    pub fence: u64,
    pub payload: Json,
    pub tags: BTreeMap<String, String>,
    pub tenant: String,
    pub workspace: String,
    /// Whose task it is, if it is somebody's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    pub cancel_requested: bool,
    pub created_at: String,
    pub run_at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Json>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<JobError>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_lettered_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_expires_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress_pct: Option<u8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress_message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
    /// The run that it was submitted in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// Its name in that run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_key: Option<String>,
}

/// One attempt in the history of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Attempt {
    pub attempt: u32,
    pub attempt_id: String,
    pub fence: u64,
    pub worker_id: String,
    pub state: AttemptState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub granted_at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<JobError>,
    /// What kind of failure it was: USER_CODE, DATA_QUALITY, INFRASTRUCTURE, CONFIGURATION, TIMEOUT, CANCELLED.
    #[cfg_attr(
        feature = "openapi",
        schema(pattern = "^(USER_CODE|DATA_QUALITY|INFRASTRUCTURE|CONFIGURATION|TIMEOUT|CANCELLED)$")
    )]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress_pct: Option<u8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress_message: Option<String>,
    /// A report that came after another attempt was granted: kept as evidence, never applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late_report: Option<LateReport>,
    /// What a claimed attempt used, if its worker said so. Those of a pushed one are in `callback`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<JobMetrics>,
    /// Present only for attempts of callback workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<CallbackAttempt>,
}

/// How an attempt was pushed, and what its worker told beside its end. Times are those of the worker's clock,
/// or of receipt where it told none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CallbackAttempt {
    /// How often it was pushed.
    pub deliveries: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_started_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_heartbeat_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_completed_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancelled_during_phase: Option<String>,
    /// Why it was asked to stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partial_progress: Option<Json>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Json>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LateReport {
    pub received_at: String,
    pub outcome: AttemptState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Json>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<JobError>,
    /// How many more came after the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub more: Option<u32>,
}

/// Answer of `GET /api/v1/tasks/{id}/why`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Why {
    pub task_id: String,
    pub state: TaskState,
    pub why: Vec<WhyReason>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WhyReason {
    /// `blocked_on_dependencies`, `waiting_until`, `retry_backoff`, `queue_paused`, `queue_limit`, `rate_limit`, `no_worker`, `push_target_down`, `running`, `ended`.
    pub code: String,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Json>,
}

/// Body of `POST /api/v1/tasks/{id}/cancel`, optional.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(example = json!({"reason": "the input was wrong", "mode": "cooperative"})))]
#[serde(deny_unknown_fields)]
pub struct CancelRequest {
    /// Up to 256 bytes, default `user_requested`.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 256))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// `cooperative` (default) or `immediate`.
    #[cfg_attr(feature = "openapi", schema(pattern = "^(cooperative|immediate)$"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Canceled {
    pub task_id: String,
    pub state: TaskState,
    pub cancel_requested: bool,
    pub cancel_reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Retried {
    pub task_id: String,
    pub state: TaskState,
    pub attempt: u32,
    pub max_attempts: u32,
}

/// Body of `PUT /api/v1/queues/{name}`: the whole setting, absent means no limit. Only `transport` and `push` stay as they
/// are when they are absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(example = json!({"max_running": 100, "rate": {"per_second": 50, "burst": 100}, "fairness_key": "tenant"})))]
#[serde(deny_unknown_fields)]
pub struct QueueSettings {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_running: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// `tenant`, `workspace` or `tag:<name>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fairness_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ttl_seconds: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat_interval_seconds: Option<i64>,
    /// Default true. If false, a task that fails for good does not become a dead letter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_letter: Option<bool>,
    /// What carries the wake-ups: `embedded`, `redis` or `sqs`. Absent: as it is, and for a new queue as the control plane
    /// is set up.
    #[cfg_attr(feature = "openapi", schema(pattern = "^(embedded|redis|sqs)$"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// Where its tasks are pushed, in place of being claimed. Absent: as it is. `null`: they are claimed.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<PushSettings>))]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub push: Option<Option<PushSettings>>,
}

/// Body of `PATCH /api/v1/queues/{name}`: only what is named changes, and `null` resets it to the default. `rate` and
/// `push` are replaced as a whole.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(example = json!({"max_running": 50, "rate": null})))]
#[serde(deny_unknown_fields)]
pub struct QueueChange {
    #[cfg_attr(feature = "openapi", schema(value_type = Option<i64>, minimum = 0, maximum = 2_147_483_647))]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub max_running: Option<Option<i64>>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Rate>))]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub rate: Option<Option<Rate>>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub fairness_key: Option<Option<String>>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<i64>))]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub lease_ttl_seconds: Option<Option<i64>>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<i64>))]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub heartbeat_interval_seconds: Option<Option<i64>>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<bool>))]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub dead_letter: Option<Option<bool>>,
    #[cfg_attr(feature = "openapi", schema(pattern = "^(embedded|redis|sqs)$"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<PushSettings>))]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub push: Option<Option<PushSettings>>,
}

/// A field that is there counts as given, also when it is `null`.
fn given<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// Where and how the tasks of a queue are pushed to a worker of the callback contract.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PushSettings {
    /// Where envelopes are posted to. `https`, unless the configuration allows `http`.
    pub url: String,
    /// Name of the secret in the configuration that is sent as `X-Tenure-Dispatch-Secret`.
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "secretRef")]
    pub secret_ref: Option<String>,
    /// Name of the client certificate in the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "mtlsRef")]
    pub mtls_ref: Option<String>,
    /// How many attempts may be open at once. 1..=10000, default 32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "ratePerSecond")]
    pub rate_per_second: Option<f64>,
    /// How long a push may go without an answer and without `started`. 100..=60000, default 10000.
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "ackTimeoutMs")]
    pub ack_timeout_ms: Option<i64>,
    /// How long an accepted push may go without `started` before it is repeated. 1000..=3600000, default 60000.
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "startTimeoutMs")]
    pub start_timeout_ms: Option<i64>,
    /// How long an attempt may go without `started` before it is closed. 1000..=3600000, default 300000.
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "dispatchTimeoutMs")]
    pub dispatch_timeout_ms: Option<i64>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Rate {
    pub per_second: f64,
    /// Default: `per_second`, at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<f64>,
}

/// A rate as a queue shows it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QueueRate {
    pub per_second: f64,
    pub burst: f64,
}

/// Where and how the tasks of a queue are pushed, with every default filled in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QueuePush {
    pub url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtls_ref: Option<String>,
    pub concurrency: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_per_second: Option<f64>,
    pub ack_timeout_ms: i64,
    pub start_timeout_ms: i64,
    pub dispatch_timeout_ms: i64,
}

/// A queue as `GET /api/v1/queues` shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Queue {
    pub name: String,
    /// Absent: shared by all tenants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    pub paused: bool,
    /// `pull`: workers claim its tasks. `push`: they are pushed to a worker.
    #[cfg_attr(feature = "openapi", schema(pattern = "^(pull|push)$"))]
    pub kind: String,
    /// What carries the wake-ups: `embedded`, `redis` or `sqs`.
    #[cfg_attr(feature = "openapi", schema(pattern = "^(embedded|redis|sqs)$"))]
    pub transport: String,
    pub limits: QueueLimits,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ttl_seconds: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat_interval_seconds: Option<u64>,
    pub dead_letter: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub push: Option<QueuePush>,
    pub counts: QueueCounts,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_ready_at: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QueueLimits {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_running: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<QueueRate>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fairness_key: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QueueCounts {
    pub scheduled: u64,
    pub ready: u64,
    pub running: u64,
    pub dead_lettered: u64,
}

/// Answer of pause and resume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QueuePaused {
    pub name: String,
    pub paused: bool,
}

/// Answer of a deletion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QueueDeleted {
    pub name: String,
    pub deleted: bool,
}

/// A task in the dead letters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeadLetter {
    pub task_id: String,
    pub queue: String,
    pub operator: String,
    /// `max_attempts`, `non_retryable` or `deadline_exceeded`.
    #[cfg_attr(feature = "openapi", schema(pattern = "^(max_attempts|non_retryable|deadline_exceeded)$"))]
    pub reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<JobError>,
    pub attempts: u32,
    pub redrive_count: u32,
    pub dead_lettered_at: String,
}

/// Body of `POST /api/v1/dead-letters/redrive`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(example = json!({"filter": {"queue": "etl", "reason": "max_attempts"}, "dry_run": true})))]
#[serde(deny_unknown_fields)]
pub struct RedriveRequest {
    #[serde(default)]
    pub filter: RedriveFilter,
    #[serde(default)]
    pub dry_run: bool,
    /// Tasks per second; absent means as fast as it goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 256))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
}

/// Joined by AND; an empty filter is refused.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RedriveFilter {
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 128, pattern = r"^\S+$"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 128, pattern = r"^\S+$"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<String>,
    #[cfg_attr(feature = "openapi", schema(pattern = "^(max_attempts|non_retryable|deadline_exceeded)$"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    #[cfg_attr(feature = "openapi", schema(pattern = "^[a-z0-9_-]{1,64}$"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    #[cfg_attr(feature = "openapi", schema(max_items = 1000))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_ids: Option<Vec<String>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Redrive {
    /// Absent on a dry run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redrive_id: Option<String>,
    pub dry_run: bool,
    pub matched: u64,
    pub released: u64,
    pub state: RedriveState,
}

/// Answer of `/api/v1/health`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Health {
    /// `ok` or `unavailable`.
    #[cfg_attr(feature = "openapi", schema(pattern = "^(ok|unavailable)$"))]
    pub status: String,
    pub version: String,
    /// `sqlite` or `postgres`.
    #[cfg_attr(feature = "openapi", schema(pattern = "^(sqlite|postgres)$"))]
    pub store: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}
