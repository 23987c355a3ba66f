//! Webhooks: which job a path leads to, and the tasks that deliveries make.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use tenure_core::dag::definition::{JobDefinition, Signature, Source};
use tenure_core::dag::task::Trigger;
use tenure_core::dag::{Deployment, JobId};
use tenure_core::time::DurationMs;
use tenure_dag::Code;

use super::deploy::problem;
use super::tasks::{Making, input_of};
use super::{Dags, DeployError, JobOf, TriggerError, Triggered};
use crate::error::EngineError;

/// How long signed deliveries are known. A signature is valid for 5 minutes before and after its time.
const DELIVERIES_KNOWN_MS: DurationMs = 15 * 60_000;

/// Secrets by their logical names.
pub trait Secrets: Send + Sync + fmt::Debug {
    /// Those that an organisation can name.
    fn names(&self, org: &str) -> BTreeSet<Arc<str>>;
}

/// The job that a path leads to, and how its deliveries are signed.
#[derive(Debug, Clone, PartialEq)]
pub struct WebhookSource {
    pub job: Arc<JobOf>,
    /// The name of the secret.
    pub secret: Arc<str>,
    pub signature: Signature,
}

impl Dags {
    /// The webhook of an active version that has this path.
    pub async fn webhook(&self, path: &str) -> Result<Option<WebhookSource>, EngineError> {
        let Some(owner) = self.shared().store.webhooks(&[path.into()]).await?.pop() else { return Ok(None) };
        let view = self.view(&owner.org).await?;
        let Some(active) = view.deployment.active(&owner.dag) else { return Ok(None) };
        let jobs = sources(&view.deployment, active.jobs.values().copied());
        let found = self.jobs(&jobs).await?.into_iter().find_map(|job| match job.definition.source() {
            Some(Source::Webhook { path: own, secret, signature }) if **own == *path => {
                let (secret, signature) = (Arc::clone(secret), *signature);
                Some(WebhookSource { job, secret, signature })
            }
            _ => None,
        });
        Ok(found)
    }

    /// The name of a delivery that was signed with its time: the first one that it was sent with. Names are not signed, so
    /// whoever sends a delivery again could call it something else.
    pub async fn name_delivery(&self, path: &str, signed: &str, name: &Arc<str>) -> Result<Arc<str>, EngineError> {
        let digest = Sha256::digest(format!("{path}\n{signed}"));
        Ok(self.shared().store.name_delivery(digest.into(), name, DELIVERIES_KNOWN_MS).await?)
    }

    /// Makes the task of a delivery whose signature is valid. The same delivery id makes the same task.
    pub async fn deliver(
        &self,
        source: &WebhookSource,
        delivery_id: &Arc<str>,
        body: Arc<str>,
    ) -> Result<Triggered, TriggerError> {
        let job = Arc::clone(&source.job);
        let view = self.view(&job.org).await?;
        // A version may have become active meanwhile.
        let active = view.deployment.active(&job.dag).ok_or(TriggerError::UnknownDag)?;
        if active.jobs.get(&job.definition.name) != Some(&job.id) {
            return Err(TriggerError::UnknownJob);
        }
        let key = format!("webhook:{}:{delivery_id}", job.definition.name).into();
        let trigger = Trigger::Webhook { delivery_id: Arc::clone(delivery_id), body };
        let input = input_of(&view, job.id, trigger).ok_or(TriggerError::UnknownJob)?;
        let made = self.make(vec![Making { job, key, input }]).await?;
        let made = made.first().ok_or(EngineError::Internal)?;
        Ok(Triggered { task: made.id, created: made.created })
    }

    /// The paths of all active and staged versions, each with its DAG. `new` has jobs that are not stored yet.
    pub(super) async fn webhooks_of(
        &self,
        deployment: &Deployment,
        new: &BTreeMap<JobId, &JobDefinition>,
    ) -> Result<Vec<(Arc<str>, Arc<str>)>, EngineError> {
        let live = sources(deployment, deployment.live_jobs().into_iter());
        let (unstored, stored): (Vec<JobId>, Vec<JobId>) = live.into_iter().partition(|id| new.contains_key(id));
        let mut paths: BTreeMap<Arc<str>, Arc<str>> = BTreeMap::new();
        for job in self.jobs(&stored).await? {
            paths.extend(job.definition.webhook_path().map(|path| (Arc::clone(path), Arc::clone(&job.dag))));
        }
        for id in unstored {
            let dag = deployment.jobs.get(&id).map(|job| Arc::clone(&job.dag));
            let path = new.get(&id).and_then(|job| job.webhook_path()).cloned();
            paths.extend(path.zip(dag));
        }
        Ok(paths.into_iter().collect())
    }

    /// A version that comes back may find that others use its paths now.
    pub(super) async fn not_foreign(&self, org: &str, webhooks: &[(Arc<str>, Arc<str>)]) -> Result<(), DeployError> {
        let paths: Vec<Arc<str>> = webhooks.iter().map(|(path, _)| Arc::clone(path)).collect();
        if paths.is_empty() {
            return Ok(());
        }
        let owners = self.shared().store.webhooks(&paths).await.map_err(EngineError::from)?;
        let foreign = owners.into_iter().filter(|owner| &*owner.org != org);
        let problems: Vec<_> = foreign
            .map(|owner| {
                let message = format!("the webhook path '{}' is in use by another organisation now", owner.path);
                problem(Code::WebhookPathInUse, message)
            })
            .collect();
        if problems.is_empty() { Ok(()) } else { Err(DeployError::Invalid(problems)) }
    }
}

/// Those of these jobs that are sources.
pub(super) fn sources(deployment: &Deployment, jobs: impl Iterator<Item = JobId>) -> Vec<JobId> {
    jobs.filter(|id| deployment.jobs.get(id).is_some_and(|job| job.execution.is_none())).collect()
}
