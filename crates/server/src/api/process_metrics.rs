//! Figures of this process, under the names that every Prometheus client library uses. Linux only; elsewhere there are none.

use std::fmt::Write as _;
use std::fs;

/// Of `/proc`: the kernel reports times in this unit on every platform that Tenure supports.
const TICKS_PER_SECOND: f64 = 100.0;
const PAGE_BYTES: u64 = 4_096;

pub fn write(text: &mut String) {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the program is in brackets and may contain anything.
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let number = |field: usize| fields.get(field).and_then(|field| field.parse::<u64>().ok());
    if let (Some(user), Some(system)) = (number(11), number(12)) {
        figure(text, "process_cpu_seconds_total", "counter", (user + system) as f64 / TICKS_PER_SECOND);
    }
    if let Some(bytes) = number(20) {
        figure(text, "process_virtual_memory_bytes", "gauge", bytes as f64);
    }
    if let Some(pages) = number(21) {
        figure(text, "process_resident_memory_bytes", "gauge", (pages * PAGE_BYTES) as f64);
    }
    if let (Some(started), Some(boot)) = (number(19), boot_time()) {
        figure(text, "process_start_time_seconds", "gauge", boot + started as f64 / TICKS_PER_SECOND);
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        figure(text, "process_open_fds", "gauge", open.count() as f64);
    }
}

fn boot_time() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

fn figure(text: &mut String, name: &str, kind: &str, value: f64) {
    let _ = write!(text, "# TYPE {name} {kind}\n{name} {value}\n");
}
