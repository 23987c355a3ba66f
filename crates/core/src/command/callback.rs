//! What a callback worker tells: started, alive, completed.
//!
//! The bearer proves by its token which attempt it speaks for. The checks here follow those of the token and of the body,
//! in the order that the contract gives; the first that fails is the answer.

use std::fmt;
use std::sync::Arc;

use super::heartbeat::{self, Heartbeat, Renewed};
use super::report::{self, AttemptReport};
use super::{Answer, Change, Context, Decision, Rejection, Task, expire};
use crate::attempt::{AttemptState, ClosedAttempt, Completion, Progress, Report};
use crate::event::FactKind;
use crate::id::{AttemptId, TaskId, WorkerId};
use crate::limits;
use crate::mutant;
use crate::queue::QueueSettings;
use crate::task::{Place, Running, Standing};
use crate::time::Timestamp;

#[derive(Debug, Clone, PartialEq)]
pub struct Callback {
    pub task: TaskId,
    /// The scope that the token names.
    pub tenant: Arc<str>,
    pub workspace: Arc<str>,
    /// The attempt that the token is for.
    pub proof: Proof,
    /// The attempt that the body names.
    pub attempt: u32,
    pub attempt_id: Option<SentAttemptId>,
    pub worker: WorkerId,
    pub call: Call,
}

/// An attempt id as a worker wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SentAttemptId {
    Id(AttemptId),
    /// No attempt has such an id.
    Other(Arc<str>),
}

impl SentAttemptId {
    /// Reads an id. A text that is not one is kept in part, to be shown to its sender.
    pub fn read(text: &str) -> Self {
        AttemptId::parse(text).map_or_else(|_| Self::Other(limits::cut(text, limits::NAME_BYTES).into()), Self::Id)
    }

    fn is(&self, id: AttemptId) -> bool {
        *self == Self::Id(id)
    }
}

impl fmt::Display for SentAttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Other(text) => f.write_str(text),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proof {
    pub attempt: u32,
    pub attempt_id: AttemptId,
}

/// Times are those of the worker's clock: shown, never judged by.
#[derive(Debug, Clone, PartialEq)]
pub enum Call {
    Started { told_at: Option<Timestamp> },
    Heartbeat { told_at: Option<Timestamp>, progress: Progress, checkpoint: Option<Arc<str>> },
    Completed(Box<Completion>),
}

impl Call {
    pub fn completed(completion: Completion) -> Self {
        Self::Completed(Box::new(completion))
    }
}

impl Callback {
    /// The report that the call makes, if it ends the attempt.
    fn report(&self) -> Option<Report> {
        match &self.call {
            Call::Completed(sent) => Some(Report::completed(Arc::clone(&self.worker), (**sent).clone())),
            Call::Started { .. } | Call::Heartbeat { .. } => None,
        }
    }
}

/// An accepted callback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallbackAnswer {
    Started { at: Timestamp },
    Renewed { renewed: Renewed, at: Timestamp },
    Reported(CompletionRecord),
}

/// What was recorded of an attempt, when, and whether it was so before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompletionRecord {
    pub state: AttemptState,
    pub at: Timestamp,
    pub disposition: Disposition,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    Recorded,
    Duplicate,
    /// The attempt had ended already, by a guess of the control plane's that this report puts right.
    Late,
}

/// A callback that was refused, and where the task stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub why: RefusalReason,
    pub standing: Standing,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RefusalReason {
    AttemptMismatch {
        expected: u32,
        received: u32,
    },
    AttemptIdMismatch {
        expected: AttemptId,
        received: SentAttemptId,
    },
    /// The token is for another attempt than the one that counts.
    InvalidToken,
    TaskTerminal {
        cancel_reason: Option<Arc<str>>,
    },
    AttemptCompleted,
    /// Another worker has the attempt.
    AlreadyStarted,
    /// A heartbeat of an attempt that is over.
    Expired,
}

pub fn decide(
    task: &Task,
    command: &Callback,
    history: &[ClosedAttempt],
    queue: &QueueSettings,
    ctx: &mut Context<'_>,
) -> Decision {
    let in_scope =
        task.body.as_ref().is_some_and(|body| body.tenant == command.tenant && body.workspace == command.workspace);
    if !in_scope {
        return Decision::refuse(Rejection::NotFound);
    }
    // Whatever time has ended already is ended first, swept or not.
    let (settled, earlier) = expire::settle(task, queue, ctx);
    judge(&settled, command, history, queue, ctx).after(earlier)
}

fn judge(
    task: &Task,
    command: &Callback,
    history: &[ClosedAttempt],
    queue: &QueueSettings,
    ctx: &mut Context<'_>,
) -> Decision {
    let refuse = |why| Decision::refuse(refusal(&task.place, why));
    if let Some(replayed) = replay(task, command, history) {
        return replayed;
    }
    let current = current(&task.place);
    let expected = task.place.attempt();
    let unguarded = mutant!("superseded-callback-accepted");
    if command.attempt != expected && !unguarded {
        let why = RefusalReason::AttemptMismatch { expected, received: command.attempt };
        return superseded(task, command, history, ctx).map_or_else(
            || refuse(why.clone()),
            |change| Decision { change: Some(change), answer: Err(refusal(&task.place, why.clone())) },
        );
    }
    if let (Some(received), Some(expected)) = (&command.attempt_id, current)
        && !received.is(expected)
        && !unguarded
    {
        return refuse(RefusalReason::AttemptIdMismatch { expected, received: received.clone() });
    }
    let of_current = command.proof.attempt == expected && Some(command.proof.attempt_id) == current;
    if !of_current && !unguarded || !is_pushed(&task.place) {
        return refuse(RefusalReason::InvalidToken);
    }
    let Place::Running(running) = &task.place else { return closed(task, command, queue, ctx) };
    if running.started_at().is_some() && running.lease.holder.as_ref() != Some(&command.worker) {
        return refuse(RefusalReason::AlreadyStarted);
    }
    open(task.id, running, command, queue, ctx)
}

fn refusal(place: &Place, why: RefusalReason) -> Rejection {
    Rejection::Callback(Refusal { why, standing: place.standing() })
}

/// The attempt that counts: the one in flight, or the last one until another is granted.
fn current(place: &Place) -> Option<AttemptId> {
    match place {
        Place::Running(running) => Some(running.attempt_id),
        place => place.last_attempt().map(|last| last.id),
    }
}

/// Whether that attempt is one that is pushed. No other gets a token: one that names it was made by somebody else.
fn is_pushed(place: &Place) -> bool {
    match place {
        Place::Running(running) => running.carry.delivery.is_some(),
        place => place.last_attempt().is_some_and(|last| last.callback.is_some()),
    }
}

/// The answer again that this very completion got. Nothing is processed, so that the attempt need not be the current one.
fn replay(task: &Task, command: &Callback, history: &[ClosedAttempt]) -> Option<Decision> {
    let report = command.report()?;
    let result = match &task.place {
        Place::Finished(finished) => finished.result.as_deref(),
        _ => None,
    };
    let known = task.place.last_attempt().into_iter().chain(history);
    let of_token = |attempt: &&ClosedAttempt| {
        attempt.id == command.proof.attempt_id
            && attempt.number == command.attempt
            && attempt.callback.is_some()
            && command.attempt_id.as_ref().is_none_or(|id| id.is(attempt.id))
    };
    let attempt = known.into_iter().find(of_token)?;
    attempt.is_replay(&report, result).then(|| {
        let told = CompletionRecord { state: attempt.state, at: attempt.ended_at, disposition: Disposition::Duplicate };
        Decision::unchanged(Answer::Callback(CallbackAnswer::Reported(told)))
    })
}

/// A completion of an attempt that others followed is kept, never applied.
fn superseded(task: &Task, command: &Callback, history: &[ClosedAttempt], ctx: &Context<'_>) -> Option<Change> {
    let report = command.report()?;
    let proves = |old: &&ClosedAttempt| {
        old.id == command.proof.attempt_id && old.number == command.attempt && old.callback.is_some()
    };
    let mut old = history.iter().find(proves)?.clone();
    old.keep_evidence(&report, ctx.now);
    Some(Change::to(task.place.clone()).with_attempt(super::AttemptChange::Put(Box::new(old))))
}

/// A call of the attempt in flight, by its worker or by the first one to call.
fn open(id: TaskId, running: &Running, command: &Callback, queue: &QueueSettings, ctx: &mut Context<'_>) -> Decision {
    let (bound, start) = bind(id, running, command, ctx);
    match &command.call {
        Call::Started { .. } => {
            Decision { change: start, answer: Ok(Answer::Callback(CallbackAnswer::Started { at: ctx.now })) }
        }
        Call::Heartbeat { told_at, progress, checkpoint } => {
            let mut bound = bound;
            if let Some(delivery) = bound.carry.delivery.as_deref_mut() {
                delivery.told_heartbeat_at = *told_at;
            }
            let beat = Heartbeat {
                task: id,
                attempt: None,
                token: bound.lease.token,
                worker: None,
                progress: progress.clone(),
                checkpoint: checkpoint.clone(),
            };
            let task = Task { id, place: Place::Running(bound), body: None };
            let decision = heartbeat::decide(&task, &beat, &[], queue, ctx);
            let answer = match decision.answer {
                Ok(Answer::Renewed(renewed)) => Ok(Answer::Callback(CallbackAnswer::Renewed { renewed, at: ctx.now })),
                _ => Err(refusal(&task.place, RefusalReason::Expired)),
            };
            Decision { change: decision.change, answer }.after(start)
        }
        Call::Completed(sent) => {
            let task = Task { id, place: Place::Running(bound), body: None };
            reported(&task, command, sent, Disposition::Recorded, queue, ctx).after(start)
        }
    }
}

/// The attempt with its worker, and the change that binds it if nobody had it yet.
fn bind(id: TaskId, running: &Running, command: &Callback, ctx: &Context<'_>) -> (Running, Option<Change>) {
    let now = ctx.now;
    if running.started_at().is_some() {
        return (running.clone(), None);
    }
    let mut bound = running.clone();
    bound.lease.holder = Some(Arc::clone(&command.worker));
    bound.last_heartbeat_at = Some(now);
    if let Some(delivery) = bound.carry.delivery.as_deref_mut() {
        delivery.started_at = Some(now);
        delivery.next_at = None;
        if let Call::Started { told_at } = command.call {
            delivery.told_started_at = told_at;
        }
    }
    bound.lease.expires_at = now.plus(bound.lease_ttl_ms).min(bound.not_after(ctx.grace));
    let change = Change::to(Place::Running(bound.clone())).with_fact(id, FactKind::Started, None);
    (bound, Some(change))
}

/// A call of the last attempt, which has ended and which no other followed.
fn closed(task: &Task, command: &Callback, queue: &QueueSettings, ctx: &mut Context<'_>) -> Decision {
    let why = match (&command.call, &task.place) {
        (Call::Heartbeat { .. }, _) => RefusalReason::Expired,
        (_, Place::Finished(finished)) => RefusalReason::TaskTerminal { cancel_reason: finished.cancel_reason.clone() },
        _ => RefusalReason::AttemptCompleted,
    };
    let Call::Completed(sent) = &command.call else { return Decision::refuse(refusal(&task.place, why)) };
    let decision = reported(task, command, sent, Disposition::Late, queue, ctx);
    // Whoever had it may still report; nobody else.
    let had = |last: &ClosedAttempt| last.worker.as_ref().is_none_or(|worker| *worker == command.worker);
    match decision.answer {
        Ok(_) if !task.place.last_attempt().is_none_or(had) => {
            Decision::refuse(refusal(&task.place, RefusalReason::AlreadyStarted))
        }
        Ok(_) => decision,
        Err(_) => Decision { answer: Err(refusal(&task.place, why)), ..decision },
    }
}

/// Hands the report to the rules that all contracts share.
fn reported(
    task: &Task,
    command: &Callback,
    sent: &Completion,
    disposition: Disposition,
    queue: &QueueSettings,
    ctx: &mut Context<'_>,
) -> Decision {
    let (attempt_id, token) = match &task.place {
        Place::Running(running) => (running.attempt_id, running.lease.token),
        place => match place.last_attempt() {
            Some(last) => (last.id, last.token),
            None => return Decision::refuse(refusal(place, RefusalReason::InvalidToken)),
        },
    };
    let report = Report::completed(Arc::clone(&command.worker), sent.clone());
    let report = AttemptReport { task: task.id, attempt_id, token, report, data: None };
    let decision = report::decide(task, &report, &[], queue, ctx);
    let answer = match decision.answer {
        Ok(Answer::Reported(_)) => {
            let told = CompletionRecord { state: sent.outcome, at: ctx.now, disposition };
            Ok(Answer::Callback(CallbackAnswer::Reported(told)))
        }
        _ => Err(refusal(&task.place, RefusalReason::AttemptCompleted)),
    };
    Decision { answer, ..decision }
}

#[cfg(test)]
mod tests;
