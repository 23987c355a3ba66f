//! Workers: what their heartbeats say, and what admins want of them.

use tenure_store::{INVENTORY_ITEMS, StoreError};

use super::*;
use crate::common::after_start;

crate::on_both_stores!(
    a_heartbeat_writes_down_the_worker,
    a_late_heartbeat_of_the_same_start_is_ignored,
    a_heartbeat_keeps_what_is_known_of_a_runtime,
    rows_of_the_inventory_come_back,
    orphans_are_counted_in_a_row,
    what_an_admin_wants_survives_heartbeats,
    a_removed_worker_returns_with_its_heartbeat,
    an_inventory_that_is_too_long_is_refused,
    heartbeats_of_many_workers_at_once,
);

async fn a_heartbeat_writes_down_the_worker(t: &Fixture) {
    let mut sent = beat("worker-a");
    sent.capacity.max_sandboxes = 7;
    sent.capacity.preview_domain = Some("a.example.com".into());
    let first = t.store.worker_beat(&sent).await.unwrap();
    assert!(first.before.is_none() && !first.is_ignored && first.rows.is_empty());
    let expected = Worker {
        id: "worker-a".into(),
        hostname: "worker-a.internal".into(),
        status: "online".into(),
        providers: vec!["process".into()],
        capabilities: vec!["lease_renewal".into()],
        capacity: sent.capacity.clone(),
        boot_id: "boot".into(),
        seq: 1,
        inventory: Vec::new(),
        desired_status: None,
        drain_reason: None,
        last_heartbeat: after_start(0),
        created_at: after_start(0),
        updated_at: after_start(0),
        is_barred: false,
    };
    assert_eq!(first.worker, expected);
    assert_eq!(t.store.sandbox_worker("worker-a").await.unwrap(), Some(expected.clone()));
    t.clock.advance(10_000);
    (sent.status, sent.hostname) = (String::new(), "with\0nul".into());
    let second = t.store.worker_beat(&sent).await.unwrap();
    assert_eq!(second.before, Some(expected));
    assert_eq!((second.worker.created_at, second.worker.last_heartbeat), (after_start(0), after_start(10_000)));
    assert_eq!(second.worker.status, "online", "the default");
    worker(t, beat("worker-0")).await;
    let ids: Vec<_> = t.store.sandbox_workers().await.unwrap().into_iter().map(|worker| worker.id).collect();
    assert_eq!(ids, ["worker-0".into(), "worker-a".into()]);
    assert_eq!(t.store.sandbox_worker("worker-x").await.unwrap(), None);
}

async fn a_late_heartbeat_of_the_same_start_is_ignored(t: &Fixture) {
    let of = |boot: Option<&str>, seq, status: &str| Beat {
        boot_id: boot.map(ToOwned::to_owned),
        seq,
        status: status.into(),
        ..beat("worker-a")
    };
    worker(t, of(Some("one"), Some(5), "draining")).await;
    t.clock.advance(1_000);
    let late = t.store.worker_beat(&of(Some("one"), Some(4), "online")).await.unwrap();
    assert!(late.is_ignored);
    assert_eq!((&*late.worker.status, late.worker.last_heartbeat), ("draining", after_start(0)));
    assert_eq!(t.store.sandbox_worker("worker-a").await.unwrap(), Some(late.worker));
    assert!(!t.store.worker_beat(&of(Some("one"), Some(5), "online")).await.unwrap().is_ignored, "sent again");
    assert!(!t.store.worker_beat(&of(Some("two"), Some(1), "online")).await.unwrap().is_ignored, "started again");
    assert!(!t.store.worker_beat(&of(None, None, "online")).await.unwrap().is_ignored, "one that does not count");
}

async fn a_heartbeat_keeps_what_is_known_of_a_runtime(t: &Fixture) {
    let with = |inventory: Option<Vec<Held>>| Beat { inventory, ..beat("worker-a") };
    worker(t, with(Some(vec![held("sb-1", "rt-1")]))).await;
    t.clock.advance(10_000);
    let now = worker(t, with(Some(vec![held("sb-1", "rt-1"), held("sb-1", "rt-2")]))).await;
    let since: Vec<_> = now.inventory.iter().map(|held| (&*held.runtime_id, held.since)).collect();
    assert_eq!(since, [("rt-1", after_start(0)), ("rt-2", after_start(10_000))]);
    assert!(worker(t, with(None)).await.inventory.is_empty());
    let back = worker(t, with(Some(vec![held("sb-1", "rt-1")]))).await;
    assert_eq!(back.inventory[0].since, after_start(10_000), "it was gone");
}

async fn rows_of_the_inventory_come_back(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    let row = running(t, 1).await;
    running(t, 2).await;
    change(&*t.store, 2, destroy()).await.unwrap();
    let inventory = Some(vec![held(&id(1), "rt-1"), held(&id(2), "rt-2"), held(&id(3), "rt-3")]);
    let mut rows = t.store.worker_beat(&Beat { inventory, ..beat("worker-a") }).await.unwrap().rows;
    rows.sort_by(|one, other| one.id.cmp(&other.id));
    assert_eq!(rows[0], row);
    assert_eq!(states(&rows), [State::Running, State::Destroyed]);
}

async fn orphans_are_counted_in_a_row(t: &Fixture) {
    let sent = Beat { inventory: Some(vec![held("sb-1", "rt-1"), held("sb-2", "rt-2")]), ..beat("worker-a") };
    let beats = async || {
        let worker = t.store.sandbox_worker("worker-a").await.unwrap().unwrap();
        worker.inventory.iter().map(|held| held.orphan_beats).collect::<Vec<_>>()
    };
    worker(t, sent.clone()).await;
    t.store.count_orphans("worker-a", &["rt-1".into(), "rt-2".into()]).await.unwrap();
    worker(t, sent.clone()).await;
    assert_eq!(beats().await, [1, 1], "a heartbeat keeps them");
    t.store.count_orphans("worker-a", &["rt-2".into()]).await.unwrap();
    assert_eq!(beats().await, [0, 2]);
    t.store.count_orphans("worker-x", &["rt-2".into()]).await.unwrap();
    t.store.count_orphans("worker-a", &[]).await.unwrap();
    assert_eq!(beats().await, [0, 0]);
}

async fn what_an_admin_wants_survives_heartbeats(t: &Fixture) {
    assert_eq!(t.store.desire_worker("worker-a", "draining", None).await.unwrap(), None);
    worker(t, beat("worker-a")).await;
    let drained = t.store.desire_worker("worker-a", "draining", Some("kernel update")).await.unwrap().unwrap();
    assert_eq!(
        (drained.desired_status.as_deref(), drained.drain_reason.as_deref()),
        (Some("draining"), Some("kernel update"))
    );
    let after = worker(t, Beat { seq: Some(2), ..beat("worker-a") }).await;
    assert!(after.is_draining() && after.drain_reason == drained.drain_reason);
    let back = t.store.desire_worker("worker-a", "online", None).await.unwrap().unwrap();
    assert_eq!((back.desired_status.as_deref(), back.drain_reason), (Some("online"), None));
}

async fn a_removed_worker_returns_with_its_heartbeat(t: &Fixture) {
    assert!(!t.store.remove_worker("worker-a", false).await.unwrap());
    worker(t, beat("worker-a")).await;
    assert!(t.store.remove_worker("worker-a", true).await.unwrap());
    assert!(t.store.sandbox_worker("worker-a").await.unwrap().unwrap().is_barred);
    assert!(place(&*t.store, new(1), NO_CAPS).await.is_err());
    assert!(!worker(t, beat("worker-a")).await.is_barred);
    placed(t, new(1)).await;
    assert!(t.store.remove_worker("worker-a", false).await.unwrap());
    assert_eq!(t.store.sandbox_worker("worker-a").await.unwrap(), None);
    t.clock.advance(50);
    let back = t.store.worker_beat(&Beat { seq: Some(0), ..beat("worker-a") }).await.unwrap();
    assert!(back.before.is_none() && !back.is_ignored);
    assert_eq!(back.worker.created_at, after_start(50));
}

async fn an_inventory_that_is_too_long_is_refused(t: &Fixture) {
    let inventory = |count| Some((0..count).map(|n| held(&format!("sb-{n}"), "rt")).collect());
    let refused = t.store.worker_beat(&Beat { inventory: inventory(INVENTORY_ITEMS + 1), ..beat("worker-a") }).await;
    assert!(matches!(refused, Err(StoreError::Failed { .. })));
    assert_eq!(t.store.sandbox_worker("worker-a").await.unwrap(), None);
    let most = worker(t, Beat { inventory: inventory(INVENTORY_ITEMS), ..beat("worker-a") }).await;
    assert_eq!(most.inventory.len(), INVENTORY_ITEMS);
    let (fleet, _) = t.store.fleet("acme", None).await.unwrap();
    assert_eq!(fleet.used_on(&fleet.workers[0]).sandboxes, INVENTORY_ITEMS as u64);
}

async fn heartbeats_of_many_workers_at_once(t: &Fixture) {
    let mut beats = tokio::task::JoinSet::new();
    for (n, store) in (0_u64..).zip(stores(t, 16).await) {
        // Four each of four workers, out of order.
        beats.spawn(async move {
            let sent = Beat { seq: Some(n / 4), ..beat(&format!("worker-{}", n % 4)) };
            store.worker_beat(&sent).await.unwrap()
        });
    }
    let beaten = beats.join_all().await;
    let new = beaten.iter().filter(|beaten| beaten.before.is_none()).count();
    assert_eq!(new, 4, "each is new once");
    let seqs: Vec<_> = t.store.sandbox_workers().await.unwrap().iter().map(|worker| worker.seq).collect();
    assert_eq!(seqs, [3, 3, 3, 3], "the last one of each counts");
}
