//! Leases and calls: renewals in time, stale and expired leases, extends, drains.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure_core::sandbox::State;
use tenure_core::sandbox::template::Request;
use tenure_engine::sandboxes::workers::SetupCommand;
use tenure_engine::sandboxes::{CallClass, CallError, Ended, ErrorClass, Workers};

use super::farm::{Call, Fault};
use super::{Plane, caller, plane, settings};
use crate::harness::Home;

fn generation(plane: &Plane, call: Call) -> i64 {
    plane.farm.calls(call).last().unwrap().lease.as_ref().unwrap().generation
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_renewed_before_a_destroy_when_little_is_left() {
    let home = Home::sqlite();
    let plane = plane(&home, &["w1"], settings()).await;
    let row = plane.running().await;
    let before = generation(&plane, Call::Spawn);
    plane.sandboxes.destroy(&row.id, &caller()).await.unwrap();
    assert_eq!(generation(&plane, Call::Destroy), before, "60 s are left");

    let row = plane.running().await;
    let before = generation(&plane, Call::Spawn);
    plane.pass(21_000, &["w1"]).await;
    plane.sandboxes.destroy(&row.id, &caller()).await.unwrap();
    assert_eq!(generation(&plane, Call::Destroy), before + 1, "39 s are left");
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lapsed_lease_is_acquired_again_for_the_same_worker() {
    let home = Home::sqlite();
    let plane = plane(&home, &["w1"], settings()).await;
    let row = plane.running().await;
    plane.pass(61_000, &["w1"]).await;
    assert_eq!(plane.sandboxes.destroy(&row.id, &caller()).await.unwrap(), Ended::Destroyed);
    assert!(plane.farm.runtimes().is_empty());
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_is_clamped_and_a_refusal_has_its_reason() {
    let home = Home::sqlite();
    let plane = plane(&home, &["w1", "w2"], settings()).await;
    let row = plane.running().await;
    let renewed = plane.sandboxes.renew("w1", &row.id, 3_600_000).await.unwrap();
    let left = renewed.lease.expires_at.since(plane.engine.now().await.unwrap());
    assert!((200_000..=300_000).contains(&left), "{left}");
    assert_eq!(renewed.sandbox_expires_at, Some(row.expires_at));
    assert_eq!(renewed.lease.generation, generation(&plane, Call::Spawn) + 1);
    let error = plane.sandboxes.renew("w2", &row.id, 60_000).await.unwrap_err();
    assert_eq!((error.class, &*error.reason), (ErrorClass::Conflict, "lease_stale"));
    for (worker, resource, ttl_ms) in [("w1", &*row.id, 0), ("w1", " ", 1), ("", &*row.id, 1)] {
        let error = plane.sandboxes.renew(worker, resource, ttl_ms).await.unwrap_err();
        assert_eq!(error.class, ErrorClass::BadRequest);
    }
    plane.sandboxes.destroy(&row.id, &caller()).await.unwrap();
    assert_eq!(plane.sandboxes.renew("w1", &row.id, 60_000).await.unwrap_err().reason, "lease_stale");
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_expired_is_refused_and_reconciliation_brings_it_back() {
    let home = Home::sqlite();
    let plane = plane(&home, &["w1"], settings()).await;
    let row = plane.running().await;
    plane.farm.with("w1", |node| node.runtimes.get_mut(&*row.id).unwrap().state = "unhealthy".to_owned());
    plane.clock.advance(61_000);
    let error = plane.sandboxes.renew("w1", &row.id, 60_000).await;
    // Unless reconciliation was faster.
    assert!(error.is_ok() || error.unwrap_err().reason == "lease_expired");
    tenure_testkit::wait_until("the runtime to thaw", crate::harness::SOON, async || {
        plane.farm.with("w1", |node| node.runtimes[&*row.id].state == "running")
    })
    .await;
    plane.wait_for_state(&row.id, State::Running).await;
    plane.sandboxes.renew("w1", &row.id, 60_000).await.unwrap();
    plane.stop().await;
}

/// A worker of the contract alone does not renew: its lease lasts as long as the sandbox, also after an extend.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_does_not_renew_keeps_its_lease_to_the_end() {
    let home = Home::sqlite();
    let plane = plane(&home, &[], settings()).await;
    plane.farm.with("w1", |node| node.capabilities = vec!["remote_worker".to_owned(), "heartbeat".to_owned()]);
    plane.farm.beat("w1").await;
    let row = plane.running().await;
    let store = plane.engine.store();
    let lease = store.sandbox_lease(&row.id).await.unwrap().unwrap();
    let beyond = lease.lease.expires_at.since(row.expires_at);
    assert!((240_000..=360_000).contains(&beyond), "{beyond}");
    let extended = plane.sandboxes.extend(&row.id, 7_200_000, &caller()).await.unwrap();
    let lease = store.sandbox_lease(&row.id).await.unwrap().unwrap();
    let beyond = lease.lease.expires_at.since(extended.expires_at);
    assert!((240_000..=360_000).contains(&beyond), "{beyond}");
    assert!(plane.farm.calls(Call::Renew).is_empty(), "it does not know the method");
    // Past the first end it can still be destroyed.
    plane.pass(3_600_000, &["w1"]).await;
    plane.wait_for_state(&row.id, State::Running).await;
    assert_eq!(plane.sandboxes.destroy(&row.id, &caller()).await.unwrap(), Ended::Destroyed);
    assert!(plane.farm.runtimes().is_empty());
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_extend_is_pushed_to_the_worker() {
    let home = Home::sqlite();
    let plane = plane(&home, &["w1"], settings()).await;
    let row = plane.running().await;
    let extended = plane.sandboxes.extend(&row.id, 7_200_000, &caller()).await.unwrap();
    assert!(extended.expires_at.since(row.expires_at) > 5_000_000);
    assert_eq!(plane.farm.calls(Call::Renew).len(), 1);
    for ttl_ms in [0, -1, 25 * 3_600_000] {
        let error = plane.sandboxes.extend(&row.id, ttl_ms, &caller()).await.unwrap_err();
        assert_eq!(error.class, ErrorClass::BadRequest, "{ttl_ms}");
    }
    plane.stop().await;
}

async fn exec(plane: &Plane, id: &str) -> Result<i32, tenure_engine::sandboxes::SandboxError> {
    let (farm, reach) = (Arc::clone(&plane.farm), caller().reach);
    let call = plane.sandboxes.call(id, &reach, |route| {
        let farm = Arc::clone(&farm);
        async move {
            let command =
                SetupCommand { command: "true".to_owned(), timeout: Duration::from_secs(1), env: route.env.clone() };
            farm.exec(&route.target, &route.terms(Duration::from_secs(1)), &route.runtime(), &command).await
        }
    });
    Ok(call.await?.exit_code)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_lease_is_read_again_at_most_three_times() {
    let home = Home::sqlite();
    let plane = plane(&home, &["w1"], settings()).await;
    let row = plane.running().await;
    plane.farm.fail("w1", Call::Exec, vec![Fault::Refuse(CallClass::LeaseStale); 3]);
    assert_eq!(exec(&plane, &row.id).await.unwrap(), 0);
    let calls = plane.farm.calls(Call::Exec);
    assert!(calls.len() == 4 && calls.iter().all(|call| call.request_id == calls[0].request_id));
    plane.farm.fail("w1", Call::Exec, vec![Fault::Refuse(CallClass::LeaseStale); 4]);
    let error = exec(&plane, &row.id).await.unwrap_err();
    assert_eq!((error.class, &*error.reason), (ErrorClass::Conflict, "lease_stale"));
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_lease_is_acquired_again_and_the_call_repeated_once() {
    let home = Home::sqlite();
    let plane = plane(&home, &["w1"], settings()).await;
    let row = plane.running().await;
    plane.farm.fail("w1", Call::Exec, [Fault::Refuse(CallClass::LeaseExpired)]);
    assert_eq!(exec(&plane, &row.id).await.unwrap(), 0);
    assert_eq!(plane.farm.calls(Call::Renew).len(), 1);
    let calls = plane.farm.calls(Call::Exec);
    assert!(calls[1].lease.as_ref().unwrap().generation > calls[0].lease.as_ref().unwrap().generation);
    plane.farm.fail("w1", Call::Exec, vec![Fault::Refuse(CallClass::LeaseExpired); 2]);
    assert_eq!(exec(&plane, &row.id).await.unwrap_err().reason, "lease_expired");
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runtime_that_is_not_found_is_looked_into() {
    let home = Home::sqlite();
    let plane = plane(&home, &["w1"], settings()).await;
    let row = plane.running().await;
    // A file that is not there.
    plane.farm.fail("w1", Call::Exec, [Fault::Refuse(CallClass::NotFound)]);
    let error = exec(&plane, &row.id).await.unwrap_err();
    assert_eq!((error.class, error.message.contains("says the test")), (ErrorClass::NotFound, true));
    assert_eq!(plane.row(&row.id).await.state, State::Running);
    plane.farm.with("w1", |node| node.runtimes.clear());
    assert_eq!(exec(&plane, &row.id).await.unwrap_err().class, ErrorClass::NotFound);
    assert_eq!(plane.row(&row.id).await.state, State::Destroyed);
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_destroy_without_the_lease_leaves_the_sandbox_running() {
    let home = Home::sqlite();
    let plane = plane(&home, &["w1"], settings()).await;
    let row = plane.running().await;
    plane.farm.fail("w1", Call::Destroy, vec![Fault::Refuse(CallClass::LeaseStale); 4]);
    let error = plane.sandboxes.destroy(&row.id, &caller()).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Conflict);
    assert_eq!(plane.row(&row.id).await.state, State::Running);
    plane.farm.fail("w1", Call::Destroy, [Fault::Refuse(CallClass::ProviderUnavailable)]);
    assert_eq!(plane.sandboxes.destroy(&row.id, &caller()).await.unwrap_err().class, ErrorClass::Unavailable);
    assert_eq!(plane.row(&row.id).await.state, State::Running);
    plane.farm.fail("w1", Call::Destroy, [Fault::Unreachable]);
    assert_eq!(plane.sandboxes.destroy(&row.id, &caller()).await.unwrap(), Ended::Destroying);
    assert_eq!(plane.row(&row.id).await.state, State::Expired);
    assert!(plane.engine.store().sandbox_lease(&row.id).await.unwrap().is_none());
    assert_eq!(plane.sandboxes.destroy(&row.id, &caller()).await.unwrap(), Ended::Destroyed, "asked again");
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_is_stored_sent_and_repeated() {
    let home = Home::sqlite();
    let plane = plane(&home, &["w1"], settings()).await;
    let row = plane.running().await;
    plane.farm.fail("w1", Call::Shutdown, [Fault::Unreachable]);
    plane.sandboxes.drain("w1", Some("upgrade")).await.unwrap();
    assert!(!plane.farm.with("w1", |node| node.is_draining), "it did not hear of it");
    assert_eq!(plane.create().await.unwrap_err().reason, "worker_unavailable");
    assert_eq!(plane.farm.beat("w1").await.desired_status.as_deref(), Some("draining"));
    assert!(plane.farm.with("w1", |node| node.is_draining));
    assert_eq!(exec(&plane, &row.id).await.unwrap(), 0, "what it has goes on");
    plane.sandboxes.undrain("w1").await.unwrap();
    assert_eq!(plane.farm.calls(Call::Undrain).len(), 1);
    plane.farm.beat("w1").await;
    plane.running().await;
    assert_eq!(plane.sandboxes.drain("none", None).await.unwrap_err().class, ErrorClass::NotFound);
    plane.sandboxes.remove_worker("w1").await.unwrap();
    assert!(plane.sandboxes.sandbox_workers().await.unwrap().is_empty());
    plane.farm.beat("w1").await;
    plane.running().await;
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_is_shown_as_it_is_stored_while_its_worker_is_silent() {
    let home = Home::sqlite();
    let plane = plane(&home, &["w1"], settings()).await;
    let row = plane.running().await;
    plane.farm.fail("w1", Call::Status, [Fault::HangBefore]);
    let got = tokio::time::timeout(crate::harness::SOON, plane.sandboxes.get(&row.id, &caller())).await;
    assert_eq!(got.expect("an answer").unwrap().state, State::Running);
    plane.farm.fail("w1", Call::Status, [Fault::Unreachable]);
    assert_eq!(plane.sandboxes.get(&row.id, &caller()).await.unwrap().state, State::Running);
    plane.farm.with("w1", |node| node.runtimes.clear());
    assert_eq!(plane.sandboxes.get(&row.id, &caller()).await.unwrap_err().class, ErrorClass::NotFound);
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_that_cannot_be_used_is_not_called() {
    let home = Home::sqlite();
    let plane = plane(&home, &["w1"], settings()).await;
    plane.farm.fail("w1", Call::Spawn, [Fault::HangBefore]);
    let row = plane.sandboxes.create(&Request::default(), &caller(), None, false).await.unwrap().row;
    let (calls, reach) = (AtomicU32::new(0), caller().reach);
    let called = plane.sandboxes.call(&row.id, &reach, |_| {
        calls.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, CallError>(()) }
    });
    assert_eq!(called.await.unwrap_err().class, ErrorClass::Conflict);
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    plane.stop().await;
}
