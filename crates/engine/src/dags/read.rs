//! What people look at. Every page is bounded; counts are those that are kept with the tasks.

use std::sync::Arc;

use tenure_core::batch::Counts;
use tenure_core::dag::data::{Partition, Position, Scope};
use tenure_core::dag::route::{self, Event};
use tenure_core::dag::{DagVersionId, JobId, VersionId};
use tenure_store::Page;
use tenure_store::dags::{DATA_PAGE, GenerationRow, InvalidationRow, PartitionRow};

use super::{Dags, View};
use crate::error::EngineError;

impl Dags {
    /// The text of a version.
    pub async fn yaml(&self, org: &str, version: DagVersionId) -> Result<Option<Arc<str>>, EngineError> {
        Ok(self.shared().store.dag_version(org, version).await?.map(|row| row.yaml))
    }

    /// How many tasks each of these jobs has, in the order of the question.
    pub async fn task_counts(&self, jobs: &[JobId]) -> Result<Vec<Counts>, EngineError> {
        let mut counts = Vec::with_capacity(jobs.len());
        for page in jobs.chunks(DATA_PAGE) {
            counts.extend(self.shared().store.job_counts(page).await?);
        }
        Ok(counts)
    }

    /// How many jobs run again because of an invalidation, by what is deployed in this view.
    pub fn dependents(&self, view: &View, row: &InvalidationRow) -> u64 {
        if let Some(dependents) = row.dependents {
            return u64::try_from(dependents).unwrap_or(0);
        }
        // Every reader of the rows, and of partitions, which rows may be in.
        let key = match &row.scope {
            Scope::Partition { partition_key } => Arc::clone(partition_key),
            Scope::RowRange { .. } => "".into(),
        };
        let position = Position::Partition(Partition { key, ends: None });
        let event =
            Event { dataset: row.dataset, version: row.version, position: &position, generation: row.generation };
        route::route(&view.deployment, &view.readers, &event).map_or(0, |deliveries| deliveries.len() as u64)
    }

    /// Those of these generations that exist.
    pub async fn generations(&self, versions: &[VersionId]) -> Result<Vec<GenerationRow>, EngineError> {
        let mut found = Vec::with_capacity(versions.len());
        for page in versions.chunks(DATA_PAGE) {
            found.extend(self.shared().store.generations(page).await?);
        }
        Ok(found)
    }

    /// Partitions after a key, by key.
    pub async fn partitions(
        &self,
        version: VersionId,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<PartitionRow>, EngineError> {
        Ok(self.shared().store.partitions(version, after, limit).await?)
    }

    /// How far each of these jobs has read each generation by cursor.
    pub async fn cursors(&self, jobs: &[JobId]) -> Result<Vec<(JobId, VersionId, i64)>, EngineError> {
        let mut found = Vec::new();
        for page in jobs.chunks(DATA_PAGE) {
            found.extend(self.shared().store.cursors(page).await?);
        }
        Ok(found)
    }
}
