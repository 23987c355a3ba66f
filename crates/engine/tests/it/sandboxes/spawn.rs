//! A sandbox from its creation to its end, and workers that refuse, vanish and answer late.

use std::sync::Arc;

use tenure_core::WorkerId;
use tenure_core::command::Reach;
use tenure_core::sandbox::placement::Rules;
use tenure_core::sandbox::template::Request;
use tenure_core::sandbox::{Change, State};
use tenure_engine::sandboxes::{CallClass, Ended, ErrorClass};
use tenure_engine::store::{LeaseTerms, OperationAuditFilter, Placed};
use tenure_testkit::wait_until;

use super::farm::{Call, Fault};
use super::{caller, caller_of, plane, settings};
use crate::harness::{Home, SOON};
use crate::on_both_stores;

on_both_stores!(
    a_sandbox_is_created_on_a_worker_and_destroyed,
    a_refusal_tries_the_next_worker_and_no_more_than_three,
    a_lost_answer_is_repeated_with_the_same_id_and_makes_one_runtime,
    a_sandbox_that_is_deleted_while_it_is_created_leaves_no_runtime,
    a_spawn_whose_row_went_to_another_worker_is_undone,
);

async fn a_sandbox_is_created_on_a_worker_and_destroyed(home: Home) {
    let plane = plane(&home, &["w1"], settings()).await;
    let row = plane.running().await;
    assert_eq!(row.worker.as_deref(), Some("w1"));
    assert_eq!(plane.farm.runtimes(), [("w1".to_owned(), row.id.to_string())]);
    assert!(row.id.starts_with("sb-") && row.id.len() == 11, "{}", row.id);
    let got = plane.sandboxes.get(&row.id, &caller()).await.unwrap();
    assert_eq!((got.state, got.runtime_id.is_some()), (State::Running, true));
    let other = plane.sandboxes.get(&row.id, &caller_of("another", None)).await.unwrap_err();
    assert_eq!(other.class, ErrorClass::NotFound);
    for _ in 0..2 {
        assert_eq!(plane.sandboxes.destroy(&row.id, &caller()).await.unwrap(), Ended::Destroyed);
    }
    assert!(plane.farm.runtimes().is_empty());
    assert_eq!(plane.sandboxes.get(&row.id, &caller()).await.unwrap_err().class, ErrorClass::NotFound);
    assert!(plane.engine.store().sandbox_lease(&row.id).await.unwrap().is_none(), "the lease is released");
    let events = plane.events().await;
    for kind in ["sandbox.created", "sandbox.running", "sandbox.destroyed", "worker.online"] {
        assert!(events.iter().any(|event| event == kind), "{kind} in {events:?}");
    }
    let filter = OperationAuditFilter { limit: 10, ..OperationAuditFilter::default() };
    let audit = plane.engine.identity().operation_audit(&filter).await.unwrap().items;
    let actions: Vec<_> = audit.iter().rev().map(|row| (row.entry.action.as_str(), row.entry.actor.as_str())).collect();
    assert_eq!(actions, [("spawn", "tester"), ("destroy", "tester")]);
    plane.stop().await;
}

async fn a_refusal_tries_the_next_worker_and_no_more_than_three(home: Home) {
    let plane = plane(&home, &["w1", "w2", "w3", "w4"], settings()).await;
    plane.farm.fail("w1", Call::Spawn, [Fault::Refuse(CallClass::ProviderUnavailable)]);
    plane.farm.fail("w2", Call::Spawn, [Fault::Unreachable]);
    let row = plane.running().await;
    assert_eq!(row.worker.as_deref(), Some("w3"));
    assert_eq!(row.refused_by, ["w1".into(), "w2".into()] as [WorkerId; 2]);
    let ids: Vec<_> = plane.farm.calls(Call::Spawn).into_iter().map(|seen| seen.request_id).collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "one id: {ids:?}");

    for worker in ["w1", "w2", "w3", "w4"] {
        plane.farm.fail(worker, Call::Spawn, vec![Fault::Refuse(CallClass::Invalid); 4]);
    }
    plane.farm.seen.lock().unwrap().clear();
    let error = plane.create().await.unwrap_err();
    assert_eq!((error.class, &*error.reason), (ErrorClass::BadRequest, "invalid"));
    assert_eq!(plane.farm.calls(Call::Spawn).len(), 3);
    let failed = plane.rows().await.into_iter().find(|row| row.state == State::Error).unwrap();
    assert_eq!(failed.reason.as_deref(), Some("spawn_refused"));
    assert!(plane.engine.store().sandbox_lease(&failed.id).await.unwrap().is_none());
    plane.stop().await;
}

async fn a_lost_answer_is_repeated_with_the_same_id_and_makes_one_runtime(home: Home) {
    let plane = plane(&home, &["w1", "w2"], settings()).await;
    plane.farm.fail("w1", Call::Spawn, [Fault::LoseAnswer, Fault::LoseAnswer]);
    let row = plane.running().await;
    let calls = plane.farm.calls(Call::Spawn);
    assert_eq!(calls.len(), 3);
    for call in &calls {
        assert_eq!((call.worker.as_str(), &call.request_id), ("w1", &row.request_id));
        assert_eq!(call.lease, calls[0].lease, "the same call to the byte");
    }
    assert_eq!(plane.farm.made(), 1);
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_after_a_lost_answer_counts_only_from_a_worker_that_repeats_its_answers() {
    let home = Home::sqlite();
    let plane = plane(&home, &["w1", "w2"], settings()).await;
    plane.farm.with("w1", |node| node.capabilities.retain(|word| word != "rpc_replay"));
    plane.farm.beat("w1").await;
    plane.farm.fail("w1", Call::Spawn, [Fault::LoseAnswer, Fault::Refuse(CallClass::Draining)]);
    plane.create().await.unwrap_err();
    assert_eq!(plane.farm.made(), 1, "w1 may have the runtime, so w2 must not get another");
    let row = plane.rows().await.remove(0);
    assert_eq!((row.state, row.reason.as_deref()), (State::Error, Some("spawn_timeout")));
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outcome_that_stays_unknown_fails_the_row_and_the_runtime_is_reaped() {
    let home = Home::sqlite();
    let mut settings = settings();
    settings.spawn_timeout_ms = 5_000;
    let plane = plane(&home, &["w1", "w2"], settings).await;
    plane.farm.fail("w1", Call::Spawn, vec![Fault::LoseAnswer; 100]);
    let error = plane.create().await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Unavailable);
    assert_eq!(plane.farm.runtimes().len(), 1, "it exists, and nobody knows");
    assert!(plane.farm.calls(Call::Spawn).iter().all(|seen| seen.worker == "w1"), "never on another worker");
    let row = plane.rows().await.remove(0);
    assert_eq!((row.state, row.reason.as_deref()), (State::Error, Some("spawn_timeout")));
    assert!(plane.engine.store().sandbox_lease(&row.id).await.unwrap().is_none());
    plane.farm.beat("w1").await;
    assert_eq!(plane.farm.runtimes().len(), 1, "too young");
    plane.pass(61_000, &["w1"]).await;
    assert!(plane.farm.runtimes().is_empty(), "the second heartbeat, after more than a minute");
    plane.stop().await;
}

async fn a_sandbox_that_is_deleted_while_it_is_created_leaves_no_runtime(home: Home) {
    let plane = plane(&home, &["w1"], settings()).await;
    plane.farm.fail("w1", Call::Spawn, [Fault::HangAfter]);
    let creating = plane.creating();
    plane.wait_for_hanging(1).await;
    let row = plane.rows().await.remove(0);
    assert_eq!(row.state, State::Creating);
    // The worker's own renewal raises the generation meanwhile.
    plane.sandboxes.renew("w1", &row.id, 60_000).await.unwrap();
    assert_eq!(plane.sandboxes.destroy(&row.id, &caller()).await.unwrap(), Ended::Destroyed);
    // A runtime that came to be after all.
    plane.farm.with("w1", |node| node.runtimes.insert(row.id.to_string(), super::farm::Runtime::default()));
    plane.farm.release();
    assert_eq!(creating.await.unwrap().unwrap_err().class, ErrorClass::Conflict);
    wait_until("the runtime to be discarded", SOON, async || plane.farm.runtimes().is_empty()).await;
    assert_eq!(plane.row(&row.id).await.state, State::Destroyed);
    plane.stop().await;
}

/// The check of the holder at the confirmation: a spawn that comes back late must not take the row from where it is now.
async fn a_spawn_whose_row_went_to_another_worker_is_undone(home: Home) {
    let plane = plane(&home, &["w1", "w2"], settings()).await;
    plane.farm.fail("w1", Call::Spawn, [Fault::HangAfter]);
    let creating = plane.creating();
    plane.wait_for_hanging(1).await;
    let row = plane.rows().await.remove(0);
    let store = plane.engine.store();
    store.change_sandbox(&row.id, &Change::Refuse { worker: "w1".into() }, Vec::new()).await.unwrap().unwrap().unwrap();
    let lease = LeaseTerms { ttl_ms: 60_000, without_renewal_ms: 0 };
    let placed = store.place_again(&row.id, lease, Default::default(), &Rules::default()).await.unwrap().unwrap();
    assert!(matches!(placed, Placed::On(..)));
    plane.farm.release();
    let late = creating.await.unwrap();
    assert_ne!(late.ok().map(|created| created.row.state), Some(State::Running));
    wait_until("the runtime to be discarded", SOON, async || plane.farm.runtimes().is_empty()).await;
    let row = store.sandbox(&row.id, &Reach::All).await.unwrap().unwrap();
    assert_eq!((row.state, row.worker.as_deref()), (State::Creating, Some("w2")));
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_makes_one_sandbox() {
    let home = Home::sqlite();
    let plane = plane(&home, &["w1"], settings()).await;
    let key = Some((Arc::from("key"), [7; 32]));
    let first = plane.sandboxes.create(&Request::default(), &caller(), key.clone(), true).await.unwrap();
    let again = plane.sandboxes.create(&Request::default(), &caller(), key, true).await.unwrap();
    assert_eq!((again.row.id, again.is_repeat, first.is_repeat), (first.row.id, true, false));
    let other = Some((Arc::from("key"), [8; 32]));
    let error = plane.sandboxes.create(&Request::default(), &caller(), other, true).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Conflict);
    assert_eq!(plane.farm.made(), 1);
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_waiting_the_row_is_answered_and_the_spawn_goes_on() {
    let home = Home::sqlite();
    let plane = plane(&home, &["w1"], settings()).await;
    plane.farm.fail("w1", Call::Spawn, [Fault::HangBefore]);
    let created = plane.sandboxes.create(&Request::default(), &caller(), None, false).await.unwrap();
    assert_eq!(created.row.state, State::Creating);
    plane.wait_for_hanging(1).await;
    plane.farm.release();
    plane.wait_for_state(&created.row.id, State::Running).await;
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_cannot_be_called_gets_nothing() {
    let home = Home::sqlite();
    let plane = plane(&home, &["w1"], settings()).await;
    plane.farm.locked_out.lock().unwrap().push("w1".to_owned());
    let error = plane.create().await.unwrap_err();
    assert_eq!((error.class, &*error.reason), (ErrorClass::ResourceLimit, "remote_worker_rpc_unavailable"));
    let decision = plane.sandboxes.admission(&Request::default(), &caller()).await.unwrap();
    assert_eq!((decision.allowed, decision.reason), (false, Some("remote_worker_rpc_unavailable")));
    plane.farm.locked_out.lock().unwrap().clear();
    let decision = plane.sandboxes.admission(&Request::default(), &caller()).await.unwrap();
    assert_eq!((decision.allowed, decision.selected_worker.as_deref()), (true, Some("w1")));
    plane.stop().await;
}
