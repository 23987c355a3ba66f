//! Versions that wait until their outputs are rebuilt.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_core::dag::JobId;
use tenure_core::dag::deployment::{DagVersion, VersionState};
use tenure_store::dags::{DeploymentWrites, TaskCounts};

use super::deploy::document;
use super::router::is_held;
use super::tasks::REBUILD_TAG;
use super::{Dags, DeployError, View, lock};
use crate::error::EngineError;

/// Counting many tasks takes time: they are counted less often.
const PAUSE_PER_TASK: Duration = Duration::from_micros(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

impl Dags {
    /// How far the tasks that rebuild a version have come.
    pub async fn rebuild_counts(&self, org: &str, dag: &str, number: i64) -> Result<TaskCounts, EngineError> {
        let view = self.view(org).await?;
        match view.deployment.version(dag, number) {
            Some(version) => self.count_rebuild(org, &view, version).await,
            None => Ok(TaskCounts::default()),
        }
    }

    async fn count_rebuild(&self, org: &str, view: &View, version: &DagVersion) -> Result<TaskCounts, EngineError> {
        if version.state != VersionState::Staging {
            return Ok(TaskCounts { total: version.rebuilt, succeeded: version.rebuilt, failed: 0 });
        }
        let jobs: Vec<JobId> = version.jobs.values().copied().filter(|id| is_held(&view.deployment, *id)).collect();
        let tag = version.id.to_string();
        Ok(self.shared().store.count_tasks(org, &jobs, (REBUILD_TAG, &tag)).await?)
    }

    /// Makes versions ready whose rebuild tasks have all succeeded, and active those that wait for nobody.
    pub(super) async fn finish_rebuilds(&self) -> Result<(), EngineError> {
        let troubled = self.troubled();
        let deployments = self.shared().store.deployments().await?;
        for (org, seq) in deployments.iter().filter(|(org, _)| !troubled.contains(org)) {
            self.only_for(org, self.finish_rebuilds_of(org, *seq).await)?;
        }
        Ok(())
    }

    async fn finish_rebuilds_of(&self, org: &Arc<str>, seq: i64) -> Result<(), EngineError> {
        let view = self.view_at(org, seq).await?;
        let staged = view.deployment.dags.keys().filter_map(|dag| Some((dag, view.deployment.staged(dag)?)));
        for (dag, (number, version)) in staged {
            match version.state {
                VersionState::Staging => self.finish_rebuild(org, dag, number).await?,
                // Whoever made it ready has ended before it could make it active.
                VersionState::Ready if !version.manual => self.activate(org, dag, number, version).await?,
                _ => {}
            }
        }
        Ok(())
    }

    async fn activate(&self, org: &str, dag: &str, number: i64, version: &DagVersion) -> Result<(), EngineError> {
        if self.is_put_off(version) {
            return Ok(());
        }
        match self.cut_over(org, dag, number).await {
            Ok(_) => Ok(()),
            Err(DeployError::Engine(error)) => Err(error),
            Err(error) => {
                self.put_off(version, LONGEST_PAUSE);
                tracing::warn!(org.id = %org, dag.name = dag, dag.version = number, %error, "a version cannot become active");
                Ok(())
            }
        }
    }

    /// Whether it is too early to look at a version again.
    fn is_put_off(&self, version: &DagVersion) -> bool {
        lock(&self.inner.counted).get(&version.id).is_some_and(|at| Instant::now() < *at)
    }

    fn put_off(&self, version: &DagVersion, pause: Duration) {
        let now = Instant::now();
        let mut counted = lock(&self.inner.counted);
        counted.retain(|_, at| *at + LONGEST_PAUSE > now);
        counted.insert(version.id, now + pause);
    }

    async fn finish_rebuild(&self, org: &Arc<str>, dag: &str, number: i64) -> Result<(), EngineError> {
        let view = self.view(org).await?;
        let Some(version) = view.deployment.version(dag, number) else { return Ok(()) };
        let mut deployment = view.deployment.clone();
        if !version.rebuilding {
            // What is there now is rebuilt. That it was looked at is noted: no tasks would mean nothing otherwise. What
            // comes later waits for the version.
            for id in version.jobs.values().filter(|id| is_held(&view.deployment, **id)) {
                self.reconcile_job(&view, *id).await?;
            }
            deployment.note_rebuilding(dag, number);
            let writes = DeploymentWrites { document: document(&deployment)?, ..DeploymentWrites::default() };
            self.write(org, view.seq, &writes).await?;
            self.recorded();
            return Ok(());
        }
        if self.is_put_off(version) {
            return Ok(());
        }
        let counts = self.count_rebuild(org, &view, version).await?;
        // One that failed for good keeps the version waiting.
        if counts.succeeded < counts.total {
            let pause = PAUSE_PER_TASK.saturating_mul(u32::try_from(counts.total).unwrap_or(u32::MAX));
            self.put_off(version, pause.min(LONGEST_PAUSE));
            return Ok(());
        }
        // The last of them may have made events. If another control plane has routed those in between, as happens when the
        // duty to route changes hands, their tasks are not among those that were counted: they are counted once more.
        if self.has_unrouted(org).await?
            || self.count_rebuild(org, &view, version).await? != counts
            || !deployment.make_ready(dag, number, counts.total)
        {
            return Ok(());
        }
        deployment.touch(dag, self.now().await?);
        let writes = DeploymentWrites { document: document(&deployment)?, ..DeploymentWrites::default() };
        if self.write(org, view.seq, &writes).await? && !version.manual {
            return self.activate(org, dag, number, version).await;
        }
        Ok(())
    }
}
