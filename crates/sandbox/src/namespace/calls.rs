//! The calls of the provider.

use std::sync::Arc;

use async_trait::async_trait;

use super::adopt;
use super::egress::AllowList;
use super::provider::NamespaceProvider;
use super::sandbox::Sandbox;
use crate::capabilities::Capabilities;
use crate::error::{Error, Result};
use crate::execution::Execution;
use crate::files::{FileInfo, FileReader, FileWrite};
use crate::provider::{Connection, Provider, Runtime, RuntimeId, Stats, Stream};
use crate::spec::{Command, Deadlines, Spec};

#[async_trait]
impl Provider for NamespaceProvider {
    fn name(&self) -> &'static str {
        "namespace"
    }

    fn capabilities(&self) -> &Capabilities {
        &self.inner.capabilities
    }

    async fn healthy(&self) -> Result<()> {
        if self.inner.zygote_runs() {
            Ok(())
        } else {
            Err(Error::unavailable("the process that starts sandboxes has ended: restart the worker"))
        }
    }

    async fn spawn(&self, spec: Spec) -> Result<Runtime> {
        self.inner.spawn(spec).await
    }

    async fn adopt(&self) -> Result<Vec<Runtime>> {
        let inner = Arc::clone(&self.inner);
        let runtime = tokio::runtime::Handle::current();
        let adopted = blocking(move || {
            let _context = runtime.enter();
            adopt::adopt(&inner)
        })
        .await?;
        let mut answering = Vec::new();
        for runtime in adopted {
            // One whose agent does not answer is of no use to anybody.
            match self.inner.get(&runtime.id)?.client().ping().await {
                Ok(_) => answering.push(runtime),
                Err(error) => {
                    tracing::warn!(sandbox = %runtime.id, %error, "a former sandbox does not answer and is destroyed");
                    self.inner.destroy(&runtime.id).await?;
                }
            }
        }
        Ok(answering)
    }

    async fn list(&self) -> Result<Vec<Runtime>> {
        let sandboxes: Vec<Arc<Sandbox>> = self.inner.sandboxes().values().cloned().collect();
        Ok(sandboxes.iter().map(|sandbox| sandbox.runtime()).collect())
    }

    async fn status(&self, id: &RuntimeId) -> Result<Runtime> {
        Ok(self.inner.get(id)?.runtime())
    }

    async fn destroy(&self, id: &RuntimeId) -> Result<()> {
        self.inner.destroy(id).await
    }

    async fn exec(&self, id: &RuntimeId, command: Command) -> Result<Execution> {
        command.validate()?;
        // A command waits for an archive that is being taken, instead of failing because others are stopped.
        let sandbox = self.inner.get(id)?;
        let _start = sandbox.changes.read().await;
        sandbox.check_running()?;
        sandbox.client().exec(&command, sandbox.environment(&command)).await
    }

    async fn write_file(&self, id: &RuntimeId, file: FileWrite) -> Result<()> {
        let sandbox = self.inner.running(id)?;
        let _files = sandbox.changes.read().await;
        sandbox.client().write_file(file).await
    }

    async fn read_file(&self, id: &RuntimeId, path: &str) -> Result<FileReader> {
        self.inner.running(id)?.client().read_file(path).await
    }

    async fn list_files(&self, id: &RuntimeId, path: &str) -> Result<Vec<FileInfo>> {
        self.inner.running(id)?.client().list_files(path).await
    }

    async fn delete_file(&self, id: &RuntimeId, path: &str, recursive: bool) -> Result<()> {
        let sandbox = self.inner.running(id)?;
        let _files = sandbox.changes.read().await;
        sandbox.client().delete_file(path, recursive).await
    }

    async fn move_file(&self, id: &RuntimeId, from: &str, to: &str) -> Result<()> {
        let sandbox = self.inner.running(id)?;
        let _files = sandbox.changes.read().await;
        sandbox.client().move_file(from, to).await
    }

    async fn chmod_file(&self, id: &RuntimeId, path: &str, mode: u32) -> Result<()> {
        let sandbox = self.inner.running(id)?;
        let _files = sandbox.changes.read().await;
        sandbox.client().chmod_file(path, mode).await
    }

    async fn stat_file(&self, id: &RuntimeId, path: &str) -> Result<FileInfo> {
        self.inner.running(id)?.client().stat_file(path).await
    }

    async fn glob_files(&self, id: &RuntimeId, pattern: &str) -> Result<Vec<String>> {
        self.inner.running(id)?.client().glob_files(pattern).await
    }

    async fn console_log(&self, id: &RuntimeId, lines: usize) -> Result<Vec<String>> {
        self.inner.get(id)?.client().console_log(lines).await
    }

    async fn stats(&self, id: &RuntimeId) -> Result<Stats> {
        let sandbox = self.inner.get(id)?;
        sandbox
            .stats()
            .map_err(|error| Error::internal(format!("cannot measure the sandbox {id}: {error}")).with_source(error))
    }

    fn holds_deadlines(&self) -> bool {
        true
    }

    async fn set_deadlines(&self, id: &RuntimeId, deadlines: Deadlines) -> Result<()> {
        if deadlines.freeze_after.is_some() && !self.inner.capabilities.freeze {
            return Err(Error::invalid("this machine cannot freeze sandboxes: set a deadline to destroy only"));
        }
        let sandbox = self.inner.get(id)?;
        sandbox.client().set_deadlines(deadlines).await?;
        sandbox.note_deadlines(deadlines);
        Ok(())
    }

    async fn freeze(&self, id: &RuntimeId) -> Result<()> {
        self.inner.get(id)?.client().freeze().await
    }

    async fn thaw(&self, id: &RuntimeId) -> Result<()> {
        self.inner.get(id)?.client().thaw().await
    }

    async fn set_allowed_hosts(&self, id: &RuntimeId, hosts: Vec<String>) -> Result<()> {
        let list = AllowList::parse(&hosts)?;
        let sandbox = self.inner.get(id)?;
        let Some(proxy) = &sandbox.proxy else {
            return Err(Error::invalid(format!(
                "the sandbox {id} was created without a list of allowed hosts, so it has no way out"
            )));
        };
        sandbox.record_hosts(hosts).map_err(|error| {
            Error::internal(format!("cannot keep the list of allowed hosts of {id}: {error}")).with_source(error)
        })?;
        proxy.allow(list);
        Ok(())
    }

    async fn dial(&self, id: &RuntimeId, port: u16) -> Result<Box<dyn Connection>> {
        Ok(Box::new(self.inner.running(id)?.client().dial(port).await?))
    }

    async fn snapshot(&self, id: &RuntimeId) -> Result<Stream> {
        let sandbox = self.inner.get(id)?;
        // No file call changes anything while it is taken.
        let _changes = sandbox.changes.write().await;
        let (inner, held) = (Arc::clone(&self.inner), Arc::clone(&sandbox));
        let file = blocking(move || inner.pack(&held)).await?;
        Ok(Box::pin(tokio::fs::File::from_std(file)))
    }

    async fn restore(&self, id: &RuntimeId, archive: Stream) -> Result<()> {
        self.inner.restore(id, archive).await
    }
}

pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Error::internal("the work was cut off").with_source(error))?
}
