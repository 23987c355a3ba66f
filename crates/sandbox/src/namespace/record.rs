use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::cgroup::SandboxGroups;
use crate::provider::{Runtime, RuntimeId, RuntimeState};
use crate::spec::Spec;

const FILE: &str = "state.json";

/// What the kernel copies at once.
const PAGE_BYTES: usize = 4096;

/// What is known about a sandbox, kept in its folder for the next process of the provider.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Names the groups and the folder. It changes when a snapshot is restored.
    pub id: String,
    /// What callers know the sandbox as.
    pub runtime_id: String,
    pub spec: Spec,
    pub image_resolved: String,
    /// Absent for the image `host`.
    pub image_path: Option<PathBuf>,
    pub created_ms: u64,
    /// When this instance of it was made.
    pub instance_ms: u64,
    pub groups: SandboxGroups,
    /// The copy of the host's settings that it uses.
    pub host_copy: Option<String>,
    /// Which range of ids it uses.
    pub slot: u32,
    /// The user of commands, inside.
    pub user: u32,
    pub disk_bytes: u64,
    pub memory_limit_bytes: u64,
    /// What the sandbox has its writable layer and the listening socket of its proxy as.
    pub writable_number: Option<i32>,
    pub proxy_number: Option<i32>,
    /// The list of allowed hosts, if it was changed.
    pub allowed_hosts: Option<Vec<String>>,
    /// Absent until the sandbox was started.
    pub process: Option<ProcessIdentity>,
}

/// A process, and how to know that a number is still that process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessIdentity {
    pub pid: i32,
    /// In clock ticks since the machine started.
    pub start_time: u64,
    pub boot_id: String,
}

impl ProcessIdentity {
    pub fn of(pid: i32) -> io::Result<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        // The name is in parentheses and may contain anything.
        let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
        let start_time = after
            .split_whitespace()
            .nth(19)
            .and_then(|field| field.parse().ok())
            .ok_or_else(|| io::Error::other("no start time in /proc"))?;
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
        Ok(Self { pid, start_time, boot_id })
    }
}

impl Record {
    pub fn runtime(&self, state: RuntimeState) -> Runtime {
        Runtime {
            id: RuntimeId(self.runtime_id.clone()),
            sandbox_id: self.spec.sandbox_id.clone(),
            image: self.spec.image.clone(),
            image_resolved: self.image_resolved.clone(),
            state,
            created: UNIX_EPOCH + Duration::from_millis(self.created_ms),
            metadata: self.spec.metadata.clone(),
        }
    }

    /// Replaces the record in a folder. Only the end of this process must not tear it: after the end of the machine there
    /// is no sandbox.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        let new = folder.join("state.new");
        fs::write(&new, serde_json::to_vec(self)?)?;
        fs::rename(new, folder.join(FILE))
    }

    /// As [`Self::write`], for a record that is there. A short one is written over the former one with one call, which the
    /// end of this process cannot cut: a new file costs the file system more than all else that a sandbox writes.
    pub fn rewrite(&self, folder: &Path) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(self)?;
        let file = fs::OpenOptions::new().write(true).open(folder.join(FILE))?;
        let former = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
        if former.max(bytes.len()) > PAGE_BYTES {
            return self.write(folder);
        }
        bytes.resize(former.max(bytes.len()), b' ');
        file.write_all_at(&bytes, 0)
    }

    pub fn read(folder: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&fs::read(folder.join(FILE))?)?)
    }
}

pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// The socket of the agent, in the folder of its sandbox.
pub(crate) fn socket_path(folder: &Path) -> PathBuf {
    folder.join("agent")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_is_written_over_is_read_as_it_was_written_last() {
        let folder = tempfile::tempdir().unwrap();
        let mut record: Record = serde_json::from_value(serde_json::json!({
            "id": "i", "runtime_id": "r", "spec": Spec::new("s", "host"), "image_resolved": "host", "image_path": null,
            "created_ms": 1, "instance_ms": 1, "groups": SandboxGroups::default(), "host_copy": null, "slot": 0, "user": 1000,
            "disk_bytes": 0, "memory_limit_bytes": 0, "writable_number": null, "proxy_number": null, "allowed_hosts": null,
            "process": null,
        }))
        .unwrap();
        record.write(folder.path()).unwrap();
        // Longer, shorter, and longer than is written at once.
        for (id, host_copy) in
            [("x".repeat(200), None), ("y".to_owned(), Some("z".repeat(5_000))), ("i".to_owned(), None)]
        {
            (record.id, record.host_copy) = (id.clone(), host_copy.clone());
            record.rewrite(folder.path()).unwrap();
            let read = Record::read(folder.path()).unwrap();
            assert_eq!((read.id, read.host_copy, read.runtime_id), (id, host_copy, "r".to_owned()));
        }
    }
}
