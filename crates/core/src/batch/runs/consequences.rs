//! What the ends of tasks lead to in their runs.
//!
//! It is decided in the batch that ends them, after its commands. Only then is it known which edges have to be loaded: a
//! round loads them and the tasks that they lead to, resolves them, and fills the outputs that tasks name into the
//! payloads of those that became ready. A payload that cannot be filled in fails its task, which is one more end, so
//! there are rounds until no end is left. The cost is one step per edge, and nothing for tasks without a run.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use super::RunLoad;
use crate::attempt::Failure;
use crate::batch::World;
use crate::batch::load::{Load, QueueLoad, TaskLoad};
use crate::command::{Change, cancel};
use crate::event::FactKind;
use crate::id::{Seq, TaskId};
use crate::limits;
use crate::mutant;
use crate::run::Edge;
use crate::run::reference::{self, Budget, Parts};
use crate::task::{Blocked, Body, End, FailReason, Finished, Place};
use crate::time::Timestamp;

/// How far the consequences are drawn.
#[derive(Debug, Default)]
pub(in crate::batch) struct Consequences {
    /// Tasks of runs that have ended, or came back.
    pub moved: Vec<Seq>,
    /// Those whose edges were followed already.
    followed: HashSet<Seq>,
    /// Tasks that wait for nothing any longer but for the outputs that they name.
    referring: Vec<Seq>,
    /// Those of the moved ones that their runs have counted, and as what.
    counted: HashMap<Seq, Option<End>>,
    /// Those among the referring whose outputs are too large to be read.
    overreaching: BTreeSet<Seq>,
    /// What is left for each run to fill.
    budgets: HashMap<Seq, Budget>,
    step: Step,
    found: Found,
}

/// What was asked for last.
#[derive(Debug, Default)]
enum Step {
    #[default]
    Begin,
    /// These runs, and edges.
    Edges(BTreeSet<Seq>),
    /// The tasks that the edges lead to.
    Tasks,
    /// The queues of these tasks.
    Queues,
    /// How long the outputs are that these tasks name.
    Sizes(VecDeque<Referring>),
    /// The outputs that the first tasks name. The others come later.
    Outputs(Vec<Seq>, VecDeque<Referring>),
}

/// What the store answered in this round.
#[derive(Debug, Default)]
struct Found {
    edges: Vec<Edge>,
    sizes: HashMap<Seq, usize>,
    results: HashMap<Seq, Option<Arc<str>>>,
    bodies: HashMap<Seq, Arc<Body>>,
}

/// A task that asks for outputs of others before it can be ready.
#[derive(Debug)]
struct Referring {
    task: Seq,
    /// The outputs of these are needed, as far as the batch does not have them.
    outputs: BTreeSet<Seq>,
}

impl World {
    pub fn add_edge(&mut self, edge: Edge) {
        self.runs.consequences.found.edges.push(edge);
    }

    pub fn add_result_size(&mut self, row: Seq, bytes: usize) {
        self.runs.consequences.found.sizes.insert(row, bytes);
    }

    pub fn add_result(&mut self, row: Seq, result: Option<Arc<str>>) {
        self.runs.consequences.found.results.insert(row, result);
    }

    /// A body with its payload.
    pub fn add_whole_body(&mut self, body: Arc<Body>) {
        self.runs.consequences.found.bodies.insert(body.seq(), body);
    }

    /// What to load next. `None` when no end is left whose consequences are not drawn; then the runs have counted all.
    pub(in crate::batch) fn next_consequence(&mut self) -> Option<Load<'static>> {
        let (load, next) = match std::mem::take(&mut self.runs.consequences.step) {
            Step::Begin => {
                let runs = self.ends()?;
                let locked = runs.rows.clone();
                (Load { runs, ..Load::default() }, Step::Edges(locked))
            }
            Step::Edges(asked) => {
                let missing = asked.into_iter().filter(|run| !self.runs.cells.contains_key(run));
                self.runs.absent.extend(missing.collect::<Vec<_>>());
                let next = self.runs.consequences.found.edges.iter().map(|edge| edge.downstream);
                let blocked = next.filter(|row| !self.has_task(*row)).collect();
                (Load { tasks: TaskLoad { blocked, ..TaskLoad::default() }, ..Load::default() }, Step::Tasks)
            }
            Step::Tasks => {
                let queues = QueueLoad { standing: self.unknown_queues(), ..QueueLoad::default() };
                (Load { queues, ..Load::default() }, Step::Queues)
            }
            Step::Queues => {
                let edges = std::mem::take(&mut self.runs.consequences.found.edges);
                self.follow(&edges);
                let referring = self.referring();
                let result_sizes = referring.iter().flat_map(|one| &one.outputs).copied().collect();
                (
                    Load { runs: RunLoad { result_sizes, ..RunLoad::default() }, ..Load::default() },
                    Step::Sizes(referring),
                )
            }
            Step::Sizes(referring) => self.ask_outputs(referring),
            Step::Outputs(tasks, later) => {
                self.fill(&tasks);
                self.ask_outputs(later)
            }
        };
        self.runs.consequences.step = next;
        Some(load)
    }

    /// Asks for what the next tasks need to be filled in.
    fn ask_outputs(&mut self, mut referring: VecDeque<Referring>) -> (Load<'static>, Step) {
        if referring.is_empty() {
            self.runs.consequences.found = Found::default();
            return (Load::default(), Step::Begin);
        }
        let (count, results) = self.next_to_fill(referring.make_contiguous());
        let bodies: Vec<Seq> = referring.drain(..count.max(1)).map(|one| one.task).collect();
        let runs = RunLoad { results, bodies: bodies.clone(), ..RunLoad::default() };
        (Load { runs, ..Load::default() }, Step::Outputs(bodies, referring))
    }

    /// The runs and edges of what has ended. `None` when all is done; then the runs have counted it.
    fn ends(&mut self) -> Option<RunLoad> {
        if self.runs.consequences.moved.is_empty() {
            return None;
        }
        let mut ends = RunLoad::default();
        for row in &self.runs.consequences.moved {
            let Some(cell) = self.tasks.get(row) else { continue };
            let Some(member) = &cell.task.place.carry().run else { continue };
            if !self.runs.cells.contains_key(&member.run) && !self.runs.absent.contains(&member.run) {
                ends.rows.insert(member.run);
            }
            if self.runs.consequences.followed.contains(row) {
                continue;
            }
            match cell.task.place.end() {
                Some(End::Succeeded) => ends.satisfied.insert(*row),
                Some(_) => ends.broken.insert(*row),
                None => continue,
            };
        }
        if ends == RunLoad::default() {
            self.count();
            return None;
        }
        Some(ends)
    }

    /// Resolves the edges of what has ended. Those of the tasks that the batch has made are known already.
    fn follow(&mut self, edges: &[Edge]) {
        let mut behind: HashMap<Seq, Vec<Seq>> = HashMap::new();
        for edge in edges.iter().chain(&self.runs.made.edges) {
            behind.entry(edge.upstream).or_default().push(edge.downstream);
        }
        let mut line: VecDeque<Seq> = self.runs.consequences.moved.iter().copied().collect();
        while let Some(row) = line.pop_front() {
            let Some(task) = self.tasks.get(&row).map(|cell| &cell.task) else { continue };
            let (Place::Finished(finished), id) = (&task.place, task.id) else { continue };
            let (end, reason) = (finished.end, finished.cancel_reason.clone());
            if !self.runs.consequences.followed.insert(row) {
                continue;
            }
            let Some(mut behind) = behind.remove(&row) else { continue };
            // In which order a store finds them makes no difference to what is recorded and said, nor does how often.
            behind.sort_unstable();
            behind.dedup();
            self.runs.made.resolved.push(row);
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
        let resolved: HashSet<Seq> = self.runs.made.resolved.iter().copied().collect();
        self.runs.made.edges.retain(|edge| !resolved.contains(&edge.upstream));
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
        blocked.waiting_on = blocked.waiting_on.saturating_sub(if mutant!("run-edge-resolved-twice") { 2 } else { 1 });
        let names_outputs = blocked.carry.run.as_ref().is_some_and(|member| !member.refs.is_empty());
        if blocked.waiting_on > 0 || names_outputs {
            if blocked.waiting_on == 0 {
                self.runs.consequences.referring.push(row);
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

    /// Tasks that wait for nothing any longer but for the outputs that they name. An end of this very batch has its output
    /// at hand.
    fn referring(&self) -> VecDeque<Referring> {
        let referring = self.runs.consequences.referring.iter().filter_map(|row| {
            let (_, blocked) = self.blocked(*row)?;
            let named = blocked.carry.run.iter().flat_map(|member| member.refs.values());
            let outputs = named.filter(|row| !self.has_task(**row)).copied().collect();
            Some(Referring { task: *row, outputs })
        });
        referring.collect()
    }

    /// How many of these tasks are filled in next, from the first on, and which outputs are loaded for them: not more at
    /// a time than fits into memory. A task whose own outputs do not fit fails when it is filled in.
    fn next_to_fill(&mut self, referring: &[Referring]) -> (usize, BTreeSet<Seq>) {
        let Consequences { found, overreaching, .. } = &mut self.runs.consequences;
        let size = |row: &Seq| found.sizes.get(row).copied().unwrap_or(0);
        let (mut outputs, mut left) = (BTreeSet::new(), limits::NAMED_BYTES);
        for (count, one) in referring.iter().enumerate() {
            if one.outputs.iter().map(size).sum::<usize>() > limits::NAMED_BYTES {
                overreaching.insert(one.task);
                continue;
            }
            match left.checked_sub(one.outputs.difference(&outputs).map(size).sum()) {
                Some(rest) => left = rest,
                None => return (count, outputs),
            }
            outputs.extend(&one.outputs);
        }
        (referring.len(), outputs)
    }

    /// Fills in the outputs that these tasks name. What cannot be filled in fails.
    fn fill(&mut self, rows: &[Seq]) {
        let found = &mut self.runs.consequences.found;
        let (bodies, outputs) = (std::mem::take(&mut found.bodies), std::mem::take(&mut found.results));
        let now: HashSet<Seq> = rows.iter().copied().collect();
        self.runs.consequences.referring.retain(|row| !now.contains(row));
        let mut budgets = std::mem::take(&mut self.runs.consequences.budgets);
        let mut parts = Parts::default();
        let mut filled = Vec::with_capacity(rows.len());
        for row in rows {
            filled.extend(self.filled(*row, &bodies, &outputs, &mut parts, &mut budgets).map(|filled| (*row, filled)));
        }
        self.runs.consequences.budgets = budgets;
        for (row, filled) in filled {
            let Some((id, blocked)) = self.blocked(row) else { continue };
            match filled {
                Ok(filled) => {
                    let mut blocked = blocked.clone();
                    blocked.carry.run.iter_mut().for_each(|member| member.refs.clear());
                    self.runs.made.payloads.push((row, filled.into()));
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
        if self.runs.consequences.overreaching.contains(&row) {
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
        let moved: BTreeSet<Seq> = std::mem::take(&mut self.runs.consequences.moved).into_iter().collect();
        let mut touched = BTreeSet::new();
        for row in moved {
            let Some(cell) = self.tasks.get(&row) else { continue };
            let Some(member) = &cell.task.place.carry().run else { continue };
            let Some(run) = self.runs.cells.get_mut(&member.run) else { continue };
            let now = cell.task.place.end();
            let before = self.runs.consequences.counted.insert(row, now).unwrap_or_else(|| cell.end_before());
            if before != now {
                run.run.counts.shift(before, now);
                touched.insert(member.run);
            }
        }
        for row in touched {
            let Some(cell) = self.runs.cells.get_mut(&row) else { continue };
            if cell.run.counts.open == 0 && cell.run.finished_at.is_none() {
                cell.run.finished_at = Some(self.now);
                let (id, state) = (cell.run.id, cell.run.state());
                self.record_run(id, state);
            }
        }
    }
}

/// A task whose payload asks for what is not there. Trying again would not help.
pub(super) fn misconfigured(blocked: &Blocked, message: &str, now: Timestamp) -> Place {
    Place::Finished(Finished {
        failure: Some(Failure::new("CONFIGURATION", message, None, Some(false))),
        reason: Some(FailReason::NonRetryable),
        ..blocked.ended(End::Failed, now)
    })
}
