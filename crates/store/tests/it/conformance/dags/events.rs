use tenure_core::dag::data::Read;
use tenure_core::task::State;
use tenure_store::dags::{DATA_PAGE, JobState, Moved, Routed};

use super::*;

crate::on_both_stores!(
    an_event_is_recorded_once_by_whoever_told_first,
    events_told_before_the_end_are_those_of_the_report,
    a_report_that_does_not_count_writes_nothing,
    a_replay_changes_nothing,
    routed_events_are_not_offered_again,
    events_of_a_deployment_that_moved_are_left_alone,
    a_page_of_events_is_bounded,
    an_event_of_tenure_itself_has_no_producer,
    cursors_never_move_back,
    a_job_keeps_its_state,
);

async fn an_event_is_recorded_once_by_whoever_told_first(t: &Fixture) {
    deploy(t).await;
    let data =
        told(vec![event(version(1), cursor(5)), event(version(1), partition("10-19")), event(version(2), cursor(5))]);
    let task = complete(t, &data).await;
    complete(t, &data).await;
    let found = unrouted(t).await;
    let expected = [(1, "cursor:5", 0), (1, "partition:10-19", 0), (2, "cursor:5", 0)];
    let mut places = places(&found);
    places.sort();
    assert_eq!(places, expected.map(|(version, text, generation)| (version, text.to_owned(), generation)));
    for event in &found {
        assert_eq!(
            (&*event.org, event.producer, event.dataset),
            (ORG, Some((task, 1)), dataset(event.version.as_u128()))
        );
        assert_eq!((event.recorded_at, &event.unrouted), (crate::common::START, &None));
    }
    assert!(found.iter().any(|event| event.position == partition("10-19")), "the ends are kept");

    let question = [
        (version(2), cursor(5)),
        (version(2), cursor(6)),
        (version(1), partition("10-19")),
        (version(1), partition("x")),
    ];
    let recorded = t.store.recorded(&question).await.unwrap();
    let texts: Vec<_> = recorded.iter().map(|event| event.as_ref().map(|event| event.position.text())).collect();
    assert_eq!(texts, [Some("cursor:5".to_owned()), None, Some("partition:10-19".to_owned()), None]);
    assert_eq!(recorded[0].as_ref().unwrap().producer, Some((task, 1)));
    assert_eq!(t.store.recorded(&[]).await.unwrap(), []);
}

async fn events_told_before_the_end_are_those_of_the_report(t: &Fixture) {
    deploy(t).await;
    let grant = running(t).await;
    let early = told(vec![event(version(1), cursor(1))]);
    assert_eq!(t.run(emit(&grant, &early)).await, Ok(Answer::Done(true)));
    assert_eq!(t.state(grant.task).await, State::Running);
    assert_eq!(unrouted(t).await.len(), 1);
    let all = told(vec![event(version(1), cursor(1)), event(version(1), cursor(2))]);
    t.run(make::complete_with(&grant, "1", &all)).await.unwrap();
    assert_eq!(unrouted(t).await.len(), 2);
    assert_eq!(generation(t, 1).await.cursor, Some(2));
}

async fn a_report_that_does_not_count_writes_nothing(t: &Fixture) {
    deploy(t).await;
    let grant = running(t).await;
    let data = told(vec![event(version(1), cursor(1))]);
    t.run(make::fail(&grant, "X", Some(false))).await.unwrap();
    t.run(make::complete_with(&grant, "1", &data)).await.unwrap_err();
    t.run(emit(&grant, &data)).await.unwrap_err();
    assert_eq!(unrouted(t).await, []);
}

async fn a_replay_changes_nothing(t: &Fixture) {
    deploy(t).await;
    let grant = running(t).await;
    let data = report(|report| {
        report.outputs = vec![output(version(1), partition("a"), "s3://b/1/")];
        report.events = vec![event(version(1), partition("a"))];
        report.reads = vec![Read::UpTo { version: version(2), cursor: 4 }];
        report.operator_state = Some("1".into());
        report.invalidations = vec![invalidation(1, version(3), of_rows())];
    });
    let command = make::complete_with(&grant, "1", &data);
    let first = t.run(command.clone()).await;
    // Somebody else goes on from there.
    complete(t, &report(|report| report.operator_state = Some("2".into()))).await;
    assert_eq!(t.run(command).await, first);
    let state = t.store.job_state(JOB, &[version(2)]).await.unwrap();
    assert_eq!(state.operator_state.as_deref(), Some("2"));
    assert_eq!(generation(t, 3).await.generation, 1);
    assert_eq!(unrouted(t).await.len(), 1);
}

async fn routed_events_are_not_offered_again(t: &Fixture) {
    deploy(t).await;
    complete(t, &told((1..=4).map(|n| event(version(1), cursor(n))).collect())).await;
    let found = unrouted(t).await;
    assert!(found.is_sorted_by_key(|event| event.id));
    let routed =
        [Routed { event: found[0].id, why_not: None }, Routed { event: found[2].id, why_not: Some("old_version") }];
    assert_eq!(t.store.routed(ORG, 1, &routed).await.unwrap(), Ok(()));
    let left: Vec<_> = unrouted(t).await.iter().map(|event| event.id).collect();
    assert_eq!(left, [found[1].id, found[3].id]);
    let known = t.store.recorded(&[(version(1), cursor(1)), (version(1), cursor(3))]).await.unwrap();
    let reasons: Vec<_> = known.into_iter().map(|event| event.unwrap().unrouted).collect();
    assert_eq!(reasons, [None, Some("old_version".into())]);
    // What was said first stays.
    let again = [Routed { event: found[2].id, why_not: None }];
    assert_eq!(t.store.routed(ORG, 1, &again).await.unwrap(), Ok(()));
    let known = t.store.recorded(&[(version(1), cursor(3))]).await.unwrap().remove(0).unwrap();
    assert_eq!(known.unrouted.as_deref(), Some("old_version"));
}

async fn events_of_a_deployment_that_moved_are_left_alone(t: &Fixture) {
    deploy(t).await;
    complete(t, &told(vec![event(version(1), cursor(1))])).await;
    let routed = [Routed { event: unrouted(t).await[0].id, why_not: None }];
    for (org, seen) in [(ORG, 0), (ORG, 2), ("other", 1)] {
        assert_eq!(t.store.routed(org, seen, &routed).await.unwrap(), Err(Moved), "{org} {seen}");
    }
    // An organisation without a deployment has none of its events.
    assert_eq!(t.store.routed("other", 0, &routed).await.unwrap(), Ok(()));
    assert_eq!(unrouted(t).await.len(), 1);
    assert_eq!(t.store.routed(ORG, 1, &routed).await.unwrap(), Ok(()));
    assert_eq!(unrouted(t).await, []);
}

async fn a_page_of_events_is_bounded(t: &Fixture) {
    deploy(t).await;
    complete(t, &told((0..1_100).map(|n| event(version(1), cursor(n))).collect())).await;
    assert_eq!(t.store.unrouted(&[], 0, 3).await.unwrap().len(), 3);
    let all = t.store.unrouted(&[], 0, usize::MAX).await.unwrap();
    assert_eq!(all.len(), DATA_PAGE);
    // The next page begins after the last event of this one.
    let rest = t.store.unrouted(&[], all[DATA_PAGE - 1].id, usize::MAX).await.unwrap();
    assert_eq!(rest.len(), 100);
    assert!(rest.iter().all(|event| event.id > all[DATA_PAGE - 1].id));
}

async fn an_event_of_tenure_itself_has_no_producer(t: &Fixture) {
    deploy(t).await;
    t.store.record(ORG, dataset(1), version(1), &cursor(9)).await.unwrap();
    complete(t, &told(vec![event(version(1), cursor(9)), event(version(1), partition("a"))])).await;
    t.store.record(ORG, dataset(1), version(1), &partition("a")).await.unwrap();
    let producers: Vec<_> = unrouted(t).await.iter().map(|event| event.producer.is_some()).collect();
    assert_eq!(producers, [false, true]);
    assert_eq!(generation(t, 1).await.cursor, Some(9));
}

async fn cursors_never_move_back(t: &Fixture) {
    deploy(t).await;
    for (told, expected) in [(10, 10), (12, 12), (11, 12), (0, 12)] {
        complete(
            t,
            &report(|report| {
                report.reads = vec![Read::UpTo { version: version(1), cursor: told }];
                report.outputs = vec![output(version(2), cursor(told), "postgres_table:t")];
            }),
        )
        .await;
        assert_eq!(t.store.cursors(&[JOB, OTHER_JOB]).await.unwrap(), [(JOB, version(1), expected)]);
        assert_eq!(generation(t, 2).await.cursor, Some(expected));
    }
    // In one report too.
    complete(
        t,
        &report(|report| {
            report.reads = [20, 15].map(|cursor| Read::UpTo { version: version(1), cursor }).into();
            report.outputs = [20, 15].map(|value| output(version(2), cursor(value), "postgres_table:t")).into();
        }),
    )
    .await;
    assert_eq!(t.store.cursors(&[JOB]).await.unwrap(), [(JOB, version(1), 20)]);
    assert_eq!(generation(t, 2).await.cursor, Some(20));
    assert_eq!(t.store.partitions(version(2), None, 10).await.unwrap().items, [], "a cursor is no partition");
}

async fn a_job_keeps_its_state(t: &Fixture) {
    deploy(t).await;
    assert_eq!(t.store.job_state(JOB, &[version(1)]).await.unwrap(), JobState::default());
    for (n, state) in [(1, r#"{"end":1}"#), (2, r#"{"end":2}"#)] {
        complete(
            t,
            &report(|report| {
                report.operator_state = Some(state.into());
                report.reads =
                    vec![Read::UpTo { version: version(1), cursor: n }, Read::UpTo { version: version(3), cursor: 7 }];
            }),
        )
        .await;
    }
    // A report that says nothing of it leaves it.
    complete(t, &told(Vec::new())).await;
    let state = t.store.job_state(JOB, &[version(3), version(1), version(2)]).await.unwrap();
    assert_eq!(state.operator_state.as_deref(), Some(r#"{"end":2}"#));
    assert_eq!(state.cursors, [(version(1), 2), (version(3), 7)]);
    assert_eq!(t.store.job_state(JOB, &[version(2)]).await.unwrap().cursors, []);
    assert_eq!(t.store.job_state(OTHER_JOB, &[version(1)]).await.unwrap(), JobState::default());
}
