//! Lists of sandboxes: newest first, within reach, without destroyed ones.

use tenure_core::command::Reach;
use tenure_store::SandboxFilter;

use super::*;
use crate::common::after_start;

crate::on_both_stores!(
    newest_first_in_pages,
    everybody_sees_their_own,
    destroyed_rows_are_hidden_unless_asked_for,
    filters_are_joined,
    rows_are_counted_by_state_provider_and_worker,
    destroyed_rows_are_pruned_by_age,
);

async fn ids(t: &Fixture, filter: SandboxFilter) -> Vec<Arc<str>> {
    let page = t.store.sandboxes(&SandboxFilter { limit: 100, ..filter }).await.unwrap();
    page.items.into_iter().map(|row| row.id).collect()
}

async fn newest_first_in_pages(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    for number in 1..=5 {
        placed(t, new(number)).await;
        // Two of them in the same millisecond.
        t.clock.advance(i64::from(number % 2));
    }
    let mut seen = Vec::new();
    let mut filter = SandboxFilter { limit: 2, ..SandboxFilter::default() };
    loop {
        let page = t.store.sandboxes(&filter).await.unwrap();
        assert!(page.items.len() <= 2);
        seen.extend(page.items.into_iter().map(|row| row.id));
        let Some(next) = page.next else { break };
        filter.after = Some(SandboxFilter::read_cursor(&next).unwrap());
    }
    assert_eq!(seen, [5, 4, 3, 2, 1].map(id));
    assert_eq!(SandboxFilter::read_cursor("x"), None);
    assert_eq!(SandboxFilter::read_cursor("x.y"), None);
}

async fn everybody_sees_their_own(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    placed(t, new(1)).await;
    placed(t, NewSandbox { owner: Some("bob".into()), ..new(2) }).await;
    placed(t, NewSandbox { owner: None, ..new(3) }).await;
    placed(t, NewSandbox { tenant: "other".into(), ..new(4) }).await;
    let reach = async |reach| ids(t, SandboxFilter { reach, ..SandboxFilter::default() }).await;
    assert_eq!(reach(Reach::All).await, [4, 3, 2, 1].map(id));
    assert_eq!(reach(Reach::Tenant("acme".into())).await, [3, 2, 1].map(id));
    assert_eq!(reach(Reach::Owner { tenant: "acme".into(), owner: "ann".into() }).await, [1].map(id));
    assert!(reach(Reach::Tenant("nobody".into())).await.is_empty());
    // The same with every other way to look.
    let own = Reach::Owner { tenant: "acme".into(), owner: "ann".into() };
    let by_worker = SandboxFilter { reach: own.clone(), worker: Some("worker-a".into()), ..SandboxFilter::default() };
    assert_eq!(ids(t, by_worker).await, [1].map(id));
    let by_end = SandboxFilter { reach: own.clone(), expired_by: Some(after_start(TTL)), ..SandboxFilter::default() };
    assert_eq!(ids(t, by_end).await, [1].map(id));
    for number in 1..=4 {
        change(&*t.store, number, destroy()).await.unwrap();
    }
    let destroyed = SandboxFilter { reach: own, states: vec![State::Destroyed], ..SandboxFilter::default() };
    assert_eq!(ids(t, destroyed).await, [1].map(id));
}

async fn destroyed_rows_are_hidden_unless_asked_for(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    running(t, 1).await;
    running(t, 2).await;
    change(&*t.store, 1, destroy()).await.unwrap();
    let states = |states: &[State]| SandboxFilter { states: states.to_vec(), ..SandboxFilter::default() };
    assert_eq!(ids(t, states(&[])).await, [2].map(id));
    assert_eq!(ids(t, states(&[State::Destroyed])).await, [1].map(id));
    assert_eq!(ids(t, states(&[State::Destroyed, State::Running])).await, [2, 1].map(id));
    for reach in [Reach::Tenant("acme".into()), Reach::Owner { tenant: "acme".into(), owner: "ann".into() }] {
        assert_eq!(ids(t, SandboxFilter { reach, ..SandboxFilter::default() }).await, [2].map(id));
    }
    let by_worker = SandboxFilter { worker: Some("worker-a".into()), ..SandboxFilter::default() };
    assert_eq!(ids(t, by_worker).await, [2].map(id));
    let by_end = SandboxFilter { expired_by: Some(Timestamp::MAX), ..SandboxFilter::default() };
    assert_eq!(ids(t, by_end).await, [2].map(id));
    assert_eq!(row(t, 1).await.state, State::Destroyed, "by its id it can be read");
}

async fn filters_are_joined(t: &Fixture) {
    worker(t, room_for(2, "worker-a")).await;
    running(t, 1).await;
    placed(t, NewSandbox { ttl_ms: 1_000, ..new(2) }).await;
    worker(t, beat("worker-b")).await;
    t.clock.advance(100);
    placed(t, NewSandbox { ttl_ms: 5_000, ..new(3) }).await;
    let none = SandboxFilter::default;
    assert_eq!(ids(t, SandboxFilter { worker: Some("worker-b".into()), ..none() }).await, [3].map(id));
    assert_eq!(ids(t, SandboxFilter { states: vec![State::Creating], ..none() }).await, [3, 2].map(id));
    let over = SandboxFilter { expired_by: Some(after_start(1_000)), ..none() };
    assert_eq!(ids(t, over).await, [2].map(id), "at this very moment");
    let over = SandboxFilter { expired_by: Some(after_start(999)), ..none() };
    assert!(ids(t, over).await.is_empty());
    let both = SandboxFilter { expired_by: Some(after_start(5_100)), worker: Some("worker-b".into()), ..none() };
    assert_eq!(ids(t, both).await, [3].map(id));
    let long = SandboxFilter { changed_before: Some(after_start(100)), states: vec![State::Creating], ..none() };
    assert_eq!(ids(t, long).await, [2].map(id));
}

async fn rows_are_counted_by_state_provider_and_worker(t: &Fixture) {
    worker(t, room_for(3, "worker-a")).await;
    running(t, 1).await;
    running(t, 2).await;
    placed(t, new(3)).await;
    place(&*t.store, queued(4), NO_CAPS).await.unwrap();
    let mut counts = t.store.count_sandboxes().await.unwrap();
    counts.sort_by_key(|(state, _, worker, _)| (*state, worker.clone()));
    let on = |state, worker: Option<&str>, count| (state, "process".to_owned(), worker.map(Into::into), count);
    let running = |count| on(State::Running, Some("worker-a"), count);
    let creating = [on(State::Creating, None, 1), on(State::Creating, Some("worker-a"), 1)];
    assert_eq!(counts, [creating[0].clone(), creating[1].clone(), running(2)]);
    change(&*t.store, 1, destroy()).await.unwrap();
    let mut counts = t.store.count_sandboxes().await.unwrap();
    counts.sort_by_key(|(state, _, worker, _)| (*state, worker.clone()));
    assert_eq!(counts, [creating[0].clone(), creating[1].clone(), running(1)]);
}

async fn destroyed_rows_are_pruned_by_age(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    for number in 1..=4 {
        running(t, number).await;
    }
    for number in 1..=3 {
        change(&*t.store, number, destroy()).await.unwrap();
        t.clock.advance(10);
    }
    assert_eq!(t.store.prune_sandboxes(after_start(20), 1).await.unwrap(), 1, "at most as many as asked for");
    assert_eq!(t.store.prune_sandboxes(after_start(20), 10).await.unwrap(), 1);
    assert_eq!(t.store.prune_sandboxes(after_start(20), 10).await.unwrap(), 0);
    assert_eq!((row(t, 3).await.state, row(t, 4).await.state), (State::Destroyed, State::Running));
    assert_eq!(t.raw.number("SELECT count(*) FROM leases").await, 4, "generations stay");
}
