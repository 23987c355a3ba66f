//! The first report of an attempt counts, and its answer is given again for as long as the task is kept.

use serde_json::{Value, json};

use crate::cases;
use crate::harness::{Server, fatal, later, report, retryable};

cases!(
    Server,
    on_sqlite: [
        a_repeated_fail_gets_the_same_answer,
        a_repeated_final_fail_gets_the_same_answer_after_a_redrive,
        equal_json_in_another_order_is_a_replay,
        a_replay_needs_the_token,
        a_late_report_has_a_receipt_too,
        a_report_without_a_result_is_replayed_only_without_one,
    ],
    everywhere: [
        a_repeated_complete_gets_the_same_answer,
        other_content_is_a_conflict_and_changes_nothing,
        what_attempts_used_is_in_their_history_and_does_not_make_a_report_another,
    ],
);

async fn what_attempts_used_is_in_their_history_and_does_not_make_a_report_another(server: Server) {
    let with = |job: &Value, part: &str, content: Value, metrics: Value| {
        let mut sent = report("w-1", job);
        sent[part] = content;
        sent["metrics"] = metrics;
        sent
    };
    let id = server.submit(json!({"retry": {"initial_backoff_ms": 0}})).await;
    let one = server.claim("w-1").await;
    let used = json!({"cpu_time_ms": 250, "peak_memory_bytes": 1_048_576});
    server.worker("fail", with(&one, "error", retryable(), used.clone())).await.ok();
    let two = server.claim("w-1").await;
    let first = server.worker("complete", with(&two, "result", json!(1), json!({"cpu_time_ms": 7}))).await.ok();
    let again = with(&two, "result", json!(1), json!({"cpu_time_ms": 8}));
    assert_eq!(server.worker("complete", again).await.ok(), first);
    let server = server.restart().await;
    let attempts = server.attempts(&id).await;
    assert_eq!((&attempts[0]["metrics"], &attempts[1]["metrics"]), (&used, &json!({"cpu_time_ms": 7})));
    let three = server.submit(json!({})).await;
    let job = server.claim("w-1").await;
    server.complete("w-1", &job, json!(null)).await.ok();
    assert_eq!(server.attempts(&three).await[0]["metrics"], Value::Null);
}

async fn a_repeated_complete_gets_the_same_answer(server: Server) {
    let id = server.submit(json!({})).await;
    let job = server.claim("w-1").await;
    let first = server.complete("w-1", &job, json!({"rows": 10})).await.ok();
    assert_eq!(first, json!({"ok": true, "ack": true}));
    assert_eq!(server.complete("w-1", &job, json!({"rows": 10})).await.ok(), first);
    // Long after the lease would have ended.
    server.advance(600_000);
    assert_eq!(server.complete("w-1", &job, json!({"rows": 10})).await.ok(), first);
    let server = server.restart().await;
    assert_eq!(server.complete("w-1", &job, json!({"rows": 10})).await.ok(), first);
    assert_eq!(server.attempts(&id).await.len(), 1);
    assert_eq!(server.task(&id).await["result"], json!({"rows": 10}));
}

async fn a_repeated_fail_gets_the_same_answer(server: Server) {
    let id = server.submit(json!({"retry": {"initial_backoff_ms": 0}})).await;
    let one = server.claim("w-1").await;
    let first = server.fail("w-1", &one, retryable()).await.ok();
    assert_eq!(first, json!({"ok": true, "ack": true, "requeued": true, "dlq": false}));
    assert_eq!(server.fail("w-1", &one, retryable()).await.ok(), first);
    let server = server.restart().await;
    assert_eq!(server.fail("w-1", &one, retryable()).await.ok(), first);
    // While the next attempt runs, and when it has ended.
    let two = server.claim("w-2").await;
    assert_eq!(two["attempt"], 2);
    assert_eq!(server.fail("w-1", &one, retryable()).await.ok(), first);
    server.complete("w-2", &two, json!(null)).await.ok();
    assert_eq!(server.fail("w-1", &one, retryable()).await.ok(), first);
    assert_eq!(server.task(&id).await["state"], "Succeeded");
    assert_eq!(server.attempts(&id).await.len(), 2);
}

async fn a_repeated_final_fail_gets_the_same_answer_after_a_redrive(server: Server) {
    let id = server.submit(json!({})).await;
    let one = server.claim("w-1").await;
    let first = server.fail("w-1", &one, fatal()).await.ok();
    assert_eq!(first, json!({"ok": true, "ack": true, "requeued": false, "dlq": true}));
    assert_eq!(server.fail("w-1", &one, fatal()).await.ok(), first);
    server.post("/api/v1/dead-letters/redrive", json!({"filter": {"queue": "q"}})).await.ok();
    server.until(&id, "Ready").await;
    assert_eq!(server.fail("w-1", &one, fatal()).await.ok(), first);
    let two = server.claim("w-2").await;
    assert_eq!(two["attempt"], 2);
    let server = server.restart().await;
    assert_eq!(server.fail("w-1", &one, fatal()).await.ok(), first);
    assert_eq!(server.heartbeat("w-2", &two).await.ok()["ok"], true);
}

async fn equal_json_in_another_order_is_a_replay(server: Server) {
    server.submit(json!({})).await;
    let job = server.claim("w-1").await;
    let with = |result: &str| report("w-1", &job).to_string().replacen('{', &format!("{{\"result\":{result},"), 1);
    let headers = [("Content-Type", "application/json")];
    let path = "/internal/worker/complete";
    let first = server.send(path, &headers, with(r#"{"a":1,"b":{"c":[1,2],"d":"x"}}"#)).await.ok();
    for same in [r#"{"b":{"d":"x","c":[1,2]},"a":1}"#, r#"{ "a" : 1, "b" : {"d":"\u0078", "c":[1, 2]} }"#] {
        assert_eq!(server.send(path, &headers, with(same)).await.ok(), first, "{same}");
    }
    for other in [r#"{"a":1,"b":{"c":[2,1],"d":"x"}}"#, r#"{"a":1,"b":{"c":[1,2],"d":"x"},"e":null}"#, "null"] {
        let refused = server.send(path, &headers, with(other)).await.refused(409);
        assert_eq!(refused["error"], "conflicting_completion", "{other}");
    }
}

async fn other_content_is_a_conflict_and_changes_nothing(server: Server) {
    let id = server.submit(json!({})).await;
    let job = server.claim("w-1").await;
    server.complete("w-1", &job, json!({"rows": 10})).await.ok();
    let refused = server.complete("w-1", &job, json!({"rows": 11})).await.refused(409);
    assert_eq!(refused["error"], "conflicting_completion");
    assert_eq!((&refused["ok"], &refused["ack"]), (&json!(false), &json!(true)));
    assert_eq!(refused["status"], "COMPLETED");
    let refused = server.fail("w-1", &job, fatal()).await.refused(409);
    assert_eq!(refused["error"], "conflicting_completion");
    let task = server.task(&id).await;
    assert_eq!((&task["state"], &task["result"]), (&json!("Succeeded"), &json!({"rows": 10})));
    let attempts = server.attempts(&id).await;
    assert_eq!(attempts.len(), 1);
    let late = &attempts[0]["late_report"];
    assert_eq!(
        (&late["outcome"], &late["result"], &late["more"]),
        (&json!("Succeeded"), &json!({"rows": 11}), &json!(1))
    );

    // A fail likewise: another error, or a complete of the failed attempt.
    let id = server.submit(json!({"retry": {"initial_backoff_ms": 0}})).await;
    let job = server.claim("w-1").await;
    server.fail("w-1", &job, retryable()).await.ok();
    let refused = server.complete("w-1", &job, json!({})).await.refused(409);
    assert_eq!((&refused["error"], &refused["status"]), (&json!("conflicting_completion"), &json!("QUEUED")));
    let mut other = retryable();
    other["message"] = json!("other");
    let refused = server.fail("w-1", &job, other).await.refused(409);
    assert_eq!((&refused["error"], &refused["ack"]), (&json!("conflicting_completion"), &json!(true)));
    // The retry stands.
    assert_eq!(server.task(&id).await["state"], "Ready");
}

async fn a_replay_needs_the_token(server: Server) {
    server.submit(json!({})).await;
    let mut job = server.claim("w-1").await;
    server.complete("w-1", &job, json!(1)).await.ok();
    job["lease_token"] = json!("lt_00000000000000000000000000");
    let refused = server.complete("w-1", &job, json!(1)).await.refused(409);
    assert_eq!(refused["error"], "stale_lease");
}

async fn a_late_report_has_a_receipt_too(server: Server) {
    server.still().await;
    let id = server.submit(json!({"lease_ttl_seconds": 5, "retry": later()})).await;
    let job = server.claim("w-1").await;
    server.advance(6_000);
    server.until(&id, "Scheduled").await;
    let first = server.complete("w-1", &job, json!({"late": true})).await.ok();
    let server = server.restart().await;
    assert_eq!(server.complete("w-1", &job, json!({"late": true})).await.ok(), first);
    let refused = server.complete("w-1", &job, json!({"late": false})).await.refused(409);
    assert_eq!(refused["error"], "conflicting_completion");
}

async fn a_report_without_a_result_is_replayed_only_without_one(server: Server) {
    server.submit(json!({})).await;
    let job = server.claim("w-1").await;
    let bare = report("w-1", &job);
    let first = server.worker("complete", bare.clone()).await.ok();
    assert_eq!(server.worker("complete", bare).await.ok(), first);
    let refused = server.complete("w-1", &job, json!({})).await.refused(409);
    assert_eq!(refused["error"], "conflicting_completion");
}
