//! Leases of sandboxes as the control plane uses them: a worker holds each, and the control plane keeps it long enough for
//! what it is about to ask.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::sandbox::Sandbox;
use tenure_core::sandbox::placement::Worker;
use tenure_core::time::{DurationMs, Timestamp};
use tenure_store::{LeaseRefusal, LeaseTerms, Resource, ResourceLease, ResourceType, worker_holder};

use super::workers::{CallError, RpcLease, Target};
use super::{SandboxError, Sandboxes};

/// A lease with less than this is renewed before a call that needs one.
pub(super) const RENEW_BELOW_MS: DurationMs = 40_000;
/// Beyond the end of a sandbox whose worker does not renew leases.
const WITHOUT_RENEWAL_MS: DurationMs = 300_000;
const RENEW_WITHIN: Duration = Duration::from_secs(10);

pub(super) fn resource(sandbox: &str) -> Resource {
    Resource::new(ResourceType::Sandbox, sandbox)
}

pub(super) fn token(lease: &ResourceLease) -> RpcLease {
    RpcLease {
        resource: Arc::clone(&lease.resource.id),
        holder: Arc::clone(&lease.lease.holder),
        generation: i64::try_from(lease.lease.generation.0).unwrap_or(i64::MAX),
        expires_at: lease.lease.expires_at,
    }
}

impl Sandboxes {
    pub(super) fn lease_terms(&self) -> LeaseTerms {
        LeaseTerms { ttl_ms: self.settings().lease_ttl_ms, without_renewal_ms: WITHOUT_RENEWAL_MS }
    }

    fn lease_ttl(&self, row: &Sandbox, worker: &Worker, now: Timestamp) -> DurationMs {
        if worker.renews_leases() {
            self.settings().lease_ttl_ms
        } else {
            row.expires_at.since(now).max(0).saturating_add(WITHOUT_RENEWAL_MS)
        }
    }

    /// The lease of a sandbox with enough time for a call that needs it. One that has lapsed or was released is acquired
    /// again for the same worker.
    pub(super) async fn lease_for(&self, row: &Sandbox, worker: &Worker) -> Result<RpcLease, SandboxError> {
        let now = self.now().await?;
        if let Some(lease) = self.rows().sandbox_lease(&row.id).await?
            && lease.lease.holder == worker.id
            && lease.lease.expires_at.since(now) >= RENEW_BELOW_MS
        {
            return Ok(token(&lease));
        }
        self.acquire_again(row, worker, now).await
    }

    /// Acquires the lease for the worker of the row, which raises its generation.
    pub(super) async fn acquire_again(
        &self,
        row: &Sandbox,
        worker: &Worker,
        now: Timestamp,
    ) -> Result<RpcLease, SandboxError> {
        let ttl_ms = self.lease_ttl(row, worker, now);
        let store = &self.inner.shared.store;
        let acquired = store.acquire_leases(&[resource(&row.id)], &worker_holder(&worker.id), ttl_ms).await?;
        match acquired.into_iter().next() {
            Some(Ok(lease)) => Ok(token(&lease)),
            Some(Err(LeaseRefusal::Held { holder, .. })) => {
                let message = format!("worker '{holder}' holds the lease of sandbox {}", row.id);
                Err(SandboxError::conflict("lease_stale", message))
            }
            Some(Err(_)) | None => {
                Err(SandboxError::conflict("lease_stale", format!("the lease of sandbox {} was lost", row.id)))
            }
        }
    }

    /// Makes the worker renew the lease now, so that it learns of a new end, and a runtime that it froze thaws.
    pub(super) async fn push_lease(&self, row: &Sandbox, target: &Target, lease: RpcLease) -> Result<(), CallError> {
        if !target.can("lease_renewal") {
            return Ok(());
        }
        let terms = self.terms(Some(lease), RENEW_WITHIN);
        let ttl_ms = self.settings().lease_ttl_ms;
        Self::within(&terms, self.workers().renew_lease(target, &terms, &row.id, ttl_ms)).await.map(drop)
    }
}
