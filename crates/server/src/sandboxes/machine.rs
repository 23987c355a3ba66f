//! How busy the machine of this control plane is.

use std::time::Duration;

use tenure_contract::sandboxes::SystemStats;

/// Between the two looks that a rate takes.
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Look {
    busy: u64,
    all: u64,
    received: u64,
    sent: u64,
}

/// What cannot be read is zero.
pub async fn stats() -> SystemStats {
    let before = look().await;
    tokio::time::sleep(PAUSE).await;
    let after = look().await;
    let per_second = |before: u64, after: u64| after.saturating_sub(before) as f64 / PAUSE.as_secs_f64();
    SystemStats {
        cpu_pct: percent(after.busy.saturating_sub(before.busy), after.all.saturating_sub(before.all)),
        mem_pct: memory_pct(&read("/proc/meminfo").await),
        disk_pct: tokio::task::spawn_blocking(disk_pct).await.unwrap_or_default(),
        net_rx_bps: per_second(before.received, after.received),
        net_tx_bps: per_second(before.sent, after.sent),
        load1: read("/proc/loadavg").await.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or_default(),
    }
}

/// The memory that this process has in use, and what it has asked for, in bytes.
pub async fn own_memory() -> (u64, u64) {
    let status = read("/proc/self/status").await;
    let of = |name: &str| field(&status, name).unwrap_or_default() * 1024;
    (of("VmRSS:"), of("VmSize:"))
}

async fn read(path: &str) -> String {
    tokio::fs::read_to_string(path).await.unwrap_or_default()
}

async fn look() -> Look {
    let (busy, all) = processor(&read("/proc/stat").await);
    let (received, sent) = network(&read("/proc/net/dev").await);
    Look { busy, all, received, sent }
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { (part as f64 * 1000.0 / whole as f64).round() / 10.0 }
}

/// Ticks that were not idle, and all.
fn processor(stat: &str) -> (u64, u64) {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or_default();
    // User, nice, system, idle, waiting for a disk, interrupts. What follows is part of the first two.
    let ticks: Vec<u64> = line.split_whitespace().take(8).filter_map(|ticks| ticks.parse().ok()).collect();
    let all: u64 = ticks.iter().sum();
    let idle: u64 = ticks.iter().skip(3).take(2).sum();
    (all - idle, all)
}

fn memory_pct(meminfo: &str) -> f64 {
    let total = field(meminfo, "MemTotal:").unwrap_or_default();
    let available = field(meminfo, "MemAvailable:").unwrap_or(total);
    percent(total.saturating_sub(available), total)
}

fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

/// Bytes received and sent by all interfaces but the loopback.
fn network(dev: &str) -> (u64, u64) {
    let interfaces = dev.lines().filter_map(|line| line.split_once(':')).filter(|(name, _)| name.trim() != "lo");
    interfaces.fold((0, 0), |(received, sent), (_, numbers)| {
        let numbers: Vec<u64> = numbers.split_whitespace().filter_map(|number| number.parse().ok()).collect();
        let at = |index: usize| numbers.get(index).copied().unwrap_or_default();
        (received + at(0), sent + at(8))
    })
}

fn disk_pct() -> f64 {
    let Ok(disk) = rustix::fs::statvfs("/") else { return 0.0 };
    percent(disk.f_blocks.saturating_sub(disk.f_bavail), disk.f_blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_the_kernel_are_read() {
        assert_eq!(processor("cpu  10 0 5 80 5 0 0 0 9 9\ncpu0 1 1\n"), (15, 100));
        assert_eq!(processor(""), (0, 0));
        assert_eq!(memory_pct("MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable: 250 kB\n"), 75.0);
        let dev = "Inter-|\n face |bytes\n lo: 9 0 0 0 0 0 0 0 9 0\n eth0: 5 0 0 0 0 0 0 0 7 0\n";
        assert_eq!(network(dev), (5, 7));
        assert_eq!(percent(0, 0), 0.0);
    }

    #[tokio::test]
    async fn this_machine_has_memory_and_a_disk() {
        let stats = stats().await;
        assert!(stats.mem_pct > 0.0 && stats.mem_pct <= 100.0, "{stats:?}");
        assert!(stats.disk_pct > 0.0 && stats.disk_pct <= 100.0, "{stats:?}");
        assert!(own_memory().await.0 > 0);
    }
}
