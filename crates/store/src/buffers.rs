//! Batches of rows on their way to the tables of buffered datasets.
//!
//! A row is the batch: it waits here until its rows are in the data store, or until it was rejected for good. A batch that
//! goes through an outside queue has a row in the outbox as well; its message makes it due. If the message is lost, the
//! batch becomes due after [`FOLLOW_UP_MS`] all the same.

use std::sync::Arc;

use async_trait::async_trait;
use tenure_core::dag::buffer::{Batch, BatchError, NewPublish, OutsideQueue};
use tenure_core::dag::{DatasetId, PublishId};
use tenure_core::time::{DurationMs, Timestamp};

use crate::error::StoreError;
use crate::model::Page;

/// After this time a batch does not wait for its message.
pub const FOLLOW_UP_MS: DurationMs = 60_000;

/// Stands before the body of an effect that is about a dead letter.
const DEAD: &str = "dead ";

/// What an effect of the kind `publish_buffer` is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BufferEffect {
    pub id: PublishId,
    pub is_dead: bool,
    pub queue: Arc<str>,
}

impl BufferEffect {
    pub fn parse(body: &str) -> Option<Self> {
        let (is_dead, rest) = body.strip_prefix(DEAD).map_or((false, body), |rest| (true, rest));
        let (id, queue) = rest.split_once(' ')?;
        Some(Self { id: PublishId::parse(id).ok()?, is_dead, queue: queue.into() })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishState {
    Waiting,
    Done,
    /// It is among the dead letters, since then.
    Dead(Timestamp),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishRow {
    /// In the order of recording.
    pub number: i64,
    pub id: PublishId,
    pub org: Arc<str>,
    pub dataset: DatasetId,
    pub digest: Arc<str>,
    /// `None` once it is done.
    pub batch: Option<Batch>,
    pub created_at: Timestamp,
    /// How often it was taken in order to be written.
    pub receives: u32,
    pub state: PublishState,
    /// Why it was rejected last.
    pub error: Option<BatchError>,
}

/// What became of a batch that was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settled {
    /// Its rows are written, and the event is recorded.
    Done,
    /// It could not be tried: that says nothing about it, and it counts as not received.
    PutOff {
        after_ms: DurationMs,
    },
    Rejected {
        error: BatchError,
        after_ms: DurationMs,
    },
    /// It was rejected for the last time. The dead letter is told through this queue as well.
    Dead {
        error: BatchError,
        receives: u32,
        queue: Option<OutsideQueue>,
    },
}

/// The part of a store that keeps batches of rows.
#[async_trait]
pub trait BufferStore {
    /// Records batches. One whose id is known is left as it is. A crash leaves all or nothing.
    async fn publish(&self, org: &str, new: &[NewPublish]) -> Result<(), StoreError>;

    /// Those of these that are known.
    async fn publishes(&self, ids: &[PublishId]) -> Result<Vec<PublishRow>, StoreError>;

    /// Datasets that have batches which are due, those that wait longest first.
    async fn due_buffers(&self, limit: usize) -> Result<Vec<(Arc<str>, DatasetId)>, StoreError>;

    /// Takes due batches of a dataset, oldest first, for `hold_ms`. A crash afterwards delays them by that long.
    async fn take_publishes(
        &self,
        dataset: DatasetId,
        limit: usize,
        hold_ms: DurationMs,
    ) -> Result<Vec<PublishRow>, StoreError>;

    /// Records what became of batches. Those that do not wait any more are left as they are.
    async fn settle_publishes(&self, settled: &[(PublishId, Settled)]) -> Result<(), StoreError>;

    /// The messages of these batches were received: they are due, unless they were taken before.
    async fn wake_publishes(&self, ids: &[PublishId]) -> Result<(), StoreError>;

    /// Dead letters of a dataset behind `after`, in order.
    async fn dead_publishes(
        &self,
        org: &str,
        dataset: DatasetId,
        after: i64,
        limit: usize,
    ) -> Result<Page<PublishRow>, StoreError>;

    /// Batches of all organisations behind `after` that wait or are dead letters, in order. Those whose rows are in the
    /// object store are among them; long ones, which have their rows with them, are not.
    async fn open_publishes(&self, after: i64, limit: usize) -> Result<Page<PublishRow>, StoreError>;

    /// Dead letters of a dataset wait again, as if they had never been received: these, or all. Gives how many.
    async fn replay_publishes(
        &self,
        org: &str,
        dataset: DatasetId,
        ids: Option<&[PublishId]>,
    ) -> Result<u64, StoreError>;

    /// How many bytes of an organisation wait.
    async fn buffered_bytes(&self, org: &str) -> Result<i64, StoreError>;

    /// Forgets batches that were done, and dead letters that died, before these times. Each is one of the answer; dead
    /// letters whose rows are in the object store are whole, so that the caller can remove these.
    async fn prune_publishes(
        &self,
        done_before: Timestamp,
        dead_before: Timestamp,
        limit: usize,
    ) -> Result<Vec<Option<Batch>>, StoreError>;
}

/// How a settled batch is written.
pub(crate) struct SettledColumns {
    pub due_at: Option<Timestamp>,
    pub done_at: Option<Timestamp>,
    pub dead_at: Option<Timestamp>,
    pub not_received: bool,
    pub error: Option<String>,
    pub transport: Option<&'static str>,
}

impl Settled {
    /// The number of its row in the outbox, if it has one.
    pub(crate) fn outbox(&self, id: PublishId) -> i64 {
        match self {
            Self::Dead { receives, .. } => id.dead_outbox(*receives),
            _ => id.outbox(),
        }
    }

    /// The body of that row.
    pub(crate) fn effect(&self, id: PublishId) -> Option<String> {
        match self {
            Self::Dead { queue: Some(queue), .. } => Some(format!("{DEAD}{id} {}", queue.name)),
            _ => None,
        }
    }

    pub(crate) fn columns(&self, now: Timestamp) -> SettledColumns {
        let none = SettledColumns {
            due_at: None,
            done_at: None,
            dead_at: None,
            not_received: false,
            error: None,
            transport: None,
        };
        let json = |error: &BatchError| serde_json::to_string(error).ok().map(|text| text.replace("\\u0000", ""));
        match self {
            Self::Done => SettledColumns { done_at: Some(now), ..none },
            Self::PutOff { after_ms } => {
                SettledColumns { due_at: Some(now.plus(*after_ms)), not_received: true, ..none }
            }
            Self::Rejected { error, after_ms } => {
                SettledColumns { due_at: Some(now.plus(*after_ms)), error: json(error), ..none }
            }
            Self::Dead { error, queue, .. } => SettledColumns {
                dead_at: Some(now),
                error: json(error),
                transport: queue.as_ref().map(|queue| queue.transport.as_str()),
                ..none
            },
        }
    }
}

impl PublishRow {
    /// A page of up to `limit` out of what was found with a limit of one more.
    pub(crate) fn page(mut items: Vec<Self>, limit: usize) -> Page<Self> {
        let more = items.len() > limit;
        items.truncate(limit);
        let next = items.last().filter(|_| more).map(|last| last.number.to_string());
        Page { items, next }
    }

    pub(crate) fn read_batch(body: &str) -> Option<Batch> {
        serde_json::from_str(body).ok()
    }
}
