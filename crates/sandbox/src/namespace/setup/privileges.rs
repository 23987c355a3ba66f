use std::io;

use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, Gid, Uid, remove_capability_from_bounding_set,
    set_capabilities, set_capabilities_secure_bits, set_keep_capabilities, set_no_new_privs, set_thread_res_gid,
    set_thread_res_uid,
};

use super::step;
use crate::namespace::launch::Launch;
use crate::namespace::seccomp;

/// What the agent keeps, in its own user namespace: to become the user of a command, and to end commands.
const AGENT_CAPABILITIES: CapabilitySet = CapabilitySet::SETUID.union(CapabilitySet::SETGID).union(CapabilitySet::KILL);

/// Limits of every process in the sandbox. They are only ever lowered.
const LIMITS: [(Resource, u64); 5] = [
    (Resource::Core, 0),
    (Resource::Nofile, 16 * 1024),
    (Resource::Memlock, 8 << 20),
    (Resource::Sigpending, 4096),
    (Resource::Msgqueue, 1 << 20),
];

/// Gives up all rights but those that the agent needs, for this process and all that it starts. The agent acts as the
/// user of the sandbox, so that it can open what commands can open, and nothing else.
pub(super) fn drop_for_agent(launch: &Launch) -> io::Result<()> {
    for (resource, most) in LIMITS {
        let now = getrlimit(resource);
        let lowered = |limit: Option<u64>| Some(limit.map_or(most, |limit| limit.min(most)));
        setrlimit(resource, Rlimit { current: lowered(now.current), maximum: lowered(now.maximum) })
            .map_err(step("lower a limit"))?;
    }
    for bit in 0..64 {
        match CapabilitySet::from_bits(1 << bit).map(remove_capability_from_bounding_set) {
            Some(Ok(())) => {}
            // The kernel knows no capability from here on.
            Some(Err(rustix::io::Errno::INVAL)) | None => break,
            Some(Err(errno)) => return Err(step("drop the bounding set")(errno)),
        }
    }
    let bits = CapabilitiesSecureBits::NO_ROOT
        | CapabilitiesSecureBits::NO_ROOT_LOCKED
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED;
    set_capabilities_secure_bits(bits).map_err(step("set secure bits"))?;
    if rustix::process::geteuid().as_raw() != launch.user {
        set_keep_capabilities(true).map_err(step("keep capabilities"))?;
        let (user, group) = (Uid::from_raw(launch.user), Gid::from_raw(launch.user));
        set_thread_res_gid(group, group, group).map_err(step("become the user"))?;
        set_thread_res_uid(user, user, user).map_err(step("become the user"))?;
        set_keep_capabilities(false).map_err(step("keep capabilities"))?;
    }
    let kept = CapabilitySets {
        effective: AGENT_CAPABILITIES,
        permitted: AGENT_CAPABILITIES,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, kept).map_err(step("drop capabilities"))?;
    // Commands of the same user can neither trace this process nor open what it has open.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(step("become undumpable"))?;
    set_no_new_privs(true).map_err(step("refuse new privileges"))?;
    if launch.seccomp { seccomp::confine_agent() } else { Ok(()) }
}
