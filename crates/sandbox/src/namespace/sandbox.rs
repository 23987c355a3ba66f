use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::egress::{PROXY_PORT, Proxy};
use super::record::{ProcessIdentity, Record, socket_path};
use super::restore::SetDeadlines;
use crate::agent::Client;
use crate::error::{Error, ErrorKind, Result};
use crate::provider::{Runtime, RuntimeState, Stats};
use crate::spec::{Command, Deadlines, WORKSPACE};

/// How long a killed sandbox may take to end.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// A sandbox that this process holds.
#[derive(Debug)]
pub(crate) struct Sandbox {
    pub record: Record,
    pub folder: PathBuf,
    process: OwnedFd,
    /// The directory of the writable layer.
    pub writable: OwnedFd,
    /// Closing it ends a sandbox that was asked to end with this process.
    _status: Option<OwnedFd>,
    pub proxy: Option<Proxy>,
    measured: Mutex<(Instant, Duration)>,
    /// Held while it is destroyed.
    pub ending: Mutex<bool>,
    /// Taken to change files, and alone to archive them.
    pub changes: tokio::sync::RwLock<()>,
    hosts: Mutex<Option<Vec<String>>>,
    deadlines: Mutex<Option<SetDeadlines>>,
    client: Client,
}

impl Sandbox {
    pub fn new(
        record: Record,
        folder: PathBuf,
        process: OwnedFd,
        writable: OwnedFd,
        status: Option<OwnedFd>,
        proxy: Option<Proxy>,
    ) -> Result<Self> {
        let client = Client::new(&socket_path(&folder))?;
        Ok(Self {
            record,
            folder,
            process,
            writable,
            _status: status,
            proxy,
            measured: Mutex::new((Instant::now(), Duration::ZERO)),
            client,
            ending: Mutex::new(false),
            changes: tokio::sync::RwLock::new(()),
            hosts: Mutex::new(None),
            deadlines: Mutex::new(None),
        })
    }

    pub fn runtime(&self) -> Runtime {
        self.record.runtime(self.state())
    }

    /// Variables of a command: what every command needs, those of the sandbox, and its own.
    pub fn environment(&self, command: &Command) -> BTreeMap<String, String> {
        let mut variables: BTreeMap<String, String> = BTreeMap::new();
        let mut set = |name: &str, value: &str| variables.insert(name.to_owned(), value.to_owned());
        set("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        if command.bare_env {
            variables.extend(command.env.clone());
            return variables;
        }
        set("HOME", WORKSPACE);
        set("LANG", "C.UTF-8");
        if command.terminal.is_some() {
            set("TERM", "xterm-256color");
        }
        if self.proxy.is_some() {
            let proxy = format!("http://127.0.0.1:{PROXY_PORT}");
            for name in ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"] {
                set(name, &proxy);
            }
            for name in ["NO_PROXY", "no_proxy"] {
                set(name, "localhost,127.0.0.1,::1");
            }
        }
        variables.extend(self.record.spec.env.clone());
        variables.extend(command.env.clone());
        variables
    }

    /// Keeps the list of allowed hosts for a provider that adopts the sandbox.
    pub fn record_hosts(&self, hosts: Vec<String>) -> io::Result<()> {
        let mut kept = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        let record = Record { allowed_hosts: Some(hosts.clone()), ..self.record.clone() };
        record.write(&self.folder)?;
        *kept = Some(hosts);
        Ok(())
    }

    /// The list of allowed hosts, if it was changed.
    pub fn allowed_hosts(&self) -> Option<Vec<String>> {
        let changed = self.hosts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        changed.or_else(|| self.record.allowed_hosts.clone())
    }

    pub fn note_deadlines(&self, deadlines: Deadlines) {
        *self.deadlines.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), deadlines));
    }

    /// What is left of the deadlines that this process has set.
    pub fn remaining_deadlines(&self) -> Option<Deadlines> {
        let (since, deadlines) = (*self.deadlines.lock().unwrap_or_else(PoisonError::into_inner))?;
        let left = |after: Option<Duration>| after.map(|after| after.saturating_sub(since.elapsed()));
        Some(Deadlines { freeze_after: left(deadlines.freeze_after), destroy_after: left(deadlines.destroy_after) })
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    pub fn state(&self) -> RuntimeState {
        if ended(&self.process) {
            RuntimeState::Stopped
        } else if self.record.groups.is_frozen().unwrap_or(false) {
            RuntimeState::Frozen
        } else {
            RuntimeState::Running
        }
    }

    /// Fails unless commands and file calls can be served now.
    pub fn check_running(&self) -> Result<()> {
        let id = &self.record.runtime_id;
        match self.state() {
            RuntimeState::Running => Ok(()),
            RuntimeState::Frozen => Err(Error::new(ErrorKind::Frozen, format!("the sandbox {id} is frozen"))),
            RuntimeState::Stopped => Err(Error::new(
                ErrorKind::Destroyed,
                format!("the sandbox {id} has ended: its deadline has passed or its first process was killed"),
            )),
        }
    }

    pub fn stats(&self) -> io::Result<Stats> {
        let groups = &self.record.groups;
        let cpu = groups.cpu_time()?;
        let cpu_percent = {
            let mut measured = self.measured.lock().unwrap_or_else(PoisonError::into_inner);
            let (now, (then, before)) = (Instant::now(), *measured);
            *measured = (now, cpu);
            let wall = now.duration_since(then).as_secs_f64().max(0.001);
            cpu.saturating_sub(before).as_secs_f64() / wall * 100.0
        };
        let disk = rustix::fs::fstatvfs(&self.writable)?;
        Ok(Stats {
            cpu_percent,
            memory_bytes: groups.memory_bytes()?,
            memory_limit_bytes: self.record.memory_limit_bytes,
            pids: groups.pids()?,
            disk_bytes: (disk.f_blocks - disk.f_bfree) * disk.f_frsize,
        })
    }

    /// Ends every process and removes what the sandbox had on this machine. Blocks for about a millisecond.
    pub fn destroy(&self) -> io::Result<()> {
        end(&self.record, Some(&self.process))?;
        remove_folder(&self.folder)
    }
}

/// Kills every process of a sandbox, waits until the first one is gone and with it all others, and removes the groups.
pub(crate) fn end(record: &Record, process: Option<&OwnedFd>) -> io::Result<()> {
    record.groups.kill()?;
    if let Some(process) = process {
        match pidfd_send_signal(process, Signal::KILL) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(errno) => return Err(errno.into()),
        }
        if !wait_for_end(process, END_TIMEOUT)? {
            return Err(io::Error::other("killed processes have not ended"));
        }
    }
    record.groups.remove()
}

pub(crate) fn remove_folder(folder: &std::path::Path) -> io::Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// A descriptor of the process that a record names, if it is still that process.
pub(crate) fn find_process(identity: &ProcessIdentity) -> Option<OwnedFd> {
    let process = pidfd_open(Pid::from_raw(identity.pid)?, PidfdFlags::empty()).ok()?;
    // The descriptor is for whatever has the number now: compare after opening.
    let same = ProcessIdentity::of(identity.pid).is_ok_and(|now| now == *identity);
    (same && !ended(&process)).then_some(process)
}

pub(crate) fn ended(process: &OwnedFd) -> bool {
    wait_for_end(process, Duration::ZERO).unwrap_or(true)
}

fn wait_for_end(process: &OwnedFd, timeout: Duration) -> io::Result<bool> {
    let deadline = Instant::now() + timeout;
    loop {
        let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).map_err(io::Error::other)?;
        match poll(&mut [PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN)], Some(&left)) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}
