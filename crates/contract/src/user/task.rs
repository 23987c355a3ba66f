//! Tasks and their attempts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Json;
use crate::pull::{JobError, JobMetrics};
use crate::words::{AttemptState, TaskState};

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
    /// Names the part of the data that the task is about, for callback workers.
    #[cfg_attr(
        feature = "openapi",
        schema(min_length = 1, max_length = 1024, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$")
    )]
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "partitionKey")]
    pub partition_key: Option<String>,
    /// Names where the code runs, for callback workers.
    #[cfg_attr(
        feature = "openapi",
        schema(min_length = 1, max_length = 1024, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$")
    )]
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "executionLocationId")]
    pub execution_location_id: Option<String>,
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
    /// Where its attempts run, for a queue whose push URL is `sandbox:`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<TaskRuntime>,
}

/// Where the attempts of a task run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TaskRuntime {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxRuntime>,
}

/// The sandbox that every attempt gets and what runs in it. What is left out is that of the template, or the default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(example = json!({"image": "python:3.13", "memory_mb": 512, "command": ["python3", "-c", "print(1)"]})))]
#[serde(deny_unknown_fields)]
pub struct SandboxRuntime {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// In place of the template that the queue names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u64>,
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u32>,
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_size_mb: Option<u64>,
    pub command: SandboxCommand,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// How long the command may run, such as `90s`, if not as long as the attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
}

/// What runs in the sandbox of a task: a line for the shell, or a program and its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum SandboxCommand {
    Line(String),
    Words(Vec<String>),
}

impl Default for SandboxCommand {
    fn default() -> Self {
        Self::Words(Vec::new())
    }
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
    /// The credential that it was submitted with, as audits name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submitted_by: Option<String>,
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
    /// Why a task that was granted has not been started: its worker cannot be reached, or there is no room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_started: Option<String>,
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
    /// Where its attempts run, if not at a worker that claims them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<TaskRuntime>,
}

/// Logs of a task, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TaskLogs {
    pub items: Vec<TaskLogLine>,
    /// Absent if there are no more lines at the moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// Continue here with `follow=true`, to wait for more.
    pub follow_cursor: String,
    /// The task has ended: no more lines will come.
    pub ended: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TaskLogLine {
    pub attempt: u32,
    /// By the clock of the worker.
    pub at: String,
    /// `stdout`, `stderr` or `log`.
    pub stream: String,
    pub text: String,
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
    /// `blocked_on_dependencies`, `waiting_until`, `retry_backoff`, `queue_paused`, `queue_limit`, `rate_limit`, `no_worker`, `workers_drained`, `unknown_operator`, `push_target_down`, `running`, `ended`.
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
