//! Results of the methods.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Chunk, LeaseToken, lenient};

/// `worker.spawn`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpawnResult {
    pub sandbox_id: String,
    pub runtime_id: String,
    /// `running`.
    pub state: String,
    /// As the caller wrote it.
    pub provider: String,
    pub worker_id: String,
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}

/// `worker.status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusResult {
    pub sandbox_id: String,
    /// `running`, `unhealthy` or `error`.
    pub state: String,
    pub provider: String,
    pub worker_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Additive: a control plane that lost the answer to `worker.spawn` learns it here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_id: Option<String>,
}

/// `worker.exec`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecResult {
    pub sandbox_id: String,
    pub exit_code: i32,
    #[serde(default)]
    pub stdout: String,
    #[serde(default)]
    pub stderr: String,
    /// Additive: the exact bytes of an output that is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout_b64: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr_b64: Option<String>,
    /// Additive: only the beginning was kept.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "std::ops::Not::not")]
    pub stdout_truncated: bool,
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "std::ops::Not::not")]
    pub stderr_truncated: bool,
    /// Additive.
    #[serde(default)]
    pub duration_ms: u64,
}

/// `worker.exec_stream` without a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecStreamResult {
    pub sandbox_id: String,
    #[serde(default, deserialize_with = "lenient")]
    pub chunks: Vec<Chunk>,
    /// Additive, like the fields below. A contract-only worker does not send it: the exit code is then unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "std::ops::Not::not")]
    pub stdout_truncated: bool,
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "std::ops::Not::not")]
    pub stderr_truncated: bool,
}

/// A file in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileInfo {
    /// Absolute, inside the sandbox.
    pub path: String,
    pub size: i64,
    /// Octal with a leading zero, for example `0644`.
    pub mode: String,
    pub is_dir: bool,
    /// `YYYY-MM-DDTHH:MM:SSZ`.
    pub mod_time: String,
}

/// `worker.file_read`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileReadResult {
    pub sandbox_id: String,
    /// Padded standard base64.
    pub content: String,
}

/// `worker.file_list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileListResult {
    pub sandbox_id: String,
    #[serde(default, deserialize_with = "lenient")]
    pub files: Vec<FileInfo>,
}

/// `worker.file_stat`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStatResult {
    pub sandbox_id: String,
    pub file: FileInfo,
}

/// `worker.file_glob`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileGlobResult {
    pub sandbox_id: String,
    #[serde(default, deserialize_with = "lenient")]
    pub matches: Vec<String>,
}

/// `worker.logs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogsResult {
    pub sandbox_id: String,
    #[serde(default, deserialize_with = "lenient")]
    pub lines: Vec<String>,
}

/// `worker.renew_lease`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenewLeaseResult {
    pub lease: LeaseToken,
}

/// `worker.stats`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StatsResult {
    pub sandbox_id: String,
    /// Percent of one core.
    pub cpu_pct: f64,
    pub mem_bytes: u64,
    /// 0 without a limit.
    pub mem_limit_bytes: u64,
    pub pids: u64,
    pub disk_bytes: u64,
}

/// `worker.snapshot`, `worker.restore` and `PUT /rpc/snapshots/{snapshot_id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotResult {
    pub snapshot_id: String,
    pub size_bytes: u64,
    /// Of the archive, in lower-case hexadecimal.
    pub sha256: String,
}
