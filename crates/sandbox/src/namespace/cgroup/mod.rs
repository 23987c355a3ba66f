//! Groups of processes: limits, accounts, freezing and killing.
//!
//! There are four back ends: `v2`, `v1`, `hybrid` (limits of version 1, killing and freezing of version 2) and `none`.
//! All are one list of hierarchies, each with the roles that it plays. Groups are made below the group of this process.

mod commands;
mod own;
mod sandbox;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub(crate) use commands::{CommandGroup, CommandGroups, CommandPlan};
pub(crate) use sandbox::{GroupLimits, SandboxGroups};

use own::OwnGroup;

/// What a hierarchy is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    Memory,
    Cpu,
    CpuAccount,
    Pids,
    Freeze,
    /// Kills all processes of a group at once. Without it they are killed one by one.
    Kill,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backend {
    V2,
    V1,
    Hybrid,
    None,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V2 => "cgroup v2",
            Self::V1 => "cgroup v1",
            Self::Hybrid => "cgroup v1 with v2 for freezing and killing",
            Self::None => "no cgroups",
        })
    }
}

/// A hierarchy, with the group in it that holds all sandboxes of one provider.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Hierarchy {
    pub dir: PathBuf,
    pub v2: bool,
    pub roles: Vec<Role>,
}

impl Hierarchy {
    pub fn has(&self, role: Role) -> bool {
        self.roles.contains(&role)
    }
}

/// The hierarchies that a probe found usable, and why others are not.
#[derive(Debug, Clone)]
pub(crate) struct Cgroups {
    pub hierarchies: Vec<Hierarchy>,
    /// Why a role is not there.
    pub refusals: Vec<String>,
}

impl Cgroups {
    /// Makes a group named `name` in each hierarchy below the group of this process, and tries each limit in it.
    pub fn probe(name: &str) -> Self {
        let groups = match own::own_groups() {
            Ok(groups) => groups,
            Err(error) => return Self { hierarchies: Vec::new(), refusals: vec![format!("/proc: {error}")] },
        };
        let mut found = Self { hierarchies: Vec::new(), refusals: Vec::new() };
        // Version 1 first: a controller is in one hierarchy only, and in a hybrid setup version 2 has what is left.
        for group in groups.iter().filter(|group| !group.v2).chain(groups.iter().filter(|group| group.v2)) {
            found.try_group(group, name);
        }
        found
    }

    pub fn has(&self, role: Role) -> bool {
        self.hierarchies.iter().any(|hierarchy| hierarchy.has(role))
    }

    pub fn backend(&self) -> Backend {
        let v1_limits = self.hierarchies.iter().any(|hierarchy| !hierarchy.v2);
        match (v1_limits, self.hierarchies.iter().any(|hierarchy| hierarchy.v2)) {
            (true, true) => Backend::Hybrid,
            (true, false) => Backend::V1,
            (false, true) => Backend::V2,
            (false, false) => Backend::None,
        }
    }

    /// Removes the groups of this provider if they are empty.
    pub fn remove(&self) {
        for hierarchy in &self.hierarchies {
            let _ = std::fs::remove_dir(&hierarchy.dir);
        }
    }

    fn try_group(&mut self, own: &OwnGroup, name: &str) {
        let wanted: Vec<Role> = if own.v2 {
            vec![Role::Memory, Role::Cpu, Role::CpuAccount, Role::Pids, Role::Freeze, Role::Kill]
        } else {
            own.controllers.iter().filter_map(|name| v1_role(name)).collect()
        };
        let wanted: Vec<Role> = wanted.into_iter().filter(|role| !self.has(*role)).collect();
        if wanted.is_empty() {
            return;
        }
        let dir = own.dir.join(name);
        if let Err(error) = make_group(&dir) {
            self.refusals.push(format!("cannot create {}: {error}", dir.display()));
            return;
        }
        if own.v2 && wanted.contains(&Role::Memory) {
            // Without controllers the group can still be frozen and killed.
            if let Err(error) = enable_controllers(&own.dir).and_then(|()| enable_controllers(&dir)) {
                self.refusals.push(format!("cannot delegate controllers below {}: {error}", own.dir.display()));
            }
        }
        let trial = dir.join("probe");
        if let Err(error) = make_group(&trial) {
            self.refusals.push(format!("cannot create {}: {error}", trial.display()));
            return;
        }
        let mut roles = Vec::new();
        for role in wanted {
            match try_role(&trial, own.v2, role) {
                Ok(()) => roles.push(role),
                Err(error) => self.refusals.push(format!("{role:?} in {}: {error}", own.dir.display())),
            }
        }
        let _ = std::fs::remove_dir(&trial);
        // The unified hierarchy beside version 1 replaces the freezer, whose frozen processes cannot be killed.
        if own.v2
            && roles.contains(&Role::Kill)
            && !roles.contains(&Role::Freeze)
            && try_role(&dir, true, Role::Freeze).is_ok()
        {
            for hierarchy in &mut self.hierarchies {
                hierarchy.roles.retain(|role| *role != Role::Freeze);
            }
            roles.push(Role::Freeze);
        }
        self.hierarchies.retain(|hierarchy| {
            let used = !hierarchy.roles.is_empty();
            if !used {
                let _ = std::fs::remove_dir(&hierarchy.dir);
            }
            used
        });
        if roles.is_empty() {
            let _ = std::fs::remove_dir(&dir);
        } else {
            self.hierarchies.push(Hierarchy { dir, v2: own.v2, roles });
        }
    }
}

fn v1_role(controller: &str) -> Option<Role> {
    match controller {
        "memory" => Some(Role::Memory),
        "cpu" => Some(Role::Cpu),
        "cpuacct" => Some(Role::CpuAccount),
        "pids" => Some(Role::Pids),
        "freezer" => Some(Role::Freeze),
        _ => None,
    }
}

/// Writes a limit and reads it back, or uses the file that the role needs.
fn try_role(group: &Path, v2: bool, role: Role) -> io::Result<()> {
    let limits = GroupLimits { memory_bytes: Some(64 << 20), cpus: Some(0.5), pids: Some(16) };
    match role {
        Role::Memory | Role::Cpu | Role::Pids => sandbox::set_limit(group, v2, role, &limits),
        Role::CpuAccount => sandbox::cpu_time(group, v2).map(|_| ()),
        Role::Freeze => {
            let file = if v2 { "cgroup.freeze" } else { "freezer.state" };
            write_file(&group.join(file), if v2 { "0" } else { "THAWED" })
        }
        Role::Kill => write_file(&group.join("cgroup.kill"), "1"),
    }
}

/// Lets child groups have limits. A group with processes of its own cannot do that: then this process moves into a
/// child group first, which needs a group that was delegated to it alone.
fn enable_controllers(group: &Path) -> io::Result<()> {
    let available = std::fs::read_to_string(group.join("cgroup.controllers"))?;
    let wanted: Vec<String> = ["memory", "cpu", "pids"]
        .iter()
        .filter(|name| available.split_whitespace().any(|word| word == **name))
        .map(|name| format!("+{name}"))
        .collect();
    if wanted.is_empty() {
        return Err(io::Error::other("the group has none of the controllers memory, cpu and pids"));
    }
    let file = group.join("cgroup.subtree_control");
    match write_file(&file, &wanted.join(" ")) {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            let leaf = group.join("tenure-worker");
            make_group(&leaf)?;
            write_file(&leaf.join("cgroup.procs"), "0")?;
            write_file(&file, &wanted.join(" "))
        }
        other => other,
    }
}

pub(super) fn make_group(dir: &Path) -> io::Result<()> {
    match std::fs::create_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

pub(super) fn write_file(path: &Path, text: &str) -> io::Result<()> {
    use std::io::Write as _;
    // One write: the files of a group take a value whole.
    std::fs::OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}

/// Removes a group and the groups below it. Processes in them make it fail.
pub(crate) fn remove_tree(dir: &Path) -> io::Result<()> {
    match std::fs::remove_dir(dir) {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            let mut children = false;
            for entry in std::fs::read_dir(dir)? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    children = true;
                    remove_tree(&entry.path())?;
                }
            }
            if children { std::fs::remove_dir(dir) } else { Err(error) }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
