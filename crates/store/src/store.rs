use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use tenure_core::batch::{OutboxWake, Outcome, World, Writes};
use tenure_core::command::{Command, Numbers, Reach};
use tenure_core::event::FactKind;
use tenure_core::queue::{Queue, QueueId, Transport};
use tenure_core::run::{Run, Upstream};
use tenure_core::task::Running;
use tenure_core::time::Timestamp;
use tenure_core::{RunId, Seq, TaskId};

use crate::error::StoreError;
use crate::faults::Faults;
use crate::identity::IdentityStore;
use crate::leases::LeaseStore;
use crate::model::{
    AttemptView, DeadLetterFilter, EventBatch, NewRedrive, Page, QueueStats, QueueView, RedriveFilter, RedriveView,
    Retention, RunFilter, RunMaterial, RunView, RunWeight, TaskFilter, TaskView, Whose,
};
use crate::notices::NoticeStore;
use crate::outbox::{Gone, OutboxItem, OutboxStore, Settled};

/// Which line a batch stands in. Heartbeats have one of their own: a flood of claims costs nobody a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    Work,
    Heartbeat,
}

/// Commands to be committed together.
#[derive(Debug, Clone)]
pub struct Batch {
    pub commands: Arc<Vec<Command>>,
    pub numbers: Numbers,
    pub lane: Lane,
    /// An earlier try may have been committed: look for what it left.
    pub retrying: bool,
}

/// A committed batch.
#[derive(Debug)]
pub struct Done {
    /// One for each command, in order.
    pub outcomes: Vec<Outcome>,
    /// How many tasks became ready, by queue.
    pub wakes: HashMap<Arc<str>, usize>,
    /// Queues in which fewer attempts are open than before.
    pub freed: Vec<Arc<str>>,
    /// The earliest time at which something that the batch scheduled is due.
    pub next_due: Option<Timestamp>,
    /// How many facts of each kind were recorded.
    pub facts: HashMap<FactKind, u64>,
    /// Wake-ups that have to leave the process. They are in the outbox, and for a while this process's to publish.
    pub outbox: Vec<OutboxItem>,
    /// Such wake-ups that are over.
    pub settled: Vec<Settled>,
    /// When the batch was decided.
    pub now: Timestamp,
}

impl Done {
    /// `world` and `writes` are those of the committed batch.
    pub(crate) fn new(
        outcomes: Vec<Outcome>,
        wakes: HashMap<Arc<str>, usize>,
        world: &World,
        writes: &Writes,
        gone: Vec<Gone>,
    ) -> Self {
        let name = |id: QueueId| world.queues.get(&id).map(|cell| Arc::clone(&cell.queue.name));
        let outbox = writes.wakes.iter().filter_map(|wake| {
            let OutboxWake { message, task, transport, .. } = *wake;
            Some(OutboxItem { message, task, queue: name(wake.queue)?, transport, tries: 0 })
        });
        let settled = gone.into_iter().filter_map(|(message, queue, transport, receipt)| {
            Some(Settled { message, queue: name(queue)?, transport, receipt })
        });
        let freed =
            writes.counts.iter().filter(|(_, counts)| counts.running < 0).filter_map(|(id, _)| name(*id)).collect();
        let mut facts = HashMap::new();
        for fact in &writes.facts {
            *facts.entry(fact.kind).or_default() += 1;
        }
        let next_due = writes.schedule.iter().map(|(_, waiting)| waiting.at).min();
        let (outbox, settled) = (outbox.collect(), settled.collect());
        Self { outcomes, wakes, freed, next_due, facts, outbox, settled, now: world.now }
    }
}

/// How many tasks became ready, by the name of their queue.
pub(crate) fn wakes(world: &World) -> HashMap<Arc<str>, usize> {
    let mut wakes = HashMap::new();
    for wake in world.wakes() {
        if let Some(cell) = world.queues.get(&wake.queue) {
            *wakes.entry(Arc::clone(&cell.queue.name)).or_default() += 1;
        }
    }
    wakes
}

/// What the timers found.
#[derive(Debug, Default)]
pub struct Due {
    pub rows: Vec<Seq>,
    /// When the next one is due, if none was left behind.
    pub next_at: Option<Timestamp>,
    /// The store's time.
    pub now: Timestamp,
}

/// Pushes that are due.
#[derive(Debug, Default)]
pub struct PushesDue {
    pub rows: Vec<(QueueId, Seq)>,
    /// When the next one of these queues is due.
    pub next_at: Option<Timestamp>,
    /// The store's time.
    pub now: Timestamp,
}

/// What a look at the finished tasks came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pruned {
    pub removed: usize,
    /// Go on behind this row; `None` when what follows is too young to go.
    pub next: Option<Seq>,
}

/// A place that keeps tasks. Every method either happens whole or not at all.
#[async_trait]
pub trait Store: IdentityStore + LeaseStore + NoticeStore + OutboxStore + Send + Sync + std::fmt::Debug {
    /// `sqlite` or `postgres`.
    fn kind(&self) -> &'static str;

    /// How many batches of work it is worth to have under way at once.
    fn committers(&self) -> usize;

    /// For tests that make steps fail.
    fn faults(&self) -> &Faults;

    /// What new queues get. Until it is told: embedded.
    fn set_default_transport(&self, transport: Transport);

    /// Loads and locks what the batch names, decides, draws the consequences for runs, writes, commits.
    ///
    /// A crash before the commit leaves nothing. A crash after it leaves everything, with nobody told: the same batch
    /// with `retrying` set finds what it did and gives the same answers.
    async fn execute(&self, batch: Batch) -> Result<Done, StoreError>;

    /// Takes `count` numbers that no one else will get. A crash wastes them, no more.
    async fn reserve_numbers(&self, count: i64) -> Result<Numbers, StoreError>;

    /// Says that a control plane is alive. Whoever finds that none was for a while writes the grace; the time until
    /// which it holds comes back. A crash in between leaves the old mark, and the next caller finds the same gap.
    async fn mark_alive(&self) -> Result<Option<Timestamp>, StoreError>;

    /// Whether this binary may still run on the store: another one may have brought it to a schema that leaves this one
    /// behind. [`StoreError::NewerSchema`] if not.
    async fn check_schema(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// The store's time.
    async fn now(&self) -> Result<Timestamp, StoreError>;

    /// Leases that look expired, and waiting tasks past their deadline. Reads only: each is judged again by the batch
    /// that ends it.
    async fn expired(&self, limit: usize) -> Result<Vec<Seq>, StoreError>;

    /// Scheduled tasks whose time has come. Reads only.
    async fn due(&self, limit: usize) -> Result<Due, StoreError>;

    /// Queues whose tasks are pushed. Reads only.
    async fn push_queues(&self) -> Result<Vec<Queue>, StoreError>;

    /// Attempts whose push is due, since nothing has come of the last one: of each queue up to so many. Reads only.
    async fn pushes_due(&self, queues: &[(QueueId, usize)]) -> Result<PushesDue, StoreError>;

    /// The attempt in flight of a task, without anything else of it. Reads only.
    async fn in_flight(&self, id: TaskId) -> Result<Option<Running>, StoreError>;

    /// Which of these queues have ready tasks and are not paused, and how many at the most `limit`. Reads only.
    async fn ready_in(&self, queues: &[Arc<str>], limit: usize) -> Result<Vec<(Arc<str>, usize)>, StoreError>;

    /// Looks at the next `limit` finished tasks behind `after`, and removes those that nobody needs any more, with their
    /// history. A crash leaves whole tasks.
    async fn prune(&self, retention: &Retention, after: Seq, limit: usize) -> Result<Pruned, StoreError>;

    /// Remembers that a worker asked for work of these queues.
    async fn saw_workers(&self, queues: &[Arc<str>]) -> Result<(), StoreError>;

    async fn task(&self, id: TaskId, reach: &Reach) -> Result<Option<TaskView>, StoreError>;
    async fn tasks(&self, filter: &TaskFilter) -> Result<Page<TaskView>, StoreError>;
    /// The history, oldest first; the attempt in flight is its last entry. `None` for an unknown task.
    async fn attempts(&self, id: TaskId, reach: &Reach) -> Result<Option<Vec<AttemptView>>, StoreError>;
    /// Queues behind `after`, by name. For a tenant: its own, and those that all share.
    async fn queues(
        &self,
        tenant: Option<&str>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<QueueStats>, StoreError>;
    /// One queue, and when a worker last asked for its work.
    async fn queue(&self, id: QueueId) -> Result<Option<QueueView>, StoreError>;
    /// Whose tasks these are; unknown ones are left out.
    async fn whose(&self, rows: &[Seq]) -> Result<HashMap<Seq, Whose>, StoreError>;
    async fn dead_letters(&self, filter: &DeadLetterFilter) -> Result<Page<TaskView>, StoreError>;

    /// A run and how its tasks stand.
    async fn run(&self, id: RunId, reach: &Reach) -> Result<Option<RunView>, StoreError>;
    /// Runs, newest first.
    async fn runs(&self, filter: &RunFilter) -> Result<Page<Run>, StoreError>;
    /// A run with all that its tasks were given and made.
    async fn run_weight(&self, id: RunId, reach: &Reach) -> Result<Option<RunWeight>, StoreError>;
    /// All of it is read: whoever asks looks at [`Store::run_weight`] first.
    async fn run_material(&self, id: RunId, reach: &Reach) -> Result<Option<RunMaterial>, StoreError>;
    /// The tasks that a task of a run still waits for.
    async fn upstream(&self, row: Seq) -> Result<Vec<Upstream>, StoreError>;

    /// How many dead letters match.
    async fn count_dead_letters(&self, filter: &RedriveFilter) -> Result<u64, StoreError>;
    /// Starts a redrive, or gives the one that has the same key.
    async fn start_redrive(&self, redrive: &NewRedrive) -> Result<RedriveView, StoreError>;
    /// Redrives that are not done.
    async fn open_redrives(&self) -> Result<Vec<RedriveView>, StoreError>;
    /// The next dead letters of a redrive behind its cursor, in order.
    async fn redrive_matches(&self, redrive: &RedriveView, limit: usize) -> Result<Vec<Seq>, StoreError>;

    /// Facts recorded behind `after`, in order of their batches.
    async fn events(&self, after: i64, limit: usize) -> Result<Vec<EventBatch>, StoreError>;
    /// The first and the last batch of facts on record.
    async fn event_bounds(&self) -> Result<(i64, i64), StoreError>;
}
