//! Leases of sandboxes, as workers see them. The rules of all leases are in `conformance/leases.rs`.

use tenure_core::Fence;
use tenure_store::{LeaseRefusal, Resource, ResourceType};
use tokio::task::JoinSet;

use super::*;

crate::on_both_stores!(
    a_worker_renews_by_its_name,
    no_other_worker_renews_or_releases,
    a_generation_only_grows,
    of_sixteen_acquirers_one_wins_also_after_the_expiry,
    a_renewal_and_a_release_by_a_change,
    leases_are_counted,
);

fn resource(number: u32) -> Resource {
    Resource::new(ResourceType::Sandbox, id(number))
}

async fn renew(t: &Fixture, number: u32, worker: &str) -> Result<ResourceLease, LeaseRefusal> {
    t.store.renew_lease(&resource(number), &worker_holder(worker), LEASE.ttl_ms).await.unwrap()
}

async fn acquire(store: &dyn Store, number: u32, worker: &str) -> Result<ResourceLease, LeaseRefusal> {
    store.acquire_leases(&[resource(number)], &worker_holder(worker), LEASE.ttl_ms).await.unwrap().remove(0)
}

async fn a_worker_renews_by_its_name(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    running(t, 1).await;
    for generation in 2..=4 {
        t.clock.advance(20_000);
        assert_eq!(renew(t, 1, "worker-a").await.unwrap().lease.generation, Fence(generation));
    }
    t.clock.advance(LEASE.ttl_ms);
    assert_eq!(renew(t, 1, "worker-a").await.unwrap_err(), LeaseRefusal::Expired);
    let lapsed = t.store.sandbox_lease(&id(1)).await.unwrap().unwrap();
    assert_eq!(lapsed.lease.generation, Fence(4), "it is shown until it is released");
    assert_eq!(acquire(&*t.store, 1, "worker-a").await.unwrap().lease.generation, Fence(5), "for the same holder");
}

async fn no_other_worker_renews_or_releases(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    running(t, 1).await;
    assert_eq!(renew(t, 1, "worker-b").await.unwrap_err(), LeaseRefusal::Stale);
    let held = acquire(&*t.store, 1, "worker-b").await.unwrap_err();
    assert!(matches!(held, LeaseRefusal::Held { .. }));
    let released = t.store.release_lease(&resource(1), &worker_holder("worker-b")).await.unwrap();
    assert_eq!(released.unwrap_err(), LeaseRefusal::Stale);
    assert_eq!(t.store.sandbox_lease(&id(1)).await.unwrap().unwrap().lease.generation, Fence(1));
}

async fn a_generation_only_grows(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    worker(t, beat("worker-b")).await;
    placed(t, new(1)).await;
    renew(t, 1, "worker-a").await.unwrap();
    change(&*t.store, 1, Change::Refuse { worker: "worker-a".into() }).await.unwrap();
    let Ok(Placed::On(_, _, lease)) = again(&*t.store, 1, NO_CAPS).await else { panic!() };
    assert_eq!(lease.lease.generation, Fence(3));
    change(&*t.store, 1, destroy()).await.unwrap();
    assert_eq!(acquire(&*t.store, 1, "worker-b").await.unwrap().lease.generation, Fence(4), "after the release");
}

async fn of_sixteen_acquirers_one_wins_also_after_the_expiry(t: &Fixture) {
    let stores = stores(t, 16).await;
    let mut last = 0;
    for _ in 0..4 {
        let mut acquirers = JoinSet::new();
        for (n, store) in stores.iter().cloned().enumerate() {
            acquirers.spawn(async move { acquire(&*store, 1, &format!("worker-{n}")).await });
        }
        let outcomes = acquirers.join_all().await;
        let won: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().ok()).collect();
        assert_eq!(won.len(), 1, "{outcomes:?}");
        assert!(won[0].lease.generation.0 > last);
        last = won[0].lease.generation.0;
        t.clock.advance(LEASE.ttl_ms);
    }
}

/// A worker renews while its sandbox is destroyed: whichever is first, the lease is released in the end.
async fn a_renewal_and_a_release_by_a_change(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    let stores = stores(t, 2).await;
    for number in 1..=10 {
        running(t, number).await;
        let (first, second) = (Arc::clone(&stores[0]), Arc::clone(&stores[1]));
        let renewal = tokio::spawn(async move {
            first.renew_lease(&resource(number), &worker_holder("worker-a"), LEASE.ttl_ms).await.unwrap()
        });
        let destroyed = tokio::spawn(async move { change(&*second, number, destroy()).await });
        if let Err(refused) = renewal.await.unwrap() {
            assert_eq!(refused, LeaseRefusal::Stale);
        }
        destroyed.await.unwrap().unwrap();
        assert_eq!(t.store.sandbox_lease(&id(number)).await.unwrap(), None);
    }
    check(t).await;
}

async fn leases_are_counted(t: &Fixture) {
    let counted = async || t.store.count_sandbox_leases().await.unwrap();
    assert_eq!(counted().await, (0, 0));
    worker(t, beat("worker-a")).await;
    for number in 1..=4 {
        running(t, number).await;
    }
    change(&*t.store, 4, destroy()).await.unwrap();
    assert_eq!(counted().await, (3, 0), "one was released");
    t.clock.advance(LEASE.ttl_ms - 1);
    renew(t, 1, "worker-a").await.unwrap();
    t.clock.advance(1);
    assert_eq!(counted().await, (1, 2));
}
