use std::time::Duration;

use tenure_store::StoreError;

/// Why a command got no answer. A refusal by the rules is an answer, not an error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// More is waiting than the engine keeps. Nothing was done.
    #[error("too many requests are waiting: try again later")]
    Busy { retry_after: Duration },
    /// The store cannot be reached or cannot write. The command may or may not have happened; sent again, it gets the
    /// same answer.
    #[error("the store is unavailable: try again later")]
    Unavailable { retry_after: Duration },
    /// The store has no room to write. Nothing was done.
    #[error("the store is unavailable: disk full; try again later")]
    DiskFull { retry_after: Duration },
    /// The engine is shutting down. Nothing was done.
    #[error("the control plane is shutting down: try again")]
    Closed,
    /// The store failed in a way that trying again will not mend; the log says how.
    #[error("the store failed")]
    Internal,
}

impl EngineError {
    pub(crate) const fn busy() -> Self {
        Self::Busy { retry_after: Duration::from_secs(1) }
    }

    pub(crate) const fn unavailable() -> Self {
        Self::Unavailable { retry_after: Duration::from_secs(1) }
    }
}

impl From<StoreError> for EngineError {
    fn from(error: StoreError) -> Self {
        if matches!(error, StoreError::DiskFull { .. }) {
            tracing::error!(error = error.chain(), "the disk of the store is full: free some space");
            Self::DiskFull { retry_after: Duration::from_secs(1) }
        } else if error.is_transient() {
            tracing::warn!(error = error.chain(), "the store is unavailable");
            Self::unavailable()
        } else {
            tracing::error!(error = error.chain(), "the store failed");
            Self::Internal
        }
    }
}
