use std::error::Error as StdError;
use std::fmt;
use std::path::PathBuf;

use tenure_contract::callback::Category;
use tenure_contract::callback::TaskError as CategorisedError;
use tenure_contract::pull::JobError;

use super::{ERROR_CODE_BYTES, MESSAGE_BYTES, STACK_BYTES, cut};

/// Code of a task whose operator this worker does not have.
pub(crate) const CANCELLED: &str = "CANCELLED";
pub(crate) const UNKNOWN_OPERATOR: &str = "UNKNOWN_OPERATOR";
/// Code of a task that the end of its worker ended.
pub(crate) const WORKER_SHUTDOWN: &str = "WORKER_SHUTDOWN";

/// How a handler says that its task failed.
///
/// Any `std` error becomes one with `?`, its sources as the stack. I/O and lack of memory are `INFRASTRUCTURE`, a time-out
/// of tokio is `TIMEOUT`, a variable of the environment that is missing is `CONFIGURATION` and permanent, all else is
/// `USER_CODE`. To make that possible this type is no `std` error itself.
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
        Self::permanent(CANCELLED, message)
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

    /// The category of the code. Custom codes count as errors of the code that ran.
    pub fn category(&self) -> Category {
        match self.code.as_str() {
            UNKNOWN_OPERATOR => Category::Configuration,
            WORKER_SHUTDOWN => Category::Infrastructure,
            code => Category::parse(code).unwrap_or(Category::UserCode),
        }
    }

    /// For contracts that know categories only: another code stands before the message.
    pub(crate) fn into_categorised(mut self) -> CategorisedError {
        let category = self.category();
        if category.as_str() != self.code {
            self.message = format!("{}: {}", self.code, self.message);
        }
        let wire = self.into_wire();
        CategorisedError {
            category,
            message: wire.message,
            stack_trace: wire.stack,
            retryable: wire.retryable,
            handed_back: wire.handed_back,
        }
    }

    pub(crate) fn into_wire(mut self) -> JobError {
        if self.code.is_empty() {
            Category::UserCode.as_str().clone_into(&mut self.code);
        }
        cut(&mut self.code, ERROR_CODE_BYTES);
        cut(&mut self.message, MESSAGE_BYTES);
        if let Some(stack) = &mut self.stack {
            cut(stack, STACK_BYTES);
        }
        JobError {
            // An end that the worker caused is not one of the task.
            handed_back: (self.code == WORKER_SHUTDOWN).then_some(true),
            code: self.code,
            message: self.message,
            stack: self.stack,
            retryable: Some(self.retryable),
        }
    }
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl<E: StdError + 'static> From<E> for TaskError {
    fn from(error: E) -> Self {
        let causes = || std::iter::successors(Some(&error as &(dyn StdError + 'static)), |cause| (*cause).source());
        let message = error.to_string();
        let failed = match causes().find_map(known_kind) {
            Some(Category::Infrastructure) => Self::infrastructure(message),
            Some(Category::Timeout) => Self::timeout(message),
            Some(Category::Configuration) => Self::configuration(message),
            _ => Self::user_code(message),
        };
        let sources: Vec<_> = causes().skip(1).map(|source| format!("caused by: {source}")).collect();
        if sources.is_empty() { failed } else { failed.with_stack(sources.join("\n")) }
    }
}

/// What kind of failure an error is, if its type says so.
fn known_kind(error: &(dyn StdError + 'static)) -> Option<Category> {
    if error.is::<tokio::time::error::Elapsed>() {
        Some(Category::Timeout)
    } else if error.is::<std::env::VarError>() {
        Some(Category::Configuration)
    } else if error.is::<std::io::Error>() || error.is::<std::collections::TryReserveError>() {
        Some(Category::Infrastructure)
    } else {
        None
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
    /// The listener of a worker that is pushed to.
    #[error("the listener failed")]
    Listener(#[source] std::io::Error),
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
    fn the_type_of_an_error_says_its_category() {
        fn of<E: StdError + 'static>(error: E) -> (Category, bool) {
            let error = TaskError::from(error);
            (error.category(), error.is_retryable())
        }
        #[derive(Debug, thiserror::Error)]
        #[error("reading the report")]
        struct Reading(#[source] std::io::Error);
        let full = || std::io::Error::from(std::io::ErrorKind::StorageFull);
        assert_eq!(of(full()), (Category::Infrastructure, true));
        assert_eq!(of(Reading(full())), (Category::Infrastructure, true));
        assert_eq!(of(std::env::VarError::NotPresent), (Category::Configuration, false));
        let too_much = Vec::<u8>::new().try_reserve(usize::MAX).unwrap_err();
        assert_eq!(of(too_much), (Category::Infrastructure, true));
        assert_eq!(of("x".parse::<u8>().unwrap_err()), (Category::UserCode, true));
    }

    #[tokio::test]
    async fn a_time_out_of_ones_own_is_a_time_out() {
        let elapsed = tokio::time::timeout(std::time::Duration::ZERO, std::future::pending::<()>()).await.unwrap_err();
        assert_eq!(TaskError::from(elapsed).category(), Category::Timeout);
    }

    #[test]
    fn a_code_of_ones_own_is_told_with_the_message() {
        let wire = TaskError::permanent("NO_SUCH_DAY", "2025-02-30").into_categorised();
        assert_eq!((wire.category, wire.retryable), (Category::UserCode, Some(false)));
        assert_eq!(wire.message, "NO_SUCH_DAY: 2025-02-30");
        let wire = TaskError::data_quality("no rows").into_categorised();
        assert_eq!((wire.category, wire.message.as_str()), (Category::DataQuality, "no rows"));
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        assert_eq!(TaskError::permanent("", "why").into_wire().code, "USER_CODE");
        let wire = TaskError::data_quality("ä".repeat(MESSAGE_BYTES)).into_wire();
        assert_eq!((wire.message.len(), wire.retryable), (MESSAGE_BYTES, Some(false)));
    }
}
