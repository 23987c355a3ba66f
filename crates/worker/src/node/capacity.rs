//! What this machine has.

use std::fs;

/// Megabytes of memory that this process can use: of the machine, or of its control group if that has less.
pub fn memory_mb() -> u64 {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total_kb(&text)).map(|kb| kb << 10);
    let groups = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let group = groups.iter().find_map(|path| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok());
    machine.into_iter().chain(group).min().unwrap_or(0) >> 20
}

/// Processors that this process can use.
pub fn vcpus() -> u64 {
    std::thread::available_parallelism().map_or(1, |count| count.get() as u64)
}

fn total_kb(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_the_machine_is_read() {
        assert_eq!(total_kb("MemTotal:       16314528 kB\nMemFree:  1 kB\n"), Some(16_314_528));
        assert_eq!(total_kb("MemFree: 1 kB\n"), None);
        assert!(memory_mb() > 0 && vcpus() > 0);
    }
}
