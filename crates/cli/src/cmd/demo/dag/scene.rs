//! What the server says of the DAG at one moment.

use std::collections::BTreeMap;
use std::path::Path;

use tenure_client::dags::{Dag, DagVersion, DatasetPartition};
use tenure_client::{Client, PartitionFilter};

use super::plan::{self, DATASETS, NAME};

/// More than the demo makes.
const PARTITIONS: u32 = 500;

#[derive(Debug, Clone)]
pub struct Scene {
    pub dag: Dag,
    /// Newest first.
    pub versions: Vec<DagVersion>,
    pub jobs: Vec<JobSeen>,
    /// The partitions of the current version of each dataset, by name and key.
    pub data: BTreeMap<&'static str, BTreeMap<String, DatasetPartition>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobSeen {
    pub name: String,
    pub kind: String,
    /// Partitions that are committed.
    pub done: u64,
    pub running: u64,
    pub queued: u64,
    pub failed: u64,
}

impl Scene {
    pub async fn look(client: &Client) -> anyhow::Result<Self> {
        let dag = client.dag(NAME, None).await?;
        let versions = client.dag_versions(NAME, None).await?.items;
        let mut data = BTreeMap::new();
        for name in DATASETS {
            let filter = PartitionFilter { limit: Some(PARTITIONS), ..PartitionFilter::default() };
            let found = client.dataset(name, &filter).await?.partitions.items.into_iter();
            data.insert(name, found.map(|partition| (partition.partition_key.clone(), partition)).collect());
        }
        let mut scene = Self { dag, versions, jobs: Vec::new(), data };
        scene.jobs = scene.dag.jobs.iter().map(|job| scene.seen(job)).collect();
        Ok(scene)
    }

    fn seen(&self, job: &tenure_client::dags::DagJob) -> JobSeen {
        let written = job.outputs.first().and_then(|output| output.dataset_name.as_deref()).unwrap_or_default();
        JobSeen {
            name: job.name.clone(),
            kind: job.source.clone().or_else(|| job.execution_strategy.clone()).unwrap_or_default(),
            done: self.committed(written).count() as u64,
            running: job.tasks.running,
            queued: job.tasks.queued,
            failed: job.tasks.failed,
        }
    }

    /// Whether no task waits or runs.
    pub fn is_quiet(&self) -> bool {
        self.jobs.iter().all(|job| job.queued + job.running == 0)
    }

    pub fn job(&self, name: &str) -> Option<&JobSeen> {
        self.jobs.iter().find(|job| job.name == name)
    }

    /// The partitions of a dataset that have data.
    pub fn committed(&self, dataset: &str) -> impl Iterator<Item = &DatasetPartition> {
        let partitions = self.data.get(dataset).into_iter().flat_map(BTreeMap::values);
        partitions.filter(|partition| partition.location.is_some())
    }

    pub fn partition(&self, dataset: &str, key: &str) -> Option<&DatasetPartition> {
        self.committed(dataset).find(|partition| partition.partition_key == key)
    }

    /// The number of the version in this state.
    pub fn version_in(&self, state: &str) -> Option<i64> {
        self.versions.iter().find(|version| version.state == state).map(|version| version.version)
    }

    /// Whether a range has the sum that it must have.
    pub fn is_right(&self, key: &str, power: u32) -> bool {
        self.partition("sums", key).is_some_and(|sum| found(sum).is_some() && found(sum) == wanted(sum, power))
    }
}

/// What is on disk where the server says that the sum is.
pub fn found(sum: &DatasetPartition) -> Option<u128> {
    let folder = sum.location.as_deref()?.strip_prefix("file://")?;
    std::fs::read_to_string(Path::new(folder).join(plan::SUM)).ok()?.parse().ok()
}

fn wanted(sum: &DatasetPartition, power: u32) -> Option<u128> {
    let (start, end) = (u64::try_from(sum.start?).ok()?, u64::try_from(sum.end?).ok()?);
    Some(plan::sum_of(start, end, power))
}

#[cfg(test)]
pub mod tests {
    use serde_json::json;

    use super::*;

    /// Two versions; jobs in several states.
    pub fn scene() -> Scene {
        let output = |name: &str| json!([{"output_index": 0, "dataset_uuid": name, "dataset_name": name, "dataset_version": "v"}]);
        let input = |name: &str| json!({"input_index": 0, "alias": name, "from": {"dataset": name}, "dataset_uuid": name, "dataset_name": name, "dataset_version": "v"});
        let job = |name: &str, how: (&str, &str), writes: &str, reads: &[&str], tasks: [u64; 3]| {
            let mut job = json!({
                "name": name, "activation": "source", "runtime": "worker", "operator": "o", "queue": name,
                "inputs": reads.iter().map(|name| input(name)).collect::<Vec<_>>(), "outputs": output(writes),
                "tasks": {"queued": tasks[0], "running": tasks[1], "failed": tasks[2]},
            });
            job[how.0] = json!(how.1);
            job
        };
        let dag = json!({
            "name": "demo", "active_version": 1, "latest_version": 2, "version": 1, "state": "Active",
            "updated_at": "2025-01-15T10:00:00Z", "yaml": "",
            "jobs": [
                job("backfill", ("source", "manual"), "asked", &[], [0, 1, 0]),
                job("every-minute", ("source", "cron"), "due", &[], [0, 0, 0]),
                job("power", ("execution_strategy", "PerPartition"), "raised", &["asked", "due"], [1, 0, 0]),
                job("sum", ("execution_strategy", "PerPartition"), "sums", &["raised"], [0, 0, 1]),
            ],
        });
        let version = |number: i64, state: &str| {
            json!({
                "version": number, "dag_version_id": "id", "yaml_hash": "h", "state": state, "previous_version": null,
                "created_at": "2025-01-15T10:00:00Z", "rebuild": {"total": 3, "done": 1, "failed": 0},
            })
        };
        let partitions = |count: usize| {
            let keys = ["0-99", "100-199"];
            keys[..count]
                .iter()
                .map(|key| {
                    let partition = json!({"partition_key": key, "start": null, "end": null, "generation": 0,
                        "location": "file:///nowhere/", "row_count": null, "bytes": null, "materialized_at": null});
                    ((*key).to_owned(), serde_json::from_value(partition).unwrap())
                })
                .collect()
        };
        let data = [("asked", 2), ("due", 0), ("raised", 2), ("sums", 1)];
        let mut scene = Scene {
            dag: serde_json::from_value(dag).unwrap(),
            versions: [version(2, "Staging"), version(1, "Active")].map(|v| serde_json::from_value(v).unwrap()).into(),
            jobs: Vec::new(),
            data: data.map(|(name, count)| (name, partitions(count))).into(),
        };
        scene.jobs = scene.dag.jobs.iter().map(|job| scene.seen(job)).collect();
        scene
    }

    #[test]
    fn a_sum_that_is_not_there_is_not_right() {
        let scene = scene();
        assert!(scene.partition("sums", "0-99").is_some() && !scene.is_right("0-99", 2));
        assert_eq!((scene.version_in("Active"), scene.version_in("Ready")), (Some(1), None));
    }
}
