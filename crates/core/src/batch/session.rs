//! One batch, from its commands to its answers.
//!
//! A store drives it with a short loop: while [`Session::next_load`] asks for something, load it; then write what
//! [`Session::write`] says and commit; then [`Session::done`] has the answers. Which rows, queues, attempts, runs and
//! edges are needed, and in which order, is decided here, once for all stores.

use std::collections::BTreeSet;

use super::artifacts;
use super::done::Unanswered;
use super::load::{self, ClaimLoad, Load, Overview, QueueLoad, TaskLoad, WorkerLoad, rows};
use super::plan::ClaimPlan;
use super::runs::RunLoad;
use super::{Done, Outcome, Saved, World, Write, needs_history};
use crate::command::callback::Call;
use crate::command::claim::Claim;
use crate::command::hello::Hello;
use crate::command::{Command, Numbers};
use crate::id::Seq;
use crate::lease::Grace;
use crate::queue::{Queue, QueueId};
use crate::task::Place;
use crate::time::Timestamp;

/// Commands that are committed together.
#[derive(Debug)]
pub struct Session<'a> {
    commands: &'a [Command],
    retrying: bool,
    view: Overview<'a>,
    world: World,
    stage: Stage,
    /// What was asked for last.
    load: Load<'a>,
    outcomes: Vec<Outcome>,
    unanswered: Unanswered,
}

/// What is loaded next.
#[derive(Debug)]
enum Stage {
    /// What the commands name.
    Named,
    /// What the loaded tasks need.
    Details,
    /// The queues of the loaded tasks.
    Queues,
    /// The limits of the queues that are granted from or changed.
    Limits,
    /// Nothing: the claims are planned.
    Claims,
    /// Ready tasks for the claims.
    Ready(ClaimPlan),
    /// What the ends of tasks lead to. By now the commands are decided.
    Consequences,
}

impl<'a> Session<'a> {
    /// `retrying` says that an earlier try of the same batch may have been committed: its results are looked for.
    pub fn new(commands: &'a [Command], numbers: Numbers, retrying: bool) -> Self {
        let (load, view) = load::first(commands, retrying);
        let mut world = World::new(Timestamp::MIN, Grace::NONE, numbers);
        world.expect_tasks(load.tasks.rows.len() + view.claims.iter().map(|(_, claim)| claim.max_jobs).sum::<usize>());
        let (outcomes, unanswered) = (Vec::new(), Unanswered::default());
        Self { commands, retrying, view, world, stage: Stage::Named, load, outcomes, unanswered }
    }

    /// What to load next, and where to put it. `None` when everything is decided.
    pub fn next_load(&mut self) -> Option<(&Load<'a>, &mut World)> {
        loop {
            self.load = self.advance()?;
            if self.load != Load::default() {
                return Some((&self.load, &mut self.world));
            }
        }
    }

    /// The rows that the batch has loaded, made and changed.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// What to write, once there is nothing left to load.
    pub fn write(&mut self) -> Write {
        let (write, unanswered) = self.world.write(&self.outcomes);
        self.unanswered = unanswered;
        write
    }

    /// The answers, once everything is committed.
    pub fn done(self, write: &Write, saved: Saved) -> Done {
        self.world.done(self.outcomes, self.commands, write, saved, self.unanswered)
    }

    fn advance(&mut self) -> Option<Load<'a>> {
        let (load, next) = match &mut self.stage {
            Stage::Named => (std::mem::take(&mut self.load), Stage::Details),
            Stage::Details => (self.details(), Stage::Queues),
            Stage::Queues => {
                self.world.resolve_keys();
                (Load { queues: self.standing(), ..Load::default() }, Stage::Limits)
            }
            Stage::Limits => {
                let deleted = self.view.deleted.iter().filter_map(|name| self.world.names.get(*name).copied());
                let queues = QueueLoad { counted: deleted.collect(), limits: self.limits(), ..QueueLoad::default() };
                (Load { queues, ..Load::default() }, Stage::Claims)
            }
            Stage::Claims => (Load::default(), Stage::Ready(ClaimPlan::new(self.commands, &self.view, &self.world))),
            Stage::Ready(plan) => {
                let ready = plan.next_round(&self.world);
                if !ready.is_empty() {
                    let claims = ClaimLoad { ready, ..ClaimLoad::default() };
                    return Some(Load { claims, ..Load::default() });
                }
                self.outcomes = self.world.decide(self.commands, self.retrying);
                (Load::default(), Stage::Consequences)
            }
            Stage::Consequences => return self.world.next_consequence(),
        };
        self.stage = next;
        Some(load)
    }

    /// What the loaded tasks, and those that have the keys, need to be judged.
    fn details(&self) -> Load<'a> {
        let (attempts, named_attempts) = self.histories();
        let tasks = TaskLoad {
            states: self.world.unknown_key_holders(),
            bodies: self.view.bodies.iter().copied().filter(|row| self.world.has_task(*row)).collect(),
            attempts,
            named_attempts,
            ..TaskLoad::default()
        };
        let repeatable = |claim: &(usize, &Claim)| self.retrying || claim.1.claimer.name().is_some();
        let repeats = self.view.claims.iter().copied().filter(repeatable).collect();
        // A process that is known has voided what there was.
        let is_new = |hello: &&Hello| self.world.incarnations.get(&hello.worker) != Some(&hello.incarnation);
        let held = self.view.hellos.iter().copied().filter(is_new).collect();
        Load {
            tasks,
            claims: ClaimLoad { repeats, ..ClaimLoad::default() },
            workers: WorkerLoad { held, ..WorkerLoad::default() },
            redrives: self.view.redrives.clone(),
            runs: RunLoad { rows: self.runs(), members: self.view.cancel_runs.clone(), ..RunLoad::default() },
            artifacts: artifacts::names(self.commands),
            ..Load::default()
        }
    }

    /// The earlier attempts that the batch has to be judged with: all of a task, or one.
    fn histories(&self) -> (BTreeSet<Seq>, BTreeSet<(Seq, u32)>) {
        let (mut whole, mut named) = (BTreeSet::new(), BTreeSet::new());
        for command in self.commands {
            let Some(seq) = command.task().map(|id| id.seq()) else { continue };
            let Some(cell) = self.world.tasks.get(&seq) else { continue };
            let place = &cell.task.place;
            // A claim of the same batch may grant a task that waits: its last attempt is an earlier one then.
            let waits = matches!(place, Place::Scheduled(_) | Place::Ready(_)) && place.last_attempt().is_some();
            let may_be_granted = waits && is_of_holder(command) && self.view.grants();
            if !(may_be_granted || needs_history(command, place)) {
                continue;
            }
            match command {
                Command::Callback(callback) => {
                    named.insert((seq, callback.attempt));
                }
                _ => {
                    whole.insert(seq);
                }
            }
        }
        named.retain(|(seq, _)| !whole.contains(seq));
        (whole, named)
    }

    /// Runs that the batch names, and those of ended tasks that it may change: whether it can depends on the run too. A
    /// run is not locked for what changes nothing, such as the answer to a push or a report that was answered before:
    /// needless locks are in the way of others.
    fn runs(&self) -> BTreeSet<Seq> {
        let mut runs: BTreeSet<Seq> = self.view.cancel_runs.union(&self.view.made_runs).copied().collect();
        // Those of tasks to put back too, which the batch itself may end before.
        let again = self.view.again.iter().filter_map(|row| self.world.tasks.get(row));
        runs.extend(again.filter_map(|cell| Some(cell.task.place.carry().run.as_ref()?.run)));
        for command in self.commands {
            let reports = match command {
                Command::Report(_) => true,
                Command::Callback(callback) => matches!(callback.call, Call::Completed(_)),
                _ => false,
            };
            if !reports {
                continue;
            }
            for cell in rows(command).filter_map(|row| self.world.tasks.get(&row)) {
                let Place::Finished(finished) = &cell.task.place else { continue };
                if finished.carry.last.as_ref().is_some_and(|last| last.receipt.is_none()) {
                    runs.extend(finished.carry.run.as_ref().map(|member| member.run));
                }
            }
        }
        runs
    }

    fn standing(&self) -> QueueLoad<'a> {
        let standing = self.world.unknown_queues();
        if standing.is_empty() {
            return QueueLoad::default();
        }
        // A grant respects the limits in effect now, and what is put back waits under the fairness key in effect now.
        let strict =
            |command: &Command| matches!(command, Command::ClaimTask(_) | Command::Retry(_) | Command::Redrive(_));
        let strict = self.queues_of(strict);
        let (fresh, standing) = standing.into_iter().partition(|id| strict.contains(id));
        QueueLoad { standing, fresh, ..QueueLoad::default() }
    }

    fn limits(&self) -> BTreeSet<QueueId> {
        let by_id = if self.view.claims_tasks {
            self.queues_of(|command| matches!(command, Command::ClaimTask(_)))
        } else {
            BTreeSet::new()
        };
        let depends = |queue: &Queue| {
            let granted_from = self.view.claimed.contains(&queue.name) || by_id.contains(&queue.id);
            self.view.changed.contains(&queue.name) || (granted_from && queue.is_limited())
        };
        self.world
            .queues
            .values()
            .map(|cell| &cell.queue)
            .filter(|queue| depends(queue))
            .map(|queue| queue.id)
            .collect()
    }

    /// The queues of the tasks that these commands name.
    fn queues_of(&self, wanted: impl Fn(&Command) -> bool) -> BTreeSet<QueueId> {
        let rows = self.commands.iter().filter(|command| wanted(command)).flat_map(rows);
        rows.filter_map(|row| Some(self.world.tasks.get(&row)?.task.place.queue())).collect()
    }
}

/// Whether the holder of a task sends this command.
fn is_of_holder(command: &Command) -> bool {
    matches!(command, Command::Report(_) | Command::Heartbeat(_) | Command::Callback(_))
}
