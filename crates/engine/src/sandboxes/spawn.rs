//! The spawn sequence. Each step is in the store before a worker is asked, so that a crash at any point leaks no runtime:
//!
//! 1. A row that is `creating` names the worker, which holds the lease. (`place_sandbox`)
//! 2. `worker.spawn` with the request id of the row.
//! 3. The row gets its runtime, if it is still `creating` and the worker is the same. Otherwise the runtime is destroyed.
//! 4. A refusal frees the place and the next worker is tried. An unknown outcome is repeated on the same worker until the
//!    deadline; then the row fails, its lease is released, and what exists becomes an orphan.
//! 5. A row that nobody drives is resumed: what its worker has is adopted, otherwise step 2 is repeated.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tenure_core::WorkerId;
use tenure_core::command::Reach;
use tenure_core::sandbox::placement::{Rules, Worker};
use tenure_core::sandbox::{Change, Sandbox, SandboxId, State, reconcile, template};
use tenure_core::time::Timestamp;
use tenure_store::{NotPlaced, Placed, ResourceLease, worker_holder};

use super::calls::runtime;
use super::leases::{RENEW_BELOW_MS, resource, token};
use super::workers::{CallClass, CallError, CallTerms, RpcLease, SpawnOrder, Target};
use super::{Caller, ErrorClass, SandboxError, Sandboxes, event, lock};

/// How many workers are tried.
const MAX_WORKERS: usize = 3;
const STALE_RETRIES: u32 = 3;
const FIRST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(2);
const STATUS_WITHIN: Duration = Duration::from_secs(10);
pub(super) const DESTROY_WITHIN: Duration = Duration::from_secs(60);

/// What became of a spawn on one worker.
enum Attempt {
    Spawned(Arc<str>, RpcLease),
    /// The worker has nothing and takes nothing.
    Refused(SandboxError),
    /// Nobody knows, and the time is over.
    Unknown(SandboxError),
}

/// What is known of calls of a spawn that somebody sent before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Earlier {
    None,
    /// The worker may have executed them, or may execute them yet.
    Unknown,
}

/// A spawn that this control plane drives, until it is dropped.
pub(super) struct Driving {
    sandboxes: Sandboxes,
    id: SandboxId,
}

impl Drop for Driving {
    fn drop(&mut self) {
        lock(&self.sandboxes.inner.driving).remove(&self.id);
    }
}

impl Sandboxes {
    /// `None`: it is driven here already.
    pub(super) fn begin_driving(&self, id: &SandboxId) -> Option<Driving> {
        let is_new = lock(&self.inner.driving).insert(Arc::clone(id));
        is_new.then(|| Driving { sandboxes: self.clone(), id: Arc::clone(id) })
    }

    /// Drives a row that has a place until it runs or has failed.
    pub(super) async fn drive(
        &self,
        row: Sandbox,
        worker: Worker,
        lease: ResourceLease,
    ) -> Result<Sandbox, SandboxError> {
        let request_id = Arc::clone(&row.request_id);
        self.drive_as(row, worker, token(&lease), request_id, Earlier::None).await
    }

    async fn drive_as(
        &self,
        mut row: Sandbox,
        mut worker: Worker,
        mut lease: RpcLease,
        mut request_id: Arc<str>,
        mut earlier: Earlier,
    ) -> Result<Sandbox, SandboxError> {
        // Spawns beyond this wait here, where they hold their place and nothing else.
        let _permit = self.inner.spawns.acquire().await.map_err(|_| SandboxError::stopping())?;
        loop {
            let attempt = self.spawn_on(&row, &worker, lease, &request_id, earlier).await?;
            let error = match attempt {
                Attempt::Spawned(runtime_id, lease) => return self.finish(row, &worker, runtime_id, lease).await,
                Attempt::Unknown(error) => return self.fail(&row, "spawn_timeout", error).await,
                // What was sent before may still arrive there, so no other worker may get the sandbox.
                Attempt::Refused(error) if earlier == Earlier::Unknown => {
                    return self.fail(&row, "spawn_refused", error).await;
                }
                Attempt::Refused(error) => error,
            };
            tracing::info!(sandbox.id = &*row.id, worker.id = &*worker.id, "a worker refused a spawn: {error}");
            let refuse = Change::Refuse { worker: Arc::clone(&worker.id) };
            let refused = match self.change(&row.id, &refuse, Vec::new()).await? {
                Some(Ok(changed)) => changed.after,
                Some(Err(_)) | None => return self.overtaken(&row.id).await,
            };
            if refused.refused_by.len() >= MAX_WORKERS {
                return self.fail(&refused, "spawn_refused", error).await;
            }
            match self.place_again(&refused, &self.rules().await?).await? {
                Ok(Placed::On(next, next_worker, next_lease)) => {
                    (row, worker, lease) = (*next, *next_worker, token(&next_lease));
                    request_id = Arc::clone(&row.request_id);
                    earlier = Earlier::None;
                }
                Ok(Placed::Queued(row) | Placed::Known(row)) => return Ok(*row),
                Err(NotPlaced::Gone) => return self.overtaken(&row.id).await,
                // The refusal says more than that nobody else is there.
                Err(_) => return self.fail(&refused, "spawn_refused", error).await,
            }
        }
    }

    pub(super) async fn place_again(
        &self,
        row: &Sandbox,
        rules: &Rules,
    ) -> Result<Result<Placed, NotPlaced>, SandboxError> {
        let caps = self.limits_of(&row.tenant, row.owner.as_deref()).await?.caps;
        Ok(self.rows().place_again(&row.id, self.lease_terms(), caps, rules).await?)
    }

    async fn spawn_on(
        &self,
        row: &Sandbox,
        worker: &Worker,
        mut lease: RpcLease,
        request_id: &Arc<str>,
        earlier: Earlier,
    ) -> Result<Attempt, SandboxError> {
        let refused = |error: SandboxError| Ok(Attempt::Refused(error));
        let Some(target) = self.target(worker) else {
            return refused(SandboxError::unavailable("remote_worker_rpc_unavailable", "the worker cannot be called"));
        };
        if let Some(snapshot) = &row.spec.snapshot
            && let Err(error) = self.send_snapshot(snapshot, &target, &Reach::All).await
        {
            return refused(error);
        }
        let order = SpawnOrder {
            sandbox: Arc::clone(&row.id),
            owner: row.owner.clone(),
            // Not what is left: a repeated call must be the same to the byte.
            ttl_ms: row.expires_at.since(row.created_at),
            spec: Arc::clone(&row.spec),
            env: self.env_of(&row.tenant, &row.spec)?,
        };
        let now = self.now().await?;
        let left_ms = self.settings().spawn_timeout_ms.min(row.spawn_deadline.since(now));
        let within = Duration::from_millis(u64::try_from(left_ms).unwrap_or(0));
        let (began, mut wait) = (Instant::now(), FIRST_WAIT);
        let (mut maybe_executed, mut stale, mut is_renewed) = (earlier == Earlier::Unknown, 0, false);
        if lease.expires_at.since(now) < RENEW_BELOW_MS {
            lease = self.lease_for(row, worker).await?;
        }
        loop {
            let left = within.saturating_sub(began.elapsed());
            let terms = CallTerms { request_id: Arc::clone(request_id), lease: Some(lease.clone()), within: left };
            let called = tokio::time::timeout(left, self.workers().spawn(&target, &terms, &order)).await;
            let error = match called {
                Ok(Ok(spawned)) => return Ok(Attempt::Spawned(spawned.runtime_id, lease)),
                Ok(Err(error)) => error,
                Err(_) => {
                    let message = format!("worker '{}' did not answer within {} s", worker.id, within.as_secs());
                    CallError::Unreachable { maybe_executed: true, message }
                }
            };
            match &error {
                CallError::Refused { class: CallClass::LeaseStale, .. } if stale < STALE_RETRIES => {
                    stale += 1;
                    lease = self.lease_for(row, worker).await?;
                    continue;
                }
                CallError::Refused { class: CallClass::LeaseExpired, .. } if !is_renewed => {
                    is_renewed = true;
                    lease = self.acquire_again(row, worker, self.now().await?).await?;
                    continue;
                }
                CallError::Refused { class: CallClass::Timeout, .. } => maybe_executed = true,
                CallError::Unreachable { maybe_executed: maybe, .. } => maybe_executed |= maybe,
                // An earlier call may have been executed: only a worker that would repeat its answer says that it was not.
                CallError::Refused { .. } if maybe_executed && !target.can("rpc_replay") => {
                    return Ok(Attempt::Unknown(error.into()));
                }
                CallError::Refused { .. } => return refused(error.into()),
            }
            if !maybe_executed {
                return refused(error.into());
            }
            if began.elapsed() + wait >= within {
                return Ok(Attempt::Unknown(error.into()));
            }
            tracing::debug!(
                sandbox.id = &*row.id,
                worker.id = &*worker.id,
                "the outcome of a spawn is unknown: {error}"
            );
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }

    /// Sets a runtime up and writes it into its row.
    async fn finish(
        &self,
        row: Sandbox,
        worker: &Worker,
        runtime_id: Arc<str>,
        lease: RpcLease,
    ) -> Result<Sandbox, SandboxError> {
        let mut row = row;
        row.runtime_id = Some(Arc::clone(&runtime_id));
        if template::needs_setup(&row.spec) {
            let found = Change::Found { worker: Arc::clone(&worker.id), runtime_id: Arc::clone(&runtime_id) };
            match self.change(&row.id, &found, Vec::new()).await? {
                Some(Ok(changed)) => row = changed.after,
                Some(Err(_)) | None => return self.unconfirmed(&row, worker, &runtime_id, lease).await,
            }
            if let Err(error) = self.set_up(&row, worker).await {
                self.discard(&row, worker, &lease).await;
                return self.fail(&row, "setup_failed", error).await;
            }
        }
        let confirm = Change::Confirm { worker: Arc::clone(&worker.id), runtime_id: Arc::clone(&runtime_id) };
        let events = vec![event("sandbox.running", &row, Some(json!({"worker": worker.id})))];
        match self.change(&row.id, &confirm, events).await? {
            Some(Ok(changed)) => Ok(changed.after),
            Some(Err(_)) | None => self.unconfirmed(&row, worker, &runtime_id, lease).await,
        }
    }

    /// The row did not take the runtime: if nobody else has confirmed it, it is destroyed.
    async fn unconfirmed(
        &self,
        row: &Sandbox,
        worker: &Worker,
        runtime_id: &Arc<str>,
        lease: RpcLease,
    ) -> Result<Sandbox, SandboxError> {
        let now = self.rows().sandbox(&row.id, &Reach::All).await?;
        if reconcile::is_unwanted(now.as_ref(), &worker.id, runtime_id) {
            self.discard(row, worker, &lease).await;
        }
        self.overtaken(&row.id).await
    }

    /// Destroys a runtime that no row wants. What this does not reach is an orphan of its worker.
    async fn discard(&self, row: &Sandbox, worker: &Worker, spawned: &RpcLease) {
        let Some(target) = self.target(worker) else { return };
        // The worker may have renewed the lease since, and then knows the token of the spawn as stale. If the row is with
        // another worker by now, that token is all there is.
        let lease = self.lease_for(row, worker).await.unwrap_or_else(|_| spawned.clone());
        let terms = self.terms(Some(lease), DESTROY_WITHIN);
        if let Err(error) = Self::within(&terms, self.workers().destroy(&target, &terms, &runtime(row))).await {
            tracing::warn!(
                sandbox.id = &*row.id,
                worker.id = &*worker.id,
                "a runtime was not discarded, and is left to the heartbeats: {error}"
            );
        }
        self.release_unless_wanted(row, &worker.id).await;
    }

    /// A row that has ended must not keep a lease.
    pub(super) async fn release_unless_wanted(&self, row: &Sandbox, worker: &WorkerId) {
        let now = self.rows().sandbox(&row.id, &Reach::All).await.ok().flatten();
        let is_wanted = now.is_some_and(|row| row.state.counts() && row.worker.as_ref() == Some(worker));
        if !is_wanted {
            let holder = worker_holder(worker);
            if let Err(error) = self.inner.shared.store.release_lease(&resource(&row.id), &holder).await {
                tracing::debug!(sandbox.id = &*row.id, error = error.chain(), "a lease was not released");
            }
        }
    }

    /// Somebody else decided about the row.
    async fn overtaken(&self, id: &str) -> Result<Sandbox, SandboxError> {
        let row = self.rows().sandbox(id, &Reach::All).await?;
        match row {
            Some(row) if matches!(row.state, State::Running | State::Idle | State::Unhealthy | State::Creating) => {
                Ok(row)
            }
            _ => Err(SandboxError::conflict("destroyed", format!("sandbox {id} was destroyed while it was created"))),
        }
    }

    /// Fails a spawn for good, for this reason.
    pub(super) async fn fail(
        &self,
        row: &Sandbox,
        reason: &'static str,
        error: SandboxError,
    ) -> Result<Sandbox, SandboxError> {
        let change = Change::Fail { reason: reason.into() };
        let data = json!({"reason": reason, "message": error.message});
        let mut events = vec![event("sandbox.error", row, Some(data))];
        if error.reason == "provider_unavailable" {
            let data = json!({"provider": row.spec.provider, "message": error.message});
            events.push(event("provider.failed", row, Some(data)));
        }
        self.change(&row.id, &change, events).await?;
        Err(error)
    }

    /// Goes on with a row that is `creating` and that nobody drives.
    pub(super) async fn resume(&self, row: Sandbox, now: Timestamp) -> Result<Sandbox, SandboxError> {
        if now >= row.spawn_deadline {
            let message = format!("sandbox {} was not created in time", row.id);
            let error = SandboxError::new(ErrorClass::Timeout, "spawn_timeout", message);
            return self.fail(&row, "spawn_timeout", error).await;
        }
        let Some(worker) = &row.worker else { return self.resume_unplaced(row).await };
        let worker = match self.rows().sandbox_worker(worker).await? {
            Some(worker) => worker,
            // Its next heartbeat brings it back, with what it has.
            None => return Ok(row),
        };
        let lease = self.lease_for(&row, &worker).await?;
        if let Some(target) = self.target(&worker)
            && let Some(runtime_id) = self.find_runtime(&row, &worker, &target).await
        {
            self.adopted(&row, &worker).await;
            return self.finish(row, &worker, runtime_id, lease).await;
        }
        // The call may be another than the first to the byte, so it has an id of its own; the worker keeps to one runtime
        // for each sandbox.
        let request_id = format!("{}-{}", row.request_id, lease.generation).into();
        self.drive_as(row, worker, lease, request_id, Earlier::Unknown).await
    }

    /// A worker has refused it, and nobody gave it another.
    async fn resume_unplaced(&self, row: Sandbox) -> Result<Sandbox, SandboxError> {
        let is_waiting = self.rows().queued_spawns().await?.iter().any(|queued| queued.sandbox == row.id);
        if is_waiting {
            return Ok(row);
        }
        match self.place_again(&row, &self.rules().await?).await? {
            Ok(Placed::On(row, worker, lease)) => self.drive(*row, *worker, lease).await,
            Ok(Placed::Queued(row) | Placed::Known(row)) => Ok(*row),
            Err(NotPlaced::NoPlace(why) | NotPlaced::QueueFull(why)) => {
                self.fail(&row, "spawn_refused", why.into()).await
            }
            Err(_) => self.overtaken(&row.id).await,
        }
    }

    /// The runtime that the worker has of a sandbox, by its inventory or by its own word.
    async fn find_runtime(&self, row: &Sandbox, worker: &Worker, target: &Target) -> Option<Arc<str>> {
        let terms = self.terms(None, STATUS_WITHIN);
        let mut runtime = runtime(row);
        runtime.runtime_id = None;
        let status = Self::within(&terms, self.workers().status(target, &terms, &runtime)).await.ok()?;
        let held = worker.inventory.iter().find(|held| held.sandbox_id == row.id);
        let known = status.runtime_id.or_else(|| row.runtime_id.clone());
        let known = known.or_else(|| held.map(|held| Arc::clone(&held.runtime_id)));
        // Asked to spawn again, a worker that knows repeated calls returns what it has; another would make a second one.
        known.or_else(|| (!target.can("rpc_replay")).then(|| "".into()))
    }

    pub(super) async fn adopted(&self, row: &Sandbox, worker: &Worker) {
        let data = json!({"action": "adopted_runtime", "reason": "spawn_resumed", "worker": worker.id});
        self.record(vec![event("reconcile.action", row, Some(data))]).await;
        self.audit(&Caller::system(), "reconcile", row, Ok(()), Some("adopted_runtime".to_owned())).await;
    }
}
