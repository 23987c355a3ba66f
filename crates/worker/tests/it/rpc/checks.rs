//! Each row of the check table, and that of two failures the earlier one answers.

use std::time::Duration;

use reqwest::StatusCode;
use serde_json::{Value, json};
use tenure_auth::worker::{Audience, MintRequest, Scope, SigningKey};
use tenure_auth::{WorkerAuth, WorkerKeys};
use tenure_worker::Exporter;

use super::kit::*;

const KEY: &str = "worker-signing-key-with-at-least-32-bytes";

fn keys() -> WorkerKeys {
    WorkerKeys { active: SigningKey::new(KEY), ..WorkerKeys::default() }
}

/// A token that grants only this.
fn narrow(scope: Scope) -> String {
    let now = jiff::Timestamp::now().as_second();
    let request =
        MintRequest { scopes: Some([scope].into_iter().collect()), ..MintRequest::new(WORKER, Audience::Rpc, now) };
    keys().mint(&request).unwrap().token.reveal().to_owned()
}

/// A failure that a request can have, and how it is answered.
struct Fault {
    row: u32,
    status: u16,
    code: &'static str,
    /// Starts of the message that peers know.
    starts: &'static str,
    apply: fn(&mut Sent),
}

struct Sent {
    verb: reqwest::Method,
    worker: String,
    token: String,
    body: Option<Vec<u8>>,
    envelope: Value,
}

fn faults() -> Vec<Fault> {
    let fault = |row, status, code, apply| Fault { row, status, code, starts: "", apply };
    vec![
        Fault { starts: "method not allowed", ..fault(1, 405, "BAD_REQUEST", |sent| sent.verb = reqwest::Method::PUT) },
        fault(2, 401, "UNAUTHORIZED", |sent| sent.worker = "worker-b".into()),
        fault(2, 401, "UNAUTHORIZED", |sent| sent.token = "wrong".into()),
        fault(2, 401, "UNAUTHORIZED", |sent| sent.token = String::new()),
        fault(3, 400, "BAD_REQUEST", |sent| sent.body = Some(b"[1]".to_vec())),
        fault(3, 400, "BAD_REQUEST", |sent| sent.body = Some(b"{\"id\":".to_vec())),
        fault(3, 400, "BAD_REQUEST", |sent| sent.body = Some(Vec::new())),
        fault(4, 403, "UNAUTHORIZED", |sent| sent.envelope["worker_id"] = json!("worker-b")),
        Fault {
            starts: "invalid worker message:",
            ..fault(5, 400, "invalid", |sent| sent.envelope["id"] = json!(" "))
        },
        Fault {
            starts: "unknown worker method:",
            ..fault(5, 400, "invalid", |sent| sent.envelope["method"] = json!("worker.dance"))
        },
        fault(6, 501, "invalid", |sent| sent.envelope["method"] = json!("worker.heartbeat")),
        fault(7, 403, "FORBIDDEN", |sent| sent.token = narrow(Scope::Logs)),
        fault(8, 400, "invalid", |sent| sent.envelope["params"]["ttl"] = json!("soon")),
        fault(8, 400, "invalid", |sent| drop(sent.envelope.as_object_mut().unwrap().remove("params"))),
        fault(8, 400, "invalid", |sent| drop(sent.envelope.as_object_mut().unwrap().remove("lease"))),
        // The worker drains, and has used this id for another request.
        fault(9, 409, "invalid", |sent| sent.envelope["id"] = json!("used")),
    ]
}

async fn draining_worker() -> Worker {
    let auth = WorkerAuth { keys: keys(), ..Options::default().auth };
    let worker = Worker::with(Options { auth, ..Options::default() }).await;
    let undrain = json!({"id": "used", "method": "worker.undrain", "worker_id": WORKER});
    assert_eq!(worker.send(&undrain).await.0, 200);
    worker.node.drain();
    worker
}

async fn sent(worker: &Worker, faults: &[&Fault]) -> (StatusCode, Value) {
    let mut envelope = worker.envelope("worker.spawn", spawn_params("sb-1"));
    // Rows 10 to 12 and 14: draining, a lease of another worker that has expired, and an unknown provider.
    envelope["lease"] = lease_of("sb-1", "worker-b", 1, -10);
    envelope["params"]["provider"] = json!("warp");
    let (verb, token) = (reqwest::Method::POST, TOKEN.to_owned());
    let mut sent = Sent { verb, worker: WORKER.into(), token, body: None, envelope };
    faults.iter().for_each(|fault| (fault.apply)(&mut sent));
    let mut request = worker.http.request(sent.verb, worker.url("/rpc")).header("x-worker-id", sent.worker);
    if !sent.token.is_empty() {
        request = request.header("x-worker-token", sent.token);
    }
    let body = sent.body.unwrap_or_else(|| sent.envelope.to_string().into_bytes());
    answer(request.body(body).send().await.unwrap()).await
}

fn assert_fault(fault: &Fault, status: StatusCode, body: &Value, also: u32) {
    let shown = format!("row {} (with row {also}): {status} {body}", fault.row);
    assert_eq!(status.as_u16(), fault.status, "{shown}");
    assert_eq!(body["code"], fault.code, "{shown}");
    let is_api_error = fault.code.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    let message = if is_api_error { &body["message"] } else { &body["error"] };
    assert!(message.as_str().unwrap().starts_with(fault.starts), "{shown}");
    assert_eq!(body.get("worker_id").is_some(), !is_api_error, "{shown}");
}

#[tokio::test]
async fn of_two_failures_the_earlier_row_answers() {
    let worker = draining_worker().await;
    let faults = faults();
    for first in &faults {
        let (status, body) = sent(&worker, &[first]).await;
        assert_fault(first, status, &body, 10);
        for second in faults.iter().filter(|second| second.row > first.row) {
            // A token can be missing or narrow, not both; an id blank or used.
            if (first.row, second.row) == (2, 7)
                || (first.row, second.row) == (5, 9)
                || (first.row, second.row) == (5, 6)
            {
                continue;
            }
            // Applied in reverse, so that what the first one sets stays.
            let (status, body) = sent(&worker, &[second, first]).await;
            assert_fault(first, status, &body, second.row);
        }
    }
}

#[tokio::test]
async fn the_rows_about_the_state_of_the_worker_come_in_order() {
    let worker = draining_worker().await;
    let spawn = |change: fn(&mut Value)| {
        let mut envelope = worker.envelope("worker.spawn", spawn_params("sb-1"));
        envelope["lease"] = lease_of("sb-1", "worker-b", 1, -10);
        envelope["params"]["provider"] = json!("warp");
        change(&mut envelope);
        envelope
    };
    let assert_row = async |envelope: Value, status: u16, code: &str| {
        let (found, body) = worker.send(&envelope).await;
        assert_eq!((found.as_u16(), body["code"].as_str()), (status, Some(code)), "{body}");
    };
    assert_row(spawn(|_| {}), 503, "draining").await;
    worker.node.undrain();
    assert_row(spawn(|_| {}), 403, "lease_stale").await;
    assert_row(spawn(|envelope| envelope["lease"] = lease_of("sb-2", WORKER, 1, -10)), 403, "lease_stale").await;
    assert_row(spawn(|envelope| envelope["lease"] = lease_of(" ", WORKER, 1, -10)), 403, "lease_stale").await;
    assert_row(spawn(|envelope| envelope["lease"] = lease_of("sb-1", WORKER, 1, -10)), 403, "lease_expired").await;
    assert_row(spawn(|envelope| envelope["lease"] = lease("sb-1", 1)), 404, "provider_unavailable").await;
    let status = worker.envelope("worker.status", json!({"sandbox_id": "sb-9", "provider": "mock"}));
    assert_row(status, 404, "not_found").await;
}

#[tokio::test]
async fn a_worker_without_providers_says_so() {
    let worker = Worker::with(Options { providers: false, ..Options::default() }).await;
    let (status, body) = worker.leased("worker.spawn", spawn_params("sb-1"), 1).await;
    assert_eq!((status.as_u16(), body["code"].as_str()), (503, Some("provider_unavailable")), "{body}");
    let (status, body) = worker
        .leased("worker.renew_lease", json!({"sandbox_id": "sb-1", "resource_id": "sb-1", "ttl": "60s"}), 1)
        .await;
    assert_eq!(
        (status.as_u16(), body["code"].as_str()),
        (503, Some("provider_unavailable")),
        "no control plane: {body}"
    );
}

#[tokio::test]
async fn health_needs_no_credential_and_everything_else_does() {
    let worker = Worker::start().await;
    let (status, body) = answer(worker.http.get(worker.url("/health")).send().await.unwrap()).await;
    assert_eq!((status.as_u16(), body), (200, json!({"status": "ok", "worker_id": WORKER})));
    for (verb, path) in [
        ("POST", "/rpc"),
        ("GET", "/rpc/files?sandbox_id=s&path=/a"),
        ("PUT", "/rpc/files?sandbox_id=s&path=/a"),
        ("GET", "/rpc/exec/ws"),
        ("GET", "/rpc/proxy/rt-1/80/"),
        ("GET", "/rpc/snapshots/snap-1"),
        ("PUT", "/rpc/snapshots/snap-1"),
    ] {
        let request = worker.http.request(verb.parse().unwrap(), worker.url(path));
        let (status, body) = answer(request.send().await.unwrap()).await;
        assert_eq!((status.as_u16(), body["code"].as_str()), (401, Some("UNAUTHORIZED")), "{verb} {path}: {body}");
    }
    let (status, _) = answer(worker.http.get(worker.url("/rpc")).send().await.unwrap()).await;
    assert_eq!(status.as_u16(), 405);
    let (status, _) = answer(worker.http.get(worker.url("/other")).send().await.unwrap()).await;
    assert_eq!(status.as_u16(), 404);
}

#[tokio::test]
async fn a_large_body_is_for_file_writes_only() {
    let worker = Worker::start().await;
    let mut envelope = worker.envelope("worker.status", json!({"sandbox_id": "s"}));
    envelope["padding"] = json!("x".repeat(4 << 20));
    let (status, body) = worker.send(&envelope).await;
    assert_eq!((status.as_u16(), body["code"].as_str()), (413, Some("invalid")), "{body}");
    assert_eq!(body["id"], envelope["id"]);
}

#[tokio::test]
async fn the_request_id_of_the_header_is_echoed() {
    let worker = Worker::start().await;
    let send = async |id: &str| {
        let request = worker.http.get(worker.url("/health")).header("x-request-id", id);
        request.send().await.unwrap().headers()["x-request-id"].to_str().unwrap().to_owned()
    };
    assert_eq!(send("req-7").await, "req-7");
    assert!(send("a b").await.starts_with("req-"), "what could break a log line is replaced");
}

#[tokio::test]
async fn calls_are_counted_by_method_and_outcome_and_can_be_read() {
    // This is the only test of the process that records metrics.
    let exporter = Exporter::bind("127.0.0.1:0").await.unwrap();
    let metrics = format!("http://{}/metrics", exporter.local_addr().unwrap());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let served = tokio::spawn(exporter.run(async move { drop(stopped.await) }));
    let worker = Worker::start().await;
    let runtime = worker.spawn("sb-1").await;
    worker.call("worker.status", json!({"sandbox_id": "sb-none"})).await;
    worker.call("worker.dance", json!({})).await;
    worker.post("/rpc").body("[]").send().await.unwrap();
    // Routes without an envelope.
    let file = worker.url("/rpc/files?sandbox_id=sb-1&provider=mock&path=/workspace/a");
    worker.signed(worker.http.put(&file)).body("hello").send().await.unwrap().error_for_status().unwrap();
    worker.signed(worker.http.get(&file)).send().await.unwrap().error_for_status().unwrap();
    worker.signed(worker.http.get(file.replace("/workspace/a", "/workspace/none"))).send().await.unwrap();
    worker.http.get(&file).send().await.unwrap();
    worker.signed(worker.http.post(&file)).send().await.unwrap();
    worker.signed(worker.http.get(worker.url("/rpc/exec/ws"))).send().await.unwrap();
    worker.signed(worker.http.get(worker.url("/rpc/snapshots/snap-none"))).send().await.unwrap();
    // Bound and not listening: nobody else gets it meanwhile.
    let bound = tokio::net::TcpSocket::new_v4().unwrap();
    bound.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = bound.local_addr().unwrap().port();
    worker.signed(worker.http.get(worker.url(&format!("/rpc/proxy/{runtime}/{port}/x")))).send().await.unwrap();

    let response = worker.http.get(&metrics).send().await.unwrap().error_for_status().unwrap();
    assert_eq!(response.headers()["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let text = response.text().await.unwrap();
    for (method, code) in [
        ("worker.spawn", "ok"),
        ("worker.status", "not_found"),
        ("unknown", "invalid"),
        ("unknown", "BAD_REQUEST"),
        ("files.write", "ok"),
        ("files.read", "ok"),
        ("files.read", "not_found"),
        ("files.read", "UNAUTHORIZED"),
        ("files.write", "BAD_REQUEST"),
        ("exec.ws", "BAD_REQUEST"),
        ("snapshots.get", "not_found"),
        ("proxy", "provider_unavailable"),
    ] {
        let labels = format!(r#"tenure_rpc_requests_total{{worker="{WORKER}",method="{method}",code="{code}"}}"#);
        assert!(text.contains(&labels), "{labels}\n{text}");
    }
    let bucket = format!(r#"tenure_rpc_duration_seconds_bucket{{worker="{WORKER}",method="files.read",le="+Inf"}} 3"#);
    assert!(text.contains(&bucket), "{bucket}\n{text}");
    // Nothing else is served there, and it ends when it is told to.
    assert_eq!(worker.http.get(metrics.replace("/metrics", "/rpc")).send().await.unwrap().status().as_u16(), 404);
    drop(stop);
    tokio::time::timeout(Duration::from_secs(10), served).await.unwrap().unwrap();
    assert!(worker.http.get(&metrics).send().await.is_err());
}
