//! Workers that claim tasks, as control planes have seen them. Workers that hold sandboxes have rows of their own.

use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tenure_core::command::Reach;
use tenure_core::time::{DurationMs, Timestamp};
use tenure_core::{TaskId, WorkerId};

use crate::error::StoreError;
use crate::model::Page;

/// Records of workers that are kept. The ones seen longest ago give way, unless they are drained.
pub const WORKER_RECORDS_MAX: usize = 10_000;

/// What a worker process says about itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerDetails {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<Arc<str>>,
    /// Tasks that it runs at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub operators: Vec<Arc<str>>,
    /// How far its clock is ahead of the control plane's, with the time of the request on its way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_ahead_ms: Option<i64>,
}

/// A worker that called, not written down yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sighting {
    pub worker: WorkerId,
    /// Of `pull`, `dispatch` and `callback`.
    pub contracts: Vec<&'static str>,
    /// Empty: as before.
    pub queues: Vec<Arc<str>>,
    /// `None`: as before.
    pub details: Option<WorkerDetails>,
    /// How long ago it called.
    pub ago_ms: DurationMs,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerRecord {
    pub worker: WorkerId,
    pub contracts: Vec<Arc<str>>,
    pub queues: Vec<Arc<str>>,
    pub details: WorkerDetails,
    pub first_seen_at: Timestamp,
    pub seen_at: Timestamp,
    /// It gets no new work since then.
    pub drained_at: Option<Timestamp>,
    pub drain_reason: Option<Arc<str>>,
    /// Attempts under a lease of this worker.
    pub held: u64,
}

/// An attempt that a worker holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldTask {
    pub task: TaskId,
    pub queue: Arc<str>,
    pub operator: Arc<str>,
    pub attempt: u32,
    pub granted_at: Timestamp,
    pub last_heartbeat_at: Option<Timestamp>,
    pub expires_at: Timestamp,
}

/// The part of a store that keeps records of workers. Nothing about tasks is decided by them.
#[async_trait]
pub trait WorkerStore {
    /// Writes down who was seen. A crash before loses only that.
    async fn note_workers(&self, seen: &[Sighting]) -> Result<(), StoreError>;

    /// Records with ids after `after`, by id.
    async fn worker_records(&self, after: &str, limit: usize) -> Result<Page<WorkerRecord>, StoreError>;

    async fn worker_record(&self, worker: &str) -> Result<Option<WorkerRecord>, StoreError>;

    /// What a worker holds, oldest first.
    async fn held_tasks(&self, worker: &str, reach: &Reach, limit: usize) -> Result<Vec<HeldTask>, StoreError>;

    /// Drains a worker, or takes that back. Whether there is such a worker.
    async fn drain_worker(&self, worker: &str, drain: bool, reason: Option<&str>) -> Result<bool, StoreError>;

    /// Workers that get no new work.
    async fn drained_workers(&self) -> Result<Vec<WorkerId>, StoreError>;
}

/// Lists and details are JSON in a row. An empty value means that nothing was said.
pub(crate) struct Texts {
    pub contracts: String,
    pub queues: String,
    pub details: String,
}

impl Texts {
    pub fn of(sighting: &Sighting) -> Self {
        let list = |json: serde_json::Result<String>| json.unwrap_or_else(|_| "[]".to_owned());
        let details = sighting.details.as_ref().and_then(|details| serde_json::to_string(details).ok());
        Self {
            contracts: list(serde_json::to_string(&sighting.contracts)),
            queues: list(serde_json::to_string(&sighting.queues)),
            details: details.unwrap_or_else(|| "{}".to_owned()),
        }
    }
}

pub(crate) fn from_text<T: serde::de::DeserializeOwned + Default>(text: &str) -> T {
    serde_json::from_str(text).unwrap_or_default()
}
