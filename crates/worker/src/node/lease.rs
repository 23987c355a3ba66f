use std::time::Duration;

use jiff::Timestamp;

/// The right to act on a resource, as the control plane gives it out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The sandbox.
    pub resource_id: String,
    /// The worker.
    pub holder_id: String,
    pub generation: i64,
    pub expires_at: Timestamp,
}

impl Lease {
    /// How long it is valid by this machine's clock.
    pub(crate) fn left(&self) -> Duration {
        Duration::try_from(self.expires_at.duration_since(Timestamp::now())).unwrap_or_default()
    }
}

/// Why a lease does not permit a call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LeaseRefusal {
    /// For another worker or resource, or older than one that was seen.
    #[error("{0}")]
    Stale(String),
    /// Of this worker and resource, but past its expiry.
    #[error("{0}")]
    Expired(String),
}
