//! The callback contract: started, heartbeat, completed and logs, each with the token of one attempt.
//!
//! Two prefixes lead to the same handlers, except for logs. Who may call is judged before the body is read; what the token and the body
//! say is held against the task by the core, in one place.

mod errors;
pub mod logs;
mod token;
mod words;

pub use token::CallbackToken;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use tenure_auth::TASK_TOKEN_MAX_TTL_S;
use tenure_contract::CALLBACK_CONTRACT;
use tenure_contract::callback::{
    CallbackError, CompletedRequest, CompletedResponse, Disposition, HeartbeatRequest, HeartbeatResponse, Outcome,
    StartedRequest, StartedResponse, TaskError,
};
use tenure_core::attempt::{AttemptState, Completion, Failure, Progress};
use tenure_core::command::callback::{self, CompletionRecord, SentAttemptId};
use tenure_core::{Timestamp, WorkerId, limits};
use tenure_engine::store::WorkerDetails;
use tenure_engine::{CallbackSender, Watched, WorkerCall};

use super::pull::{self, without_nul};
use super::{Dialect, category};
use crate::access::guard::unix_now;
use crate::access::task_token::TaskBearer;
use crate::error::{BadRequest, Fault};
use crate::push::is_of_test;
use crate::request::{self, Raw, RequestId};
use crate::state::App;
use crate::validate;

/// The bearer that the guard let in.
type AsTask = Extension<TaskBearer<CallbackToken>>;

/// A body of this contract.
const BODY_BYTES: usize = 4 << 20;
/// A clock that is further off than this is counted.
const SKEW_MS: i64 = 5 * 60_000;

pub const DIALECT: Dialect = Dialect { name: Some(CALLBACK_CONTRACT), owns, router, refuse: errors::refuse };

fn router() -> Router<App> {
    Router::new()
        .route("/v1/tasks/{id}/started", post(started))
        .route("/v1/tasks/{id}/heartbeat", post(heartbeat))
        .route("/v1/tasks/{id}/completed", post(completed))
        .route("/v1/tasks/{id}/logs", post(logs::logs))
        .route("/api/v1/tasks/{id}/started", post(started_alias))
        .route("/api/v1/tasks/{id}/heartbeat", post(heartbeat_alias))
        .route("/api/v1/tasks/{id}/completed", post(completed_alias))
}

/// Whether a path belongs to this contract. Below the alias other paths belong to the user API.
fn owns(path: &str) -> bool {
    if path.starts_with("/v1/tasks/") {
        return true;
    }
    let alias = path.strip_prefix("/api/v1/tasks/").and_then(|rest| rest.split_once('/'));
    alias.is_some_and(|(_, call)| matches!(call, "started" | "heartbeat" | "completed"))
}

/// `POST /v1/tasks/{id}/started`
#[utoipa::path(post, path = "/v1/tasks/{id}/started", operation_id = "callback_started", tag = "callback contract", request_body = StartedRequest,
    params(("id" = String, Path, description = "task_<ULID>, a bare ULID or a UUID")), security(("task_token" = [])),
    responses((status = 200, body = StartedResponse), (status = "4XX", body = CallbackError),
              (status = 503, body = CallbackError)))]
pub async fn started(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(bearer): AsTask,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let request: StartedRequest = request::read(&headers, body, BODY_BYTES).await?.decode()?;
        let told_at = told_time(request.started_at.as_deref(), "startedAt")?;
        let sender = sender(&bearer, request.attempt, request.attempt_id.as_deref(), &request.worker_id)?;
        if is_of_test(&bearer.verified.claims) {
            return Ok(StartedResponse { acknowledged: true, server_time: app.engine.now().await?.to_string() });
        }
        let worker = Arc::clone(&sender.worker);
        let at = app.engine.started(sender, told_at).await??;
        seen(&app, &worker, told_at);
        count_skew(told_at, at);
        Ok(StartedResponse { acknowledged: true, server_time: at.to_string() })
    };
    respond(answer.await, &id)
}

/// `POST /v1/tasks/{id}/heartbeat`
#[utoipa::path(post, path = "/v1/tasks/{id}/heartbeat", operation_id = "callback_heartbeat", tag = "callback contract", request_body = HeartbeatRequest,
    params(("id" = String, Path, description = "task_<ULID>, a bare ULID or a UUID")), security(("task_token" = [])),
    responses((status = 200, body = HeartbeatResponse), (status = "4XX", body = CallbackError),
              (status = 503, body = CallbackError)))]
pub async fn heartbeat(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(bearer): AsTask,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let raw = request::read(&headers, body, BODY_BYTES).await?;
        let request: HeartbeatRequest = raw.decode()?;
        let told_at = told_time(request.heartbeat_at.as_deref(), "heartbeatAt")?;
        let sender = sender(&bearer, request.attempt, request.attempt_id.as_deref(), &request.worker_id)?;
        let pct = request.progress_pct.map(|pct| validate::within(pct, 0, 100, "progressPct")).transpose()?;
        let checkpoint = request.checkpoint.map(|checkpoint| checkpoint.text());
        if checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.len() > limits::CHECKPOINT_BYTES) {
            // Every heartbeat from here on writes it again.
            return Err(Fault::invalid("checkpoint", &format!("may have at most {} bytes", limits::CHECKPOINT_BYTES)));
        }
        let progress = Progress {
            pct: pct.and_then(|pct| u8::try_from(pct).ok()),
            message: request.message.map(|text| without_nul(limits::cut(&text, limits::MESSAGE_BYTES)).into()),
        };
        if is_of_test(&bearer.verified.claims) {
            return Ok(beat_of_test(app.engine.now().await?));
        }
        let worker = Arc::clone(&sender.worker);
        let wait =
            request.wait_ms.map(|ms| validate::within(ms, 0, limits::CLAIM_WAIT_MS_MAX, "waitMs")).transpose()?;
        let beat = app.engine.beat(sender.clone(), told_at, progress, checkpoint, raw.bytes.len());
        let (mut renewed, mut at) = beat.await??;
        if let Some(ms) = wait.filter(|_| renewed.cancel.is_none()) {
            let (watched, wait) = (Watched::Task(sender.task), Duration::from_millis(ms.unsigned_abs()));
            let (stopped, _) = app.engine.stops(&watched, None, wait).await;
            if !stopped.is_empty() {
                (renewed, at) = app.engine.beat(sender, told_at, Progress::default(), None, 0).await??;
            }
        }
        seen(&app, &worker, told_at);
        count_skew(told_at, at);
        let (task_token, token_expires_at) = renewed_token(&app, &bearer)?.unzip();
        Ok(HeartbeatResponse {
            acknowledged: true,
            should_cancel: renewed.cancel.is_some(),
            cancel_reason: renewed.cancel.as_deref().map(ToOwned::to_owned),
            server_time: at.to_string(),
            lease_expires_at: Some(renewed.expires_at.to_string()),
            task_token,
            token_expires_at,
        })
    };
    respond(answer.await, &id)
}

/// `POST /v1/tasks/{id}/completed`
#[utoipa::path(post, path = "/v1/tasks/{id}/completed", operation_id = "callback_completed", tag = "callback contract", request_body = CompletedRequest,
    params(("id" = String, Path, description = "task_<ULID>, a bare ULID or a UUID")), security(("task_token" = [])),
    responses((status = 200, body = CompletedResponse), (status = "4XX", body = CallbackError),
              (status = 503, body = CallbackError)))]
pub async fn completed(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(bearer): AsTask,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let raw = request::read(&headers, body, BODY_BYTES).await?;
        let request: CompletedRequest = raw.decode().map_err(|fault| Large::before(fault, &raw))?;
        within_a_payload(request.output.as_ref(), "output")?;
        within_a_payload(request.partial_progress.as_ref(), "partialProgress")?;
        let told_at = told_time(request.completed_at.as_deref(), "completedAt")?;
        let sender = sender(&bearer, request.attempt, request.attempt_id.as_deref(), &request.worker_id)?;
        let completion = completion(request, told_at)?;
        if is_of_test(&bearer.verified.claims) {
            let disposition = callback::Disposition::Recorded;
            return Ok(reported(CompletionRecord {
                state: completion.outcome,
                at: app.engine.now().await?,
                disposition,
            }));
        }
        let told = app.engine.completed(sender, completion, raw.bytes.len()).await??;
        if told.disposition != callback::Disposition::Duplicate {
            count_skew(told_at, told.at);
        }
        Ok(reported(told))
    };
    respond(answer.await, &id)
}

/// `POST /api/v1/tasks/{id}/started`
#[utoipa::path(post, path = "/api/v1/tasks/{id}/started", operation_id = "callback_started_alias",
    tag = "callback contract", request_body = StartedRequest,
    params(("id" = String, Path, description = "task_<ULID>, a bare ULID or a UUID")), security(("task_token" = [])),
    responses((status = 200, body = StartedResponse), (status = "4XX", body = CallbackError),
              (status = 503, body = CallbackError)))]
pub async fn started_alias(
    app: State<App>,
    id: Extension<RequestId>,
    bearer: AsTask,
    headers: HeaderMap,
    body: Body,
) -> Response {
    started(app, id, bearer, headers, body).await
}

/// `POST /api/v1/tasks/{id}/heartbeat`
#[utoipa::path(post, path = "/api/v1/tasks/{id}/heartbeat", operation_id = "callback_heartbeat_alias",
    tag = "callback contract", request_body = HeartbeatRequest,
    params(("id" = String, Path, description = "task_<ULID>, a bare ULID or a UUID")), security(("task_token" = [])),
    responses((status = 200, body = HeartbeatResponse), (status = "4XX", body = CallbackError),
              (status = 503, body = CallbackError)))]
pub async fn heartbeat_alias(
    app: State<App>,
    id: Extension<RequestId>,
    bearer: AsTask,
    headers: HeaderMap,
    body: Body,
) -> Response {
    heartbeat(app, id, bearer, headers, body).await
}

/// `POST /api/v1/tasks/{id}/completed`
#[utoipa::path(post, path = "/api/v1/tasks/{id}/completed", operation_id = "callback_completed_alias",
    tag = "callback contract", request_body = CompletedRequest,
    params(("id" = String, Path, description = "task_<ULID>, a bare ULID or a UUID")), security(("task_token" = [])),
    responses((status = 200, body = CompletedResponse), (status = "4XX", body = CallbackError),
              (status = 503, body = CallbackError)))]
pub async fn completed_alias(
    app: State<App>,
    id: Extension<RequestId>,
    bearer: AsTask,
    headers: HeaderMap,
    body: Body,
) -> Response {
    completed(app, id, bearer, headers, body).await
}

/// What the token and the part of a body that every call has say.
fn sender(
    bearer: &CallbackToken,
    attempt: u32,
    attempt_id: Option<&str>,
    worker: &str,
) -> Result<CallbackSender, Fault> {
    if attempt == 0 {
        return Err(Fault::invalid("attempt", "must be at least 1"));
    }
    let attempt_id = attempt_id.map(|text| SentAttemptId::read(&without_nul(text)));
    let claims = &bearer.verified.claims;
    Ok(CallbackSender {
        task: bearer.task,
        tenant: claims.tenant_id.as_str().into(),
        workspace: claims.workspace_id.as_str().into(),
        proof: bearer.proof,
        attempt,
        attempt_id,
        worker: validate::words(worker, "workerId", limits::WORKER_ID_BYTES)?,
    })
}

/// Takes note of a worker that holds an attempt.
fn seen(app: &App, worker: &WorkerId, told_at: Option<Timestamp>) {
    let clock_ahead_ms = told_at.map(pull::ahead_ms);
    let details = clock_ahead_ms.map(|_| WorkerDetails { clock_ahead_ms, ..WorkerDetails::default() });
    app.engine.saw_worker(WorkerCall { worker, contract: "callback", queues: &[], details });
}

/// Nothing is judged by the clock of a worker; one that is far off is worth knowing.
fn count_skew(told_at: Option<Timestamp>, now: Timestamp) {
    if told_at.is_some_and(|told| told.since(now).abs() > SKEW_MS) {
        metrics::counter!("tenure_worker_clock_skew_total").increment(1);
    }
}

/// A time that is noted, however far off it is.
fn told_time(text: Option<&str>, field: &str) -> Result<Option<Timestamp>, Fault> {
    let told = |text| Timestamp::observe(text).map_err(|error| Fault::invalid(field, &error.to_string()));
    text.map(told).transpose()
}

fn within_a_payload(json: Option<&tenure_contract::Json>, field: &str) -> Result<(), Fault> {
    if json.is_some_and(|json| json.len() > limits::PAYLOAD_BYTES) {
        return Err(BadRequest::PayloadTooLarge { field: field.to_owned() }.into());
    }
    Ok(())
}

/// What can be too large in a report. Size is judged before shape, also in a body of the wrong shape.
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Large {
    #[serde(default, alias = "result")]
    output: Option<tenure_contract::Json>,
    #[serde(default, alias = "partial_progress")]
    partial_progress: Option<tenure_contract::Json>,
}

impl Large {
    fn before(fault: Fault, raw: &Raw) -> Fault {
        let Fault::Request(BadRequest::Invalid { .. }) = fault else { return fault };
        let judged = raw.decode::<Self>().ok().map(|large| {
            within_a_payload(large.output.as_ref(), "output")
                .and_then(|()| within_a_payload(large.partial_progress.as_ref(), "partialProgress"))
        });
        judged.and_then(Result::err).unwrap_or(fault)
    }
}

fn completion(request: CompletedRequest, told_completed_at: Option<Timestamp>) -> Result<Completion, Fault> {
    let output = request.output.map(|output| output.text());
    let partial_progress = request.partial_progress.map(|progress| progress.text());
    let metrics = request.metrics.map(|metrics| serde_json::to_string(&metrics)).transpose();
    let phase = request.cancelled_during_phase.as_deref();
    Ok(Completion {
        outcome: match request.outcome {
            Outcome::Succeeded => AttemptState::Succeeded,
            Outcome::Failed => AttemptState::Failed,
            Outcome::Cancelled => AttemptState::Canceled,
        },
        output,
        error: request.error.as_ref().map(failure),
        phase: phase.map(|phase| without_nul(limits::cut(phase, limits::MESSAGE_BYTES)).into()),
        partial_progress,
        metrics: metrics.map_err(|_| Fault::Internal)?.map(Into::into),
        told_completed_at,
    })
}

fn failure(error: &TaskError) -> Failure {
    let stack = error.stack_trace.as_deref().map(without_nul);
    Failure::new(error.category.as_str(), &without_nul(&error.message), stack.as_deref(), error.retryable)
        .of_category(Some(category::of_wire(error.category)))
        .given_back(error.handed_back == Some(true))
}

fn reported(told: CompletionRecord) -> CompletedResponse {
    CompletedResponse {
        acknowledged: true,
        final_state: match told.state {
            AttemptState::Succeeded => Outcome::Succeeded,
            AttemptState::Failed => Outcome::Failed,
            AttemptState::Canceled => Outcome::Cancelled,
        },
        server_time: told.at.to_string(),
        disposition: Some(match told.disposition {
            callback::Disposition::Recorded => Disposition::Recorded,
            callback::Disposition::Duplicate => Disposition::Duplicate,
            callback::Disposition::Late => Disposition::Late,
        }),
    }
}

/// The answer to a heartbeat on a test push, as if its attempt had the usual lease.
fn beat_of_test(now: Timestamp) -> HeartbeatResponse {
    HeartbeatResponse {
        acknowledged: true,
        should_cancel: false,
        cancel_reason: None,
        server_time: now.to_string(),
        lease_expires_at: Some(now.plus(limits::CALLBACK_LEASE_MS_DEFAULT).to_string()),
        task_token: None,
        token_expires_at: None,
    }
}

/// Another token of the same attempt and length, once less than a third of this one's life is left.
fn renewed_token(app: &App, bearer: &CallbackToken) -> Result<Option<(String, String)>, Fault> {
    let token = &bearer.verified;
    let (now, life) = (unix_now(), token.expires_at_s - token.issued_at_s);
    if (token.expires_at_s - now) * 3 >= life {
        return Ok(None);
    }
    let ttl = u32::try_from(life).unwrap_or(TASK_TOKEN_MAX_TTL_S).clamp(1, TASK_TOKEN_MAX_TTL_S);
    let keys = app.identity.task_keys().ok_or(Fault::Internal)?.get();
    let renewed = keys.issue_task(&token.claims, now, ttl).map_err(|error| {
        tracing::error!(%error, "cannot renew a task token");
        Fault::Internal
    })?;
    let expires_at = Timestamp::from_millis((now + i64::from(ttl)) * 1000);
    Ok(Some((renewed.reveal().to_owned(), expires_at.to_string())))
}

fn respond<T: serde::Serialize>(answer: Result<T, Fault>, id: &RequestId) -> Response {
    match answer {
        Ok(body) => Json(body).into_response(),
        Err(fault) => errors::refuse(fault, id),
    }
}
