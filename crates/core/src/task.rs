//! A task and the places where it can stand.
//!
//! The body says what to run. A task is in exactly one place at a time, and each place is a table of the store: the row
//! is inserted when the task arrives there and deleted when it leaves.

mod body;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::attempt::{ClosedAttempt, Evidence, Failure, Progress};
use crate::id::{AttemptId, Fence, Seq, WorkerId};
use crate::lease::{Grace, Lease};
use crate::limits;
use crate::queue::{Push, QueueId, QueueSettings};
use crate::run::Member;
use crate::time::{DurationMs, Timestamp};

pub use body::{Body, EnvelopeSpec, Idempotency, SandboxCommand, SandboxRun, Spec};

/// What a task carries from place to place once it is more than freshly submitted.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Carry {
    #[serde(default, skip_serializing_if = "Spec::is_default")]
    pub spec: Spec,
    /// Attempts granted beyond the submitted budget, by manual retry and redrive.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub extra_attempts: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub redrives: u32,
    /// How often a holder that had to stop gave it back.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub handed_back: u32,
    /// The last attempt, until the next grant: its holder's late report is judged by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<Box<ClosedAttempt>>,
    /// What the last attempt saved for the next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Arc<str>>,
    /// Set for the tasks of a run: their ends have consequences.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<Box<Member>>,
    /// How the attempt in flight reaches its worker, if it is pushed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery: Option<Box<PushProgress>>,
    /// A report of the attempt in flight by a worker that does not hold it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Box<Evidence>>,
}

/// How far a pushed attempt has come on its way to a worker. It is part of the row that holds the lease, so that the
/// grant and the intent to push commit together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushProgress {
    /// Since when the task was ready.
    pub ready_at: Timestamp,
    /// How often it was pushed, or was about to be.
    pub deliveries: u32,
    /// When it is to be pushed again, unless something comes of the last push.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_at: Option<Timestamp>,
    /// A push was accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted_at: Option<Timestamp>,
    /// A worker took the attempt up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// What the worker's clock said at the start and at the last heartbeat. Shown, never judged by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told_started_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told_heartbeat_at: Option<Timestamp>,
    /// Why there was no room for it at the last try.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_room: Option<Arc<str>>,
    /// Why its worker could not be reached at the last try.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreachable: Option<Arc<str>>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

impl Carry {
    pub fn fresh(spec: Spec) -> Self {
        Self { spec, ..Self::default() }
    }

    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Counts an attempt that its holder gave back. It costs nothing of the budget, unless that has happened too often: a
    /// task that outlives every worker has to end.
    #[must_use]
    pub fn hand_back(&mut self) -> bool {
        let is_free = self.handed_back < limits::HANDED_BACK_MAX;
        if is_free {
            self.handed_back += 1;
            self.extra_attempts = self.extra_attempts.saturating_add(1);
        }
        is_free
    }

    /// How many attempts the task may have in all.
    pub fn allowed_attempts(&self) -> u32 {
        self.spec.max_attempts().saturating_add(self.extra_attempts)
    }
}

impl PushProgress {
    pub fn granted(ready_at: Timestamp, push: &Push, now: Timestamp) -> Self {
        Self {
            ready_at,
            deliveries: 1,
            no_room: None,
            unreachable: None,
            next_at: Some(now.plus(push.ack_timeout_ms + limits::PUSH_SLACK_MS)),
            accepted_at: None,
            started_at: None,
            told_started_at: None,
            told_heartbeat_at: None,
        }
    }
}

/// Where a task stands.
#[derive(Debug, Clone, PartialEq)]
pub enum Place {
    /// Waits for other tasks of its run.
    Blocked(Blocked),
    /// Due later: delayed, or in back-off.
    Scheduled(Waiting),
    /// May be granted now.
    Ready(Waiting),
    /// Held under a lease.
    Running(Running),
    /// Ended.
    Finished(Finished),
}

impl Place {
    pub fn state(&self) -> State {
        match self {
            Self::Blocked(_) => State::Blocked,
            Self::Scheduled(_) => State::Scheduled,
            Self::Ready(_) => State::Ready,
            Self::Running(_) => State::Running,
            Self::Finished(finished) => match finished.end {
                End::Succeeded => State::Succeeded,
                End::Failed => State::Failed,
                End::Canceled => State::Canceled,
                End::Skipped => State::Skipped,
            },
        }
    }

    pub fn queue(&self) -> QueueId {
        match self {
            Self::Blocked(blocked) => blocked.queue,
            Self::Scheduled(waiting) | Self::Ready(waiting) => waiting.queue,
            Self::Running(running) => running.queue,
            Self::Finished(finished) => finished.queue,
        }
    }

    pub fn attempt(&self) -> u32 {
        match self {
            Self::Blocked(_) => 0,
            Self::Scheduled(waiting) | Self::Ready(waiting) => waiting.attempt,
            Self::Running(running) => running.attempt,
            Self::Finished(finished) => finished.attempt,
        }
    }

    pub fn fence(&self) -> Fence {
        match self {
            Self::Blocked(_) => Fence::default(),
            Self::Scheduled(waiting) | Self::Ready(waiting) => waiting.fence,
            Self::Running(running) => running.lease.generation,
            Self::Finished(finished) => finished.fence,
        }
    }

    pub fn standing(&self) -> Standing {
        let started = matches!(self, Self::Running(running) if running.started_at().is_some());
        Standing { state: self.state(), attempt: self.attempt(), started }
    }

    /// The last attempt, if it has ended.
    pub fn last_attempt(&self) -> Option<&ClosedAttempt> {
        match self {
            Self::Scheduled(waiting) | Self::Ready(waiting) => waiting.carry.last.as_deref(),
            Self::Blocked(_) | Self::Running(_) => None,
            Self::Finished(finished) => finished.carry.last.as_deref(),
        }
    }

    /// What the task carries with it.
    pub fn carry(&self) -> &Carry {
        match self {
            Self::Blocked(blocked) => &blocked.carry,
            Self::Scheduled(waiting) | Self::Ready(waiting) => &waiting.carry,
            Self::Running(running) => &running.carry,
            Self::Finished(finished) => &finished.carry,
        }
    }

    /// How it ended, if it has.
    pub fn end(&self) -> Option<End> {
        match self {
            Self::Finished(finished) => Some(finished.end),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    Scheduled,
    Ready,
    Running,
    Succeeded,
    Failed,
    Canceled,
    Blocked,
    Skipped,
}

impl State {
    /// Facts are recorded by the place in this list: new ones go to its end.
    pub const ALL: [Self; 8] = [
        Self::Scheduled,
        Self::Ready,
        Self::Running,
        Self::Succeeded,
        Self::Failed,
        Self::Canceled,
        Self::Blocked,
        Self::Skipped,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Scheduled => "Scheduled",
            Self::Ready => "Ready",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Canceled => "Canceled",
            Self::Blocked => "Blocked",
            Self::Skipped => "Skipped",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

/// Row of `blocked`: a task of a run that has not been ready yet.
#[derive(Debug, Clone, PartialEq)]
pub struct Blocked {
    pub queue: QueueId,
    pub priority: u8,
    /// How many of the tasks that it depends on have not succeeded yet.
    pub waiting_on: u32,
    /// Not before this, even when nothing is left to wait for.
    pub at: Timestamp,
    /// Set while the queue has a fairness key.
    pub fair: Option<Arc<str>>,
    pub carry: Carry,
}

impl Blocked {
    /// As it ends without ever having been ready. That is final: nothing puts it among what is ready.
    pub fn ended(&self, end: End, now: Timestamp) -> Finished {
        let mut carry = self.carry.clone();
        if let Some(member) = &mut carry.run {
            member.sealed = true;
        }
        Finished::of(self.queue, end, now, (0, Fence::default()), carry)
    }

    /// Where it goes when there is nothing left to wait for. `row` is its own.
    pub fn freed(&self, row: Seq, now: Timestamp) -> Place {
        let mut carry = self.carry.clone();
        carry.run.iter_mut().for_each(|member| member.refs.clear());
        let at = self.at.max(now);
        Waiting::first(row, self.queue, self.priority, at, self.fair.clone(), carry).at_its_place(now)
    }
}

/// Where a task stands, as far as a refused caller is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    pub state: State,
    /// The last granted attempt, 0 if there was none.
    pub attempt: u32,
    /// A worker has started the attempt that is in flight. A pushed attempt is running before that.
    pub started: bool,
}

/// Row of `scheduled` and `ready`.
#[derive(Debug, Clone, PartialEq)]
pub struct Waiting {
    pub queue: QueueId,
    pub priority: u8,
    /// Scheduled: when it is due. Ready: since when.
    pub at: Timestamp,
    /// Set while the queue has a fairness key.
    pub fair: Option<Arc<str>>,
    /// The live wake-up; fresh with every enqueue.
    pub message: i64,
    /// The last granted attempt, 0 before the first.
    pub attempt: u32,
    pub fence: Fence,
    pub carry: Carry,
}

impl Waiting {
    /// A task that has had no attempt. Its own number, which is as fresh as any, serves as the first message.
    pub fn first(row: Seq, queue: QueueId, priority: u8, at: Timestamp, fair: Option<Arc<str>>, carry: Carry) -> Self {
        Self { queue, priority, at, fair, message: row.0, attempt: 0, fence: Fence::default(), carry }
    }

    /// Ready if its time has come, otherwise scheduled.
    pub fn at_its_place(self, now: Timestamp) -> Place {
        if self.at > now { Place::Scheduled(self) } else { Place::Ready(self) }
    }

    /// The task as it ends without another attempt.
    pub fn ended(&self, end: End, now: Timestamp) -> Finished {
        Finished::of(self.queue, end, now, (self.attempt, self.fence), self.carry.clone())
    }
}

/// Row of `running`: the lease itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Running {
    pub queue: QueueId,
    pub priority: u8,
    pub fair: Option<Arc<str>>,
    pub message: i64,
    /// A pushed attempt has no holder until a worker starts it.
    pub lease: Lease<Option<WorkerId>>,
    pub attempt: u32,
    pub attempt_id: AttemptId,
    pub claim_id: Option<Arc<str>>,
    pub incarnation: Option<Arc<str>>,
    pub granted_at: Timestamp,
    pub last_heartbeat_at: Option<Timestamp>,
    pub progress: Progress,
    pub lease_ttl_ms: DurationMs,
    pub heartbeat_ms: DurationMs,
    pub cancel: Option<CancelRequest>,
    pub carry: Carry,
}

impl Running {
    /// The task as it ends with this attempt.
    pub fn ended(&self, closed: ClosedAttempt, end: End, now: Timestamp) -> Finished {
        let granted = (self.attempt, self.lease.generation);
        // The reason stays also on a task that succeeded within the grace.
        let cancel_reason = self.cancel.as_ref().map(|cancel| Arc::clone(&cancel.reason));
        Finished { cancel_reason, ..Finished::of(self.queue, end, now, granted, self.carry_on(closed)) }
    }

    /// The task as it waits for another attempt after this one.
    pub fn put_back(&self, closed: ClosedAttempt, at: Timestamp, message: i64) -> Waiting {
        Waiting {
            queue: self.queue,
            priority: self.priority,
            at,
            fair: self.fair.clone(),
            message,
            attempt: self.attempt,
            fence: self.lease.generation,
            carry: self.carry_on(closed),
        }
    }

    fn carry_on(&self, closed: ClosedAttempt) -> Carry {
        Carry { last: Some(Box::new(closed)), delivery: None, evidence: None, ..self.carry.clone() }
    }

    /// When its worker took it up. A claim takes a task up as it is granted; a push has to arrive first.
    pub fn started_at(&self) -> Option<Timestamp> {
        self.carry.delivery.as_ref().map_or(Some(self.granted_at), |delivery| delivery.started_at)
    }

    /// When the lease was last granted or renewed by its holder.
    pub fn extended_at(&self) -> Timestamp {
        self.last_heartbeat_at.unwrap_or(self.granted_at)
    }

    /// When one attempt has run for too long; never before it has started.
    pub fn times_out_at(&self, grace: Grace) -> Timestamp {
        self.started_at().map_or(Timestamp::MAX, |start| grace.hold(start.plus(self.carry.spec.timeout_ms()), start))
    }

    /// No heartbeat extends the lease beyond this. Of these bounds only the deadline is absolute.
    pub fn not_after(&self, grace: Grace) -> Timestamp {
        let timeout = self.times_out_at(grace);
        let deadline = self.carry.spec.deadline.unwrap_or(Timestamp::MAX);
        let cancel = self.cancel.as_ref().map_or(Timestamp::MAX, |cancel| self.cancel_by(cancel, grace));
        timeout.min(deadline).min(cancel)
    }

    /// The cancel grace starts when a heartbeat first carried the signal, at the latest one interval after the request.
    pub fn cancel_by(&self, cancel: &CancelRequest, grace: Grace) -> Timestamp {
        let latest_signal = cancel.requested_at.plus(self.heartbeat_ms);
        let signal = cancel.signaled_at.map_or(latest_signal, |at| at.min(latest_signal));
        grace.hold(signal.plus(self.carry.spec.cancel_grace_ms()), cancel.requested_at)
    }
}

/// Somebody wants the task to stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CancelRequest {
    pub reason: Arc<str>,
    pub requested_at: Timestamp,
    pub signaled_at: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    Succeeded,
    Failed,
    Canceled,
    /// Never ran: a task that it depends on failed.
    Skipped,
}

/// Why a task failed for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailReason {
    MaxAttempts,
    NonRetryable,
    DeadlineExceeded,
}

impl FailReason {
    pub const ALL: [Self; 3] = [Self::MaxAttempts, Self::NonRetryable, Self::DeadlineExceeded];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MaxAttempts => "max_attempts",
            Self::NonRetryable => "non_retryable",
            Self::DeadlineExceeded => "deadline_exceeded",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == text)
    }
}

/// Row of `finished`. The final attempt is in [`Carry::last`].
#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    pub queue: QueueId,
    pub end: End,
    pub finished_at: Timestamp,
    pub result: Option<Arc<str>>,
    pub failure: Option<Failure>,
    pub reason: Option<FailReason>,
    pub dead_lettered_at: Option<Timestamp>,
    pub cancel_reason: Option<Arc<str>>,
    /// The last granted attempt, 0 if there was none.
    pub attempt: u32,
    pub fence: Fence,
    pub carry: Carry,
}

impl Finished {
    /// A task that has ended. The caller adds what the end leaves behind: a result, a failure, a reason.
    fn of(queue: QueueId, end: End, now: Timestamp, (attempt, fence): (u32, Fence), carry: Carry) -> Self {
        Self {
            queue,
            end,
            finished_at: now,
            result: None,
            failure: None,
            reason: None,
            dead_lettered_at: None,
            cancel_reason: None,
            attempt,
            fence,
            carry,
        }
    }

    /// It failed for good: a dead letter, unless its queue has none.
    #[must_use]
    pub fn failed(self, reason: FailReason, queue: &QueueSettings) -> Self {
        let dead_lettered_at = (!queue.no_dead_letter).then_some(self.finished_at);
        Self { reason: Some(reason), dead_lettered_at, ..self }
    }
}
