use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::time::SystemTime;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::capabilities::Capabilities;
use crate::error::{Error, Result};
use crate::execution::Execution;
use crate::files::{FileInfo, FileReader, FileWrite};
use crate::spec::{Command, Deadlines, Spec};

/// Bytes that are read as they are needed.
pub type Stream = Pin<Box<dyn AsyncRead + Send>>;

/// A connection to a port in a sandbox.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

/// A provider's name for a sandbox. Opaque to everybody else, and never used twice.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RuntimeId(pub String);

impl fmt::Display for RuntimeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RuntimeState {
    Running,
    Frozen,
    /// Its first process ended without being asked to. Only `destroy` works.
    Stopped,
}

/// A sandbox that a provider holds.
#[derive(Debug, Clone)]
pub struct Runtime {
    pub id: RuntimeId,
    pub sandbox_id: String,
    /// As the caller wrote it.
    pub image: String,
    /// What the image resolved to.
    pub image_resolved: String,
    pub state: RuntimeState,
    pub created: SystemTime,
    pub metadata: BTreeMap<String, String>,
}

/// What a sandbox uses now.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stats {
    /// Percent of one core since the previous call, or since the start.
    pub cpu_percent: f64,
    pub memory_bytes: u64,
    /// 0 if there is no limit.
    pub memory_limit_bytes: u64,
    pub pids: u64,
    pub disk_bytes: u64,
}

/// Creates sandboxes and acts on them.
///
/// A call on a sandbox that does not exist fails with `NotFound`, on one that was destroyed with `Destroyed` or
/// `NotFound`, on a frozen one with `Frozen`. Paths are absolute inside the sandbox or relative to `/workspace`; they are
/// resolved beneath its root, and a symbolic link never leads outside.
#[async_trait]
pub trait Provider: Send + Sync + fmt::Debug {
    /// `namespace`, `process` or `docker`.
    fn name(&self) -> &'static str;

    /// What the provider enforces, as measured when it was created.
    fn capabilities(&self) -> &Capabilities;

    /// Whether the provider can work now. Answers within 2 s and has no side effects.
    async fn healthy(&self) -> Result<()>;

    /// Creates a sandbox and returns when it runs. A failed spawn leaves nothing.
    async fn spawn(&self, spec: Spec) -> Result<Runtime>;

    /// Takes over the sandboxes that a former process left, and removes the remains of those that ended.
    async fn adopt(&self) -> Result<Vec<Runtime>>;

    /// The sandboxes that this provider holds.
    async fn list(&self) -> Result<Vec<Runtime>>;

    async fn status(&self, id: &RuntimeId) -> Result<Runtime>;

    /// Ends every process of the sandbox and removes its files. An absent sandbox is not an error.
    async fn destroy(&self, id: &RuntimeId) -> Result<()>;

    /// Starts a command. A program that does not exist is exit code 127, one that cannot be executed 126.
    async fn exec(&self, id: &RuntimeId, command: Command) -> Result<Execution>;

    async fn write_file(&self, id: &RuntimeId, file: FileWrite) -> Result<()>;
    /// Regular files only.
    async fn read_file(&self, id: &RuntimeId, path: &str) -> Result<FileReader>;
    /// The entries of a directory, sorted by path.
    async fn list_files(&self, id: &RuntimeId, path: &str) -> Result<Vec<FileInfo>>;
    async fn delete_file(&self, id: &RuntimeId, path: &str, recursive: bool) -> Result<()>;
    async fn move_file(&self, id: &RuntimeId, from: &str, to: &str) -> Result<()>;
    async fn chmod_file(&self, id: &RuntimeId, path: &str, mode: u32) -> Result<()>;
    async fn stat_file(&self, id: &RuntimeId, path: &str) -> Result<FileInfo>;
    /// Paths that match a pattern with `*`, `?`, `[…]` and `**`, sorted.
    async fn glob_files(&self, id: &RuntimeId, pattern: &str) -> Result<Vec<String>>;

    /// The last lines that commands of the sandbox wrote, oldest first; 0 means all that are kept.
    async fn console_log(&self, id: &RuntimeId, lines: usize) -> Result<Vec<String>>;

    async fn stats(&self, id: &RuntimeId) -> Result<Stats>;

    /// Replaces the deadlines of a sandbox.
    async fn set_deadlines(&self, id: &RuntimeId, deadlines: Deadlines) -> Result<()>;

    /// Whether sandboxes hold their deadlines themselves. Otherwise deadlines apply only while this process runs.
    fn holds_deadlines(&self) -> bool {
        false
    }

    async fn freeze(&self, _id: &RuntimeId) -> Result<()> {
        Err(unsupported(self.name(), "freeze"))
    }

    async fn thaw(&self, _id: &RuntimeId) -> Result<()> {
        Err(unsupported(self.name(), "thaw"))
    }

    /// Replaces the list of allowed hosts of a sandbox that was created with one.
    async fn set_allowed_hosts(&self, _id: &RuntimeId, _hosts: Vec<String>) -> Result<()> {
        Err(unsupported(self.name(), "a list of allowed hosts"))
    }

    /// Connects to a TCP port on the sandbox's loopback address.
    async fn dial(&self, _id: &RuntimeId, _port: u16) -> Result<Box<dyn Connection>> {
        Err(unsupported(self.name(), "connections to ports"))
    }

    /// The writable layer as a compressed archive. Commands are stopped while it is taken.
    async fn snapshot(&self, _id: &RuntimeId) -> Result<Stream> {
        Err(unsupported(self.name(), "snapshots"))
    }

    /// Ends every command of the sandbox and replaces its writable layer by an archive that `snapshot` returned. A
    /// damaged archive leaves the sandbox as it was.
    async fn restore(&self, _id: &RuntimeId, _archive: Stream) -> Result<()> {
        Err(unsupported(self.name(), "snapshots"))
    }
}

fn unsupported(provider: &str, what: &str) -> Error {
    Error::invalid(format!("the provider {provider} does not support {what}"))
}
