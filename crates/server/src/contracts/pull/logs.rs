//! Logs of attempts, from the workers that hold them.

use axum::Json;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use tenure_contract::pull::{JobLogs, LogLine, LogsAnswer, LogsRequest, LogsResponse};
use tenure_core::{LeaseToken, TaskId, Timestamp, limits};
use tenure_engine::LogOutcome;
use tenure_engine::store::NewLogPiece;

use super::{about, errors, speaks_as, without_nul};
use crate::access::guard::AsWorker;
use crate::error::Fault;
use crate::redact::Redactor;
use crate::request::{self, RequestId};
use crate::state::App;

const BODY_BYTES: usize = 1 << 20;
const ITEMS: usize = 100;
const LINES: usize = 1_000;
const LINE_BYTES: usize = 8 << 10;
/// Of the lines of an item, as JSON. What is over is left out.
const PIECE_BYTES: usize = 64 << 10;

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
        if let Some(at) = sent.logs.iter().position(|item| item.lines.len() > LINES) {
            return Err(Fault::invalid(format!("logs[{at}].lines"), &format!("at most {LINES} lines")));
        }
        let name = speaks_as(&app, &worker, &sent.worker_id)?;
        about::seen(&app, &name);
        let redactor = Redactor::of(&app);
        let pieces = sent.logs.iter().map(|item| NewLogPiece {
            // A text of another shape names no attempt of ours, which none is held under.
            task: TaskId::parse(&item.job_id).unwrap_or(TaskId::from_u128(0)),
            token: LeaseToken::parse(&item.lease_token).unwrap_or(LeaseToken::from_u128(0)),
            worker: worker.proven().map(Into::into),
            lines: lines(item, &redactor).into(),
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

/// The lines as they are kept.
fn lines(item: &JobLogs, redactor: &Redactor) -> String {
    let note = |text: String| LogLine { at: None, stream: Some("log".to_owned()), text };
    let dropped = item.dropped.filter(|dropped| *dropped > 0);
    let mut kept: Vec<LogLine> = Vec::with_capacity(item.lines.len() + 2);
    kept.extend(dropped.map(|dropped| note(format!("[{dropped} lines were dropped by the worker]"))));
    let mut bytes = 0;
    for (at, line) in item.lines.iter().enumerate() {
        let text = without_nul(limits::cut(&redactor.clean(&line.text), LINE_BYTES));
        // Control characters take six bytes each in JSON.
        bytes += 64 + serde_json::to_string(&text).map_or(0, |json| json.len());
        if bytes > PIECE_BYTES {
            kept.push(note(format!("[{} lines were dropped: too many at once]", item.lines.len() - at)));
            break;
        }
        let stream = line.stream.as_deref().filter(|stream| matches!(*stream, "stdout" | "stderr"));
        kept.push(LogLine {
            at: line.at.as_deref().and_then(|at| Timestamp::parse(at).ok()).map(|at| at.to_string()),
            stream: Some(stream.unwrap_or("log").to_owned()),
            text,
        });
    }
    serde_json::to_string(&kept).unwrap_or_else(|_| "[]".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_contract::pull::JobLogs;

    #[test]
    fn what_is_kept_of_an_item_is_bounded() {
        let redactor = Redactor::default();
        let line = |text: &str| LogLine { text: text.to_owned(), ..LogLine::default() };
        let item =
            JobLogs { lines: vec![line(&"\u{1}".repeat(20_000)); 1_000], dropped: Some(7), ..JobLogs::default() };
        let text = lines(&item, &redactor);
        assert!(text.len() < PIECE_BYTES + 1_000, "{}", text.len());
        let kept: Vec<LogLine> = serde_json::from_str(&text).unwrap();
        assert_eq!(kept[0].text, "[7 lines were dropped by the worker]");
        assert!(kept.last().unwrap().text.ends_with("lines were dropped: too many at once]"), "{kept:?}");
    }
}
