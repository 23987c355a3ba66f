//! Why a call was refused or failed, and how the answer says so.

use axum::http::StatusCode;
use tenure_contract::worker_rpc::Code;
use tenure_sandbox::ErrorKind;

use crate::node::{LeaseRefusal, NodeError};

/// The class of a failure, in the vocabulary of the body that carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// `ApiError`: the envelope was not read, or the caller may not know more.
    Api(&'static str),
    /// The response envelope.
    Call(Code),
}

impl Class {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Api(code) => code,
            Self::Call(code) => code.as_str(),
        }
    }
}

#[derive(Debug)]
pub(super) struct Refusal {
    pub status: StatusCode,
    pub class: Class,
    pub message: String,
    /// Whether a repeated request gets this answer again. Refusals by checks are not kept: the cause may be gone.
    pub executed: bool,
}

impl Refusal {
    pub(super) fn api(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, class: Class::Api(code), message: message.into(), executed: false }
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::api(StatusCode::BAD_REQUEST, "BAD_REQUEST", message)
    }

    /// With the status that the class usually has.
    pub(super) fn call(code: Code, message: impl Into<String>) -> Self {
        let status = match code {
            Code::Invalid => StatusCode::BAD_REQUEST,
            Code::LeaseStale | Code::LeaseExpired => StatusCode::FORBIDDEN,
            Code::NotFound | Code::Destroyed => StatusCode::NOT_FOUND,
            Code::Draining | Code::ProviderUnavailable => StatusCode::SERVICE_UNAVAILABLE,
            Code::Timeout => StatusCode::GATEWAY_TIMEOUT,
            Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self { status, class: Class::Call(code), message: message.into(), executed: false }
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::call(Code::Invalid, message)
    }

    pub(super) fn too_large(message: impl Into<String>) -> Self {
        Self { status: StatusCode::PAYLOAD_TOO_LARGE, ..Self::invalid(message) }
    }

    #[must_use]
    pub(super) fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    #[must_use]
    pub(super) fn executed(mut self) -> Self {
        self.executed = true;
        self
    }
}

impl From<LeaseRefusal> for Refusal {
    fn from(refusal: LeaseRefusal) -> Self {
        match refusal {
            LeaseRefusal::Stale(message) => Self::call(Code::LeaseStale, message),
            LeaseRefusal::Expired(message) => Self::call(Code::LeaseExpired, message),
        }
    }
}

impl From<NodeError> for Refusal {
    fn from(error: NodeError) -> Self {
        let message = error.to_string();
        match error {
            NodeError::Invalid(_) => Self::invalid(message),
            NodeError::Lease(refusal) => refusal.into(),
            NodeError::Frozen(_) => Self::call(Code::LeaseExpired, message),
            NodeError::Draining => Self::call(Code::Draining, message),
            NodeError::NoProviders | NodeError::Unreachable(_) => Self::call(Code::ProviderUnavailable, message),
            NodeError::UnknownProvider(_) => {
                Self::call(Code::ProviderUnavailable, message).with_status(StatusCode::NOT_FOUND)
            }
            NodeError::NotFound(_) => Self::call(Code::NotFound, message).executed(),
            NodeError::Destroyed(_) => Self::call(Code::Destroyed, message).executed(),
            NodeError::Full(_) => Self::call(Code::ProviderUnavailable, message).executed(),
            NodeError::Refused { lease, .. } => {
                let code = match lease {
                    Some(LeaseRefusal::Expired(_)) => Code::LeaseExpired,
                    Some(LeaseRefusal::Stale(_)) | None => Code::LeaseStale,
                };
                Self::call(code, message).with_status(StatusCode::CONFLICT).executed()
            }
            NodeError::Provider(error) => error.into(),
            _ => Self::call(Code::Internal, message).executed(),
        }
    }
}

impl From<tenure_sandbox::Error> for Refusal {
    fn from(error: tenure_sandbox::Error) -> Self {
        let message = error.to_string();
        let code = match error.kind() {
            // The lease lapsed between the check and the call.
            ErrorKind::Frozen => return Self::call(Code::LeaseExpired, message),
            ErrorKind::NotFound => Code::NotFound,
            ErrorKind::Destroyed => Code::Destroyed,
            ErrorKind::Unavailable | ErrorKind::ResourceLimit => Code::ProviderUnavailable,
            ErrorKind::Timeout => Code::Timeout,
            ErrorKind::Invalid => Code::Invalid,
            _ => Code::Internal,
        };
        Self::call(code, message).executed()
    }
}
