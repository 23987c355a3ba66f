//! A task of a job, as its worker is told of it.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use tenure_auth::{DatasetGrant, S3Grant, StorageRef};
use tenure_contract::Json;
use tenure_contract::dispatch::{CursorRange, JobName, Partition, Task, TaskInput as WireInput, TaskOutput};
use tenure_core::dag::data::Position;
use tenure_core::dag::definition::{Runtime, Storage, WriteMode};
use tenure_core::dag::deployment::{JobOutput, Published};
use tenure_core::dag::task::{InputAt, TaskInput, Trigger};
use tenure_core::dag::{DatasetId, PartitionKey, Ranges, VersionId, org_id};
use tenure_core::objects::{OutputRef, Prefix, Scheme, Values};
use tenure_core::task::Body;
use tenure_core::{TaskId, id::Fence};
use tenure_engine::dags::{JobOf, View};
use uuid::Uuid;

use super::Part;
use crate::error::Fault;

/// What rows are ordered by where readers follow a cursor.
const CURSOR_COLUMN: &str = "_seq";

/// A task of a job, with what it was made for.
#[derive(Debug, Clone)]
pub struct JobTask {
    pub id: TaskId,
    pub org: Arc<str>,
    pub input: TaskInput,
    pub job: Arc<JobOf>,
    /// What is deployed, as of a moment ago.
    view: Arc<View>,
}

/// One attempt of a task.
#[derive(Debug, Clone, Copy)]
pub struct AttemptNumber {
    /// 0 before the first one.
    pub attempt: u32,
    pub fence: Fence,
}

/// What an attempt may read and write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grants {
    pub datasets: Vec<DatasetGrant>,
    pub s3: S3Grant,
}

impl JobTask {
    fn published(&self, dataset: DatasetId) -> Option<&Published> {
        let deployment = &self.view.deployment;
        let named = |version: &'_ tenure_core::dag::deployment::DagVersion| {
            version.published.values().find(|published| published.dataset == dataset).cloned()
        };
        let own = deployment.version(&self.job.dag, self.input.dag_version);
        let other = || deployment.active(&deployment.datasets.get(&dataset)?.dag);
        let version = own.filter(|version| named(version).is_some()).or_else(other)?;
        version.published.values().find(|published| published.dataset == dataset)
    }

    pub fn is_table(&self, dataset: DatasetId) -> bool {
        self.published(dataset).and_then(|published| published.storage) == Some(Storage::Postgres)
    }

    /// The declared schema of a dataset, as JSON.
    pub fn schema_of(&self, dataset: DatasetId) -> Option<Arc<str>> {
        self.published(dataset).and_then(|published| published.schema.clone())
    }

    /// What the second number of a range means in the DAG of the task.
    pub fn ranges(&self) -> Ranges {
        let deployment = &self.view.deployment;
        let own = deployment.version(&self.job.dag, self.input.dag_version);
        own.or_else(|| deployment.active(&self.job.dag)).map(|version| version.ranges).unwrap_or_default()
    }

    /// The output of the job that is this dataset, and its number.
    pub fn output(&self, dataset: DatasetId) -> Option<(u32, JobOutput)> {
        let at = self.input.outputs.iter().position(|output| output.dataset == dataset)?;
        Some((u32::try_from(at).ok()?, self.input.outputs[at]))
    }

    pub fn output_ref(&self, output: u32, of: JobOutput, attempt: u32) -> OutputRef {
        OutputRef {
            dataset: Uuid::from_u128(of.dataset.as_u128()),
            version: Uuid::from_u128(of.version.as_u128()),
            task: Uuid::from_u128(self.id.as_u128()),
            attempt,
            output,
        }
    }

    /// `timeout_seconds` of an attempt; `None` if it may run for ever.
    pub fn timeout_seconds(&self) -> Option<u32> {
        self.job.definition.timeout_seconds
    }
}

impl Part {
    /// The task of a job that this is the body of; `None` for any other task.
    pub async fn job_task(&self, body: &Body) -> Result<Option<JobTask>, Fault> {
        if !body.workspace.starts_with("job:") {
            return Ok(None);
        }
        let Ok(input) = serde_json::from_str::<TaskInput>(&body.payload) else { return Ok(None) };
        let Some(job) = self.dags.job(input.job).await? else { return Ok(None) };
        let view = self.dags.recent_view(&body.tenant).await?;
        Ok(Some(JobTask { id: body.id, org: Arc::clone(&body.tenant), input, job, view }))
    }

    /// The task as its worker sees it. What the job has kept and read is as of now.
    pub async fn wire(&self, task: &JobTask, at: AttemptNumber) -> Result<Task, Fault> {
        let versions: Vec<VersionId> = task.input.inputs.iter().map(|input| input.version).collect();
        let state = self.dags.job_state(task.job.id, &versions).await?;
        let mut inputs = Vec::with_capacity(task.input.inputs.len());
        for input in &task.input.inputs {
            let after = state.cursors.iter().find(|(version, _)| *version == input.version).map_or(0, |(_, at)| *at);
            inputs.push(self.input(task, input, after).await?);
        }
        let job = &task.job.definition;
        let ran = self.bundle(task).await?;
        Ok(Task {
            task_id: task.id.to_string(),
            attempt: at.attempt,
            fence: at.fence.0,
            org_id: org_id(&task.org).to_string(),
            job: JobName {
                dag_name: task.job.dag.to_string(),
                name: job.name.to_string(),
                dag_version: task.input.dag_version,
            },
            operator: job.operator.to_string(),
            runtime: job.runtime.as_str().to_owned(),
            config: Json::from_trusted(Arc::clone(&job.config)),
            timeout_seconds: job.timeout_seconds,
            trigger: Json::from_trusted(trigger(&task.input.trigger).to_string()),
            inputs,
            outputs: self.outputs(task, at.attempt),
            operator_state: state.operator_state.map_or_else(Json::empty_object, Json::from_trusted),
            invalidation: invalidation(&task.input),
            bundle: ran.as_ref().map(|ran| ran.told.clone()),
            bundle_url: ran.as_ref().map(|ran| ran.url.clone()).unwrap_or_default(),
            handler: ran.and_then(|ran| ran.handler),
        })
    }

    async fn input(&self, task: &JobTask, input: &InputAt, after: i64) -> Result<WireInput, Fault> {
        let definition = task.job.definition.inputs().get(input.input_index);
        let condition = definition.and_then(|definition| definition.filter.as_ref());
        let (mut partition, mut cursor) = (None, None);
        match &input.position {
            Some(Position::Partition(key)) => {
                let row = self.dags.partition(input.version, &key.key).await?;
                let (start, end) = key.ends.unzip();
                let location = row.and_then(|row| row.location).map(|location| self.told_location(task, &location));
                partition = Some(Partition { partition_key: key.key.to_string(), start, end, location });
            }
            Some(Position::Cursor(upto)) => {
                // Another task may have read further already: then there is nothing left to read.
                let column = CURSOR_COLUMN.to_owned();
                cursor = Some(CursorRange { column, after: after.min(*upto), upto: *upto });
            }
            None => {}
        }
        let table = task.is_table(input.dataset);
        let prefix = self.version_prefix(input.dataset, input.version).filter(|_| !table);
        let prefix = prefix.map(|prefix| self.told(task, prefix));
        Ok(WireInput {
            input_index: input.input_index,
            alias: definition.map_or_else(String::new, |definition| definition.alias.to_string()),
            dataset_uuid: input.dataset.to_string(),
            dataset_version: input.version.to_string(),
            storage_ref: prefix.as_ref().and_then(|prefix| Json::of(&storage_ref(prefix)).ok()),
            table: table.then(|| table_name(input.dataset)),
            partition,
            cursor,
            condition: condition.map(|condition| Json::from_trusted(condition.written.to_string())),
            where_tree: condition.and_then(|condition| Json::of(&condition.tree).ok()),
        })
    }

    fn outputs(&self, task: &JobTask, attempt: u32) -> Vec<TaskOutput> {
        let job = &task.job.definition;
        let outputs = task.input.outputs.iter().zip(0_u32..).map(|(of, output)| {
            let published = task.published(of.dataset);
            let table = task.is_table(of.dataset);
            let staging = self.config.objects.as_ref().filter(|_| !table && attempt > 0);
            let staging =
                staging.and_then(|objects| objects.layout().staging(&task.output_ref(output, *of, attempt)).ok());
            TaskOutput {
                output_index: output as usize,
                dataset_uuid: of.dataset.to_string(),
                dataset_version: of.version.to_string(),
                storage: if table { Storage::Postgres } else { Storage::S3 }.as_str().to_owned(),
                write_mode: published.map_or(WriteMode::Direct, |published| published.write_mode).as_str().to_owned(),
                update_strategy: job.update_strategy.as_str().to_owned(),
                unique_key: job.unique_key.iter().map(ToString::to_string).collect(),
                staging_prefix: staging.map(|prefix| self.told(task, prefix).to_string()),
            }
        });
        outputs.collect()
    }

    /// A prefix as the code of a task is told of it. In a sandbox and in a function it does not see files of this machine.
    fn told(&self, task: &JobTask, prefix: Prefix) -> Prefix {
        let sees_files = matches!(task.job.definition.runtime, Runtime::Worker { .. } | Runtime::Dispatcher);
        let objects = self.config.objects.as_ref().filter(|_| !sees_files);
        objects.and_then(|objects| objects.in_bucket(&prefix)).unwrap_or(prefix)
    }

    fn told_location(&self, task: &JobTask, location: &str) -> String {
        match Prefix::parse(location, true) {
            Ok(prefix) => self.told(task, prefix).to_string(),
            // A table, or nothing.
            Err(_) => location.to_owned(),
        }
    }

    fn version_prefix(&self, dataset: DatasetId, version: VersionId) -> Option<Prefix> {
        let layout = self.config.objects.as_ref()?.layout();
        layout.version(Uuid::from_u128(dataset.as_u128()), Uuid::from_u128(version.as_u128())).ok()
    }

    /// Prefixes that this attempt may write an output to, beside its staging prefix.
    pub fn further_prefixes(&self, task: &JobTask, dataset: DatasetId, attempt: u32) -> Vec<Prefix> {
        let trusted = matches!(task.job.definition.runtime, Runtime::Worker { .. });
        let (id, dataset) = (task.id.to_string(), dataset.to_string());
        let values = Values {
            task_id: &id,
            attempt,
            dag: &task.job.dag,
            job: &task.job.definition.name,
            dataset_uuid: &dataset,
        };
        let templates = self.config.write_prefixes.iter().filter(|template| trusted || template.names_task());
        templates.filter_map(|template| template.expand(&values, true).ok()).collect()
    }

    /// What the code of an attempt may read and write. `wire` is the task as it was told.
    pub fn grants(&self, task: &JobTask, wire: &Task, attempt: u32) -> Grants {
        let mut s3 = S3Grant::default();
        let mut read = |text: String| {
            if !s3.read_prefixes.contains(&text) {
                s3.read_prefixes.push(text);
            }
        };
        let datasets = task.input.inputs.iter().zip(&wire.inputs).map(|(input, told)| {
            let prefix = self.version_prefix(input.dataset, input.version).filter(|_| told.storage_ref.is_some());
            let location = told.partition.as_ref().and_then(|partition| partition.location.as_deref());
            // Committed elsewhere than below the version: `dispatch.write_prefixes`.
            let beside = location.and_then(|text| Prefix::parse(text, true).ok());
            let covers = |prefix: &Prefix, beside: &Prefix| match &self.config.objects {
                Some(objects) => objects.covers(prefix, beside),
                None => prefix.covers(beside),
            };
            let beside = beside.filter(|beside| prefix.as_ref().is_none_or(|prefix| !covers(prefix, beside)));
            prefix.iter().chain(&beside).for_each(|prefix| read(prefix.to_string()));
            DatasetGrant {
                alias: told.alias.clone(),
                dataset_uuid: told.dataset_uuid.clone(),
                dataset_version: told.dataset_version.clone(),
                storage_ref: prefix.as_ref().map(storage_ref),
                table: told.table.clone(),
            }
        });
        let datasets = datasets.collect();
        if let Some(objects) = &self.config.objects {
            for (of, output) in task.input.outputs.iter().zip(0_u32..).filter(|(of, _)| !task.is_table(of.dataset)) {
                let own = objects.layout().attempt(&task.output_ref(output, *of, attempt)).ok();
                let further = self.further_prefixes(task, of.dataset, attempt);
                for prefix in own.iter().chain(&further).map(ToString::to_string) {
                    if !s3.write_prefixes.contains(&prefix) {
                        s3.write_prefixes.push(prefix);
                    }
                }
            }
            let scratch = objects.layout().scratch(Uuid::from_u128(task.id.as_u128()), attempt);
            s3.scratch_prefix = scratch.ok().map(|prefix| prefix.to_string());
        }
        Grants { datasets, s3 }
    }
}

/// `dataset_{uuid}`: a table of the data store.
pub fn table_name(dataset: DatasetId) -> String {
    format!("dataset_{dataset}")
}

fn storage_ref(prefix: &Prefix) -> StorageRef {
    let glob = "*.parquet".to_owned();
    match prefix.scheme() {
        Scheme::S3 { bucket } => StorageRef::S3 { bucket: bucket.to_string(), prefix: prefix.path().to_owned(), glob },
        Scheme::File => StorageRef::File { prefix: format!("/{}", prefix.path()), glob },
    }
}

fn trigger(trigger: &Trigger) -> Value {
    match trigger {
        Trigger::Event { input_index, event_id } => {
            json!({"kind": "event", "input_index": input_index, "event_id": event_id})
        }
        Trigger::Cron { scheduled_at } => json!({"kind": "cron", "scheduled_at": scheduled_at.to_string()}),
        Trigger::Webhook { delivery_id, body } => {
            json!({"kind": "webhook", "delivery_id": delivery_id, "body": body})
        }
        Trigger::Manual { request_id, input } => {
            json!({"kind": "manual", "request_id": request_id, "input": input.as_deref().map(as_json)})
        }
        Trigger::AlwaysOn => json!({"kind": "always_on"}),
        Trigger::Invalidation => json!({"kind": "invalidation"}),
        Trigger::Rebuild => json!({"kind": "rebuild"}),
    }
}

fn as_json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

fn invalidation(input: &TaskInput) -> Option<Json> {
    use tenure_core::dag::data::Scope;
    let invalidated = input.invalidation.as_ref()?;
    let (scope, key, filter) = match &invalidated.scope {
        Scope::Partition { partition_key } => ("partition", Some(partition_key), None),
        Scope::RowRange { row_filter } => ("row_range", None, Some(as_json(row_filter))),
    };
    let told = json!({
        "id": invalidated.id.to_string(), "scope": scope, "partition_key": key, "row_filter": filter,
        "reason": invalidated.reason,
    });
    Some(Json::from_trusted(told.to_string()))
}

/// Everything that the work needs in one flat object, for workers that look nowhere else: `config`, overlaid by what the
/// trigger brought.
pub fn work_payload(task: &JobTask, wire: &Task) -> Json {
    let job = &task.job.definition;
    let object = |text: &str| serde_json::from_str::<Map<String, Value>>(text).ok();
    let mut fields = object(&job.config).unwrap_or_default();
    let brought = match &task.input.trigger {
        Trigger::Manual { input: Some(text), .. } | Trigger::Webhook { body: text, .. } => object(text),
        _ => None,
    };
    fields.extend(brought.into_iter().flatten());
    let mut missing = |name: &str, value: Value| {
        fields.entry(name).or_insert(value);
    };
    missing("operator", json!(job.operator));
    if !wire.bundle_url.is_empty() {
        missing("bundle_url", json!(wire.bundle_url));
    }
    missing("config_hash", json!(config_hash(&job.config)));
    if let [only] = task.input.outputs.as_slice() {
        missing("dataset_uuid", json!(only.dataset.to_string()));
    }
    let partition = task.input.inputs.iter().find_map(|input| input.position.as_ref()?.partition());
    let key = partition.and_then(|partition| PartitionKey::parse(&partition.key).ok());
    if let Some((key, span)) = key.and_then(|key| key.span(task.ranges()).map(|span| (key, span))) {
        missing("partition_key", json!(key.as_str()));
        missing("range_start", json!(span.start()));
        missing("range_end", json!(span.end()));
    }
    Json::from_trusted(Value::Object(fields).to_string())
}

fn config_hash(config: &str) -> String {
    let digest = Sha256::digest(config.as_bytes());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}
