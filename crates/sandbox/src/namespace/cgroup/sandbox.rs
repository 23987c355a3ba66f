use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use super::commands::{CommandPlan, PlannedHierarchy};
use super::{Cgroups, Hierarchy, Role, make_group, remove_tree, write_file};

/// Processes that the agent may have: itself, its threads, and commands that have not reached their own group yet.
const MAX_AGENT_TASKS: u32 = 512;

/// How long killed processes may take to leave their group.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// The limits of a sandbox that its groups hold. An absent one is not set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct GroupLimits {
    pub memory_bytes: Option<u64>,
    pub cpus: Option<f64>,
    pub pids: Option<u32>,
}

/// The groups of one sandbox: in each hierarchy a group `S` with the limits, and below it `a` for the agent and `c` for
/// commands where the role needs them apart. A command has a group of its own below `c`, made by the agent.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct SandboxGroups {
    hierarchies: Vec<Hierarchy>,
}

impl SandboxGroups {
    /// Makes the groups. The owner may make groups for commands in them.
    pub fn create(cgroups: &Cgroups, id: &str, limits: &GroupLimits, owner: (u32, u32)) -> io::Result<Self> {
        let hierarchies = cgroups
            .hierarchies
            .iter()
            .map(|hierarchy| Hierarchy { dir: hierarchy.dir.join(id), ..hierarchy.clone() })
            .collect();
        let groups = Self { hierarchies };
        match groups.hierarchies.iter().try_for_each(|hierarchy| fill(hierarchy, limits, owner)) {
            Ok(()) => Ok(groups),
            Err(error) => {
                let _ = groups.remove();
                Err(error)
            }
        }
    }

    /// The group of the unified hierarchy that the agent is started in.
    pub fn unified(&self) -> io::Result<Option<OwnedFd>> {
        self.hierarchies.iter().find(|hierarchy| hierarchy.v2).map(|hierarchy| open_dir(&hierarchy.dir)).transpose()
    }

    /// Files that the agent writes `0` to in order to enter its groups, after it was started in [`Self::unified`]; and
    /// whether the last of them is for a group of version 2, below that one.
    pub fn agent_entries(&self) -> io::Result<(Vec<OwnedFd>, bool)> {
        let mut entries = Vec::new();
        let mut last = None;
        for hierarchy in &self.hierarchies {
            let apart = agent_dir(hierarchy);
            if !hierarchy.v2 {
                entries.push(open_writable(&apart.join("tasks"))?);
            } else if apart != hierarchy.dir {
                last = Some(open_writable(&apart.join("cgroup.procs"))?);
            }
        }
        let late = last.is_some();
        entries.extend(last);
        Ok((entries, late))
    }

    /// What the agent needs to make groups for commands, as a description and the descriptors that it counts.
    pub fn command_plan(&self) -> io::Result<(CommandPlan, Vec<OwnedFd>)> {
        let mut plan = CommandPlan::default();
        let mut descriptors = Vec::new();
        for hierarchy in &self.hierarchies {
            let dir = commands_dir(hierarchy);
            if hierarchy.has(Role::Freeze) {
                plan.freeze_v2 = hierarchy.v2;
                plan.freeze = true;
                descriptors.insert(0, open_writable(&dir.join(freeze_file(hierarchy.v2)))?);
            }
            let own_group = has_command_groups(hierarchy);
            descriptors.push(if own_group { open_dir(&dir)? } else { open_writable(&dir.join("tasks"))? });
            plan.hierarchies.push(PlannedHierarchy { v2: hierarchy.v2, own_group, roles: hierarchy.roles.clone() });
        }
        Ok((plan, descriptors))
    }

    /// Lets groups of commands have limits and accounts, once the agent has left the group above them.
    pub fn delegate(&self) -> io::Result<()> {
        for hierarchy in self.hierarchies.iter().filter(|hierarchy| hierarchy.v2 && hierarchy.has(Role::Memory)) {
            super::enable_controllers(&hierarchy.dir)?;
            write_file(&commands_dir(hierarchy).join("cgroup.subtree_control"), "+memory")?;
        }
        Ok(())
    }

    /// Sets the limit of processes of commands. It is apart because `delegate` makes the file in version 2.
    pub fn limit_commands(&self, limits: &GroupLimits) -> io::Result<()> {
        for hierarchy in self.hierarchies.iter().filter(|hierarchy| hierarchy.has(Role::Pids)) {
            set_limit(&commands_dir(hierarchy), hierarchy.v2, Role::Pids, limits)?;
            let agent = GroupLimits { pids: Some(MAX_AGENT_TASKS), ..GroupLimits::default() };
            set_limit(&agent_dir(hierarchy), hierarchy.v2, Role::Pids, &agent)?;
        }
        Ok(())
    }

    pub fn set_frozen(&self, frozen: bool) -> io::Result<()> {
        let hierarchy = self.with(Role::Freeze).ok_or_else(|| io::Error::other("no hierarchy can freeze"))?;
        let value = match (hierarchy.v2, frozen) {
            (true, true) => "1",
            (true, false) => "0",
            (false, true) => "FROZEN",
            (false, false) => "THAWED",
        };
        write_file(&commands_dir(hierarchy).join(freeze_file(hierarchy.v2)), value)
    }

    /// Waits until every process of every command has stopped.
    pub fn wait_frozen(&self, timeout: Duration) -> io::Result<()> {
        let Some(hierarchy) = self.with(Role::Freeze) else { return Ok(()) };
        let dir = commands_dir(hierarchy);
        let deadline = Instant::now() + timeout;
        loop {
            let frozen = if hierarchy.v2 {
                super::commands::field(&std::fs::read_to_string(dir.join("cgroup.events"))?, "frozen")? == 1
            } else {
                std::fs::read_to_string(dir.join("freezer.state"))?.trim() == "FROZEN"
            };
            if frozen {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(io::Error::from(io::ErrorKind::TimedOut));
            }
            // Version 1 has no event for it, and it takes microseconds.
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Whether commands are frozen or being frozen.
    pub fn is_frozen(&self) -> io::Result<bool> {
        let Some(hierarchy) = self.with(Role::Freeze) else { return Ok(false) };
        let state = std::fs::read_to_string(commands_dir(hierarchy).join(freeze_file(hierarchy.v2)))?;
        Ok(!matches!(state.trim(), "0" | "THAWED"))
    }

    /// Kills every process of the sandbox where the kernel does that at once. The end of the agent kills them too.
    pub fn kill(&self) -> io::Result<()> {
        // A process that was frozen by version 1 dies only after it was thawed.
        if self.with(Role::Freeze).is_some_and(|hierarchy| !hierarchy.v2) {
            let _ = self.set_frozen(false);
        }
        match self.with(Role::Kill) {
            Some(hierarchy) => match write_file(&hierarchy.dir.join("cgroup.kill"), "1") {
                // Removed before, by a destruction that was cut off.
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                other => other,
            },
            None => {
                for pid in self.processes().into_iter().filter_map(Pid::from_raw) {
                    let _ = kill_process(pid, Signal::KILL);
                }
                Ok(())
            }
        }
    }

    pub fn memory_bytes(&self) -> io::Result<u64> {
        self.number(Role::Memory, "memory.current", "memory.usage_in_bytes", |hierarchy| hierarchy.dir.clone())
    }

    pub fn pids(&self) -> io::Result<u64> {
        self.number(Role::Pids, "pids.current", "pids.current", commands_dir)
    }

    /// CPU time of the agent and all commands so far.
    pub fn cpu_time(&self) -> io::Result<Duration> {
        self.with(Role::CpuAccount).map_or(Ok(Duration::ZERO), |hierarchy| cpu_time(&hierarchy.dir, hierarchy.v2))
    }

    /// Removes the groups once their processes are gone.
    pub fn remove(&self) -> io::Result<()> {
        let deadline = Instant::now() + LEAVE_TIMEOUT;
        let mut wait = Duration::from_micros(200);
        for hierarchy in &self.hierarchies {
            while let Err(error) = remove_tree(&hierarchy.dir) {
                if error.raw_os_error() != Some(libc::EBUSY) || Instant::now() > deadline {
                    return Err(io::Error::new(error.kind(), format!("{}: {error}", hierarchy.dir.display())));
                }
                // The kernel has no event for the last task that leaves a version 1 group.
                std::thread::sleep(wait);
                wait = (wait * 2).min(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    /// Processes that are in one of the groups.
    fn processes(&self) -> Vec<i32> {
        let mut found = Vec::new();
        for hierarchy in &self.hierarchies {
            collect_processes(&hierarchy.dir, &mut found);
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    fn with(&self, role: Role) -> Option<&Hierarchy> {
        self.hierarchies.iter().find(|hierarchy| hierarchy.has(role))
    }

    fn number(&self, role: Role, v2: &str, v1: &str, dir: impl Fn(&Hierarchy) -> PathBuf) -> io::Result<u64> {
        let Some(hierarchy) = self.with(role) else { return Ok(0) };
        let text = std::fs::read_to_string(dir(hierarchy).join(if hierarchy.v2 { v2 } else { v1 }))?;
        text.trim().parse().map_err(io::Error::other)
    }
}

fn fill(hierarchy: &Hierarchy, limits: &GroupLimits, owner: (u32, u32)) -> io::Result<()> {
    // Exclusive: a group of that name would belong to another sandbox.
    std::fs::create_dir(&hierarchy.dir)?;
    for dir in [agent_dir(hierarchy), commands_dir(hierarchy)] {
        make_group(&dir)?;
    }
    for role in [Role::Memory, Role::Cpu] {
        if hierarchy.has(role) {
            set_limit(&hierarchy.dir, hierarchy.v2, role, limits)?;
        }
    }
    if has_command_groups(hierarchy) {
        let commands = commands_dir(hierarchy);
        let give = |path: &Path| chown(path, Some(owner.0), Some(owner.1));
        give(&commands)?;
        if hierarchy.v2 {
            // A process moves between groups with the right to write to their common ancestor.
            give(&hierarchy.dir.join("cgroup.procs"))?;
            give(&commands.join("cgroup.procs"))?;
        }
    }
    Ok(())
}

/// The agent is apart from commands where they could starve it, and where a group with limits below it has no processes.
fn agent_dir(hierarchy: &Hierarchy) -> PathBuf {
    let apart = hierarchy.has(Role::Pids) || hierarchy.has(Role::Cpu);
    if apart { hierarchy.dir.join("a") } else { hierarchy.dir.clone() }
}

fn commands_dir(hierarchy: &Hierarchy) -> PathBuf {
    let shared = [Role::Pids, Role::Cpu, Role::Freeze, Role::Kill].iter().any(|role| hierarchy.has(*role));
    if shared { hierarchy.dir.join("c") } else { hierarchy.dir.clone() }
}

/// Whether each command has a group of its own in this hierarchy.
fn has_command_groups(hierarchy: &Hierarchy) -> bool {
    hierarchy.v2 || [Role::Memory, Role::CpuAccount, Role::Freeze, Role::Kill].iter().any(|role| hierarchy.has(*role))
}

fn freeze_file(v2: bool) -> &'static str {
    if v2 { "cgroup.freeze" } else { "freezer.state" }
}

/// Sets one limit and checks that the kernel took it. An absent limit is left alone.
pub(super) fn set_limit(group: &Path, v2: bool, role: Role, limits: &GroupLimits) -> io::Result<()> {
    let set = |file: &str, value: &str| -> io::Result<()> {
        let path = group.join(file);
        write_file(&path, value)?;
        let kept = std::fs::read_to_string(&path)?;
        if kept.trim() == value { Ok(()) } else { Err(io::Error::other(format!("{file} is {kept:?} after {value:?}"))) }
    };
    const PERIOD_US: u64 = 100_000;
    match role {
        Role::Memory => {
            let Some(bytes) = limits.memory_bytes else { return Ok(()) };
            // The kernel counts in pages.
            let bytes = (bytes / 4096 * 4096).to_string();
            if v2 {
                set("memory.max", &bytes)?;
                // A kernel without swap has no such file.
                let _ = write_file(&group.join("memory.swap.max"), "0");
                Ok(())
            } else {
                set("memory.limit_in_bytes", &bytes)?;
                let _ = write_file(&group.join("memory.memsw.limit_in_bytes"), &bytes);
                Ok(())
            }
        }
        Role::Cpu => {
            let Some(cpus) = limits.cpus else { return Ok(()) };
            // Below 1 ms per period the kernel refuses.
            let quota = ((cpus * PERIOD_US as f64) as u64).max(1000);
            if v2 {
                set("cpu.max", &format!("{quota} {PERIOD_US}"))
            } else {
                set("cpu.cfs_period_us", &PERIOD_US.to_string())?;
                set("cpu.cfs_quota_us", &quota.to_string())
            }
        }
        Role::Pids => match limits.pids {
            Some(pids) => set("pids.max", &pids.to_string()),
            None => Ok(()),
        },
        Role::CpuAccount | Role::Freeze | Role::Kill => Ok(()),
    }
}

pub(super) fn cpu_time(group: &Path, v2: bool) -> io::Result<Duration> {
    if v2 {
        let text = std::fs::read_to_string(group.join("cpu.stat"))?;
        super::commands::field(&text, "usage_usec").map(Duration::from_micros)
    } else {
        let text = std::fs::read_to_string(group.join("cpuacct.usage"))?;
        text.trim().parse().map(Duration::from_nanos).map_err(io::Error::other)
    }
}

fn collect_processes(dir: &Path, found: &mut Vec<i32>) {
    if let Ok(text) = std::fs::read_to_string(dir.join("cgroup.procs")) {
        found.extend(text.lines().filter_map(|line| line.trim().parse::<i32>().ok()));
    }
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect_processes(&entry.path(), found);
        }
    }
}

fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    Ok(open(path, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

fn open_writable(path: &Path) -> io::Result<OwnedFd> {
    Ok(open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}
