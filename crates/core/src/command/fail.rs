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
    let sent = Reported { attempt_id: command.attempt_id, token: command.token, report: &command.report };
    report::decide(task, &sent, history, queue, ctx)
}
