use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::process::Command;

use rustix::pipe::{PipeFlags, pipe_with};

use super::spawn::{in_child, lead_session};

/// The ends of a supervised command that its starter holds.
#[derive(Debug)]
pub(crate) struct Line {
    /// Reports of [`REPORT_BYTES`]; the command ended when one arrives. It ends when no process of the command is left.
    pub(crate) reports: OwnedFd,
    /// Each byte is the number of a signal for the command's process group. Closing it kills every process that the
    /// command started, so they also end with the process that holds it.
    pub(crate) orders: OwnedFd,
}

pub(crate) const REPORT_BYTES: usize = 32;

/// How a supervised command ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Report {
    pub(crate) status: i32,
    pub(crate) cpu_micros: u64,
    pub(crate) peak_memory_bytes: u64,
}

impl Report {
    pub(crate) fn new(status: c_int, used: &libc::rusage) -> Self {
        let micros = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
        let cpu_micros = micros(used.ru_utime) + micros(used.ru_stime);
        Self { status, cpu_micros, peak_memory_bytes: used.ru_maxrss as u64 * 1024 }
    }

    pub(crate) fn parse(bytes: &[u8; REPORT_BYTES]) -> Self {
        let number = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        Self { status: number(0) as i32, cpu_micros: number(8), peak_memory_bytes: number(16) }
    }

    fn bytes(self) -> [u8; REPORT_BYTES] {
        let mut bytes = [0; REPORT_BYTES];
        bytes[0..8].copy_from_slice(&u64::from(self.status as u32).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.cpu_micros.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.peak_memory_bytes.to_le_bytes());
        bytes
    }
}

/// Puts a supervisor between this process and the command. The process that `command` starts becomes the supervisor; the
/// command is its child, in a session of its own, in `directory`, and with the terminal on its stdin as controlling
/// terminal if `terminal` is set.
///
/// The supervisor adopts every process that loses its parent, so that double-forked daemons stay below it. It ends when
/// no process is left.
pub(crate) fn supervise(command: &mut Command, directory: OwnedFd, terminal: bool) -> io::Result<Line> {
    let (reports, report) = pipe_with(PipeFlags::CLOEXEC)?;
    let (order, orders) = pipe_with(PipeFlags::CLOEXEC)?;
    in_child(command, move || split(report.as_raw_fd(), order.as_raw_fd()));
    lead_session(command, directory, terminal);
    Ok(Line { reports, orders })
}

/// Returns in the command; the supervisor does not return.
fn split(report: RawFd, order: RawFd) -> io::Result<()> {
    // SAFETY: plain system calls on numbers and on variables of this frame. This is the only thread of the process.
    unsafe {
        check(libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))?;
        let child = check(libc::fork())?;
        if child != 0 {
            watch(child, report, order);
        }
    }
    Ok(())
}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Waits for the command and for everything that it leaves, and kills all of it when the orders end.
///
/// # Safety
/// The caller is the only thread of its process. The descriptors are open.
unsafe fn watch(command: libc::pid_t, report: RawFd, order: RawFd) -> ! {
    // SAFETY: as in `split`. Nothing of the process that was forked is used: no lock, no allocation, no descriptor but the
    // two that were passed.
    unsafe {
        libc::setsid();
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
        let (low, high) = (report.min(order), report.max(order));
        close_between(0, low - 1);
        close_between(low + 1, high - 1);
        libc::close_range(high as libc::c_uint + 1, libc::c_uint::MAX, 0);

        let mut child_ended = std::mem::zeroed();
        libc::sigemptyset(&raw mut child_ended);
        libc::sigaddset(&raw mut child_ended, libc::SIGCHLD);
        let ended = libc::signalfd(-1, &raw const child_ended, libc::SFD_NONBLOCK);

        let mut running = true;
        loop {
            reap(command, report, &mut running);
            let mut waits = [
                libc::pollfd { fd: ended, events: libc::POLLIN, revents: 0 },
                libc::pollfd { fd: order, events: libc::POLLIN, revents: 0 },
            ];
            // Without a signalfd the supervisor would miss the end of the command: look from time to time.
            let wait_ms = if ended < 0 { 50 } else { -1 };
            libc::poll(waits.as_mut_ptr(), 2, wait_ms);
            if waits[0].revents != 0 {
                let mut drained = [0_u8; 512];
                while libc::read(ended, drained.as_mut_ptr().cast(), drained.len()) > 0 {}
            }
            if waits[1].revents != 0 {
                let mut signal = 0_u8;
                match libc::read(order, (&raw mut signal).cast(), 1) {
                    1 if running => {
                        libc::kill(-command, c_int::from(signal));
                    }
                    1 => {}
                    _ => break,
                }
            }
        }
        loop {
            kill_children();
            let mut status = 0;
            let mut used = std::mem::zeroed();
            let pid = libc::wait4(-1, &raw mut status, 0, &raw mut used);
            if pid < 0 {
                libc::_exit(0);
            }
            if pid == command {
                tell(report, status, &used);
            }
            reap(command, report, &mut running);
        }
    }
}

/// # Safety
/// As `watch`.
unsafe fn close_between(first: RawFd, last: RawFd) {
    if first <= last {
        // SAFETY: nothing uses these descriptors.
        unsafe { libc::close_range(first as libc::c_uint, last as libc::c_uint, 0) };
    }
}

/// Takes the status of every child that has ended, and ends itself after the last.
///
/// # Safety
/// As `watch`.
unsafe fn reap(command: libc::pid_t, report: RawFd, running: &mut bool) {
    loop {
        let mut status = 0;
        // SAFETY: the pointers are to variables of this frame.
        let (pid, used) = unsafe {
            let mut used = std::mem::zeroed();
            (libc::wait4(-1, &raw mut status, libc::WNOHANG, &raw mut used), used)
        };
        match pid {
            0 => return,
            // SAFETY: no child is left, and nothing is to be flushed.
            pid if pid < 0 => unsafe { libc::_exit(0) },
            pid if pid == command => {
                *running = false;
                // SAFETY: as this function.
                unsafe { tell(report, status, &used) };
            }
            _ => {}
        }
    }
}

/// # Safety
/// As `watch`.
unsafe fn tell(report: RawFd, status: c_int, used: &libc::rusage) {
    let bytes = Report::new(status, used).bytes();
    // SAFETY: the buffer is a variable of this frame. A report is smaller than PIPE_BUF, so it is written whole.
    unsafe { libc::write(report, bytes.as_ptr().cast(), bytes.len()) };
}

/// Kills the children of this process. Their children then become its own and are killed in the next round.
///
/// # Safety
/// As `watch`.
unsafe fn kill_children() {
    // SAFETY: system calls on variables of this frame. The numbers are those of children that were not waited for, so they
    // cannot have been given to other processes.
    unsafe {
        let list = libc::open(CHILDREN.as_ptr(), libc::O_RDONLY);
        let (mut buffer, mut pid) = ([0_u8; 4096], 0_i32);
        loop {
            let length = libc::read(list, buffer.as_mut_ptr().cast(), buffer.len());
            if length <= 0 {
                break;
            }
            for byte in &buffer[..length as usize] {
                match byte {
                    b'0'..=b'9' => pid = pid.wrapping_mul(10).wrapping_add(i32::from(byte - b'0')),
                    _ => {
                        if pid > 1 {
                            libc::kill(pid, libc::SIGKILL);
                        }
                        pid = 0;
                    }
                }
            }
        }
        libc::close(list);
    }
}

/// The children of the thread that reads it.
pub(crate) const CHILDREN: &std::ffi::CStr = c"/proc/thread-self/children";
