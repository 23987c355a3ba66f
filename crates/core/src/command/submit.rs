//! New work.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Change, Context};
use crate::event::FactKind;
use crate::id::{Fence, TaskId};
use crate::queue::Queue;
use crate::task::{Body, Carry, Idempotency, Place, Spec, State, Waiting};
use crate::time::{DurationMs, Timestamp};

/// One or many tasks, all or nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct Submit {
    pub tasks: Vec<NewTask>,
}

/// A task to be. Its id is minted beforehand, so that a submit whose commit got no answer is found again.
#[derive(Debug, Clone, PartialEq)]
pub struct NewTask {
    pub id: TaskId,
    pub queue: Arc<str>,
    pub operator: Arc<str>,
    pub tenant: Arc<str>,
    pub workspace: Arc<str>,
    pub priority: u8,
    pub payload: Arc<str>,
    pub spec: Spec,
    pub start: Start,
    pub tags: BTreeMap<String, String>,
    pub idempotency: Option<Idempotency>,
    pub traceparent: Option<Arc<str>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    Now,
    After(DurationMs),
    At(Timestamp),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Submitted {
    pub id: TaskId,
    pub state: State,
    pub created: bool,
}

/// A task as it is born.
pub fn decide(task: &NewTask, queue: &Queue, ctx: &Context<'_>) -> (Body, Change) {
    let run_at = match task.start {
        Start::Now => ctx.now,
        Start::After(ms) => ctx.now.plus(ms),
        Start::At(point) => point.max(ctx.now),
    };
    let body = Body {
        id: task.id,
        queue: queue.id,
        operator: Arc::clone(&task.operator),
        tenant: Arc::clone(&task.tenant),
        workspace: Arc::clone(&task.workspace),
        priority: task.priority,
        payload: Arc::clone(&task.payload),
        spec: task.spec,
        tags: task.tags.clone(),
        idempotency: task.idempotency.clone(),
        traceparent: task.traceparent.clone(),
        created_at: ctx.now,
        run_at,
    };
    let waiting = Waiting {
        queue: queue.id,
        priority: task.priority,
        at: run_at,
        fair: queue.settings.fairness_key.as_ref().map(|key| body.fairness_value(key)),
        // The task's own number is as fresh as any: it serves as the first message.
        message: task.id.seq().0,
        attempt: 0,
        fence: Fence::default(),
        carry: Carry::fresh(task.spec),
    };
    let place = if run_at > ctx.now { Place::Scheduled(waiting) } else { Place::Ready(waiting) };
    let change = Change::to(place).with_fact(task.id, FactKind::Submitted, None).with_wake(task.id);
    (body, change)
}
