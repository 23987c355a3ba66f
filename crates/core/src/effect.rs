//! What must happen outside the store because a change was committed.
//!
//! A batch writes its effects in the transaction of the change that causes them. The engine performs each of them after
//! the commit, at least once, with the handler of its kind. One that cannot be performed is tried again later and holds up
//! no other; a crash delays effects and loses none.
//!
//! A new kind of effect is a variant of [`Action`] and [`EffectKind`], and a handler in `engine/src/effects/`.

use std::sync::Arc;

use crate::id::TaskId;
use crate::queue::{QueueId, Transport};
use crate::time::Timestamp;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effect {
    /// The same cause makes the same id: a batch that is sent again writes the effect once, and a receiver that gets it
    /// twice can tell.
    pub id: i64,
    /// When it may be performed.
    pub due_at: Timestamp,
    pub action: Action,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Tells the workers of a queue, through its transport, that a task is ready. The id is the number of the enqueue.
    EnqueueTask { task: TaskId, queue: QueueId, transport: Transport },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EffectKind {
    EnqueueTask,
    /// A batch of rows, or a dead letter, goes to the queue of its dataset. Its row is written with the batch.
    PublishBuffer,
}

impl EffectKind {
    pub const ALL: [Self; 2] = [Self::EnqueueTask, Self::PublishBuffer];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::EnqueueTask => "enqueue_task",
            Self::PublishBuffer => "publish_buffer",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }
}

impl Action {
    pub const fn kind(&self) -> EffectKind {
        match self {
            Self::EnqueueTask { .. } => EffectKind::EnqueueTask,
        }
    }

    /// Where the effect goes. Effects of one kind and key are performed together; a destination that cannot be reached
    /// holds up no other.
    pub fn key(&self) -> &str {
        match self {
            Self::EnqueueTask { transport, .. } => transport.as_str(),
        }
    }

    /// What the handler needs to know.
    pub fn body(&self) -> String {
        match self {
            Self::EnqueueTask { task, .. } => format!("{:032x}", task.as_u128()),
        }
    }

    /// The task and the queue that it is about.
    pub fn subject(&self) -> Option<(TaskId, QueueId)> {
        match self {
            Self::EnqueueTask { task, queue, .. } => Some((*task, *queue)),
        }
    }
}

/// An effect that was committed, as the outbox has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueEffect {
    /// Names the row, and is the same however often the effect is performed.
    pub id: i64,
    pub kind: EffectKind,
    /// Where it goes.
    pub key: Arc<str>,
    pub body: Arc<str>,
    /// The queue that it is about, if it is about one.
    pub queue: Option<Arc<str>>,
    /// How often it failed.
    pub tries: u32,
}

/// The task of an [`Action::EnqueueTask`], from its body.
pub fn enqueued_task(body: &str) -> Option<TaskId> {
    u128::from_str_radix(body, 16).ok().map(TaskId::from_u128)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Seq;

    #[test]
    fn an_action_is_known_by_what_is_stored_of_it() {
        let task = TaskId::new(7, 8, Seq(9));
        let action = Action::EnqueueTask { task, queue: QueueId(3), transport: Transport::Redis };
        assert_eq!(EffectKind::parse(action.kind().as_str()), Some(EffectKind::EnqueueTask));
        assert_eq!((action.key(), action.subject()), ("redis", Some((task, QueueId(3)))));
        assert_eq!(enqueued_task(&action.body()), Some(task));
        assert_eq!(enqueued_task("no task"), None);
    }
}
