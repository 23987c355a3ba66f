//! Releases tasks from the dead letters, a few at a time, as one durable operation.

use super::{Change, Context, Task};
use crate::event::FactKind;
use crate::id::Seq;
use crate::queue::QueueSettings;
use crate::task::Place;
use crate::time::Timestamp;

/// One step of a redrive. Its tasks and its progress commit together, so that a restart goes on behind the last step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redrive {
    pub redrive_id: u128,
    /// Matches of the filter, in order.
    pub rows: Vec<Seq>,
    /// The redrive goes on behind this row.
    pub cursor: Seq,
    /// No match is left behind the cursor.
    pub finished: bool,
    /// A task that came to the dead letters after the redrive began is not its business.
    pub started_at: Timestamp,
}

/// `None` when the task is not in the dead letters any more: another redrive or a person was first.
pub fn decide(task: &Task, command: &Redrive, queue: &QueueSettings, ctx: &mut Context<'_>) -> Option<Change> {
    let body = task.body.as_ref()?;
    let Place::Finished(finished) = &task.place else { return None };
    let dead = finished.dead_lettered_at.is_some_and(|at| at <= command.started_at);
    if !dead || body.spec.is_past_deadline(ctx.now) {
        return None;
    }
    Some(super::retry::again(body, finished, FactKind::Redriven, queue, ctx).0)
}
