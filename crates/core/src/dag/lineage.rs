//! What a dataset is made from, and what is made from it: over all active versions of DAGs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::definition::ExecutionStrategy;
use super::deployment::{Deployment, Job};
use super::id::{DatasetId, JobId};

/// An output of a job, or a job without outputs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Related {
    pub dag: Arc<str>,
    pub job: Arc<str>,
    pub output: Option<(u32, DatasetId)>,
    /// 1 for what is read or reads directly.
    pub distance: u32,
    /// The datasets that the job reads.
    pub reads: Vec<DatasetId>,
}

/// The jobs of active versions, by what they write and read.
#[derive(Debug)]
pub struct Lineage<'a> {
    deployment: &'a Deployment,
    writers: BTreeMap<DatasetId, (JobId, &'a Job)>,
    readers: BTreeMap<DatasetId, Vec<(JobId, &'a Job)>>,
}

impl<'a> Lineage<'a> {
    pub fn of(deployment: &'a Deployment) -> Self {
        let active = deployment.dags.keys().filter_map(|dag| deployment.active(dag));
        let ids: BTreeSet<JobId> = active.flat_map(|version| version.jobs.values().copied()).collect();
        let mut found = Self { deployment, writers: BTreeMap::new(), readers: BTreeMap::new() };
        for id in ids {
            let Some(job) = deployment.jobs.get(&id) else { continue };
            found.writers.extend(job.outputs.iter().map(|output| (output.dataset, (id, job))));
            // A job that reads a dataset twice reads it.
            for dataset in inputs(job) {
                found.readers.entry(dataset).or_default().push((id, job));
            }
        }
        found
    }

    /// Jobs that read a dataset by cursor.
    pub fn consumers(&self, dataset: DatasetId) -> impl Iterator<Item = (JobId, &'a Job)> {
        let readers = self.readers.get(&dataset).into_iter().flatten().copied();
        readers.filter(|(_, job)| job.execution == Some(ExecutionStrategy::PerUpdate))
    }

    /// Up to `limit` datasets that this one is made from, nearest first.
    pub fn upstream(&self, dataset: DatasetId, limit: usize) -> Vec<Related> {
        let (mut found, mut seen) = (Vec::new(), BTreeSet::from([dataset]));
        let mut open = VecDeque::from([(dataset, 0_u32)]);
        while let Some((next, distance)) = open.pop_front() {
            let reads = self.writers.get(&next).map(|(_, job)| inputs(job)).unwrap_or_default();
            for upstream in reads {
                if found.len() >= limit {
                    return found;
                }
                if seen.insert(upstream) {
                    found.extend(self.written(upstream, distance + 1));
                    open.push_back((upstream, distance + 1));
                }
            }
        }
        found
    }

    /// Up to `limit` jobs and datasets that are made from this one, nearest first.
    pub fn downstream(&self, dataset: DatasetId, limit: usize) -> Vec<Related> {
        let (mut found, mut seen) = (Vec::new(), BTreeSet::new());
        let mut open = VecDeque::from([(dataset, 1_u32)]);
        while let Some((next, distance)) = open.pop_front() {
            for (id, job) in self.readers.get(&next).into_iter().flatten() {
                if !seen.insert(*id) {
                    continue;
                }
                let outputs = job.outputs.iter().zip(0_u32..).map(|(output, index)| Some((index, output.dataset)));
                let outputs: Vec<_> = if job.outputs.is_empty() { vec![None] } else { outputs.collect() };
                for output in outputs {
                    if found.len() >= limit {
                        return found;
                    }
                    found.push(related(job, output, distance));
                    open.extend(output.map(|(_, dataset)| (dataset, distance + 1)));
                }
            }
        }
        found
    }

    fn written(&self, dataset: DatasetId, distance: u32) -> Option<Related> {
        let row = self.deployment.datasets.get(&dataset)?;
        let output = Some((row.output, dataset));
        Some(match self.writers.get(&dataset) {
            Some((_, job)) => related(job, output, distance),
            // No active version writes it.
            None => {
                Related { dag: Arc::clone(&row.dag), job: Arc::clone(&row.job), output, distance, reads: Vec::new() }
            }
        })
    }
}

fn related(job: &Job, output: Option<(u32, DatasetId)>, distance: u32) -> Related {
    let (dag, name) = (Arc::clone(&job.dag), Arc::clone(&job.name));
    Related { dag, job: name, output, distance, reads: inputs(job) }
}

/// The datasets that a job reads, each once.
fn inputs(job: &Job) -> Vec<DatasetId> {
    let mut seen = BTreeSet::new();
    job.inputs.iter().map(|input| input.dataset).filter(|dataset| seen.insert(*dataset)).collect()
}

#[cfg(test)]
mod tests;
