//! New work.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Change, Context, Rejection};
use crate::event::FactKind;
use crate::id::TaskId;
use crate::limits;
use crate::queue::{Push, Queue};
use crate::task::{Body, Carry, EnvelopeSpec, Idempotency, Spec, State, Waiting};
use crate::time::{DurationMs, Timestamp};

/// One or many tasks, all or nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct Submit {
    pub tasks: Vec<NewTask>,
    /// Whose the queues become that do not exist yet; `None` is shared by all tenants.
    pub maker: Option<Arc<str>>,
}

/// A task to be. Its id is minted beforehand, so that a submit whose commit got no answer is found again.
#[derive(Debug, Clone, PartialEq)]
pub struct NewTask {
    pub id: TaskId,
    pub queue: Arc<str>,
    pub operator: Arc<str>,
    pub tenant: Arc<str>,
    /// Who submits it, inside the tenant; `None` if nobody in particular.
    pub owner: Option<Arc<str>>,
    pub workspace: Arc<str>,
    pub priority: u8,
    pub payload: Arc<str>,
    pub spec: Spec,
    pub start: Start,
    pub tags: BTreeMap<String, String>,
    pub idempotency: Option<Idempotency>,
    pub traceparent: Option<Arc<str>>,
    /// What only the envelope of a push tells.
    pub envelope: Option<Arc<EnvelopeSpec>>,
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

/// Refuses a task whose tokens could run out before its attempt does: of a queue that pushes, or one that asks for a
/// length of its own.
pub fn token_ttl(task: &NewTask, index: usize, queue: &Queue, now: Timestamp) -> Option<Rejection> {
    let own = task.envelope.as_ref().and_then(|envelope| envelope.token_ttl_ms);
    let usual;
    let push = match (&queue.settings.push, own) {
        (Some(push), _) => &**push,
        (None, None) => return None,
        (None, Some(_)) => {
            usual = Push::to("".into());
            &usual
        }
    };
    let needed_ms = task.spec.token_need_ms(push, now);
    let allowed_ms = own.unwrap_or(limits::TOKEN_TTL_MS_MAX).min(limits::TOKEN_TTL_MS_MAX);
    (needed_ms > allowed_ms).then_some(Rejection::TokenTtl { index, needed_ms, allowed_ms })
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
        owner: task.owner.clone(),
        workspace: Arc::clone(&task.workspace),
        priority: task.priority,
        payload: Arc::clone(&task.payload),
        spec: task.spec,
        tags: task.tags.clone(),
        idempotency: task.idempotency.clone(),
        traceparent: task.traceparent.clone(),
        envelope: task.envelope.clone(),
        created_at: ctx.now,
        run_at,
        run: None,
    };
    let fair = queue.settings.fairness_key.as_ref().map(|key| body.fairness_value(key));
    let waiting = Waiting::first(body.seq(), queue.id, task.priority, run_at, fair, Carry::fresh(task.spec));
    let change =
        Change::to(waiting.at_its_place(ctx.now)).with_fact(task.id, FactKind::Submitted, None).with_wake(task.id);
    (body, change)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Wake;
    use crate::command::testing::{at, id, queue, with_ctx};
    use crate::id::Fence;
    use crate::queue::{FairnessKey, QueueSettings};
    use crate::task::Place;

    fn new_task(start: Start) -> NewTask {
        NewTask {
            id: id(),
            queue: "q".into(),
            operator: "extract".into(),
            tenant: "acme".into(),
            owner: None,
            workspace: "prod".into(),
            priority: 7,
            payload: r#"{"day":1}"#.into(),
            spec: Spec { max_attempts: Some(9), ..Spec::default() },
            start,
            tags: BTreeMap::from([("team".to_owned(), "etl".to_owned())]),
            idempotency: None,
            traceparent: None,
            envelope: None,
        }
    }

    fn submit(start: Start, queue: &Queue) -> (Body, Change) {
        with_ctx(5_000, |ctx| decide(&new_task(start), queue, ctx))
    }

    #[test]
    fn a_task_is_ready_or_waits_for_its_time() {
        for (start, state, run_at) in [
            (Start::Now, State::Ready, 5_000),
            (Start::After(0), State::Ready, 5_000),
            (Start::At(at(1_000)), State::Ready, 5_000),
            (Start::At(at(5_000)), State::Ready, 5_000),
            (Start::After(1), State::Scheduled, 5_001),
            (Start::At(at(9_000)), State::Scheduled, 9_000),
        ] {
            let (body, change) = submit(start, &queue());
            assert_eq!((change.place.state(), body.run_at, body.created_at), (state, at(run_at), at(5_000)));
            let wakes = if state == State::Ready {
                vec![Wake { task: id(), queue: queue().id, message: id().seq().0 }]
            } else {
                vec![]
            };
            assert_eq!(change.outbox, wakes, "only what is ready wakes somebody");
        }
    }

    #[test]
    fn a_fresh_task_has_had_no_attempt_and_carries_its_spec() {
        let (body, change) = submit(Start::Now, &queue());
        let Place::Ready(waiting) = change.place else { panic!("{change:?}") };
        assert_eq!((waiting.attempt, waiting.fence, waiting.priority), (0, Fence(0), 7));
        assert_eq!(waiting.carry, Carry::fresh(body.spec));
        assert_eq!(change.facts[0].kind, FactKind::Submitted);
    }

    #[test]
    fn a_task_belongs_to_whoever_submits_it() {
        let owned = NewTask { owner: Some("ann".into()), ..new_task(Start::Now) };
        let (body, _) = with_ctx(5_000, |ctx| decide(&owned, &queue(), ctx));
        assert_eq!(body.owner.as_deref(), Some("ann"));
        assert_eq!(submit(Start::Now, &queue()).0.owner, None);
    }

    #[test]
    fn the_fairness_value_is_what_the_key_of_the_queue_names() {
        for (key, value) in [
            (None, None),
            (Some(FairnessKey::Tenant), Some("acme")),
            (Some(FairnessKey::Workspace), Some("prod")),
            (Some(FairnessKey::Tag("team".into())), Some("etl")),
            (Some(FairnessKey::Tag("none".into())), Some("")),
        ] {
            let queue = Queue { settings: QueueSettings { fairness_key: key, ..Default::default() }, ..queue() };
            let (_, change) = submit(Start::Now, &queue);
            let Place::Ready(waiting) = change.place else { panic!("{change:?}") };
            assert_eq!(waiting.fair.as_deref(), value);
        }
    }
}
