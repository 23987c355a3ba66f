//! Spawns that wait for room.

use tenure_core::sandbox::State;
use tenure_core::sandbox::placement::Capacity;
use tenure_core::sandbox::template::Request;
use tenure_core::time::Timestamp;
use tenure_engine::sandboxes::{ErrorClass, Overflow, SandboxSettings};
use tenure_engine::store::QuotaRow;
use tenure_testkit::wait_until;

use super::{Plane, caller, caller_of, plane, settings, start};
use crate::harness::{Home, SOON};

fn queueing(max_sandboxes: u64) -> SandboxSettings {
    let mut settings = settings();
    settings.max_sandboxes = max_sandboxes;
    settings.spawn_overflow = Overflow::Queue;
    settings.spawn_queue_timeout_ms = 60_000;
    settings
}

async fn wait_for_queue(plane: &Plane, depth: usize) {
    wait_until("the queue to have its length", SOON, async || {
        plane.engine.store().queued_spawns().await.unwrap().len() == depth
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_queue_the_cap_refuses() {
    let home = Home::sqlite();
    let mut settings = settings();
    settings.max_sandboxes = 1;
    let plane = plane(&home, &["w1"], settings).await;
    plane.running().await;
    let error = plane.create().await.unwrap_err();
    assert_eq!((error.class, &*error.reason), (ErrorClass::ResourceLimit, "max_sandboxes"));
    let decision = plane.sandboxes.admission(&Request::default(), &caller()).await.unwrap();
    assert_eq!((decision.allowed, decision.queueable, decision.reason), (false, false, Some("max_sandboxes")));
    assert_eq!((decision.active_sandboxes, decision.max_sandboxes), (1, 1));
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_spawns_go_in_order_as_others_are_destroyed() {
    let home = Home::sqlite();
    let plane = plane(&home, &["w1"], queueing(1)).await;
    let mut held = plane.running().await;
    let mut waiting = Vec::new();
    for n in 1..=3 {
        waiting.push(plane.creating());
        wait_for_queue(&plane, n).await;
    }
    let queue: Vec<_> =
        plane.engine.store().queued_spawns().await.unwrap().into_iter().map(|queued| queued.sandbox).collect();
    for (expected, creating) in queue.into_iter().zip(waiting) {
        assert!(plane.row(&expected).await.worker.is_none(), "it reserves nothing");
        plane.sandboxes.destroy(&held.id, &caller()).await.unwrap();
        held = creating.await.unwrap().unwrap().row;
        assert_eq!(held.id, expected);
    }
    assert_eq!(plane.farm.runtimes().len(), 1);
    let events = plane.events().await;
    assert_eq!(events.iter().filter(|event| *event == "spawn.queued").count(), 3);
    assert_eq!(events.iter().filter(|event| *event == "spawn.dequeued").count(), 3);
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spawn_that_waits_too_long_is_refused() {
    let home = Home::sqlite();
    let mut settings = queueing(1);
    settings.max_spawn_queue = 1;
    let plane = plane(&home, &["w1"], settings).await;
    plane.running().await;
    let waiting = plane.creating();
    wait_for_queue(&plane, 1).await;
    let error = plane.create().await.unwrap_err();
    assert_eq!((error.class, &*error.reason), (ErrorClass::ResourceLimit, "spawn_queue_full"));
    plane.pass(60_001, &["w1"]).await;
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!((error.class, &*error.reason), (ErrorClass::ResourceLimit, "spawn_queue_timeout"));
    wait_for_queue(&plane, 0).await;
    assert!(plane.events().await.contains(&"spawn.queue_timeout".to_owned()));
    assert_eq!(plane.farm.made(), 1);
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_worker_and_a_larger_one_bring_room() {
    let home = Home::sqlite();
    let plane = plane(&home, &[], queueing(0)).await;
    let one = |url: &str| Capacity { max_sandboxes: 1, rpc_url: Some(url.to_owned()), ..Capacity::default() };
    plane.farm.with("w1", |node| node.capacity = one("http://w1"));
    plane.farm.beat("w1").await;
    plane.running().await;
    let (first, second) = (plane.creating(), plane.creating());
    wait_for_queue(&plane, 2).await;
    plane.farm.with("w2", |node| node.capacity = one("http://w2"));
    plane.farm.beat("w2").await;
    wait_for_queue(&plane, 1).await;
    plane.farm.with("w2", |node| node.capacity.max_sandboxes = 2);
    plane.farm.beat("w2").await;
    for creating in [first, second] {
        assert_eq!(creating.await.unwrap().unwrap().row.worker.as_deref(), Some("w2"));
    }
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_that_grows_brings_room() {
    let home = Home::sqlite();
    let mut settings = queueing(0);
    settings.max_sandboxes_per_owner = 1;
    let plane = plane(&home, &["w1"], settings).await;
    let ann = caller_of("default", Some("ann"));
    plane.sandboxes.create(&Request::default(), &ann, None, true).await.unwrap();
    let waiting = plane.creating_for(ann.clone());
    wait_for_queue(&plane, 1).await;
    // Another owner does not wait behind it.
    let bob = caller_of("default", Some("bob"));
    let created = plane.sandboxes.create(&Request::default(), &bob, None, true).await.unwrap();
    assert_eq!(created.row.state, State::Running);
    let quota = QuotaRow {
        tenant: "default".into(),
        owner: "ann".into(),
        max_sandboxes: 2,
        max_ttl_ms: 0,
        max_exec_timeout_ms: 0,
        created_at: Timestamp::MIN,
        updated_at: Timestamp::MIN,
    };
    plane.sandboxes.put_quota(&quota).await.unwrap();
    let row = tokio::time::timeout(SOON, waiting).await.unwrap().unwrap().unwrap().row;
    assert_eq!(row.owner.as_deref(), Some("ann"));
    let usage = plane.sandboxes.owner_usage("default", "ann").await.unwrap();
    assert_eq!((usage.active_sandboxes, usage.max_sandboxes, usage.is_configured), (2, 2, true));
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_survives_a_restart() {
    let home = Home::sqlite();
    let first = plane(&home, &["w1"], queueing(1)).await;
    let held = first.running().await;
    let created = first.sandboxes.create(&Request::default(), &caller(), None, false).await.unwrap();
    assert_eq!((created.row.state, created.row.worker), (State::Creating, None));
    let farm = std::sync::Arc::clone(&first.farm);
    first.stop().await;
    let second = start(&home, &farm, queueing(1)).await;
    assert!(second.row(&created.row.id).await.is_queued());
    second.sandboxes.destroy(&held.id, &caller()).await.unwrap();
    second.wait_for_state(&created.row.id, State::Running).await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spawn_that_waits_can_be_deleted() {
    let home = Home::sqlite();
    let plane = plane(&home, &["w1"], queueing(1)).await;
    let held = plane.running().await;
    let waiting = plane.creating();
    wait_for_queue(&plane, 1).await;
    let id = plane.engine.store().queued_spawns().await.unwrap()[0].sandbox.clone();
    plane.sandboxes.destroy(&id, &caller()).await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap_err().class, ErrorClass::Conflict);
    wait_for_queue(&plane, 0).await;
    plane.sandboxes.destroy(&held.id, &caller()).await.unwrap();
    assert_eq!(plane.farm.made(), 1);
    plane.stop().await;
}
