//! What a batch writes, and what it came to once that is committed.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Outcome, Timing, World, Writes};
use crate::command::claim::{Grant, NotGranted, NotGrantedReason};
use crate::command::{Answer, Command};
use crate::effect::DueEffect;
use crate::event::FactKind;
use crate::id::{Seq, TaskId, WorkerId};
use crate::queue::{Queue, QueueId, Transport};
use crate::task::Body;
use crate::time::Timestamp;

/// What to write, and what to read with it for the answers.
#[derive(Debug)]
pub struct Write {
    pub now: Timestamp,
    pub writes: Writes,
    /// Tasks whose bodies are needed.
    pub bodies: Vec<Seq>,
    /// Wake-ups whose receipts are needed, as they were before the batch.
    pub receipts: Vec<i64>,
}

/// What the store read while it wrote.
#[derive(Debug, Default)]
pub struct Saved {
    pub bodies: HashMap<Seq, Arc<Body>>,
    pub receipts: HashMap<i64, Arc<str>>,
    /// The wake-ups that [`Writes::settled`] named.
    pub settled: Vec<RemovedWake>,
}

/// A wake-up whose row was removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemovedWake {
    pub message: i64,
    pub queue: QueueId,
    pub transport: Transport,
    pub receipt: Option<Arc<str>>,
}

/// A committed batch.
#[derive(Debug)]
pub struct Done {
    /// One for each command, in order.
    pub outcomes: Vec<Outcome>,
    /// How many tasks became ready, by where their wake-ups go.
    pub wakes: HashMap<Arc<str>, usize>,
    /// Where the wake-ups of queues go in which fewer attempts are open than before.
    pub freed: Vec<Arc<str>>,
    /// Those of these queues whose workers have to be told of it.
    pub room: Vec<QueueId>,
    /// The earliest time at which something that the batch scheduled is due.
    pub next_due: Option<Timestamp>,
    /// How many facts of each kind were recorded.
    pub facts: HashMap<FactKind, u64>,
    /// Tasks that were asked to stop, or were stopped.
    pub stops: Vec<Stop>,
    /// Effects that are due. They are in the outbox, and this process performs them first.
    pub effects: Vec<DueEffect>,
    /// Wake-ups in the outbox that are over.
    pub settled: Vec<Settled>,
    /// How long tasks of each queue waited and ran.
    pub timings: Vec<(Arc<str>, Timing)>,
    /// When the batch was decided.
    pub now: Timestamp,
}

/// A task that is to stop, and who works on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stop {
    pub task: TaskId,
    pub worker: Option<WorkerId>,
}

/// Who held the lease of a task that the batch has changed.
fn holder(writes: &Writes, task: TaskId) -> Option<WorkerId> {
    let running = writes.tasks.renew.iter().find(|(row, _)| *row == task.seq());
    let ended = || writes.tasks.finish.iter().find(|(id, _)| *id == task)?.1.carry.last.as_deref()?.worker.clone();
    running.map_or_else(ended, |(_, running)| running.lease.holder.clone())
}

/// A wake-up that is over, and the name under which it was published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settled {
    pub message: i64,
    pub queue: Arc<str>,
    pub transport: Transport,
    pub receipt: Option<Arc<str>>,
}

/// What the answers lack until the batch is written.
#[derive(Debug, Default)]
pub(super) struct Unanswered {
    wakes: HashMap<Arc<str>, usize>,
    /// Bodies of granted tasks that the batch itself has made.
    made: HashMap<Seq, Arc<Body>>,
    /// The queues of the batch whose wake-ups leave the process under names that their workers send back. Those of jobs
    /// do not.
    external: HashMap<QueueId, Transport>,
}

impl World {
    /// Ends the decisions. What has changed moves into the writes.
    pub(super) fn write(&mut self, outcomes: &[Outcome]) -> (Write, Unanswered) {
        let mut left = Unanswered { wakes: self.woken(), ..Unanswered::default() };
        let named = self.queues.values().map(|cell| &cell.queue);
        let named = named.filter(|queue| queue.transport.is_external() && queue.settings.dispatch.is_none());
        left.external = named.map(|queue| (queue.id, queue.transport)).collect();
        let writes = self.writes();
        let mut bodies: Vec<Seq> = outcomes.iter().flat_map(granted).map(Grant::seq).collect();
        if !bodies.is_empty() && !writes.tasks.bodies.is_empty() {
            left.made = writes.tasks.bodies.iter().map(|body| (body.seq(), Arc::clone(body))).collect();
            bodies.retain(|row| !left.made.contains_key(row));
        }
        let receipts = if left.external.is_empty() { Vec::new() } else { left.live(outcomes) };
        (Write { now: self.now, writes, bodies, receipts }, left)
    }

    /// How many tasks became ready, by where their wake-ups go.
    fn woken(&self) -> HashMap<Arc<str>, usize> {
        let mut woken = HashMap::new();
        for queue in self.wakes().filter_map(|wake| self.queue(wake.queue)) {
            *woken.entry(queue.wakes()).or_default() += 1;
        }
        woken
    }

    /// `write` was committed, and `saved` was read with it.
    pub(super) fn done(
        &self,
        mut outcomes: Vec<Outcome>,
        commands: &[Command],
        write: &Write,
        saved: Saved,
        left: Unanswered,
    ) -> Done {
        let name = |id: QueueId| self.queue(id).map(Queue::wakes);
        left.answer(commands, &mut outcomes, &saved);
        let writes = &write.writes;
        let effects = writes.effects.iter().filter(|effect| effect.due_at <= self.now).map(|effect| DueEffect {
            id: effect.id,
            kind: effect.action.kind(),
            key: effect.action.key().into(),
            body: effect.action.body().into(),
            queue: effect.action.subject().and_then(|(_, queue)| name(queue)),
            tries: 0,
        });
        let settled = saved.settled.into_iter().filter_map(|wake| {
            let RemovedWake { message, queue, transport, receipt } = wake;
            Some(Settled { message, queue: name(queue)?, transport, receipt })
        });
        let freed = writes.queues.counts.iter().filter(|(_, counts)| counts.running < 0);
        let freed: Vec<&Queue> = freed.filter_map(|(id, _)| self.queue(*id)).collect();
        let timings = self.made.timings.iter();
        let timings = timings.filter_map(|(id, timing)| Some((Arc::clone(&self.queue(*id)?.name), *timing)));
        let mut facts = HashMap::new();
        for fact in &writes.facts {
            *facts.entry(fact.kind).or_default() += 1;
        }
        let stops = writes.facts.iter().filter(|fact| fact.kind.is_stop());
        Done {
            stops: stops.map(|fact| Stop { task: fact.task, worker: holder(writes, fact.task) }).collect(),
            wakes: left.wakes,
            room: freed.iter().filter(|queue| queue.tells_of_room()).map(|queue| queue.id).collect(),
            freed: freed.into_iter().map(Queue::wakes).collect(),
            next_due: writes.tasks.schedule.iter().map(|(_, waiting)| waiting.at).min(),
            facts,
            effects: effects.collect(),
            settled: settled.collect(),
            timings: timings.collect(),
            now: self.now,
            outcomes,
        }
    }
}

fn granted(outcome: &Outcome) -> &[Grant] {
    match outcome {
        Ok(Answer::Claimed(claimed)) => &claimed.grants,
        _ => &[],
    }
}

impl Unanswered {
    /// The messages that stand for what was granted or not granted, in queues whose wake-ups leave the process.
    fn live(&self, outcomes: &[Outcome]) -> Vec<i64> {
        let mut live = Vec::new();
        for outcome in outcomes {
            let grants = granted(outcome).iter().map(|grant| (grant.queue, grant.message));
            let not_granted = match outcome {
                Ok(Answer::NotGranted(NotGranted { live, .. })) => live.map(|live| (live.queue, live.message)),
                _ => None,
            };
            let external = grants.chain(not_granted).filter(|(queue, _)| self.external.contains_key(queue));
            live.extend(external.map(|(_, message)| message));
        }
        live
    }

    /// Puts into the answers what the store read: bodies, and the receipts of wake-ups. Whether a message may be dropped
    /// depends on these too.
    fn answer(&self, commands: &[Command], outcomes: &mut [Outcome], saved: &Saved) {
        for (command, outcome) in commands.iter().zip(outcomes) {
            match (command, outcome) {
                (_, Ok(Answer::Claimed(claimed))) => {
                    for grant in &mut claimed.grants {
                        grant.body = saved.bodies.get(&grant.seq()).or_else(|| self.made.get(&grant.seq())).cloned();
                        grant.transport = self.external.get(&grant.queue).copied().unwrap_or_default();
                        grant.receipt = saved.receipts.get(&grant.message).cloned();
                    }
                }
                (Command::ClaimTask(claim), Ok(Answer::NotGranted(not))) => {
                    let Some(live) = not.live.filter(|live| self.external.contains_key(&live.queue)) else { continue };
                    let receipt = saved.receipts.get(&live.message);
                    // A wake-up without a receipt is being published now: the message may be just that one. And the
                    // message of a task that waits may be the only one that will wake anybody: the sweep judges it.
                    not.ack = not.reason == NotGrantedReason::AlreadyRunning
                        && receipt.is_some_and(|receipt| {
                            NotGranted::may_ack(not.live, Some(receipt), claim.message.as_deref())
                        });
                }
                _ => {}
            }
        }
    }
}
