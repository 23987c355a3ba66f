//! DAGs and datasets: what is deployed, what was written, how far it was read, and what has changed.

mod concurrency;
mod counts;
mod deployments;
mod events;
mod invalidations;
mod partitions;
mod plans;
mod sources;

use std::sync::Arc;

use tenure_core::TaskId;
use tenure_core::attempt::Receipt;
use tenure_core::command::claim::Grant;
use tenure_core::command::emit::{Emit, Proof};
use tenure_core::command::{Answer, Command};
use tenure_core::dag::data::{NewEvent, NewInvalidation, OutputCommit, Partition, Scope};
use tenure_core::dag::{DagVersionId, DataReport, DatasetId, InvalidationId, JobId, Position, VersionId};
use tenure_core::queue::{Dispatch, QueueSettings};
use tenure_store::dags::{
    DataEvent, DeploymentWrites, GenerationRow, NewDagVersion, NewGeneration, NewJob, PartitionRow,
};

use crate::common::{Client, Fixture, make};

pub const ORG: &str = "acme";
pub const JOB: JobId = JobId(1_000_001);
pub const OTHER_JOB: JobId = JobId(1_000_002);

pub fn version(n: u128) -> VersionId {
    VersionId::from_u128(n)
}

pub fn dataset(n: u128) -> DatasetId {
    DatasetId::from_u128(n)
}

pub fn cursor(value: i64) -> Position {
    Position::Cursor(value)
}

pub fn partition(key: &str) -> Position {
    let ends = key.split_once('-').and_then(|(start, end)| Some((start.parse().ok()?, end.parse().ok()?)));
    Position::Partition(Partition { key: key.into(), ends })
}

pub fn event(version: VersionId, position: Position) -> NewEvent {
    NewEvent { dataset: dataset(version.as_u128()), version, position }
}

pub fn output(version: VersionId, position: Position, location: &str) -> OutputCommit {
    OutputCommit {
        dataset: dataset(version.as_u128()),
        version,
        position,
        location: location.into(),
        row_count: Some(3),
        bytes: Some(4_096),
        schema_hash: Some("sha256:1".into()),
        manifest: Some("{}".into()),
        artifact: None,
    }
}

pub fn invalidation(id: u128, version: VersionId, scope: Scope) -> NewInvalidation {
    let dataset = dataset(version.as_u128());
    NewInvalidation { id: InvalidationId::from_u128(id), dataset, version, scope, reason: "reorg".into() }
}

pub fn of_partition(key: &str) -> Scope {
    Scope::Partition { partition_key: key.into() }
}

pub fn of_rows() -> Scope {
    Scope::RowRange { row_filter: r#"{"n":{"gte":1}}"#.into() }
}

/// A report of [`JOB`].
pub fn report(change: impl FnOnce(&mut DataReport)) -> Arc<DataReport> {
    let mut report = DataReport::of(ORG.into(), JOB);
    change(&mut report);
    Arc::new(report)
}

pub fn told(events: Vec<NewEvent>) -> Arc<DataReport> {
    report(|report| report.events = events)
}

pub fn new_job(id: JobId, held: bool) -> NewJob {
    NewJob {
        id,
        dag: "chain".into(),
        name: format!("job{}", id.0).into(),
        definition: r#"{"operator":"o"}"#.into(),
        queue: format!("dag:chain:job{0}:{0}", id.0).into(),
        settings: QueueSettings {
            max_running: Some(4),
            dispatch: Some(Arc::new(Dispatch { wake: "worker".into(), held })),
            ..QueueSettings::default()
        },
    }
}

/// Two jobs and the generations 1 to 3, whose datasets have the same numbers.
pub fn first() -> DeploymentWrites {
    DeploymentWrites {
        document: r#"{"n":1}"#.into(),
        versions: vec![NewDagVersion {
            id: DagVersionId::from_u128(1),
            dag: "chain".into(),
            number: 1,
            yaml: "name: chain".into(),
        }],
        jobs: vec![new_job(JOB, false), new_job(OTHER_JOB, true)],
        held: Vec::new(),
        generations: (1..=3).map(|n| NewGeneration { version: version(n), dataset: dataset(n) }).collect(),
        ..DeploymentWrites::default()
    }
}

pub async fn deploy(t: &Fixture) {
    assert_eq!(t.store.apply_deployment(ORG, 0, &first()).await.unwrap(), Ok(1));
}

pub async fn running(client: &Client) -> Grant {
    client.put_in("q").await;
    client.claim_one("q").await
}

/// Completes a task that says this about datasets.
pub async fn complete(client: &Client, data: &Arc<DataReport>) -> TaskId {
    let grant = running(client).await;
    let outcome = client.run(make::complete_with(&grant, "1", data)).await;
    assert_eq!(outcome, Ok(Answer::Reported(Receipt::Completed)));
    grant.task
}

pub fn emit(grant: &Grant, data: &Arc<DataReport>) -> Command {
    let proof = Proof::Token(grant.token);
    Command::Emit(Emit { task: grant.task, attempt: grant.attempt, proof, data: Arc::clone(data) })
}

pub async fn unrouted(t: &Fixture) -> Vec<DataEvent> {
    t.store.unrouted(&[], 0, 1_000).await.unwrap()
}

/// Positions and generations of events.
pub fn places(events: &[DataEvent]) -> Vec<(u128, String, i64)> {
    events.iter().map(|event| (event.version.as_u128(), event.position.text(), event.generation)).collect()
}

pub async fn generation(t: &Fixture, n: u128) -> GenerationRow {
    t.store.generations(&[version(n)]).await.unwrap().remove(0)
}

pub async fn partition_row(t: &Fixture, n: u128, key: &str) -> PartitionRow {
    t.store.partition(version(n), key).await.unwrap().unwrap_or_else(|| panic!("no partition {key}"))
}
