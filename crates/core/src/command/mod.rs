//! The commands, one file each.
//!
//! Each `decide` takes one task and returns what changes and the answer. A refusal can change something too: a report
//! that arrives too late is kept as evidence.

pub mod callback;
pub mod cancel;
pub mod claim;
pub mod emit;
pub mod ending;
pub mod expire;
pub mod heartbeat;
pub mod hello;
pub mod live;
mod profile;
pub mod promote;
pub mod push;
pub mod queues;
pub mod redrive;
pub mod release;
pub mod report;
pub mod retry;
pub mod rewake;
pub mod run;
pub mod submit;

#[cfg(test)]
pub(crate) mod testing;

use std::sync::Arc;

pub use profile::{Kind, Profile, Target};

use crate::attempt::{ClosedAttempt, Reason, Receipt};
use crate::batch::Counts;
use crate::dag::{DataRefusal, DataReport};
use crate::event::{Fact, FactKind};
use crate::id::{RunId, TaskId};
use crate::lease::Grace;
use crate::mutant;
use crate::queue::QueueId;
use crate::run::RunState;
use crate::task::{Body, Place, State};
use crate::time::{DurationMs, Timestamp};

/// A task as a decision sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    pub id: TaskId,
    pub place: Place,
    /// Loaded only for the commands that need it.
    pub body: Option<Arc<Body>>,
}

/// What a decision may use beside the state: the time, and numbers that nobody has used.
#[derive(Debug)]
pub struct Context<'a> {
    pub now: Timestamp,
    pub grace: Grace,
    pub numbers: &'a mut Numbers,
    /// The task has ended, and its end has had consequences in its run or its run has ended too: no late report and no
    /// retry changes it any more.
    pub sealed: bool,
    /// The task has ended, and its queue was deleted since.
    pub queue_deleted: bool,
}

impl<'a> Context<'a> {
    /// For a task whose end is not sealed, in a queue that exists.
    pub const fn new(now: Timestamp, grace: Grace, numbers: &'a mut Numbers) -> Self {
        Self { now, grace, numbers, sealed: false, queue_deleted: false }
    }
}

/// Fresh sequence numbers, reserved before the batch began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbers {
    next: i64,
    end: i64,
}

impl Numbers {
    /// The numbers from `start` up to, not including, `end`.
    pub const fn new(start: i64, end: i64) -> Self {
        Self { next: start, end }
    }

    pub fn take(&mut self) -> i64 {
        assert!(self.next < self.end, "a batch reserves as many numbers as its commands can use");
        let number = self.next;
        self.next += 1;
        number
    }
}

/// What becomes of one task.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    pub place: Place,
    pub attempts: Vec<AttemptChange>,
    pub facts: Vec<Fact>,
    pub outbox: Vec<Wake>,
    pub data: Vec<TaskData>,
}

/// What an attempt says about datasets, to be written with the rest.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskData {
    pub task: TaskId,
    pub attempt: u32,
    pub report: Arc<DataReport>,
}

impl Change {
    pub fn to(place: Place) -> Self {
        Self { place, attempts: Vec::new(), facts: Vec::new(), outbox: Vec::new(), data: Vec::new() }
    }

    #[must_use]
    pub fn with_attempt(mut self, change: AttemptChange) -> Self {
        self.attempts.push(change);
        self
    }

    /// Records a fact about the task as it stands after this change.
    #[must_use]
    pub fn with_fact(mut self, id: TaskId, kind: FactKind, reason: Option<Reason>) -> Self {
        self.facts.push(Fact {
            kind,
            task: id,
            queue: self.place.queue(),
            state: self.place.state(),
            attempt: self.place.attempt(),
            reason,
        });
        self
    }

    /// Writes the wake-up of a task that became ready.
    #[must_use]
    pub fn with_wake(mut self, id: TaskId) -> Self {
        if let Place::Ready(waiting) = &self.place {
            self.outbox.push(Wake { task: id, queue: waiting.queue, message: waiting.message });
        }
        self
    }

    /// Writes what the attempt says about datasets.
    #[must_use]
    pub fn with_data(mut self, task: TaskId, attempt: u32, report: &Arc<DataReport>) -> Self {
        self.data.push(TaskData { task, attempt, report: Arc::clone(report) });
        self
    }

    /// This change, then another one made from its outcome.
    #[must_use]
    pub fn then(mut self, later: Self) -> Self {
        self.attempts.extend(later.attempts);
        self.facts.extend(later.facts);
        self.outbox.extend(later.outbox);
        self.data.extend(later.data);
        Self { place: later.place, ..self }
    }
}

/// Rows of the attempt history.
#[derive(Debug, Clone, PartialEq)]
pub enum AttemptChange {
    /// Written, or written over with a receipt or evidence.
    Put(Box<ClosedAttempt>),
    /// Moves into the finished row.
    Drop(u32),
}

/// A side effect: somebody who waits for work of this queue should ask now. Only a hint; the ready row is the truth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wake {
    pub task: TaskId,
    pub queue: QueueId,
    pub message: i64,
}

/// The outcome of a decision about one task.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    pub change: Option<Change>,
    pub answer: Result<Answer, Rejection>,
}

impl Decision {
    pub fn accept(change: Change, answer: Answer) -> Self {
        Self { change: Some(change), answer: Ok(answer) }
    }

    pub fn unchanged(answer: Answer) -> Self {
        Self { change: None, answer: Ok(answer) }
    }

    pub fn refuse(rejection: Rejection) -> Self {
        Self { change: None, answer: Err(rejection) }
    }

    /// Puts an earlier change of the same task before this one's.
    #[must_use]
    pub fn after(self, earlier: Option<Change>) -> Self {
        let change = match (earlier, self.change) {
            (Some(earlier), Some(later)) => Some(earlier.then(later)),
            (earlier, later) => earlier.or(later),
        };
        Self { change, ..self }
    }
}

/// A command that was accepted.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    Submitted(Vec<submit::Submitted>),
    Claimed(claim::Claimed),
    NotGranted(claim::NotGranted),
    Renewed(heartbeat::Renewed),
    Reported(Receipt),
    Canceled(cancel::Canceled),
    Callback(callback::CallbackAnswer),
    Retried(retry::Retried),
    Redriven {
        released: u64,
    },
    Queue(crate::queue::Queue),
    RunSubmitted(run::RunSubmitted),
    RunCanceled(run::RunCanceled),
    /// Background work: whether anything changed.
    Done(bool),
}

/// A command that was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rejection {
    /// No such task, or none within reach.
    NotFound,
    /// The holder is not, or no longer, the holder.
    Conflict(Conflict),
    /// The key belongs to a task of other content, or of another owner, which is then not named. `index` is the entry's
    /// place in the submission.
    IdempotencyConflict {
        index: usize,
        existing: Option<TaskId>,
    },
    /// The contents of a report do not fit its task.
    Data(DataRefusal),
    /// A callback that does not count.
    Callback(callback::Refusal),
    /// The tokens of the task's attempts could run out before the attempt does. `index` is the entry's place in the
    /// submission.
    TokenTtl {
        index: usize,
        needed_ms: DurationMs,
        allowed_ms: DurationMs,
    },
    /// The task asks for a sandbox and its queue does not run any, or the queue runs sandboxes and the task asks for none.
    /// `index` is the entry's place in the submission.
    Runtime {
        index: usize,
        wants_sandbox: bool,
    },
    /// The task has ended; there is nothing to cancel.
    AlreadyTerminal {
        state: State,
    },
    NotRetryable {
        state: State,
        reason: NotRetryableReason,
    },
    /// No such run, or none within reach.
    RunNotFound,
    /// The key belongs to a run of other content, or of another owner, which is then not named.
    RunKeyConflict {
        existing: Option<(RunId, [u8; 32])>,
        requested: [u8; 32],
    },
    /// The run has ended; there is nothing to cancel.
    RunAlreadyTerminal {
        state: RunState,
    },
    /// Only a run that failed or was canceled can be repeated.
    RunNotRerunnable {
        state: RunState,
    },
    /// A newer process has this worker's name.
    StaleIncarnation,
    /// No such queue, or it belongs to another tenant.
    QueueNotFound,
    /// The queue is shared by all tenants: none of them may set it.
    QueueShared,
    /// The queue has tasks that must not be left without it.
    QueueNotEmpty(Counts),
}

/// Why an ended task is not put back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotRetryableReason {
    /// Only what failed or was canceled can be retried.
    State,
    /// Its run has ended or continued without it: the run is repeated instead.
    Sealed,
    /// Its queue was deleted. A queue that was created later under the same name is another one.
    QueueDeleted,
    PastDeadline,
}

/// Why a holder was refused, and where the task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conflict {
    pub kind: ConflictKind,
    pub state: State,
    pub dead_lettered: bool,
    /// The attempt that counts now.
    pub attempt: u32,
    /// The old message is safe to drop.
    pub ack: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConflictKind {
    /// Another attempt was granted since.
    StaleAttempt,
    /// The token is not that of the attempt.
    StaleLease,
    /// The token is that of the attempt, and the credential is that of another worker.
    OtherWorker,
    /// A heartbeat after expiry.
    LeaseExpired,
    /// The attempt has ended.
    AttemptClosed,
    /// The attempt was reported with other content.
    ConflictingCompletion,
}

impl Conflict {
    /// A refusal by where `place` stands.
    pub fn at(place: &Place, kind: ConflictKind) -> Rejection {
        let dead_lettered = matches!(place, Place::Finished(finished) if finished.dead_lettered_at.is_some());
        // While the task runs under its current attempt, that attempt's message is the live one. Every other place was
        // reached by an enqueue under a new message or by an end.
        let ack = !matches!(place, Place::Running(_)) || kind == ConflictKind::StaleAttempt;
        Rejection::Conflict(Self { kind, state: place.state(), dead_lettered, attempt: place.attempt(), ack })
    }
}

/// Whose tasks a caller may touch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Reach {
    #[default]
    All,
    Tenant(Arc<str>),
    /// What one owner submitted inside a tenant. What nobody in particular submitted is not among it.
    Owner {
        tenant: Arc<str>,
        owner: Arc<str>,
    },
}

impl Reach {
    pub fn covers(&self, tenant: &str, owner: Option<&str>) -> bool {
        if mutant!("tenant-filter-dropped") {
            return true;
        }
        match self {
            Self::All => true,
            Self::Tenant(own) => &**own == tenant,
            Self::Owner { tenant: own, owner: me } => &**own == tenant && Some(&**me) == owner,
        }
    }

    /// Whether it covers the task with this body.
    pub fn covers_task(&self, body: &Body) -> bool {
        self.covers(&body.tenant, body.owner.as_deref())
    }

    /// The one tenant to which it is limited.
    pub fn tenant(&self) -> Option<&str> {
        match self {
            Self::All => None,
            Self::Tenant(tenant) | Self::Owner { tenant, .. } => Some(tenant),
        }
    }

    /// The one owner to which it is limited.
    pub fn owner(&self) -> Option<&str> {
        match self {
            Self::All | Self::Tenant(_) => None,
            Self::Owner { owner, .. } => Some(owner),
        }
    }
}

/// Anything that can be asked.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    Submit(submit::Submit),
    Claim(claim::Claim),
    ClaimTask(claim::ClaimTask),
    Heartbeat(heartbeat::Heartbeat),
    Report(report::AttemptReport),
    Emit(emit::Emit),
    Cancel(cancel::Cancel),
    Retry(retry::Retry),
    Expire(expire::Expire),
    Promote(promote::Promote),
    Rewake(rewake::Rewake),
    Release(release::Release),
    Redrive(redrive::Redrive),
    Hello(hello::Hello),
    SetQueue(queues::SetQueue),
    PatchQueue(queues::PatchQueue),
    PauseQueue(queues::PauseQueue),
    DeleteQueue(queues::DeleteQueue),
    Callback(callback::Callback),
    TakePush(push::TakePush),
    Pushed(push::Pushed),
    SubmitRun(run::SubmitRun),
    CancelRun(run::CancelRun),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reach_covers_what_it_names_and_no_more() {
        let owner = |tenant: &str, owner: &str| Reach::Owner { tenant: tenant.into(), owner: owner.into() };
        for (reach, tenant, whose, covered) in [
            (Reach::All, "acme", None, true),
            (Reach::All, "acme", Some("ann"), true),
            (Reach::Tenant("acme".into()), "acme", None, true),
            (Reach::Tenant("acme".into()), "acme", Some("ann"), true),
            (Reach::Tenant("acme".into()), "other", None, false),
            (Reach::Tenant("acme".into()), "other", Some("ann"), false),
            (owner("acme", "ann"), "acme", Some("ann"), true),
            (owner("acme", "ann"), "acme", Some("bob"), false),
            (owner("acme", "ann"), "acme", None, false),
            (owner("acme", "ann"), "other", Some("ann"), false),
            (owner("acme", ""), "acme", None, false),
        ] {
            assert_eq!(reach.covers(tenant, whose), covered, "{reach:?} {tenant} {whose:?}");
        }
    }
}
