//! The groups of commands, as the agent sees them: through descriptors, because no hierarchy is mounted in a sandbox.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, openat, unlinkat};
use rustix::io::{Errno, pread, pwrite, write};
use serde::{Deserialize, Serialize};

use super::Role;

/// Describes descriptors that are passed to the agent: first the file that freezes commands, if there is one, then one
/// per hierarchy.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct CommandPlan {
    pub freeze: bool,
    pub freeze_v2: bool,
    pub hierarchies: Vec<PlannedHierarchy>,
}

impl CommandPlan {
    pub fn descriptors(&self) -> usize {
        self.hierarchies.len() + usize::from(self.freeze)
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PlannedHierarchy {
    pub v2: bool,
    /// Whether a command has its own group here. Then the descriptor is a directory, otherwise a file to enter by.
    pub own_group: bool,
    pub roles: Vec<Role>,
}

/// Makes groups for commands, and freezes all of them.
#[derive(Debug)]
pub(crate) struct CommandGroups {
    freeze: Option<(OwnedFd, bool)>,
    hierarchies: Vec<(PlannedHierarchy, OwnedFd)>,
    next: AtomicU64,
    /// Names of groups that had processes when they were to be removed.
    left: Arc<Mutex<Vec<String>>>,
}

impl CommandGroups {
    pub fn new(plan: CommandPlan, descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        if descriptors.len() != plan.descriptors() {
            return Err(io::Error::other("the groups and their descriptors do not match"));
        }
        let mut descriptors = descriptors.into_iter();
        let freeze = if plan.freeze { descriptors.next().map(|file| (file, plan.freeze_v2)) } else { None };
        let hierarchies = plan.hierarchies.into_iter().zip(descriptors).collect();
        Ok(Self { freeze, hierarchies, next: AtomicU64::new(1), left: Arc::default() })
    }

    /// Whether a command has a group by which its processes are found again.
    pub fn has_own(&self) -> bool {
        self.hierarchies.iter().any(|(planned, _)| planned.own_group)
    }

    pub fn set_frozen(&self, frozen: bool) -> io::Result<()> {
        let Some((file, v2)) = &self.freeze else {
            return Err(io::Error::other("this machine has no group that can be frozen"));
        };
        let value: &[u8] = match (v2, frozen) {
            (true, true) => b"1",
            (true, false) => b"0",
            (false, true) => b"FROZEN",
            (false, false) => b"THAWED",
        };
        pwrite(file, value, 0)?;
        Ok(())
    }

    /// Makes a group for one command in each hierarchy that needs it.
    pub fn create(&self) -> io::Result<CommandGroup> {
        self.remove_left();
        let mut group = CommandGroup {
            name: self.next.fetch_add(1, Ordering::Relaxed).to_string(),
            parts: Vec::new(),
            left: Arc::clone(&self.left),
        };
        for (planned, parent) in &self.hierarchies {
            let entry_file = if planned.v2 { "cgroup.procs" } else { "tasks" };
            if planned.own_group {
                mkdirat(parent, group.name.as_str(), Mode::from_raw_mode(0o755))?;
                let dir = openat(parent, group.name.as_str(), OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
                let dir = match dir {
                    Ok(dir) => dir,
                    Err(error) => {
                        let _ = unlinkat(parent, group.name.as_str(), AtFlags::REMOVEDIR);
                        return Err(error.into());
                    }
                };
                let part = Part {
                    entry: openat(&dir, entry_file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?,
                    own: Some((parent.try_clone()?, dir)),
                    planned: planned.clone(),
                };
                if planned.v2 && planned.roles.contains(&Role::Memory) {
                    // Out of memory ends the command, not one of its processes.
                    let _ = set(&part, "memory.oom.group", b"1");
                }
                group.parts.push(part);
            } else {
                group.parts.push(Part { entry: parent.try_clone()?, own: None, planned: planned.clone() });
            }
        }
        Ok(group)
    }

    /// Removes groups whose processes have left since.
    fn remove_left(&self) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.retain(|name| {
            let own = self.hierarchies.iter().filter(|(planned, _)| planned.own_group);
            own.map(|(_, parent)| unlinkat(parent, name.as_str(), AtFlags::REMOVEDIR))
                .any(|removed| removed == Err(Errno::BUSY))
        });
    }
}

#[derive(Debug)]
struct Part {
    planned: PlannedHierarchy,
    entry: OwnedFd,
    /// The parent and the group itself, if the command has its own.
    own: Option<(OwnedFd, OwnedFd)>,
}

/// The groups of one command. They are removed when it is dropped, if all processes have left.
#[derive(Debug)]
pub(crate) struct CommandGroup {
    name: String,
    parts: Vec<Part>,
    left: Arc<Mutex<Vec<String>>>,
}

impl CommandGroup {
    /// Moves this process into the groups. Async-signal-safe.
    pub fn enter(&self) -> io::Result<()> {
        for part in &self.parts {
            write(&part.entry, b"0")?;
        }
        Ok(())
    }

    /// Kills every process of the command.
    pub fn kill(&self) -> io::Result<()> {
        if let Some(part) = self.with(Role::Kill) {
            return set(part, "cgroup.kill", b"1");
        }
        let Some(part) = self.with(Role::Freeze).or_else(|| self.parts.iter().find(|part| part.own.is_some())) else {
            return Ok(());
        };
        // Frozen, they cannot fork faster than they are killed.
        let freezer = part.planned.roles.contains(&Role::Freeze);
        if freezer {
            set(part, "freezer.state", b"FROZEN")?;
        }
        // Without a freezer a race with a fork is lost a few times at most: the group's limit of processes bounds it.
        for _ in 0..1000 {
            let text = get(part, "cgroup.procs")?;
            if text.trim().is_empty() {
                break;
            }
            for pid in text.lines().filter_map(|line| line.trim().parse::<i32>().ok()) {
                if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
            }
            if freezer {
                set(part, "freezer.state", b"THAWED")?;
                break;
            }
        }
        Ok(())
    }

    pub fn peak_memory_bytes(&self) -> Option<u64> {
        let part = self.with(Role::Memory)?;
        let file = if part.planned.v2 { "memory.peak" } else { "memory.max_usage_in_bytes" };
        get(part, file).ok()?.trim().parse().ok()
    }

    pub fn cpu_time(&self) -> Option<Duration> {
        let part = self.with(Role::CpuAccount)?;
        if part.planned.v2 {
            field(&get(part, "cpu.stat").ok()?, "usage_usec").ok().map(Duration::from_micros)
        } else {
            get(part, "cpuacct.usage").ok()?.trim().parse().ok().map(Duration::from_nanos)
        }
    }

    /// Whether the kernel killed a process of the command for lack of memory.
    pub fn out_of_memory(&self) -> bool {
        let Some(part) = self.with(Role::Memory) else { return false };
        let file = if part.planned.v2 { "memory.events" } else { "memory.oom_control" };
        get(part, file).is_ok_and(|text| field(&text, "oom_kill").is_ok_and(|count| count > 0))
    }

    fn with(&self, role: Role) -> Option<&Part> {
        self.parts.iter().find(|part| part.own.is_some() && part.planned.roles.contains(&role))
    }
}

impl Drop for CommandGroup {
    fn drop(&mut self) {
        let mut busy = false;
        for (parent, _) in self.parts.iter().filter_map(|part| part.own.as_ref()) {
            busy |= unlinkat(parent, self.name.as_str(), AtFlags::REMOVEDIR) == Err(Errno::BUSY);
        }
        // A process that has not left yet keeps the group. It is tried again before the next one is made.
        if busy {
            self.left.lock().unwrap_or_else(PoisonError::into_inner).push(self.name.clone());
        }
    }
}

fn open_in(part: &Part, file: &str, flags: OFlags) -> io::Result<OwnedFd> {
    let Some((_, dir)) = &part.own else { return Err(io::Error::other("the command has no group here")) };
    Ok(openat(dir.as_fd(), file, flags | OFlags::CLOEXEC, Mode::empty())?)
}

fn set(part: &Part, file: &str, value: &[u8]) -> io::Result<()> {
    write(open_in(part, file, OFlags::WRONLY)?, value)?;
    Ok(())
}

fn get(part: &Part, file: &str) -> io::Result<String> {
    read_all(open_in(part, file, OFlags::RDONLY)?.as_fd())
}

fn read_all(file: BorrowedFd<'_>) -> io::Result<String> {
    // The files are short, except the list of processes, of which the beginning is enough.
    let mut text = vec![0; 16 * 1024];
    let length = pread(file, text.as_mut_slice(), 0)?;
    text.truncate(length);
    String::from_utf8(text).map_err(io::Error::other)
}

/// The number after a key in a file of `key number` lines.
pub(super) fn field(text: &str, key: &str) -> io::Result<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
        .ok_or_else(|| io::Error::other(format!("no field {key}")))
}
