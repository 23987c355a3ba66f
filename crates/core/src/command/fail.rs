//! The holder gives up.

use super::report::{self, Reported};
use super::{Context, Decision, Task};
use crate::attempt::{ClosedAttempt, Report};
use crate::id::{AttemptId, LeaseToken, TaskId};
use crate::queue::QueueSettings;

#[derive(Debug, Clone, PartialEq)]
pub struct Fail {
    pub task: TaskId,
    pub attempt_id: AttemptId,
    pub token: LeaseToken,
    /// Always [`Report::Failed`].
    pub report: Report,
}

pub fn decide(
    task: &Task,
    command: &Fail,
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
        attempt_id, conflict, failed, id, place, regranted, running, settings, task, token, with_ctx,
    };
    use crate::task::{Place, State};

    fn fail(seed: u8) -> Fail {
        Fail { task: id(), attempt_id: attempt_id(seed), token: token(seed), report: failed("X") }
    }

    #[test]
    fn the_holder_gives_its_task_back() {
        let held = task(Place::Running(running()));
        let decision = with_ctx(1_000, |ctx| decide(&held, &fail(1), &[], &settings(), ctx));
        assert_eq!(decision.answer, Ok(Answer::Reported(Receipt::Failed { requeued: true, dlq: false })));
        assert_eq!(place(&decision).state(), State::Scheduled);
    }

    #[test]
    fn the_holder_before_it_does_not() {
        let (held, history) = regranted();
        let decision = with_ctx(61_000, |ctx| decide(&held, &fail(1), &history, &settings(), ctx));
        assert_eq!((conflict(&decision).attempt, place(&decision)), (2, &held.place));
    }
}
