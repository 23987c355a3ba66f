//! Brings what a batch needs into memory.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rusqlite::{CachedStatement, Connection, OptionalExtension, params};
use tenure_core::Seq;
use tenure_core::batch::{KeyOwner, VOID_ROWS, World};
use tenure_core::command::Task;
use tenure_core::lease::Grace;
use tenure_core::queue::{Queue, QueueId, rotate};
use tenure_core::task::{Body, Place};
use tenure_core::time::Timestamp;

use super::{Cache, rows, runs, sql};
use crate::clock::Reading;
use crate::codec;
use crate::needs::{self, ClaimPlan, Histories, Needs, in_grant_order};
use crate::store::Batch;

type Result<T> = rusqlite::Result<T>;

pub fn world(tx: &Connection, cache: &mut Cache, batch: &Batch, needs: &Needs<'_>, reading: Reading) -> Result<World> {
    let mut world = World::new(reading.now, grace(tx, reading)?, batch.numbers);
    world.expect_tasks(needs.tasks());
    queues(tx, cache, needs, &mut world)?;
    let mut finder = Finder::new(tx)?;
    for row in &needs.rows {
        if let Some(task) = finder.task(*row)? {
            world.add_task(task);
        }
    }
    runs::named(tx, &mut finder, batch, needs, &mut world)?;
    for (row, body) in bodies_by(tx, sql::BODIES_LIGHT, &needs.bodies)? {
        if let Some(cell) = world.tasks.get_mut(&row) {
            cell.task.body = Some(body);
        }
    }
    histories(tx, batch, needs, &mut world)?;
    keys(tx, &mut finder, needs, &mut world)?;
    repeats(tx, batch, needs, &mut world)?;
    hellos(tx, needs, &mut world)?;
    queues_of_tasks(tx, cache, &mut world)?;
    candidates(tx, needs, &mut world)?;
    Ok(world)
}

fn grace(tx: &Connection, reading: Reading) -> Result<Grace> {
    let (alive_at, grace_until) = marks(tx)?;
    Ok(Grace::from_marks(reading.now, reading.alive.since(alive_at), grace_until))
}

pub fn marks(tx: &Connection) -> Result<(Timestamp, Timestamp)> {
    tx.prepare_cached(sql::META_GET)?
        .query_row([], |row| Ok((Timestamp::from_millis(row.get(0)?), Timestamp::from_millis(row.get(1)?))))
}

/// Finds tasks by their rows. The statements are looked up once for all of them.
pub struct Finder<'c> {
    running: CachedStatement<'c>,
    ready: CachedStatement<'c>,
    scheduled: CachedStatement<'c>,
    finished: CachedStatement<'c>,
    blocked: CachedStatement<'c>,
}

impl<'c> Finder<'c> {
    pub fn new(tx: &'c Connection) -> Result<Self> {
        Ok(Self {
            running: tx.prepare_cached(sql::RUNNING_GET)?,
            ready: tx.prepare_cached(sql::READY_GET)?,
            scheduled: tx.prepare_cached(sql::SCHEDULED_GET)?,
            finished: tx.prepare_cached(sql::FINISHED_GET)?,
            blocked: tx.prepare_cached(sql::BLOCKED_GET)?,
        })
    }

    /// The task of a row, wherever it stands.
    pub fn task(&mut self, seq: Seq) -> Result<Option<Task>> {
        if let Some((id, running)) = self.running.query_row([seq.0], rows::running).optional()? {
            return Ok(Some(Task { id, place: Place::Running(running), body: None }));
        }
        if let Some((id, waiting)) = self.ready.query_row([seq.0], rows::waiting).optional()? {
            return Ok(Some(Task { id, place: Place::Ready(waiting), body: None }));
        }
        if let Some((id, waiting)) = self.scheduled.query_row([seq.0], rows::waiting).optional()? {
            return Ok(Some(Task { id, place: Place::Scheduled(waiting), body: None }));
        }
        if let Some((id, finished)) = self.finished.query_row([seq.0], rows::finished).optional()? {
            return Ok(Some(Task { id, place: Place::Finished(finished), body: None }));
        }
        let blocked = self.blocked.query_row([seq.0], rows::blocked).optional()?;
        Ok(blocked.map(|(id, blocked)| Task { id, place: Place::Blocked(blocked), body: None }))
    }
}

pub fn body(tx: &Connection, seq: Seq) -> Result<Option<Body>> {
    tx.prepare_cached(sql::BODIES_GET)?.query_row([seq.0], rows::body).optional()
}

fn queues(tx: &Connection, cache: &mut Cache, needs: &Needs<'_>, world: &mut World) -> Result<()> {
    for (name, maker) in &needs.make_queues {
        if cache.by_name(tx, name)?.is_none() {
            tx.prepare_cached(sql::QUEUES_MAKE)?.execute(params![
                name,
                maker,
                codec::transport(cache.transport.get())
            ])?;
            cache.reload(tx)?;
        }
    }
    for name in needs.make_queues.keys().chain(&needs.queues) {
        if let Some(queue) = cache.by_name(tx, name)? {
            add_queue(tx, queue, needs.changed.contains(name), world)?;
        }
    }
    Ok(())
}

/// The open attempts are counted where a limit may ask for them: one that is there, or one that the batch sets.
fn add_queue(tx: &Connection, queue: Queue, changed: bool, world: &mut World) -> Result<()> {
    if world.queues.contains_key(&queue.id) {
        return Ok(());
    }
    let running = if changed || queue.settings.slots().is_some() {
        tx.prepare_cached(sql::COUNTS_RUNNING)?.query_row([queue.id.0], |row| row.get(0))?
    } else {
        0
    };
    world.add_queue(queue, running);
    Ok(())
}

/// Settings of the queues in which the named tasks stand.
pub fn queues_of_tasks(tx: &Connection, cache: &mut Cache, world: &mut World) -> Result<()> {
    let ids: HashSet<QueueId> = world.tasks.values().map(|cell| cell.task.place.queue()).collect();
    for id in ids {
        if let Some(queue) = cache.by_id(tx, id)? {
            add_queue(tx, queue, false, world)?;
        }
    }
    Ok(())
}

fn histories(tx: &Connection, batch: &Batch, needs: &Needs<'_>, world: &mut World) -> Result<()> {
    let Histories { whole, named } = needs::histories(batch, needs, world);
    for seq in whole {
        world.history.insert(seq, attempts(tx, seq)?);
    }
    for (seq, attempt) in named {
        let found =
            tx.prepare_cached(sql::ATTEMPTS_NAMED)?.query_row(params![seq.0, attempt], rows::attempt).optional()?;
        world.history.entry(seq).or_default().extend(found);
    }
    Ok(())
}

pub fn attempts(tx: &Connection, seq: Seq) -> Result<Vec<tenure_core::attempt::ClosedAttempt>> {
    tx.prepare_cached(sql::ATTEMPTS_GET)?.query_map([seq.0], rows::attempt)?.collect()
}

fn keys(tx: &Connection, finder: &mut Finder<'_>, needs: &Needs<'_>, world: &mut World) -> Result<()> {
    for scope in &needs.keys {
        let (tenant, workspace, key) = scope;
        let owner =
            tx.prepare_cached(sql::BODIES_OF_KEYS)?.query_row([tenant, workspace, key], rows::body).optional()?;
        let Some(body) = owner else { continue };
        let Some(idempotency) = &body.idempotency else { continue };
        let fingerprint = idempotency.fingerprint;
        if let Some(task) = finder.task(body.seq())? {
            let owner = KeyOwner { id: body.id, owner: body.owner.clone(), fingerprint, state: task.place.state() };
            world.keys.insert(scope.clone(), owner);
        }
    }
    Ok(())
}

fn repeats(tx: &Connection, batch: &Batch, needs: &Needs<'_>, world: &mut World) -> Result<()> {
    for (index, claim) in &needs.claims {
        let claimer = &claim.claimer;
        let mut found = Vec::new();
        if let Some((worker, claim_id)) = claimer.name() {
            let mut statement = tx.prepare_cached(sql::RUNNING_OF_CLAIM)?;
            let held = statement.query_map([worker, claim_id], rows::running)?;
            found.extend(held.collect::<Result<Vec<_>>>()?);
        } else if batch.retrying {
            let mut statement = tx.prepare_cached(sql::RUNNING_OF_HOLDER)?;
            let worker = codec::worker_id(claimer.worker.as_ref().map(|worker| &worker.id));
            let held = statement.query_map([worker], rows::running)?.collect::<Result<Vec<_>>>()?;
            found.extend(held.into_iter().filter(|(_, running)| claimer.was_granted(running, claim.max_jobs)));
        }
        let found = in_grant_order(claim, found);
        if !found.is_empty() {
            world.repeats.insert(*index, found.iter().map(|(id, _)| id.seq()).collect());
        }
        for (id, running) in found {
            if !world.tasks.contains_key(&id.seq()) {
                world.add_task(Task { id, place: Place::Running(running), body: None });
            }
        }
    }
    Ok(())
}

fn hellos(tx: &Connection, needs: &Needs<'_>, world: &mut World) -> Result<()> {
    for hello in &needs.hellos {
        let known: Option<Arc<str>> =
            tx.prepare_cached(sql::WORKERS_GET)?.query_row([&hello.worker], |row| row.get(0)).optional()?;
        // A process that is known has voided what there was.
        let is_known = known.as_ref() == Some(&hello.incarnation);
        if let Some(known) = known {
            world.incarnations.insert(Arc::clone(&hello.worker), known);
        }
        if is_known {
            continue;
        }
        let limit = i64::try_from(VOID_ROWS).unwrap_or(i64::MAX);
        let held: Vec<_> = tx
            .prepare_cached(sql::RUNNING_OF_WORKER)?
            .query_map(params![hello.worker, hello.incarnation, limit], rows::running)?
            .collect::<Result<_>>()?;
        world.held.entry(Arc::clone(&hello.worker)).or_default().extend(held.iter().map(|(id, _)| id.seq()));
        for (id, running) in held {
            if !world.tasks.contains_key(&id.seq()) {
                world.add_task(Task { id, place: Place::Running(running), body: None });
            }
        }
    }
    Ok(())
}

fn candidates(tx: &Connection, needs: &Needs<'_>, world: &mut World) -> Result<()> {
    let mut plan = ClaimPlan::new(needs, world);
    while let Some(round) = plan.next_round() {
        for (queue, limit) in round {
            let found = match world.queues.get(&queue).map(|cell| &cell.queue) {
                Some(fair) if fair.settings.fairness_key.is_some() => fair_candidates(tx, fair, limit)?,
                _ => tx
                    .prepare_cached(sql::READY_CANDIDATES)?
                    .query_map(params![queue.0, limit as i64], rows::waiting)?
                    .collect::<Result<_>>()?,
            };
            plan.loaded(queue, &found, limit, world);
            if found.is_empty() {
                world.empty.insert(queue);
            }
            world.candidates.insert(queue, found.iter().map(|(id, _)| id.seq()).collect());
            for (id, waiting) in found {
                if !world.tasks.contains_key(&id.seq()) {
                    world.add_task(Task { id, place: Place::Ready(waiting), body: None });
                }
            }
        }
    }
    Ok(())
}

/// The heads of the fairness values that come next, in the order in which grants rotate over them.
fn fair_candidates(
    tx: &Connection,
    queue: &Queue,
    limit: usize,
) -> Result<Vec<(tenure_core::TaskId, tenure_core::task::Waiting)>> {
    let mut values: Vec<Arc<str>> = Vec::new();
    let mut behind = tx.prepare_cached(sql::READY_VALUE_AFTER)?;
    let mut first = tx.prepare_cached(sql::READY_VALUE_FIRST)?;
    let mut last: Option<Arc<str>> = queue.fair_cursor.clone();
    // Once around the ring, starting behind the value that was served last.
    while values.len() < limit {
        let next: Option<Arc<str>> = match &last {
            Some(value) => behind.query_row(params![queue.id.0, value], |row| row.get(0))?,
            None => None,
        };
        let next = match next {
            Some(next) => Some(next),
            None => first.query_row([queue.id.0], |row| row.get::<_, Option<Arc<str>>>(0))?,
        };
        let Some(next) = next.filter(|next| !values.contains(next)) else { break };
        values.push(Arc::clone(&next));
        last = Some(next);
    }
    let mut each = limit.div_ceil(values.len().max(1));
    let mut statement = tx.prepare_cached(sql::READY_CANDIDATES_OF_VALUES)?;
    let mut found = loop {
        let mut found = Vec::new();
        let mut more = false;
        for value in &values {
            let heads = statement.query_map(params![queue.id.0, value, each as i64], rows::waiting)?;
            let heads = heads.collect::<Result<Vec<_>>>()?;
            more |= heads.len() == each;
            found.extend(heads);
        }
        // Values with a long backlog make up for those with a short one.
        if found.len() >= limit || !more {
            break found;
        }
        each *= 2;
    };
    // A row has no value if something damaged it. It must not wait forever; few rows are left to be looked through.
    if found.len() < limit {
        let mut statement = tx.prepare_cached(sql::READY_CANDIDATES_WITHOUT_VALUE)?;
        let rest = statement.query_map(params![queue.id.0, (limit - found.len()) as i64], rows::waiting)?;
        found.extend(rest.collect::<Result<Vec<_>>>()?);
    }
    let mut rotated =
        rotate(found, queue.fair_cursor.as_deref(), |(_, waiting)| waiting.fair.clone().unwrap_or_default());
    rotated.truncate(limit);
    Ok(rotated)
}

/// Bodies of what was granted.
pub fn bodies(tx: &Connection, seqs: &[Seq]) -> Result<HashMap<Seq, Arc<Body>>> {
    bodies_by(tx, sql::BODIES_GET, seqs)
}

fn bodies_by(tx: &Connection, statement: &str, seqs: &[Seq]) -> Result<HashMap<Seq, Arc<Body>>> {
    let mut statement = tx.prepare_cached(statement)?;
    let mut bodies = HashMap::with_capacity(seqs.len());
    for seq in seqs {
        if let Some(body) = statement.query_row([seq.0], rows::body).optional()? {
            bodies.insert(*seq, Arc::new(body));
        }
    }
    Ok(bodies)
}
