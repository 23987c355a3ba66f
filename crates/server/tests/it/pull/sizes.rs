//! How large things may be, and what happens to senders that lie about it.

use serde_json::json;
use tenure_testkit::RawClient;

use crate::cases;
use crate::harness::{SOON, Server, TOKEN};

cases!(
    Server,
    on_sqlite: [
        a_result_may_have_one_mebibyte,
        a_body_has_a_limit_of_its_own,
        a_body_without_a_length_is_counted_as_it_comes,
        a_content_length_that_lies_harms_nobody,
        deep_json_is_carried_like_any_other,
    ],
    on_both_stores: [a_payload_may_have_one_mebibyte, a_batch_may_have_thirty_two_mebibytes],
);

const LIMIT: usize = 1 << 20;

/// A JSON text of exactly so many bytes.
fn text(bytes: usize) -> String {
    "x".repeat(bytes - 2)
}

async fn a_payload_may_have_one_mebibyte(server: Server) {
    let id = server.submit(json!({"payload": text(LIMIT)})).await;
    assert_eq!(server.claim("w-1").await["payload"].as_str().unwrap().len(), LIMIT - 2);
    assert_eq!(server.task(&id).await["payload"].as_str().unwrap().len(), LIMIT - 2);
    let task = json!({"queue": "q", "operator": "op", "payload": text(LIMIT + 1)});
    let refused = server.post("/api/v1/tasks", task).await.refused(413);
    assert_eq!((&refused["error"], &refused["field"]), (&json!("payload_too_large"), &json!("payload")));
}

async fn a_result_may_have_one_mebibyte(server: Server) {
    let id = server.submit(json!({})).await;
    let job = server.claim("w-1").await;
    let refused = server.complete("w-1", &job, json!(text(LIMIT + 1))).await.refused(413);
    assert_eq!((&refused["error"], &refused["field"]), (&json!("payload_too_large"), &json!("result")));
    // The lease is untouched: the worker can send something smaller.
    assert_eq!(server.heartbeat("w-1", &job).await.ok()["ok"], true);
    server.complete("w-1", &job, json!(text(LIMIT))).await.ok();
    assert_eq!(server.task(&id).await["result"].as_str().unwrap().len(), LIMIT - 2);
}

/// Sends a head that announces so many bytes, and gives the answer to that alone.
async fn announce(server: &Server, path: &str, length: &str) -> String {
    let mut client = RawClient::connect(&server.url).await;
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nX-Worker-Token: {TOKEN}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    client.send(head).await.unwrap();
    client.read_until("request_id", SOON).await
}

async fn a_body_has_a_limit_of_its_own(server: Server) {
    for path in ["/api/v1/tasks", "/internal/worker/claim", "/internal/worker/complete", "/api/v1/tasks/x/cancel"] {
        let answer = announce(&server, path, &(2 * LIMIT + 1).to_string()).await;
        assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("payload_too_large"), "{path}: {answer}");
    }
}

async fn a_batch_may_have_thirty_two_mebibytes(server: Server) {
    for path in ["/api/v1/tasks/batch", "/internal/worker/exchange"] {
        let answer = announce(&server, path, &(32 * LIMIT + 1).to_string()).await;
        assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("payload_too_large"), "{path}: {answer}");
    }
    // Nearly as much is taken.
    let task = json!({"queue": "q", "operator": "op", "payload": text(LIMIT)});
    let answer = server.post("/api/v1/tasks/batch", json!({"tasks": vec![task; 31]})).await.ok();
    assert_eq!(answer["created"], 31);
}

async fn a_body_without_a_length_is_counted_as_it_comes(server: Server) {
    let mut client = RawClient::connect(&server.url).await;
    let head = "POST /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    client.send(head).await.unwrap();
    let chunk = format!("{:x}\r\n{}\r\n", LIMIT, "x".repeat(LIMIT));
    // The third one is beyond the limit; the server may hang up in the middle of it.
    for _ in 0..3 {
        if client.send(&chunk).await.is_err() {
            break;
        }
    }
    let answer = client.read_for(SOON).await;
    assert!(answer.text.starts_with("HTTP/1.1 413 ") || (answer.closed && answer.text.is_empty()), "{}", answer.text);
    assert_eq!(server.get("/api/v1/tasks").await.ok()["items"], json!([]));
}

async fn a_content_length_that_lies_harms_nobody(server: Server) {
    let body = json!({"queue": "q", "operator": "op"}).to_string();
    let head = |length: &str| {
        format!(
            "POST /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        )
    };
    // Too long, and then gone: nothing was submitted.
    let mut client = RawClient::connect(&server.url).await;
    client.send(head(&(body.len() + 100).to_string()) + &body).await.unwrap();
    drop(client);
    // Too short: what is left over is no request.
    let mut client = RawClient::connect(&server.url).await;
    client.send(head("10") + &body).await.unwrap();
    let answer = client.read_for(SOON).await;
    assert!(answer.closed && answer.text.starts_with("HTTP/1.1 400 "), "{}", answer.text);
    // No number, two numbers, a negative one, one beyond all bounds.
    for length in ["x", "-1", "10\r\nContent-Length: 20", "99999999999999999999999999"] {
        let mut client = RawClient::connect(&server.url).await;
        client.send(head(length) + &body).await.unwrap();
        let answer = client.read_for(SOON).await;
        assert!(answer.closed && answer.text.starts_with("HTTP/1.1 400 "), "{length}: {}", answer.text);
    }
    assert!(announce(&server, "/api/v1/tasks", "9999999999999").await.starts_with("HTTP/1.1 413 "));
    assert_eq!(server.get("/api/v1/tasks").await.ok()["items"], json!([]));
    server.submit(json!({})).await;
}

async fn deep_json_is_carried_like_any_other(server: Server) {
    let json = [("Content-Type", "application/json")];
    let deep = |inside: &str| format!("{}{inside}{}", "[".repeat(5_000), "]".repeat(5_000));
    let task =
        |inside: &str| format!(r#"{{"queue":"q","operator":"op","idempotency_key":"k","payload":{}}}"#, deep(inside));
    let first = server.send("/api/v1/tasks", &json, task("1")).await;
    assert_eq!(first.status.as_u16(), 201, "{}", first.body);
    let again = server.send("/api/v1/tasks", &json, task("1")).await;
    assert_eq!((again.status.as_u16(), &again.body["task_id"]), (200, &first.body["task_id"]));
    // Other content is other content, however deep it lies.
    let refused = server.send("/api/v1/tasks", &json, task("2")).await.refused(409);
    assert_eq!(refused["error"], "idempotency_conflict");
    // Where the server itself has to look inside, depth is refused and not followed.
    let claim = format!(r#"{{"worker_id":"w-1","streams":{}}}"#, deep("1"));
    let status = server.send("/internal/worker/claim", &json, claim).await.status.as_u16();
    assert!(status == 400 || status == 422, "{status}");
    let ignored = format!(r#"{{"worker_id":"w-1","streams":["none"],"max_wait_ms":0,"x":{}}}"#, deep("1"));
    server.send("/internal/worker/claim", &json, ignored).await.ok();
}
