//! The dispatch contract: claim by id, heartbeat, complete, events.
//!
//! Requests are read by [`dialect`], which knows the spellings of deployed workers; these types are what it translates to.

pub mod dialect;

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

use crate::Json;
use crate::pull::LogLine;

/// `POST /internal/task-claim`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClaimRequest {
    pub task_id: String,
    /// A caller that names no worker judges by the HTTP status: not claimed is then 409.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// The same claim sent again while its lease lives gets the same lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_id: Option<String>,
}

/// The task was granted.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Claimed {
    /// Always `Claimed`.
    pub status: String,
    pub task_id: String,
    pub attempt: u32,
    /// Proves possession. Secret.
    pub lease_token: String,
    pub lease_expires_at: String,
    /// What the code of the task may read and write. Secret.
    pub capability_token: String,
    pub fence: u64,
    /// Whole, unless the lease is shorter than a few seconds.
    #[serde(serialize_with = "seconds")]
    pub heartbeat_interval_seconds: f64,
    /// When the attempt has run for too long; absent if it may run for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_at: Option<String>,
    pub work_payload: Json,
    pub task: Task,
}

/// Whole seconds as a whole number: readers may take nothing else.
fn seconds<S: Serializer>(seconds: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if seconds.fract() == 0.0 { serializer.serialize_u64(*seconds as u64) } else { serializer.serialize_f64(*seconds) }
}

impl fmt::Debug for Claimed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { task_id, attempt, fence, .. } = self;
        f.debug_struct("Claimed")
            .field("task_id", task_id)
            .field("attempt", attempt)
            .field("fence", fence)
            .finish_non_exhaustive()
    }
}

/// The answer to a claim.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum ClaimAnswer {
    Claimed(Box<Claimed>),
    NotClaimed(NotClaimed),
}

/// The task was not granted. The worker drops its wake-up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NotClaimed {
    /// Always `NotClaimed`.
    pub status: String,
    pub reason: NotClaimedReason,
    /// `not_claimed`, for callers that judge by the HTTP status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl NotClaimed {
    pub fn new(reason: NotClaimedReason) -> Self {
        Self { status: "NotClaimed".to_owned(), reason, error: None }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum NotClaimedReason {
    AlreadyRunning,
    Completed,
    Canceled,
    NotFound,
    Failed,
    /// It can be claimed later: Tenure wakes the worker again.
    NotReady,
}

/// A task as its worker sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Task {
    pub task_id: String,
    /// 0 before the first claim.
    pub attempt: u32,
    pub fence: u64,
    pub org_id: String,
    pub job: JobName,
    pub operator: String,
    pub runtime: String,
    pub config: Json,
    pub timeout_seconds: Option<u32>,
    pub trigger: Json,
    pub inputs: Vec<TaskInput>,
    pub outputs: Vec<TaskOutput>,
    pub operator_state: Json,
    pub invalidation: Option<Json>,
    /// The bundle that the task runs: `bundle_id`, `sha256`, `runtime`, `entrypoint`, `bytes`, `env`.
    pub bundle: Option<Json>,
    /// The URL of the bundle that the task runs; empty without one.
    pub bundle_url: String,
    /// `udf.entrypoint` of the job, if it does not name a file of the bundle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handler: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobName {
    pub dag_name: String,
    pub name: String,
    pub dag_version: i64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TaskInput {
    pub input_index: usize,
    pub alias: String,
    pub dataset_uuid: String,
    pub dataset_version: String,
    /// Where its objects are; absent for a table.
    pub storage_ref: Option<Json>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
    pub partition: Option<Partition>,
    /// Rows greater than `after` up to and including `upto`.
    pub cursor: Option<CursorRange>,
    /// The condition as it was written.
    #[serde(rename = "where")]
    pub condition: Option<Json>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub where_tree: Option<Json>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Partition {
    pub partition_key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<i64>,
    /// Where it was committed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CursorRange {
    pub column: String,
    pub after: i64,
    pub upto: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TaskOutput {
    pub output_index: usize,
    pub dataset_uuid: String,
    pub dataset_version: String,
    pub storage: String,
    pub write_mode: String,
    pub update_strategy: String,
    pub unique_key: Vec<String>,
    pub staging_prefix: Option<String>,
}

/// `GET /internal/task-fetch`: the task, and its fields at the top level.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FetchAnswer {
    pub status: TaskStatus,
    pub next_retry_at: Option<String>,
    pub work_payload: Json,
    #[serde(rename = "task")]
    pub nested: Task,
    #[serde(flatten)]
    pub task: Task,
}

/// The state of a task on this wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum TaskStatus {
    Queued,
    Running,
    Completed,
    Failed,
    Canceled,
}

/// `GET /internal/task-wakeups`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Wakeups {
    pub messages: Vec<Wakeup>,
}

/// A hint that a task can be claimed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Wakeup {
    pub task_id: String,
}

/// Which attempt a request is about.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AttemptRef {
    pub task_id: String,
    pub attempt: u32,
    /// Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_token: Option<String>,
    /// Only where the caller is known by its own identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
}

impl fmt::Debug for AttemptRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttemptRef")
            .field("task_id", &self.task_id)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HeartbeatAnswer {
    pub lease_expires_at: String,
    pub status: TaskStatus,
    pub fence: u64,
    /// For a source that runs for ever, before the old one expires. Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capability_token: Option<String>,
}

impl fmt::Debug for HeartbeatAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lease_expires_at, status, fence, .. } = self;
        f.debug_struct("HeartbeatAnswer")
            .field("lease_expires_at", lease_expires_at)
            .field("status", status)
            .field("fence", fence)
            .finish_non_exhaustive()
    }
}

/// `POST /v1/task/complete`, as it is sent. `outcome` (`success`, `retryable_error`, `fatal_error`) may stand for
/// `status`, and `datasets_published` for `outputs`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CompleteBody {
    pub task_id: String,
    pub attempt: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_token: Option<String>,
    /// `Completed`, `Failed` or `Canceled`.
    pub status: String,
    /// Counts with `Failed` only; true unless it says otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retryable: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<Output>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<Event>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub invalidations: Vec<Invalidation>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator_state: Option<Json>,
}

/// `POST /v1/task/events`, as it is sent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EventsBody {
    pub task_id: String,
    pub attempt: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_token: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<Event>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub invalidations: Vec<Invalidation>,
}

/// How an attempt has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Outcome {
    Completed,
    Failed,
    Canceled,
}

/// `POST /v1/task/complete`, in the words of the contract.
#[derive(Debug, Clone, PartialEq)]
pub struct CompleteRequest {
    pub attempt: AttemptRef,
    pub outcome: Outcome,
    /// Counts with `Failed` only.
    pub retryable: bool,
    pub failure: Option<Failure>,
    pub outputs: Vec<Output>,
    pub events: Vec<Event>,
    pub invalidations: Vec<Invalidation>,
    /// A JSON object.
    pub operator_state: Option<Json>,
    /// Everything but the attempt, in one spelling: equal for equal requests.
    pub canonical: Json,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Failure {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    #[serde(default)]
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<String>,
    /// The worker has to stop and gives the task back. The attempt does not count, up to ten times for a task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handed_back: Option<bool>,
}

/// An output that was written.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Output {
    pub dataset_uuid: String,
    /// The generation, or with `names_artifact` a name for what was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset_version: Option<String>,
    /// Set by [`dialect`] alone.
    #[serde(default, skip_deserializing, skip_serializing_if = "std::ops::Not::not")]
    #[cfg_attr(feature = "openapi", schema(ignore))]
    pub names_artifact: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
    /// An integer or its decimal string.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<Json>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Json>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<Json>,
    /// A range whose end is outside; its key is written as the DAG writes ranges.
    /// Set by [`dialect`] alone.
    #[serde(default, skip_deserializing, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(ignore))]
    pub span: Option<(u64, u64)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row_count: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema_hash: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_hash: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Event {
    pub dataset_uuid: String,
    pub dataset_version: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<Json>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Json>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<Json>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Invalidation {
    pub dataset_uuid: String,
    pub scope: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row_filter: Option<Json>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CompleteAnswer {
    pub status: TaskStatus,
    pub task_id: String,
    pub attempt: u32,
    pub fence: u64,
    pub events_accepted: usize,
    pub next_retry_at: Option<String>,
}

/// `POST /v1/task/events`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EventsRequest {
    pub attempt: AttemptRef,
    pub events: Vec<Event>,
    pub invalidations: Vec<Invalidation>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EventsAnswer {
    /// All that are on record now, those that had been before included.
    pub accepted: usize,
    pub duplicates: usize,
}

/// `POST /v1/task/logs` and `POST /internal/task-logs`: what the attempt prints and logs. Never a reason for it to fail.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = DispatchLogsRequest))]
pub struct LogsRequest {
    #[serde(flatten)]
    pub attempt: AttemptRef,
    #[cfg_attr(feature = "openapi", schema(max_items = 1000))]
    pub lines: Vec<LogLine>,
    /// Lines before these that the sender dropped because there were too many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = DispatchLogsResponse))]
pub struct LogsResponse {
    pub kept: bool,
    /// Why the lines are not kept. `stale_attempt`: the attempt is over, or another worker's. `dropped`: it has as much as it may
    /// have, or there is too much at the moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Body of `POST /v1/task/buffer-publish`: rows for a buffered dataset, either `records` or `batch_uri`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BufferPublishBody {
    pub task_id: String,
    pub attempt: u32,
    /// Secret.
    pub lease_token: String,
    /// A buffered output of the job. Not needed if the job has only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset_uuid: Option<String>,
    /// The name of the dataset, where `dataset_uuid` is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedupe_scope: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema_hash: Option<String>,
    /// JSON lines in a write or scratch prefix of the capability token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_uri: Option<String>,
    /// `application/jsonl`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_size_bytes: Option<u64>,
    /// Objects with the columns of the dataset.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<Object>>))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub records: Option<Json>,
}

/// What a task publishes, in the words of the contract.
#[derive(Debug, Clone, PartialEq)]
pub struct BufferPublishRequest {
    pub attempt: AttemptRef,
    pub dataset_uuid: Option<String>,
    pub dedupe_scope: Option<String>,
    pub schema_hash: Option<String>,
    pub batch_uri: Option<String>,
    pub content_type: Option<String>,
    pub batch_size_bytes: Option<u64>,
    /// As they were sent.
    pub records: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BufferPublished {
    pub publish_id: String,
    /// `Accepted`
    pub status: String,
    /// The same batch had been accepted before.
    pub duplicate: bool,
}

impl BufferPublished {
    pub fn accepted(publish_id: String, duplicate: bool) -> Self {
        Self { publish_id, status: "Accepted".to_owned(), duplicate }
    }
}

/// Body of `POST /v1/task/credentials`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CredentialsRequest {
    /// `s3_data`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purpose: Option<String>,
    /// The prefixes that the keys should have. Absent: all that the capability token has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub want: Option<WantedPrefixes>,
}

/// Prefixes such as `s3://bucket/path/`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WantedPrefixes {
    /// To get objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<Vec<String>>,
    /// To put objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write: Option<Vec<String>>,
    /// To get, put and delete objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scratch: Option<Vec<String>>,
}

/// Temporary keys for the object store.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CredentialsAnswer {
    pub access_key_id: String,
    /// Secret.
    pub secret_access_key: String,
    /// Secret.
    pub session_token: String,
    pub expires_at: String,
    /// Where the object store is. Absent: that of the region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint_url: Option<String>,
    pub region: String,
}

impl fmt::Debug for CredentialsAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { access_key_id, expires_at, .. } = self;
        f.debug_struct("CredentialsAnswer")
            .field("access_key_id", access_key_id)
            .field("expires_at", expires_at)
            .finish_non_exhaustive()
    }
}

/// Every answer that is not 2xx.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Error {
    pub error: String,
    pub message: String,
    /// The message again, under the name that some workers read.
    pub detail: String,
    pub request_id: String,
}
