//! Workers of every contract: those that ask for tasks, those that call back, and those that hold sandboxes.

use std::collections::BTreeMap;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, HeaderValue, Uri};
use axum::response::Response;
use axum::routing::{get, post};
use tenure_contract::sandboxes::{DrainRequest, HeldTask, SandboxError, WorkerInfo};
use tenure_core::Timestamp;
use tenure_engine::store::WorkerRecord;

use super::fleet::{all_workers, named};
use super::{NEXT_CURSOR, Params, errors, render, respond};
use crate::access::caller::Caller;
use crate::access::guard::User;
use crate::audit;
use crate::error::{Fault, SandboxFault, SandboxFaultKind};
use crate::request::{self, RequestId};
use crate::state::App;
use crate::validate;

const REASON_BYTES: usize = 512;
const BODY_BYTES: usize = 4 << 10;
/// Workers in a page.
const PAGE: usize = 1_000;
/// Attempts that are shown with one worker.
const HELD_TASKS: usize = 100;
/// A worker that has not called for this long is taken for gone.
const OFFLINE_AFTER_MS: i64 = 120_000;
/// The state of a worker that is drained, and what is asked of it.
const DRAINING: &str = "draining";

pub fn router() -> Router<App> {
    Router::new()
        .route("/api/v1/workers", get(workers))
        .route("/api/v1/workers/{id}", get(worker))
        .route("/api/v1/workers/{id}/drain", post(drain))
        .route("/api/v1/workers/{id}/undrain", post(undrain))
        .route("/api/v1/admin/workers", get(admin_workers))
        .route("/api/v1/admin/workers/{id}", get(admin_worker))
        .route("/api/v1/admin/workers/{id}/drain", post(admin_drain))
        .route("/api/v1/admin/workers/{id}/undrain", post(admin_undrain))
}

/// List workers of all contracts
///
/// By id, at most 1000 at a time. `X-Next-Cursor` names where a longer list goes on.
#[utoipa::path(get, path = "/api/v1/workers", operation_id = "list_sandbox_workers", tag = "workers",
    params(("limit" = Option<u32>, Query), ("cursor" = Option<String>, Query)), security(("api_key" = ["operator"])),
    responses((status = 200, body = Vec<WorkerInfo>, description = "The workers, by id")))]
pub async fn workers(State(app): State<App>, Extension(id): Extension<RequestId>, uri: Uri) -> Response {
    match list(&app, &uri).await {
        Err(fault) => errors::refuse(fault, &id),
        Ok((items, next)) => {
            let mut response = respond(Ok(items), &id);
            if let Some(next) = next.and_then(|next| HeaderValue::from_str(&next).ok()) {
                response.headers_mut().insert(NEXT_CURSOR, next);
            }
            response
        }
    }
}

async fn list(app: &App, uri: &Uri) -> Result<(Vec<WorkerInfo>, Option<String>), Fault> {
    let params = Params::of(uri)?;
    let limit = match params.number("limit")? {
        None => PAGE,
        Some(limit) => usize::try_from(limit)
            .ok()
            .filter(|limit| (1..=PAGE).contains(limit))
            .ok_or_else(|| Fault::bad("limit", "limit must be from 1 to 1000"))?,
    };
    let after = params.text("cursor").unwrap_or_default();
    let (page, now) = (app.engine.worker_records(after, limit).await?, app.engine.now().await?);
    let mut found: BTreeMap<String, WorkerInfo> =
        page.items.iter().map(|record| (record.worker.to_string(), shown(record, now))).collect();
    // There are few workers that hold sandboxes. Those beyond the last record come with the next page.
    let holders = if app.sandboxes().is_ok() { all_workers(app).await? } else { Vec::new() };
    let end = page.next.as_deref();
    for worker in holders.into_iter().map(of_sandboxes) {
        if worker.id.as_str() > after && end.is_none_or(|end| worker.id.as_str() <= end) {
            let record = found.remove(&worker.id);
            found.insert(worker.id.clone(), both(Some(worker), record).unwrap_or_default());
        }
    }
    let more = page.next.is_some() || found.len() > limit;
    let items: Vec<WorkerInfo> = found.into_values().take(limit).collect();
    let next = items.last().filter(|_| more).map(|last| last.id.clone());
    Ok((items, next))
}

/// List workers of all contracts, for admins
#[utoipa::path(get, path = "/api/v1/admin/workers", operation_id = "admin_list_sandbox_workers", tag = "workers",
    params(("limit" = Option<u32>, Query), ("cursor" = Option<String>, Query)), security(("api_key" = ["admin"])),
    responses((status = 200, body = Vec<WorkerInfo>, description = "The workers, by id")))]
pub async fn admin_workers(app: State<App>, id: Extension<RequestId>, uri: Uri) -> Response {
    workers(app, id, uri).await
}

/// Show a worker and what it holds
#[utoipa::path(get, path = "/api/v1/workers/{id}", operation_id = "get_sandbox_worker", tag = "workers", params(("id" = String, Path)), security(("api_key" = ["operator"])),
    responses((status = 200, body = WorkerInfo, description = "The worker"), (status = 404, body = SandboxError, description = "no such worker")))]
pub async fn worker(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(name): Path<String>,
) -> Response {
    respond(one(&app, &caller, &name).await, &id)
}

async fn one(app: &App, caller: &Caller, name: &str) -> Result<WorkerInfo, Fault> {
    let name = named(name)?;
    let (record, now) = (app.engine.worker_record(name).await?, app.engine.now().await?);
    let mut info =
        both(holder(app, name).await?, record.as_ref().map(|record| shown(record, now))).ok_or_else(no_such_worker)?;
    if record.is_some() {
        let held = app.engine.held_tasks(name, &caller.reach(), HELD_TASKS).await?;
        info.held_tasks = Some(held.iter().map(held_task).collect());
    }
    Ok(info)
}

fn no_such_worker() -> Fault {
    SandboxFault::fault(SandboxFaultKind::NotFound, "no such worker")
}

/// The worker with this id that holds sandboxes.
async fn holder(app: &App, name: &str) -> Result<Option<WorkerInfo>, Fault> {
    let Ok(part) = app.sandboxes() else { return Ok(None) };
    let Some(worker) = part.manager.sandbox_workers().await?.into_iter().find(|worker| &*worker.id == name) else {
        return Ok(None);
    };
    let usage = part.manager.usage_of(std::slice::from_ref(&worker)).await?;
    Ok(Some(of_sandboxes(render::worker(&worker, part.manager.is_stale(&worker).await?, usage.first().copied()))))
}

fn of_sandboxes(worker: WorkerInfo) -> WorkerInfo {
    WorkerInfo { contracts: vec!["sandbox".to_owned()], ..worker }
}

fn shown(record: &WorkerRecord, now: Timestamp) -> WorkerInfo {
    let details = &record.details;
    let is_gone = now.since(record.seen_at) > OFFLINE_AFTER_MS;
    let status = match (is_gone, record.drained_at) {
        (true, _) => "offline",
        (false, Some(_)) => DRAINING,
        (false, None) => "online",
    };
    WorkerInfo {
        id: record.worker.to_string(),
        hostname: details.hostname.as_deref().unwrap_or_default().to_owned(),
        status: status.to_owned(),
        last_heartbeat: render::whole_seconds(record.seen_at),
        created_at: render::whole_seconds(record.first_seen_at),
        updated_at: render::whole_seconds(record.seen_at),
        stale: is_gone,
        desired_status: record.drained_at.map(|_| DRAINING.to_owned()),
        drain_reason: record.drain_reason.as_deref().map(ToOwned::to_owned),
        contracts: record.contracts.iter().map(ToString::to_string).collect(),
        queues: record.queues.iter().map(ToString::to_string).collect(),
        operators: details.operators.iter().map(ToString::to_string).collect(),
        slots: details.slots,
        held: Some(record.held),
        version: details.version.as_deref().map(ToOwned::to_owned),
        clock_ahead_ms: details.clock_ahead_ms,
        ..WorkerInfo::default()
    }
}

/// One worker may hold sandboxes and ask for tasks.
fn both(holder: Option<WorkerInfo>, record: Option<WorkerInfo>) -> Option<WorkerInfo> {
    match (holder, record) {
        (Some(holder), Some(record)) => Some(WorkerInfo {
            contracts: record.contracts.into_iter().chain(holder.contracts).collect(),
            queues: record.queues,
            operators: record.operators,
            slots: record.slots,
            held: record.held,
            version: record.version,
            clock_ahead_ms: record.clock_ahead_ms,
            desired_status: holder.desired_status.or(record.desired_status),
            drain_reason: holder.drain_reason.or(record.drain_reason),
            ..holder
        }),
        (holder, record) => holder.or(record),
    }
}

fn held_task(held: &tenure_engine::store::HeldTask) -> HeldTask {
    HeldTask {
        task_id: held.task.to_string(),
        queue: held.queue.to_string(),
        operator: held.operator.to_string(),
        attempt: held.attempt,
        granted_at: held.granted_at.to_string(),
        last_heartbeat_at: held.last_heartbeat_at.map(|at| at.to_string()),
        lease_expires_at: held.expires_at.to_string(),
    }
}

/// Show a worker and what it holds, for admins
#[utoipa::path(get, path = "/api/v1/admin/workers/{id}", operation_id = "admin_get_sandbox_worker", tag = "workers", params(("id" = String, Path)), security(("api_key" = ["admin"])),
    responses((status = 200, body = WorkerInfo, description = "The worker")))]
pub async fn admin_worker(app: State<App>, id: Extension<RequestId>, caller: User, name: Path<String>) -> Response {
    worker(app, id, caller, name).await
}

/// Let a worker get no new work
///
/// It keeps what it holds. A worker that asks for tasks gets none, and sees `drained` in the answer to its claim; a worker
/// that holds sandboxes gets no new ones. A worker that only calls back cannot be drained: pause its queue.
#[utoipa::path(post, path = "/api/v1/workers/{id}/drain", operation_id = "drain_worker", tag = "workers", params(("id" = String, Path)), request_body = DrainRequest, security(("api_key" = ["admin"])),
    responses((status = 200, body = WorkerInfo, description = "The worker"), (status = 404, body = SandboxError, description = "no such worker"),
              (status = 409, body = SandboxError, description = "It only calls back")))]
pub async fn drain(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = drained(&app, &caller, &name, &headers, body).await;
    respond(audit::operation(&app, &caller, &id, "worker.drain", &name, answer).await, &id)
}

async fn drained(app: &App, caller: &Caller, name: &str, headers: &HeaderMap, body: Body) -> Result<WorkerInfo, Fault> {
    // Also for servers without sandboxes, whose bounds count the memory of other requests.
    let raw = request::read_any(headers, body, BODY_BYTES).await?;
    let asked: DrainRequest = if raw.bytes.is_empty() { DrainRequest::default() } else { raw.decode()? };
    let reason = asked.reason.map(|reason| validate::words(&reason, "reason", REASON_BYTES)).transpose()?;
    set(app, caller, name, Some(reason.as_deref())).await
}

/// Let a worker get work again
#[utoipa::path(post, path = "/api/v1/workers/{id}/undrain", operation_id = "undrain_worker", tag = "workers", params(("id" = String, Path)), security(("api_key" = ["admin"])),
    responses((status = 200, body = WorkerInfo, description = "The worker"), (status = 404, body = SandboxError, description = "no such worker")))]
pub async fn undrain(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(name): Path<String>,
) -> Response {
    let answer = set(&app, &caller, &name, None).await;
    respond(audit::operation(&app, &caller, &id, "worker.undrain", &name, answer).await, &id)
}

/// Drains a worker for a reason, or takes that back, under every contract that it has.
async fn set(app: &App, caller: &Caller, name: &str, drain: Option<Option<&str>>) -> Result<WorkerInfo, Fault> {
    let name = named(name)?;
    let holds_sandboxes = holder(app, name).await?.is_some();
    let record = app.engine.worker_record(name).await?;
    let only_called = |record: &WorkerRecord| record.contracts.iter().all(|contract| &**contract == "callback");
    if record.as_ref().is_some_and(only_called) && !holds_sandboxes && drain.is_some() {
        let message = "a worker that is called cannot be drained: pause its queue instead";
        return Err(SandboxFault::fault(SandboxFaultKind::Conflict, message));
    }
    if record.is_none() && !holds_sandboxes {
        return Err(no_such_worker());
    }
    if record.is_some() {
        app.engine.drain_worker(name, drain.is_some(), drain.flatten()).await?;
    }
    if holds_sandboxes {
        let manager = &app.sandboxes()?.manager;
        match drain {
            Some(reason) => manager.drain(name, reason).await?,
            None => manager.undrain(name).await?,
        };
    }
    one(app, caller, name).await
}

/// Let a worker get no new work, for admins
#[utoipa::path(post, path = "/api/v1/admin/workers/{id}/drain", operation_id = "drain_sandbox_worker", tag = "workers", params(("id" = String, Path)), request_body = DrainRequest, security(("api_key" = ["admin"])),
    responses((status = 200, body = WorkerInfo, description = "The worker")))]
pub async fn admin_drain(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    respond(drained(&app, &caller, &name, &headers, body).await, &id)
}

/// Let a worker get work again, for admins
#[utoipa::path(post, path = "/api/v1/admin/workers/{id}/undrain", operation_id = "undrain_sandbox_worker", tag = "workers", params(("id" = String, Path)), security(("api_key" = ["admin"])),
    responses((status = 200, body = WorkerInfo, description = "The worker")))]
pub async fn admin_undrain(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(name): Path<String>,
) -> Response {
    respond(set(&app, &caller, &name, None).await, &id)
}
