//! Many at once, on Postgres from two control planes.

use std::collections::BTreeSet;

use tenure_core::dag::data::Read;
use tokio::task::JoinSet;

use super::*;
use crate::conformance::sandboxes::stores;

crate::on_both_stores!(
    sixteen_writers_record_each_event_once,
    sixteen_writers_never_move_anything_back,
    sixteen_invalidations_count_sixteen,
    sixteen_writers_give_a_name_once,
);

/// Completes a task per report, all at once.
async fn at_once(t: &Fixture, reports: Vec<Arc<DataReport>>) {
    let mut grants = Vec::new();
    for _ in &reports {
        grants.push(running(t).await);
    }
    let mut writers = JoinSet::new();
    for ((grant, data), store) in grants.into_iter().zip(reports).zip(stores(t, 16).await) {
        writers.spawn(async move { Client { store }.run(make::complete_with(&grant, "1", &data)).await.unwrap() });
    }
    writers.join_all().await;
    if t.kind == crate::common::Kind::Postgres {
        let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
        assert_eq!(t.raw.number(deadlocks).await, 0, "two batches waited for each other");
    }
}

async fn sixteen_writers_record_each_event_once(t: &Fixture) {
    deploy(t).await;
    let reports = (0..16_usize).map(|writer| {
        let mut events: Vec<_> = (0..100)
            .map(|n| event(version(1 + n % 3), if n % 2 == 0 { cursor(n as i64) } else { partition(&format!("p{n}")) }))
            .collect();
        // Everybody in another order.
        events.rotate_left(writer * 6);
        if writer % 2 == 0 {
            events.reverse();
        }
        events.push(event(version(1), cursor(1_000 + writer as i64)));
        told(events)
    });
    at_once(t, reports.collect()).await;
    let found = unrouted(t).await;
    let distinct: BTreeSet<_> = places(&found).into_iter().collect();
    assert_eq!((found.len(), distinct.len()), (116, 116));
    assert_eq!(generation(t, 1).await.cursor, Some(1_015));
}

async fn sixteen_writers_never_move_anything_back(t: &Fixture) {
    deploy(t).await;
    let reports = (0..16_i64).map(|writer| {
        report(|report| {
            let mut versions = [1, 2, 3];
            versions.rotate_left(writer as usize % 3);
            for n in versions {
                report.outputs.push(output(version(n), cursor(writer), "postgres_table:t"));
                for key in ["a", "b"] {
                    report.outputs.push(output(version(n), partition(key), "s3://b/p/"));
                    report.reads.push(Read::Partition { version: version(n), key: key.into(), generation: writer });
                }
                report.reads.push(Read::UpTo { version: version(n), cursor: writer });
            }
            report.operator_state = Some(writer.to_string().into());
        })
    });
    at_once(t, reports.collect()).await;
    for n in 1..=3 {
        assert_eq!(generation(t, n).await.cursor, Some(15));
    }
    let expected: Vec<_> = (1..=3).map(|n| (JOB, version(n), 15)).collect();
    assert_eq!(t.store.cursors(&[JOB]).await.unwrap(), expected);
    let read = "SELECT count(*) FROM edge_partitions WHERE generation = 15";
    assert_eq!(t.raw.number(read).await, 6);
}

/// Together with events and commits of the same partitions.
async fn sixteen_invalidations_count_sixteen(t: &Fixture) {
    deploy(t).await;
    let reports = (0..16_u128).map(|writer| {
        report(|report| {
            let scope = if writer % 2 == 0 { of_partition("a") } else { of_rows() };
            report.invalidations = vec![invalidation(writer, version(1), scope)];
            report.outputs = vec![output(version(1), partition(&format!("p{writer}")), "s3://b/p/")];
            report.events = vec![event(version(1), partition("a"))];
        })
    });
    at_once(t, reports.collect()).await;
    assert_eq!(generation(t, 1).await.generation, 8);
    assert_eq!(partition_row(t, 1, "a").await.generation, 16);
    // A partition that is new while others invalidate all of the version is covered by those that follow.
    for row in t.store.partitions(version(1), None, 100).await.unwrap().items {
        assert!(&*row.key == "a" || row.generation == 8, "{row:?}");
    }
}

/// The same name for other content: one of them is quicker, and the others learn of it.
async fn sixteen_writers_give_a_name_once(t: &Fixture) {
    deploy(t).await;
    let mut grants = Vec::new();
    for _ in 0..16 {
        grants.push(running(t).await);
    }
    let mut writers = JoinSet::new();
    for ((writer, grant), store) in grants.into_iter().enumerate().zip(stores(t, 16).await) {
        let named = |name: u128| OutputCommit {
            artifact: Some(version(name)),
            ..output(version(1), partition("10-19"), &format!("s3://b/{writer}/"))
        };
        let mut outputs = vec![named(77), named(78)];
        outputs.rotate_left(writer % 2);
        let data = report(|report| report.outputs = outputs);
        writers.spawn(
            async move { (writer, Client { store }.run(make::complete_with(&grant, "1", &data)).await.is_ok()) },
        );
    }
    let answers = writers.join_all().await;
    let accepted: Vec<usize> =
        answers.into_iter().filter(|(_, accepted)| *accepted).map(|(writer, _)| writer).collect();
    let [winner] = accepted[..] else { panic!("{accepted:?}") };
    let location = partition_row(t, 1, "10-19").await.location.unwrap();
    assert_eq!(&*location, format!("s3://b/{winner}/"));
    assert_eq!(t.raw.number("SELECT count(*) FROM dataset_artifacts").await, 2);
}
