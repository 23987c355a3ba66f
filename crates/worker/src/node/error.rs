use std::io;

use tenure_sandbox::ErrorKind;

use super::lease::LeaseRefusal;

/// Why this worker does not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// Neither a sandbox nor a runtime was named, or a name is unusable.
    #[error("{0}")]
    Invalid(String),
    #[error(transparent)]
    Lease(#[from] LeaseRefusal),
    /// The lease lapsed, and the runtime stands still until it is renewed.
    #[error("sandbox {0} is frozen because its lease lapsed: renew the lease")]
    Frozen(String),
    #[error("this worker is draining and takes no new sandboxes")]
    Draining,
    #[error("this worker has no provider: enable one in its configuration")]
    NoProviders,
    #[error("this worker does not have the provider {0:?}")]
    UnknownProvider(String),
    #[error("{0}")]
    NotFound(String),
    #[error("sandbox {0} was destroyed")]
    Destroyed(String),
    /// Too much is remembered, or the worker is at its maximum.
    #[error("{0}")]
    Full(String),
    /// The control plane did not answer.
    #[error("the control plane could not be reached: {0}")]
    Unreachable(String),
    /// The control plane refused a renewal. Without `lease` it did not say why.
    #[error("the control plane refused the renewal: {message}")]
    Refused { lease: Option<LeaseRefusal>, message: String },
    #[error(transparent)]
    Provider(#[from] tenure_sandbox::Error),
    #[error("the worker's records could not be written: {0}")]
    Storage(#[from] io::Error),
    #[error("{0}")]
    Internal(String),
}

impl NodeError {
    /// Whether it means that the runtime is not there.
    pub(crate) fn is_absent(&self) -> bool {
        match self {
            Self::NotFound(_) | Self::Destroyed(_) => true,
            Self::Provider(error) => matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Destroyed),
            _ => false,
        }
    }
}
