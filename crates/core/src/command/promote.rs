//! A task's time has come.

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
