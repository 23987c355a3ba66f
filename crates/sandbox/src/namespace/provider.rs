use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use tokio::sync::Semaphore;

use super::cgroup::{Cgroups, CommandPlan, Role, SandboxGroups};
use super::disk::Disks;
use super::egress::{AllowList, PROXY_PORT, Proxy};
use super::host::HostImage;
use super::launch::{Bind, Descriptors, Launch, Layer, ProcessLimits};
use super::limits::{self, Decided};
use super::record::{Record, now_ms};
use super::sandbox::{Sandbox, end, find_process, remove_folder};
use super::settings::NamespaceSettings;
use super::spawn::{self, IDS_PER_SANDBOX, Plan, Spawned};
use super::zygote::Zygote;
use super::{adopt, landlock, probe};
use crate::capabilities::Capabilities;
use crate::error::{Error, Result};
use crate::images::Image;
use crate::provider::{Runtime, RuntimeId};
use crate::spec::{Egress, Spec};

/// The user of commands if the caller names none.
const DEFAULT_USER: u32 = 1000;

/// Threads of the agent that count as processes of the sandbox's user where no group counts.
const AGENT_TASKS: u64 = 64;

/// How long the state directory may be in use by another process.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);

/// Ranges of ids that sandboxes of a provider take turns with.
const SLOTS: u32 = 0x4000;

/// Creates sandboxes from the kernel's namespaces, groups and filters, without a daemon.
#[derive(Debug)]
pub struct NamespaceProvider {
    pub(super) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub settings: NamespaceSettings,
    pub capabilities: Capabilities,
    pub cgroups: Cgroups,
    zygote: Zygote,
    host: HostImage,
    host_copy: String,
    id_mapped: bool,
    landlock: bool,
    disks: Option<Disks>,
    pub sandboxes: Mutex<HashMap<RuntimeId, Arc<Sandbox>>>,
    /// Slots in use, also by sandboxes that are being created.
    slots: Mutex<Slots>,
    /// Sandboxes that are being made.
    making: Mutex<HashSet<String>>,
    spawns: Arc<Semaphore>,
    /// Keeps other providers away from the state.
    _lock: File,
}

#[derive(Debug, Default)]
struct Slots {
    used: BTreeMap<u32, ()>,
    next: u32,
}

impl NamespaceProvider {
    /// Looks at what this machine can do, by doing it, and fails if it cannot run a sandbox at all. Blocks for some
    /// milliseconds.
    pub fn new(settings: NamespaceSettings) -> Result<Self> {
        let state = &settings.state_dir;
        let lock = prepare_state(state).map_err(|error| {
            Error::unavailable(format!("cannot use the state directory {}: {error}", state.display()))
                .with_source(error)
        })?;
        let cgroups = Cgroups::probe(&group_name(state));
        let unusable = |error: io::Error| {
            Error::unavailable(format!("this machine cannot run sandboxes of the provider namespace: {error}"))
                .with_source(error)
        };
        let zygote = Zygote::start(&settings.program).map_err(unusable)?;
        let host_copy = format!("host-{}", uuid::Uuid::new_v4().simple());
        let host = HostImage::prepare(&state.join(&host_copy)).map_err(unusable)?;
        let disks = Disks::find(&settings.state_dir);
        let mut inner = Inner {
            capabilities: probe::capabilities(&cgroups, true),
            spawns: Arc::new(Semaphore::new(settings.max_spawns.max(1))),
            settings,
            cgroups,
            zygote,
            host,
            host_copy,
            id_mapped: rustix::process::geteuid().is_root(),
            landlock: landlock::available(),
            disks,
            sandboxes: Mutex::default(),
            slots: Mutex::default(),
            making: Mutex::default(),
            _lock: lock,
        };
        inner.try_a_sandbox().map_err(unusable)?;
        inner.capabilities = probe::capabilities(&inner.cgroups, inner.id_mapped);
        inner.capabilities.egress_allow_list = inner.settings.allow_lists;
        Ok(Self { inner: Arc::new(inner) })
    }
}

impl Inner {
    /// Makes a sandbox and removes it. Without mapped mounts, which older kernels lack, it tries again without them.
    fn try_a_sandbox(&mut self) -> io::Result<()> {
        loop {
            let spec = Spec::new("probe", "host");
            let plan = self.plan(spec, &Image::Host, 0, None).map_err(|error| io::Error::other(error.to_string()))?;
            match spawn::spawn(&self.zygote, &self.cgroups, None, self.owner(0, DEFAULT_USER), plan) {
                Ok(spawned) => {
                    return self.live(spawned, None).map_err(|error| io::Error::other(error.to_string()))?.destroy();
                }
                Err(_) if self.id_mapped => self.id_mapped = false,
                Err(error) => return Err(error),
            }
        }
    }

    pub fn sandboxes(&self) -> MutexGuard<'_, HashMap<RuntimeId, Arc<Sandbox>>> {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn get(&self, id: &RuntimeId) -> Result<Arc<Sandbox>> {
        self.sandboxes().get(id).cloned().ok_or_else(|| Error::not_found(format!("no sandbox {id} on this worker")))
    }

    /// Whether an instance of a sandbox is held by this process or being made by it.
    pub fn knows(&self, instance: &str) -> bool {
        self.making.lock().unwrap_or_else(PoisonError::into_inner).contains(instance)
            || self.sandboxes().values().any(|sandbox| sandbox.record.id == instance)
    }

    fn note_making(&self, instance: &str) -> Making<'_> {
        self.making.lock().unwrap_or_else(PoisonError::into_inner).insert(instance.to_owned());
        Making { inner: self, instance: instance.to_owned() }
    }

    /// A sandbox that can serve commands and files now.
    pub fn running(&self, id: &RuntimeId) -> Result<Arc<Sandbox>> {
        let sandbox = self.get(id)?;
        sandbox.check_running()?;
        Ok(sandbox)
    }

    pub fn zygote_runs(&self) -> bool {
        self.zygote.alive()
    }

    pub async fn spawn(self: &Arc<Self>, spec: Spec) -> Result<Runtime> {
        check_spec(&spec)?;
        let allowed = match &spec.egress {
            Egress::None if spec.gateway.is_some() => {
                return Err(Error::invalid(
                    "a sandbox with a gateway needs a list of allowed hosts, which may be empty",
                ));
            }
            Egress::None => None,
            Egress::Allow(_) if !self.settings.allow_lists => {
                return Err(Error::invalid(
                    "sandboxes of this worker have no network: it does not permit allowed hosts",
                ));
            }
            Egress::Allow(hosts) => Some(AllowList::parse(hosts)?),
        };
        let permit = Arc::clone(&self.spawns).acquire_owned().await.map_err(|_| Error::internal("no more spawns"))?;
        let inner = Arc::clone(self);
        // The whole creation is one blocking step that is not cut off if the caller leaves: then it is undone.
        let runtime = tokio::runtime::Handle::current();
        let created = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let _context = runtime.enter();
            inner.create(spec, allowed)
        });
        let mut undo = Undo { inner: Arc::clone(self), created: Some(created) };
        let Some(created) = &mut undo.created else { return Err(Error::internal("no creation")) };
        let sandbox = created.await.map_err(|error| Error::internal("the creation failed").with_source(error));
        undo.created = None;
        let sandbox = sandbox??;
        Ok(sandbox.runtime())
    }

    fn create(&self, spec: Spec, allowed: Option<AllowList>) -> Result<Arc<Sandbox>> {
        let image = self.settings.images.resolve(&spec.image, &self.settings.image_aliases)?;
        let slot = self.take_slot()?;
        let made = self.create_in_slot(spec, &image, slot, allowed);
        if made.is_err() {
            self.free_slot(slot);
        }
        made
    }

    /// A new sandbox with the settings of another one, filled from an archive.
    pub async fn replace(self: &Arc<Self>, old: &Arc<Sandbox>, image: Image, archive: File) -> Result<Arc<Sandbox>> {
        let permit = Arc::clone(&self.spawns).acquire_owned().await.map_err(|_| Error::internal("no more spawns"))?;
        let (inner, old) = (Arc::clone(self), Arc::clone(old));
        let runtime = tokio::runtime::Handle::current();
        super::calls::blocking(move || {
            let _permit = permit;
            let _context = runtime.enter();
            let allowed = match &old.record.spec.egress {
                Egress::None => None,
                Egress::Allow(hosts) => Some(AllowList::parse(old.allowed_hosts().as_ref().unwrap_or(hosts))?),
            };
            let slot = inner.take_slot()?;
            let plan = inner.plan(old.record.spec.clone(), &image, slot, Some(archive.into())).map(|mut plan| {
                plan.record.runtime_id.clone_from(&old.record.runtime_id);
                plan.record.created_ms = old.record.created_ms;
                plan.record.allowed_hosts = old.allowed_hosts();
                plan
            });
            let made = plan.and_then(|plan| inner.start(plan, &image, allowed));
            if made.is_err() {
                inner.free_slot(slot);
            }
            made
        })
        .await
    }

    fn create_in_slot(&self, spec: Spec, image: &Image, slot: u32, allowed: Option<AllowList>) -> Result<Arc<Sandbox>> {
        let plan = self.plan(spec, image, slot, None)?;
        let sandbox = self.start(plan, image, allowed)?;
        self.sandboxes().insert(RuntimeId(sandbox.record.runtime_id.clone()), Arc::clone(&sandbox));
        Ok(sandbox)
    }

    fn start(&self, plan: Plan, image: &Image, allowed: Option<AllowList>) -> Result<Arc<Sandbox>> {
        let (id, owner) = (plan.record.id.clone(), self.owner(plan.record.slot, plan.record.user));
        self.settings.images.hold(image, &id)?;
        let _making = self.note_making(&id);
        match spawn::spawn(&self.zygote, &self.cgroups, self.disks.as_ref(), owner, plan) {
            Ok(spawned) => {
                let (record, folder) = (spawned.record.clone(), spawned.folder.clone());
                self.live(spawned, allowed).map(Arc::new).inspect_err(|_| {
                    let process = record.process.as_ref().and_then(find_process);
                    let _ = end(&record, process.as_ref()).and_then(|()| remove_folder(&folder));
                })
            }
            Err(error) => {
                self.settings.images.release(&id)?;
                Err(Error::unavailable(format!("cannot create a sandbox: {error}")).with_source(error))
            }
        }
    }

    /// Decides everything about a sandbox.
    pub fn plan(&self, spec: Spec, image: &Image, slot: u32, archive: Option<OwnedFd>) -> Result<Plan> {
        let decided = limits::decide(&self.settings, &self.capabilities, self.disks.is_some(), &spec.limits)?;
        let id = format!("{}{}", adopt::ID_PREFIX, uuid::Uuid::new_v4().simple());
        let folder = self.folder(&id);
        let user = spec.user_id.unwrap_or(DEFAULT_USER);
        let (layers, links, image_resolved, host_copy) = match image {
            Image::Host => {
                (self.host.layers.clone(), self.host.links.clone(), "host".to_owned(), Some(self.host_copy.clone()))
            }
            Image::Rootfs { path, digest } => {
                let whole = Layer { source: path.clone(), target: String::new() };
                (vec![whole], Vec::new(), digest.clone(), None)
            }
        };
        let Decided { groups: limits, disk_bytes, on_disk } = decided;
        let (ids, group_ids) = spawn::ids(self.settings.first_id, slot, user);
        let launch = Launch {
            ids,
            group_ids,
            layers,
            links,
            binds: binds(&spec)?,
            id_mapped: self.id_mapped,
            read_only_root: spec.read_only_root,
            disk_bytes,
            user,
            proxy_port: matches!(spec.egress, Egress::Allow(_)).then_some(PROXY_PORT),
            landlock: self.landlock,
            seccomp: self.settings.seccomp,
            process_limits: ProcessLimits {
                address_space_bytes: limits.memory_bytes.filter(|_| !self.cgroups.has(Role::Memory)),
                processes: limits
                    .pids
                    .filter(|_| !self.cgroups.has(Role::Pids))
                    .map(|pids| u64::from(pids) + AGENT_TASKS),
            },
            die_with_parent: spec.die_with_parent,
            commands: CommandPlan::default(),
            descriptors: Descriptors::default(),
        };
        let record = Record {
            runtime_id: id.clone(),
            id,
            image_resolved,
            image_path: match image {
                Image::Host => None,
                Image::Rootfs { path, .. } => Some(path.clone()),
            },
            created_ms: now_ms(),
            instance_ms: now_ms(),
            groups: SandboxGroups::default(),
            host_copy,
            slot,
            user,
            disk_bytes,
            memory_limit_bytes: limits.memory_bytes.unwrap_or(0),
            writable_number: None,
            proxy_number: None,
            allowed_hosts: None,
            process: None,
            spec,
        };
        let disk = on_disk.then_some((disk_bytes, self.owner(slot, 0)));
        Ok(Plan { record, folder, limits, launch, disk, archive })
    }

    /// Takes a sandbox that runs into this process's hands.
    fn live(&self, spawned: Spawned, allowed: Option<AllowList>) -> Result<Sandbox> {
        let Spawned { record, folder, process, status, writable, proxy } = spawned;
        let proxy = match (proxy, allowed) {
            (Some(listener), Some(allowed)) => Proxy::serve(listener, allowed, record.spec.gateway)
                .inspect_err(|error| tracing::warn!(sandbox = record.id, %error, "the sandbox has no egress"))
                .ok(),
            _ => None,
        };
        let status = record.spec.die_with_parent.then_some(status);
        Sandbox::new(record, folder, process, writable, status, proxy)
    }

    pub async fn destroy(self: &Arc<Self>, id: &RuntimeId) -> Result<()> {
        let Ok(sandbox) = self.get(id) else { return Ok(()) };
        let (inner, id) = (Arc::clone(self), id.clone());
        // A caller that leaves does not stop it half way.
        tokio::task::spawn_blocking(move || inner.destroy_now(&sandbox, &id))
            .await
            .map_err(|error| Error::internal("the destruction failed").with_source(error))?
    }

    fn destroy_now(&self, sandbox: &Sandbox, id: &RuntimeId) -> Result<()> {
        self.end_instance(sandbox)?;
        self.sandboxes().remove(id);
        Ok(())
    }

    /// Ends a sandbox and removes what it had. Doing it twice is not an error.
    pub fn end_instance(&self, sandbox: &Sandbox) -> Result<()> {
        let mut ended = sandbox.ending.lock().unwrap_or_else(PoisonError::into_inner);
        if *ended {
            return Ok(());
        }
        let record = &sandbox.record;
        sandbox.destroy().map_err(|error| {
            Error::internal(format!("cannot destroy the sandbox {}: {error}", record.runtime_id)).with_source(error)
        })?;
        *ended = true;
        self.free_slot(record.slot);
        // The programs of this machine are not held.
        if record.image_path.is_some() { self.settings.images.release(&record.id) } else { Ok(()) }
    }

    pub fn folder(&self, id: &str) -> PathBuf {
        self.settings.state_dir.join("sandboxes").join(id)
    }

    pub fn host_copy(&self) -> &str {
        &self.host_copy
    }

    /// The id of this machine that the user of a sandbox has.
    fn owner(&self, slot: u32, user: u32) -> u32 {
        if rustix::process::geteuid().is_root() {
            self.settings.first_id + slot * IDS_PER_SANDBOX + user
        } else {
            rustix::process::geteuid().as_raw()
        }
    }

    fn take_slot(&self) -> Result<u32> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.used.len() >= self.settings.max_sandboxes.min(SLOTS as usize) {
            return Err(Error::unavailable(format!(
                "this worker has {} sandboxes, its maximum: destroy some or try again later",
                slots.used.len()
            )));
        }
        loop {
            let slot = slots.next;
            slots.next = (slots.next + 1) % SLOTS;
            if slots.used.insert(slot, ()).is_none() {
                return Ok(slot);
            }
        }
    }

    pub fn use_slot(&self, slot: u32) {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).used.insert(slot, ());
    }

    pub fn free_slot(&self, slot: u32) {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).used.remove(&slot);
    }
}

/// A sandbox that is being made is not taken for remains of a former process.
struct Making<'a> {
    inner: &'a Inner,
    instance: String,
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        self.inner.making.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.instance);
    }
}

/// Destroys a sandbox whose creator did not wait for it.
struct Undo {
    inner: Arc<Inner>,
    created: Option<tokio::task::JoinHandle<Result<Arc<Sandbox>>>>,
}

impl Drop for Undo {
    fn drop(&mut self) {
        if let Some(created) = self.created.take() {
            let inner = Arc::clone(&self.inner);
            tokio::spawn(async move {
                if let Ok(Ok(sandbox)) = created.await {
                    let _ = inner.destroy(&RuntimeId(sandbox.record.runtime_id.clone())).await;
                }
            });
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.sandboxes().is_empty() {
            let _ = std::fs::remove_dir_all(self.settings.state_dir.join(&self.host_copy));
            self.cgroups.remove();
        }
    }
}

fn check_spec(spec: &Spec) -> Result<()> {
    if spec.user_id.is_some_and(|user| user >= IDS_PER_SANDBOX) {
        return Err(Error::invalid(format!("user_id must be below {IDS_PER_SANDBOX}")));
    }
    for (name, value) in &spec.env {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return Err(Error::invalid(format!(
                "environment variable {name:?}: the name is empty or contains `=` or NUL, or the value contains NUL"
            )));
        }
    }
    Ok(())
}

fn binds(spec: &Spec) -> Result<Vec<Bind>> {
    spec.mounts
        .iter()
        .map(|mount| {
            let wrong = |why: &str| Error::invalid(format!("mount {:?}: {why}", mount.target));
            let target = mount.target.as_str();
            if !target.starts_with('/')
                || target.split('/').any(|name| name == "..")
                || target.trim_matches('/').is_empty()
            {
                return Err(wrong("the target must be an absolute path in the sandbox other than its root"));
            }
            let first = target.trim_start_matches('/').split('/').next().unwrap_or("");
            if ["proc", "sys", "dev"].contains(&first) {
                return Err(wrong("nothing can be mounted on /proc, /sys and /dev"));
            }
            let source = mount.source.canonicalize().map_err(|error| wrong(&format!("the source: {error}")))?;
            if !source.is_dir() {
                return Err(wrong("the source is not a directory"));
            }
            Ok(Bind { source, target: target.to_owned(), read_only: mount.read_only })
        })
        .collect()
}

fn prepare_state(state: &Path) -> io::Result<File> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(state.join("sandboxes"))?;
    let lock = File::create(state.join("lock"))?;
    // A process that this one is starting holds a former lock until it executes its program.
    let deadline = Instant::now() + LOCK_PATIENCE;
    while flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        if Instant::now() > deadline {
            return Err(io::Error::other("another process uses it: give each worker a data directory of its own"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(lock)
}

/// A name for the groups of a provider, the same after a restart.
fn group_name(state: &Path) -> String {
    use sha2::{Digest as _, Sha256};
    let path = state.canonicalize().unwrap_or_else(|_| state.to_owned());
    let digest = Sha256::digest(path.as_os_str().as_encoded_bytes());
    let hex: String = digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    format!("tenure-{hex}")
}
