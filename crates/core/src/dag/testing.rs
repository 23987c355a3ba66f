//! Small DAGs for tests.

use std::sync::Arc;

use serde_json::{Value, json};

use super::definition::{DagDefinition, JobDefinition};
use super::deploy::{Deploy, Fresh, MissingDataset, Planned, plan};
use super::deployment::Deployment;
use super::id::JobId;
use crate::time::Timestamp;

/// Counts.
#[derive(Debug, Default)]
pub struct Counter(pub u64);

impl Fresh for Counter {
    fn id(&mut self) -> u128 {
        self.0 += 1;
        u128::from(self.0)
    }

    fn job(&mut self) -> JobId {
        self.0 += 1;
        JobId(self.0.cast_signed())
    }
}

fn job(name: &str, activation: Value, outputs: u32, config: u32) -> JobDefinition {
    let job = json!({
        "name": name, "activation": activation, "runtime": {"worker": {"name": "worker"}}, "operator": "op", "outputs": outputs,
        "timeout_seconds": 60, "max_attempts": 3, "heartbeat_timeout_seconds": 120, "config": format!("{{\"n\":{config}}}"),
    });
    serde_json::from_value(job).unwrap()
}

/// A manual source with one output.
pub fn source(name: &str, config: u32) -> JobDefinition {
    job(name, json!({"source": {"source": {"kind": "manual"}}}), 1, config)
}

/// A job with one output that reads the first output of others, or datasets, whose names begin with `@`.
pub fn reader(name: &str, reads: &[&str], execution: &str, config: u32) -> JobDefinition {
    let inputs: Vec<Value> = reads
        .iter()
        .map(|from| match from.strip_prefix('@') {
            Some(dataset) => json!({"from": {"dataset": dataset}, "alias": dataset}),
            None => json!({"from": {"job": {"job": from, "output": 0}}, "alias": from}),
        })
        .collect();
    job(name, json!({"reactive": {"inputs": inputs, "execution": execution}}), 1, config)
}

pub fn dag(name: &str, jobs: Vec<JobDefinition>) -> DagDefinition {
    DagDefinition { name: name.into(), ranges: Default::default(), jobs, publish: Vec::new() }
}

/// Publishes the first output of a job.
pub fn published(mut dag: DagDefinition, job: &str, dataset: &str) -> DagDefinition {
    let publish = json!({"dataset": dataset, "from": [{"job": job, "output": 0}]});
    dag.publish.push(serde_json::from_value(publish).unwrap());
    dag
}

/// Deploys under a hash of the definition. Keeps what was planned.
pub fn deploy(
    deployment: &mut Deployment,
    definition: &DagDefinition,
    fresh: &mut Counter,
    manual: bool,
) -> Result<Planned, MissingDataset> {
    let hash = serde_json::to_string(definition).unwrap();
    let deploy = Deploy { definition, yaml_hash: &hash, manual, now: Timestamp::from_millis(7) };
    let planned = plan(deployment, &deploy, fresh)?;
    *deployment = planned.deployment.clone();
    Ok(planned)
}

/// The job of this name in the active version of its DAG.
pub fn active_job(deployment: &Deployment, dag: &str, name: &str) -> JobId {
    deployment.active(dag).unwrap().jobs[&Arc::from(name)]
}
