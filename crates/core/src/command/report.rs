//! The end of an attempt, as its holder reports it: what `complete` and `fail` share.

use std::sync::Arc;

use super::cancel::WORKER_INITIATED;
use super::{Answer, AttemptChange, Change, Conflict, ConflictKind, Context, Decision, Rejection, Task, expire};
use crate::attempt::{AttemptState, ClosedAttempt, Failure, Reason, Receipt, Report};
use crate::event::FactKind;
use crate::id::{AttemptId, LeaseToken, TaskId, WorkerId};
use crate::queue::QueueSettings;
use crate::task::{Carry, End, FailReason, Finished, Place, Running, Waiting};

/// A report and the proof of who sends it.
#[derive(Debug, Clone, PartialEq)]
pub struct Reported<'a> {
    pub attempt_id: AttemptId,
    pub token: LeaseToken,
    /// Who says that it sends it, where the contract tells.
    pub worker: Option<&'a WorkerId>,
    pub report: &'a Report,
}

/// `history` holds the task's earlier attempts; it is needed only when the report names none of the current ones.
pub fn decide(
    task: &Task,
    sent: &Reported<'_>,
    history: &[ClosedAttempt],
    queue: &QueueSettings,
    ctx: &mut Context<'_>,
) -> Decision {
    // An expired lease is closed first, swept or not, so that the answer does not depend on the reaper's pace.
    let (settled, earlier) = expire::settle(task, queue, ctx);
    judge(&settled, sent, history, queue, ctx).after(earlier)
}

fn judge(
    task: &Task,
    sent: &Reported<'_>,
    history: &[ClosedAttempt],
    queue: &QueueSettings,
    ctx: &mut Context<'_>,
) -> Decision {
    match &task.place {
        Place::Running(running) if running.attempt_id == sent.attempt_id => {
            if running.lease.token != sent.token {
                return Decision::refuse(Conflict::at(&task.place, ConflictKind::StaleLease));
            }
            accept(task.id, running, sent, queue, ctx)
        }
        place => match place.last_attempt().filter(|last| last.id == sent.attempt_id) {
            Some(last) => judge_last(task, last, sent, queue, ctx),
            None => judge_old(task, sent, history, ctx),
        },
    }
}

/// The report of the live holder.
fn accept(
    id: TaskId,
    running: &Running,
    sent: &Reported<'_>,
    queue: &QueueSettings,
    ctx: &mut Context<'_>,
) -> Decision {
    let report = sent.report;
    let reason = match report.state() {
        AttemptState::Succeeded => Reason::Completed,
        AttemptState::Failed => Reason::Failed,
        AttemptState::Canceled => Reason::Canceled,
    };
    let mut closed = expire::close(running, report.state(), reason, None, ctx.now);
    closed.take(report, sent.worker, ctx.now);
    if report.state() == AttemptState::Succeeded {
        closed.receipt = Some(Receipt::Completed);
        let carry = Carry { last: Some(Box::new(closed)), checkpoint: None, delivery: None, ..running.carry.clone() };
        let finished = Finished {
            queue: running.queue,
            end: End::Succeeded,
            finished_at: ctx.now,
            result: report.result().cloned(),
            failure: None,
            reason: None,
            dead_lettered_at: None,
            cancel_reason: None,
            attempt: running.attempt,
            fence: running.lease.generation,
            carry,
        };
        let change = Change::to(Place::Finished(finished)).with_fact(id, FactKind::Succeeded, Some(reason));
        return Decision::accept(change, Answer::Reported(Receipt::Completed));
    }
    let mut running = running.clone();
    if let Some(checkpoint) = report.checkpoint() {
        running.carry.checkpoint = Some(Arc::clone(checkpoint));
    }
    let (change, receipt) = expire::after_failure(id, &running, closed, true, queue, ctx);
    let receipt = receipt.unwrap_or(Receipt::Failed { requeued: false, dlq: false });
    Decision::accept(change, Answer::Reported(receipt))
}

/// A report of the last attempt, which has ended and which no other followed.
fn judge_last(
    task: &Task,
    last: &ClosedAttempt,
    sent: &Reported<'_>,
    queue: &QueueSettings,
    ctx: &mut Context<'_>,
) -> Decision {
    if last.token != sent.token {
        return Decision::refuse(Conflict::at(&task.place, ConflictKind::StaleLease));
    }
    if let Some(receipt) = last.receipt {
        let result = match &task.place {
            Place::Finished(finished) => finished.result.as_deref(),
            _ => None,
        };
        if last.is_replay(sent.report, result) {
            return Decision::unchanged(Answer::Reported(receipt));
        }
        return keep(task, last, sent, ConflictKind::ConflictingCompletion, ctx);
    }
    // The deadline itself counts, not the reason of the end: a task can have failed before its deadline because no
    // retry would fit, or for another reason whose late report comes after it.
    let past_deadline = match &task.place {
        Place::Finished(finished) => finished.carry.spec.is_past_deadline(ctx.now),
        Place::Scheduled(waiting) | Place::Ready(waiting) => waiting.carry.spec.is_past_deadline(ctx.now),
        Place::Blocked(_) | Place::Running(_) => false,
    };
    let canceled = matches!(&task.place, Place::Finished(finished) if finished.end == End::Canceled);
    if !last.reason.yields_to_late_report() || past_deadline || canceled || ctx.sealed {
        return keep(task, last, sent, ConflictKind::AttemptClosed, ctx);
    }
    match &task.place {
        Place::Scheduled(waiting) | Place::Ready(waiting) => late_from_waiting(task, waiting, last, sent, queue, ctx),
        Place::Finished(finished) => late_from_finished(task, finished, last, sent, ctx),
        Place::Blocked(_) | Place::Running(_) => {
            Decision::refuse(Conflict::at(&task.place, ConflictKind::StaleAttempt))
        }
    }
}

/// The attempt as its late report makes it.
fn reported_late(last: &ClosedAttempt, sent: &Reported<'_>, receipt: Receipt, ctx: &Context<'_>) -> ClosedAttempt {
    let mut closed = ClosedAttempt { receipt: Some(receipt), ..last.clone() };
    closed.take(sent.report, sent.worker, ctx.now);
    if closed.state == AttemptState::Succeeded {
        closed.reason = Reason::Completed;
    }
    closed
}

/// The retry that waits is withdrawn, unless the report asks for it too.
fn late_from_waiting(
    task: &Task,
    waiting: &Waiting,
    last: &ClosedAttempt,
    sent: &Reported<'_>,
    queue: &QueueSettings,
    ctx: &mut Context<'_>,
) -> Decision {
    let failure = sent.report.failure();
    let (end, receipt, kind) = match sent.report.state() {
        AttemptState::Succeeded => (Some(End::Succeeded), Receipt::Completed, FactKind::Succeeded),
        AttemptState::Canceled => {
            (Some(End::Canceled), Receipt::Failed { requeued: false, dlq: false }, FactKind::Canceled)
        }
        AttemptState::Failed if !failure.as_ref().is_none_or(Failure::is_retryable) => {
            let dlq = !queue.no_dead_letter;
            (Some(End::Failed), Receipt::Failed { requeued: false, dlq }, FactKind::Failed)
        }
        AttemptState::Failed => (None, Receipt::Failed { requeued: true, dlq: false }, FactKind::Retrying),
    };
    let closed = reported_late(last, sent, receipt, ctx);
    let Some(end) = end else {
        let mut waiting = waiting.clone();
        waiting.carry.last = Some(Box::new(closed.clone()));
        if let Some(checkpoint) = sent.report.checkpoint() {
            waiting.carry.checkpoint = Some(Arc::clone(checkpoint));
        }
        let place = match &task.place {
            Place::Ready(_) => Place::Ready(waiting),
            _ => Place::Scheduled(waiting),
        };
        let change = Change::to(place).with_attempt(AttemptChange::Put(Box::new(closed)));
        return Decision::accept(change, Answer::Reported(receipt));
    };
    let number = closed.number;
    let reason = closed.reason;
    let dead = end == End::Failed && !queue.no_dead_letter;
    let finished = Finished {
        queue: waiting.queue,
        end,
        finished_at: ctx.now,
        result: sent.report.result().cloned(),
        failure,
        reason: (end == End::Failed).then_some(FailReason::NonRetryable),
        dead_lettered_at: dead.then_some(ctx.now),
        cancel_reason: (end == End::Canceled).then(|| WORKER_INITIATED.into()),
        attempt: waiting.attempt,
        fence: waiting.fence,
        carry: Carry {
            last: Some(Box::new(closed)),
            checkpoint: kept(end, sent, waiting.carry.checkpoint.as_ref()),
            ..waiting.carry.clone()
        },
    };
    let mut change = Change::to(Place::Finished(finished)).with_attempt(AttemptChange::Drop(number)).with_fact(
        task.id,
        kind,
        Some(reason),
    );
    if dead {
        change = change.with_fact(task.id, FactKind::DeadLettered, Some(reason));
    }
    Decision::accept(change, Answer::Reported(receipt))
}

/// What the next attempt starts from, should somebody give the task another chance.
fn kept(end: End, sent: &Reported<'_>, before: Option<&Arc<str>>) -> Option<Arc<str>> {
    if end == End::Succeeded { None } else { sent.report.checkpoint().or(before).cloned() }
}

/// A late success takes the task off the dead letters, and so does a worker that gave up; a late failure adds its error.
fn late_from_finished(
    task: &Task,
    finished: &Finished,
    last: &ClosedAttempt,
    sent: &Reported<'_>,
    ctx: &Context<'_>,
) -> Decision {
    let end = match sent.report.state() {
        AttemptState::Succeeded => End::Succeeded,
        AttemptState::Canceled => End::Canceled,
        _ => End::Failed,
    };
    let receipt = match end {
        End::Succeeded => Receipt::Completed,
        _ => Receipt::Failed { requeued: false, dlq: end == End::Failed && finished.dead_lettered_at.is_some() },
    };
    let closed = reported_late(last, sent, receipt, ctx);
    let reason = closed.reason;
    let mut finished = finished.clone();
    finished.carry.last = Some(Box::new(closed));
    if end == End::Failed {
        finished.failure = sent.report.failure().or(finished.failure);
    } else {
        finished.end = end;
        finished.finished_at = ctx.now;
        finished.result = sent.report.result().cloned();
        finished.failure = sent.report.failure();
        finished.reason = None;
        finished.dead_lettered_at = None;
        finished.cancel_reason = (end == End::Canceled).then(|| WORKER_INITIATED.into());
    }
    finished.carry.checkpoint = kept(end, sent, finished.carry.checkpoint.as_ref());
    let mut change = Change::to(Place::Finished(finished));
    match end {
        End::Succeeded => change = change.with_fact(task.id, FactKind::Succeeded, Some(reason)),
        End::Canceled => change = change.with_fact(task.id, FactKind::Canceled, Some(reason)),
        _ => {}
    }
    Decision::accept(change, Answer::Reported(receipt))
}

/// Refuses a report of the last attempt and keeps it as evidence.
fn keep(task: &Task, last: &ClosedAttempt, sent: &Reported<'_>, kind: ConflictKind, ctx: &Context<'_>) -> Decision {
    let mut closed = last.clone();
    closed.keep_evidence(sent.report, sent.worker, ctx.now);
    let refusal = Conflict::at(&task.place, kind);
    let change = match &task.place {
        Place::Finished(finished) => {
            let mut finished = finished.clone();
            finished.carry.last = Some(Box::new(closed));
            Change::to(Place::Finished(finished))
        }
        place => {
            let mut place = place.clone();
            if let Place::Scheduled(waiting) | Place::Ready(waiting) = &mut place {
                waiting.carry.last = Some(Box::new(closed.clone()));
            }
            Change::to(place).with_attempt(AttemptChange::Put(Box::new(closed)))
        }
    };
    Decision { change: Some(change), answer: Err(refusal) }
}

/// A report of an attempt that others followed: its receipt again, or evidence.
fn judge_old(task: &Task, sent: &Reported<'_>, history: &[ClosedAttempt], ctx: &Context<'_>) -> Decision {
    let Some(old) = history.iter().find(|old| old.id == sent.attempt_id) else {
        return Decision::refuse(Conflict::at(&task.place, ConflictKind::StaleAttempt));
    };
    if old.token != sent.token {
        return Decision::refuse(Conflict::at(&task.place, ConflictKind::StaleLease));
    }
    let kind = match old.receipt {
        Some(receipt) if old.is_replay(sent.report, None) => return Decision::unchanged(Answer::Reported(receipt)),
        Some(_) => ConflictKind::ConflictingCompletion,
        None => ConflictKind::StaleAttempt,
    };
    let mut old = old.clone();
    old.keep_evidence(sent.report, sent.worker, ctx.now);
    let refusal = match Conflict::at(&task.place, kind) {
        // The message of an attempt that others followed is never the live one.
        Rejection::Conflict(conflict) => Rejection::Conflict(Conflict { ack: true, ..conflict }),
        other => other,
    };
    let change = Change::to(task.place.clone()).with_attempt(AttemptChange::Put(Box::new(old)));
    Decision { change: Some(change), answer: Err(refusal) }
}

#[cfg(test)]
mod tests;
