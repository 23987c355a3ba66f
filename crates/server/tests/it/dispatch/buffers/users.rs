use reqwest::Method;
use serde_json::json;

use super::stand::{DAG, Stand, row, written};
use crate::cases;
use crate::dispatch::kit::{self, Plane};

cases!(kit, on_both_stores: [users_publish_lines_and_records, large_uploads_go_through_the_object_store],);

async fn users_publish_lines_and_records(plane: Plane) {
    let stand = Stand::deploy(plane, DAG).await;
    let send = async |kind: &str, key: &str, body: String| {
        let client = reqwest::Client::new();
        let request = client.post(format!("{}{}", stand.plane.url, stand.path("publish")));
        let mut request = request.header("Content-Type", kind).body(body);
        if !key.is_empty() {
            request = request.header("Idempotency-Key", key);
        }
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.json::<serde_json::Value>().await.unwrap())
    };
    let lines = format!("{}\n{}\n", row("a", 1), row("b", 2));
    let (status, first) = send("application/jsonl", "k-1", lines.clone()).await;
    assert_eq!((status, &first["status"], &first["duplicate"]), (202, &json!("Accepted"), &json!(false)));
    let (status, again) = send("application/jsonl", "k-1", lines).await;
    assert_eq!((status, &again["publish_id"], &again["duplicate"]), (202, &first["publish_id"], &json!(true)));
    let (status, other) = send("application/jsonl", "k-1", row("c", 3).to_string()).await;
    assert_eq!((status, &other["error"]), (409, &json!("idempotency_conflict")));
    let (status, _) = send("application/json", "", json!({"records": [row("c", 3)]}).to_string()).await;
    assert_eq!(status, 202);
    written(&stand, 3).await;
    for (kind, body, expected, code) in [
        ("text/csv", "a,b".to_owned(), 422, "unsupported_content_type"),
        ("application/json", "{\"records\":{}}".to_owned(), 422, "invalid_argument"),
        (
            "application/json",
            json!({"records": [], "schema_hash": "sha256:0"}).to_string(),
            422,
            "schema_hash_mismatch",
        ),
        ("application/jsonl", "x".repeat(16 * 1024 * 1024 + 1), 413, "batch_too_large"),
    ] {
        let (status, refused) = send(kind, "", body).await;
        assert_eq!(status, expected, "{refused}");
        assert_eq!(refused["error"], code);
    }
    for name in ["nothing", "twice"] {
        let path = format!("/api/v1/buffers/{name}/publish");
        let refused = stand.plane.call(Method::POST, &path, &[], Some(&json!({"records": []}))).await.refused(404);
        assert_eq!(refused["error"], "dataset_not_found");
    }
}

async fn large_uploads_go_through_the_object_store(plane: Plane) {
    let stand = Stand::deploy(plane, DAG).await;
    let long = "y".repeat(1_000);
    let records: Vec<_> = (0..400).map(|n| json!({"dedupe_key": format!("{n}-{long}"), "n": n})).collect();
    stand.plane.post(&stand.path("publish"), json!({"records": records})).await.ok();
    written(&stand, 400).await;
}
