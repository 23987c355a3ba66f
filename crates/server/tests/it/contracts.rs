//! Every route answers what goes wrong in the shape of its own contract.

use std::collections::{BTreeMap, BTreeSet};

use reqwest::Method;
use serde_json::{Value, json};
use tenure_auth::{Secret, UserAuth};
use tenure_engine::store::Fault;
use tenure_testkit::RawClient;

use crate::callback::worker::{Held, Plane};
use crate::harness::{SOON, Server, TOKEN, report};

const KEY: &str = "api-key-of-the-tests";

/// What a caller of any contract may send; each route reads its own.
fn credentials(held: &Held) -> [(&'static str, String); 3] {
    [
        ("X-Worker-Token", TOKEN.to_owned()),
        ("X-Admin-API-Key", KEY.to_owned()),
        ("Authorization", format!("Bearer {}", held.token)),
    ]
}

/// The contract that has to answer on a path, told from the texts of the contracts and not from the code.
fn contract_of(path: &str) -> &'static str {
    let callback = ["/started", "/heartbeat", "/completed"].iter().any(|call| path.ends_with(call));
    if path.starts_with("/internal/worker/") {
        "pull/1"
    } else if path.starts_with("/v1/tasks/") || path.starts_with("/api/v1/tasks/") && callback {
        "callback/1"
    } else if path.starts_with("/v1/task/")
        || path.starts_with("/internal/task-")
        || ["/internal/heartbeat", "/internal/events"].contains(&path)
    {
        "dispatch/1"
    } else {
        ""
    }
}

/// Whether a path belongs to sandboxes, told from the text of their contract.
pub fn is_of_sandboxes(path: &str) -> bool {
    let rest = path.strip_prefix("/api/v1/").unwrap_or_default();
    let mut parts = rest.trim_start_matches("admin/").split('/');
    let (first, third) = (parts.next().unwrap_or_default(), parts.nth(1).unwrap_or_default());
    match first {
        "metrics" => rest == "metrics" || rest.starts_with("admin/"),
        "tenants" => ["policies", "audit", "members"].contains(&third),
        "worker" => third != "token",
        _ => [
            "sandboxes",
            "snapshots",
            "templates",
            "pool",
            "providers",
            "workers",
            "quotas",
            "policies",
            "diagnostics",
            "system",
            "environments",
        ]
        .contains(&first),
    }
}

/// Checks that an answer has the shape of its contract, and notes its status.
struct Seen(BTreeMap<&'static str, BTreeSet<u16>>);

impl Seen {
    #[track_caller]
    fn check(&mut self, what: &str, path: &str, status: u16, named: &str, body: &Value) {
        let contract = contract_of(path);
        assert_eq!(named, contract, "{what} {path}: {body}");
        let fields: BTreeSet<&str> =
            body.as_object().unwrap_or_else(|| panic!("{what} {path}: {body}")).keys().map(String::as_str).collect();
        let (always, sometimes): (&[&str], &[&str]) = match contract {
            "pull/1" => (&["ok", "error", "message", "request_id"], &["ack", "status", "field"]),
            "callback/1" => (
                &["error", "message", "retryable", "requestId"],
                &["field", "retryAfterMs", "state", "expectedAttempt", "receivedAttempt"],
            ),
            "dispatch/1" => (&["error", "message", "detail", "request_id"], &[]),
            _ if is_of_sandboxes(path) => (&["code", "message", "request_id"], &["reason"]),
            _ => (&["code", "error", "message", "detail", "request_id"], &["field", "errors"]),
        };
        assert!(always.iter().all(|field| fields.contains(field)), "{what} {path}: {body}");
        let others: Vec<_> = fields.iter().filter(|name| !always.contains(name) && !sometimes.contains(name)).collect();
        assert!(others.is_empty(), "{what} {path}: {others:?} in {body}");
        self.0.entry(contract).or_default().insert(status);
    }

    async fn call(
        &mut self,
        what: &str,
        server: &Server,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<Value>,
    ) {
        let answer = server.call(method, path, headers, body.as_ref()).await;
        if !answer.status.is_success() {
            self.check(what, path, answer.status.as_u16(), answer.header("X-Tenure-Contract"), &answer.body);
        }
    }
}

async fn guarded() -> (Plane, Held) {
    let plane = Plane::new(Server::sqlite().await).await;
    let held = plane.dispatched(json!({})).await;
    let access = &plane.server.config.access;
    let mut strict = (*access.get()).clone();
    strict.users = UserAuth { enabled: true, admin_api_key: Secret::new(KEY), ..UserAuth::default() };
    access.set(strict);
    (plane, held)
}

/// The answer to a request that announces more than any route reads.
async fn too_large(server: &Server, method: &str, path: &str, credentials: &[(&str, String)]) -> (u16, String, Value) {
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n");
    for (name, value) in credentials {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("Content-Length: 1000000000\r\n\r\n");
    let mut client = RawClient::connect(&server.url).await;
    client.send(head).await.unwrap();
    let answer = client.read_until("}", SOON).await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let named = head.lines().find_map(|line| line.strip_prefix("x-tenure-contract: ")).unwrap_or_default();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, named.to_owned(), serde_json::from_str(body).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_route_answers_in_the_shape_of_its_contract() {
    let (plane, held) = guarded().await;
    let server = &plane.server;
    let sent = credentials(&held);
    let known: Vec<(&str, &str)> = sent.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let document: Value = serde_json::from_str(tenure_server::openapi::document()).unwrap();
    let mut seen = Seen(BTreeMap::new());
    for (route, operations) in document["paths"].as_object().unwrap() {
        let path = route
            .split('/')
            .map(|part| if part.starts_with('{') { held.grant.task.to_string() } else { part.to_owned() })
            .collect::<Vec<_>>()
            .join("/");
        let other = Method::from_bytes(b"PROPFIND").unwrap();
        seen.call("another method", server, other, &path, &known, None).await;
        seen.call("no such path", server, Method::POST, &format!("{path}/nothing"), &known, None).await;
        for (method, operation) in operations.as_object().unwrap() {
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            if operation.get("security").is_some() {
                seen.call("no credential", server, method.clone(), &path, &[], None).await;
            }
            if operation.get("requestBody").is_some() {
                seen.call("no object", server, method.clone(), &path, &known, Some(json!([1]))).await;
                let (status, named, body) = too_large(server, method.as_str(), &path, &sent).await;
                seen.check("too large", &path, status, &named, &body);
            }
        }
    }
    fail_inside(&plane, &held, &mut seen).await;
    for contract in ["pull/1", "callback/1", ""] {
        for status in [401, 404, 405, 413, 422, 500] {
            assert!(seen.0[contract].contains(&status), "{contract:?} never answered {status}: {:?}", seen.0);
        }
    }
}

/// One request of each contract that fails inside.
async fn fail_inside(plane: &Plane, held: &Held, seen: &mut Seen) {
    let job = json!({"job_id": held.grant.task.to_string(), "attempt_id": held.grant.attempt_id.to_string(),
        "lease_token": held.grant.token.reveal_text(), "stream": "q", "message_id": "1"});
    let started = format!("/v1/tasks/{}/started", held.grant.task);
    let sent = credentials(held);
    for (path, body) in [
        ("/internal/worker/complete", report("w-1", &job)),
        (started.as_str(), held.body(json!({}))),
        ("/api/v1/tasks", json!({"queue": "q", "operator": "op"})),
    ] {
        let known: Vec<(&str, &str)> = sent.iter().map(|(name, value)| (*name, value.as_str())).collect();
        plane.server.engine.store().faults().fail_in("load", Fault::Panic);
        seen.call("fails inside", &plane.server, Method::POST, path, &known, Some(body)).await;
        assert!(!plane.server.engine.store().faults().clear(), "{path}: the fault was not met");
    }
}
