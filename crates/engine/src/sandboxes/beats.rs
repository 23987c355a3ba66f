//! What workers send: heartbeats and renewals.

use std::sync::Arc;

use serde_json::json;
use tenure_core::command::Reach;
use tenure_core::sandbox::placement::Worker;
use tenure_core::sandbox::{Change, Held, Sandbox, SandboxId, Standing, reconcile, standing, template};
use tenure_core::time::{DurationMs, Timestamp};
use tenure_store::{Beat, Beaten, LeaseRefusal, worker_holder};

use super::leases::{resource, token};
use super::workers::RpcLease;
use super::{ErrorClass, SandboxError, Sandboxes, event, system_event};

/// A runtime that the worker should destroy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Orphan {
    pub sandbox: SandboxId,
    pub runtime_id: Arc<str>,
}

/// What a heartbeat is answered.
#[derive(Debug, Clone)]
pub struct BeatReply {
    pub worker: Worker,
    pub is_stale: bool,
    /// Once an admin has asked for one.
    pub desired_status: Option<String>,
    pub orphans: Vec<Orphan>,
    /// What this control plane knows beyond the contract.
    pub features: &'static [&'static str],
}

/// A lease that was renewed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renewed {
    pub lease: RpcLease,
    pub sandbox_expires_at: Option<Timestamp>,
}

const FEATURES: &[&str] = &["lease_renewal"];

impl Sandboxes {
    /// Notes a heartbeat: completes spawns that the inventory shows, and finds runtimes that nobody wants.
    pub async fn heartbeat(&self, beat: &Beat) -> Result<BeatReply, SandboxError> {
        let beaten = self.rows().worker_beat(beat).await?;
        let mut orphans = Vec::new();
        if !beaten.is_ignored {
            self.noticed(&beaten).await;
            if beat.inventory.is_some() {
                orphans = self.take_stock(&beaten).await?;
            }
        }
        let Beaten { worker, .. } = beaten;
        let is_stale = self.is_stale(&worker).await?;
        Ok(BeatReply { desired_status: worker.desired_status.clone(), worker, is_stale, orphans, features: FEATURES })
    }

    /// Tells of a worker that came, went or changed, and of room that it brings.
    async fn noticed(&self, beaten: &Beaten) {
        let (worker, before) = (&beaten.worker, beaten.before.as_ref());
        let was_stale = before.is_none_or(|before| {
            before.is_barred || worker.last_heartbeat.since(before.last_heartbeat) > self.settings().freshness_ms
        });
        let is_change = was_stale || before.is_none_or(|before| before.status != worker.status);
        if is_change {
            let kind = match worker.status.as_str() {
                "online" => "worker.online",
                "draining" => "worker.draining",
                _ => "worker.offline",
            };
            self.record(vec![system_event(kind, json!({"worker": worker.id, "hostname": worker.hostname}))]).await;
            self.doubt();
        }
        let grew = |before: &Worker| before.capacity != worker.capacity || before.providers != worker.providers;
        if is_change || before.is_some_and(grew) || before.is_some_and(Worker::is_draining) {
            self.inner.room.notify_one();
        }
    }

    async fn take_stock(&self, beaten: &Beaten) -> Result<Vec<Orphan>, SandboxError> {
        let worker = &beaten.worker;
        let row_of = |held: &Held| beaten.rows.iter().find(|row| row.id == held.sandbox_id);
        let mut unwanted = Vec::new();
        for held in &worker.inventory {
            match standing(row_of(held), &worker.id, &held.runtime_id) {
                Standing::Known => {}
                Standing::Completes => {
                    if let Some(row) = row_of(held) {
                        self.complete(row, worker, held).await?;
                    }
                }
                Standing::Orphan => unwanted.push(held),
            }
        }
        let runtimes: Vec<Arc<str>> = unwanted.iter().map(|held| Arc::clone(&held.runtime_id)).collect();
        // Also without any: those that were orphans and are wanted now begin again.
        self.rows().count_orphans(&worker.id, &runtimes).await?;
        let reaped = unwanted.into_iter().filter(|held| reconcile::is_reaped(held, worker.last_heartbeat));
        let orphans: Vec<Orphan> = reaped
            .map(|held| Orphan { sandbox: Arc::clone(&held.sandbox_id), runtime_id: Arc::clone(&held.runtime_id) })
            .collect();
        if !orphans.is_empty() {
            metrics::counter!("tenure_orphans_reaped_total").increment(orphans.len() as u64);
            for orphan in &orphans {
                tracing::warn!(
                    worker.id = &*worker.id,
                    sandbox.id = &*orphan.sandbox,
                    runtime.id = &*orphan.runtime_id,
                    "the worker is told to destroy a runtime that no sandbox wants"
                );
            }
        }
        Ok(orphans)
    }

    /// The worker has the runtime of a row that is being created.
    async fn complete(&self, row: &Sandbox, worker: &Worker, held: &Held) -> Result<(), SandboxError> {
        // A runtime that must be set up is the business of whoever drives it, or of whoever resumes it.
        if template::needs_setup(&row.spec) || held.runtime_id.is_empty() {
            return Ok(());
        }
        let change = Change::Confirm { worker: Arc::clone(&worker.id), runtime_id: Arc::clone(&held.runtime_id) };
        let events = vec![event("sandbox.running", row, Some(json!({"worker": worker.id})))];
        if let Some(Ok(changed)) = self.change(&row.id, &change, events).await? {
            self.adopted(&changed.after, worker).await;
            self.ended(&row.id, &Ok(changed.after));
        }
        Ok(())
    }

    /// Renews the lease of a sandbox for the worker that holds it.
    pub async fn renew(&self, worker: &str, sandbox: &str, ttl_ms: DurationMs) -> Result<Renewed, SandboxError> {
        if worker.trim().is_empty() || sandbox.trim().is_empty() || ttl_ms <= 0 {
            return Err(SandboxError::bad_request("invalid", "a renewal needs a worker, a resource and a ttl above 0"));
        }
        let ttl_ms = ttl_ms.min(self.settings().lease_max_ttl_ms);
        let store = &self.inner.shared.store;
        let renewed = store.renew_lease(&resource(sandbox), &worker_holder(worker), ttl_ms).await?;
        let result = match &renewed {
            Ok(_) => "renewed",
            Err(LeaseRefusal::Expired) => "lease_expired",
            Err(LeaseRefusal::Held { .. } | LeaseRefusal::Stale) => "lease_stale",
        };
        metrics::counter!("tenure_lease_renewals_total", "result" => result).increment(1);
        match renewed {
            Ok(lease) => {
                let row = self.rows().sandbox(sandbox, &Reach::All).await?;
                Ok(Renewed { lease: token(&lease), sandbox_expires_at: row.map(|row| row.expires_at) })
            }
            Err(refusal) => {
                if let Some(row) = self.any_row(sandbox).await? {
                    let data = json!({"worker": worker, "reason": result});
                    self.record(vec![event("lease.lost", &row, Some(data))]).await;
                    if result == "lease_expired" {
                        // Acquired again by reconciliation, if the row still wants it.
                        self.doubt();
                    }
                }
                Err(SandboxError::new(ErrorClass::Conflict, result, refusal.to_string()))
            }
        }
    }
}
