//! DAGs: deployments, the tasks that sources and events create, and invalidated data.
//!
//! What is deployed is one document per organisation, planned by `core/src/dag` and written only if nobody else has changed
//! it meanwhile. Tasks of jobs are ordinary tasks in queues of their own. Each has a key, so that an event, a slot or a
//! request makes it once, however often it is looked at and by however many control planes.

mod builtin;
mod bundles;
mod cache;
mod clean;
mod deploy;
mod lookup;
mod read;
mod rebuild;
mod report;
mod router;
mod sources;
mod staging;
mod tasks;
mod wakeups;
mod webhooks;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tenure_core::command::cancel::{Cancel, Mode};
use tenure_core::command::{Command, Reach};
use tenure_core::dag::data::NewInvalidation;
use tenure_core::dag::definition::Source;
use tenure_core::dag::route::Readers;
use tenure_core::dag::{DagVersionId, Deployment, JobDefinition, JobId};
use tenure_core::task::State;
use tenure_store::dags::{DATA_PAGE, InvalidationRow};
use tenure_store::{StoreError, TaskFilter};
use tokio::sync::Notify;

use crate::engine::{Engine, Shared};
use crate::error::EngineError;
pub use tenure_dag::{Problem as DagProblem, Settings as DagSettings};

pub use bundles::{Bundle, RemoveBundleError, new_bundle_id};
use cache::Cache;
pub use deploy::{DeployError, Deployed, NewVersion, Switched};
pub use report::{Sender, Stage};
pub use staging::STAGING_KEPT;
pub use tasks::{TriggerError, Triggered};
pub use wakeups::{WAKEUPS_MAX, WAKEUPS_WAIT};
pub use webhooks::{Secrets, WebhookSource};

/// Where queues of jobs with `runtime: lambda` push their tasks.
pub const LAMBDA_URL: &str = "lambda:";
/// Where queues of jobs with the operator `query` push theirs.
pub const QUERY_URL: &str = "query:";
/// How often an invalidation is tried that others are in the way of.
const INVALIDATE_TRIES: usize = 8;
/// Tasks that are canceled together.
const CANCEL_TASKS: usize = 500;
/// Documents that are kept in memory, by the bytes of their JSON.
const VIEW_BYTES: usize = 64 << 20;
/// Definitions of jobs, likewise.
const JOB_BYTES: usize = 32 << 20;
/// An organisation whose rows cannot be read is looked at again after this time.
const TROUBLED: Duration = Duration::from_secs(30);

/// The DAGs of a control plane. Cloning gives another handle to the same.
#[derive(Clone)]
pub struct Dags {
    inner: Arc<Inner>,
}

struct Inner {
    engine: Engine,
    settings: tenure_dag::Settings,
    secrets: Option<Arc<dyn Secrets>>,
    views: Mutex<Cache<Arc<str>, Arc<View>>>,
    recent: Mutex<lookup::Recent>,
    /// Jobs never change.
    jobs: Mutex<Cache<JobId, Arc<JobOf>>>,
    /// Organisations that could not be served, and until when they are left alone.
    troubled: Mutex<HashMap<Arc<str>, Instant>>,
    /// When the rebuild tasks of a version are counted again.
    counted: Mutex<HashMap<DagVersionId, Instant>>,
    /// Events were recorded.
    route: Notify,
    /// What is deployed has changed: sources may have come or gone.
    fire: Notify,
    hints: wakeups::Hints,
}

/// What is deployed in an organisation.
#[derive(Debug, Clone, PartialEq)]
pub struct View {
    pub seq: i64,
    pub deployment: Deployment,
    /// Who reads which dataset.
    pub readers: Readers,
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

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    /// The DAGs of this control plane, and what routes their events and fires their sources. To be called once.
    pub fn dags(&self, settings: tenure_dag::Settings) -> Dags {
        self.dags_with(settings, None)
    }

    /// As [`Engine::dags`], with the secrets that webhooks are signed with.
    pub fn dags_with(&self, settings: tenure_dag::Settings, secrets: Option<Arc<dyn Secrets>>) -> Dags {
        let inner = Inner {
            engine: self.clone(),
            settings,
            secrets,
            views: Mutex::new(Cache::new(VIEW_BYTES)),
            recent: Mutex::default(),
            jobs: Mutex::new(Cache::new(JOB_BYTES)),
            troubled: Mutex::default(),
            counted: Mutex::default(),
            route: Notify::new(),
            fire: Notify::new(),
            hints: wakeups::Hints::default(),
        };
        let dags = Dags { inner: Arc::new(inner) };
        self.deliveries.spawn(dags.clone().keep_routing());
        self.deliveries.spawn(dags.clone().keep_firing());
        dags
    }
}

impl Dags {
    pub(crate) fn engine(&self) -> &Engine {
        &self.inner.engine
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.inner.engine.shared
    }

    /// What is deployed now.
    pub async fn view(&self, org: &str) -> Result<Arc<View>, EngineError> {
        let known = lock(&self.inner.views).get(org);
        let seen = known.as_ref().map_or(0, |view| view.seq);
        let Some(row) = self.shared().store.deployment_newer(org, seen).await? else {
            return Ok(known.unwrap_or_else(|| Arc::new(View::of(0, Deployment::default()))));
        };
        let deployment = serde_json::from_str(&row.document).map_err(|error| damaged("deployments", &error))?;
        let view = Arc::new(View::of(row.seq, deployment));
        lock(&self.inner.views).insert(row.org, Arc::clone(&view), row.document.len());
        Ok(view)
    }

    /// What is deployed, of which the caller knows the number.
    async fn view_at(&self, org: &str, seq: i64) -> Result<Arc<View>, EngineError> {
        let known = lock(&self.inner.views).get(org).filter(|view| view.seq == seq);
        match known {
            Some(view) => Ok(view),
            None => self.view(org).await,
        }
    }

    /// Those of these jobs that exist.
    pub async fn jobs(&self, ids: &[JobId]) -> Result<Vec<Arc<JobOf>>, EngineError> {
        let mut found: HashMap<JobId, Arc<JobOf>> = {
            let mut known = lock(&self.inner.jobs);
            ids.iter().filter_map(|id| Some((*id, known.get(id)?))).collect()
        };
        let unknown: Vec<JobId> = ids.iter().copied().filter(|id| !found.contains_key(id)).collect();
        for page in unknown.chunks(DATA_PAGE) {
            for row in self.shared().store.jobs(page).await? {
                let definition = serde_json::from_str(&row.definition).map_err(|error| damaged("dag_jobs", &error))?;
                let weight = row.definition.len();
                let job = Arc::new(JobOf { id: row.id, org: row.org, dag: row.dag, queue: row.queue, definition });
                lock(&self.inner.jobs).insert(row.id, Arc::clone(&job), weight);
                found.insert(row.id, job);
            }
        }
        Ok(ids.iter().filter_map(|id| found.get(id).cloned()).collect())
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

    /// What is deployed has changed.
    fn deployed(&self) {
        self.recorded();
        self.inner.fire.notify_one();
    }

    /// Events were recorded: they are routed soon.
    pub fn recorded(&self) {
        self.inner.route.notify_one();
    }

    /// Organisations that are left alone for now.
    fn troubled(&self) -> Vec<Arc<str>> {
        let mut troubled = lock(&self.inner.troubled);
        troubled.retain(|_, until| Instant::now() < *until);
        troubled.keys().cloned().collect()
    }

    /// Says what became of work for one organisation. If it is the trouble of that organisation alone, others go on.
    fn only_for(&self, org: &Arc<str>, work: Result<(), EngineError>) -> Result<(), EngineError> {
        match work {
            Err(EngineError::Internal) => {
                tracing::error!(org.id = %org, retry_s = TROUBLED.as_secs(), "the DAGs of an organisation cannot be served");
                metrics::counter!("tenure_dag_failures_total").increment(1);
                lock(&self.inner.troubled).insert(Arc::clone(org), Instant::now() + TROUBLED);
                Ok(())
            }
            other => other,
        }
    }

    /// Cancels the tasks of jobs that no active or staged version contains: those that wait, and with `running` also those
    /// that run. An `always_on` source would run for ever.
    async fn cancel_tasks(&self, jobs: &[JobId], running: bool, reason: &str) -> Result<u64, EngineError> {
        let mut canceled = 0;
        for page in jobs.chunks(DATA_PAGE) {
            let busy = self.shared().store.busy_jobs(page).await?;
            for job in self.jobs(&busy).await? {
                let running = running || job.definition.source() == Some(&Source::AlwaysOn);
                let states = [State::Ready, State::Scheduled].into_iter().chain(running.then_some(State::Running));
                for state in states {
                    canceled += self.cancel_in(&job.queue, state, reason).await?;
                }
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
            let cancel = |task| Cancel { task, reason: reason.into(), mode: Mode::Immediate, reach: Reach::All };
            let commands = page.items.iter().map(|view| Command::Cancel(cancel(view.body.id))).collect();
            for reply in self.shared().work.send(commands, 0).await? {
                canceled += u64::from(reply?.is_ok());
            }
            match page.items.last() {
                Some(last) if page.next.is_some() => filter.before = Some(last.body.seq()),
                _ => return Ok(canceled),
            }
        }
    }
}

impl View {
    fn of(seq: i64, deployment: Deployment) -> Self {
        Self { seq, readers: Readers::of(&deployment), deployment }
    }
}

fn damaged(table: &'static str, error: &serde_json::Error) -> EngineError {
    let source = format!("{table}: {error}").into();
    StoreError::Failed { operation: "read a deployment", source }.into()
}
