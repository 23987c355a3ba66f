use std::borrow::Cow;

use tenure_core::sandbox::placement::NoPlace;
use tenure_core::time::DurationMs;
use tenure_store::StoreError;

use super::workers::{CallClass, CallError};
use crate::EngineError;

/// What kind of failure it is for the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    NotFound,
    BadRequest,
    Forbidden,
    Conflict,
    Unavailable,
    Timeout,
    ResourceLimit,
    Internal,
}

impl ErrorClass {
    /// The code of the contract.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "NOT_FOUND",
            Self::BadRequest => "BAD_REQUEST",
            Self::Forbidden => "FORBIDDEN",
            Self::Conflict => "CONFLICT",
            Self::Unavailable => "UNAVAILABLE",
            Self::Timeout => "TIMEOUT",
            Self::ResourceLimit => "RESOURCE_LIMIT",
            Self::Internal => "INTERNAL_ERROR",
        }
    }
}

/// Why something about sandboxes was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SandboxError {
    pub class: ErrorClass,
    /// A word for programs: `max_sandboxes`, `lease_stale`.
    pub reason: Cow<'static, str>,
    /// For people.
    pub message: String,
}

impl SandboxError {
    pub fn new(class: ErrorClass, reason: &'static str, message: impl Into<String>) -> Self {
        Self { class, reason: Cow::Borrowed(reason), message: message.into() }
    }

    pub(super) fn not_found(what: &str, name: &str) -> Self {
        Self::new(ErrorClass::NotFound, "not_found", format!("{what} '{name}' does not exist"))
    }

    pub(super) fn bad_request(reason: &'static str, message: impl Into<String>) -> Self {
        Self::new(ErrorClass::BadRequest, reason, message)
    }

    pub(super) fn conflict(reason: &'static str, message: impl Into<String>) -> Self {
        Self::new(ErrorClass::Conflict, reason, message)
    }

    pub(super) fn unavailable(reason: &'static str, message: impl Into<String>) -> Self {
        Self::new(ErrorClass::Unavailable, reason, message)
    }

    pub(super) fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorClass::Internal, "internal", message)
    }

    pub(super) fn stopping() -> Self {
        Self::unavailable("stopping", "the control plane is shutting down: try again")
    }
}

impl From<EngineError> for SandboxError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Internal => Self::internal(error.to_string()),
            EngineError::Busy { .. }
            | EngineError::Unavailable { .. }
            | EngineError::DiskFull { .. }
            | EngineError::Closed => Self::unavailable("store_unavailable", error.to_string()),
        }
    }
}

impl From<StoreError> for SandboxError {
    fn from(error: StoreError) -> Self {
        EngineError::from(error).into()
    }
}

impl From<CallError> for SandboxError {
    fn from(error: CallError) -> Self {
        let message = error.to_string();
        match error {
            CallError::Unreachable { .. } => Self::unavailable("worker_unreachable", message),
            CallError::Refused { class, .. } => {
                let of = match class {
                    CallClass::Invalid => ErrorClass::BadRequest,
                    CallClass::Draining | CallClass::ProviderUnavailable => ErrorClass::Unavailable,
                    CallClass::LeaseStale | CallClass::LeaseExpired => ErrorClass::Conflict,
                    CallClass::NotFound | CallClass::Destroyed => ErrorClass::NotFound,
                    CallClass::Timeout => ErrorClass::Timeout,
                    CallClass::Internal => ErrorClass::Internal,
                };
                Self::new(of, class.as_str(), message)
            }
        }
    }
}

/// What helps when no worker was found, by the word that says why.
fn advice(why: &str) -> &'static str {
    match why {
        "capacity" => "ask for less, remove sandboxes, or start another worker",
        "draining" => "undrain a worker, or start another one",
        "provider" => "name a provider that a worker has, or start a worker with this one",
        "capability" => "a worker with all that the sandbox needs must be started",
        _ => "start a worker, and look at `tenure worker list`",
    }
}

/// A time as people write it.
pub(super) fn span(ms: DurationMs) -> String {
    match ms {
        ms if ms % 3_600_000 == 0 => format!("{}h", ms / 3_600_000),
        ms if ms % 60_000 == 0 => format!("{}m", ms / 60_000),
        ms if ms % 1_000 == 0 => format!("{}s", ms / 1_000),
        ms => format!("{ms}ms"),
    }
}

impl From<NoPlace> for SandboxError {
    fn from(why: NoPlace) -> Self {
        let message = match &why {
            NoPlace::WorkerUnavailable { why } => format!("no worker can take the sandbox ({why}): {}", advice(why)),
            NoPlace::RpcUnavailable => {
                "no worker that could take the sandbox can be called: it needs a credential and an rpc_url".to_owned()
            }
            NoPlace::MaxSandboxes => "the maximum number of sandboxes is reached".to_owned(),
            NoPlace::MaxSandboxesPerOwner => "the maximum number of sandboxes of this owner is reached".to_owned(),
            NoPlace::MaxSandboxesPerTenant => "the maximum number of sandboxes of this tenant is reached".to_owned(),
        };
        Self::new(ErrorClass::ResourceLimit, why.reason(), message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_fits_the_reason_and_times_are_short() {
        let told = |why| SandboxError::from(NoPlace::WorkerUnavailable { why }).message;
        assert!(told("draining").contains("(draining): undrain a worker"));
        assert!(told("provider").contains("name a provider"));
        assert!(told("capacity").contains("ask for less"));
        assert!(told("no_workers").contains("start a worker"));
        let spans = [86_400_000, 90_000, 600_000, 1_500].map(span);
        assert_eq!(spans, ["24h", "90s", "10m", "1500ms"]);
    }
}
