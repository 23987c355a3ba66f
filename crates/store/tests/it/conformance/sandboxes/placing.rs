//! Where a new sandbox goes: the row, its lease and what is refused.

use std::sync::Arc;

use tenure_core::Fence;
use tenure_core::command::Reach;
use tenure_core::sandbox::placement::{Caps, NoPlace, Rules};
use tenure_core::sandbox::{Spec, State};
use tenure_store::{KEY_KEPT_MS, NewSandbox, NotPlaced, Placed, ResourceType, SPEC_BYTES, StoreError};

use super::*;
use crate::common::after_start;

crate::on_both_stores!(
    a_sandbox_has_a_row_and_the_lease_of_its_worker,
    a_worker_that_does_not_renew_has_a_lease_for_as_long_as_the_sandbox,
    without_a_worker_there_is_no_row,
    a_worker_is_filled_up_to_its_capacity,
    runtimes_without_rows_take_room,
    caps_count_rows_of_the_owner_and_the_tenant,
    warm_sandboxes_count_in_total_only,
    a_key_makes_one_sandbox,
    a_key_is_that_of_an_owner,
    a_key_is_forgotten_after_a_day,
    an_id_is_never_used_twice,
    a_create_that_is_sent_again_finds_its_row,
    a_row_that_was_refused_goes_to_another_worker,
    only_rows_that_wait_are_placed_again,
    the_fleet_shows_what_a_placement_would_see,
    a_spec_that_is_too_large_is_refused,
);

async fn a_sandbox_has_a_row_and_the_lease_of_its_worker(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    t.clock.advance(1_000);
    let (row, on, lease) = placed(t, new(1)).await;
    assert_eq!((row.state, row.worker.as_deref(), &*on.id), (State::Creating, Some("worker-a"), "worker-a"));
    assert_eq!((row.created_at, row.changed_at), (after_start(1_000), after_start(1_000)));
    assert_eq!((row.expires_at, row.spawn_deadline), (after_start(1_000 + TTL), after_start(1_000 + SPAWN)));
    assert_eq!((&*row.tenant, row.owner.as_deref(), &*row.request_id), ("acme", Some("ann"), "req-1"));
    assert_eq!(*row.spec, spec());
    assert_eq!((lease.resource.kind, &*lease.resource.id), (ResourceType::Sandbox, &*row.id));
    assert_eq!((lease.lease.generation, &*lease.lease.holder), (Fence(1), "worker-a"));
    assert_eq!(lease.lease.expires_at, after_start(1_000 + LEASE.ttl_ms));
    assert_eq!(t.store.sandbox(&row.id, &Reach::All).await.unwrap(), Some(row.clone()));
    assert_eq!(t.store.sandbox_lease(&row.id).await.unwrap(), Some(lease));
    let elsewhere = [Reach::Tenant("other".into()), Reach::Owner { tenant: "acme".into(), owner: "bob".into() }];
    for reach in elsewhere {
        assert_eq!(t.store.sandbox(&row.id, &reach).await.unwrap(), None, "{reach:?}");
    }
    check(t).await;
}

async fn a_worker_that_does_not_renew_has_a_lease_for_as_long_as_the_sandbox(t: &Fixture) {
    let mut plain = beat("worker-a");
    plain.capabilities.clear();
    worker(t, plain).await;
    let (_, _, lease) = placed(t, new(1)).await;
    assert_eq!(lease.lease.expires_at, after_start(TTL + LEASE.without_renewal_ms));
}

async fn without_a_worker_there_is_no_row(t: &Fixture) {
    let refused = |why| Err(NotPlaced::NoPlace(NoPlace::WorkerUnavailable { why }));
    let outcome = async |new| place(&*t.store, new, NO_CAPS).await.map(drop);
    assert_eq!(outcome(queued(1)).await, refused("no_workers"), "waiting would not help");
    worker(t, beat("worker-a")).await;
    let spec = Arc::new(Spec { provider: "docker".into(), ..spec() });
    assert_eq!(outcome(NewSandbox { spec, ..new(1) }).await, refused("provider"));
    t.clock.advance(Rules::default().freshness_ms + 1);
    assert_eq!(outcome(new(1)).await, refused("stale"));
    worker(t, beat("worker-a")).await;
    t.store.desire_worker("worker-a", "draining", Some("update")).await.unwrap().unwrap();
    assert_eq!(outcome(new(1)).await, refused("draining"));
    assert_eq!(t.raw.number("SELECT (SELECT count(*) FROM sandboxes) + (SELECT count(*) FROM leases)").await, 0);
    t.store.desire_worker("worker-a", "online", None).await.unwrap().unwrap();
    assert_eq!(outcome(new(1)).await, Ok(()));
}

async fn a_worker_is_filled_up_to_its_capacity(t: &Fixture) {
    let mut small = beat("worker-a");
    (small.capacity.memory_mb, small.capacity.vcpus) = (1_500, 8);
    worker(t, small).await;
    worker(t, room_for(1, "worker-b")).await;
    let mut places = Vec::new();
    for number in 1..=4 {
        places.push(match place(&*t.store, new(number), NO_CAPS).await {
            Ok(Placed::On(row, ..)) => row.worker.unwrap().to_string(),
            Err(refused) => format!("{refused:?}"),
            other => panic!("{other:?}"),
        });
    }
    places[..3].sort_unstable();
    assert_eq!(places[..3], ["worker-a", "worker-a", "worker-b"], "512 MB each, of 1500");
    assert!(places[3].contains("capacity"), "{places:?}");
    change(&*t.store, 1, destroy()).await.unwrap();
    placed(t, new(5)).await;
    check(t).await;
}

async fn runtimes_without_rows_take_room(t: &Fixture) {
    let mut full = room_for(3, "worker-a");
    full.inventory = Some(vec![held("sb-gone", "rt-1")]);
    worker(t, full.clone()).await;
    placed(t, new(1)).await;
    // A runtime whose row takes room already does not take it twice.
    full.inventory = Some(vec![held("sb-gone", "rt-1"), held(&id(1), "rt-2")]);
    full.seq = Some(2);
    worker(t, full.clone()).await;
    placed(t, new(2)).await;
    assert!(place(&*t.store, new(3), NO_CAPS).await.is_err());
    (full.inventory, full.seq) = (Some(vec![held(&id(1), "rt-2")]), Some(3));
    worker(t, full).await;
    placed(t, new(3)).await;
}

async fn caps_count_rows_of_the_owner_and_the_tenant(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    let caps = Caps { total: 4, per_owner: 1, per_tenant: 3 };
    let of = |number, tenant: &str, owner: &str| NewSandbox {
        tenant: tenant.into(),
        owner: Some(owner.into()),
        ..new(number)
    };
    let outcome = async |new| match place(&*t.store, new, caps).await {
        Ok(_) => "placed",
        Err(NotPlaced::NoPlace(no_place)) => no_place.reason(),
        Err(other) => panic!("{other:?}"),
    };
    assert_eq!(outcome(of(1, "acme", "ann")).await, "placed");
    assert_eq!(outcome(of(2, "acme", "ann")).await, "max_sandboxes_per_owner");
    assert_eq!(outcome(of(3, "other", "ann")).await, "placed", "an owner of another tenant");
    assert_eq!(outcome(of(4, "acme", "bob")).await, "placed");
    assert_eq!(outcome(NewSandbox { owner: None, ..new(5) }).await, "placed", "nobody has no cap of an owner");
    assert_eq!(outcome(of(6, "third", "ann")).await, "max_sandboxes");
    change(&*t.store, 3, destroy()).await.unwrap();
    assert_eq!(outcome(of(7, "acme", "cid")).await, "max_sandboxes_per_tenant");
    assert_eq!(outcome(of(8, "third", "ann")).await, "placed");
    let counts = t.store.count_active("acme", Some("ann")).await.unwrap();
    assert_eq!((counts.total, counts.tenant, counts.owner), (4, 3, 1));
    let counts = t.store.count_active("acme", None).await.unwrap();
    assert_eq!((counts.total, counts.tenant, counts.owner), (4, 3, 0));
}

async fn warm_sandboxes_count_in_total_only(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    let warm = NewSandbox { pool: Some("py".into()), owner: None, ..new(1) };
    place(&*t.store, warm, NO_CAPS).await.unwrap();
    let counts = t.store.count_active("acme", None).await.unwrap();
    assert_eq!((counts.total, counts.tenant, counts.owner), (1, 0, 0));
}

fn with_key(number: u32, digest: u8) -> NewSandbox {
    NewSandbox { key: Some(("once".into(), [digest; 32])), ..new(number) }
}

async fn a_key_makes_one_sandbox(t: &Fixture) {
    worker(t, room_for(1, "worker-a")).await;
    let (first, ..) = placed(t, with_key(1, 7)).await;
    let known = async |new| match place(&*t.store, new, NO_CAPS).await.unwrap() {
        Placed::Known(row) => *row,
        other => panic!("{other:?}"),
    };
    assert_eq!(known(with_key(2, 7)).await, first, "also without room");
    assert_eq!(place(&*t.store, with_key(3, 8), NO_CAPS).await.unwrap_err(), NotPlaced::KeyTaken);
    change(&*t.store, 1, destroy()).await.unwrap();
    assert_eq!(known(with_key(4, 7)).await.state, State::Destroyed, "as it stands");
    assert_eq!(t.raw.number("SELECT count(*) FROM sandboxes").await, 1);
}

async fn a_key_is_that_of_an_owner(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    placed(t, with_key(1, 7)).await;
    placed(t, NewSandbox { owner: Some("bob".into()), ..with_key(2, 8) }).await;
    placed(t, NewSandbox { owner: None, ..with_key(3, 8) }).await;
    placed(t, NewSandbox { tenant: "other".into(), ..with_key(4, 8) }).await;
}

async fn a_key_is_forgotten_after_a_day(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    placed(t, with_key(1, 7)).await;
    t.clock.advance(KEY_KEPT_MS - 1);
    worker(t, beat("worker-a")).await;
    assert!(matches!(place(&*t.store, with_key(2, 7), NO_CAPS).await, Ok(Placed::Known(_))));
    assert_eq!(t.store.prune_sandboxes(after_start(0), 10).await.unwrap(), 0);
    assert_eq!(t.raw.number("SELECT count(*) FROM sandbox_keys").await, 1);
    t.clock.advance(1);
    placed(t, with_key(3, 9)).await;
    assert_eq!(place(&*t.store, with_key(4, 7), NO_CAPS).await.unwrap_err(), NotPlaced::KeyTaken, "it is a new one");
    t.clock.advance(KEY_KEPT_MS + 1);
    t.store.prune_sandboxes(after_start(0), 10).await.unwrap();
    assert_eq!(t.raw.number("SELECT count(*) FROM sandbox_keys").await, 0);
}

async fn an_id_is_never_used_twice(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    running(t, 1).await;
    let other = || NewSandbox { request_id: "req-other".into(), ..new(1) };
    assert_eq!(place(&*t.store, other(), NO_CAPS).await.unwrap_err(), NotPlaced::IdTaken);
    change(&*t.store, 1, destroy()).await.unwrap();
    assert_eq!(place(&*t.store, other(), NO_CAPS).await.unwrap_err(), NotPlaced::IdTaken);
    t.clock.advance(1);
    assert_eq!(t.store.prune_sandboxes(after_start(1), 10).await.unwrap(), 1);
    assert_eq!(t.raw.number("SELECT count(*) FROM sandboxes").await, 0);
    assert_eq!(place(&*t.store, other(), NO_CAPS).await.unwrap_err(), NotPlaced::IdTaken, "its lease is left");
    assert_eq!(place(&*t.store, new(1), NO_CAPS).await.unwrap_err(), NotPlaced::IdTaken);
}

async fn a_create_that_is_sent_again_finds_its_row(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    let (first, ..) = placed(t, new(1)).await;
    match place(&*t.store, new(1), NO_CAPS).await {
        Ok(Placed::Known(row)) => assert_eq!(*row, first),
        other => panic!("{other:?}"),
    }
}

async fn a_row_that_was_refused_goes_to_another_worker(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    worker(t, beat("worker-b")).await;
    let (row, ..) = placed(t, new(1)).await;
    assert_eq!(row.worker.as_deref(), Some("worker-a"), "of equals the first");
    let refused = change(&*t.store, 1, Change::Refuse { worker: "worker-a".into() }).await.unwrap().after;
    assert!(refused.is_queued() && refused.refused_by == ["worker-a".into()]);
    assert_eq!(t.store.sandbox_lease(&id(1)).await.unwrap(), None);
    t.clock.advance(1_000);
    let Ok(Placed::On(next, _, lease)) = again(&*t.store, 1, NO_CAPS).await else { panic!() };
    assert_eq!(next.worker.as_deref(), Some("worker-b"));
    assert_eq!((&*lease.lease.holder, lease.lease.generation), ("worker-b", Fence(2)), "a higher generation");
    assert_eq!((next.expires_at, next.spawn_deadline), (row.expires_at, row.spawn_deadline), "its time runs on");
    assert_eq!(self::row(t, 1).await, *next);
    check(t).await;
    change(&*t.store, 1, Change::Refuse { worker: "worker-b".into() }).await.unwrap();
    let none = NotPlaced::NoPlace(NoPlace::WorkerUnavailable { why: "refused" });
    assert_eq!(again(&*t.store, 1, NO_CAPS).await.unwrap_err(), none);
}

async fn only_rows_that_wait_are_placed_again(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    assert_eq!(again(&*t.store, 1, NO_CAPS).await.unwrap_err(), NotPlaced::Gone);
    let row = running(t, 1).await;
    match again(&*t.store, 1, NO_CAPS).await {
        Ok(Placed::Known(known)) => assert_eq!(*known, row),
        other => panic!("{other:?}"),
    }
    assert_eq!(t.store.sandbox_lease(&id(1)).await.unwrap().unwrap().lease.generation, Fence(1), "nothing changed");
}

async fn the_fleet_shows_what_a_placement_would_see(t: &Fixture) {
    let mut one = room_for(3, "worker-a");
    one.inventory = Some(vec![held("sb-gone", "rt-1"), held(&id(1), "rt-2")]);
    worker(t, one).await;
    placed(t, new(1)).await;
    t.clock.advance(5);
    let (fleet, now) = t.store.fleet("acme", Some("ann")).await.unwrap();
    assert_eq!(now, after_start(5));
    assert_eq!((fleet.counts.total, fleet.counts.tenant, fleet.counts.owner), (1, 1, 1));
    let used = fleet.used_on(&fleet.workers[0]);
    assert_eq!((used.sandboxes, used.memory_mb, used.vcpus), (2, 512, 1), "one row and one runtime without a row");
}

async fn a_spec_that_is_too_large_is_refused(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    let large = Arc::new(Spec { setup: vec!["x".repeat(SPEC_BYTES)], ..spec() });
    let refused = t.store.place_sandbox(NewSandbox { spec: large, ..new(1) }, NO_CAPS, &Rules::default()).await;
    assert!(matches!(refused, Err(StoreError::Failed { .. })), "{refused:?}");
    assert_eq!(t.raw.number("SELECT count(*) FROM sandboxes").await, 0);
}
