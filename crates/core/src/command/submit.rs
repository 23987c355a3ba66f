//! Submits tasks.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::{Change, Context, Rejection};
use crate::batch::{IdempotencyScope, KeyOwner};
use crate::event::FactKind;
use crate::id::TaskId;
use crate::limits;
use crate::mutant;
use crate::queue::{Push, Queue};
use crate::task::{Body, Carry, EnvelopeSpec, Idempotency, Spec, State, Waiting};
use crate::time::{DurationMs, Timestamp};

/// One or many tasks, all or nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct Submit {
    pub tasks: Vec<NewTask>,
    /// Tenant that will own any queue this creates; `None` is shared by all tenants.
    pub maker: Option<Arc<str>>,
}

/// A new task. Its id is minted beforehand, so that a submit whose commit got no answer can be found again.
#[derive(Debug, Clone, PartialEq)]
pub struct NewTask {
    pub id: TaskId,
    pub queue: Arc<str>,
    pub operator: Arc<str>,
    pub tenant: Arc<str>,
    /// Its owner within the tenant; `None` if it has none.
    pub owner: Option<Arc<str>>,
    pub workspace: Arc<str>,
    pub priority: u8,
    pub payload: Arc<str>,
    pub spec: Spec,
    pub start: Start,
    pub tags: BTreeMap<String, String>,
    pub idempotency: Option<Idempotency>,
    pub traceparent: Option<Arc<str>>,
    /// The credential of the submission. It does not make the task another one.
    pub submitted_by: Option<Arc<str>>,
    /// Parts of the envelope that is pushed; absent means the defaults.
    pub envelope: Option<Arc<EnvelopeSpec>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    Now,
    After(DurationMs),
    At(Timestamp),
}

impl Start {
    /// When the task is due, if it is submitted at `now`.
    fn run_at(self, now: Timestamp) -> Timestamp {
        match self {
            Self::Now => now,
            Self::After(_) if mutant!("delay-ignored") => now,
            Self::After(ms) => now.plus(ms),
            Self::At(point) => point.max(now),
        }
    }

    /// Where the task is at first.
    fn state(self, now: Timestamp) -> State {
        if self.run_at(now) > now { State::Scheduled } else { State::Ready }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Submitted {
    pub id: TaskId,
    pub state: State,
    pub created: bool,
}

/// What is known about a new task.
#[derive(Debug, Default)]
pub struct Known<'a> {
    /// An earlier try of the same submission made it: where it is now.
    pub made: Option<State>,
    /// `None` if the queue does not exist yet.
    pub queue: Option<&'a Queue>,
    /// The task that has its idempotency key.
    pub key: Option<KeyOwner>,
}

/// A submission that may be carried out.
#[derive(Debug)]
pub struct Checked {
    /// For each entry the task that it stands for already. An entry without one is created.
    pub existing: Vec<Option<Submitted>>,
    /// Keys that the created tasks take.
    pub keys: HashMap<IdempotencyScope, KeyOwner>,
}

/// Checks all entries before anything is created: one bad entry refuses the whole submission.
pub fn check<'a>(command: &Submit, now: Timestamp, find: impl Fn(&NewTask) -> Known<'a>) -> Result<Checked, Rejection> {
    let mut checked = Checked { existing: Vec::with_capacity(command.tasks.len()), keys: HashMap::new() };
    for (index, task) in command.tasks.iter().enumerate() {
        let known = find(task);
        if let Some(state) = known.made {
            checked.existing.push(Some(Submitted { id: task.id, state, created: true }));
            continue;
        }
        if known.queue.is_some_and(|queue| !queue.takes(&task.tenant)) {
            return Err(Rejection::QueueNotFound);
        }
        if let Some(refusal) = known.queue.and_then(|queue| token_ttl(task, index, queue, now)) {
            return Err(refusal);
        }
        let mismatch = known.queue.and_then(|queue| runtime(task, index, queue));
        let existing = match task.key_scope().zip(task.idempotency.as_ref()) {
            None => mismatch.map_or(Ok(None), Err)?,
            Some((scope, idempotency)) => {
                match known.key.as_ref().filter(|_| !mutant!("key-ignored")).or_else(|| checked.keys.get(&scope)) {
                    // What was accepted stays accepted, whatever became of the queue.
                    Some(holder) => Some(same_task(task, index, idempotency, holder)?),
                    None => {
                        mismatch.map_or(Ok(()), Err)?;
                        let (id, owner, fingerprint) = (task.id, task.owner.clone(), idempotency.fingerprint);
                        checked.keys.insert(scope, KeyOwner { id, owner, fingerprint, state: task.start.state(now) });
                        None
                    }
                }
            }
        };
        checked.existing.push(existing);
    }
    Ok(checked)
}

/// The same key with the same content is the same task.
fn same_task(
    task: &NewTask,
    index: usize,
    idempotency: &Idempotency,
    holder: &KeyOwner,
) -> Result<Submitted, Rejection> {
    // Another owner's task must not be seen; that its key is taken cannot be hidden.
    if task.owner.is_some() && task.owner != holder.owner {
        return Err(Rejection::IdempotencyConflict { index, existing: None });
    }
    if holder.fingerprint != idempotency.fingerprint && !mutant!("key-content-ignored") {
        return Err(Rejection::IdempotencyConflict { index, existing: Some(holder.id) });
    }
    Ok(Submitted { id: holder.id, state: holder.state, created: false })
}

/// Refuses a task that its queue would not run.
pub fn runtime(task: &NewTask, index: usize, queue: &Queue) -> Option<Rejection> {
    let wants_sandbox = task.spec.sandbox;
    (!queue.settings.runs(&task.spec)).then_some(Rejection::Runtime { index, wants_sandbox })
}

/// Refuses a task whose tokens could expire before its attempt ends: in a queue that pushes, or with a token lifetime of
/// its own.
pub fn token_ttl(task: &NewTask, index: usize, queue: &Queue, now: Timestamp) -> Option<Rejection> {
    let own = task.envelope.as_ref().and_then(|envelope| envelope.token_ttl_ms);
    let usual;
    // The control plane runs the tasks of such a queue itself, without a token.
    if queue.settings.runs_sandboxes() {
        return None;
    }
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

/// The new task and where it goes.
pub fn decide(task: &NewTask, queue: &Queue, ctx: &Context<'_>) -> (Body, Change) {
    let run_at = task.start.run_at(ctx.now);
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
        submitted_by: task.submitted_by.clone(),
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
    use crate::command::testing::{at, id, in_sandbox, push_settings, queue, sandbox_settings, with_ctx};
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
            submitted_by: None,
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
    fn a_queue_refuses_what_it_does_not_run_unless_it_was_accepted_before() {
        let plain = new_task(Start::Now);
        let boxed = NewTask { spec: in_sandbox(), ..plain.clone() };
        for (settings, task, accepts) in [
            (QueueSettings::default(), &plain, true),
            (push_settings(), &plain, true),
            (sandbox_settings(), &boxed, true),
            (QueueSettings::default(), &boxed, false),
            (push_settings(), &boxed, false),
            (sandbox_settings(), &plain, false),
        ] {
            let queue = Queue { settings, ..queue() };
            let idempotency = Some(Idempotency { key: "k".into(), fingerprint: [1; 32] });
            let keyed = NewTask { idempotency, ..task.clone() };
            for task in [task.clone(), keyed.clone()] {
                let command = Submit { tasks: vec![task.clone()], maker: None };
                let checked = check(&command, at(0), |_| Known { queue: Some(&queue), ..Known::default() });
                let refusal = Rejection::Runtime { index: 0, wants_sandbox: task.spec.sandbox };
                assert_eq!(checked.map(drop), if accepts { Ok(()) } else { Err(refusal) }, "{:?}", queue.settings);
            }
            let command = Submit { tasks: vec![keyed], maker: None };
            let key = KeyOwner { id: id(), owner: None, fingerprint: [1; 32], state: State::Ready };
            let known = |_: &NewTask| Known { queue: Some(&queue), key: Some(key.clone()), ..Known::default() };
            assert!(check(&command, at(0), known).is_ok(), "the same submission again");
        }
    }

    #[test]
    fn tokens_do_not_matter_where_the_control_plane_runs_the_task() {
        let spec = Spec { timeout_ms: Some(30 * 24 * 3_600_000), ..in_sandbox() };
        let task = NewTask { spec, ..new_task(Start::Now) };
        let queue = |settings| Queue { settings, ..queue() };
        assert_eq!(token_ttl(&task, 0, &queue(sandbox_settings()), at(0)), None);
        assert!(token_ttl(&task, 0, &queue(push_settings()), at(0)).is_some());
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
