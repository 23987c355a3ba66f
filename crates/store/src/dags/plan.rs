//! What reports about datasets come to, for both stores: each row once, in one order, so that two transactions never wait
//! for each other in a ring.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tenure_core::TaskId;
use tenure_core::command::TaskData;
use tenure_core::dag::buffer::{NewPublish, OutsideQueue};
use tenure_core::dag::data::{Artifact, ArtifactName, NewEvent, NewInvalidation, OutputCommit, Position, Read, Scope};
use tenure_core::dag::{DataReport, DatasetId, InvalidationId, JobId, PublishId, VersionId};

use crate::identity::without_nul;

/// Who told of something; `None` is Tenure itself.
pub type Producer = Option<(TaskId, u32)>;

/// The rows that a transaction writes about datasets.
///
/// Invalidations come first: an event of the same transaction is recorded at the generation that they lead to, so that it
/// is not taken for a repeat.
#[derive(Debug, Default)]
pub struct DataWrites {
    pub invalidations: Vec<InvalidationWrite>,
    /// The highest cursor that was produced.
    pub produced: BTreeMap<VersionId, i64>,
    pub partitions: BTreeMap<(VersionId, Arc<str>), PartitionCommit>,
    /// By version and text of the position.
    pub events: BTreeMap<(VersionId, String), EventWrite>,
    pub edge_cursors: BTreeMap<(JobId, VersionId), i64>,
    pub edge_partitions: BTreeMap<(JobId, VersionId, Arc<str>), i64>,
    pub operator_states: BTreeMap<JobId, Arc<str>>,
    pub done: BTreeSet<(InvalidationId, JobId)>,
    pub publishes: BTreeMap<PublishId, PublishWrite>,
    /// New names of artifacts, each with its generation and what it stands for. One that another transaction was quicker to
    /// give makes this one fail: it is decided again.
    pub artifacts: BTreeMap<ArtifactName, (VersionId, [u8; 32])>,
}

#[derive(Debug)]
pub struct PublishWrite {
    pub org: Arc<str>,
    pub dataset: DatasetId,
    pub digest: Arc<str>,
    /// The batch as JSON.
    pub body: String,
    pub bytes: i64,
    /// The outside queue that it goes through.
    pub queue: Option<OutsideQueue>,
}

impl PublishWrite {
    pub fn transport(&self) -> Option<&'static str> {
        self.queue.as_ref().map(|queue| queue.transport.as_str())
    }

    /// The body of its row in the outbox.
    pub fn effect(&self, id: PublishId) -> Option<String> {
        self.queue.as_ref().map(|queue| format!("{id} {}", queue.name))
    }
}

#[derive(Debug)]
pub struct InvalidationWrite {
    pub org: Arc<str>,
    pub new: NewInvalidation,
    pub reason: String,
}

#[derive(Debug)]
pub struct PartitionCommit {
    pub ends: Option<(i64, i64)>,
    pub location: String,
    pub row_count: Option<i64>,
    pub bytes: Option<i64>,
    pub schema_hash: Option<String>,
    pub manifest: Option<Arc<str>>,
    pub artifact: Option<VersionId>,
    pub producer: Producer,
    /// What it was made from. Nothing is written if the job has read a later generation of it.
    pub made_from: Option<MadeFrom>,
}

/// A partition as a job has read it.
#[derive(Debug, PartialEq, Eq)]
pub struct MadeFrom {
    pub job: JobId,
    pub version: VersionId,
    pub key: Arc<str>,
    pub generation: i64,
}

impl MadeFrom {
    fn of(report: &DataReport) -> Option<Self> {
        let (version, key, generation) = report.made_from()?;
        Some(Self { job: report.job, version, key: Arc::clone(key), generation })
    }

    fn is_older_than(&self, other: &Self) -> bool {
        (self.job, self.version, &self.key) == (other.job, other.version, &other.key)
            && self.generation < other.generation
    }
}

#[derive(Debug)]
pub struct EventWrite {
    pub org: Arc<str>,
    pub dataset: DatasetId,
    pub position: Position,
    pub producer: Producer,
}

impl InvalidationWrite {
    pub fn partition_key(&self) -> Option<&str> {
        match &self.new.scope {
            Scope::Partition { partition_key } => Some(partition_key),
            Scope::RowRange { .. } => None,
        }
    }

    pub fn row_filter(&self) -> Option<&str> {
        match &self.new.scope {
            Scope::Partition { .. } => None,
            Scope::RowRange { row_filter } => Some(row_filter),
        }
    }
}

impl EventWrite {
    pub fn cursor(&self) -> Option<i64> {
        match self.position {
            Position::Cursor(cursor) => Some(cursor),
            Position::Partition(_) => None,
        }
    }

    pub fn key(&self) -> Option<&str> {
        self.position.partition().map(|partition| &*partition.key)
    }

    pub fn ends(&self) -> Option<(i64, i64)> {
        self.position.partition().and_then(|partition| partition.ends)
    }
}

impl DataWrites {
    /// What a batch accepted, in the order in which it was decided.
    pub fn of(reports: &[TaskData], artifacts: &[Artifact]) -> Self {
        let artifacts = artifacts.iter().map(|it| (it.name, (it.version, it.digest))).collect();
        let mut writes = Self { artifacts, ..Self::default() };
        for TaskData { task, attempt, report } in reports {
            let producer = Some((*task, *attempt));
            for new in &report.invalidations {
                writes.invalidate(&report.org, new);
            }
            for output in &report.outputs {
                writes.commit(output, producer, MadeFrom::of(report));
            }
            for event in &report.events {
                writes.record(&report.org, event, producer);
            }
            for read in &report.reads {
                writes.read(report.job, read);
            }
            if let Some(state) = &report.operator_state {
                writes.operator_states.insert(report.job, Arc::clone(state));
            }
            for new in &report.publishes {
                writes.publish(&report.org, new);
            }
            writes.done.extend(report.invalidation.map(|id| (id, report.job)));
        }
        writes.invalidations.sort_by_key(|row| row.new.version);
        writes
    }

    /// An event that Tenure itself causes.
    pub fn event(org: &str, event: &NewEvent) -> Self {
        let mut writes = Self::default();
        writes.record(&org.into(), event, None);
        writes
    }

    pub fn invalidation(org: &str, new: &NewInvalidation) -> Self {
        let mut writes = Self::default();
        writes.invalidate(&org.into(), new);
        writes
    }

    /// Batches that no task has sent.
    pub fn publishing(org: &str, new: &[NewPublish]) -> Self {
        let mut writes = Self::default();
        new.iter().for_each(|new| writes.publish(&org.into(), new));
        writes
    }

    fn publish(&mut self, org: &Arc<str>, new: &NewPublish) {
        let body = serde_json::to_string(&new.batch).unwrap_or_default();
        self.publishes.entry(new.id).or_insert_with(|| PublishWrite {
            org: Arc::clone(org),
            dataset: new.batch.dataset,
            digest: Arc::clone(&new.digest),
            body: without_nul(&body).into_owned(),
            bytes: new.bytes,
            queue: new.queue.clone(),
        });
    }

    fn invalidate(&mut self, org: &Arc<str>, new: &NewInvalidation) {
        let reason = without_nul(&new.reason).into_owned();
        self.invalidations.push(InvalidationWrite { org: Arc::clone(org), new: new.clone(), reason });
    }

    fn commit(&mut self, output: &OutputCommit, producer: Producer, made_from: Option<MadeFrom>) {
        match &output.position {
            Position::Cursor(cursor) => self.produce(output.version, *cursor),
            Position::Partition(partition) => {
                let place = (output.version, Arc::clone(&partition.key));
                let there = self.partitions.get(&place).and_then(|there| there.made_from.as_ref());
                if made_from.as_ref().zip(there).is_some_and(|(new, there)| new.is_older_than(there)) {
                    return;
                }
                let commit = PartitionCommit {
                    ends: partition.ends,
                    location: without_nul(&output.location).into_owned(),
                    row_count: output.row_count,
                    bytes: output.bytes,
                    schema_hash: output.schema_hash.as_deref().map(|hash| without_nul(hash).into_owned()),
                    manifest: output.manifest.clone(),
                    artifact: output.artifact,
                    producer,
                    made_from,
                };
                self.partitions.insert(place, commit);
            }
        }
    }

    fn produce(&mut self, version: VersionId, cursor: i64) {
        let highest = self.produced.entry(version).or_insert(cursor);
        *highest = cursor.max(*highest);
    }

    fn record(&mut self, org: &Arc<str>, event: &NewEvent, producer: Producer) {
        if let Position::Cursor(cursor) = event.position {
            self.produce(event.version, cursor);
        }
        // The first one to tell of it is its producer.
        self.events.entry((event.version, event.position.text())).or_insert_with(|| EventWrite {
            org: Arc::clone(org),
            dataset: event.dataset,
            position: event.position.clone(),
            producer,
        });
    }

    fn read(&mut self, job: JobId, read: &Read) {
        let (seen, to) = match read {
            Read::UpTo { version, cursor } => (self.edge_cursors.entry((job, *version)).or_insert(*cursor), *cursor),
            Read::Partition { version, key, generation } => {
                let edge = (job, *version, Arc::clone(key));
                (self.edge_partitions.entry(edge).or_insert(*generation), *generation)
            }
        };
        *seen = to.max(*seen);
    }

    /// The versions whose rows change: they are locked in this order before anything else.
    pub fn versions(&self) -> BTreeSet<VersionId> {
        let invalidated = self.invalidations.iter().map(|row| row.new.version);
        let committed = self.partitions.keys().map(|(version, _)| *version);
        invalidated.chain(committed).chain(self.produced.keys().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::dag::data::Partition;

    use super::*;

    fn version(n: u128) -> VersionId {
        VersionId::from_u128(n)
    }

    fn at(version: VersionId, position: Position) -> NewEvent {
        NewEvent { dataset: DatasetId::from_u128(9), version, position }
    }

    #[test]
    fn each_row_is_written_once_and_in_one_order() {
        let report = |task: u128, cursor: i64, generation: i64| {
            let key: Arc<str> = "1-9".into();
            let mut report = DataReport::of("acme".into(), JobId(7));
            let partition = Position::Partition(Partition { key: Arc::clone(&key), ends: Some((1, 9)) });
            report.events = vec![at(version(2), Position::Cursor(cursor)), at(version(1), partition)];
            report.reads = vec![
                Read::UpTo { version: version(3), cursor },
                Read::Partition { version: version(3), key, generation },
            ];
            report.operator_state = Some(task.to_string().into());
            TaskData { task: TaskId::from_u128(task), attempt: 1, report: Arc::new(report) }
        };
        let writes = DataWrites::of(&[report(1, 20, 1), report(2, 10, 0)], &[]);
        let events: Vec<_> = writes.events.iter().map(|(key, row)| (key.clone(), row.producer)).collect();
        let first = Some((TaskId::from_u128(1), 1));
        assert_eq!(
            events,
            [
                ((version(1), "partition:1-9".to_owned()), first),
                ((version(2), "cursor:10".to_owned()), Some((TaskId::from_u128(2), 1))),
                ((version(2), "cursor:20".to_owned()), first),
            ]
        );
        assert_eq!(writes.produced, BTreeMap::from([(version(2), 20)]));
        assert_eq!(writes.edge_cursors, BTreeMap::from([((JobId(7), version(3)), 20)]));
        assert_eq!(writes.edge_partitions.values().collect::<Vec<_>>(), [&1]);
        assert_eq!(&*writes.operator_states[&JobId(7)], "2", "the last one counts");
        assert_eq!(writes.versions(), BTreeSet::from([version(2)]));
    }
}
