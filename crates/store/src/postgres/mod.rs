//! Postgres: for fleets. Any number of control planes share one database, each correct at any time.
//!
//! The database's clock decides every expiry. A batch is one transaction: rows that it names are locked in their order,
//! candidates of claims are taken with `SKIP LOCKED`, and everything it writes travels with the commit.

mod address;
mod buffers;
mod bundles;
mod columns;
mod conn;
mod cursors;
mod dags;
mod deal;
mod hosts;
mod identity;
mod inspect;
mod job_wakes;
mod leases;
mod load;
mod notices;
mod outbox;
mod prune;
mod read;
mod rows;
mod runs;
mod sandboxes;
mod save;
mod schedules;
pub(crate) mod sql;
mod task_logs;
mod workers;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tenure_core::batch::{ClaimLoad, Done, QueueWrites, Session, World};
use tenure_core::command::{Numbers, Reach};
use tenure_core::queue::{Queue, QueueId, Transport};
use tenure_core::retention::{Pruned, Retention};
use tenure_core::run::{Run, Upstream};
use tenure_core::task::Running;
use tenure_core::time::Timestamp;
use tenure_core::{RunId, Seq, TaskId};
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::clock::Clock;
use crate::codec;
use crate::error::StoreError;
use crate::faults::Faults;
use crate::model::{
    AttemptRange, AttemptView, DeadLetterFilter, DefaultTransport, EventBatch, EventHorizon, NewRedrive, Page,
    QueueStats, QueueView, RedriveChange, RedriveCursor, RedriveFilter, RedriveView, RunFilter, RunMaterial, RunView,
    RunWeight, TaskFilter, TaskView, Whose,
};
use crate::schema;
use crate::store::{Batch, Due, Lane, PushesDue, Store};
pub use address::{AddressError, PostgresAddress, explain_tls};
pub(crate) use conn::failed;
use conn::{Conn, Pool, Pools};
use cursors::Cursors;
pub(crate) use inspect::{connect, inspect};
use load::{Loader, Searches, query};
use rows::Time;

/// An arbitrary number that all control planes share.
const SCHEMA_LOCK: i64 = 7_423_000_001;
const WORK_CONNECTIONS: usize = 4;
const HEARTBEAT_CONNECTIONS: usize = 2;
const READ_CONNECTIONS: usize = 4;
/// To tell others; one more listens.
const NOTICE_CONNECTIONS: usize = 1;
/// Settings of a queue that a finished attempt needs may be this old; those that a grant needs are always fresh.
const QUEUE_CACHE: Duration = Duration::from_secs(1);

/// A time after all others.
const LAST_MS: i64 = 1 << 48;

#[derive(Debug)]
pub struct Postgres {
    clock: Arc<Clock>,
    faults: Faults,
    transport: DefaultTransport,
    work: Pool,
    heartbeat: Pool,
    read: Pool,
    notices: Pool,
    address: PostgresAddress,
    cache: Mutex<Cache>,
    cursors: Cursors,
    /// Placements of sandboxes wait for each other here, so that they do not wait in the database with a connection each.
    placing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Cache {
    /// Names of queues that were made or seen. One of them may have been deleted since.
    made: HashSet<Arc<str>>,
    ids: HashMap<Arc<str>, QueueId>,
    queues: HashMap<QueueId, (Instant, Queue)>,
    /// When a batch last met another transaction.
    held_since: Option<Instant>,
}

impl Postgres {
    /// `sslmode` and `sslrootcert` of the address say which TLS: see [`PostgresAddress`].
    pub async fn open(url: &str, clock: Arc<Clock>) -> Result<Self, StoreError> {
        let failed = |error: AddressError| StoreError::Failed { operation: "read the address", source: error.into() };
        let mut address = PostgresAddress::parse(url).map_err(failed)?;
        address
            .config
            .application_name("tenure")
            .connect_timeout(Duration::from_secs(2))
            .tcp_user_timeout(Duration::from_secs(10))
            .keepalives_idle(Duration::from_secs(10))
            .keepalives_interval(Duration::from_secs(5))
            .keepalives_retries(3);
        let pools = Pools::new(&address);
        let store = Self {
            clock,
            faults: Faults::default(),
            transport: DefaultTransport::default(),
            work: pools.pool(WORK_CONNECTIONS, &[sql::SESSION, sql::SESSION_BATCHES])?,
            heartbeat: pools.pool(HEARTBEAT_CONNECTIONS, &[sql::SESSION, sql::SESSION_BATCHES])?,
            read: pools.pool(READ_CONNECTIONS, &[sql::SESSION])?,
            notices: pools.pool(NOTICE_CONNECTIONS, &[sql::SESSION, sql::SESSION_NOTICES])?,
            address,
            cache: Mutex::default(),
            cursors: Cursors::default(),
            placing: tokio::sync::Mutex::default(),
        };
        store.create_tables().await?;
        Ok(store)
    }

    /// Creates the tables in an empty database, under a lock: control planes that start together wait for each other.
    async fn create_tables(&self) -> Result<(), StoreError> {
        let conn = Conn::get(&self.work).await?;
        let session = conn.unbounded();
        let create = async {
            session.batch_execute("BEGIN; SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0").await?;
            session.execute(sql::SCHEMA_LOCK, &[&SCHEMA_LOCK]).await?;
            session.batch_execute(sql::SCHEMA_MAKE).await?;
            let found = session.query_one(sql::SCHEMA_GET, &[]).await?;
            let (found, oldest) = (found.try_get(0)?, found.try_get(1)?);
            if found == 0 {
                session.batch_execute(include_str!("schema.sql")).await?;
                session.execute(sql::SCHEMA_PUT, &[&schema::SCHEMA]).await?;
            }
            session.batch_execute("COMMIT").await?;
            Ok((found, oldest))
        };
        let (found, oldest) = create.await.map_err(|error| failed("create the tables", error))?;
        conn.give_back();
        schema::check(found, oldest)
    }

    /// Makes the queues that a batch needs, before its transaction: nobody waits for a lock on them. Of two makers of
    /// the same queue the first to insert owns it; the decision sees whose it is.
    async fn make_queues(&self, conn: &Conn, make: &BTreeMap<&Arc<str>, Option<&str>>) -> Result<(), StoreError> {
        let (missing, makers): (Vec<&str>, Vec<Option<&str>>) = {
            let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
            let missing = make.iter().filter(|(name, _)| !cache.made.contains(&***name));
            missing.map(|(name, maker)| (&***name, *maker)).unzip()
        };
        if missing.is_empty() {
            return Ok(());
        }
        self.faults.before("make queues")?;
        self.insert_queues(conn, &missing, &makers).await?;
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.made.extend(missing.into_iter().map(Arc::from));
        Ok(())
    }

    async fn insert_queues(&self, conn: &Conn, names: &[&str], makers: &[Option<&str>]) -> Result<(), StoreError> {
        let transport = codec::transport(self.transport.get());
        let made = query(conn, sql::QUEUES_MAKE, &[&names, &makers, &transport]).await;
        made.map(drop).map_err(|error| failed("make queues", error))
    }

    fn remember_queues(&self, found: &[Queue]) {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        for queue in found {
            if cache.ids.get(&queue.name) != Some(&queue.id) {
                cache.ids.insert(Arc::clone(&queue.name), queue.id);
            }
            cache.queues.insert(queue.id, (Instant::now(), queue.clone()));
        }
    }

    /// The queues that claims ask first and that had no limits a moment ago, with how many rows they want of each.
    fn unlimited_heads(&self, claims: &ClaimLoad<'_>) -> Vec<(QueueId, usize)> {
        let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let heads = claims.likely.iter().filter_map(|(name, wanted)| {
            let (at, queue) = cache.ids.get(*name).and_then(|id| cache.queues.get(id))?;
            let unlimited = at.elapsed() < QUEUE_CACHE && !queue.is_limited() && !queue.paused;
            unlimited.then_some((queue.id, *wanted))
        });
        heads.collect()
    }

    /// After the commit: what the claims took need not be passed again.
    fn move_cursors(&self, searches: Searches, world: &World) {
        for (queue, (search, positions)) in searches {
            // What the claims left over comes first.
            let left = world.left_over(queue);
            let to = positions.and_then(|positions| {
                let next = positions.len().checked_sub(left)?.min(positions.len() - 1);
                positions.get(next).copied()
            });
            self.cursors.found(queue, search, to);
        }
    }

    async fn cached_queues(&self, conn: &Conn, ids: &BTreeSet<QueueId>) -> rows::Result<Vec<Queue>> {
        let mut found = Vec::with_capacity(ids.len());
        let mut missing = Vec::new();
        {
            let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
            for id in ids {
                match cache.queues.get(id) {
                    Some((at, queue)) if at.elapsed() < QUEUE_CACHE => found.push(queue.clone()),
                    _ => missing.push(id.0),
                }
            }
        }
        if !missing.is_empty() {
            let loaded = query(conn, sql::QUEUES_OF_IDS, &[&missing]).await?;
            let loaded = loaded.iter().map(rows::queue).collect::<rows::Result<Vec<_>>>()?;
            self.remember_queues(&loaded);
            found.extend(loaded);
        }
        Ok(found)
    }

    fn forget_queues(&self, written: &QueueWrites) {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        for queue in written.changed.iter().chain(&written.deleted) {
            cache.queues.remove(&queue.id);
        }
        for queue in &written.deleted {
            cache.made.remove(&queue.name);
            cache.ids.remove(&queue.name);
        }
    }

    /// Settings of queues were changed by something that is not a batch.
    fn forget_settings(&self) {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner).queues.clear();
    }

    /// Another transaction was in the way of a batch. If it deleted a queue, what is remembered is wrong, and the next
    /// one may delete it again.
    fn forget_all_queues(&self) {
        let held_since = Some(Instant::now());
        *self.cache.lock().unwrap_or_else(PoisonError::into_inner) = Cache { held_since, ..Cache::default() };
    }

    /// Whether batches keep others from deleting the queues that they name. That costs a write for each, so usually they
    /// do not, and the few that meet a deletion are tried again.
    fn holds_queues(&self) -> bool {
        let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.held_since.is_some_and(|at| at.elapsed() < QUEUE_CACHE)
    }

    async fn run_batch(&self, batch: &Batch) -> Result<Done, StoreError> {
        let mut session = Session::new(&batch.commands, batch.numbers, batch.retrying);
        let conn = match batch.lane {
            Lane::Work => Conn::get(&self.work).await?,
            Lane::Heartbeat => Conn::get(&self.heartbeat).await?,
        };
        let mut loader = Loader::new(self, &conn);
        while let Some((load, world)) = session.next_load() {
            let step = if world.is_decided() { "draw consequences" } else { "load" };
            self.faults.before(step)?;
            loader.load(load, world).await?;
            self.faults.after(step)?;
        }
        let searches = loader.searches;
        let write = session.write();
        let saved = save::write(self, &conn, &write).await?;
        conn.give_back();
        self.forget_queues(&write.writes.queues);
        self.move_cursors(searches, session.world());
        self.cursors.inserted(&write.writes.tasks.ready);
        Ok(session.done(&write, saved))
    }

    async fn reading(&self, conn: &Conn) -> Result<Timestamp, StoreError> {
        let fail = |error| failed("tell the time", error);
        let statement = conn.prepare_cached(sql::CLOCK).await.map_err(fail)?;
        let row = conn.query_one(&statement, &[]).await.map_err(fail)?;
        Ok(self.clock.read_from(load::clock(&row).map_err(fail)?).now)
    }

    /// Begins a transaction that sees one moment, so that a task that moves meanwhile is seen in one place.
    async fn snapshot(&self) -> Result<Conn, StoreError> {
        let conn = Conn::get(&self.read).await?;
        conn.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            .await
            .map_err(|error| failed("begin a read", error))?;
        Ok(conn)
    }
}

async fn end(conn: Conn) -> Result<(), StoreError> {
    conn.batch_execute("COMMIT").await.map_err(|error| failed("end a read", error))?;
    conn.give_back();
    Ok(())
}

#[async_trait]
impl Store for Postgres {
    fn kind(&self) -> &'static str {
        "postgres"
    }

    /// While one batch waits for its commit, another can be loaded.
    fn committers(&self) -> usize {
        2
    }

    fn faults(&self) -> &Faults {
        &self.faults
    }

    fn set_default_transport(&self, transport: Transport) {
        self.transport.set(transport);
    }

    async fn execute(&self, batch: Batch) -> Result<Done, StoreError> {
        let done = self.run_batch(&batch).await;
        if matches!(done, Err(StoreError::Contention)) {
            self.forget_all_queues();
        }
        done
    }

    async fn reserve_numbers(&self, count: i64) -> Result<Numbers, StoreError> {
        let conn = Conn::get(&self.work).await?;
        self.faults.before("reserve numbers")?;
        let fail = |error| failed("reserve numbers", error);
        let rows = query(&conn, sql::META_RESERVE, &[&count]).await.map_err(fail)?;
        let end: i64 = rows[0].try_get(0).map_err(fail)?;
        conn.give_back();
        Ok(Numbers::new(end - count, end))
    }

    async fn mark_alive(&self) -> Result<Option<Timestamp>, StoreError> {
        let conn = Conn::get(&self.work).await?;
        let mark = async {
            conn.batch_execute("BEGIN").await?;
            let marks = query(&conn, sql::META_LOCK, &[]).await?;
            let reading = self.clock.read_from(rows::time(&marks[0], 0)?);
            let found = load::marks_of(&marks[0])?;
            let longest: Option<i64> = if found.show_outage(reading) {
                Some(query(&conn, sql::RUNNING_LONGEST_LEASE, &[]).await?[0].try_get(0)?)
            } else {
                None
            };
            let marks = found.renewed(reading, longest);
            let [alive_at, grace_until, gap_ended_at] = marks.all().map(Time);
            query(&conn, sql::META_ALIVE, &[&alive_at, &grace_until, &gap_ended_at]).await?;
            conn.batch_execute("COMMIT").await?;
            Ok(longest.map(|_| marks.grace_until))
        };
        let marked = mark.await.map_err(|error| failed("mark itself alive", error))?;
        conn.give_back();
        Ok(marked)
    }

    async fn check_schema(&self) -> Result<(), StoreError> {
        let conn = Conn::get(&self.read).await?;
        let fail = |error| failed("read the version of the schema", error);
        let found = query(&conn, sql::SCHEMA_GET, &[]).await.map_err(fail)?;
        conn.give_back();
        schema::check(found[0].try_get(0).map_err(fail)?, found[0].try_get(1).map_err(fail)?)
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        let conn = Conn::get(&self.read).await?;
        let now = self.reading(&conn).await?;
        conn.give_back();
        Ok(now)
    }

    async fn expired(&self, limit: usize) -> Result<Vec<Seq>, StoreError> {
        let conn = Conn::get(&self.read).await?;
        let now = self.reading(&conn).await?;
        let fail = |error| failed("find expired leases", error);
        let found = query(&conn, sql::TASKS_EXPIRED, &[&Time(now), &(limit as i64)]).await.map_err(fail)?;
        conn.give_back();
        found.iter().map(rows::seq).collect::<rows::Result<_>>().map_err(fail)
    }

    async fn due(&self, limit: usize) -> Result<Due, StoreError> {
        let conn = Conn::get(&self.read).await?;
        let now = self.reading(&conn).await?;
        let fail = |error| failed("find due tasks", error);
        let found = query(&conn, sql::SCHEDULED_DUE, &[&Time(now), &(limit as i64)]).await.map_err(fail)?;
        let next = query(&conn, sql::SCHEDULED_NEXT, &[&Time(now)]).await.map_err(fail)?;
        conn.give_back();
        let rows: Vec<Seq> = found.iter().map(rows::seq).collect::<rows::Result<_>>().map_err(fail)?;
        let next_at = if rows.len() == limit { Some(now) } else { rows::time_if(&next[0], 0).map_err(fail)? };
        Ok(Due { rows, next_at, now })
    }

    async fn push_queues(&self) -> Result<Vec<Queue>, StoreError> {
        let conn = Conn::get(&self.read).await?;
        let fail = |error| failed("find the queues that are pushed", error);
        let found = query(&conn, sql::QUEUES_OF_PUSH, &[]).await.map_err(fail)?;
        conn.give_back();
        found.iter().map(rows::queue).collect::<rows::Result<_>>().map_err(fail)
    }

    async fn pushes_due(&self, queues: &[(QueueId, usize)]) -> Result<PushesDue, StoreError> {
        let conn = Conn::get(&self.read).await?;
        let now = self.reading(&conn).await?;
        let fail = |error| failed("find due pushes", error);
        let ids: Vec<i32> = queues.iter().map(|(queue, _)| queue.0).collect();
        let rooms: Vec<i64> = queues.iter().map(|(_, room)| i64::try_from(*room).unwrap_or(i64::MAX)).collect();
        let found = query(&conn, sql::RUNNING_PUSHES_DUE, &[&Time(now), &ids, &rooms]).await.map_err(fail)?;
        let next = query(&conn, sql::RUNNING_PUSHES_NEXT, &[&Time(now), &ids]).await.map_err(fail)?;
        conn.give_back();
        let row = |row: &tokio_postgres::Row| Ok((QueueId(row.try_get(0)?), Seq(row.try_get(1)?)));
        let rows = found.iter().map(row).collect::<rows::Result<_>>().map_err(fail)?;
        Ok(PushesDue { rows, next_at: rows::time_if(&next[0], 0).map_err(fail)?, now })
    }

    async fn in_flight(&self, id: TaskId) -> Result<Option<Running>, StoreError> {
        let conn = Conn::get(&self.read).await?;
        let fail = |error| failed("find the attempt in flight", error);
        let found = query(&conn, sql::RUNNING_GET, &[&vec![id.seq().0]]).await.map_err(fail)?;
        conn.give_back();
        let found = found.first().map(rows::running).transpose().map_err(fail)?;
        Ok(found.filter(|(found, _)| *found == id).map(|(_, running)| running))
    }

    async fn ready_in(&self, queues: &[Arc<str>], limit: usize) -> Result<Vec<(Arc<str>, usize)>, StoreError> {
        let conn = Conn::get(&self.read).await?;
        let fail = |error| failed("find ready tasks", error);
        let names: Vec<&str> = queues.iter().map(|name| &**name).collect();
        let found = query(&conn, sql::READY_EXISTS, &[&names, &(limit as i64)]).await.map_err(fail)?;
        conn.give_back();
        let counts = found.iter().map(|row| {
            let count: i64 = row.try_get(1)?;
            Ok((Arc::from(row.try_get::<_, &str>(0)?), usize::try_from(count).unwrap_or(0)))
        });
        let counts = counts.collect::<rows::Result<Vec<_>>>().map_err(fail)?;
        Ok(counts.into_iter().filter(|(_, count)| *count > 0).collect())
    }

    async fn prune(&self, retention: &Retention, after: Seq, limit: usize) -> Result<Pruned, StoreError> {
        let conn = Conn::get(&self.work).await?;
        let now = self.reading(&conn).await?;
        let pruned = prune::step(&conn, retention, after, limit, now).await;
        let pruned = pruned.map_err(|error| failed("prune finished tasks", error))?;
        conn.give_back();
        Ok(pruned)
    }

    async fn saw_workers(&self, queues: &[Arc<str>]) -> Result<(), StoreError> {
        let conn = Conn::get(&self.work).await?;
        let now = self.reading(&conn).await?;
        let names: Vec<&str> = queues.iter().map(|name| &**name).collect();
        query(&conn, sql::QUEUE_SEEN_PUT, &[&names, &Time(now)])
            .await
            .map_err(|error| failed("note workers", error))?;
        conn.give_back();
        Ok(())
    }

    async fn task(&self, id: TaskId, reach: &Reach) -> Result<Option<TaskView>, StoreError> {
        let conn = self.snapshot().await?;
        let found = read::task(&conn, id, reach).await.map_err(|error| failed("read a task", error))?;
        end(conn).await?;
        Ok(found)
    }

    async fn tasks(&self, filter: &TaskFilter) -> Result<Page<TaskView>, StoreError> {
        let conn = self.snapshot().await?;
        let page = read::tasks(&conn, filter).await.map_err(|error| failed("list tasks", error))?;
        end(conn).await?;
        Ok(page)
    }

    async fn attempts(&self, id: TaskId, reach: &Reach) -> Result<Option<Vec<AttemptView>>, StoreError> {
        let conn = self.snapshot().await?;
        let found = read::attempts(&conn, id, reach).await.map_err(|error| failed("read attempts", error))?;
        end(conn).await?;
        Ok(found)
    }

    async fn attempts_page(
        &self,
        id: TaskId,
        reach: &Reach,
        asked: AttemptRange,
    ) -> Result<Option<Page<AttemptView>>, StoreError> {
        let conn = self.snapshot().await?;
        let found =
            read::attempts_page(&conn, id, reach, asked).await.map_err(|error| failed("read attempts", error))?;
        end(conn).await?;
        Ok(found)
    }

    async fn queues(
        &self,
        tenant: Option<&str>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<QueueStats>, StoreError> {
        let conn = self.snapshot().await?;
        let after = after.unwrap_or_default();
        let page = read::queues(&conn, tenant, after, limit).await.map_err(|error| failed("list queues", error))?;
        end(conn).await?;
        Ok(page)
    }

    async fn queue(&self, id: QueueId) -> Result<Option<QueueView>, StoreError> {
        let conn = Conn::get(&self.read).await?;
        let now = self.reading(&conn).await?;
        let found = read::queue(&conn, id, now).await.map_err(|error| failed("read a queue", error))?;
        conn.give_back();
        Ok(found)
    }

    async fn queue_name(&self, id: QueueId) -> Result<Option<Arc<str>>, StoreError> {
        let conn = Conn::get(&self.read).await?;
        let fail = |error| failed("read the name of a queue", error);
        let found = read::queue_names(&conn, &[id.0]).await.map_err(fail)?;
        conn.give_back();
        Ok(found.into_values().next())
    }

    async fn whose(&self, seqs: &[Seq]) -> Result<HashMap<Seq, Whose>, StoreError> {
        let conn = Conn::get(&self.read).await?;
        let fail = |error| failed("read whose tasks these are", error);
        let wanted: Vec<i64> = seqs.iter().map(|seq| seq.0).collect();
        let found = query(&conn, sql::BODIES_WHOSE, &[&wanted]).await.map_err(fail)?;
        conn.give_back();
        let whose = found.iter().map(|row| {
            let (tenant, owner) = (rows::text(row, 1)?, rows::text_if(row, 2)?);
            Ok((rows::seq(row)?, Whose { tenant, owner }))
        });
        whose.collect::<rows::Result<_>>().map_err(fail)
    }

    async fn dead_letters(&self, filter: &DeadLetterFilter) -> Result<Page<TaskView>, StoreError> {
        let conn = self.snapshot().await?;
        let page = read::dead_letters(&conn, filter).await.map_err(|error| failed("list dead letters", error))?;
        end(conn).await?;
        Ok(page)
    }

    async fn run(&self, id: RunId, reach: &Reach) -> Result<Option<RunView>, StoreError> {
        let conn = self.snapshot().await?;
        let found = runs::view(&conn, id, reach).await.map_err(|error| failed("read a run", error))?;
        end(conn).await?;
        Ok(found)
    }

    async fn runs(&self, filter: &RunFilter) -> Result<Page<Run>, StoreError> {
        let conn = Conn::get(&self.read).await?;
        let page = runs::list(&conn, filter).await.map_err(|error| failed("list runs", error))?;
        conn.give_back();
        Ok(page)
    }

    async fn run_weight(&self, id: RunId, reach: &Reach) -> Result<Option<RunWeight>, StoreError> {
        let conn = self.snapshot().await?;
        let found = runs::weight(&conn, id, reach).await.map_err(|error| failed("weigh a run", error))?;
        end(conn).await?;
        Ok(found)
    }

    async fn run_material(&self, id: RunId, reach: &Reach) -> Result<Option<RunMaterial>, StoreError> {
        let conn = self.snapshot().await?;
        let found = runs::material(&conn, id, reach).await.map_err(|error| failed("read a run", error))?;
        end(conn).await?;
        Ok(found)
    }

    async fn upstream(&self, row: Seq) -> Result<Vec<Upstream>, StoreError> {
        let conn = self.snapshot().await?;
        let found = runs::upstream(&conn, row).await.map_err(|error| failed("read what a task waits for", error))?;
        end(conn).await?;
        Ok(found)
    }

    async fn count_dead_letters(&self, filter: &RedriveFilter) -> Result<u64, StoreError> {
        let conn = Conn::get(&self.read).await?;
        let count =
            read::count_dead_letters(&conn, filter).await.map_err(|error| failed("count dead letters", error))?;
        conn.give_back();
        Ok(count)
    }

    async fn start_redrive(&self, redrive: &NewRedrive) -> Result<RedriveView, StoreError> {
        let conn = Conn::get(&self.work).await?;
        let now = self.reading(&conn).await?;
        let started =
            read::start_redrive(&conn, redrive, now).await.map_err(|error| failed("start a redrive", error))?;
        conn.give_back();
        Ok(started)
    }

    async fn redrive(&self, redrive_id: u128, reach: &Reach) -> Result<Option<RedriveView>, StoreError> {
        let (id, tenant, owner) = (Uuid::from_u128(redrive_id), reach.tenant(), reach.owner());
        let found = self.list("read a redrive", sql::REDRIVE_GET, &[&id, &tenant, &owner], read::redrive).await?;
        Ok(found.into_iter().next())
    }

    async fn redrives(
        &self,
        reach: &Reach,
        after: Option<RedriveCursor>,
        limit: usize,
    ) -> Result<Vec<RedriveView>, StoreError> {
        let before = Time(after.map_or(Timestamp::from_millis(LAST_MS), |after| after.started_at));
        let id = Uuid::from_u128(after.map_or(u128::MAX, |after| after.redrive_id));
        let (tenant, owner, limit) = (reach.tenant(), reach.owner(), limit as i64);
        let params: [&(dyn ToSql + Sync); 5] = [&before, &tenant, &owner, &id, &limit];
        self.list("list redrives", sql::REDRIVES_LIST, &params, read::redrive).await
    }

    async fn change_redrive(&self, redrive_id: u128, reach: &Reach, change: RedriveChange) -> Result<bool, StoreError> {
        let (paused, canceled) = (change == RedriveChange::Pause, change == RedriveChange::Cancel);
        self.outbox_write("change a redrive", async |conn, _| {
            let (id, tenant, owner) = (Uuid::from_u128(redrive_id), reach.tenant(), reach.owner());
            let changed = query(conn, sql::REDRIVE_SET, &[&id, &tenant, &owner, &paused, &canceled]).await?;
            Ok(!changed.is_empty())
        })
        .await
    }

    async fn open_redrives(&self) -> Result<Vec<RedriveView>, StoreError> {
        let conn = Conn::get(&self.read).await?;
        let fail = |error| failed("list redrives", error);
        let found = query(&conn, sql::REDRIVES_OPEN, &[]).await.map_err(fail)?;
        conn.give_back();
        found.iter().map(read::redrive).collect::<rows::Result<_>>().map_err(fail)
    }

    async fn redrive_matches(&self, redrive: &RedriveView, limit: usize) -> Result<Vec<Seq>, StoreError> {
        let conn = Conn::get(&self.read).await?;
        let found = read::dead_letter_rows(&conn, &redrive.filter, &Reach::All, redrive.cursor, limit)
            .await
            .map_err(|error| failed("find dead letters", error))?;
        conn.give_back();
        Ok(found)
    }

    async fn events(&self, after: i64, limit: usize) -> Result<Vec<EventBatch>, StoreError> {
        let conn = Conn::get(&self.read).await?;
        let fail = |error| failed("read events", error);
        let found = query(&conn, sql::EVENTS_AFTER, &[&after, &(limit as i64)]).await.map_err(fail)?;
        conn.give_back();
        found.iter().map(read::event).collect::<rows::Result<_>>().map_err(fail)
    }

    async fn event_bounds(&self) -> Result<(i64, i64), StoreError> {
        let conn = Conn::get(&self.read).await?;
        let fail = |error| failed("read events", error);
        let found = query(&conn, sql::EVENT_BOUNDS, &[]).await.map_err(fail)?;
        conn.give_back();
        Ok((found[0].try_get(0).map_err(fail)?, found[0].try_get(1).map_err(fail)?))
    }

    async fn event_horizon(&self) -> Result<EventHorizon, StoreError> {
        let conn = Conn::get(&self.read).await?;
        let fail = |error| failed("read events", error);
        let found = query(&conn, sql::EVENT_HORIZON, &[]).await.map_err(fail)?;
        conn.give_back();
        Ok(EventHorizon { oldest: found[0].try_get(0).map_err(fail)?, next: found[0].try_get(1).map_err(fail)? })
    }
}
