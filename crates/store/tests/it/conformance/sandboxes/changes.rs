//! Changes of a row: judged on the row as it stands, and whole or not at all.

use tenure_core::Fence;
use tenure_core::command::Reach;
use tenure_store::{NewSandboxEvent, Resource, ResourceType};

use super::*;
use crate::common::after_start;

crate::on_both_stores!(
    a_spawn_is_confirmed_once,
    only_the_worker_of_the_row_confirms,
    a_failed_spawn_gives_back_its_lease,
    doubt_and_recovery_keep_the_lease,
    what_is_over_has_no_lease,
    a_destroyed_row_is_final_and_readable,
    an_extension_moves_the_end,
    an_unknown_row_has_no_changes,
    events_are_recorded_with_the_change_only,
    metadata_and_reasons_survive,
);

fn doubt() -> Change {
    Change::Doubt { reason: "worker_stale".into() }
}

async fn generation(t: &Fixture, number: u32) -> Option<u64> {
    t.store.sandbox_lease(&id(number)).await.unwrap().map(|lease| lease.lease.generation.0)
}

async fn a_spawn_is_confirmed_once(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    let (created, ..) = placed(t, new(1)).await;
    t.clock.advance(700);
    let found = Change::Found { worker: "worker-a".into(), runtime_id: "rt-1".into() };
    let set_up = change(&*t.store, 1, found).await.unwrap().after;
    assert_eq!((set_up.state, set_up.runtime_id.as_deref()), (State::Creating, Some("rt-1")));
    assert_eq!(set_up.changed_at, created.changed_at, "its state is the same");
    let changed = change(&*t.store, 1, confirm(&created)).await.unwrap();
    assert_eq!((changed.before, changed.after.state), (set_up, State::Running));
    assert_eq!(changed.after.changed_at, after_start(700));
    assert_eq!(row(t, 1).await, changed.after);
    assert_eq!(change(&*t.store, 1, confirm(&created)).await.unwrap_err(), Refused::State(State::Running));
    check(t).await;
}

async fn only_the_worker_of_the_row_confirms(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    placed(t, new(1)).await;
    for foreign in [
        Change::Confirm { worker: "worker-b".into(), runtime_id: "rt".into() },
        Change::Found { worker: "worker-b".into(), runtime_id: "rt".into() },
        Change::Refuse { worker: "worker-b".into() },
    ] {
        assert_eq!(change(&*t.store, 1, foreign).await.unwrap_err(), Refused::OtherWorker);
    }
    assert_eq!(row(t, 1).await.state, State::Creating);
    assert_eq!(generation(t, 1).await, Some(1));
}

async fn a_failed_spawn_gives_back_its_lease(t: &Fixture) {
    worker(t, room_for(1, "worker-a")).await;
    placed(t, new(1)).await;
    assert!(place(&*t.store, new(2), NO_CAPS).await.is_err());
    let failed = change(&*t.store, 1, Change::Fail { reason: "setup_failed".into() }).await.unwrap().after;
    assert_eq!((failed.state, failed.reason.as_deref()), (State::Error, Some("setup_failed")));
    assert_eq!(generation(t, 1).await, None);
    placed(t, new(2)).await;
    check(t).await;
}

async fn doubt_and_recovery_keep_the_lease(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    running(t, 1).await;
    let doubted = change(&*t.store, 1, doubt()).await.unwrap().after;
    assert_eq!((doubted.state, doubted.reason.as_deref()), (State::Unhealthy, Some("worker_stale")));
    assert_eq!(generation(t, 1).await, Some(1));
    let recovered = change(&*t.store, 1, Change::Recover).await.unwrap().after;
    assert_eq!((recovered.state, recovered.reason), (State::Running, None));
    change(&*t.store, 1, doubt()).await.unwrap();
    t.clock.advance(TTL);
    assert_eq!(change(&*t.store, 1, Change::Recover).await.unwrap_err(), Refused::Expired);
    check(t).await;
}

async fn what_is_over_has_no_lease(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    running(t, 1).await;
    running(t, 2).await;
    // A lease that has lapsed is released too, so that nobody takes it for live.
    t.clock.advance(LEASE.ttl_ms * 2);
    assert_eq!(change(&*t.store, 1, Change::Expire).await.unwrap().after.state, State::Expired);
    assert_eq!(change(&*t.store, 2, destroy()).await.unwrap().after.state, State::Destroyed);
    assert_eq!((generation(t, 1).await, generation(t, 2).await), (None, None));
    assert_eq!(t.raw.number("SELECT count(*) FROM leases WHERE released_at IS NOT NULL").await, 2);
    let resource = Resource::new(ResourceType::Sandbox, id(1));
    let late = t.store.renew_lease(&resource, &worker_holder("worker-a"), 1_000).await.unwrap();
    assert_eq!(late.unwrap_err(), tenure_store::LeaseRefusal::Stale, "the worker ends the runtime");
    check(t).await;
}

async fn a_destroyed_row_is_final_and_readable(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    let row = running(t, 1).await;
    let reason = Change::Destroy { reason: Some("deleted".into()) };
    let destroyed = change(&*t.store, 1, reason.clone()).await.unwrap().after;
    for late in [confirm(&row), doubt(), Change::Recover, Change::Expire, reason, Change::Extend { ttl_ms: 1 }] {
        assert_eq!(change(&*t.store, 1, late).await.unwrap_err(), Refused::State(State::Destroyed));
    }
    assert_eq!(self::row(t, 1).await, destroyed);
    assert_eq!(destroyed.reason.as_deref(), Some("deleted"));
    assert!(all(t).await.is_empty());
}

async fn an_extension_moves_the_end(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    running(t, 1).await;
    t.clock.advance(TTL - 1);
    let extended = change(&*t.store, 1, Change::Extend { ttl_ms: 5_000 }).await.unwrap().after;
    assert_eq!(extended.expires_at, after_start(TTL - 1 + 5_000));
    t.clock.advance(5_000);
    assert_eq!(change(&*t.store, 1, Change::Extend { ttl_ms: 5_000 }).await.unwrap_err(), Refused::Expired);
}

async fn an_unknown_row_has_no_changes(t: &Fixture) {
    let event = NewSandboxEvent {
        kind: "sandbox.destroyed",
        sandbox: Some(id(1)),
        tenant: None,
        owner: None,
        data: String::new(),
    };
    assert!(t.store.change_sandbox(&id(1), &destroy(), vec![event]).await.unwrap().is_none());
    assert_eq!(t.store.sandbox(&id(1), &Reach::All).await.unwrap(), None);
    assert_eq!(t.raw.number("SELECT count(*) FROM sandbox_events").await, 0);
}

async fn events_are_recorded_with_the_change_only(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    let (created, ..) = placed(t, new(1)).await;
    let event = |kind| NewSandboxEvent {
        kind,
        sandbox: Some(id(1)),
        tenant: Some("acme".into()),
        owner: Some("ann".into()),
        data: r#"{"a":1}"#.into(),
    };
    let events = vec![event("sandbox.running"), event("exec.started")];
    t.store.change_sandbox(&id(1), &confirm(&created), events.clone()).await.unwrap().unwrap().unwrap();
    t.store.change_sandbox(&id(1), &confirm(&created), events).await.unwrap().unwrap().unwrap_err();
    let recorded = t.store.sandbox_events(0, 10).await.unwrap();
    let kinds: Vec<&str> = recorded.iter().map(|event| &*event.kind).collect();
    assert_eq!(kinds, ["sandbox.running", "exec.started"], "a change that was refused records nothing");
    let first = &recorded[0];
    assert_eq!((first.sandbox.clone(), first.tenant.as_deref()), (Some(id(1)), Some("acme")));
    assert_eq!((first.owner.as_deref(), &*first.data, first.at), (Some("ann"), r#"{"a":1}"#, after_start(0)));
}

async fn metadata_and_reasons_survive(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    let mut full = spec();
    full.env.insert("A".into(), "b\0c \u{1f600}".into());
    full.secrets.push(tenure_core::sandbox::Secret { name: "token".into(), inject_at: "/run/token".into() });
    full.metadata.insert("k".into(), "v".into());
    let sent = NewSandbox { spec: Arc::new(full.clone()), ..new(1) };
    placed(t, sent).await;
    assert_eq!(*row(t, 1).await.spec, full);
    let renewed =
        t.store.renew_lease(&Resource::new(ResourceType::Sandbox, id(1)), &worker_holder("worker-a"), 9).await;
    assert_eq!(renewed.unwrap().unwrap().lease.generation, Fence(2));
}
