//! What a report says about datasets is written with it, all or nothing; and every step of the changes that are not
//! batches fails once.

use std::sync::Arc;

use tenure_core::TaskId;
use tenure_core::command::claim::Grant;
use tenure_core::dag::buffer::{Batch, Content, NewPublish, OutsideQueue};
use tenure_core::dag::data::{OutputCommit, Read};
use tenure_core::dag::{DataReport, InvalidationId, JobId, PublishId};
use tenure_core::queue::Transport;
use tenure_store::dags::{CronSlot, DeploymentWrites, NewGeneration, Routed};
use tenure_store::{Fault, StoreError};

use super::nothing_is_left_open;
use crate::common::{Fixture, Kind};
use crate::conformance::dags::{
    JOB, ORG, complete, cursor, dataset, event, first, invalidation, of_partition, of_rows, output, partition, told,
    version,
};

/// A report with something of everything. Versions and job are those of the task.
pub async fn report(t: &Fixture, grant: &Grant) -> Arc<DataReport> {
    let n = grant.task.seq().0;
    let versions = [1, 2].map(|m| version(10 * n as u128 + m));
    let generations = versions.map(|version| NewGeneration { version, dataset: dataset(version.as_u128()) }).into();
    let seen = t.store.deployment(ORG).await.unwrap().seq;
    let writes = DeploymentWrites { document: "{}".into(), generations, ..DeploymentWrites::default() };
    t.store.apply_deployment(ORG, seen, &writes).await.unwrap().unwrap();
    let earlier = invalidation(10 * n as u128, versions[0], of_rows());
    t.store.invalidate(ORG, &earlier).await.unwrap();
    let mut report = DataReport::of(ORG.into(), JobId(n));
    report.events = vec![event(versions[0], partition("a")), event(versions[1], cursor(5))];
    let named = OutputCommit { artifact: Some(versions[1]), ..output(versions[0], partition("a"), "s3://b/1/") };
    report.outputs = vec![named, output(versions[1], cursor(5), "none:")];
    report.reads = vec![
        Read::UpTo { version: versions[0], cursor: 3 },
        Read::Partition { version: versions[0], key: "a".into(), generation: 1 },
    ];
    report.invalidations = vec![
        invalidation(10 * n as u128 + 1, versions[0], of_partition("a")),
        invalidation(10 * n as u128 + 2, versions[1], of_rows()),
    ];
    report.invalidation = Some(earlier.id);
    report.operator_state = Some("{}".into());
    report.publishes = vec![publish(n)];
    Arc::new(report)
}

fn publish(n: i64) -> NewPublish {
    let content = Content::Records("[]".into());
    let (version, producer, schema_hash, fault) = (None, None, None, None);
    let batch = Batch { dataset: dataset(1), version, producer, schema_hash, content, outside: false, fault };
    let queue = OutsideQueue { transport: Transport::Redis, name: "dag::buffer.x".into() };
    NewPublish::of(PublishId::from_u128(n as u128), batch, Some(queue))
}

/// All of the report was written, and once.
pub async fn verify(t: &Fixture, task: TaskId) {
    let n = task.seq().0;
    let (job, versions) = (JobId(n), [1, 2].map(|m| version(10 * n as u128 + m)));
    let known = t.store.recorded(&[(versions[0], partition("a")), (versions[1], cursor(5))]).await.unwrap();
    let known: Vec<_> = known.into_iter().map(|event| event.unwrap()).collect();
    assert_eq!(known.iter().map(|event| event.generation).collect::<Vec<_>>(), [2, 1], "each invalidation counts once");
    assert!(known.iter().all(|event| event.producer == Some((task, 1))));
    assert_eq!(t.store.partition(versions[0], "a").await.unwrap().unwrap().generation, 2);
    let state = t.store.job_state(job, &versions).await.unwrap();
    assert_eq!((state.operator_state.as_deref(), state.cursors), (Some("{}"), vec![(versions[0], 3)]));
    assert_eq!(t.store.unread(job, versions[0], None, 9).await.unwrap().len(), 1, "read before it was invalidated");
    let rows = t.store.generations(&[versions[1]]).await.unwrap();
    assert_eq!((rows[0].cursor, rows[0].generation), (Some(5), 1));
    let earlier = invalidation(10 * n as u128, versions[0], of_rows());
    assert_eq!(t.store.invalidate(ORG, &earlier).await.unwrap().done, 1);
    assert_eq!(t.store.publishes(&[publish(n).id]).await.unwrap().len(), 1);
}

async fn tables(t: &Fixture) -> Vec<(&'static str, Vec<String>)> {
    const TABLES: [&str; 12] = [
        "deployments",
        "dag_versions",
        "dag_jobs",
        "queues",
        "dataset_generations",
        "dataset_events",
        "dataset_partitions",
        "dataset_artifacts",
        "data_invalidations",
        "invalidation_dependents",
        "cron_slots",
        "webhook_paths",
    ];
    let mut all = Vec::new();
    for table in TABLES {
        let rows = t.raw.rows(&format!("SELECT * FROM {table}")).await;
        let mut rows: Vec<_> = rows.iter().map(|row| format!("{row:?}")).collect();
        rows.sort_unstable();
        all.push((table, rows));
    }
    all
}

/// Fails each step of a change in turn. It is made once, whichever step failed: whoever sees an error asks again.
async fn each_step(t: &Fixture, what: &str, change: impl AsyncFn() -> Result<(), StoreError>) {
    let before = tables(t).await;
    for n in 1.. {
        t.store.faults().fail_at(n, Fault::Error);
        let answer = change().await;
        let passed = t.store.faults().clear();
        nothing_is_left_open(t).await;
        match answer {
            Ok(()) => {
                assert!(passed, "{what}: the fault was swallowed");
                assert_ne!(tables(t).await, before, "{what}: nothing was changed");
                assert!(n > 3, "{what}: only {n} steps can fail");
                return;
            }
            Err(StoreError::Unavailable { .. }) => assert_eq!(tables(t).await, before, "{what}, step {n}"),
            Err(StoreError::CommitUnknown { .. }) => {
                let after = tables(t).await;
                assert_ne!(after, before, "{what}, step {n}: it was committed");
                // Again, without a change.
                change().await.unwrap();
                assert_eq!(tables(t).await, after, "{what}: made twice");
                return;
            }
            Err(error) => panic!("{what}, step {n}: {}", error.chain()),
        }
    }
}

async fn changes_that_are_not_batches(kind: Kind) {
    let t = &Fixture::new(kind).await;
    // A change whose answer was lost is found to have moved: it is planned again.
    each_step(t, "deploy", async || t.store.apply_deployment(ORG, 0, &first()).await.map(drop)).await;
    assert_eq!(t.store.deployment(ORG).await.unwrap().seq, 1);
    each_step(t, "record", async || t.store.record(ORG, dataset(1), version(1), &cursor(1)).await).await;
    for (n, scope) in [(1, of_partition("a")), (2, of_rows())] {
        let new = invalidation(n, version(1), scope);
        each_step(t, "invalidate", async || t.store.invalidate(ORG, &new).await.map(drop)).await;
    }
    complete(t, &told(vec![event(version(1), partition("a"))])).await;
    let events = t.store.unrouted(&[], 0, 9).await.unwrap();
    let routed: Vec<_> = events.iter().map(|event| Routed { event: event.id, why_not: None }).collect();
    each_step(t, "route", async || t.store.routed(ORG, 1, &routed).await.map(|done| done.unwrap())).await;
    let id = InvalidationId::from_u128(1);
    each_step(t, "make dependents", async || {
        t.store.invalidation_routed(ORG, 1, id, &[JOB]).await.map(|done| done.unwrap())
    })
    .await;
    let slots = [CronSlot { dag: "chain".into(), job: "hourly".into(), schedule: "0 * * * *".into(), next_ms: 7 }];
    each_step(t, "write slots", async || t.store.save_cron_slots(ORG, 1, &slots, &[]).await.map(|done| done.unwrap()))
        .await;
    let gone = [("chain".into(), "hourly".into())];
    each_step(t, "forget slots", async || t.store.save_cron_slots(ORG, 1, &[], &gone).await.map(|done| done.unwrap()))
        .await;
    each_step(t, "retire", async || t.store.retire(ORG, 1, &[], &[]).await.map(drop)).await;
    let paths = DeploymentWrites {
        document: "{}".into(),
        webhooks: Some(vec![("chain/new".into(), "chain".into())]),
        ..DeploymentWrites::default()
    };
    each_step(t, "own a path", async || t.store.apply_deployment(ORG, 1, &paths).await.map(drop)).await;
    let none = DeploymentWrites { webhooks: Some(Vec::new()), ..paths };
    each_step(t, "give up a path", async || t.store.apply_deployment(ORG, 2, &none).await.map(drop)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_that_are_not_batches_on_sqlite() {
    changes_that_are_not_batches(Kind::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_that_are_not_batches_on_postgres() {
    changes_that_are_not_batches(Kind::Postgres).await;
}
