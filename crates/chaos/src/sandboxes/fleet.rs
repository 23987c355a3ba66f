//! How control planes and workers are set up for sandboxes, and what is on the disks of the workers.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use super::checker::Limits;
use super::history::Sighting;
use crate::history::now;

/// Owners of sandboxes, each with the same cap.
pub const OWNERS: [&str; 3] = ["ann", "bob", "cem"];

/// Room for fewer sandboxes than all sessions want, and caps below that.
pub fn limits(workers: usize) -> Limits {
    let worker_sandboxes = 4;
    Limits {
        total: (workers as u64 * worker_sandboxes).saturating_sub(1),
        per_owner: workers as u64 * worker_sandboxes / OWNERS.len() as u64,
        worker_sandboxes,
        worker_memory_mb: 512,
        worker_vcpus: 6,
        ttl_grace_ms: 30_000,
        slack_ms: 10_000,
        request_ms: 30_000,
    }
}

pub fn configure_server(command: &mut Command, limits: &Limits) {
    let settings = [
        ("DEFAULTS__MAX_SANDBOXES", limits.total.to_string()),
        ("DEFAULTS__MAX_SANDBOXES_PER_OWNER", limits.per_owner.to_string()),
        ("PROVIDERS__DEFAULT", "process".to_owned()),
        ("PROVIDERS__NAMESPACE__ENABLED", "false".to_owned()),
        ("PROVIDERS__PROCESS__ENABLED", "true".to_owned()),
        // Short, so that a run of a minute has leases that lapse and workers that are stale.
        ("LEASES__TTL", "15s".to_owned()),
        ("LEASES__MAX_TTL", "15s".to_owned()),
        ("SCHEDULER__FRESHNESS", "5s".to_owned()),
        ("WORKER__SPAWN_TIMEOUT", "10s".to_owned()),
    ];
    command.envs(settings.map(|(name, value)| (format!("TENURE_{name}"), value)));
}

pub fn configure_worker(command: &mut Command, limits: &Limits) {
    let settings = [
        ("WORKER__CAPACITY__MAX_SANDBOXES", limits.worker_sandboxes.to_string()),
        ("WORKER__CAPACITY__MEMORY_MB", limits.worker_memory_mb.to_string()),
        ("WORKER__CAPACITY__VCPUS", limits.worker_vcpus.to_string()),
        ("WORKER__HEARTBEAT_INTERVAL", "500ms".to_owned()),
        ("PROVIDERS__DEFAULT", "process".to_owned()),
        ("PROVIDERS__NAMESPACE__ENABLED", "false".to_owned()),
        ("PROVIDERS__PROCESS__ENABLED", "true".to_owned()),
    ];
    command.envs(settings.map(|(name, value)| (format!("TENURE_{name}"), value)));
}

/// Looks at the disks of the workers, past everything that they say themselves.
#[derive(Debug)]
pub struct Disks {
    /// Of each worker.
    folders: Vec<PathBuf>,
    seen: Mutex<BTreeMap<(usize, String), Sighting>>,
}

impl Disks {
    pub fn new(folders: Vec<PathBuf>) -> Self {
        Self { folders, seen: Mutex::default() }
    }

    /// Notes every runtime that is there. Returns how many there are.
    pub fn look(&self) -> usize {
        let mut count = 0;
        for (worker, folder) in self.folders.iter().enumerate() {
            let from = now();
            let found = runtimes(&folder.join("process"));
            let to = now();
            count += found.len();
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            for (runtime, sandbox, nonce) in &found {
                let known = seen.entry((worker, runtime.clone())).or_insert_with(|| Sighting {
                    worker,
                    runtime: runtime.clone(),
                    sandbox: sandbox.clone(),
                    nonce: nonce.clone(),
                    first: to,
                    last: from,
                    gone: None,
                });
                (known.last, known.gone) = (from, None);
            }
            for ((_, runtime), known) in seen.range_mut((worker, String::new())..(worker + 1, String::new())) {
                if !found.iter().any(|(there, ..)| there == runtime) {
                    known.gone.get_or_insert(from);
                }
            }
        }
        count
    }

    pub fn sightings(&self) -> Vec<Sighting> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Processes whose working directory is one of a sandbox, also of one that is gone.
    pub fn processes(&self) -> Vec<String> {
        let Ok(all) = fs::read_dir("/proc") else { return Vec::new() };
        let inside = |path: &Path| self.folders.iter().any(|folder| path.starts_with(folder));
        let held =
            all.flatten().filter(|process| fs::read_link(process.path().join("cwd")).is_ok_and(|cwd| inside(&cwd)));
        held.map(|process| {
            let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
            let cwd = fs::read_link(process.path().join("cwd")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            format!("{} {line}in {}", process.file_name().display(), cwd.display())
        })
        .collect()
    }
}

/// Runtime, sandbox and nonce of everything in the folder of the provider `process`.
fn runtimes(folder: &Path) -> Vec<(String, String, Option<String>)> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        // What is not whole yet, or not any more, has another name.
        if !name.starts_with("prc-") {
            continue;
        }
        let Ok(text) = fs::read(entry.path().join("sandbox.json")) else { continue };
        let Ok(record) = serde_json::from_slice::<Value>(&text) else { continue };
        let text = |value: &Value| value.as_str().map(ToOwned::to_owned);
        found.push((name, text(&record["sandbox_id"]).unwrap_or_default(), text(&record["metadata"]["nonce"])));
    }
    found
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn put(folder: &Path, runtime: &str, sandbox: &str) {
        let folder = folder.join("process").join(runtime);
        fs::create_dir_all(&folder).unwrap();
        let record = serde_json::json!({"sandbox_id": sandbox, "metadata": {"nonce": "n"}});
        fs::write(folder.join("sandbox.json"), record.to_string()).unwrap();
    }

    #[test]
    fn a_runtime_is_seen_from_the_first_look_that_finds_it_to_the_last() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let disks = Disks::new(folders.iter().map(|folder| folder.path().to_owned()).collect());
        assert_eq!(disks.look(), 0);
        put(folders[0].path(), "prc-1", "sb-1");
        put(folders[1].path(), "prc-2", "sb-2");
        put(folders[1].path(), "scrap-prc-3", "sb-3");
        assert_eq!((disks.look(), disks.look()), (2, 2));
        fs::remove_dir_all(folders[0].path().join("process/prc-1")).unwrap();
        let before = now();
        assert_eq!(disks.look(), 1);
        let seen = disks.sightings();
        assert_eq!(seen.iter().map(|seen| seen.sandbox.as_str()).collect::<Vec<_>>(), ["sb-1", "sb-2"]);
        assert_eq!(seen[0].nonce.as_deref(), Some("n"));
        assert!(seen[0].first < seen[0].last && seen[0].last < before && seen[0].gone.unwrap() >= before);
        assert!(seen[1].last >= before && seen[1].gone.is_none());
    }

    #[test]
    fn a_process_in_a_sandbox_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let disks = Disks::new(vec![folder.path().canonicalize().unwrap()]);
        let mut child = Command::new("sleep").arg("60").current_dir(folder.path()).spawn().unwrap();
        // Its command line is there a moment after it was started.
        let until = Instant::now() + Duration::from_secs(30);
        let mut found = disks.processes();
        while !found.iter().any(|line| line.contains("sleep 60")) && Instant::now() < until {
            std::thread::yield_now();
            found = disks.processes();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.len() == 1 && found[0].contains("sleep 60"), "{found:?}");
        assert!(disks.processes().is_empty());
    }
}
