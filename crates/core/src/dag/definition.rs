//! What a DAG is: its jobs, their inputs and outputs, and the names under which outputs are published.
//!
//! A definition is complete: `defaults` of the YAML are resolved into the jobs. It is stored as JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::filter::Filter;
use super::range::Ranges;
use super::schema::Schema;
use crate::schedule::CatchUp;

/// Jobs of a DAG.
pub const JOBS: usize = 1_000;
/// Inputs of a job, and likewise outputs.
pub const PORTS: usize = 32;
/// `config` of a job as JSON.
pub const CONFIG_BYTES: usize = 64 << 10;
/// A longer attempt would outlive its capability token.
pub const TIMEOUT_SECONDS_MAX: u32 = 86_100;
pub const HEARTBEAT_TIMEOUT_SECONDS_DEFAULT: u32 = 120;
pub const BUFFER_RECEIVES_DEFAULT: u32 = 10;
/// Name of a DAG, job or dataset.
pub const NAME_CHARS: usize = 128;

/// Operators that `runtime: dispatcher` runs in the control plane.
pub const BUILTIN_OPERATORS: [&str; 5] = ["tick", "query", "range_aggregator", "range_splitter", "noop"];
/// The operator of jobs that run a bundle.
pub const UDF_OPERATOR: &str = "udf";

/// Whether a DAG, job or dataset may have this name: `^[a-z][a-z0-9_-]{0,127}$`.
pub fn valid_name(name: &str) -> bool {
    let rest = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-');
    name.len() <= NAME_CHARS && name.starts_with(|c: char| c.is_ascii_lowercase()) && name.bytes().all(rest)
}

/// Whether a job can name a secret like this.
pub fn is_secret_name(name: &str) -> bool {
    let part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    name.len() <= NAME_CHARS && name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.bytes().all(part)
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DagDefinition {
    pub name: Arc<str>,
    #[serde(default)]
    pub ranges: Ranges,
    /// In the order of the YAML, which means nothing.
    pub jobs: Vec<JobDefinition>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub publish: Vec<Publish>,
}

impl DagDefinition {
    pub fn job(&self, name: &str) -> Option<&JobDefinition> {
        self.jobs.iter().find(|job| &*job.name == name)
    }

    /// The dataset as which an output is published. An output has at most one name.
    pub fn published(&self, job: &str, output: u32) -> Option<&Publish> {
        self.publish.iter().find(|publish| publish.from.iter().any(|from| &*from.job == job && from.output == output))
    }

    pub fn dataset(&self, name: &str) -> Option<&Publish> {
        self.publish.iter().find(|publish| &*publish.dataset == name)
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobDefinition {
    pub name: Arc<str>,
    pub activation: Activation,
    pub runtime: Runtime,
    pub operator: Arc<str>,
    /// How many outputs it has; they are numbered from 0.
    pub outputs: u32,
    #[serde(default)]
    pub update_strategy: UpdateStrategy,
    /// Not empty with `append`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unique_key: Vec<Arc<str>>,
    #[serde(default)]
    pub priority: Priority,
    #[serde(default, skip_serializing_if = "Scaling::is_default")]
    pub scaling: Scaling,
    /// Logical names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<Arc<str>>,
    /// `None`: an attempt has no deadline (`always_on`).
    pub timeout_seconds: Option<u32>,
    /// `None` means no limit (`always_on`).
    pub max_attempts: Option<u32>,
    pub heartbeat_timeout_seconds: u32,
    /// A JSON object as canonical text: sorted keys, no white space.
    pub config: Arc<str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udf: Option<Udf>,
}

impl JobDefinition {
    /// Empty for a source.
    pub fn inputs(&self) -> &[Input] {
        match &self.activation {
            Activation::Source { .. } => &[],
            Activation::Reactive { inputs, .. } => inputs,
        }
    }

    /// Its outputs begin anew with every version of its DAG.
    pub fn resets_outputs(&self) -> bool {
        self.outputs > 0 && matches!(self.activation, Activation::Source { reset_outputs: true, .. })
    }

    pub fn source(&self) -> Option<&Source> {
        match &self.activation {
            Activation::Source { source, .. } => Some(source),
            Activation::Reactive { .. } => None,
        }
    }

    pub fn webhook_path(&self) -> Option<&Arc<str>> {
        match self.source() {
            Some(Source::Webhook { path, .. }) => Some(path),
            _ => None,
        }
    }

    /// `None` for a source.
    pub fn execution(&self) -> Option<ExecutionStrategy> {
        match &self.activation {
            Activation::Source { .. } => None,
            Activation::Reactive { execution, .. } => Some(*execution),
        }
    }
}

/// What makes a job run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    Source {
        source: Source,
        /// `bootstrap.reset_outputs`: done once, when the DAG version becomes active.
        #[serde(default)]
        reset_outputs: bool,
    },
    Reactive {
        inputs: Vec<Input>,
        execution: ExecutionStrategy,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        idle_timeout: Option<IdleTimeout>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Source {
    Cron {
        /// Five fields, or `rate(1 day)`.
        schedule: Arc<str>,
        timezone: Arc<str>,
        catch_up: CatchUp,
    },
    Webhook {
        path: Arc<str>,
        /// Name of a secret, never the secret.
        secret: Arc<str>,
        signature: Signature,
    },
    Manual,
    AlwaysOn,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Signature {
    #[default]
    Tenure,
    Github,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IdleTimeout {
    Never,
    Seconds(u32),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Input {
    pub from: Upstream,
    pub alias: Arc<str>,
    #[serde(default, rename = "where", skip_serializing_if = "Option::is_none")]
    pub filter: Option<Where>,
}

/// What an input reads.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Upstream {
    Job(Output),
    /// A published dataset, of this DAG or of another one.
    Dataset(Arc<str>),
}

/// An output of a job of the same DAG.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Output {
    pub job: Arc<str>,
    pub output: u32,
}

/// A condition on the rows of an input. Routing never looks at it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Where {
    /// A string or an object, as written.
    pub written: Value,
    pub tree: Filter,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Runtime {
    /// Pull workers that are woken by a queue. The name is `worker`, or another one of `dispatch.runtimes`.
    Worker {
        name: Arc<str>,
    },
    Lambda,
    /// Built-in operators.
    Dispatcher,
    /// Untrusted code, run by a worker in a sandbox.
    Sandbox,
}

impl Runtime {
    pub const WORKER: &str = "worker";
    pub const LAMBDA: &str = "lambda";
    pub const DISPATCHER: &str = "dispatcher";
    pub const SANDBOX: &str = "sandbox";

    pub fn as_str(&self) -> &str {
        match self {
            Self::Worker { name } => name,
            Self::Lambda => Self::LAMBDA,
            Self::Dispatcher => Self::DISPATCHER,
            Self::Sandbox => Self::SANDBOX,
        }
    }

    /// How long an attempt of a job that says nothing may take.
    pub const fn timeout_seconds_default(&self) -> u32 {
        match self {
            Self::Worker { .. } => 1_800,
            Self::Dispatcher => 300,
            Self::Lambda | Self::Sandbox => 60,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ExecutionStrategy {
    PerUpdate,
    PerPartition,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UpdateStrategy {
    Append,
    #[default]
    Replace,
}

impl UpdateStrategy {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Append => "append",
            Self::Replace => "replace",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    #[default]
    Normal,
    Backfill,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Scaling {
    /// Maximum number of tasks running at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_concurrency: Option<u32>,
    /// The pool of workers, hence the queue of wake-ups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_pool: Option<Arc<str>>,
}

impl Scaling {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The bundle that a job runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Udf {
    pub bundle_id: Uuid,
    /// `None`: that of the bundle's manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<Arc<str>, Arc<str>>,
}

/// A name for an output, and how its data is kept. None of it changes when a job runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Publish {
    pub dataset: Arc<str>,
    /// One output, or several if it is buffered.
    pub from: Vec<Output>,
    /// `None`: the committed location decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,
    #[serde(default)]
    pub write_mode: WriteMode,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Schema>,
    /// Set exactly if it is buffered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer: Option<Buffer>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Storage {
    S3,
    /// A table of the data store, also when that is SQLite.
    Postgres,
}

impl Storage {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Postgres => "postgres",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WriteMode {
    #[default]
    Direct,
    Buffered,
}

impl WriteMode {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Buffered => "buffered",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffer {
    /// A batch that was received this often without success goes to the dead letters.
    pub max_receives: u32,
}

/// Digest of everything that decides what a job runs and what its outputs mean: its own definition, the kind of ranges,
/// and where its outputs are kept. Equal for definitions that differ in order or layout only.
///
/// The names under which outputs are published, their schemas and buffers are not part of it: a new name or a new column
/// does not recompute any data.
pub fn definition_digest(dag: &DagDefinition, job: &JobDefinition) -> [u8; 32] {
    let kept: Vec<Value> = (0..job.outputs).map(|output| storage_content(dag, job, output)).collect();
    let content = json!({"ranges": dag.ranges, "job": job_content(job), "outputs": kept});
    // serde_json keeps the keys of a `Value` sorted.
    Sha256::digest(content.to_string().as_bytes()).into()
}

fn storage_content(dag: &DagDefinition, job: &JobDefinition, output: u32) -> Value {
    match dag.published(&job.name, output) {
        Some(publish) => json!({"storage": publish.storage, "write_mode": publish.write_mode}),
        None => json!({"storage": null, "write_mode": WriteMode::Direct}),
    }
}

fn job_content(job: &JobDefinition) -> Value {
    let mut content = json!(job);
    let sorted = |names: &[Arc<str>]| json!(names.iter().collect::<BTreeSet<_>>());
    content["unique_key"] = sorted(&job.unique_key);
    content["secrets"] = sorted(&job.secrets);
    // Equal conditions become equal trees, however they are written.
    if let Some(inputs) = content.pointer_mut("/activation/reactive/inputs").and_then(Value::as_array_mut) {
        for input in inputs {
            if let Some(condition) = input.get_mut("where").and_then(Value::as_object_mut) {
                condition.remove("written");
            }
        }
    }
    content
}

#[cfg(test)]
mod tests;
