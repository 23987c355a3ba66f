//! A person gives an ended task another chance. Attempt and fence go on from where they were.

use std::sync::Arc;

use super::{Answer, AttemptChange, Change, Context, Decision, Reach, Rejection, Task};
use crate::event::FactKind;
use crate::id::TaskId;
use crate::queue::QueueSettings;
use crate::task::{Body, Carry, End, Finished, Place, Waiting};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retry {
    pub task: TaskId,
    pub reach: Reach,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retried {
    /// The last attempt so far.
    pub attempt: u32,
    /// The budget in all.
    pub max_attempts: u32,
}

pub fn decide(task: &Task, command: &Retry, queue: &QueueSettings, ctx: &mut Context<'_>) -> Decision {
    let Some(body) = task.body.as_ref().filter(|body| command.reach.covers(&body.tenant)) else {
        return Decision::refuse(Rejection::NotFound);
    };
    let refuse = |past_deadline| Decision::refuse(Rejection::NotRetryable { state: task.place.state(), past_deadline });
    let Place::Finished(finished) = &task.place else { return refuse(false) };
    if finished.end == End::Succeeded {
        return refuse(false);
    }
    if body.spec.is_past_deadline(ctx.now) {
        return refuse(true);
    }
    let (change, max_attempts) = again(body, finished, FactKind::Retried, queue, ctx);
    Decision::accept(change, Answer::Retried(Retried { attempt: finished.attempt, max_attempts }))
}

/// Puts an ended task back, with the budget grown by the submitted one.
pub fn again(
    body: &Arc<Body>,
    finished: &Finished,
    kind: FactKind,
    queue: &QueueSettings,
    ctx: &mut Context<'_>,
) -> (Change, u32) {
    let mut carry = Carry { spec: body.spec, ..finished.carry.clone() };
    carry.extra_attempts = carry.extra_attempts.saturating_add(body.spec.max_attempts());
    if kind == FactKind::Redriven {
        carry.redrives = carry.redrives.saturating_add(1);
    }
    let max_attempts = carry.allowed_attempts();
    let moved = carry.last.as_deref().cloned();
    let waiting = Waiting {
        queue: finished.queue,
        priority: body.priority,
        at: ctx.now,
        fair: queue.fairness_key.as_ref().map(|key| body.fairness_value(key)),
        message: ctx.numbers.take(),
        attempt: finished.attempt,
        fence: finished.fence,
        carry,
    };
    let mut change = Change::to(Place::Ready(waiting)).with_fact(body.id, kind, None).with_wake(body.id);
    change.attempts.extend(moved.map(|moved| AttemptChange::Put(Box::new(moved))));
    (change, max_attempts)
}
