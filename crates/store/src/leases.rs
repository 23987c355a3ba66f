//! Leases on resources other than tasks.
//!
//! They follow the protocol of `core/src/lease.rs`. A row of `running` is a task: it came out of a queue, it leaves an
//! attempt behind and it ends. These leases have none of that. Each operation is one conditional statement on the row of
//! its resource, so that exactly one of several contenders wins, by the store's clock. A release keeps the row as a
//! tombstone, so that the generation of a resource only grows.

use std::sync::Arc;

use async_trait::async_trait;
use tenure_core::LeaseToken;
use tenure_core::lease::{self, Extension, Grace, Lease, LeaseError, Renewal};
use tenure_core::time::{DurationMs, Timestamp};

use crate::error::StoreError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResourceType {
    /// Work that one control plane does for all.
    System,
    /// The presence of a control plane. Its name is used once only.
    Replica,
    /// A sandbox, held by the worker that runs it.
    Sandbox,
}

impl ResourceType {
    pub const ALL: [Self; 3] = [Self::System, Self::Replica, Self::Sandbox];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Replica => "replica",
            Self::Sandbox => "sandbox",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }

    /// What the contract of the resource says about renewals.
    pub const fn renewal(self) -> Renewal {
        match self {
            Self::System | Self::Replica => Renewal::KeepsGeneration,
            Self::Sandbox => Renewal::NextGeneration,
        }
    }

    /// By how much a renewal raises the generation.
    pub(crate) fn step(self) -> i64 {
        match self.renewal() {
            Renewal::KeepsGeneration => 0,
            Renewal::NextGeneration => 1,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    pub kind: ResourceType,
    pub id: Arc<str>,
}

impl Resource {
    pub fn new(kind: ResourceType, id: impl Into<Arc<str>>) -> Self {
        Self { kind, id: id.into() }
    }
}

/// Who asks for leases. The name is shown; the token proves possession.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub name: Arc<str>,
    pub token: LeaseToken,
}

/// A row of `leases`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceLease {
    pub resource: Resource,
    pub lease: Lease,
    /// When the holder acquired it.
    pub acquired_at: Timestamp,
    /// When it was last acquired or renewed.
    pub renewed_at: Timestamp,
    /// Set in a tombstone.
    pub released_at: Option<Timestamp>,
}

/// Why a lease was not acquired, renewed or released.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LeaseRefusal {
    #[error("'{holder}' holds the lease until {until}")]
    Held { holder: Arc<str>, until: Timestamp },
    #[error("the lease has expired: acquire it again")]
    Expired,
    #[error("the lease was released, or another holder acquired it")]
    Stale,
}

/// Leases on resources. An outage gives no grace: work that two do for a moment is judged again where it is written, work
/// that nobody does stands still.
#[async_trait]
pub trait LeaseStore: Send + Sync {
    /// Acquires each lease that is free, released, expired or already the holder's. A free one has the next generation.
    /// One that is the holder's is renewed, which raises the generation if the resource's contract says so. Returns one
    /// result per resource, in order. A crash before the commit leaves what was; one after it leaves leases that the
    /// holder renews by asking again, or that expire.
    async fn acquire_leases(
        &self,
        resources: &[Resource],
        holder: &Holder,
        ttl_ms: DurationMs,
    ) -> Result<Vec<Result<ResourceLease, LeaseRefusal>>, StoreError>;

    /// Moves the end of a live lease for its holder. A crash leaves the old end or the new one.
    async fn renew_lease(
        &self,
        resource: &Resource,
        holder: &Holder,
        ttl_ms: DurationMs,
    ) -> Result<Result<ResourceLease, LeaseRefusal>, StoreError>;

    /// Ends a lease for its holder, expired or not: anyone may acquire it at once. A crash before the commit leaves the
    /// lease until it expires.
    async fn release_lease(&self, resource: &Resource, holder: &Holder)
    -> Result<Result<(), LeaseRefusal>, StoreError>;

    /// Live leases of a type, by id. Tombstones are left out.
    async fn leases(&self, kind: ResourceType) -> Result<Vec<ResourceLease>, StoreError>;

    /// Removes replicas whose leases ended before a point in time. Other resources keep their rows: with its row a
    /// resource loses its generation.
    async fn prune_replicas(&self, before: Timestamp) -> Result<usize, StoreError>;
}

impl ResourceLease {
    pub(crate) fn is_live(&self, now: Timestamp) -> bool {
        self.released_at.is_none() && !lease::is_expired(&self.lease, self.renewed_at, now, Grace::NONE)
    }
}

/// Why an acquire failed.
pub(crate) fn held(found: Option<ResourceLease>) -> LeaseRefusal {
    found.map_or(LeaseRefusal::Stale, |found| LeaseRefusal::Held {
        holder: found.lease.holder,
        until: found.lease.expires_at,
    })
}

/// Why a renewal or a release failed.
pub(crate) fn lost(found: Option<ResourceLease>, holder: &Holder, now: Timestamp) -> LeaseRefusal {
    let Some(found) = found.filter(|found| found.released_at.is_none()) else { return LeaseRefusal::Stale };
    let extension = Extension { ttl_ms: 0, not_after: Timestamp::MAX, renewal: found.resource.kind.renewal() };
    match lease::renew(&found.lease, found.renewed_at, holder.token, extension, now, Grace::NONE) {
        Err(LeaseError::Expired) => LeaseRefusal::Expired,
        Ok(_) | Err(LeaseError::WrongToken) => LeaseRefusal::Stale,
    }
}
