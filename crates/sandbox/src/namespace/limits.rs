//! Which limits a sandbox gets.

use super::cgroup::GroupLimits;
use super::settings::NamespaceSettings;
use crate::capabilities::{Capabilities, Enforcement, Feature};
use crate::error::{Error, Result};
use crate::spec::Limits;

/// Memory that a sandbox needs beside the files in its writable layer.
const MIN_MEMORY_BESIDE_DISK: u64 = 16 << 20;

const MIN_MEMORY_BYTES: u64 = 8 << 20;
const MIN_DISK_BYTES: u64 = 1 << 20;

/// The limits of one sandbox, complete.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Decided {
    pub groups: GroupLimits,
    pub disk_bytes: u64,
    /// Whether the writable layer is on disk, because it would not fit into memory.
    pub on_disk: bool,
}

/// Completes a request by the defaults. A limit that is asked for and not enforced, or above the maximum, is refused.
pub(super) fn decide(
    settings: &NamespaceSettings,
    capabilities: &Capabilities,
    can_mount_disks: bool,
    asked: &Limits,
) -> Result<Decided> {
    let enforced = |feature| capabilities.support(feature).enforcement == Enforcement::Enforced;
    for (feature, name, is_asked) in [
        (Feature::Memory, "memory", asked.memory_bytes.is_some()),
        (Feature::Cpu, "cpu", asked.cpus.is_some()),
        (Feature::Pids, "pids", asked.pids.is_some()),
        (Feature::Disk, "disk", asked.disk_bytes.is_some()),
    ] {
        if is_asked && !enforced(feature) {
            let support = capabilities.support(feature);
            return Err(Error::invalid(format!(
                "a limit of {name} is not enforced on this machine ({}): {}",
                support.reason, support.advice
            )));
        }
    }
    let (max, default) = (&settings.max_limits, &settings.default_limits);
    let memory_bytes = pick("memory_bytes", asked.memory_bytes, default.memory_bytes, max.memory_bytes)?;
    let cpus = pick("cpus", asked.cpus, default.cpus, max.cpus)?;
    let pids = pick("pids", asked.pids, default.pids, max.pids)?;
    if memory_bytes.is_some_and(|bytes| bytes < MIN_MEMORY_BYTES) {
        return Err(Error::invalid(format!("memory_bytes is below {MIN_MEMORY_BYTES}, the minimum")));
    }
    if cpus.is_some_and(|cpus| !cpus.is_finite() || cpus < 0.01) {
        return Err(Error::invalid("cpus must be at least 0.01"));
    }
    if pids == Some(0) {
        return Err(Error::invalid("pids must be at least 1"));
    }
    // Files in memory count as memory.
    let most = memory_bytes.filter(|_| enforced(Feature::Memory)).map_or(u64::MAX, |memory| memory / 2);
    let default_disk = default.disk_bytes.map(|bytes| bytes.min(most.max(MIN_DISK_BYTES)));
    let disk_bytes = pick("disk_bytes", asked.disk_bytes, default_disk, max.disk_bytes)?.unwrap_or(256 << 20);
    if disk_bytes < MIN_DISK_BYTES {
        return Err(Error::invalid(format!("disk_bytes is below {MIN_DISK_BYTES}, the minimum")));
    }
    let fits = memory_bytes
        .filter(|_| enforced(Feature::Memory))
        .is_none_or(|memory| disk_bytes.saturating_add(MIN_MEMORY_BESIDE_DISK) <= memory);
    if !fits && !can_mount_disks {
        return Err(Error::invalid(format!(
            "disk_bytes of {disk_bytes} do not fit into the sandbox's memory, where its files are kept on this machine: \
             ask for more memory or less disk, or run the worker as root with mkfs.ext4 and loop devices"
        )));
    }
    Ok(Decided { groups: GroupLimits { memory_bytes, cpus, pids }, disk_bytes, on_disk: !fits })
}

fn pick<T: PartialOrd + Copy + std::fmt::Display>(
    name: &str,
    asked: Option<T>,
    default: Option<T>,
    max: Option<T>,
) -> Result<Option<T>> {
    match (asked, max) {
        (Some(asked), Some(max)) if asked > max => {
            Err(Error::invalid(format!("{name} of {asked} is above {max}, the maximum of this provider")))
        }
        (Some(asked), _) => Ok(Some(asked)),
        (None, Some(max)) => Ok(default.map(|default| if default > max { max } else { default }).or(Some(max))),
        (None, None) => Ok(default),
    }
}
