use std::fmt;
use std::time::Duration;

use tenure_contract::callback::{CallbackError, ErrorCode};

/// The control plane refused a callback, and would refuse it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    status: u16,
    /// Refusals are rare and travel in many results.
    body: Box<CallbackError>,
}

impl Refusal {
    pub(crate) fn new(status: u16, body: CallbackError) -> Self {
        Self { status, body: Box::new(body) }
    }

    /// The HTTP status.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The word of the contract, if it is one.
    pub fn code(&self) -> Option<ErrorCode> {
        self.body.code()
    }

    /// The word as it came.
    pub fn error(&self) -> &str {
        &self.body.error
    }

    /// All that the control plane said.
    pub fn body(&self) -> &CallbackError {
        &self.body
    }

    /// Whether the attempt is no longer this worker's: its handler is stopped and nothing more is said of it.
    pub fn ends_the_attempt(&self) -> bool {
        matches!(self.status, 401 | 404 | 409 | 410)
    }

    /// Whether the call was at fault, and not the attempt.
    pub(crate) fn is_of_the_call(&self) -> bool {
        matches!(self.status, 400 | 413 | 415 | 422)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, HTTP {})", self.body.message, self.body.error, self.status)
    }
}

impl std::error::Error for Refusal {}

/// Why a callback has no answer that counts.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum CallError {
    #[error("the control plane refused: {0}")]
    Refused(Refusal),
    /// It may have taken effect, or may later: make the same call again.
    #[error("{reason}")]
    Again { reason: String, retry_after: Option<Duration> },
    /// Nothing was acknowledged while the token was good, or before the worker ended.
    #[error("given up without an answer: {reason}")]
    Expired { reason: String },
}

impl CallError {
    pub(crate) fn again(reason: impl Into<String>) -> Self {
        Self::Again { reason: reason.into(), retry_after: None }
    }
}
