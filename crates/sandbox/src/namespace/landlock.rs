use std::io;
use std::os::fd::OwnedFd;

use landlock::{
    AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr, Scope,
};

/// Devices of a sandbox that commands may control by `ioctl`.
const DEVICES: [&str; 8] =
    ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx", "/dev/pts"];

/// Rules for commands, where the kernel has Landlock: no new devices, no control of other devices, and no abstract
/// sockets of processes outside. The mount and network namespaces refuse the same by other means.
pub(crate) fn command_rules() -> io::Result<Option<OwnedFd>> {
    let refused = AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev;
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(refused)
        .and_then(|rules| rules.scope(Scope::AbstractUnixSocket))
        .and_then(Ruleset::create)
        .map_err(io::Error::other)?;
    for device in DEVICES {
        let path = PathFd::new(device).map_err(io::Error::other)?;
        rules = rules.add_rule(PathBeneath::new(path, AccessFs::IoctlDev)).map_err(io::Error::other)?;
    }
    Ok(rules.into())
}

/// Whether the kernel has Landlock, found by asking it for rules.
pub(crate) fn available() -> bool {
    let rules = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::MakeChar)
        .and_then(Ruleset::create);
    rules.is_ok()
}
