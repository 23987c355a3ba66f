//! Why a task is where it is.

use serde_json::{Value, json};
use tenure_testkit::wait_until;

use crate::cases;
use crate::harness::{SOON, Server, fatal};

cases!(
    Server,
    on_sqlite: [
        a_running_task_says_how_its_lease_is,
        an_ended_task_says_what_it_ended_with,
        workers_that_take_nothing_are_explained,
    ],
);

async fn why(server: &Server, id: &str) -> Value {
    server.get(&format!("/api/v1/tasks/{id}/why")).await.ok()["why"][0].clone()
}

fn says(why: &Value, code: &str, part: &str) {
    assert_eq!(why["code"], code, "{why}");
    assert!(why["message"].as_str().unwrap().contains(part), "{why}");
}

async fn a_running_task_says_how_its_lease_is(server: Server) {
    let id = server.submit(json!({"lease_ttl_seconds": 60})).await;
    let job = server.claim("w-1").await;
    server.advance(5_000);
    let reason = why(&server, &id).await;
    says(&reason, "running", "running on w-1; last heartbeat 5 s ago, the lease ends in ");
    assert_eq!((&reason["detail"]["worker_id"], &reason["detail"]["attempt"]), (&json!("w-1"), &json!(1)));
    server.advance(40_000);
    says(&why(&server, &id).await, "running", "(expected every 20 s): the worker may be frozen");
    server.heartbeat("w-1", &job).await.ok();
    server.post(&format!("/api/v1/tasks/{id}/cancel"), json!({})).await.ok();
    says(&why(&server, &id).await, "running", "unless it is renewed; asked to stop");
}

async fn an_ended_task_says_what_it_ended_with(server: Server) {
    let id = server.submit(json!({"max_attempts": 3})).await;
    let job = server.claim("w-1").await;
    server.fail("w-1", &job, fatal()).await.ok();
    let reason = why(&server, &id).await;
    says(&reason, "ended", "failed after 1 of 3 attempts (non_retryable): ");
    assert_eq!((&reason["detail"]["attempts"], &reason["detail"]["dead_letter"]), (&json!(1), &json!(true)));
    assert!(reason["detail"]["error_code"].is_string());
    let id = server.submit(json!({})).await;
    server.post(&format!("/api/v1/tasks/{id}/cancel"), json!({"reason": "a mistake"})).await.ok();
    says(&why(&server, &id).await, "ended", "canceled: a mistake");
}

async fn workers_that_take_nothing_are_explained(server: Server) {
    let about = |operators: &[&str]| json!({"slots": 2, "operators": operators});
    let asks = |worker: &str, operators: &[&str]| json!({"worker_id": worker, "streams": ["q"], "max_wait_ms": 0, "max_jobs": 2, "worker": about(operators)});
    for _ in 0..2 {
        server.submit(json!({})).await;
    }
    assert_eq!(server.worker("claim", asks("w-1", &["op"])).await.ok()["jobs"].as_array().unwrap().len(), 2);
    let id = server.submit(json!({})).await;
    says(&why(&server, &id).await, "no_worker", "1 worker asks for this queue; 2 of 2 slots are in use");
    let other = server.submit(json!({"operator": "new"})).await;
    says(&why(&server, &other).await, "unknown_operator", "no worker of this queue has the operator `new`");
    server.post("/api/v1/workers/w-1/drain", json!({})).await.ok();
    says(&why(&server, &id).await, "workers_drained", "1 worker of this queue is drained");
    server.post("/api/v1/workers/w-1/undrain", json!({})).await.ok();
    // It holds tasks and is silent. Another one still asks for the queue.
    server.advance(45_000);
    server.worker("claim", json!({"worker_id": "w-2", "streams": ["q", "r"], "job_id": id})).await.ok();
    let next = server.submit(json!({})).await;
    wait_until("a silent worker to be named", SOON, async || {
        let reason = why(&server, &next).await;
        let message = reason["message"].as_str().unwrap_or_default().to_owned();
        message.contains("1 worker with 2 tasks has not been seen for") || reason["code"] == "no_worker"
    })
    .await;
}
