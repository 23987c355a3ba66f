use tenure_core::command::Rejection;
use tenure_core::dag::data::Read;
use tenure_store::dags::DATA_PAGE;

use super::*;

crate::on_both_stores!(
    a_partition_points_at_what_was_committed_last,
    what_was_made_from_older_data_does_not_replace_what_was_made_from_newer,
    partitions_are_listed_in_pages,
    unread_partitions_are_those_not_read_at_their_generation,
    a_location_with_a_nul_costs_nobody_the_batch,
    the_name_of_an_artifact_stands_for_one_content,
);

async fn a_partition_points_at_what_was_committed_last(t: &Fixture) {
    deploy(t).await;
    assert_eq!(t.store.partition(version(1), "10-19").await.unwrap(), None);
    let first = OutputCommit { artifact: Some(version(77)), ..output(version(1), partition("10-19"), "s3://b/1/") };
    complete(t, &report(|report| report.outputs = vec![first])).await;
    t.clock.advance(5);
    let last = OutputCommit {
        row_count: None,
        bytes: None,
        schema_hash: None,
        manifest: None,
        ..output(version(1), partition("10-19"), "s3://b/2/")
    };
    let first = partition_row(t, 1, "10-19").await;
    let task = complete(t, &report(|report| report.outputs = vec![last])).await;
    assert_eq!((first.row_count, first.bytes, first.artifact), (Some(3), Some(4_096), Some(version(77))));
    assert_eq!((first.schema_hash.as_deref(), first.manifest.as_deref()), (Some("sha256:1"), Some("{}")));
    let expected = PartitionRow {
        version: version(1),
        key: "10-19".into(),
        ends: Some((10, 19)),
        generation: 0,
        location: Some("s3://b/2/".into()),
        row_count: None,
        bytes: None,
        schema_hash: None,
        manifest: None,
        artifact: None,
        materialized_at: Some(crate::common::after_start(5)),
        producer: Some((task, 1)),
    };
    assert_eq!(partition_row(t, 1, "10-19").await, expected);
    assert_eq!(t.store.partition(version(2), "10-19").await.unwrap(), None);
}

/// Two tasks of one job run at once, for a partition before and after it was invalidated, and end in either order.
async fn what_was_made_from_older_data_does_not_replace_what_was_made_from_newer(t: &Fixture) {
    deploy(t).await;
    let read = |key: &str, generation| Read::Partition { version: version(1), key: key.into(), generation };
    let made = |key: &str, generation, location: &str| {
        report(|report| {
            report.outputs = vec![output(version(2), partition("10-19"), location)];
            report.reads = vec![read(key, generation)];
        })
    };
    let location = async || partition_row(t, 2, "10-19").await.location.unwrap().to_string();
    complete(t, &made("a", 0, "s3://b/0/")).await;
    complete(t, &made("a", 2, "s3://b/2/")).await;
    assert_eq!(location().await, "s3://b/2/");
    for older in [0, 1] {
        complete(t, &made("a", older, "s3://b/older/")).await;
        assert_eq!(location().await, "s3://b/2/");
    }
    // The same generation again, and what was made from another partition, count as before.
    complete(t, &made("a", 2, "s3://b/again/")).await;
    assert_eq!(location().await, "s3://b/again/");
    complete(t, &made("b", 0, "s3://b/other/")).await;
    assert_eq!(location().await, "s3://b/other/");
    // In one batch, too.
    let (one, two) = (running(t).await, running(t).await);
    let newer = make::complete_with(&one, "1", &made("a", 4, "s3://b/4/"));
    let older = make::complete_with(&two, "1", &made("a", 3, "s3://b/3/"));
    assert!(t.run_all(vec![newer, older]).await.into_iter().all(|outcome| outcome.is_ok()));
    assert_eq!(location().await, "s3://b/4/");
}

async fn partitions_are_listed_in_pages(t: &Fixture) {
    deploy(t).await;
    // By their bytes, in whatever order they came.
    let mut keys = vec!["b", "B", "a-1", "a", "10-19", "9-9", "a.b", "_"];
    let outputs = keys.iter().map(|key| output(version(1), partition(key), "s3://b/p/")).collect();
    complete(t, &report(|report| report.outputs = outputs)).await;
    keys.sort_unstable();
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = t.store.partitions(version(1), after.as_deref(), 3).await.unwrap();
        assert!(page.items.len() <= 3);
        found.extend(page.items.into_iter().map(|row| row.key.to_string()));
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    assert_eq!(found, keys);
    let many = (0..DATA_PAGE + 1).map(|n| output(version(2), partition(&format!("p{n}")), "s3://b/p/")).collect();
    complete(t, &report(|report| report.outputs = many)).await;
    let page = t.store.partitions(version(2), None, usize::MAX).await.unwrap();
    assert_eq!((page.items.len(), page.next.is_some()), (DATA_PAGE, true));
}

async fn unread_partitions_are_those_not_read_at_their_generation(t: &Fixture) {
    deploy(t).await;
    let unread = async |job, after: Option<&str>, limit| {
        let found = t.store.unread(job, version(1), after, limit).await.unwrap();
        found.into_iter().map(|unread| (unread.key.to_string(), unread.generation)).collect::<Vec<_>>()
    };
    let named = |names: &[(&str, i64)]| names.iter().map(|(key, n)| ((*key).to_owned(), *n)).collect::<Vec<_>>();
    let keys = ["a", "b", "c", "1-2"];
    let outputs = keys.iter().map(|key| output(version(1), partition(key), "s3://b/p/")).collect();
    complete(t, &report(|report| report.outputs = outputs)).await;
    assert_eq!(unread(JOB, None, 10).await, named(&[("1-2", 0), ("a", 0), ("b", 0), ("c", 0)]));
    assert_eq!(t.store.unread(JOB, version(1), None, 1).await.unwrap()[0].ends, Some((1, 2)));
    assert_eq!(unread(JOB, Some("a"), 1).await, named(&[("b", 0)]));

    let read = |key: &str, generation| Read::Partition { version: version(1), key: key.into(), generation };
    complete(t, &report(|report| report.reads = vec![read("a", 0), read("c", 0)])).await;
    assert_eq!(unread(JOB, None, 10).await, named(&[("1-2", 0), ("b", 0)]));
    assert_eq!(unread(OTHER_JOB, None, 10).await.len(), 4, "each job for itself");

    t.store.invalidate(ORG, &invalidation(1, version(1), of_partition("a"))).await.unwrap();
    // Nothing was committed to it.
    t.store.invalidate(ORG, &invalidation(2, version(1), of_partition("z"))).await.unwrap();
    assert_eq!(unread(JOB, None, 10).await, named(&[("1-2", 0), ("a", 1), ("b", 0)]));
    complete(t, &report(|report| report.reads = vec![read("a", 1)])).await;
    // A late one of before the invalidation.
    complete(t, &report(|report| report.reads = vec![read("a", 0)])).await;
    assert_eq!(unread(JOB, None, 10).await, named(&[("1-2", 0), ("b", 0)]));
    assert_eq!(t.store.unread(JOB, version(2), None, 10).await.unwrap(), []);

    let many = (0..DATA_PAGE + 1).map(|n| output(version(1), partition(&format!("p{n}")), "s3://b/p/")).collect();
    complete(t, &report(|report| report.outputs = many)).await;
    assert_eq!(unread(JOB, None, usize::MAX).await.len(), DATA_PAGE);
}

async fn a_location_with_a_nul_costs_nobody_the_batch(t: &Fixture) {
    deploy(t).await;
    complete(t, &report(|report| report.outputs = vec![output(version(1), partition("a"), "s3://b/\0/")])).await;
    assert_eq!(partition_row(t, 1, "a").await.location.as_deref(), Some("s3://b/\u{fffd}/"));
}

async fn the_name_of_an_artifact_stands_for_one_content(t: &Fixture) {
    deploy(t).await;
    let named = |n: u128, key: &str, location: &str, hash: &str| OutputCommit {
        artifact: Some(version(77)),
        schema_hash: Some(hash.into()),
        ..output(version(n), partition(key), location)
    };
    let send = async |outputs: Vec<OutputCommit>| {
        let (grant, data) = (running(t).await, report(|report| report.outputs = outputs));
        let outcome = t.run(make::complete_with(&grant, "1", &data)).await;
        if let Err(Rejection::Data(refusal)) = &outcome {
            assert_eq!(refusal.code, "dataset_version_conflict");
            // Nothing was written, and the holder may report something else.
            t.run(make::complete(&grant, "1")).await.unwrap();
        }
        outcome.is_ok()
    };
    let first = named(1, "10-19", "s3://b/1/", "sha256:1");
    assert!(send(vec![first.clone()]).await);
    // The same again, of whatever size; and the name in another dataset.
    assert!(send(vec![OutputCommit { row_count: Some(9), bytes: None, ..first.clone() }]).await);
    assert!(send(vec![named(2, "10-19", "s3://b/2/", "sha256:1")]).await);
    for other in [
        named(1, "10-19", "s3://b/2/", "sha256:1"),
        named(1, "20-29", "s3://b/1/", "sha256:1"),
        named(1, "10-19", "s3://b/1/", "sha256:2"),
        OutputCommit { schema_hash: None, ..first.clone() },
    ] {
        let beside = output(version(3), partition("1-2"), "s3://b/beside/");
        assert!(!send(vec![beside, other]).await);
    }
    assert_eq!(t.store.partition(version(3), "1-2").await.unwrap(), None, "all of a report or nothing");
    assert_eq!(partition_row(t, 1, "10-19").await.location.as_deref(), Some("s3://b/1/"));
    assert_eq!(t.store.partition(version(1), "20-29").await.unwrap(), None);
    // A name outlives the partition that it was given for.
    let renamed = OutputCommit { artifact: Some(version(78)), ..named(1, "10-19", "s3://b/3/", "sha256:1") };
    assert!(send(vec![renamed]).await);
    assert!(!send(vec![named(1, "10-19", "s3://b/4/", "sha256:1")]).await);
    // Twice in one report, and twice in one batch.
    let two = |location: &str| OutputCommit { artifact: Some(version(79)), ..named(1, "30-39", location, "sha256:1") };
    assert!(!send(vec![two("s3://b/5/"), two("s3://b/6/")]).await);
    assert!(send(vec![two("s3://b/5/"), two("s3://b/5/")]).await);
    let (one, other) = (running(t).await, running(t).await);
    let give = |grant: &Grant, location: &str| {
        let output = OutputCommit { artifact: Some(version(80)), ..named(1, "40-49", location, "sha256:1") };
        make::complete_with(grant, "1", &report(|report| report.outputs = vec![output]))
    };
    let outcomes = t.run_all(vec![give(&one, "s3://b/7/"), give(&other, "s3://b/8/")]).await;
    assert!(outcomes[0].is_ok() && matches!(outcomes[1], Err(Rejection::Data(_))), "{outcomes:?}");
    assert_eq!(t.raw.number("SELECT count(*) FROM dataset_artifacts").await, 5);
}
