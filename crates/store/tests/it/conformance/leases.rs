//! Leases on resources other than tasks: one holder at a time, and a generation that only grows.

use std::sync::Arc;

use tenure_core::{Fence, LeaseToken};
use tenure_store::{Holder, LeaseRefusal, Resource, ResourceLease, ResourceType, Store};

use crate::common::{Fixture, Kind, after_start};

crate::on_both_stores!(
    one_of_two_holders_has_it,
    an_expired_lease_is_taken_by_whoever_asks,
    a_renewed_duty_keeps_its_generation,
    a_renewed_sandbox_has_the_next_generation,
    a_refused_renewal_says_why,
    a_released_lease_is_free_at_once_and_leaves_a_tombstone,
    only_the_holder_releases,
    of_sixteen_takers_one_wins,
    a_renewal_and_a_takeover_never_both_succeed,
    several_are_asked_for_at_once,
    replicas_that_are_gone_are_pruned,
    an_outage_gives_no_grace,
);

const TTL: i64 = 3_000;

fn holder(number: u128) -> Holder {
    Holder { name: format!("replica-{number}").into(), token: LeaseToken::from_u128(number) }
}

fn duty(id: &str) -> Resource {
    Resource::new(ResourceType::System, id)
}

fn sandbox() -> Resource {
    Resource::new(ResourceType::Sandbox, "sb-1")
}

async fn acquire(store: &dyn Store, resource: &Resource, number: u128) -> Result<ResourceLease, LeaseRefusal> {
    let resources = std::slice::from_ref(resource);
    store.acquire_leases(resources, &holder(number), TTL).await.unwrap().remove(0)
}

async fn take(store: &dyn Store, resource: &str, number: u128) -> Option<ResourceLease> {
    acquire(store, &duty(resource), number).await.ok()
}

async fn renew(store: &dyn Store, resource: &Resource, number: u128) -> Result<ResourceLease, LeaseRefusal> {
    store.renew_lease(resource, &holder(number), TTL).await.unwrap()
}

async fn release(store: &dyn Store, resource: &Resource, number: u128) -> Result<(), LeaseRefusal> {
    store.release_lease(resource, &holder(number)).await.unwrap()
}

/// Holder and generation.
async fn held(store: &dyn Store, resource: &Resource) -> Option<(String, u64)> {
    let live = store.leases(resource.kind).await.unwrap();
    let lease = live.into_iter().find(|lease| lease.resource == *resource)?;
    Some((lease.lease.holder.to_string(), lease.lease.generation.0))
}

async fn one_of_two_holders_has_it(t: &Fixture) {
    let taken = take(&*t.store, "reaper", 1).await.unwrap();
    assert_eq!((taken.lease.generation, taken.acquired_at), (Fence(1), after_start(0)));
    assert_eq!((taken.renewed_at, taken.released_at), (after_start(0), None));
    assert_eq!(taken.lease.expires_at, after_start(TTL));
    let refused = acquire(&*t.store, &duty("reaper"), 2).await;
    assert_eq!(refused, Err(LeaseRefusal::Held { holder: "replica-1".into(), until: after_start(TTL) }));
    assert!(take(&*t.store, "timer", 2).await.is_some(), "each resource has a lease of its own");
    let same_id = Resource::new(ResourceType::Sandbox, "reaper");
    assert!(acquire(&*t.store, &same_id, 2).await.is_ok(), "and so has each type");
    assert_eq!(t.store.leases(ResourceType::System).await.unwrap()[0], taken);
}

async fn an_expired_lease_is_taken_by_whoever_asks(t: &Fixture) {
    take(&*t.store, "reaper", 1).await.unwrap();
    t.clock.advance(TTL - 1);
    assert_eq!(take(&*t.store, "reaper", 2).await, None);
    t.clock.advance(1);
    assert_eq!(held(&*t.store, &duty("reaper")).await, None, "nobody has it");
    let taken = take(&*t.store, "reaper", 2).await.unwrap();
    assert_eq!((&*taken.lease.holder, taken.lease.generation), ("replica-2", Fence(2)));
    assert_eq!(taken.acquired_at, after_start(TTL));
    // The old holder finds out by asking. What expired is never extended, not even for the one who had it.
    assert_eq!(take(&*t.store, "reaper", 1).await, None);
    t.clock.advance(TTL);
    assert_eq!(take(&*t.store, "reaper", 2).await.unwrap().lease.generation, Fence(3));
}

async fn a_renewed_duty_keeps_its_generation(t: &Fixture) {
    let taken = take(&*t.store, "reaper", 1).await.unwrap();
    for round in 1..=6 {
        t.clock.advance(TTL - 1);
        assert_eq!(take(&*t.store, "reaper", 2).await, None);
        // To acquire what one has is to renew it.
        let renewed = match round % 2 {
            0 => renew(&*t.store, &duty("reaper"), 1).await.unwrap(),
            _ => take(&*t.store, "reaper", 1).await.unwrap(),
        };
        assert_eq!((renewed.lease.generation, renewed.acquired_at), (Fence(1), taken.acquired_at));
        assert_eq!(renewed.renewed_at, after_start(round * (TTL - 1)));
    }
    let live = &t.store.leases(ResourceType::System).await.unwrap()[0];
    assert_eq!(live.lease.expires_at, after_start(6 * (TTL - 1) + TTL));
}

async fn a_renewed_sandbox_has_the_next_generation(t: &Fixture) {
    let taken = acquire(&*t.store, &sandbox(), 1).await.unwrap();
    assert_eq!(taken.lease.generation, Fence(1));
    t.clock.advance(1_000);
    let renewed = renew(&*t.store, &sandbox(), 1).await.unwrap();
    assert_eq!((renewed.lease.generation, renewed.lease.expires_at), (Fence(2), after_start(1_000 + TTL)));
    assert_eq!((renewed.acquired_at, renewed.renewed_at), (after_start(0), after_start(1_000)));
    let again = acquire(&*t.store, &sandbox(), 1).await.unwrap();
    assert_eq!(again.lease.generation, Fence(3), "so has one that its holder acquires again");
}

async fn a_refused_renewal_says_why(t: &Fixture) {
    assert_eq!(renew(&*t.store, &sandbox(), 1).await, Err(LeaseRefusal::Stale), "there is none");
    acquire(&*t.store, &sandbox(), 1).await.unwrap();
    assert_eq!(renew(&*t.store, &sandbox(), 2).await, Err(LeaseRefusal::Stale), "another holder");
    t.clock.advance(TTL);
    assert_eq!(renew(&*t.store, &sandbox(), 1).await, Err(LeaseRefusal::Expired), "too late");
    acquire(&*t.store, &sandbox(), 1).await.unwrap();
    release(&*t.store, &sandbox(), 1).await.unwrap();
    assert_eq!(renew(&*t.store, &sandbox(), 1).await, Err(LeaseRefusal::Stale), "released");
}

async fn a_released_lease_is_free_at_once_and_leaves_a_tombstone(t: &Fixture) {
    take(&*t.store, "reaper", 1).await.unwrap();
    release(&*t.store, &duty("reaper"), 1).await.unwrap();
    assert_eq!(held(&*t.store, &duty("reaper")).await, None);
    assert_eq!(t.raw.number("SELECT count(*) FROM leases WHERE released_at IS NOT NULL").await, 1);
    let next = take(&*t.store, "reaper", 2).await.unwrap();
    assert_eq!(next.lease.generation, Fence(2), "a release does not set the generation back");
    assert_eq!(next.released_at, None);
    release(&*t.store, &duty("reaper"), 2).await.unwrap();
    assert_eq!(take(&*t.store, "reaper", 2).await.unwrap().lease.generation, Fence(3), "nor does the same holder");
}

async fn only_the_holder_releases(t: &Fixture) {
    let reaper = duty("reaper");
    take(&*t.store, "reaper", 1).await.unwrap();
    assert_eq!(release(&*t.store, &reaper, 2).await, Err(LeaseRefusal::Stale), "another holder");
    let same_name = Holder { token: LeaseToken::from_u128(9), ..holder(1) };
    assert_eq!(t.store.release_lease(&reaper, &same_name).await.unwrap(), Err(LeaseRefusal::Stale), "another token");
    assert_eq!(release(&*t.store, &duty("timer"), 1).await, Err(LeaseRefusal::Stale), "another resource");
    assert_eq!(held(&*t.store, &reaper).await, Some(("replica-1".into(), 1)));
    t.clock.advance(TTL);
    assert_eq!(release(&*t.store, &reaper, 1).await, Ok(()), "expired or not");
    assert_eq!(release(&*t.store, &reaper, 1).await, Err(LeaseRefusal::Stale), "released already");
}

/// As many handles on the store as contenders; on Postgres of two control planes.
async fn stores(t: &Fixture, count: usize) -> Vec<Arc<dyn Store>> {
    match t.kind {
        Kind::Sqlite => (0..count).map(|_| Arc::clone(&t.store)).collect(),
        Kind::Postgres => {
            let other = t.replica().await;
            (0..count).map(|n| Arc::clone(if n % 2 == 0 { &t.store } else { &other.store })).collect()
        }
    }
}

/// Sixteen ask at the same time, for a lease that never was and then for one that has expired.
async fn of_sixteen_takers_one_wins(t: &Fixture) {
    let stores = stores(t, 16).await;
    for generation in 1..=10 {
        let takers: Vec<_> = (1..=16_u128)
            .zip(&stores)
            .map(|(number, store)| {
                let store = Arc::clone(store);
                tokio::spawn(async move { acquire(&*store, &duty("reaper"), number).await })
            })
            .collect();
        let (mut winners, mut refused) = (Vec::new(), 0);
        for taker in takers {
            match taker.await.unwrap() {
                Ok(won) => winners.push(won),
                Err(LeaseRefusal::Held { .. }) => refused += 1,
                Err(other) => panic!("{other}"),
            }
        }
        assert_eq!((winners.len(), refused), (1, 15), "{winners:?}");
        assert_eq!(winners[0].lease.generation, Fence(generation));
        let holder = winners[0].lease.holder.to_string();
        assert_eq!(held(&*t.store, &duty("reaper")).await, Some((holder, generation)));
        t.clock.advance(TTL);
    }
}

/// At the moment of the expiry the holder renews and another takes over.
async fn a_renewal_and_a_takeover_never_both_succeed(t: &Fixture) {
    let stores = stores(t, 2).await;
    acquire(&*t.store, &sandbox(), 1).await.unwrap();
    for round in 0..10 {
        let before = held(&*t.store, &sandbox()).await.map_or(0, |(_, generation)| generation);
        t.clock.advance(TTL - round % 2);
        let (first, second) = (Arc::clone(&stores[0]), Arc::clone(&stores[1]));
        let renewal = tokio::spawn(async move { renew(&*first, &sandbox(), 1).await });
        let takeover = tokio::spawn(async move { acquire(&*second, &sandbox(), 2).await });
        let (renewal, takeover) = (renewal.await.unwrap(), takeover.await.unwrap());
        assert_ne!(renewal.is_ok(), takeover.is_ok(), "{renewal:?} {takeover:?}");
        let won = renewal.or(takeover).unwrap();
        assert!(won.lease.generation.0 > before);
        release(&*t.store, &sandbox(), 1).await.or(release(&*t.store, &sandbox(), 2).await).unwrap();
        acquire(&*t.store, &sandbox(), 1).await.unwrap();
    }
}

async fn several_are_asked_for_at_once(t: &Fixture) {
    let all = ["timer", "reaper", "retention"].map(duty);
    take(&*t.store, "reaper", 1).await.unwrap();
    let of_second = t.store.acquire_leases(&all, &holder(2), TTL).await.unwrap();
    assert_eq!(of_second.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true], "in their order");
    let of_first = t.store.acquire_leases(&all, &holder(1), TTL).await.unwrap();
    assert_eq!(of_first.iter().map(Result::is_ok).collect::<Vec<_>>(), [false, true, false]);
    assert!(t.store.acquire_leases(&[], &holder(1), TTL).await.unwrap().is_empty());
}

async fn replicas_that_are_gone_are_pruned(t: &Fixture) {
    let replica = |id: &str| Resource::new(ResourceType::Replica, id);
    acquire(&*t.store, &replica("a"), 1).await.unwrap();
    take(&*t.store, "reaper", 1).await.unwrap();
    t.clock.advance(TTL);
    acquire(&*t.store, &replica("b"), 2).await.unwrap();
    assert_eq!(t.store.prune_replicas(after_start(TTL)).await.unwrap(), 0, "expired, not before this");
    assert_eq!(t.store.prune_replicas(after_start(TTL + 1)).await.unwrap(), 1);
    assert_eq!(take(&*t.store, "reaper", 1).await.unwrap().lease.generation, Fence(2), "others keep their row");
    assert_eq!(held(&*t.store, &replica("b")).await, Some(("replica-2".into(), 1)));
}

async fn an_outage_gives_no_grace(t: &Fixture) {
    take(&*t.store, "reaper", 1).await.unwrap();
    t.clock.advance_through_outage(60_000);
    assert!(take(&*t.store, "reaper", 2).await.is_some());
}
