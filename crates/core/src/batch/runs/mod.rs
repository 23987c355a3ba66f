//! Runs inside a batch: a part of it with its own loads, cells, decisions and writes.
//!
//! [`RunLoad`] is what a batch needs of runs, [`Runs`] is what was loaded and what came of it, and [`RunWrites`] are the
//! rows that changed. Runs are made and canceled by commands; the ends of their tasks lead them on, see [`consequences`].

mod consequences;
mod submit;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

pub(super) use self::consequences::Consequences;
use super::{Cell, IdempotencyScope, Original, Outcome, World};
use crate::command::run::{CancelRun, RunCanceled};
use crate::command::{Answer, Rejection, cancel};
use crate::event::Fact;
use crate::id::{RunId, Seq, TaskId};
use crate::queue::QueueId;
use crate::run::{Edge, Run, RunState, RunTask};
use crate::task::{Carry, End, Finished, Place};

/// What a batch needs of runs.
#[derive(Debug, Default, PartialEq)]
pub struct RunLoad {
    /// The runs of these rows.
    pub rows: BTreeSet<Seq>,
    /// Which runs have these keys. Not locked.
    pub keys: Vec<IdempotencyScope>,
    /// A hint: these runs are canceled, and the next load asks for their `members`. A store that takes locks can lock
    /// those that do not depend on others now, together with the other tasks and before the runs.
    pub cancel: BTreeSet<Seq>,
    /// All tasks of these runs that have not ended.
    pub members: BTreeSet<Seq>,
    /// The edges that lead on from these tasks. Not locked: their runs are.
    pub satisfied: BTreeSet<Seq>,
    /// The edges that lead on from these, and from all that can be reached by them.
    pub broken: BTreeSet<Seq>,
    /// How long the results of these tasks are, in bytes.
    pub result_sizes: BTreeSet<Seq>,
    pub results: BTreeSet<Seq>,
    /// Bodies with their payloads.
    pub bodies: Vec<Seq>,
}

/// A run in a batch.
#[derive(Debug)]
struct RunCell {
    run: Run,
    /// As it was loaded; `None` if the batch has made it.
    original: Option<Box<Run>>,
}

/// A run that has a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownRun {
    pub id: RunId,
    pub owner: Option<Arc<str>>,
    pub fingerprint: [u8; 32],
}

/// The runs of a batch.
#[derive(Debug, Default)]
pub(super) struct Runs {
    cells: HashMap<Seq, RunCell>,
    keys: HashMap<IdempotencyScope, KnownRun>,
    /// Runs that were looked for and do not exist: something damaged them, and their tasks go on alone.
    absent: HashSet<Seq>,
    /// Tasks of the canceled runs that have not ended.
    members: HashMap<Seq, Vec<Seq>>,
    /// Rows that the decisions have made. The runs themselves are compared at the end.
    made: RunWrites,
    pub consequences: Consequences,
}

/// What a batch has changed of runs.
#[derive(Debug, Default, PartialEq)]
pub struct RunWrites {
    pub new: Vec<Run>,
    /// Runs whose counts, end or cancel changed.
    pub changed: Vec<Run>,
    pub tasks: Vec<RunTask>,
    pub edges: Vec<Edge>,
    /// Tasks whose edges to others have resolved.
    pub resolved: Vec<Seq>,
    /// Payloads that were filled in.
    pub payloads: Vec<(Seq, Arc<str>)>,
}

impl Runs {
    /// Ends the decisions. What has changed moves into the writes.
    pub fn writes(&mut self) -> RunWrites {
        let mut writes = std::mem::take(&mut self.made);
        for RunCell { run, original } in std::mem::take(&mut self.cells).into_values() {
            match original {
                None => writes.new.push(run),
                Some(original) if *original != run => writes.changed.push(run),
                Some(_) => {}
            }
        }
        writes.changed.sort_unstable_by_key(|run| run.id.seq());
        writes
    }
}

/// Whether nothing changes this end any more.
pub(super) fn is_sealed(place: &Place, runs: &Runs) -> bool {
    let Place::Finished(Finished { carry: Carry { run: Some(member), .. }, .. }) = place else { return false };
    // A run that is not loaded had an open task when the batch began: this one.
    let ended = |cell: &RunCell| cell.original.as_ref().is_some_and(|run| run.state().is_terminal());
    member.sealed || runs.cells.get(&member.run).is_some_and(ended)
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
        let loaded = |run: Run| RunCell { original: Some(Box::new(run.clone())), run };
        self.runs.cells.entry(run.id.seq()).or_insert_with(|| loaded(run));
    }

    pub fn add_run_key(&mut self, scope: IdempotencyScope, run: KnownRun) {
        self.runs.keys.insert(scope, run);
    }

    /// A task of a run that has not ended.
    pub fn add_member(&mut self, run: Seq, task: Seq) {
        self.runs.members.entry(run).or_default().push(task);
    }

    pub(super) fn cancel_run(&mut self, command: &CancelRun) -> Outcome {
        let row = command.run.seq();
        let found = self.runs.cells.get_mut(&row).filter(|cell| cell.run.id == command.run);
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
        let made = self.runs.made.tasks.iter().filter(|task| task.run == row).map(|task| task.task);
        let mut members: Vec<Seq> = self.runs.members.get(&row).into_iter().flatten().copied().chain(made).collect();
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
        let run = member.and_then(|member| self.runs.cells.get(&member.run));
        run.is_some_and(|cell| cell.run.cancel_reason.is_some())
    }

    fn record_run(&mut self, run: RunId, state: RunState) {
        let (kind, state) = state.fact();
        let task = TaskId::from_u128(run.as_u128());
        self.made.facts.push(Fact { kind, task, queue: QueueId(0), state, attempt: 0, reason: None });
    }
}
