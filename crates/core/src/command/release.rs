//! Takes back a grant that could not be delivered: the claimer was gone when the answer was ready.

use super::{Answer, AttemptChange, Change, Context, Decision, Task};
use crate::attempt::{AttemptState, Reason};
use crate::event::FactKind;
use crate::id::{AttemptId, Seq};
use crate::task::{Carry, Place, Waiting};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    pub row: Seq,
    pub attempt_id: AttemptId,
}

/// The task is ready again at once. The attempt stays in the history and costs nothing of the budget.
pub fn decide(task: &Task, command: &Release, ctx: &mut Context<'_>) -> Decision {
    let Place::Running(running) = &task.place else { return Decision::unchanged(Answer::Done(false)) };
    // A heartbeat proves that the grant did arrive.
    if running.attempt_id != command.attempt_id || running.last_heartbeat_at.is_some() || running.cancel.is_some() {
        return Decision::unchanged(Answer::Done(false));
    }
    let closed = super::expire::close(running, AttemptState::Canceled, Reason::Undelivered, None, ctx.now);
    let waiting = Waiting {
        queue: running.queue,
        priority: running.priority,
        at: ctx.now,
        fair: running.fair.clone(),
        message: ctx.numbers.take(),
        attempt: running.attempt,
        fence: running.lease.generation,
        carry: Carry {
            last: Some(Box::new(closed.clone())),
            extra_attempts: running.carry.extra_attempts.saturating_add(1),
            ..running.carry.clone()
        },
    };
    let change = Change::to(Place::Ready(waiting))
        .with_attempt(AttemptChange::Put(Box::new(closed)))
        .with_fact(task.id, FactKind::Released, Some(Reason::Undelivered))
        .with_wake(task.id);
    Decision::accept(change, Answer::Done(true))
}
