//! Reports that come after the lease has ended.

use serde_json::{Value, json};

use crate::cases;
use crate::harness::{Server, fatal, retryable};

cases!(
    Server,
    on_sqlite: [
        a_late_completion_takes_the_task_off_the_dead_letters,
        a_late_retryable_fail_leaves_the_retry_alone,
        a_late_final_fail_withdraws_the_retry,
        more_late_reports_are_counted,
        a_late_report_of_a_cancelled_task_is_refused,
        a_late_report_after_the_deadline_is_refused,
        each_status_is_told_in_the_words_of_the_contract,
        an_unswept_lease_is_judged_as_expired,
    ],
    everywhere: [a_late_completion_is_accepted_before_another_claim, after_another_claim_a_report_is_evidence_only],
);

async fn expired(server: &Server, extra: Value) -> (String, Value) {
    let mut task = json!({"lease_ttl_seconds": 5, "retry": {"initial_backoff_ms": 60_000, "jitter": "none"}});
    crate::harness::merge(&mut task, extra);
    let id = server.submit(task).await;
    let job = server.claim("w-1").await;
    assert_eq!(job["job_id"], json!(id));
    server.advance(5_000);
    (id, job)
}

async fn a_late_completion_is_accepted_before_another_claim(server: Server) {
    // In backoff.
    let (id, job) = expired(&server, json!({})).await;
    server.until(&id, "Scheduled").await;
    assert_eq!(server.complete("w-1", &job, json!({"n": 1})).await.ok(), json!({"ok": true, "ack": true}));
    // Ready again.
    let (again, job) = expired(&server, json!({"retry": {"initial_backoff_ms": 0}})).await;
    server.until(&again, "Ready").await;
    assert_eq!(server.complete("w-1", &job, json!({"n": 2})).await.ok(), json!({"ok": true, "ack": true}));
    // Nothing runs twice.
    server.advance(3_600_000);
    assert!(server.claim("w-2").await.is_null());
    for (id, n) in [(id, 1), (again, 2)] {
        let task = server.task(&id).await;
        assert_eq!((&task["state"], &task["result"]), (&json!("Succeeded"), &json!({"n": n})));
        let attempts = server.attempts(&id).await;
        assert_eq!(attempts.len(), 1);
        assert_eq!((&attempts[0]["state"], &attempts[0]["reason"]), (&json!("Succeeded"), &json!("COMPLETED")));
        assert!(attempts[0].get("late_report").is_none());
    }
    let counts = &server.queue("q").await["counts"];
    assert_eq!((&counts["scheduled"], &counts["ready"], &counts["running"]), (&json!(0), &json!(0), &json!(0)));
}

async fn a_late_completion_takes_the_task_off_the_dead_letters(server: Server) {
    let (id, job) = expired(&server, json!({"max_attempts": 1})).await;
    let task = server.until(&id, "Failed").await;
    assert_eq!((&task["reason"], &task["error"]["code"]), (&json!("max_attempts"), &json!("HEARTBEAT_TIMEOUT")));
    assert_eq!(server.get("/api/v1/dead-letters").await.ok()["items"][0]["task_id"], json!(id));
    assert_eq!(server.queue("q").await["counts"]["dead_lettered"], 1);
    assert_eq!(server.complete("w-1", &job, json!({"rows": 1})).await.ok(), json!({"ok": true, "ack": true}));
    let task = server.task(&id).await;
    assert_eq!((&task["state"], &task["result"]), (&json!("Succeeded"), &json!({"rows": 1})));
    assert!(task.get("dead_lettered_at").is_none() && task.get("error").is_none());
    assert_eq!(server.get("/api/v1/dead-letters").await.ok()["items"], json!([]));
    assert_eq!(server.queue("q").await["counts"]["dead_lettered"], 0);
    // A redrive finds nothing there.
    let redrive = json!({"filter": {"queue": "q"}, "dry_run": true});
    assert_eq!(server.post("/api/v1/dead-letters/redrive", redrive).await.ok()["matched"], 0);
}

async fn a_late_retryable_fail_leaves_the_retry_alone(server: Server) {
    let (id, job) = expired(&server, json!({})).await;
    let before = server.until(&id, "Scheduled").await;
    let answer = server.fail("w-1", &job, retryable()).await.ok();
    assert_eq!(answer, json!({"ok": true, "ack": true, "requeued": true, "dlq": false}));
    let after = server.task(&id).await;
    assert_eq!((&after["state"], &after["run_at"]), (&json!("Scheduled"), &before["run_at"]));
    assert_eq!(server.attempts(&id).await[0]["error"]["code"], "HTTP_503");
    server.advance(60_000);
    server.until(&id, "Ready").await;
    assert_eq!(server.claim("w-2").await["attempt"], 2);
}

async fn a_late_final_fail_withdraws_the_retry(server: Server) {
    let (id, job) = expired(&server, json!({})).await;
    server.until(&id, "Scheduled").await;
    let answer = server.fail("w-1", &job, fatal()).await.ok();
    assert_eq!(answer, json!({"ok": true, "ack": true, "requeued": false, "dlq": true}));
    let task = server.task(&id).await;
    assert_eq!((&task["state"], &task["reason"]), (&json!("Failed"), &json!("non_retryable")));
    server.advance(3_600_000);
    assert!(server.claim("w-2").await.is_null());
}

async fn after_another_claim_a_report_is_evidence_only(server: Server) {
    let (id, old) = expired(&server, json!({"retry": {"initial_backoff_ms": 0}})).await;
    server.until(&id, "Ready").await;
    let new = server.claim("w-2").await;
    assert_eq!(new["attempt"], 2);
    let refused = server.complete("w-1", &old, json!({"from": "old"})).await.refused(409);
    assert_eq!((&refused["error"], &refused["ack"]), (&json!("stale_attempt"), &json!(true)));
    assert_eq!((&refused["ok"], &refused["status"]), (&json!(false), &json!("RUNNING")));
    assert!(refused["message"].as_str().unwrap().contains("attempt 2"), "{refused}");
    let refused = server.heartbeat("w-1", &old).await.refused(409);
    assert_eq!((&refused["error"], &refused["ack"]), (&json!("stale_attempt"), &json!(true)));
    // The new holder is untouched.
    assert_eq!(server.heartbeat("w-2", &new).await.ok()["ok"], true);
    let attempts = server.attempts(&id).await;
    assert_eq!(attempts.len(), 2);
    let late = &attempts[0]["late_report"];
    assert_eq!((&late["outcome"], &late["result"]), (&json!("Succeeded"), &json!({"from": "old"})));
    assert!(late["received_at"].as_str().unwrap().ends_with('Z'));
    assert_eq!(attempts[0]["reason"], "HEARTBEAT_TIMEOUT");
    assert_eq!(server.complete("w-2", &new, json!({"from": "new"})).await.ok()["ok"], true);
    assert_eq!(server.task(&id).await["result"], json!({"from": "new"}));
    let refused = server.complete("w-1", &old, json!({"from": "old"})).await.refused(409);
    assert_eq!((&refused["error"], &refused["status"]), (&json!("stale_attempt"), &json!("COMPLETED")));
    assert_eq!(server.task(&id).await["result"], json!({"from": "new"}));
}

async fn more_late_reports_are_counted(server: Server) {
    let (id, old) = expired(&server, json!({"retry": {"initial_backoff_ms": 0}})).await;
    server.until(&id, "Ready").await;
    server.claim("w-2").await;
    server.fail("w-1", &old, fatal()).await.refused(409);
    server.complete("w-1", &old, json!(1)).await.refused(409);
    server.complete("w-1", &old, json!(2)).await.refused(409);
    let late = server.attempts(&id).await[0]["late_report"].clone();
    assert_eq!((&late["outcome"], &late["error"]["code"]), (&json!("Failed"), &json!("BAD_INPUT")));
    assert_eq!(late["more"], 2);
    assert_eq!(server.state(&id).await, "Running");
}

async fn a_late_report_of_a_cancelled_task_is_refused(server: Server) {
    let (id, job) = expired(&server, json!({})).await;
    server.until(&id, "Scheduled").await;
    server.post(&format!("/api/v1/tasks/{id}/cancel"), json!({"reason": "enough"})).await.ok();
    let refused = server.complete("w-1", &job, json!({"rows": 1})).await.refused(409);
    assert_eq!((&refused["error"], &refused["status"]), (&json!("attempt_closed"), &json!("CANCELLED")));
    assert_eq!(refused["ack"], true);
    let task = server.task(&id).await;
    assert_eq!((&task["state"], &task["cancel_reason"]), (&json!("Canceled"), &json!("enough")));
    assert_eq!(server.attempts(&id).await[0]["late_report"]["result"], json!({"rows": 1}));
}

async fn a_late_report_after_the_deadline_is_refused(server: Server) {
    let deadline = server.engine.now().await.unwrap().plus(10_000).to_string();
    let (id, job) = expired(&server, json!({"deadline": deadline, "retry": {"initial_backoff_ms": 0}})).await;
    server.until(&id, "Ready").await;
    server.advance(5_000);
    server.until(&id, "Failed").await;
    let refused = server.complete("w-1", &job, json!({"rows": 1})).await.refused(409);
    assert_eq!((&refused["error"], &refused["status"]), (&json!("attempt_closed"), &json!("DLQ")));
    assert_eq!(server.state(&id).await, "Failed");
    assert_eq!(server.attempts(&id).await[0]["late_report"]["result"], json!({"rows": 1}));
}

async fn each_status_is_told_in_the_words_of_the_contract(server: Server) {
    let told = async |job: &Value| {
        let refused = server.heartbeat("w-1", job).await.refused(409);
        [&refused["error"], &refused["status"]].map(|word| word.as_str().unwrap().to_owned())
    };
    let (id, job) = expired(&server, json!({})).await;
    server.until(&id, "Scheduled").await;
    assert_eq!(told(&job).await, ["lease_expired", "QUEUED"]);
    server.advance(60_000);
    server.until(&id, "Ready").await;
    assert_eq!(told(&job).await, ["lease_expired", "QUEUED"]);
    let again = server.claim("w-2").await;
    assert_eq!(told(&job).await, ["stale_attempt", "RUNNING"]);
    server.complete("w-2", &again, json!({})).await.ok();
    assert_eq!(told(&again).await, ["attempt_closed", "COMPLETED"]);

    server.submit(json!({})).await;
    let job = server.claim("w-1").await;
    server.fail("w-1", &job, fatal()).await.ok();
    assert_eq!(told(&job).await, ["attempt_closed", "DLQ"]);

    let id = server.submit(json!({})).await;
    let job = server.claim("w-1").await;
    server.post(&format!("/api/v1/tasks/{id}/cancel"), json!({"mode": "immediate"})).await.ok();
    assert_eq!(told(&job).await, ["attempt_closed", "CANCELLED"]);

    server.put("/api/v1/queues/q", json!({"dead_letter": false})).await.ok();
    server.submit(json!({})).await;
    let job = server.claim("w-1").await;
    let answer = server.fail("w-1", &job, fatal()).await.ok();
    assert_eq!(answer, json!({"ok": true, "ack": true, "requeued": false, "dlq": false}));
    assert_eq!(told(&job).await, ["attempt_closed", "FAILED"]);

    // A wrong token says nothing about the message: it is still the live one.
    server.submit(json!({})).await;
    let mut job = server.claim("w-1").await;
    job["lease_token"] = json!("lt_wrong");
    assert_eq!(told(&job).await, ["stale_lease", "RUNNING"]);
    assert_eq!(server.heartbeat("w-1", &job).await.refused(409)["ack"], false);
    assert_eq!(server.complete("w-1", &job, json!({})).await.refused(409)["error"], "stale_lease");
}

async fn an_unswept_lease_is_judged_as_expired(server: Server) {
    // No wait for the reaper: whoever is first, the report is a late one and the task ends with it.
    let (id, job) = expired(&server, json!({})).await;
    assert_eq!(server.complete("w-1", &job, json!({})).await.ok(), json!({"ok": true, "ack": true}));
    assert_eq!(server.state(&id).await, "Succeeded");
    let (id, job) = expired(&server, json!({})).await;
    let answer = server.fail("w-1", &job, retryable()).await.ok();
    assert_eq!(answer, json!({"ok": true, "ack": true, "requeued": true, "dlq": false}));
    assert_eq!(server.state(&id).await, "Scheduled");
}
