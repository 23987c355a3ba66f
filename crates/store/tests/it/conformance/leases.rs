//! Leases on shared work: one holder at a time, and a generation that only grows.

use std::sync::Arc;

use tenure_core::{Fence, LeaseToken};
use tenure_store::{Holder, Store, SystemLease};

use crate::common::{Fixture, Kind, after_start};

crate::on_both_stores!(
    one_of_two_holders_has_it,
    an_expired_lease_is_taken_by_whoever_asks,
    a_renewal_keeps_the_generation,
    a_released_lease_is_free_at_once,
    only_the_holder_of_this_generation_releases,
    of_eight_takers_one_wins,
    several_are_asked_for_at_once,
    leases_with_names_that_are_used_once_are_pruned,
    an_outage_gives_no_grace,
);

const TTL: i64 = 3_000;

fn holder(number: u128) -> Holder {
    Holder { name: format!("replica-{number}").into(), token: LeaseToken::from_u128(number) }
}

async fn take(store: &dyn Store, resource: &str, number: u128) -> Option<SystemLease> {
    store.acquire_lease(resource, &holder(number), TTL).await.unwrap()
}

/// Holder and generation.
async fn held(store: &dyn Store, resource: &str) -> Option<(String, u64)> {
    let live = store.leases().await.unwrap();
    let lease = live.into_iter().find(|lease| &*lease.resource == resource)?;
    Some((lease.lease.holder.to_string(), lease.lease.generation.0))
}

async fn one_of_two_holders_has_it(t: &Fixture) {
    let taken = take(&*t.store, "reaper", 1).await.unwrap();
    assert_eq!((taken.lease.generation, taken.acquired_at), (Fence(1), after_start(0)));
    assert_eq!(taken.lease.expires_at, after_start(TTL));
    assert_eq!(take(&*t.store, "reaper", 2).await, None);
    assert!(take(&*t.store, "timer", 2).await.is_some(), "each resource has a lease of its own");
    assert_eq!(t.store.leases().await.unwrap()[0], taken);
}

async fn an_expired_lease_is_taken_by_whoever_asks(t: &Fixture) {
    take(&*t.store, "reaper", 1).await.unwrap();
    t.clock.advance(TTL - 1);
    assert_eq!(take(&*t.store, "reaper", 2).await, None);
    t.clock.advance(1);
    assert_eq!(held(&*t.store, "reaper").await, None, "nobody has it");
    let taken = take(&*t.store, "reaper", 2).await.unwrap();
    assert_eq!((&*taken.lease.holder, taken.lease.generation), ("replica-2", Fence(2)));
    assert_eq!(taken.acquired_at, after_start(TTL));
    // The old holder finds out by asking. What expired is never extended, not even for the one who had it.
    assert_eq!(take(&*t.store, "reaper", 1).await, None);
    t.clock.advance(TTL);
    assert_eq!(take(&*t.store, "reaper", 2).await.unwrap().lease.generation, Fence(3));
}

async fn a_renewal_keeps_the_generation(t: &Fixture) {
    let taken = take(&*t.store, "reaper", 1).await.unwrap();
    for _ in 0..5 {
        t.clock.advance(TTL - 1);
        assert_eq!(take(&*t.store, "reaper", 2).await, None);
        let renewed = take(&*t.store, "reaper", 1).await.unwrap();
        assert_eq!((renewed.lease.generation, renewed.acquired_at), (Fence(1), taken.acquired_at));
    }
    let live = &t.store.leases().await.unwrap()[0];
    assert_eq!(live.lease.expires_at, after_start(5 * (TTL - 1) + TTL));
}

async fn a_released_lease_is_free_at_once(t: &Fixture) {
    let taken = take(&*t.store, "reaper", 1).await.unwrap();
    assert!(t.store.release_lease("reaper", &holder(1), taken.lease.generation).await.unwrap());
    assert_eq!(held(&*t.store, "reaper").await, None);
    let next = take(&*t.store, "reaper", 2).await.unwrap();
    assert_eq!(next.lease.generation, Fence(2), "a release does not set the generation back");
}

async fn only_the_holder_of_this_generation_releases(t: &Fixture) {
    let first = take(&*t.store, "reaper", 1).await.unwrap().lease.generation;
    assert!(!t.store.release_lease("reaper", &holder(2), first).await.unwrap(), "another holder");
    let same_name = Holder { token: LeaseToken::from_u128(9), ..holder(1) };
    assert!(!t.store.release_lease("reaper", &same_name, first).await.unwrap(), "another token");
    assert!(!t.store.release_lease("timer", &holder(1), first).await.unwrap(), "another resource");
    t.clock.advance(TTL);
    assert!(!t.store.release_lease("reaper", &holder(1), first).await.unwrap(), "it has expired");
    take(&*t.store, "reaper", 1).await.unwrap();
    assert!(!t.store.release_lease("reaper", &holder(1), first).await.unwrap(), "an older generation");
    assert_eq!(held(&*t.store, "reaper").await, Some(("replica-1".into(), 2)));
}

/// Eight ask at the same time, for a lease that never was and then for one that has expired.
async fn of_eight_takers_one_wins(t: &Fixture) {
    let stores: Vec<Arc<dyn Store>> = match t.kind {
        Kind::Sqlite => (0..8).map(|_| Arc::clone(&t.store)).collect(),
        Kind::Postgres => {
            let other = t.replica().await;
            (0..8).map(|n| Arc::clone(if n % 2 == 0 { &t.store } else { &other.store })).collect()
        }
    };
    for generation in 1..=10 {
        let takers: Vec<_> = (1..=8_u128)
            .zip(&stores)
            .map(|(number, store)| {
                let store = Arc::clone(store);
                tokio::spawn(async move { take(&*store, "reaper", number).await })
            })
            .collect();
        let mut winners = Vec::new();
        for taker in takers {
            winners.extend(taker.await.unwrap());
        }
        assert_eq!(winners.len(), 1, "{winners:?}");
        assert_eq!(winners[0].lease.generation, Fence(generation));
        assert_eq!(held(&*t.store, "reaper").await, Some((winners[0].lease.holder.to_string(), generation)));
        t.clock.advance(TTL);
    }
}

async fn several_are_asked_for_at_once(t: &Fixture) {
    let all: Vec<Arc<str>> = ["timer", "reaper", "retention"].map(Arc::from).to_vec();
    take(&*t.store, "reaper", 1).await.unwrap();
    let names = |leases: Vec<SystemLease>| leases.into_iter().map(|l| l.resource.to_string()).collect::<Vec<_>>();
    let of_second = t.store.acquire_leases(&all, &holder(2), TTL).await.unwrap();
    assert_eq!(names(of_second), ["timer", "retention"]);
    let of_first = t.store.acquire_leases(&all, &holder(1), TTL).await.unwrap();
    assert_eq!(names(of_first), ["reaper"]);
    assert!(t.store.acquire_leases(&[], &holder(1), TTL).await.unwrap().is_empty());
}

async fn leases_with_names_that_are_used_once_are_pruned(t: &Fixture) {
    take(&*t.store, "replica:a", 1).await.unwrap();
    take(&*t.store, "reaper", 1).await.unwrap();
    t.clock.advance(TTL);
    take(&*t.store, "replica:b", 2).await.unwrap();
    assert_eq!(t.store.prune_leases("replica:", after_start(TTL)).await.unwrap(), 0, "expired, not before this");
    assert_eq!(t.store.prune_leases("replica:", after_start(TTL + 1)).await.unwrap(), 1);
    assert_eq!(take(&*t.store, "reaper", 1).await.unwrap().lease.generation, Fence(2), "others keep their row");
    assert_eq!(held(&*t.store, "replica:b").await, Some(("replica-2".into(), 1)));
}

async fn an_outage_gives_no_grace(t: &Fixture) {
    take(&*t.store, "reaper", 1).await.unwrap();
    t.clock.advance_through_outage(60_000);
    assert!(take(&*t.store, "reaper", 2).await.is_some());
}
