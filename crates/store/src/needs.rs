//! What a batch needs to be loaded.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use tenure_core::batch::{self, IdempotencyScope, Outcome, World};
use tenure_core::command::callback::Call;
use tenure_core::command::claim::{Claim, Grant, NotGranted, NotGrantedReason};
use tenure_core::command::hello::Hello;
use tenure_core::command::{Answer, Command, Context, expire};
use tenure_core::queue::{QueueId, Transport};
use tenure_core::run::Edge;
use tenure_core::task::{Body, Place, Running, Waiting};
use tenure_core::{AttemptId, Seq, TaskId};

use crate::store::Batch;

#[derive(Debug, Default)]
pub struct Needs<'a> {
    /// Rows to load and lock, in order.
    pub rows: BTreeSet<Seq>,
    /// Those among them that only reports name: if they are held, they will most likely not be held any more.
    pub reported: BTreeSet<Seq>,
    /// Those among them that only timers name, which have found them by a scan. A task that has moved on since does not
    /// concern them.
    pub scanned: BTreeSet<Seq>,
    /// Those among them whose bodies are needed.
    pub bodies: Vec<Seq>,
    /// Queues that must exist, each with the tenant whose it becomes if it does not: that of the first who names it.
    pub make_queues: HashMap<&'a Arc<str>, Option<&'a str>>,
    /// Queues to load if they exist.
    pub queues: HashSet<&'a Arc<str>>,
    /// Queues whose settings the batch changes.
    pub changed: HashSet<&'a Arc<str>>,
    pub keys: Vec<IdempotencyScope>,
    /// Claims, by their place in the batch.
    pub claims: Vec<(usize, &'a Claim)>,
    pub hellos: Vec<&'a Hello>,
    /// Those among the rows that are put back if they have ended: by then their runs must be known.
    pub again: BTreeSet<Seq>,
    /// Runs to cancel: with all their tasks that have not ended.
    pub cancel_runs: BTreeSet<Seq>,
    /// Runs that an earlier try may have made.
    pub made_runs: BTreeSet<Seq>,
    pub run_keys: Vec<IdempotencyScope>,
    /// Some command may grant a task.
    pub grants: bool,
}

impl<'a> Needs<'a> {
    pub fn of(batch: &'a Batch) -> Self {
        let mut needs = Self::default();
        let (mut not_reported, mut not_scanned) = (HashSet::new(), HashSet::new());
        for (index, command) in batch.commands.iter().enumerate() {
            let named = command.task().map(|id| id.seq());
            needs.rows.extend(named);
            needs.rows.extend(command.rows());
            let rows = named.iter().chain(command.rows()).copied();
            match command {
                Command::Report(_) => {
                    needs.reported.extend(rows.clone());
                    not_scanned.extend(rows);
                }
                Command::Expire(_) | Command::Promote(_) => {
                    needs.scanned.extend(rows.clone());
                    not_reported.extend(rows);
                }
                _ => {
                    not_reported.extend(rows.clone());
                    not_scanned.extend(rows);
                }
            }
            if command.profile().body {
                needs.bodies.extend(named);
                needs.bodies.extend(command.rows());
            }
            needs.grants |= matches!(command, Command::Claim(_) | Command::ClaimTask(_));
            match command {
                Command::Submit(submit) => {
                    for task in &submit.tasks {
                        needs.make_queues.entry(&task.queue).or_insert(submit.maker.as_deref());
                        if batch.retrying {
                            needs.rows.insert(task.id.seq());
                        }
                        if let Some(idempotency) = &task.idempotency {
                            let scope =
                                (Arc::clone(&task.tenant), Arc::clone(&task.workspace), Arc::clone(&idempotency.key));
                            needs.keys.push(scope);
                        }
                    }
                }
                Command::SubmitRun(submit) => {
                    let run = &submit.run;
                    if batch.retrying {
                        needs.made_runs.insert(run.id.seq());
                    }
                    if let Some(key) = &run.key {
                        needs.run_keys.push((Arc::clone(&run.tenant), Arc::clone(&run.workspace), Arc::clone(key)));
                    }
                    for task in submit.tasks.iter().map(|member| &member.task) {
                        needs.make_queues.entry(&task.queue).or_insert(submit.maker.as_deref());
                        if let Some(idempotency) = &task.idempotency {
                            let scope =
                                (Arc::clone(&task.tenant), Arc::clone(&task.workspace), Arc::clone(&idempotency.key));
                            needs.keys.push(scope);
                        }
                    }
                }
                Command::Retry(_) | Command::Redrive(_) => {
                    needs.again.extend(named.iter().chain(command.rows()));
                }
                Command::CancelRun(cancel) => {
                    needs.cancel_runs.insert(cancel.run.seq());
                }
                Command::Claim(claim) => {
                    needs.queues.extend(&claim.queues);
                    needs.claims.push((index, claim));
                }
                Command::Hello(hello) => needs.hellos.push(hello),
                Command::SetQueue(set) => {
                    needs.make_queues.entry(&set.queue).or_insert(set.reach.tenant());
                    needs.changed.insert(&set.queue);
                }
                Command::PatchQueue(patch) => {
                    needs.queues.insert(&patch.queue);
                    needs.changed.insert(&patch.queue);
                }
                Command::PauseQueue(pause) => {
                    needs.make_queues.entry(&pause.queue).or_insert(pause.reach.tenant());
                    needs.changed.insert(&pause.queue);
                }
                _ => {}
            }
        }
        needs.reported.retain(|row| !not_reported.contains(row));
        needs.scanned.retain(|row| !not_scanned.contains(row));
        needs
    }

    /// How many tasks the batch will look at, at the most.
    pub fn tasks(&self) -> usize {
        self.rows.len() + self.claims.iter().map(|(_, claim)| claim.max_jobs).sum::<usize>()
    }
}

/// Whether a command can be judged only with the earlier attempts of its task. A claim of the same batch may grant a task
/// that waits: the attempt that is its last one now is an earlier one then.
fn needs_history(needs: &Needs<'_>, command: &Command, place: &Place) -> bool {
    let reports = matches!(command, Command::Report(_) | Command::Heartbeat(_) | Command::Callback(_));
    let waits = matches!(place, Place::Scheduled(_) | Place::Ready(_)) && place.last_attempt().is_some();
    batch::needs_history(command, place) || (reports && waits && needs.grants)
}

/// The earlier attempts that a batch has to be judged with.
#[derive(Debug, Default)]
pub struct Histories {
    /// All attempts of these tasks.
    pub whole: BTreeSet<Seq>,
    /// One attempt each: the token of a callback names it, and others can be many and large.
    pub named: BTreeSet<(Seq, u32)>,
}

pub fn histories(batch: &Batch, needs: &Needs<'_>, world: &World) -> Histories {
    let mut found = Histories::default();
    for command in batch.commands.iter() {
        let Some(seq) = command.task().map(|id| id.seq()) else { continue };
        let Some(cell) = world.tasks.get(&seq) else { continue };
        if !needs_history(needs, command, &cell.task.place) {
            continue;
        }
        match command {
            Command::Callback(callback) => found.named.insert((seq, callback.attempt)),
            _ => found.whole.insert(seq),
        };
    }
    found.named.retain(|(seq, _)| !found.whole.contains(seq));
    found
}

/// Runs of ended tasks that the batch may change: whether it can depends on the run too. A run is not locked for what
/// changes nothing, as what came of a push, or a report that was answered before: locks that are not needed are in the
/// way of others.
pub fn runs_of_ended(batch: &Batch, needs: &Needs<'_>, world: &World) -> BTreeSet<Seq> {
    // So it does for what the batch itself may end before it is put back.
    let again = needs.again.iter().filter_map(|row| world.tasks.get(row));
    let again = again.filter_map(|cell| Some(cell.task.place.carry().run.as_ref()?.run));
    let mut runs: BTreeSet<Seq> = again.collect();
    for command in batch.commands.iter() {
        let reports = match command {
            Command::Retry(_) | Command::Redrive(_) => false,
            Command::Report(_) => true,
            Command::Callback(callback) if matches!(callback.call, Call::Completed(_)) => true,
            _ => continue,
        };
        for row in command.task().map(|id| id.seq()).iter().chain(command.rows()) {
            let Some(Place::Finished(finished)) = world.tasks.get(row).map(|cell| &cell.task.place) else { continue };
            let answered = finished.carry.last.as_ref().is_none_or(|last| last.receipt.is_some());
            if !(reports && answered) {
                runs.extend(finished.carry.run.as_ref().map(|member| member.run));
            }
        }
    }
    runs
}

/// The tasks behind these edges that are not loaded yet.
pub fn behind(world: &World, edges: &[Edge]) -> BTreeSet<Seq> {
    edges.iter().map(|edge| edge.downstream).filter(|row| !world.tasks.contains_key(row)).collect()
}

/// Rows whose bodies the answers carry.
pub fn granted(outcomes: &[Outcome]) -> Vec<Seq> {
    outcomes.iter().filter_map(claimed).flatten().map(Grant::seq).collect()
}

fn claimed(outcome: &Outcome) -> Option<&Vec<Grant>> {
    match outcome {
        Ok(Answer::Claimed(claimed)) => Some(&claimed.grants),
        _ => None,
    }
}

/// Puts the bodies into the answers: those that were read, and those that the batch itself has made.
pub fn attach_bodies(outcomes: &mut [Outcome], mut bodies: HashMap<Seq, Arc<Body>>, made: &[Arc<Body>]) {
    bodies.extend(made.iter().map(|body| (body.seq(), Arc::clone(body))));
    for outcome in outcomes {
        if let Ok(Answer::Claimed(claimed)) = outcome {
            for grant in &mut claimed.grants {
                grant.body = bodies.get(&grant.seq()).cloned();
            }
        }
    }
}

/// What the answers to claims say about wake-ups that leave the process: the queues of the batch that have such, and the
/// messages whose names are asked for.
#[derive(Debug, Default)]
pub struct Messages {
    queues: HashMap<QueueId, Transport>,
    pub asked: Vec<i64>,
}

impl Messages {
    pub fn of(world: &World, outcomes: &[Outcome]) -> Self {
        let external = world.queues.values().map(|cell| (cell.queue.id, cell.queue.transport));
        let queues: HashMap<_, _> = external.filter(|(_, transport)| transport.is_external()).collect();
        if queues.is_empty() {
            return Self::default();
        }
        let asked = outcomes.iter().flat_map(|outcome| match outcome {
            Ok(Answer::Claimed(claimed)) => {
                let grants = claimed.grants.iter().filter(|grant| queues.contains_key(&grant.queue));
                grants.map(|grant| grant.message).collect()
            }
            Ok(Answer::NotGranted(NotGranted { live: Some(live), .. })) if queues.contains_key(&live.queue) => {
                vec![live.message]
            }
            _ => Vec::new(),
        });
        let asked = asked.collect();
        Self { queues, asked }
    }

    /// Puts the names into the answers. Whether a message may be dropped depends on them too.
    pub fn attach(&self, commands: &[Command], outcomes: &mut [Outcome], receipts: &HashMap<i64, Arc<str>>) {
        if self.queues.is_empty() {
            return;
        }
        for (command, outcome) in commands.iter().zip(outcomes) {
            match (command, outcome) {
                (_, Ok(Answer::Claimed(claimed))) => {
                    for grant in &mut claimed.grants {
                        grant.transport = self.queues.get(&grant.queue).copied().unwrap_or_default();
                        grant.receipt = receipts.get(&grant.message).cloned();
                    }
                }
                (Command::ClaimTask(claim), Ok(Answer::NotGranted(not))) => {
                    let Some(live) = not.live.filter(|live| self.queues.contains_key(&live.queue)) else { continue };
                    // A wake-up without a name is being published now: the message may be just that one.
                    // And one for a task that waits may be the only one that will wake anybody: the sweep judges it.
                    not.ack = not.reason == NotGrantedReason::AlreadyRunning
                        && receipts.get(&live.message).is_some_and(|receipt| {
                            NotGranted::may_ack(not.live, Some(receipt), claim.message.as_deref())
                        });
                }
                _ => {}
            }
        }
    }
}

/// The leases that a claim was granted before, in the order of the grants, as far as the claim can tell.
pub fn in_grant_order(claim: &Claim, mut held: Vec<(TaskId, Running)>) -> Vec<(TaskId, Running)> {
    if held.len() < 2 {
        return held;
    }
    let drawn: HashMap<AttemptId, usize> =
        (0..claim.max_jobs).map(|grant| (claim.claimer.seed.draw(grant).0, grant)).collect();
    held.sort_by_key(|(id, running)| (drawn.get(&running.attempt_id).copied().unwrap_or(usize::MAX), id.seq()));
    held
}

/// Which ready rows to load for the claims of a batch.
///
/// Claims try their queues strictly in order, so the rows of a second queue are loaded only when the first one may have
/// too few. Each round loads one position of the claims' lists. What other commands of the batch may change, rows and
/// limits alike, is loaded but not relied on.
#[derive(Debug)]
pub struct ClaimPlan {
    /// For each claim: its queues, and how many jobs it still wants.
    claims: Vec<(Vec<QueueId>, usize)>,
    position: usize,
    queues: HashMap<QueueId, Loaded>,
    /// Tasks that other commands of the batch name.
    named: HashSet<Seq>,
}

#[derive(Debug, Default)]
struct Loaded {
    rows: usize,
    /// Those of the rows that will still be there when the claims are decided.
    sure: usize,
    /// How many of them the claims so far take at least, and at most.
    assigned: usize,
    spoken_for: usize,
    exhausted: bool,
    /// How many grants the limits will leave at least, and at most.
    room: (usize, usize),
}

impl ClaimPlan {
    pub fn new(needs: &Needs<'_>, world: &World) -> Self {
        let changed: HashSet<QueueId> =
            needs.changed.iter().filter_map(|name| world.names.get(*name).copied()).collect();
        // A queue that grants nothing to this claim leaves it to the next one in its list.
        let serves = |id: &QueueId, claim: &Claim| {
            changed.contains(id) || world.queues.get(id).is_some_and(|cell| cell.queue.serves(&claim.claimer))
        };
        let claims = needs.claims.iter().filter(|(index, _)| !is_repeat(*index, needs, world)).map(|(_, claim)| {
            let known = claim.queues.iter().filter_map(|name| world.names.get(name).copied());
            (known.filter(|id| serves(id, claim)).collect(), claim.max_jobs)
        });
        let queues =
            world.queues.keys().map(|id| (*id, Loaded { room: room(*id, &changed, world), ..Loaded::default() }));
        let named = world.tasks.keys().copied().collect();
        Self { claims: claims.collect(), position: 0, queues: queues.collect(), named }
    }

    /// The queues to load now, each with how many rows from its head. `None` when no claim can use more.
    pub fn next_round(&mut self) -> Option<Vec<(QueueId, usize)>> {
        let longest = self.claims.iter().map(|(queues, _)| queues.len()).max().unwrap_or(0);
        while self.position < longest {
            let mut wanted: BTreeMap<QueueId, usize> = BTreeMap::new();
            for (queues, need) in self.claims.iter().filter(|(_, need)| *need > 0) {
                if let Some(queue) = queues.get(self.position) {
                    *wanted.entry(*queue).or_default() += need;
                }
            }
            let round: Vec<_> = wanted
                .into_iter()
                .filter_map(|(queue, need)| {
                    let loaded = self.queues.entry(queue).or_default();
                    let sure = (loaded.spoken_for + need).min(loaded.room.1);
                    let limit = sure + loaded.rows - loaded.sure;
                    (!loaded.exhausted && limit > loaded.rows).then_some((queue, limit))
                })
                .collect();
            if !round.is_empty() {
                return Some(round);
            }
            self.assign();
        }
        None
    }

    /// Tells what came of a load.
    pub fn loaded(&mut self, queue: QueueId, found: &[(TaskId, Waiting)], limit: usize, world: &World) {
        let is_sure = |(id, waiting): &&(TaskId, Waiting)| {
            !self.named.contains(&id.seq()) && !waiting.carry.spec.is_past_deadline(world.now)
        };
        let sure = found.iter().filter(is_sure).count();
        let loaded = self.queues.entry(queue).or_default();
        (loaded.rows, loaded.sure) = (found.len(), sure);
        // Rows that another connection holds are skipped, so fewer than asked for means that there are no more for us.
        loaded.exhausted = found.len() < limit;
    }

    /// Ends a round: hands out what was loaded, in the order of the claims.
    fn assign(&mut self) {
        for (queues, need) in &mut self.claims {
            if let Some(queue) = queues.get(self.position) {
                let loaded = self.queues.entry(*queue).or_default();
                let got = (*need).min(loaded.sure.min(loaded.room.0).saturating_sub(loaded.assigned));
                loaded.assigned += got;
                loaded.spoken_for += *need;
                *need -= got;
            }
        }
        self.position += 1;
    }
}

/// Whether a claim will get what it had and so wants nothing new. A lease that has run out, or that another command of
/// the batch may end, is no answer.
fn is_repeat(index: usize, needs: &Needs<'_>, world: &World) -> bool {
    let ctx = Context { now: world.now, grace: world.grace, numbers: &mut world.numbers.clone(), sealed: false };
    let held = world.repeats.get(&index).into_iter().flatten();
    held.filter_map(|row| world.tasks.get(row)).any(|cell| match &cell.task.place {
        Place::Running(running) => {
            let ends = needs.rows.contains(&cell.task.id.seq()) || !needs.hellos.is_empty();
            !ends && !expire::is_over(running, &ctx)
        }
        _ => false,
    })
}

/// How many grants of a queue are possible at least, and at most, whatever the other commands of the batch do.
fn room(id: QueueId, changed: &HashSet<QueueId>, world: &World) -> (usize, usize) {
    let Some(cell) = world.queues.get(&id).filter(|_| !changed.contains(&id)) else { return (0, usize::MAX) };
    let (mut here, mut held) = (0, 0);
    for place in world.tasks.values().map(|cell| &cell.task.place).filter(|place| place.queue() == id) {
        here += 1;
        held += u32::from(matches!(place, Place::Running(_)));
    }
    let grants = |running| usize::try_from(cell.queue.room(running, world.now).grants).unwrap_or(usize::MAX);
    (grants(cell.running).saturating_sub(here), grants(cell.running.saturating_sub(held)))
}
