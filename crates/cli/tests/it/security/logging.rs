//! What a server logs, and for how long it keeps ended tasks: changed while it runs.

use serde_json::{Value, json};
use tenure_testkit::{Signal, Tenure, wait_until};

use crate::security::kit::{Caller, Desk, PATIENCE};

/// Writes the configuration, and waits until the server says that this key has changed.
async fn reload(desk: &Desk, server: &mut Tenure, yaml: &str, key: &str) {
    desk.file("tenure.yaml", yaml);
    server.signal(Signal::SIGHUP);
    server.wait_for_stderr(&format!("changed: {key}\""), PATIENCE).await;
}

#[tokio::test]
async fn the_access_log_and_the_level_change_on_reload() {
    let desk = Desk::new();
    let mut server = desk.serve("logging: {level: warn, access: true}").await;
    let caller = Caller::new(server.url());
    let ask = async |id: &str| {
        let path = "/api/v1/tasks/01a1e77d-d225-75b8-8000-000000002711?hunter=2";
        assert_eq!(caller.header("X-Request-Id", id).get(path).await.status, 404);
    };
    ask("below-the-level").await;
    reload(&desk, &mut server, "logging: {level: info, access: true}", "logging.level").await;
    ask("on-record").await;
    let line = server.wait_for_stderr("on-record", PATIENCE).await;
    let line: Value = serde_json::from_str(&line).unwrap();
    let fields = ["level", "message", "http.method", "http.route", "http.status"].map(|name| line[name].clone());
    assert_eq!(json!(fields), json!(["INFO", "request", "GET", "/api/v1/tasks/{id}", 404]), "{line}");
    assert!(line["duration_seconds"].as_f64().is_some_and(|seconds| seconds > 0.0), "{line}");
    reload(&desk, &mut server, "logging: {level: info, access: false}", "logging.access").await;
    ask("off-the-record").await;
    // What was answered before a stop is logged before it.
    server.terminate().await;
    let log = server.output().stderr;
    for absent in ["below-the-level", "off-the-record", "hunter", "000000002711"] {
        assert!(!log.contains(absent), "{absent}: {log}");
    }
}

#[tokio::test]
async fn retention_changes_on_reload() {
    let desk = Desk::new();
    let mut server = desk.serve("retention: {finished: 1h}").await;
    let caller = Caller::new(server.url());
    let (ended, waiting) = (caller.submit("op", &json!({})).await, caller.submit("op", &json!({})).await);
    assert_eq!(caller.post(&format!("/api/v1/tasks/{ended}/cancel"), &json!({})).await.status, 200);
    caller.until(&ended, "Canceled").await;
    reload(&desk, &mut server, "retention: {finished: 1s}", "retention.finished").await;
    wait_until("the ended task is gone", PATIENCE, async || {
        caller.get(&format!("/api/v1/tasks/{ended}")).await.status == 404
    })
    .await;
    assert_eq!(caller.get(&format!("/api/v1/tasks/{waiting}")).await.status, 200);
}
