//! Small tasks for the tests of the commands.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Conflict, Context, Decision, Numbers, Rejection, Task};
use crate::attempt::{AttemptState, Category, ClosedAttempt, Failure, Reason, Report};
use crate::command::report::AttemptReport;
use crate::command::{claim, ending, expire};
use crate::id::{AttemptId, Fence, LeaseToken, Seq, TaskId};
use crate::lease::Grace;
use crate::queue::{Push, Queue, QueueId, QueueSettings};
use crate::retry::RetryPolicy;
use crate::run::Member;
use crate::task::{Blocked, Body, Carry, Finished, Place, Running, Spec, Waiting};
use crate::time::Timestamp;

pub fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(ms)
}

pub fn id() -> TaskId {
    TaskId::parse("task_01HGW5N7XHJM4GX29KZRXQP6N9").unwrap()
}

pub fn queue() -> Queue {
    Queue::new(QueueId(1), "q".into())
}

pub fn settings() -> QueueSettings {
    QueueSettings::default()
}

pub fn body(spec: Spec) -> Body {
    Body {
        id: id(),
        queue: QueueId(1),
        operator: "extract".into(),
        tenant: "acme".into(),
        owner: None,
        workspace: "default".into(),
        priority: 3,
        payload: "{}".into(),
        spec,
        tags: BTreeMap::new(),
        idempotency: None,
        traceparent: None,
        submitted_by: None,
        envelope: None,
        created_at: at(0),
        run_at: at(0),
        run: None,
    }
}

/// Waits for one other task of its run.
pub fn blocked() -> Blocked {
    let member = Member { run: Seq(500), sealed: false, refs: BTreeMap::new() };
    Blocked {
        queue: QueueId(1),
        priority: 3,
        waiting_on: 1,
        at: at(0),
        fair: None,
        carry: Carry { run: Some(Box::new(member)), ..Carry::default() },
    }
}

/// Two attempts, and no wait between them.
pub fn no_backoff() -> Spec {
    let retry = RetryPolicy { initial_backoff_ms: 0, ..RetryPolicy::default() };
    Spec { max_attempts: Some(2), retry: Some(retry), ..Spec::default() }
}

pub fn one_attempt() -> Spec {
    Spec { max_attempts: Some(1), ..Spec::default() }
}

pub fn ready() -> Waiting {
    Waiting {
        queue: QueueId(1),
        priority: 5,
        at: at(0),
        fair: None,
        message: 1,
        attempt: 0,
        fence: Fence(0),
        carry: Carry::default(),
    }
}

/// Granted at 0 with a lease of 60 s, by a claim of seed 1.
pub fn running() -> Running {
    running_with(Spec::default())
}

pub fn running_with(spec: Spec) -> Running {
    granted(&Waiting { carry: Carry::fresh(spec), ..ready() }, 1, 0)
}

/// What a claim of this seed makes of a ready task.
pub fn granted(waiting: &Waiting, seed: u8, now: i64) -> Running {
    let mut numbers = Numbers::new(100, 200);
    let ctx = Context::new(at(now), Grace::NONE, &mut numbers);
    let (change, _) = claim::grant(id(), waiting, &claimer(seed), 0, &queue(), &ctx);
    match change.place {
        Place::Running(running) => running,
        other => panic!("granted means running: {other:?}"),
    }
}

/// Settings of a queue that pushes, with the defaults.
pub fn push_settings() -> QueueSettings {
    QueueSettings { push: Some(Arc::new(Push::to("https://worker.example/dispatch".into()))), ..settings() }
}

/// Of a queue that runs its tasks in sandboxes.
pub fn sandbox_settings() -> QueueSettings {
    QueueSettings { push: Some(Arc::new(Push::to("sandbox:".into()))), ..settings() }
}

/// Of a task that asks for a sandbox.
pub fn in_sandbox() -> Spec {
    Spec { sandbox: true, ..Spec::default() }
}

/// Granted at 0 by a dispatcher of seed 1, and on its way.
pub fn dispatched(spec: Spec) -> Running {
    let mut numbers = Numbers::new(100, 200);
    let ctx = Context::new(at(0), Grace::NONE, &mut numbers);
    let queue = Queue { settings: push_settings(), ..queue() };
    let waiting = Waiting { carry: Carry::fresh(spec), ..ready() };
    let dispatcher = claim::Claimer::delivery(claimer(1).seed);
    match claim::grant(id(), &waiting, &dispatcher, 0, &queue, &ctx).0.place {
        Place::Running(running) => running,
        other => panic!("granted means running: {other:?}"),
    }
}

/// The task of [`running_with`] after the reaper has found its lease expired.
pub fn swept(spec: Spec) -> Task {
    with_ctx(60_000, |ctx| expire::settle(&task(Place::Running(running_with(spec))), &settings(), ctx).0)
}

/// Attempt 1 expired and attempt 2 was granted at 60 s, by a claim of seed 2; with the history.
pub fn regranted() -> (Task, Vec<ClosedAttempt>) {
    match swept(no_backoff()).place {
        Place::Ready(waiting) => {
            let last = waiting.carry.last.clone().unwrap();
            (task(Place::Running(granted(&waiting, 2, 60_000))), vec![*last])
        }
        other => panic!("without back-off it is ready at once: {other:?}"),
    }
}

pub fn claimer(seed: u8) -> claim::Claimer {
    claim::Claimer::worker("w".into(), claim::Seed([seed; 32]))
}

pub fn token(seed: u8) -> LeaseToken {
    claim::Seed([seed; 32]).draw(0).1
}

pub fn attempt_id(seed: u8) -> AttemptId {
    claim::Seed([seed; 32]).draw(0).0
}

pub fn succeeded(result: &str) -> Report {
    Report::succeeded(Some(result.into()))
}

pub fn failed(code: &str) -> Report {
    Report::failed(Failure::new(code, "it broke", None, None).of_category(category(code)))
}

/// What a contract reads from a code.
pub fn category(code: &str) -> Option<Category> {
    match code {
        "USER_CODE" => Some(Category::UserCode),
        "DATA_QUALITY" => Some(Category::DataQuality),
        "INFRASTRUCTURE" => Some(Category::Infrastructure),
        "CONFIGURATION" => Some(Category::Configuration),
        "TIMEOUT" => Some(Category::Timeout),
        "CANCELLED" => Some(Category::Canceled),
        _ => None,
    }
}

/// A report of the attempt that a claim of this seed was granted.
pub fn reported(seed: u8, report: &Report) -> AttemptReport {
    AttemptReport { task: id(), attempt_id: attempt_id(seed), token: token(seed), report: report.clone(), data: None }
}

pub fn scheduled_retry() -> Waiting {
    let closed = ending::close(&running(), AttemptState::Failed, Reason::HeartbeatTimeout, None, at(60_000));
    Waiting {
        attempt: 1,
        fence: Fence(1),
        carry: Carry { last: Some(Box::new(closed)), ..Carry::default() },
        ..ready()
    }
}

pub fn task(place: Place) -> Task {
    Task { id: id(), place, body: None }
}

/// For the commands that look at the body.
pub fn whole_task(place: Place, spec: Spec) -> Task {
    Task { body: Some(Arc::new(body(spec))), ..task(place) }
}

/// Runs `f` at `now` with no outage.
pub fn with_ctx<T>(now: i64, f: impl FnOnce(&mut Context<'_>) -> T) -> T {
    with_grace(now, 0, f)
}

/// Runs `f` at `now` after an outage that ended just now, with a grace that ends at `until`.
pub fn with_grace<T>(now: i64, until: i64, f: impl FnOnce(&mut Context<'_>) -> T) -> T {
    with_outage(now, Grace::new(at(now), at(until)), f)
}

/// Runs `f` at `now` with the grace of an outage.
pub fn with_outage<T>(now: i64, grace: Grace, f: impl FnOnce(&mut Context<'_>) -> T) -> T {
    let mut numbers = Numbers::new(1_000, 2_000);
    f(&mut Context::new(at(now), grace, &mut numbers))
}

pub fn conflict(decision: &Decision) -> Conflict {
    match &decision.answer {
        Err(Rejection::Conflict(conflict)) => *conflict,
        other => panic!("not a conflict: {other:?}"),
    }
}

pub fn place(decision: &Decision) -> &Place {
    &decision.change.as_ref().expect("something changes").place
}

pub fn to_running(decision: &Decision) -> &Running {
    match place(decision) {
        Place::Running(running) => running,
        other => panic!("not running: {other:?}"),
    }
}

pub fn to_waiting(decision: &Decision) -> &Waiting {
    match place(decision) {
        Place::Scheduled(waiting) | Place::Ready(waiting) => waiting,
        other => panic!("not waiting: {other:?}"),
    }
}

pub fn to_finished(decision: &Decision) -> &Finished {
    match place(decision) {
        Place::Finished(finished) => finished,
        other => panic!("not finished: {other:?}"),
    }
}
