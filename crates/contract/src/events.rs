//! Task changes as they appear on `/api/v1/events`.

use serde::{Deserialize, Serialize};

use crate::words::{RunState, TaskState};

/// One change of one task. The event's name is `task`, its id grows and can be sent back as `Last-Event-ID`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TaskEvent {
    /// `submitted`, `ready`, `started`, `succeeded`, `failed`, `retrying`, `canceled`, `cancel_requested`,
    /// `dead_lettered`, `redriven`, `retried`, `released`, `skipped`, `dispatched`.
    pub kind: String,
    pub task_id: String,
    pub queue: String,
    /// The state after the change.
    pub state: TaskState,
    pub attempt: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub at: String,
}

/// One change of one run. The event's name is `run`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunEvent {
    /// `run.created`, `run.cancel_requested`, `run.succeeded`, `run.failed`, `run.canceled`.
    pub kind: String,
    pub run_id: String,
    /// The state after the change.
    pub state: RunState,
    pub at: String,
}
