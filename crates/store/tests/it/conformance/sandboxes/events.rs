//! Events: in order, seen once all before them are, and pruned by age.

use tenure_store::Told;

use super::*;
use crate::common::after_start;

crate::on_both_stores!(
    events_come_back_in_order,
    a_reader_that_follows_misses_nothing,
    old_events_are_pruned,
    what_is_told_of_a_new_row_is_written_with_it,
);

fn event(n: usize) -> NewSandboxEvent {
    NewSandboxEvent {
        kind: "exec.started",
        sandbox: Some(id(1)),
        tenant: Some("acme".into()),
        owner: None,
        data: format!("{{\"n\":{n}}}"),
    }
}

async fn events_come_back_in_order(t: &Fixture) {
    assert_eq!(t.store.sandbox_event_bounds().await.unwrap(), (0, 0));
    t.store.record_sandbox_events(Vec::new()).await.unwrap();
    t.store.record_sandbox_events((0..5).map(event).collect()).await.unwrap();
    let system =
        NewSandboxEvent { kind: "worker.online", sandbox: None, tenant: None, owner: None, data: String::new() };
    t.store.record_sandbox_events(vec![system]).await.unwrap();
    let all = t.store.sandbox_events(0, 100).await.unwrap();
    assert!(all.is_sorted_by(|one, other| one.id < other.id));
    let data: Vec<_> = all.iter().map(|event| &*event.data).collect();
    assert_eq!(data, [r#"{"n":0}"#, r#"{"n":1}"#, r#"{"n":2}"#, r#"{"n":3}"#, r#"{"n":4}"#, ""]);
    assert_eq!((&*all[5].kind, all[5].tenant.clone(), all[5].sandbox.clone()), ("worker.online", None, None));
    let (first, last) = (all[0].id, all[5].id);
    assert_eq!(t.store.sandbox_event_bounds().await.unwrap(), (first, last));
    assert_eq!(t.store.sandbox_events(first, 2).await.unwrap(), all[1..3]);
    assert!(t.store.sandbox_events(last, 2).await.unwrap().is_empty());
}

/// Sixteen write while one reads: an event that appears after one with a higher number would be missed.
async fn a_reader_that_follows_misses_nothing(t: &Fixture) {
    const EACH: usize = 12;
    let stores = stores(t, 16).await;
    let mut writers = tokio::task::JoinSet::new();
    for (n, store) in stores.into_iter().enumerate() {
        writers.spawn(async move {
            for round in 0..EACH {
                store.record_sandbox_events(vec![event(n * EACH + round)]).await.unwrap();
            }
        });
    }
    let (mut seen, mut last) = (Vec::new(), 0);
    loop {
        let is_over = writers.is_empty();
        for event in t.store.sandbox_events(last, 7).await.unwrap() {
            last = event.id;
            seen.push(event.data);
        }
        if is_over && t.store.sandbox_event_bounds().await.unwrap().1 == last {
            break;
        }
        while let Some(done) = writers.try_join_next() {
            done.unwrap();
        }
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 16 * EACH);
}

async fn old_events_are_pruned(t: &Fixture) {
    for n in 0..4 {
        t.store.record_sandbox_events(vec![event(n)]).await.unwrap();
        t.clock.advance(10);
    }
    assert_eq!(t.store.prune_sandbox_events(after_start(20), 1).await.unwrap(), 1);
    assert_eq!(t.store.prune_sandbox_events(after_start(20), 100).await.unwrap(), 1);
    assert_eq!(t.store.prune_sandbox_events(after_start(20), 100).await.unwrap(), 0);
    let left = t.store.sandbox_events(0, 10).await.unwrap();
    assert_eq!(left.iter().map(|event| event.at).collect::<Vec<_>>(), [after_start(20), after_start(30)]);
    assert_eq!(t.store.sandbox_event_bounds().await.unwrap(), (left[0].id, left[1].id));
    t.store.prune_sandbox_events(Timestamp::MAX, 100).await.unwrap();
    t.store.record_sandbox_events(vec![event(9)]).await.unwrap();
    let next = t.store.sandbox_events(left[1].id, 10).await.unwrap();
    assert_eq!(next.len(), 1, "numbers are not used again");
}

/// Kinds and data, oldest first.
async fn heard(t: &Fixture) -> Vec<(String, String)> {
    let all = t.store.sandbox_events(0, 100).await.unwrap();
    all.into_iter().map(|event| (event.kind, event.data)).collect()
}

async fn what_is_told_of_a_new_row_is_written_with_it(t: &Fixture) {
    let telling = |new: NewSandbox| NewSandbox { told: |row| vec![told("created", row)], ..new };
    worker(t, room_for(2, "worker-a")).await;
    let new_row = telling(NewSandbox { pool: Some("py".into()), owner: None, ..new(1) });
    let (row, ..) = placed(t, new_row.clone()).await;
    assert!(matches!(place(&*t.store, new_row, NO_CAPS).await, Ok(Placed::Known(_))));
    let of = |kind: &str, worker: &str| (kind.to_owned(), format!("{{\"worker\":\"{worker}\"}}"));
    assert_eq!(heard(t).await, [of("created", "worker-a")], "once");

    change(&*t.store, 1, confirm(&row)).await.unwrap();
    let claim = Change::Claim { tenant: "acme".into(), owner: None, ttl_ms: 5_000, metadata: Vec::new() };
    let key = Some(("key".into(), [1; 32]));
    for _ in 0..2 {
        let told: Told = |row| vec![told("claimed", row)];
        let claimed = t.store.claim_warm("py", &claim, key.clone(), NO_CAPS, &Rules::default(), told).await.unwrap();
        assert_eq!(claimed.unwrap().unwrap().after.state, State::Running);
    }
    placed(t, new(2)).await;
    assert!(place(&*t.store, telling(new(3)), NO_CAPS).await.is_err(), "no room");
    assert!(matches!(place(&*t.store, telling(queued(4)), NO_CAPS).await, Ok(Placed::Queued(_))));
    assert_eq!(heard(t).await, [of("created", "worker-a"), of("claimed", "worker-a"), of("created", "nobody")]);
}
