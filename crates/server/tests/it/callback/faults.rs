//! One envelope for everything that is refused, and the order of the checks.

use reqwest::Method;
use serde_json::{Value, json};
use tenure_core::TaskId;
use tenure_engine::store::Fault;
use tenure_testkit::RawClient;

use crate::callback::worker::{Held, Plane, at_once};
use crate::cases;
use crate::harness::{Answer, SOON, Server, merge};

cases!(
    Server,
    on_sqlite: [
        every_refusal_has_the_one_envelope,
        the_order_of_the_checks,
        what_fails_inside_is_said_in_the_envelope,
        too_many_bad_tokens_are_slowed_down_in_the_envelope,
        what_workers_send_in_their_own_way_is_taken,
    ],
    on_both_stores: [sizes_are_refused_or_cut, a_store_that_is_away_is_said_in_the_envelope],
);

/// Checks the envelope and gives its word.
#[track_caller]
fn word(answer: &Answer, status: u16) -> String {
    assert_eq!(answer.status.as_u16(), status, "{}", answer.body);
    assert_eq!(answer.header("X-Tenure-Contract"), "callback/1");
    let body = answer.body.as_object().unwrap();
    assert_eq!(body["requestId"], answer.header("X-Request-ID"));
    assert!(!body["message"].as_str().unwrap().is_empty());
    assert!(body["retryable"].is_boolean() && body.values().all(|value| !value.is_null()), "{body:?}");
    body["error"].as_str().unwrap().to_owned()
}

async fn raw(plane: &Plane, held: &Held, call: &str, content_type: Option<&str>, body: &'static str) -> Answer {
    let bearer = format!("Bearer {}", held.token);
    let mut headers = vec![("Authorization", bearer.as_str())];
    headers.extend(content_type.map(|value| ("Content-Type", value)));
    plane.server.send(&format!("/v1/tasks/{}/{call}", held.grant.task), &headers, body).await
}

async fn every_refusal_has_the_one_envelope(server: Server) {
    let plane = Plane::new(server).await;
    let held = plane.dispatched(json!({})).await;
    let json_type = Some("application/json; charset=utf-8");
    for (content_type, body, status, expected, field) in [
        (None, "{}", 415, "unsupported_media_type", None),
        (Some("text/plain"), "{}", 415, "unsupported_media_type", None),
        (json_type, "{", 400, "malformed_request", None),
        (json_type, "", 400, "malformed_request", None),
        // Also behind a field at fault.
        (json_type, "{\"attempt\":\"x\",", 400, "malformed_request", None),
        (json_type, "{} junk", 400, "malformed_request", None),
        (json_type, "[", 400, "malformed_request", None),
        (json_type, "{\"workerId\":\"w\"}", 422, "invalid_argument", Some("attempt")),
        (json_type, "{\"attempt\":0,\"workerId\":\"w\"}", 422, "invalid_argument", Some("attempt")),
        (json_type, "{\"attempt\":-1,\"workerId\":\"w\"}", 422, "invalid_argument", Some("attempt")),
        (json_type, "{\"attempt\":1}", 422, "invalid_argument", Some("workerId")),
        (json_type, "{\"attempt\":1,\"workerId\":\"\"}", 422, "invalid_argument", Some("workerId")),
        (json_type, "{\"attempt\":1,\"workerId\":\"w\",\"attemptId\":\"x\"}", 409, "attempt_id_mismatch", None),
        (json_type, "{\"attempt\":1,\"workerId\":\"w\",\"attemptId\":[]}", 422, "invalid_argument", Some("attemptId")),
        (json_type, "[1]", 422, "invalid_argument", Some("body")),
    ] {
        for call in ["started", "heartbeat"] {
            let answer = raw(&plane, &held, call, content_type, body).await;
            assert_eq!(word(&answer, status), expected, "{call} {body}");
            assert_eq!(answer.body.get("field").and_then(Value::as_str), field, "{call} {body}");
        }
    }
    for (call, extra, field) in [
        ("heartbeat", json!({"progressPct": 101}), "progressPct"),
        ("heartbeat", json!({"progressPct": -1}), "progressPct"),
        ("heartbeat", json!({"heartbeatAt": "yesterday"}), "heartbeatAt"),
        ("started", json!({"startedAt": "10:00"}), "startedAt"),
        ("completed", json!({}), "outcome"),
        ("completed", json!({"outcome": "DONE"}), "outcome"),
        ("completed", json!({"outcome": "FAILED", "error": {"category": "OTHER", "message": ""}}), "error.category"),
        ("completed", json!({"outcome": "FAILED", "error": ["USER_CODE", "m", null, true]}), "error"),
        ("completed", json!({"outcome": "SUCCEEDED", "metrics": [1, 2]}), "metrics"),
    ] {
        let answer = plane.call(&held, call, extra).await;
        assert_eq!((word(&answer, 422), &answer.body["field"]), ("invalid_argument".to_owned(), &json!(field)));
    }
    let path = format!("/v1/tasks/{}", held.grant.task);
    let unknown = plane.call_at(&format!("{path}/paused"), &held.token, json!({})).await;
    assert_eq!(word(&unknown, 404), "not_found");
    let method = plane.server.get(&format!("{path}/started")).await;
    assert_eq!(word(&method, 405), "method_not_allowed");
    // None of it has bound the attempt.
    assert_eq!(plane.task(&held).await.get("worker_id"), None);
    // A good token for a task that is not there.
    let mut gone = held.grant.clone();
    gone.task = TaskId::from_u128(gone.task.as_u128() ^ (1 << 100));
    let path = format!("/v1/tasks/{}/started", gone.task);
    let answer = plane.call_at(&path, &plane.token(&gone, 3600), held.body(json!({}))).await;
    assert_eq!(word(&answer, 404), "task_not_found");
}

async fn the_order_of_the_checks(server: Server) {
    let plane = Plane::new(server).await;
    let first = plane.dispatched(at_once(3)).await;
    let other = plane.dispatched(json!({})).await;
    let path = |held: &Held, call: &str| format!("/v1/tasks/{}/{call}", held.grant.task);
    // The token comes before the body, and its task before everything else.
    let answer = plane.call_at(&path(&first, "started"), &other.token, json!("no object")).await;
    assert_eq!(word(&answer, 401), "invalid_token");
    assert!(answer.body.get("state").is_none(), "{}", answer.body);
    let malformed = plane.call_at("/v1/tasks/no-id/started", &first.token, json!({})).await;
    assert_eq!(word(&malformed, 401), "invalid_token");
    let none = plane.server.call(Method::POST, &path(&first, "started"), &[], Some(&json!({}))).await;
    assert_eq!(word(&none, 401), "invalid_token");

    plane.call(&first, "completed", json!({"outcome": "FAILED"})).await.ok();
    let second = plane.dispatch().await;
    let stale = plane.call(&first, "heartbeat", json!({})).await;
    assert_eq!(word(&stale, 409), "attempt_mismatch");
    let early = plane.call(&second, "started", json!({"attempt": 3})).await;
    assert_eq!(word(&early, 409), "attempt_mismatch");
    let wrong_id = json!({"attemptId": first.grant.attempt_id.to_string()});
    let answer = plane.call(&second, "started", wrong_id).await;
    assert_eq!(word(&answer, 409), "attempt_id_mismatch");
    assert_eq!(answer.body["expectedAttemptId"], second.grant.attempt_id.to_string());
    assert_eq!(answer.body["receivedAttemptId"], first.grant.attempt_id.to_string());
    for (sent, shown) in [(json!("x"), "x"), (json!(""), ""), (json!(7), "7"), (json!(true), "true")] {
        for call in ["started", "heartbeat", "completed"] {
            let body = json!({"attemptId": sent, "outcome": "SUCCEEDED"});
            let answer = plane.call(&second, call, body).await;
            assert_eq!(word(&answer, 409), "attempt_id_mismatch", "{call} {sent}");
            assert_eq!(answer.body["expectedAttemptId"], second.grant.attempt_id.to_string());
            assert_eq!(answer.body["receivedAttemptId"], shown);
        }
    }
    let old_token = plane.call_at(&path(&first, "started"), &first.token, first.body(json!({"attempt": 2}))).await;
    assert_eq!(word(&old_token, 401), "invalid_token");

    plane.started(&second).await;
    let thief = plane.call(&second, "heartbeat", json!({"workerId": "thief"})).await;
    assert_eq!(word(&thief, 409), "attempt_already_started");
    plane.succeeded(&second).await.ok();
    for (call, status, expected) in [("started", 409, "task_already_terminal"), ("heartbeat", 410, "task_expired")] {
        let answer = plane.call(&second, call, json!({})).await;
        assert_eq!((word(&answer, status), &answer.body["state"]), (expected.to_owned(), &json!("SUCCEEDED")));
    }
}

async fn sizes_are_refused_or_cut(server: Server) {
    let plane = Plane::new(server).await;
    let held = plane.dispatched(json!({"max_attempts": 1})).await;
    let big = "x".repeat((1 << 20) + 1);
    for (extra, field) in [
        (json!({"outcome": "SUCCEEDED", "output": big}), "output"),
        (json!({"outcome": "FAILED", "partialProgress": [big]}), "partialProgress"),
    ] {
        let answer = plane.call(&held, "completed", extra).await;
        assert_eq!((word(&answer, 413), &answer.body["field"]), ("payload_too_large".to_owned(), &json!(field)));
    }
    // Size comes before shape.
    for shape in [json!({"attempt": 0}), json!({"attempt": "x"}), json!({"outcome": "DONE"}), json!({"workerId": ""})] {
        let mut extra = json!({"outcome": "SUCCEEDED", "result": big});
        merge(&mut extra, shape);
        let answer = plane.call(&held, "completed", extra).await;
        assert_eq!((word(&answer, 413), &answer.body["field"]), ("payload_too_large".to_owned(), &json!("output")));
    }
    let (path, token) = (format!("/v1/tasks/{}/completed", held.grant.task), &held.token);
    let mut client = RawClient::connect(&plane.server.url).await;
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        (4 << 20) + 1
    );
    client.send(head).await.unwrap();
    let answer = client.read_until("requestId", SOON).await;
    assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("payload_too_large"), "{answer}");
    // A client that reads only after it has sent everything gets the answer as well, and can go on.
    let body = " ".repeat(24 << 20);
    let mut client = RawClient::connect(&plane.server.url).await;
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    client.send(head).await.unwrap();
    client.send(body).await.unwrap();
    let answer = client.read_until("requestId", SOON).await;
    assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("payload_too_large"), "{answer}");
    client.send("GET /api/v1/live HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    client.read_until("HTTP/1.1 200", SOON).await;
    plane.call(&held, "heartbeat", json!({"message": "é".repeat(4096)})).await.ok();
    assert_eq!(plane.task(&held).await["progress_message"].as_str().unwrap(), "é".repeat(2048));
    let error = json!({"category": "USER_CODE", "message": "m", "stackTrace": "é".repeat(64 << 10)});
    plane.call(&held, "completed", json!({"outcome": "FAILED", "error": error})).await.ok();
    let stack = plane.attempts(&held).await[0]["error"]["stack"].as_str().unwrap().to_owned();
    assert_eq!(stack, "é".repeat(32 << 10));
    let again = plane.call(&held, "completed", json!({"outcome": "FAILED", "error": error})).await.ok();
    assert_eq!(again["disposition"], "duplicate", "what was cut compares equal");
}

async fn a_store_that_is_away_is_said_in_the_envelope(server: Server) {
    let plane = Plane::new(server).await;
    let held = plane.dispatched(json!({})).await;
    plane.server.engine.begin_shutdown();
    plane.server.engine.shutdown().await;
    let answer = plane.call(&held, "started", json!({})).await;
    assert_eq!(word(&answer, 503), "store_unavailable");
    assert_eq!((&answer.body["retryable"], answer.header("Retry-After")), (&json!(true), "1"));
    assert!(answer.body["retryAfterMs"].as_u64().unwrap() > 0);
}

async fn what_fails_inside_is_said_in_the_envelope(server: Server) {
    let plane = Plane::new(server).await;
    let held = plane.dispatched(json!({})).await;
    for call in ["started", "heartbeat", "completed"] {
        plane.server.engine.store().faults().fail_in("load", Fault::Panic);
        let answer = plane.call(&held, call, json!({"outcome": "SUCCEEDED"})).await;
        assert!(!plane.server.engine.store().faults().clear(), "{call}: the fault was met");
        assert_eq!(word(&answer, 500), "internal");
        assert_eq!((&answer.body["retryable"], answer.header("Retry-After")), (&json!(true), "1"));
        assert_eq!(answer.body["retryAfterMs"], 1000);
        plane.call(&held, call, json!({"outcome": "SUCCEEDED"})).await.ok();
    }
}

async fn too_many_bad_tokens_are_slowed_down_in_the_envelope(server: Server) {
    let plane = Plane::new(server).await;
    let held = plane.dispatched(json!({})).await;
    let access = &plane.server.config.access;
    let mut strict = (*access.get()).clone();
    strict.failed_auth_per_minute = 1;
    access.set(strict);
    let path = format!("/v1/tasks/{}/started", held.grant.task);
    assert_eq!(word(&plane.call_at(&path, "wrong", held.body(json!({}))).await, 401), "invalid_token");
    let answer = plane.call_at(&path, "wrong", held.body(json!({}))).await;
    assert_eq!((word(&answer, 429), &answer.body["retryable"]), ("rate_limited".to_owned(), &json!(true)));
    assert!(answer.body["retryAfterMs"].as_u64().unwrap() > 0 && !answer.header("Retry-After").is_empty());
    // Others behind the same address are let in.
    plane.started(&held).await;
}

async fn what_workers_send_in_their_own_way_is_taken(server: Server) {
    let plane = Plane::new(server).await;
    let mut held = plane.dispatched(json!({"max_attempts": 1})).await;
    held.worker = "host 1/42".to_owned();
    plane.started(&held).await;
    for (sent, shown) in [(json!(45.9), 45), (json!(100.0), 100), (json!(0), 0)] {
        plane.call(&held, "heartbeat", json!({"progressPct": sent})).await.ok();
        assert_eq!(plane.task(&held).await["progress_pct"], shown);
    }
    for outside in [json!(100.1), json!(-0.1), json!(1e300), json!("7")] {
        assert_eq!(
            word(&plane.call(&held, "heartbeat", json!({"progressPct": outside})).await, 422),
            "invalid_argument"
        );
    }
    let metrics = json!({"cpuTimeMs": 45_000.7, "peakMemoryBytes": 1e9, "ioReadBytes": null, "gpuSeconds": 3});
    let negative = json!({"outcome": "FAILED", "metrics": {"cpuTimeMs": -1}});
    let refused = plane.call(&held, "completed", negative).await;
    assert_eq!((word(&refused, 422), &refused.body["field"]), ("invalid_argument".into(), &json!("metrics.cpuTimeMs")));
    assert!(refused.body["message"].as_str().unwrap().contains("not negative"), "{}", refused.body);
    let end = json!({"outcome": "FAILED", "error": {"category": "DATA_QUALITY"}, "metrics": metrics});
    plane.call(&held, "completed", end).await.ok();
    let attempt = &plane.attempts(&held).await[0];
    assert_eq!(attempt["callback"]["metrics"], json!({"cpuTimeMs": 45_001, "peakMemoryBytes": 1_000_000_000}));
    assert_eq!((&attempt["category"], &attempt["error"]["message"]), (&json!("DATA_QUALITY"), &json!("")));
    assert_eq!(attempt["worker_id"], "host 1/42");
}
