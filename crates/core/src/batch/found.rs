//! What a store answers to a [`Load`](super::Load).

use std::collections::hash_map::Entry;
use std::sync::Arc;

use super::{Cell, Counts, QueueCell, World};
use crate::attempt::ClosedAttempt;
use crate::command::Task;
use crate::command::claim::Claim;
use crate::command::hello::{self, Hello};
use crate::dag::data::ArtifactName;
use crate::id::{Seq, TaskId, WorkerId};
use crate::lease::Grace;
use crate::queue::{Queue, QueueId, rotate};
use crate::task::{Body, Place, Running, State, Waiting};
use crate::time::Timestamp;

/// What a look for ready tasks of a queue has found.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FoundReady {
    pub rows: usize,
    /// How many of them will still be there when the claims are decided, whatever the other commands do.
    pub sure: usize,
}

impl World {
    /// The store's time, and the grace that its marks of life stand for.
    pub fn begin(&mut self, now: Timestamp, grace: Grace) {
        (self.now, self.grace) = (now, grace);
    }

    /// Whether the commands have been decided: what is loaded from then on is for the consequences.
    pub fn is_decided(&self) -> bool {
        self.decided
    }

    /// A queue, and its open attempts as far as they were counted. What was read later replaces what was read before.
    pub fn add_queue(&mut self, queue: Queue, running: u32) {
        if self.decided && self.queues.contains_key(&queue.id) {
            return;
        }
        self.names.insert(Arc::clone(&queue.name), queue.id);
        self.queues.insert(queue.id, QueueCell::loaded(queue, running));
    }

    /// What the name of an artifact stands for.
    pub fn add_artifact(&mut self, name: ArtifactName, digest: [u8; 32]) {
        self.artifacts.add(name, digest);
    }

    /// How many tasks a queue has, before the batch changes anything.
    pub fn add_counts(&mut self, queue: QueueId, counts: Counts) {
        self.counts.insert(queue, counts);
    }

    /// Whether a queue of this name is loaded.
    pub fn has_queue(&self, name: &str) -> bool {
        self.names.contains_key(name)
    }

    pub fn queue(&self, id: QueueId) -> Option<&Queue> {
        self.queues.get(&id).map(|cell| &cell.queue)
    }

    /// Makes room for this many more tasks: they are large, and moving them when the table grows is expensive.
    pub fn expect_tasks(&mut self, count: usize) {
        self.tasks.reserve(count);
    }

    /// A task, wherever it is. One that is loaded already stays as it is.
    pub fn add_task(&mut self, task: Task) {
        if let Entry::Vacant(free) = self.tasks.entry(task.id.seq()) {
            free.insert(Cell::loaded(task));
        }
    }

    /// A held task whose row the store has already removed from its table. Wherever the task ends up, it is written anew.
    pub fn add_taken(&mut self, task: Task) {
        let row = task.id.seq();
        self.tasks.insert(row, Cell { taken: true, ..Cell::loaded(task) });
        self.taken.push(row);
    }

    pub fn has_task(&self, row: Seq) -> bool {
        self.tasks.contains_key(&row)
    }

    /// The tasks that are loaded or made by the batch, as they are now.
    pub fn tasks(&self) -> impl Iterator<Item = &Task> {
        self.tasks.values().map(|cell| &cell.task)
    }

    /// Held tasks whose rows were removed: a look into the table does not find them any longer.
    fn taken(&self, wanted: impl Fn(&Running) -> bool) -> Vec<Seq> {
        let holds = |row: &Seq| {
            let place = self.tasks.get(row).map(|cell| &cell.task.place);
            matches!(place, Some(Place::Running(running)) if wanted(running))
        };
        self.taken.iter().copied().filter(holds).collect()
    }

    /// A body without its payload.
    pub fn add_body(&mut self, body: Arc<Body>) {
        if let Some(cell) = self.tasks.get_mut(&body.seq()) {
            cell.task.body = Some(body);
        }
    }

    /// An earlier attempt of a task.
    pub fn add_attempt(&mut self, row: Seq, attempt: ClosedAttempt) {
        self.history.entry(row).or_default().push(attempt);
    }

    /// The body of a task that has a key.
    pub fn add_key(&mut self, body: Body) {
        self.key_bodies.push(body);
    }

    /// The state of a task that is not locked.
    pub fn add_state(&mut self, row: Seq, state: State) {
        self.states.insert(row, state);
    }

    /// Leases that a claim may have been granted before.
    pub fn add_claimed(&mut self, index: usize, claim: &Claim, mut held: Vec<(TaskId, Running)>) {
        let earlier = claim.earlier_grants();
        held.retain(|(_, running)| earlier.contain(running));
        let mut rows: Vec<Seq> = held.iter().map(|(id, _)| id.seq()).collect();
        rows.extend(self.taken(|running| earlier.contain(running)));
        for (id, running) in held {
            self.add_task(Task { id, place: Place::Running(running), body: None });
        }
        rows.sort_unstable();
        rows.dedup();
        if rows.len() > 1 {
            let order = claim.grant_order();
            rows.sort_by_key(|row| match self.tasks.get(row).map(|cell| &cell.task.place) {
                Some(Place::Running(running)) => order.get(&running.attempt_id).copied().unwrap_or(usize::MAX),
                _ => usize::MAX,
            });
        }
        if !rows.is_empty() {
            self.repeats.insert(index, rows);
        }
    }

    /// The newest process of a worker that said hello before.
    pub fn add_incarnation(&mut self, worker: &WorkerId, incarnation: Arc<str>) {
        self.incarnations.insert(Arc::clone(worker), incarnation);
    }

    /// Leases that older processes of a worker hold.
    pub fn add_held(&mut self, hello: &Hello, held: Vec<(TaskId, Running)>) {
        let mut rows = self.taken(|running| hello::voids(hello, running));
        rows.extend(held.iter().map(|(id, _)| id.seq()));
        for (id, running) in held {
            self.add_task(Task { id, place: Place::Running(running), body: None });
        }
        let all = self.held.entry(Arc::clone(&hello.worker)).or_default();
        all.extend(rows);
        all.sort_unstable();
        all.dedup();
    }

    /// The first ready tasks of a queue, in the order of grants but for the rotation over fairness values.
    pub fn add_ready(&mut self, queue: QueueId, mut found: Vec<(TaskId, Waiting)>) {
        let cell = self.queues.get(&queue).map(|cell| &cell.queue);
        if let Some(fair) = cell.filter(|queue| queue.settings.fairness_key.is_some()) {
            let value = |(_, waiting): &(TaskId, Waiting)| waiting.fair.clone().unwrap_or_default();
            found = rotate(found, fair.fair_cursor.as_deref(), value);
        }
        if found.is_empty() {
            self.empty.insert(queue);
        }
        self.candidates.insert(queue, found.iter().map(|(id, _)| id.seq()).collect());
        let mut all = FoundReady { rows: found.len(), sure: 0 };
        for (id, waiting) in found {
            let past_deadline = waiting.carry.spec.is_past_deadline(self.now);
            // What was loaded for another command may be changed by it. A second look, for more tasks, finds again what
            // the first one has found.
            let named = match self.tasks.entry(id.seq()) {
                Entry::Vacant(free) => {
                    let task = Task { id, place: Place::Ready(waiting), body: None };
                    free.insert(Cell { candidate: true, ..Cell::loaded(task) });
                    false
                }
                Entry::Occupied(cell) => !cell.get().candidate,
            };
            all.sure += usize::from(!named && !past_deadline);
        }
        self.found_ready.insert(queue, all);
    }

    /// How many of the ready tasks that were loaded from a queue no claim has taken.
    pub fn left_over(&self, queue: QueueId) -> usize {
        self.candidates.get(&queue).map_or(0, std::collections::VecDeque::len)
    }
}
