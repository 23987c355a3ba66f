//! What happens to sandboxes by itself: rows are compared with their workers, what is over ends, spawns that nobody drives
//! go on. One control plane does it, the one that has the duty.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use serde_json::json;
use tenure_core::WorkerId;
use tenure_core::command::Reach;
use tenure_core::sandbox::placement::Worker;
use tenure_core::sandbox::reconcile::{self, Owner, Step};
use tenure_core::sandbox::{Change, Sandbox, SandboxId, State};
use tenure_core::time::{DurationMs, Timestamp};
use tenure_store::{ResourceType, SandboxFilter};

use super::destroy::{AT_ONCE, Teardown};
use super::{Caller, SandboxError, Sandboxes, event, lock, system_event};
use crate::background::Pacer;
use crate::duty::Duty;

const RECONCILE_EVERY: Duration = Duration::from_secs(30);
/// Also when something happens all the time.
const AT_MOST_EVERY: Duration = Duration::from_millis(500);
const REAP_EVERY: Duration = Duration::from_secs(1);
const PRUNE_EVERY: Duration = Duration::from_secs(60);
const STATUS_WITHIN: Duration = Duration::from_secs(30);
/// How many rows one turn reads at a time.
const ROWS: usize = 500;
/// How many rows the reaper takes in one turn.
const REAP_ROWS: usize = 64;
/// Destroyed rows are kept for readers of the audit and for idempotency keys.
const DESTROYED_KEPT_MS: DurationMs = 7 * 24 * 3_600_000;
const EVENTS_KEPT_MS: DurationMs = 24 * 3_600_000;
/// A spawn that another control plane may be driving is left alone this long.
const RESUME_AFTER_MS: DurationMs = 5_000;

impl Sandboxes {
    pub(super) async fn keep_reconciled(self) {
        let shared = &self.inner.shared;
        let (mut pacer, mut wait) = (Pacer::new(shared), Duration::ZERO);
        let mut doubts = self.inner.doubts.subscribe();
        loop {
            tokio::select! {
                more = pacer.pause(wait) => if !more { return },
                () = shared.duties.gained(Duty::Sandboxes) => {}
                _ = doubts.changed() => {}
            }
            if !shared.duties.is_mine(Duty::Sandboxes) {
                wait = AT_MOST_EVERY;
                continue;
            }
            let known = *doubts.borrow_and_update();
            wait = match self.reconcile().await {
                Ok(()) => {
                    self.inner.looked.store(known, Ordering::SeqCst);
                    RECONCILE_EVERY
                }
                Err(error) => {
                    tracing::warn!("cannot reconcile sandboxes: {error}");
                    AT_MOST_EVERY
                }
            };
            // Workers that come and go must not make it turn all the time.
            tokio::select! {
                () = tokio::time::sleep(AT_MOST_EVERY) => {}
                () = shared.stopping.cancelled() => return,
            }
        }
    }

    /// Sandboxes should be looked at.
    pub(super) fn doubt(&self) {
        self.inner.doubts.send_modify(|doubts| *doubts += 1);
    }

    /// Whether all sandboxes were looked at since the last reason to do so. Until there is another, they are looked at
    /// when their time comes.
    pub fn is_reconciled(&self) -> bool {
        self.inner.looked.load(Ordering::SeqCst) == *self.inner.doubts.borrow()
    }

    /// Looks at every row once.
    async fn reconcile(&self) -> Result<(), SandboxError> {
        let workers: HashMap<WorkerId, Worker> =
            self.rows().sandbox_workers().await?.into_iter().map(|worker| (Arc::clone(&worker.id), worker)).collect();
        self.note_stale(&workers).await?;
        let drivers = self.other_replicas().await?;
        let mut after: Option<(Timestamp, SandboxId)> = None;
        loop {
            let now = self.now().await?;
            let states = State::ALL.into_iter().filter(|state| *state != State::Destroyed).collect();
            let filter = SandboxFilter { states, after: after.clone(), limit: ROWS, ..SandboxFilter::default() };
            let rows = self.rows().sandboxes(&filter).await?.items;
            after = rows.last().map(|row| (row.created_at, Arc::clone(&row.id)));
            let is_last = rows.len() < ROWS;
            let looks = futures_util::stream::iter(rows).map(|row| {
                let worker = row.worker.as_ref().and_then(|worker| workers.get(worker));
                self.look_at(row, worker, &drivers, now)
            });
            looks.buffer_unordered(AT_ONCE).for_each(|()| std::future::ready(())).await;
            if is_last || self.is_stopping() || !self.inner.shared.duties.is_mine(Duty::Sandboxes) {
                return Ok(());
            }
        }
    }

    /// Tells once of a worker whose heartbeats do not come any more.
    async fn note_stale(&self, workers: &HashMap<WorkerId, Worker>) -> Result<(), SandboxError> {
        let (now, freshness_ms) = (self.now().await?, self.settings().freshness_ms);
        let is_stale = |worker: &&Worker| worker.status != "offline" && worker.is_stale(freshness_ms, now);
        let stale: HashSet<WorkerId> = workers.values().filter(is_stale).map(|worker| Arc::clone(&worker.id)).collect();
        let known = std::mem::replace(&mut *lock(&self.inner.stale), stale.clone());
        let new = stale.difference(&known).map(|worker| system_event("worker.stale", json!({"worker": worker})));
        let new: Vec<_> = new.collect();
        if !new.is_empty() {
            self.record(new).await;
        }
        Ok(())
    }

    /// Names of other control planes that are alive.
    async fn other_replicas(&self) -> Result<Vec<Arc<str>>, SandboxError> {
        let replicas = self.inner.shared.store.leases(ResourceType::Replica).await?;
        let own = self.inner.shared.duties.name();
        Ok(replicas.into_iter().map(|lease| lease.resource.id).filter(|name| **name != *own).collect())
    }

    /// Each row independently: one that fails holds up no other.
    async fn look_at(&self, row: Sandbox, worker: Option<&Worker>, drivers: &[Arc<str>], now: Timestamp) {
        let looked = if row.state == State::Creating {
            self.look_at_spawn(&row, drivers, now).await
        } else {
            self.reconcile_row(&row, worker, now).await
        };
        if let Err(error) = looked {
            tracing::debug!(sandbox.id = &*row.id, "a sandbox was not reconciled: {error}");
        }
    }

    async fn look_at_spawn(&self, row: &Sandbox, drivers: &[Arc<str>], now: Timestamp) -> Result<(), SandboxError> {
        let is_late = now >= row.spawn_deadline.plus(RESUME_AFTER_MS);
        if !is_late && drivers.iter().any(|driver| is_driver(&row.request_id, driver)) {
            return Ok(());
        }
        let Some(driving) = self.begin_driving(&row.id) else { return Ok(()) };
        let (sandboxes, row) = (self.clone(), row.clone());
        // Apart: a spawn may take minutes.
        self.inner.tasks.spawn(async move {
            let stopping = sandboxes.inner.shared.stopping.clone();
            tokio::select! {
                () = stopping.cancelled() => {}
                outcome = sandboxes.resume(row.clone(), now) => match outcome {
                    Ok(row) if row.state == State::Creating => {}
                    outcome => sandboxes.ended(&row.id, &outcome),
                },
            }
            drop(driving);
        });
        Ok(())
    }

    pub(super) async fn reconcile_row(
        &self,
        row: &Sandbox,
        worker: Option<&Worker>,
        now: Timestamp,
    ) -> Result<(), SandboxError> {
        let owner = Owner::of(worker, self.settings().freshness_ms, now);
        match reconcile::first_step(row, &owner, now) {
            Step::Nothing => {}
            Step::Change(change) => drop(self.reconciled(row, &change).await?),
            // The reaper takes what is over.
            Step::Destroy if row.state != State::Expired => {}
            Step::Destroy => self.reap(row, "expired").await?,
            Step::Ask => {
                let target = worker.and_then(|worker| self.target(worker));
                let (Some(worker), Some(target)) = (worker, target) else {
                    let change = reconcile::after_status(row, &owner, &reconcile::Answer::Failed);
                    if let Some(change) = change {
                        self.reconciled(row, &change).await?;
                    }
                    return Ok(());
                };
                let answer = self.ask(row, &target, STATUS_WITHIN).await;
                self.apply_answer(row, worker, &target, &owner, &answer).await?;
                if !matches!(answer, reconcile::Answer::Absent | reconcile::Answer::Failed) {
                    self.keep_lease(row, worker, &target, now).await?;
                }
            }
        }
        Ok(())
    }

    /// A lease that lapsed while no control plane could renew it is acquired again, and the worker told: it has frozen the
    /// runtime.
    async fn keep_lease(
        &self,
        row: &Sandbox,
        worker: &Worker,
        target: &super::Target,
        now: Timestamp,
    ) -> Result<(), SandboxError> {
        let lease = self.rows().sandbox_lease(&row.id).await?;
        if lease.is_some_and(|lease| lease.lease.holder != worker.id || lease.lease.expires_at > now) {
            return Ok(());
        }
        let Some(row) = self.any_row(&row.id).await?.filter(|row| row.state.counts()) else { return Ok(()) };
        let lease = self.acquire_again(&row, worker, now).await?;
        match self.push_lease(&row, target, lease).await {
            // It thaws now: the next look finds it.
            Ok(()) => self.doubt(),
            Err(error) => tracing::debug!(sandbox.id = &*row.id, "a lease could not be pushed: {error}"),
        }
        Ok(())
    }

    /// Makes a change that nobody asked for, and tells of it.
    pub(super) async fn reconciled(&self, row: &Sandbox, change: &Change) -> Result<Option<Sandbox>, SandboxError> {
        let reason = match change {
            Change::Doubt { reason } | Change::Break { reason } => Some(reason.to_string()),
            Change::Destroy { reason } => reason.as_deref().map(str::to_owned),
            Change::Expire => Some("expired".to_owned()),
            _ => None,
        };
        let mut events = Vec::new();
        if let Some(action) = reconcile::action(change) {
            let data = json!({"action": action, "reason": reason, "worker": row.worker});
            events.push(event("reconcile.action", row, Some(data)));
        }
        match change {
            Change::Expire => events.push(event("sandbox.expired", row, None)),
            Change::Destroy { .. } => events.push(event("sandbox.destroyed", row, Some(json!({"reason": reason})))),
            Change::Break { .. } => events.push(event("sandbox.error", row, Some(json!({"reason": reason})))),
            _ => {}
        }
        let Some(Ok(changed)) = self.change(&row.id, change, events).await? else { return Ok(None) };
        let action = reconcile::action(change).unwrap_or("changed");
        let detail = format!("{action}: {}", reason.as_deref().unwrap_or("-"));
        self.audit(&Caller::system(), "reconcile", row, Ok(()), Some(detail)).await;
        Ok(Some(changed.after))
    }

    /// Takes what is past its end.
    pub(super) async fn keep_reaped(self) {
        let shared = &self.inner.shared;
        let mut pacer = Pacer::new(shared);
        loop {
            if !pacer.pause(REAP_EVERY).await {
                return;
            }
            if !shared.duties.is_mine(Duty::Sandboxes) {
                continue;
            }
            if let Err(error) = self.reap_expired().await {
                tracing::warn!("cannot look for sandboxes that are over: {error}");
            }
        }
    }

    async fn reap_expired(&self) -> Result<(), SandboxError> {
        let now = self.now().await?;
        let filter = SandboxFilter {
            states: vec![State::Running, State::Idle, State::Unhealthy, State::Error],
            expired_by: Some(now),
            limit: REAP_ROWS,
            ..SandboxFilter::default()
        };
        let rows = self.rows().sandboxes(&filter).await?.items;
        let reaped = futures_util::stream::iter(rows).map(|row| async move {
            let (worker, _) = self.owner_of(&row).await?;
            let owner = Owner::of(worker.as_ref(), self.settings().freshness_ms, now);
            match reconcile::first_step(&row, &owner, now) {
                Step::Destroy => self.reap(&row, "expired").await,
                Step::Change(change) => self.reconciled(&row, &change).await.map(drop),
                Step::Nothing | Step::Ask => Ok(()),
            }
        });
        let mut reaped = reaped.buffer_unordered(AT_ONCE);
        while let Some(result) = reaped.next().await {
            if let Err(error) = result {
                tracing::debug!("a sandbox that is over was not ended: {error}");
            }
        }
        Ok(())
    }

    /// Destroys a runtime once; a worker that does not do it is left to itself.
    pub(super) async fn reap(&self, row: &Sandbox, reason: &str) -> Result<(), SandboxError> {
        let is_gone = match self.tear_down(row).await? {
            Teardown::Gone => true,
            Teardown::Unreachable => false,
            Teardown::Failed(error) => {
                tracing::info!(sandbox.id = &*row.id, "a sandbox that is over could not be destroyed: {error}");
                false
            }
        };
        match reconcile::after_destroy(row, is_gone) {
            Some(Change::Destroy { .. }) => {
                self.reconciled(row, &Change::Destroy { reason: Some(reason.into()) }).await.map(drop)
            }
            Some(change) => self.reconciled(row, &change).await.map(drop),
            None => Ok(()),
        }
    }

    /// Removes what nobody needs any more.
    pub(super) async fn keep_pruned(self) {
        let shared = &self.inner.shared;
        let mut pacer = Pacer::new(shared);
        while pacer.pause(PRUNE_EVERY).await {
            if !shared.duties.is_mine(Duty::Sandboxes) {
                continue;
            }
            if let Err(error) = self.prune_old().await {
                tracing::warn!("cannot prune sandboxes: {error}");
            }
        }
    }

    async fn prune_old(&self) -> Result<(), SandboxError> {
        let now = self.now().await?;
        self.rows().prune_sandboxes(now.plus(-DESTROYED_KEPT_MS), ROWS).await?;
        self.rows().prune_sandbox_events(now.plus(-EVENTS_KEPT_MS), 10 * ROWS).await?;
        self.rows().prune_snapshot_pieces().await?;
        Ok(())
    }

    /// Looks at one row now.
    pub async fn reconcile_one(&self, id: &str) -> Result<Option<Sandbox>, SandboxError> {
        let Some(row) = self.any_row(id).await? else { return Ok(None) };
        let (worker, _) = self.owner_of(&row).await?;
        self.reconcile_row(&row, worker.as_ref(), self.now().await?).await?;
        Ok(self.rows().sandbox(id, &Reach::All).await?)
    }
}

/// Whether this control plane drew the id: its name is in it.
fn is_driver(request_id: &str, name: &str) -> bool {
    let digits = request_id.strip_prefix("req-").unwrap_or(request_id).chars().filter(|c| *c != '-');
    let name = name.chars().map(Some).chain([None]);
    let mut digits = digits.map(Some).chain([None]);
    name.into_iter().take_while(Option::is_some).all(|c| digits.next() == Some(c))
}
