use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use tenure_core::batch::Done;
use tenure_core::command::{Command, Numbers, Reach};
use tenure_core::queue::{Queue, QueueId, Transport};
use tenure_core::retention::{Pruned, Retention};
use tenure_core::run::{Run, Upstream};
use tenure_core::task::Running;
use tenure_core::time::Timestamp;
use tenure_core::{RunId, Seq, TaskId};

use crate::buffers::BufferStore;
use crate::bundles::BundleStore;
use crate::dags::DagStore;
use crate::error::StoreError;
use crate::faults::Faults;
use crate::identity::IdentityStore;
use crate::job_wakes::JobWakeStore;
use crate::leases::LeaseStore;
use crate::model::{
    AttemptRange, AttemptView, DeadLetterFilter, EventBatch, EventHorizon, NewRedrive, Page, QueueStats, QueueView,
    RedriveChange, RedriveCursor, RedriveFilter, RedriveView, RunFilter, RunMaterial, RunView, RunWeight, TaskFilter,
    TaskView, Whose,
};
use crate::notices::NoticeStore;
use crate::outbox::OutboxStore;
use crate::sandboxes::SandboxStore;
use crate::schedules::ScheduleStore;
use crate::task_logs::TaskLogStore;
use crate::workers::WorkerStore;

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

/// A place that keeps tasks. Every method either happens whole or not at all.
#[async_trait]
pub trait Store:
    BufferStore
    + BundleStore
    + DagStore
    + IdentityStore
    + JobWakeStore
    + LeaseStore
    + NoticeStore
    + OutboxStore
    + SandboxStore
    + ScheduleStore
    + TaskLogStore
    + WorkerStore
    + Send
    + Sync
    + std::fmt::Debug
{
    /// `sqlite` or `postgres`.
    fn kind(&self) -> &'static str;

    /// How many batches of work it is worth to have under way at once.
    fn committers(&self) -> usize;

    /// For tests that make steps fail.
    /// Whether a write found the disk of the store full just now.
    fn is_full(&self) -> bool {
        false
    }

    fn faults(&self) -> &Faults;

    /// What new queues get. Until it is told: embedded.
    fn set_default_transport(&self, transport: Transport);

    /// Loads and locks what the batch needs, decides, writes, commits.
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
    /// A page of that history.
    async fn attempts_page(
        &self,
        id: TaskId,
        reach: &Reach,
        asked: AttemptRange,
    ) -> Result<Option<Page<AttemptView>>, StoreError>;
    /// Queues behind `after`, by name. For a tenant: its own, and those that all share.
    async fn queues(
        &self,
        tenant: Option<&str>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<QueueStats>, StoreError>;
    /// One queue, and when a worker last asked for its work.
    async fn queue(&self, id: QueueId) -> Result<Option<QueueView>, StoreError>;
    /// The name of a queue, or of a deleted queue that still has ended tasks.
    async fn queue_name(&self, id: QueueId) -> Result<Option<Arc<str>>, StoreError>;
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
    /// A redrive within reach.
    async fn redrive(&self, redrive_id: u128, reach: &Reach) -> Result<Option<RedriveView>, StoreError>;
    /// Redrives within reach, newest first.
    async fn redrives(
        &self,
        reach: &Reach,
        after: Option<RedriveCursor>,
        limit: usize,
    ) -> Result<Vec<RedriveView>, StoreError>;
    /// Changes a redrive within reach that is not done. Returns false if there is none.
    async fn change_redrive(&self, redrive_id: u128, reach: &Reach, change: RedriveChange) -> Result<bool, StoreError>;
    /// Redrives that are not done and not paused.
    async fn open_redrives(&self) -> Result<Vec<RedriveView>, StoreError>;
    /// The next dead letters of a redrive behind its cursor, in order.
    async fn redrive_matches(&self, redrive: &RedriveView, limit: usize) -> Result<Vec<Seq>, StoreError>;

    /// Facts recorded behind `after`, in order of their batches.
    async fn events(&self, after: i64, limit: usize) -> Result<Vec<EventBatch>, StoreError>;
    /// The first and the last batch of facts on record.
    async fn event_bounds(&self) -> Result<(i64, i64), StoreError>;
    /// Tells whether a batch that is missing between two others can still appear.
    async fn event_horizon(&self) -> Result<EventHorizon, StoreError>;
}
