use std::io;

use rustix::process::Signal;

/// Sends a signal to every process that this one may signal, except itself, in one step. Only the first process of a PID
/// namespace may, whose namespace is all that it reaches.
pub(crate) fn signal_all_others(signal: Signal) -> io::Result<()> {
    if std::process::id() != 1 {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "not the first process of a PID namespace"));
    }
    // SAFETY: numbers only.
    let sent = unsafe { libc::kill(-1, signal.as_raw()) };
    let error = io::Error::last_os_error();
    match sent {
        0 => Ok(()),
        // There is no other process.
        _ if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        _ => Err(error),
    }
}
