//! SQLite: the default. One file, one process, one thread that writes; readers stand apart.
//!
//! WAL with `synchronous=FULL`: a commit that was answered survives the loss of power.

mod buffers;
mod bundles;
mod dags;
mod file;
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
mod writer;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, OpenFlags, OptionalExtension, TransactionBehavior, params};
use tenure_core::batch::{Done, QueueWrites, Session};
use tenure_core::command::{Numbers, Reach};
use tenure_core::mutant;
use tenure_core::queue::{JOB_WAKES, Queue, QueueId, Transport};
use tenure_core::retention::{Pruned, Retention};
use tenure_core::run::{Run, Upstream};
use tenure_core::task::Running;
use tenure_core::time::Timestamp;
use tenure_core::{RunId, Seq, TaskId};

use crate::clock::Clock;
use crate::error::StoreError;
use crate::faults::Faults;
use crate::model::{
    AttemptRange, AttemptView, DeadLetterFilter, DefaultTransport, EventBatch, EventHorizon, NewRedrive, Page,
    QueueStats, QueueView, RedriveChange, RedriveCursor, RedriveFilter, RedriveView, RunFilter, RunMaterial, RunView,
    RunWeight, TaskFilter, TaskView, Whose,
};
use crate::schema;
use crate::store::{Batch, Due, Lane, PushesDue, Store};
pub(crate) use inspect::inspect;
use writer::Writer;

const READERS: usize = 4;

#[derive(Debug)]
pub struct Sqlite {
    path: PathBuf,
    clock: Arc<Clock>,
    faults: Arc<Faults>,
    transport: DefaultTransport,
    readers: Arc<Mutex<Vec<Connection>>>,
    writer: Writer,
    /// Keeps other processes out while it is open.
    _locks: file::Locks,
}

/// What the writer thread owns.
#[derive(Debug)]
pub struct Db {
    conn: Connection,
    cache: Cache,
}

/// Queues change rarely and are read with every batch. Only this process writes them.
#[derive(Debug, Default)]
pub struct Cache {
    queues: Option<Queues>,
    transport: DefaultTransport,
}

#[derive(Debug, Default)]
struct Queues {
    names: HashMap<Arc<str>, QueueId>,
    by_id: HashMap<QueueId, Queue>,
}

impl Cache {
    fn reload(&mut self, tx: &Connection) -> rusqlite::Result<()> {
        let queues: Vec<Queue> =
            tx.prepare_cached(sql::QUEUES_ALL)?.query_map([], rows::queue)?.collect::<Result<_, _>>()?;
        let names = queues.iter().map(|queue| (Arc::clone(&queue.name), queue.id)).collect();
        self.queues = Some(Queues { names, by_id: queues.into_iter().map(|queue| (queue.id, queue)).collect() });
        Ok(())
    }

    fn loaded(&mut self, tx: &Connection) -> rusqlite::Result<&Queues> {
        if self.queues.is_none() {
            self.reload(tx)?;
        }
        Ok(self.queues.get_or_insert_default())
    }

    fn by_name(&mut self, tx: &Connection, name: &str) -> rusqlite::Result<Option<Queue>> {
        let queues = self.loaded(tx)?;
        Ok(queues.names.get(name).and_then(|id| queues.by_id.get(id)).cloned())
    }

    fn by_id(&mut self, tx: &Connection, id: QueueId) -> rusqlite::Result<Option<Queue>> {
        Ok(self.loaded(tx)?.by_id.get(&id).cloned())
    }

    fn update(&mut self, written: &QueueWrites) {
        if let Some(queues) = &mut self.queues {
            queues.by_id.extend(written.changed.iter().map(|queue| (queue.id, queue.clone())));
            for queue in &written.deleted {
                queues.names.remove(&queue.name);
                queues.by_id.remove(&queue.id);
            }
        }
    }
}

impl Db {
    /// After a failure the cache may hold what was rolled back.
    fn forget_cache(&mut self) {
        self.cache.queues = None;
    }
}

/// Names the operation and sorts errors into those that pass and those that do not.
pub(crate) fn failed(operation: &'static str, error: rusqlite::Error) -> StoreError {
    use rusqlite::ErrorCode as Code;
    let passing = matches!(
        error.sqlite_error_code(),
        Some(
            Code::SystemIoFailure
                | Code::DatabaseBusy
                | Code::DatabaseLocked
                | Code::CannotOpen
                | Code::ReadOnly
                | Code::OutOfMemory
        )
    );
    let source = Box::new(error);
    if source.sqlite_error_code() == Some(Code::DiskFull) {
        return StoreError::DiskFull { operation, source };
    }
    if passing { StoreError::Unavailable { operation, source } } else { StoreError::Failed { operation, source } }
}

impl Sqlite {
    pub async fn open(path: &Path, clock: Arc<Clock>) -> Result<Self, StoreError> {
        let path = path.to_owned();
        let opened = tokio::task::spawn_blocking(move || Self::open_blocking(path, clock)).await;
        opened.map_err(|error| StoreError::Failed { operation: "open", source: error.into() })?
    }

    fn open_blocking(path: PathBuf, clock: Arc<Clock>) -> Result<Self, StoreError> {
        let locks = file::lock(&path)?;
        let opened = |error: rusqlite::Error| match file::is_damage(&error) {
            true => file::damaged(&path, error.to_string()),
            false => failed("open", error),
        };
        let mut conn = Connection::open(&path).map_err(opened)?;
        configure(&conn).map_err(opened)?;
        file::check(&conn, &path)?;
        let found: i64 = conn.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(opened)?;
        file::identify(&conn, &path, found == 0)?;
        create_tables(&mut conn)?;
        leases::end_all(&conn).map_err(|error| failed("open", error))?;
        let marks = load::marks(&conn).map_err(|error| failed("open", error))?;
        clock.not_before(marks.alive_at);
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let readers = (0..READERS).map(|_| {
            let reader = Connection::open_with_flags(&path, flags)?;
            reader.busy_timeout(Duration::from_secs(5))?;
            reader.set_prepared_statement_cache_capacity(64);
            Ok(reader)
        });
        let readers = readers.collect::<Result<Vec<_>, _>>().map_err(|error| failed("open", error))?;
        let cache = Cache::default();
        let transport = cache.transport.clone();
        let writer = Writer::start(Db { conn, cache }, path.clone())
            .map_err(|error| StoreError::Failed { operation: "start the writer", source: error.into() })?;
        let readers = Arc::new(Mutex::new(readers));
        Ok(Self { path, clock, faults: Arc::default(), transport, readers, writer, _locks: locks })
    }

    async fn write<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.write_in(Lane::Work, operation, work).await
    }

    async fn write_in<T: Send + 'static>(
        &self,
        lane: Lane,
        operation: &'static str,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let faults = Arc::clone(&self.faults);
        self.writer
            .run(lane, move |db| {
                faults.before(operation)?;
                let tx = db
                    .conn
                    .transaction_with_behavior(TransactionBehavior::Immediate)
                    .map_err(|error| failed(operation, error))?;
                let outcome = work(&tx).map_err(|error| failed(operation, error))?;
                tx.commit().map_err(|error| failed(operation, error))?;
                faults.after(operation)?;
                Ok(outcome)
            })
            .await
    }

    async fn read<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let readers = Arc::clone(&self.readers);
        let path = self.path.clone();
        let read = tokio::task::spawn_blocking(move || {
            let idle = readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut reader = match idle {
                Some(reader) => reader,
                None => Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_ONLY)?,
            };
            // One snapshot for all statements of the read: a task that moves meanwhile is seen in one place.
            let tx = reader.transaction()?;
            let outcome = work(&tx);
            drop(tx);
            let mut idle = readers.lock().unwrap_or_else(PoisonError::into_inner);
            if idle.len() < READERS {
                idle.push(reader);
            }
            outcome
        });
        match read.await {
            Ok(outcome) => outcome.map_err(|error| failed(operation, error)),
            Err(error) => Err(StoreError::Failed { operation, source: error.into() }),
        }
    }
}

fn configure(conn: &Connection) -> rusqlite::Result<()> {
    conn.pragma_update(None, "journal_mode", "WAL")?;
    let synchronous = if mutant!("commit-not-synced") { "NORMAL" } else { "FULL" };
    conn.pragma_update(None, "synchronous", synchronous)?;
    conn.pragma_update(None, "cache_size", -16_000)?;
    conn.busy_timeout(Duration::from_secs(5))?;
    conn.set_prepared_statement_cache_capacity(256);
    Ok(())
}

/// Creates the tables in an empty database.
fn create_tables(conn: &mut Connection) -> Result<(), StoreError> {
    let create = |conn: &mut Connection| {
        let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let found: i64 = tx.pragma_query_value(None, "user_version", |row| row.get(0))?;
        if found == 0 {
            tx.execute_batch(include_str!("schema.sql"))?;
            tx.pragma_update(None, "user_version", schema::SCHEMA)?;
        }
        tx.commit()?;
        Ok(found)
    };
    let found = create(conn).map_err(|error| failed("create the tables", error))?;
    schema::check(found, found)
}

fn execute(db: &mut Db, batch: &Batch, clock: &Clock, faults: &Faults) -> Result<Done, StoreError> {
    let mut session = Session::new(&batch.commands, batch.numbers, batch.retrying);
    let reading = clock.read_process();
    faults.before("begin")?;
    let tx =
        db.conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(|error| failed("begin", error))?;
    while let Some((load, world)) = session.next_load() {
        let step = if world.is_decided() { "draw consequences" } else { "load" };
        faults.before(step)?;
        load::load(&tx, &mut db.cache, reading, load, world).map_err(|error| failed("load a batch", error))?;
        faults.after(step)?;
    }
    let write = session.write();
    let saved = save::write(&tx, &write, faults)?;
    faults.before("commit")?;
    if mutant!("commit-not-made", every 40) {
        return Ok(session.done(&write, saved));
    }
    tx.commit().map_err(|error| failed("commit", error))?;
    faults.after("commit")?;
    db.cache.update(&write.writes.queues);
    Ok(session.done(&write, saved))
}

#[async_trait]
impl Store for Sqlite {
    fn kind(&self) -> &'static str {
        "sqlite"
    }

    /// One thread writes; a second batch would only wait for it.
    fn committers(&self) -> usize {
        1
    }

    fn is_full(&self) -> bool {
        self.writer.is_full()
    }

    fn faults(&self) -> &Faults {
        &self.faults
    }

    fn set_default_transport(&self, transport: Transport) {
        self.transport.set(transport);
    }

    async fn execute(&self, batch: Batch) -> Result<Done, StoreError> {
        let (clock, faults) = (Arc::clone(&self.clock), Arc::clone(&self.faults));
        self.writer.run(batch.lane, move |db| execute(db, &batch, &clock, &faults)).await
    }

    async fn reserve_numbers(&self, count: i64) -> Result<Numbers, StoreError> {
        let reserve =
            move |tx: &Connection| tx.prepare_cached(sql::META_RESERVE)?.query_row([count], |row| row.get::<_, i64>(0));
        let end = self.write("reserve numbers", reserve).await?;
        Ok(Numbers::new(end - count, end))
    }

    async fn mark_alive(&self) -> Result<Option<Timestamp>, StoreError> {
        let clock = Arc::clone(&self.clock);
        self.write("mark itself alive", move |tx| {
            let reading = clock.read_process();
            let marks = load::marks(tx)?;
            let longest: Option<i64> = if marks.show_outage(reading) {
                Some(tx.prepare_cached(sql::RUNNING_LONGEST_LEASE)?.query_row([], |row| row.get(0))?)
            } else {
                None
            };
            let marks = marks.renewed(reading, longest);
            tx.prepare_cached(sql::META_ALIVE)?.execute(marks.all().map(Timestamp::as_millis))?;
            Ok(longest.map(|_| marks.grace_until))
        })
        .await
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        // A store that cannot be read has no time to tell either.
        self.read("tell the time", |tx| load::marks(tx).map(drop)).await?;
        Ok(self.clock.read_process().now)
    }

    async fn expired(&self, limit: usize) -> Result<Vec<Seq>, StoreError> {
        let now = self.clock.read_process().now.as_millis();
        self.read("find expired leases", move |tx| {
            tx.prepare_cached(sql::TASKS_EXPIRED)?.query_map([now, limit as i64], |row| row.get(0).map(Seq))?.collect()
        })
        .await
    }

    async fn due(&self, limit: usize) -> Result<Due, StoreError> {
        let now = self.clock.read_process().now;
        self.read("find due tasks", move |tx| {
            let rows: Vec<Seq> = tx
                .prepare_cached(sql::SCHEDULED_DUE)?
                .query_map([now.as_millis(), limit as i64], |row| row.get(0).map(Seq))?
                .collect::<Result<_, _>>()?;
            let next: Option<i64> =
                tx.prepare_cached(sql::SCHEDULED_NEXT)?.query_row([now.as_millis()], |row| row.get(0))?;
            let next_at = if rows.len() == limit { Some(now) } else { next.map(Timestamp::from_millis) };
            Ok(Due { rows, next_at, now })
        })
        .await
    }

    async fn push_queues(&self) -> Result<Vec<Queue>, StoreError> {
        self.read("find the queues that are pushed", move |tx| {
            tx.prepare_cached(sql::QUEUES_OF_PUSH)?.query_map([], rows::queue)?.collect()
        })
        .await
    }

    async fn pushes_due(&self, queues: &[(QueueId, usize)]) -> Result<PushesDue, StoreError> {
        let now = self.clock.read_process().now;
        let queues = queues.to_vec();
        self.read("find due pushes", move |tx| {
            let (mut due, mut next) = (PushesDue { now, ..PushesDue::default() }, None);
            for (queue, room) in queues {
                let room = i64::try_from(room).unwrap_or(i64::MAX);
                let mut found = tx.prepare_cached(sql::RUNNING_PUSHES_DUE)?;
                for row in found.query_map(params![queue.0, now.as_millis(), room], |row| row.get(0))? {
                    due.rows.push((queue, Seq(row?)));
                }
                let later: Option<i64> = tx
                    .prepare_cached(sql::RUNNING_PUSHES_NEXT)?
                    .query_row(params![queue.0, now.as_millis()], |row| row.get(0))?;
                next = next.into_iter().chain(later).min();
            }
            due.next_at = next.map(Timestamp::from_millis);
            Ok(due)
        })
        .await
    }

    async fn in_flight(&self, id: TaskId) -> Result<Option<Running>, StoreError> {
        self.read("find the attempt in flight", move |tx| {
            let found = tx.prepare_cached(sql::RUNNING_GET)?.query_row([id.seq().0], rows::running).optional()?;
            Ok(found.filter(|(found, _)| *found == id).map(|(_, running)| running))
        })
        .await
    }

    async fn ready_in(&self, queues: &[Arc<str>], limit: usize) -> Result<Vec<(Arc<str>, usize)>, StoreError> {
        let queues = queues.to_vec();
        self.read("find ready tasks", move |tx| {
            let mut found = Vec::new();
            for name in queues {
                let queue = tx.prepare_cached(sql::QUEUES_OF_NAMES)?.query_row([&name], rows::queue).optional()?;
                let Some(queue) = queue.filter(|queue| !queue.paused) else { continue };
                let count: i64 = tx
                    .prepare_cached(sql::READY_EXISTS)?
                    .query_row(params![queue.id.0, limit as i64], |row| row.get(0))?;
                if count > 0 {
                    found.push((name, usize::try_from(count).unwrap_or(0)));
                }
            }
            Ok(found)
        })
        .await
    }

    async fn prune(&self, retention: &Retention, after: Seq, limit: usize) -> Result<Pruned, StoreError> {
        let retention = retention.clone();
        let now = self.clock.read_process().now;
        self.write("prune finished tasks", move |tx| prune::step(tx, &retention, after, limit, now)).await
    }

    async fn saw_workers(&self, queues: &[Arc<str>]) -> Result<(), StoreError> {
        let queues = queues.to_vec();
        let now = self.clock.read_process().now.as_millis();
        self.write("note workers", move |tx| {
            for name in queues {
                if let Some(wake) = name.strip_prefix(JOB_WAKES) {
                    tx.prepare_cached(sql::JOB_SEEN)?.execute(params![wake, now])?;
                    continue;
                }
                let queue = tx.prepare_cached(sql::QUEUES_OF_NAMES)?.query_row([&name], rows::queue).optional()?;
                if let Some(queue) = queue {
                    tx.prepare_cached(sql::QUEUE_SEEN_PUT)?.execute(params![queue.id.0, now])?;
                }
            }
            Ok(())
        })
        .await
    }

    async fn task(&self, id: TaskId, reach: &Reach) -> Result<Option<TaskView>, StoreError> {
        let reach = reach.clone();
        self.read("read a task", move |tx| read::task(tx, id, &reach)).await
    }

    async fn tasks(&self, filter: &TaskFilter) -> Result<Page<TaskView>, StoreError> {
        let filter = filter.clone();
        self.read("list tasks", move |tx| read::tasks(tx, &filter)).await
    }

    async fn attempts(&self, id: TaskId, reach: &Reach) -> Result<Option<Vec<AttemptView>>, StoreError> {
        let reach = reach.clone();
        self.read("read attempts", move |tx| read::attempts(tx, id, &reach)).await
    }

    async fn attempts_page(
        &self,
        id: TaskId,
        reach: &Reach,
        asked: AttemptRange,
    ) -> Result<Option<Page<AttemptView>>, StoreError> {
        let reach = reach.clone();
        self.read("read attempts", move |tx| read::attempts_page(tx, id, &reach, asked)).await
    }

    async fn queues(
        &self,
        tenant: Option<&str>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<QueueStats>, StoreError> {
        let (tenant, after) = (tenant.map(ToOwned::to_owned), after.unwrap_or_default().to_owned());
        self.read("list queues", move |tx| read::queues(tx, tenant.as_deref(), &after, limit)).await
    }

    async fn queue(&self, id: QueueId) -> Result<Option<QueueView>, StoreError> {
        let now = self.clock.read_process().now;
        self.read("read a queue", move |tx| read::queue(tx, id, now)).await
    }

    async fn queue_name(&self, id: QueueId) -> Result<Option<Arc<str>>, StoreError> {
        self.read("read the name of a queue", move |tx| read::queue_name(tx, id)).await
    }

    async fn whose(&self, seqs: &[Seq]) -> Result<HashMap<Seq, Whose>, StoreError> {
        let seqs = seqs.to_vec();
        self.read("read whose tasks these are", move |tx| {
            let mut statement = tx.prepare_cached(sql::BODIES_WHOSE)?;
            let mut found = HashMap::new();
            for seq in seqs {
                let whose = |row: &rusqlite::Row<'_>| Ok(Whose { tenant: row.get(0)?, owner: row.get(1)? });
                if let Some(whose) = statement.query_row([seq.0], whose).optional()? {
                    found.insert(seq, whose);
                }
            }
            Ok(found)
        })
        .await
    }

    async fn dead_letters(&self, filter: &DeadLetterFilter) -> Result<Page<TaskView>, StoreError> {
        let filter = filter.clone();
        self.read("list dead letters", move |tx| read::dead_letters(tx, &filter)).await
    }

    async fn run(&self, id: RunId, reach: &Reach) -> Result<Option<RunView>, StoreError> {
        let reach = reach.clone();
        self.read("read a run", move |tx| runs::view(tx, id, &reach)).await
    }

    async fn runs(&self, filter: &RunFilter) -> Result<Page<Run>, StoreError> {
        let filter = filter.clone();
        self.read("list runs", move |tx| runs::list(tx, &filter)).await
    }

    async fn run_weight(&self, id: RunId, reach: &Reach) -> Result<Option<RunWeight>, StoreError> {
        let reach = reach.clone();
        self.read("weigh a run", move |tx| runs::weight(tx, id, &reach)).await
    }

    async fn run_material(&self, id: RunId, reach: &Reach) -> Result<Option<RunMaterial>, StoreError> {
        let reach = reach.clone();
        self.read("read a run", move |tx| runs::material(tx, id, &reach)).await
    }

    async fn upstream(&self, row: Seq) -> Result<Vec<Upstream>, StoreError> {
        self.read("read what a task waits for", move |tx| runs::upstream(tx, row)).await
    }

    async fn count_dead_letters(&self, filter: &RedriveFilter) -> Result<u64, StoreError> {
        let filter = filter.clone();
        self.read("count dead letters", move |tx| read::count_dead_letters(tx, &filter)).await
    }

    async fn start_redrive(&self, redrive: &NewRedrive) -> Result<RedriveView, StoreError> {
        let redrive = redrive.clone();
        let now = self.clock.read_process().now;
        self.write("start a redrive", move |tx| read::start_redrive(tx, &redrive, now)).await
    }

    async fn redrive(&self, redrive_id: u128, reach: &Reach) -> Result<Option<RedriveView>, StoreError> {
        let reach = reach.clone();
        self.read("read a redrive", move |tx| {
            let params = params![redrive_id.to_be_bytes(), reach.tenant(), reach.owner()];
            tx.prepare_cached(sql::REDRIVE_GET)?.query_row(params, read::redrive).optional()
        })
        .await
    }

    async fn redrives(
        &self,
        reach: &Reach,
        after: Option<RedriveCursor>,
        limit: usize,
    ) -> Result<Vec<RedriveView>, StoreError> {
        let reach = reach.clone();
        self.read("list redrives", move |tx| {
            let before = after.map_or(i64::MAX, |after| after.started_at.as_millis());
            let id = after.map_or(u128::MAX, |after| after.redrive_id).to_be_bytes();
            let params = params![before, reach.tenant(), reach.owner(), id, limit as i64];
            tx.prepare_cached(sql::REDRIVES_LIST)?.query_map(params, read::redrive)?.collect()
        })
        .await
    }

    async fn change_redrive(&self, redrive_id: u128, reach: &Reach, change: RedriveChange) -> Result<bool, StoreError> {
        let reach = reach.clone();
        self.write("change a redrive", move |tx| {
            let (paused, canceled) = (change == RedriveChange::Pause, change == RedriveChange::Cancel);
            let params = params![redrive_id.to_be_bytes(), reach.tenant(), reach.owner(), paused, canceled];
            Ok(tx.prepare_cached(sql::REDRIVE_SET)?.execute(params)? > 0)
        })
        .await
    }

    async fn open_redrives(&self) -> Result<Vec<RedriveView>, StoreError> {
        self.read("list redrives", |tx| tx.prepare_cached(sql::REDRIVES_OPEN)?.query_map([], read::redrive)?.collect())
            .await
    }

    async fn redrive_matches(&self, redrive: &RedriveView, limit: usize) -> Result<Vec<Seq>, StoreError> {
        let redrive = redrive.clone();
        self.read("find dead letters", move |tx| {
            read::dead_letter_rows(tx, &redrive.filter, &Reach::All, redrive.cursor, limit)
        })
        .await
    }

    async fn events(&self, after: i64, limit: usize) -> Result<Vec<EventBatch>, StoreError> {
        self.read("read events", move |tx| {
            tx.prepare_cached(sql::EVENTS_AFTER)?.query_map([after, limit as i64], read::event)?.collect()
        })
        .await
    }

    async fn event_bounds(&self) -> Result<(i64, i64), StoreError> {
        self.read("read events", |tx| {
            tx.prepare_cached(sql::EVENT_BOUNDS)?.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))
        })
        .await
    }

    /// There is one writer: what is not there when a later batch is will not come.
    async fn event_horizon(&self) -> Result<EventHorizon, StoreError> {
        Ok(EventHorizon { oldest: 0, next: 0 })
    }
}
