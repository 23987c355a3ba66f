//! Somebody wants a task to stop.

use std::sync::Arc;

use super::{Answer, AttemptChange, Change, Context, Decision, Reach, Rejection, Task, expire};
use crate::attempt::{AttemptState, Failure, Reason};
use crate::event::FactKind;
use crate::id::TaskId;
use crate::queue::QueueSettings;
use crate::task::{CancelRequest, Carry, End, Finished, Place, Running, State, Waiting};
use crate::time::Timestamp;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cancel {
    pub task: TaskId,
    pub reason: Arc<str>,
    pub mode: Mode,
    pub reach: Reach,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The holder is told, has its grace, and may still succeed within it.
    Cooperative,
    /// It takes effect when it commits; the holder's later reports are refused and kept as evidence.
    Immediate,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Canceled {
    pub state: State,
    /// The reason that counts: the first one given.
    pub reason: Arc<str>,
}

pub fn decide(task: &Task, command: &Cancel, queue: &QueueSettings, ctx: &mut Context<'_>) -> Decision {
    if !task.body.as_ref().is_some_and(|body| command.reach.covers(&body.tenant)) {
        return Decision::refuse(Rejection::NotFound);
    }
    let (settled, earlier) = expire::settle(task, queue, ctx);
    judge(&settled, command, ctx.now).after(earlier)
}

fn judge(task: &Task, command: &Cancel, now: Timestamp) -> Decision {
    match &task.place {
        Place::Scheduled(waiting) | Place::Ready(waiting) => end_waiting(task.id, waiting, &command.reason, now),
        Place::Running(running) => match command.mode {
            Mode::Cooperative => request(task.id, running, &command.reason, now),
            Mode::Immediate => revoke(task.id, running, &command.reason, now),
        },
        Place::Finished(Finished { end: End::Canceled, cancel_reason, .. }) => {
            let reason = cancel_reason.clone().unwrap_or_else(|| Arc::clone(&command.reason));
            Decision::unchanged(Answer::Canceled(Canceled { state: State::Canceled, reason }))
        }
        place @ Place::Finished(_) => Decision::refuse(Rejection::AlreadyTerminal { state: place.state() }),
    }
}

/// Nobody holds it: it ends here and now.
fn end_waiting(id: TaskId, waiting: &Waiting, reason: &Arc<str>, now: Timestamp) -> Decision {
    let drop = waiting.carry.last.as_ref().map(|last| AttemptChange::Drop(last.number));
    let finished = Finished {
        queue: waiting.queue,
        end: End::Canceled,
        finished_at: now,
        result: None,
        failure: None,
        reason: None,
        dead_lettered_at: None,
        cancel_reason: Some(Arc::clone(reason)),
        attempt: waiting.attempt,
        fence: waiting.fence,
        carry: waiting.carry.clone(),
    };
    let mut change = Change::to(Place::Finished(finished)).with_fact(id, FactKind::Canceled, None);
    change.attempts.extend(drop);
    Decision::accept(change, Answer::Canceled(Canceled { state: State::Canceled, reason: Arc::clone(reason) }))
}

/// The holder learns by its next heartbeat. A repeat keeps the first reason and the first clock.
fn request(id: TaskId, running: &Running, reason: &Arc<str>, now: Timestamp) -> Decision {
    if let Some(cancel) = &running.cancel {
        let reason = Arc::clone(&cancel.reason);
        return Decision::unchanged(Answer::Canceled(Canceled { state: State::Running, reason }));
    }
    let mut running = running.clone();
    running.cancel = Some(CancelRequest { reason: Arc::clone(reason), requested_at: now, signaled_at: None });
    running.lease.expires_at = running.lease.expires_at.min(running.not_after());
    let change = Change::to(Place::Running(running)).with_fact(id, FactKind::CancelRequested, None);
    Decision::accept(change, Answer::Canceled(Canceled { state: State::Running, reason: Arc::clone(reason) }))
}

fn revoke(id: TaskId, running: &Running, reason: &Arc<str>, now: Timestamp) -> Decision {
    let reason = running.cancel.as_ref().map_or(reason, |cancel| &cancel.reason);
    let failure = Failure {
        code: "CANCELLED".into(),
        message: "canceled while it ran".into(),
        stack: None,
        retryable: Some(false),
    };
    let closed = expire::close(running, AttemptState::Canceled, Reason::Revoked, Some(failure), now);
    let finished = Finished {
        queue: running.queue,
        end: End::Canceled,
        finished_at: now,
        result: None,
        failure: None,
        reason: None,
        dead_lettered_at: None,
        cancel_reason: Some(Arc::clone(reason)),
        attempt: running.attempt,
        fence: running.lease.generation,
        carry: Carry { last: Some(Box::new(closed)), ..running.carry.clone() },
    };
    let change = Change::to(Place::Finished(finished)).with_fact(id, FactKind::Canceled, Some(Reason::Revoked));
    Decision::accept(change, Answer::Canceled(Canceled { state: State::Canceled, reason: Arc::clone(reason) }))
}
