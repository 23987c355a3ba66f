//! Logs of a pushed attempt, from its worker.

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::Response;
use tenure_contract::callback::{CallbackError, LogsRequest, LogsResponse};
use tenure_engine::LogOutcome;

use super::{AsTask, respond, seen, sender};
use crate::contracts::log_lines;
use crate::push::is_of_test;
use crate::redact::Redactor;
use crate::request::{self, RequestId};
use crate::state::App;

const BODY_BYTES: usize = 1 << 20;

/// `POST /v1/tasks/{id}/logs`
#[utoipa::path(post, path = "/v1/tasks/{id}/logs", operation_id = "callback_logs", tag = "callback contract", request_body = LogsRequest,
    params(("id" = String, Path, description = "task_<ULID>, a bare ULID or a UUID")), security(("task_token" = [])),
    responses((status = 200, body = LogsResponse), (status = "4XX", body = CallbackError),
              (status = 503, body = CallbackError)))]
pub async fn logs(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(bearer): AsTask,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let request: LogsRequest = request::read(&headers, body, BODY_BYTES).await?.decode()?;
        log_lines::check(&request.lines, "lines")?;
        let sender = sender(&bearer, request.attempt, request.attempt_id.as_deref(), &request.worker_id)?;
        if is_of_test(&bearer.verified.claims) {
            return Ok(LogsResponse { acknowledged: true, error: None });
        }
        let lines = log_lines::kept(&request.lines, request.dropped, &Redactor::of(&app));
        let error = match app.engine.keep_pushed_logs(&sender, lines.into()).await? {
            LogOutcome::Kept => None,
            LogOutcome::Dropped => Some("dropped"),
            LogOutcome::NotHeld => Some("stale_attempt"),
        };
        if error != Some("stale_attempt") {
            seen(&app, &sender.worker, None);
        }
        Ok(LogsResponse { acknowledged: error.is_none(), error: error.map(ToOwned::to_owned) })
    };
    respond(answer.await, &id)
}
