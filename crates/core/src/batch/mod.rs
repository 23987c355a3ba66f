//! Many commands, decided together.
//!
//! A [`Session`] says what a store has to load and lock for a batch, which goes into a [`World`]; the commands are
//! decided in order against it; [`Writes`] are the rows that differ from what was loaded. A refused command is an answer
//! like any other; it does not affect the others.

mod artifacts;
mod claiming;
mod done;
mod found;
mod keys;
mod load;
mod plan;
mod runs;
mod session;
#[cfg(test)]
mod tests;
mod timing;
mod writes;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

pub use done::{Done, RemovedWake, Saved, Settled, Stop, Write};
pub use keys::{IdempotencyScope, KeyOwner};
pub use load::{ClaimLoad, Load, QueueLoad, ReadyLoad, Rotation, TaskLoad, WorkerLoad};
pub use runs::{KnownRun, RunLoad, RunWrites};
pub use session::Session;
pub use timing::Timing;
pub use writes::{Counts, QueueWrites, RedriveProgress, TaskWrites, Writes};

use crate::attempt::ClosedAttempt;
use crate::command::{
    Answer, AttemptChange, Change, Command, Context, Decision, Numbers, Reach, Rejection, Task, TaskData, Wake,
    callback, cancel, claim, emit, expire, heartbeat, hello, promote, push, queues, redrive, release, retry, rewake,
    submit,
};
use crate::event::Fact;
use crate::id::{AttemptId, LeaseToken, Seq, TaskId, WorkerId};
use crate::lease::Grace;
use crate::queue::{Queue, QueueId, QueueSettings};
use crate::task::{Body, Place, State};
use crate::time::Timestamp;

/// How many leases of an older process one hello can void.
pub const VOID_ROWS: usize = 10_000;

/// The answer to one command.
pub type Outcome = Result<Answer, Rejection>;

/// What is loaded for a batch, and what the batch has made of it so far.
#[derive(Debug)]
pub struct World {
    pub now: Timestamp,
    pub grace: Grace,
    pub numbers: Numbers,
    queues: HashMap<QueueId, QueueCell>,
    names: HashMap<Arc<str>, QueueId>,
    /// The tasks of the queues that the batch may delete.
    counts: HashMap<QueueId, Counts>,
    tasks: HashMap<Seq, Cell>,
    /// Rows that were removed from their table when they were loaded.
    taken: Vec<Seq>,
    /// Ready rows per queue, in the order of grants.
    candidates: HashMap<QueueId, VecDeque<Seq>>,
    found_ready: HashMap<QueueId, found::FoundReady>,
    /// Queues that had no ready row when they were loaded: what the batch makes ready in them is first in line.
    empty: HashSet<QueueId>,
    /// Earlier attempts of the tasks for which [`needs_history`] is true.
    history: HashMap<Seq, Vec<ClosedAttempt>>,
    keys: HashMap<IdempotencyScope, KeyOwner>,
    /// Bodies of tasks that have keys, until their states are known.
    key_bodies: Vec<Body>,
    /// States of tasks that are not locked.
    states: HashMap<Seq, State>,
    /// By place in the batch: leases that this very claim was granted before.
    repeats: HashMap<usize, Vec<Seq>>,
    incarnations: HashMap<WorkerId, Arc<str>>,
    /// Leases of the workers that say hello.
    held: HashMap<WorkerId, Vec<Seq>>,
    runs: runs::Runs,
    artifacts: artifacts::Artifacts,
    made: Made,
    decided: bool,
}

/// What the decisions have made other than changed rows.
#[derive(Debug, Default)]
struct Made {
    attempts: HashMap<(Seq, u32), AttemptChange>,
    bodies: Vec<Arc<Body>>,
    facts: Vec<Fact>,
    wakes: Vec<Wake>,
    hellos: Vec<hello::Hello>,
    redrives: Vec<RedriveProgress>,
    data: Vec<TaskData>,
    refair: HashSet<QueueId>,
    /// Claims of this batch by worker and claim id.
    claims: HashMap<(WorkerId, Arc<str>), Vec<Seq>>,
    timings: Vec<(QueueId, Timing)>,
}

/// A task in a batch.
#[derive(Debug)]
struct Cell {
    task: Task,
    original: Original,
    /// Its row was removed from its table when it was loaded.
    taken: bool,
    /// It was loaded for claims, and no other command names it.
    candidate: bool,
}

/// Where a task stood when it was loaded.
#[derive(Debug)]
enum Original {
    /// The batch has made it.
    New,
    /// Where it stands now.
    Here,
    Elsewhere(Box<Place>),
}

impl Cell {
    fn loaded(task: Task) -> Self {
        Self { original: Original::Here, task, taken: false, candidate: false }
    }
}

/// A queue in a batch.
#[derive(Debug)]
struct QueueCell {
    queue: Queue,
    /// Open attempts; counted for limited queues only.
    running: u32,
    original: Queue,
    deleted: bool,
}

impl QueueCell {
    fn loaded(queue: Queue, running: u32) -> Self {
        Self { original: queue.clone(), queue, running, deleted: false }
    }
}

/// Whether a command can be judged only with the earlier attempts of its task.
pub fn needs_history(command: &Command, place: &Place) -> bool {
    let knows = |id: AttemptId| match place {
        Place::Running(running) => running.attempt_id == id,
        _ => place.last_attempt().is_some_and(|last| last.id == id),
    };
    let holds = |token: LeaseToken| match place {
        Place::Running(running) => running.lease.token == token,
        _ => place.last_attempt().is_some_and(|last| last.token == token),
    };
    match command {
        Command::Report(c) => !knows(c.attempt_id),
        Command::Heartbeat(c) => !holds(c.token),
        Command::Callback(c) => !knows(c.proof.attempt_id),
        _ => false,
    }
}

impl World {
    pub fn new(now: Timestamp, grace: Grace, numbers: Numbers) -> Self {
        Self {
            now,
            grace,
            numbers,
            queues: HashMap::new(),
            names: HashMap::new(),
            counts: HashMap::new(),
            tasks: HashMap::new(),
            taken: Vec::new(),
            candidates: HashMap::new(),
            found_ready: HashMap::new(),
            empty: HashSet::new(),
            history: HashMap::new(),
            keys: HashMap::new(),
            key_bodies: Vec::new(),
            states: HashMap::new(),
            repeats: HashMap::new(),
            incarnations: HashMap::new(),
            held: HashMap::new(),
            runs: runs::Runs::default(),
            artifacts: artifacts::Artifacts::default(),
            made: Made::default(),
            decided: false,
        }
    }

    /// Tasks that have keys, and whose states are not known.
    fn unknown_key_holders(&self) -> BTreeSet<Seq> {
        self.key_bodies.iter().map(Body::seq).filter(|row| !self.tasks.contains_key(row)).collect()
    }

    /// A body without a place is damaged: its key is free.
    fn resolve_keys(&mut self) {
        for body in std::mem::take(&mut self.key_bodies) {
            let loaded = self.tasks.get(&body.seq()).map(|cell| cell.task.place.state());
            let state = loaded.or_else(|| self.states.get(&body.seq()).copied());
            self.keys.extend(state.and_then(|state| KeyOwner::of(&body, state)));
        }
    }

    /// The queues of loaded tasks that are not loaded.
    fn unknown_queues(&self) -> BTreeSet<QueueId> {
        let queues = self.tasks.values().map(|cell| cell.task.place.queue());
        queues.filter(|id| !self.queues.contains_key(id)).collect()
    }

    /// Decides every command in order, but deletions of queues after everything else: then no command of the batch can
    /// meet a queue that is gone. `retrying` says that an earlier try of the batch may have been committed.
    pub(crate) fn decide(&mut self, commands: &[Command], retrying: bool) -> Vec<Outcome> {
        self.decided = true;
        let decisions = commands.iter().enumerate().map(|(index, command)| self.decide_one(index, command));
        let mut outcomes: Vec<Outcome> = decisions.collect();
        for (command, outcome) in commands.iter().zip(&mut outcomes) {
            if let Command::DeleteQueue(delete) = command {
                *outcome = self.delete_queue(delete, retrying);
            }
        }
        outcomes
    }

    fn decide_one(&mut self, index: usize, command: &Command) -> Outcome {
        match command {
            Command::Submit(submit) => self.submit(submit),
            Command::Claim(claim) => Ok(Answer::Claimed(self.claim(index, claim))),
            Command::ClaimTask(claim) => Ok(self.claim_task(claim)),
            Command::Hello(hello) => self.hello(hello),
            Command::Redrive(redrive) => Ok(self.redrive(redrive)),
            Command::SetQueue(set) => self.with_queue(&set.queue, &set.reach, |queue| queues::set(queue, set)),
            Command::PatchQueue(patch) => {
                self.with_queue(&patch.queue, &patch.reach, |queue| queues::patch(queue, patch))
            }
            Command::PauseQueue(pause) => {
                self.with_queue(&pause.queue, &pause.reach, |queue| queues::pause(queue, pause.paused))
            }
            Command::DeleteQueue(_) => Ok(Answer::Done(false)),
            Command::Expire(c) => self.on_row(c.row, |task, _, queue, ctx| expire::decide(task, queue, ctx)),
            Command::Promote(c) => self.on_row(c.row, |task, _, queue, ctx| promote::decide(task, queue, ctx)),
            Command::Rewake(c) => self.on_row(c.row, |task, _, queue, ctx| rewake::decide(task, c, queue, ctx)),
            Command::Release(c) => self.on_row(c.row, |task, _, _, ctx| release::decide(task, c, ctx)),
            Command::Heartbeat(c) => {
                self.on_task(c.task, |task, history, queue, ctx| heartbeat::decide(task, c, history, queue, ctx))
            }
            Command::Report(c) => self.report(c),
            Command::Emit(c) => self.on_task(c.task, |task, _, queue, ctx| emit::decide(task, c, queue, ctx)),
            Command::Cancel(c) => self.on_task(c.task, |task, _, queue, ctx| cancel::decide(task, c, queue, ctx)),
            Command::SubmitRun(c) => self.submit_run(c),
            Command::CancelRun(c) => self.cancel_run(c),
            Command::Retry(c) => {
                let stopping = self.is_stopping(c.task.seq());
                self.on_task(c.task, |task, _, queue, ctx| {
                    ctx.sealed |= stopping;
                    retry::decide(task, c, queue, ctx)
                })
            }
            Command::Callback(c) => {
                self.on_task(c.task, |task, history, queue, ctx| callback::decide(task, c, history, queue, ctx))
            }
            Command::TakePush(c) => self.take_push(c.row),
            Command::Pushed(c) => self.on_row(c.row, |task, _, queue, ctx| push::pushed(task, c, queue, ctx)),
        }
    }

    fn take_push(&mut self, row: Seq) -> Outcome {
        match self.on_row(row, |task, _, queue, ctx| push::take(task, queue, ctx))? {
            Answer::Done(_) => Ok(Answer::Claimed(claim::Claimed::default())),
            answer => Ok(answer),
        }
    }

    fn on_task(
        &mut self,
        id: TaskId,
        decide: impl FnOnce(&Task, &[ClosedAttempt], &QueueSettings, &mut Context<'_>) -> Decision,
    ) -> Outcome {
        // The row was found by the low bits of the id; only the whole id names the task.
        match self.tasks.get(&id.seq()) {
            Some(cell) if cell.task.id == id => self.on_row(id.seq(), decide),
            _ => Err(Rejection::NotFound),
        }
    }

    fn on_row(
        &mut self,
        row: Seq,
        decide: impl FnOnce(&Task, &[ClosedAttempt], &QueueSettings, &mut Context<'_>) -> Decision,
    ) -> Outcome {
        let Some(cell) = self.tasks.get(&row) else { return Ok(Answer::Done(false)) };
        let defaults = QueueSettings::default();
        let queue = self.queues.get(&cell.task.place.queue());
        let queue_deleted = queue.is_none();
        let queue = queue.map_or(&defaults, |cell| &cell.queue.settings);
        let history = self.history.get(&row).map_or(&[][..], Vec::as_slice);
        let sealed = runs::is_sealed(&cell.task.place, &self.runs);
        let mut ctx = Context { now: self.now, grace: self.grace, numbers: &mut self.numbers, sealed, queue_deleted };
        let Decision { change, answer } = decide(&cell.task, history, queue, &mut ctx);
        if let Some(change) = change {
            self.apply(row, change);
        }
        answer
    }

    /// Later commands of the batch see what earlier ones did.
    fn apply(&mut self, row: Seq, change: Change) {
        let Some(cell) = self.tasks.get_mut(&row) else { return };
        let was_running = matches!(cell.task.place, Place::Running(_));
        let before = std::mem::replace(&mut cell.task.place, change.place);
        let is_running = matches!(cell.task.place, Place::Running(_));
        if cell.task.place.carry().run.is_some() && before.end() != cell.task.place.end() {
            self.runs.consequences.moved.push(row);
        }
        // A grant takes the last attempt out of the row, and its history need not be loaded.
        if is_running && let Some(last) = before.last_attempt() {
            let history = self.history.entry(row).or_default();
            if !history.iter().any(|old| old.id == last.id) {
                history.push(last.clone());
            }
        }
        self.made.timings.extend(Timing::of(&before, &cell.task.place).map(|timing| (before.queue(), timing)));
        if was_running != is_running
            && let Some(queue) = self.queues.get_mut(&cell.task.place.queue())
        {
            queue.running = if is_running { queue.running + 1 } else { queue.running.saturating_sub(1) };
        }
        if let Original::Here = cell.original {
            cell.original = Original::Elsewhere(Box::new(before));
        }
        for attempt in change.attempts {
            let number = match &attempt {
                AttemptChange::Put(closed) => closed.number,
                AttemptChange::Drop(number) => *number,
            };
            if let AttemptChange::Put(closed) = &attempt {
                let history = self.history.entry(row).or_default();
                match history.iter_mut().find(|old| old.id == closed.id) {
                    Some(old) => *old = (**closed).clone(),
                    None => history.push((**closed).clone()),
                }
            }
            self.made.attempts.insert((row, number), attempt);
        }
        self.made.facts.extend(change.facts);
        self.made.wakes.extend(change.outbox);
        change.data.iter().for_each(|data| self.artifacts.accept(&data.report));
        self.made.data.extend(change.data);
    }

    fn submit(&mut self, command: &submit::Submit) -> Outcome {
        let find = |task: &submit::NewTask| submit::Known {
            made: self.state_of(task.id),
            queue: self.names.get(&task.queue).and_then(|id| self.queues.get(id)).map(|cell| &cell.queue),
            // An earlier command of the batch may have moved the task since its key was read.
            key: task
                .key_scope()
                .and_then(|scope| self.keys.get(&scope))
                .map(|known| KeyOwner { state: self.state_of(known.id).unwrap_or(known.state), ..known.clone() }),
        };
        let submit::Checked { existing, keys } = submit::check(command, self.now, find)?;
        self.keys.extend(keys);
        let tasks = existing.into_iter().zip(&command.tasks);
        Ok(Answer::Submitted(tasks.map(|(known, task)| known.unwrap_or_else(|| self.create(task))).collect()))
    }

    /// Where a loaded task is.
    fn state_of(&self, id: TaskId) -> Option<State> {
        self.tasks.get(&id.seq()).filter(|cell| cell.task.id == id).map(|cell| cell.task.place.state())
    }

    fn create(&mut self, task: &submit::NewTask) -> submit::Submitted {
        let Some(queue) = self.names.get(&task.queue).and_then(|id| self.queues.get(id)) else {
            unreachable!("the store makes the queues that a submit names before it loads them")
        };
        let ctx = Context::new(self.now, self.grace, &mut self.numbers);
        let (body, change) = submit::decide(task, &queue.queue, &ctx);
        let state = change.place.state();
        self.born(body, change);
        submit::Submitted { id: task.id, state, created: true }
    }

    /// A task that the batch makes.
    fn born(&mut self, body: Body, change: Change) {
        let (id, body) = (body.id, Arc::new(body));
        let new = Task { id, place: change.place.clone(), body: Some(Arc::clone(&body)) };
        self.tasks.insert(id.seq(), Cell { task: new, original: Original::New, taken: false, candidate: false });
        self.made.bodies.push(body);
        self.apply(id.seq(), change);
        self.offer(id.seq());
    }

    /// A new task can be granted by the batch that made it, where nothing that is not loaded can come before it: the
    /// claim that waits for it need not wait for a commit in between.
    fn offer(&mut self, row: Seq) {
        let order = |tasks: &HashMap<Seq, Cell>, row: Seq| match tasks.get(&row).map(|cell| &cell.task.place) {
            Some(Place::Ready(waiting)) => Some((waiting.queue, waiting.priority, waiting.at, row)),
            _ => None,
        };
        let Some(new) = order(&self.tasks, row) else { return };
        // A wake-up that leaves the process has a name only once it was published.
        let plain = self
            .queues
            .get(&new.0)
            .is_some_and(|cell| cell.queue.settings.fairness_key.is_none() && !cell.queue.transport.is_external());
        if plain && self.empty.contains(&new.0) {
            let line = self.candidates.entry(new.0).or_default();
            let behind = line.iter().rev().take_while(|other| order(&self.tasks, **other) > Some(new)).count();
            line.insert(line.len() - behind, row);
        }
    }

    fn hello(&mut self, command: &hello::Hello) -> Outcome {
        let known = self.incarnations.get(&command.worker).map(|known| &**known);
        if !hello::decide(known, command)? {
            return Ok(Answer::Done(false));
        }
        self.incarnations.insert(Arc::clone(&command.worker), Arc::clone(&command.incarnation));
        self.made.hellos.push(command.clone());
        for row in self.held.get(&command.worker).cloned().unwrap_or_default() {
            let _ = self.on_row(row, |task, _, queue, ctx| hello::void(task, command, queue, ctx));
        }
        Ok(Answer::Done(true))
    }

    fn redrive(&mut self, command: &redrive::Redrive) -> Answer {
        let mut released = 0;
        for row in &command.rows {
            let stopping = self.is_stopping(*row);
            let outcome = self.on_row(*row, |task, _, queue, ctx| {
                ctx.sealed |= stopping;
                redrive::decide(task, command, queue, ctx)
            });
            released += u64::from(outcome == Ok(Answer::Done(true)));
        }
        self.made.redrives.push(RedriveProgress {
            redrive_id: command.redrive_id,
            cursor: command.cursor,
            released,
            finished: command.finished,
        });
        Answer::Redriven { released }
    }

    fn with_queue(&mut self, name: &Arc<str>, reach: &Reach, change: impl FnOnce(&Queue) -> Queue) -> Outcome {
        let Some(cell) = self.names.get(name).and_then(|id| self.queues.get_mut(id)) else {
            return Err(Rejection::QueueNotFound);
        };
        queues::may_set(&cell.queue, reach)?;
        let changed = change(&cell.queue);
        if changed.settings.fairness_key != cell.queue.settings.fairness_key {
            self.made.refair.insert(changed.id);
        }
        // Whoever waits for this queue should look again: its limits may have been lifted.
        cell.queue = changed.clone();
        Ok(Answer::Queue(changed))
    }

    fn delete_queue(&mut self, delete: &queues::DeleteQueue, retrying: bool) -> Outcome {
        let Some(id) = self.names.get(&delete.queue).copied() else {
            // The earlier try may have deleted it. Either way there is no such queue any more.
            return if retrying { Ok(Answer::Done(true)) } else { Err(Rejection::QueueNotFound) };
        };
        let tasks = self.count_tasks(id);
        let Some(cell) = self.queues.get_mut(&id) else { return Err(Rejection::QueueNotFound) };
        queues::delete(&cell.queue, tasks, delete)?;
        cell.deleted = true;
        self.names.remove(&delete.queue);
        Ok(Answer::Done(true))
    }

    /// The tasks of a counted queue, as the batch leaves them.
    fn count_tasks(&self, queue: QueueId) -> Counts {
        let mut counts = self.counts.get(&queue).copied().unwrap_or_default();
        for cell in self.tasks.values().filter(|cell| cell.task.place.queue() == queue) {
            match &cell.original {
                Original::Here => {}
                Original::New => counts.add(&cell.task.place, 1),
                Original::Elsewhere(place) => {
                    counts.add(place, -1);
                    counts.add(&cell.task.place, 1);
                }
            }
        }
        counts
    }

    /// The wake-ups to send once the batch is committed: for what it made ready and did not grant itself.
    pub fn wakes(&self) -> impl Iterator<Item = &Wake> {
        self.made.wakes.iter().filter(|wake| {
            let place = self.tasks.get(&wake.task.seq()).map(|cell| &cell.task.place);
            matches!(place, Some(Place::Ready(waiting)) if waiting.message == wake.message)
        })
    }
}
