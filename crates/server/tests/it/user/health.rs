//! Probes, figures, and the document that describes it all.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::{Value, json};

use crate::cases;
use crate::harness::{Server, TOKEN};

cases!(
    Server,
    on_sqlite: [every_documented_route_answers, every_served_route_is_documented],
    on_both_stores: [probes_answer, metrics_are_in_the_format_of_prometheus],
);

async fn probes_answer(server: Server) {
    let kind = if server.home.is_sqlite() { "sqlite" } else { "postgres" };
    for (path, status) in [("/api/v1/live", "alive"), ("/api/v1/ready", "ready"), ("/api/v1/health/", "ok")] {
        let mut body = server.get(path).await.ok();
        assert!(body["uptime"].take().as_str().unwrap().ends_with('s'), "{path}");
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(body, json!({"status": status, "version": version, "uptime": null, "store": kind}), "{path}");
    }
}

async fn metrics_are_in_the_format_of_prometheus(server: Server) {
    server.submit(json!({})).await;
    server.claim("w-1").await;
    for path in ["/metrics", "/api/v1/metrics/prometheus"] {
        let answer = server.get(path).await;
        assert_eq!(answer.header("Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
        let text = answer.ok().as_str().unwrap().to_owned();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert!(name.starts_with("tenure_") || name.starts_with("process_"), "{line}");
            value.parse::<f64>().unwrap_or_else(|_| panic!("{line}"));
        }
        for figure in
            ["tenure_batches_total", "tenure_commands_total", "tenure_queue_tasks{queue=\"q\",state=\"running\"} 1"]
        {
            assert!(text.contains(figure), "{figure}");
        }
        // No secret is a figure.
        assert!(!text.contains(TOKEN));
    }
}

async fn document(server: &Server) -> Value {
    server.get("/api/v1/openapi.json").await.ok()
}

async fn every_documented_route_answers(server: Server) {
    let document = document(&server).await;
    assert!(document["openapi"].as_str().unwrap().starts_with("3."));
    let id = server.submit(json!({})).await;
    let mut seen = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        for method in operations.as_object().unwrap().keys() {
            if !["get", "post", "put", "delete", "patch"].contains(&method.as_str()) {
                continue;
            }
            let method: Method = method.to_uppercase().parse().unwrap();
            let path = path.replace("{id}", &id).replace("{name}", "q").replace("{tenant}", "t");
            let path = path.replace("{port}", "8080").replace("{path}", "x").replace("{resource}", "sb-00000000");
            let path = path
                .replace("{owner}", "o")
                .replace("{policy}", "p")
                .replace("{user}", "u")
                .replace("{job}", "j")
                .replace("{dataset}", "d");
            assert!(!path.contains('{'), "{path}");
            let mut request = reqwest::Client::new().request(method.clone(), format!("{}{path}", server.url));
            request = request.header("X-Worker-Token", TOKEN);
            if method != Method::GET {
                request = request.json(&json!({"worker_id": "w-1", "max_wait_ms": 0}));
            }
            // Only the head: one of them is a stream without an end.
            let response = request.send().await.unwrap();
            let status = response.status().as_u16();
            assert!(status != 405, "{method} {path}: {status}");
            if status == 404 || status >= 500 {
                let body = response.json::<Value>().await.unwrap();
                // This server offers no sandboxes; those that do have tests of their own.
                let message = body["message"].as_str().unwrap_or_default();
                let of_sandboxes = ["no such sandbox", "no such snapshot", "no such member", "no such worker"];
                if body["reason"] == "sandboxes_off" || of_sandboxes.contains(&message) {
                    seen += 1;
                    continue;
                }
                let word = body["error"].as_str().unwrap_or_else(|| panic!("{method} {path}: {body}")).to_owned();
                let of_the_route = [
                    "api_key_not_found",
                    "bundle_not_found",
                    "dag_not_found",
                    "data_store_unavailable",
                    "dataset_not_found",
                    "object_store_unavailable",
                    "query_unavailable",
                    "redrive_not_found",
                    "result_not_found",
                    "run_not_found",
                    "schedule_not_found",
                    "task_key_not_found",
                    "tenant_not_found",
                    "webhook_not_found",
                    "signing_key_not_configured",
                    "worker_auth_not_configured",
                ];
                assert!(of_the_route.contains(&word.as_str()), "{method} {path}: {status} {word}");
            }
            seen += 1;
        }
    }
    assert!(seen >= 27, "{seen}");
}

/// The routes as the source has them.
fn served() -> BTreeSet<String> {
    let mut folders = vec![concat!(env!("CARGO_MANIFEST_DIR"), "/src").into()];
    let mut routes = BTreeSet::new();
    while let Some(folder) = folders.pop() {
        let folder: std::path::PathBuf = folder;
        for entry in folder.read_dir().unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let text = std::fs::read_to_string(path).unwrap();
                let found = text.split(".route(\"").skip(1).filter_map(|rest| rest.split('"').next());
                // The document knows no paths with slashes.
                routes.extend(found.map(|route| route.replace("{*", "{")));
            }
        }
    }
    routes
}

async fn every_served_route_is_documented(server: Server) {
    let served = served();
    assert!(served.contains("/internal/worker/claim") && served.len() > 20, "{served:?}");
    let documented: BTreeSet<_> = document(&server).await["paths"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(served, documented);
}
