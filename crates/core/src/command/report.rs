//! A holder reports how its attempt ended.

use std::sync::Arc;

use super::cancel::WORKER_INITIATED;
use super::ending::{self, Next};
use super::{Answer, AttemptChange, Change, Conflict, ConflictKind, Context, Decision, Rejection, Task, expire};
use crate::attempt::{AttemptState, ClosedAttempt, Evidence, Outcome, Reason, Receipt, Report};
use crate::dag::DataReport;
use crate::event::FactKind;
use crate::id::{AttemptId, LeaseToken, TaskId, WorkerId};
use crate::limits;
use crate::mutant;
use crate::queue::QueueSettings;
use crate::task::{End, FailReason, Finished, Place, Running, Waiting};

/// A report, and the proof that its sender holds the attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct AttemptReport {
    pub task: TaskId,
    pub attempt_id: AttemptId,
    pub token: LeaseToken,
    pub report: Report,
    /// What it says about datasets, if the task is one of a job. Written only if the report counts as a success.
    pub data: Option<Arc<DataReport>>,
}

impl AttemptReport {
    /// Whether its sender has shown that it is not the worker that holds the attempt. A lease token can leak; a worker with a
    /// credential of its own cannot use that of another. Callback workers name themselves, and have rules of their own.
    fn is_of_another(&self, holder: Option<&WorkerId>) -> bool {
        self.report.completion.is_none()
            && self.report.worker.as_ref().zip(holder).is_some_and(|(sender, holder)| sender != holder)
    }

    /// What is wrong with the contents.
    fn refusal(&self) -> Option<Decision> {
        let refusal = self.data.as_ref()?.refusal.clone()?;
        Some(Decision::refuse(Rejection::Data(refusal)))
    }

    /// The change of an accepted success, with what it writes about datasets.
    fn with_data(&self, change: Change, attempt: u32) -> Change {
        match (&self.report.outcome, &self.data) {
            (Outcome::Succeeded { .. }, Some(data)) => change.with_data(self.task, attempt, data),
            _ => change,
        }
    }
}

/// `history` holds the task's earlier attempts. It is needed only when the report names neither the open nor the last
/// attempt.
pub fn decide(
    task: &Task,
    sent: &AttemptReport,
    history: &[ClosedAttempt],
    queue: &QueueSettings,
    ctx: &mut Context<'_>,
) -> Decision {
    // An expired lease is closed first, so that the answer does not depend on the reaper's timing.
    let (settled, earlier) = expire::settle(task, queue, ctx);
    judge(&settled, sent, history, queue, ctx).after(earlier)
}

fn judge(
    task: &Task,
    sent: &AttemptReport,
    history: &[ClosedAttempt],
    queue: &QueueSettings,
    ctx: &mut Context<'_>,
) -> Decision {
    match &task.place {
        Place::Running(running) if running.attempt_id == sent.attempt_id || mutant!("fence-not-compared") => {
            let superseded = running.attempt_id != sent.attempt_id && mutant!("fence-not-compared");
            let unchecked = superseded || mutant!("token-not-compared");
            if running.lease.token != sent.token && !unchecked {
                return Decision::refuse(Conflict::at(&task.place, ConflictKind::StaleLease));
            }
            if sent.is_of_another(running.lease.holder.as_ref()) {
                return keep_of_another(task, running, sent, ctx);
            }
            sent.refusal().unwrap_or_else(|| accept(task.id, running, sent, queue, ctx))
        }
        place => match place.last_attempt().filter(|last| last.id == sent.attempt_id) {
            Some(last) => judge_last(task, last, sent, queue, ctx),
            None => judge_old(task, sent, history, ctx),
        },
    }
}

/// Refuses a report of a running attempt whose sender is not its holder. The attempt goes on, and its history will show the
/// report. A large result is left out: the row is written again with every heartbeat.
fn keep_of_another(task: &Task, running: &Running, sent: &AttemptReport, ctx: &Context<'_>) -> Decision {
    let mut running = running.clone();
    match &mut running.carry.evidence {
        Some(evidence) => evidence.more = evidence.more.saturating_add(1),
        none => {
            let mut evidence = Evidence::of(&sent.report, ctx.now);
            evidence.result = evidence.result.filter(|result| result.len() <= limits::MESSAGE_BYTES);
            if let Some(failure) = &mut evidence.failure {
                failure.stack = None;
            }
            *none = Some(Box::new(evidence));
        }
    }
    let refusal = Conflict::at(&task.place, ConflictKind::OtherWorker);
    Decision { change: Some(Change::to(Place::Running(running))), answer: Err(refusal) }
}

/// The report of the live holder.
fn accept(
    id: TaskId,
    running: &Running,
    sent: &AttemptReport,
    queue: &QueueSettings,
    ctx: &mut Context<'_>,
) -> Decision {
    let report = &sent.report;
    let reason = match report.outcome {
        Outcome::Succeeded { .. } => Reason::Completed,
        Outcome::Failed(_) => Reason::Failed,
        Outcome::Canceled(_) => Reason::Canceled,
    };
    let mut closed = ending::close(running, report.state(), reason, None, ctx.now);
    closed.take(report, ctx.now);
    if let Outcome::Succeeded { result } = &report.outcome {
        closed.receipt = if mutant!("receipt-not-stored") { None } else { Some(Receipt::Completed) };
        let mut finished = running.ended(closed, End::Succeeded, ctx.now);
        finished.result.clone_from(result);
        finished.carry.checkpoint = None;
        let change = sent.with_data(ending::finish(id, finished, Some(reason)), running.attempt);
        return Decision::accept(change, Answer::Reported(Receipt::Completed));
    }
    let mut running = running.clone();
    if let Some(checkpoint) = report.checkpoint() {
        running.carry.checkpoint = Some(Arc::clone(checkpoint));
    }
    let is_given_back = matches!(&report.outcome, Outcome::Failed(failure) if failure.handed_back);
    let is_free = is_given_back && running.cancel.is_none() && running.carry.hand_back();
    let mut next = Next::after(id, &running, &closed, ctx.now);
    if is_free {
        closed.reason = Reason::HandedBack;
        next = next.at_once(ctx.now);
    }
    let receipt = next.receipt(queue);
    closed.receipt = if mutant!("receipt-not-stored") { None } else { Some(receipt) };
    closed.retry_at = next.retry_at();
    let change = match next {
        Next::Retry(due) if is_free => ending::put_back(id, &running, closed, due, FactKind::Released, ctx),
        next => next.change(id, &running, closed, queue, ctx),
    };
    Decision::accept(change, Answer::Reported(receipt))
}

/// A report of the last attempt, which has ended. No other was granted since.
fn judge_last(
    task: &Task,
    last: &ClosedAttempt,
    sent: &AttemptReport,
    queue: &QueueSettings,
    ctx: &mut Context<'_>,
) -> Decision {
    if last.token != sent.token {
        return Decision::refuse(Conflict::at(&task.place, ConflictKind::StaleLease));
    }
    if sent.is_of_another(last.worker.as_ref()) {
        return keep(task, last, sent, ConflictKind::OtherWorker, ctx);
    }
    if let Some(receipt) = last.receipt {
        let result = match &task.place {
            Place::Finished(finished) => finished.result.as_deref(),
            _ => None,
        };
        if last.is_replay(&sent.report, result) || mutant!("second-report-accepted") {
            return Decision::unchanged(Answer::Reported(receipt));
        }
        return keep(task, last, sent, ConflictKind::ConflictingCompletion, ctx);
    }
    // The deadline itself counts, not the reason of the end: a task can have failed before its deadline because no
    // retry would fit, or for another reason whose late report comes after it.
    let past_deadline = task.place.carry().spec.is_past_deadline(ctx.now);
    let canceled = task.place.end() == Some(End::Canceled);
    let live_only = sent.data.as_ref().is_some_and(|data| data.live_only);
    let late_counts = last.reason.yields_to_late_report() && !mutant!("late-report-refused");
    if (!late_counts || past_deadline || canceled || ctx.sealed) && !mutant!("closed-attempt-reopened") {
        return keep(task, last, sent, ConflictKind::AttemptClosed, ctx);
    }
    if live_only {
        return keep(task, last, sent, ConflictKind::LeaseExpired, ctx);
    }
    if let Some(refused) = sent.refusal() {
        return refused;
    }
    match &task.place {
        Place::Scheduled(waiting) | Place::Ready(waiting) => late_from_waiting(task, waiting, last, sent, queue, ctx),
        Place::Finished(finished) => late_from_finished(task, finished, last, sent, ctx),
        Place::Blocked(_) | Place::Running(_) => {
            Decision::refuse(Conflict::at(&task.place, ConflictKind::StaleAttempt))
        }
    }
}

/// The attempt with its late report recorded.
fn reported_late(last: &ClosedAttempt, sent: &AttemptReport, receipt: Receipt, ctx: &Context<'_>) -> ClosedAttempt {
    let mut closed = ClosedAttempt { receipt: Some(receipt), ..last.clone() };
    closed.take(&sent.report, ctx.now);
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
    sent: &AttemptReport,
    queue: &QueueSettings,
    ctx: &mut Context<'_>,
) -> Decision {
    let dlq = !queue.no_dead_letter;
    let (end, receipt) = match &sent.report.outcome {
        Outcome::Succeeded { .. } => (End::Succeeded, Receipt::Completed),
        Outcome::Canceled(_) => (End::Canceled, Receipt::Failed { requeued: false, dlq: false }),
        Outcome::Failed(failure) if !failure.is_retryable() => (End::Failed, Receipt::Failed { requeued: false, dlq }),
        Outcome::Failed(_) => return late_retry(&task.place, waiting, last, sent, ctx),
    };
    let closed = reported_late(last, sent, receipt, ctx);
    let reason = Some(closed.reason);
    let mut finished = Finished {
        result: sent.report.result().cloned(),
        failure: sent.report.failure().cloned(),
        cancel_reason: (end == End::Canceled).then(|| WORKER_INITIATED.into()),
        ..waiting.ended(end, ctx.now)
    };
    if end == End::Failed {
        finished = finished.failed(FailReason::NonRetryable, queue);
    }
    finished.carry.last = Some(Box::new(closed));
    finished.carry.checkpoint = kept(end, sent, waiting.carry.checkpoint.as_ref());
    let change = sent.with_data(ending::finish_waiting(task.id, waiting, finished, reason), last.number);
    Decision::accept(change, Answer::Reported(receipt))
}

/// The report asks for the retry that waits already. It is recorded, and the retry stays.
fn late_retry(
    place: &Place,
    waiting: &Waiting,
    last: &ClosedAttempt,
    sent: &AttemptReport,
    ctx: &Context<'_>,
) -> Decision {
    let receipt = Receipt::Failed { requeued: true, dlq: false };
    let closed = ClosedAttempt { retry_at: Some(waiting.at), ..reported_late(last, sent, receipt, ctx) };
    let mut waiting = waiting.clone();
    waiting.carry.last = Some(Box::new(closed.clone()));
    if let Some(checkpoint) = sent.report.checkpoint() {
        waiting.carry.checkpoint = Some(Arc::clone(checkpoint));
    }
    let place = match place {
        Place::Ready(_) => Place::Ready(waiting),
        _ => Place::Scheduled(waiting),
    };
    Decision::accept(Change::to(place).with_attempt(AttemptChange::Put(Box::new(closed))), Answer::Reported(receipt))
}

/// The checkpoint that a retry of the task would start from.
fn kept(end: End, sent: &AttemptReport, before: Option<&Arc<str>>) -> Option<Arc<str>> {
    if end == End::Succeeded { None } else { sent.report.checkpoint().or(before).cloned() }
}

/// A late success removes the task from the dead letters, and so does a worker that stopped. A late failure adds its
/// error.
fn late_from_finished(
    task: &Task,
    finished: &Finished,
    last: &ClosedAttempt,
    sent: &AttemptReport,
    ctx: &Context<'_>,
) -> Decision {
    let report = &sent.report;
    let (end, receipt) = match &report.outcome {
        Outcome::Succeeded { .. } => (End::Succeeded, Receipt::Completed),
        Outcome::Canceled(_) => (End::Canceled, Receipt::Failed { requeued: false, dlq: false }),
        Outcome::Failed(_) => {
            (End::Failed, Receipt::Failed { requeued: false, dlq: finished.dead_lettered_at.is_some() })
        }
    };
    let closed = reported_late(last, sent, receipt, ctx);
    let reason = Some(closed.reason);
    let mut finished = finished.clone();
    finished.carry.last = Some(Box::new(closed));
    finished.carry.checkpoint = kept(end, sent, finished.carry.checkpoint.as_ref());
    let change = if end == End::Failed {
        finished.failure = report.failure().cloned();
        Change::to(Place::Finished(finished))
    } else {
        let finished = Finished {
            end,
            finished_at: ctx.now,
            result: report.result().cloned(),
            failure: report.failure().cloned(),
            reason: None,
            dead_lettered_at: None,
            cancel_reason: (end == End::Canceled).then(|| WORKER_INITIATED.into()),
            ..finished
        };
        ending::finish(task.id, finished, reason)
    };
    Decision::accept(sent.with_data(change, last.number), Answer::Reported(receipt))
}

/// Refuses a report of the last attempt and keeps it as evidence.
fn keep(task: &Task, last: &ClosedAttempt, sent: &AttemptReport, kind: ConflictKind, ctx: &Context<'_>) -> Decision {
    let mut closed = last.clone();
    closed.keep_evidence(&sent.report, ctx.now);
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

/// A report of an attempt after which others were granted: its receipt again, or evidence.
fn judge_old(task: &Task, sent: &AttemptReport, history: &[ClosedAttempt], ctx: &Context<'_>) -> Decision {
    let Some(old) = history.iter().find(|old| old.id == sent.attempt_id) else {
        return Decision::refuse(Conflict::at(&task.place, ConflictKind::StaleAttempt));
    };
    if old.token != sent.token {
        return Decision::refuse(Conflict::at(&task.place, ConflictKind::StaleLease));
    }
    let kind = match old.receipt {
        _ if sent.is_of_another(old.worker.as_ref()) => ConflictKind::OtherWorker,
        Some(receipt) if old.is_replay(&sent.report, None) => return Decision::unchanged(Answer::Reported(receipt)),
        Some(_) => ConflictKind::ConflictingCompletion,
        None => ConflictKind::StaleAttempt,
    };
    let mut old = old.clone();
    old.keep_evidence(&sent.report, ctx.now);
    let refusal = match Conflict::at(&task.place, kind) {
        // The message of such an attempt is never the live one.
        Rejection::Conflict(conflict) => Rejection::Conflict(Conflict { ack: true, ..conflict }),
        other => other,
    };
    let change = Change::to(task.place.clone()).with_attempt(AttemptChange::Put(Box::new(old)));
    Decision { change: Some(change), answer: Err(refusal) }
}

#[cfg(test)]
mod tests;
