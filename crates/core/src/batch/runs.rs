//! Runs inside a batch: made, canceled, and led on by the ends of their tasks.
//!
//! What the end of a task leads to is decided in the batch that ends it, behind its commands. Only then is it known which
//! edges have to be loaded: [`World::ends`] says which, [`World::follow`] resolves them, and [`World::fill`] gives the
//! tasks that became ready the outputs that they ask for. A payload that cannot be filled in fails its task, which is one
//! more end: a store goes around until there is none. The cost is one step per edge, and nothing for tasks without a run.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use super::{Cell, KeyOwner, Original, Outcome, World};
use crate::attempt::Failure;
use crate::command::run::{CancelRun, NewMember, RunCanceled, RunSubmitted, SubmitRun};
use crate::command::{Answer, Change, Context, Rejection, cancel, submit};
use crate::event::{Fact, FactKind};
use crate::id::{RunId, Seq, TaskId};
use crate::limits;
use crate::queue::QueueId;
use crate::run::reference::{self, Budget, Parts};
use crate::run::{Edge, InRun, Member, Run, RunCounts, RunState, RunTask};
use crate::task::{Blocked, Body, Carry, End, FailReason, Finished, Place};

/// A run in a batch.
#[derive(Debug)]
pub struct RunCell {
    pub run: Run,
    /// As it was loaded; `None` if the batch has made it.
    pub(super) original: Option<Box<Run>>,
}

impl RunCell {
    pub fn loaded(run: Run) -> Self {
        Self { original: Some(Box::new(run.clone())), run }
    }
}

/// A run that has a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownRun {
    pub id: RunId,
    pub owner: Option<Arc<str>>,
    pub fingerprint: [u8; 32],
}

/// What the decisions have made of runs.
#[derive(Debug, Default)]
pub(super) struct MadeRuns {
    pub tasks: Vec<RunTask>,
    pub edges: Vec<Edge>,
    pub resolved: Vec<Seq>,
    pub payloads: Vec<(Seq, Arc<str>)>,
    /// Those among the referring whose outputs are too large to be read.
    pub overreaching: BTreeSet<Seq>,
    /// What is left for each run to fill.
    pub budgets: HashMap<Seq, Budget>,
    /// Tasks of runs that have ended, or came back.
    pub moved: Vec<Seq>,
    /// Those whose edges were followed already.
    followed: HashSet<Seq>,
    /// Tasks that wait for nothing any more but for the outputs that they name.
    referring: Vec<Seq>,
    /// Those of the moved ones whose runs have counted them, and as what.
    counted: HashMap<Seq, Option<End>>,
}

/// Tasks of runs that a batch has ended and whose consequences are not drawn yet.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Ends {
    /// Runs that have to be loaded and locked.
    pub runs: BTreeSet<Seq>,
    /// The edges of these are needed.
    pub satisfied: BTreeSet<Seq>,
    /// Of these too, and those of whatever can be reached by them.
    pub broken: BTreeSet<Seq>,
}

/// A task that asks for outputs of others before it can be ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Referring {
    /// Its body is needed.
    pub task: Seq,
    /// The outputs of these are needed, as far as the batch does not have them.
    pub outputs: Vec<Seq>,
}

/// Whether nothing changes this end any more.
pub(super) fn is_sealed(place: &Place, runs: &HashMap<Seq, RunCell>) -> bool {
    let Place::Finished(Finished { carry: Carry { run: Some(member), .. }, .. }) = place else { return false };
    // A run that is not loaded had an open task when the batch began: this one.
    let ended = |cell: &RunCell| cell.original.as_ref().is_some_and(|run| run.state().is_terminal());
    member.sealed || runs.get(&member.run).is_some_and(ended)
}

impl Cell {
    /// How the task had ended when it was loaded.
    fn end_before(&self) -> Option<End> {
        match &self.original {
            Original::New => None,
            Original::Here => self.task.place.end(),
            Original::Elsewhere(place) => place.end(),
        }
    }
}

impl World {
    pub fn add_run(&mut self, run: Run) {
        self.runs.entry(run.id.seq()).or_insert_with(|| RunCell::loaded(run));
    }

    pub(super) fn submit_run(&mut self, command: &SubmitRun) -> Outcome {
        let new = &command.run;
        if self.runs.get(&new.id.seq()).is_some_and(|cell| cell.run.id == new.id) {
            return Ok(Answer::RunSubmitted(RunSubmitted { id: new.id, created: true }));
        }
        let scope = new.key_scope();
        if let Some(known) = scope.as_ref().and_then(|scope| self.run_keys.get(scope)) {
            let requested = new.fingerprint;
            // Another owner's run is not to be seen; that its key is taken cannot be hidden.
            if new.owner.is_some() && new.owner != known.owner {
                return Err(Rejection::RunKeyConflict { existing: None, requested });
            }
            if known.fingerprint != requested {
                let existing = Some((known.id, known.fingerprint));
                return Err(Rejection::RunKeyConflict { existing, requested });
            }
            return Ok(Answer::RunSubmitted(RunSubmitted { id: known.id, created: false }));
        }
        self.check_members(command)?;
        if let Some(scope) = scope {
            let known = KnownRun { id: new.id, owner: new.owner.clone(), fingerprint: new.fingerprint };
            self.run_keys.insert(scope, known);
        }
        self.make_run(command);
        Ok(Answer::RunSubmitted(RunSubmitted { id: new.id, created: true }))
    }

    /// First all checks, then all changes. A task belongs to one run: a key that another task has cannot name one here.
    fn check_members(&self, command: &SubmitRun) -> Result<(), Rejection> {
        let mut keys = HashMap::new();
        for (index, member) in command.tasks.iter().enumerate() {
            let task = &member.task;
            let queue = self.names.get(&task.queue).and_then(|id| self.queues.get(id));
            if queue.is_some_and(|cell| !cell.queue.takes(&task.tenant)) {
                return Err(Rejection::QueueNotFound);
            }
            // A rerun may have lost the deadline that kept the first run's tokens short; heartbeats renew them.
            let ttl = queue.filter(|_| member.carried.is_none() && command.run.parent.is_none());
            if let Some(refusal) = ttl.and_then(|cell| submit::token_ttl(task, index, &cell.queue, self.now)) {
                return Err(refusal);
            }
            let Some(scope) = task.key_scope() else { continue };
            if let Some(known) = self.keys.get(&scope) {
                let hidden = task.owner.is_some() && task.owner != known.owner;
                return Err(Rejection::IdempotencyConflict { index, existing: (!hidden).then_some(known.id) });
            }
            if let Some(earlier) = keys.insert(scope, task.id) {
                return Err(Rejection::IdempotencyConflict { index, existing: Some(earlier) });
            }
        }
        Ok(())
    }

    fn make_run(&mut self, command: &SubmitRun) {
        let new = &command.run;
        let run = Run {
            id: new.id,
            key: new.key.clone(),
            tenant: Arc::clone(&new.tenant),
            workspace: Arc::clone(&new.workspace),
            owner: new.owner.clone(),
            fingerprint: new.fingerprint,
            labels: new.labels.clone(),
            deadline: new.deadline,
            parent: new.parent,
            created_at: self.now,
            finished_at: None,
            cancel_reason: None,
            counts: RunCounts { open: command.tasks.len() as u32, ..RunCounts::default() },
        };
        self.runs.insert(new.id.seq(), RunCell { run, original: None });
        self.record_run(new.id, RunState::Running);
        let (mut parts, mut budget) = (Parts::default(), Budget::default());
        for member in &command.tasks {
            self.make_member(command, member, &mut parts, &mut budget);
        }
    }

    fn make_member<'c>(
        &mut self,
        command: &'c SubmitRun,
        member: &'c NewMember,
        parts: &mut Parts<'c>,
        budget: &mut Budget,
    ) {
        let task = &member.task;
        let Some(queue) = self.names.get(&task.queue).and_then(|id| self.queues.get(id)) else {
            unreachable!("the store makes the queues that a submit names before it loads them")
        };
        let ctx = Context::new(self.now, self.grace, &mut self.numbers);
        let (mut body, change) = submit::decide(task, &queue.queue, &ctx);
        let (Place::Scheduled(waiting) | Place::Ready(waiting)) = &change.place else { return };
        let (run, row) = (command.run.id, task.id.seq());
        body.run = Some(InRun { run, key: Arc::clone(&member.key) });
        let named = |index: &usize| command.tasks.get(*index);
        let refs = member.refs.iter().filter_map(named).map(|other| (other.key.to_string(), other.task.id.seq()));
        let mark = Member { run: run.seq(), sealed: false, refs: refs.collect() };
        let open = member.depends_on.iter().filter_map(named).filter(|other| other.carried.is_none());
        let open: Vec<Edge> = open.map(|other| Edge { upstream: other.task.id.seq(), downstream: row }).collect();
        let mut blocked = Blocked {
            queue: waiting.queue,
            priority: waiting.priority,
            waiting_on: open.len() as u32,
            at: waiting.at,
            fair: waiting.fair.clone(),
            carry: Carry { run: Some(Box::new(mark)), ..waiting.carry.clone() },
        };
        let change = if let Some(carried) = &member.carried {
            blocked.carry.run.iter_mut().for_each(|mark| mark.refs.clear());
            let finished = Finished { result: carried.result.clone(), ..blocked.ended(End::Succeeded, self.now) };
            Change::to(Place::Finished(finished))
        } else if blocked.waiting_on > 0 {
            Change::to(Place::Blocked(blocked))
        } else {
            // Whatever it names was carried over: its outputs are at hand.
            let outputs: HashMap<&str, Option<&str>> = member
                .refs
                .iter()
                .filter_map(named)
                .map(|other| (&*other.key, other.carried.as_ref().and_then(|carried| carried.result.as_deref())))
                .collect();
            let output = |key: &str| *outputs.get(key)?;
            let filled = if outputs.is_empty() {
                Ok(None)
            } else {
                reference::fill(&body.payload, parts, budget, output).map(Some)
            };
            match filled {
                Ok(filled) => {
                    body.payload = filled.map_or(body.payload, Arc::from);
                    Change::to(blocked.freed(row, self.now))
                }
                Err(message) => Change::to(misconfigured(&blocked, &message, self.now)),
            }
        };
        let change = change.with_fact(task.id, FactKind::Submitted, None).with_wake(task.id);
        let depends_on = member.depends_on.iter().filter_map(named).map(|other| other.task.id.seq()).collect();
        self.made.runs.tasks.push(RunTask { run: run.seq(), task: row, depends_on });
        self.made.runs.edges.extend(open);
        // A new task has not been anything else before: what it is born as counts as a move.
        let ended = change.place.end().is_some();
        if let Some((scope, idempotency)) = task.key_scope().zip(task.idempotency.as_ref()) {
            let (id, owner, fingerprint) = (task.id, task.owner.clone(), idempotency.fingerprint);
            self.keys.insert(scope, KeyOwner { id, owner, fingerprint, state: change.place.state() });
        }
        self.born(body, change);
        if ended {
            self.made.runs.moved.push(row);
        }
    }

    pub(super) fn cancel_run(&mut self, command: &CancelRun) -> Outcome {
        let row = command.run.seq();
        let found = self.runs.get_mut(&row).filter(|cell| cell.run.id == command.run);
        let found = found.filter(|cell| command.reach.covers(&cell.run.tenant, cell.run.owner.as_deref()));
        let Some(cell) = found else { return Err(Rejection::RunNotFound) };
        let state = cell.run.state();
        if let Some(reason) = &cell.run.cancel_reason
            && matches!(state, RunState::Canceling | RunState::Canceled)
        {
            return Ok(Answer::RunCanceled(RunCanceled { reason: Arc::clone(reason) }));
        }
        if state.is_terminal() {
            return Err(Rejection::RunAlreadyTerminal { state });
        }
        cell.run.cancel_reason = Some(Arc::clone(&command.reason));
        self.record_run(command.run, RunState::Canceling);
        let made = self.made.runs.tasks.iter().filter(|task| task.run == row).map(|task| task.task);
        let mut members: Vec<Seq> = self.members.get(&row).into_iter().flatten().copied().chain(made).collect();
        members.sort_unstable();
        for task in members {
            let _ =
                self.on_row(task, |task, _, queue, ctx| cancel::stop(task, &command.reason, command.mode, queue, ctx));
        }
        Ok(Answer::RunCanceled(RunCanceled { reason: Arc::clone(&command.reason) }))
    }

    /// Whether the run of an ended task was asked to stop: nothing of it starts again.
    pub(super) fn is_stopping(&self, row: Seq) -> bool {
        let member = self.tasks.get(&row).and_then(|cell| cell.task.place.carry().run.as_ref());
        let run = member.and_then(|member| self.runs.get(&member.run));
        run.is_some_and(|cell| cell.run.cancel_reason.is_some())
    }

    fn record_run(&mut self, run: RunId, state: RunState) {
        let (kind, state) = state.fact();
        let task = TaskId::from_u128(run.as_u128());
        self.made.facts.push(Fact { kind, task, queue: QueueId(0), state, attempt: 0, reason: None });
    }

    /// What has to be loaded before the batch can go on. `None` when all is done; then its runs have been counted.
    pub fn ends(&mut self) -> Option<Ends> {
        if self.made.runs.moved.is_empty() {
            return None;
        }
        let mut ends = Ends::default();
        for row in &self.made.runs.moved {
            let Some(cell) = self.tasks.get(row) else { continue };
            let Some(member) = &cell.task.place.carry().run else { continue };
            if !self.runs.contains_key(&member.run) && !self.absent_runs.contains(&member.run) {
                ends.runs.insert(member.run);
            }
            if self.made.runs.followed.contains(row) {
                continue;
            }
            match cell.task.place.end() {
                Some(End::Succeeded) => ends.satisfied.insert(*row),
                Some(_) => ends.broken.insert(*row),
                None => continue,
            };
        }
        if ends == Ends::default() {
            self.count();
            return None;
        }
        Some(ends)
    }

    /// Resolves the edges of what has ended. Those of the tasks that the batch has made are known already.
    pub fn follow(&mut self, edges: &[Edge]) {
        let mut behind: HashMap<Seq, Vec<Seq>> = HashMap::new();
        for edge in edges.iter().chain(&self.made.runs.edges) {
            behind.entry(edge.upstream).or_default().push(edge.downstream);
        }
        let mut line: VecDeque<Seq> = self.made.runs.moved.iter().copied().collect();
        while let Some(row) = line.pop_front() {
            let Some(task) = self.tasks.get(&row).map(|cell| &cell.task) else { continue };
            let (Place::Finished(finished), id) = (&task.place, task.id) else { continue };
            let (end, reason) = (finished.end, finished.cancel_reason.clone());
            if !self.made.runs.followed.insert(row) {
                continue;
            }
            let Some(mut behind) = behind.remove(&row) else { continue };
            // In which order a store finds them makes no difference to what is recorded and said, nor does how often.
            behind.sort_unstable();
            behind.dedup();
            self.made.runs.resolved.push(row);
            if end == End::Succeeded {
                for next in behind {
                    self.satisfy(next);
                }
            } else {
                self.seal(row);
                let reason = (end == End::Canceled).then(|| reason.unwrap_or_else(|| "upstream_canceled".into()));
                line.extend(behind.into_iter().filter(|next| self.give_up(*next, id, reason.as_ref())));
            }
        }
        let resolved: HashSet<Seq> = self.made.runs.resolved.iter().copied().collect();
        self.made.runs.edges.retain(|edge| !resolved.contains(&edge.upstream));
    }

    fn blocked(&self, row: Seq) -> Option<(TaskId, &Blocked)> {
        match self.tasks.get(&row).map(|cell| &cell.task) {
            Some(task) => match &task.place {
                Place::Blocked(blocked) => Some((task.id, blocked)),
                _ => None,
            },
            None => None,
        }
    }

    /// One edge less to wait for. A task that ended meanwhile waits for nothing.
    fn satisfy(&mut self, row: Seq) {
        let Some((id, blocked)) = self.blocked(row) else { return };
        let mut blocked = blocked.clone();
        blocked.waiting_on = blocked.waiting_on.saturating_sub(1);
        let names_outputs = blocked.carry.run.as_ref().is_some_and(|member| !member.refs.is_empty());
        if blocked.waiting_on > 0 || names_outputs {
            if blocked.waiting_on == 0 {
                self.made.runs.referring.push(row);
            }
            self.apply(row, Change::to(Place::Blocked(blocked)));
        } else {
            self.free(row, id, &blocked);
        }
    }

    fn free(&mut self, row: Seq, id: TaskId, blocked: &Blocked) {
        let change = Change::to(blocked.freed(row, self.now)).with_fact(id, FactKind::Ready, None).with_wake(id);
        self.apply(row, change);
    }

    /// A task that this one depends on did not succeed: it never will be ready. With a reason it was canceled.
    fn give_up(&mut self, row: Seq, cause: TaskId, reason: Option<&Arc<str>>) -> bool {
        let Some((id, blocked)) = self.blocked(row) else { return false };
        let change = if let Some(reason) = reason {
            cancel::end_blocked(id, blocked, reason, self.now)
        } else {
            let message = format!("it depends on task {cause}, which did not succeed");
            let failure = Failure { retryable: Some(false), ..Failure::new("UPSTREAM_FAILED", &message, None, None) };
            let finished = Finished { failure: Some(failure), ..blocked.ended(End::Skipped, self.now) };
            Change::to(Place::Finished(finished)).with_fact(id, FactKind::Skipped, None)
        };
        self.apply(row, change);
        true
    }

    fn seal(&mut self, row: Seq) {
        let Some(Place::Finished(finished)) = self.tasks.get(&row).map(|cell| &cell.task.place) else { return };
        let mut finished = finished.clone();
        if let Some(member) = &mut finished.carry.run {
            member.sealed = true;
        }
        self.apply(row, Change::to(Place::Finished(finished)));
    }

    /// Tasks that wait for nothing any more but for the outputs that they name. An end of this very batch has its output
    /// at hand.
    pub fn referring(&self) -> Vec<Referring> {
        let referring = self.made.runs.referring.iter().filter_map(|row| {
            let (_, blocked) = self.blocked(*row)?;
            let named = blocked.carry.run.iter().flat_map(|member| member.refs.values());
            let elsewhere = named.filter(|row| !self.tasks.contains_key(row)).copied();
            Some(Referring { task: *row, outputs: elsewhere.collect() })
        });
        referring.collect()
    }

    /// How many of these tasks are filled next, from the first on, and which outputs are read from the store for them, by
    /// how long each is: not more at a time than fits. A task whose own outputs do not fit fails when it is filled.
    pub fn next_to_fill(&mut self, referring: &[Referring], bytes: &HashMap<Seq, usize>) -> (usize, BTreeSet<Seq>) {
        let (mut outputs, mut left) = (BTreeSet::new(), limits::NAMED_BYTES);
        for (count, one) in referring.iter().enumerate() {
            let size = |row: &Seq| bytes.get(row).copied().unwrap_or(0);
            let own: BTreeSet<Seq> = one.outputs.iter().copied().collect();
            if own.iter().map(size).sum::<usize>() > limits::NAMED_BYTES {
                self.made.runs.overreaching.insert(one.task);
                continue;
            }
            match left.checked_sub(own.difference(&outputs).map(size).sum()) {
                Some(rest) => left = rest,
                None => return (count, outputs),
            }
            outputs.extend(own);
        }
        (referring.len(), outputs)
    }

    /// Fills in all outputs that were asked for by [`World::referring`]. What cannot be filled in fails.
    pub fn fill(&mut self, bodies: &HashMap<Seq, Arc<Body>>, outputs: &HashMap<Seq, Option<Arc<str>>>) {
        let rows = std::mem::take(&mut self.made.runs.referring);
        self.fill_these(&rows, bodies, outputs);
    }

    /// The same for some of those that asked.
    pub fn fill_these(
        &mut self,
        rows: &[Seq],
        bodies: &HashMap<Seq, Arc<Body>>,
        outputs: &HashMap<Seq, Option<Arc<str>>>,
    ) {
        let now: HashSet<Seq> = rows.iter().copied().collect();
        self.made.runs.referring.retain(|row| !now.contains(row));
        let mut budgets = std::mem::take(&mut self.made.runs.budgets);
        let mut parts = Parts::default();
        let mut filled = Vec::with_capacity(rows.len());
        for row in rows {
            filled.extend(self.filled(*row, bodies, outputs, &mut parts, &mut budgets).map(|filled| (*row, filled)));
        }
        self.made.runs.budgets = budgets;
        for (row, filled) in filled {
            let Some((id, blocked)) = self.blocked(row) else { continue };
            match filled {
                Ok(filled) => {
                    let mut blocked = blocked.clone();
                    blocked.carry.run.iter_mut().for_each(|member| member.refs.clear());
                    self.made.runs.payloads.push((row, filled.into()));
                    self.free(row, id, &blocked);
                }
                Err(message) => {
                    let change = Change::to(misconfigured(blocked, &message, self.now));
                    self.apply(row, change.with_fact(id, FactKind::Failed, None));
                }
            }
        }
    }

    /// The payload of a task with the outputs that it names. The error says what is wrong with it, for people.
    fn filled<'o>(
        &'o self,
        row: Seq,
        bodies: &HashMap<Seq, Arc<Body>>,
        outputs: &'o HashMap<Seq, Option<Arc<str>>>,
        parts: &mut Parts<'o>,
        budgets: &mut HashMap<Seq, Budget>,
    ) -> Option<Result<String, String>> {
        let (_, blocked) = self.blocked(row)?;
        if self.made.runs.overreaching.contains(&row) {
            let limit = limits::NAMED_BYTES >> 20;
            return Some(Err(format!(
                "the outputs it refers to have more than {limit} MiB together: pass on the location of the data, not the data"
            )));
        }
        let own = self.tasks.get(&row).and_then(|cell| cell.task.body.as_ref());
        let body = bodies.get(&row).or(own)?;
        let member = blocked.carry.run.as_ref()?;
        let output = |key: &str| {
            let row = member.refs.get(key)?;
            match self.tasks.get(row).map(|cell| &cell.task.place) {
                Some(Place::Finished(finished)) => finished.result.as_deref(),
                _ => outputs.get(row)?.as_deref(),
            }
        };
        let budget = budgets.entry(member.run).or_default();
        Some(reference::fill(&body.payload, parts, budget, output))
    }

    /// Counts what moved in the rows of the runs. One whose last task has ended has ended too.
    fn count(&mut self) {
        let moved: BTreeSet<Seq> = std::mem::take(&mut self.made.runs.moved).into_iter().collect();
        let mut touched = BTreeSet::new();
        for row in moved {
            let Some(cell) = self.tasks.get(&row) else { continue };
            let Some(member) = &cell.task.place.carry().run else { continue };
            let Some(run) = self.runs.get_mut(&member.run) else { continue };
            let now = cell.task.place.end();
            let before = self.made.runs.counted.insert(row, now).unwrap_or_else(|| cell.end_before());
            if before != now {
                run.run.counts.shift(before, now);
                touched.insert(member.run);
            }
        }
        for row in touched {
            let Some(cell) = self.runs.get_mut(&row) else { continue };
            if cell.run.counts.open == 0 && cell.run.finished_at.is_none() {
                cell.run.finished_at = Some(self.now);
                let (id, state) = (cell.run.id, cell.run.state());
                self.record_run(id, state);
            }
        }
    }
}

/// A task whose payload asks for what is not there. Trying again would not help.
fn misconfigured(blocked: &Blocked, message: &str, now: crate::time::Timestamp) -> Place {
    Place::Finished(Finished {
        failure: Some(Failure::new("CONFIGURATION", message, None, Some(false))),
        reason: Some(FailReason::NonRetryable),
        ..blocked.ended(End::Failed, now)
    })
}
