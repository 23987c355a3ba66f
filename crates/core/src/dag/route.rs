//! Which tasks an event makes.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::data::Position;
use super::definition::ExecutionStrategy;
use super::deployment::Deployment;
use super::id::{DatasetId, JobId, VersionId};

/// An event as far as routing looks at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event<'a> {
    pub dataset: DatasetId,
    pub version: VersionId,
    pub position: &'a Position,
    /// How often data at this position has been invalidated.
    pub generation: i64,
}

/// A task that an event makes, unless it is there already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    pub job: JobId,
    pub input: usize,
    /// A job has at most one task with this key.
    pub key: Arc<str>,
    /// It makes outputs of a version that is not active yet.
    pub rebuild: bool,
}

/// Why an event makes no task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unrouted {
    /// A generation that nobody reads any more.
    OldVersion,
    /// Nobody reads the dataset.
    NoReader,
    /// All readers take partitions, and this is none.
    NotAPartition,
}

impl Unrouted {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OldVersion => "old_version",
            Self::NoReader => "no_reader",
            Self::NotAPartition => "not_a_partition",
        }
    }
}

/// The key of the task that a position makes for each of its readers. A repeated event makes the same key; after an
/// invalidation the key is another one, so that the data is processed again.
pub fn dedupe_key(event: &Event<'_>) -> String {
    let Event { dataset, version, generation, .. } = event;
    match event.position {
        Position::Cursor(cursor) => format!("cursor:{dataset}:{version}:{cursor}:g{generation}"),
        Position::Partition(partition) => format!("partition:{dataset}:{version}:{}:g{generation}", partition.key),
    }
}

/// The inputs of live jobs, by the dataset that they read: in the order of jobs and inputs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Readers(BTreeMap<DatasetId, Vec<(JobId, usize)>>);

impl Readers {
    pub fn of(deployment: &Deployment) -> Self {
        let mut readers: BTreeMap<DatasetId, Vec<(JobId, usize)>> = BTreeMap::new();
        for id in deployment.live_jobs() {
            for (index, input) in deployment.jobs.get(&id).into_iter().flat_map(|job| job.inputs.iter().enumerate()) {
                readers.entry(input.dataset).or_default().push((id, index));
            }
        }
        Self(readers)
    }
}

/// A job that reads a generation of a dataset, and by which input. One that reads it twice counts once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reader {
    pub job: JobId,
    pub input: usize,
    /// Its tasks make outputs of a version that is not active yet.
    pub rebuild: bool,
    by_partition: bool,
}

fn readers_of(deployment: &Deployment, readers: &Readers, dataset: DatasetId, version: VersionId) -> Vec<Reader> {
    let is_current = deployment.is_current(dataset, version);
    let mut found = Vec::<Reader>::new();
    for (id, input) in readers.0.get(&dataset).into_iter().flatten().copied() {
        let Some(job) = deployment.jobs.get(&id) else { continue };
        let reads = job.inputs.get(input).is_some_and(|input| deployment.reads(input) == Some(version));
        if reads && found.last().is_none_or(|last| last.job != id) {
            // Only what rebuilds a version writes a generation that is not current. What follows from it is part of that, and
            // so is everything until it was looked at what there is to rebuild: it may have been there before the version.
            let looked_at = || deployment.staged(&job.dag).is_some_and(|(_, version)| version.rebuilding);
            let rebuild = job.held && (!is_current || !looked_at());
            let by_partition = job.execution == Some(ExecutionStrategy::PerPartition);
            found.push(Reader { job: id, input, rebuild, by_partition });
        }
    }
    found
}

/// The jobs that have a task for each partition of this generation.
pub fn partition_readers(
    deployment: &Deployment,
    readers: &Readers,
    dataset: DatasetId,
    version: VersionId,
) -> Vec<Reader> {
    let mut found = readers_of(deployment, readers, dataset, version);
    found.retain(|reader| reader.by_partition);
    found
}

/// The tasks that an event makes, in the order of jobs and inputs.
pub fn route(deployment: &Deployment, readers: &Readers, event: &Event<'_>) -> Result<Vec<Delivery>, Unrouted> {
    let found = readers_of(deployment, readers, event.dataset, event.version);
    let is_partition = event.position.partition().is_some();
    let key: Arc<str> = dedupe_key(event).into();
    let takes = found.iter().filter(|reader| is_partition || !reader.by_partition);
    let deliveries: Vec<Delivery> = takes
        .map(|reader| Delivery { job: reader.job, input: reader.input, key: Arc::clone(&key), rebuild: reader.rebuild })
        .collect();
    match (deliveries.is_empty(), found.is_empty()) {
        (false, _) => Ok(deliveries),
        (true, false) => Err(Unrouted::NotAPartition),
        (true, true) if deployment.is_current(event.dataset, event.version) => Err(Unrouted::NoReader),
        (true, true) => Err(Unrouted::OldVersion),
    }
}

#[cfg(test)]
mod tests;
