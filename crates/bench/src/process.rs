//! What the processes under test use of the machine, as Linux tells it.

use std::fs;
use std::time::Duration;

/// Clock ticks of `/proc` in a second: fixed at 100 for user space on every Linux that Rust runs on.
const TICKS: u64 = 100;

/// The processor time of a process and of the children that it has now. `None` where `/proc` is not that of Linux.
pub fn processor_time(pid: u32) -> Option<Duration> {
    let mut ticks = own_ticks(pid)?;
    for child in children(pid) {
        // One that has just ended takes its time along; a server under test keeps its processes.
        ticks += own_ticks(child).unwrap_or(0);
    }
    Some(Duration::from_millis(ticks * 1000 / TICKS))
}

/// The memory of a process that is in RAM, in bytes.
pub fn memory(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// How the machine calls its processor.
pub fn processor_name() -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("model name"))?;
    Some(line.trim_start_matches([' ', '\t', ':']).to_owned())
}

fn own_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program stands in brackets and may hold anything.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
}

fn children(pid: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|child| child.parse().ok()).collect()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_process_uses_memory_and_time() {
        let own = std::process::id();
        assert!(memory(own).unwrap() > 100_000);
        let before = processor_time(own).unwrap();
        let mut sum = 0_u64;
        while processor_time(own).unwrap() < before + Duration::from_millis(20) {
            sum = (0..1_000_000).fold(sum, u64::wrapping_add);
        }
        assert_eq!(memory(u32::MAX), None);
    }
}
