//! Schedules: tasks and runs that are submitted again and again.

use serde::{Deserialize, Serialize};

use super::queue::given;
use crate::Json;

/// Body of `POST /api/v1/schedules`. It has either `cron` or `interval_seconds`, and either `task` or `run`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(example = json!({"name": "nightly", "cron": "0 2 * * *", "timezone": "Europe/Paris",
    "overlap": "skip", "task": {"queue": "etl", "operator": "extract", "payload": {"full": true}}})))]
#[serde(deny_unknown_fields)]
pub struct ScheduleSubmission {
    /// Unique in the tenant.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 128, pattern = r"^\S+$"))]
    pub name: String,
    #[cfg_attr(feature = "openapi", schema(pattern = "^[a-z0-9_-]{1,64}$"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Five fields (minute, hour, day of month, month, day of week), or `rate(N minutes|hours|days)`.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 256))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// In place of `cron`. Counted from `starts_at`, or from 1970-01-01T00:00:00Z.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 31_622_400))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval_seconds: Option<i64>,
    /// IANA name of the time zone of `cron`. Default `UTC`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// What happens to slots that nothing could fire in time: `latest` (default), `none` or `all`.
    #[cfg_attr(feature = "openapi", schema(pattern = "^(latest|none|all)$"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catch_up: Option<String>,
    /// What happens to a slot while the work of the last firing runs: `skip` (default), `queue` or `cancel_old`.
    #[cfg_attr(feature = "openapi", schema(pattern = "^(skip|queue|cancel_old)$"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlap: Option<String>,
    /// Each slot fires up to this much later. Default 0.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 86_400))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter_seconds: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// No slot lies before this.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts_at: Option<String>,
    /// No slot lies after this.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<String>,
    /// The task that each firing submits: the body of `POST /api/v1/tasks` without `idempotency_key`, `run_at` and
    /// `deadline`.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<super::TaskSubmission>))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Json>,
    /// The run that each firing submits: the body of `POST /api/v1/runs` without `run_key` and `deadline`.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<crate::run::RunSubmission>))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<Json>,
}

/// Body of `PATCH /api/v1/schedules/{name}`: only what is named changes, and `null` resets it to the default. `cron` and
/// `interval_seconds` take the place of each other, and so do `task` and `run`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(example = json!({"cron": "30 2 * * *", "jitter_seconds": 60})))]
#[serde(deny_unknown_fields)]
pub struct ScheduleChange {
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 256))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 31_622_400))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval_seconds: Option<i64>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub timezone: Option<Option<String>>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, pattern = "^(latest|none|all)$"))]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub catch_up: Option<Option<String>>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, pattern = "^(skip|queue|cancel_old)$"))]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub overlap: Option<Option<String>>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<i64>, minimum = 0, maximum = 86_400))]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub jitter_seconds: Option<Option<i64>>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub starts_at: Option<Option<String>>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub ends_at: Option<Option<String>>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<super::TaskSubmission>))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Json>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<crate::run::RunSubmission>))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<Json>,
}

/// A schedule. Lists leave out the template, `next_slots` and `firings`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Schedule {
    pub schedule_id: String,
    pub name: String,
    pub tenant: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval_seconds: Option<i64>,
    pub timezone: String,
    #[cfg_attr(feature = "openapi", schema(pattern = "^(latest|none|all)$"))]
    pub catch_up: String,
    #[cfg_attr(feature = "openapi", schema(pattern = "^(skip|queue|cancel_old)$"))]
    pub overlap: String,
    pub jitter_seconds: i64,
    pub paused: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<String>,
    /// What a firing submits: `task` or `run`.
    #[cfg_attr(feature = "openapi", schema(pattern = "^(task|run)$"))]
    pub kind: String,
    /// The next slot, absent if the schedule is paused or has no more. With jitter it fires later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_at: Option<String>,
    /// How many slots are due and wait for the work of the last firing to end.
    pub waiting: u64,
    /// The newest entry of `firings`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_firing: Option<ScheduleFiring>,
    /// The next five slots, also of a paused schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_slots: Option<Vec<String>>,
    /// What became of the last slots, newest first, at most 20.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firings: Option<Vec<ScheduleFiring>>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<super::TaskSubmission>))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Json>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<crate::run::RunSubmission>))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<Json>,
    pub created_at: String,
    pub updated_at: String,
}

/// What became of a slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ScheduleFiring {
    pub slot: String,
    /// The last slot, if several were passed over together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub through: Option<String>,
    /// `fired`, `triggered` (by hand), `skipped` (overlap or pause), `missed` (catch-up) or `refused`.
    #[cfg_attr(feature = "openapi", schema(pattern = "^(fired|triggered|skipped|missed|refused)$"))]
    pub outcome: String,
    pub at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Body of `POST /api/v1/schedules/{name}/trigger`, optional.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ScheduleTrigger {
    /// The same one again is the same firing.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 128))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

/// Answer of a trigger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ScheduleTriggered {
    pub schedule_id: String,
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
}

/// Answer of a deletion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ScheduleDeleted {
    pub schedule_id: String,
    pub name: String,
    pub deleted: bool,
}
