//! What tenants leave each other: memory for bodies and answers.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tenure_testkit::wait_until;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::kit::{Plane, id};
use crate::harness::{Home, SOON, Server};

const MIB: usize = 1 << 20;
const OURS: [(&str, &str); 1] = [("X-Tenant-ID", "ours")];
const THEIRS: [(&str, &str); 1] = [("X-Tenant-ID", "theirs")];

async fn small_plane(memory_bytes: usize) -> Plane {
    Plane::with(Home::Sqlite(tempfile::tempdir().unwrap()), |config| {
        config.sandboxes.as_mut().unwrap().memory_bytes = memory_bytes;
    })
    .await
}

async fn created(server: &Server, headers: &[(&str, &str)]) -> String {
    id(&server.call(Method::POST, "/api/v1/sandboxes", headers, Some(&json!({}))).await.ok())
}

/// How much memory bodies and answers hold.
async fn in_use(server: &Server) -> usize {
    let text = match server.get("/api/v1/metrics/prometheus").await.ok() {
        Value::String(text) => text,
        other => panic!("{other}"),
    };
    let line = text.lines().find_map(|line| line.strip_prefix("tenure_sandbox_request_memory_bytes "));
    line.unwrap_or_else(|| panic!("{text}")).parse().unwrap()
}

/// Announces a file of a tenant, sends a part of it, and no more.
async fn slow_body(server: &Server, tenant: &str, sandbox: &str, sent: usize) -> TcpStream {
    let host = server.url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(host).await.unwrap();
    let head = format!(
        "POST /api/v1/sandboxes/{sandbox}/files HTTP/1.1\r\nHost: {host}\r\nX-Tenant-ID: {tenant}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{{\"path\":\"/workspace/f\",\"content\":\"",
        2 * sent
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&vec![b'x'; sent]).await.unwrap();
    stream.flush().await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_with_many_slow_bodies_does_not_delay_another() {
    let plane = small_plane(16 * MIB).await;
    let server = &plane.server;
    let (ours, theirs) = (created(server, &OURS).await, created(server, &THEIRS).await);
    // Twice as many as there is memory for.
    let mut slow = Vec::new();
    for _ in 0..32 {
        slow.push(slow_body(server, "ours", &ours, 480 << 10).await);
    }
    let filled = async || (in_use(server).await >= 8 * MIB).then_some(());
    wait_until("the share is full", SOON, filled).await;
    for _ in 0..5 {
        assert_eq!(in_use(server).await, 8 * MIB, "half of the memory");
    }
    let path = format!("/api/v1/sandboxes/{theirs}");
    for _ in 0..5 {
        let command = json!({"command": "echo served"});
        let answer = server.call(Method::POST, &format!("{path}/exec"), &THEIRS, Some(&command)).await.ok();
        assert_eq!(answer["stdout"], "served\n");
        let file = json!({"path": "/workspace/a", "content": "x".repeat(MIB)});
        server.call(Method::POST, &format!("{path}/files"), &THEIRS, Some(&file)).await.ok();
    }
    // The others of this tenant are told to come back, and nobody waits for longer than the slow bodies last.
    let command = json!({"command": "echo late"});
    let answer = server.call(Method::POST, &format!("/api/v1/sandboxes/{ours}/exec"), &OURS, Some(&command)).await;
    assert!(matches!(answer.status.as_u16(), 200 | 503), "{}", answer.body);
    drop(slow);
    let empty = async || (in_use(server).await == 0).then_some(());
    wait_until("all is given back", SOON, empty).await;
    server.call(Method::POST, &format!("/api/v1/sandboxes/{ours}/exec"), &OURS, Some(&command)).await.ok();
}

/// Small bodies count as well: each connection holds one step for its body.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_and_answers_of_any_size_are_counted() {
    let plane = small_plane(16 * MIB).await;
    let server = &plane.server;
    let sandbox = created(server, &OURS).await;
    let mut slow = Vec::new();
    for connections in 1..=8 {
        slow.push(slow_body(server, "ours", &sandbox, 1000).await);
        let counted = async || (in_use(server).await == connections * (16 << 10)).then_some(());
        wait_until("a small body is counted", SOON, counted).await;
    }
    drop(slow);
    let empty = async || (in_use(server).await == 0).then_some(());
    wait_until("all is given back", SOON, empty).await;
    // An answer that nobody reads stays counted until it has been sent.
    let command = json!({"command": "head -c 4000000 /dev/zero | tr '\\0' x"}).to_string();
    let host = server.url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(host).await.unwrap();
    let request = format!(
        "POST /api/v1/sandboxes/{sandbox}/exec HTTP/1.1\r\nHost: {host}\r\nX-Tenant-ID: ours\r\n\
         Content-Length: {}\r\n\r\n{command}",
        command.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let counted = async || (in_use(server).await > 4_000_000).then_some(());
    wait_until("the answer is counted", Duration::from_secs(120), counted).await;
    drop(stream);
    wait_until("it is given back", SOON, empty).await;
}
