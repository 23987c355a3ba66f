//! A worker asks for work.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::{Answer, Change, Context, Decision, Task, ending, expire};
use crate::attempt::{Category, Failure};
use crate::event::FactKind;
use crate::id::{AttemptId, Fence, LeaseToken, Seq, TaskId, WorkerId};
use crate::lease;
use crate::mutant;
use crate::queue::{Queue, QueueId, QueueSettings, Transport};
use crate::task::{Body, Carry, End, FailReason, Finished, Place, PushProgress, Running, Waiting};
use crate::time::{DurationMs, Timestamp};

/// The code of the failure of a task that its queue does not run.
const WRONG_RUNTIME: &str = "WRONG_RUNTIME";

/// Who asks, and the randomness for what it may be granted.
#[derive(Debug, Clone, PartialEq)]
pub struct Claimer {
    /// `None` is the control plane, which pushes what it is granted: a worker is known only when one starts the attempt.
    pub worker: Option<Claimant>,
    pub seed: Seed,
}

/// A worker that asks for work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimant {
    pub id: WorkerId,
    pub incarnation: Option<Arc<str>>,
    /// The same claim sent again while its leases are live returns the same jobs.
    pub claim_id: Option<Arc<str>>,
    /// The worker promises that everything an attempt started is dead when its lease expires.
    pub kills_on_expiry: bool,
    /// It works under the dispatch contract: it is granted tasks of jobs, and only those.
    pub dispatch: bool,
}

impl Claimer {
    pub const fn worker(id: WorkerId, seed: Seed) -> Self {
        Self {
            worker: Some(Claimant { id, incarnation: None, claim_id: None, kills_on_expiry: false, dispatch: false }),
            seed,
        }
    }

    /// Claims tasks that the control plane pushes.
    pub const fn delivery(seed: Seed) -> Self {
        Self { worker: None, seed }
    }

    pub const fn is_delivery(&self) -> bool {
        self.worker.is_none()
    }

    /// The name of this claim: worker and claim id, if the worker gave it one.
    pub fn name(&self) -> Option<(&WorkerId, &Arc<str>)> {
        self.worker.as_ref().and_then(|worker| Some((&worker.id, worker.claim_id.as_ref()?)))
    }

    /// Whether this lease was granted to this very claim, sent or decided before, for up to `max_jobs` jobs.
    pub fn was_granted(&self, running: &Running, max_jobs: usize) -> bool {
        let held = running.lease.holder.as_ref().zip(running.claim_id.as_ref());
        (held.is_some() && held == self.name())
            || (0..max_jobs).any(|index| self.seed.draw(index).0 == running.attempt_id)
    }
}

/// 256 random bits, from which the attempt ids and tokens of one claim are drawn. The same claim decided again draws
/// the same ones: that is how a claim whose commit got no answer is found again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Seed(pub [u8; 32]);

impl std::fmt::Debug for Seed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seed(***)")
    }
}

impl Seed {
    pub fn draw(&self, index: usize) -> (AttemptId, LeaseToken) {
        let mut hash = Sha256::new();
        hash.update(self.0);
        hash.update((index as u64).to_be_bytes());
        let digest = hash.finalize();
        let half = |range: std::ops::Range<usize>| digest[range].iter().fold(0_u128, |v, b| v << 8 | u128::from(*b));
        (AttemptId::from_u128(half(0..16)), LeaseToken::from_u128(half(16..32)))
    }
}

/// Jobs of any of these queues, tried strictly in order.
#[derive(Debug, Clone, PartialEq)]
pub struct Claim {
    pub claimer: Claimer,
    pub queues: Vec<Arc<str>>,
    pub max_jobs: usize,
}

/// That very task.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimTask {
    pub claimer: Claimer,
    pub task: TaskId,
    /// The message that named it, as the transport calls it.
    pub message: Option<Arc<str>>,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Claimed {
    pub grants: Vec<Grant>,
    /// Nothing was granted although tasks are ready: when to ask again, if time alone will help.
    pub retry_at: Option<Timestamp>,
    /// Queues whose slots are all held: an end of one of their attempts makes room.
    pub full: Vec<Arc<str>>,
}

/// A task under its new lease.
#[derive(Debug, Clone, PartialEq)]
pub struct Grant {
    pub task: TaskId,
    pub queue: QueueId,
    pub attempt: u32,
    pub attempt_id: AttemptId,
    pub token: LeaseToken,
    pub fence: Fence,
    pub message: i64,
    pub lease_ttl_ms: DurationMs,
    pub heartbeat_ms: DurationMs,
    pub deadline: Option<Timestamp>,
    pub checkpoint: Option<Arc<str>>,
    /// How the wake-up of this task travelled, and what its transport calls it. Filled in by the store.
    pub transport: Transport,
    pub receipt: Option<Arc<str>>,
    /// The claim had an id: whoever sent it can ask for the same grant again.
    pub repeatable: bool,
    pub granted_at: Timestamp,
    pub expires_at: Timestamp,
    /// Set for a task that is to be pushed.
    pub delivery: Option<Box<PushProgress>>,
    /// Filled in by the store, which reads it only for what was granted.
    pub body: Option<Arc<Body>>,
}

impl Grant {
    pub fn of(task: TaskId, running: &Running) -> Self {
        Self {
            task,
            queue: running.queue,
            attempt: running.attempt,
            attempt_id: running.attempt_id,
            token: running.lease.token,
            fence: running.lease.generation,
            message: running.message,
            lease_ttl_ms: running.lease_ttl_ms,
            heartbeat_ms: running.heartbeat_ms,
            deadline: running.carry.spec.deadline,
            checkpoint: running.carry.checkpoint.clone(),
            transport: Transport::default(),
            receipt: None,
            repeatable: running.claim_id.is_some(),
            granted_at: running.granted_at,
            expires_at: running.lease.expires_at,
            delivery: running.carry.delivery.clone(),
            body: None,
        }
    }

    pub fn seq(&self) -> Seq {
        self.task.seq()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotGranted {
    pub reason: NotGrantedReason,
    pub ack: bool,
    /// The message that stands for the task now, if there is one.
    pub live: Option<LiveMessage>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveMessage {
    pub queue: QueueId,
    pub message: i64,
}

impl NotGranted {
    /// Whether a message may be dropped: unless it is the one that still stands for the task. `receipt` is what the
    /// transport calls that one.
    pub fn may_ack(live: Option<LiveMessage>, receipt: Option<&str>, message: Option<&str>) -> bool {
        let Some(live) = live else { return true };
        message.is_some_and(|message| message != live.message.to_string() && Some(message) != receipt)
    }
}

/// Why a task was not granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotGrantedReason {
    AlreadyRunning,
    Ended(End),
    /// It is not ready yet, or its queue grants nothing now.
    NotDue,
    NotFound,
}

/// Grants one ready task. The caller has checked that the queue has room.
pub fn grant(
    task: TaskId,
    waiting: &Waiting,
    claimer: &Claimer,
    index: usize,
    queue: &Queue,
    ctx: &Context<'_>,
) -> (Change, Grant) {
    let (attempt_id, token) = claimer.seed.draw(index);
    let spec = &waiting.carry.spec;
    let lease_ttl_ms = spec.lease_ttl_ms(&queue.settings);
    let push = queue.settings.push.as_ref().filter(|_| claimer.is_delivery());
    // Until a worker starts it, the lease covers the way to one.
    let first_ms = push.map_or(lease_ttl_ms, |push| push.dispatch_timeout_ms);
    let delivery = push.map(|push| Box::new(PushProgress::granted(waiting.at, push, ctx.now)));
    let worker = claimer.worker.as_ref();
    let holder = worker.map(|worker| Arc::clone(&worker.id));
    let mut running = Running {
        queue: waiting.queue,
        priority: waiting.priority,
        fair: waiting.fair.clone(),
        message: waiting.message,
        lease: lease::acquire(waiting.fence, holder, token, first_ms, ctx.now),
        attempt: if mutant!("attempt-not-counted") { 1 } else { waiting.attempt.saturating_add(1) },
        attempt_id,
        claim_id: worker.and_then(|worker| worker.claim_id.clone()),
        incarnation: worker.and_then(|worker| worker.incarnation.clone()),
        granted_at: ctx.now,
        last_heartbeat_at: None,
        progress: Default::default(),
        lease_ttl_ms,
        heartbeat_ms: spec.heartbeat_ms(&queue.settings),
        cancel: None,
        carry: Carry { last: None, delivery, ..waiting.carry.clone() },
    };
    running.lease.expires_at = running.lease.expires_at.min(running.not_after(ctx.grace));
    let grant = Grant::of(task, &running);
    let kind = if running.started_at().is_some() { FactKind::Started } else { FactKind::Dispatched };
    (Change::to(Place::Running(running)).with_fact(task, kind, None), grant)
}

/// Ends a ready task that its queue does not run: the queue was set for sandboxes, or no longer, after the task was
/// accepted. It becomes a dead letter, from where it can be retried when the queue is as it was.
pub fn refuse_runtime(task: TaskId, waiting: &Waiting, queue: &QueueSettings, ctx: &Context<'_>) -> Change {
    let message = if waiting.carry.spec.sandbox {
        "the task asks for a sandbox and its queue does not run sandboxes any more: set push.url of the queue to \
         sandbox: and retry the task"
    } else {
        "the queue runs its tasks in sandboxes and the task has no runtime.sandbox: set another push.url and retry the \
         task, or submit it again with a runtime"
    };
    let failure = Failure::new(WRONG_RUNTIME, message, None, Some(false)).of_category(Some(Category::Configuration));
    let ended = waiting.ended(End::Failed, ctx.now).failed(FailReason::NonRetryable, queue);
    ending::finish_waiting(task, waiting, Finished { failure: Some(failure), ..ended }, None)
}

/// Decides about the task that a [`ClaimTask`] names.
pub fn decide_task(task: &Task, command: &ClaimTask, queue: &Queue, running: u32, ctx: &mut Context<'_>) -> Decision {
    let (settled, earlier) = expire::settle(task, &queue.settings, ctx);
    judge_task(&settled, command, queue, running, ctx).after(earlier)
}

fn judge_task(task: &Task, command: &ClaimTask, queue: &Queue, running: u32, ctx: &Context<'_>) -> Decision {
    let refuse = |reason, live: Option<(QueueId, i64)>| {
        let live = live.map(|(queue, message)| LiveMessage { queue, message });
        let ack = NotGranted::may_ack(live, None, command.message.as_deref());
        Decision::unchanged(Answer::NotGranted(NotGranted { reason, ack, live }))
    };
    let by_job_worker = command.claimer.worker.as_ref().is_some_and(|worker| worker.dispatch);
    if by_job_worker && queue.settings.dispatch.is_none() {
        return refuse(NotGrantedReason::NotFound, None);
    }
    match &task.place {
        Place::Ready(waiting) if !queue.settings.runs(&waiting.carry.spec) => {
            let change = refuse_runtime(task.id, waiting, &queue.settings, ctx);
            let answer = NotGranted { reason: NotGrantedReason::Ended(End::Failed), ack: true, live: None };
            Decision::accept(change, Answer::NotGranted(answer))
        }
        Place::Ready(waiting)
            if queue.serves(&command.claimer)
                && !queue.settings.holds(&waiting.carry.spec)
                && queue.room(running, ctx.now).grants > 0 =>
        {
            let (change, granted) = grant(task.id, waiting, &command.claimer, 0, queue, ctx);
            let claimed = Claimed { grants: vec![granted], ..Claimed::default() };
            Decision::accept(change, Answer::Claimed(claimed))
        }
        Place::Ready(waiting) => refuse(NotGrantedReason::NotDue, Some((waiting.queue, waiting.message))),
        Place::Blocked(_) | Place::Scheduled(_) => refuse(NotGrantedReason::NotDue, None),
        Place::Running(held) => {
            if command.claimer.was_granted(held, 1) {
                let claimed = Claimed { grants: vec![Grant::of(task.id, held)], ..Claimed::default() };
                return Decision::unchanged(Answer::Claimed(claimed));
            }
            refuse(NotGrantedReason::AlreadyRunning, Some((held.queue, held.message)))
        }
        Place::Finished(finished) => refuse(NotGrantedReason::Ended(finished.end), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attempt::Progress;
    use crate::command::cancel::{self, Cancel, Mode};
    use crate::command::testing::{
        at, attempt_id, claimer, id, in_sandbox, no_backoff, one_attempt, place, queue, ready, running, running_with,
        sandbox_settings, scheduled_retry, settings, swept, task, to_finished, to_running, token, whole_task, with_ctx,
    };
    use crate::queue::{Dispatch, QueueSettings};
    use crate::task::{Spec, State};

    fn granted_with(spec: Spec, settings: QueueSettings) -> (Running, Grant) {
        let queue = Queue { settings, ..queue() };
        let waiting = Waiting { carry: Carry::fresh(spec), ..ready() };
        let (change, grant) = with_ctx(1_000, |ctx| grant(id(), &waiting, &claimer(1), 0, &queue, ctx));
        match change.place {
            Place::Running(running) => (running, grant),
            other => panic!("granted means running: {other:?}"),
        }
    }

    fn claim_at(place: Place, claimer: Claimer, message: Option<i64>, queue: &Queue, now: i64) -> Decision {
        let command = ClaimTask { claimer, task: id(), message: message.map(|message| message.to_string().into()) };
        with_ctx(now, |ctx| decide_task(&task(place), &command, queue, 0, ctx))
    }

    fn not_granted(decision: &Decision) -> (NotGrantedReason, bool) {
        match decision.answer {
            Ok(Answer::NotGranted(NotGranted { reason, ack, .. })) => (reason, ack),
            ref other => panic!("not refused: {other:?}"),
        }
    }

    #[test]
    fn a_task_that_its_queue_does_not_run_fails_and_reaches_nobody() {
        let boxed = || Place::Ready(Waiting { carry: Carry::fresh(in_sandbox()), ..ready() });
        let delivery = Claimer::delivery(claimer(1).seed);
        let push = crate::command::testing::push_settings();
        for (place, settings, claimer, word) in [
            (boxed(), settings(), claimer(1), "does not run sandboxes"),
            (boxed(), push, delivery.clone(), "does not run sandboxes"),
            (Place::Ready(ready()), sandbox_settings(), delivery.clone(), "no runtime.sandbox"),
            (boxed(), settings(), delivery.clone(), "does not run sandboxes"),
        ] {
            let decision = claim_at(place, claimer, None, &Queue { settings, ..queue() }, 1_000);
            assert_eq!(not_granted(&decision), (NotGrantedReason::Ended(End::Failed), true));
            let finished = to_finished(&decision);
            let failure = finished.failure.as_ref().unwrap();
            assert_eq!((&*failure.code, finished.attempt), (WRONG_RUNTIME, 0), "no attempt is spent");
            assert!(failure.message.contains(word), "{failure:?}");
            assert_eq!(finished.dead_lettered_at, Some(at(1_000)), "it can be retried when the queue is as it was");
        }
        let queue = Queue { settings: sandbox_settings(), ..queue() };
        let granted = claim_at(boxed(), delivery, None, &queue, 1_000);
        assert_eq!(to_running(&granted).attempt, 1);
    }

    fn grants(decision: &Decision) -> &[Grant] {
        match &decision.answer {
            Ok(Answer::Claimed(claimed)) => &claimed.grants,
            other => panic!("not granted: {other:?}"),
        }
    }

    #[test]
    fn ttl_and_interval_come_from_the_task_then_the_queue_then_the_default() {
        let of_queue =
            QueueSettings { lease_ttl_ms: Some(30_000), heartbeat_ms: Some(5_000), ..QueueSettings::default() };
        let ttl_of_queue = QueueSettings { lease_ttl_ms: Some(30_000), ..QueueSettings::default() };
        let long = QueueSettings { heartbeat_ms: Some(90_000), ..QueueSettings::default() };
        let of_task = Spec { lease_ttl_ms: Some(12_000), heartbeat_ms: Some(2_000), ..Spec::default() };
        let ttl_of_task = Spec { lease_ttl_ms: Some(12_000), ..Spec::default() };
        let interval_of_task = Spec { heartbeat_ms: Some(2_000), ..Spec::default() };
        for (what, spec, settings, ttl, interval) in [
            ("the default", Spec::default(), QueueSettings::default(), 60_000, 20_000),
            ("the queue", Spec::default(), of_queue.clone(), 30_000, 5_000),
            ("the queue, a third of its ttl", Spec::default(), ttl_of_queue, 30_000, 10_000),
            ("the task", of_task, of_queue.clone(), 12_000, 2_000),
            ("the task, a third of its ttl", ttl_of_task, of_queue.clone(), 12_000, 4_000),
            ("the interval of the task", interval_of_task, of_queue, 30_000, 2_000),
            ("never longer than the lease", Spec::default(), long, 60_000, 60_000),
        ] {
            let (running, grant) = granted_with(spec, settings);
            assert_eq!((running.lease_ttl_ms, running.heartbeat_ms), (ttl, interval), "{what}");
            assert_eq!((grant.lease_ttl_ms, grant.heartbeat_ms), (ttl, interval), "{what}");
            assert_eq!(running.lease.expires_at, at(1_000 + ttl), "{what}");
        }
    }

    #[test]
    fn timeout_and_deadline_cap_the_lease() {
        for (spec, end) in [
            (Spec { deadline: Some(at(21_000)), ..Spec::default() }, 21_000),
            (Spec { timeout_ms: Some(10_000), ..Spec::default() }, 11_000),
            (Spec { deadline: Some(at(21_000)), timeout_ms: Some(30_000), ..Spec::default() }, 21_000),
        ] {
            assert_eq!(granted_with(spec, QueueSettings::default()).0.lease.expires_at, at(end));
        }
    }

    #[test]
    fn a_grant_is_a_new_attempt_under_a_fresh_token_and_a_higher_fence() {
        let waiting =
            Waiting { carry: Carry { checkpoint: Some("c".into()), ..scheduled_retry().carry }, ..scheduled_retry() };
        let (change, grant) = with_ctx(70_000, |ctx| grant(id(), &waiting, &claimer(2), 0, &queue(), ctx));
        assert_eq!((grant.attempt, grant.fence), (2, waiting.fence.next()));
        assert_eq!((grant.attempt_id, grant.token), (attempt_id(2), token(2)));
        assert_eq!(grant.checkpoint.as_deref(), Some("c"));
        let Place::Running(running) = change.place else { panic!("{change:?}") };
        assert_eq!((running.carry.last, running.progress), (None, Progress::default()));
        assert_eq!((running.last_heartbeat_at, running.message), (None, waiting.message));
        assert_eq!(change.facts[0].kind, FactKind::Started);
    }

    #[test]
    fn one_seed_draws_the_same_secrets_again_and_different_ones_per_job() {
        let seed = Seed([7; 32]);
        assert_eq!(seed.draw(0), seed.draw(0));
        assert_ne!(seed.draw(0).0, seed.draw(1).0);
        assert_ne!(seed.draw(0).1, seed.draw(1).1);
        assert_ne!(seed.draw(0).1, Seed([8; 32]).draw(0).1);
        assert_eq!(format!("{seed:?}"), "Seed(***)");
    }

    #[test]
    fn a_ready_task_is_granted_to_whoever_names_it() {
        let decision = claim_at(Place::Ready(ready()), claimer(1), Some(1), &queue(), 1_000);
        assert_eq!(grants(&decision)[0].token, token(1));
        assert_eq!(to_running(&decision).attempt, 1);
    }

    #[test]
    fn an_expired_lease_is_closed_and_the_task_granted_in_one_step() {
        let decision = claim_at(Place::Running(running_with(no_backoff())), claimer(2), None, &queue(), 60_000);
        assert_eq!((to_running(&decision).attempt, grants(&decision)[0].attempt), (2, 2));
        assert_eq!(decision.change.unwrap().attempts.len(), 1);
    }

    #[test]
    fn a_task_that_cannot_be_granted_says_why_and_whether_its_message_may_go() {
        use NotGrantedReason::{AlreadyRunning, Ended, NotDue};
        let paused = Queue { paused: true, ..queue() };
        let full = Queue { settings: QueueSettings { max_running: Some(0), ..settings() }, ..queue() };
        let canceled = {
            let command = Cancel { task: id(), reason: "".into(), mode: Mode::Immediate, reach: Default::default() };
            let waits = whole_task(Place::Ready(ready()), Spec::default());
            place(&with_ctx(0, |ctx| cancel::decide(&waits, &command, &settings(), ctx))).clone()
        };
        let dead = swept(one_attempt()).place;
        let missed = Spec { deadline: Some(at(500)), ..Spec::default() };
        let missed = Place::Ready(Waiting { carry: Carry::fresh(missed), ..ready() });
        let live = Some(1);
        for (what, place, queue, message, reason, ack) in [
            ("held, by the live message", Place::Running(running()), queue(), live, AlreadyRunning, false),
            ("held, by an older message", Place::Running(running()), queue(), Some(0), AlreadyRunning, true),
            ("held, without a message", Place::Running(running()), queue(), None, AlreadyRunning, false),
            ("paused, by the live message", Place::Ready(ready()), paused.clone(), live, NotDue, false),
            ("paused, by an older message", Place::Ready(ready()), paused, Some(0), NotDue, true),
            ("no slot", Place::Ready(ready()), full, live, NotDue, false),
            (
                "in back-off: promotion writes a new message",
                Place::Scheduled(scheduled_retry()),
                queue(),
                live,
                NotDue,
                true,
            ),
            ("canceled", canceled, queue(), live, Ended(End::Canceled), true),
            ("dead", dead, queue(), live, Ended(End::Failed), true),
            ("past its deadline", missed, queue(), live, Ended(End::Failed), true),
        ] {
            let decision = claim_at(place, claimer(2), message, &queue, 1_000);
            assert_eq!(not_granted(&decision), (reason, ack), "{what}");
        }
    }

    #[test]
    fn the_same_claim_sent_again_gets_the_same_grant_while_its_lease_lives() {
        let named = |worker: &str, claim_id: &str, seed| {
            let claimant = Claimant {
                id: worker.into(),
                incarnation: None,
                claim_id: Some(claim_id.into()),
                kills_on_expiry: false,
                dispatch: false,
            };
            Claimer { worker: Some(claimant), ..claimer(seed) }
        };
        let held = place(&claim_at(Place::Ready(ready()), named("w", "c1", 1), None, &queue(), 1_000)).clone();
        for (what, again) in [("by its claim id", named("w", "c1", 2)), ("by its seed", claimer(1))] {
            let decision = claim_at(held.clone(), again, None, &queue(), 2_000);
            assert_eq!((grants(&decision)[0].token, &decision.change), (token(1), &None), "{what}");
        }
        for (what, other) in [
            ("another claim", named("w", "c2", 2)),
            ("another worker", named("v", "c1", 2)),
            ("no claim id", claimer(2)),
        ] {
            let decision = claim_at(held.clone(), other, None, &queue(), 2_000);
            assert_eq!(not_granted(&decision).0, NotGrantedReason::AlreadyRunning, "{what}");
        }
        let expired = claim_at(held, named("w", "c1", 2), None, &queue(), 61_000);
        assert_eq!(not_granted(&expired).0, NotGrantedReason::NotDue);
        assert_eq!(place(&expired).state(), State::Scheduled);
    }

    #[test]
    fn tasks_of_jobs_go_to_workers_of_their_contract_and_wait_while_they_are_held() {
        let of_job = |held| {
            let dispatch = Some(Arc::new(Dispatch { wake: "worker".into(), held }));
            Queue { settings: QueueSettings { dispatch, ..settings() }, ..queue() }
        };
        let named = |dispatch| {
            let claimant = Claimant { dispatch, ..claimer(1).worker.unwrap() };
            Claimer { worker: Some(claimant), ..claimer(1) }
        };
        let rebuild = Waiting { carry: Carry::fresh(Spec { rebuild: true, ..Spec::default() }), ..ready() };
        for (what, waiting, queue, dispatch, is_granted) in [
            ("a worker of the contract", ready(), of_job(false), true, true),
            ("another worker", ready(), of_job(false), false, false),
            ("a task of no job", ready(), queue(), true, false),
            ("held", ready(), of_job(true), true, false),
            ("a rebuild that is not held", rebuild.clone(), of_job(true), true, true),
            ("a rebuild for another worker", rebuild, of_job(true), false, false),
        ] {
            let decision = claim_at(Place::Ready(waiting), named(dispatch), None, &queue, 1_000);
            let granted = matches!(&decision.answer, Ok(Answer::Claimed(claimed)) if claimed.grants.len() == 1);
            assert_eq!(granted, is_granted, "{what}");
        }
        let foreign = claim_at(Place::Ready(ready()), named(true), None, &queue(), 1_000);
        assert_eq!(not_granted(&foreign).0, NotGrantedReason::NotFound, "a task of no job");
    }
}
