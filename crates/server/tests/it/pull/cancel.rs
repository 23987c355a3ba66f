//! Cancelling at each state, in both modes.

use serde_json::{Value, json};

use crate::cases;
use crate::harness::{Answer, Server, between, fatal, retryable};

cases!(
    Server,
    on_sqlite: [
        a_task_that_waits_ends_at_once,
        a_repeat_keeps_the_first_reason,
        a_report_of_success_within_the_grace_counts,
        a_report_of_failure_within_the_grace_ends_the_task_cancelled,
        a_worker_that_stops_ends_the_task_cancelled,
        the_end_of_the_grace_ends_the_attempt,
        the_grace_starts_with_the_first_signal,
        an_immediate_cancel_follows_a_cooperative_one,
        a_worker_may_cancel_of_its_own_accord,
        ended_and_unknown_tasks_are_not_cancelled,
        a_cancelled_task_can_be_retried,
        bad_requests_to_cancel_are_refused,
    ],
    everywhere: [
        a_running_task_learns_by_heartbeat,
        a_cancelled_task_of_a_dead_worker_is_never_granted_again,
        an_immediate_cancel_revokes_the_lease,
    ],
);

async fn cancel(server: &Server, id: &str, body: Value) -> Answer {
    server.post(&format!("/api/v1/tasks/{id}/cancel"), body).await
}

fn stopped() -> Value {
    json!({"code": "CANCELLED", "message": "asked to stop"})
}

async fn running(server: &Server, extra: Value) -> (String, Value) {
    let id = server.submit(extra).await;
    let job = server.claim("w-1").await;
    assert_eq!(job["job_id"], json!(id));
    (id, job)
}

async fn a_task_that_waits_ends_at_once(server: Server) {
    for mode in ["cooperative", "immediate"] {
        let ready = server.submit(json!({})).await;
        let scheduled = server.submit(json!({"delay_ms": 60_000})).await;
        let (backoff, job) = {
            let id = server.submit(json!({"queue": "other", "retry": {"initial_backoff_ms": 60_000}})).await;
            let claim = json!({"worker_id": "w-1", "streams": ["other"], "max_wait_ms": 0});
            (id, server.worker("claim", claim).await.ok())
        };
        server.fail("w-1", &job, retryable()).await.ok();
        for id in [&ready, &scheduled, &backoff] {
            let answer = cancel(&server, id, json!({"reason": "not needed", "mode": mode})).await.ok();
            let expected =
                json!({"task_id": id, "state": "Canceled", "cancel_requested": true, "cancel_reason": "not needed"});
            assert_eq!(answer, expected);
            let task = server.task(id).await;
            assert_eq!((&task["state"], &task["cancel_reason"]), (&json!("Canceled"), &json!("not needed")));
            assert!(task["finished_at"].is_string());
        }
    }
    server.advance(600_000);
    assert!(server.claim("w-1").await.is_null());
    let counts = &server.queue("q").await["counts"];
    assert_eq!((&counts["ready"], &counts["scheduled"]), (&json!(0), &json!(0)));
}

async fn a_running_task_learns_by_heartbeat(server: Server) {
    let (id, job) = running(&server, json!({})).await;
    let beat = server.heartbeat("w-1", &job).await.ok();
    assert_eq!(beat["should_cancel"], false);
    assert!(beat.get("cancel_reason").is_none());
    let answer = cancel(&server, &id, json!({"reason": "wrong day, sorry"})).await.ok();
    assert_eq!((&answer["state"], &answer["cancel_requested"]), (&json!("Running"), &json!(true)));
    let task = server.task(&id).await;
    assert_eq!((&task["state"], &task["cancel_requested"]), (&json!("Running"), &json!(true)));
    let beat = server.heartbeat("w-1", &job).await.ok();
    assert_eq!((&beat["should_cancel"], &beat["cancel_reason"]), (&json!(true), &json!("wrong day, sorry")));
    // By the exchange too.
    let item = json!([{"job_id": job["job_id"], "lease_token": job["lease_token"]}]);
    let beat = server.worker("exchange", json!({"worker_id": "w-1", "heartbeat": item})).await.ok();
    assert_eq!(beat["heartbeat"][0]["cancel_reason"], "wrong day, sorry");
    assert_eq!(server.get(&format!("/api/v1/tasks/{id}/why")).await.ok()["why"][0]["code"], "running");
}

async fn a_repeat_keeps_the_first_reason(server: Server) {
    let (id, job) = running(&server, json!({})).await;
    cancel(&server, &id, json!({"reason": "first"})).await.ok();
    let again = cancel(&server, &id, json!({"reason": "second"})).await.ok();
    assert_eq!((&again["cancel_reason"], &again["state"]), (&json!("first"), &json!("Running")));
    assert_eq!(server.heartbeat("w-1", &job).await.ok()["cancel_reason"], "first");
    server.fail("w-1", &job, stopped()).await.ok();
    // Also when it is done.
    let again = cancel(&server, &id, json!({"reason": "third"})).await.ok();
    assert_eq!((&again["cancel_reason"], &again["state"]), (&json!("first"), &json!("Canceled")));
    assert_eq!(server.task(&id).await["cancel_reason"], "first");
    // Without a body and without a content type the reason is the default.
    let (id, _) = running(&server, json!({})).await;
    let path = format!("/api/v1/tasks/{id}/cancel");
    let answer = server.call(reqwest::Method::POST, &path, &[], None).await.ok();
    assert_eq!(answer["cancel_reason"], "user_requested");
}

async fn a_report_of_success_within_the_grace_counts(server: Server) {
    let (id, job) = running(&server, json!({})).await;
    cancel(&server, &id, json!({})).await.ok();
    server.heartbeat("w-1", &job).await.ok();
    assert_eq!(server.complete("w-1", &job, json!({"rows": 1})).await.ok(), json!({"ok": true, "ack": true}));
    let task = server.task(&id).await;
    assert_eq!((&task["state"], &task["result"]), (&json!("Succeeded"), &json!({"rows": 1})));
    cancel(&server, &id, json!({})).await.refused(409);
}

async fn a_report_of_failure_within_the_grace_ends_the_task_cancelled(server: Server) {
    for error in [retryable(), fatal()] {
        let (id, job) = running(&server, json!({"retry": {"initial_backoff_ms": 0}})).await;
        cancel(&server, &id, json!({"reason": "enough"})).await.ok();
        let answer = server.fail("w-1", &job, error).await.ok();
        assert_eq!(answer, json!({"ok": true, "ack": true, "requeued": false, "dlq": false}));
        let task = server.task(&id).await;
        assert_eq!((&task["state"], &task["cancel_reason"]), (&json!("Canceled"), &json!("enough")));
        assert_eq!(server.attempts(&id).await[0]["state"], "Failed");
    }
    assert!(server.claim("w-2").await.is_null());
    assert_eq!(server.get("/api/v1/dead-letters").await.ok()["items"], json!([]));
}

async fn a_worker_that_stops_ends_the_task_cancelled(server: Server) {
    let (id, job) = running(&server, json!({})).await;
    cancel(&server, &id, json!({"reason": "enough"})).await.ok();
    let answer = server.fail("w-1", &job, stopped()).await.ok();
    assert_eq!(answer, json!({"ok": true, "ack": true, "requeued": false, "dlq": false}));
    let task = server.task(&id).await;
    assert_eq!((&task["state"], &task["cancel_reason"]), (&json!("Canceled"), &json!("enough")));
    let attempt = &server.attempts(&id).await[0];
    assert_eq!((&attempt["state"], &attempt["reason"]), (&json!("Canceled"), &json!("CANCELLED")));
}

async fn the_end_of_the_grace_ends_the_attempt(server: Server) {
    server.still().await;
    let (id, job) = running(&server, json!({"cancel_grace_period_ms": 10_000})).await;
    cancel(&server, &id, json!({"reason": "enough"})).await.ok();
    assert_eq!(server.heartbeat("w-1", &job).await.ok()["should_cancel"], true);
    server.advance(8_000);
    assert_eq!(server.heartbeat("w-1", &job).await.ok()["ok"], true);
    server.advance(2_000);
    let refused = server.heartbeat("w-1", &job).await.refused(409);
    assert_eq!((&refused["error"], &refused["status"]), (&json!("attempt_closed"), &json!("CANCELLED")));
    let task = server.until(&id, "Canceled").await;
    assert_eq!(task["cancel_reason"], "enough");
    let attempt = &server.attempts(&id).await[0];
    assert_eq!((&attempt["state"], &attempt["reason"]), (&json!("Failed"), &json!("CANCEL_TIMEOUT")));
    // What it says afterwards is evidence.
    let refused = server.complete("w-1", &job, json!({"rows": 1})).await.refused(409);
    assert_eq!((&refused["error"], &refused["status"]), (&json!("attempt_closed"), &json!("CANCELLED")));
    assert_eq!(server.attempts(&id).await[0]["late_report"]["result"], json!({"rows": 1}));
    assert_eq!(server.state(&id).await, "Canceled");
}

async fn the_grace_starts_with_the_first_signal(server: Server) {
    server.still().await;
    // Signalled at once: the grace counts from there, not from later signals.
    let (id, job) = running(&server, json!({"cancel_grace_period_ms": 10_000})).await;
    cancel(&server, &id, json!({})).await.ok();
    let first = server.heartbeat("w-1", &job).await.ok();
    server.advance(5_000);
    let second = server.heartbeat("w-1", &job).await.ok();
    assert_eq!(first["lease_expires_at"], second["lease_expires_at"]);
    // Never signalled: it starts one interval after the request.
    let task = json!({"cancel_grace_period_ms": 10_000, "lease_ttl_seconds": 60, "heartbeat_interval_seconds": 15});
    let (id, _) = running(&server, task).await;
    let before = server.engine.now().await.unwrap().to_string();
    cancel(&server, &id, json!({})).await.ok();
    let after = server.engine.now().await.unwrap().to_string();
    let until = server.task(&id).await["lease_expires_at"].clone();
    assert!(between(&json!(before), &until) >= 25_000 && between(&json!(after), &until) <= 25_000);
}

async fn a_cancelled_task_of_a_dead_worker_is_never_granted_again(server: Server) {
    let (id, job) = running(&server, json!({"lease_ttl_seconds": 5, "retry": {"initial_backoff_ms": 0}})).await;
    cancel(&server, &id, json!({"reason": "enough"})).await.ok();
    // The worker is gone: neither the signal nor the lease arrives anywhere.
    server.advance(5_000);
    let task = server.until(&id, "Canceled").await;
    assert_eq!(task["cancel_reason"], "enough");
    server.advance(600_000);
    assert!(server.claim("w-2").await.is_null());
    let by_id = json!({"worker_id": "w-2", "job_id": id});
    assert_eq!(server.worker("claim", by_id).await.ok()["reason"], "cancelled");
    assert_eq!(server.attempts(&id).await.len(), 1);
    server.complete("w-1", &job, json!({})).await.refused(409);
}

async fn an_immediate_cancel_revokes_the_lease(server: Server) {
    let (id, job) = running(&server, json!({})).await;
    let answer = cancel(&server, &id, json!({"mode": "immediate", "reason": "rollback"})).await.ok();
    assert_eq!((&answer["state"], &answer["cancel_reason"]), (&json!("Canceled"), &json!("rollback")));
    for refused in [
        server.heartbeat("w-1", &job).await.refused(409),
        server.complete("w-1", &job, json!({"rows": 1})).await.refused(409),
        server.fail("w-1", &job, stopped()).await.refused(409),
    ] {
        assert_eq!((&refused["error"], &refused["status"]), (&json!("attempt_closed"), &json!("CANCELLED")));
        assert_eq!(refused["ack"], true);
    }
    let attempt = &server.attempts(&id).await[0];
    assert_eq!((&attempt["state"], &attempt["reason"]), (&json!("Canceled"), &json!("REVOKED")));
    assert_eq!((&attempt["late_report"]["outcome"], &attempt["late_report"]["more"]), (&json!("Succeeded"), &json!(1)));
    assert_eq!(server.queue("q").await["counts"]["running"], 0);
}

async fn an_immediate_cancel_follows_a_cooperative_one(server: Server) {
    let (id, job) = running(&server, json!({})).await;
    cancel(&server, &id, json!({"reason": "first"})).await.ok();
    let answer = cancel(&server, &id, json!({"reason": "second", "mode": "immediate"})).await.ok();
    assert_eq!((&answer["state"], &answer["cancel_reason"]), (&json!("Canceled"), &json!("first")));
    server.heartbeat("w-1", &job).await.refused(409);
}

async fn a_worker_may_cancel_of_its_own_accord(server: Server) {
    let (id, job) = running(&server, json!({})).await;
    let answer = server.fail("w-1", &job, stopped()).await.ok();
    assert_eq!(answer, json!({"ok": true, "ack": true, "requeued": false, "dlq": false}));
    let task = server.task(&id).await;
    assert_eq!((&task["state"], &task["cancel_reason"]), (&json!("Canceled"), &json!("worker_initiated")));
    // An explicit `retryable` wins over the code.
    let (id, job) = running(&server, json!({"retry": {"initial_backoff_ms": 60_000, "jitter": "none"}})).await;
    let again = json!({"code": "CANCELLED", "message": "worker drains", "retryable": true});
    assert_eq!(server.fail("w-1", &job, again).await.ok()["requeued"], true);
    assert_eq!(server.state(&id).await, "Scheduled");
}

async fn ended_and_unknown_tasks_are_not_cancelled(server: Server) {
    let (succeeded, job) = running(&server, json!({})).await;
    server.complete("w-1", &job, json!({})).await.ok();
    let (failed, job) = running(&server, json!({})).await;
    server.fail("w-1", &job, fatal()).await.ok();
    for id in [&succeeded, &failed] {
        for mode in ["cooperative", "immediate"] {
            let refused = cancel(&server, id, json!({"mode": mode})).await.refused(409);
            assert_eq!((&refused["error"], &refused["code"]), (&json!("task_already_terminal"), &json!("CONFLICT")));
        }
    }
    assert_eq!((server.state(&succeeded).await, server.state(&failed).await), ("Succeeded".into(), "Failed".into()));
    let refused = cancel(&server, "018c385a-9fb1-9509-0e89-33fe3b7b1aa9", json!({})).await.refused(404);
    assert_eq!(refused["error"], "task_not_found");
}

async fn a_cancelled_task_can_be_retried(server: Server) {
    let id = server.submit(json!({})).await;
    cancel(&server, &id, json!({})).await.ok();
    let answer = server.post(&format!("/api/v1/tasks/{id}/retry"), json!({})).await.ok();
    assert_eq!(answer, json!({"task_id": id, "state": "Ready", "attempt": 0, "max_attempts": 6}));
    let task = server.task(&id).await;
    assert!(task.get("cancel_reason").is_none());
    let job = server.claim("w-1").await;
    assert_eq!(server.heartbeat("w-1", &job).await.ok()["should_cancel"], false);
}

async fn bad_requests_to_cancel_are_refused(server: Server) {
    let id = server.submit(json!({})).await;
    for (body, field) in [
        (json!({"mode": "soon"}), "mode"),
        (json!({"reason": ""}), "reason"),
        (json!({"reason": "x".repeat(257)}), "reason"),
        (json!({"reason": "two\nlines"}), "reason"),
        (json!({"reason": 7}), "reason"),
    ] {
        let refused = cancel(&server, &id, body).await.refused(422);
        assert_eq!((&refused["error"], &refused["field"]), (&json!("invalid_argument"), &json!(field)));
    }
    assert_eq!(server.state(&id).await, "Ready");
    assert_eq!(cancel(&server, &id, json!({"reason": "x".repeat(256)})).await.ok()["state"], "Canceled");
}
