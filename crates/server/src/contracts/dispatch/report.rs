//! Complete.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::Response;
use sha2::{Digest, Sha256};
use tenure_contract::dispatch::{CompleteAnswer, CompleteBody, CompleteRequest, Error, Outcome, TaskStatus, dialect};
use tenure_core::attempt::{self, Failure, Receipt, Report};
use tenure_core::command::report::AttemptReport;
use tenure_core::command::{ConflictKind, Rejection};
use tenure_core::dag::data::DataReport;
use tenure_core::dag::judge::Said;
use tenure_core::task::{Place, State as TaskState};
use tenure_core::{AttemptId, LeaseToken, Timestamp, limits};
use tenure_engine::dags::{Sender, Stage};

use super::who::{Seen, Speaker, Who};
use super::{BODY_BYTES, Capability, respond, said};
use crate::access::guard::AsWorker;
use crate::access::task_token::Presented;
use crate::contracts::category;
use crate::contracts::pull::without_nul;
use crate::dispatch::DispatchFault;
use crate::error::Fault;
use crate::request::{self, RequestId};
use crate::state::App;

/// All outputs of one report are checked within this.
const CHECK_TIMEOUT: Duration = Duration::from_secs(60);
/// A report that is longer is kept as its digest.
const KEPT_BYTES: usize = 16 << 10;
/// The code of a failure whose worker gave it no category.
const FAILED: &str = "FAILED";

/// `POST /v1/task/complete`
#[utoipa::path(post, path = "/v1/task/complete", operation_id = "dispatch_complete", tag = "dispatch contract",
    request_body = CompleteBody, security(("capability_token" = [])),
    responses((status = 200, body = CompleteAnswer), (status = "4XX", body = Error), (status = 503, body = Error)))]
pub async fn complete(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(presented): Extension<Presented<Capability>>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    respond(end(&app, &Who::Task(presented), &headers, body).await, &id)
}

/// `POST /internal/task-complete`
#[utoipa::path(post, path = "/internal/task-complete", operation_id = "dispatch_complete_alias",
    tag = "dispatch contract", request_body = CompleteBody, security(("worker_token" = ["worker:lease"])),
    responses((status = 200, body = CompleteAnswer), (status = "4XX", body = Error), (status = 503, body = Error)))]
pub async fn complete_alias(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(worker): AsWorker,
    headers: HeaderMap,
    body: Body,
) -> Response {
    respond(end(&app, &Who::Worker(worker), &headers, body).await, &id)
}

async fn end(app: &App, who: &Who, headers: &HeaderMap, body: Body) -> Result<CompleteAnswer, Fault> {
    let raw = request::read_any(headers, body, BODY_BYTES).await?;
    let request = dialect::complete(&raw.bytes)?;
    let speaker = who.speaker(app, &request.attempt)?;
    let seen = Seen::of(app, speaker.task).await?;
    let token = speaker.token(&seen)?;
    let attempt_id = seen.attempt_id(app, speaker.attempt).await?;
    let sender = Sender { task: speaker.task, attempt: speaker.attempt, token, attempt_id: Some(attempt_id) };
    // Without a token only the attempt that runs is meant.
    let live_only = speaker.sent_token().is_none();
    let data = DataReport { live_only, ..data(app, &seen, &sender, &request, &speaker).await? };
    let events_accepted = data.events.len();
    let report = AttemptReport {
        task: speaker.task,
        attempt_id,
        token,
        report: Report { worker: speaker.proven.clone(), ..report_of(&request) },
        data: Some(Arc::new(data)),
    };
    match app.engine.report(report, raw.bytes.len()).await? {
        Ok(receipt) => {
            app.dispatch.dags.recorded();
            answer(app, &seen, &request, &speaker, events_accepted, receipt).await
        }
        Err(rejection) if request.outcome == Outcome::Canceled && was_canceled(&rejection) => {
            let fence = seen.view.place.fence();
            Ok(CompleteAnswer {
                status: TaskStatus::Canceled,
                task_id: speaker.task.to_string(),
                attempt: speaker.attempt,
                fence: fence.0,
                events_accepted: 0,
                next_retry_at: None,
            })
        }
        Err(rejection) => Err(rejection.into()),
    }
}

/// Whether the holder reports the end of a task that others have canceled.
fn was_canceled(rejection: &Rejection) -> bool {
    matches!(rejection, Rejection::Conflict(conflict)
        if conflict.kind == ConflictKind::AttemptClosed && conflict.state == TaskState::Canceled)
}

/// What a completion says about datasets, judged. Outputs are looked at only for whoever can hold the attempt.
async fn data(
    app: &App,
    seen: &Seen,
    sender: &Sender,
    request: &CompleteRequest,
    speaker: &Speaker,
) -> Result<DataReport, Fault> {
    let task = &seen.task;
    let read = || {
        Ok(Said {
            outputs: said::outputs(task, &request.outputs)?,
            events: said::events(&request.events)?,
            invalidations: said::invalidations(task, speaker.attempt, &request.invalidations)?,
            operator_state: request.operator_state.as_ref().map(tenure_contract::Json::text),
        })
    };
    let refused =
        |refusal| DataReport { refusal: Some(refusal), ..DataReport::of(Arc::clone(&task.org), task.input.job) };
    let mut said = match read() {
        Ok(said) => said,
        Err(refusal) => return Ok(refused(refusal)),
    };
    let judged = app.dispatch.dags.data(sender, &task.org, &task.input, &said, Stage::End).await?;
    if judged.refusal.is_some()
        || said.outputs.is_empty()
        || !may_hold(&seen.view.place, sender.attempt_id, sender.token)
    {
        return Ok(judged);
    }
    let checked = tokio::time::timeout(CHECK_TIMEOUT, said::check_outputs(app, task, speaker.attempt, &mut said)).await;
    let checked = checked.map_err(|_| {
        let message = "the outputs could not be checked in time: write fewer of them, or try again";
        DispatchFault::fault("object_store_unavailable", message)
    })?;
    match checked? {
        Err(refusal) => Ok(refused(refusal)),
        Ok(()) => Ok(app.dispatch.dags.data(sender, &task.org, &task.input, &said, Stage::End).await?),
    }
}

/// Whether a report of this attempt may still count, by what was read before.
fn may_hold(place: &Place, attempt: Option<AttemptId>, token: LeaseToken) -> bool {
    match place {
        Place::Running(running) => Some(running.attempt_id) == attempt && running.lease.token == token,
        place => place
            .last_attempt()
            .is_some_and(|last| Some(last.id) == attempt && last.token == token && last.receipt.is_none()),
    }
}

fn report_of(request: &CompleteRequest) -> Report {
    match request.outcome {
        Outcome::Completed => Report::succeeded(Some(kept(request.canonical.as_str()))),
        // A category says nothing about what follows: `retryable` does.
        Outcome::Failed => Report { outcome: attempt::Outcome::Failed(failure(request)), ..Report::canceled() },
        Outcome::Canceled => Report::canceled(),
    }
}

/// The report as the result of the task. Equal reports are equal, whatever is kept of them.
fn kept(canonical: &str) -> Arc<str> {
    if canonical.len() <= KEPT_BYTES {
        return canonical.into();
    }
    let mut digest = "sha256:".to_owned();
    for byte in Sha256::digest(canonical.as_bytes()) {
        let _ = write!(digest, "{byte:02x}");
    }
    serde_json::json!({ "digest": digest, "bytes": canonical.len() }).to_string().into()
}

fn failure(request: &CompleteRequest) -> Failure {
    let said = request.failure.clone().unwrap_or_default();
    let code = said.category.as_deref().filter(|category| !category.is_empty()).unwrap_or(FAILED);
    let stack = said.stack.as_deref().map(without_nul);
    let message = without_nul(limits::cut(&said.message, limits::MESSAGE_BYTES));
    let message = if message.is_empty() { "the worker reported no message".to_owned() } else { message };
    Failure::new(&without_nul(code), &message, stack.as_deref(), Some(request.retryable))
        .of_category(category::of_code(code))
        .given_back(said.handed_back == Some(true))
}

/// The same for the same report, however often it is sent. `seen` is from before the report.
async fn answer(
    app: &App,
    seen: &Seen,
    request: &CompleteRequest,
    speaker: &Speaker,
    events_accepted: usize,
    receipt: Receipt,
) -> Result<CompleteAnswer, Fault> {
    let (status, events_accepted) = match request.outcome {
        Outcome::Completed => (TaskStatus::Completed, events_accepted),
        Outcome::Failed => (TaskStatus::Failed, 0),
        Outcome::Canceled => (TaskStatus::Canceled, 0),
    };
    let mut fence = match &seen.view.place {
        Place::Running(running) if running.attempt == speaker.attempt => Some(running.lease.generation),
        place => place.last_attempt().filter(|last| last.number == speaker.attempt).map(|last| last.fence),
    };
    let mut next_retry_at = None;
    if fence.is_none() || receipt.is_requeued() {
        let now = Seen::of(app, speaker.task).await?;
        let closed = now.closed(app, speaker.attempt).await?;
        fence = fence.or(closed.as_ref().map(|closed| closed.fence));
        next_retry_at = closed.and_then(|closed| closed.retry_at);
    }
    Ok(CompleteAnswer {
        status,
        task_id: speaker.task.to_string(),
        attempt: speaker.attempt,
        fence: fence.unwrap_or_default().0,
        events_accepted,
        next_retry_at: next_retry_at.as_ref().map(Timestamp::to_string),
    })
}
