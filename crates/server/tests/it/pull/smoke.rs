//! One task from submit to its end.

use serde_json::json;

use crate::cases;
use crate::harness::{LONGEST_WAIT, Server};

cases!(
    Server,
    everywhere: [a_task_runs_to_its_end, a_waiting_claim_is_woken_by_a_submit, the_exchange_reports_and_claims],
);

async fn a_task_runs_to_its_end(server: Server) {
    let id = server.submit(json!({"payload": {"day": "2025-01-15"}})).await;
    assert_eq!(server.task(&id).await["state"], "Ready");
    let job = server.claim("w-1").await;
    assert_eq!(job["job_id"], id.as_str());
    assert_eq!(job["payload"], json!({"day": "2025-01-15"}));
    assert_eq!((&job["attempt"], &job["fence"]), (&json!(1), &json!(1)));
    assert_eq!((&job["lease_ttl_seconds"], &job["heartbeat_interval_seconds"]), (&json!(60), &json!(20)));
    let beat = server.heartbeat("w-1", &job).await.ok();
    assert_eq!((&beat["ok"], &beat["should_cancel"]), (&json!(true), &json!(false)));
    assert_eq!(server.complete("w-1", &job, json!({"rows": 10})).await.ok(), json!({"ok": true, "ack": true}));
    let task = server.task(&id).await;
    assert_eq!((&task["state"], &task["result"]), (&json!("Succeeded"), &json!({"rows": 10})));
    assert!(server.claim("w-1").await.is_null());
}

async fn a_waiting_claim_is_woken_by_a_submit(server: Server) {
    let claim = json!({"worker_id": "w-1", "streams": ["q"], "max_wait_ms": 60_000});
    let waiting = server.worker("claim", claim);
    let submitting = async {
        // The claim may be first or second: it gets the task either way, long before its wait is over.
        server.submit(json!({})).await
    };
    let started = std::time::Instant::now();
    let (job, id) = tokio::join!(waiting, submitting);
    assert_eq!(job.ok()["job_id"], id.as_str());
    assert!(started.elapsed() < LONGEST_WAIT);
}

async fn the_exchange_reports_and_claims(server: Server) {
    for _ in 0..3 {
        server.submit(json!({})).await;
    }
    let claim = json!({"streams": ["q"], "max_jobs": 2, "max_wait_ms": 0});
    let first = server.worker("exchange", json!({"worker_id": "w-1", "claim": claim})).await.ok();
    let jobs = first["jobs"].as_array().unwrap();
    assert_eq!(jobs.len(), 2);
    let done = json!([
        {"job_id": jobs[0]["job_id"], "attempt_id": jobs[0]["attempt_id"], "lease_token": jobs[0]["lease_token"], "result": 1},
        {"job_id": jobs[0]["job_id"], "attempt_id": jobs[0]["attempt_id"], "lease_token": "lt_wrong", "result": 1},
    ]);
    let beat = json!([{"job_id": jobs[1]["job_id"], "lease_token": jobs[1]["lease_token"], "progress_pct": 40}]);
    let turn = json!({"worker_id": "w-1", "complete": done, "heartbeat": beat, "claim": claim});
    let second = server.worker("exchange", turn).await.ok();
    assert_eq!(second["complete"][0], json!({"ok": true, "ack": true}));
    assert_eq!(second["complete"][1]["error"], "stale_lease");
    assert_eq!(second["complete"][1]["http_status"], 409);
    assert_eq!(second["heartbeat"][0]["ok"], true);
    assert_eq!(second["jobs"].as_array().unwrap().len(), 1);
}
