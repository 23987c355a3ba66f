//! What the code of a task may ask.

use serde_json::{Value, json};
use tenure_engine::store::Asker;

use super::kit::{self, DAG, Plane, alert, on_both};

on_both!(a_task_reads_its_inputs_and_nothing_else);

async fn decode(plane: &Plane) -> Value {
    plane.deploy("default", DAG).await;
    plane.import("default", 90, 109).await;
    let task = plane.nth("decode", 1).await;
    plane.claim(&task).await
}

async fn a_task_reads_its_inputs_and_nothing_else(plane: Plane) {
    let claim = decode(&plane).await;
    // `where` of the input leaves out 100 and more.
    let answer = plane.as_task(&claim, "query", json!({"sql": "SELECT count(*), max(n) FROM raw"})).await.ok();
    assert_eq!(answer["rows"], json!([[10, 99]]));
    let asker = Asker::Task(claim["task_id"].as_str().unwrap().into(), 1);
    assert_eq!(plane.audited(&answer).await.unwrap().entry.asker, asker);
    let only = plane.as_task(&claim, "query", json!({"sql": "SELECT count(*) FROM dataset"})).await.ok();
    assert_eq!(only["rows"], json!([[10]]));
    for sql in ["SELECT * FROM alerts", "SELECT * FROM blocks"] {
        plane.as_task(&claim, "query", json!({"sql": sql})).await.refused(400, "invalid_sql");
    }
    let alerts = plane.call(reqwest::Method::GET, "/api/v1/datasets/alerts", &[], None).await.ok();
    let other = json!({"sql": "SELECT 1", "dataset_id": alerts["dataset_uuid"]});
    plane.as_task(&claim, "query", other).await.refused(403, "dataset_not_granted");
    plane.publish("default", vec![alert("a", "critical", 1), alert("b", "info", 2)]).await;
    let reader = plane.claim(&plane.nth("alert", 1).await).await;
    let rows = plane.as_task(&reader, "query", json!({"sql": "SELECT key FROM alerts"})).await.ok();
    assert_eq!(rows["rows"], json!([["a"]]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_attempt_is_compared_if_it_is_sent_and_a_lease_is_fenced() {
    let plane = kit::sqlite().await;
    let claim = decode(&plane).await;
    let with = |extra: Value| {
        let mut body = json!({"sql": "SELECT count(*) FROM raw"});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body
    };
    let ask = async |extra: Value| plane.as_task(&claim, "query", with(extra)).await;
    let (task, lease) = (claim["task_id"].clone(), claim["lease_token"].clone());
    ask(json!({"task_id": task, "attempt": 1, "lease_token": lease})).await.ok();
    ask(json!({"task_id": null, "attempt": null, "limit": null})).await.ok();
    let other = "018c385a-9fb1-9509-0e89-33fe3b7b1aa9";
    let refused = ask(json!({"task_id": other})).await.refused(403, "capability_mismatch");
    assert_eq!(refused["detail"], refused["message"]);
    ask(json!({"attempt": 2})).await.refused(403, "capability_mismatch");
    ask(json!({"lease_token": other})).await.refused(409, "stale_lease");
    plane.as_task(&claim, "query", json!({})).await.refused(400, "malformed_request");
    plane.as_task(&claim, "query", json!({"sql": "SELECT 1", "format": "xml"})).await.refused(400, "malformed_request");
    let done = json!({"task_id": task, "attempt": 1, "lease_token": lease, "status": "Completed"});
    plane.as_task(&claim, "complete", done).await.ok();
    // Reads last as long as the token, a lease does not.
    ask(json!({})).await.ok();
    ask(json!({"lease_token": lease})).await.refused(409, "attempt_closed");
    // Neither an API key nor a worker's token is a capability.
    let body = with(json!({}));
    let anonymous = plane.call(reqwest::Method::POST, "/v1/task/query", &[], Some(&body)).await;
    anonymous.refused(401, "missing_capability");
}
