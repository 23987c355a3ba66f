use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use super::cgroup::{CommandGroup, CommandGroups};
use super::launch::{Launch, ProcessLimits};
use super::{landlock, seccomp};
use crate::agent::{CommandConfinement, CommandUsage, Confinement};
use crate::sys;

/// Confines the commands of a sandbox, beyond what its agent is under already: a group of their own, no capabilities,
/// Landlock, and a stricter filter of system calls.
#[derive(Debug)]
pub(super) struct NamespaceConfinement {
    groups: CommandGroups,
    rules: Arc<Rules>,
}

#[derive(Debug)]
struct Rules {
    landlock: Option<OwnedFd>,
    seccomp: bool,
    limits: ProcessLimits,
}

impl NamespaceConfinement {
    pub fn new(groups: CommandGroups, launch: &Launch) -> io::Result<Self> {
        let landlock = if launch.landlock { landlock::command_rules()? } else { None };
        Ok(Self { groups, rules: Arc::new(Rules { landlock, seccomp: launch.seccomp, limits: launch.process_limits }) })
    }
}

impl Confinement for NamespaceConfinement {
    type Command = ConfinedCommand;

    fn prepare(&self) -> io::Result<ConfinedCommand> {
        Ok(ConfinedCommand { group: self.groups.create()?, rules: Arc::clone(&self.rules) })
    }

    fn supervised(&self) -> bool {
        !self.groups.has_own()
    }

    fn set_frozen(&self, frozen: bool) -> io::Result<()> {
        self.groups.set_frozen(frozen)
    }
}

/// One command. The groups are removed when it is dropped.
#[derive(Debug)]
pub(super) struct ConfinedCommand {
    group: CommandGroup,
    rules: Arc<Rules>,
}

impl CommandConfinement for ConfinedCommand {
    fn start_group(&self) -> Option<BorrowedFd<'_>> {
        self.group.unified()
    }

    fn enter(&self, in_group: bool) -> io::Result<()> {
        self.group.enter(in_group)?;
        lower(Resource::As, self.rules.limits.address_space_bytes)?;
        lower(Resource::Nproc, self.rules.limits.processes)?;
        let none = CapabilitySet::empty();
        set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
        if let Some(rules) = &self.rules.landlock {
            sys::landlock_restrict_self(rules.as_fd())?;
        }
        if self.rules.seccomp { seccomp::confine_command() } else { Ok(()) }
    }

    fn kill(&self) -> io::Result<()> {
        self.group.kill()
    }

    fn usage(&self) -> CommandUsage {
        CommandUsage {
            cpu: self.group.cpu_time(),
            peak_memory_bytes: self.group.peak_memory_bytes(),
            out_of_memory: self.group.out_of_memory(),
        }
    }
}

/// Lowers a limit of this process and of those that it starts. Async-signal-safe.
fn lower(resource: Resource, most: Option<u64>) -> io::Result<()> {
    let Some(most) = most else { return Ok(()) };
    let most = getrlimit(resource).maximum.map_or(most, |now| now.min(most));
    Ok(setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?)
}
