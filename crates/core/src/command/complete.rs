//! The holder is done.

use super::report::{self, Reported};
use super::{Context, Decision, Task};
use crate::attempt::{ClosedAttempt, Report};
use crate::id::{AttemptId, LeaseToken, TaskId};
use crate::queue::QueueSettings;

#[derive(Debug, Clone, PartialEq)]
pub struct Complete {
    pub task: TaskId,
    pub attempt_id: AttemptId,
    pub token: LeaseToken,
    /// Always [`Report::Succeeded`].
    pub report: Report,
}

pub fn decide(
    task: &Task,
    command: &Complete,
    history: &[ClosedAttempt],
    queue: &QueueSettings,
    ctx: &mut Context<'_>,
) -> Decision {
    let sent = Reported { attempt_id: command.attempt_id, token: command.token, worker: None, report: &command.report };
    report::decide(task, &sent, history, queue, ctx)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attempt::Receipt;
    use crate::command::Answer;
    use crate::command::testing::{
        attempt_id, conflict, id, place, regranted, running, settings, succeeded, task, token, with_ctx,
    };
    use crate::task::{Place, State};

    fn complete(seed: u8) -> Complete {
        Complete { task: id(), attempt_id: attempt_id(seed), token: token(seed), report: succeeded("1") }
    }

    #[test]
    fn the_holder_ends_its_task() {
        let held = task(Place::Running(running()));
        let decision = with_ctx(1_000, |ctx| decide(&held, &complete(1), &[], &settings(), ctx));
        assert_eq!(decision.answer, Ok(Answer::Reported(Receipt::Completed)));
        assert_eq!(place(&decision).state(), State::Succeeded);
    }

    #[test]
    fn the_holder_before_it_does_not() {
        let (held, history) = regranted();
        let decision = with_ctx(61_000, |ctx| decide(&held, &complete(1), &history, &settings(), ctx));
        assert_eq!((conflict(&decision).attempt, place(&decision)), (2, &held.place));
    }
}
