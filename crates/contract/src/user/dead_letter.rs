//! Dead letters and redrives.

use serde::{Deserialize, Serialize};

use crate::pull::JobError;
use crate::words::RedriveState;

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

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Redrive {
    /// Absent on a dry run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redrive_id: Option<String>,
    pub dry_run: bool,
    pub matched: u64,
    pub released: u64,
    pub state: RedriveState,
    /// Which dead letters it releases. Tasks that are named one by one are in `named_tasks`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<RedriveFilter>,
    /// Number of tasks that the filter names by their id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub named_tasks: Option<u64>,
    /// Tasks per second; absent means as fast as it goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<String>,
}
