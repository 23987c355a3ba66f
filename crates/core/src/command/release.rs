//! Takes back a grant whose claimer had disconnected when the answer was ready, or whose holder gives it back.

use super::{Answer, Context, Decision, Task, ending};
use crate::attempt::{AttemptState, Reason};
use crate::event::FactKind;
use crate::id::{AttemptId, Seq};
use crate::task::{Place, Running};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    pub row: Seq,
    pub attempt_id: AttemptId,
    /// The holder has to stop for a reason of its own. Otherwise the grant reached nobody.
    pub by_holder: bool,
}

/// The task is ready again at once. The attempt stays in the history and does not count against the budget. A holder that gives
/// back what was given back too often is refused, and reports a failure instead.
pub fn decide(task: &Task, command: &Release, ctx: &mut Context<'_>) -> Decision {
    let Place::Running(running) = &task.place else { return Decision::unchanged(Answer::Done(false)) };
    // A heartbeat proves that the grant did arrive.
    let has_arrived = running.last_heartbeat_at.is_some() && !command.by_holder;
    if running.attempt_id != command.attempt_id || has_arrived || running.cancel.is_some() {
        return Decision::unchanged(Answer::Done(false));
    }
    let mut carry = running.carry.clone();
    if !command.by_holder {
        carry.extra_attempts = carry.extra_attempts.saturating_add(1);
    } else if !carry.hand_back() {
        return Decision::unchanged(Answer::Done(false));
    }
    let reason = if command.by_holder { Reason::HandedBack } else { Reason::Undelivered };
    let closed = ending::close(running, AttemptState::Canceled, reason, None, ctx.now);
    let running = Running { carry, ..running.clone() };
    let change = ending::put_back(task.id, &running, closed, ctx.now, FactKind::Released, ctx);
    Decision::accept(change, Answer::Done(true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::report;
    use crate::command::testing::{
        at, attempt_id, failed, granted, id, one_attempt, place, ready, reported, running, running_with, settings,
        succeeded, task, to_waiting, with_ctx,
    };
    use crate::command::{AttemptChange, Wake};
    use crate::task::{CancelRequest, State};

    fn release(held: Running, seed: u8) -> Decision {
        let command = Release { row: id().seq(), attempt_id: attempt_id(seed), by_holder: false };
        with_ctx(1_000, |ctx| decide(&task(Place::Running(held)), &command, ctx))
    }

    #[test]
    fn a_grant_that_reached_nobody_is_taken_back_at_once() {
        let decision = release(running(), 1);
        assert_eq!((&decision.answer, place(&decision).state()), (&Ok(Answer::Done(true)), State::Ready));
        let waiting = to_waiting(&decision);
        assert_eq!((waiting.at, waiting.message, waiting.attempt), (at(1_000), 1_000, 1));
        let change = decision.change.unwrap();
        let [AttemptChange::Put(closed)] = &change.attempts[..] else { panic!("{change:?}") };
        assert_eq!((closed.state, closed.reason), (AttemptState::Canceled, Reason::Undelivered));
        assert_eq!((closed.ended_at, closed.number), (at(1_000), 1));
        assert_eq!(change.outbox, [Wake { task: id(), queue: ready().queue, message: 1_000 }]);
    }

    #[test]
    fn it_costs_nothing_of_the_budget_and_the_fence_goes_on() {
        let decision = release(running_with(one_attempt()), 1);
        let second = granted(to_waiting(&decision), 2, 2_000);
        assert!(second.lease.generation > running().lease.generation);
        assert_eq!((second.attempt, second.carry.allowed_attempts()), (2, 2));
        let sent = reported(2, &failed("X"));
        let dead = with_ctx(3_000, |ctx| report::decide(&task(Place::Running(second)), &sent, &[], &settings(), ctx));
        assert_eq!(place(&dead).state(), State::Failed);
    }

    #[test]
    fn a_holder_that_was_there_after_all_may_report_until_the_next_grant() {
        let before = task(place(&release(running(), 1)).clone());
        let sent = reported(1, &succeeded("1"));
        let late = with_ctx(2_000, |ctx| report::decide(&before, &sent, &[], &settings(), ctx));
        assert_eq!(place(&late).state(), State::Succeeded);
    }

    #[test]
    fn a_grant_that_did_arrive_or_is_to_be_canceled_or_is_another_one_stays() {
        let beating = Running { last_heartbeat_at: Some(at(500)), ..running() };
        let cancel = CancelRequest { reason: "stop".into(), requested_at: at(500), signaled_at: None };
        let canceling = Running { cancel: Some(cancel), ..running() };
        for (held, seed) in [(beating, 1), (canceling, 1), (running(), 2)] {
            let decision = release(held, seed);
            assert_eq!((decision.change, decision.answer), (None, Ok(Answer::Done(false))));
        }
    }

    #[test]
    fn a_holder_gives_back_what_it_has_begun_unless_it_is_to_be_canceled() {
        let give_back = |held| {
            let command = Release { row: id().seq(), attempt_id: attempt_id(1), by_holder: true };
            with_ctx(1_000, |ctx| decide(&task(Place::Running(held)), &command, ctx))
        };
        let begun = Running { last_heartbeat_at: Some(at(500)), ..running_with(one_attempt()) };
        let decision = give_back(begun.clone());
        let second = granted(to_waiting(&decision), 2, 2_000);
        assert_eq!((second.attempt, second.carry.allowed_attempts()), (2, 2), "it costs nothing of the budget");
        let change = decision.change.unwrap();
        let [AttemptChange::Put(closed)] = &change.attempts[..] else { panic!("{change:?}") };
        assert_eq!((closed.state, closed.reason), (AttemptState::Canceled, Reason::HandedBack));
        let mut worn = begun.clone();
        worn.carry.handed_back = crate::limits::HANDED_BACK_MAX;
        assert_eq!(give_back(worn).answer, Ok(Answer::Done(false)), "not for ever");
        let cancel = CancelRequest { reason: "stop".into(), requested_at: at(500), signaled_at: None };
        let decision = give_back(Running { cancel: Some(cancel), ..begun });
        assert_eq!((decision.change, decision.answer), (None, Ok(Answer::Done(false))));
    }

    #[test]
    fn what_nobody_holds_is_left_alone() {
        let command = Release { row: id().seq(), attempt_id: attempt_id(1), by_holder: false };
        let decision = with_ctx(1_000, |ctx| decide(&task(Place::Ready(ready())), &command, ctx));
        assert_eq!((decision.change, decision.answer), (None, Ok(Answer::Done(false))));
    }
}
