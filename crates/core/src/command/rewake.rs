//! Repeats the wake-up of a ready task of a job.
//!
//! Workers drop every wake-up that they have read, whatever came of it. So a task that still waits after a while, or after
//! what was in its way has gone, needs another one.

use super::{Answer, Change, Context, Decision, Task, expire};
use crate::id::Seq;
use crate::queue::QueueSettings;
use crate::task::{Place, Waiting};

/// The wake-up that the row had when it was read. If the row has a newer one, the command does nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rewake {
    pub row: Seq,
    pub message: i64,
}

pub fn decide(task: &Task, command: &Rewake, queue: &QueueSettings, ctx: &mut Context<'_>) -> Decision {
    let (settled, earlier) = expire::settle(task, queue, ctx);
    let decision = match &settled.place {
        Place::Ready(waiting)
            if waiting.message == command.message
                && queue.dispatch.is_some()
                && queue.announces(&waiting.carry.spec) =>
        {
            let waiting = Waiting { message: ctx.numbers.take(), ..waiting.clone() };
            Decision::accept(Change::to(Place::Ready(waiting)), Answer::Done(true))
        }
        _ => Decision::unchanged(Answer::Done(earlier.is_some())),
    };
    decision.after(earlier)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::command::testing::{at, ready, running, scheduled_retry, settings, task, to_waiting, with_ctx};
    use crate::queue::{Dispatch, Push};
    use crate::task::{Carry, Spec};

    fn of_job(held: bool) -> QueueSettings {
        QueueSettings { dispatch: Some(Arc::new(Dispatch { wake: "worker".into(), held })), ..settings() }
    }

    fn rewake(place: Place, message: i64, queue: &QueueSettings) -> Decision {
        let command = Rewake { row: Seq(1), message };
        with_ctx(50_000, |ctx| decide(&task(place), &command, queue, ctx))
    }

    #[test]
    fn a_ready_task_gets_a_new_message_and_nothing_else_changes() {
        let decision = rewake(Place::Ready(ready()), ready().message, &of_job(false));
        assert_eq!(decision.answer, Ok(Answer::Done(true)));
        assert_eq!(to_waiting(&decision), &Waiting { message: 1_000, ..ready() });
        let change = decision.change.unwrap();
        assert_eq!((change.facts, change.outbox), (Vec::new(), Vec::new()));
    }

    #[test]
    fn only_what_can_be_claimed_is_announced_again() {
        let pushed = QueueSettings { push: Some(Arc::new(Push::to("lambda:".into()))), ..of_job(false) };
        for (place, message, queue) in [
            (Place::Ready(ready()), ready().message + 1, of_job(false)),
            (Place::Ready(ready()), ready().message, of_job(true)),
            (Place::Ready(ready()), ready().message, pushed),
            (Place::Ready(ready()), ready().message, settings()),
            (Place::Scheduled(scheduled_retry()), scheduled_retry().message, of_job(false)),
            (Place::Running(running()), running().message, of_job(false)),
        ] {
            let decision = rewake(place, message, &queue);
            assert_eq!((decision.change, decision.answer), (None, Ok(Answer::Done(false))));
        }
        let spec = Spec { rebuild: true, ..Spec::default() };
        let rebuilds = Waiting { carry: Carry::fresh(spec), ..ready() };
        let decision = rewake(Place::Ready(rebuilds), ready().message, &of_job(true));
        assert_eq!(decision.answer, Ok(Answer::Done(true)), "what rebuilds a held job is granted");
    }

    #[test]
    fn what_is_past_its_deadline_fails_instead() {
        let spec = Spec { deadline: Some(at(50_000)), ..Spec::default() };
        let waiting = Waiting { carry: Carry::fresh(spec), ..ready() };
        let decision = rewake(Place::Ready(waiting), ready().message, &of_job(false));
        assert!(matches!(decision.change.unwrap().place, Place::Finished(_)));
    }
}
