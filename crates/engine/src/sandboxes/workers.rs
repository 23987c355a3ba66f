//! The port to workers: what the manager of sandboxes asks of them. It knows no HTTP.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::Stream;
use tenure_core::WorkerId;
use tenure_core::sandbox::placement::Worker;
use tenure_core::sandbox::{SandboxId, Spec};
use tenure_core::time::{DurationMs, Timestamp};

/// A worker that can be called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub worker: WorkerId,
    pub rpc_url: Arc<str>,
    pub capabilities: Arc<[String]>,
}

impl Target {
    pub fn can(&self, capability: &str) -> bool {
        self.capabilities.iter().any(|own| own == capability)
    }
}

/// Proves to a worker that it holds the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RpcLease {
    pub resource: SandboxId,
    pub holder: WorkerId,
    pub generation: i64,
    pub expires_at: Timestamp,
}

/// What every call carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallTerms {
    /// `req-` and a UUID. A repeated call has the same one.
    pub request_id: Arc<str>,
    pub lease: Option<RpcLease>,
    /// How long the call may take.
    pub within: Duration,
}

/// The runtime that a call is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeRef {
    pub sandbox: SandboxId,
    /// As the caller of the user API wrote it.
    pub provider: String,
    /// `None`: the worker looks it up by the sandbox.
    pub runtime_id: Option<Arc<str>>,
}

/// `worker.spawn`.
#[derive(Clone, PartialEq, Eq)]
pub struct SpawnOrder {
    pub sandbox: SandboxId,
    pub owner: Option<Arc<str>>,
    pub ttl_ms: DurationMs,
    pub spec: Arc<Spec>,
    /// Variables of the spec and secrets that are variables.
    pub env: BTreeMap<String, String>,
}

impl fmt::Debug for SpawnOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpawnOrder")
            .field("sandbox", &self.sandbox)
            .field("ttl_ms", &self.ttl_ms)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spawned {
    pub runtime_id: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeStatus {
    /// A word of the provider: `running`, `unhealthy`, `error`.
    pub state: String,
    /// Contract-only workers do not tell.
    pub runtime_id: Option<Arc<str>>,
    pub error: Option<String>,
}

/// A command of a template's setup. It runs in a shell.
#[derive(Clone, PartialEq, Eq)]
pub struct SetupCommand {
    pub command: String,
    pub timeout: Duration,
    /// Variables that the worker does not keep with the runtime. They may be secrets.
    pub env: BTreeMap<String, String>,
}

impl fmt::Debug for SetupCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SetupCommand")
            .field("command", &self.command)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SetupOutcome {
    pub exit_code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// A file whose content may be a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct NewFile {
    pub path: String,
    pub mode: u32,
    pub content: Vec<u8>,
}

impl fmt::Debug for NewFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewFile").field("path", &self.path).field("bytes", &self.content.len()).finish_non_exhaustive()
    }
}

/// What a worker says about the archive of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Archive {
    pub size_bytes: u64,
    /// In lower-case hexadecimal.
    pub sha256: String,
}

/// The bytes of an archive, in pieces of at most a few MiB.
pub type ArchiveBytes = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

/// The class of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallClass {
    Invalid,
    Draining,
    LeaseStale,
    LeaseExpired,
    ProviderUnavailable,
    NotFound,
    Destroyed,
    Timeout,
    Internal,
}

impl CallClass {
    pub const ALL: [Self; 9] = [
        Self::Invalid,
        Self::Draining,
        Self::LeaseStale,
        Self::LeaseExpired,
        Self::ProviderUnavailable,
        Self::NotFound,
        Self::Destroyed,
        Self::Timeout,
        Self::Internal,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Draining => "draining",
            Self::LeaseStale => "lease_stale",
            Self::LeaseExpired => "lease_expired",
            Self::ProviderUnavailable => "provider_unavailable",
            Self::NotFound => "not_found",
            Self::Destroyed => "destroyed",
            Self::Timeout => "timeout",
            Self::Internal => "internal",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.as_str() == text)
    }
}

/// Why a call did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The worker answered, and refused or failed.
    #[error("{message}")]
    Refused { class: CallClass, message: String },
    /// There is no answer.
    #[error("{message}")]
    Unreachable {
        /// Whether the worker may have run the call.
        maybe_executed: bool,
        message: String,
    },
}

impl CallError {
    pub fn refused(class: CallClass, message: impl Into<String>) -> Self {
        Self::Refused { class, message: message.into() }
    }

    pub const fn class(&self) -> Option<CallClass> {
        match self {
            Self::Refused { class, .. } => Some(*class),
            Self::Unreachable { .. } => None,
        }
    }
}

/// Calls to workers. One implementation speaks HTTP; tests have another.
#[async_trait]
pub trait Workers: Send + Sync + fmt::Debug {
    /// Whether this control plane has a credential for the worker.
    fn can_call(&self, worker: &Worker) -> bool;

    async fn spawn(&self, target: &Target, terms: &CallTerms, order: &SpawnOrder) -> Result<Spawned, CallError>;

    /// An absent runtime counts as success.
    async fn destroy(&self, target: &Target, terms: &CallTerms, runtime: &RuntimeRef) -> Result<(), CallError>;

    async fn status(
        &self,
        target: &Target,
        terms: &CallTerms,
        runtime: &RuntimeRef,
    ) -> Result<RuntimeStatus, CallError>;

    async fn exec(
        &self,
        target: &Target,
        terms: &CallTerms,
        runtime: &RuntimeRef,
        command: &SetupCommand,
    ) -> Result<SetupOutcome, CallError>;

    async fn write_file(
        &self,
        target: &Target,
        terms: &CallTerms,
        runtime: &RuntimeRef,
        file: &NewFile,
    ) -> Result<(), CallError>;

    /// Makes the worker renew the lease in `terms` now, for `ttl_ms`.
    async fn renew_lease(
        &self,
        target: &Target,
        terms: &CallTerms,
        sandbox: &str,
        ttl_ms: DurationMs,
    ) -> Result<RpcLease, CallError>;

    /// Starts draining.
    async fn shutdown(&self, target: &Target, terms: &CallTerms) -> Result<(), CallError>;

    /// Ends draining.
    async fn undrain(&self, target: &Target, terms: &CallTerms) -> Result<(), CallError>;

    async fn snapshot(
        &self,
        target: &Target,
        terms: &CallTerms,
        runtime: &RuntimeRef,
        snapshot: &str,
    ) -> Result<Archive, CallError>;

    /// Swaps the filesystem of a live sandbox for that of a snapshot that the worker has.
    async fn restore(
        &self,
        target: &Target,
        terms: &CallTerms,
        runtime: &RuntimeRef,
        snapshot: &str,
    ) -> Result<(), CallError>;

    async fn get_snapshot(&self, target: &Target, terms: &CallTerms, snapshot: &str)
    -> Result<ArchiveBytes, CallError>;

    async fn put_snapshot(
        &self,
        target: &Target,
        terms: &CallTerms,
        snapshot: &str,
        size_bytes: u64,
        content: ArchiveBytes,
    ) -> Result<Archive, CallError>;
}
