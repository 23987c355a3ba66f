//! When a failed task runs again, and when it does not.

use serde_json::{Value, json};

use crate::cases;
use crate::harness::{Server, between, fatal, retryable};

cases!(
    Server,
    on_sqlite: [
        backoff_grows_by_the_factor_up_to_the_maximum,
        full_jitter_is_stable_and_within_its_bounds,
        the_code_decides_when_retryable_is_absent,
        a_queue_without_dead_letters_only_fails_its_tasks,
        only_failed_and_cancelled_tasks_are_retried,
        long_texts_of_an_error_are_cut,
        a_checkpoint_is_handed_to_the_next_attempt,
    ],
    on_both_stores: [what_a_stopping_worker_gives_back_costs_no_attempt],
    everywhere: [the_budget_ends_in_the_dead_letters, a_retry_by_hand_grows_the_budget],
);

/// Fails attempt after attempt and gives how long each had to wait for the next.
async fn waits(server: &Server, retry: Value, error: Value, attempts: usize) -> Vec<i64> {
    let id = server.submit(json!({"retry": retry, "max_attempts": attempts + 1})).await;
    let mut waits = Vec::new();
    for n in 0..attempts {
        let job = server.claim("w-1").await;
        assert_eq!(job["attempt"], json!(n + 1));
        assert_eq!(server.fail("w-1", &job, error.clone()).await.ok()["requeued"], true);
        let (task, attempt) = (server.task(&id).await, server.attempts(&id).await.pop().unwrap());
        waits.push(between(&attempt["ended_at"], &task["run_at"]));
        server.advance(waits[n]);
        server.until(&id, "Ready").await;
    }
    let job = server.claim("w-1").await;
    server.complete("w-1", &job, json!({})).await.ok();
    waits
}

async fn backoff_grows_by_the_factor_up_to_the_maximum(server: Server) {
    let policy = json!({"initial_backoff_ms": 1_000, "factor": 3, "max_backoff_ms": 20_000, "jitter": "none"});
    assert_eq!(waits(&server, policy.clone(), retryable(), 4).await, [1_000, 3_000, 9_000, 20_000]);
    // A time-out waits twice as long, within the same maximum.
    let timeout = json!({"code": "TIMEOUT", "message": "too slow"});
    assert_eq!(waits(&server, policy, timeout, 4).await, [2_000, 6_000, 18_000, 20_000]);
    let defaults = json!({"jitter": "none"});
    assert_eq!(waits(&server, defaults, retryable(), 3).await, [5_000, 10_000, 20_000]);
}

async fn full_jitter_is_stable_and_within_its_bounds(server: Server) {
    let id = server.submit(json!({"max_attempts": 2})).await;
    let job = server.claim("w-1").await;
    server.fail("w-1", &job, retryable()).await.ok();
    let attempt = &server.attempts(&id).await[0];
    let found = between(&attempt["ended_at"], &server.task(&id).await["run_at"]);
    // The rule of the notes, computed by itself: SHA-256 of the id and the number of the attempt.
    let task = tenure_core::TaskId::parse(&id).unwrap();
    let expected = tenure_core::retry::RetryPolicy::default().backoff_ms(task, 1, false);
    assert_eq!(found, expected);
    assert!((0..=5_000).contains(&found));
}

async fn the_code_decides_when_retryable_is_absent(server: Server) {
    for (error, requeued, dlq) in [
        (json!({"code": "HTTP_503", "message": "m"}), true, false),
        (json!({"code": "ANYTHING", "message": "m"}), true, false),
        (json!({"code": "DATA_QUALITY", "message": "m"}), false, true),
        (json!({"code": "CONFIGURATION", "message": "m"}), false, true),
        (json!({"code": "DATA_QUALITY", "message": "m", "retryable": true}), true, false),
        (json!({"code": "HTTP_503", "message": "m", "retryable": false}), false, true),
        (json!({"code": "HTTP_503", "message": "m", "retryable": null, "stack": null}), true, false),
    ] {
        let id = server.submit(json!({"retry": {"initial_backoff_ms": 3_600_000, "jitter": "none"}})).await;
        let job = server.claim("w-1").await;
        let answer = server.fail("w-1", &job, error.clone()).await.ok();
        assert_eq!(answer, json!({"ok": true, "ack": true, "requeued": requeued, "dlq": dlq}), "{error}");
        if dlq {
            assert_eq!(server.task(&id).await["reason"], "non_retryable");
        }
    }
}

async fn the_budget_ends_in_the_dead_letters(server: Server) {
    let id = server.submit(json!({"max_attempts": 2, "retry": {"initial_backoff_ms": 0}})).await;
    let job = server.claim("w-1").await;
    assert_eq!(server.fail("w-1", &job, retryable()).await.ok()["requeued"], true);
    let job = server.claim("w-1").await;
    let last = server.fail("w-1", &job, retryable()).await.ok();
    assert_eq!(last, json!({"ok": true, "ack": true, "requeued": false, "dlq": true}));
    let task = server.task(&id).await;
    assert_eq!((&task["state"], &task["reason"]), (&json!("Failed"), &json!("max_attempts")));
    assert_eq!((&task["attempt"], &task["max_attempts"]), (&json!(2), &json!(2)));
    let dead = server.get("/api/v1/dead-letters").await.ok();
    let expected = json!({
        "task_id": id, "queue": "q", "operator": "op", "reason": "max_attempts", "last_error": retryable(),
        "attempts": 2, "redrive_count": 0, "dead_lettered_at": task["dead_lettered_at"],
    });
    assert_eq!(dead, json!({"items": [expected], "next_cursor": null}));
}

async fn a_queue_without_dead_letters_only_fails_its_tasks(server: Server) {
    server.put("/api/v1/queues/q", json!({"dead_letter": false})).await.ok();
    let id = server.submit(json!({})).await;
    let job = server.claim("w-1").await;
    assert_eq!(server.fail("w-1", &job, fatal()).await.ok()["dlq"], false);
    let task = server.task(&id).await;
    assert_eq!((&task["state"], &task["reason"]), (&json!("Failed"), &json!("non_retryable")));
    assert!(task.get("dead_lettered_at").is_none());
    assert_eq!(server.get("/api/v1/dead-letters").await.ok()["items"], json!([]));
}

async fn a_retry_by_hand_grows_the_budget(server: Server) {
    let id = server.submit(json!({"max_attempts": 2, "retry": {"initial_backoff_ms": 0}})).await;
    for _ in 0..2 {
        let job = server.claim("w-1").await;
        server.fail("w-1", &job, retryable()).await.ok();
    }
    let answer = server.post(&format!("/api/v1/tasks/{id}/retry"), json!({})).await.ok();
    assert_eq!(answer, json!({"task_id": id, "state": "Ready", "attempt": 2, "max_attempts": 4}));
    assert_eq!(server.get("/api/v1/dead-letters").await.ok()["items"], json!([]));
    for (attempt, requeued) in [(3, true), (4, false)] {
        let job = server.claim("w-1").await;
        assert_eq!((&job["attempt"], &job["fence"]), (&json!(attempt), &json!(attempt)));
        assert_eq!(server.fail("w-1", &job, retryable()).await.ok()["requeued"], requeued);
    }
}

async fn only_failed_and_cancelled_tasks_are_retried(server: Server) {
    let ready = server.submit(json!({"queue": "other"})).await;
    let later = server.submit(json!({"delay_ms": 60_000})).await;
    let running = server.submit(json!({})).await;
    server.claim("w-1").await;
    let done = server.submit(json!({})).await;
    let job = server.claim("w-1").await;
    server.complete("w-1", &job, json!({})).await.ok();
    for id in [&ready, &later, &running, &done] {
        let before = server.task(id).await;
        let refused = server.post(&format!("/api/v1/tasks/{id}/retry"), json!({})).await.refused(409);
        assert_eq!((&refused["error"], &refused["code"]), (&json!("task_not_retryable"), &json!("CONFLICT")));
        assert_eq!(server.task(id).await, before);
    }
    server.post("/api/v1/tasks/018c385a-9fb1-9509-0e89-33fe3b7b1aa9/retry", json!({})).await.refused(404);
}

async fn long_texts_of_an_error_are_cut(server: Server) {
    let id = server.submit(json!({})).await;
    let job = server.claim("w-1").await;
    // Two bytes a character: a cut in the middle of one would break the text.
    let error = json!({"code": "LONG", "message": "ä".repeat(5_000), "stack": "ö".repeat(100_000), "retryable": false});
    let first = server.fail("w-1", &job, error.clone()).await.ok();
    let kept = server.task(&id).await["error"].clone();
    assert_eq!(kept["message"].as_str().unwrap().len(), 4 << 10);
    assert_eq!(kept["stack"].as_str().unwrap().len(), 64 << 10);
    // The same report, long as it is, is still a replay.
    assert_eq!(server.fail("w-1", &job, error).await.ok(), first);
    // A text that Postgres could not keep is no reason to fail.
    let id = server.submit(json!({})).await;
    let job = server.claim("w-1").await;
    server.fail("w-1", &job, json!({"code": "N\u{0}L", "message": "a\u{0}b", "retryable": false})).await.ok();
    assert_eq!(server.task(&id).await["error"]["message"], "a\u{fffd}b");
}

async fn a_checkpoint_is_handed_to_the_next_attempt(server: Server) {
    server.submit(json!({"retry": {"initial_backoff_ms": 0}})).await;
    let job = server.claim("w-1").await;
    assert!(job.get("previous_progress").is_none());
    let beat = json!({"worker_id": "w-1", "job_id": job["job_id"], "lease_token": job["lease_token"], "checkpoint": {"row": 7}});
    server.worker("heartbeat", beat).await.ok();
    // A heartbeat without one leaves it alone.
    server.heartbeat("w-1", &job).await.ok();
    server.fail("w-1", &job, retryable()).await.ok();
    let again = server.claim("w-1").await;
    assert_eq!((&again["attempt"], &again["previous_progress"]), (&json!(2), &json!({"row": 7})));
    let big = json!({"worker_id": "w-1", "job_id": again["job_id"], "lease_token": again["lease_token"], "checkpoint": "x".repeat(65_537)});
    assert_eq!(server.worker("heartbeat", big).await.refused(422)["field"], "checkpoint");
}

async fn what_a_stopping_worker_gives_back_costs_no_attempt(server: Server) {
    let id = server.submit(json!({"max_attempts": 1})).await;
    let error = json!({"code": "WORKER_SHUTDOWN", "message": "stopped", "handed_back": true});
    for n in 1..=10 {
        let job = server.claim("w-1").await;
        let answer = server.fail("w-1", &job, error.clone()).await.ok();
        assert_eq!((&answer["requeued"], &answer["dlq"]), (&json!(true), &json!(false)), "{n}");
        assert_eq!(server.fail("w-1", &job, error.clone()).await.ok(), answer, "a replay");
        let task = server.task(&id).await;
        assert_eq!((&task["state"], &task["max_attempts"]), (&json!("Ready"), &json!(1 + n)), "{n}");
    }
    let attempt = server.attempts(&id).await.pop().unwrap();
    assert_eq!((&attempt["reason"], &attempt["error"]["handed_back"]), (&json!("HANDED_BACK"), &json!(true)));
    let job = server.claim("w-1").await;
    assert_eq!(server.fail("w-1", &job, error).await.ok()["dlq"], true, "a task that outlives every worker ends");
}
