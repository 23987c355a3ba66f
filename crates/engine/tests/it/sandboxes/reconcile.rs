//! Rows compared with their workers; what is over; orphans.

use tenure_core::command::Reach;
use tenure_core::sandbox::State;
use tenure_core::sandbox::template::Request;
use tenure_engine::sandboxes::{EventFilter, SandboxNotice};
use tenure_engine::store::OperationAuditFilter;
use tenure_testkit::wait_until;

use super::farm::{Call, Fault, Runtime};
use super::{Plane, caller, caller_of, plane, settings, start};
use crate::harness::{Home, SOON};

async fn wait_for(plane: &Plane, id: &str, state: State, reason: Option<&str>) {
    wait_until(&format!("{id} to be {} because of {reason:?}", state.as_str()), SOON, async || {
        let row = plane.row(id).await;
        row.state == state && (reason.is_none() || row.reason.as_deref() == reason)
    })
    .await;
}

async fn has_lease(plane: &Plane, id: &str) -> bool {
    plane.engine.store().sandbox_lease(id).await.unwrap().is_some()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_is_doubted_while_its_worker_is_away_and_recovers() {
    let home = Home::sqlite();
    let plane = plane(&home, &["w1"], settings()).await;
    let row = plane.running().await;
    plane.clock.advance(121_000);
    wait_for(&plane, &row.id, State::Unhealthy, Some("worker_stale")).await;
    plane.farm.beat("w1").await;
    wait_for(&plane, &row.id, State::Running, None).await;
    assert!(has_lease(&plane, &row.id).await, "it was acquired again");
    plane.farm.with("w1", |node| node.status = "offline".to_owned());
    plane.farm.beat("w1").await;
    wait_for(&plane, &row.id, State::Unhealthy, Some("worker_offline")).await;
    plane.sandboxes.remove_worker("w1").await.unwrap();
    plane.sandboxes.reconcile_one(&row.id).await.unwrap();
    wait_for(&plane, &row.id, State::Unhealthy, Some("worker_missing")).await;
    plane.farm.with("w1", |node| node.status = "online".to_owned());
    plane.farm.beat("w1").await;
    wait_for(&plane, &row.id, State::Running, None).await;
    let filter =
        OperationAuditFilter { action: Some("reconcile".to_owned()), limit: 10, ..OperationAuditFilter::default() };
    let audit = plane.engine.identity().operation_audit(&filter).await.unwrap().items;
    assert!(audit.iter().any(|row| row.entry.detail.as_deref() == Some("marked_unhealthy: worker_stale")));
    let stale = plane.events().await.into_iter().filter(|kind| kind == "worker.stale").count();
    assert_eq!(stale, 1, "told once");
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fresh_worker_is_asked() {
    let home = Home::sqlite();
    let plane = plane(&home, &["w1"], settings()).await;
    let (failing, broken, absent) = (plane.running().await, plane.running().await, plane.running().await);
    plane.farm.fail("w1", Call::Status, [Fault::Unreachable]);
    plane.sandboxes.reconcile_one(&failing.id).await.unwrap();
    wait_for(&plane, &failing.id, State::Unhealthy, Some("worker_rpc_unavailable")).await;
    plane.sandboxes.reconcile_one(&failing.id).await.unwrap();
    wait_for(&plane, &failing.id, State::Running, None).await;
    plane.farm.with("w1", |node| node.runtimes.get_mut(&*broken.id).unwrap().state = "stopped".to_owned());
    plane.farm.with("w1", |node| node.runtimes.remove(&*absent.id));
    plane.sandboxes.reconcile_one(&broken.id).await.unwrap();
    plane.sandboxes.reconcile_one(&absent.id).await.unwrap();
    wait_for(&plane, &broken.id, State::Error, Some("runtime_error")).await;
    wait_for(&plane, &absent.id, State::Destroyed, Some("runtime_absent")).await;
    assert!(!has_lease(&plane, &absent.id).await);
    // While it drains, a failure changes nothing.
    plane.sandboxes.drain("w1", None).await.unwrap();
    plane.farm.fail("w1", Call::Status, [Fault::Unreachable]);
    plane.sandboxes.reconcile_one(&failing.id).await.unwrap();
    assert_eq!(plane.row(&failing.id).await.state, State::Running);
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_over_is_destroyed_by_its_worker() {
    let home = Home::sqlite();
    let plane = plane(&home, &["w1"], settings()).await;
    let request = Request { ttl_ms: Some(60_000), ..Request::default() };
    let row = plane.sandboxes.create(&request, &caller(), None, true).await.unwrap().row;
    let stays = plane.running().await;
    plane.pass(60_001, &["w1"]).await;
    wait_for(&plane, &row.id, State::Destroyed, Some("expired")).await;
    assert_eq!(plane.farm.runtimes(), [("w1".to_owned(), stays.id.to_string())]);
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_over_without_its_worker_expires_and_goes_after_a_day() {
    let home = Home::sqlite();
    let plane = plane(&home, &["w1"], settings()).await;
    let request = Request { ttl_ms: Some(130_000), ..Request::default() };
    let row = plane.sandboxes.create(&request, &caller(), None, true).await.unwrap().row;
    plane.clock.advance(130_001);
    wait_for(&plane, &row.id, State::Expired, None).await;
    assert!(!has_lease(&plane, &row.id).await, "nobody renews it any more");
    plane.clock.advance(24 * 3_600_000 + 31_000);
    plane.sandboxes.reconcile_one(&row.id).await.unwrap();
    wait_for(&plane, &row.id, State::Destroyed, None).await;
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_answers_but_does_not_destroy_is_tried_once() {
    let home = Home::sqlite();
    let plane = plane(&home, &["w1"], settings()).await;
    let request = Request { ttl_ms: Some(60_000), ..Request::default() };
    let row = plane.sandboxes.create(&request, &caller(), None, true).await.unwrap().row;
    plane.farm.fail("w1", Call::Destroy, [Fault::Unreachable]);
    plane.pass(60_001, &["w1"]).await;
    // Expired first, then destroyed because the worker is there again.
    plane.sandboxes.reconcile_one(&row.id).await.unwrap();
    wait_until("the row to leave", SOON, async || {
        plane.sandboxes.reconcile_one(&row.id).await.unwrap();
        plane.row(&row.id).await.state == State::Destroyed
    })
    .await;
    assert!(plane.events().await.contains(&"sandbox.expired".to_owned()));
    assert!(plane.farm.runtimes().is_empty());
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_orphan_is_reaped_in_its_second_heartbeat_after_a_minute() {
    let home = Home::sqlite();
    let plane = plane(&home, &["w1"], settings()).await;
    let row = plane.running().await;
    let stray = Runtime { id: "rt-stray".into(), state: "running".to_owned(), ..Runtime::default() };
    plane.farm.with("w1", |node| node.runtimes.insert("sb-ffffffff".to_owned(), stray));
    assert!(plane.farm.beat("w1").await.orphans.is_empty());
    assert!(plane.farm.beat("w1").await.orphans.is_empty(), "too young");
    plane.clock.advance(61_000);
    let orphans = plane.farm.beat("w1").await.orphans;
    assert_eq!(orphans.len(), 1);
    assert_eq!(&*orphans[0].runtime_id, "rt-stray");
    assert_eq!(plane.farm.runtimes(), [("w1".to_owned(), row.id.to_string())], "what has a row stays");
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runtime_of_an_expired_row_is_an_orphan() {
    let home = Home::sqlite();
    let plane = plane(&home, &["w1"], settings()).await;
    let row = plane.running().await;
    plane.farm.fail("w1", Call::Destroy, vec![Fault::Unreachable; 100]);
    plane.sandboxes.destroy(&row.id, &caller()).await.unwrap();
    plane.farm.beat("w1").await;
    plane.pass(61_000, &["w1"]).await;
    plane.farm.beat("w1").await;
    assert!(plane.farm.runtimes().is_empty());
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_row_has_no_lease_whatever_is_tried() {
    let home = Home::sqlite();
    let plane = plane(&home, &["w1"], settings()).await;
    let row = plane.running().await;
    plane.farm.fail("w1", Call::Destroy, vec![Fault::Unreachable; 3]);
    plane.sandboxes.destroy(&row.id, &caller()).await.unwrap();
    assert!(!has_lease(&plane, &row.id).await);
    plane.sandboxes.reconcile_one(&row.id).await.unwrap();
    plane.sandboxes.destroy(&row.id, &caller()).await.unwrap();
    assert_eq!(plane.farm.calls(Call::Destroy).len(), 3, "it was tried again");
    assert_eq!(plane.row(&row.id).await.state, State::Expired);
    assert!(!has_lease(&plane, &row.id).await, "with one, the worker would keep the runtime");
    assert_eq!(plane.sandboxes.renew("w1", &row.id, 60_000).await.unwrap_err().reason, "lease_stale");
    plane.stop().await;
}

/// A worker that does not answer does not hold up the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_control_plane_stops_while_a_worker_is_asked() {
    let home = Home::sqlite();
    let plane = plane(&home, &["w1"], settings()).await;
    plane.running().await;
    plane.farm.fail("w1", Call::Status, vec![Fault::HangBefore; 10]);
    plane.farm.beat("w2").await;
    plane.wait_for_hanging(1).await;
    tokio::time::timeout(SOON, plane.stop()).await.expect("it stops");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_looked_at_when_a_control_plane_starts() {
    let home = Home::sqlite();
    let first = plane(&home, &["w1"], settings()).await;
    let row = first.running().await;
    let farm = std::sync::Arc::clone(&first.farm);
    first.stop().await;
    farm.with("w1", |node| node.runtimes.clear());
    let second = start(&home, &farm, settings()).await;
    wait_for(&second, &row.id, State::Destroyed, Some("runtime_absent")).await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_replayed_and_seen_by_those_who_may() {
    let home = Home::sqlite();
    let plane = plane(&home, &["w1"], settings()).await;
    let row = plane.running().await;
    let filter = |reach| EventFilter { reach, ..EventFilter::default() };
    let mut own = plane.sandboxes.events(filter(caller().reach), Some(0)).await.unwrap();
    let mut kinds = Vec::new();
    for _ in 0..2 {
        if let Some(SandboxNotice::Event(event)) = own.next().await.unwrap() {
            assert_eq!(event.sandbox.as_ref(), Some(&row.id));
            kinds.push(event.kind);
        }
    }
    assert_eq!(kinds, ["sandbox.created", "sandbox.running"], "events of workers are for operators");
    let mut all = plane.sandboxes.events(filter(Reach::All), Some(0)).await.unwrap();
    assert!(matches!(all.next().await.unwrap(), Some(SandboxNotice::Event(event)) if event.kind == "worker.online"));
    let other = filter(caller_of("other", None).reach);
    let mut other = plane.sandboxes.events(other, Some(0)).await.unwrap();
    let silent = tokio::time::timeout(std::time::Duration::from_millis(300), other.next()).await;
    assert!(silent.is_err(), "another tenant sees nothing");
    let mut live = plane.sandboxes.events(filter(Reach::All), None).await.unwrap();
    let who = caller();
    let (next, _) = tokio::join!(live.next(), plane.sandboxes.destroy(&row.id, &who));
    assert!(matches!(next.unwrap(), Some(SandboxNotice::Event(event)) if event.kind == "sandbox.destroyed"));
    plane.stop().await;
}
