//! The end of sandboxes, and how it is put off.

use std::time::Instant;

use futures_util::StreamExt;
use serde_json::json;
use tenure_core::command::Reach;
use tenure_core::sandbox::placement::Worker;
use tenure_core::sandbox::{Change, Refused, Sandbox, State};
use tenure_core::time::DurationMs;
use tenure_store::SandboxFilter;

use super::calls::runtime;
use super::error::span;
use super::spawn::DESTROY_WITHIN;
use super::workers::{CallClass, CallError, Target};
use super::{Caller, ErrorClass, SandboxError, Sandboxes, event};

const STALE_RETRIES: u32 = 3;
/// How many sandboxes are destroyed at once.
pub(super) const AT_ONCE: usize = 16;
const PRUNE_ROWS: usize = 1_000;

/// How a sandbox ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    Destroyed,
    /// Its worker cannot be reached: it destroys the runtime when the lease ends.
    Destroying,
}

/// What became of the teardown of a runtime.
pub(super) enum Teardown {
    Gone,
    /// The worker did not answer.
    Unreachable,
    /// The worker answered, and the runtime stands.
    Failed(SandboxError),
}

impl Sandboxes {
    /// Destroys a sandbox. Repeating it is not an error.
    pub async fn destroy(&self, id: &str, caller: &Caller) -> Result<Ended, SandboxError> {
        let began = Instant::now();
        let row = self.rows().sandbox(id, &caller.reach).await?;
        let row = row.ok_or_else(|| SandboxError::not_found("sandbox", id))?;
        if row.state == State::Destroyed {
            return Ok(Ended::Destroyed);
        }
        let ended = self.destroy_row(&row).await;
        self.measure("destroy", &row.spec.provider, ended.is_ok(), began.elapsed());
        self.audit(caller, "destroy", &row, ended.as_ref().map(drop), None).await;
        ended
    }

    async fn destroy_row(&self, row: &Sandbox) -> Result<Ended, SandboxError> {
        let torn = self.tear_down(row).await?;
        self.all_told().await;
        match torn {
            Teardown::Gone => {
                self.mark_destroyed(row, "deleted").await?;
                Ok(Ended::Destroyed)
            }
            Teardown::Unreachable => self.abandon(row).await,
            Teardown::Failed(error) => Err(error),
        }
    }

    /// Asks the worker to destroy the runtime, with the lease.
    pub(super) async fn tear_down(&self, row: &Sandbox) -> Result<Teardown, SandboxError> {
        if row.worker.is_none() {
            self.rows().leave_queue(&row.id).await?;
            return Ok(Teardown::Gone);
        }
        let (worker, target) = self.owner_of(row).await?;
        let (Some(worker), Some(target)) = (worker, target) else { return Ok(Teardown::Unreachable) };
        let torn = self.tear_down_on(row, &worker, &target).await;
        if !row.state.counts() {
            // It was acquired for this call only: with it the worker would keep the runtime.
            self.release_unless_wanted(row, &worker.id).await;
        }
        torn
    }

    async fn tear_down_on(&self, row: &Sandbox, worker: &Worker, target: &Target) -> Result<Teardown, SandboxError> {
        let mut lease = match self.lease_for(row, worker).await {
            Ok(lease) => lease,
            Err(error) if error.class == ErrorClass::Conflict => return Ok(Teardown::Failed(error)),
            Err(error) => return Err(error),
        };
        let (mut stale, mut is_renewed) = (0, false);
        loop {
            let terms = self.terms(Some(lease), DESTROY_WITHIN);
            let runtime = runtime(row);
            let called = Self::within(&terms, self.workers().destroy(target, &terms, &runtime)).await;
            let error = match called {
                Ok(()) => return Ok(Teardown::Gone),
                Err(CallError::Unreachable { .. }) => return Ok(Teardown::Unreachable),
                Err(error) => error,
            };
            match error.class() {
                Some(CallClass::NotFound | CallClass::Destroyed) => return Ok(Teardown::Gone),
                Some(CallClass::LeaseStale) if stale < STALE_RETRIES => stale += 1,
                Some(CallClass::LeaseExpired) if !is_renewed => is_renewed = true,
                _ => return Ok(Teardown::Failed(error.into())),
            }
            lease = if error.class() == Some(CallClass::LeaseExpired) {
                self.acquire_again(row, worker, self.now().await?).await?
            } else {
                self.lease_for(row, worker).await?
            };
        }
    }

    pub(super) async fn mark_destroyed(&self, row: &Sandbox, reason: &str) -> Result<(), SandboxError> {
        let change = Change::Destroy { reason: Some(reason.into()) };
        let events = vec![event("sandbox.destroyed", row, Some(json!({"reason": reason})))];
        self.change(&row.id, &change, events).await?;
        if row.state == State::Creating {
            let message = format!("sandbox {} was destroyed while it was created", row.id);
            self.ended(&row.id, &Err(SandboxError::conflict("destroyed", message)));
        }
        Ok(())
    }

    /// The worker is not reachable: without its lease it will destroy the runtime by itself.
    async fn abandon(&self, row: &Sandbox) -> Result<Ended, SandboxError> {
        if row.state == State::Creating {
            let fail = Change::Fail { reason: "deleted".into() };
            self.change(&row.id, &fail, Vec::new()).await?;
        }
        let events = vec![event("sandbox.expired", row, Some(json!({"reason": "worker_unreachable"})))];
        match self.change(&row.id, &Change::Expire, events).await? {
            Some(Err(Refused::State(State::Destroyed))) | None => Ok(Ended::Destroyed),
            _ => Ok(Ended::Destroying),
        }
    }

    /// Destroys what is past its end and covered by the caller's reach. Returns how many.
    pub async fn prune(&self, caller: &Caller) -> Result<usize, SandboxError> {
        let now = self.now().await?;
        let filter = SandboxFilter {
            reach: caller.reach.clone(),
            states: vec![State::Running, State::Unhealthy, State::Error, State::Expired],
            expired_by: Some(now),
            limit: PRUNE_ROWS,
            ..SandboxFilter::default()
        };
        let rows = self.rows().sandboxes(&filter).await?.items;
        let ends = futures_util::stream::iter(rows).map(|row| async move {
            let ended = self.destroy_row(&row).await;
            self.audit(caller, "destroy", &row, ended.as_ref().map(drop), Some("pruned".to_owned())).await;
            ended.is_ok_and(|ended| ended == Ended::Destroyed)
        });
        Ok(ends.buffer_unordered(AT_ONCE).filter(|gone| std::future::ready(*gone)).count().await)
    }

    /// Puts the end of a sandbox off: it ends `ttl_ms` from now.
    pub async fn extend(&self, id: &str, ttl_ms: DurationMs, caller: &Caller) -> Result<Sandbox, SandboxError> {
        if ttl_ms <= 0 {
            return Err(SandboxError::bad_request("invalid", "ttl: must be greater than 0"));
        }
        let row = self.row(id, &caller.reach).await?;
        let max = self.limits_of(&row.tenant, row.owner.as_deref()).await?.max_ttl_ms;
        if max > 0 && ttl_ms > max {
            let message = format!("ttl: longer than the maximum of {}", span(max));
            return Err(SandboxError::bad_request("max_ttl", message));
        }
        let extended = match self.change(id, &Change::Extend { ttl_ms }, Vec::new()).await? {
            Some(Ok(changed)) => Ok(changed.after),
            Some(Err(refused)) => Err(SandboxError::conflict("not_running", format!("sandbox {id}: {refused}"))),
            None => Err(SandboxError::not_found("sandbox", id)),
        };
        self.audit(caller, "extend", &row, extended.as_ref().map(drop), Some(format!("{} s", ttl_ms / 1_000))).await;
        let extended = extended?;
        self.push_end(&extended).await;
        Ok(extended)
    }

    /// Tells the worker about a new end: by the lease it reads it, or, if it does not renew, by a lease that lasts as long.
    pub(super) async fn push_end(&self, row: &Sandbox) {
        let pushed = async {
            let (Some(worker), Some(target)) = self.owner_of(row).await? else { return Ok(()) };
            let lease = if worker.renews_leases() {
                self.lease_for(row, &worker).await?
            } else {
                self.acquire_again(row, &worker, self.now().await?).await?
            };
            self.push_lease(row, &target, lease).await.map_err(SandboxError::from)
        };
        if let Err(error) = pushed.await {
            // Its next renewal tells it.
            tracing::debug!(sandbox.id = &*row.id, "the new end of a sandbox was not pushed: {error}");
        }
    }

    /// The same without waiting for it.
    pub(super) fn push_end_soon(&self, row: &Sandbox) {
        let (sandboxes, row, stopping) = (self.clone(), row.clone(), self.inner.shared.stopping.clone());
        let push = async move {
            sandboxes.push_end(&row).await;
            // If the row has ended meanwhile, its lease may have been acquired once more.
            if let Some(worker) = &row.worker {
                sandboxes.release_unless_wanted(&row, worker).await;
            }
        };
        self.inner.tasks.spawn(stopping.run_until_cancelled_owned(push));
    }

    /// A row, whoever may see it.
    pub(super) async fn any_row(&self, id: &str) -> Result<Option<Sandbox>, SandboxError> {
        Ok(self.rows().sandbox(id, &Reach::All).await?)
    }
}
