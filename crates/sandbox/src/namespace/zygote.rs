//! The zygote: one small process that is copied for each sandbox.
//!
//! It is this program, executed from a sealed copy in memory, with one thread. It waits for launches, clones itself into
//! the namespaces of the sandbox and maps the ids of the new process. It ends with the provider that started it, and the
//! sandboxes do not.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use rustix::fs::{CWD, MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, memfd_create, open};
use rustix::mount::{OpenTreeFlags, open_tree};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::launch::{IdRange, Launch, Launched, receive, send};
use super::{seccomp, setup};
use crate::sys::{self, Cloned, MountAttributes, Namespaces};

/// The argument that makes a program a zygote.
const ZYGOTE_ARGUMENT: &str = "tenure-sandbox-zygote";

/// The program that sandboxes begin with: this program or one that calls [`agent_main`] first thing in its `main`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentProgram {
    pub path: PathBuf,
}

impl AgentProgram {
    /// The program that runs now. Its `main` must call [`agent_main`] first thing.
    pub fn this() -> io::Result<Self> {
        Ok(Self { path: std::env::current_exe()? })
    }
}

/// Becomes a zygote if this process was started as one, and then does not return.
pub fn agent_main() {
    #[cfg(feature = "docker")]
    crate::docker::agent_main();
    let mut args = std::env::args_os().skip(1);
    if args.next() == Some(OsString::from(ZYGOTE_ARGUMENT)) {
        let code = match serve(&io::stdin().as_fd()) {
            Ok(()) => 0,
            Err(_) => 1,
        };
        sys::exit_process(code);
    }
}

/// The provider's side of a zygote.
#[derive(Debug)]
pub(crate) struct Zygote {
    socket: Mutex<OwnedFd>,
    child: Mutex<Child>,
}

impl Zygote {
    pub fn start(program: &AgentProgram) -> io::Result<Self> {
        let image = sealed_copy(&program.path)?;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let child = Command::new(format!("/proc/self/fd/{}", image.as_raw_fd()))
            .arg(ZYGOTE_ARGUMENT)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { socket: Mutex::new(ours), child: Mutex::new(child) })
    }

    /// Starts a process for a sandbox. It waits for nothing else: the sandbox reports by its status socket.
    pub fn launch(&self, launch: &Launch, descriptors: &[&OwnedFd]) -> io::Result<(i32, OwnedFd)> {
        let socket = self.socket.lock().map_err(|_| io::Error::other("the zygote's socket is lost"))?;
        send(socket.as_fd(), launch, descriptors)?;
        match receive(socket.as_fd())? {
            Some((Launched::Pid(pid), mut descriptors)) if descriptors.len() == 1 => {
                Ok((pid, descriptors.swap_remove(0)))
            }
            Some((Launched::Failed(reason), _)) => Err(io::Error::other(reason)),
            Some(_) => Err(io::Error::other("the zygote answered without a process")),
            None => Err(io::Error::other("the zygote ended")),
        }
    }

    /// Whether it runs.
    pub fn alive(&self) -> bool {
        self.child.lock().is_ok_and(|mut child| matches!(child.try_wait(), Ok(None)))
    }
}

impl Drop for Zygote {
    fn drop(&mut self) {
        if let Ok(mut child) = self.child.lock() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A copy of the program in memory that nobody can write to, so that a sandbox that opens `/proc/1/exe` changes nothing.
fn sealed_copy(path: &Path) -> io::Result<OwnedFd> {
    let name = "sandbox";
    let sealable = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Before Linux 6.3 there is no such flag, and every memfd can be executed.
    let copy = memfd_create(name, sealable | MemfdFlags::EXEC).or_else(|_| memfd_create(name, sealable))?;
    let mut to = std::fs::File::from(copy);
    io::copy(&mut std::fs::File::open(path)?, &mut to)?;
    to.flush()?;
    fcntl_add_seals(&to, SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
    // A descriptor that is open for writing cannot be executed.
    Ok(open(format!("/proc/self/fd/{}", to.as_raw_fd()), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

fn serve(socket: &BorrowedFd<'_>) -> io::Result<()> {
    let _ = rustix::process::setsid();
    sys::ignore_child_signals();
    seccomp::prepare();
    while let Some((launch, descriptors)) = receive::<Launch>(socket)? {
        let (pid, process) = match start(&launch, descriptors, socket) {
            Ok(started) => started,
            Err(error) => {
                send(socket, &Launched::Failed(error.to_string()), &[])?;
                continue;
            }
        };
        send(socket, &Launched::Pid(pid), &[&process])?;
    }
    Ok(())
}

fn start(launch: &Launch, descriptors: Vec<OwnedFd>, socket: &BorrowedFd<'_>) -> io::Result<(i32, OwnedFd)> {
    let descriptors = setup::Given::new(&launch.descriptors, descriptors)?;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let cloned = sys::clone_process(Namespaces::All, descriptors.start_group.as_ref().map(AsFd::as_fd))
        .map_err(|error| because("cannot create the namespaces", &error))?;
    match cloned {
        Cloned::Child => {
            drop(ours);
            // The provider's connection to the zygote is not the sandbox's.
            setup::close_inherited(socket);
            setup::run(launch, descriptors, theirs)
        }
        Cloned::Parent { pid, pidfd } => {
            drop(theirs);
            let prepared = map_ids(pid, &launch.ids, &launch.group_ids).and_then(|()| trees(launch, pid));
            match prepared.and_then(|trees| send(&ours, &(), &trees.iter().collect::<Vec<_>>())) {
                Ok(()) => Ok((pid, pidfd)),
                Err(error) => {
                    let _ = rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL);
                    Err(error)
                }
            }
        }
    }
}

/// Writes the mapping of ids of a new user namespace.
fn map_ids(pid: i32, ids: &[IdRange], group_ids: &[IdRange]) -> io::Result<()> {
    let text = |ids: &[IdRange]| {
        ids.iter()
            .fold(String::new(), |text, range| text + &format!("{} {} {}\n", range.inside, range.outside, range.count))
    };
    if !rustix::process::geteuid().is_root() {
        // Only so may an unprivileged process map its group.
        std::fs::write(format!("/proc/{pid}/setgroups"), "deny")?;
    }
    for (file, ids) in [("gid_map", group_ids), ("uid_map", ids)] {
        std::fs::write(format!("/proc/{pid}/{file}"), text(ids))
            .map_err(|error| because(&format!("cannot write the {file}"), &error))?;
    }
    Ok(())
}

/// Copies of the mounts that the image and the host directories are on, with the ids of the sandbox. Only the owner of
/// their file systems may change ids, so the sandbox itself cannot do it.
fn trees(launch: &Launch, pid: i32) -> io::Result<Vec<OwnedFd>> {
    if !launch.id_mapped {
        return Ok(Vec::new());
    }
    let ids = open(format!("/proc/{pid}/ns/user"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut trees = Vec::new();
    for layer in &launch.layers {
        let attributes = MountAttributes { read_only: true, no_suid: true, no_dev: true, ..MountAttributes::default() };
        trees.push(mapped_tree(&layer.source, attributes, &ids)?);
    }
    for bind in &launch.binds {
        let attributes =
            MountAttributes { read_only: bind.read_only, no_suid: true, no_dev: true, ..MountAttributes::default() };
        let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(&bind.source)?);
        let ids = owner_as_user(launch, owner)?;
        trees.push(mapped_tree(&bind.source, attributes, &ids)?);
    }
    Ok(trees)
}

fn mapped_tree(source: &Path, attributes: MountAttributes, ids: &OwnedFd) -> io::Result<OwnedFd> {
    let named = |error: io::Error| because(&format!("cannot mount {}", source.display()), &error);
    let tree = open_tree(CWD, source, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)
        .map_err(|error| named(error.into()))?;
    sys::set_mount_attributes(tree.as_fd(), attributes, Some(ids.as_fd()), false).map_err(named)?;
    Ok(tree)
}

/// A user namespace in which the owner of a host directory is the user of the sandbox.
fn owner_as_user(launch: &Launch, owner: u32) -> io::Result<OwnedFd> {
    let range = launch
        .ids
        .iter()
        .find(|range| (range.inside..range.inside.saturating_add(range.count)).contains(&launch.user))
        .ok_or_else(|| io::Error::other("the user of the sandbox has no id on this machine"))?;
    let outside = range.outside + (launch.user - range.inside);
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    match sys::clone_process(Namespaces::User, None)? {
        Cloned::Child => {
            drop(ours);
            // Holds the namespace until the parent has opened it.
            let _ = rustix::io::read(&theirs, &mut [0; 1]);
            sys::exit_process(0)
        }
        Cloned::Parent { pid, .. } => {
            drop(theirs);
            let range = [IdRange { inside: owner, outside, count: 1 }];
            map_ids(pid, &range, &range)?;
            let namespace = open(format!("/proc/{pid}/ns/user"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
            drop(ours);
            Ok(namespace)
        }
    }
}

fn because(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}
