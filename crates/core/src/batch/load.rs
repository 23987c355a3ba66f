//! What a batch asks its store to load.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::IdempotencyScope;
use super::runs::RunLoad;
use crate::command::claim::Claim;
use crate::command::hello::Hello;
use crate::command::{Command, Kind};
use crate::dag::data::ArtifactName;
use crate::id::{Seq, WorkerId};
use crate::queue::QueueId;

/// What to load next, and to lock until the batch is committed, except where a part says otherwise.
///
/// The parts do not depend on each other: a store may ask for all of them at once. It answers with the `add_…` methods
/// of [`World`](super::World), and may answer more than it was asked for.
#[derive(Debug, Default, PartialEq)]
pub struct Load<'a> {
    /// The first load of a batch: the store's clock and marks of life are read as well.
    pub begin: bool,
    pub tasks: TaskLoad,
    pub queues: QueueLoad<'a>,
    /// Which tasks have these idempotency keys. Not locked.
    pub keys: Vec<IdempotencyScope>,
    pub claims: ClaimLoad<'a>,
    pub workers: WorkerLoad<'a>,
    /// Steps of one redrive happen one at a time.
    pub redrives: Vec<u128>,
    pub runs: RunLoad,
    /// Artifacts by their names. Not locked: a name that two batches give at once is refused to one of them by the store.
    pub artifacts: BTreeSet<ArtifactName>,
}

#[derive(Debug, Default, PartialEq)]
pub struct TaskLoad {
    /// The tasks of these rows, wherever they are; locked in their order.
    pub rows: BTreeSet<Seq>,
    /// Those among the rows that only reports name: if they are held, they will most likely not be held any longer. A
    /// store may remove the held row at once and answer with [`add_taken`](super::World::add_taken).
    pub reported: BTreeSet<Seq>,
    /// Those among the rows that only timers name, which have found them by a scan: a task that has moved on since does
    /// not concern them.
    pub scanned: BTreeSet<Seq>,
    /// Tasks that may depend on others: only those that still do.
    pub blocked: BTreeSet<Seq>,
    /// The states of these tasks. Not locked.
    pub states: BTreeSet<Seq>,
    /// Bodies of loaded tasks, without their payloads.
    pub bodies: Vec<Seq>,
    /// All earlier attempts of these tasks.
    pub attempts: BTreeSet<Seq>,
    /// One earlier attempt each: the token of a callback names it, and the others can be many and large.
    pub named_attempts: BTreeSet<(Seq, u32)>,
}

#[derive(Debug, Default, PartialEq)]
pub struct QueueLoad<'a> {
    /// Queues that must exist, each with the tenant that will own it if it does not exist: that of the first command to
    /// name it.
    pub make: BTreeMap<&'a Arc<str>, Option<&'a str>>,
    /// Queues to load if they exist.
    pub named: BTreeSet<&'a Arc<str>>,
    /// Queues of loaded tasks. Their settings may be slightly out of date.
    pub standing: BTreeSet<QueueId>,
    /// Queues of loaded tasks that may be granted, or wait again: these must be read in this transaction.
    pub fresh: BTreeSet<QueueId>,
    /// Loaded queues whose limits the batch depends on or changes: locked, read again, and their open attempts counted.
    pub limits: BTreeSet<QueueId>,
    /// Loaded queues that the batch may delete: locked so that nobody else can add a task to them until the batch ends,
    /// and all their tasks counted.
    pub counted: BTreeSet<QueueId>,
}

#[derive(Debug, Default, PartialEq)]
pub struct ClaimLoad<'a> {
    /// A hint: the queues that claims ask first, and how many tasks they want of each. A store may take the ready rows
    /// before they are asked for.
    pub likely: BTreeMap<&'a Arc<str>, usize>,
    /// Leases that these claims, by their place in the batch, may have been granted before: by the claim id, or else by
    /// the attempt ids that the claim draws.
    pub repeats: Vec<(usize, &'a Claim)>,
    pub ready: Vec<ReadyLoad>,
}

/// The first ready tasks of a queue, in the order of grants. Those that another batch has locked are skipped.
#[derive(Debug, PartialEq, Eq)]
pub struct ReadyLoad {
    pub queue: QueueId,
    pub limit: usize,
    /// Grants of this queue rotate over fairness values: up to `limit` tasks of the values that come next.
    pub rotation: Option<Rotation>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Rotation {
    /// The fairness value that was served last.
    pub after: Option<Arc<str>>,
}

#[derive(Debug, Default, PartialEq)]
pub struct WorkerLoad<'a> {
    /// The newest known processes of these workers.
    pub names: BTreeSet<&'a WorkerId>,
    /// Leases that older processes of these workers hold, up to [`VOID_ROWS`](super::VOID_ROWS) each.
    pub held: Vec<&'a Hello>,
}

/// What later loads, and the answers, need to know about the commands of a batch.
#[derive(Debug, Default)]
pub(super) struct Overview<'a> {
    /// Claims, by their place in the batch.
    pub claims: Vec<(usize, &'a Claim)>,
    pub hellos: Vec<&'a Hello>,
    /// Queues that claims name.
    pub claimed: BTreeSet<&'a Arc<str>>,
    /// Queues whose settings the batch changes.
    pub changed: BTreeSet<&'a Arc<str>>,
    /// Queues that the batch may delete.
    pub deleted: BTreeSet<&'a Arc<str>>,
    /// Rows that are put back if they have ended.
    pub again: Vec<Seq>,
    /// Rows whose bodies are needed.
    pub bodies: Vec<Seq>,
    pub redrives: Vec<u128>,
    /// Runs to cancel.
    pub cancel_runs: BTreeSet<Seq>,
    /// Runs that an earlier try may have made.
    pub made_runs: BTreeSet<Seq>,
    /// Some command claims a task by its id.
    pub claims_tasks: bool,
}

impl Overview<'_> {
    /// Whether some command may grant a task.
    pub fn grants(&self) -> bool {
        self.claims_tasks || !self.claims.is_empty()
    }
}

/// The rows that a command names.
pub(super) fn rows(command: &Command) -> impl Iterator<Item = Seq> {
    command.task().map(|id| id.seq()).into_iter().chain(command.rows().iter().copied())
}

/// What can be loaded by looking at the commands alone.
pub(super) fn first<'a>(commands: &'a [Command], retrying: bool) -> (Load<'a>, Overview<'a>) {
    let mut load = Load { begin: true, ..Load::default() };
    let mut view = Overview::default();
    let (mut not_reported, mut not_scanned) = (BTreeSet::new(), BTreeSet::new());
    for (index, command) in commands.iter().enumerate() {
        load.tasks.rows.extend(rows(command));
        let profile = command.profile();
        match profile.kind {
            Kind::Report => {
                load.tasks.reported.extend(rows(command));
                not_scanned.extend(rows(command));
            }
            Kind::Scan => {
                load.tasks.scanned.extend(rows(command));
                not_reported.extend(rows(command));
            }
            Kind::Other => {
                not_reported.extend(rows(command));
                not_scanned.extend(rows(command));
            }
        }
        if profile.body {
            view.bodies.extend(rows(command));
        }
        load.name(&mut view, index, command, retrying);
    }
    load.tasks.reported.retain(|row| !not_reported.contains(row));
    load.tasks.scanned.retain(|row| !not_scanned.contains(row));
    load.queues.named.extend(&view.claimed);
    load.workers.names = view.hellos.iter().map(|hello| &hello.worker).collect();
    load.runs.cancel.clone_from(&view.cancel_runs);
    (load, view)
}

impl<'a> Load<'a> {
    /// Adds what a command names other than rows of tasks.
    fn name(&mut self, view: &mut Overview<'a>, index: usize, command: &'a Command, retrying: bool) {
        match command {
            Command::Submit(submit) => {
                if retrying {
                    self.tasks.rows.extend(submit.tasks.iter().map(|task| task.id.seq()));
                }
                for task in &submit.tasks {
                    self.queues.make.entry(&task.queue).or_insert(submit.maker.as_deref());
                    self.keys.extend(task.key_scope());
                }
            }
            Command::SubmitRun(submit) => {
                if retrying {
                    view.made_runs.insert(submit.run.id.seq());
                }
                self.runs.keys.extend(submit.run.key_scope());
                for task in submit.tasks.iter().map(|member| &member.task) {
                    self.queues.make.entry(&task.queue).or_insert(submit.maker.as_deref());
                    self.keys.extend(task.key_scope());
                }
            }
            Command::Retry(_) => view.again.extend(rows(command)),
            Command::Redrive(redrive) => {
                view.again.extend(rows(command));
                view.redrives.push(redrive.redrive_id);
            }
            Command::CancelRun(cancel) => {
                view.cancel_runs.insert(cancel.run.seq());
            }
            Command::Claim(claim) => {
                if let Some(first) = claim.queues.first() {
                    *self.claims.likely.entry(first).or_default() += claim.max_jobs;
                }
                view.claimed.extend(&claim.queues);
                view.claims.push((index, claim));
            }
            Command::ClaimTask(_) => view.claims_tasks = true,
            Command::Hello(hello) => view.hellos.push(hello),
            Command::SetQueue(set) => {
                self.queues.make.entry(&set.queue).or_insert(set.reach.tenant());
                view.changed.insert(&set.queue);
            }
            Command::PatchQueue(patch) => {
                self.queues.named.insert(&patch.queue);
                view.changed.insert(&patch.queue);
            }
            Command::PauseQueue(pause) => {
                self.queues.named.insert(&pause.queue);
                view.changed.insert(&pause.queue);
            }
            Command::DeleteQueue(delete) => {
                self.queues.named.insert(&delete.queue);
                view.deleted.insert(&delete.queue);
            }
            _ => {}
        }
    }
}
