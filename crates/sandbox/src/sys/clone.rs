use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The namespaces that a new process gets. Always a mount, PID, network, IPC and UTS namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Namespaces {
    /// A user namespace as well.
    All,
    /// Only a user namespace, to make a mapping of ids from it.
    User,
}

/// Which side of a `clone_process` this is.
#[derive(Debug)]
pub(crate) enum Cloned {
    Child,
    Parent { pid: i32, pidfd: OwnedFd },
}

/// The constant of libc is too narrow for it.
pub(super) const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// `struct clone_args` of the kernel, version 2 (Linux 5.7).
#[repr(C)]
#[derive(Default)]
pub(super) struct CloneArgs {
    pub(super) flags: u64,
    pub(super) pidfd: u64,
    pub(super) child_tid: u64,
    pub(super) parent_tid: u64,
    pub(super) exit_signal: u64,
    pub(super) stack: u64,
    pub(super) stack_size: u64,
    pub(super) tls: u64,
    pub(super) set_tid: u64,
    pub(super) set_tid_size: u64,
    pub(super) cgroup: u64,
}

/// Forks this process into new namespaces, and into a group of the unified cgroup hierarchy if one is given.
///
/// Refused in a process with more than one thread: the child would inherit locks that nobody releases.
pub(crate) fn clone_process(namespaces: Namespaces, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Cloned> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("a process with threads cannot be cloned"));
    }
    let mut pidfd: libc::c_int = -1;
    let flags = match namespaces {
        Namespaces::All => {
            libc::CLONE_NEWUSER
                | libc::CLONE_NEWNS
                | libc::CLONE_NEWPID
                | libc::CLONE_NEWNET
                | libc::CLONE_NEWIPC
                | libc::CLONE_NEWUTS
        }
        Namespaces::User => libc::CLONE_NEWUSER,
    };
    // The flags are a set of bits in a signed constant; none is the sign bit.
    let mut args = CloneArgs {
        flags: flags as u64 | libc::CLONE_PIDFD as u64,
        pidfd: &raw mut pidfd as u64,
        exit_signal: libc::SIGCHLD as u64,
        ..CloneArgs::default()
    };
    if let Some(group) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = group.as_raw_fd() as u64;
    }
    // SAFETY: `args` is a valid clone_args of the stated size that outlives the call, and `pidfd` a valid place for the
    // descriptor. No stack is given and CLONE_VM is absent, so the child continues on a copy of this stack, as after
    // fork. The process has one thread, checked above, so no lock is held by a thread that the child lacks.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<CloneArgs>()) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Cloned::Child),
        pid => {
            // SAFETY: the kernel has stored a new descriptor in `pidfd` that nobody else owns.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(Cloned::Parent { pid: i32::try_from(pid).map_err(io::Error::other)?, pidfd })
        }
    }
}
