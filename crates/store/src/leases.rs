//! Leases on shared work: what one control plane does for all.
//!
//! They follow the protocol of `core/src/lease.rs`, with the same four functions as the lease of a task, and stand in a
//! table of their own. A row of `running` is a task: it is counted, it came out of a queue, it leaves an attempt behind
//! and it ends. A lease on shared work has none of that, and its row stays, so that its generation only grows.

use std::sync::Arc;

use async_trait::async_trait;
use tenure_core::lease::{self, Grace, Lease};
use tenure_core::time::{DurationMs, Timestamp};
use tenure_core::{Fence, LeaseToken};

use crate::error::StoreError;

/// Who asks for leases. The name is shown; the token proves possession.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub name: Arc<str>,
    pub token: LeaseToken,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemLease {
    pub resource: Arc<str>,
    pub lease: Lease,
    /// When this generation began.
    pub acquired_at: Timestamp,
}

/// Leases on shared work, judged by the store's clock. An outage gives no grace: work that two do for a moment is judged
/// again where it is written, work that nobody does stands still.
#[async_trait]
pub trait LeaseStore: Send + Sync {
    /// Takes those of the leases that are free or expired, renews those that are the holder's already, and gives both.
    /// What another holds is left out. A taken lease has the next generation, a renewed one keeps its own. A crash before
    /// the commit leaves what was; one after it leaves leases that the holder renews by asking again, or that expire.
    async fn acquire_leases(
        &self,
        resources: &[Arc<str>],
        holder: &Holder,
        ttl_ms: DurationMs,
    ) -> Result<Vec<SystemLease>, StoreError>;

    /// One lease; `None` while another holds it.
    async fn acquire_lease(
        &self,
        resource: &str,
        holder: &Holder,
        ttl_ms: DurationMs,
    ) -> Result<Option<SystemLease>, StoreError> {
        Ok(self.acquire_leases(&[resource.into()], holder, ttl_ms).await?.pop())
    }

    /// Ends a lease of this generation for its holder: anyone may take it at once. Says whether there was one to end.
    async fn release_lease(&self, resource: &str, holder: &Holder, generation: Fence) -> Result<bool, StoreError>;

    /// Leases that are live, by resource.
    async fn leases(&self) -> Result<Vec<SystemLease>, StoreError>;

    /// Removes what expired before a point in time. For resources whose names are used once only: with its row a
    /// resource loses its generation.
    async fn prune_leases(&self, prefix: &str, before: Timestamp) -> Result<usize, StoreError>;
}

/// What asking comes to; `None` while another holds it.
pub(crate) fn asked(
    resource: &Arc<str>,
    found: Option<SystemLease>,
    holder: &Holder,
    ttl_ms: DurationMs,
    now: Timestamp,
) -> Option<SystemLease> {
    let last = match found {
        None => Fence(0),
        Some(found) => match lease::renew(&found.lease, holder.token, ttl_ms, Timestamp::MAX, now, Grace::NONE) {
            Ok(renewed) => return Some(SystemLease { lease: renewed, ..found }),
            Err(_) => lease::expire(&found.lease, now, Grace::NONE)?,
        },
    };
    let lease = lease::acquire(last, Arc::clone(&holder.name), holder.token, ttl_ms, now);
    Some(SystemLease { resource: Arc::clone(resource), lease, acquired_at: now })
}

/// Whether a release ends anything.
pub(crate) fn ends(found: &SystemLease, holder: &Holder, generation: Fence, now: Timestamp) -> bool {
    lease::release(&found.lease, holder.token) == Ok(generation) && is_live(found, now)
}

pub(crate) fn is_live(found: &SystemLease, now: Timestamp) -> bool {
    !lease::is_expired(&found.lease, now, Grace::NONE)
}
