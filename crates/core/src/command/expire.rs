//! Decides what time has ended: expired leases, timed-out attempts, passed deadlines.

use super::{Answer, Change, Context, Decision, Task, ending};
use crate::attempt::{Failure, Reason};
use crate::id::{Seq, TaskId};
use crate::lease;
use crate::mutant;
use crate::queue::QueueSettings;
use crate::task::{Blocked, End, FailReason, Finished, Place, Running, Waiting};
use crate::time::Timestamp;

/// The reaper found this row; it is judged again inside the transaction.
#[derive(Debug, Clone, PartialEq)]
pub struct Expire {
    pub row: Seq,
}

pub fn decide(task: &Task, queue: &QueueSettings, ctx: &mut Context<'_>) -> Decision {
    let (_, change) = settle(task, queue, ctx);
    let done = change.is_some();
    Decision { change, answer: Ok(Answer::Done(done)) }
}

/// Brings a task up to date by ending what time has ended. This happens nowhere else.
pub fn settle(task: &Task, queue: &QueueSettings, ctx: &mut Context<'_>) -> (Task, Option<Change>) {
    let change = match &task.place {
        Place::Running(running) => {
            due(running, ctx).map(|reason| ending::end_attempt(task.id, running, reason, queue, ctx))
        }
        Place::Scheduled(waiting) | Place::Ready(waiting) if waiting.carry.spec.is_past_deadline(ctx.now) => {
            Some(miss_deadline(task.id, waiting, queue, ctx.now))
        }
        Place::Blocked(blocked) if blocked.carry.spec.is_past_deadline(ctx.now) => {
            Some(miss_deadline_blocked(task.id, blocked, ctx.now))
        }
        _ => None,
    };
    match change {
        None => (task.clone(), None),
        Some(change) => (Task { place: change.place.clone(), ..task.clone() }, Some(change)),
    }
}

/// Why this attempt is over by now, if it is. An outage of the control plane delays every reason but the deadline of the
/// task, which is absolute: the lease if it was last extended before the outage ended, the time-out if the attempt had
/// started by then, the end of the cancel grace if the cancel had been asked for.
fn due(running: &Running, ctx: &Context<'_>) -> Option<Reason> {
    let Context { now, grace, .. } = *ctx;
    if running.carry.spec.is_past_deadline(now) {
        Some(Reason::DeadlineExceeded)
    } else if running.cancel.as_ref().is_some_and(|cancel| now >= running.cancel_by(cancel, grace)) {
        Some(Reason::CancelTimeout)
    } else if now >= running.times_out_at(grace) {
        Some(Reason::Timeout)
    } else if !mutant!("expiry-ignored")
        && (lease::is_expired(&running.lease, running.extended_at(), now, grace) || is_too_short(running, now))
    {
        Some(match &running.carry.delivery {
            Some(delivery) if delivery.started_at.is_some() => Reason::HeartbeatTimeout,
            Some(delivery) if delivery.accepted_at.is_some() => Reason::StartTimeout,
            Some(_) => Reason::DispatchFailed,
            None => Reason::HeartbeatTimeout,
        })
    } else {
        None
    }
}

/// Whether a mutant ends this lease after a quarter of its time.
fn is_too_short(running: &Running, now: Timestamp) -> bool {
    mutant!("lease-too-short") && now.plus(running.lease_ttl_ms / 4 * 3) >= running.lease.expires_at
}

/// Whether this attempt is over by now, even if the reaper has not seen it.
pub fn is_over(running: &Running, ctx: &Context<'_>) -> bool {
    due(running, ctx).is_some()
}

fn missed() -> Failure {
    let message = "the deadline of the task passed before it could start";
    Failure::new(Reason::DeadlineExceeded.as_str(), message, None, None)
}

/// A task whose deadline passed while it waited for others. It is not a dead letter: it cannot be retried alone.
fn miss_deadline_blocked(id: TaskId, blocked: &Blocked, now: Timestamp) -> Change {
    let ended = blocked.ended(End::Failed, now);
    let finished = Finished { failure: Some(missed()), reason: Some(FailReason::DeadlineExceeded), ..ended };
    ending::finish(id, finished, Some(Reason::DeadlineExceeded))
}

/// A task whose deadline passed while it was queued.
fn miss_deadline(id: TaskId, waiting: &Waiting, queue: &QueueSettings, now: Timestamp) -> Change {
    let ended = waiting.ended(End::Failed, now).failed(FailReason::DeadlineExceeded, queue);
    let finished = Finished { failure: Some(missed()), ..ended };
    ending::finish_waiting(id, waiting, finished, Some(Reason::DeadlineExceeded))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attempt::{AttemptState, ClosedAttempt};
    use crate::command::AttemptChange;
    use crate::command::heartbeat::{self, Heartbeat};
    use crate::command::testing::{
        at, granted, id, no_backoff, one_attempt, place, ready, running, running_with, scheduled_retry, settings, task,
        to_finished, token, with_ctx, with_grace, with_outage,
    };
    use crate::lease::Grace;
    use crate::limits;
    use crate::task::{CancelRequest, Carry, Spec, State};

    fn reap(place: Place, now: i64) -> Decision {
        with_ctx(now, |ctx| decide(&task(place), &settings(), ctx))
    }

    fn canceled_at(ms: i64, running: Running) -> Running {
        let cancel = CancelRequest { reason: "stop".into(), requested_at: at(ms), signaled_at: None };
        Running { cancel: Some(cancel), ..running }
    }

    /// A holder that keeps its lease alive for ever.
    fn beating(running: Running) -> Running {
        Running { lease: lease::Lease { expires_at: Timestamp::MAX, ..running.lease.clone() }, ..running }
    }

    fn last(decision: &Decision) -> ClosedAttempt {
        place(decision).last_attempt().expect("an attempt has ended").clone()
    }

    #[test]
    fn each_end_has_its_reason_and_its_time() {
        let timeout = Spec { timeout_ms: Some(50_000), ..Spec::default() };
        let deadline = Spec { deadline: Some(at(40_000)), ..Spec::default() };
        for (held, end, reason, message, state) in [
            (running(), 60_000, Reason::HeartbeatTimeout, "no heartbeat for 60 s", State::Scheduled),
            (beating(running_with(timeout)), 50_000, Reason::Timeout, "ran longer than 50 s", State::Scheduled),
            (
                beating(running_with(deadline)),
                40_000,
                Reason::DeadlineExceeded,
                "the deadline of the task has passed",
                State::Failed,
            ),
            (
                beating(canceled_at(0, running())),
                50_000,
                Reason::CancelTimeout,
                "did not stop within the cancel grace",
                State::Canceled,
            ),
        ] {
            let alive = reap(Place::Running(held.clone()), end - 1);
            assert_eq!((alive.change, alive.answer), (None, Ok(Answer::Done(false))), "{reason:?}");

            let over = reap(Place::Running(held.clone()), end);
            assert_eq!((&over.answer, place(&over).state()), (&Ok(Answer::Done(true)), state), "{reason:?}");
            let closed = last(&over);
            assert_eq!((closed.state, closed.reason, closed.ended_at), (AttemptState::Failed, reason, at(end)));
            assert_eq!((closed.number, closed.fence, closed.receipt), (held.attempt, held.lease.generation, None));
            let failure = closed.failure.unwrap();
            assert_eq!((&*failure.code, &*failure.message), (reason.as_str(), message));
        }
    }

    #[test]
    fn of_several_ends_the_most_final_one_counts() {
        let all = Spec { timeout_ms: Some(10_000), deadline: Some(at(60_000)), ..Spec::default() };
        let held = canceled_at(0, running_with(all));
        assert_eq!(last(&reap(Place::Running(held.clone()), 60_000)).reason, Reason::DeadlineExceeded);
        assert_eq!(last(&reap(Place::Running(held.clone()), 50_000)).reason, Reason::CancelTimeout);
        assert_eq!(last(&reap(Place::Running(held), 49_999)).reason, Reason::Timeout);
    }

    #[test]
    fn a_queue_without_dead_letters_keeps_its_failed_tasks_out_of_them() {
        let queue = QueueSettings { no_dead_letter: true, ..settings() };
        let deadline = Spec { deadline: Some(at(60_000)), ..Spec::default() };
        let late = Waiting { carry: Carry::fresh(deadline), ..ready() };
        for place in [Place::Running(running_with(one_attempt())), Place::Ready(late)] {
            let decision = with_ctx(60_000, |ctx| decide(&task(place), &queue, ctx));
            assert_eq!((to_finished(&decision).end, to_finished(&decision).dead_lettered_at), (End::Failed, None));
            assert_eq!(decision.change.unwrap().facts.len(), 1);
        }
    }

    #[test]
    fn a_waiting_task_fails_when_its_deadline_passes() {
        let spec = Spec { deadline: Some(at(70_000)), ..Spec::default() };
        let fresh = Waiting { carry: Carry::fresh(spec), ..ready() };
        let retry = Waiting { carry: Carry { spec, ..scheduled_retry().carry }, ..scheduled_retry() };
        for (place, drops) in [
            (Place::Ready(fresh.clone()), vec![]),
            (Place::Scheduled(fresh), vec![]),
            (Place::Scheduled(retry), vec![AttemptChange::Drop(1)]),
        ] {
            assert_eq!(reap(place.clone(), 69_999).change, None);
            let decision = reap(place, 70_000);
            let finished = to_finished(&decision);
            assert_eq!((finished.end, finished.reason), (End::Failed, Some(FailReason::DeadlineExceeded)));
            assert_eq!(finished.dead_lettered_at, Some(at(70_000)));
            assert_eq!(decision.change.unwrap().attempts, drops);
        }
    }

    #[test]
    fn the_outage_grace_holds_back_every_end_but_the_deadline() {
        let held = |spec| running_with(spec);
        let timeout = Spec { timeout_ms: Some(50_000), ..Spec::default() };
        let deadline = Spec { deadline: Some(at(50_000)), ..Spec::default() };
        for (held, ends) in [
            (held(Spec::default()), false),
            (beating(held(timeout)), false),
            (beating(canceled_at(0, running())), false),
            (held(deadline), true),
        ] {
            let place = Place::Running(held);
            let within = with_grace(99_999, 100_000, |ctx| decide(&task(place.clone()), &settings(), ctx));
            assert_eq!(within.answer, Ok(Answer::Done(ends)));
            let after = with_grace(100_000, 100_000, |ctx| decide(&task(place), &settings(), ctx));
            assert_eq!(after.answer, Ok(Answer::Done(true)));
        }
    }

    #[test]
    fn the_outage_grace_holds_back_nothing_that_began_after_the_outage() {
        let timeout = Spec { timeout_ms: Some(45_000), ..Spec::default() };
        let granted = |spec| Running { granted_at: at(5_000), ..running_with(spec) };
        for (held, end, since) in [
            (granted(Spec::default()), 60_000, 5_000),
            (Running { last_heartbeat_at: Some(at(20_000)), ..granted(Spec::default()) }, 60_000, 20_000),
            (beating(granted(timeout)), 50_000, 5_000),
            (beating(canceled_at(10_000, granted(Spec::default()))), 60_000, 10_000),
        ] {
            let reap = |gap_ended_at: i64| {
                let grace = Grace::new(at(gap_ended_at), at(100_000));
                let place = Place::Running(held.clone());
                with_outage(end, grace, |ctx| decide(&task(place), &settings(), ctx)).answer
            };
            assert_eq!(reap(since), Ok(Answer::Done(false)), "from the millisecond in which the outage ended");
            assert_eq!(reap(since - 1), Ok(Answer::Done(true)), "in its own time");
        }
    }

    #[test]
    fn a_heartbeat_after_the_outage_ends_the_grace_of_the_lease_and_not_that_of_the_attempt() {
        // Granted at 0, as a lease of 60 s; the outage lasted until 70 s.
        let spec = Spec { timeout_ms: Some(50_000), lease_ttl_ms: Some(60_000), ..Spec::default() };
        let beat = Heartbeat {
            task: id(),
            attempt: None,
            token: token(1),
            worker: None,
            progress: Default::default(),
            checkpoint: None,
        };
        let grace = Grace::new(at(70_000), at(400_000));
        let decide_at = |now, place, beats| {
            with_outage(now, grace, |ctx| match beats {
                true => heartbeat::decide(&task(place), &beat, &[], &settings(), ctx),
                false => decide(&task(place), &settings(), ctx),
            })
        };
        let held = place(&decide_at(80_000, Place::Running(running_with(spec)), true)).clone();
        assert_eq!(decide_at(139_999, held.clone(), false).answer, Ok(Answer::Done(false)));
        assert_eq!(last(&decide_at(140_000, held.clone(), false)).reason, Reason::HeartbeatTimeout);
        // As long as it goes on with its heartbeats it has all of the grace.
        let mut held = held;
        for now in (90_000..400_000).step_by(50_000) {
            held = place(&decide_at(now, held, true)).clone();
        }
        assert_eq!(last(&decide_at(400_000, held, false)).reason, Reason::Timeout);
    }

    #[test]
    fn whatever_ends_the_attempt_a_task_that_was_to_be_canceled_is_canceled() {
        let timeout = Spec { timeout_ms: Some(55_000), ..Spec::default() };
        let deadline = Spec { deadline: Some(at(55_000)), ..Spec::default() };
        for (held, reason) in [
            (canceled_at(50_000, running()), Reason::HeartbeatTimeout),
            (beating(canceled_at(50_000, running_with(timeout))), Reason::Timeout),
            (beating(canceled_at(50_000, running_with(deadline))), Reason::DeadlineExceeded),
            (beating(canceled_at(0, running())), Reason::CancelTimeout),
        ] {
            let decision = reap(Place::Running(held), 60_000);
            let finished = to_finished(&decision);
            assert_eq!((finished.end, finished.cancel_reason.as_deref()), (End::Canceled, Some("stop")));
            assert_eq!((last(&decision).reason, finished.dead_lettered_at), (reason, None));
        }
    }

    #[test]
    fn a_strict_queue_grants_again_only_when_the_lost_attempt_is_dead() {
        let strict = QueueSettings { strict: true, ..settings() };
        let reap = |held: Running, now| with_ctx(now, |ctx| decide(&task(Place::Running(held)), &strict, ctx));
        let due = |decision: &Decision| match place(decision) {
            Place::Scheduled(waiting) | Place::Ready(waiting) => waiting.at,
            other => panic!("not queued again: {other:?}"),
        };
        // The lease ends at 60 s. Without the rule it would be ready at once.
        let lost = reap(running_with(no_backoff()), 60_000);
        assert_eq!(due(&lost), at(60_000 + limits::STRICT_KILL_MS));
        // A timed-out attempt still has a lease; it is dead after that has ended, not after the timeout.
        let timeout = Spec { timeout_ms: Some(5_000), ..no_backoff() };
        let held =
            Running { lease: lease::Lease { expires_at: at(40_000), ..running().lease }, ..running_with(timeout) };
        assert_eq!(due(&reap(held, 5_000)), at(40_000 + limits::STRICT_KILL_MS));
        // Found late, it has been dead for a while.
        let late = reap(running_with(no_backoff()), 90_000);
        assert!(matches!(place(&late), Place::Ready(_)));
        // A retry after the deadline is none.
        let deadline = Spec { deadline: Some(at(65_000)), ..no_backoff() };
        let missed = reap(running_with(deadline), 60_000);
        assert_eq!(to_finished(&missed).reason, Some(FailReason::DeadlineExceeded));
    }

    #[test]
    fn the_next_attempt_is_not_judged_by_the_one_before() {
        let Place::Ready(waiting) = place(&reap(Place::Running(running_with(no_backoff())), 60_000)).clone() else {
            panic!("ready at once")
        };
        let second = granted(&waiting, 2, 60_000);
        assert_eq!((second.last_heartbeat_at, second.granted_at, second.attempt), (None, at(60_000), 2));
        assert!(second.lease.generation > running().lease.generation);
        assert_eq!(reap(Place::Running(second), 119_999).change, None);
    }

    #[test]
    fn what_has_ended_or_waits_is_left_alone() {
        let ended = place(&reap(Place::Running(running_with(one_attempt())), 60_000)).clone();
        for place in [ended, Place::Ready(ready()), Place::Scheduled(scheduled_retry())] {
            assert_eq!(reap(place, 9_000_000).change, None);
        }
    }
}
