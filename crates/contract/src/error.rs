//! Error bodies.

use serde::{Deserialize, Serialize};

use crate::dags::DagProblem;

/// The class of a user API error, in the vocabulary that all contracts share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ErrorClass {
    NotFound,
    BadRequest,
    Unauthorized,
    Forbidden,
    Conflict,
    Unavailable,
    Timeout,
    ResourceLimit,
    InternalError,
}

/// Every error of `/api/v1/*`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(example = json!({"code": "NOT_FOUND", "error": "task_not_found", "message": "no such task",
    "detail": "no such task", "request_id": "req_0123456789abcdef0123456789"})))]
pub struct UserError {
    /// The class.
    pub code: ErrorClass,
    /// The specific word, such as `task_not_found`. Each has a page in `docs/errors/`.
    pub error: String,
    pub message: String,
    /// The same as `message`: clients of the dispatch contract look for it here.
    #[serde(default)]
    pub detail: String,
    pub request_id: String,
    /// Which field is at fault, on 422.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// On `run_key_conflict`: the run that has the key, if it may be seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub existing_run_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub existing_fingerprint: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_fingerprint: Option<String>,
    /// On `invalid_dag`: everything that is wrong with the text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<DagProblem>,
}

/// Every error of `/internal/worker/*`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkerError {
    /// Always false.
    pub ok: bool,
    /// On 409 only: the old message is safe to drop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ack: Option<bool>,
    pub error: String,
    pub message: String,
    /// On 409 only: the state of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    #[serde(default)]
    pub request_id: String,
}
