use std::io;
use std::os::fd::OwnedFd;

use tokio::io::unix::AsyncFd;

/// Makes a descriptor non-blocking, for use with the runtime of the caller.
pub(crate) fn watched(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    rustix::io::ioctl_fionbio(&fd, true)?;
    // SAFETY: an `OwnedFd` is open, names the same file as long as it lives, and is owned by the answer.
    Ok(unsafe { AsyncFd::register(fd) }?)
}
