//! Sandboxes for development: ordinary processes in a folder, without any isolation.

mod exec;
mod record;
mod sandbox;
mod tree;

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::BytesMut;
use tokio::io::AsyncReadExt;

use self::record::{Folders, Record};
use self::sandbox::Sandbox;
use crate::capabilities::{Capabilities, Support};
use crate::error::{Error, ErrorKind, Result};
use crate::execution::Execution;
use crate::files::{FileInfo, FileReader, FileWrite, Root, failed_io};
use crate::provider::{Connection, Provider, Runtime, RuntimeId, Stats};
use crate::spec::{Command, Deadlines, Egress, Limits, Spec};

/// Ids of destroyed sandboxes that are remembered, to say so.
const MAX_REMEMBERED: usize = 1024;

/// Bytes of a file that are passed to the file system at a time.
const FILE_BUFFER_BYTES: usize = 256 * 1024;

/// Time for a connection to a port.
const DIAL_PATIENCE: Duration = Duration::from_secs(10);

/// Entries that are looked at for the size of a sandbox.
const MAX_SIZED_ENTRIES: usize = 100_000;

/// Settings of the provider `process`.
#[derive(Debug, Clone)]
pub struct ProcessSettings {
    /// Has the folder of each sandbox. One process uses it at a time.
    pub data_dir: PathBuf,
    /// No maximum if absent.
    pub max_sandboxes: Option<usize>,
    /// Accepts limits on memory, CPU, processes and disk that this provider does not enforce. Otherwise a spawn with one
    /// is refused.
    pub ignore_limits: bool,
}

/// Provider `process`: commands run as ordinary processes of this machine, with the rights of this process. They see every
/// file and network that it sees. For development and tests.
///
/// The folder of a sandbox is its `/` for file calls and for working directories. A command itself sees the file system of
/// the machine: `/workspace` in a command line is not the sandbox's, its working directory is. All processes of a command
/// end with it if it is killed, also those that detached themselves, and all of a sandbox when it is destroyed or when
/// this process ends. Processes that a command leaves running when it exits by itself go on until then.
#[derive(Debug)]
pub struct ProcessProvider {
    inner: Arc<Inner>,
    capabilities: Capabilities,
}

#[derive(Debug)]
struct Inner {
    folders: Folders,
    max_sandboxes: usize,
    ignore_limits: bool,
    sandboxes: Mutex<Sandboxes>,
}

#[derive(Debug, Default)]
struct Sandboxes {
    live: HashMap<RuntimeId, Arc<Sandbox>>,
    /// Being created; they count for the maximum.
    reserved: usize,
    destroyed: VecDeque<RuntimeId>,
}

impl ProcessProvider {
    /// Opens the folder. Sandboxes that are in it appear with [`Provider::adopt`].
    pub fn open(settings: ProcessSettings) -> Result<Self> {
        let folders = Folders::open(&settings.data_dir).map_err(|error| {
            Error::unavailable(format!("provider process: cannot use {}", settings.data_dir.display()))
                .with_source(error)
        })?;
        let inner = Inner {
            folders,
            max_sandboxes: settings.max_sandboxes.unwrap_or(usize::MAX),
            ignore_limits: settings.ignore_limits,
            sandboxes: Mutex::default(),
        };
        inner.healthy()?;
        tracing::warn!(
            provider = "process",
            "sandboxes of this provider are not isolated: commands run with the rights of this process; use it for development only"
        );
        Ok(Self { inner: Arc::new(inner), capabilities: capabilities() })
    }
}

fn capabilities() -> Capabilities {
    let none = || Support::none("ordinary processes without isolation", "use the provider namespace");
    Capabilities {
        memory: none(),
        cpu: none(),
        pids: none(),
        disk: none(),
        net: none(),
        snapshot: Support::none("not supported by the provider process", "use the provider namespace"),
        egress_allow_list: false,
        freeze: true,
        ports: true,
        terminal: true,
        adopt: true,
    }
}

impl Inner {
    fn healthy(&self) -> Result<()> {
        let children = crate::sys::supervisor::CHILDREN;
        rustix::fs::access(children, rustix::fs::Access::READ_OK).map_err(|error| {
            let message = format!(
                "provider process: {} cannot be read, so that processes could not be found again; mount /proc, and use a \
                 kernel with CONFIG_PROC_CHILDREN",
                children.to_string_lossy()
            );
            Error::unavailable(message).with_source(std::io::Error::from(error))
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Sandboxes> {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, id: &RuntimeId) -> Result<Arc<Sandbox>> {
        let sandboxes = self.lock();
        match sandboxes.live.get(id) {
            Some(sandbox) => Ok(Arc::clone(sandbox)),
            None if sandboxes.destroyed.contains(id) => {
                Err(Error::new(ErrorKind::Destroyed, format!("sandbox {id} was destroyed")))
            }
            None => Err(Error::not_found(format!("there is no sandbox {id}"))),
        }
    }

    /// A sandbox that can be used.
    fn usable(&self, id: &RuntimeId) -> Result<Arc<Sandbox>> {
        let sandbox = self.find(id)?;
        sandbox.check()?;
        Ok(sandbox)
    }

    fn refuse(&self, spec: &Spec) -> Result<()> {
        if !self.ignore_limits && spec.limits != Limits::default() {
            return Err(Error::invalid(
                "the provider process enforces no limits: leave them out, or use another provider",
            ));
        }
        if matches!(spec.egress, Egress::Allow(_)) || spec.gateway.is_some() {
            return Err(Error::invalid("the provider process does not enforce a list of allowed hosts"));
        }
        if !spec.mounts.is_empty() || spec.read_only_root {
            return Err(Error::invalid("the provider process supports neither mounts nor a read-only root"));
        }
        Ok(())
    }

    fn reserve(self: &Arc<Self>) -> Result<Reservation> {
        let mut sandboxes = self.lock();
        if sandboxes.live.len() + sandboxes.reserved >= self.max_sandboxes {
            return Err(Error::unavailable(format!("the maximum of {} sandboxes is reached", self.max_sandboxes)));
        }
        sandboxes.reserved += 1;
        Ok(Reservation(Arc::clone(self)))
    }

    async fn destroy(self: &Arc<Self>, id: &RuntimeId) -> Result<()> {
        let Some(sandbox) = self.lock().live.get(id).cloned() else { return Ok(()) };
        let mut done = sandbox.destroying.lock().await;
        if *done {
            return Ok(());
        }
        sandbox.kill().await?;
        let (inner, of) = (Arc::clone(self), id.clone());
        blocking(move || {
            let discard = |error| Error::internal(format!("sandbox {of} cannot be removed")).with_source(error);
            inner.folders.discard(&of).map_err(discard)?;
            inner.folders.sweep(&of)
        })
        .await?;
        *done = true;
        let mut sandboxes = self.lock();
        sandboxes.live.remove(id);
        sandboxes.destroyed.push_back(id.clone());
        if sandboxes.destroyed.len() > MAX_REMEMBERED {
            sandboxes.destroyed.pop_front();
        }
        drop(sandboxes);
        sandbox.set_deadlines(None);
        Ok(())
    }
}

/// A sandbox that is being created.
struct Reservation(Arc<Inner>);

impl Drop for Reservation {
    fn drop(&mut self) {
        self.0.lock().reserved -= 1;
    }
}

/// Runs a call that blocks.
async fn blocking<T: Send + 'static>(call: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(call)
        .await
        .unwrap_or_else(|error| Err(Error::internal("a call did not finish").with_source(error)))
}

impl ProcessProvider {
    /// Makes a file call, which blocks.
    async fn files<T: Send + 'static>(
        &self,
        id: &RuntimeId,
        call: impl FnOnce(&Root) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let root = Arc::clone(&self.inner.usable(id)?.root);
        blocking(move || call(&root)).await
    }
}

#[async_trait]
impl Provider for ProcessProvider {
    fn name(&self) -> &'static str {
        "process"
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn healthy(&self) -> Result<()> {
        self.inner.healthy()
    }

    async fn spawn(&self, spec: Spec) -> Result<Runtime> {
        self.inner.refuse(&spec)?;
        let reservation = self.inner.reserve()?;
        let inner = Arc::clone(&self.inner);
        // Runs to its end also if the caller goes away, so that the sandbox is either held or absent.
        blocking(move || {
            let record = Record::new(RuntimeId(format!("prc-{}", crate::random::hex()?)), spec);
            let id = record.id.clone();
            let created = inner
                .folders
                .create(&record)
                .map_err(|error| failed_io("create", &"the folder of a sandbox", &error))
                .and_then(|()| Sandbox::open(record, inner.folders.root(&id)));
            let sandbox = match created {
                Ok(sandbox) => Arc::new(sandbox),
                Err(error) => {
                    // The first failure is reported; what is left is removed by the next `adopt`.
                    let _ = inner.folders.discard(&id);
                    let _ = inner.folders.sweep(&id);
                    return Err(error);
                }
            };
            let runtime = sandbox.runtime();
            inner.lock().live.insert(id, sandbox);
            drop(reservation);
            Ok(runtime)
        })
        .await
    }

    async fn adopt(&self) -> Result<Vec<Runtime>> {
        let inner = Arc::clone(&self.inner);
        blocking(move || {
            let held: Vec<RuntimeId> = inner.lock().live.keys().cloned().collect();
            let mut adopted = Vec::new();
            for record in inner.folders.adopt(&held)? {
                let id = record.id.clone();
                let sandbox = Arc::new(Sandbox::open(record, inner.folders.root(&id))?);
                adopted.push(sandbox.runtime());
                inner.lock().live.insert(id, sandbox);
            }
            Ok(adopted)
        })
        .await
    }

    async fn list(&self) -> Result<Vec<Runtime>> {
        let mut runtimes: Vec<Runtime> = self.inner.lock().live.values().map(|sandbox| sandbox.runtime()).collect();
        runtimes.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(runtimes)
    }

    async fn status(&self, id: &RuntimeId) -> Result<Runtime> {
        Ok(self.inner.find(id)?.runtime())
    }

    async fn destroy(&self, id: &RuntimeId) -> Result<()> {
        self.inner.destroy(id).await
    }

    async fn exec(&self, id: &RuntimeId, command: Command) -> Result<Execution> {
        command.validate()?;
        let sandbox = self.inner.usable(id)?;
        // A fork takes milliseconds in a large process.
        blocking(move || exec::start(&sandbox, &command)).await
    }

    async fn write_file(&self, id: &RuntimeId, mut file: FileWrite) -> Result<()> {
        let (path, mode) = (file.path.clone(), file.mode);
        let pending = self.files(id, move |root| root.create(&path, mode)).await?;
        let mut buffer = BytesMut::with_capacity(FILE_BUFFER_BYTES);
        loop {
            buffer.clear();
            buffer.reserve(FILE_BUFFER_BYTES);
            while buffer.len() < FILE_BUFFER_BYTES {
                let read = file.content.read_buf(&mut buffer).await;
                if read.map_err(|error| failed_io("receive", &file.path, &error))? == 0 {
                    break;
                }
            }
            if buffer.is_empty() {
                break;
            }
            let (path, bytes) = (file.path.clone(), buffer.split().freeze());
            let mut target = pending.file().map_err(|error| failed_io("write", &path, &error))?;
            blocking(move || {
                std::io::Write::write_all(&mut target, &bytes).map_err(|error| failed_io("write", &path, &error))
            })
            .await?;
        }
        blocking(move || pending.commit()).await
    }

    async fn read_file(&self, id: &RuntimeId, path: &str) -> Result<FileReader> {
        let path = path.to_owned();
        let (info, file) = self.files(id, move |root| root.read(&path)).await?;
        Ok(FileReader { info, content: Box::pin(tokio::fs::File::from_std(file)) })
    }

    async fn list_files(&self, id: &RuntimeId, path: &str) -> Result<Vec<FileInfo>> {
        let path = path.to_owned();
        self.files(id, move |root| root.list(&path)).await
    }

    async fn delete_file(&self, id: &RuntimeId, path: &str, recursive: bool) -> Result<()> {
        let path = path.to_owned();
        self.files(id, move |root| root.delete(&path, recursive)).await
    }

    async fn move_file(&self, id: &RuntimeId, from: &str, to: &str) -> Result<()> {
        let (from, to) = (from.to_owned(), to.to_owned());
        self.files(id, move |root| root.rename(&from, &to)).await
    }

    async fn chmod_file(&self, id: &RuntimeId, path: &str, mode: u32) -> Result<()> {
        let path = path.to_owned();
        self.files(id, move |root| root.chmod(&path, mode)).await
    }

    async fn stat_file(&self, id: &RuntimeId, path: &str) -> Result<FileInfo> {
        let path = path.to_owned();
        self.files(id, move |root| root.stat(&path)).await
    }

    async fn glob_files(&self, id: &RuntimeId, pattern: &str) -> Result<Vec<String>> {
        let pattern = pattern.to_owned();
        self.files(id, move |root| root.glob(&pattern)).await
    }

    async fn console_log(&self, id: &RuntimeId, lines: usize) -> Result<Vec<String>> {
        Ok(self.inner.find(id)?.console.last(lines))
    }

    async fn stats(&self, id: &RuntimeId) -> Result<Stats> {
        let sandbox = self.inner.find(id)?;
        blocking(move || {
            let (usage, cpu_percent) = sandbox.usage();
            Ok(Stats {
                cpu_percent,
                memory_bytes: usage.memory_bytes,
                memory_limit_bytes: 0,
                pids: usage.processes,
                disk_bytes: sandbox.root.size(MAX_SIZED_ENTRIES)?,
            })
        })
        .await
    }

    async fn set_deadlines(&self, id: &RuntimeId, deadlines: Deadlines) -> Result<()> {
        let sandbox = self.inner.find(id)?;
        if deadlines == Deadlines::default() {
            sandbox.set_deadlines(None);
            return Ok(());
        }
        let (inner, id) = (Arc::downgrade(&self.inner), id.clone());
        let task = tokio::spawn(keep_deadlines(inner, id, deadlines));
        sandbox.set_deadlines(Some(task.abort_handle()));
        Ok(())
    }

    async fn freeze(&self, id: &RuntimeId) -> Result<()> {
        let sandbox = self.inner.find(id)?;
        blocking(move || {
            sandbox.set_frozen(true);
            Ok(())
        })
        .await
    }

    async fn thaw(&self, id: &RuntimeId) -> Result<()> {
        let sandbox = self.inner.find(id)?;
        blocking(move || {
            sandbox.set_frozen(false);
            Ok(())
        })
        .await
    }

    async fn dial(&self, id: &RuntimeId, port: u16) -> Result<Box<dyn Connection>> {
        self.inner.usable(id)?;
        let connecting = tokio::net::TcpStream::connect(("127.0.0.1", port));
        match tokio::time::timeout(DIAL_PATIENCE, connecting).await {
            Ok(Ok(connection)) => Ok(Box::new(connection)),
            Ok(Err(error)) => Err(Error::unavailable(format!("nothing answers on port {port}")).with_source(error)),
            Err(_) => Err(Error::unavailable(format!("port {port} does not answer"))),
        }
    }
}

/// Freezes and destroys a sandbox in time. The processes of a sandbox end with this process, and need no deadline then.
async fn keep_deadlines(inner: Weak<Inner>, id: RuntimeId, deadlines: Deadlines) {
    let start = tokio::time::Instant::now();
    let find = || inner.upgrade().and_then(|inner| Some((inner.find(&id).ok()?, inner)));
    if let Some(after) = deadlines.freeze_after {
        tokio::time::sleep_until(start + after).await;
        let Some((sandbox, _)) = find() else { return };
        sandbox.set_frozen(true);
        tracing::info!(runtime.id = %id, "sandbox frozen: its deadline has passed");
    }
    if let Some(after) = deadlines.destroy_after {
        tokio::time::sleep_until(start + after).await;
        let Some((_, inner)) = find() else { return };
        match inner.destroy(&id).await {
            Ok(()) => tracing::info!(runtime.id = %id, "sandbox destroyed: its deadline has passed"),
            Err(error) => tracing::error!(runtime.id = %id, %error, "sandbox not destroyed at its deadline"),
        }
    }
}
