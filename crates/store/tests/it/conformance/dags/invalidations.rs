use tenure_store::dags::Moved;

use super::*;

crate::on_both_stores!(
    an_invalidated_partition_has_the_next_generation,
    a_range_of_rows_covers_all_of_a_version,
    the_same_invalidation_counts_once,
    an_event_after_an_invalidation_is_a_new_one,
    a_report_invalidates_before_it_tells,
    dependents_are_made_once_and_are_done_by_their_reports,
    a_dependent_may_be_done_before_it_is_counted,
    an_invalidation_of_a_deployment_that_moved_is_left_alone,
);

async fn an_invalidated_partition_has_the_next_generation(t: &Fixture) {
    deploy(t).await;
    complete(
        t,
        &report(|report| {
            report.outputs = ["a", "b"].map(|key| output(version(1), partition(key), "s3://b/1/")).into();
        }),
    )
    .await;
    for n in 1..=2 {
        let row = t.store.invalidate(ORG, &invalidation(n, version(1), of_partition("a"))).await.unwrap();
        assert_eq!((row.generation, row.dependents, row.done), (n as i64, None, 0));
        assert_eq!((&*row.org, row.dataset, row.version, &*row.reason), (ORG, dataset(1), version(1), "reorg"));
        assert_eq!((row.scope, row.created_at), (of_partition("a"), crate::common::START));
    }
    assert_eq!(partition_row(t, 1, "a").await.generation, 2);
    assert_eq!(partition_row(t, 1, "b").await.generation, 0);
    assert_eq!(generation(t, 1).await.generation, 0);
    // A new commit keeps it.
    complete(t, &report(|report| report.outputs = vec![output(version(1), partition("a"), "s3://b/2/")])).await;
    let row = partition_row(t, 1, "a").await;
    assert_eq!((row.generation, row.location.as_deref()), (2, Some("s3://b/2/")));
    // One that nobody has heard of yet.
    let row = t.store.invalidate(ORG, &invalidation(3, version(1), of_partition("new"))).await.unwrap();
    assert_eq!(row.generation, 1);
    let row = partition_row(t, 1, "new").await;
    assert_eq!((row.generation, row.location, row.materialized_at, row.producer), (1, None, None, None));
}

async fn a_range_of_rows_covers_all_of_a_version(t: &Fixture) {
    deploy(t).await;
    complete(
        t,
        &report(|report| {
            report.outputs = vec![
                output(version(1), partition("a"), "s3://b/1/"),
                output(version(1), partition("b"), "s3://b/1/"),
                output(version(2), partition("a"), "s3://b/1/"),
            ];
        }),
    )
    .await;
    t.store.invalidate(ORG, &invalidation(1, version(1), of_partition("a"))).await.unwrap();
    let row = t.store.invalidate(ORG, &invalidation(2, version(1), of_rows())).await.unwrap();
    assert_eq!((row.generation, row.scope), (1, of_rows()));
    assert_eq!(generation(t, 1).await.generation, 1);
    assert_eq!(partition_row(t, 1, "a").await.generation, 2);
    assert_eq!(partition_row(t, 1, "b").await.generation, 1);
    assert_eq!((generation(t, 2).await.generation, partition_row(t, 2, "a").await.generation), (0, 0));
    // What is new was covered too.
    complete(
        t,
        &report(|report| {
            report.outputs = vec![output(version(1), partition("c"), "s3://b/1/")];
            report.events = vec![event(version(1), partition("d")), event(version(1), cursor(1))];
        }),
    )
    .await;
    assert_eq!(partition_row(t, 1, "c").await.generation, 1);
    let generations: Vec<_> = unrouted(t).await.iter().map(|event| event.generation).collect();
    assert_eq!(generations, [1, 1]);
}

async fn the_same_invalidation_counts_once(t: &Fixture) {
    deploy(t).await;
    for scope in [of_partition("a"), of_rows()] {
        let id = if scope == of_rows() { 2 } else { 1 };
        let new = invalidation(id, version(1), scope);
        let first = t.store.invalidate(ORG, &new).await.unwrap();
        t.clock.advance(10);
        assert_eq!(t.store.invalidate(ORG, &new).await.unwrap(), first);
        complete(t, &report(|report| report.invalidations = vec![new.clone(), new.clone()])).await;
        assert_eq!(t.store.invalidate(ORG, &new).await.unwrap(), first);
    }
    assert_eq!(partition_row(t, 1, "a").await.generation, 2);
    assert_eq!(generation(t, 1).await.generation, 1);
    assert_eq!(t.store.open_invalidations(&[], 10).await.unwrap().len(), 2);
}

async fn an_event_after_an_invalidation_is_a_new_one(t: &Fixture) {
    deploy(t).await;
    let data = told(vec![event(version(1), partition("a")), event(version(1), cursor(1))]);
    complete(t, &data).await;
    complete(t, &data).await;
    t.store.invalidate(ORG, &invalidation(1, version(1), of_partition("a"))).await.unwrap();
    let question = [(version(1), partition("a")), (version(1), cursor(1))];
    let known = t.store.recorded(&question).await.unwrap();
    assert_eq!((known[0].is_some(), known[1].is_some()), (false, true), "not at its present generation");
    complete(t, &data).await;
    complete(t, &data).await;
    assert_eq!(
        places(&unrouted(t).await),
        [(1, "cursor:1".into(), 0), (1, "partition:a".into(), 0), (1, "partition:a".into(), 1)]
    );
    t.store.invalidate(ORG, &invalidation(2, version(1), of_rows())).await.unwrap();
    complete(t, &data).await;
    let generations: Vec<_> = unrouted(t).await[3..].iter().map(|event| event.generation).collect();
    assert_eq!(generations, [1, 2], "the cursor once more, the partition for the third time");
    let known = t.store.recorded(&question).await.unwrap();
    let generations: Vec<_> = known.iter().map(|event| event.as_ref().unwrap().generation).collect();
    assert_eq!(generations, [2, 1]);
}

/// An output that is rewritten under an invalidation invalidates its own dataset: its event must not look like a repeat.
async fn a_report_invalidates_before_it_tells(t: &Fixture) {
    deploy(t).await;
    complete(t, &told(vec![event(version(1), partition("a"))])).await;
    complete(
        t,
        &report(|report| {
            report.outputs = vec![output(version(1), partition("a"), "s3://b/2/")];
            report.events = vec![event(version(1), partition("a"))];
            report.invalidations = vec![invalidation(1, version(1), of_partition("a"))];
        }),
    )
    .await;
    assert_eq!(places(&unrouted(t).await), [(1, "partition:a".into(), 0), (1, "partition:a".into(), 1)]);
    assert_eq!(partition_row(t, 1, "a").await.generation, 1);
    assert_eq!(t.store.open_invalidations(&[], 10).await.unwrap()[0].generation, 1);
}

fn done(job: JobId, id: u128) -> Arc<DataReport> {
    let mut report = DataReport::of(ORG.into(), job);
    report.invalidation = Some(InvalidationId::from_u128(id));
    Arc::new(report)
}

async fn dependents_are_made_once_and_are_done_by_their_reports(t: &Fixture) {
    deploy(t).await;
    for n in [2, 1] {
        t.store.invalidate(ORG, &invalidation(n, version(1), of_partition("a"))).await.unwrap();
        t.clock.advance(1);
    }
    let open = async || {
        let rows = t.store.open_invalidations(&[], 10).await.unwrap();
        rows.iter().map(|row| row.id.as_u128()).collect::<Vec<_>>()
    };
    assert_eq!(open().await, [2, 1], "oldest first");
    assert_eq!(t.store.open_invalidations(&[], 1).await.unwrap().len(), 1);
    let (id, new) = (InvalidationId::from_u128(2), invalidation(2, version(1), of_partition("a")));
    for jobs in [&[JOB, OTHER_JOB][..], &[JOB, OTHER_JOB], &[]] {
        assert_eq!(t.store.invalidation_routed(ORG, 1, id, jobs).await.unwrap(), Ok(()));
        assert_eq!(t.store.invalidate(ORG, &new).await.unwrap().dependents, Some(2));
    }
    assert_eq!(open().await, [1]);
    for (job, expected) in [(JOB, 1), (JOB, 1), (OTHER_JOB, 2)] {
        complete(t, &done(job, 2)).await;
        let row = t.store.invalidate(ORG, &new).await.unwrap();
        assert_eq!((row.dependents, row.done), (Some(2), expected));
    }
    let none = invalidation(1, version(1), of_partition("a"));
    assert_eq!(t.store.invalidation_routed(ORG, 1, InvalidationId::from_u128(1), &[]).await.unwrap(), Ok(()));
    assert_eq!(t.store.invalidate(ORG, &none).await.unwrap().dependents, Some(0));
    assert_eq!(open().await, [0; 0]);
}

async fn a_dependent_may_be_done_before_it_is_counted(t: &Fixture) {
    deploy(t).await;
    let new = invalidation(1, version(1), of_partition("a"));
    t.store.invalidate(ORG, &new).await.unwrap();
    complete(t, &done(JOB, 1)).await;
    assert_eq!(t.store.invalidation_routed(ORG, 1, new.id, &[JOB, OTHER_JOB]).await.unwrap(), Ok(()));
    let row = t.store.invalidate(ORG, &new).await.unwrap();
    assert_eq!((row.dependents, row.done), (Some(2), 1));
}

async fn an_invalidation_of_a_deployment_that_moved_is_left_alone(t: &Fixture) {
    deploy(t).await;
    let new = invalidation(1, version(1), of_rows());
    t.store.invalidate(ORG, &new).await.unwrap();
    assert_eq!(t.store.invalidation_routed(ORG, 2, new.id, &[JOB]).await.unwrap(), Err(Moved));
    assert_eq!(t.store.invalidation_routed("other", 0, new.id, &[JOB]).await.unwrap(), Ok(()), "not one of its own");
    assert_eq!(t.store.open_invalidations(&[], 10).await.unwrap().len(), 1);
    assert_eq!(t.raw.number("SELECT count(*) FROM invalidation_dependents").await, 0);
}
