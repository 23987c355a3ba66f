//! Which ready rows to load for the claims of a batch.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::load::{Overview, ReadyLoad, Rotation, rows};
use super::{Command, World};
use crate::command::claim::Claim;
use crate::command::{Context, expire};
use crate::id::Seq;
use crate::mutant;
use crate::queue::QueueId;
use crate::task::Place;

/// Claims try their queues strictly in order, so the rows of a second queue are loaded only when the first one may have
/// too few. Each round loads one position of the claims' lists. What other commands of the batch may change, rows and
/// limits alike, is loaded but not relied on.
#[derive(Debug)]
pub(super) struct ClaimPlan {
    /// For each claim: its queues, and how many jobs it still wants.
    claims: Vec<(Vec<QueueId>, usize)>,
    position: usize,
    lines: HashMap<QueueId, Line>,
    /// What the last round asked for.
    asked: Vec<(QueueId, usize)>,
}

/// The loaded rows of a queue.
#[derive(Debug, Default)]
struct Line {
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
    pub fn new(commands: &[Command], view: &Overview<'_>, world: &World) -> Self {
        let changed: HashSet<QueueId> =
            view.changed.iter().filter_map(|name| world.names.get(*name).copied()).collect();
        // A queue that grants nothing to this claim leaves it to the next one in its list.
        let serves = |id: &QueueId, claim: &Claim| {
            changed.contains(id) || world.queue(*id).is_some_and(|queue| queue.serves(&claim.claimer))
        };
        let repeated = if world.repeats.is_empty() { &[] } else { commands };
        let named: HashSet<Seq> = repeated.iter().flat_map(rows).collect();
        let claims = view.claims.iter().filter(|(index, _)| !is_repeat(*index, &named, view, world));
        let claims = claims.map(|(_, claim)| {
            let known = claim.queues.iter().filter_map(|name| world.names.get(name).copied());
            (known.filter(|id| serves(id, claim)).collect(), claim.max_jobs)
        });
        let claims: Vec<(Vec<QueueId>, usize)> = claims.collect();
        let mut lines: HashMap<QueueId, Line> = HashMap::new();
        for id in claims.iter().flat_map(|(queues, _)| queues) {
            lines.entry(*id).or_insert_with(|| Line { room: room(*id, &changed, world), ..Line::default() });
        }
        Self { claims, position: 0, lines, asked: Vec::new() }
    }

    /// The queues to load now, each with how many rows. Empty when no claim can use more.
    pub fn next_round(&mut self, world: &World) -> Vec<ReadyLoad> {
        for (queue, limit) in self.asked.drain(..) {
            let found = world.found_ready.get(&queue).copied().unwrap_or_default();
            let line = self.lines.entry(queue).or_default();
            (line.rows, line.sure) = (found.rows, found.sure);
            // Rows that another batch has locked are skipped, so fewer than asked for means that there are no more.
            line.exhausted = found.rows < limit;
        }
        let longest = self.claims.iter().map(|(queues, _)| queues.len()).max().unwrap_or(0);
        while self.position < longest {
            self.asked = self.wanted();
            if !self.asked.is_empty() {
                return self.asked.iter().map(|(queue, limit)| ready(*queue, *limit, world)).collect();
            }
            self.assign();
        }
        Vec::new()
    }

    /// What the claims want of the queues at this position of their lists, beyond what is loaded.
    fn wanted(&self) -> Vec<(QueueId, usize)> {
        let mut wanted: BTreeMap<QueueId, usize> = BTreeMap::new();
        for (queues, need) in self.claims.iter().filter(|(_, need)| *need > 0) {
            if let Some(queue) = queues.get(self.position) {
                *wanted.entry(*queue).or_default() += need;
            }
        }
        let wanted = wanted.into_iter().filter_map(|(queue, need)| {
            let line = self.lines.get(&queue)?;
            let sure = (line.spoken_for + need).min(line.room.1);
            let limit = sure + line.rows - line.sure;
            (!line.exhausted && limit > line.rows).then_some((queue, limit))
        });
        wanted.collect()
    }

    /// Ends a round: hands out what was loaded, in the order of the claims.
    fn assign(&mut self) {
        for (queues, need) in &mut self.claims {
            if let Some(queue) = queues.get(self.position) {
                let line = self.lines.entry(*queue).or_default();
                let got = (*need).min(line.sure.min(line.room.0).saturating_sub(line.assigned));
                line.assigned += got;
                line.spoken_for += *need;
                *need -= got;
            }
        }
        self.position += 1;
    }
}

fn ready(queue: QueueId, limit: usize, world: &World) -> ReadyLoad {
    let fair = world.queue(queue).filter(|queue| queue.settings.fairness_key.is_some());
    let fair = fair.filter(|_| !mutant!("fairness-ignored"));
    ReadyLoad { queue, limit, rotation: fair.map(|queue| Rotation { after: queue.fair_cursor.clone() }) }
}

/// Whether a claim will get what it had and so wants nothing new. A lease that has expired, or that another command of
/// the batch may end, is not an answer.
fn is_repeat(index: usize, named: &HashSet<Seq>, view: &Overview<'_>, world: &World) -> bool {
    let mut numbers = world.numbers;
    let ctx = Context::new(world.now, world.grace, &mut numbers);
    let held = world.repeats.get(&index).into_iter().flatten();
    held.filter_map(|row| world.tasks.get(row)).any(|cell| match &cell.task.place {
        Place::Running(running) => {
            let may_end = named.contains(&cell.task.id.seq()) || !view.hellos.is_empty();
            !may_end && !expire::is_over(running, &ctx)
        }
        _ => false,
    })
}

/// How many grants of a queue are possible at least, and at most, whatever the other commands of the batch do.
fn room(id: QueueId, changed: &HashSet<QueueId>, world: &World) -> (usize, usize) {
    let Some(cell) = world.queues.get(&id).filter(|_| !changed.contains(&id)) else { return (0, usize::MAX) };
    let (mut here, mut held) = (0, 0);
    for place in world.tasks().map(|task| &task.place).filter(|place| place.queue() == id) {
        here += 1;
        held += u32::from(matches!(place, Place::Running(_)));
    }
    let grants = |running| usize::try_from(cell.queue.room(running, world.now).grants).unwrap_or(usize::MAX);
    (grants(cell.running).saturating_sub(here), grants(cell.running.saturating_sub(held)))
}
