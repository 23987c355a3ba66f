//! DAGs: deployments, the tasks that sources and events create, and invalidated data.
//!
//! What is deployed is one document per organisation, planned by `core/src/dag` and written only if nobody else has changed
//! it meanwhile. Tasks of jobs are ordinary tasks in queues of their own. Each has a key, so that an event, a slot or a
//! request makes it once, however often it is looked at and by however many control planes.

mod builtin;
mod deploy;
mod lookup;
mod report;
mod router;
mod tasks;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_core::TaskId;
use tenure_core::command::Reach;
use tenure_core::command::cancel::{Cancel, Mode};
use tenure_core::dag::data::NewInvalidation;
use tenure_core::dag::{Deployment, JobDefinition, JobId};
use tenure_core::task::State;
use tenure_store::dags::{DATA_PAGE, InvalidationRow};
use tenure_store::{StoreError, TaskFilter};
use tokio::sync::Notify;

use crate::engine::{Engine, Shared};
use crate::error::EngineError;
pub use tenure_dag::{Problem as DagProblem, Settings as DagSettings};

pub use deploy::{DeployError, Deployed, NewVersion, Switched};
pub use report::{Sender, Stage};
pub use tasks::{TriggerError, Triggered};

/// Where queues of jobs with `runtime: lambda` push their tasks.
pub const LAMBDA_URL: &str = "lambda:";
/// How often an invalidation is tried that others are in the way of.
const INVALIDATE_TRIES: usize = 8;
/// Tasks of one look at what is to be canceled.
const CANCEL_TASKS: usize = 500;

/// The DAGs of a control plane. Cloning gives another handle to the same.
#[derive(Clone)]
pub struct Dags {
    inner: Arc<Inner>,
}

struct Inner {
    engine: Engine,
    settings: tenure_dag::Settings,
    views: Mutex<HashMap<Arc<str>, Arc<View>>>,
    recent: Mutex<lookup::Recent>,
    /// Jobs never change.
    jobs: Mutex<HashMap<JobId, Arc<JobOf>>>,
    /// Events were recorded.
    route: Notify,
}

/// What is deployed in an organisation.
#[derive(Debug, Clone, PartialEq)]
pub struct View {
    pub seq: i64,
    pub deployment: Deployment,
}

/// A job as it was deployed.
#[derive(Debug, Clone, PartialEq)]
pub struct JobOf {
    pub id: JobId,
    pub org: Arc<str>,
    pub dag: Arc<str>,
    pub queue: Arc<str>,
    pub definition: JobDefinition,
}

impl fmt::Debug for Dags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dags").finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    /// The DAGs of this control plane, and what routes their events. To be called once.
    pub fn dags(&self, settings: tenure_dag::Settings) -> Dags {
        let inner = Inner {
            engine: self.clone(),
            settings,
            views: Mutex::default(),
            recent: Mutex::default(),
            jobs: Mutex::default(),
            route: Notify::new(),
        };
        let dags = Dags { inner: Arc::new(inner) };
        self.deliveries.spawn(dags.clone().keep_routing());
        dags
    }
}

impl Dags {
    fn shared(&self) -> &Shared {
        &self.inner.engine.shared
    }

    /// What is deployed now.
    pub async fn view(&self, org: &str) -> Result<Arc<View>, EngineError> {
        let row = self.shared().store.deployment(org).await?;
        let known = lock(&self.inner.views).get(org).filter(|view| view.seq == row.seq).cloned();
        if let Some(view) = known {
            return Ok(view);
        }
        let deployment = if row.document.is_empty() {
            Deployment::default()
        } else {
            serde_json::from_str(&row.document).map_err(|error| damaged("deployments", &error))?
        };
        let view = Arc::new(View { seq: row.seq, deployment });
        lock(&self.inner.views).insert(row.org, Arc::clone(&view));
        Ok(view)
    }

    /// Those of these jobs that exist.
    pub async fn jobs(&self, ids: &[JobId]) -> Result<Vec<Arc<JobOf>>, EngineError> {
        let unknown: Vec<JobId> = {
            let known = lock(&self.inner.jobs);
            ids.iter().copied().filter(|id| !known.contains_key(id)).collect()
        };
        for page in unknown.chunks(DATA_PAGE) {
            for row in self.shared().store.jobs(page).await? {
                let definition = serde_json::from_str(&row.definition).map_err(|error| damaged("dag_jobs", &error))?;
                let job = JobOf { id: row.id, org: row.org, dag: row.dag, queue: row.queue, definition };
                lock(&self.inner.jobs).insert(row.id, Arc::new(job));
            }
        }
        let known = lock(&self.inner.jobs);
        Ok(ids.iter().filter_map(|id| known.get(id).cloned()).collect())
    }

    pub async fn job(&self, id: JobId) -> Result<Option<Arc<JobOf>>, EngineError> {
        Ok(self.jobs(&[id]).await?.pop())
    }

    /// Says that data of a dataset has changed: what was made from it is made again. The same id again changes nothing.
    pub async fn invalidate(&self, org: &str, new: &NewInvalidation) -> Result<InvalidationRow, EngineError> {
        for _ in 0..INVALIDATE_TRIES {
            match self.shared().store.invalidate(org, new).await {
                // The router may write to the same rows.
                Err(StoreError::Contention) => {}
                done => {
                    self.recorded();
                    return Ok(done?);
                }
            }
        }
        Err(EngineError::busy())
    }

    /// Events were recorded: they are routed soon.
    pub fn recorded(&self) {
        self.inner.route.notify_one();
    }

    /// Cancels the tasks of jobs that no active or staged version contains: those that wait, and with `running` also those
    /// that run.
    async fn cancel_tasks(&self, jobs: &[JobId], running: bool, reason: &str) -> Result<u64, EngineError> {
        let states = [State::Ready, State::Scheduled].into_iter().chain(running.then_some(State::Running));
        let mut canceled = 0;
        for job in self.jobs(jobs).await? {
            for state in states.clone() {
                canceled += self.cancel_in(&job.queue, state, reason).await?;
            }
        }
        Ok(canceled)
    }

    async fn cancel_in(&self, queue: &Arc<str>, state: State, reason: &str) -> Result<u64, EngineError> {
        let mut filter = TaskFilter {
            queue: Some(queue.to_string()),
            state: Some(state),
            limit: CANCEL_TASKS,
            ..TaskFilter::default()
        };
        let mut canceled = 0;
        loop {
            let page = self.inner.engine.tasks(&filter).await?;
            for view in &page.items {
                canceled += u64::from(self.cancel(view.body.id, reason).await?);
            }
            match page.items.last() {
                Some(last) if page.next.is_some() => filter.before = Some(last.body.seq()),
                _ => return Ok(canceled),
            }
        }
    }

    async fn cancel(&self, task: TaskId, reason: &str) -> Result<bool, EngineError> {
        let cancel = Cancel { task, reason: reason.into(), mode: Mode::Immediate, reach: Reach::All };
        Ok(self.inner.engine.cancel(cancel).await?.is_ok())
    }
}

fn damaged(table: &'static str, error: &serde_json::Error) -> EngineError {
    let source = format!("{table}: {error}").into();
    StoreError::Failed { operation: "read a deployment", source }.into()
}
