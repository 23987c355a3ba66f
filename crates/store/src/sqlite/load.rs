//! Loads what a batch asks for.

use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::{CachedStatement, Connection, OptionalExtension, Row, params};
use tenure_core::Seq;
use tenure_core::TaskId;
use tenure_core::attempt::ClosedAttempt;
use tenure_core::batch::{
    ClaimLoad, IdempotencyScope, Load, QueueLoad, ReadyLoad, Rotation, TaskLoad, VOID_ROWS, WorkerLoad, World,
};
use tenure_core::command::Task;
use tenure_core::outage::{Marks, Reading};
use tenure_core::task::{Body, Place, Waiting};
use tenure_core::time::Timestamp;

use super::{Cache, read, rows, runs, sql};
use crate::codec;

type Result<T> = rusqlite::Result<T>;

/// Nothing is locked: the transaction is the only one that writes.
pub fn load(tx: &Connection, cache: &mut Cache, reading: Reading, load: &Load<'_>, world: &mut World) -> Result<()> {
    if load.begin {
        world.begin(reading.now, marks(tx)?.grace(reading));
    }
    queues(tx, cache, &load.queues, world)?;
    tasks(tx, &load.tasks, world)?;
    keys(tx, &load.keys, world)?;
    claims(tx, &load.claims, world)?;
    workers(tx, &load.workers, world)?;
    for name in &load.artifacts {
        let ids = [name.0.as_u128(), name.1.as_u128()].map(u128::to_be_bytes);
        let digest = tx.prepare_cached(sql::ARTIFACT_GET)?.query_row(params![ids[0], ids[1]], |row| row.get(0));
        digest.optional()?.into_iter().for_each(|digest| world.add_artifact(*name, digest));
    }
    runs::load(tx, &load.runs, world)
}

fn keys(tx: &Connection, keys: &[IdempotencyScope], world: &mut World) -> Result<()> {
    if keys.is_empty() {
        return Ok(());
    }
    let mut statement = tx.prepare_cached(sql::BODIES_OF_KEYS)?;
    for (tenant, workspace, key) in keys {
        let holder = statement.query_row([tenant, workspace, key], rows::body).optional()?;
        holder.into_iter().for_each(|body| world.add_key(body));
    }
    Ok(())
}

pub fn marks(tx: &Connection) -> Result<Marks> {
    tx.prepare_cached(sql::META_GET)?.query_row([], |row| {
        let time = |column| row.get(column).map(Timestamp::from_millis);
        Ok(Marks { alive_at: time(0)?, grace_until: time(1)?, gap_ended_at: time(2)? })
    })
}

/// Finds tasks by their rows.
pub struct Finder<'c> {
    running: Lookup<'c>,
    ready: Lookup<'c>,
    scheduled: Lookup<'c>,
    finished: Lookup<'c>,
    blocked: Lookup<'c>,
}

/// A statement that finds a row. It is prepared when it is first needed, and once for all rows.
struct Lookup<'c> {
    tx: &'c Connection,
    sql: &'static str,
    prepared: Option<CachedStatement<'c>>,
}

impl Lookup<'_> {
    fn find<T>(&mut self, seq: Seq, read: fn(&Row<'_>) -> Result<T>) -> Result<Option<T>> {
        let statement = match &mut self.prepared {
            Some(prepared) => prepared,
            None => self.prepared.insert(self.tx.prepare_cached(self.sql)?),
        };
        statement.query_row([seq.0], read).optional()
    }
}

impl<'c> Finder<'c> {
    pub fn new(tx: &'c Connection) -> Self {
        let lookup = |sql| Lookup { tx, sql, prepared: None };
        Self {
            running: lookup(sql::RUNNING_GET),
            ready: lookup(sql::READY_GET),
            scheduled: lookup(sql::SCHEDULED_GET),
            finished: lookup(sql::FINISHED_GET),
            blocked: lookup(sql::BLOCKED_GET),
        }
    }

    /// The task of a row, wherever it is.
    pub fn task(&mut self, seq: Seq) -> Result<Option<Task>> {
        if let Some((id, running)) = self.running.find(seq, rows::running)? {
            return Ok(Some(Task { id, place: Place::Running(running), body: None }));
        }
        if let Some((id, waiting)) = self.ready.find(seq, rows::waiting)? {
            return Ok(Some(Task { id, place: Place::Ready(waiting), body: None }));
        }
        if let Some((id, waiting)) = self.scheduled.find(seq, rows::waiting)? {
            return Ok(Some(Task { id, place: Place::Scheduled(waiting), body: None }));
        }
        if let Some((id, finished)) = self.finished.find(seq, rows::finished)? {
            return Ok(Some(Task { id, place: Place::Finished(finished), body: None }));
        }
        self.blocked(seq)
    }

    fn blocked(&mut self, seq: Seq) -> Result<Option<Task>> {
        let blocked = self.blocked.find(seq, rows::blocked)?;
        Ok(blocked.map(|(id, blocked)| Task { id, place: Place::Blocked(blocked), body: None }))
    }
}

pub fn body(tx: &Connection, seq: Seq) -> Result<Option<Body>> {
    tx.prepare_cached(sql::BODIES_GET)?.query_row([seq.0], rows::body).optional()
}

fn tasks(tx: &Connection, load: &TaskLoad, world: &mut World) -> Result<()> {
    if *load == TaskLoad::default() {
        return Ok(());
    }
    let mut finder = Finder::new(tx);
    for row in &load.rows {
        finder.task(*row)?.into_iter().for_each(|task| world.add_task(task));
    }
    for row in &load.blocked {
        finder.blocked(*row)?.into_iter().for_each(|task| world.add_task(task));
    }
    for row in &load.states {
        finder.task(*row)?.into_iter().for_each(|task| world.add_state(*row, task.place.state()));
    }
    for body in bodies_by(tx, sql::BODIES_LIGHT, &load.bodies)?.into_values() {
        world.add_body(body);
    }
    for row in &load.attempts {
        attempts(tx, *row)?.into_iter().for_each(|attempt| world.add_attempt(*row, attempt));
    }
    for (row, number) in &load.named_attempts {
        let found =
            tx.prepare_cached(sql::ATTEMPTS_NAMED)?.query_row(params![row.0, number], rows::attempt).optional()?;
        found.into_iter().for_each(|attempt| world.add_attempt(*row, attempt));
    }
    Ok(())
}

fn queues(tx: &Connection, cache: &mut Cache, load: &QueueLoad<'_>, world: &mut World) -> Result<()> {
    for (name, maker) in &load.make {
        if cache.by_name(tx, name)?.is_none() {
            let transport = codec::transport(cache.transport.get());
            tx.prepare_cached(sql::QUEUES_MAKE)?.execute(params![name, maker, transport])?;
            cache.reload(tx)?;
        }
    }
    for name in load.make.keys().chain(&load.named) {
        cache.by_name(tx, name)?.into_iter().for_each(|queue| world.add_queue(queue, 0));
    }
    for id in load.standing.iter().chain(&load.fresh) {
        cache.by_id(tx, *id)?.into_iter().for_each(|queue| world.add_queue(queue, 0));
    }
    for id in &load.limits {
        let Some(queue) = cache.by_id(tx, *id)? else { continue };
        let running = tx.prepare_cached(sql::COUNTS_RUNNING)?.query_row([id.0], |row| row.get(0))?;
        world.add_queue(queue, running);
    }
    for id in &load.counted {
        world.add_counts(*id, read::counts(tx, *id)?);
    }
    Ok(())
}

pub fn attempts(tx: &Connection, seq: Seq) -> Result<Vec<ClosedAttempt>> {
    tx.prepare_cached(sql::ATTEMPTS_GET)?.query_map([seq.0], rows::attempt)?.collect()
}

fn claims(tx: &Connection, load: &ClaimLoad<'_>, world: &mut World) -> Result<()> {
    for (index, claim) in &load.repeats {
        let claimer = &claim.claimer;
        let held = match claimer.name() {
            Some((worker, claim_id)) => tx
                .prepare_cached(sql::RUNNING_OF_CLAIM)?
                .query_map([worker, claim_id], rows::running)?
                .collect::<Result<_>>()?,
            None => tx
                .prepare_cached(sql::RUNNING_OF_HOLDER)?
                .query_map([codec::worker_id(claimer.worker.as_ref().map(|worker| &worker.id))], rows::running)?
                .collect::<Result<_>>()?,
        };
        world.add_claimed(*index, claim, held);
    }
    for ready in &load.ready {
        let found = match &ready.rotation {
            Some(rotation) => fair_candidates(tx, ready, rotation)?,
            None => tx
                .prepare_cached(sql::READY_CANDIDATES)?
                .query_map(params![ready.queue.0, ready.limit as i64], rows::waiting)?
                .collect::<Result<_>>()?,
        };
        world.add_ready(ready.queue, found);
    }
    Ok(())
}

fn workers(tx: &Connection, load: &WorkerLoad<'_>, world: &mut World) -> Result<()> {
    for worker in &load.names {
        let known = tx.prepare_cached(sql::WORKERS_GET)?.query_row([worker], |row| row.get(0)).optional()?;
        known.into_iter().for_each(|known| world.add_incarnation(worker, known));
    }
    let limit = i64::try_from(VOID_ROWS).unwrap_or(i64::MAX);
    for hello in &load.held {
        let held = tx
            .prepare_cached(sql::RUNNING_OF_WORKER)?
            .query_map(params![hello.worker, hello.incarnation, limit], rows::running)?
            .collect::<Result<_>>()?;
        world.add_held(hello, held);
    }
    Ok(())
}

/// The heads of the fairness values that come next.
fn fair_candidates(tx: &Connection, load: &ReadyLoad, rotation: &Rotation) -> Result<Vec<(TaskId, Waiting)>> {
    let (queue, limit) = (load.queue.0, load.limit);
    let mut values: Vec<Arc<str>> = Vec::new();
    let mut behind = tx.prepare_cached(sql::READY_VALUE_AFTER)?;
    let mut first = tx.prepare_cached(sql::READY_VALUE_FIRST)?;
    let mut last: Option<Arc<str>> = rotation.after.clone();
    // Once around the ring, starting after the value that was served last.
    while values.len() < limit {
        let next: Option<Arc<str>> = match &last {
            Some(value) => behind.query_row(params![queue, value], |row| row.get(0))?,
            None => None,
        };
        let next = match next {
            Some(next) => Some(next),
            None => first.query_row([queue], |row| row.get::<_, Option<Arc<str>>>(0))?,
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
            let heads = statement.query_map(params![queue, value, each as i64], rows::waiting)?;
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
        let rest = statement.query_map(params![queue, (limit - found.len()) as i64], rows::waiting)?;
        found.extend(rest.collect::<Result<Vec<_>>>()?);
    }
    Ok(found)
}

/// Bodies with their payloads.
pub fn bodies(tx: &Connection, seqs: &[Seq]) -> Result<HashMap<Seq, Arc<Body>>> {
    bodies_by(tx, sql::BODIES_GET, seqs)
}

fn bodies_by(tx: &Connection, statement: &str, seqs: &[Seq]) -> Result<HashMap<Seq, Arc<Body>>> {
    if seqs.is_empty() {
        return Ok(HashMap::new());
    }
    let mut statement = tx.prepare_cached(statement)?;
    let mut bodies = HashMap::with_capacity(seqs.len());
    for seq in seqs {
        if let Some(body) = statement.query_row([seq.0], rows::body).optional()? {
            bodies.insert(*seq, Arc::new(body));
        }
    }
    Ok(bodies)
}
