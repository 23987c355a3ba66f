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
use crate::mutant;
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
        retry_at: None,
        evidence: running.carry.evidence.as_deref().cloned(),
        metrics: None,
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
    let failure = Failure::new(reason.as_str(), &message, None, None);
    let closed = close(running, AttemptState::Failed, reason, Some(failure), ctx.now);
    let next = Next::after(id, running, &closed, ctx.now);
    let next = match queue.dead_at(running.lease.expires_at) {
        Some(dead_at) => next.no_earlier(dead_at, running),
        None => next,
    };
    next.change(id, running, closed, queue, ctx)
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
        let cancels = running.cancel.is_some() && !mutant!("canceled-task-retried");
        if cancels || closed.state == AttemptState::Canceled {
            return Self::Cancel;
        }
        if closed.reason == Reason::DeadlineExceeded || spec.is_past_deadline(now) {
            return Self::Fail(FailReason::DeadlineExceeded);
        }
        if !failure.is_none_or(Failure::is_retryable) {
            return Self::Fail(FailReason::NonRetryable);
        }
        if running.attempt >= running.carry.allowed_attempts() && !mutant!("budget-ignored") {
            return Self::Fail(FailReason::MaxAttempts);
        }
        let timed_out = closed.reason == Reason::Timeout || failure.is_some_and(Failure::is_timeout);
        let due = now.plus(spec.retry().backoff_ms(id, running.attempt, timed_out));
        if spec.is_past_deadline(due) { Self::Fail(FailReason::DeadlineExceeded) } else { Self::Retry(due) }
    }

    /// Puts a retry off until then. A retry that would come after the task's deadline is a failure.
    fn no_earlier(self, earliest: Timestamp, running: &Running) -> Self {
        match self {
            Self::Retry(_) if running.carry.spec.is_past_deadline(earliest) => Self::Fail(FailReason::DeadlineExceeded),
            Self::Retry(due) => Self::Retry(due.max(earliest)),
            other => other,
        }
    }

    /// A retry without a back-off.
    #[must_use]
    pub fn at_once(self, now: Timestamp) -> Self {
        if let Self::Retry(_) = self { Self::Retry(now) } else { self }
    }

    /// The answer to the holder, if its report led here.
    pub fn receipt(self, queue: &QueueSettings) -> Receipt {
        let dlq = matches!(self, Self::Fail(_)) && !queue.no_dead_letter && !mutant!("dead-letter-not-told");
        Receipt::Failed { requeued: matches!(self, Self::Retry(_)), dlq }
    }

    /// When the task is tried again.
    pub fn retry_at(self) -> Option<Timestamp> {
        match self {
            Self::Retry(due) => Some(due),
            Self::Cancel | Self::Fail(_) => None,
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::testing::{
        at, granted, id, no_backoff, one_attempt, place, running, running_with, settings, task, to_finished,
        to_waiting, with_ctx,
    };
    use crate::command::{Decision, Wake, expire};
    use crate::event::Fact;
    use crate::retry::{Jitter, RetryPolicy};
    use crate::task::{Spec, State};

    /// Ends what time has ended at `now`.
    fn reap(place: Place, now: i64) -> Decision {
        with_ctx(now, |ctx| expire::decide(&task(place), &settings(), ctx))
    }

    #[test]
    fn a_retry_waits_for_its_back_off_and_keeps_attempt_and_fence() {
        let decision = reap(Place::Running(running()), 60_000);
        let waiting = to_waiting(&decision);
        assert_eq!((waiting.at, waiting.message), (at(60_000 + 1_621), 1_000));
        assert_eq!((waiting.attempt, waiting.fence), (1, running().lease.generation));
        let change = decision.change.unwrap();
        assert!(matches!(&change.attempts[..], [AttemptChange::Put(closed)] if closed.number == 1));
        assert_eq!(change.outbox, []);
    }

    #[test]
    fn a_retry_without_back_off_is_ready_and_wakes_somebody() {
        let change = reap(Place::Running(running_with(no_backoff())), 60_000).change.unwrap();
        assert_eq!(change.place.state(), State::Ready);
        assert_eq!(change.outbox, [Wake { task: id(), queue: running().queue, message: 1_000 }]);
    }

    #[test]
    fn a_timed_out_attempt_waits_twice_as_long() {
        let timeout = Spec { timeout_ms: Some(50_000), ..Spec::default() };
        assert_eq!(to_waiting(&reap(Place::Running(running_with(timeout)), 50_000)).at, at(50_000 + 3_242));
        let plain = Spec {
            retry: Some(RetryPolicy { jitter: Jitter::None, ..RetryPolicy::default() }),
            timeout_ms: Some(50_000),
            ..Spec::default()
        };
        assert_eq!(to_waiting(&reap(Place::Running(running_with(plain)), 50_000)).at, at(60_000));
    }

    #[test]
    fn after_the_last_allowed_attempt_the_task_is_dead() {
        let decision = reap(Place::Running(running_with(one_attempt())), 60_000);
        let finished = to_finished(&decision);
        assert_eq!((finished.end, finished.reason), (End::Failed, Some(FailReason::MaxAttempts)));
        assert_eq!(finished.dead_lettered_at, Some(at(60_000)));
        assert_eq!(&*finished.failure.as_ref().unwrap().code, "HEARTBEAT_TIMEOUT");
        let change = decision.change.unwrap();
        let fact = |kind| Fact {
            kind,
            task: id(),
            queue: running().queue,
            state: State::Failed,
            attempt: 1,
            reason: Some(Reason::HeartbeatTimeout),
        };
        assert_eq!(change.facts, [fact(FactKind::Failed), fact(FactKind::DeadLettered)]);
        assert_eq!(change.attempts, [], "the final attempt is in the finished row");
    }

    #[test]
    fn extra_attempts_lengthen_the_budget() {
        let mut held = running_with(one_attempt());
        held.carry.extra_attempts = 1;
        assert_eq!(place(&reap(Place::Running(held), 60_000)).state(), State::Scheduled);
    }

    #[test]
    fn a_retry_that_would_start_at_the_deadline_is_not_scheduled() {
        let spec = |deadline| Spec { deadline: Some(at(deadline)), ..Spec::default() };
        let retried = reap(Place::Running(running_with(spec(61_622))), 60_000);
        assert_eq!(to_waiting(&retried).at, at(61_621));
        let failed = reap(Place::Running(running_with(spec(61_621))), 60_000);
        assert_eq!(to_finished(&failed).reason, Some(FailReason::DeadlineExceeded));
        assert_eq!(place(&failed).last_attempt().unwrap().reason, Reason::HeartbeatTimeout);
    }

    #[test]
    fn what_an_attempt_saved_is_there_for_the_next() {
        let mut held = running_with(no_backoff());
        held.carry.checkpoint = Some("page 7".into());
        let decision = reap(Place::Running(held), 60_000);
        let second = granted(to_waiting(&decision), 2, 60_000);
        assert_eq!(second.carry.checkpoint.as_deref(), Some("page 7"));
    }
}
