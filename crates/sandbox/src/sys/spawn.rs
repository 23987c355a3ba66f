use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Added to the number of an error that happened before the program was executed, so that a missing program can be told
/// from a missing directory. The kernel's numbers are below it.
const BEFORE_EXEC: i32 = 1 << 16;

/// Lets the new process lead a session of its own, in `directory`, with the terminal on its stdin as controlling terminal
/// if `terminal` is set. Signals have their defaults, and descriptors from 3 on are closed when the program starts.
pub(crate) fn lead_session(command: &mut Command, directory: OwnedFd, terminal: bool) {
    in_child(command, move || become_leader(directory.as_fd(), terminal));
}

/// Makes this process what [`lead_session`] says. Async-signal-safe.
pub(crate) fn become_leader(directory: BorrowedFd<'_>, terminal: bool) -> io::Result<()> {
    rustix::process::setsid()?;
    default_signals()?;
    if terminal {
        rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
    }
    rustix::process::fchdir(directory)?;
    close_on_exec()
}

/// Runs `step` in the new process before the program. It must be async-signal-safe: it may make system calls on what it
/// captured, and neither allocate nor lock.
pub(crate) fn in_child(command: &mut Command, step: impl Fn() -> io::Result<()> + Send + Sync + 'static) {
    let step = move || step().map_err(|error| io::Error::from_raw_os_error(before_exec_error(&error)));
    // SAFETY: the closure runs between fork and exec and keeps to the rules above. `from_raw_os_error` does not allocate.
    unsafe {
        command.pre_exec(step);
    }
}

/// The number of an error that happened before the program was executed.
pub(super) fn before_exec_error(error: &io::Error) -> i32 {
    BEFORE_EXEC + error.raw_os_error().unwrap_or(libc::EINVAL)
}

/// The error of a start that failed before the program was executed.
pub(crate) fn before_exec(error: &io::Error) -> Option<io::Error> {
    let number = error.raw_os_error()?.checked_sub(BEFORE_EXEC)?;
    (number >= 0).then(|| io::Error::from_raw_os_error(number))
}

fn default_signals() -> io::Result<()> {
    // SAFETY: SIG_DFL is a valid disposition; the kernel refuses it for SIGKILL and SIGSTOP, which changes nothing. The set
    // is a variable of this frame and is initialised before it is read.
    let result = unsafe {
        for signal in 1..=64 {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut())
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn close_on_exec() -> io::Result<()> {
    // SAFETY: no pointer is passed, and the descriptors stay open until the exec.
    let result = unsafe { libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC as libc::c_int) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
