//! Loads what a batch asks for, and locks it.
//!
//! Locks are taken in this order: tasks that do not depend on others, runs, tasks that do, queues. What the first load can
//! ask for at once travels in one trip with the beginning of the transaction.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use futures_util::future::{try_join, try_join_all, try_join4, try_join5};
use tenure_core::attempt::ClosedAttempt;
use tenure_core::batch::{
    ClaimLoad, Counts, IdempotencyScope, Load, QueueLoad, ReadyLoad, Rotation, TaskLoad, VOID_ROWS, WorkerLoad, World,
};
use tenure_core::command::Task;
use tenure_core::dag::data::ArtifactName;
use tenure_core::dag::{DatasetId, VersionId};
use tenure_core::outage::Marks;
use tenure_core::queue::QueueId;
use tenure_core::task::{Blocked, Body, Place, Waiting};
use tenure_core::{Seq, TaskId, Timestamp, WorkerId};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Statement};
use uuid::Uuid;

use super::conn::{Conn, failed};
use super::cursors::{Position, Search};
use super::rows::{self, Result, Time};
use super::{Postgres, runs, sql};
use crate::error::StoreError;

/// How often a task is looked for while another transaction moves it from table to table.
const SEARCHES: usize = 20;

pub async fn query(conn: &Conn, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
    let statement = conn.prepare_cached(sql).await?;
    conn.query(&statement, params).await
}

fn all<T>(found: Vec<Row>, read: impl Fn(&Row) -> Result<T>) -> Result<Vec<T>> {
    found.iter().map(read).collect()
}

fn numbers<'a>(seqs: impl IntoIterator<Item = &'a Seq>) -> Vec<i64> {
    seqs.into_iter().map(|seq| seq.0).collect()
}

/// The loads of one batch.
pub struct Loader<'s> {
    store: &'s Postgres,
    conn: &'s Conn,
    heads: Heads,
    pub searches: Searches,
}

impl<'s> Loader<'s> {
    pub fn new(store: &'s Postgres, conn: &'s Conn) -> Self {
        Self { store, conn, heads: Heads::new(), searches: Searches::new() }
    }

    pub async fn load(&mut self, load: &Load<'_>, world: &mut World) -> std::result::Result<(), StoreError> {
        let fail = |error| failed("load a batch", error);
        let running = if load.begin { Some(self.begin(load, world).await?) } else { None };
        let conn = self.conn;
        let rows = self.rows(load, running, world).await.map_err(fail)?;
        let members = runs::locked(conn, &load.runs, world).await.map_err(fail)?;
        if !(rows && members) {
            return Err(StoreError::Contention);
        }
        tasks_of(conn, &load.tasks, world).await.map_err(fail)?;
        keys(conn, &load.keys, world).await.map_err(fail)?;
        let claimed = repeats(conn, &load.claims, world).await.map_err(fail)?;
        if !(claimed && workers(conn, &load.workers, world).await.map_err(fail)?) {
            return Err(StoreError::Contention);
        }
        artifacts(conn, &load.artifacts, world).await.map_err(fail)?;
        for id in &load.redrives {
            query(conn, sql::REDRIVE_LOCK, &[&Uuid::from_u128(*id)]).await.map_err(fail)?;
        }
        if !queues(self.store, conn, &load.queues, world).await.map_err(fail)? {
            return Err(StoreError::Contention);
        }
        for ready in &load.claims.ready {
            let found = self.ready(ready).await.map_err(fail)?;
            world.add_ready(ready.queue, found);
        }
        runs::read(conn, &load.runs, world).await.map_err(fail)
    }

    /// Begins the transaction. Returns the rows of the held tasks that were named.
    async fn begin(&mut self, load: &Load<'_>, world: &mut World) -> std::result::Result<Vec<Row>, StoreError> {
        let (store, fail) = (self.store, |error| failed("load a batch", error));
        store.make_queues(self.conn, &load.queues.make).await?;
        store.faults.before("begin")?;
        let FirstTrip { marks, taken, running, queues, heads } =
            first_trip(store, self.conn, load).await.map_err(fail)?;
        store.faults.after("begin")?;
        let reading = store.clock.read_from(rows::time(&marks, 0).map_err(fail)?);
        world.begin(reading.now, marks_of(&marks).map_err(fail)?.grace(reading));
        for row in &taken {
            let (id, running) = rows::running(row).map_err(fail)?;
            world.add_taken(Task { id, place: Place::Running(running), body: None });
        }
        let queues = all(queues, rows::queue).map_err(fail)?;
        store.remember_queues(&queues);
        queues.into_iter().for_each(|queue| world.add_queue(queue, 0));
        let missing = load.queues.make.iter().filter(|(name, _)| !world.has_queue(name));
        let (missing, makers): (Vec<&str>, Vec<Option<&str>>) = missing.map(|(name, maker)| (&***name, *maker)).unzip();
        if !missing.is_empty() {
            // They were deleted since they were made. Made in this transaction, they stay.
            store.insert_queues(self.conn, &missing, &makers).await?;
            let made = query(self.conn, sql::QUEUES_HOLD, &[&missing]).await.map_err(fail)?;
            if made.len() < missing.len() {
                return Err(StoreError::Contention);
            }
            all(made, rows::queue).map_err(fail)?.into_iter().for_each(|queue| world.add_queue(queue, 0));
        }
        self.heads = heads;
        Ok(running)
    }

    /// Locks the named tasks, and those of canceled runs that do not depend on others. Returns `false` if others kept
    /// moving one of them.
    async fn rows(&self, load: &Load<'_>, running: Option<Vec<Row>>, world: &mut World) -> Result<bool> {
        let mut running = running;
        let mut rows: BTreeSet<Seq> = load.tasks.rows.iter().copied().filter(|row| !world.has_task(*row)).collect();
        if !load.runs.cancel.is_empty() {
            let mut first = runs::free_tasks(self.conn, &load.runs.cancel).await?;
            first.retain(|row| !world.has_task(*row) && !rows.contains(row));
            if let Some(running) = &mut running {
                running.extend(query(self.conn, sql::RUNNING_LOCK, &[&numbers(&first)]).await?);
            }
            rows.extend(first);
        }
        let look = Look::Lock { scanned: &load.tasks.scanned, running };
        let Some(found) = tasks(self.conn, &rows, look).await? else { return Ok(false) };
        found.into_iter().for_each(|task| world.add_task(task));
        Ok(true)
    }

    async fn ready(&mut self, load: &ReadyLoad) -> Result<Candidates> {
        if let Some(rotation) = &load.rotation {
            return fair_candidates(self.conn, load, rotation).await;
        }
        let plain: Statement = self.conn.prepare_cached(sql::READY_CANDIDATES).await?;
        let (id, limit) = (load.queue, load.limit);
        let head = match self.heads.remove(&id) {
            Some(head) => head,
            None => Head::take(self.store, self.conn, &plain, id, limit).await?,
        };
        let search = head.search;
        let found = head.waiting(self.conn, &plain, id, limit).await?;
        let backlog = found.len() == limit;
        let positions = backlog.then(|| found.iter().map(|(id, waiting)| Position::of(*id, waiting)).collect());
        self.searches.insert(id, (search, positions));
        Ok(found)
    }
}

/// What needs nothing else to be known travels together with the beginning of the transaction.
struct FirstTrip {
    marks: Row,
    /// Of the rows that only reports name, those that were held: taken out, in one step instead of two.
    taken: Vec<Row>,
    /// Of the other rows that the batch names, those that are held.
    running: Vec<Row>,
    /// The queues that the batch names.
    queues: Vec<Row>,
    heads: Heads,
}

/// Ready rows from the heads of queues. They were taken on the guess that the queue still has no limits; what is not
/// needed stays locked until the batch ends, and others skip it.
type Heads = HashMap<QueueId, Head>;

struct Head {
    asked: usize,
    search: Search,
    rows: Vec<Row>,
}

impl Head {
    async fn take(store: &Postgres, conn: &Conn, statement: &Statement, id: QueueId, asked: usize) -> Result<Self> {
        let search = store.cursors.begin(id);
        let rows = Self::rows(conn, statement, id, asked, search.from).await?;
        Ok(Self { asked, search, rows })
    }

    async fn rows(conn: &Conn, statement: &Statement, id: QueueId, asked: usize, from: Position) -> Result<Vec<Row>> {
        let (priority, at) = (i16::from(from.priority), Time(from.at));
        conn.query(statement, &[&id.0, &(asked as i64), &priority, &at, &from.seq.0]).await
    }

    /// The first `limit` rows. A search behind the start that found too few looks at the start as well.
    async fn waiting(mut self, conn: &Conn, statement: &Statement, id: QueueId, limit: usize) -> Result<Candidates> {
        if self.rows.len() < limit && (self.asked < limit || self.search.from > Position::START) {
            self.rows = Self::rows(conn, statement, id, limit, Position::START).await?;
        }
        self.rows.truncate(limit);
        all(self.rows, rows::waiting)
    }
}

async fn artifacts(conn: &Conn, names: &BTreeSet<ArtifactName>, world: &mut World) -> Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    let (datasets, artifacts): (Vec<Uuid>, Vec<Uuid>) =
        names.iter().map(|name| (Uuid::from_u128(name.0.as_u128()), Uuid::from_u128(name.1.as_u128()))).unzip();
    for row in query(conn, sql::ARTIFACT_GET, &[&datasets, &artifacts]).await? {
        let id = |column| row.try_get::<_, Uuid>(column).map(|id| id.as_u128());
        let name = (DatasetId::from_u128(id(0)?), VersionId::from_u128(id(1)?));
        // A damaged row stands for nothing that anybody sends.
        let digest = row.try_get::<_, &[u8]>(2)?.try_into().unwrap_or_default();
        world.add_artifact(name, digest);
    }
    Ok(())
}

type Candidates = Vec<(TaskId, Waiting)>;

/// Searches for ready rows, and where each row stands that they found. A search that found fewer than it asked for has
/// seen all there is: there is no backlog.
pub type Searches = HashMap<QueueId, (Search, Option<Vec<Position>>)>;

/// Asks about these, unless there are none.
async fn ask<T>(conn: &Conn, statement: &Statement, about: &Vec<T>) -> Result<Vec<Row>>
where
    Vec<T>: ToSql + Sync,
{
    if about.is_empty() { Ok(Vec::new()) } else { conn.query(statement, &[about]).await }
}

async fn first_trip(store: &Postgres, conn: &Conn, load: &Load<'_>) -> Result<FirstTrip> {
    let names: Vec<&str> = load.queues.make.keys().chain(&load.queues.named).map(|name| &***name).collect();
    let reported = numbers(&load.tasks.reported);
    let named = numbers(load.tasks.rows.difference(&load.tasks.reported));
    let guessed = store.unlimited_heads(&load.claims);
    let statements = (
        conn.prepare_cached(sql::META_GET).await?,
        conn.prepare_cached(sql::RUNNING_LOCK).await?,
        conn.prepare_cached(if store.holds_queues() { sql::QUEUES_HOLD } else { sql::QUEUES_OF_NAMES }).await?,
        conn.prepare_cached(sql::READY_CANDIDATES).await?,
        conn.prepare_cached(sql::RUNNING_TAKE).await?,
    );
    // Polled in order, so sent in order.
    let ((), marks, (taken, running), queues, heads) = try_join5(
        conn.batch_execute("BEGIN"),
        conn.query_one(&statements.0, &[]),
        try_join(ask(conn, &statements.4, &reported), ask(conn, &statements.1, &named)),
        ask(conn, &statements.2, &names),
        try_join_all(guessed.into_iter().map(async |(id, limit)| {
            Ok::<_, tokio_postgres::Error>((id, Head::take(store, conn, &statements.3, id, limit).await?))
        })),
    )
    .await?;
    Ok(FirstTrip { marks, taken, running, queues, heads: heads.into_iter().collect() })
}

/// How tasks are looked for.
pub enum Look<'a> {
    /// Without a lock: they may move on.
    Read,
    /// Locked until the transaction ends. `running` are those that are held, if they were asked for before.
    Lock { scanned: &'a BTreeSet<Seq>, running: Option<Vec<Row>> },
}

/// The tasks of these rows, wherever they are.
///
/// A task that another transaction moves meanwhile can be missed by every single look, but it has a body, and then the
/// next look finds it. `None` if it still was not found after many.
pub async fn tasks(conn: &Conn, wanted: &BTreeSet<Seq>, how: Look<'_>) -> Result<Option<Vec<Task>>> {
    let mut found = Vec::with_capacity(wanted.len());
    let mut missing: BTreeSet<Seq> = wanted.clone();
    let nobody = BTreeSet::new();
    let (lock, scanned, mut running) = match how {
        Look::Read => (false, &nobody, None),
        Look::Lock { scanned, running } => (true, scanned, running),
    };
    let (running_again, scheduled, finished) = if lock {
        (sql::RUNNING_LOCK, sql::SCHEDULED_LOCK, sql::FINISHED_LOCK)
    } else {
        (sql::RUNNING_GET, sql::SCHEDULED_GET, sql::FINISHED_GET)
    };
    for _ in 0..SEARCHES {
        if missing.is_empty() {
            return Ok(Some(found));
        }
        let run = match running.take() {
            Some(run) => run,
            None => query(conn, running_again, &[&numbers(&missing)]).await?,
        };
        for (id, running) in all(run, rows::running)? {
            missing.remove(&id.seq());
            found.push(Task { id, place: Place::Running(running), body: None });
        }
        if missing.is_empty() {
            return Ok(Some(found));
        }
        let left = numbers(&missing);
        let scanned_rows = numbers(missing.intersection(scanned));
        let params: [&(dyn ToSql + Sync); 1] = [&left];
        let with_scanned: [&(dyn ToSql + Sync); 2] = [&left, &scanned_rows];
        let (ready, ready_params) =
            if lock { (sql::READY_LOCK, &with_scanned[..]) } else { (sql::READY_GET, &params[..]) };
        let statements = (
            conn.prepare_cached(ready).await?,
            conn.prepare_cached(scheduled).await?,
            conn.prepare_cached(finished).await?,
            conn.prepare_cached(sql::BODIES_GET).await?,
        );
        let (ready, scheduled, finished, bodies) = try_join4(
            conn.query(&statements.0, ready_params),
            conn.query(&statements.1, &params),
            conn.query(&statements.2, &params),
            conn.query(&statements.3, &params),
        )
        .await?;
        for (id, waiting) in all(ready, rows::waiting)? {
            missing.remove(&id.seq());
            found.push(Task { id, place: Place::Ready(waiting), body: None });
        }
        for (id, waiting) in all(scheduled, rows::waiting)? {
            missing.remove(&id.seq());
            found.push(Task { id, place: Place::Scheduled(waiting), body: None });
        }
        for (id, finished) in all(finished, rows::finished)? {
            missing.remove(&id.seq());
            found.push(Task { id, place: Place::Finished(finished), body: None });
        }
        if !missing.is_empty() {
            for (id, blocked) in blocked(conn, &missing, lock).await? {
                missing.remove(&id.seq());
                found.push(Task { id, place: Place::Blocked(blocked), body: None });
            }
        }
        let exist: HashSet<Seq> = all(bodies, rows::seq)?.into_iter().collect();
        missing.retain(|seq| exist.contains(seq) && !scanned.contains(seq));
    }
    Ok(None)
}

/// Tasks that depend on others of their runs. Their runs are locked first: a batch that ends a task of a run locks the
/// run before the tasks that depend on it.
async fn blocked(conn: &Conn, wanted: &BTreeSet<Seq>, lock: bool) -> Result<Vec<(TaskId, Blocked)>> {
    let found = all(query(conn, sql::BLOCKED_GET, &[&numbers(wanted)]).await?, rows::blocked)?;
    if !lock || found.is_empty() {
        return Ok(found);
    }
    let runs = found.iter().filter_map(|(_, blocked)| Some(blocked.carry.run.as_ref()?.run));
    let runs: BTreeSet<Seq> = runs.collect();
    query(conn, sql::RUNS_LOCK, &[&numbers(&runs)]).await?;
    let still: Vec<i64> = found.iter().map(|(id, _)| id.seq().0).collect();
    all(query(conn, sql::BLOCKED_LOCK, &[&still]).await?, rows::blocked)
}

pub async fn bodies(conn: &Conn, seqs: &[Seq]) -> Result<HashMap<Seq, Arc<Body>>> {
    if seqs.is_empty() {
        return Ok(HashMap::new());
    }
    let found = query(conn, sql::BODIES_GET, &[&numbers(seqs)]).await?;
    Ok(all(found, rows::body)?.into_iter().map(|body| (body.seq(), Arc::new(body))).collect())
}

/// What else is known of tasks that are loaded or not.
async fn tasks_of(conn: &Conn, load: &TaskLoad, world: &mut World) -> Result<()> {
    if !load.blocked.is_empty() {
        for (id, blocked) in all(query(conn, sql::BLOCKED_LOCK, &[&numbers(&load.blocked)]).await?, rows::blocked)? {
            world.add_task(Task { id, place: Place::Blocked(blocked), body: None });
        }
    }
    if !load.bodies.is_empty() {
        for body in all(query(conn, sql::BODIES_LIGHT, &[&numbers(&load.bodies)]).await?, rows::body)? {
            world.add_body(Arc::new(body));
        }
    }
    for (row, attempt) in attempts(conn, &load.attempts).await? {
        world.add_attempt(row, attempt);
    }
    if !load.named_attempts.is_empty() {
        let (rows, numbers): (Vec<i64>, Vec<i32>) =
            load.named_attempts.iter().map(|(row, number)| (row.0, number.cast_signed())).unzip();
        for (row, attempt) in all(query(conn, sql::ATTEMPTS_NAMED, &[&rows, &numbers]).await?, rows::attempt)? {
            world.add_attempt(row, attempt);
        }
    }
    // Should one of them be moved all the time, its key is taken for free, and the index says that it is not.
    for task in tasks(conn, &load.states, Look::Read).await?.unwrap_or_default() {
        world.add_state(task.id.seq(), task.place.state());
    }
    Ok(())
}

pub async fn attempts(conn: &Conn, seqs: &BTreeSet<Seq>) -> Result<Vec<(Seq, ClosedAttempt)>> {
    if seqs.is_empty() {
        return Ok(Vec::new());
    }
    all(query(conn, sql::ATTEMPTS_GET, &[&numbers(seqs)]).await?, rows::attempt)
}

/// Tenants, workspaces and keys, each as a column.
pub fn scope_columns(scopes: &[IdempotencyScope]) -> [Vec<&str>; 3] {
    let column = |pick: fn(&IdempotencyScope) -> &Arc<str>| scopes.iter().map(|scope| &**pick(scope)).collect();
    [column(|scope| &scope.0), column(|scope| &scope.1), column(|scope| &scope.2)]
}

async fn keys(conn: &Conn, scopes: &[IdempotencyScope], world: &mut World) -> Result<()> {
    if scopes.is_empty() {
        return Ok(());
    }
    let [tenants, workspaces, names] = scope_columns(scopes);
    for body in all(query(conn, sql::BODIES_OF_KEYS, &[&tenants, &workspaces, &names]).await?, rows::body)? {
        world.add_key(body);
    }
    Ok(())
}

/// Locks leases that are looked for by something else than their rows. `None` if others kept moving them.
///
/// A report takes the row of its lease out, and puts it back as a new one if it is refused. A lock that waited for the old row
/// does not see the new one, so that the rows which were there are counted before.
async fn leases(conn: &Conn, count: &str, lock: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Option<Vec<Row>>> {
    for _ in 0..SEARCHES {
        let (count, found) = try_join(query(conn, count, params), query(conn, lock, params)).await?;
        let there = count.first().map_or(Ok(0), |row| row.try_get::<_, i64>(0))?;
        if found.len() as i64 >= there {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Returns `false` if others kept moving a lease.
async fn repeats(conn: &Conn, load: &ClaimLoad<'_>, world: &mut World) -> Result<bool> {
    for (index, claim) in &load.repeats {
        let found = if let Some((worker, claim_id)) = claim.claimer.name() {
            leases(conn, sql::RUNNING_COUNT_OF_CLAIM, sql::RUNNING_OF_CLAIM, &[&&**worker, &&**claim_id]).await?
        } else {
            let ids: Vec<Uuid> = claim.attempt_ids().map(|id| Uuid::from_u128(id.as_u128())).collect();
            leases(conn, sql::RUNNING_COUNT_OF_ATTEMPTS, sql::RUNNING_OF_ATTEMPTS, &[&ids]).await?
        };
        let Some(found) = found else { return Ok(false) };
        world.add_claimed(*index, claim, all(found, rows::running)?);
    }
    Ok(true)
}

/// Returns `false` if others kept moving a lease.
async fn workers(conn: &Conn, load: &WorkerLoad<'_>, world: &mut World) -> Result<bool> {
    if !load.names.is_empty() {
        let names: Vec<&str> = load.names.iter().map(|name| &***name).collect();
        for row in query(conn, sql::WORKERS_GET, &[&names]).await? {
            let worker: WorkerId = row.try_get::<_, &str>(0)?.into();
            world.add_incarnation(&worker, row.try_get::<_, &str>(1)?.into());
        }
    }
    let limit = i64::try_from(VOID_ROWS).unwrap_or(i64::MAX);
    for hello in &load.held {
        let params: [&(dyn ToSql + Sync); 3] = [&&*hello.worker, &&*hello.incarnation, &limit];
        let held = leases(conn, sql::RUNNING_COUNT_OF_WORKER, sql::RUNNING_OF_WORKER, &params).await?;
        let Some(held) = held else { return Ok(false) };
        world.add_held(hello, all(held, rows::running)?);
    }
    Ok(true)
}

/// Grants of a queue with limits happen one batch at a time: it is locked, and its open attempts counted under the lock.
/// Returns `false` if a queue was deleted since it was loaded.
async fn queues(store: &Postgres, conn: &Conn, load: &QueueLoad<'_>, world: &mut World) -> Result<bool> {
    if !load.standing.is_empty() {
        for queue in store.cached_queues(conn, &load.standing).await? {
            world.add_queue(queue, 0);
        }
    }
    if !load.fresh.is_empty() {
        let ids: Vec<i32> = load.fresh.iter().map(|id| id.0).collect();
        for queue in all(query(conn, sql::QUEUES_OF_IDS, &[&ids]).await?, rows::queue)? {
            world.add_queue(queue, 0);
        }
    }
    if !load.limits.is_empty() {
        let ids: Vec<i32> = load.limits.iter().map(|id| id.0).collect();
        let locked = all(query(conn, sql::QUEUES_LOCK, &[&ids]).await?, rows::queue)?;
        if locked.len() < ids.len() {
            return Ok(false);
        }
        let mut running: HashMap<QueueId, u32> = HashMap::new();
        for row in query(conn, sql::COUNTS_RUNNING, &[&ids]).await? {
            let count: i64 = row.try_get(1)?;
            running.insert(QueueId(row.try_get(0)?), u32::try_from(count).unwrap_or(u32::MAX));
        }
        for queue in locked {
            let running = running.get(&queue.id).copied().unwrap_or(0);
            world.add_queue(queue, running);
        }
    }
    for id in &load.counted {
        if query(conn, sql::QUEUE_LOCK, &[&id.0]).await?.is_empty() {
            return Ok(false);
        }
        let mut counts = Counts::default();
        for row in query(conn, sql::COUNTS_GET, &[&id.0]).await? {
            counts.blocked += row.try_get::<_, i64>(0)?;
            counts.scheduled += row.try_get::<_, i64>(1)?;
            counts.ready += row.try_get::<_, i64>(2)?;
            counts.running += row.try_get::<_, i64>(3)?;
            counts.finished += row.try_get::<_, i64>(4)?;
            counts.dead_lettered += row.try_get::<_, i64>(5)?;
        }
        world.add_counts(*id, counts);
    }
    Ok(true)
}

/// The heads of the fairness values that come next.
async fn fair_candidates(conn: &Conn, load: &ReadyLoad, rotation: &Rotation) -> Result<Candidates> {
    let (queue, limit, cursor) = (load.queue.0, load.limit, rotation.after.as_deref());
    let mut values: Vec<String> = Vec::new();
    for from in [cursor, None] {
        let want = (limit - values.len()) as i64;
        if want > 0 {
            for row in query(conn, sql::READY_VALUES, &[&queue, &from, &want]).await? {
                let value: String = row.try_get(0)?;
                if !values.contains(&value) {
                    values.push(value);
                }
            }
        }
        if cursor.is_none() {
            break;
        }
    }
    values.truncate(limit);
    let mut each = limit.div_ceil(values.len().max(1));
    let mut found = loop {
        let params: [&(dyn ToSql + Sync); 3] = [&queue, &values, &(each as i64)];
        let found = all(query(conn, sql::READY_CANDIDATES_OF_VALUES, &params).await?, rows::waiting)?;
        let mut heads: HashMap<&str, usize> = HashMap::new();
        for value in found.iter().filter_map(|(_, waiting)| waiting.fair.as_deref()) {
            *heads.entry(value).or_default() += 1;
        }
        // Values with a long backlog make up for those with a short one.
        if found.len() >= limit || !heads.values().any(|count| *count == each) {
            break found;
        }
        each *= 2;
    };
    // A task that was submitted while the queue got its fairness key may have no value. It must not wait forever; few
    // rows are left to be looked through.
    if found.len() < limit {
        let params: [&(dyn ToSql + Sync); 2] = [&queue, &((limit - found.len()) as i64)];
        found.extend(all(query(conn, sql::READY_CANDIDATES_WITHOUT_VALUE, &params).await?, rows::waiting)?);
    }
    Ok(found)
}

/// The marks of life, after the clock's reading.
pub fn marks_of(row: &Row) -> Result<Marks> {
    Ok(Marks { alive_at: rows::time(row, 1)?, grace_until: rows::time(row, 2)?, gap_ended_at: rows::time(row, 3)? })
}

pub fn clock(row: &Row) -> Result<Timestamp> {
    rows::time(row, 0)
}
