//! The pull contract: long-poll claim, heartbeat, complete, fail, exchange.

mod about;
mod errors;
pub mod exchange;
pub mod logs;
mod words;

pub use about::{ahead_ms, note as note_worker};

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use tenure_auth::Worker;
use tenure_contract::PULL_CONTRACT;
use tenure_contract::pull::{
    ClaimRequest, ClaimResponse, CompleteItem, CompleteRequest, CompleteResponse, FailItem, FailRequest, FailResponse,
    HeartbeatItem, HeartbeatRequest, HeartbeatResponse, Job, JobMetrics,
};
use tenure_core::attempt::{Failure, Metrics, Progress, Receipt, Report};
use tenure_core::command::Rejection;
use tenure_core::command::claim::{Claim, ClaimTask, Claimant, Claimed, Claimer};
use tenure_core::command::heartbeat::Heartbeat;
use tenure_core::command::hello::Hello;
use tenure_core::command::report::AttemptReport;
use tenure_core::limits;
use tenure_core::{AttemptId, LeaseToken, TaskId};
use tenure_engine::{ClaimWait, TaskClaim, random_seed};

use super::{Dialect, category};
use crate::access::guard::AsWorker;
use crate::error::{BadRequest, Credential, Fault, Forbidden};
use crate::request::{self, RequestId};
use crate::state::App;
use crate::{audit, validate};

pub const DIALECT: Dialect = Dialect {
    name: Some(PULL_CONTRACT),
    owns: |path| path.starts_with("/internal/worker/"),
    router,
    refuse: errors::refuse,
};

fn router() -> Router<App> {
    Router::new()
        .route("/internal/worker/claim", post(claim))
        .route("/internal/worker/heartbeat", post(heartbeat))
        .route("/internal/worker/complete", post(complete))
        .route("/internal/worker/fail", post(fail))
        .route("/internal/worker/logs", post(logs::logs))
        .route("/internal/worker/exchange", post(exchange::exchange))
}

/// Checks the id in the body against who was let in.
pub fn speaks_as(app: &App, worker: &Worker, id: &str) -> Result<Arc<str>, Fault> {
    let id = validate::text_of(id, "worker_id", limits::WORKER_ID_BYTES)?;
    if worker.proven().is_none() && app.identity.proven.knows(&id) {
        return Err(Fault::InvalidCredential(Credential::WorkerToken));
    }
    match app.access.get().workers.speaks_as(worker, &id) {
        Ok(true) => Ok(id),
        Ok(false) => Err(Forbidden::WorkerMismatch.into()),
        Err(error) => Err(Fault::of_worker(error)),
    }
}

/// `POST /internal/worker/claim`
#[utoipa::path(post, path = "/internal/worker/claim", tag = "pull contract", request_body = ClaimRequest,
    security(("worker_token" = ["worker:lease"])),
    responses((status = 200, body = ClaimResponse), (status = "4XX", body = tenure_contract::error::WorkerError),
              (status = 503, body = tenure_contract::error::WorkerError)))]
pub async fn claim(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(worker): AsWorker,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let request: ClaimRequest = request::read(&headers, body, limits::BODY_BYTES).await?.decode()?;
        let claimer = claimer(
            &app,
            &worker,
            &request.worker_id,
            request.claim_id.as_deref(),
            request.incarnation.as_deref(),
            request.kills_on_expiry,
        );
        if let Ok(claimer) = &claimer {
            about::note(&app, claimer, request.streams.as_deref(), request.worker.as_ref());
        }
        match &request.job_id {
            Some(job_id) => {
                let task = TaskId::parse(job_id).map_err(|e| Fault::invalid("job_id", &e.to_string()))?;
                let claimer = claimer?;
                hello(&app, &claimer).await?;
                let message = request.message_id.as_deref().map(Arc::from);
                claim_task(&app, ClaimTask { claimer, task, message }).await
            }
            None => {
                let wait = wait(request.max_wait_ms)?;
                let queues = streams(request.streams.as_deref().unwrap_or_default(), "streams")?;
                let max_jobs = request.max_jobs.unwrap_or(1);
                let max_jobs = validate::within(max_jobs, 1, limits::CLAIM_JOBS as i64, "max_jobs")?;
                let claimer = claimer?;
                hello(&app, &claimer).await?;
                let claim = Claim { claimer, queues, max_jobs: usize::try_from(max_jobs).unwrap_or(1) };
                let jobs = jobs(&app, app.engine.claim(claim, wait).await?).await?;
                Ok(ClaimResponse {
                    claimed: !jobs.is_empty(),
                    job: jobs.first().cloned(),
                    jobs: request.max_jobs.is_some().then_some(jobs),
                    drained: app.engine.is_drained(&request.worker_id),
                    ..ClaimResponse::default()
                })
            }
        }
    };
    respond(answer.await, &id)
}

/// Request faults of the parts that every claim has. The mismatch of ids is judged after all of them.
pub fn claimer(
    app: &App,
    worker: &Worker,
    worker_id: &str,
    claim_id: Option<&str>,
    incarnation: Option<&str>,
    kills_on_expiry: bool,
) -> Result<Claimer, Fault> {
    let claim_id = claim_id.map(|text| validate::text_of(text, "claim_id", limits::CLAIM_ID_BYTES)).transpose()?;
    let incarnation =
        incarnation.map(|text| validate::text_of(text, "incarnation", limits::INCARNATION_BYTES)).transpose()?;
    let claimant =
        Claimant { id: speaks_as(app, worker, worker_id)?, incarnation, claim_id, kills_on_expiry, dispatch: false };
    Ok(Claimer { worker: Some(claimant), seed: random_seed() })
}

pub fn wait(max_wait_ms: Option<i64>) -> Result<ClaimWait, Fault> {
    wait_of(max_wait_ms, "max_wait_ms")
}

pub fn wait_of(max_wait_ms: Option<i64>, field: &str) -> Result<ClaimWait, Fault> {
    let ms = max_wait_ms.unwrap_or(limits::CLAIM_WAIT_MS_DEFAULT);
    let ms = validate::within(ms, 0, limits::CLAIM_WAIT_MS_MAX, field)?;
    Ok(ClaimWait(Duration::from_millis(ms.unsigned_abs())))
}

pub fn streams(streams: &[String], field: &str) -> Result<Vec<Arc<str>>, Fault> {
    if streams.is_empty() || streams.len() > limits::CLAIM_STREAMS {
        return Err(Fault::invalid(field, &format!("must have 1 to {} streams", limits::CLAIM_STREAMS)));
    }
    let mut queues: Vec<Arc<str>> = Vec::with_capacity(streams.len());
    for (index, stream) in streams.iter().enumerate() {
        let queue = validate::name(stream, format!("{field}[{index}]"))?;
        if !queues.contains(&queue) {
            queues.push(queue);
        }
    }
    Ok(queues)
}

/// A worker process that names its incarnation is let in under it first.
pub async fn hello(app: &App, claimer: &Claimer) -> Result<(), Fault> {
    if let Some(Claimant { id, incarnation: Some(incarnation), .. }) = &claimer.worker {
        let hello = Hello { worker: Arc::clone(id), incarnation: Arc::clone(incarnation) };
        app.engine.hello(hello).await??;
    }
    Ok(())
}

async fn claim_task(app: &App, claim: ClaimTask) -> Result<ClaimResponse, Fault> {
    let drained = claim.claimer.worker.as_ref().is_some_and(|worker| app.engine.is_drained(&worker.id));
    match app.engine.claim_task(claim).await?? {
        TaskClaim::Granted(claimed) => {
            let jobs = jobs(app, claimed).await?;
            Ok(ClaimResponse { claimed: !jobs.is_empty(), job: jobs.into_iter().next(), ..ClaimResponse::default() })
        }
        TaskClaim::NotGranted(not) => Ok(ClaimResponse {
            claimed: false,
            reason: Some(words::not_granted(not.reason).to_owned()),
            ack: Some(not.ack),
            drained,
            ..ClaimResponse::default()
        }),
    }
}

/// Grants as jobs. The stream of a job is the name of its queue.
pub async fn jobs(app: &App, claimed: Claimed) -> Result<Vec<Job>, Fault> {
    let mut jobs = Vec::with_capacity(claimed.grants.len());
    for grant in &claimed.grants {
        let stream = app.engine.queue_name(grant.queue).await?;
        jobs.push(words::job(grant, &stream).ok_or(Fault::Internal)?);
    }
    Ok(jobs)
}

/// `POST /internal/worker/heartbeat`
#[utoipa::path(post, path = "/internal/worker/heartbeat", tag = "pull contract", request_body = HeartbeatRequest,
    security(("worker_token" = ["worker:lease"])),
    responses((status = 200, body = HeartbeatResponse), (status = "4XX", body = tenure_contract::error::WorkerError),
              (status = 503, body = tenure_contract::error::WorkerError)))]
pub async fn heartbeat(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(worker): AsWorker,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let raw = request::read(&headers, body, limits::BODY_BYTES).await?;
        let request: HeartbeatRequest = raw.decode()?;
        let worker_id = request.worker_id.clone();
        let heartbeat = checked(&app, &worker, &worker_id, heartbeat_of(request.into()))?.sent_by(&worker);
        let sender = audit::Sender::of(&heartbeat);
        let renewed = [app.engine.heartbeat(heartbeat, raw.bytes.len()).await];
        audit::heartbeats_of_another(&app, &[sender], &renewed).await;
        let [renewed] = renewed;
        let renewed = renewed??;
        Ok(HeartbeatResponse {
            ok: true,
            lease_expires_at: renewed.expires_at.to_string(),
            should_cancel: renewed.cancel.is_some(),
            cancel_reason: renewed.cancel.map(|reason| reason.to_string()),
        })
    };
    respond(answer.await, &id)
}

/// `POST /internal/worker/complete`
#[utoipa::path(post, path = "/internal/worker/complete", tag = "pull contract", request_body = CompleteRequest,
    security(("worker_token" = ["worker:lease"])),
    responses((status = 200, body = CompleteResponse), (status = "4XX", body = tenure_contract::error::WorkerError),
              (status = 503, body = tenure_contract::error::WorkerError)))]
pub async fn complete(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(worker): AsWorker,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let raw = request::read(&headers, body, limits::BODY_BYTES).await?;
        let request: CompleteRequest = raw.decode()?;
        let worker_id = request.worker_id.clone();
        let report = checked(&app, &worker, &worker_id, success_of(request.into()))?.sent_by(&worker);
        app.engine.report(report, raw.bytes.len()).await??;
        Ok(CompleteResponse { ok: true, ack: true })
    };
    respond(answer.await, &id)
}

/// `POST /internal/worker/fail`
#[utoipa::path(post, path = "/internal/worker/fail", tag = "pull contract", request_body = FailRequest,
    security(("worker_token" = ["worker:lease"])),
    responses((status = 200, body = FailResponse), (status = "4XX", body = tenure_contract::error::WorkerError),
              (status = 503, body = tenure_contract::error::WorkerError)))]
pub async fn fail(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(worker): AsWorker,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let raw = request::read(&headers, body, limits::BODY_BYTES).await?;
        let request: FailRequest = raw.decode()?;
        let worker_id = request.worker_id.clone();
        let report = checked(&app, &worker, &worker_id, failure_of(request.into()))?.sent_by(&worker);
        let (requeued, dlq) = match app.engine.report(report, raw.bytes.len()).await?? {
            Receipt::Failed { requeued, dlq } => (requeued, dlq),
            Receipt::Completed => (false, false),
        };
        Ok(FailResponse { ok: true, ack: true, requeued, dlq })
    };
    respond(answer.await, &id)
}

/// Names the sender of a command about a lease, if its credential proves who it is: the lease of another worker is of no use
/// to it.
pub trait SentBy {
    #[must_use]
    fn sent_by(self, worker: &Worker) -> Self;
}

impl SentBy for Heartbeat {
    fn sent_by(self, worker: &Worker) -> Self {
        Self { worker: worker.proven().map(Arc::from), ..self }
    }
}

impl SentBy for AttemptReport {
    fn sent_by(mut self, worker: &Worker) -> Self {
        self.report.worker = worker.proven().map(Arc::from);
        self
    }
}

/// Request faults come before the mismatch of ids, and that before unknown jobs and tokens.
fn checked<T>(app: &App, worker: &Worker, worker_id: &str, command: Result<T, Fault>) -> Result<T, Fault> {
    match command {
        Err(fault @ Fault::Refused(_)) => {
            speaks_as(app, worker, worker_id)?;
            Err(fault)
        }
        Err(fault) => Err(fault),
        Ok(command) => {
            about::seen(app, &speaks_as(app, worker, worker_id)?);
            Ok(command)
        }
    }
}

pub fn heartbeat_of(item: HeartbeatItem) -> Result<Heartbeat, Fault> {
    let pct = item.progress_pct.map(|pct| validate::within(pct, 0, 100, "progress_pct")).transpose()?;
    if item.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.len() > limits::CHECKPOINT_BYTES) {
        let message = format!("may have at most {} bytes", limits::CHECKPOINT_BYTES);
        return Err(Fault::invalid("checkpoint", &message));
    }
    Ok(Heartbeat {
        task: job_id(&item.job_id)?,
        attempt: None,
        token: lease_token(&item.lease_token)?,
        worker: None,
        progress: Progress {
            pct: pct.and_then(|pct| u8::try_from(pct).ok()),
            message: item.message.map(|text| without_nul(limits::cut(&text, limits::MESSAGE_BYTES)).into()),
        },
        checkpoint: item.checkpoint.map(|checkpoint| checkpoint.text()),
    })
}

pub fn success_of(item: CompleteItem) -> Result<AttemptReport, Fault> {
    if item.result.as_ref().is_some_and(|result| result.len() > limits::PAYLOAD_BYTES) {
        return Err(BadRequest::PayloadTooLarge { field: "result".to_owned() }.into());
    }
    let (task, attempt_id, token) = holder(&item.job_id, &item.attempt_id, &item.lease_token)?;
    let report = Report::succeeded(item.result.map(|result| result.text())).with_metrics(item.metrics.map(metrics));
    Ok(AttemptReport { task, attempt_id, token, report, data: None })
}

pub fn failure_of(item: FailItem) -> Result<AttemptReport, Fault> {
    let error = &item.error;
    if error.code.is_empty() {
        return Err(Fault::invalid("error.code", "must not be empty"));
    }
    let (task, attempt_id, token) = holder(&item.job_id, &item.attempt_id, &item.lease_token)?;
    let stack = error.stack.as_deref().map(without_nul);
    let failure =
        Failure::new(&without_nul(&error.code), &without_nul(&error.message), stack.as_deref(), error.retryable)
            .of_category(category::of_code(&error.code))
            .given_back(error.handed_back == Some(true));
    let report = Report::failed(failure).with_metrics(item.metrics.map(metrics));
    Ok(AttemptReport { task, attempt_id, token, report, data: None })
}

fn metrics(sent: JobMetrics) -> Metrics {
    Metrics { cpu_time_ms: sent.cpu_time_ms, peak_memory_bytes: sent.peak_memory_bytes }
}

/// Postgres keeps no NUL in a text.
pub fn without_nul(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

fn holder(job: &str, attempt: &str, token: &str) -> Result<(TaskId, AttemptId, LeaseToken), Fault> {
    let task = job_id(job)?;
    if attempt.is_empty() {
        return Err(Fault::invalid("attempt_id", "must not be empty"));
    }
    // A text of another shape is no attempt of ours: it is looked up as one that was never granted.
    let attempt_id = AttemptId::parse(attempt).unwrap_or(AttemptId::from_u128(0));
    Ok((task, attempt_id, lease_token(token)?))
}

fn job_id(text: &str) -> Result<TaskId, Fault> {
    if text.is_empty() {
        return Err(Fault::invalid("job_id", "must not be empty"));
    }
    TaskId::parse(text).map_err(|_| Fault::Refused(Rejection::NotFound))
}

fn lease_token(text: &str) -> Result<LeaseToken, Fault> {
    if text.is_empty() {
        return Err(Fault::invalid("lease_token", "must not be empty"));
    }
    // A text of another shape is no token of ours: it is looked up as one that was never granted.
    Ok(LeaseToken::parse(text).unwrap_or(LeaseToken::from_u128(0)))
}

fn respond<T: serde::Serialize>(answer: Result<T, Fault>, id: &RequestId) -> Response {
    match answer {
        Ok(body) => Json(body).into_response(),
        Err(fault) => errors::refuse(fault, id),
    }
}
