//! DAGs and datasets, as users see them.

use serde::{Deserialize, Serialize};

use crate::Json;
use crate::user::Page;

/// An error or a warning about the text of a DAG.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DagProblem {
    /// Counted from 1, like `column`.
    pub line: u32,
    /// In characters.
    pub column: u32,
    pub job: Option<String>,
    /// The path of the value, within the job if there is one: `inputs[0].from.job`.
    pub field: String,
    /// Stable: clients match on it.
    pub code: String,
    pub message: String,
}

/// A source was fired.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SourceFired {
    /// A UUID.
    pub task_id: String,
    /// False if the same request had fired it before.
    pub created: bool,
}

/// A bundle of code that jobs can run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Bundle {
    /// A UUID: what `udf.bundle_id` of a job names.
    pub bundle_id: String,
    /// Of the zip file, as 64 hex digits.
    pub sha256: String,
    #[cfg_attr(feature = "openapi", schema(pattern = "^(node|python)$"))]
    pub runtime: String,
    pub entrypoint: String,
    /// How many files it has, the manifest not counted.
    pub files: u32,
    /// The size of the zip file.
    pub bytes: u64,
}

/// Answer of `POST /api/v1/dags`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DagDeployed {
    pub name: String,
    pub version: i64,
    /// Null for a dry run of a version that does not exist yet.
    pub dag_version_id: Option<String>,
    /// `sha256:` and the digest of the YAML.
    pub yaml_hash: String,
    /// The state that the version has, or of a dry run would have.
    #[cfg_attr(feature = "openapi", schema(pattern = "^(Staging|Ready|Active|Superseded|RolledBack|Abandoned)$"))]
    pub state: String,
    /// Jobs whose definition is new or differs from that of the active version.
    pub changed_jobs: Vec<String>,
    /// Jobs whose outputs are computed again.
    pub rebuild_jobs: Vec<String>,
    /// Jobs that keep their tasks and data.
    #[serde(default)]
    pub kept_jobs: Vec<String>,
    /// Jobs of the active version that the new one does not have.
    #[serde(default)]
    pub removed_jobs: Vec<String>,
    pub warnings: Vec<DagProblem>,
    pub dry_run: bool,
}

/// A DAG in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DagSummary {
    pub name: String,
    /// Null until a version has become active.
    pub active_version: Option<i64>,
    pub latest_version: i64,
    /// The state of the version that waits to become active, or else of the latest one.
    #[cfg_attr(feature = "openapi", schema(pattern = "^(Staging|Ready|Active|Superseded|RolledBack|Abandoned)$"))]
    pub state: String,
    /// When a version was deployed, became ready or active, or was rolled back.
    pub updated_at: String,
}

/// A DAG: its active version, or the one that was asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Dag {
    pub name: String,
    pub active_version: Option<i64>,
    pub latest_version: i64,
    /// The version that is shown. Without an active version it is the latest one.
    pub version: i64,
    #[cfg_attr(feature = "openapi", schema(pattern = "^(Staging|Ready|Active|Superseded|RolledBack|Abandoned)$"))]
    pub state: String,
    pub updated_at: String,
    /// The text of the version that is shown.
    pub yaml: String,
    /// By name.
    pub jobs: Vec<DagJob>,
}

/// A job of a version of a DAG.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DagJob {
    pub name: String,
    #[cfg_attr(feature = "openapi", schema(pattern = "^(source|reactive)$"))]
    pub activation: String,
    pub runtime: String,
    pub operator: String,
    /// The kind of a source: `cron`, `webhook`, `manual` or `always_on`.
    #[cfg_attr(feature = "openapi", schema(pattern = "^(cron|webhook|manual|always_on)$"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    #[cfg_attr(feature = "openapi", schema(pattern = "^(PerUpdate|PerPartition)$"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_strategy: Option<String>,
    /// The queue of its tasks.
    pub queue: String,
    pub inputs: Vec<DagInput>,
    pub outputs: Vec<DagOutput>,
    pub tasks: JobTasks,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DagInput {
    pub input_index: usize,
    pub alias: String,
    pub from: DagFrom,
    pub dataset_uuid: String,
    pub dataset_name: Option<String>,
    /// The version that it reads now; null if no active DAG version writes the dataset.
    pub dataset_version: Option<String>,
    /// The condition as it was written.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    #[serde(default, rename = "where", skip_serializing_if = "Option::is_none")]
    pub condition: Option<Json>,
}

/// What an input reads, as the YAML says it: `job` and `output`, or `dataset`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DagFrom {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DagOutput {
    pub output_index: u32,
    pub dataset_uuid: String,
    /// Null if the output is not published.
    pub dataset_name: Option<String>,
    pub dataset_version: String,
}

/// How many tasks a job has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobTasks {
    /// Not running yet, or waiting for another attempt.
    pub queued: u64,
    pub running: u64,
    /// Failed for good.
    pub failed: u64,
}

/// A version of a DAG in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DagVersion {
    pub version: i64,
    pub dag_version_id: String,
    pub yaml_hash: String,
    #[cfg_attr(feature = "openapi", schema(pattern = "^(Staging|Ready|Active|Superseded|RolledBack|Abandoned)$"))]
    pub state: String,
    /// The version that was active before it; null if it was never active, or was the first.
    pub previous_version: Option<i64>,
    pub created_at: String,
    pub rebuild: RebuildProgress,
}

/// The tasks that compute the outputs of a version before it becomes active.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RebuildProgress {
    /// It grows while upstream jobs are rebuilt.
    pub total: u64,
    pub done: u64,
    /// Failed for good or canceled. The version waits until they are retried and succeed.
    pub failed: u64,
}

/// Body of `POST /api/v1/dags/{name}/cutover`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(example = json!({"version": 3})))]
pub struct CutoverRequest {
    pub version: i64,
}

/// Answer of a cutover or a rollback.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DagSwitched {
    pub active_version: Option<i64>,
    pub previous_version: Option<i64>,
    /// Datasets that have another current version now.
    pub datasets: Vec<RepointedDataset>,
    pub canceled_tasks: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RepointedDataset {
    pub dataset_uuid: String,
    pub from: Option<String>,
    pub to: Option<String>,
}

/// Body of `POST /api/v1/dags/{name}/jobs/{job}/trigger`, optional.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(example = json!({"request_id": "import-2025-12-31", "input": {"from_block": 1000000}})))]
pub struct TriggerRequest {
    /// The same one again names the same task. `Idempotency-Key` has the same meaning.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 128))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// What the task gets beside the `config` of its job.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Json>,
}

/// Answer of a trigger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobTriggered {
    pub task_id: String,
    /// False if the same request had created the task before.
    pub created: bool,
}

/// A dataset in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DatasetSummary {
    pub dataset_uuid: String,
    /// Null if it is not published.
    pub name: Option<String>,
    /// Null if the committed location decides.
    #[cfg_attr(feature = "openapi", schema(pattern = "^(s3|postgres)$"))]
    pub storage: Option<String>,
    #[cfg_attr(feature = "openapi", schema(pattern = "^(direct|buffered)$"))]
    pub write_mode: String,
    /// What the active version of its DAG writes; null if that has no such output.
    pub current_version: Option<String>,
    /// The highest cursor that was produced.
    pub cursor: Option<i64>,
    pub producer: DatasetProducer,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DatasetProducer {
    pub dag: String,
    pub job: String,
    pub output_index: u32,
}

/// A dataset with everything.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Dataset {
    pub dataset_uuid: String,
    pub name: Option<String>,
    #[cfg_attr(feature = "openapi", schema(pattern = "^(s3|postgres)$"))]
    pub storage: Option<String>,
    #[cfg_attr(feature = "openapi", schema(pattern = "^(direct|buffered)$"))]
    pub write_mode: String,
    pub current_version: Option<String>,
    pub producer: DatasetProducer,
    /// `columns`, `unique` and `indexes` as in the YAML; null if it has no schema.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub schema: Option<Json>,
    /// Newest first, at most 100.
    pub versions: Vec<DatasetVersion>,
    pub cursor: DatasetCursor,
    /// Of the version that was asked for, or else of the current one.
    #[cfg_attr(feature = "openapi", schema(inline = false))]
    pub partitions: DatasetPartitionPage,
    pub lineage: Lineage,
}

/// One generation of a dataset: a deployment that changes the output makes a new one, a write does not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DatasetVersion {
    pub dataset_version: String,
    pub current: bool,
    /// How often all of it was invalidated.
    pub generation: i64,
    /// The highest cursor that was produced.
    pub cursor: Option<i64>,
    pub created_at: String,
}

/// How far a dataset was written and read by cursor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DatasetCursor {
    pub produced: Option<i64>,
    pub consumers: Vec<DatasetConsumer>,
}

/// A job that reads a dataset by cursor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DatasetConsumer {
    pub dag: String,
    pub job: String,
    /// Null if it has read nothing yet.
    pub value: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DatasetPartition {
    pub partition_key: String,
    /// The numbers of the key, if it is a range.
    pub start: Option<i64>,
    pub end: Option<i64>,
    /// How often it was invalidated.
    pub generation: i64,
    /// Null until something was committed.
    pub location: Option<String>,
    pub row_count: Option<i64>,
    pub bytes: Option<i64>,
    pub materialized_at: Option<String>,
}

/// What a dataset is made from, and what is made from it. Nearest first, at most 1,000 of each.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Lineage {
    pub upstream: Vec<LineageEntry>,
    pub downstream: Vec<LineageEntry>,
}

/// An output of a job, or a job without outputs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LineageEntry {
    pub dag: String,
    pub job: String,
    pub output_index: Option<u32>,
    /// Null for a job without outputs.
    pub dataset_uuid: Option<String>,
    pub name: Option<String>,
    /// 1 for what is read or reads directly.
    pub distance: u32,
    /// The datasets that the job reads.
    pub reads: Vec<String>,
}

/// Body of `POST /api/v1/datasets/{name}/invalidate`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(example = json!({"scope": "partition", "partition_key": "1000000-1010000", "reason": "reorg"})))]
pub struct InvalidateRequest {
    /// `partition` with `partition_key`, or `row_range` with `row_filter`.
    #[cfg_attr(feature = "openapi", schema(pattern = "^(partition|row_range)$"))]
    pub scope: String,
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 256))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition_key: Option<String>,
    /// Columns and their bounds: `{"block_number":{"gte":995,"lte":1005}}`.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row_filter: Option<Json>,
    /// Default `manual`.
    #[cfg_attr(feature = "openapi", schema(pattern = "^(reorg|correction|manual|schema_change)$"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Answer of an invalidation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Invalidated {
    pub invalidation_id: String,
    /// What the generation of the scope became.
    pub generation: i64,
    /// How many jobs read the dataset and run again.
    pub dependents: u64,
}

/// Body of `POST /api/v1/buffers/{dataset}/publish`, unless that is JSON lines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PublishRequest {
    /// Objects with the columns of the dataset. `org_id` may be left out.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<Object>))]
    pub records: Json,
    /// `sha256:…` of the schema that the records were made for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema_hash: Option<String>,
}

/// Why a batch of rows was rejected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BatchError {
    pub code: String,
    pub message: String,
    /// Counted from 1; null if it is not about one line.
    pub line: Option<u64>,
}

/// A batch of rows that was rejected for good.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeadBatch {
    pub publish_id: String,
    pub dataset_uuid: String,
    /// How often it was tried.
    pub receives: u32,
    pub error: BatchError,
    pub created_at: String,
    pub dead_at: String,
    /// The message. Records of more than 16 KiB are left out.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub original: Json,
}

/// Body of `POST /api/v1/buffers/{dataset}/replay`. Without `publish_ids` all dead letters are tried again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReplayRequest {
    #[cfg_attr(feature = "openapi", schema(max_items = 1000))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publish_ids: Option<Vec<String>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Replayed {
    pub replayed: u64,
}

pub type DeadBatchPage = Page<DeadBatch>;
pub type DagPage = Page<DagSummary>;
pub type DagVersionPage = Page<DagVersion>;
pub type DatasetPage = Page<DatasetSummary>;
pub type DatasetPartitionPage = Page<DatasetPartition>;
