//! Brings what a batch needs into memory, and locks it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use futures_util::future::{try_join, try_join_all, try_join4, try_join5};
use tenure_core::attempt::ClosedAttempt;
use tenure_core::batch::{KeyOwner, VOID_ROWS, World};
use tenure_core::command::{Command, Task};
use tenure_core::lease::Grace;
use tenure_core::queue::{Queue, QueueId, rotate};
use tenure_core::task::{Blocked, Body, Place, Running, Waiting};
use tenure_core::{Seq, TaskId, Timestamp};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Statement};
use uuid::Uuid;

use super::conn::{Conn, failed};
use super::cursors::{Position, Search};
use super::rows::{self, Result, Time};
use super::{Postgres, runs, sql};
use crate::error::StoreError;
use crate::needs::{self, ClaimPlan, Histories, Needs, in_grant_order};
use crate::store::Batch;

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

/// Begins the transaction and loads.
pub async fn world(
    store: &Postgres,
    conn: &Conn,
    batch: &Batch,
    needs: &Needs<'_>,
) -> std::result::Result<(World, Searches), StoreError> {
    let fail = |error| failed("load a batch", error);
    store.faults.before("begin")?;
    let FirstTrip { marks, taken, running, queues: named, mut heads } =
        first_trip(store, conn, needs).await.map_err(fail)?;
    store.faults.after("begin")?;
    let reading = store.clock.read_from(rows::time(&marks, 0).map_err(fail)?);
    let silent_ms = reading.alive.since(rows::time(&marks, 1).map_err(fail)?);
    let grace = Grace::from_marks(reading.now, silent_ms, rows::time(&marks, 2).map_err(fail)?);
    let mut world = World::new(reading.now, grace, batch.numbers);

    world.expect_tasks(needs.tasks());

    store.faults.before("load")?;
    let mut rows = needs.rows.clone();
    for (id, running) in all(taken, rows::running).map_err(fail)? {
        rows.remove(&id.seq());
        world.add_taken(Task { id, place: Place::Running(running), body: None });
    }
    let mut first = runs::cancelled_first(conn, needs).await.map_err(fail)?;
    // What was taken out is not found a second time.
    first.retain(|row| !world.tasks.contains_key(row));
    let mut running = running;
    if !first.is_empty() {
        running.extend(query(conn, sql::RUNNING_LOCK, &[&numbers(first.difference(&rows))]).await.map_err(fail)?);
        rows.extend(first);
    }
    let how = Look::Lock { scanned: &needs.scanned, running };
    let found = tasks(conn, &rows, how).await.map_err(fail)?;
    for task in found.ok_or(StoreError::Contention)? {
        world.add_task(task);
    }
    if !runs::named(conn, batch, needs, &mut world).await.map_err(fail)? {
        return Err(StoreError::Contention);
    }
    with_bodies(conn, needs, &mut world).await.map_err(fail)?;
    histories(conn, batch, needs, &mut world).await.map_err(fail)?;
    keys(conn, needs, &mut world).await.map_err(fail)?;
    repeats(conn, batch, needs, &mut world).await.map_err(fail)?;
    hellos(conn, needs, &mut world).await.map_err(fail)?;
    queues(store, conn, batch, needs, named, &mut world).await.map_err(fail)?;
    let searches = candidates(store, conn, needs, &mut heads, &mut world).await.map_err(fail)?;
    redrives(conn, batch).await.map_err(fail)?;
    store.faults.after("load")?;
    Ok((world, searches))
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

async fn first_trip(store: &Postgres, conn: &Conn, needs: &Needs<'_>) -> Result<FirstTrip> {
    let names: Vec<&str> = needs.make_queues.keys().chain(&needs.queues).map(|name| &***name).collect();
    let reported = numbers(&needs.reported);
    let named = numbers(needs.rows.difference(&needs.reported));
    let guessed = store.unlimited_heads(needs);
    let statements = (
        conn.prepare_cached(sql::META_GET).await?,
        conn.prepare_cached(sql::RUNNING_LOCK).await?,
        conn.prepare_cached(sql::QUEUES_OF_NAMES).await?,
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
    /// Locked until the transaction ends. `running` are those that are held, which was asked before.
    Lock { scanned: &'a BTreeSet<Seq>, running: Vec<Row> },
}

/// The tasks of these rows, wherever they stand.
///
/// A task that another transaction moves meanwhile can be missed by every single look, but it has a body, and then the
/// next look finds it. `None` if it still was not found after many.
pub async fn tasks(conn: &Conn, wanted: &BTreeSet<Seq>, how: Look<'_>) -> Result<Option<Vec<Task>>> {
    let mut found = Vec::with_capacity(wanted.len());
    let mut missing: BTreeSet<Seq> = wanted.clone();
    let nobody = BTreeSet::new();
    let (lock, scanned, mut running) = match how {
        Look::Read => (false, &nobody, None),
        Look::Lock { scanned, running } => (true, scanned, Some(running)),
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

/// Tasks that wait for others of their runs. Their runs are locked first: whoever ends a task of a run has the run before
/// it comes to those behind it.
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

async fn with_bodies(conn: &Conn, needs: &Needs<'_>, world: &mut World) -> Result<()> {
    if needs.bodies.is_empty() {
        return Ok(());
    }
    for body in all(query(conn, sql::BODIES_LIGHT, &[&numbers(&needs.bodies)]).await?, rows::body)? {
        if let Some(cell) = world.tasks.get_mut(&body.seq()) {
            cell.task.body = Some(Arc::new(body));
        }
    }
    Ok(())
}

async fn histories(conn: &Conn, batch: &Batch, needs: &Needs<'_>, world: &mut World) -> Result<()> {
    let Histories { whole, named } = needs::histories(batch, needs, world);
    let mut found = attempts(conn, &whole).await?;
    if !named.is_empty() {
        let seqs: Vec<i64> = named.iter().map(|(seq, _)| seq.0).collect();
        let attempts: Vec<i32> = named.iter().map(|(_, attempt)| attempt.cast_signed()).collect();
        found.extend(all(query(conn, sql::ATTEMPTS_NAMED, &[&seqs, &attempts]).await?, rows::attempt)?);
    }
    for (seq, attempt) in found {
        world.history.entry(seq).or_default().push(attempt);
    }
    Ok(())
}

pub async fn attempts(conn: &Conn, seqs: &BTreeSet<Seq>) -> Result<Vec<(Seq, ClosedAttempt)>> {
    if seqs.is_empty() {
        return Ok(Vec::new());
    }
    all(query(conn, sql::ATTEMPTS_GET, &[&numbers(seqs)]).await?, rows::attempt)
}

async fn keys(conn: &Conn, needs: &Needs<'_>, world: &mut World) -> Result<()> {
    if needs.keys.is_empty() {
        return Ok(());
    }
    let column = |pick: fn(&tenure_core::batch::IdempotencyScope) -> &Arc<str>| {
        needs.keys.iter().map(|scope| pick(scope).to_string()).collect::<Vec<_>>()
    };
    let (tenants, workspaces, names) = (column(|s| &s.0), column(|s| &s.1), column(|s| &s.2));
    let found = all(query(conn, sql::BODIES_OF_KEYS, &[&tenants, &workspaces, &names]).await?, rows::body)?;
    let wanted: BTreeSet<Seq> = found.iter().map(Body::seq).filter(|seq| !world.tasks.contains_key(seq)).collect();
    let Some(owners) = tasks(conn, &wanted, Look::Read).await? else { return Ok(()) };
    let loaded = world.tasks.values().map(|cell| &cell.task);
    let states: HashMap<Seq, _> = owners.iter().chain(loaded).map(|task| (task.id.seq(), task.place.state())).collect();
    for body in found {
        if let (Some(idempotency), Some(state)) = (&body.idempotency, states.get(&body.seq())) {
            let scope = (Arc::clone(&body.tenant), Arc::clone(&body.workspace), Arc::clone(&idempotency.key));
            let (id, owner, fingerprint) = (body.id, body.owner.clone(), idempotency.fingerprint);
            world.keys.insert(scope, KeyOwner { id, owner, fingerprint, state: *state });
        }
    }
    Ok(())
}

fn add_running(world: &mut World, found: &[(TaskId, Running)]) -> Vec<Seq> {
    for (id, running) in found {
        if !world.tasks.contains_key(&id.seq()) {
            world.add_task(Task { id: *id, place: Place::Running(running.clone()), body: None });
        }
    }
    found.iter().map(|(id, _)| id.seq()).collect()
}

/// Leases that the batch itself has taken out of the table already.
fn taken(world: &World, wanted: impl Fn(&Running) -> bool) -> Vec<(TaskId, Running)> {
    let taken = world.taken().filter(|(_, running)| wanted(running));
    taken.map(|(id, running)| (id, running.clone())).collect()
}

async fn repeats(conn: &Conn, batch: &Batch, needs: &Needs<'_>, world: &mut World) -> Result<()> {
    for (index, claim) in &needs.claims {
        let claimer = &claim.claimer;
        let found = if let Some((worker, claim_id)) = claimer.name() {
            query(conn, sql::RUNNING_OF_CLAIM, &[&&**worker, &&**claim_id]).await?
        } else if batch.retrying {
            let ids: Vec<Uuid> =
                (0..claim.max_jobs).map(|grant| Uuid::from_u128(claimer.seed.draw(grant).0.as_u128())).collect();
            query(conn, sql::RUNNING_OF_ATTEMPTS, &[&ids]).await?
        } else {
            continue;
        };
        let mut found = all(found, rows::running)?;
        found.extend(taken(world, |running| claimer.was_granted(running, claim.max_jobs)));
        found.sort_by_key(|(id, _)| id.seq());
        let held = add_running(world, &in_grant_order(claim, found));
        if !held.is_empty() {
            world.repeats.insert(*index, held);
        }
    }
    Ok(())
}

async fn hellos(conn: &Conn, needs: &Needs<'_>, world: &mut World) -> Result<()> {
    if needs.hellos.is_empty() {
        return Ok(());
    }
    let mut names: Vec<&str> = needs.hellos.iter().map(|hello| &*hello.worker).collect();
    names.sort_unstable();
    for row in query(conn, sql::WORKERS_GET, &[&names]).await? {
        world.incarnations.insert(row.try_get::<_, &str>(0)?.into(), row.try_get::<_, &str>(1)?.into());
    }
    let limit = i64::try_from(VOID_ROWS).unwrap_or(i64::MAX);
    for hello in &needs.hellos {
        // A process that is known has voided what there was.
        if world.incarnations.get(&hello.worker) == Some(&hello.incarnation) {
            continue;
        }
        let params: [&(dyn ToSql + Sync); 3] = [&&*hello.worker, &&*hello.incarnation, &limit];
        let mut found = all(query(conn, sql::RUNNING_OF_WORKER, &params).await?, rows::running)?;
        found.extend(taken(world, |running| {
            let older = running.incarnation.as_ref().is_some_and(|incarnation| *incarnation < hello.incarnation);
            running.lease.holder.as_ref() == Some(&hello.worker) && older
        }));
        found.sort_by_key(|(id, _)| id.seq());
        let held = add_running(world, &found);
        world.held.entry(Arc::clone(&hello.worker)).or_default().extend(held);
    }
    Ok(())
}

/// Loads the queues that the batch names and those in which its tasks stand. Queues whose limits a grant must respect,
/// and queues that are to be changed, are locked: grants of such a queue happen one batch at a time.
async fn queues(
    store: &Postgres,
    conn: &Conn,
    batch: &Batch,
    needs: &Needs<'_>,
    named: Vec<Row>,
    world: &mut World,
) -> Result<()> {
    let named = all(named, rows::queue)?;
    store.remember_queues(&named);
    let mut found: HashMap<QueueId, Queue> = named.into_iter().map(|queue| (queue.id, queue)).collect();
    let standing: BTreeSet<QueueId> = world.tasks.values().map(|cell| cell.task.place.queue()).collect();
    let unknown = standing.into_iter().filter(|id| !found.contains_key(id));
    // A grant respects the limits that hold now, and what is put back waits under the key that holds now.
    let (fresh, cached): (Vec<QueueId>, Vec<QueueId>) = {
        let by_task =
            queues_of(world, batch, |c| matches!(c, Command::ClaimTask(_) | Command::Retry(_) | Command::Redrive(_)));
        unknown.partition(|id| by_task.contains(id))
    };
    found.extend(store.cached_queues(conn, &cached).await?);
    if !fresh.is_empty() {
        let ids: Vec<i32> = fresh.iter().map(|id| id.0).collect();
        let fresh = all(query(conn, sql::QUEUES_OF_IDS, &[&ids]).await?, rows::queue)?;
        found.extend(fresh.into_iter().map(|queue| (queue.id, queue)));
    }

    let by_task = queues_of(world, batch, |command| matches!(command, Command::ClaimTask(_)));
    let locked: Vec<i32> = found
        .values()
        .filter(|queue| {
            let granted_from = needs.queues.contains(&queue.name) || by_task.contains(&queue.id);
            needs.changed.contains(&queue.name) || (granted_from && queue.is_limited())
        })
        .map(|queue| queue.id.0)
        .collect();
    let mut running: HashMap<QueueId, u32> = HashMap::new();
    if !locked.is_empty() {
        let fresh = all(query(conn, sql::QUEUES_LOCK, &[&locked]).await?, rows::queue)?;
        found.extend(fresh.into_iter().map(|queue| (queue.id, queue)));
        for row in query(conn, sql::COUNTS_RUNNING, &[&locked]).await? {
            let count: i64 = row.try_get(1)?;
            running.insert(QueueId(row.try_get(0)?), u32::try_from(count).unwrap_or(u32::MAX));
        }
    }
    for (id, queue) in found {
        let running = running.get(&id).copied().unwrap_or(0);
        world.add_queue(queue, running);
    }
    Ok(())
}

/// The queues in which the tasks of these commands stand.
fn queues_of(world: &World, batch: &Batch, wanted: impl Fn(&Command) -> bool) -> HashSet<QueueId> {
    let commands = batch.commands.iter().filter(|command| wanted(command));
    let rows =
        commands.flat_map(|command| command.task().map(|id| id.seq()).into_iter().chain(command.rows().to_vec()));
    rows.filter_map(|row| Some(world.tasks.get(&row)?.task.place.queue())).collect()
}

async fn candidates(
    store: &Postgres,
    conn: &Conn,
    needs: &Needs<'_>,
    heads: &mut Heads,
    world: &mut World,
) -> Result<Searches> {
    let mut searches = Searches::new();
    if needs.claims.is_empty() {
        return Ok(searches);
    }
    let plain: Statement = conn.prepare_cached(sql::READY_CANDIDATES).await?;
    let mut plan = ClaimPlan::new(needs, world);
    while let Some(round) = plan.next_round() {
        for (id, limit) in round {
            let fair = world.queues.get(&id).map(|cell| &cell.queue).filter(|q| q.settings.fairness_key.is_some());
            let found = if let Some(queue) = fair {
                fair_candidates(conn, queue, limit).await?
            } else {
                let head = match heads.remove(&id) {
                    Some(head) => head,
                    None => Head::take(store, conn, &plain, id, limit).await?,
                };
                let search = head.search;
                let found = head.waiting(conn, &plain, id, limit).await?;
                let backlog = found.len() == limit;
                let positions = backlog.then(|| found.iter().map(|(id, waiting)| Position::of(*id, waiting)).collect());
                searches.insert(id, (search, positions));
                found
            };
            plan.loaded(id, &found, limit, world);
            if found.is_empty() {
                world.empty.insert(id);
            }
            world.candidates.insert(id, found.iter().map(|(id, _)| id.seq()).collect());
            for (id, waiting) in found {
                if !world.tasks.contains_key(&id.seq()) {
                    world.add_task(Task { id, place: Place::Ready(waiting), body: None });
                }
            }
        }
    }
    Ok(searches)
}

/// The heads of the fairness values that come next, in the order in which grants rotate over them.
async fn fair_candidates(conn: &Conn, queue: &Queue, limit: usize) -> Result<Candidates> {
    let cursor = queue.fair_cursor.as_deref();
    let mut values: Vec<String> = Vec::new();
    for from in [cursor, None] {
        let want = (limit - values.len()) as i64;
        if want > 0 {
            for row in query(conn, sql::READY_VALUES, &[&queue.id.0, &from, &want]).await? {
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
        let params: [&(dyn ToSql + Sync); 3] = [&queue.id.0, &values, &(each as i64)];
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
        let params: [&(dyn ToSql + Sync); 2] = [&queue.id.0, &((limit - found.len()) as i64)];
        found.extend(all(query(conn, sql::READY_CANDIDATES_WITHOUT_VALUE, &params).await?, rows::waiting)?);
    }
    let mut found = rotate(found, cursor, |(_, waiting)| waiting.fair.clone().unwrap_or_default());
    found.truncate(limit);
    Ok(found)
}

/// Steps of one redrive happen one at a time.
async fn redrives(conn: &Conn, batch: &Batch) -> Result<()> {
    for command in batch.commands.iter() {
        if let Command::Redrive(redrive) = command {
            query(conn, sql::REDRIVE_LOCK, &[&Uuid::from_u128(redrive.redrive_id)]).await?;
        }
    }
    Ok(())
}

pub fn clock(row: &Row) -> Result<Timestamp> {
    rows::time(row, 0)
}
