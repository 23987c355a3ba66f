//! Claim and fetch.

use axum::Json;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use tenure_auth::Worker;
use tenure_contract::dispatch::{
    ClaimAnswer, ClaimRequest, Claimed, Error, FetchAnswer, NotClaimed, NotClaimedReason, TaskStatus, dialect,
};
use tenure_core::command::claim::{ClaimTask, Claimant, Claimer, Grant, NotGrantedReason};
use tenure_core::task::{End, Place};
use tenure_core::time::DurationMs;
use tenure_core::{Timestamp, WorkerId, limits};
use tenure_engine::{TaskClaim, WorkerCall, random_seed};
use uuid::Uuid;

use super::who::Seen;
use super::{SMALL_BODY_BYTES, issue, respond, task_id};
use crate::access::address::Peer;
use crate::access::guard::AsWorker;
use crate::api;
use crate::contracts::pull;
use crate::dispatch::render::{AttemptNumber, work_payload};
use crate::error::{Fault, Setting};
use crate::request::{self, RequestId};
use crate::state::App;
use crate::validate;

/// `POST /internal/task-claim`
#[utoipa::path(post, path = "/internal/task-claim", operation_id = "dispatch_claim", tag = "dispatch contract",
    request_body = ClaimRequest, security(("worker_token" = ["worker:lease"])),
    responses((status = 200, body = ClaimAnswer, description = "The task was granted; or `NotClaimed` with its reason"),
              (status = 409, body = NotClaimed, description = "Not claimed, to a caller without a worker_id"),
              (status = "4XX", body = Error), (status = 503, body = Error)))]
pub async fn claim(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(worker): AsWorker,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let raw = request::read_any(&headers, body, SMALL_BODY_BYTES).await?;
        let request = dialect::claim(&raw.bytes)?;
        // A caller that names no worker judges by the status.
        let by_status = request.worker_id.is_none();
        let claim = claim_of(&app, &worker, &request, peer.map(|peer| peer.0))?;
        // Whoever cannot make the capability token must not grant: the attempt would be lost.
        app.identity.task_keys().ok_or(Fault::NotConfigured(Setting::TaskKey))?;
        if let Some(worker) = &claim.claimer.worker {
            let call = WorkerCall { worker: &worker.id, contract: "dispatch", queues: &[], details: None };
            app.engine.saw_worker(call);
        }
        match app.engine.claim_task(claim).await?? {
            TaskClaim::Granted(granted) => {
                let grant = granted.grants.into_iter().next().ok_or(Fault::Internal)?;
                let handed = app.engine.handing(grant.clone());
                let claimed = claimed(&app, &grant).await?;
                handed.arrived();
                Ok((StatusCode::OK, ClaimAnswer::Claimed(Box::new(claimed))))
            }
            TaskClaim::NotGranted(not) => {
                let mut body = NotClaimed::new(reason(not.reason));
                body.error = by_status.then(|| "not_claimed".to_owned());
                let status = if by_status { StatusCode::CONFLICT } else { StatusCode::OK };
                Ok((status, ClaimAnswer::NotClaimed(body)))
            }
        }
    };
    match answer.await {
        Ok((status, body)) => (status, Json(body)).into_response(),
        Err(fault) => super::errors::refuse(fault, &id),
    }
}

fn claim_of(app: &App, worker: &Worker, request: &ClaimRequest, peer: Option<Peer>) -> Result<ClaimTask, Fault> {
    let task = task_id(&request.task_id)?;
    let claim_id = request.claim_id.as_deref();
    let claim_id = claim_id.map(|text| validate::text_of(text, "claim_id", limits::CLAIM_ID_BYTES)).transpose()?;
    let id: WorkerId = match (&request.worker_id, &worker.id) {
        (Some(id), _) => pull::speaks_as(app, worker, id)?,
        (None, Some(own)) => own.as_str().into(),
        (None, None) => {
            format!("anonymous@{}", peer.map_or("unknown".to_owned(), |peer| peer.0.ip().to_string())).into()
        }
    };
    let claimant = Claimant { id, incarnation: None, claim_id, kills_on_expiry: false, dispatch: true };
    Ok(ClaimTask { claimer: Claimer { worker: Some(claimant), seed: random_seed() }, task, message: None })
}

async fn claimed(app: &App, grant: &Grant) -> Result<Claimed, Fault> {
    let body = grant.body.as_ref().ok_or(Fault::Internal)?;
    let task = app.dispatch.job_task(body).await?.ok_or(Fault::Internal)?;
    let wire = app.dispatch.wire(&task, AttemptNumber { attempt: grant.attempt, fence: grant.fence }).await?;
    let deadline = task.timeout_seconds().map(|timeout| grant.granted_at.plus(i64::from(timeout) * 1_000));
    Ok(Claimed {
        status: "Claimed".to_owned(),
        task_id: grant.task.to_string(),
        attempt: grant.attempt,
        lease_token: lease_token(grant),
        lease_expires_at: grant.expires_at.to_string(),
        capability_token: issue(app, &task, &wire)?,
        fence: grant.fence.0,
        heartbeat_interval_seconds: interval_seconds(grant.heartbeat_ms),
        deadline_at: deadline.as_ref().map(Timestamp::to_string),
        work_payload: work_payload(&task, &wire),
        task: wire,
    })
}

/// In whole seconds, unless the lease is too short for that.
fn interval_seconds(interval_ms: DurationMs) -> f64 {
    if interval_ms < 1_000 { interval_ms as f64 / 1_000.0 } else { (interval_ms / 1_000) as f64 }
}

/// A lease token in the shape of this contract.
pub fn lease_token(grant: &Grant) -> String {
    Uuid::from_u128(grant.token.reveal()).hyphenated().to_string()
}

const fn reason(reason: NotGrantedReason) -> NotClaimedReason {
    match reason {
        NotGrantedReason::AlreadyRunning => NotClaimedReason::AlreadyRunning,
        NotGrantedReason::Ended(End::Succeeded) => NotClaimedReason::Completed,
        NotGrantedReason::Ended(End::Failed) => NotClaimedReason::Failed,
        NotGrantedReason::Ended(End::Canceled | End::Skipped) => NotClaimedReason::Canceled,
        NotGrantedReason::NotDue => NotClaimedReason::NotReady,
        NotGrantedReason::NotFound => NotClaimedReason::NotFound,
    }
}

#[derive(Debug, Deserialize)]
struct FetchQuery {
    task_id: String,
}

/// `GET /internal/task-fetch`
#[utoipa::path(get, path = "/internal/task-fetch", operation_id = "dispatch_fetch", tag = "dispatch contract",
    params(("task_id" = String, Query, description = "The id of the task, a UUID")),
    security(("worker_token" = ["worker:lease"])),
    responses((status = 200, body = FetchAnswer), (status = "4XX", body = Error), (status = 503, body = Error)))]
pub async fn fetch(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(_): AsWorker,
    uri: Uri,
) -> Response {
    let answer = async {
        let query: FetchQuery = api::query(&uri)?;
        let seen = Seen::of(&app, task_id(&query.task_id)?).await?;
        let place = &seen.view.place;
        let task = app.dispatch.wire(&seen.task, AttemptNumber { attempt: place.attempt(), fence: place.fence() });
        let task = task.await?;
        let (status, next_retry_at) = standing(place);
        Ok(FetchAnswer {
            status,
            next_retry_at: next_retry_at.map(|at| at.to_string()),
            work_payload: work_payload(&seen.task, &task),
            nested: task.clone(),
            task,
        })
    };
    respond(answer.await, &id)
}

/// The state of a task on this wire, and when it is tried again.
pub fn standing(place: &Place) -> (TaskStatus, Option<Timestamp>) {
    match place {
        Place::Scheduled(waiting) if waiting.attempt > 0 => (TaskStatus::Failed, Some(waiting.at)),
        Place::Blocked(_) | Place::Scheduled(_) | Place::Ready(_) => (TaskStatus::Queued, None),
        Place::Running(running) if running.cancel.is_some() => (TaskStatus::Canceled, None),
        Place::Running(_) => (TaskStatus::Running, None),
        Place::Finished(finished) => match finished.end {
            End::Succeeded => (TaskStatus::Completed, None),
            End::Failed => (TaskStatus::Failed, None),
            End::Canceled | End::Skipped => (TaskStatus::Canceled, None),
        },
    }
}
