//! Sandboxes in containers of a Docker daemon, or of one that speaks its API, for example Podman.
//!
//! The first process of a container is the agent, from a folder of the host that is mounted read-only with its loader and
//! its libraries, so that an image needs nothing, not even a shell. The agent gets a listening socket from this process
//! when it starts; the socket is in a folder that the container does not see.

mod bundle;
mod container;
mod daemon;
mod entry;
mod pulls;
mod sandbox;
mod settings;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bollard::Docker;
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, ListContainersOptionsBuilder, RemoveContainerOptionsBuilder,
    UploadToContainerOptionsBuilder,
};

use self::bundle::Bundle;
use self::container::{LABEL, LABEL_INSTANCE, LABEL_PROVIDER, LABEL_RECORD, LABEL_SANDBOX};
use self::daemon::{failed, status};
use self::pulls::{DaemonImage, Pulls};
use self::sandbox::{Record, Sandbox};
use crate::capabilities::{Capabilities, Support};
use crate::error::{Error, ErrorKind, Result};
use crate::execution::Execution;
use crate::files::{FileInfo, FileReader, FileWrite};
use crate::provider::{Connection, Provider, Runtime, RuntimeId, RuntimeState, Stats};
use crate::spec::{Command, Deadlines, Spec};

pub(crate) use entry::agent_main;
pub use settings::DockerSettings;

/// The argument that makes a program the agent of a container.
const CONTAINER_ARGUMENT: &str = "tenure-sandbox-container";

/// Where a container finds the socket that its agent asks at.
const RUN_TARGET: &str = "/.tenure/run";

const NAME: &str = "docker";

/// Ids of destroyed sandboxes that are remembered, to say so.
const MAX_REMEMBERED: usize = 1024;

/// Time for the agent of a started container to ask for its socket.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// Time for the daemon to remove a container that somebody else is removing.
const REMOVE_PATIENCE: Duration = Duration::from_secs(60);

/// Provider `docker`: each sandbox is a container. The daemon enforces the limits on memory, CPU and processes and the
/// absence of a network; the disk is limited only with a read-only root.
#[derive(Debug)]
pub struct DockerProvider {
    inner: Arc<Inner>,
    capabilities: Capabilities,
}

#[derive(Debug)]
struct Inner {
    docker: Docker,
    settings: DockerSettings,
    bundle: Bundle,
    pulls: Pulls,
    /// Has a folder per sandbox.
    folder: PathBuf,
    instance: String,
    sandboxes: Mutex<Sandboxes>,
    /// Locked as long as this process uses the folder.
    _lock: fs::File,
}

#[derive(Debug, Default)]
struct Sandboxes {
    live: HashMap<RuntimeId, Arc<Sandbox>>,
    /// Being created; they count for the maximum.
    reserved: usize,
    destroyed: VecDeque<RuntimeId>,
}

impl DockerProvider {
    /// Connects to the daemon. Sandboxes of a former process appear with [`Provider::adopt`].
    pub async fn open(settings: DockerSettings) -> Result<Self> {
        let docker = daemon::connect(&settings.socket).await?;
        let info = docker.info().await.map_err(|error| failed("ask the daemon what it can do", error))?;
        let capabilities = capabilities(&settings, &info);
        let unusable = |error: io::Error| {
            Error::unavailable(format!("provider docker: cannot use {}: {error}", settings.data_dir.display()))
                .with_source(error)
        };
        let folder = settings.data_dir.join(NAME);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(unusable)?;
        let folder = folder.canonicalize().map_err(unusable)?;
        let lock = fs::File::create(folder.join("lock")).map_err(unusable)?;
        lock.try_lock().map_err(|_| unusable(io::Error::other("another process uses it")))?;
        let instance = instance(&folder).map_err(unusable)?;
        let (parent, program) = (folder.clone(), settings.program.clone());
        let bundle = blocking(move || {
            Bundle::open(&parent, &program).map_err(|error| {
                let program = program.display();
                Error::unavailable(format!("provider docker: cannot copy the agent {program}: {error}"))
                    .with_source(error)
            })
        })
        .await?;
        let pulls = Pulls::new(docker.clone());
        let inner =
            Inner { docker, settings, bundle, pulls, folder, instance, sandboxes: Mutex::default(), _lock: lock };
        Ok(Self { inner: Arc::new(inner), capabilities })
    }
}

/// What the daemon says that it enforces. Each new container is checked for it.
fn capabilities(settings: &DockerSettings, info: &bollard::models::SystemInfo) -> Capabilities {
    let limit = |supported: Option<bool>, what: &str| {
        if supported == Some(false) {
            Support::none(format!("the daemon cannot limit {what}"), "enable the cgroup controller on its machine")
        } else {
            Support::enforced(format!("the daemon limits {what} of each container"))
        }
    };
    let disk = if settings.read_only_rootfs {
        Support::enforced("the root is read-only; /workspace and /tmp are in memory with a size")
    } else {
        Support::none(
            "the daemon's storage has no limit per container",
            "set providers.docker.read_only_rootfs, or use the provider namespace",
        )
    };
    let net = match settings.network_mode.as_str() {
        "none" => Support::enforced("containers have no network"),
        other => {
            Support::none(format!("containers are in the network {other:?}"), "set providers.docker.network_mode: none")
        }
    };
    Capabilities {
        memory: limit(info.memory_limit, "memory"),
        cpu: limit(info.cpu_cfs_quota, "the CPU time"),
        pids: limit(info.pids_limit, "the processes"),
        disk,
        net,
        snapshot: Support::none("not supported by the provider docker", "use the provider namespace"),
        egress_allow_list: false,
        freeze: true,
        ports: true,
        terminal: true,
        adopt: true,
    }
}

/// A name for this data directory, so that workers at one daemon leave each other's containers alone.
fn instance(folder: &Path) -> io::Result<String> {
    let path = folder.join("instance");
    match fs::read_to_string(&path) {
        Ok(instance) if !instance.is_empty() => Ok(instance),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => {
            let instance = crate::random::hex().map_err(io::Error::other)?;
            let new = folder.join("instance.new");
            fs::write(&new, &instance)?;
            fs::rename(&new, &path)?;
            Ok(instance)
        }
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Sandboxes> {
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

    fn reserve(self: &Arc<Self>) -> Result<Reservation> {
        let max = self.settings.max_sandboxes;
        let mut sandboxes = self.lock();
        if sandboxes.live.len() + sandboxes.reserved >= max {
            return Err(Error::unavailable(format!("the maximum of {max} sandboxes is reached")));
        }
        sandboxes.reserved += 1;
        Ok(Reservation(Arc::clone(self)))
    }

    async fn spawn(self: &Arc<Self>, spec: Spec) -> Result<Runtime> {
        let limits = container::limits(&self.settings, &spec)?;
        let reservation = self.reserve()?;
        let name = if spec.image.is_empty() { &self.settings.default_image } else { &spec.image };
        let image = self.pulls.find(name).await?;
        let id = RuntimeId(format!("dkr-{}", crate::random::hex()?));
        match self.start(&id, &spec, &limits, &image).await {
            Ok(sandbox) => {
                let runtime = sandbox.runtime(RuntimeState::Running);
                self.lock().live.insert(id, Arc::new(sandbox));
                drop(reservation);
                Ok(runtime)
            }
            Err(error) => {
                // The first failure is reported; what is left is removed by the next `adopt`.
                let _ = self.remove(&id).await;
                Err(error)
            }
        }
    }

    async fn start(
        &self,
        id: &RuntimeId,
        spec: &Spec,
        limits: &crate::spec::Limits,
        image: &DaemonImage,
    ) -> Result<Sandbox> {
        let sockets = Sockets::create(&self.sandbox_folder(id)).map_err(|error| {
            Error::internal(format!("sandbox {id}: cannot create its sockets: {error}")).with_source(error)
        })?;
        let record = Record::new(spec, image);
        let labels = HashMap::from([
            (LABEL.to_owned(), "true".to_owned()),
            (LABEL_PROVIDER.to_owned(), NAME.to_owned()),
            (LABEL_SANDBOX.to_owned(), spec.sandbox_id.clone()),
            (LABEL_INSTANCE.to_owned(), self.instance.clone()),
            (LABEL_RECORD.to_owned(), record.to_label()?),
        ]);
        let body = container::body(&self.settings, spec, limits, &self.bundle, &sockets.run_folder, &image.id, labels)?;
        let read_only = body.host_config.as_ref().and_then(|host| host.readonly_rootfs) == Some(true);
        let options = CreateContainerOptionsBuilder::default().name(&id.0).build();
        let created = self.docker.create_container(Some(options), body).await;
        let created = created.map_err(|error| failed("create a container", error))?;
        // A daemon that cannot enforce a limit says so here, and would go on without it.
        if !created.warnings.is_empty() {
            let warnings = created.warnings.join("; ").chars().take(500).collect::<String>();
            return Err(Error::invalid(format!(
                "docker: the daemon would not keep what the sandbox asks for: {warnings}"
            )));
        }
        if !read_only {
            let archive = container::directories(&container::user(&self.settings, spec))
                .map_err(|error| Error::internal("no archive of directories").with_source(error))?;
            let options = UploadToContainerOptionsBuilder::default().path("/").build();
            let uploaded = self.docker.upload_to_container(&id.0, Some(options), bollard::body_full(archive.into()));
            uploaded.await.map_err(|error| failed("create /workspace in a container", error))?;
        }
        self.docker.start_container(&id.0, None).await.map_err(|error| failed("start a container", error))?;
        let socket = self.sandbox_folder(id).join(AGENT_SOCKET);
        let parent = match sockets.hand_over(spec.die_with_parent).await {
            Ok(parent) => parent,
            Err(error) => return Err(self.not_started(id, error).await),
        };
        let sandbox = Sandbox::new(id.clone(), spec.sandbox_id.clone(), record, &socket, parent)?;
        sandbox.client.ping().await?;
        Ok(sandbox)
    }

    async fn not_started(&self, id: &RuntimeId, error: io::Error) -> Error {
        let state = self.docker.inspect_container(&id.0, None).await.ok().and_then(|container| container.state);
        let why = match state {
            Some(state) if state.running != Some(true) => {
                format!("its agent ended with exit code {}", state.exit_code.unwrap_or(-1))
            }
            _ => format!("its agent did not ask for its socket: {error}"),
        };
        Error::unavailable(format!("docker: the container {id} did not start: {why}")).with_source(error)
    }

    /// Removes a container and its folder. An absent one is not an error.
    async fn remove(&self, id: &RuntimeId) -> Result<()> {
        let deadline = tokio::time::Instant::now() + REMOVE_PATIENCE;
        loop {
            let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
            match self.docker.remove_container(&id.0, Some(options)).await {
                Ok(()) => break,
                Err(error) if status(&error) == Some(404) => break,
                // Somebody else is removing it.
                Err(error) if status(&error) == Some(409) && tokio::time::Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err(error) => return Err(failed(&format!("remove the container {id}"), error)),
            }
        }
        let folder = self.sandbox_folder(id);
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::internal(format!("sandbox {id}: cannot remove its folder: {error}")).with_source(error))
            }
            _ => Ok(()),
        }
    }

    async fn destroy(&self, id: &RuntimeId) -> Result<()> {
        let Some(sandbox) = self.lock().live.get(id).cloned() else { return Ok(()) };
        let mut done = sandbox.destroying.lock().await;
        if *done {
            return Ok(());
        }
        self.remove(id).await?;
        *done = true;
        let mut sandboxes = self.lock();
        sandboxes.live.remove(id);
        sandboxes.destroyed.push_back(id.clone());
        if sandboxes.destroyed.len() > MAX_REMEMBERED {
            sandboxes.destroyed.pop_front();
        }
        Ok(())
    }

    async fn adopt(&self) -> Result<Vec<Runtime>> {
        let label = format!("{LABEL_INSTANCE}={}", self.instance);
        let filters = HashMap::from([("label".to_owned(), vec![label])]);
        let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
        let containers = self.docker.list_containers(Some(options)).await;
        let mut adopted = Vec::new();
        let mut known = Vec::new();
        for container in containers.map_err(|error| failed("list containers", error))? {
            let names = container.names.unwrap_or_default();
            let Some(id) = names.first().map(|name| RuntimeId(name.trim_start_matches('/').to_owned())) else {
                continue;
            };
            known.push(id.clone());
            if self.lock().live.contains_key(&id) {
                continue;
            }
            match self.take_over(&id, &container.labels.unwrap_or_default()).await {
                Ok((sandbox, state)) => {
                    adopted.push(sandbox.runtime(state));
                    self.lock().live.insert(id, Arc::new(sandbox));
                }
                Err(error) => {
                    tracing::warn!(runtime.id = %id, %error, "sandbox not adopted: its container is removed");
                    self.remove(&id).await?;
                }
            }
        }
        self.sweep_folders(&known)?;
        Ok(adopted)
    }

    async fn take_over(&self, id: &RuntimeId, labels: &HashMap<String, String>) -> Result<(Sandbox, RuntimeState)> {
        let label = |name: &str| labels.get(name).ok_or_else(|| Error::internal(format!("it has no label {name}")));
        let record = Record::from_label(label(LABEL_RECORD)?)?;
        let socket = self.sandbox_folder(id).join(AGENT_SOCKET);
        let sandbox = Sandbox::new(id.clone(), label(LABEL_SANDBOX)?.clone(), record, &socket, None)?;
        let frozen = sandbox.client.ping().await?;
        Ok((sandbox, if frozen { RuntimeState::Frozen } else { RuntimeState::Running }))
    }

    /// Removes the folders of sandboxes that have no container.
    fn sweep_folders(&self, known: &[RuntimeId]) -> Result<()> {
        let failed =
            |error: io::Error| Error::internal(format!("cannot list {}", self.folder.display())).with_source(error);
        for entry in fs::read_dir(&self.folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let live = || self.lock().live.keys().any(|id| id.0 == name);
            if name.starts_with("dkr-") && !known.iter().any(|id| id.0 == name) && !live() {
                fs::remove_dir_all(entry.path()).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn sandbox_folder(&self, id: &RuntimeId) -> PathBuf {
        self.folder.join(&id.0)
    }
}

/// A sandbox that is being created.
struct Reservation(Arc<Inner>);

impl Drop for Reservation {
    fn drop(&mut self) {
        self.0.lock().reserved -= 1;
    }
}

const AGENT_SOCKET: &str = "agent.sock";

/// The sockets of a new sandbox: the agent's own, and the one at which it asks for it.
struct Sockets {
    agent: OwnedFd,
    boot: tokio::net::UnixListener,
    run_folder: PathBuf,
}

impl Sockets {
    fn create(folder: &Path) -> io::Result<Self> {
        fs::DirBuilder::new().mode(0o700).create(folder)?;
        // Any user of a container may ask; the folder is seen by that container only.
        let run_folder = folder.join("run");
        fs::DirBuilder::new().mode(0o755).create(&run_folder)?;
        let agent = bind_beneath(folder, AGENT_SOCKET)?;
        let boot = bind_beneath(&run_folder, entry::BOOT_SOCKET)?;
        fs::set_permissions(run_folder.join(entry::BOOT_SOCKET), fs::Permissions::from_mode(0o666))?;
        boot.set_nonblocking(true)?;
        Ok(Self { agent: agent.into(), boot: tokio::net::UnixListener::from_std(boot)?, run_folder })
    }

    /// Waits for the agent and passes its socket to it. Returns the connection that the agent ends with, if it does.
    async fn hand_over(self, die_with_parent: bool) -> io::Result<Option<OwnedFd>> {
        let (connection, _) = tokio::time::timeout(START_PATIENCE, self.boot.accept())
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        let connection = connection.into_std()?;
        entry::pass_listener(&connection, &self.agent, die_with_parent)?;
        fs::remove_file(self.run_folder.join(entry::BOOT_SOCKET))?;
        Ok(die_with_parent.then(|| OwnedFd::from(connection)))
    }
}

/// Binds a socket whose path may be longer than an address of a socket can be.
fn bind_beneath(folder: &Path, name: &str) -> io::Result<UnixListener> {
    use std::os::fd::AsRawFd;
    let folder = fs::File::open(folder)?;
    UnixListener::bind(Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name))
}

/// Runs a call that blocks.
async fn blocking<T: Send + 'static>(call: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(call)
        .await
        .unwrap_or_else(|error| Err(Error::internal("a call did not finish").with_source(error)))
}

#[async_trait]
impl Provider for DockerProvider {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn healthy(&self) -> Result<()> {
        match tokio::time::timeout(Duration::from_millis(1900), self.inner.docker.ping()).await {
            Ok(answer) => answer.map(drop).map_err(|error| failed("reach the daemon", error)),
            Err(_) => Err(Error::unavailable("docker: the daemon does not answer")),
        }
    }

    async fn spawn(&self, spec: Spec) -> Result<Runtime> {
        // Runs to its end also if the caller goes away, so that the sandbox is either held or absent.
        let inner = Arc::clone(&self.inner);
        tokio::spawn(async move { inner.spawn(spec).await })
            .await
            .unwrap_or_else(|error| Err(Error::internal("a spawn did not finish").with_source(error)))
    }

    async fn adopt(&self) -> Result<Vec<Runtime>> {
        self.inner.adopt().await
    }

    async fn list(&self) -> Result<Vec<Runtime>> {
        let sandboxes: BTreeMap<RuntimeId, Arc<Sandbox>> =
            self.inner.lock().live.iter().map(|(id, sandbox)| (id.clone(), Arc::clone(sandbox))).collect();
        let mut runtimes = Vec::new();
        for sandbox in sandboxes.into_values() {
            runtimes.push(sandbox.runtime(sandbox.state().await));
        }
        Ok(runtimes)
    }

    async fn status(&self, id: &RuntimeId) -> Result<Runtime> {
        let sandbox = self.inner.find(id)?;
        Ok(sandbox.runtime(sandbox.state().await))
    }

    async fn destroy(&self, id: &RuntimeId) -> Result<()> {
        let (inner, id) = (Arc::clone(&self.inner), id.clone());
        tokio::spawn(async move { inner.destroy(&id).await })
            .await
            .unwrap_or_else(|error| Err(Error::internal("a destroy did not finish").with_source(error)))
    }

    async fn exec(&self, id: &RuntimeId, command: Command) -> Result<Execution> {
        self.inner.find(id)?.exec(&command).await
    }

    async fn write_file(&self, id: &RuntimeId, file: FileWrite) -> Result<()> {
        self.inner.find(id)?.client.write_file(file).await
    }

    async fn read_file(&self, id: &RuntimeId, path: &str) -> Result<FileReader> {
        self.inner.find(id)?.client.read_file(path).await
    }

    async fn list_files(&self, id: &RuntimeId, path: &str) -> Result<Vec<FileInfo>> {
        self.inner.find(id)?.client.list_files(path).await
    }

    async fn delete_file(&self, id: &RuntimeId, path: &str, recursive: bool) -> Result<()> {
        self.inner.find(id)?.client.delete_file(path, recursive).await
    }

    async fn move_file(&self, id: &RuntimeId, from: &str, to: &str) -> Result<()> {
        self.inner.find(id)?.client.move_file(from, to).await
    }

    async fn chmod_file(&self, id: &RuntimeId, path: &str, mode: u32) -> Result<()> {
        self.inner.find(id)?.client.chmod_file(path, mode).await
    }

    async fn stat_file(&self, id: &RuntimeId, path: &str) -> Result<FileInfo> {
        self.inner.find(id)?.client.stat_file(path).await
    }

    async fn glob_files(&self, id: &RuntimeId, pattern: &str) -> Result<Vec<String>> {
        self.inner.find(id)?.client.glob_files(pattern).await
    }

    async fn console_log(&self, id: &RuntimeId, lines: usize) -> Result<Vec<String>> {
        self.inner.find(id)?.client.console_log(lines).await
    }

    async fn stats(&self, id: &RuntimeId) -> Result<Stats> {
        self.inner.find(id)?.stats(&self.inner.docker).await
    }

    async fn set_deadlines(&self, id: &RuntimeId, deadlines: Deadlines) -> Result<()> {
        self.inner.find(id)?.client.set_deadlines(deadlines).await
    }

    async fn freeze(&self, id: &RuntimeId) -> Result<()> {
        self.inner.find(id)?.client.freeze().await
    }

    async fn thaw(&self, id: &RuntimeId) -> Result<()> {
        self.inner.find(id)?.client.thaw().await
    }

    async fn dial(&self, id: &RuntimeId, port: u16) -> Result<Box<dyn Connection>> {
        Ok(Box::new(self.inner.find(id)?.client.dial(port).await?))
    }
}
