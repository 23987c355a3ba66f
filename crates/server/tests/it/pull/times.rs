//! Time-outs, deadlines, and how every attempt's end is told.

use serde_json::{Value, json};
use tenure_testkit::wait_until;

use crate::cases;
use crate::harness::{SOON, Server, between, fatal, retryable, time};

cases!(
    Server,
    on_sqlite: [
        no_heartbeat_extends_a_lease_past_the_timeout,
        no_lease_lasts_past_the_deadline,
        the_deadline_ends_a_running_task,
        a_retry_that_would_start_after_the_deadline_is_not_scheduled,
        every_closed_attempt_has_state_reason_and_end,
        intervals_come_from_task_queue_and_default,
    ],
    on_both_stores: [a_timeout_ends_a_job_whose_worker_heartbeats_on],
    everywhere: [the_deadline_ends_waiting_tasks],
);

async fn a_timeout_ends_a_job_whose_worker_heartbeats_on(server: Server) {
    server.still().await;
    let retry = json!({"initial_backoff_ms": 3_000, "jitter": "none"});
    let id = server.submit(json!({"timeout_seconds": 20, "lease_ttl_seconds": 10, "retry": retry})).await;
    let job = server.claim("w-1").await;
    for _ in 0..4 {
        server.advance(4_500);
        assert_eq!(server.heartbeat("w-1", &job).await.ok()["ok"], true);
    }
    server.advance(2_000);
    let refused = server.heartbeat("w-1", &job).await.refused(409);
    assert_eq!(refused["error"], "lease_expired");
    let task = server.until(&id, "Scheduled").await;
    let attempts = server.attempts(&id).await;
    assert_eq!((&attempts[0]["state"], &attempts[0]["reason"]), (&json!("Failed"), &json!("TIMEOUT")));
    assert_eq!(attempts[0]["error"]["code"], "TIMEOUT");
    // A time-out waits twice as long.
    assert_eq!(between(&attempts[0]["ended_at"], &task["run_at"]), 6_000);
}

async fn no_heartbeat_extends_a_lease_past_the_timeout(server: Server) {
    server.still().await;
    let id = server.submit(json!({"timeout_ms": 15_000, "lease_ttl_seconds": 10})).await;
    let job = server.claim("w-1").await;
    let granted = server.task(&id).await;
    assert_eq!(between(&granted["started_at"], &granted["lease_expires_at"]), 10_000);
    server.advance(8_000);
    let beat = server.heartbeat("w-1", &job).await.ok();
    assert_eq!(between(&granted["started_at"], &beat["lease_expires_at"]), 15_000);
    // A time-out shorter than the lease cuts the very first one.
    let id = server.submit(json!({"timeout_ms": 2_500})).await;
    server.claim("w-1").await;
    let granted = server.task(&id).await;
    assert_eq!(between(&granted["started_at"], &granted["lease_expires_at"]), 2_500);
}

async fn no_lease_lasts_past_the_deadline(server: Server) {
    server.still().await;
    let deadline = server.engine.now().await.unwrap().plus(90_000).to_string();
    let id = server.submit(json!({"deadline": deadline})).await;
    let job = server.claim("w-1").await;
    assert_eq!(time(&job["deadline"]), time(&json!(deadline)));
    for _ in 0..2 {
        server.advance(40_000);
        server.heartbeat("w-1", &job).await.ok();
    }
    assert_eq!(time(&server.task(&id).await["lease_expires_at"]), time(&json!(deadline)));
    server.advance(10_000);
    server.heartbeat("w-1", &job).await.refused(409);
}

async fn the_deadline_ends_waiting_tasks(server: Server) {
    let deadline = server.engine.now().await.unwrap().plus(30_000).to_string();
    let ready = server.submit(json!({"deadline": deadline})).await;
    let scheduled = server.submit(json!({"deadline": deadline, "delay_ms": 600_000})).await;
    server.advance(30_000);
    for id in [&ready, &scheduled] {
        let task = server.until(id, "Failed").await;
        assert_eq!(task["reason"], "deadline_exceeded");
        assert_eq!(task["error"]["code"], "DEADLINE_EXCEEDED");
        assert!(time(&task["dead_lettered_at"]) >= time(&json!(deadline)));
        assert_eq!(server.attempts(id).await, Vec::<Value>::new());
    }
    assert!(server.claim("w-1").await.is_null());
    // It is past its deadline for good.
    let refused = server.post(&format!("/api/v1/tasks/{ready}/retry"), json!({})).await.refused(409);
    assert_eq!(refused["error"], "task_not_retryable");
}

async fn the_deadline_ends_a_running_task(server: Server) {
    let deadline = server.engine.now().await.unwrap().plus(30_000).to_string();
    let id = server.submit(json!({"deadline": deadline})).await;
    let job = server.claim("w-1").await;
    server.advance(30_000);
    let task = server.until(&id, "Failed").await;
    assert_eq!(task["reason"], "deadline_exceeded");
    let attempts = server.attempts(&id).await;
    assert_eq!((&attempts[0]["state"], &attempts[0]["reason"]), (&json!("Failed"), &json!("DEADLINE_EXCEEDED")));
    let refused = server.complete("w-1", &job, json!({})).await.refused(409);
    assert_eq!((&refused["error"], &refused["status"]), (&json!("attempt_closed"), &json!("DLQ")));
    assert_eq!(server.attempts(&id).await[0]["late_report"]["outcome"], "Succeeded");
}

async fn a_retry_that_would_start_after_the_deadline_is_not_scheduled(server: Server) {
    let deadline = server.engine.now().await.unwrap().plus(30_000).to_string();
    let retry = json!({"initial_backoff_ms": 40_000, "jitter": "none"});
    let id = server.submit(json!({"deadline": deadline, "retry": retry})).await;
    let job = server.claim("w-1").await;
    let answer = server.fail("w-1", &job, retryable()).await.ok();
    assert_eq!(answer, json!({"ok": true, "ack": true, "requeued": false, "dlq": true}));
    let task = server.task(&id).await;
    assert_eq!((&task["state"], &task["reason"]), (&json!("Failed"), &json!("deadline_exceeded")));
}

async fn every_closed_attempt_has_state_reason_and_end(server: Server) {
    let deadline = server.engine.now().await.unwrap().plus(120_000).to_string();
    let mut expected = Vec::new();
    let mut held = async |extra: Value, state: &'static str, reason: &'static str| {
        let id = server.submit(extra).await;
        // Only the last one names its process, so that only it is lost with it.
        let incarnation = (reason == "WORKER_LOST").then_some("1");
        let claim = json!({"worker_id": "w-1", "job_id": id, "incarnation": incarnation});
        let job = server.worker("claim", claim).await.ok();
        assert_eq!(job["claimed"], true, "{reason}");
        expected.push((id.clone(), state, reason));
        (id, job)
    };
    let (_, job) = held(json!({}), "Succeeded", "COMPLETED").await;
    server.complete("w-1", &job, json!({})).await.ok();
    let (_, job) = held(json!({"delay_ms": 0}), "Failed", "FAILED").await;
    server.fail("w-1", &job, retryable()).await.ok();
    let (_, job) = held(json!({}), "Failed", "FAILED").await;
    server.fail("w-1", &job, fatal()).await.ok();
    let (_, job) = held(json!({}), "Canceled", "CANCELLED").await;
    server.fail("w-1", &job, json!({"code": "CANCELLED", "message": "stopped"})).await.ok();
    let (id, _) = held(json!({}), "Canceled", "REVOKED").await;
    server.post(&format!("/api/v1/tasks/{id}/cancel"), json!({"mode": "immediate"})).await.ok();
    held(json!({"lease_ttl_seconds": 5}), "Failed", "HEARTBEAT_TIMEOUT").await;
    held(json!({"lease_ttl_seconds": 5, "max_attempts": 1}), "Failed", "HEARTBEAT_TIMEOUT").await;
    held(json!({"timeout_seconds": 5}), "Failed", "TIMEOUT").await;
    let (id, _) = held(json!({"cancel_grace_period_ms": 1_000}), "Failed", "CANCEL_TIMEOUT").await;
    server.post(&format!("/api/v1/tasks/{id}/cancel"), json!({})).await.ok();
    held(json!({"deadline": deadline, "lease_ttl_seconds": 300}), "Failed", "DEADLINE_EXCEEDED").await;
    held(json!({"lease_ttl_seconds": 3_600}), "Failed", "WORKER_LOST").await;
    server.advance(120_000);
    let next = json!({"worker_id": "w-1", "streams": ["none"], "max_wait_ms": 0, "incarnation": "2"});
    server.worker("claim", next).await.ok();
    for (id, state, reason) in expected {
        let attempt = wait_until(reason, SOON, async || {
            server.attempts(&id).await.into_iter().next().filter(|attempt| attempt["state"] != "Running")
        })
        .await;
        assert_eq!((&attempt["state"], &attempt["reason"]), (&json!(state), &json!(reason)));
        assert!(time(&attempt["ended_at"]) >= time(&attempt["granted_at"]), "{reason}");
        assert_eq!(attempt["worker_id"], "w-1");
        if state == "Failed" {
            assert!(attempt["error"]["code"].is_string(), "{attempt}");
        }
    }
}

async fn intervals_come_from_task_queue_and_default(server: Server) {
    let told = async |extra: Value| {
        server.submit(extra).await;
        let job = server.claim("w-1").await;
        [&job["lease_ttl_seconds"], &job["heartbeat_interval_seconds"]].map(|n| n.as_u64().unwrap())
    };
    assert_eq!(told(json!({})).await, [60, 20]);
    assert_eq!(told(json!({"lease_ttl_seconds": 90})).await, [90, 30]);
    assert_eq!(told(json!({"lease_ttl_seconds": 90, "heartbeat_interval_seconds": 5})).await, [90, 5]);
    server.put("/api/v1/queues/q", json!({"lease_ttl_seconds": 12, "heartbeat_interval_seconds": 3})).await.ok();
    assert_eq!(told(json!({})).await, [12, 3]);
    assert_eq!(told(json!({"lease_ttl_seconds": 90})).await, [90, 30]);
}
