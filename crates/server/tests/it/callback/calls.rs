//! Paths, headers, spellings, and who holds an attempt.

use reqwest::Method;
use serde_json::{Value, json};

use crate::callback::worker::{Plane, at_once};
use crate::cases;
use crate::harness::Server;

cases!(
    Server,
    on_sqlite: [
        both_prefixes_and_three_spellings_of_the_id_lead_to_one_task,
        bodies_in_either_spelling_are_taken,
        an_end_without_a_start_counts_as_both,
        what_a_worker_saved_is_handed_to_the_next_attempt,
        what_a_worker_measured_is_shown,
        what_a_stopping_worker_hands_back_costs_no_attempt,
        what_a_worker_logs_is_kept_with_its_attempt,
    ],
    on_both_stores: [an_attempt_runs_from_start_to_end, of_two_workers_that_start_one_attempt_one_gets_it],
);

async fn an_attempt_runs_from_start_to_end(server: Server) {
    let plane = Plane::new(server).await;
    let held = plane.dispatched(json!({})).await;
    assert_eq!(plane.task(&held).await["state"], "Running");
    let started = plane.call(&held, "started", json!({"startedAt": "2025-01-15T10:00:00Z"})).await;
    assert_eq!(started.header("X-Tenure-Contract"), "callback/1");
    assert!(!started.header("X-Request-ID").is_empty());
    let started = started.ok();
    assert_eq!((&started["acknowledged"], started.as_object().unwrap().len()), (&json!(true), 2));
    let beat = plane.call(&held, "heartbeat", json!({"progressPct": 45, "message": "part 5 of 10"})).await.ok();
    assert_eq!((&beat["acknowledged"], &beat["shouldCancel"]), (&json!(true), &json!(false)));
    let fields: Vec<&str> = beat.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(fields, ["acknowledged", "leaseExpiresAt", "serverTime", "shouldCancel"], "nothing is null");
    let task = plane.task(&held).await;
    assert_eq!((&task["progress_pct"], &task["progress_message"]), (&json!(45), &json!("part 5 of 10")));
    assert_eq!(task["worker_id"], "w-1");
    let done = plane.succeeded(&held).await.ok();
    assert_eq!((&done["finalState"], &done["disposition"]), (&json!("SUCCEEDED"), &json!("recorded")));
    let task = plane.task(&held).await;
    assert_eq!((&task["state"], &task["result"]), (&json!("Succeeded"), &json!({"rows": 7})));
}

async fn both_prefixes_and_three_spellings_of_the_id_lead_to_one_task(server: Server) {
    let plane = Plane::new(server).await;
    let held = plane.dispatched(json!({})).await;
    let task = held.grant.task;
    let ulid = task.to_ulid_text();
    let bare = ulid.strip_prefix("task_").unwrap();
    for id in [task.to_string(), ulid.clone(), bare.to_owned(), bare.to_lowercase()] {
        for prefix in ["/v1", "/api/v1"] {
            for scheme in ["bearer", "Bearer", "BEARER"] {
                let path = format!("{prefix}/tasks/{id}/heartbeat");
                let credential = format!("{scheme} {}", held.token);
                let headers = [("Authorization", credential.as_str())];
                let answer = plane.server.call(Method::POST, &path, &headers, Some(&held.body(json!({})))).await;
                assert_eq!(answer.header("X-Tenure-Contract"), "callback/1", "{path}");
                answer.ok();
            }
        }
    }
}

async fn bodies_in_either_spelling_are_taken(server: Server) {
    let plane = Plane::new(server).await;
    let held = plane.dispatched(json!({})).await;
    let path = |call: &str| format!("/v1/tasks/{}/{call}", held.grant.task);
    let id = held.grant.attempt_id.to_string();
    let snake = json!({"attempt": 1, "worker_id": "w-1", "attempt_id": id, "started_at": "2025-01-15T11:00:00+01:00"});
    plane.call_at(&path("started"), &held.token, snake).await.ok();
    let twice = json!({"attempt": 1, "worker_id": "w-1", "workerId": "w-1"});
    let refused = plane.call_at(&path("heartbeat"), &held.token, twice).await.refused(422);
    assert_eq!(refused["error"], "invalid_argument");
    let nulls = json!({"attempt": 1, "workerId": "w-1", "progressPct": null, "message": null, "unknown": 1});
    plane.call_at(&path("heartbeat"), &held.token, nulls).await.ok();
    let result = json!({"attempt": 1, "worker_id": "w-1", "outcome": "SUCCEEDED", "result": [1]});
    plane.call_at(&path("completed"), &held.token, result).await.ok();
    assert_eq!(plane.task(&held).await["result"], json!([1]));
}

async fn of_two_workers_that_start_one_attempt_one_gets_it(server: Server) {
    let plane = Plane::new(server).await;
    for _ in 0..5 {
        let held = plane.dispatched(json!({})).await;
        let start = |worker: &'static str| plane.call(&held, "started", json!({"workerId": worker}));
        let (a, b) = tokio::join!(start("a"), start("b"));
        let mut statuses = [a.status.as_u16(), b.status.as_u16()];
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 409]);
        let loser = if a.status.is_success() { b } else { a };
        assert_eq!(
            (&loser.body["error"], &loser.body["state"]),
            (&json!("attempt_already_started"), &json!("RUNNING"))
        );
    }
}

async fn an_end_without_a_start_counts_as_both(server: Server) {
    let plane = Plane::new(server).await;
    let held = plane.dispatched(json!({})).await;
    assert_eq!(plane.succeeded(&held).await.ok()["disposition"], "recorded");
    let attempts = plane.attempts(&held).await;
    assert_eq!((&attempts[0]["worker_id"], &attempts[0]["state"]), (&json!("w-1"), &json!("Succeeded")));
}

async fn what_a_worker_saved_is_handed_to_the_next_attempt(server: Server) {
    let plane = Plane::new(server).await;
    let first = plane.dispatched(at_once(3)).await;
    plane.call(&first, "heartbeat", json!({"checkpoint": {"part": 5}})).await.ok();
    plane.call(&first, "completed", json!({"outcome": "FAILED"})).await.ok();
    let second = plane.dispatch().await;
    assert_eq!(second.grant.checkpoint.as_deref(), Some("{\"part\":5}"));
    let failed = json!({"outcome": "FAILED", "partialProgress": {"recordsProcessed": 500_000}});
    plane.call(&second, "completed", failed).await.ok();
    let third = plane.dispatch().await;
    let saved: Value = serde_json::from_str(third.grant.checkpoint.as_deref().unwrap()).unwrap();
    assert_eq!(saved, json!({"recordsProcessed": 500_000}));
}

async fn what_a_stopping_worker_hands_back_costs_no_attempt(server: Server) {
    let plane = Plane::new(server).await;
    let first = plane.dispatched(json!({"max_attempts": 1})).await;
    plane.started(&first).await;
    let error = json!({"category": "INFRASTRUCTURE", "message": "stopped", "handedBack": true});
    let end = plane.call(&first, "completed", json!({"outcome": "FAILED", "error": error})).await.ok();
    assert_eq!((&end["finalState"], &end["disposition"]), (&json!("FAILED"), &json!("recorded")));
    assert_eq!(plane.attempts(&first).await[0]["reason"], "HANDED_BACK");
    let second = plane.dispatch().await;
    plane.succeeded(&second).await.ok();
    assert_eq!(plane.task(&second).await["state"], "Succeeded");
}

async fn what_a_worker_measured_is_shown(server: Server) {
    let plane = Plane::new(server).await;
    let held = plane.dispatched(json!({})).await;
    plane.call(&held, "started", json!({"startedAt": "2025-01-15T10:00:00Z"})).await.ok();
    let metrics = json!({"cpuTimeMs": 45_000, "peakMemoryBytes": 2_147_483_648_u64});
    let end = json!({"outcome": "CANCELLED", "cancelledDuringPhase": "processing", "metrics": metrics,
        "completedAt": "2025-01-15T10:15:00Z", "partialProgress": {"lastCheckpoint": "partition-5"}});
    plane.call(&held, "completed", end).await.ok();
    let attempt = &plane.attempts(&held).await[0];
    let callback = &attempt["callback"];
    assert_eq!(callback["metrics"], metrics);
    assert_eq!(
        (&callback["worker_started_at"], &callback["worker_completed_at"]),
        (&json!("2025-01-15T10:00:00Z"), &json!("2025-01-15T10:15:00Z"))
    );
    assert_eq!(callback["cancelled_during_phase"], "processing");
    assert_eq!(callback["partial_progress"], json!({"lastCheckpoint": "partition-5"}));
    assert_eq!(callback["deliveries"], 1);
    let task = plane.task(&held).await;
    assert_eq!((&task["state"], &task["cancel_reason"]), (&json!("Canceled"), &json!("worker_initiated")));
}

async fn what_a_worker_logs_is_kept_with_its_attempt(server: Server) {
    let plane = Plane::new(server).await;
    let first = plane.dispatched(at_once(2)).await;
    plane.started(&first).await;
    let logs = async || plane.server.get(&format!("/api/v1/tasks/{}/logs", first.grant.task)).await.ok();
    let said = json!({"lines": [{"stream": "stderr", "text": "one"}, {"text": format!("mine is {}", first.token)}], "dropped": 2});
    let answer = plane.call(&first, "logs", said.clone()).await;
    assert_eq!(answer.header("X-Tenure-Contract"), "callback/1");
    assert_eq!(answer.ok(), json!({"acknowledged": true}));
    // Of another worker, another attempt, or another id: never a reason to fail, and not kept.
    let stale = json!({"acknowledged": false, "error": "stale_attempt"});
    for other in [json!({"workerId": "w-2"}), json!({"attempt": 2}), json!({"attemptId": "another"})] {
        let mut body = said.clone();
        crate::harness::merge(&mut body, other);
        assert_eq!(plane.call(&first, "logs", body).await.ok(), stale);
    }
    plane.call(&first, "logs", json!({"lines": ["text"]})).await.refused(422);
    plane.call(&first, "logs", json!({"lines": vec![json!({"text": ""}); 1_001]})).await.refused(422);
    plane
        .call(&first, "completed", json!({"outcome": "FAILED", "error": {"category": "USER_CODE", "message": "m"}}))
        .await
        .ok();
    assert_eq!(plane.call(&first, "logs", said.clone()).await.ok(), stale, "the attempt is over");
    let second = plane.dispatch().await;
    plane.started(&second).await;
    plane.call(&second, "logs", json!({"lines": [{"text": "again"}]})).await.ok();
    assert_eq!(plane.call(&first, "logs", said).await.ok(), stale, "another attempt runs");
    let shown = logs().await;
    let lines = shown["items"].as_array().unwrap().iter();
    let lines: Vec<Value> = lines.map(|line| json!([line["attempt"], line["stream"], line["text"]])).collect();
    let expected = json!([
        [1, "log", "[2 lines were dropped by the worker]"],
        [1, "stderr", "one"],
        [1, "log", "mine is ***"],
        [2, "log", "again"]
    ]);
    assert_eq!(json!(lines), expected, "{shown}");
}
