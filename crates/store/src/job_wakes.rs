//! Ready tasks of jobs, for whoever tells workers of them.
//!
//! A job has a queue of its own; those whose jobs have the same runtime and pool share a wake-up queue. Queues that are
//! pushed are not among these. Everything here only reads.

use std::sync::Arc;

use async_trait::async_trait;
use tenure_core::limits;
use tenure_core::queue::{Queue, QueueId};
use tenure_core::time::Timestamp;
use tenure_core::{Seq, TaskId};

use crate::error::StoreError;

/// The queue of a job with ready tasks.
#[derive(Debug, Clone, PartialEq)]
pub struct JobQueue {
    pub queue: Queue,
    pub ready: u64,
    /// Open attempts.
    pub running: u32,
}

impl JobQueue {
    /// Its tasks wait for the version of the job's DAG, but for those that rebuild it.
    pub fn is_held(&self) -> bool {
        self.queue.settings.dispatch.as_ref().is_some_and(|dispatch| dispatch.held)
    }

    pub fn wake(&self) -> Option<&Arc<str>> {
        self.queue.settings.dispatch.as_ref().map(|dispatch| &dispatch.wake)
    }

    /// Up to `limit` of its tasks that can be claimed at `now`.
    pub fn first(&self, now: Timestamp, limit: usize) -> FirstReady {
        let room = self.queue.room(self.running, now).grants as usize;
        FirstReady { queue: self.queue.id, held: self.is_held(), limit: limit.min(room) }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct JobQueues {
    pub queues: Vec<JobQueue>,
    /// The store's time.
    pub now: Timestamp,
}

/// Which ready tasks of a queue are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirstReady {
    pub queue: QueueId,
    /// Only those that rebuild a version.
    pub held: bool,
    pub limit: usize,
}

impl FirstReady {
    /// Tasks behind this priority are not looked at.
    pub(crate) fn priority(&self) -> u8 {
        if self.held { limits::PRIORITY_REBUILD } else { limits::PRIORITY_MAX }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadyJob {
    pub queue: QueueId,
    pub task: TaskId,
    pub message: i64,
    /// When its wake-up left the process, if it has.
    pub published_at: Option<Timestamp>,
}

/// A wake-up in the outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobWake {
    pub message: i64,
    pub row: Seq,
    pub created_at: Timestamp,
    pub published_at: Option<Timestamp>,
    /// The task waits; otherwise it is held.
    pub ready: bool,
}

/// The part of a store that knows which tasks of jobs wait.
#[async_trait]
pub trait JobWakeStore {
    /// Queues of jobs with ready tasks: of a wake-up queue, or all.
    async fn job_queues(&self, wake: Option<&str>) -> Result<JobQueues, StoreError>;

    /// The first ready tasks of each of these queues, in the order of grants.
    async fn first_ready(&self, of: &[FirstReady]) -> Result<Vec<ReadyJob>, StoreError>;

    /// Wake-ups of a queue behind `after`, in order. What it costs depends on `limit` alone.
    async fn job_wakes(&self, queue: QueueId, after: i64, limit: usize) -> Result<Vec<JobWake>, StoreError>;
}
