use std::io;

use crate::sys::supervisor::Report;

/// Waits until a child of this process has ended, and returns its id without taking its status.
pub(crate) fn ended_child() -> io::Result<i32> {
    // SAFETY: all zeros is a valid siginfo_t, and the pointer is to a variable of this frame.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        if libc::waitid(libc::P_ALL, 0, &raw mut info, libc::WEXITED | libc::WNOWAIT) < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(info.si_pid())
    }
}

/// Takes the status of a child that has ended. None if somebody else has taken it.
pub(crate) fn take_status(pid: i32) -> Option<Report> {
    let mut status = 0;
    // SAFETY: all zeros is a valid rusage, and the pointers are to variables of this frame.
    let (result, used) = unsafe {
        let mut used: libc::rusage = std::mem::zeroed();
        (libc::wait4(pid, &raw mut status, libc::WNOHANG, &raw mut used), used)
    };
    (result == pid).then(|| Report::new(status, &used))
}
