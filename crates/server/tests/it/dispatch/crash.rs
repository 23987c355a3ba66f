//! A completion is written as a whole or not at all, wherever the store fails.

use serde_json::{Value, json};
use tenure_engine::store::Fault;
use tenure_testkit::wait_until;

use super::kit::{self, Claim, Plane};
use crate::cases;
use crate::harness::SOON;

cases!(kit, on_both_stores: [each_step_of_a_completion_fails_once, each_step_of_a_batch_of_events_fails_once],);

/// How many tasks of a job wait.
async fn queued(plane: &Plane, job: &str) -> u64 {
    let dag = plane.get("/api/v1/dags/chain").await.ok();
    let jobs = dag["jobs"].as_array().unwrap();
    jobs.iter().find(|it| it["name"] == job).unwrap()["tasks"]["queued"].as_u64().unwrap()
}

async fn until_queued(plane: &Plane, job: &str, count: u64) {
    wait_until(job, SOON, async || queued(plane, job).await >= count).await;
    assert_eq!(queued(plane, job).await, count, "{job}");
}

/// Everything that a completion changes.
async fn stands(plane: &Plane, claim: &Claim) -> Value {
    let task = plane.fetch(claim.task()).await.ok();
    let mut datasets = Vec::new();
    for index in 0..2 {
        let uuid = claim["task"]["outputs"][index]["dataset_uuid"].as_str().unwrap();
        let dataset = plane.get(&format!("/api/v1/datasets/{uuid}?limit=1000")).await.ok();
        datasets.push(json!([dataset["cursor"]["produced"], dataset["partitions"]["items"]]));
    }
    let tasks = [queued(plane, "decode").await, queued(plane, "page").await];
    json!({"status": task["status"], "state": task["operator_state"], "datasets": datasets, "tasks": tasks})
}

fn completion(claim: &Claim, step: u64) -> Value {
    let own = json!({"partition_key": format!("{step}00-{step}05"), "row_count": 6});
    json!({
        "status": "Completed",
        "outputs": [claim.output(0, own), claim.output(1, json!({"cursor": step}))],
        "events": [claim.event(0, json!({"partition_key": format!("{step}10-{step}15")}))],
        "invalidations": [{
            "dataset_uuid": claim["task"]["outputs"][0]["dataset_uuid"], "scope": "partition",
            "partition_key": format!("{step}20-{step}25"), "reason": "reorg",
        }],
        "operator_state": {"seen": step},
    })
}

async fn each_step_of_a_completion_fails_once(plane: Plane) {
    plane.deploy(kit::CHAIN).await;
    let mut failures = 0;
    for step in 1.. {
        let claim = plane.claim(&plane.fire(&format!("r-{step}")).await).await;
        let before = stands(&plane, &claim).await;
        let body = completion(&claim, step);
        plane.engine.store().faults().fail_at(step, Fault::Error);
        let answer = plane.complete(&claim, body.clone()).await;
        let passed = plane.engine.store().faults().clear();
        let first = if answer.status.is_success() {
            answer.body
        } else {
            failures += 1;
            assert_eq!(answer.refused(503)["error"], "store_unavailable");
            assert_eq!(stands(&plane, &claim).await, before, "step {step}: nothing of it happened");
            plane.complete(&claim, body.clone()).await.ok()
        };
        assert_eq!((&first["events_accepted"], &first["status"]), (&json!(3), &json!("Completed")));
        // All of it: two partitions that were written or told of, one that has changed, and one cursor.
        until_queued(&plane, "decode", 3 * step).await;
        until_queued(&plane, "page", step).await;
        let after = stands(&plane, &claim).await;
        assert_eq!((&after["status"], &after["state"]["seen"]), (&json!("Completed"), &json!(step)));
        assert_eq!(after["datasets"][1][0], step);
        assert_eq!(plane.complete(&claim, body).await.ok(), first, "the same again");
        let other = plane.complete(&claim, completion(&claim, step + 1)).await.refused(409);
        assert_eq!(other["error"], "completion_conflict");
        assert_eq!(stands(&plane, &claim).await, after, "step {step}: a repeat changes nothing");
        if passed {
            break;
        }
    }
    assert!(failures >= 10, "only {failures} steps could fail");
}

async fn each_step_of_a_batch_of_events_fails_once(plane: Plane) {
    plane.deploy(kit::CHAIN).await;
    let claim = plane.claim(&plane.fire("r-1").await).await;
    let mut failures = 0;
    for step in 1.. {
        let before = stands(&plane, &claim).await;
        let events = json!([
            claim.event(0, json!({"partition_key": format!("{step}00-{step}05")})),
            claim.event(0, json!({"partition_key": format!("{step}10-{step}15")})),
            claim.event(1, json!({"cursor": step})),
        ]);
        plane.engine.store().faults().fail_at(step, Fault::Error);
        let answer = plane.events(&claim, events.clone()).await;
        let passed = plane.engine.store().faults().clear();
        if !answer.status.is_success() {
            failures += 1;
            assert_eq!(answer.refused(503)["error"], "store_unavailable");
            assert_eq!(stands(&plane, &claim).await, before, "step {step}: nothing of it happened");
            plane.events(&claim, events.clone()).await.ok();
        }
        until_queued(&plane, "decode", 2 * step).await;
        until_queued(&plane, "page", step).await;
        assert_eq!(plane.events(&claim, events).await.ok(), json!({"accepted": 3, "duplicates": 3}));
        if passed {
            break;
        }
    }
    assert!(failures >= 5, "only {failures} steps could fail");
}
