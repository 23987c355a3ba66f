//! What a task is told when it is claimed: read often, so it may be a moment old.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_core::dag::data::Position;
use tenure_core::dag::{JobId, VersionId};
use tenure_store::dags::{DATA_PAGE, DataEvent, JobState, PartitionRow};

use super::{Dags, View, lock};
use crate::error::EngineError;

/// For how long a deployment is not read again where a moment does not matter.
const FRESH: Duration = Duration::from_secs(1);
/// Organisations whose deployment is remembered.
const REMEMBERED: usize = 1_000;

/// Deployments that were read a moment ago.
#[derive(Debug, Default)]
pub(super) struct Recent(HashMap<Arc<str>, (Instant, Arc<View>)>);

impl Dags {
    /// What is deployed, or was a moment ago.
    pub async fn recent_view(&self, org: &Arc<str>) -> Result<Arc<View>, EngineError> {
        let known = lock(&self.inner.recent).0.get(org).filter(|(at, _)| at.elapsed() < FRESH).cloned();
        if let Some((_, view)) = known {
            return Ok(view);
        }
        let view = self.view(org).await?;
        let mut recent = lock(&self.inner.recent);
        if recent.0.len() >= REMEMBERED {
            recent.0.clear();
        }
        recent.0.insert(Arc::clone(org), (Instant::now(), Arc::clone(&view)));
        Ok(view)
    }

    /// What a job has kept, and how far it has read these generations.
    pub async fn job_state(&self, job: JobId, versions: &[VersionId]) -> Result<JobState, EngineError> {
        Ok(self.shared().store.job_state(job, versions).await?)
    }

    pub async fn partition(&self, version: VersionId, key: &str) -> Result<Option<PartitionRow>, EngineError> {
        Ok(self.shared().store.partition(version, key).await?)
    }

    /// Which of these events are on record, in the order of the question.
    pub async fn recorded_events(
        &self,
        events: &[(VersionId, Position)],
    ) -> Result<Vec<Option<DataEvent>>, EngineError> {
        let mut found = Vec::with_capacity(events.len());
        for page in events.chunks(DATA_PAGE) {
            found.extend(self.shared().store.recorded(page).await?);
        }
        Ok(found)
    }
}
