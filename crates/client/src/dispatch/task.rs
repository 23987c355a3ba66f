//! A task of a job as its handler sees it.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tenure_contract::Json;
use tenure_contract::dispatch::{
    self, Claimed, CompleteBody, CursorRange, Event, Invalidation, JobName, Partition, TaskInput, TaskOutput,
};
use tenure_contract::query::{QueryAnswer, QueryRequest, QueryRows};
use tokio_util::sync::CancellationToken;

use super::calls::AttemptCalls;
use super::outbox::{Emitted, Outbox};
use super::output::{Output, Position, Said};
use crate::fence::Fence;
use crate::worker::error::TaskError;
use crate::worker::lease::CancelReason;
use crate::worker::lock;
use crate::{LogStream, LostGuard, OutputLog, TaskContext};

/// Outputs of one completion.
const OUTPUTS_MAX: usize = 256;
/// What a completion says. What surrounds it has its own place in the 1 MiB of a request.
const COMPLETION_BYTES: usize = (1 << 20) - 4096;
/// The object that finishes an output.
const SUCCESS: &str = "_SUCCESS";

/// A task of a job as its handler sees it. Clones speak of the same task.
#[derive(Clone)]
pub struct Task(Arc<Inner>);

struct Inner {
    context: TaskContext,
    claimed: dispatch::Task,
    work_payload: Json,
    lease_expires_at: String,
    calls: Arc<AttemptCalls>,
    outbox: Arc<Outbox>,
    /// Outputs whose writer has finished.
    written: Mutex<BTreeSet<usize>>,
    state: Mutex<Option<Json>>,
}

impl Task {
    pub(crate) fn new(context: TaskContext, claimed: Claimed, calls: Arc<AttemptCalls>, outbox: Arc<Outbox>) -> Self {
        let Claimed { task, work_payload, lease_expires_at, .. } = claimed;
        let (written, state) = Default::default();
        Self(Arc::new(Inner { context, claimed: task, work_payload, lease_expires_at, calls, outbox, written, state }))
    }

    /// The id as a hyphenated UUID, the same for all attempts.
    pub fn task_id(&self) -> &str {
        self.0.context.task_id()
    }

    /// 1 for the first attempt.
    pub fn attempt(&self) -> u32 {
        self.0.context.attempt()
    }

    /// Grows with every grant of the task: see [`TaskContext::fence`].
    pub fn fence(&self) -> u64 {
        self.0.context.fence()
    }

    /// The fence with what the guards of [`fence`](crate::fence) need to know of it.
    pub fn guard(&self) -> Fence {
        self.0.context.guard()
    }

    /// Keeps a line in the log of the task: see [`TaskContext::log`].
    pub fn log(&self, line: impl Into<String>) {
        self.0.context.log(line);
    }

    /// Keeps the output of a process in the log of the task, line by line.
    pub fn log_output(&self, stream: LogStream) -> OutputLog {
        self.0.context.log_output(stream)
    }

    pub fn operator(&self) -> &str {
        &self.0.claimed.operator
    }

    /// The job, its DAG and the version of that.
    pub fn job(&self) -> &JobName {
        &self.0.claimed.job
    }

    /// All that the claim says of the task. No secret is in it.
    pub fn raw(&self) -> &dispatch::Task {
        &self.0.claimed
    }

    /// Decodes the `config` of the job. One that does not fit is a permanent failure, code `DATA_QUALITY`.
    pub fn config<T: DeserializeOwned>(&self) -> Result<T, TaskError> {
        decode(&self.0.claimed.config, "config")
    }

    /// Decodes why the task is there: `kind` says which of the other fields there are.
    pub fn trigger<T: DeserializeOwned>(&self) -> Result<T, TaskError> {
        decode(&self.0.claimed.trigger, "trigger")
    }

    /// Decodes config and trigger as one flat object. What a manual source was fired with is in it.
    pub fn work_payload<T: DeserializeOwned>(&self) -> Result<T, TaskError> {
        decode(&self.0.work_payload, "work_payload")
    }

    /// Decodes what the last successful task of the job left with [`set_state`](Self::set_state).
    pub fn operator_state<T: DeserializeOwned>(&self) -> Result<T, TaskError> {
        decode(&self.0.claimed.operator_state, "operator_state")
    }

    /// Which data changed, if that is why the task runs again.
    pub fn invalidation(&self) -> Option<&Json> {
        self.0.claimed.invalidation.as_ref()
    }

    pub fn inputs(&self) -> &[TaskInput] {
        &self.0.claimed.inputs
    }

    /// The outputs that the job has: where each goes and how it is written.
    pub fn outputs(&self) -> &[TaskOutput] {
        &self.0.claimed.outputs
    }

    /// The input of this alias.
    pub fn input(&self, alias: &str) -> Result<&TaskInput, TaskError> {
        self.inputs().iter().find(|input| input.alias == alias).ok_or_else(|| {
            let known: Vec<_> = self.inputs().iter().map(|input| input.alias.as_str()).collect();
            TaskError::configuration(format!("the job has no input `{alias}`: it has {}", known.join(", ")))
        })
    }

    /// The partition of an input, for a job that runs for each partition.
    pub fn partition(&self, alias: &str) -> Result<&Partition, TaskError> {
        self.input(alias)?.partition.as_ref().ok_or_else(|| {
            TaskError::configuration(format!(
                "input `{alias}` has no partition: the job does not run for each partition"
            ))
        })
    }

    /// The rows of an input that are new, for a job that runs for each update.
    pub fn cursor(&self, alias: &str) -> Result<&CursorRange, TaskError> {
        self.input(alias)?.cursor.as_ref().ok_or_else(|| {
            TaskError::configuration(format!("input `{alias}` has no cursor: the job does not run for each update"))
        })
    }

    /// The partition of an input as a folder of this machine.
    pub fn input_folder(&self, alias: &str) -> Result<PathBuf, TaskError> {
        local_folder(self.partition(alias)?.location.as_deref(), &format!("input `{alias}`"))
    }

    /// A folder for the objects of an output, for an object store that is a folder of this machine.
    pub async fn writer(&self, output: usize) -> Result<Writer, TaskError> {
        let slot = self.slot(output)?;
        let path = local_folder(slot.staging_prefix.as_deref(), &format!("output {output}"))?;
        tokio::fs::create_dir_all(&path).await?;
        Ok(Writer { task: self.clone(), output, path })
    }

    /// Says before the task ends that data of an output is there: jobs that read it run for it.
    ///
    /// Events are sent in the order of the calls, until they are accepted. The task is completed only after that. What
    /// the handler returns need not be emitted.
    pub async fn emit(&self, output: usize, position: impl Into<Position>) -> Result<(), TaskError> {
        let slot = self.slot(output)?;
        let Said { cursor, partition_key, start, end } = position.into().into();
        let (dataset_uuid, dataset_version) = (slot.dataset_uuid.clone(), slot.dataset_version.clone());
        let event = Event { dataset_uuid, dataset_version, cursor, partition_key, start, end };
        self.0.outbox.put(Emitted::Event(event)).await
    }

    /// Says that a partition which was there before has changed: what was made of it is made again.
    ///
    /// The reason is `reorg`, `correction`, `manual` or `schema_change`.
    pub async fn invalidate(&self, output: usize, partition: &str, reason: &str) -> Result<(), TaskError> {
        let changed =
            Invalidation { partition_key: Some(partition.to_owned()), ..self.changed(output, "partition", reason)? };
        self.0.outbox.put(Emitted::Invalidation(changed)).await
    }

    /// The same of rows, such as `{"block_number": {"gte": 995, "lte": 1005}}`.
    pub async fn invalidate_rows(&self, output: usize, rows: &impl Serialize, reason: &str) -> Result<(), TaskError> {
        let changed = Invalidation { row_filter: Some(Json::of(rows)?), ..self.changed(output, "row_range", reason)? };
        self.0.outbox.put(Emitted::Invalidation(changed)).await
    }

    fn changed(&self, output: usize, scope: &str, reason: &str) -> Result<Invalidation, TaskError> {
        Ok(Invalidation {
            dataset_uuid: self.slot(output)?.dataset_uuid.clone(),
            scope: scope.to_owned(),
            reason: Some(reason.to_owned()),
            ..Invalidation::default()
        })
    }

    /// Waits until everything emitted is accepted. The error says what was refused.
    pub async fn flush(&self) -> Result<(), TaskError> {
        self.0.outbox.flush().await
    }

    /// Leaves a JSON object for the next task of the job. It counts only if this task succeeds; the latest call wins.
    pub fn set_state(&self, state: &impl Serialize) -> Result<(), TaskError> {
        let state = Json::of(state)?;
        if !state.as_str().starts_with('{') {
            return Err(TaskError::permanent("USER_CODE", "the state of an operator is an object"));
        }
        *lock(&self.0.state) = Some(state);
        Ok(())
    }

    /// Runs a query over the inputs of the task, under their aliases, and returns up to 1,000 rows. Datasets are as they
    /// were when the task was claimed.
    ///
    /// ```no_run
    /// # async fn example(task: tenure_client::dispatch::Task) -> Result<(), tenure_client::TaskError> {
    /// let rows = task.query("SELECT severity, count(*) FROM alerts GROUP BY 1").await?;
    /// for (severity, count) in rows.decode::<(String, i64)>()? {
    ///     println!("{severity}: {count}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn query(&self, sql: impl Into<String>) -> Result<QueryRows, TaskError> {
        let request = QueryRequest { sql: sql.into(), ..QueryRequest::default() };
        match self.query_with(request).await? {
            QueryAnswer::Inline(rows) => Ok(rows),
            _ => Err(TaskError::infrastructure("the control plane answered a query for rows with something else")),
        }
    }

    /// [`query`](Self::query) with all that a request can say. An export goes to the scratch prefix of the task.
    pub async fn query_with(&self, request: QueryRequest) -> Result<QueryAnswer, TaskError> {
        self.0.outbox.query(request).await
    }

    /// What code that does the work for this task may show to the control plane. A source that never ends gets a new one
    /// now and then.
    pub fn capability_token(&self) -> String {
        self.0.calls.capability_token()
    }

    /// The task as a function of a cloud gets it, for code that runs elsewhere. It has the tokens of the attempt in it.
    pub fn invocation(&self) -> Result<Json, TaskError> {
        let mut fields: Map<String, Value> = decode(&Json::of(&self.0.claimed)?, "task")?;
        let mut set = |name: &str, value: Value| drop(fields.insert(name.to_owned(), value));
        set("lease_token", self.0.calls.lease_token().into());
        set("lease_expires_at", self.0.lease_expires_at.as_str().into());
        set("capability_token", self.capability_token().into());
        set("work_payload", decode(&self.0.work_payload, "work_payload")?);
        Ok(Json::of(&fields)?)
    }

    /// A completion that other code wrote, with the fence of this attempt.
    pub(crate) fn fenced(&self, said: &Json) -> Result<Json, TaskError> {
        let mut body: Map<String, Value> = decode(&Json::of(&self.0.calls.completion(""))?, "completion")?;
        body.remove("status");
        body.extend(decode::<Map<String, Value>>(said, "completion")?);
        let body = Json::of(&body)?;
        if body.len() > COMPLETION_BYTES + 4096 {
            let message = format!("the completion has {} bytes, the limit is {COMPLETION_BYTES}", body.len());
            return Err(TaskError::permanent("USER_CODE", message));
        }
        Ok(body)
    }

    /// When the attempt has run for too long, by the server's clock.
    pub fn deadline(&self) -> Option<&str> {
        self.0.context.deadline()
    }

    /// Fires when the handler is to stop; [`cancel_reason`](Self::cancel_reason) says why.
    pub fn cancellation(&self) -> &CancellationToken {
        self.0.context.cancellation()
    }

    /// Waits until the handler is to stop.
    pub async fn cancelled(&self) -> CancelReason {
        self.0.context.cancelled().await
    }

    pub fn cancel_reason(&self) -> Option<CancelReason> {
        self.0.context.cancel_reason()
    }

    /// Says that the outputs count although the worker's shutdown told the handler to stop. After a cancel nothing counts.
    pub fn keep_result(&self) {
        self.0.context.keep_result();
    }

    /// When the lease ends by the local clock, unless it is renewed: see [`TaskContext::lease_end`].
    pub fn lease_end(&self) -> Instant {
        self.0.context.lease_end()
    }

    /// Runs `hook` when the lease is lost: see [`TaskContext::on_lease_lost`].
    pub fn on_lease_lost(&self, hook: impl FnOnce() + Send + 'static) -> LostGuard {
        self.0.context.on_lease_lost(hook)
    }

    fn slot(&self, index: usize) -> Result<&TaskOutput, TaskError> {
        self.outputs().iter().find(|slot| slot.output_index == index).ok_or_else(|| {
            TaskError::configuration(format!("the job has no output {index}: it has {}", self.outputs().len()))
        })
    }

    /// The completion, after the handler returned these outputs.
    pub(crate) fn completion(&self, outputs: Vec<Output>) -> Result<CompleteBody, TaskError> {
        if outputs.len() > OUTPUTS_MAX {
            let message = format!("a task has at most {OUTPUTS_MAX} outputs, not {}: emit the others", outputs.len());
            return Err(TaskError::permanent("USER_CODE", message));
        }
        let mut body = self.0.calls.completion("Completed");
        for output in outputs {
            let slot = self.slot(output.index)?;
            let written = lock(&self.0.written).contains(&output.index);
            body.outputs.push(output.into_wire(slot, slot.staging_prefix.clone().filter(|_| written)));
        }
        body.operator_state = lock(&self.0.state).clone();
        let size = Json::of(&body)?.len();
        if size > COMPLETION_BYTES {
            let message = format!("outputs and state have {size} bytes together, the limit is {COMPLETION_BYTES}");
            return Err(TaskError::permanent("USER_CODE", message));
        }
        Ok(body)
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.context.fmt(f)
    }
}

/// A folder for the objects of an output. What is in it counts once it is finished.
#[derive(Debug)]
#[must_use = "an output that is not finished does not count"]
pub struct Writer {
    task: Task,
    output: usize,
    path: PathBuf,
}

impl Writer {
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Marks the output as finished with `_SUCCESS`. Without a location of its own, an [`Output`] is then here.
    pub async fn finish(self) -> Result<(), TaskError> {
        tokio::fs::File::create(self.path.join(SUCCESS)).await?.sync_all().await?;
        lock(&self.task.0.written).insert(self.output);
        Ok(())
    }
}

/// The folder of a `file:` location.
fn local_folder(location: Option<&str>, what: &str) -> Result<PathBuf, TaskError> {
    match location {
        None | Some("none:") => Err(TaskError::configuration(format!("{what} has no place in an object store"))),
        Some(location) => match location.strip_prefix("file://") {
            Some(path) if path.starts_with('/') => Ok(PathBuf::from(path)),
            _ => Err(TaskError::configuration(format!(
                "{what} is at {location}, which is not a folder of this machine: use a client of that store"
            ))),
        },
    }
}

fn decode<T: DeserializeOwned>(json: &Json, what: &str) -> Result<T, TaskError> {
    json.decode().map_err(|error| TaskError::data_quality(format!("the {what} does not fit: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_folder_of_this_machine_is_a_folder() {
        assert_eq!(local_folder(Some("file:///d/p/"), "it"), Ok(PathBuf::from("/d/p/")));
        for (location, part) in [
            (None, "no place"),
            (Some("none:"), "no place"),
            (Some("s3://bucket/p/"), "a client of that store"),
            (Some("file://host/p/"), "a client of that store"),
        ] {
            let error = local_folder(location, "it").unwrap_err();
            assert!(error.message().contains(part) && !error.is_retryable(), "{error}");
        }
    }
}
