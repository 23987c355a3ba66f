//! Logs of attempts, from the workers that hold them.

use axum::Json;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use tenure_contract::pull::{LogsAnswer, LogsRequest, LogsResponse};
use tenure_core::{LeaseToken, TaskId};
use tenure_engine::LogOutcome;
use tenure_engine::store::NewLogPiece;

use super::{about, errors, speaks_as};
use crate::access::guard::AsWorker;
use crate::contracts::log_lines;
use crate::error::Fault;
use crate::redact::Redactor;
use crate::request::{self, RequestId};
use crate::state::App;

const BODY_BYTES: usize = 1 << 20;
const ITEMS: usize = 100;

/// `POST /internal/worker/logs`
#[utoipa::path(post, path = "/internal/worker/logs", operation_id = "send_task_logs", tag = "pull contract", request_body = LogsRequest,
    security(("worker_token" = ["worker:lease"])),
    responses((status = 200, body = LogsResponse), (status = "4XX", body = tenure_contract::error::WorkerError),
              (status = 503, body = tenure_contract::error::WorkerError)))]
pub async fn logs(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(worker): AsWorker,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let sent: LogsRequest = request::read(&headers, body, BODY_BYTES).await?.decode()?;
        if sent.logs.len() > ITEMS {
            return Err(Fault::invalid("logs", &format!("at most {ITEMS} items")));
        }
        for (at, item) in sent.logs.iter().enumerate() {
            log_lines::check(&item.lines, format_args!("logs[{at}].lines"))?;
        }
        let name = speaks_as(&app, &worker, &sent.worker_id)?;
        about::seen(&app, &name);
        let redactor = Redactor::of(&app);
        let pieces = sent.logs.iter().map(|item| NewLogPiece {
            // A text of another shape names no attempt of ours, which none is held under.
            task: TaskId::parse(&item.job_id).unwrap_or(TaskId::from_u128(0)),
            token: LeaseToken::parse(&item.lease_token).unwrap_or(LeaseToken::from_u128(0)),
            worker: worker.proven().map(Into::into),
            lines: log_lines::kept(&item.lines, item.dropped, &redactor).into(),
        });
        let kept = app.engine.keep_logs(pieces.collect()).await?;
        Ok(LogsResponse { logs: kept.into_iter().map(answer_of).collect() })
    };
    match answer.await {
        Ok(body) => Json(body).into_response(),
        Err(fault) => errors::refuse(fault, &id),
    }
}

fn answer_of(outcome: LogOutcome) -> LogsAnswer {
    let error = match outcome {
        LogOutcome::Kept => None,
        LogOutcome::Dropped => Some("dropped"),
        LogOutcome::NotHeld => Some("stale_lease"),
    };
    LogsAnswer { ok: error.is_none(), error: error.map(ToOwned::to_owned) }
}
