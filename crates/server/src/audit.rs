//! Who did what: every request of admins, and what users change.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request};
use axum::http::{Method, StatusCode, header};
use tenure_core::command::heartbeat::Heartbeat;
use tenure_core::command::{ConflictKind, Rejection};
use tenure_core::{TaskId, WorkerId};
use tenure_engine::Reply;
use tenure_engine::store::{AdminAudit, OperationAudit};

use crate::access::caller::Caller;
use crate::access::guard::nobody;
use crate::access::limiter::Allowance;
use crate::api::errors;
use crate::error::Fault;
use crate::request::RequestId;
use crate::state::App;

const ADMIN: &str = "/api/v1/admin/";
const TEXT_BYTES: usize = 256;
const DETAIL_BYTES: usize = 1_024;

/// Whether a request ends with a row in the audit: of admins, and of what users change. Submitting leaves the task.
pub fn leaves_a_row(method: &Method, route: &str) -> bool {
    let reads = matches!(*method, Method::GET | Method::HEAD);
    let submits = matches!(route, "/api/v1/tasks" | "/api/v1/tasks/batch" | "/api/v1/runs");
    // They end with their caller, and write their rows themselves. Workers change nothing that a user did.
    let of_worker = route.starts_with("/api/v1/worker/") && !route.ends_with("/token");
    let ends_alone = route.ends_with("/exec") || route == "/api/v1/query" || route.contains("/proxy/") || of_worker;
    route.starts_with(ADMIN) || (route.starts_with("/api/v1/") && !reads && !submits && !ends_alone)
}

/// An admin request on its way.
#[derive(Debug)]
pub struct Pending {
    started: Instant,
    method: String,
    path: String,
    request_id: String,
    from: IpAddr,
    user_agent: Option<String>,
}

impl Pending {
    /// Only requests below `/api/v1/admin/` are audited this way. The query is left out: it is not what was done.
    pub fn of(route: &str, request: &Request, from: IpAddr, id: &RequestId) -> Option<Self> {
        if !route.starts_with(ADMIN) {
            return None;
        }
        let agent = request.headers().get(header::USER_AGENT).and_then(|value| value.to_str().ok());
        Some(Self {
            started: Instant::now(),
            method: request.method().to_string(),
            path: plain(request.uri().path()),
            request_id: id.0.clone(),
            from,
            user_agent: agent.map(plain),
        })
    }

    pub async fn record(self, app: &App, caller: Option<&Caller>, status: StatusCode) {
        // A flood of failures is counted, not written down.
        if status == StatusCode::TOO_MANY_REQUESTS && caller.is_none() {
            return;
        }
        let row = AdminAudit {
            actor: caller.map_or_else(nobody, |caller| Arc::clone(&caller.actor)).to_string(),
            method: self.method,
            path: self.path,
            status: status.as_u16(),
            duration_ms: i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX),
            request_id: self.request_id,
            remote_addr: self.from.to_string(),
            user_agent: self.user_agent,
            tenant: caller.and_then(|caller| caller.tenant.as_deref()).map(ToOwned::to_owned),
        };
        if let Err(error) = app.engine.identity().audit_admin(&[row]).await {
            metrics::counter!("tenure_audit_failures_total").increment(1);
            tracing::error!(error = error.chain(), "cannot write an admin request to the audit log");
        }
    }
}

/// A request that was not let in.
#[derive(Debug)]
pub struct Attempted {
    pub method: Method,
    pub route: MatchedPath,
    pub id: RequestId,
}

/// Refusals of one address or worker, and of all, that are written down. More are counted only.
const REFUSALS_OF_ONE: Allowance = Allowance { per_minute: 6.0, burst: 10.0 };
const REFUSALS: Allowance = Allowance { per_minute: 60.0, burst: 60.0 };

/// Writes down that somebody was not let in where requests of admins are not audited anyway.
pub async fn refused(app: &App, caller: Option<&Caller>, tried: &Attempted, from: IpAddr, status: StatusCode) {
    if !matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        return;
    }
    if !may_write(app, &from.to_string()) {
        return;
    }
    let row = OperationAudit {
        actor: caller.map_or_else(nobody, |caller| Arc::clone(&caller.actor)).to_string(),
        action: "access.refused".to_owned(),
        sandbox: None,
        resource: plain(&format!("{} {}", tried.method, tried.route.as_str())),
        status: "refused".to_owned(),
        detail: Some(format!("{} from {from}", status.as_u16())),
        tenant: caller.and_then(|caller| caller.tenant.as_deref()).map(ToOwned::to_owned),
        request_id: Some(tried.id.0.clone()),
    };
    record(app, row).await;
}

/// Who sends a heartbeat, if its credential proves it, and about which task.
#[derive(Debug)]
pub struct Sender {
    task: TaskId,
    worker: Option<WorkerId>,
}

impl Sender {
    pub fn of(heartbeat: &Heartbeat) -> Self {
        Self { task: heartbeat.task, worker: heartbeat.worker.clone() }
    }
}

/// Writes down heartbeats that were sent with the lease of another worker. They change nothing, so that the history of the task
/// does not show them; reports are in it.
pub async fn heartbeats_of_another<A>(app: &App, senders: &[Sender], replies: &[Reply<A>]) {
    for (sender, reply) in senders.iter().zip(replies) {
        let Some(worker) = &sender.worker else { continue };
        let is_foreign = |rejection: &Rejection| matches!(rejection, Rejection::Conflict(conflict) if conflict.kind == ConflictKind::OtherWorker);
        if !matches!(reply, Ok(Err(rejection)) if is_foreign(rejection)) || !may_write(app, worker) {
            continue;
        }
        let row = OperationAudit {
            actor: plain(&format!("worker:{worker}")),
            action: "lease.refused".to_owned(),
            sandbox: None,
            resource: format!("task {}", sender.task),
            status: "refused".to_owned(),
            detail: Some("heartbeat with the lease of another worker".to_owned()),
            tenant: None,
            request_id: None,
        };
        record(app, row).await;
    }
}

/// Whether a refusal is written down, or only counted: a flood of them must not fill the store.
fn may_write(app: &App, whose: &str) -> bool {
    let now = Instant::now();
    let allowed = app.failures.take(&format!("refusals:{whose}"), REFUSALS_OF_ONE, now).allowed
        && app.failures.take("refusals", REFUSALS, now).allowed;
    if !allowed {
        metrics::counter!("tenure_audit_refusals_dropped_total").increment(1);
    }
    allowed
}

/// Something that a user changed, or tried to. The answer comes back as it was.
pub async fn operation<T>(
    app: &App,
    caller: &Caller,
    id: &RequestId,
    action: &'static str,
    resource: &str,
    answer: Result<T, Fault>,
) -> Result<T, Fault> {
    operation_about(app, caller, id, action, resource, answer, |_| None).await
}

/// The same with more about what was changed.
pub async fn operation_about<T>(
    app: &App,
    caller: &Caller,
    id: &RequestId,
    action: &'static str,
    resource: &str,
    answer: Result<T, Fault>,
    about: impl FnOnce(&T) -> Option<String>,
) -> Result<T, Fault> {
    let (status, detail) = match &answer {
        Ok(answer) => ("ok", about(answer).unwrap_or_default()),
        Err(Fault::Refused(Rejection::NotFound)) => ("refused", "not_found".to_owned()),
        Err(fault) => ("refused", errors::word(fault).to_owned()),
    };
    let row = OperationAudit {
        actor: caller.actor.to_string(),
        action: action.to_owned(),
        sandbox: None,
        resource: plain(resource),
        status: status.to_owned(),
        detail: Some(detail).filter(|detail| !detail.is_empty()).map(|detail| cleaned(&detail, DETAIL_BYTES)),
        tenant: Some(caller.home().to_string()),
        request_id: Some(id.0.clone()),
    };
    record(app, row).await;
    answer
}

/// A worker token that was issued: its id is what a revocation needs.
pub async fn issued(app: &App, actor: &str, id: &RequestId, worker: &str, token_id: &str) {
    let row = OperationAudit {
        actor: plain(actor),
        action: "worker_token.issue".to_owned(),
        sandbox: None,
        resource: plain(worker),
        status: "ok".to_owned(),
        detail: Some(format!("token_id {}", plain(token_id))),
        tenant: None,
        request_id: Some(id.0.clone()),
    };
    record(app, row).await;
}

pub async fn record(app: &App, row: OperationAudit) {
    if let Err(error) = app.engine.identity().audit_operations(&[row]).await {
        metrics::counter!("tenure_audit_failures_total").increment(1);
        tracing::error!(error = error.chain(), "cannot write an operation to the audit log");
    }
}

/// What callers chose goes into the audit without control characters and not at any length.
pub fn plain(text: &str) -> String {
    cleaned(text, TEXT_BYTES)
}

fn cleaned(text: &str, bytes: usize) -> String {
    let clean: String = text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    tenure_core::limits::cut(&clean, bytes).to_owned()
}
