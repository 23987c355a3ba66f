//! How an attempt ends, and where that leaves its task.
//!
//! Reports, time, cancels, pushes and lost workers all end attempts. Each of those commands decides whether an attempt
//! ends and why; what follows from the end is decided here, once for all of them.

use std::sync::Arc;

use super::cancel::WORKER_INITIATED;
use super::{AttemptChange, Change, Context};
use crate::attempt::{AttemptState, CallbackPart, ClosedAttempt, Failure, Reason, Receipt};
use crate::event::FactKind;
use crate::id::TaskId;
use crate::queue::QueueSettings;
use crate::task::{End, FailReason, Finished, Place, Running, Waiting};
use crate::time::Timestamp;

/// The attempt in flight as an ended one.
pub fn close(
    running: &Running,
    state: AttemptState,
    reason: Reason,
    failure: Option<Failure>,
    now: Timestamp,
) -> ClosedAttempt {
    ClosedAttempt {
        number: running.attempt,
        id: running.attempt_id,
        token: running.lease.token,
        fence: running.lease.generation,
        worker: running.lease.holder.clone(),
        granted_at: running.granted_at,
        last_heartbeat_at: running.last_heartbeat_at,
        ended_at: now,
        state,
        reason,
        failure,
        progress: running.progress.clone(),
        receipt: None,
        evidence: None,
        callback: running.carry.delivery.as_deref().map(|delivery| {
            Box::new(CallbackPart {
                started_at: delivery.started_at,
                told_started_at: delivery.told_started_at,
                told_heartbeat_at: delivery.told_heartbeat_at,
                deliveries: delivery.deliveries,
                cancel_reason: running.cancel.as_ref().map(|cancel| Arc::clone(&cancel.reason)),
                completion: None,
            })
        }),
    }
}

/// Ends an attempt that its holder did not report.
pub fn end_attempt(
    id: TaskId,
    running: &Running,
    reason: Reason,
    queue: &QueueSettings,
    ctx: &mut Context<'_>,
) -> Change {
    let message: Arc<str> = match reason {
        Reason::HeartbeatTimeout => format!("no heartbeat for {} s", running.lease_ttl_ms / 1000).into(),
        Reason::Timeout => format!("ran longer than {} s", running.carry.spec.timeout_ms() / 1000).into(),
        Reason::DeadlineExceeded => "the deadline of the task has passed".into(),
        Reason::CancelTimeout => "did not stop within the cancel grace".into(),
        Reason::WorkerLost => "a newer process took over the worker's name".into(),
        Reason::StartTimeout => "the worker accepted the task but did not start it in time".into(),
        Reason::DispatchFailed => "no worker accepted the task in time".into(),
        _ => reason.as_str().to_lowercase().into(),
    };
    let failure = Failure { code: reason.as_str().into(), message, stack: None, retryable: None };
    let closed = close(running, AttemptState::Failed, reason, Some(failure), ctx.now);
    after_failure(id, running, closed, queue, ctx)
}

/// Moves a task on after an attempt that did not succeed.
pub fn after_failure(
    id: TaskId,
    running: &Running,
    closed: ClosedAttempt,
    queue: &QueueSettings,
    ctx: &mut Context<'_>,
) -> Change {
    Next::after(id, running, &closed, ctx.now).change(id, running, closed, queue, ctx)
}

/// Where a task goes after an attempt that did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    Cancel,
    Fail(FailReason),
    Retry(Timestamp),
}

impl Next {
    pub fn after(id: TaskId, running: &Running, closed: &ClosedAttempt, now: Timestamp) -> Self {
        let spec = &running.carry.spec;
        let failure = closed.failure.as_ref();
        if running.cancel.is_some() || closed.state == AttemptState::Canceled {
            return Self::Cancel;
        }
        if closed.reason == Reason::DeadlineExceeded || spec.is_past_deadline(now) {
            return Self::Fail(FailReason::DeadlineExceeded);
        }
        if !failure.is_none_or(Failure::is_retryable) {
            return Self::Fail(FailReason::NonRetryable);
        }
        if running.attempt >= running.carry.allowed_attempts() {
            return Self::Fail(FailReason::MaxAttempts);
        }
        let timed_out = closed.reason == Reason::Timeout || failure.is_some_and(Failure::is_timeout);
        let due = now.plus(spec.retry().backoff_ms(id, running.attempt, timed_out));
        if spec.is_past_deadline(due) { Self::Fail(FailReason::DeadlineExceeded) } else { Self::Retry(due) }
    }

    /// The answer to the holder, if its report led here.
    pub fn receipt(self, queue: &QueueSettings) -> Receipt {
        let dlq = matches!(self, Self::Fail(_)) && !queue.no_dead_letter;
        Receipt::Failed { requeued: matches!(self, Self::Retry(_)), dlq }
    }

    pub fn change(
        self,
        id: TaskId,
        running: &Running,
        closed: ClosedAttempt,
        queue: &QueueSettings,
        ctx: &mut Context<'_>,
    ) -> Change {
        let reason = Some(closed.reason);
        let failure = closed.failure.clone();
        match self {
            Self::Retry(due) => put_back(id, running, closed, due, FactKind::Retrying, ctx),
            Self::Fail(why) => {
                let ended = Finished { failure, ..running.ended(closed, End::Failed, ctx.now) };
                finish(id, ended.failed(why, queue), reason)
            }
            Self::Cancel => {
                let asked = running.cancel.as_ref().map(|cancel| Arc::clone(&cancel.reason));
                let cancel_reason = asked.or_else(|| Some(WORKER_INITIATED.into()));
                let ended = running.ended(closed, End::Canceled, ctx.now);
                finish(id, Finished { failure, cancel_reason, ..ended }, reason)
            }
        }
    }
}

/// Queues a task again after an attempt. The attempt moves into the history.
pub fn put_back(
    id: TaskId,
    running: &Running,
    closed: ClosedAttempt,
    due: Timestamp,
    kind: FactKind,
    ctx: &mut Context<'_>,
) -> Change {
    let reason = Some(closed.reason);
    let waiting = running.put_back(closed.clone(), due, ctx.numbers.take());
    Change::to(waiting.at_its_place(ctx.now))
        .with_attempt(AttemptChange::Put(Box::new(closed)))
        .with_fact(id, kind, reason)
        .with_wake(id)
}

/// Ends a task, and records how.
pub fn finish(id: TaskId, finished: Finished, reason: Option<Reason>) -> Change {
    let kind = match finished.end {
        End::Succeeded => FactKind::Succeeded,
        End::Failed => FactKind::Failed,
        End::Canceled => FactKind::Canceled,
        End::Skipped => FactKind::Skipped,
    };
    let dead = finished.dead_lettered_at.is_some();
    let change = Change::to(Place::Finished(finished)).with_fact(id, kind, reason);
    if dead { change.with_fact(id, FactKind::DeadLettered, reason) } else { change }
}

/// Ends a task that nobody holds. Its last attempt moves from the history into the finished row.
pub fn finish_waiting(id: TaskId, waiting: &Waiting, finished: Finished, reason: Option<Reason>) -> Change {
    let mut change = finish(id, finished, reason);
    change.attempts.extend(waiting.carry.last.as_ref().map(|last| AttemptChange::Drop(last.number)));
    change
}
