//! Ends what nobody reported: expired leases, timed-out attempts, passed deadlines. Also where a failed attempt leads.

use std::sync::Arc;

use super::{Answer, AttemptChange, Change, Context, Decision, Task};
use crate::attempt::{AttemptState, ClosedAttempt, Failure, Reason, Receipt};
use crate::event::FactKind;
use crate::id::{Seq, TaskId};
use crate::lease;
use crate::queue::QueueSettings;
use crate::task::{Carry, End, FailReason, Finished, Place, Running, Waiting};
use crate::time::Timestamp;

/// The reaper found this row; it is judged again inside the transaction.
#[derive(Debug, Clone, PartialEq)]
pub struct Expire {
    pub row: Seq,
}

pub fn decide(task: &Task, queue: &QueueSettings, ctx: &mut Context<'_>) -> Decision {
    let (_, change) = settle(task, queue, ctx);
    let done = change.is_some();
    Decision { change, answer: Ok(Answer::Done(done)) }
}

/// Brings a task up to date: whatever time has ended already is ended. The one place where that happens.
pub fn settle(task: &Task, queue: &QueueSettings, ctx: &mut Context<'_>) -> (Task, Option<Change>) {
    let change = match &task.place {
        Place::Running(running) => due(running, ctx).map(|reason| end_attempt(task.id, running, reason, queue, ctx)),
        Place::Scheduled(waiting) | Place::Ready(waiting) if waiting.carry.spec.is_past_deadline(ctx.now) => {
            Some(miss_deadline(task.id, waiting, queue, ctx.now))
        }
        _ => None,
    };
    match change {
        None => (task.clone(), None),
        Some(change) => (Task { place: change.place.clone(), ..task.clone() }, Some(change)),
    }
}

/// What has ended this attempt by now, if anything. An outage of the control plane holds back all but the deadline of
/// the task, which is absolute.
fn due(running: &Running, ctx: &Context<'_>) -> Option<Reason> {
    let over = |end: Timestamp| {
        let bound = lease::Lease { expires_at: end, ..running.lease.clone() };
        lease::is_expired(&bound, ctx.now, ctx.grace)
    };
    if running.carry.spec.is_past_deadline(ctx.now) {
        Some(Reason::DeadlineExceeded)
    } else if running.cancel.as_ref().is_some_and(|cancel| over(running.cancel_by(cancel))) {
        Some(Reason::CancelTimeout)
    } else if over(running.granted_at.plus(running.carry.spec.timeout_ms())) {
        Some(Reason::Timeout)
    } else if lease::expire(&running.lease, ctx.now, ctx.grace).is_some() {
        Some(Reason::HeartbeatTimeout)
    } else {
        None
    }
}

/// Closes the attempt for a reason of the control plane's own and sends the task where that leads.
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
        Reason::DeadlineExceeded => "the deadline of the task passed".into(),
        Reason::CancelTimeout => "did not stop within the cancel grace".into(),
        Reason::WorkerLost => "a newer process took over the worker's name".into(),
        _ => reason.as_str().to_lowercase().into(),
    };
    let failure = Failure { code: reason.as_str().into(), message, stack: None, retryable: None };
    let closed = close(running, AttemptState::Failed, reason, Some(failure), ctx.now);
    after_failure(id, running, closed, false, queue, ctx).0
}

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
        worker: Arc::clone(&running.lease.holder),
        granted_at: running.granted_at,
        last_heartbeat_at: running.last_heartbeat_at,
        ended_at: now,
        state,
        reason,
        failure,
        progress: running.progress.clone(),
        receipt: None,
        evidence: None,
    }
}

/// Where a task goes whose attempt did not succeed. With `reported` the attempt gets its receipt.
pub fn after_failure(
    id: TaskId,
    running: &Running,
    mut closed: ClosedAttempt,
    reported: bool,
    queue: &QueueSettings,
    ctx: &mut Context<'_>,
) -> (Change, Option<Receipt>) {
    let spec = running.carry.spec;
    let failure = closed.failure.clone();
    let stopped = closed.state == AttemptState::Canceled;
    let retryable = failure.as_ref().is_none_or(Failure::is_retryable);
    let timed_out = closed.reason == Reason::Timeout || failure.as_ref().is_some_and(Failure::is_timeout);

    let next = if running.cancel.is_some() || stopped {
        Next::Cancel
    } else if closed.reason == Reason::DeadlineExceeded || spec.is_past_deadline(ctx.now) {
        Next::Fail(FailReason::DeadlineExceeded)
    } else if !retryable {
        Next::Fail(FailReason::NonRetryable)
    } else if running.attempt >= running.carry.allowed_attempts() {
        Next::Fail(FailReason::MaxAttempts)
    } else {
        let due = ctx.now.plus(spec.retry().backoff_ms(id, running.attempt, timed_out));
        if spec.is_past_deadline(due) { Next::Fail(FailReason::DeadlineExceeded) } else { Next::Retry(due) }
    };

    let dead = matches!(next, Next::Fail(_)) && !queue.no_dead_letter;
    let receipt = reported.then_some(Receipt::Failed { requeued: matches!(next, Next::Retry(_)), dlq: dead });
    closed.receipt = receipt;
    let reason = Some(closed.reason);

    let change = match next {
        Next::Retry(due) => {
            let message = ctx.numbers.take();
            let waiting = Waiting {
                queue: running.queue,
                priority: running.priority,
                at: due,
                fair: running.fair.clone(),
                message,
                attempt: running.attempt,
                fence: running.lease.generation,
                carry: Carry { last: Some(Box::new(closed.clone())), ..running.carry.clone() },
            };
            let place = if due <= ctx.now { Place::Ready(waiting) } else { Place::Scheduled(waiting) };
            Change::to(place)
                .with_attempt(AttemptChange::Put(Box::new(closed)))
                .with_fact(id, FactKind::Retrying, reason)
                .with_wake(id)
        }
        Next::Cancel | Next::Fail(_) => {
            let canceled = matches!(next, Next::Cancel);
            let cancel_reason = running.cancel.as_ref().map(|cancel| Arc::clone(&cancel.reason));
            let finished = Finished {
                queue: running.queue,
                end: if canceled { End::Canceled } else { End::Failed },
                finished_at: ctx.now,
                result: None,
                failure,
                reason: if let Next::Fail(reason) = next { Some(reason) } else { None },
                dead_lettered_at: dead.then_some(ctx.now),
                cancel_reason: if canceled { cancel_reason.or_else(|| Some("worker_initiated".into())) } else { None },
                attempt: running.attempt,
                fence: running.lease.generation,
                carry: Carry { last: Some(Box::new(closed)), ..running.carry.clone() },
            };
            let kind = if canceled { FactKind::Canceled } else { FactKind::Failed };
            let change = Change::to(Place::Finished(finished)).with_fact(id, kind, reason);
            if dead { change.with_fact(id, FactKind::DeadLettered, reason) } else { change }
        }
    };
    (change, receipt)
}

#[derive(Clone, Copy)]
enum Next {
    Cancel,
    Fail(FailReason),
    Retry(Timestamp),
}

/// A task that was never going to start in time.
fn miss_deadline(id: TaskId, waiting: &Waiting, queue: &QueueSettings, now: Timestamp) -> Change {
    let failure = Failure {
        code: Reason::DeadlineExceeded.as_str().into(),
        message: "the deadline of the task passed before it could start".into(),
        stack: None,
        retryable: None,
    };
    let dead = !queue.no_dead_letter;
    let drop = waiting.carry.last.as_ref().map(|last| AttemptChange::Drop(last.number));
    let finished = Finished {
        queue: waiting.queue,
        end: End::Failed,
        finished_at: now,
        result: None,
        failure: Some(failure),
        reason: Some(FailReason::DeadlineExceeded),
        dead_lettered_at: dead.then_some(now),
        cancel_reason: None,
        attempt: waiting.attempt,
        fence: waiting.fence,
        carry: waiting.carry.clone(),
    };
    let mut change =
        Change::to(Place::Finished(finished)).with_fact(id, FactKind::Failed, Some(Reason::DeadlineExceeded));
    change.attempts.extend(drop);
    if dead { change.with_fact(id, FactKind::DeadLettered, Some(Reason::DeadlineExceeded)) } else { change }
}
