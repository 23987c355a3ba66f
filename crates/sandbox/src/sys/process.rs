use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Lets the kernel reap the children of this process.
pub(crate) fn ignore_child_signals() {
    // SAFETY: SIG_IGN is a valid disposition and no handler of ours is replaced.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

/// Gives every signal its default effect and unblocks all of them.
pub(crate) fn reset_signals() {
    // SAFETY: SIG_DFL is valid for every signal; the kernel refuses it for SIGKILL and SIGSTOP, which changes nothing.
    // The set is initialised by sigemptyset before it is read.
    unsafe {
        for signal in 1..=64 {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

/// Restricts this thread, and what it starts, to a Landlock rule set. Async-signal-safe.
pub(crate) fn landlock_restrict_self(rules: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no pointer is passed.
    let result = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules.as_raw_fd(), 0) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Ends this process at once, without destructors or handlers.
pub(crate) fn exit_process(code: i32) -> ! {
    // SAFETY: _exit ends the process; nothing runs after it.
    unsafe { libc::_exit(code) }
}

/// Gives this process a view of groups that begins at the one it is in.
pub(crate) fn new_cgroup_namespace() -> io::Result<()> {
    // SAFETY: no pointer is passed, and descriptors and memory stay shared as they are.
    let result = unsafe { libc::unshare(libc::CLONE_NEWCGROUP) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
