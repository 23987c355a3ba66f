//! Which rows a batch has changed.

use std::collections::HashMap;
use std::sync::Arc;

use super::runs::RunWrites;
use super::{Cell, Original, QueueCell, World};
use crate::attempt::ClosedAttempt;
use crate::command::{AttemptChange, TaskData, hello};
use crate::dag::data::Artifact;
use crate::effect::{Action, Effect};
use crate::event::Fact;
use crate::id::{Seq, TaskId};
use crate::queue::{Queue, QueueId};
use crate::task::{Blocked, Body, Finished, Place, Running, Waiting};
use crate::time::Timestamp;

/// What a batch has changed, by part. Within a part, deletes come before inserts: a row that changed inside its table is
/// deleted and inserted again.
#[derive(Debug, Default, PartialEq)]
pub struct Writes {
    pub tasks: TaskWrites,
    pub queues: QueueWrites,
    pub runs: RunWrites,
    pub hellos: Vec<hello::Hello>,
    pub redrives: Vec<RedriveProgress>,
    /// What accepted reports say about datasets, in the order in which they were decided.
    pub data: Vec<TaskData>,
    /// Artifacts that they name for the first time. The store refuses the batch if another one was quicker.
    pub artifacts: Vec<Artifact>,
    pub facts: Vec<Fact>,
    /// What is to happen outside the store.
    pub effects: Vec<Effect>,
    /// Wake-ups in the outbox that are over: their task has ended, or was enqueued again.
    pub settled: Vec<i64>,
}

#[derive(Debug, Default, PartialEq)]
pub struct TaskWrites {
    pub bodies: Vec<Arc<Body>>,
    pub unblock: Vec<Seq>,
    pub unschedule: Vec<Seq>,
    pub unready: Vec<Seq>,
    pub unrun: Vec<Seq>,
    pub unfinish: Vec<Seq>,
    pub block: Vec<(TaskId, Blocked)>,
    /// Blocked tasks that wait for fewer others now.
    pub count_down: Vec<(Seq, u32)>,
    pub schedule: Vec<(TaskId, Waiting)>,
    pub ready: Vec<(TaskId, Waiting)>,
    pub run: Vec<(TaskId, Running)>,
    /// Leases that changed in place: the one row that is updated.
    pub renew: Vec<(Seq, Running)>,
    pub finish: Vec<(TaskId, Finished)>,
    pub attempts: Vec<(Seq, ClosedAttempt)>,
    pub drop_attempts: Vec<(Seq, u32)>,
}

#[derive(Debug, Default, PartialEq)]
pub struct QueueWrites {
    pub changed: Vec<Queue>,
    /// Removed after everything else is written. Their names are kept for as long as they have ended tasks.
    pub deleted: Vec<Queue>,
    /// Queues whose fairness key changed: their waiting rows get new values.
    pub refair: Vec<QueueId>,
    pub counts: HashMap<QueueId, Counts>,
}

/// The number of rows per place, or how it changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    pub blocked: i64,
    pub scheduled: i64,
    pub ready: i64,
    pub running: i64,
    pub finished: i64,
    pub dead_lettered: i64,
}

impl Counts {
    /// Tasks that have not ended.
    pub fn open(&self) -> i64 {
        self.blocked + self.scheduled + self.ready + self.running
    }

    pub(super) fn add(&mut self, place: &Place, by: i64) {
        match place {
            Place::Blocked(_) => self.blocked += by,
            Place::Scheduled(_) => self.scheduled += by,
            Place::Ready(_) => self.ready += by,
            Place::Running(_) => self.running += by,
            Place::Finished(finished) => {
                self.finished += by;
                if finished.dead_lettered_at.is_some() {
                    self.dead_lettered += by;
                }
            }
        }
    }
}

/// One step of a redrive, to be written with what it released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RedriveProgress {
    pub redrive_id: u128,
    pub cursor: Seq,
    pub released: u64,
    pub finished: bool,
}

impl Writes {
    /// Nothing to write: the transaction can end as it began.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl World {
    /// Compares where every task is with where it was. Ends the batch: what has changed moves into the writes.
    pub(crate) fn writes(&mut self) -> Writes {
        let mut made = std::mem::take(&mut self.made);
        // They are not written, and wanted once the batch is committed.
        self.made.timings = std::mem::take(&mut made.timings);
        let mut writes = Writes {
            tasks: TaskWrites { bodies: made.bodies, ..TaskWrites::default() },
            queues: QueueWrites { refair: made.refair.into_iter().collect(), ..QueueWrites::default() },
            runs: self.runs.writes(),
            hellos: made.hellos,
            redrives: made.redrives,
            data: made.data,
            artifacts: std::mem::take(&mut self.artifacts.new),
            facts: made.facts,
            ..Writes::default()
        };
        for ((row, number), change) in made.attempts {
            match change {
                AttemptChange::Put(closed) => writes.tasks.attempts.push((row, *closed)),
                AttemptChange::Drop(_) => writes.tasks.drop_attempts.push((row, number)),
            }
        }
        // Rows are written in their order, so that two batches on two connections never wait for each other in a ring.
        let mut changed: Vec<Seq> =
            self.tasks.iter().filter(|(_, cell)| cell.has_changed()).map(|(row, _)| *row).collect();
        changed.sort_unstable();
        for row in changed {
            let Some(Cell { task, original, taken, .. }) = self.tasks.remove(&row) else { continue };
            let mut original = match original {
                Original::Elsewhere(place) => Some(*place),
                Original::Here => Some(task.place.clone()),
                Original::New => None,
            };
            // An ended task that stays ended may be of a deleted queue, which has no counts.
            let ended = matches!((&original, &task.place), (Some(Place::Finished(_)), Place::Finished(_)));
            if !ended || self.queues.contains_key(&task.place.queue()) {
                let counts = writes.queues.counts.entry(task.place.queue()).or_default();
                original.iter().for_each(|original| counts.add(original, -1));
                counts.add(&task.place, 1);
            }
            let queue = self.queues.get(&task.place.queue()).map(|cell| &cell.queue);
            if let Some(queue) = queue.filter(|queue| queue.transport.is_external()) {
                writes.wake_up(task.id, queue, original.as_ref(), &task.place, self.now);
            }
            if taken {
                original = None;
            }
            writes.tasks.leave(row, original.as_ref(), &task.place);
            writes.tasks.enter(task.id, original.as_ref(), task.place);
        }
        writes.queues.counts.retain(|_, counts| *counts != Counts::default());
        let (deleted, kept): (Vec<_>, Vec<_>) = self.queues.values().partition(|cell| cell.deleted);
        writes.queues.deleted = deleted.into_iter().map(QueueCell::current).collect();
        writes.queues.changed =
            kept.into_iter().filter(|cell| cell.queue != cell.original).map(QueueCell::current).collect();
        writes.queues.changed.sort_unstable_by_key(|queue| queue.id);
        writes
    }
}

impl Cell {
    fn has_changed(&self) -> bool {
        match &self.original {
            Original::New => true,
            Original::Here => self.taken,
            Original::Elsewhere(place) => self.taken || **place != self.task.place,
        }
    }
}

impl QueueCell {
    fn current(&self) -> Queue {
        self.queue.clone()
    }
}

impl Writes {
    /// At most one wake-up per task is live: that of its last enqueue, from then on until the task ends.
    fn wake_up(&mut self, id: TaskId, queue: &Queue, original: Option<&Place>, place: &Place, now: Timestamp) {
        let live = |place: &Place| match place {
            Place::Ready(waiting) => Some(waiting.message),
            Place::Running(running) => Some(running.message),
            Place::Blocked(_) | Place::Scheduled(_) | Place::Finished(_) => None,
        };
        let before = original.and_then(live);
        if before == live(place) {
            return;
        }
        self.settled.extend(before);
        if let Place::Ready(waiting) = place
            && queue.settings.announces(&waiting.carry.spec)
        {
            let action = Action::EnqueueTask { task: id, queue: queue.id, transport: queue.transport };
            self.effects.push(Effect { id: waiting.message, due_at: now, action });
        }
    }
}

impl TaskWrites {
    fn leave(&mut self, row: Seq, original: Option<&Place>, place: &Place) {
        match original {
            None => {}
            Some(Place::Blocked(_)) if matches!(place, Place::Blocked(_)) => {}
            Some(Place::Blocked(_)) => self.unblock.push(row),
            Some(Place::Scheduled(_)) => self.unschedule.push(row),
            Some(Place::Ready(_)) => self.unready.push(row),
            Some(Place::Running(old)) if matches!(place, Place::Running(new) if is_same_grant(old, new)) => {}
            Some(Place::Running(_)) => self.unrun.push(row),
            Some(Place::Finished(_)) => self.unfinish.push(row),
        }
    }

    fn enter(&mut self, id: TaskId, original: Option<&Place>, place: Place) {
        match place {
            Place::Blocked(blocked) => match original {
                Some(Place::Blocked(_)) => self.count_down.push((id.seq(), blocked.waiting_on)),
                _ => self.block.push((id, blocked)),
            },
            Place::Scheduled(waiting) => self.schedule.push((id, waiting)),
            Place::Ready(waiting) => self.ready.push((id, waiting)),
            Place::Running(running) => match original {
                Some(Place::Running(old)) if is_same_grant(old, &running) => self.renew.push((id.seq(), running)),
                _ => self.run.push((id, running)),
            },
            Place::Finished(finished) => self.finish.push((id, finished)),
        }
    }
}

/// The ids do not say it: a claim that is executed again, long after its first grant expired, has the same seed.
fn is_same_grant(old: &Running, new: &Running) -> bool {
    old.lease.generation == new.lease.generation
}
