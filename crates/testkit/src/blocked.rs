use std::time::Duration;

use crate::wait_until;

/// How often in a row a process must be found at the same count.
const SAME: u32 = 20;

/// Waits until the process with this argument blocks: it has written something, and then nothing for a while.
///
/// # Panics
///
/// When that process ends instead, or does not block within `deadline`.
pub async fn wait_until_blocked(argument: &str, deadline: Duration) {
    let process = wait_until("the process runs", deadline, async || process_with(argument)).await;
    let (mut written, mut same) = (0, 0);
    wait_until("the process blocks", deadline, async || {
        let counters = std::fs::read_to_string(process.join("io")).expect("the process must not end before it is read");
        let now = counters.lines().find_map(|line| line.strip_prefix("wchar: ")?.parse().ok()).unwrap_or(0_u64);
        same = if now > 0 && now == written { same + 1 } else { 0 };
        written = now;
        same >= SAME
    })
    .await;
}

fn process_with(argument: &str) -> Option<std::path::PathBuf> {
    let mut processes = std::fs::read_dir("/proc").ok()?.flatten().map(|entry| entry.path());
    processes.find(|process| {
        let line = std::fs::read(process.join("cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|part| part == argument.as_bytes())
    })
}
