use std::io::Cursor;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use tenure_sandbox::{Command, FileWrite, Limits, Provider, RuntimeId, Spec};
use tokio::io::AsyncReadExt;

const FILE: &str = "/workspace/bench.bin";
/// As much of the output of `true` as is kept.
const OUTPUT_BYTES: usize = 1024;

/// What is measured: a provider, called in this process.
#[derive(Debug)]
pub struct Target {
    provider: Arc<dyn Provider>,
    image: String,
    next: AtomicU64,
}

impl Target {
    pub fn new(provider: Arc<dyn Provider>, image: impl Into<String>) -> Self {
        Self { provider, image: image.into(), next: AtomicU64::new(0) }
    }

    pub(super) fn name(&self) -> String {
        self.provider.name().to_owned()
    }

    pub(super) fn image(&self) -> &str {
        &self.image
    }

    pub(super) async fn spawn(&self) -> Result<RuntimeId> {
        self.spawn_limited(Limits::default()).await
    }

    /// A sandbox in which files of so many bytes fit, if the provider limits them at all.
    pub(super) async fn spawn_with_room(&self, bytes: u64) -> Result<RuntimeId> {
        let enforced = |support: &tenure_sandbox::Support| {
            (support.enforcement == tenure_sandbox::Enforcement::Enforced).then_some(2 * bytes)
        };
        let found = self.provider.capabilities();
        let limits =
            Limits { disk_bytes: enforced(&found.disk), memory_bytes: enforced(&found.memory), ..Limits::default() };
        self.spawn_limited(limits).await
    }

    async fn spawn_limited(&self, limits: Limits) -> Result<RuntimeId> {
        let name = format!("bench-{}", self.next.fetch_add(1, Ordering::Relaxed));
        let spec = Spec { limits, die_with_parent: true, ..Spec::new(name, &*self.image) };
        Ok(self.provider.spawn(spec).await.context("a sandbox was not created")?.id)
    }

    pub(super) async fn exec(&self, id: &RuntimeId) -> Result<()> {
        let execution = self.provider.exec(id, Command::argv(["true"])).await.context("`true` was not started")?;
        let code = execution.output(OUTPUT_BYTES).await.context("`true` was lost")?.exit().code;
        ensure!(code == 0, "`true` ended with exit code {code}");
        Ok(())
    }

    pub(super) async fn destroy(&self, id: &RuntimeId) -> Result<()> {
        self.provider.destroy(id).await.context("a sandbox was not removed")
    }

    pub(super) async fn write(&self, id: &RuntimeId, content: Bytes) -> Result<()> {
        let file = FileWrite { path: FILE.to_owned(), mode: 0o644, content: Box::pin(Cursor::new(content)) };
        self.provider.write_file(id, file).await.context("the file was not written")
    }

    pub(super) async fn read(&self, id: &RuntimeId) -> Result<usize> {
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
