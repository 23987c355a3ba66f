//! The groups of commands, as the agent sees them: through descriptors, because no hierarchy is mounted in a sandbox.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
    used: Arc<Mutex<Used>>,
}

/// Groups of commands that have ended.
#[derive(Debug, Default)]
struct Used {
    /// Names of groups that had processes when they were to be removed.
    left: Vec<String>,
    /// Empty groups for the next command, by their name: to make and remove groups is a good part of what a command costs.
    spare: Option<(String, Vec<Part>)>,
}

/// Memory that a spare group may still be charged for: pages of files, and what the kernel frees later. It is not counted
/// as the memory of the next command.
const MAX_SPARE_BYTES: u64 = 1 << 20;

impl CommandGroups {
    pub fn new(plan: CommandPlan, descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        if descriptors.len() != plan.descriptors() {
            return Err(io::Error::other("the groups and their descriptors do not match"));
        }
        let mut descriptors = descriptors.into_iter();
        let freeze = if plan.freeze { descriptors.next().map(|file| (file, plan.freeze_v2)) } else { None };
        let hierarchies = plan.hierarchies.into_iter().zip(descriptors).collect();
        Ok(Self { freeze, hierarchies, next: AtomicU64::new(1), used: Arc::default() })
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

    /// A group for one command in each hierarchy that needs it.
    pub fn create(&self) -> io::Result<CommandGroup> {
        self.remove_left();
        let spare = self.used().spare.take();
        if let Some((name, parts)) = spare {
            let used = Arc::clone(&self.used);
            let mut group =
                CommandGroup { name, parts, before: Before::default(), is_spent: AtomicBool::new(false), used };
            if group.begin_again() {
                return Ok(group);
            }
            // Dropped now, it is removed.
            group.spend();
        }
        let mut group = CommandGroup {
            name: self.next.fetch_add(1, Ordering::Relaxed).to_string(),
            parts: Vec::new(),
            before: Before::default(),
            // Until it is complete.
            is_spent: AtomicBool::new(true),
            used: Arc::clone(&self.used),
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
                // Older kernels of version 2 cannot begin to count anew.
                let peak = planned
                    .roles
                    .contains(&Role::Memory)
                    .then(|| openat(&dir, peak_file(planned.v2), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok());
                let part = Part {
                    entry: openat(&dir, entry_file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?,
                    peak: peak.flatten(),
                    own: Some((parent.try_clone()?, dir)),
                    planned: planned.clone(),
                };
                if planned.v2 && planned.roles.contains(&Role::Memory) {
                    // Out of memory ends the command, not one of its processes.
                    let _ = set(&part, "memory.oom.group", b"1");
                }
                group.parts.push(part);
            } else {
                group.parts.push(Part { entry: parent.try_clone()?, peak: None, own: None, planned: planned.clone() });
            }
        }
        group.is_spent = AtomicBool::new(false);
        Ok(group)
    }

    /// Removes groups whose processes have left since.
    fn remove_left(&self) {
        self.used().left.retain(|name| {
            let own = self.hierarchies.iter().filter(|(planned, _)| planned.own_group);
            own.map(|(_, parent)| unlinkat(parent, name.as_str(), AtFlags::REMOVEDIR))
                .any(|removed| removed == Err(Errno::BUSY))
        });
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Part {
    planned: PlannedHierarchy,
    entry: OwnedFd,
    /// The file with the highest use of memory, which version 2 counts for each descriptor.
    peak: Option<OwnedFd>,
    /// The parent and the group itself, if the command has its own.
    own: Option<(OwnedFd, OwnedFd)>,
}

/// What earlier commands of a group have used.
#[derive(Debug, Default)]
struct Before {
    cpu: Duration,
    memory_bytes: u64,
    killed: u64,
}

/// The groups of one command. When it is dropped they are kept for another one, or removed, if all processes have left.
#[derive(Debug)]
pub(crate) struct CommandGroup {
    name: String,
    parts: Vec<Part>,
    before: Before,
    /// Not for another command.
    is_spent: AtomicBool,
    used: Arc<Mutex<Used>>,
}

impl CommandGroup {
    /// The group of the unified hierarchy, in which the command can be started.
    pub fn unified(&self) -> Option<BorrowedFd<'_>> {
        let part = self.parts.iter().find(|part| part.planned.v2)?;
        part.own.as_ref().map(|(_, dir)| dir.as_fd())
    }

    /// Moves this process into the groups, but for the one that it was started in. Async-signal-safe.
    pub fn enter(&self, in_unified: bool) -> io::Result<()> {
        for part in self.parts.iter().filter(|part| !(in_unified && part.planned.v2)) {
            write(&part.entry, b"0")?;
        }
        Ok(())
    }

    fn spend(&self) {
        self.is_spent.store(true, Ordering::Relaxed);
    }

    /// Kills every process of the command. The kernel may still be at it when the group is empty, and would kill the next
    /// command too: there is none in this group.
    pub fn kill(&self) -> io::Result<()> {
        self.spend();
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
        let peak = match &part.peak {
            Some(peak) => number(peak)?,
            None => get(part, peak_file(part.planned.v2)).ok()?.trim().parse().ok()?,
        };
        Some(peak.saturating_sub(self.before.memory_bytes))
    }

    pub fn cpu_time(&self) -> Option<Duration> {
        self.total_cpu_time().map(|total| total.saturating_sub(self.before.cpu))
    }

    fn total_cpu_time(&self) -> Option<Duration> {
        let part = self.with(Role::CpuAccount)?;
        if part.planned.v2 {
            field(&get(part, "cpu.stat").ok()?, "usage_usec").ok().map(Duration::from_micros)
        } else {
            get(part, "cpuacct.usage").ok()?.trim().parse().ok().map(Duration::from_nanos)
        }
    }

    /// Whether the kernel killed a process of the command for lack of memory.
    pub fn out_of_memory(&self) -> bool {
        self.killed() > self.before.killed
    }

    fn killed(&self) -> u64 {
        let Some(part) = self.with(Role::Memory) else { return 0 };
        let file = if part.planned.v2 { "memory.events" } else { "memory.oom_control" };
        get(part, file).and_then(|text| field(&text, "oom_kill")).unwrap_or(0)
    }

    /// Counts from here on. Says no if that is not possible, or if much of what the group is charged for was not freed.
    fn begin_again(&mut self) -> bool {
        let memory_bytes = match self.with(Role::Memory) {
            None => 0,
            Some(part) => {
                let Some(peak) = &part.peak else { return false };
                match pwrite(peak, b"0", 0).ok().and_then(|_| number(peak)) {
                    Some(bytes) if bytes <= MAX_SPARE_BYTES => bytes,
                    _ => return false,
                }
            }
        };
        self.before = Before { cpu: self.total_cpu_time().unwrap_or_default(), memory_bytes, killed: self.killed() };
        true
    }

    /// Whether no process is left in any of the groups. None can come back: a sandbox sees no groups.
    fn is_empty(&self) -> bool {
        let mut own = self.parts.iter().filter(|part| part.own.is_some()).peekable();
        own.peek().is_some() && own.all(|part| get(part, "cgroup.procs").is_ok_and(|text| text.trim().is_empty()))
    }

    fn with(&self, role: Role) -> Option<&Part> {
        self.parts.iter().find(|part| part.own.is_some() && part.planned.roles.contains(&role))
    }
}

impl Drop for CommandGroup {
    fn drop(&mut self) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if used.spare.is_none() && !self.is_spent.load(Ordering::Relaxed) && self.is_empty() {
            used.spare = Some((std::mem::take(&mut self.name), std::mem::take(&mut self.parts)));
            return;
        }
        let mut busy = false;
        for (parent, _) in self.parts.iter().filter_map(|part| part.own.as_ref()) {
            busy |= unlinkat(parent, self.name.as_str(), AtFlags::REMOVEDIR) == Err(Errno::BUSY);
        }
        // A process that has not left yet keeps the group. It is tried again before the next one is made.
        if busy {
            used.left.push(std::mem::take(&mut self.name));
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

fn peak_file(v2: bool) -> &'static str {
    if v2 { "memory.peak" } else { "memory.max_usage_in_bytes" }
}

fn number(file: &OwnedFd) -> Option<u64> {
    read_all(file.as_fd()).ok()?.trim().parse().ok()
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
