//! Cancels a task.

use std::sync::Arc;

use super::{Answer, Change, Context, Decision, Reach, Rejection, Task, ending, expire};
use crate::attempt::{AttemptState, Category, Failure, Reason};
use crate::event::FactKind;
use crate::id::TaskId;
use crate::mutant;
use crate::queue::QueueSettings;
use crate::task::{Blocked, CancelRequest, End, Finished, Place, Running, State, Waiting};
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
    /// The holder is told to stop and has a grace period, in which it may still succeed.
    Cooperative,
    /// Takes effect when it commits. Later reports of the holder are refused and kept as evidence.
    Immediate,
}

/// The reason of a task that its worker canceled although nobody had asked for it.
pub const WORKER_INITIATED: &str = "worker_initiated";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Canceled {
    pub state: State,
    /// The reason that was given first.
    pub reason: Arc<str>,
}

pub fn decide(task: &Task, command: &Cancel, queue: &QueueSettings, ctx: &mut Context<'_>) -> Decision {
    if !task.body.as_ref().is_some_and(|body| command.reach.covers_task(body)) {
        return Decision::refuse(Rejection::NotFound);
    }
    stop(task, &command.reason, command.mode, queue, ctx)
}

/// The cancel itself, for a task or as part of a run.
pub fn stop(task: &Task, reason: &Arc<str>, mode: Mode, queue: &QueueSettings, ctx: &mut Context<'_>) -> Decision {
    let (settled, earlier) = expire::settle(task, queue, ctx);
    // What the holder of a task of a job does counts no more from here on.
    let mode = if queue.dispatch.is_some() { Mode::Immediate } else { mode };
    judge(&settled, reason, mode, ctx).after(earlier)
}

fn judge(task: &Task, reason: &Arc<str>, mode: Mode, ctx: &Context<'_>) -> Decision {
    let now = ctx.now;
    match &task.place {
        Place::Blocked(blocked) => {
            let change = end_blocked(task.id, blocked, reason, now);
            Decision::accept(change, Answer::Canceled(Canceled { state: State::Canceled, reason: Arc::clone(reason) }))
        }
        Place::Scheduled(waiting) | Place::Ready(waiting) => end_waiting(task.id, waiting, reason, now),
        Place::Running(running) => match mode {
            // No worker has started yet, so none can be told.
            Mode::Cooperative if running.started_at().is_none() => revoke(task.id, running, reason, now),
            Mode::Cooperative => request(task.id, running, reason, ctx),
            Mode::Immediate => revoke(task.id, running, reason, now),
        },
        Place::Finished(Finished { end: End::Canceled, cancel_reason, .. }) => {
            let reason = cancel_reason.clone().unwrap_or_else(|| Arc::clone(reason));
            Decision::unchanged(Answer::Canceled(Canceled { state: State::Canceled, reason }))
        }
        place @ Place::Finished(_) => Decision::refuse(Rejection::AlreadyTerminal { state: place.state() }),
    }
}

/// A task that waits for others ends at once. It cannot be retried: those that it waits for may not succeed.
pub fn end_blocked(id: TaskId, blocked: &Blocked, reason: &Arc<str>, now: Timestamp) -> Change {
    let finished = Finished { cancel_reason: Some(Arc::clone(reason)), ..blocked.ended(End::Canceled, now) };
    ending::finish(id, finished, None)
}

/// Nobody holds it: it ends at once.
fn end_waiting(id: TaskId, waiting: &Waiting, reason: &Arc<str>, now: Timestamp) -> Decision {
    let ended = waiting.ended(End::Canceled, now);
    let finished = Finished { cancel_reason: Some(Arc::clone(reason)), ..ended };
    let change = ending::finish_waiting(id, waiting, finished, None);
    if mutant!("cancel-not-stored") {
        let reason = Arc::clone(reason);
        return Decision::unchanged(Answer::Canceled(Canceled { state: State::Canceled, reason }));
    }
    Decision::accept(change, Answer::Canceled(Canceled { state: State::Canceled, reason: Arc::clone(reason) }))
}

/// The answer to the next heartbeat tells the holder. A repeated request keeps the first reason and the first time.
fn request(id: TaskId, running: &Running, reason: &Arc<str>, ctx: &Context<'_>) -> Decision {
    if let Some(cancel) = &running.cancel {
        let reason = Arc::clone(&cancel.reason);
        return Decision::unchanged(Answer::Canceled(Canceled { state: State::Running, reason }));
    }
    let mut running = running.clone();
    running.cancel = Some(CancelRequest { reason: Arc::clone(reason), requested_at: ctx.now, signaled_at: None });
    running.lease.expires_at = running.lease.expires_at.min(running.not_after(ctx.grace));
    let change = Change::to(Place::Running(running)).with_fact(id, FactKind::CancelRequested, None);
    Decision::accept(change, Answer::Canceled(Canceled { state: State::Running, reason: Arc::clone(reason) }))
}

fn revoke(id: TaskId, running: &Running, reason: &Arc<str>, now: Timestamp) -> Decision {
    let reason = running.cancel.as_ref().map_or(reason, |cancel| &cancel.reason);
    let failure =
        Failure::new("CANCELLED", "canceled while it ran", None, Some(false)).of_category(Some(Category::Canceled));
    let mut closed = ending::close(running, AttemptState::Canceled, Reason::Revoked, Some(failure), now);
    if let Some(part) = closed.callback.as_mut() {
        part.cancel_reason = Some(Arc::clone(reason));
    }
    let ended = running.ended(closed, End::Canceled, now);
    let change =
        ending::finish(id, Finished { cancel_reason: Some(Arc::clone(reason)), ..ended }, Some(Reason::Revoked));
    Decision::accept(change, Answer::Canceled(Canceled { state: State::Canceled, reason: Arc::clone(reason) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::AttemptChange;
    use crate::command::testing::{
        at, id, no_backoff, one_attempt, place, ready, running, running_with, scheduled_retry, settings, swept,
        to_finished, to_running, whole_task, with_ctx,
    };
    use crate::event::Fact;
    use crate::task::Spec;

    fn ask_in(place: Place, mode: Mode, reason: &str, reach: Reach, now: i64) -> Decision {
        let command = Cancel { task: id(), reason: reason.into(), mode, reach };
        with_ctx(now, |ctx| decide(&whole_task(place, Spec::default()), &command, &settings(), ctx))
    }

    fn ask(place: Place, mode: Mode, now: i64) -> Decision {
        ask_in(place, mode, "stop", Reach::All, now)
    }

    fn answer(state: State, reason: &str) -> Result<Answer, Rejection> {
        Ok(Answer::Canceled(Canceled { state, reason: reason.into() }))
    }

    fn kinds(decision: &Decision) -> Vec<FactKind> {
        decision.change.iter().flat_map(|change| &change.facts).map(|fact: &Fact| fact.kind).collect()
    }

    const BOTH: [Mode; 2] = [Mode::Cooperative, Mode::Immediate];

    #[test]
    fn what_nobody_holds_ends_at_once_in_either_mode() {
        for (place, drops) in [
            (Place::Ready(ready()), vec![]),
            (Place::Scheduled(ready()), vec![]),
            (Place::Scheduled(scheduled_retry()), vec![AttemptChange::Drop(1)]),
            (Place::Ready(scheduled_retry()), vec![AttemptChange::Drop(1)]),
        ] {
            for mode in BOTH {
                let decision = ask(place.clone(), mode, 70_000);
                assert_eq!(decision.answer, answer(State::Canceled, "stop"));
                let finished = to_finished(&decision);
                assert_eq!((finished.end, finished.cancel_reason.as_deref()), (End::Canceled, Some("stop")));
                assert_eq!((finished.finished_at, finished.dead_lettered_at), (at(70_000), None));
                assert_eq!(finished.carry.last.as_deref(), place.last_attempt());
                assert_eq!(kinds(&decision), [FactKind::Canceled]);
                assert_eq!(decision.change.unwrap().attempts, drops);
            }
        }
    }

    #[test]
    fn a_holder_is_asked_and_keeps_its_lease() {
        let decision = ask(Place::Running(running()), Mode::Cooperative, 1_000);
        assert_eq!(decision.answer, answer(State::Running, "stop"));
        let held = to_running(&decision);
        assert_eq!(
            held.cancel,
            Some(CancelRequest { reason: "stop".into(), requested_at: at(1_000), signaled_at: None })
        );
        assert_eq!((held.lease.token, held.lease.generation), (running().lease.token, running().lease.generation));
        assert_eq!(kinds(&decision), [FactKind::CancelRequested]);
    }

    #[test]
    fn the_lease_ends_with_the_cancel_grace_at_the_latest() {
        let long = running_with(Spec { lease_ttl_ms: Some(600_000), heartbeat_ms: Some(20_000), ..Spec::default() });
        let asked = ask(Place::Running(long), Mode::Cooperative, 1_000);
        assert_eq!(to_running(&asked).lease.expires_at, at(1_000 + 20_000 + 30_000));
        let short = ask(Place::Running(running()), Mode::Cooperative, 50_000);
        assert_eq!(to_running(&short).lease.expires_at, at(60_000), "it never moves the end out");
    }

    #[test]
    fn the_holder_of_a_task_of_a_job_loses_it_at_once_in_either_mode() {
        let dispatch = Some(Arc::new(crate::queue::Dispatch { wake: "worker".into(), held: false }));
        let queue = QueueSettings { dispatch, ..settings() };
        for mode in BOTH {
            let command = Cancel { task: id(), reason: "stop".into(), mode, reach: Reach::All };
            let held = whole_task(Place::Running(running()), Spec::default());
            let decision = with_ctx(1_000, |ctx| decide(&held, &command, &queue, ctx));
            assert_eq!(place(&decision).state(), State::Canceled, "{mode:?}");
        }
    }

    #[test]
    fn a_holder_loses_its_lease_at_once_when_the_mode_says_so() {
        let decision = ask(Place::Running(running()), Mode::Immediate, 1_000);
        assert_eq!(decision.answer, answer(State::Canceled, "stop"));
        let finished = to_finished(&decision);
        assert_eq!((finished.end, finished.cancel_reason.as_deref()), (End::Canceled, Some("stop")));
        let closed = finished.carry.last.as_deref().unwrap();
        assert_eq!((closed.state, closed.reason), (AttemptState::Canceled, Reason::Revoked));
        assert_eq!((closed.ended_at, finished.fence), (at(1_000), running().lease.generation));
        assert_eq!(kinds(&decision), [FactKind::Canceled]);
    }

    #[test]
    fn a_repeat_keeps_the_first_reason_and_the_first_clock() {
        let asked = place(&ask(Place::Running(running()), Mode::Cooperative, 1_000)).clone();
        let again = ask_in(asked.clone(), Mode::Cooperative, "other", Reach::All, 9_000);
        assert_eq!((again.change, again.answer), (None, answer(State::Running, "stop")));

        let revoked = ask_in(asked, Mode::Immediate, "other", Reach::All, 9_000);
        assert_eq!(revoked.answer, answer(State::Canceled, "stop"));
        assert_eq!(to_finished(&revoked).cancel_reason.as_deref(), Some("stop"));

        for mode in BOTH {
            let repeat = ask_in(place(&revoked).clone(), mode, "third", Reach::All, 10_000);
            assert_eq!((repeat.change, repeat.answer), (None, answer(State::Canceled, "stop")));
        }
    }

    #[test]
    fn an_expired_lease_is_closed_first_and_then_nothing_is_left_to_wait_for() {
        for spec in [Spec::default(), no_backoff()] {
            let decision = ask(Place::Running(running_with(spec)), Mode::Cooperative, 60_000);
            assert_eq!(decision.answer, answer(State::Canceled, "stop"));
            let closed = to_finished(&decision).carry.last.as_deref().unwrap();
            assert_eq!(closed.reason, Reason::HeartbeatTimeout);
            assert_eq!(kinds(&decision), [FactKind::Retrying, FactKind::Canceled]);
        }
    }

    #[test]
    fn what_has_ended_otherwise_cannot_be_canceled() {
        let dead = swept(one_attempt()).place;
        for mode in BOTH {
            let decision = ask(dead.clone(), mode, 61_000);
            assert_eq!(decision.answer, Err(Rejection::AlreadyTerminal { state: State::Failed }));
            // A last attempt that only now is found to be over counts as ended too.
            let unswept = ask(Place::Running(running_with(one_attempt())), mode, 60_000);
            assert_eq!(unswept.answer, Err(Rejection::AlreadyTerminal { state: State::Failed }));
            assert_eq!(place(&unswept).state(), State::Failed);
        }
    }

    #[test]
    fn a_task_of_another_tenant_is_not_there() {
        let other = || Reach::Tenant("other".into());
        let decision = ask_in(Place::Ready(ready()), Mode::Cooperative, "stop", other(), 0);
        assert_eq!((decision.change, decision.answer), (None, Err(Rejection::NotFound)));
        let own = ask_in(Place::Ready(ready()), Mode::Cooperative, "stop", Reach::Tenant("acme".into()), 0);
        assert_eq!(own.answer, answer(State::Canceled, "stop"));
    }
}
