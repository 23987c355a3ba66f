//! What a store keeps about DAGs and datasets.
//!
//! Nothing here decides. What is deployed is one document per organisation (a tenant), which `core/src/dag` reads and
//! plans: a change of it is written only if nobody else has changed it since it was read, together with the rows that the
//! plan adds. What tasks report about datasets is written by the batch that accepts the report, as
//! [`Writes::data`](tenure_core::batch::Writes) says.

pub(crate) mod plan;

use std::sync::Arc;

use async_trait::async_trait;
use tenure_core::TaskId;
use tenure_core::batch::Counts;
use tenure_core::dag::data::{NewInvalidation, Position, Scope};
use tenure_core::dag::{DagVersionId, DatasetId, InvalidationId, JobId, VersionId};
use tenure_core::queue::QueueSettings;
use tenure_core::time::{DurationMs, Timestamp};
use uuid::Uuid;

use crate::error::StoreError;
use crate::model::Page;

/// What is deployed in an organisation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeploymentRow {
    pub org: Arc<str>,
    /// Grows with every change.
    pub seq: i64,
    /// JSON that only the core reads.
    pub document: Arc<str>,
}

/// A change of what is deployed, in one transaction.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeploymentWrites {
    pub document: Arc<str>,
    pub versions: Vec<NewDagVersion>,
    pub jobs: Vec<NewJob>,
    /// Queues of jobs whose tasks are held, or no longer.
    pub held: Vec<(JobId, bool)>,
    pub generations: Vec<NewGeneration>,
    /// Versions that the document does not name any more.
    pub forgotten: Vec<DagVersionId>,
    /// All webhook paths of the organisation, each with its DAG; `None` leaves them as they are. A path that belongs to
    /// another organisation counts as [`Moved`].
    pub webhooks: Option<Vec<(Arc<str>, Arc<str>)>>,
    /// A bundle that the document does not need: whoever plans with it meanwhile finds that the deployment has moved.
    pub removed_bundle: Option<Uuid>,
}

/// A version of a DAG. It never changes; its state is in the document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDagVersion {
    pub id: DagVersionId,
    pub dag: Arc<str>,
    pub number: i64,
    pub yaml: Arc<str>,
}

/// A job and its queue. It never changes but for whether its tasks are held.
#[derive(Debug, Clone, PartialEq)]
pub struct NewJob {
    pub id: JobId,
    pub dag: Arc<str>,
    pub name: Arc<str>,
    /// The definition as JSON.
    pub definition: Arc<str>,
    /// The queue is made with these settings.
    pub queue: Arc<str>,
    pub settings: QueueSettings,
}

/// A generation of a dataset, which events and partitions belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewGeneration {
    pub version: VersionId,
    pub dataset: DatasetId,
}

/// The document was changed by somebody else: read it again, plan again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DagVersionRow {
    pub id: DagVersionId,
    pub dag: Arc<str>,
    pub number: i64,
    pub yaml: Arc<str>,
    pub created_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRow {
    pub id: JobId,
    pub org: Arc<str>,
    pub dag: Arc<str>,
    pub name: Arc<str>,
    pub definition: Arc<str>,
    pub queue: Arc<str>,
}

/// An event on record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataEvent {
    /// In the order of recording.
    pub id: i64,
    pub org: Arc<str>,
    pub dataset: DatasetId,
    pub version: VersionId,
    pub position: Position,
    /// How often data at this position had been invalidated when the event was recorded.
    pub generation: i64,
    /// Which attempt told of it; `None` is Tenure itself.
    pub producer: Option<(TaskId, u32)>,
    pub recorded_at: Timestamp,
    /// Why it was not routed, if it was not.
    pub unrouted: Option<Arc<str>>,
}

/// What came of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routed {
    pub event: i64,
    /// `None`: tasks were made for it. Otherwise why it was not routed, such as `old_version`.
    pub why_not: Option<&'static str>,
}

/// A partition of a generation of a dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionRow {
    pub version: VersionId,
    pub key: Arc<str>,
    pub ends: Option<(i64, i64)>,
    pub generation: i64,
    /// `None` until something was committed.
    pub location: Option<Arc<str>>,
    pub row_count: Option<i64>,
    pub bytes: Option<i64>,
    pub schema_hash: Option<Arc<str>>,
    pub manifest: Option<Arc<str>>,
    /// The name that the worker gave what it made.
    pub artifact: Option<VersionId>,
    pub materialized_at: Option<Timestamp>,
    /// Which attempt made it.
    pub producer: Option<(TaskId, u32)>,
}

/// How far a generation of a dataset has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GenerationRow {
    pub version: VersionId,
    pub dataset: DatasetId,
    /// How often all of it was invalidated. Data that is read by cursor and new partitions have this generation.
    pub generation: i64,
    /// The highest cursor that was produced.
    pub cursor: Option<i64>,
    pub created_at: Timestamp,
}

/// What a task is told of its job when it is claimed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobState {
    /// JSON; `None` if the job has kept nothing.
    pub operator_state: Option<Arc<str>>,
    /// How far the job has read each generation by cursor.
    pub cursors: Vec<(VersionId, i64)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidationRow {
    pub id: InvalidationId,
    pub org: Arc<str>,
    pub dataset: DatasetId,
    pub version: VersionId,
    pub scope: Scope,
    pub reason: Arc<str>,
    /// What the generation of the scope became.
    pub generation: i64,
    pub created_at: Timestamp,
    /// Its tasks were made, so many.
    pub dependents: Option<i64>,
    /// How many of them are done.
    pub done: i64,
}

/// A partition that a job has not made its part of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unread {
    pub key: Arc<str>,
    pub ends: Option<(i64, i64)>,
    pub generation: i64,
}

/// How far the tasks with a tag have come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TaskCounts {
    pub total: u64,
    pub succeeded: u64,
    /// Ended in any other way.
    pub failed: u64,
}

/// The next slot of a cron source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CronSlot {
    pub dag: Arc<str>,
    pub job: Arc<str>,
    /// What the slots follow from.
    pub schedule: Arc<str>,
    /// In milliseconds; `i64::MAX` if there are no more slots.
    pub next_ms: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookRow {
    pub path: Arc<str>,
    pub org: Arc<str>,
    pub dag: Arc<str>,
}

/// Old deliveries of webhooks that one new delivery removes.
pub(crate) const DELIVERIES_PRUNED: i64 = 100;

/// The longest page of events, partitions or jobs.
pub const DATA_PAGE: usize = 1_000;

/// The part of a store that keeps DAGs and datasets.
#[async_trait]
pub trait DagStore {
    /// What is deployed; an organisation without a deployment has `seq` 0 and an empty document.
    async fn deployment(&self, org: &str) -> Result<DeploymentRow, StoreError>;

    /// What is deployed, unless it is still the deployment with this `seq`.
    async fn deployment_newer(&self, org: &str, seen: i64) -> Result<Option<DeploymentRow>, StoreError>;

    /// Every organisation that has deployed something, and the number of its last change.
    async fn deployments(&self) -> Result<Vec<(Arc<str>, i64)>, StoreError>;

    /// Writes a change if the deployment is still the one with this `seq`, and gives the new one. A crash leaves all of it
    /// or nothing.
    async fn apply_deployment(
        &self,
        org: &str,
        seen: i64,
        writes: &DeploymentWrites,
    ) -> Result<Result<i64, Moved>, StoreError>;

    async fn dag_version(&self, org: &str, id: DagVersionId) -> Result<Option<DagVersionRow>, StoreError>;
    /// Those of these jobs that exist.
    async fn jobs(&self, ids: &[JobId]) -> Result<Vec<JobRow>, StoreError>;

    /// Those of these jobs that have tasks which have not ended.
    async fn busy_jobs(&self, jobs: &[JobId]) -> Result<Vec<JobId>, StoreError>;

    /// Counts the tasks of these jobs that have this tag. What it costs grows with the tasks of the jobs.
    async fn count_tasks(&self, org: &str, jobs: &[JobId], tag: (&str, &str)) -> Result<TaskCounts, StoreError>;

    /// How many tasks each of these jobs has, in the order of the question. A job without a queue has none.
    async fn job_counts(&self, ids: &[JobId]) -> Result<Vec<Counts>, StoreError>;

    /// Which of these events are on record at the present generation of their position, and who told of each first. In
    /// the order of the question.
    ///
    /// The generation of a partition is that of its row; one without a row, and a cursor, have that of their version.
    async fn recorded(&self, events: &[(VersionId, Position)]) -> Result<Vec<Option<DataEvent>>, StoreError>;

    /// Events that are not marked as routed, with ids above `after`, in the order of their ids, but for those of these
    /// organisations. Reads only. An event may appear below one that was returned before.
    async fn unrouted(&self, except: &[Arc<str>], after: i64, limit: usize) -> Result<Vec<DataEvent>, StoreError>;

    /// Notes what came of events of an organisation, if its deployment is still the one with this `seq`.
    async fn routed(&self, org: &str, seen: i64, events: &[Routed]) -> Result<Result<(), Moved>, StoreError>;

    /// Records an event that Tenure itself causes. One that is on record already is left as it is.
    async fn record(
        &self,
        org: &str,
        dataset: DatasetId,
        version: VersionId,
        position: &Position,
    ) -> Result<(), StoreError>;

    async fn job_state(&self, job: JobId, versions: &[VersionId]) -> Result<JobState, StoreError>;

    /// Those of these generations that exist.
    async fn generations(&self, versions: &[VersionId]) -> Result<Vec<GenerationRow>, StoreError>;

    /// Partitions behind `after`, by key.
    async fn partitions(
        &self,
        version: VersionId,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<PartitionRow>, StoreError>;
    async fn partition(&self, version: VersionId, key: &str) -> Result<Option<PartitionRow>, StoreError>;

    /// How far each of these jobs has read each generation by cursor.
    async fn cursors(&self, jobs: &[JobId]) -> Result<Vec<(JobId, VersionId, i64)>, StoreError>;

    /// Materialised partitions of a generation that this job has not read at their present generation, behind `after`.
    /// What it costs does not grow with what was read, but for one look-up each.
    async fn unread(
        &self,
        job: JobId,
        version: VersionId,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Unread>, StoreError>;

    /// Says that data has changed: the generations in scope grow by one. A range of rows covers the whole version. The same
    /// id again changes nothing. Returns the row.
    async fn invalidate(&self, org: &str, new: &NewInvalidation) -> Result<InvalidationRow, StoreError>;

    /// Invalidations whose tasks were not made yet, oldest first, but for those of these organisations.
    async fn open_invalidations(&self, except: &[Arc<str>], limit: usize) -> Result<Vec<InvalidationRow>, StoreError>;

    /// The tasks of an invalidation were made: one for each of these jobs.
    async fn invalidation_routed(
        &self,
        org: &str,
        seen: i64,
        id: InvalidationId,
        jobs: &[JobId],
    ) -> Result<Result<(), Moved>, StoreError>;

    /// Removes the rows of jobs and generations that the deployment with this `seq` does not name, some of each table at a
    /// time, and the queues of these jobs. `jobs` and `versions` are all that it names. A job stays while it has tasks,
    /// ended ones included. Returns how many jobs and generations are left to remove, counted up to [`DATA_PAGE`] of each.
    async fn retire(
        &self,
        org: &str,
        seen: i64,
        jobs: &[JobId],
        versions: &[VersionId],
    ) -> Result<Result<u64, Moved>, StoreError>;

    /// The next slots of the cron sources of an organisation.
    async fn cron_slots(&self, org: &str) -> Result<Vec<CronSlot>, StoreError>;

    /// Writes the next slots of cron sources and forgets those of others (DAG and job), if the deployment is still the
    /// one with this `seq`. A slot never moves back, unless its schedule is another one.
    async fn save_cron_slots(
        &self,
        org: &str,
        seen: i64,
        slots: &[CronSlot],
        gone: &[(Arc<str>, Arc<str>)],
    ) -> Result<Result<(), Moved>, StoreError>;

    /// Who owns these webhook paths; those that nobody owns are left out.
    async fn webhooks(&self, paths: &[Arc<str>]) -> Result<Vec<WebhookRow>, StoreError>;

    /// The name of a signed delivery, by the digest of what was signed: the first one that it was sent with within
    /// `kept_ms`. Forgets some of those that are older.
    async fn name_delivery(&self, digest: [u8; 32], name: &str, kept_ms: DurationMs) -> Result<Arc<str>, StoreError>;
}
