use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

use crate::spec::Terminal;

/// A terminal for a command: the end that its starter holds, and the end that is the command's stdin, stdout and stderr.
pub(crate) fn open(size: Terminal) -> std::io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = rustix::pty::openpt(flags)?;
    rustix::pty::unlockpt(&ours)?;
    let theirs = rustix::pty::ioctl_tiocgptpeer(&ours, flags)?;
    resize(rustix::fd::AsFd::as_fd(&ours), size)?;
    Ok((ours, theirs))
}

pub(crate) fn resize(ours: BorrowedFd<'_>, size: Terminal) -> std::io::Result<()> {
    let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(rustix::termios::tcsetwinsize(ours, size)?)
}

/// The character that a terminal reads as the end of input at the beginning of a line.
pub(crate) const END_OF_INPUT: &[u8] = &[4];
