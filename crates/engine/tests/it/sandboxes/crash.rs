//! A control plane that dies at a step of a spawn: the next one on the same store goes on, nothing leaks, and nothing is
//! spawned twice.

use tenure_core::sandbox::State;
use tenure_core::sandbox::template::{Request, Template};
use tenure_engine::sandboxes::{CallClass, SandboxSettings};

use super::farm::{Call, Fault};
use super::{Plane, caller, plane, settings, start, start_after};
use crate::harness::Home;

/// Dies while a call stands still, and comes back.
async fn crash(home: &Home, plane: Plane, settings: SandboxSettings) -> Plane {
    plane.wait_for_hanging(1).await;
    let farm = std::sync::Arc::clone(&plane.farm);
    plane.stop().await;
    start(home, &farm, settings).await
}

async fn is_whole(plane: &Plane, id: &str, made: usize) {
    plane.wait_for_state(id, State::Running).await;
    let row = plane.row(id).await;
    assert_eq!(plane.farm.runtimes(), [(row.worker.as_deref().unwrap().to_owned(), id.to_owned())]);
    let runtime = plane.farm.with(row.worker.as_deref().unwrap(), |node| node.runtimes[id].id.clone());
    assert_eq!(row.runtime_id, Some(runtime));
    assert_eq!(plane.farm.made(), made);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn before_the_worker_has_begun() {
    let home = Home::sqlite();
    let first = plane(&home, &["w1"], settings()).await;
    first.farm.fail("w1", Call::Spawn, [Fault::HangBefore]);
    let row = first.sandboxes.create(&Request::default(), &caller(), None, false).await.unwrap().row;
    let second = crash(&home, first, settings()).await;
    is_whole(&second, &row.id, 1).await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_worker_has_the_runtime() {
    let home = Home::sqlite();
    let first = plane(&home, &["w1", "w2"], settings()).await;
    first.farm.fail("w1", Call::Spawn, [Fault::HangAfter]);
    let row = first.sandboxes.create(&Request::default(), &caller(), None, false).await.unwrap().row;
    let second = crash(&home, first, settings()).await;
    is_whole(&second, &row.id, 1).await;
    second.stop().await;
}

/// Whoever resumes the spawn cannot know what the first one achieved, so no other worker may get the sandbox.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_worker_has_the_runtime_and_vanishes_for_a_while() {
    let home = Home::sqlite();
    let first = plane(&home, &["w1", "w2"], settings()).await;
    first.farm.fail("w1", Call::Spawn, [Fault::HangAfter, Fault::Unreachable, Fault::Unreachable]);
    first.farm.fail("w1", Call::Status, [Fault::Unreachable]);
    let row = first.sandboxes.create(&Request::default(), &caller(), None, false).await.unwrap().row;
    let second = crash(&home, first, settings()).await;
    is_whole(&second, &row.id, 1).await;
    assert_eq!(second.row(&row.id).await.worker.as_deref(), Some("w1"));
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_to_whoever_resumes_a_spawn_gives_it_to_no_other_worker() {
    let home = Home::sqlite();
    let first = plane(&home, &["w1", "w2"], settings()).await;
    first.farm.fail("w1", Call::Spawn, [Fault::HangBefore, Fault::Refuse(CallClass::Draining)]);
    let row = first.sandboxes.create(&Request::default(), &caller(), None, false).await.unwrap().row;
    let second = crash(&home, first, settings()).await;
    second.wait_for_state(&row.id, State::Error).await;
    assert!(second.farm.calls(Call::Spawn).iter().all(|seen| seen.worker == "w1"), "what was sent may arrive yet");
    second.stop().await;
}

/// The word of the worker is enough, while whoever resumes the spawn still waits for an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heartbeat_completes_the_spawn() {
    let home = Home::sqlite();
    let first = plane(&home, &["w1"], settings()).await;
    first.farm.fail("w1", Call::Spawn, [Fault::HangAfter]);
    let row = first.sandboxes.create(&Request::default(), &caller(), None, false).await.unwrap().row;
    first.wait_for_hanging(1).await;
    let farm = std::sync::Arc::clone(&first.farm);
    first.stop().await;
    farm.fail("w1", Call::Status, [Fault::HangBefore]);
    let second = start(&home, &farm, settings()).await;
    second.wait_for_hanging(1).await;
    farm.beat("w1").await;
    assert_eq!(second.row(&row.id).await.state, State::Running);
    farm.release();
    is_whole(&second, &row.id, 1).await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn between_two_workers() {
    let home = Home::sqlite();
    let first = plane(&home, &["w1", "w2"], settings()).await;
    first.farm.fail("w1", Call::Spawn, [Fault::Refuse(CallClass::ProviderUnavailable)]);
    first.farm.fail("w2", Call::Spawn, [Fault::HangBefore]);
    let row = first.sandboxes.create(&Request::default(), &caller(), None, false).await.unwrap().row;
    let second = crash(&home, first, settings()).await;
    is_whole(&second, &row.id, 1).await;
    assert_eq!(second.row(&row.id).await.worker.as_deref(), Some("w2"));
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_refusal_and_before_another_place() {
    let home = Home::sqlite();
    let first = plane(&home, &["w1", "w2"], settings()).await;
    first.farm.fail("w1", Call::Spawn, [Fault::HangBefore]);
    let row = first.sandboxes.create(&Request::default(), &caller(), None, false).await.unwrap().row;
    first.wait_for_hanging(1).await;
    let refuse = tenure_core::sandbox::Change::Refuse { worker: "w1".into() };
    first.engine.store().change_sandbox(&row.id, &refuse, Vec::new()).await.unwrap().unwrap().unwrap();
    let second = crash(&home, first, settings()).await;
    is_whole(&second, &row.id, 1).await;
    assert_eq!(second.row(&row.id).await.worker.as_deref(), Some("w2"));
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_it_is_set_up() {
    for fault in [Fault::HangBefore, Fault::HangAfter] {
        let home = Home::sqlite();
        let first = plane(&home, &["w1"], settings()).await;
        let template = Template { setup: vec!["one".to_owned(), "two".to_owned()], ..Template::default() };
        first.sandboxes.create_template("default", "t", &template).await.unwrap();
        first.farm.fail("w1", Call::Exec, [fault]);
        let request = Request { template: Some("t".to_owned()), ..Request::default() };
        let row = first.sandboxes.create(&request, &caller(), None, false).await.unwrap().row;
        let second = crash(&home, first, settings()).await;
        is_whole(&second, &row.id, 1).await;
        let commands = second.farm.with("w1", |node| node.runtimes[&*row.id].commands.clone());
        assert_eq!(commands[commands.len() - 2..], ["one", "two"], "set up whole before it runs");
        second.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spawn_that_is_late_at_the_restart_fails_and_its_runtime_is_reaped() {
    let home = Home::sqlite();
    let first = plane(&home, &["w1"], settings()).await;
    first.farm.fail("w1", Call::Spawn, [Fault::HangAfter]);
    let row = first.sandboxes.create(&Request::default(), &caller(), None, false).await.unwrap().row;
    first.wait_for_hanging(1).await;
    let farm = std::sync::Arc::clone(&first.farm);
    first.stop().await;
    let second = start_after(&home, &farm, settings(), 31_000).await;
    second.wait_for_state(&row.id, State::Error).await;
    assert_eq!(second.row(&row.id).await.reason.as_deref(), Some("spawn_timeout"));
    farm.beat("w1").await;
    second.pass(61_000, &["w1"]).await;
    assert!(farm.runtimes().is_empty());
    second.stop().await;
}
