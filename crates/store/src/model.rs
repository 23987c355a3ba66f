//! What people ask a store for, and what it shows them.

use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tenure_core::attempt::{ClosedAttempt, Failure, Progress};
use tenure_core::batch::Counts;
use tenure_core::command::Reach;
use tenure_core::event::Fact;
use tenure_core::queue::{Queue, Transport};
use tenure_core::run::{Run, RunState, Upstream};
use tenure_core::task::{Body, Place, Running, State};
use tenure_core::time::Timestamp;
use tenure_core::{IdPrefix, RunId, Seq, TaskId, limits};

#[derive(Debug, Clone)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Where the next page starts.
    pub next: Option<String>,
}

impl<T> Page<T> {
    /// Of one item more than `limit`, sorted by a name: the first ones, and the name that the next page starts after.
    pub(crate) fn of_names(mut items: Vec<T>, limit: usize, name: impl Fn(&T) -> String) -> Self {
        let more = items.len() > limit;
        items.truncate(limit);
        let next = items.last().filter(|_| more).map(name);
        Self { items, next }
    }
}

/// Rows of a page in their order, and whether there are more.
pub(crate) struct PageRows {
    pub seqs: Vec<Seq>,
    pub more: bool,
}

impl PageRows {
    /// Of one row more than `limit`, the first ones that fit a page in number and in bytes. One always fits.
    pub fn fitting(mut seqs: Vec<Seq>, limit: usize, bytes_of: impl Fn(Seq) -> usize) -> Self {
        let found = seqs.len();
        let mut bytes: usize = 0;
        let fits = |(place, seq): (usize, &Seq)| {
            bytes = bytes.saturating_add(bytes_of(*seq));
            place < limit && (place == 0 || bytes <= limits::PAGE_BYTES)
        };
        let fit = seqs.iter().enumerate().map(fits).take_while(|fits| *fits).count();
        seqs.truncate(fit);
        Self { more: found > seqs.len(), seqs }
    }

    pub fn next(&self) -> Option<String> {
        self.seqs.last().filter(|_| self.more).map(|seq| seq.0.to_string())
    }
}

/// A task as it stands.
#[derive(Debug, Clone)]
pub struct TaskView {
    pub body: Arc<Body>,
    pub place: Place,
    pub queue: Arc<str>,
}

/// A run with its tasks, in the order in which they were submitted.
#[derive(Debug, Clone)]
pub struct RunView {
    pub run: Run,
    pub tasks: Vec<RunTaskView>,
}

/// A task as its run shows it: without what it was given and what it made.
#[derive(Debug, Clone)]
pub struct RunTaskView {
    pub id: TaskId,
    pub key: Arc<str>,
    pub operator: Arc<str>,
    pub queue: Arc<str>,
    /// Keys of the tasks that it was submitted to wait for.
    pub depends_on: Vec<Arc<str>>,
    pub state: State,
    pub attempt: u32,
    /// When the last attempt, or the one in flight, started. A pushed attempt may not have started yet, or at all.
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    pub progress: Progress,
    pub failure: Option<Failure>,
    pub cancel_reason: Option<Arc<str>>,
    /// When it is due, if it waits for that.
    pub due_at: Option<Timestamp>,
}

/// A run with all that is needed to repeat it.
#[derive(Debug, Clone)]
pub struct RunMaterial {
    pub run: Run,
    pub tasks: Vec<(TaskView, Vec<Seq>)>,
}

/// A run, and how large all is that is needed to repeat it.
#[derive(Debug, Clone, PartialEq)]
pub struct RunWeight {
    pub run: Run,
    /// The payloads of its tasks, and the results of those that succeeded.
    pub bytes: u64,
}

#[derive(Debug, Clone, Default)]
pub struct RunFilter {
    pub state: Option<RunState>,
    pub label: Option<(String, String)>,
    pub run_key: Option<String>,
    pub workspace: Option<String>,
    /// Only the newest [`ID_PREFIX_ROWS`](tenure_core::limits::ID_PREFIX_ROWS) runs are searched for it.
    pub id_prefix: Option<IdPrefix>,
    /// Created at or after.
    pub after: Option<Timestamp>,
    /// Created before.
    pub until: Option<Timestamp>,
    pub reach: Reach,
    /// Newest first; only runs older than this one.
    pub before: Option<Seq>,
    pub limit: usize,
}

/// Whose a task is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Whose {
    pub tenant: Arc<str>,
    pub owner: Option<Arc<str>>,
}

/// An attempt of a task's history.
#[derive(Debug, Clone)]
pub enum AttemptView {
    Closed(Box<ClosedAttempt>),
    Open(Box<Running>),
}

impl TaskView {
    /// How much it takes in memory, about.
    pub fn bytes(&self) -> usize {
        let ended = match &self.place {
            Place::Finished(finished) => {
                text(finished.result.as_ref())
                    + finished.failure.as_ref().and_then(|f| f.stack.as_ref()).map_or(0, |s| s.len())
            }
            _ => 0,
        };
        let carry = self.place.carry();
        let last = carry.last.as_deref().map_or(0, attempt_bytes);
        ENTRY_BYTES + self.body.payload.len() + ended + text(carry.checkpoint.as_ref()) + last
    }
}

/// A task or an attempt without what can be large.
const ENTRY_BYTES: usize = 2 << 10;

fn text(text: Option<&Arc<str>>) -> usize {
    text.map_or(0, |text| text.len())
}

fn attempt_bytes(attempt: &ClosedAttempt) -> usize {
    let of = |failure: &Failure| failure.stack.as_ref().map_or(0, |stack| stack.len());
    let sent = attempt.callback.as_ref().and_then(|part| part.completion.as_ref()).map_or(0, |sent| {
        text(sent.output.as_ref()) + text(sent.partial_progress.as_ref()) + text(sent.metrics.as_ref())
    });
    let kept =
        attempt.evidence.as_ref().map_or(0, |kept| text(kept.result.as_ref()) + kept.failure.as_ref().map_or(0, of));
    ENTRY_BYTES + attempt.failure.as_ref().map_or(0, of) + sent + kept
}

/// Which attempts of a task are asked for: at most `limit` that are newer than attempt `after`.
#[derive(Debug, Clone, Copy)]
pub struct AttemptRange {
    pub after: u32,
    pub limit: usize,
}

impl AttemptView {
    /// The attempt that stands in the row of its task and not in the history.
    pub(crate) fn newest(place: Place) -> Option<Self> {
        match place {
            Place::Running(running) => Some(Self::Open(Box::new(running))),
            Place::Finished(finished) => finished.carry.last.map(Self::Closed),
            Place::Blocked(_) | Place::Scheduled(_) | Place::Ready(_) => None,
        }
    }

    /// How much it takes in memory, about.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Closed(closed) => attempt_bytes(closed),
            Self::Open(running) => ENTRY_BYTES + text(running.carry.checkpoint.as_ref()),
        }
    }

    fn number(&self) -> u32 {
        match self {
            Self::Closed(closed) => closed.number,
            Self::Open(running) => running.attempt,
        }
    }

    /// A page of the history. `more` if attempts of the history are left over; the newest attempt comes after all of them.
    pub(crate) fn page(closed: Vec<ClosedAttempt>, more: bool, place: Place, asked: AttemptRange) -> Page<Self> {
        let newest = Self::newest(place).filter(|newest| newest.number() > asked.after);
        let mut items: Vec<Self> = closed.into_iter().map(|attempt| Self::Closed(Box::new(attempt))).collect();
        let mut more = more;
        match newest {
            Some(newest) if !more && items.len() < asked.limit => items.push(newest),
            Some(_) => more = true,
            None => {}
        }
        let next = items.last().filter(|_| more).map(|last| last.number().to_string());
        Page { items, next }
    }
}

#[derive(Debug, Clone, Default)]
pub struct TaskFilter {
    pub queue: Option<String>,
    pub state: Option<State>,
    pub operator: Option<String>,
    pub workspace: Option<String>,
    pub tag: Option<(String, String)>,
    /// Only the newest [`ID_PREFIX_ROWS`](tenure_core::limits::ID_PREFIX_ROWS) tasks are searched for it.
    pub id_prefix: Option<IdPrefix>,
    pub run: Option<RunId>,
    pub idempotency_key: Option<String>,
    /// Of the task's newest attempt.
    pub worker: Option<String>,
    /// Of tasks that failed.
    pub error_code: Option<String>,
    /// The credential of the submission.
    pub submitted_by: Option<String>,
    /// Created at or after.
    pub after: Option<Timestamp>,
    /// Created before.
    pub until: Option<Timestamp>,
    pub reach: Reach,
    /// Newest first; only tasks older than this one.
    pub before: Option<Seq>,
    pub limit: usize,
}

#[derive(Debug, Clone, Default)]
pub struct DeadLetterFilter {
    pub filter: RedriveFilter,
    pub reach: Reach,
    /// Oldest first; only tasks newer than this one.
    pub after: Option<Seq>,
    pub limit: usize,
}

/// Joined by AND.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RedriveFilter {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Dead-lettered at or after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Timestamp>,
    /// Dead-lettered before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<Vec<Seq>>,
}

impl RedriveFilter {
    /// The tenant and the owner to look for on behalf of a caller. `None` if what was asked for lies outside of the
    /// caller's reach: then nothing is found.
    pub(crate) fn within<'a>(&'a self, reach: &'a Reach) -> Option<(Option<&'a str>, Option<&'a str>)> {
        let both = |own: Option<&'a str>, asked: Option<&'a str>| match (own, asked) {
            (Some(own), Some(asked)) if own != asked => None,
            (own, asked) => Some(own.or(asked)),
        };
        Some((both(reach.tenant(), self.tenant.as_deref())?, both(reach.owner(), self.owner.as_deref())?))
    }
}

#[derive(Debug, Clone)]
pub struct NewRedrive {
    pub redrive_id: u128,
    /// Unique per tenant and owner: whoever starts it sees to that.
    pub key: Option<String>,
    pub filter: RedriveFilter,
    /// Tasks per second.
    pub rate: Option<f64>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct RedriveView {
    pub redrive_id: u128,
    pub filter: RedriveFilter,
    pub rate: Option<f64>,
    pub matched: u64,
    pub released: u64,
    pub cursor: Seq,
    pub started_at: Timestamp,
    pub finished: bool,
    /// Nothing is released until it is resumed.
    pub paused: bool,
    /// It ended before everything was released.
    pub canceled: bool,
}

/// Where a list of redrives, newest first, goes on: after the one that was started then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RedriveCursor {
    pub started_at: Timestamp,
    pub redrive_id: u128,
}

/// What is done about a redrive that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RedriveChange {
    Pause,
    Resume,
    /// Ends it. What was released stays released.
    Cancel,
}

#[derive(Debug, Clone)]
pub struct QueueStats {
    pub queue: Queue,
    pub counts: Counts,
    pub oldest_ready_at: Option<Timestamp>,
}

#[derive(Debug, Clone)]
pub struct QueueView {
    pub queue: Queue,
    pub running: u32,
    pub worker_seen_at: Option<Timestamp>,
    pub now: Timestamp,
}

/// The facts of one committed batch.
#[derive(Debug, Clone)]
pub struct EventBatch {
    pub batch: i64,
    pub at: Timestamp,
    pub facts: Vec<Fact>,
}

/// Which transactions have ended. Batches are numbered before they commit, so that one that is missing between two others may
/// appear later: not once `oldest` has reached what `next` was after the others were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventHorizon {
    /// All transactions before this one have ended.
    pub oldest: i64,
    /// The next transaction.
    pub next: i64,
}

impl TaskView {
    /// As those who wait for it see it; `None` if it is in no run.
    pub fn upstream(&self) -> Option<Upstream> {
        let run = self.body.run.as_ref()?;
        Some(Upstream { key: Arc::clone(&run.key), task: self.body.id, state: self.place.state() })
    }

    pub fn id(&self) -> TaskId {
        self.body.id
    }
}

/// What new queues get.
#[derive(Debug, Clone, Default)]
pub(crate) struct DefaultTransport(Arc<Mutex<Transport>>);

impl DefaultTransport {
    pub fn set(&self, transport: Transport) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = transport;
    }

    pub fn get(&self) -> Transport {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
