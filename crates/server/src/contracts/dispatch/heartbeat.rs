//! Heartbeat.

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::Response;
use tenure_contract::dispatch::{AttemptRef, Error, HeartbeatAnswer, TaskStatus, dialect};
use tenure_core::attempt::Progress;
use tenure_core::command::heartbeat::Heartbeat;
use tenure_core::command::{ConflictKind, Rejection};
use tenure_core::dag::definition::Source;
use tenure_core::task::{Place, State as TaskState};

use super::who::{Seen, Speaker, SpeaksBy, Who};
use super::{Capability, SMALL_BODY_BYTES, issue, respond};
use crate::access::guard::AsWorker;
use crate::access::task_token::Presented;
use crate::audit;
use crate::dispatch::render::AttemptNumber;
use crate::error::Fault;
use crate::request::{self, RequestId};
use crate::state::App;

/// `POST /v1/task/heartbeat`
#[utoipa::path(post, path = "/v1/task/heartbeat", operation_id = "dispatch_heartbeat", tag = "dispatch contract",
    request_body = AttemptRef, security(("capability_token" = [])),
    responses((status = 200, body = HeartbeatAnswer), (status = "4XX", body = Error), (status = 503, body = Error)))]
pub async fn heartbeat(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(presented): Extension<Presented<Capability>>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    respond(beat(&app, &Who::Task(presented), &headers, body).await, &id)
}

/// `POST /internal/heartbeat`
#[utoipa::path(post, path = "/internal/heartbeat", operation_id = "dispatch_heartbeat_alias", tag = "dispatch contract",
    request_body = AttemptRef, security(("worker_token" = ["worker:lease"])),
    responses((status = 200, body = HeartbeatAnswer), (status = "4XX", body = Error), (status = 503, body = Error)))]
pub async fn heartbeat_alias(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(worker): AsWorker,
    headers: HeaderMap,
    body: Body,
) -> Response {
    respond(beat(&app, &Who::Worker(worker), &headers, body).await, &id)
}

async fn beat(app: &App, who: &Who, headers: &HeaderMap, body: Body) -> Result<HeartbeatAnswer, Fault> {
    let raw = request::read_any(headers, body, SMALL_BODY_BYTES).await?;
    let speaker = who.speaker(app, &dialect::heartbeat(&raw.bytes)?)?;
    let token = match speaker.sent_token() {
        Some(token) => token,
        None => speaker.token(&Seen::of(app, speaker.task).await?)?,
    };
    let (task, attempt, worker) = (speaker.task, Some(speaker.attempt), speaker.proven.clone());
    let heartbeat = Heartbeat { task, attempt, token, worker, progress: Progress::default(), checkpoint: None };
    let sender = audit::Sender::of(&heartbeat);
    let renewed = [app.engine.heartbeat(heartbeat, raw.bytes.len()).await];
    audit::heartbeats_of_another(app, &[sender], &renewed).await;
    let [renewed] = renewed;
    match renewed? {
        Ok(renewed) => Ok(HeartbeatAnswer {
            lease_expires_at: renewed.expires_at.to_string(),
            status: if renewed.cancel.is_some() { TaskStatus::Canceled } else { TaskStatus::Running },
            fence: renewed.fence.0,
            capability_token: another_token(app, &speaker).await?,
        }),
        Err(rejection) => {
            // A task of no job does not exist here.
            let seen = Seen::of(app, speaker.task).await?;
            match &rejection {
                Rejection::Conflict(conflict)
                    if conflict.kind == ConflictKind::AttemptClosed && conflict.state == TaskState::Canceled =>
                {
                    canceled(&seen, speaker.attempt).ok_or(Fault::Refused(rejection))
                }
                _ => Err(rejection.into()),
            }
        }
    }
}

/// The answer to the holder of a task that was canceled. Its lease was not extended.
fn canceled(seen: &Seen, attempt: u32) -> Option<HeartbeatAnswer> {
    let last = seen.view.place.last_attempt().filter(|last| last.number == attempt && last.receipt.is_none());
    last.map(|last| {
        let spec = &seen.view.body.spec;
        let extended_at = last.last_heartbeat_at.unwrap_or(last.granted_at);
        let ends = last.granted_at.plus(spec.timeout_ms());
        let expires_at = spec.lease_ttl_ms.map_or(last.ended_at, |ttl| extended_at.plus(ttl).min(ends));
        HeartbeatAnswer {
            lease_expires_at: expires_at.to_string(),
            status: TaskStatus::Canceled,
            fence: last.fence.0,
            capability_token: None,
        }
    })
}

/// Another token for a source that runs for ever, before its own expires.
async fn another_token(app: &App, speaker: &Speaker) -> Result<Option<String>, Fault> {
    let SpeaksBy::Task(bearer) = &speaker.by else { return Ok(None) };
    if !bearer.needs_renewal() {
        return Ok(None);
    }
    let seen = Seen::of(app, speaker.task).await?;
    let Place::Running(running) = &seen.view.place else { return Ok(None) };
    if seen.task.job.definition.source() != Some(&Source::AlwaysOn) || running.attempt != speaker.attempt {
        return Ok(None);
    }
    let at = AttemptNumber { attempt: running.attempt, fence: running.lease.generation };
    let wire = app.dispatch.wire(&seen.task, at).await?;
    issue(app, &seen.task, &wire).map(Some)
}
