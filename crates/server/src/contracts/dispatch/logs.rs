//! Logs of an attempt, from its code or from the wrapper that runs it.

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::Response;
use tenure_contract::dispatch::{Error, LogsRequest, LogsResponse, dialect};
use tenure_engine::LogOutcome;
use tenure_engine::store::NewLogPiece;

use super::who::{Seen, Who};
use super::{BODY_BYTES, Capability, respond};
use crate::access::guard::AsWorker;
use crate::access::task_token::Presented;
use crate::contracts::log_lines;
use crate::error::Fault;
use crate::redact::Redactor;
use crate::request::{self, RequestId};
use crate::state::App;

/// `POST /v1/task/logs`
#[utoipa::path(post, path = "/v1/task/logs", operation_id = "dispatch_logs", tag = "dispatch contract",
    request_body = LogsRequest, security(("capability_token" = [])),
    responses((status = 200, body = LogsResponse), (status = "4XX", body = Error), (status = 503, body = Error)))]
pub async fn logs(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(presented): Extension<Presented<Capability>>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    respond(keep(&app, &Who::Task(presented), &headers, body).await, &id)
}

/// `POST /internal/task-logs`
#[utoipa::path(post, path = "/internal/task-logs", operation_id = "dispatch_logs_alias", tag = "dispatch contract",
    request_body = LogsRequest, security(("worker_token" = ["worker:lease"])),
    responses((status = 200, body = LogsResponse), (status = "4XX", body = Error), (status = 503, body = Error)))]
pub async fn logs_alias(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(worker): AsWorker,
    headers: HeaderMap,
    body: Body,
) -> Response {
    respond(keep(&app, &Who::Worker(worker), &headers, body).await, &id)
}

async fn keep(app: &App, who: &Who, headers: &HeaderMap, body: Body) -> Result<LogsResponse, Fault> {
    let raw = request::read_any(headers, body, BODY_BYTES).await?;
    let sent = dialect::logs(&raw.bytes)?;
    log_lines::check(&sent.lines, "lines")?;
    let speaker = who.speaker(app, &sent.attempt)?;
    let token = match speaker.sent_token() {
        Some(token) => token,
        None => speaker.token(&Seen::of(app, speaker.task).await?)?,
    };
    let piece = NewLogPiece {
        task: speaker.task,
        token,
        worker: speaker.proven.clone(),
        lines: log_lines::kept(&sent.lines, sent.dropped, &Redactor::of(app)).into(),
    };
    let error = match app.engine.keep_logs(vec![piece]).await?.pop() {
        Some(LogOutcome::Kept) => None,
        Some(LogOutcome::Dropped) => Some("dropped"),
        Some(LogOutcome::NotHeld) | None => Some("stale_attempt"),
    };
    Ok(LogsResponse { kept: error.is_none(), error: error.map(ToOwned::to_owned) })
}
