use std::error::Error as StdError;
use std::fmt;
use std::path::PathBuf;

use tenure_contract::pull::JobError;

use super::{ERROR_CODE_BYTES, MESSAGE_BYTES, STACK_BYTES, cut};

/// How a handler says that its task failed.
///
/// Any `std` error becomes one with `?`: retryable, code `USER_CODE`, its sources as the stack. To make that possible
/// this type is no `std` error itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskError {
    code: String,
    message: String,
    stack: Option<String>,
    retryable: bool,
}

impl TaskError {
    /// Another attempt may succeed.
    pub fn retryable(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), stack: None, retryable: true }
    }

    /// Another attempt would fail alike: the task goes to the dead letters.
    pub fn permanent(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { retryable: false, ..Self::retryable(code, message) }
    }

    /// The code of the handler failed. Retryable.
    pub fn user_code(message: impl Into<String>) -> Self {
        Self::retryable("USER_CODE", message)
    }

    /// Something around the handler failed: network, disk, another service. Retryable.
    pub fn infrastructure(message: impl Into<String>) -> Self {
        Self::retryable("INFRASTRUCTURE", message)
    }

    /// It took too long. Retryable.
    pub fn timeout(message: impl Into<String>) -> Self {
        Self::retryable("TIMEOUT", message)
    }

    /// The input is wrong. Permanent.
    pub fn data_quality(message: impl Into<String>) -> Self {
        Self::permanent("DATA_QUALITY", message)
    }

    /// The worker or the task is set up wrongly. Permanent.
    pub fn configuration(message: impl Into<String>) -> Self {
        Self::permanent("CONFIGURATION", message)
    }

    /// The handler stopped because it was told to. Permanent.
    pub fn cancelled(message: impl Into<String>) -> Self {
        Self::permanent("CANCELLED", message)
    }

    /// Adds what helps to find the cause: a backtrace, the end of a log.
    #[must_use]
    pub fn with_stack(mut self, stack: impl Into<String>) -> Self {
        self.stack = Some(stack.into());
        self
    }

    pub fn code(&self) -> &str {
        &self.code
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    pub fn stack(&self) -> Option<&str> {
        self.stack.as_deref()
    }

    pub fn is_retryable(&self) -> bool {
        self.retryable
    }

    pub(crate) fn into_wire(mut self) -> JobError {
        cut(&mut self.code, ERROR_CODE_BYTES);
        cut(&mut self.message, MESSAGE_BYTES);
        if let Some(stack) = &mut self.stack {
            cut(stack, STACK_BYTES);
        }
        JobError { code: self.code, message: self.message, stack: self.stack, retryable: Some(self.retryable) }
    }
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl<E: StdError> From<E> for TaskError {
    fn from(error: E) -> Self {
        let sources: Vec<_> = std::iter::successors(error.source(), |source| (*source).source())
            .map(|source| format!("caused by: {source}"))
            .collect();
        let failed = Self::user_code(error.to_string());
        if sources.is_empty() { failed } else { failed.with_stack(sources.join("\n")) }
    }
}

/// Why a worker ended, or could not begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// A setting cannot be used.
    #[error("{0}")]
    Setup(String),
    #[error("the token file {} could not be read", path.display())]
    TokenFile {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the file with the bootstrap key, {}, could not be read", path.display())]
    BootstrapKeyFile {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The server refuses this worker, or what it asks for, and would refuse it again.
    #[error("the server refuses this worker: {message} ({error}, HTTP {status})")]
    Refused { status: u16, error: String, message: String },
    /// A newer process works under the same name; what this one held is void.
    #[error("a newer process works under the name {worker_id}")]
    Superseded { worker_id: String },
    /// The heartbeat thread is gone, and without heartbeats no lease may be kept.
    #[error("the heartbeat thread ended: {0}")]
    Supervisor(String),
    /// The server could not be reached while shutting down. The leases will run out and the tasks be tried again.
    #[error("{count} outcomes could not be reported before the end")]
    Unreported { count: usize },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] std::num::ParseIntError);

    #[test]
    fn std_errors_become_retryable_user_code_with_their_sources_as_stack() {
        fn handler() -> Result<(), TaskError> {
            "x".parse::<u8>().map_err(Outer)?;
            Ok(())
        }
        let wire = handler().unwrap_err().into_wire();
        assert_eq!((wire.code.as_str(), wire.message.as_str(), wire.retryable), ("USER_CODE", "outer", Some(true)));
        assert_eq!(wire.stack.unwrap(), "caused by: invalid digit found in string");
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        let wire = TaskError::data_quality("ä".repeat(MESSAGE_BYTES)).into_wire();
        assert_eq!((wire.message.len(), wire.retryable), (MESSAGE_BYTES, Some(false)));
    }
}
