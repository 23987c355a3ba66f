//! The memory of sandboxes that do nothing.

use std::collections::HashSet;
use std::fs;

/// The processes of this machine that are the first of their own process namespace.
pub(super) fn first_processes() -> HashSet<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return HashSet::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid| is_first(*pid)).collect()
}

fn is_first(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    let ids: Vec<&str> = ids.split_whitespace().collect();
    ids.len() > 1 && ids.last() == Some(&"1")
}

/// Resident memory of the `count` first processes that were not there before and of the processes that started them, each page
/// counted once: a page that several of them share is divided among those that have it.
///
/// One sandbox alone has most of the pages of the process it was forked from. What each further one adds is the difference of two
/// such sums.
pub(super) fn taken_by(before: &HashSet<u32>, count: usize) -> Option<u64> {
    let new: HashSet<u32> = first_processes().difference(before).copied().collect();
    if new.len() != count {
        return None;
    }
    let parents: Option<HashSet<u32>> = new.iter().map(|pid| parent(*pid)).collect();
    let shares: Option<Vec<u64>> = new.union(&parents?).map(|pid| proportional(*pid)).collect();
    Some(shares?.iter().sum())
}

fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

fn proportional(pid: u32) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}
