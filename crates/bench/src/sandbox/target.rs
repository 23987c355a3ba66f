use std::io::Cursor;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use tenure_sandbox::{Command, Enforcement, FileWrite, Limits, Provider, RuntimeId, Spec, Support};
use tokio::io::AsyncReadExt;

use super::rpc::RpcTarget;

pub(super) const FILE: &str = "/workspace/bench.bin";
/// As much of the output of `true` as is kept.
const OUTPUT_BYTES: usize = 1024;

/// What is measured.
#[derive(Debug)]
pub enum Target {
    /// A provider, called in this process.
    Direct(DirectTarget),
    /// A worker's listener, over HTTP.
    Rpc(RpcTarget),
}

/// The sandbox as its target names it.
pub(super) type Sandbox = String;

impl Target {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Direct(target) => target.provider.name(),
            Self::Rpc(target) => target.name(),
        }
    }

    pub(super) fn image(&self) -> &str {
        match self {
            Self::Direct(target) => &target.image,
            Self::Rpc(target) => target.image(),
        }
    }

    /// Creates a sandbox, with `room` for files of that many bytes if it is given.
    pub(super) async fn spawn(&self, room: Option<u64>) -> Result<Sandbox> {
        match self {
            Self::Direct(target) => target.spawn(room).await,
            Self::Rpc(target) => target.spawn(room.map(|bytes| bytes >> 20)).await,
        }
    }

    pub(super) async fn exec(&self, sandbox: &Sandbox) -> Result<()> {
        match self {
            Self::Direct(target) => target.exec(&RuntimeId(sandbox.clone())).await,
            Self::Rpc(target) => target.exec(sandbox).await,
        }
    }

    pub(super) async fn destroy(&self, sandbox: &Sandbox) -> Result<()> {
        match self {
            Self::Direct(target) => {
                target.provider.destroy(&RuntimeId(sandbox.clone())).await.context("a sandbox was not removed")
            }
            Self::Rpc(target) => target.destroy(sandbox).await,
        }
    }

    pub(super) async fn write(&self, sandbox: &Sandbox, content: Bytes) -> Result<()> {
        match self {
            Self::Direct(target) => target.write(&RuntimeId(sandbox.clone()), content).await,
            Self::Rpc(target) => target.write(sandbox, content).await,
        }
    }

    pub(super) async fn read(&self, sandbox: &Sandbox) -> Result<usize> {
        match self {
            Self::Direct(target) => target.read(&RuntimeId(sandbox.clone())).await,
            Self::Rpc(target) => target.read(sandbox).await,
        }
    }
}

#[derive(Debug)]
pub struct DirectTarget {
    provider: Arc<dyn Provider>,
    image: String,
    next: AtomicU64,
}

impl DirectTarget {
    pub fn new(provider: Arc<dyn Provider>, image: impl Into<String>) -> Self {
        Self { provider, image: image.into(), next: AtomicU64::new(0) }
    }

    async fn spawn(&self, room: Option<u64>) -> Result<Sandbox> {
        let found = self.provider.capabilities();
        let wanted = |support: &Support, bytes: u64| {
            room.filter(|_| support.enforcement == Enforcement::Enforced).map(|room| room + bytes)
        };
        let limits = Limits {
            disk_bytes: wanted(&found.disk, 0),
            memory_bytes: wanted(&found.memory, 256 << 20),
            ..Limits::default()
        };
        let name = format!("bench-{}", self.next.fetch_add(1, Ordering::Relaxed));
        let spec = Spec { limits, die_with_parent: true, ..Spec::new(name, &*self.image) };
        Ok(self.provider.spawn(spec).await.context("a sandbox was not created")?.id.0)
    }

    async fn exec(&self, id: &RuntimeId) -> Result<()> {
        let execution = self.provider.exec(id, Command::argv(["true"])).await.context("`true` was not started")?;
        let code = execution.output(OUTPUT_BYTES).await.context("`true` was lost")?.exit().code;
        ensure!(code == 0, "`true` ended with exit code {code}");
        Ok(())
    }

    async fn write(&self, id: &RuntimeId, content: Bytes) -> Result<()> {
        let file = FileWrite { path: FILE.to_owned(), mode: 0o644, content: Box::pin(Cursor::new(content)) };
        self.provider.write_file(id, file).await.context("the file was not written")
    }

    async fn read(&self, id: &RuntimeId) -> Result<usize> {
        let mut file = self.provider.read_file(id, FILE).await.context("the file was not opened")?;
        let mut buffer = vec![0; 256 << 10];
        let mut length = 0;
        loop {
            match file.content.read(&mut buffer).await.context("the file was not read")? {
                0 => return Ok(length),
                count => length += count,
            }
        }
    }
}
