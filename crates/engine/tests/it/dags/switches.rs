//! Versions that become active again.

use tenure_core::command::cancel::{Cancel, Mode};
use tenure_engine::store::Fault;

use super::*;

on_both_stores!(
    tasks_that_a_switch_canceled_go_on_when_their_version_returns,
    what_changed_while_a_version_was_away_changes_all_that_it_has_made,
    a_late_task_of_older_data_leaves_newer_data_alone,
    a_version_becomes_active_although_whoever_made_it_ready_could_not_do_it,
);

/// Waits for a task, runs it for the partition `1-5`.
async fn run_next(plane: &Plane, operator: &str) {
    let find = async || {
        let waiting = plane.tasks(operator).await.into_iter().find(|task| task.place.state() == State::Ready);
        waiting.map(|task| task.body.id)
    };
    let task = wait_until(operator, SOON, find).await;
    plane.run(task, "1-5").await;
}

async fn deploy_and_wait(plane: &Plane, config: u32, number: i64) {
    plane.deploy(&chain(config)).await;
    wait_until("the version", SOON, async || plane.state(number).await == VersionState::Active).await;
}

async fn tasks_that_a_switch_canceled_go_on_when_their_version_returns(home: Home) {
    let plane = plane(&home).await;
    deploy_and_wait(&plane, 0, 1).await;
    let import = plane.fire("r-1").await;
    plane.run(import, "1-5").await;
    let decode = plane.nth("decode", 1).await;
    plane.dags.deploy(NewVersion { manual: true, ..version(&chain(1)) }).await.unwrap();
    let rebuild = plane.nth("decode", 2).await;
    plane.run(rebuild, "1-5").await;
    let count = plane.nth("count", 1).await;
    plane.run(count, "1-5").await;
    wait_until("the rebuild", SOON, async || plane.state(2).await == VersionState::Ready).await;
    assert_eq!(plane.dags.cut_over(ORG, "chain", 2).await.unwrap().canceled_tasks, 1);
    assert_eq!(plane.engine.task(decode, &Reach::All).await.unwrap().unwrap().place.state(), State::Canceled);
    plane.dags.roll_back(ORG, "chain").await.unwrap();
    // It is the same task, for the key is the same.
    plane.dags.reconcile().await.unwrap();
    assert_eq!(plane.tasks("decode").await.len(), 2);
    plane.run(decode, "1-5").await;
    run_next(&plane, "count").await;
    // What somebody has canceled stays canceled.
    let import = plane.fire("r-2").await;
    plane.run(import, "6-9").await;
    let decode = plane.nth("decode", 3).await;
    let cancel = Cancel { task: decode, reason: "no".into(), mode: Mode::Immediate, reach: Reach::All };
    plane.engine.cancel(cancel).await.unwrap().unwrap();
    plane.dags.reconcile().await.unwrap();
    assert_eq!(plane.engine.task(decode, &Reach::All).await.unwrap().unwrap().place.state(), State::Canceled);
    plane.stop().await;
}

async fn what_changed_while_a_version_was_away_changes_all_that_it_has_made(home: Home) {
    let plane = plane(&home).await;
    deploy_and_wait(&plane, 0, 1).await;
    plane.run_all("r-1", "1-5", 1).await;
    plane.deploy(&chain(1)).await;
    for operator in ["decode", "count"] {
        run_next(&plane, operator).await;
    }
    wait_until("the version", SOON, async || plane.state(2).await == VersionState::Active).await;
    plane.dags.invalidate(ORG, &plane.changed("1-5").await).await.unwrap();
    for operator in ["decode", "count"] {
        run_next(&plane, operator).await;
    }
    plane.dags.roll_back(ORG, "chain").await.unwrap();
    plane.dags.reconcile().await.unwrap();
    // Nobody tells the tasks of the first version what has changed, and still all that follows is made again.
    for operator in ["decode", "count"] {
        run_next(&plane, operator).await;
    }
    for operator in ["decode", "count"] {
        assert_eq!(plane.count(operator, State::Succeeded).await, 4, "{operator}");
    }
    plane.stop().await;
}

async fn a_late_task_of_older_data_leaves_newer_data_alone(home: Home) {
    let plane = plane(&home).await;
    deploy_and_wait(&plane, 0, 1).await;
    let import = plane.fire("r-1").await;
    plane.run(import, "1-5").await;
    let first = plane.nth("decode", 1).await;
    let slow = plane.claim(first).await.unwrap();
    plane.dags.invalidate(ORG, &plane.changed("1-5").await).await.unwrap();
    let second = plane.nth("decode", 2).await;
    plane.run(second, "1-5").await;
    plane.complete(&slow, "1-5").await.unwrap();
    let output = input(&slow).outputs[0];
    let row = plane.engine.store().partition(output.version, "1-5").await.unwrap().unwrap();
    assert_eq!(row.producer.map(|(task, _)| task), Some(second));
    plane.stop().await;
}

async fn a_version_becomes_active_although_whoever_made_it_ready_could_not_do_it(home: Home) {
    let plane = plane(&home).await;
    deploy_and_wait(&plane, 0, 1).await;
    plane.run_all("r-1", "1-5", 1).await;
    plane.deploy(&chain(1)).await;
    run_next(&plane, "decode").await;
    // Of all that is written from here on, only the switch has this step.
    let step = if home.url().starts_with("sqlite") { "write webhook paths" } else { "hold queues" };
    plane.engine.store().faults().fail_in(step, Fault::Error);
    run_next(&plane, "count").await;
    wait_until("the version", SOON, async || plane.state(2).await == VersionState::Active).await;
    assert!(!plane.engine.store().faults().clear(), "the first try has failed");
    plane.stop().await;
}
