use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tenure_core::batch::Outcome;
use tenure_core::command::Reach;
use tenure_core::queue::{Queue, QueueId, Transport};
use tenure_core::run::Run;
use tenure_core::task::Place;
use tenure_core::time::Timestamp;
use tenure_core::why::{self, Around, Why};
use tenure_core::{RunId, Seq, TaskId};
use tenure_store::{
    AttemptRange, AttemptView, Clock, DeadLetterFilter, Done, IdentityStore, Lane, NewRedrive, Notice, OutboxFilter,
    OutboxRetry, OutboxView, Page, QueueStats, QueueView, RedriveChange, RedriveCursor, RedriveFilter, RedriveView,
    Retention, RunFilter, RunMaterial, RunView, RunWeight, Store, StoreError, TaskFilter, TaskView,
};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::background;
use crate::claims::KnownWorkers;
use crate::duty::{Duties, Duty};
use crate::effects::{self, Effects, Room, Transports};
use crate::error::EngineError;
use crate::events::{EventId, Events};
use crate::fleet::{self, Fleet};
use crate::lane::{self, LaneQueue};
use crate::numbers::NumberPool;
use crate::random::random_bits;
use crate::replicas::Telling;
use crate::stops::{Stops, Watched};
use crate::task_logs::TaskLogs;
use crate::timings::Timings;
use crate::waiters::Waiters;

/// How an engine is set up.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    pub retention: Retention,
    /// How long requests of admins stay in the audit; `None` is for good.
    pub admin_audit_retention: Option<Duration>,
    /// How long operations of users do.
    pub audit_retention: Option<Duration>,
    /// Where wake-ups go that leave the process.
    pub transports: Transports,
    /// What new queues get.
    pub default_transport: Transport,
    /// How often what transports hold is compared with the store.
    pub sweep_every: Duration,
    /// How long a task of a job waits before its workers are told of it again.
    pub rewake_after: Duration,
    /// How often an effect that is refused is tried.
    pub outbox_tries: u32,
    /// How many deliveries of pushed tasks may be under way at once, over all queues.
    pub max_deliveries_in_flight: usize,
    /// Tests move it; production leaves it alone.
    pub clock: Arc<Clock>,
    /// How often it looks for what should have been told: ready tasks, due tasks, facts. Tests set it; production leaves
    /// it alone.
    pub look_every: Option<Duration>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            retention: Retention::default(),
            admin_audit_retention: None,
            audit_retention: None,
            transports: Transports::default(),
            default_transport: Transport::default(),
            sweep_every: Duration::from_secs(60),
            rewake_after: Duration::from_secs(60),
            outbox_tries: 20,
            max_deliveries_in_flight: 1024,
            clock: Arc::default(),
            look_every: None,
        }
    }
}

/// Whoever has the timers looks by itself for what is due later than this.
const TOLD_WHEN_DUE_WITHIN_MS: i64 = 1_500;

/// A control plane without the network. Cloning gives another handle to the same one.
#[derive(Debug, Clone)]
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
    tasks: TaskTracker,
    /// Deliveries of pushed tasks, which still send commands when everything else has stopped.
    pub(crate) deliveries: TaskTracker,
}

#[derive(Debug)]
pub struct Shared {
    pub store: Arc<dyn Store>,
    pub config: EngineConfig,
    pub numbers: NumberPool,
    pub work: LaneQueue,
    pub heartbeat: LaneQueue,
    pub waiters: Waiters,
    pub effects: Effects,
    /// Queues of jobs that have room again.
    pub room: Room,
    /// Wake-ups should be swept now.
    pub sweep: watch::Sender<()>,
    pub known_workers: KnownWorkers,
    pub fleet: Fleet,
    pub task_logs: TaskLogs,
    pub timings: Timings,
    /// How long finished work is kept; changes on a reload.
    pub retention: Mutex<Retention>,
    /// Names of queues never change.
    pub queue_names: Mutex<HashMap<QueueId, Arc<str>>>,
    /// Queues that were asked for since the last note was taken of it.
    pub asked_for: Mutex<HashSet<Arc<str>>>,
    /// Something was scheduled; the timer may have to get up earlier.
    pub scheduled: Notify,
    pub redriving: Notify,
    /// A queue was set.
    pub queues_set: Notify,
    /// Schedules were created or changed.
    pub schedules_set: Notify,
    /// Facts were recorded.
    pub recorded: Notify,
    pub duties: Duties,
    /// What other control planes are to be told.
    pub telling: Telling,
    /// Who works on a task that is to stop.
    pub stops: Stops,
    /// Why this control plane must not go on: another brought the store to a schema that leaves it behind.
    pub left_behind: OnceLock<StoreError>,
    pub stopping: CancellationToken,
    /// Changes when the clock is moved. Clones know what has changed since the engine was started.
    pub moved: watch::Receiver<()>,
}

impl Shared {
    pub fn lane(&self, lane: Lane) -> &LaneQueue {
        match lane {
            Lane::Work => &self.work,
            Lane::Heartbeat => &self.heartbeat,
        }
    }

    /// A batch is durable: what it set free can be told.
    pub fn committed(&self, done: Done) -> Vec<Outcome> {
        for (queue, tasks) in &done.wakes {
            let left = tasks.saturating_sub(self.waiters.wake(queue, *tasks));
            if left > 0 {
                self.tell(|| Notice::Ready { queue: Arc::clone(queue), tasks: left });
            }
        }
        self.effects.perform(done.effects);
        self.effects.settle(done.settled);
        for queue in &done.freed {
            self.waiters.freed(queue);
        }
        self.room.made(&done.room);
        if let Some(due) = done.next_due {
            self.scheduled.notify_one();
            if due.since(done.now) < TOLD_WHEN_DUE_WITHIN_MS && !self.duties.is_mine(Duty::Timer) {
                self.tell(|| Notice::Scheduled);
            }
        }
        if !done.stops.is_empty() {
            self.stops.tell(&done.stops);
            self.tell(|| Notice::Stops(done.stops.clone()));
        }
        self.timings.record(&done.timings);
        for (kind, count) in &done.facts {
            metrics::counter!("tenure_task_events_total", "kind" => kind.as_str()).increment(*count);
        }
        if !done.facts.is_empty() {
            self.recorded.notify_waiters();
            self.tell(|| Notice::Facts);
        }
        done.outcomes
    }

    /// Takes no more commands. What was accepted is finished: it was judged by the same rules as all before.
    pub fn left_behind(&self, why: StoreError) {
        let _ = self.left_behind.set(why);
        self.work.close();
        self.heartbeat.close();
        self.stopping.cancel();
    }

    /// Tells other control planes, if there are any.
    pub fn tell(&self, notice: impl FnOnce() -> Notice) {
        if self.duties.others() > 0 {
            self.telling.tell(notice());
        }
    }

    pub async fn queue_name(&self, id: QueueId) -> Result<Arc<str>, EngineError> {
        let known = self.queue_names.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned();
        if let Some(name) = known {
            return Ok(name);
        }
        let Some(name) = self.store.queue_name(id).await? else { return Ok("".into()) };
        let mut names = self.queue_names.lock().unwrap_or_else(PoisonError::into_inner);
        names.insert(id, Arc::clone(&name));
        Ok(name)
    }

    pub fn saw(&self, queues: &[Arc<str>]) {
        let mut asked_for = self.asked_for.lock().unwrap_or_else(PoisonError::into_inner);
        for queue in queues {
            if !asked_for.contains(queue) {
                asked_for.insert(Arc::clone(queue));
            }
        }
    }
}

impl Engine {
    /// Opens a control plane on a store: `sqlite:PATH` or `postgres://…`.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        Self::open_with(url, EngineConfig::default()).await
    }

    pub async fn open_with(url: &str, config: EngineConfig) -> Result<Self, StoreError> {
        let store = tenure_store::open(url, Arc::clone(&config.clock)).await?;
        Self::start(store, config).await
    }

    /// Starts on an open store. The mark of life comes first: it finds out whether there was an outage before anything
    /// is judged.
    pub async fn start(store: Arc<dyn Store>, config: EngineConfig) -> Result<Self, StoreError> {
        if let Some(until) = store.mark_alive().await? {
            tracing::warn!(grace.until = %until, "no control plane was available for a while: no lease from before expires until the grace ends");
        }
        store.set_default_transport(config.default_transport);
        let sweep = watch::Sender::new(());
        let (effects, ends) = Effects::new(&config.transports, &store, &sweep);
        let duties = Duties::without(&effects::beyond(&config.transports));
        duties.renew(&*store).await?;
        let (committers, moved) = (store.committers(), config.clock.moved());
        let retention = config.retention.clone();
        let shared = Arc::new(Shared {
            store,
            config,
            numbers: NumberPool::new(),
            work: LaneQueue::new(Lane::Work),
            heartbeat: LaneQueue::new(Lane::Heartbeat),
            waiters: Waiters::default(),
            effects,
            room: Room::default(),
            sweep,
            known_workers: KnownWorkers::default(),
            fleet: Fleet::default(),
            task_logs: TaskLogs::default(),
            timings: Timings::default(),
            retention: Mutex::new(retention),
            queue_names: Mutex::default(),
            asked_for: Mutex::default(),
            scheduled: Notify::new(),
            redriving: Notify::new(),
            queues_set: Notify::new(),
            schedules_set: Notify::new(),
            recorded: Notify::new(),
            duties,
            telling: Telling::default(),
            stops: Stops::default(),
            left_behind: OnceLock::new(),
            stopping: CancellationToken::new(),
            moved,
        });
        // Nothing is granted to a drained worker from the first claim on.
        fleet::read_drains(&shared).await;
        let tasks = TaskTracker::new();
        for _ in 0..committers {
            tasks.spawn(lane::commit(Arc::clone(&shared), Lane::Work));
        }
        tasks.spawn(lane::commit(Arc::clone(&shared), Lane::Heartbeat));
        background::start(&shared, &tasks);
        effects::start(&shared, ends, &tasks);
        let deliveries = TaskTracker::new();
        tasks.close();
        deliveries.close();
        Ok(Self { shared, tasks, deliveries })
    }

    /// Where what runs beside the requests is counted.
    pub(crate) fn tracker(&self) -> &TaskTracker {
        &self.tasks
    }

    /// Applies from the next look of retention on.
    pub fn set_retention(&self, retention: Retention) {
        *self.shared.retention.lock().unwrap_or_else(PoisonError::into_inner) = retention;
    }

    /// Long polls and deliveries end, accepted commands finish, then the store is left alone.
    pub async fn shutdown(&self) {
        self.begin_shutdown();
        self.deliveries.wait().await;
        self.shared.work.close();
        self.shared.heartbeat.close();
        self.tasks.wait().await;
    }

    /// Ends long polls and watchers; commands are still taken.
    pub fn begin_shutdown(&self) {
        self.shared.stopping.cancel();
    }

    /// Ends when the engine stops, by itself or because it was told to.
    pub async fn stopped(&self) {
        self.shared.stopping.cancelled().await;
    }

    /// Why it stopped by itself, if it did.
    pub fn left_behind(&self) -> Option<&StoreError> {
        self.shared.left_behind.get()
    }

    /// `sqlite` or `postgres`.
    pub fn store_kind(&self) -> &'static str {
        self.shared.store.kind()
    }

    /// Keys, revocations, audit and limits of tenants, about which the engine has no rules.
    pub fn identity(&self) -> &dyn IdentityStore {
        &*self.shared.store
    }

    /// The store itself, for tests that look behind the engine or make it fail.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.shared.store
    }

    /// Whether this control plane has a duty now.
    pub fn has(&self, duty: Duty) -> bool {
        self.shared.duties.is_mine(duty)
    }

    /// How many other control planes share the store, as of the last look.
    pub fn others(&self) -> usize {
        self.shared.duties.others()
    }

    /// How many claims have found nothing and wait for work.
    pub fn claims_waiting(&self) -> usize {
        self.shared.waiters.asleep()
    }

    /// How many requests wait for the store: work, and heartbeats.
    pub fn waiting(&self) -> (usize, usize) {
        (self.shared.work.waiting(), self.shared.heartbeat.waiting())
    }

    /// The store's time. Fails if the store cannot be reached.
    pub async fn now(&self) -> Result<Timestamp, EngineError> {
        Ok(self.shared.store.now().await?)
    }

    /// Waits until a task is to stop, for `wait` at most. A cursor says from where to go on: it is good for one control plane,
    /// and without one the last few seconds count too.
    pub async fn stops(&self, watched: &Watched, cursor: Option<&str>, wait: Duration) -> (Vec<TaskId>, String) {
        let name = self.shared.duties.name();
        let after = cursor.and_then(|cursor| cursor.strip_prefix(name)?.strip_prefix('.')?.parse().ok());
        let (stopped, last) = tokio::select! {
            told = self.shared.stops.watch(watched, after, wait) => told,
            () = self.shared.stopping.cancelled() => self.shared.stops.watch(watched, after, Duration::ZERO).await,
        };
        (stopped, format!("{name}.{last}"))
    }

    /// Whether a write found the disk of the store full just now.
    pub fn is_full(&self) -> bool {
        self.shared.store.is_full()
    }

    /// By how much the wall clock is ahead of the store's time. Always 0 on Postgres, which has a clock of its own.
    pub fn wall_ahead_ms(&self) -> i64 {
        self.shared.config.clock.wall_ahead_ms()
    }

    /// Fresh ids for tasks that are about to be submitted.
    pub async fn mint(&self, count: usize) -> Result<Vec<TaskId>, EngineError> {
        let mut numbers = self.shared.numbers.take(&*self.shared.store, count).await?;
        let millis = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(0));
        let mut salt = random_bits();
        let ids = (0..count).map(|_| {
            // Twelve bits each; a salt that is used up is drawn anew.
            if salt < 0x1000 {
                salt = random_bits() | 1 << 127;
            }
            let id = TaskId::new(millis, (salt & 0xfff) as u16, Seq(numbers.take()));
            salt >>= 12;
            id
        });
        Ok(ids.collect())
    }

    pub async fn task(&self, id: TaskId, reach: &Reach) -> Result<Option<TaskView>, EngineError> {
        Ok(self.shared.store.task(id, reach).await?)
    }

    pub async fn tasks(&self, filter: &TaskFilter) -> Result<Page<TaskView>, EngineError> {
        Ok(self.shared.store.tasks(filter).await?)
    }

    pub async fn attempts(&self, id: TaskId, reach: &Reach) -> Result<Option<Vec<AttemptView>>, EngineError> {
        Ok(self.shared.store.attempts(id, reach).await?)
    }

    pub async fn attempts_page(
        &self,
        id: TaskId,
        reach: &Reach,
        asked: AttemptRange,
    ) -> Result<Option<Page<AttemptView>>, EngineError> {
        Ok(self.shared.store.attempts_page(id, reach, asked).await?)
    }

    /// Why a task is not running, or what it does instead.
    pub async fn why(&self, id: TaskId, reach: &Reach) -> Result<Option<(TaskView, Vec<Why>)>, EngineError> {
        let Some(task) = self.task(id, reach).await? else { return Ok(None) };
        let view = match self.shared.store.queue(task.body.queue).await? {
            Some(view) => view,
            // It was deleted, so the task has ended.
            None => {
                let queue = Queue::new(task.body.queue, Arc::clone(&task.queue));
                QueueView { queue, running: 0, worker_seen_at: None, now: self.shared.store.now().await? }
            }
        };
        let asked_just_now =
            self.shared.asked_for.lock().unwrap_or_else(PoisonError::into_inner).contains(&view.queue.wakes());
        let waiting_for = match &task.place {
            Place::Blocked(_) => self.shared.store.upstream(id.seq()).await?,
            _ => Vec::new(),
        };
        let around = Around {
            now: view.now,
            queue: &view.queue,
            running: view.running,
            worker_seen_at: if asked_just_now { Some(view.now) } else { view.worker_seen_at },
            waiting_for: &waiting_for,
        };
        let why = why::why(&task.place, &around);
        Ok(Some((task, why)))
    }

    /// The name of a queue; empty for one that does not exist.
    pub async fn queue_name(&self, id: QueueId) -> Result<Arc<str>, EngineError> {
        self.shared.queue_name(id).await
    }

    /// Queues by name. For a tenant: its own, and those that all share.
    pub async fn queues(
        &self,
        tenant: Option<&str>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<QueueStats>, EngineError> {
        Ok(self.shared.store.queues(tenant, after, limit).await?)
    }

    pub async fn dead_letters(&self, filter: &DeadLetterFilter) -> Result<Page<TaskView>, EngineError> {
        Ok(self.shared.store.dead_letters(filter).await?)
    }

    /// A run and how its tasks stand.
    pub async fn run_view(&self, id: RunId, reach: &Reach) -> Result<Option<RunView>, EngineError> {
        Ok(self.shared.store.run(id, reach).await?)
    }

    pub async fn runs(&self, filter: &RunFilter) -> Result<Page<Run>, EngineError> {
        Ok(self.shared.store.runs(filter).await?)
    }

    /// A run, and how large all is that is needed to repeat it.
    pub async fn run_weight(&self, id: RunId, reach: &Reach) -> Result<Option<RunWeight>, EngineError> {
        Ok(self.shared.store.run_weight(id, reach).await?)
    }

    /// A run with all that is needed to repeat it.
    pub async fn run_material(&self, id: RunId, reach: &Reach) -> Result<Option<RunMaterial>, EngineError> {
        Ok(self.shared.store.run_material(id, reach).await?)
    }

    /// Wake-ups that have not left the process yet, or could not.
    pub async fn outbox(&self, filter: &OutboxFilter) -> Result<Page<OutboxView>, EngineError> {
        Ok(self.shared.store.outbox(filter).await?)
    }

    /// Tries failed wake-ups again. Returns how many.
    pub async fn retry_outbox(&self, which: &OutboxRetry) -> Result<u64, EngineError> {
        Ok(self.shared.store.retry_outbox(which).await?)
    }

    pub async fn count_dead_letters(&self, filter: &RedriveFilter) -> Result<u64, EngineError> {
        Ok(self.shared.store.count_dead_letters(filter).await?)
    }

    /// Starts a redrive, which goes on by itself, also after a restart.
    pub async fn redrive(&self, redrive: &NewRedrive) -> Result<RedriveView, EngineError> {
        let view = self.shared.store.start_redrive(redrive).await?;
        self.shared.redriving.notify_one();
        if !self.shared.duties.is_mine(Duty::Redrive) {
            self.shared.tell(|| Notice::Redrive);
        }
        Ok(view)
    }

    /// A redrive within reach.
    pub async fn redrive_view(&self, redrive_id: u128, reach: &Reach) -> Result<Option<RedriveView>, EngineError> {
        Ok(self.shared.store.redrive(redrive_id, reach).await?)
    }

    /// Redrives within reach, newest first.
    pub async fn redrives(
        &self,
        reach: &Reach,
        after: Option<RedriveCursor>,
        limit: usize,
    ) -> Result<Vec<RedriveView>, EngineError> {
        Ok(self.shared.store.redrives(reach, after, limit).await?)
    }

    /// Pauses, resumes or ends a redrive. Nothing happens to one that is done. A step that is under way still ends.
    pub async fn change_redrive(
        &self,
        redrive_id: u128,
        reach: &Reach,
        change: RedriveChange,
    ) -> Result<Option<RedriveView>, EngineError> {
        self.shared.store.change_redrive(redrive_id, reach, change).await?;
        self.shared.redriving.notify_one();
        if !self.shared.duties.is_mine(Duty::Redrive) {
            self.shared.tell(|| Notice::Redrive);
        }
        self.redrive_view(redrive_id, reach).await
    }

    /// Watches changes, from behind `after` or from now on.
    pub async fn events(&self, reach: Reach, after: Option<EventId>) -> Result<Events, EngineError> {
        Events::new(Arc::clone(&self.shared), reach, after).await
    }
}
