/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, in the classes that callers act on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The sandbox or the file does not exist.
    NotFound,
    /// The sandbox existed and was destroyed.
    Destroyed,
    /// The sandbox is frozen: it runs no command and serves no file until it is thawed.
    Frozen,
    /// The provider cannot work now: its daemon does not answer, or it is at its maximum.
    Unavailable,
    /// A command ran longer than its timeout and was killed.
    Timeout,
    /// A limit of the sandbox was reached, for example its disk is full.
    ResourceLimit,
    /// The request is wrong, or asks for more than the provider enforces.
    Invalid,
    /// Anything else.
    Internal,
}

/// An error of a provider. The message is for people and names the sandbox, file or setting that it is about.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: String,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, message)
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, message)
    }

    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }

    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}
