use std::collections::{HashMap, HashSet};
use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// What the processes below some others use.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct TreeUsage {
    pub(super) processes: u64,
    pub(super) memory_bytes: u64,
    pub(super) cpu: Duration,
}

/// Adds up the descendants of these processes, without themselves.
pub(super) fn usage(above: &[u32]) -> TreeUsage {
    let ticks_per_second = rustix::param::clock_ticks_per_second().max(1);
    let page = rustix::param::page_size() as u64;
    let mut usage = TreeUsage::default();
    for process in descendants(above) {
        usage.processes += 1;
        usage.memory_bytes += process.resident_pages * page;
        usage.cpu += Duration::from_millis(process.cpu_ticks * 1000 / ticks_per_second);
    }
    usage
}

/// Sends a signal to every descendant until no new one is found: a process can fork before the signal reaches it.
pub(super) fn signal(above: &[u32], signal: Signal) {
    let mut reached = HashSet::new();
    for _ in 0..32 {
        let before = reached.len();
        for process in descendants(above) {
            if reached.insert(process.pid)
                && let Some(pid) = i32::try_from(process.pid).ok().and_then(Pid::from_raw)
            {
                // It fails if the process has just ended.
                let _ = kill_process(pid, signal);
            }
        }
        if reached.len() == before {
            return;
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Process {
    pid: u32,
    parent: u32,
    cpu_ticks: u64,
    resident_pages: u64,
}

fn descendants(above: &[u32]) -> Vec<Process> {
    let mut children: HashMap<u32, Vec<Process>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some(process) = pid.and_then(process) {
            children.entry(process.parent).or_default().push(process);
        }
    }
    let mut found: Vec<Process> = Vec::new();
    let mut next: Vec<u32> = above.to_vec();
    while let Some(parent) = next.pop() {
        for process in children.remove(&parent).unwrap_or_default() {
            next.push(process.pid);
            found.push(process);
        }
    }
    found
}

fn process(pid: u32) -> Option<Process> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain anything, parentheses too.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
    Some(Process {
        pid,
        parent: u32::try_from(number(1)?).ok()?,
        cpu_ticks: number(11)? + number(12)?,
        resident_pages: number(21)?,
    })
}
