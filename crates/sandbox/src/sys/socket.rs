use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Brings the loopback interface of this network namespace up.
pub(crate) fn bring_loopback_up(socket: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: ifreq is plain data, for which zeros are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    // SAFETY: `request` is a valid ifreq with a terminated name and outlives the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
