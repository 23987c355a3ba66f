//! Tasks of jobs: how they are made.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use tenure_core::TaskId;
use tenure_core::command::retry::Retry;
use tenure_core::command::submit::{NewTask, Start, Submit, Submitted};
use tenure_core::command::{Reach, Rejection};
use tenure_core::dag::definition::{JobDefinition, Priority, Runtime, Source};
use tenure_core::dag::deployment::Job;
use tenure_core::dag::task::{InputAt, TaskInput, Trigger};
use tenure_core::dag::{DagVersionId, JobId};
use tenure_core::limits;
use tenure_core::retry::RetryPolicy;
use tenure_core::task::{Idempotency, Place, Spec, State};
use tenure_core::time::DurationMs;

use super::deploy::{REPLACED, ROLLED_BACK};
use super::{Dags, JobOf, View};
use crate::error::EngineError;

/// Tasks that are submitted together.
const SUBMIT_TASKS: usize = 1_000;
/// How many submits wait for the store at once.
const SUBMITS: usize = 4;
/// How much longer than its function the attempt of a function may take.
pub(super) const LAMBDA_SLACK_MS: DurationMs = 60_000;
const CANCEL_GRACE_MS: DurationMs = 30_000;
/// For an attempt that may run for ever.
const NO_TIMEOUT_MS: DurationMs = 100 * 365 * 24 * 3_600_000;
/// The tag of tasks that rebuild a version: its id.
pub const REBUILD_TAG: &str = "tenure.rebuild";

/// A task that is to be made, unless there is one with its key.
#[derive(Debug, Clone)]
pub(super) struct Making {
    pub job: Arc<JobOf>,
    pub key: Arc<str>,
    pub input: TaskInput,
}

/// A firing of a source by hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Triggered {
    pub task: TaskId,
    /// Otherwise the same request had made it before.
    pub created: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TriggerError {
    #[error("no such DAG, or no version of it is active")]
    UnknownDag,
    #[error("the DAG has no such job")]
    UnknownJob,
    #[error("only a source of kind manual can be triggered")]
    NotManual,
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl Dags {
    /// Fires a manual source. The same request id makes the same task.
    pub async fn trigger(
        &self,
        org: &str,
        dag: &str,
        job: &str,
        request_id: &Arc<str>,
        input: Option<Arc<str>>,
    ) -> Result<Triggered, TriggerError> {
        let view = self.view(org).await?;
        let id = *view
            .deployment
            .active(dag)
            .ok_or(TriggerError::UnknownDag)?
            .jobs
            .get(job)
            .ok_or(TriggerError::UnknownJob)?;
        let job = self.job(id).await?.ok_or(TriggerError::UnknownJob)?;
        if job.definition.source() != Some(&Source::Manual) {
            return Err(TriggerError::NotManual);
        }
        let key = format!("manual:{}:{request_id}", job.definition.name).into();
        let trigger = Trigger::Manual { request_id: Arc::clone(request_id), input };
        let input = input_of(&view, id, trigger).ok_or(TriggerError::UnknownJob)?;
        let made = self.make(vec![Making { job, key, input }]).await?;
        let made = made.first().ok_or(EngineError::Internal)?;
        Ok(Triggered { task: made.id, created: made.created })
    }

    /// Makes tasks. One that has the key of another is that other one; if that was canceled because its version was
    /// replaced, the version is at work again, and the task goes on. Some are written down while others are made.
    pub(super) async fn make(
        &self,
        making: impl IntoIterator<Item = Making, IntoIter: Send>,
    ) -> Result<Vec<Submitted>, EngineError> {
        let mut making = making.into_iter();
        let (mut made, mut submits) = (Vec::new(), FuturesOrdered::new());
        loop {
            while submits.len() < SUBMITS {
                let chunk: Vec<Making> = making.by_ref().take(SUBMIT_TASKS).collect();
                if chunk.is_empty() {
                    break;
                }
                submits.push_back(self.submit(chunk));
            }
            match submits.next().await {
                Some(submitted) => made.extend(submitted?),
                None => return Ok(made),
            }
        }
    }

    async fn submit(&self, making: Vec<Making>) -> Result<Vec<Submitted>, EngineError> {
        let ids = self.inner.engine.mint(making.len()).await?;
        let retry = self.inner.settings.retry;
        let tasks: Vec<NewTask> =
            ids.into_iter().zip(&making).filter_map(|(id, making)| new_task(id, making, retry)).collect();
        let bytes = tasks.iter().map(|task| task.payload.len()).sum();
        match self.inner.engine.submit(Submit { tasks, maker: None }, bytes).await? {
            Ok(submitted) => {
                for task in submitted.iter().filter(|task| !task.created && task.state == State::Canceled) {
                    self.revive(task.id).await?;
                }
                Ok(submitted)
            }
            Err(Rejection::QueueNotFound) => Err(EngineError::Internal),
            Err(rejection) => {
                tracing::error!(reason = ?rejection, "the tasks of a job were refused");
                Err(EngineError::Internal)
            }
        }
    }

    /// One that somebody canceled by hand stays canceled.
    async fn revive(&self, task: TaskId) -> Result<(), EngineError> {
        let reason = match self.inner.engine.task(task, &Reach::All).await?.map(|view| view.place) {
            Some(Place::Finished(finished)) => finished.cancel_reason,
            _ => None,
        };
        if reason.is_some_and(|reason| [REPLACED, ROLLED_BACK].contains(&&*reason))
            && let Err(rejection) = self.inner.engine.retry(Retry { task, reach: Reach::All }).await?
        {
            tracing::warn!(task.id = %task, reason = ?rejection, "a task of a version that is active again cannot go on");
        }
        Ok(())
    }
}

/// What a new task of a job is given.
pub(super) fn input_of(view: &View, id: JobId, trigger: Trigger) -> Option<TaskInput> {
    let job = view.deployment.jobs.get(&id)?;
    let (dag_version, _) = version_of(view, job, id)?;
    let outputs = job.outputs.clone();
    Some(TaskInput {
        job: id,
        dag_version,
        trigger,
        inputs: inputs(view, job),
        outputs,
        invalidation: None,
        rebuild: None,
    })
}

/// The version at work that has a job: the active one first.
pub(super) fn version_of(view: &View, job: &Job, id: JobId) -> Option<(i64, DagVersionId)> {
    let dag = view.deployment.dags.get(&job.dag)?;
    let has = |number: &i64| dag.versions.get(number).filter(|version| version.jobs.get(&job.name) == Some(&id));
    let staged = view.deployment.staged(&job.dag).map(|(number, _)| number);
    dag.active.into_iter().chain(staged).find_map(|number| has(&number).map(|version| (number, version.id)))
}

/// All inputs of a job, as they stand; what caused the task is filled in by whoever knows.
fn inputs(view: &View, job: &Job) -> Vec<InputAt> {
    let at = job.inputs.iter().enumerate().filter_map(|(input_index, input)| {
        let version = view.deployment.reads(input)?;
        Some(InputAt { input_index, dataset: input.dataset, version, position: None, generation: 0 })
    });
    at.collect()
}

fn new_task(id: TaskId, making: &Making, retry: RetryPolicy) -> Option<NewTask> {
    let Making { job, key, input } = making;
    let rebuild = input.rebuild;
    let tags = rebuild.map(|version| (REBUILD_TAG.to_owned(), version.to_string())).into_iter();
    let priority = match (rebuild, job.definition.priority) {
        (Some(_), _) => limits::PRIORITY_REBUILD,
        (None, Priority::Backfill) => limits::PRIORITY_BACKFILL,
        (None, Priority::Normal) => limits::PRIORITY_DEFAULT,
    };
    Some(NewTask {
        id,
        queue: Arc::clone(&job.queue),
        operator: Arc::clone(&job.definition.operator),
        tenant: Arc::clone(&job.org),
        owner: None,
        workspace: job.id.workspace().into(),
        priority,
        payload: serde_json::to_string(input).ok()?.into(),
        spec: Spec { rebuild: rebuild.is_some(), ..spec(&job.definition, retry) },
        start: Start::Now,
        tags: tags.collect::<BTreeMap<_, _>>(),
        // The key alone names the task, whatever is in it.
        idempotency: Some(Idempotency { key: Arc::clone(key), fingerprint: [0; 32] }),
        traceparent: None,
        submitted_by: None,
        envelope: None,
    })
}

fn spec(job: &JobDefinition, retry: RetryPolicy) -> Spec {
    let timeout_ms = job.timeout_seconds.map_or(NO_TIMEOUT_MS, |seconds| DurationMs::from(seconds) * 1_000);
    // A function need not send heartbeats.
    let (lease_ms, timeout_ms) = match job.runtime {
        Runtime::Lambda => (timeout_ms + LAMBDA_SLACK_MS, timeout_ms + LAMBDA_SLACK_MS),
        _ => (DurationMs::from(job.heartbeat_timeout_seconds) * 1_000, timeout_ms),
    };
    Spec {
        max_attempts: Some(job.max_attempts.unwrap_or(u32::MAX)),
        lease_ttl_ms: Some(lease_ms),
        heartbeat_ms: Some((lease_ms / 4).max(1)),
        timeout_ms: Some(timeout_ms),
        cancel_grace_ms: Some(CANCEL_GRACE_MS),
        retry: Some(retry),
        ..Spec::default()
    }
}
