//! Effects that have to leave the store.
//!
//! A row is written by the batch that causes the effect. It is *waiting* until its effect was performed, or *failed* for
//! good. A process that wants to perform a waiting row takes it for a limited time; if the process dies, the time passes
//! and another one takes it. So an effect is performed at least once. Its row then goes.
//!
//! The row of a wake-up ([`EffectKind::EnqueueTask`]) stays, *published* under the name that the transport gave it, until
//! the batch that ends its task or enqueues it again removes it.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use tenure_core::effect::{DueEffect, EffectKind};
use tenure_core::queue::{Dispatch, QueueId, Transport};
use tenure_core::time::{DurationMs, Timestamp};
use tenure_core::{Seq, TaskId};

use crate::error::StoreError;
use crate::model::Page;

/// For how long a new row is its maker's, who publishes it right after the commit.
pub const MAKERS_OWN_MS: DurationMs = 5_000;

/// What to do with a row whose effect could not be performed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PutOff {
    pub id: i64,
    pub error: String,
    pub next: NextTry,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextTry {
    /// The row was refused, and is tried again after so long.
    Refused { after_ms: DurationMs },
    /// The transport was away: that says nothing about the row.
    Away { after_ms: DurationMs },
    /// It was refused for the last time.
    Never,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutboxState {
    Waiting,
    Published,
    Failed,
}

impl OutboxState {
    pub const ALL: [Self; 3] = [Self::Waiting, Self::Published, Self::Failed];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Published => "published",
            Self::Failed => "failed",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

#[derive(Debug, Clone, Default)]
pub struct OutboxFilter {
    pub state: Option<OutboxState>,
    pub queue: Option<String>,
    /// Oldest first; only rows behind this one.
    pub after: Option<i64>,
    pub limit: usize,
}

/// A row as people see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxView {
    pub message: i64,
    pub kind: Arc<str>,
    pub transport: Transport,
    pub queue: Arc<str>,
    pub task: TaskId,
    pub created_at: Timestamp,
    /// Waiting: when it may be taken in hand.
    pub due_at: Option<Timestamp>,
    pub tries: u32,
    pub error: Option<Arc<str>>,
    pub failed_at: Option<Timestamp>,
    pub published_at: Option<Timestamp>,
    pub receipt: Option<Arc<str>>,
}

impl OutboxView {
    pub fn state(&self) -> OutboxState {
        match (self.published_at, self.failed_at) {
            (Some(_), _) => OutboxState::Published,
            (None, Some(_)) => OutboxState::Failed,
            (None, None) => OutboxState::Waiting,
        }
    }
}

/// Which failed rows to try again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutboxRetry {
    These(Vec<i64>),
    /// All, or all of a queue.
    All {
        queue: Option<String>,
    },
}

/// How far behind the outbox is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OutboxLag {
    pub waiting: u64,
    pub failed: u64,
    /// How long the oldest waiting row has waited.
    pub oldest_ms: DurationMs,
}

/// A queue whose wake-ups leave the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalQueue {
    pub id: QueueId,
    pub name: Arc<str>,
    pub transport: Transport,
    pub lease_ttl_ms: Option<DurationMs>,
}

/// How many rows a queue has for a transport, and how many it should have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WakeCounts {
    pub queue: ExternalQueue,
    /// The queue still has this transport.
    pub current: bool,
    pub rows: u64,
    pub published: u64,
    /// Tasks of the queue that wait, and that are held.
    pub ready: u64,
    pub running: u64,
    /// It belongs to a job: the transport has the wake-ups of several jobs under one name, which `queue` has.
    pub job: Option<Arc<Dispatch>>,
}

/// What came of one step of feeding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fed {
    pub fed: u64,
    /// Go on behind this task; `None` at the end.
    pub next: Option<Seq>,
}

/// A row, and whether a task needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedWake {
    pub message: i64,
    pub receipt: Option<Arc<str>>,
    pub needed: bool,
}

/// What a message stands for now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveWake {
    /// The task waits; otherwise it is held.
    pub ready: bool,
    /// Under which name it was published last.
    pub receipt: Option<Arc<str>>,
}

/// Published rows of a queue, for a look at whether the transport still has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedWake {
    pub message: i64,
    pub receipt: Arc<str>,
    pub ready: bool,
}

/// The part of a store that keeps effects until they were performed.
#[async_trait]
pub trait OutboxStore {
    /// Takes up to `limit` waiting rows of this kind and key that are due, oldest first, for `hold_ms`. A crash
    /// afterwards delays them by that long.
    async fn take_effects(
        &self,
        kind: EffectKind,
        key: &str,
        limit: usize,
        hold_ms: DurationMs,
    ) -> Result<Vec<DueEffect>, StoreError>;

    /// Removes rows: their effects were performed, or nobody needs them. A crash before it performs them again.
    async fn effects_done(&self, ids: &[i64]) -> Result<(), StoreError>;

    /// Notes under which names rows were published, also those that were published before. Gives the rows that are gone:
    /// their tasks are over, and so is what was published. A crash before it publishes them again.
    async fn outbox_published(&self, published: &[(i64, Arc<str>)]) -> Result<Vec<i64>, StoreError>;

    /// Records what could not be performed. A crash before it leaves the rows to be taken when their time comes.
    async fn put_off_effects(&self, rows: &[PutOff]) -> Result<(), StoreError>;

    async fn outbox(&self, filter: &OutboxFilter) -> Result<Page<OutboxView>, StoreError>;

    /// Failed rows wait again, as if they had never been tried. Gives how many.
    async fn retry_outbox(&self, which: &OutboxRetry) -> Result<u64, StoreError>;

    async fn outbox_lag(&self, kind: EffectKind, key: &str) -> Result<OutboxLag, StoreError>;

    /// Queues whose wake-ups leave the process, without those of jobs.
    async fn external_queues(&self) -> Result<Vec<ExternalQueue>, StoreError>;

    /// Queues that have this transport, and those that still have rows of it. It counts the rows.
    async fn outbox_counts(&self, transport: Transport) -> Result<Vec<WakeCounts>, StoreError>;

    /// Gives a row to ready tasks of a queue that have none: those that were enqueued when it had another transport.
    /// Looks at some tasks behind `after` at a time.
    async fn feed_outbox(&self, queue: QueueId, after: Seq, limit: usize) -> Result<Fed, StoreError>;

    /// Rows of a queue for a transport, behind `after`, in order: is each of them still needed?
    async fn check_outbox(
        &self,
        queue: QueueId,
        transport: Transport,
        after: i64,
        limit: usize,
    ) -> Result<Vec<CheckedWake>, StoreError>;

    /// Rows of a queue that were published at least `age_ms` ago, behind `after`, in order.
    async fn published_outbox(
        &self,
        queue: QueueId,
        age_ms: DurationMs,
        after: i64,
        limit: usize,
    ) -> Result<Vec<PublishedWake>, StoreError>;

    /// Published rows wait again. Gives how many.
    async fn republish(&self, messages: &[i64]) -> Result<u64, StoreError>;

    /// What these messages stand for; those that stand for nothing any more are left out.
    async fn live_wakes(&self, messages: &[i64]) -> Result<HashMap<i64, LiveWake>, StoreError>;
}

impl NextTry {
    pub(crate) fn due(self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Refused { after_ms } | Self::Away { after_ms } => Some(now.plus(after_ms)),
            Self::Never => None,
        }
    }

    /// By how much the count of tries grows.
    pub(crate) fn tried(self) -> i32 {
        i32::from(!matches!(self, Self::Away { .. }))
    }
}

impl OutboxView {
    /// A page of up to `limit` out of what was found with a limit of one more.
    pub(crate) fn page(mut items: Vec<Self>, limit: usize) -> Page<Self> {
        let more = items.len() > limit;
        items.truncate(limit);
        let next = items.last().filter(|_| more).map(|last| last.message.to_string());
        Page { items, next }
    }
}
