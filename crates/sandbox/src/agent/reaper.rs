use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use rustix::event::EventfdFlags;

use crate::sys::supervisor::Report;
use crate::sys::{ended_child, take_status};

/// Takes the status of every child of the first process of a PID namespace: of commands, and of processes that lost their
/// parent.
#[derive(Debug, Default)]
pub(super) struct Reaper {
    waiting: Mutex<Waiting>,
    started: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    commands: HashMap<i32, Arc<Ended>>,
    /// Counts commands that were started.
    starts: u64,
}

/// The end of a command.
#[derive(Debug)]
pub(super) struct Ended {
    /// Can be read when the command has ended.
    pub(super) event: OwnedFd,
    report: Mutex<Option<Report>>,
}

impl Ended {
    pub(super) fn report(&self) -> Option<Report> {
        *self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reaper {
    /// Starts a command by its process. No status is taken in between: a failed start waits for its process itself.
    pub(super) fn spawn(&self, start: impl FnOnce() -> io::Result<i32>) -> io::Result<(i32, Arc<Ended>)> {
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let ended = Arc::new(Ended { event, report: Mutex::new(None) });
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let process = start()?;
        waiting.starts += 1;
        waiting.commands.insert(process, Arc::clone(&ended));
        drop(waiting);
        self.started.notify_one();
        Ok((process, ended))
    }

    /// Sends a signal to the process group of a command that has not been waited for.
    pub(super) fn signal(&self, leader: i32, signal: rustix::process::Signal) {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.commands.contains_key(&leader)
            && let Some(group) = rustix::process::Pid::from_raw(leader)
        {
            // It fails if every process of the group is a zombie.
            let _ = rustix::process::kill_process_group(group, signal);
        }
    }

    /// Never returns.
    pub(super) fn run(&self) -> ! {
        let mut seen = 0;
        loop {
            match ended_child() {
                Ok(pid) => {
                    let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                    let Some(report) = take_status(pid) else { continue };
                    if let Some(ended) = waiting.commands.remove(&pid) {
                        *ended.report.lock().unwrap_or_else(PoisonError::into_inner) = Some(report);
                        // The counter cannot be full.
                        let _ = rustix::io::write(&ended.event, &1_u64.to_ne_bytes());
                    }
                }
                // There is no child. There will be one when a command starts.
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::CHILD.raw_os_error()) => {
                    let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                    let waiting = self.started.wait_while(waiting, |waiting| waiting.starts == seen);
                    seen = waiting.unwrap_or_else(PoisonError::into_inner).starts;
                }
                Err(_) => {}
            }
        }
    }
}
