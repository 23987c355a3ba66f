//! Calls to the runtime of a sandbox.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::command::Reach;
use tenure_core::sandbox::placement::Worker;
use tenure_core::sandbox::{Sandbox, SandboxId, State};
use tenure_core::time::DurationMs;
use tenure_store::SandboxRoute;

use super::leases::token;
use super::workers::{CallClass, CallError, CallTerms, RpcLease, RuntimeRef, Target};
use super::{SandboxError, Sandboxes, TENANT_WIDE, lock};

/// How often a call is repeated with a newer lease.
const STALE_RETRIES: u32 = 3;

/// The way to the runtime of a sandbox.
#[derive(Debug, Clone)]
pub struct Route {
    pub row: Sandbox,
    pub target: Target,
    /// `None`: the call goes without one.
    pub lease: Option<RpcLease>,
    /// The id of this call; a repeated call has the same one.
    pub request_id: Arc<str>,
    /// Variables that a command must be given because the worker does not keep them with the runtime.
    pub env: BTreeMap<String, String>,
}

/// A sandbox that is there.
#[derive(Debug)]
pub struct Found {
    pub row: Sandbox,
    /// The longest time that a command of its owner may take; 0 is without a bound.
    pub max_exec_timeout_ms: DurationMs,
    pub route: Result<Route, SandboxError>,
}

impl Route {
    pub fn terms(&self, within: Duration) -> CallTerms {
        CallTerms { request_id: Arc::clone(&self.request_id), lease: self.lease.clone(), within }
    }

    pub fn runtime(&self) -> RuntimeRef {
        runtime(&self.row)
    }
}

pub(super) fn runtime(row: &Sandbox) -> RuntimeRef {
    RuntimeRef { sandbox: Arc::clone(&row.id), provider: row.spec.provider.clone(), runtime_id: row.runtime_id.clone() }
}

impl Sandboxes {
    /// A row that the caller may see and that is not destroyed.
    pub(super) async fn row(&self, id: &str, reach: &Reach) -> Result<Sandbox, SandboxError> {
        let row = self.rows().sandbox(id, reach).await?;
        row.filter(|row| row.state != State::Destroyed).ok_or_else(|| SandboxError::not_found("sandbox", id))
    }

    /// The worker of a row and the way to it. `None`: it cannot be called.
    pub(super) async fn owner_of(&self, row: &Sandbox) -> Result<(Option<Worker>, Option<Target>), SandboxError> {
        let worker = match &row.worker {
            Some(worker) => self.rows().sandbox_worker(worker).await?,
            None => None,
        };
        let target = worker.as_ref().and_then(|worker| self.target(worker));
        Ok((worker, target))
    }

    /// The way to a sandbox that can be used.
    pub async fn route(&self, id: &str, reach: &Reach) -> Result<Route, SandboxError> {
        self.find(id, reach).await?.route
    }

    /// A sandbox that the caller may see and that is not destroyed, with the way to it.
    pub async fn find(&self, id: &str, reach: &Reach) -> Result<Found, SandboxError> {
        let found = self.rows().sandbox_route(id, TENANT_WIDE).await?;
        let found = found.filter(|found| found.row.is_covered(reach) && found.row.state != State::Destroyed);
        let found = found.ok_or_else(|| SandboxError::not_found("sandbox", id))?;
        let row = found.row.clone();
        let limits = self.limits_by(&found.quotas, row.owner.as_deref());
        Ok(Found { row, max_exec_timeout_ms: limits.max_exec_timeout_ms, route: self.route_by(found) })
    }

    fn route_by(&self, found: SandboxRoute) -> Result<Route, SandboxError> {
        let SandboxRoute { row, worker, lease, .. } = found;
        let id = &row.id;
        if !matches!(row.state, State::Running | State::Idle | State::Unhealthy) {
            let message = format!("sandbox {id} is {}", row.state.as_str());
            return Err(SandboxError::conflict("not_running", message));
        }
        let Some(target) = worker.as_ref().and_then(|worker| self.target(worker)) else {
            let worker = row.worker.as_deref().unwrap_or_default();
            let message = format!(
                "worker '{worker}' of sandbox {id} cannot be called: it is gone, or has no rpc_url or credential"
            );
            return Err(SandboxError::unavailable("remote_worker_rpc_unavailable", message));
        };
        let lease = lease.filter(|lease| lease.lease.holder == target.worker);
        let env = self.env_for(&target, &row)?;
        Ok(Route { lease: lease.as_ref().map(token), request_id: self.request_id(), row, target, env })
    }

    /// Calls the worker of a sandbox. A refusal for a stale or expired lease is answered with a newer one, and a runtime that
    /// the worker does not have is looked into. `call` may run several times.
    pub async fn call<T, F, R>(&self, id: &str, reach: &Reach, call: F) -> Result<T, SandboxError>
    where
        F: Fn(Route) -> R + Send + Sync,
        R: Future<Output = Result<T, CallError>> + Send,
        T: Send,
    {
        self.call_by(self.route(id, reach).await?, reach, call).await
    }

    /// The same by a way that was found before.
    pub async fn call_by<T, F, R>(&self, mut route: Route, reach: &Reach, call: F) -> Result<T, SandboxError>
    where
        F: Fn(Route) -> R + Send + Sync,
        R: Future<Output = Result<T, CallError>> + Send,
        T: Send,
    {
        let id = Arc::clone(&route.row.id);
        let id = &*id;
        let (mut stale, mut is_renewed) = (0, false);
        loop {
            let holder = Arc::clone(&route.target.worker);
            let error = match call(route.clone()).await {
                Ok(result) => return Ok(result),
                Err(error) => error,
            };
            match error.class() {
                Some(CallClass::LeaseStale) if stale < STALE_RETRIES => {
                    stale += 1;
                    route = self.route_again(id, reach, &route).await?;
                    if route.target.worker != holder {
                        return Err(error.into());
                    }
                }
                Some(CallClass::LeaseExpired) if !is_renewed => {
                    is_renewed = true;
                    route = self.renewed_route(route).await?;
                }
                Some(CallClass::NotFound | CallClass::Destroyed) => {
                    // It may be a file that is not there.
                    let row = self.look_into(&route.row).await?;
                    if row.is_none_or(|row| row.state == State::Destroyed) {
                        return Err(SandboxError::not_found("sandbox", id));
                    }
                    return Err(error.into());
                }
                _ => return Err(error.into()),
            }
        }
    }

    async fn route_again(&self, id: &str, reach: &Reach, last: &Route) -> Result<Route, SandboxError> {
        Ok(Route { request_id: Arc::clone(&last.request_id), ..self.route(id, reach).await? })
    }

    async fn renewed_route(&self, mut route: Route) -> Result<Route, SandboxError> {
        let Some(worker) = self.rows().sandbox_worker(&route.target.worker).await? else { return Ok(route) };
        let lease = self.acquire_again(&route.row, &worker, self.now().await?).await?;
        self.push_lease(&route.row, &route.target, lease).await?;
        // The worker's renewal has raised the generation.
        let lease = self.rows().sandbox_lease(&route.row.id).await?;
        route.lease = lease.as_ref().map(token);
        Ok(route)
    }

    /// Notes that a command runs in a sandbox until the guard is dropped: a restore is refused meanwhile.
    pub fn begin_exec(&self, id: &SandboxId) -> ExecGuard {
        *lock(&self.inner.execs).entry(Arc::clone(id)).or_default() += 1;
        ExecGuard { sandboxes: self.clone(), id: Arc::clone(id) }
    }

    pub(super) fn has_execs(&self, id: &str) -> bool {
        lock(&self.inner.execs).contains_key(id)
    }
}

/// A command that runs in a sandbox.
#[derive(Debug)]
pub struct ExecGuard {
    sandboxes: Sandboxes,
    id: SandboxId,
}

impl Drop for ExecGuard {
    fn drop(&mut self) {
        let mut execs = lock(&self.sandboxes.inner.execs);
        if let Some(count) = execs.get_mut(&self.id) {
            *count -= 1;
            if *count == 0 {
                execs.remove(&self.id);
            }
        }
    }
}
