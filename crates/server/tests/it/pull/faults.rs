//! What is wrong with a request, in the words of each contract.

use reqwest::Method;
use serde_json::{Value, json};

use crate::cases;
use crate::harness::{Answer, Server, TOKEN, fatal, report};

cases!(
    Server,
    on_sqlite: [
        errors_of_the_user_api_have_their_shape,
        errors_of_the_worker_api_have_their_shape,
        each_row_of_the_error_table,
        checks_run_in_their_order,
        unknown_paths_and_methods_answer_in_the_style_of_their_api,
        bodies_that_are_no_json_are_malformed,
        bodies_of_another_type_are_unsupported,
        ranges_of_a_claim_are_checked,
        wrong_types_name_their_field,
    ],
);

const UNKNOWN: &str = "018c385a-9fb1-9509-0e89-33fe3b7b1aa9";
const JSON: [(&str, &str); 1] = [("Content-Type", "application/json")];

fn fields(body: &Value) -> Vec<&str> {
    body.as_object().unwrap_or_else(|| panic!("{body}")).keys().map(String::as_str).collect()
}

/// Checks the shape of an error of the user API and gives its class and its word.
#[track_caller]
fn user_error(answer: &Answer, status: u16) -> [String; 2] {
    assert_eq!(answer.status.as_u16(), status, "{}", answer.body);
    let body = &answer.body;
    let mut expected = vec!["code", "detail", "error", "message", "request_id"];
    if status == 422 || body["error"] == "payload_too_large" && body.get("field").is_some() {
        expected.insert(3, "field");
    }
    assert_eq!(fields(body), expected, "{body}");
    assert_eq!(body["request_id"], answer.header("X-Request-ID"));
    assert!(!body["message"].as_str().unwrap().is_empty());
    ["code", "error"].map(|field| body[field].as_str().unwrap().to_owned())
}

/// Checks the shape of an error of the worker API and gives its word.
#[track_caller]
fn worker_error(answer: &Answer, status: u16) -> String {
    assert_eq!(answer.status.as_u16(), status, "{}", answer.body);
    let body = &answer.body;
    let mut expected = vec!["error", "message", "ok", "request_id"];
    if status == 409 {
        expected.extend(["ack", "status"]);
    }
    if status == 422 || body["error"] == "payload_too_large" && body.get("field").is_some() {
        expected.push("field");
    }
    expected.sort_unstable();
    assert_eq!(fields(body), expected, "{body}");
    assert_eq!((&body["ok"], &body["request_id"]), (&json!(false), &json!(answer.header("X-Request-ID"))));
    body["error"].as_str().unwrap().to_owned()
}

async fn errors_of_the_user_api_have_their_shape(server: Server) {
    let task = |extra: Value| {
        let mut task = json!({"queue": "q", "operator": "op"});
        crate::harness::merge(&mut task, extra);
        task
    };
    let answer = server.get(&format!("/api/v1/tasks/{UNKNOWN}")).await;
    assert_eq!(user_error(&answer, 404), ["NOT_FOUND", "task_not_found"]);
    let answer = server.get("/api/v1/queues/none").await;
    assert_eq!(user_error(&answer, 404), ["NOT_FOUND", "queue_not_found"]);
    let answer = server.post("/api/v1/tasks", json!({})).await;
    assert_eq!(user_error(&answer, 422), ["BAD_REQUEST", "invalid_argument"]);
    let answer = server.send("/api/v1/tasks", &JSON, "{").await;
    assert_eq!(user_error(&answer, 400), ["BAD_REQUEST", "malformed_request"]);
    let answer = server.send("/api/v1/tasks", &[], "{}").await;
    assert_eq!(user_error(&answer, 415), ["BAD_REQUEST", "unsupported_media_type"]);
    let answer = server.post("/api/v1/tasks", task(json!({"payload": "x".repeat(1 << 20)}))).await;
    assert_eq!(user_error(&answer, 413), ["RESOURCE_LIMIT", "payload_too_large"]);
    server.post("/api/v1/tasks", task(json!({"idempotency_key": "k"}))).await.ok();
    let answer = server.post("/api/v1/tasks", task(json!({"idempotency_key": "k", "priority": 1}))).await;
    assert_eq!(user_error(&answer, 409), ["CONFLICT", "idempotency_conflict"]);
    let answer = server.call(Method::DELETE, "/api/v1/tasks", &[], None).await;
    assert_eq!(user_error(&answer, 405), ["BAD_REQUEST", "method_not_allowed"]);
}

async fn errors_of_the_worker_api_have_their_shape(server: Server) {
    let job =
        json!({"job_id": UNKNOWN, "attempt_id": "att_1", "lease_token": "lt_1", "stream": "q", "message_id": "1"});
    assert_eq!(worker_error(&server.complete("w-1", &job, json!({})).await, 404), "job_not_found");
    assert_eq!(worker_error(&server.worker("claim", json!({})).await, 422), "invalid_argument");
    server.submit(json!({})).await;
    let job = server.claim("w-1").await;
    server.complete("w-1", &job, json!(1)).await.ok();
    assert_eq!(worker_error(&server.complete("w-1", &job, json!(2)).await, 409), "conflicting_completion");
    assert_eq!(worker_error(&server.heartbeat("w-1", &job).await, 409), "attempt_closed");
}

async fn each_row_of_the_error_table(server: Server) {
    let token = [("X-Worker-Token", TOKEN), ("X-Worker-ID", "w-1")];
    let retry = json!({"initial_backoff_ms": 0});
    let id = server.submit(json!({"lease_ttl_seconds": 5, "retry": retry})).await;
    let old = server.claim("w-1").await;
    let path = "/internal/worker/complete";
    // 400, 415, 422
    assert_eq!(worker_error(&server.send(path, &JSON, "{\"worker_id\":").await, 400), "malformed_request");
    assert_eq!(
        worker_error(&server.send(path, &[("Content-Type", "text/plain")], "{}").await, 415),
        "unsupported_media_type"
    );
    assert_eq!(worker_error(&server.send(path, &JSON, "{}").await, 422), "invalid_argument");
    // 401
    let body = report("w-1", &old);
    assert_eq!(worker_error(&server.call(Method::POST, path, &[], Some(&body)).await, 401), "missing_worker_token");
    let wrong = [("X-Worker-Token", "wrong")];
    assert_eq!(worker_error(&server.call(Method::POST, path, &wrong, Some(&body)).await, 401), "invalid_worker_token");
    // 403
    let other = report("w-2", &old);
    assert_eq!(worker_error(&server.call(Method::POST, path, &token, Some(&other)).await, 403), "worker_mismatch");
    // 404
    let mut unknown = old.clone();
    unknown["job_id"] = json!(UNKNOWN);
    for call in ["heartbeat", "complete", "fail"] {
        let mut body = report("w-1", &unknown);
        body["error"] = fatal();
        assert_eq!(worker_error(&server.worker(call, body).await, 404), "job_not_found");
    }
    unknown["job_id"] = json!("no id of ours");
    assert_eq!(worker_error(&server.heartbeat("w-1", &unknown).await, 404), "job_not_found");
    // 409
    let mut stale = old.clone();
    stale["lease_token"] = json!("lt_wrong");
    for answer in [
        server.heartbeat("w-1", &stale).await,
        server.complete("w-1", &stale, json!({})).await,
        server.fail("w-1", &stale, fatal()).await,
    ] {
        assert_eq!(worker_error(&answer, 409), "stale_lease");
    }
    server.advance(5_000);
    assert_eq!(worker_error(&server.heartbeat("w-1", &old).await, 409), "lease_expired");
    server.until(&id, "Ready").await;
    let new = server.claim("w-1").await;
    for answer in [
        server.heartbeat("w-1", &old).await,
        server.complete("w-1", &old, json!({})).await,
        server.fail("w-1", &old, fatal()).await,
    ] {
        assert_eq!(worker_error(&answer, 409), "stale_attempt");
    }
    // An attempt that was never granted is as stale as one that was.
    let mut never = new.clone();
    never["attempt_id"] = json!("att_00000000000000000000000001");
    assert_eq!(worker_error(&server.complete("w-1", &never, json!({})).await, 409), "stale_attempt");
    server.complete("w-1", &new, json!({})).await.ok();
    assert_eq!(worker_error(&server.heartbeat("w-1", &new).await, 409), "attempt_closed");
    assert_eq!(worker_error(&server.complete("w-1", &new, json!(1)).await, 409), "conflicting_completion");
    // 413
    let big = server.complete("w-1", &new, json!("x".repeat(1 << 20))).await;
    assert_eq!(worker_error(&big, 413), "payload_too_large");
}

async fn checks_run_in_their_order(server: Server) {
    server.submit(json!({})).await;
    let job = server.claim("w-1").await;
    let path = "/internal/worker/complete";
    let call =
        async |headers: &[(&str, &str)], body: &Value| server.call(Method::POST, path, headers, Some(body)).await;
    let as_w1 = [("X-Worker-Token", TOKEN), ("X-Worker-ID", "w-1")];
    // Identity before the request's own faults.
    assert_eq!(worker_error(&call(&[("X-Worker-Token", "wrong")], &json!({})).await, 401), "invalid_worker_token");
    // Those before the mismatch of names, which comes before the unknown job.
    let mut empty = report("w-2", &job);
    empty["attempt_id"] = json!("");
    assert_eq!(worker_error(&call(&as_w1, &empty).await, 422), "invalid_argument");
    let mut unknown = report("w-2", &job);
    unknown["job_id"] = json!(UNKNOWN);
    assert_eq!(worker_error(&call(&as_w1, &unknown).await, 403), "worker_mismatch");
    unknown["worker_id"] = json!("w-1");
    assert_eq!(worker_error(&call(&as_w1, &unknown).await, 404), "job_not_found");
    // The receipt comes before the refusals.
    server.complete("w-1", &job, json!({})).await.ok();
    server.advance(3_600_000);
    assert_eq!(server.complete("w-1", &job, json!({})).await.ok(), json!({"ok": true, "ack": true}));
}

async fn unknown_paths_and_methods_answer_in_the_style_of_their_api(server: Server) {
    for path in ["/", "/nothing", "/api/v1", "/api/v1/nothing", "/api/v2/tasks", "/api/v1/tasks/a/b/c", "/internal"] {
        let answer = server.get(path).await;
        assert_eq!(user_error(&answer, 404), ["NOT_FOUND", "not_found"], "{path}");
    }
    for (method, path) in [
        (Method::DELETE, "/api/v1/tasks"),
        (Method::PUT, "/api/v1/tasks/batch"),
        (Method::GET, "/api/v1/tasks/x/cancel"),
        (Method::POST, "/api/v1/queues"),
        (Method::PATCH, "/api/v1/queues"),
        (Method::POST, "/api/v1/health"),
    ] {
        let answer = server.call(method, path, &[], None).await;
        assert_eq!(user_error(&answer, 405), ["BAD_REQUEST", "method_not_allowed"], "{path}");
    }
    for path in ["/internal/worker/", "/internal/worker/claims", "/internal/worker/claim/now"] {
        assert_eq!(worker_error(&server.call(Method::POST, path, &[], None).await, 404), "not_found", "{path}");
    }
    for method in [Method::GET, Method::PUT, Method::DELETE] {
        assert_eq!(
            worker_error(&server.call(method, "/internal/worker/claim", &[], None).await, 405),
            "method_not_allowed"
        );
    }
}

async fn bodies_that_are_no_json_are_malformed(server: Server) {
    for text in [
        "",
        "{",
        "nul",
        "{\"worker_id\":\"w\"}}",
        "{'worker_id':'w'}",
        "\u{feff}{}",
        "{\"worker_id\":\"\\ud800\"}",
        "{\"worker_id\": NaN}",
    ] {
        assert_eq!(
            worker_error(&server.send("/internal/worker/claim", &JSON, text).await, 400),
            "malformed_request",
            "{text}"
        );
        let answer = server.send("/api/v1/tasks", &JSON, text.replace("worker_id", "queue")).await;
        assert_eq!(user_error(&answer, 400), ["BAD_REQUEST", "malformed_request"], "{text}");
    }
    // Bytes that are no UTF-8.
    let bytes = b"{\"worker_id\":\"\xff\xfe\"}".to_vec();
    assert_eq!(worker_error(&server.send("/internal/worker/claim", &JSON, bytes).await, 400), "malformed_request");
}

async fn bodies_of_another_type_are_unsupported(server: Server) {
    let body = json!({"worker_id": "w-1", "streams": ["q"], "max_wait_ms": 0}).to_string();
    let claim = "/internal/worker/claim";
    for media in ["text/plain", "application/xml", "application/jsonp", "application/x-www-form-urlencoded"] {
        let answer = server.send(claim, &[("Content-Type", media)], body.clone()).await;
        assert_eq!(worker_error(&answer, 415), "unsupported_media_type", "{media}");
    }
    assert_eq!(worker_error(&server.send(claim, &[], body.clone()).await, 415), "unsupported_media_type");
    for media in
        ["application/json", "Application/JSON", "application/json; charset=utf-8", "application/json;charset=utf-8"]
    {
        server.send(claim, &[("Content-Type", media)], body.clone()).await.ok();
    }
}

async fn ranges_of_a_claim_are_checked(server: Server) {
    let claim = |extra: Value| {
        let mut claim = json!({"worker_id": "w-1", "streams": ["q"], "max_wait_ms": 0});
        crate::harness::merge(&mut claim, extra);
        claim
    };
    for (extra, field) in [
        (json!({"max_jobs": 0}), "max_jobs"),
        (json!({"max_jobs": -1}), "max_jobs"),
        (json!({"max_jobs": 101}), "max_jobs"),
        (json!({"max_jobs": 1e300}), "max_jobs"),
        (json!({"max_wait_ms": -1}), "max_wait_ms"),
        (json!({"max_wait_ms": 60_001}), "max_wait_ms"),
        (json!({"max_wait_ms": "5000"}), "max_wait_ms"),
        (json!({"worker_id": ""}), "worker_id"),
        (json!({"worker_id": "w".repeat(257)}), "worker_id"),
        (json!({"worker_id": "w\u{0}"}), "worker_id"),
        (json!({"claim_id": ""}), "claim_id"),
        (json!({"claim_id": "c".repeat(129)}), "claim_id"),
        (json!({"incarnation": "i".repeat(65)}), "incarnation"),
        (json!({"streams": ["q", ""]}), "streams[1]"),
    ] {
        let answer = server.worker("claim", claim(extra.clone())).await;
        assert_eq!(worker_error(&answer, 422), "invalid_argument", "{extra}");
        assert_eq!(answer.body["field"], field, "{extra}");
    }
    for extra in [json!({"max_jobs": 1}), json!({"max_jobs": 100}), json!({"worker_id": "w".repeat(256)})] {
        server.worker("claim", claim(extra)).await.ok();
    }
    // The upper end of the wait is fine too; a job cuts it short.
    server.submit(json!({})).await;
    server.worker("claim", claim(json!({"max_wait_ms": 60_000}))).await.ok();
}

async fn wrong_types_name_their_field(server: Server) {
    for (call, body, field) in [
        ("claim", json!({"worker_id": 1, "streams": ["q"]}), "worker_id"),
        ("claim", json!({"worker_id": "w", "streams": "q"}), "streams"),
        ("claim", json!({"worker_id": "w", "streams": ["q", 7]}), "streams[1]"),
        ("claim", json!([]), "body"),
        ("heartbeat", json!({"worker_id": "w", "job_id": "j"}), "lease_token"),
        (
            "heartbeat",
            json!({"worker_id": "w", "job_id": "j", "lease_token": "t", "progress_pct": 101}),
            "progress_pct",
        ),
        ("heartbeat", json!({"worker_id": "w", "job_id": "", "lease_token": "t"}), "job_id"),
        ("complete", json!({"worker_id": "w", "job_id": UNKNOWN, "attempt_id": "a", "lease_token": ""}), "lease_token"),
        ("complete", json!({"worker_id": "w", "job_id": 7, "attempt_id": "a", "lease_token": "t"}), "job_id"),
        ("fail", json!({"worker_id": "w", "job_id": UNKNOWN, "attempt_id": "a", "lease_token": "t"}), "error"),
        (
            "fail",
            json!({"worker_id": "w", "job_id": UNKNOWN, "attempt_id": "a", "lease_token": "t", "error": "x"}),
            "error",
        ),
        (
            "fail",
            json!({"worker_id": "w", "job_id": UNKNOWN, "attempt_id": "a", "lease_token": "t", "error": {"message": "m"}}),
            "error.code",
        ),
        (
            "fail",
            json!({"worker_id": "w", "job_id": UNKNOWN, "attempt_id": "a", "lease_token": "t", "error": {"code": "", "message": "m"}}),
            "error.code",
        ),
        (
            "fail",
            json!({"worker_id": "w", "job_id": UNKNOWN, "attempt_id": "a", "lease_token": "t", "error": ["C", "m"]}),
            "error",
        ),
        (
            "complete",
            json!({"worker_id": "w", "job_id": UNKNOWN, "attempt_id": "a", "lease_token": "t", "metrics": []}),
            "metrics",
        ),
        ("exchange", json!({"worker_id": "w", "complete": {}}), "complete"),
        ("exchange", json!({"worker_id": "w", "complete": [["j", "a", "t"]]}), "complete[0]"),
        ("exchange", json!({"worker_id": "w", "claim": [["q"]]}), "claim"),
        ("exchange", json!({"worker_id": "w", "complete": [{"job_id": "j"}]}), "complete[0].attempt_id"),
    ] {
        let answer = server.worker(call, body.clone()).await;
        assert_eq!(worker_error(&answer, 422), "invalid_argument", "{call} {body}");
        assert_eq!(answer.body["field"], field, "{call} {body}");
    }
}
