//! Pushes an attempt to a worker, and records the outcome.
//!
//! The row of the attempt says when it must be pushed next. A control plane takes the push first, which moves that time
//! on. So only one of many control planes pushes, and a crash of that one only delays the next try.

use std::sync::Arc;

use super::claim::{Claimed, Grant};
use super::{Answer, Change, Context, Decision, Task, ending, expire};
use crate::attempt::{AttemptState, Failure, Reason};
use crate::id::{AttemptId, Seq};
use crate::limits;
use crate::queue::QueueSettings;
use crate::task::{Place, PushProgress, Running};
use crate::time::DurationMs;

/// Takes a push that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakePush {
    pub row: Seq,
}

/// The outcome of a push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pushed {
    pub row: Seq,
    pub attempt_id: AttemptId,
    /// Which push of the attempt it was.
    pub delivery: u32,
    pub outcome: PushOutcome,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PushOutcome {
    /// The worker accepted the task. Only a start shows that it runs.
    Accepted,
    /// Push again, after this long if the worker said so, otherwise after a back-off.
    Again { after_ms: Option<DurationMs> },
    /// There is no room for the task now: push again after this long. The delivery deadline of the attempt starts over, so
    /// that waiting for room does not end the attempt.
    NoRoom { why: Arc<str>, after_ms: DurationMs },
    /// The worker cannot be reached: push again after a back-off. As with [`Self::NoRoom`] the attempt waits for as long as
    /// it takes, because nothing was tried that could have failed.
    Unreachable { why: Arc<str> },
    /// The worker will never accept it.
    Rejected { message: String },
}

impl PushProgress {
    /// How long to wait after the last push before the next one.
    fn backoff_ms(&self) -> DurationMs {
        let doublings = self.deliveries.saturating_sub(1).min(16);
        (limits::PUSH_BACKOFF_MS << doublings).min(limits::PUSH_BACKOFF_MS_MAX)
    }
}

pub fn take(task: &Task, queue: &QueueSettings, ctx: &mut Context<'_>) -> Decision {
    let (settled, earlier) = expire::settle(task, queue, ctx);
    let nothing = Decision::unchanged(Answer::Claimed(Claimed::default()));
    let due = |delivery: &PushProgress| delivery.next_at.is_some_and(|at| at <= ctx.now);
    let decision = match (&settled.place, &queue.push) {
        // The queue was changed after the grant. Nobody may have the attempt; its task is judged at the next grant.
        (Place::Running(running), _) if !queue.runs(&running.carry.spec) => nothing,
        (Place::Running(running), Some(push)) if running.carry.delivery.as_deref().is_some_and(due) => {
            let wait = push.ack_timeout_ms + limits::PUSH_SLACK_MS;
            let running = with(running, |delivery| {
                delivery.deliveries = delivery.deliveries.saturating_add(1);
                delivery.next_at = Some(ctx.now.plus(wait));
            });
            let claimed = Claimed { grants: vec![Grant::of(task.id, &running)], ..Claimed::default() };
            Decision::accept(Change::to(Place::Running(running)), Answer::Claimed(claimed))
        }
        _ => nothing,
    };
    decision.after(earlier)
}

pub fn pushed(task: &Task, command: &Pushed, queue: &QueueSettings, ctx: &mut Context<'_>) -> Decision {
    let (settled, earlier) = expire::settle(task, queue, ctx);
    judge(&settled, command, queue, ctx).after(earlier)
}

fn judge(task: &Task, command: &Pushed, queue: &QueueSettings, ctx: &mut Context<'_>) -> Decision {
    // A start counts as delivery, whatever the outcome of the push.
    let Place::Running(running) = &task.place else { return Decision::unchanged(Answer::Done(false)) };
    if running.attempt_id != command.attempt_id || running.started_at().is_some() {
        return Decision::unchanged(Answer::Done(false));
    }
    // This push had timed out and another one has begun: the outcome of that one counts.
    if running.carry.delivery.as_ref().is_some_and(|delivery| delivery.deliveries != command.delivery) {
        return Decision::unchanged(Answer::Done(false));
    }
    let start_ms = queue.push.as_ref().map_or(limits::PUSH_START_MS_DEFAULT, |push| push.start_timeout_ms);
    let change = match &command.outcome {
        PushOutcome::Accepted => Change::to(Place::Running(with(running, |delivery| {
            delivery.accepted_at.get_or_insert(ctx.now);
            (delivery.no_room, delivery.unreachable) = (None, None);
            delivery.next_at = Some(ctx.now.plus(start_ms));
        }))),
        PushOutcome::Again { after_ms } => Change::to(Place::Running(with(running, |delivery| {
            let wait = after_ms.unwrap_or_else(|| delivery.backoff_ms());
            delivery.next_at = Some(ctx.now.plus(wait));
            (delivery.no_room, delivery.unreachable) = (None, None);
        }))),
        PushOutcome::NoRoom { why, after_ms } => waiting(running, queue, ctx, |delivery| {
            delivery.no_room = Some(limits::cut(why, limits::NO_ROOM_BYTES).into());
            delivery.unreachable = None;
            *after_ms
        }),
        PushOutcome::Unreachable { why } => waiting(running, queue, ctx, |delivery| {
            delivery.unreachable = Some(limits::cut(why, limits::NO_ROOM_BYTES).into());
            delivery.no_room = None;
            delivery.backoff_ms()
        }),
        PushOutcome::Rejected { message } => {
            let failure = Failure::new(Reason::DispatchRejected.as_str(), message, None, Some(false));
            let closed = ending::close(running, AttemptState::Failed, Reason::DispatchRejected, Some(failure), ctx.now);
            ending::after_failure(task.id, running, closed, queue, ctx)
        }
    };
    Decision::accept(change, Answer::Done(true))
}

/// Puts the next push off by as long as `note` says. The time in which the attempt must be delivered starts over.
fn waiting(
    running: &Running,
    queue: &QueueSettings,
    ctx: &Context<'_>,
    note: impl FnOnce(&mut PushProgress) -> DurationMs,
) -> Change {
    let mut after_ms = 0;
    let mut waiting = with(running, |delivery| {
        after_ms = note(delivery);
        delivery.next_at = Some(ctx.now.plus(after_ms));
    });
    let dispatch_ms = queue.push.as_ref().map_or(limits::PUSH_DISPATCH_MS_DEFAULT, |push| push.dispatch_timeout_ms);
    waiting.lease.expires_at = ctx.now.plus(dispatch_ms.saturating_add(after_ms)).min(waiting.not_after(ctx.grace));
    Change::to(Place::Running(waiting))
}

fn with(running: &Running, change: impl FnOnce(&mut PushProgress)) -> Running {
    let mut running = running.clone();
    if let Some(delivery) = running.carry.delivery.as_deref_mut() {
        change(delivery);
    }
    running
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::testing::{
        at, attempt_id, dispatched, id, in_sandbox, one_attempt, place, push_settings, ready, task, to_finished,
        to_running, to_waiting, with_ctx,
    };
    use crate::task::{Spec, State};
    use crate::time::Timestamp;

    fn take_at(task: &Task, now: i64) -> Decision {
        with_ctx(now, |ctx| take(task, &push_settings(), ctx))
    }

    fn tell(task: &Task, seed: u8, outcome: PushOutcome, now: i64) -> Decision {
        let delivery = match &task.place {
            Place::Running(running) => running.carry.delivery.as_ref().unwrap().deliveries,
            _ => 1,
        };
        tell_of(task, seed, delivery, outcome, now)
    }

    fn tell_of(task: &Task, seed: u8, delivery: u32, outcome: PushOutcome, now: i64) -> Decision {
        let command = Pushed { row: id().seq(), attempt_id: attempt_id(seed), delivery, outcome };
        with_ctx(now, |ctx| pushed(task, &command, &push_settings(), ctx))
    }

    fn delivery(decision: &Decision) -> PushProgress {
        (**to_running(decision).carry.delivery.as_ref().unwrap()).clone()
    }

    fn taken(decision: &Decision) -> Vec<Grant> {
        match &decision.answer {
            Ok(Answer::Claimed(claimed)) => claimed.grants.clone(),
            other => panic!("{other:?}"),
        }
    }

    fn next(decision: &Decision) -> Option<Timestamp> {
        delivery(decision).next_at
    }

    fn again() -> PushOutcome {
        PushOutcome::Again { after_ms: None }
    }

    #[test]
    fn a_push_is_taken_once_when_it_is_due() {
        let held = task(Place::Running(dispatched(Spec::default())));
        assert!(taken(&take_at(&held, 14_999)).is_empty(), "its sender may still be at it");
        let decision = take_at(&held, 15_000);
        let [grant] = &taken(&decision)[..] else { panic!("{decision:?}") };
        assert_eq!((grant.attempt_id, grant.delivery.as_ref().unwrap().deliveries), (attempt_id(1), 2));
        assert_eq!(next(&decision), Some(at(30_000)));
        let second = take_at(&task(place(&decision).clone()), 15_000);
        assert!(taken(&second).is_empty() && second.change.is_none(), "another came first");
    }

    #[test]
    fn what_is_over_or_started_is_not_pushed() {
        let mut started = dispatched(Spec::default());
        let inner: &mut PushProgress = started.carry.delivery.as_mut().unwrap();
        (inner.started_at, inner.next_at) = (Some(at(1)), None);
        assert!(taken(&take_at(&task(Place::Running(started)), 20_000)).is_empty());
        assert!(taken(&take_at(&task(Place::Ready(ready())), 20_000)).is_empty());
        let late = take_at(&task(Place::Running(dispatched(Spec::default()))), 300_000);
        assert!(taken(&late).is_empty());
        assert_eq!(to_waiting(&late).carry.last.as_ref().unwrap().reason, Reason::DispatchFailed);
    }

    #[test]
    fn an_accepted_push_waits_for_its_start_and_then_goes_again() {
        let held = task(Place::Running(dispatched(Spec::default())));
        let decision = tell(&held, 1, PushOutcome::Accepted, 200);
        assert_eq!((delivery(&decision).accepted_at, next(&decision)), (Some(at(200)), Some(at(60_200))));
        let over = take_at(&task(place(&decision).clone()), 300_000);
        assert_eq!(to_waiting(&over).carry.last.as_ref().unwrap().reason, Reason::StartTimeout);
    }

    #[test]
    fn the_next_push_waits_longer_each_time_or_as_long_as_the_worker_says() {
        let mut held = dispatched(Spec::default());
        for (deliveries, wait) in [(1, 1_000), (2, 2_000), (3, 4_000), (5, 16_000), (6, 30_000), (60, 30_000)] {
            held.carry.delivery.as_mut().unwrap().deliveries = deliveries;
            let decision = tell(&task(Place::Running(held.clone())), 1, again(), 500);
            assert_eq!(next(&decision), Some(at(500 + wait)), "after {deliveries}");
        }
        let told = tell(&task(Place::Running(held)), 1, PushOutcome::Again { after_ms: Some(7_000) }, 500);
        assert_eq!(next(&told), Some(at(7_500)));
    }

    fn no_room() -> PushOutcome {
        PushOutcome::NoRoom { why: "full".into(), after_ms: 2_000 }
    }

    #[test]
    fn waiting_for_room_spends_neither_the_attempt_nor_its_time() {
        let mut held = task(Place::Running(dispatched(Spec::default())));
        for now in [200, 250_000, 500_000, 750_000] {
            let decision = tell(&held, 1, no_room(), now);
            assert_eq!(next(&decision), Some(at(now + 2_000)));
            let running = to_running(&decision);
            assert_eq!(running.carry.delivery.as_ref().unwrap().no_room.as_deref(), Some("full"));
            assert_eq!((running.attempt, running.lease.expires_at), (1, at(now + 302_000)));
            held = task(place(&decision).clone());
        }
        let spec = Spec { deadline: Some(at(100_000)), ..Spec::default() };
        let bounded = tell(&task(Place::Running(dispatched(spec))), 1, no_room(), 500);
        assert_eq!(to_running(&bounded).lease.expires_at, at(100_000), "the deadline stands");
    }

    #[test]
    fn the_reason_of_a_wait_is_that_of_the_last_push() {
        let mut held = task(Place::Running(dispatched(Spec::default())));
        let gone = || PushOutcome::Unreachable { why: "refused".into() };
        for (outcome, no_room, unreachable) in [
            (no_room(), Some("full"), None),
            (gone(), None, Some("refused")),
            (no_room(), Some("full"), None),
            (again(), None, None),
            (gone(), None, Some("refused")),
            (again(), None, None),
        ] {
            let decision = tell(&held, 1, outcome.clone(), 500);
            let found = delivery(&decision);
            assert_eq!((found.no_room.as_deref(), found.unreachable.as_deref()), (no_room, unreachable), "{outcome:?}");
            held = task(place(&decision).clone());
        }
    }

    #[test]
    fn an_attempt_whose_queue_changed_after_the_grant_is_sent_to_nobody() {
        let held = task(Place::Running(dispatched(in_sandbox())));
        assert!(taken(&take_at(&held, 15_000)).is_empty());
        let sandboxes = crate::command::testing::sandbox_settings();
        let decision = with_ctx(15_000, |ctx| take(&held, &sandboxes, ctx));
        assert_eq!(taken(&decision).len(), 1);
    }

    #[test]
    fn a_rejected_push_ends_the_task_for_good() {
        let held = task(Place::Running(dispatched(Spec::default())));
        let decision = tell(&held, 1, PushOutcome::Rejected { message: "the worker answered 404".into() }, 200);
        let finished = to_finished(&decision);
        assert_eq!(place(&decision).state(), State::Failed);
        let last = finished.carry.last.as_ref().unwrap();
        assert_eq!((last.reason, last.callback.as_ref().unwrap().deliveries), (Reason::DispatchRejected, 1));
        assert_eq!(&*finished.failure.as_ref().unwrap().message, "the worker answered 404");
        assert_eq!(finished.carry.delivery, None);
    }

    #[test]
    fn what_came_of_a_push_means_nothing_once_another_attempt_is_on_its_way() {
        let held = task(Place::Running(dispatched(Spec::default())));
        assert_eq!(tell(&held, 2, PushOutcome::Accepted, 200).change, None);
    }

    #[test]
    fn what_came_of_a_push_means_nothing_once_another_push_is_on_its_way() {
        let held = task(Place::Running(dispatched(Spec::default())));
        let again_taken = task(place(&take_at(&held, 15_000)).clone());
        for outcome in [PushOutcome::Accepted, again(), PushOutcome::Rejected { message: "404".into() }] {
            let stale = tell_of(&again_taken, 1, 1, outcome.clone(), 15_001);
            assert_eq!((stale.change, stale.answer), (None, Ok(Answer::Done(false))));
            assert!(tell_of(&again_taken, 1, 2, outcome, 15_001).change.is_some());
        }
    }

    #[test]
    fn what_came_of_a_push_means_nothing_once_a_worker_has_started() {
        let mut started = dispatched(Spec::default());
        let inner: &mut PushProgress = started.carry.delivery.as_mut().unwrap();
        (inner.started_at, inner.next_at) = (Some(at(1)), None);
        let held = task(Place::Running(started));
        for outcome in [PushOutcome::Accepted, again(), PushOutcome::Rejected { message: "404".into() }] {
            assert_eq!(tell(&held, 1, outcome, 200).change, None);
        }
    }

    #[test]
    fn the_last_attempt_that_reaches_nobody_is_a_dead_letter() {
        let over = take_at(&task(Place::Running(dispatched(one_attempt()))), 300_000);
        assert!(to_finished(&over).dead_lettered_at.is_some());
    }

    #[test]
    fn a_worker_that_cannot_be_reached_spends_no_attempt() {
        let mut held = task(Place::Running(dispatched(one_attempt())));
        let mut now = 500;
        for _ in 0..40 {
            let decision = tell(&held, 1, PushOutcome::Unreachable { why: "refused".into() }, now);
            let running = to_running(&decision);
            assert_eq!(running.carry.delivery.as_ref().unwrap().unreachable.as_deref(), Some("refused"));
            let next_at = next(&decision).unwrap();
            assert_eq!(running.lease.expires_at, next_at.plus(limits::PUSH_DISPATCH_MS_DEFAULT));
            now = next_at.since(at(0));
            held = task(place(&take_at(&task(place(&decision).clone()), now)).clone());
        }
        assert!(now > limits::PUSH_DISPATCH_MS_DEFAULT, "longer than an attempt that fails may go without a start");
        let accepted = tell(&held, 1, PushOutcome::Accepted, now);
        assert_eq!(delivery(&accepted).unreachable, None);
        let spec = Spec { deadline: Some(at(60_000)), ..Spec::default() };
        let bounded =
            tell(&task(Place::Running(dispatched(spec))), 1, PushOutcome::Unreachable { why: "x".into() }, 500);
        assert_eq!(to_running(&bounded).lease.expires_at, at(60_000), "its deadline holds");
    }
}
