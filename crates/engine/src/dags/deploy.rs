//! Deployments: plan, write if nobody was faster, then end what is left of replaced jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use tenure_core::dag::compact;
use tenure_core::dag::definition::{DagDefinition, JobDefinition, Output, Runtime, TIMEOUT_SECONDS_MAX};
use tenure_core::dag::deploy::{Deploy, Fresh, Planned, plan};
use tenure_core::dag::deployment::{DagVersion, Job, Refused, Switch, VersionState};
use tenure_core::dag::operators;
use tenure_core::dag::{DatasetId, Deployment, JobId};
use tenure_core::limits;
use tenure_core::queue::{Dispatch, JOB_QUEUES, Push, QueueSettings};
use tenure_core::time::DurationMs;
use tenure_dag::{Code, Dataset, Edge, Parsed, Problem, Reader, Surroundings};
use tenure_store::dags::{DeploymentWrites, NewDagVersion, NewGeneration, NewJob};

use super::builtin::BUILTIN_URL;
use super::tasks::LAMBDA_SLACK_MS;
use super::{Dags, LAMBDA_URL, QUERY_URL};
use crate::error::EngineError;
use crate::random::random_bits;

/// How often a change is planned again because somebody else was faster.
const TRIES: usize = 32;
/// Why tasks are canceled.
pub(super) const REPLACED: &str = "the version of the DAG was replaced";
pub(super) const ROLLED_BACK: &str = "the version of the DAG was rolled back";

/// What somebody wants to deploy.
#[derive(Debug, Clone, Copy)]
pub struct NewVersion<'a> {
    pub org: &'a str,
    pub yaml: &'a str,
    /// It becomes active only when somebody says so.
    pub manual: bool,
    /// Checks and plans, and writes nothing.
    pub dry_run: bool,
}

/// What a deployment came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Deployed {
    pub dag: Arc<str>,
    pub yaml_hash: Arc<str>,
    pub planned: Planned,
    pub warnings: Vec<Problem>,
}

impl Deployed {
    pub fn state(&self) -> VersionState {
        let version = self.planned.deployment.version(&self.dag, self.planned.number);
        version.map_or(VersionState::Abandoned, |version| version.state)
    }
}

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DeployError {
    /// Everything that is wrong with the text.
    #[error("the DAG has {} errors", .0.len())]
    Invalid(Vec<Problem>),
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// What became of making a version active.
#[derive(Debug, Clone, PartialEq)]
pub struct Switched {
    pub switch: Switch,
    pub canceled_tasks: u64,
}

/// Ids for a plan.
struct Ids {
    jobs: i64,
}

impl Fresh for Ids {
    fn id(&mut self) -> u128 {
        // Laid out like a random UUID.
        let bits = random_bits();
        bits & !(0xf << 76) & !(0b11 << 62) | (0x4 << 76) | (0b10 << 62)
    }

    fn job(&mut self) -> JobId {
        self.jobs += 1;
        JobId(self.jobs - 1)
    }
}

impl Dags {
    pub async fn deploy(&self, new: NewVersion<'_>) -> Result<Deployed, DeployError> {
        let yaml_hash: Arc<str> = hash(new.yaml).into();
        for _ in 0..TRIES {
            let view = self.view(new.org).await?;
            let parsed = self.parse(&new, &view.deployment).await?;
            let definition = &parsed.definition;
            let shared = self.shared();
            let mut numbers =
                shared.numbers.take(&*shared.store, definition.jobs.len()).await.map_err(EngineError::from)?;
            let deploy = Deploy { definition, yaml_hash: &yaml_hash, manual: new.manual, now: self.now().await? };
            let planned = plan(&view.deployment, &deploy, &mut Ids { jobs: numbers.take() }).map_err(|missing| {
                tracing::error!(reason = %missing, "a checked DAG reads what is not there");
                EngineError::Internal
            })?;
            let dag = Arc::clone(&definition.name);
            let warnings = parsed.warnings;
            if planned.is_known {
                return Ok(Deployed { dag, yaml_hash, planned, warnings });
            }
            let mut writes = writes(&planned, definition, new.yaml)?;
            within_limits(&planned.deployment, &writes.document)?;
            if new.dry_run {
                return Ok(Deployed { dag, yaml_hash, planned, warnings });
            }
            writes.webhooks = Some(self.webhooks_of(&planned.deployment, &definition_of(&planned, definition)).await?);
            if self.write(new.org, view.seq, &writes).await? {
                let retired = planned.switch.iter().flat_map(|switch| &switch.retired);
                let gone: Vec<JobId> = planned.abandoned.iter().chain(retired).copied().collect();
                self.cancel_tasks(&gone, false, REPLACED).await?;
                self.deployed();
                return Ok(Deployed { dag, yaml_hash, planned, warnings });
            }
        }
        Err(EngineError::busy().into())
    }

    async fn parse(&self, new: &NewVersion<'_>, deployment: &Deployment) -> Result<Parsed, DeployError> {
        let mut surroundings = self.surroundings(new.org, deployment).await?;
        surroundings.bundles = self.known_bundles(new.org, new.yaml).await?;
        let parse = |surroundings: &Surroundings| tenure_dag::parse(new.yaml, &self.inner.settings, surroundings);
        let parsed = parse(&surroundings).map_err(DeployError::Invalid)?;
        // Paths of webhooks are unique over all organisations.
        let jobs = parsed.definition.jobs.iter();
        let paths: Vec<Arc<str>> = jobs.filter_map(JobDefinition::webhook_path).cloned().collect();
        if paths.is_empty() {
            return Ok(parsed);
        }
        let owners = self.shared().store.webhooks(&paths).await.map_err(EngineError::from)?;
        let foreign = owners.into_iter().filter(|owner| &*owner.org != new.org);
        surroundings.foreign_webhook_paths = foreign.map(|owner| owner.path).collect();
        if surroundings.foreign_webhook_paths.is_empty() {
            return Ok(parsed);
        }
        parse(&surroundings).map_err(DeployError::Invalid)
    }

    /// Makes a version active.
    pub async fn cut_over(&self, org: &str, dag: &str, version: i64) -> Result<Switched, DeployError> {
        self.switch(org, dag, |deployment| deployment.cut_over(dag, version)).await
    }

    /// Goes back to the version before the active one.
    pub async fn roll_back(&self, org: &str, dag: &str) -> Result<Switched, DeployError> {
        self.switch(org, dag, |deployment| deployment.roll_back(dag)).await
    }

    async fn switch(
        &self,
        org: &str,
        dag: &str,
        change: impl Fn(&mut Deployment) -> Result<Switch, Refused>,
    ) -> Result<Switched, DeployError> {
        for _ in 0..TRIES {
            let view = self.view(org).await?;
            let mut deployment = view.deployment.clone();
            let switch = change(&mut deployment)?;
            if deployment == view.deployment {
                return Ok(Switched { switch, canceled_tasks: 0 });
            }
            deployment.touch(dag, self.now().await?);
            let webhooks = self.webhooks_of(&deployment, &BTreeMap::new()).await?;
            self.not_foreign(org, &webhooks).await?;
            let writes = DeploymentWrites {
                document: document(&deployment)?,
                held: switch.held.clone(),
                webhooks: Some(webhooks),
                ..DeploymentWrites::default()
            };
            if self.write(org, view.seq, &writes).await? {
                let waiting = self.cancel_tasks(&switch.retired, false, REPLACED).await?;
                let all = self.cancel_tasks(&switch.abandoned, true, ROLLED_BACK).await?;
                self.deployed();
                return Ok(Switched { switch, canceled_tasks: waiting + all });
            }
        }
        Err(EngineError::busy().into())
    }

    /// Whether the change was written.
    pub(super) async fn write(&self, org: &str, seen: i64, writes: &DeploymentWrites) -> Result<bool, EngineError> {
        let written = self.shared().store.apply_deployment(org, seen, writes).await?;
        // Queues were made or changed: whoever waits for them looks again.
        self.shared().queues_set.notify_waiters();
        if writes.held.iter().any(|(_, held)| !held) {
            self.shared().room.released();
        }
        Ok(written.is_ok())
    }

    pub(super) async fn now(&self) -> Result<tenure_core::Timestamp, EngineError> {
        self.inner.engine.now().await
    }

    /// What a DAG is judged against: the active versions of all others.
    async fn surroundings(&self, org: &str, deployment: &Deployment) -> Result<Surroundings, EngineError> {
        let active = deployment.dags.keys().filter_map(|dag| Some((dag, deployment.active(dag)?)));
        let secrets = self.inner.secrets.as_ref().map(|secrets| secrets.names(org));
        let mut found = Surroundings { secrets, ..Surroundings::default() };
        found.webhook_paths = self.webhooks_of(deployment, &BTreeMap::new()).await?.into_iter().collect();
        for (dag, version) in active {
            datasets(deployment, dag, version, &mut found);
        }
        Ok(found)
    }
}

/// The definitions of jobs that are not stored yet.
fn definition_of<'a>(planned: &Planned, definition: &'a DagDefinition) -> BTreeMap<JobId, &'a JobDefinition> {
    let by_name: BTreeMap<&str, &JobDefinition> = definition.jobs.iter().map(|job| (&*job.name, job)).collect();
    planned.jobs.iter().filter_map(|(id, name)| Some((*id, *by_name.get(&**name)?))).collect()
}

/// What an organisation has deployed is bounded.
fn within_limits(deployment: &Deployment, document: &str) -> Result<(), DeployError> {
    let jobs = deployment.live_jobs().len();
    let (code, message) = if deployment.dags.len() > compact::DAGS {
        (Code::TooManyDags, format!("the organisation would have more than {} DAGs", compact::DAGS))
    } else if jobs > compact::LIVE_JOBS {
        let limit = compact::LIVE_JOBS;
        (Code::TooManyJobs, format!("the DAGs of the organisation would have {jobs} jobs; the limit is {limit}"))
    } else if document.len() > compact::DOCUMENT_BYTES {
        let (mib, limit) = (document.len().div_ceil(1 << 20), compact::DOCUMENT_BYTES >> 20);
        let message = format!(
            "what the organisation has deployed would take {mib} MiB; the limit is {limit} MiB: deploy fewer jobs, or wait \
             until tasks of replaced jobs have ended"
        );
        (Code::DeploymentTooLarge, message)
    } else {
        return Ok(());
    };
    Err(DeployError::Invalid(vec![problem(code, message)]))
}

/// A problem of the whole DAG.
pub(super) fn problem(code: Code, message: String) -> Problem {
    Problem { line: 1, column: 1, job: None, field: String::new(), code, message }
}

fn datasets(deployment: &Deployment, dag: &Arc<str>, version: &DagVersion, found: &mut Surroundings) {
    let mut upstream = Upstreams::new(deployment, version);
    for (name, published) in &version.published {
        let Some(dataset) = deployment.datasets.get(&published.dataset) else { continue };
        let producers = vec![Output { job: Arc::clone(&dataset.job), output: dataset.output }];
        let schema = published.schema.as_ref().and_then(|schema| serde_json::from_str(schema).ok());
        let of = Dataset {
            dag: Arc::clone(dag),
            producers,
            ranges: version.ranges,
            storage: published.storage,
            write_mode: published.write_mode,
            schema,
        };
        found.datasets.insert(Arc::clone(name), of);
        let from = upstream.of(published.dataset);
        let edges = from.iter().map(|from| Edge { dag: Arc::clone(dag), from: Arc::clone(from), to: Arc::clone(name) });
        found.edges.extend(edges);
        let (dag, ranges) = (Arc::clone(dag), version.ranges);
        let readers = from.iter().map(|dataset| Reader { dag: Arc::clone(&dag), dataset: Arc::clone(dataset), ranges });
        found.readers.extend(readers);
    }
}

/// The datasets of other DAGs from which the outputs of a version follow, through its own jobs.
struct Upstreams<'a> {
    deployment: &'a Deployment,
    producers: BTreeMap<DatasetId, &'a Job>,
    known: BTreeMap<DatasetId, Arc<BTreeSet<Arc<str>>>>,
}

impl<'a> Upstreams<'a> {
    fn new(deployment: &'a Deployment, version: &DagVersion) -> Self {
        let jobs = version.jobs.values().filter_map(|id| deployment.jobs.get(id));
        let producers = jobs.flat_map(|job| job.outputs.iter().map(move |output| (output.dataset, job))).collect();
        Self { deployment, producers, known: BTreeMap::new() }
    }

    /// Their names. What a job reads is looked at before the job, each dataset once.
    fn of(&mut self, dataset: DatasetId) -> Arc<BTreeSet<Arc<str>>> {
        let mut open = vec![(dataset, false)];
        while let Some((next, inputs_known)) = open.pop() {
            if self.known.contains_key(&next) {
                continue;
            }
            let names: BTreeSet<Arc<str>> = match self.producers.get(&next) {
                None => self.deployment.name_of(next).cloned().into_iter().collect(),
                Some(job) if inputs_known => {
                    let inputs = job.inputs.iter().filter_map(|input| self.known.get(&input.dataset));
                    inputs.flat_map(|names| names.iter().cloned()).collect()
                }
                Some(job) => {
                    open.push((next, true));
                    open.extend(job.inputs.iter().map(|input| (input.dataset, false)));
                    continue;
                }
            };
            self.known.insert(next, Arc::new(names));
        }
        self.known.get(&dataset).cloned().unwrap_or_default()
    }
}

fn hash(yaml: &str) -> String {
    let mut text = "sha256:".to_owned();
    for byte in Sha256::digest(yaml.as_bytes()) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

pub(super) fn document(deployment: &Deployment) -> Result<Arc<str>, EngineError> {
    serde_json::to_string(deployment).map(Into::into).map_err(|error| super::damaged("deployments", &error))
}

fn writes(planned: &Planned, definition: &DagDefinition, yaml: &str) -> Result<DeploymentWrites, EngineError> {
    let dag = &definition.name;
    let definitions = definition_of(planned, definition);
    let jobs = planned.jobs.iter().filter_map(|(id, name)| {
        let job = *definitions.get(id)?;
        let held = planned.deployment.jobs.get(id).is_some_and(|row| row.held);
        let text = serde_json::to_string(job).ok()?;
        Some(NewJob {
            id: *id,
            dag: Arc::clone(dag),
            name: Arc::clone(name),
            definition: text.into(),
            queue: format!("{JOB_QUEUES}{dag}:{name}:{}", id.0).into(),
            settings: settings(job, held),
        })
    });
    let version = NewDagVersion { id: planned.id, dag: Arc::clone(dag), number: planned.number, yaml: yaml.into() };
    let new: BTreeSet<JobId> = planned.jobs.iter().map(|(id, _)| *id).collect();
    let switched = planned.switch.iter().flat_map(|switch| switch.held.iter().copied());
    let generations = planned.generations.iter();
    Ok(DeploymentWrites {
        document: document(&planned.deployment)?,
        versions: planned.is_new.then_some(version).into_iter().collect(),
        jobs: jobs.collect(),
        held: switched.filter(|(job, _)| !new.contains(job)).collect(),
        generations: generations
            .map(|(dataset, version)| NewGeneration { version: *version, dataset: *dataset })
            .collect(),
        forgotten: planned.forgotten.clone(),
        ..DeploymentWrites::default()
    })
}

/// How the queue of a job grants its tasks.
fn settings(job: &JobDefinition, held: bool) -> QueueSettings {
    let wake: Arc<str> = match (&job.runtime, &job.scaling.worker_pool) {
        (Runtime::Sandbox, _) => Runtime::SANDBOX.into(),
        (_, Some(pool)) => format!("{}.{pool}", Runtime::WORKER).into(),
        (_, None) => Runtime::WORKER.into(),
    };
    let max_running = if operators::runs_alone(job) { Some(1) } else { job.scaling.max_concurrency };
    QueueSettings {
        max_running,
        push: push(job).map(Arc::new),
        dispatch: Some(Arc::new(Dispatch { wake, held })),
        ..QueueSettings::default()
    }
}

/// How the control plane runs tasks of a job itself. Nobody starts such a task, so that the time until a start is that of
/// the whole attempt.
fn push(job: &JobDefinition) -> Option<Push> {
    let timeout_ms = DurationMs::from(job.timeout_seconds.unwrap_or(TIMEOUT_SECONDS_MAX)) * 1_000;
    match job.runtime {
        Runtime::Lambda => {
            let lease_ms = timeout_ms + LAMBDA_SLACK_MS;
            let push = Push::to(LAMBDA_URL.into());
            Some(Push { dispatch_timeout_ms: lease_ms, start_timeout_ms: lease_ms, ..push })
        }
        Runtime::Dispatcher => {
            // Another control plane repeats what is silent for so long.
            let ack_timeout_ms = timeout_ms.min(limits::PUSH_ACK_MS_MAX);
            let url = if &*job.operator == operators::QUERY { QUERY_URL } else { BUILTIN_URL };
            let push = Push::to(url.into());
            Some(Push { dispatch_timeout_ms: timeout_ms, start_timeout_ms: timeout_ms, ack_timeout_ms, ..push })
        }
        Runtime::Worker { .. } | Runtime::Sandbox => None,
    }
}
