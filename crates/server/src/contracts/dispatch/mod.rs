//! The dispatch contract: a worker is woken with the id of a task, claims it, and reports with the capability token of the
//! attempt.
//!
//! `/v1/task/*` is for the code of a task. The paths below `/internal/` are for worker wrappers, which are known by their
//! own identity; four of them lead to the same handlers as `/v1/task/*`. Spellings of deployed workers are translated by
//! `tenure_contract::dispatch::dialect` before anything here sees them.

pub mod bundle;
pub mod claim;
pub mod credentials;
mod errors;
pub mod events;
pub mod heartbeat;
pub mod logs;
pub mod publish;
pub mod query;
pub mod report;
pub(crate) mod said;
mod token;
pub mod wakeups;
mod who;

pub use claim::lease_token;
pub use token::{Capability, issue, issue_with};

use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use tenure_contract::DISPATCH_CONTRACT;
use tenure_contract::dispatch::dialect::Unreadable;
use tenure_core::TaskId;

use super::Dialect;
use crate::dispatch::DispatchFault;
use crate::error::Fault;
use crate::request::RequestId;
use crate::state::App;

/// The body of a claim or a heartbeat.
const SMALL_BODY_BYTES: usize = 16 << 10;
/// The body of a completion, of events or of rows.
const BODY_BYTES: usize = 1 << 20;

pub const DIALECT: Dialect = Dialect { name: Some(DISPATCH_CONTRACT), owns, router, refuse: errors::refuse };

fn router() -> Router<App> {
    Router::new()
        .route("/internal/task-claim", post(claim::claim))
        .route("/internal/task-fetch", get(claim::fetch))
        .route("/internal/task-wakeups", get(wakeups::wakeups))
        .route("/internal/heartbeat", post(heartbeat::heartbeat_alias))
        .route("/internal/task-complete", post(report::complete_alias))
        .route("/internal/events", post(events::events_alias))
        .route("/internal/task-logs", post(logs::logs_alias))
        .route("/v1/task/heartbeat", post(heartbeat::heartbeat))
        .route("/v1/task/complete", post(report::complete))
        .route("/v1/task/events", post(events::events))
        .route("/v1/task/logs", post(logs::logs))
        .route("/v1/task/buffer-publish", post(publish::publish))
        .route("/v1/task/query", post(query::query))
        .merge(credentials::router())
        .route("/v1/task/bundle", get(bundle::download))
}

fn owns(path: &str) -> bool {
    path.starts_with("/v1/task/")
        || path.starts_with("/internal/task-")
        || matches!(path, "/internal/heartbeat" | "/internal/events")
}

/// How large the body of a request may be. A larger one is refused before anybody is asked who sends it.
pub fn body_limit(path: &str) -> usize {
    let large = [
        "/v1/task/complete",
        "/v1/task/events",
        "/v1/task/buffer-publish",
        "/v1/task/logs",
        "/v1/task/query",
        "/internal/task-complete",
        "/internal/task-logs",
        "/internal/events",
    ];
    if large.contains(&path) { BODY_BYTES } else { SMALL_BODY_BYTES }
}

impl From<Unreadable> for Fault {
    fn from(unreadable: Unreadable) -> Self {
        match unreadable {
            Unreadable::Malformed(message) => Self::malformed(message),
            Unreadable::Unsupported { field } => {
                let message = format!("{field} is allowed only with the status Completed");
                DispatchFault::fault("unsupported_field", message)
            }
        }
    }
}

/// The id of a task as a request has it.
fn task_id(text: &str) -> Result<TaskId, Fault> {
    TaskId::parse(text).map_err(|_| Fault::malformed("task_id must be a UUID"))
}

fn respond<T: serde::Serialize>(answer: Result<T, Fault>, id: &RequestId) -> Response {
    match answer {
        Ok(body) => Json(body).into_response(),
        Err(fault) => errors::refuse(fault, id),
    }
}
