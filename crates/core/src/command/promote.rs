//! Makes a scheduled task ready when it is due.

use super::{Answer, Change, Context, Decision, Task, expire};
use crate::event::FactKind;
use crate::id::Seq;
use crate::queue::QueueSettings;
use crate::task::Place;

/// The timer found this row; it is judged again inside the transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Promote {
    pub row: Seq,
}

pub fn decide(task: &Task, queue: &QueueSettings, ctx: &mut Context<'_>) -> Decision {
    let (settled, earlier) = expire::settle(task, queue, ctx);
    let decision = match &settled.place {
        Place::Scheduled(waiting) if waiting.at <= ctx.now => {
            let mut waiting = waiting.clone();
            waiting.message = ctx.numbers.take();
            let change = Change::to(Place::Ready(waiting)).with_fact(task.id, FactKind::Ready, None).with_wake(task.id);
            Decision::accept(change, Answer::Done(true))
        }
        _ => Decision::unchanged(Answer::Done(earlier.is_some())),
    };
    decision.after(earlier)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Wake;
    use crate::command::testing::{
        at, id, place, ready, running, scheduled_retry, settings, task, to_waiting, with_ctx,
    };
    use crate::task::{Carry, Spec, State, Waiting};

    fn promote(place: Place, now: i64) -> Decision {
        with_ctx(now, |ctx| decide(&task(place), &settings(), ctx))
    }

    fn due_at(ms: i64) -> Waiting {
        Waiting { at: at(ms), ..scheduled_retry() }
    }

    #[test]
    fn what_is_due_becomes_ready_under_a_new_message() {
        let decision = promote(Place::Scheduled(due_at(70_000)), 70_000);
        assert_eq!((&decision.answer, place(&decision).state()), (&Ok(Answer::Done(true)), State::Ready));
        assert_eq!(to_waiting(&decision), &Waiting { message: 1_000, ..due_at(70_000) });
        let change = decision.change.unwrap();
        assert_eq!(change.outbox, [Wake { task: id(), queue: ready().queue, message: 1_000 }]);
        assert_eq!(change.facts[0].kind, FactKind::Ready);
    }

    #[test]
    fn what_is_not_due_or_does_not_wait_stays() {
        for place in [Place::Scheduled(due_at(70_001)), Place::Ready(due_at(0)), Place::Running(running())] {
            let decision = promote(place, 50_000);
            assert_eq!((decision.change, decision.answer), (None, Ok(Answer::Done(false))));
        }
    }

    #[test]
    fn what_is_past_its_deadline_fails_instead() {
        let spec = Spec { deadline: Some(at(70_000)), ..Spec::default() };
        let waiting = Waiting { carry: Carry::fresh(spec), at: at(60_000), ..ready() };
        let decision = promote(Place::Scheduled(waiting), 70_000);
        assert_eq!((&decision.answer, place(&decision).state()), (&Ok(Answer::Done(true)), State::Failed));
    }
}
