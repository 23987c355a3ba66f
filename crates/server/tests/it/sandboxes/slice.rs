//! A sandbox from its creation to its end.

use reqwest::Method;
use serde_json::{Value, json};

use super::kit::{Plane, id, workers};
use crate::cases;

cases!(
    Plane,
    on_both_stores: [a_sandbox_runs_commands_holds_files_and_is_destroyed, a_worker_is_shown_as_it_told],
);

async fn a_worker_is_shown_as_it_told(plane: Plane) {
    let known = workers(&plane.server).await;
    assert_eq!(known.len(), 1);
    let worker = &known[0];
    assert_eq!(
        (&worker["id"], &worker["status"], &worker["stale"]),
        (&json!("worker-a"), &json!("online"), &json!(false))
    );
    assert_eq!(worker["providers"], json!(["process"]));
    assert_eq!(worker["capacity"]["max_sandboxes"], 50);
    assert!(!worker["last_heartbeat"].as_str().unwrap().contains('.'), "{worker}");
}

async fn a_sandbox_runs_commands_holds_files_and_is_destroyed(plane: Plane) {
    let server = &plane.server;
    let sandbox = plane.create(json!({"image": "alpine", "ttl": "10m", "metadata": {"a": "b"}, "news": 1})).await;
    let (name, path) = (id(&sandbox), format!("/api/v1/sandboxes/{}", id(&sandbox)));
    assert_eq!(sandbox["status"], "running");
    assert_eq!((&sandbox["provider"], &sandbox["worker_id"]), (&json!("process"), &json!("worker-a")));
    assert_eq!((&sandbox["image"], &sandbox["metadata"]), (&json!("alpine"), &json!({"a": "b"})));
    assert_eq!(server.get(&path).await.ok()["id"], sandbox["id"]);
    let list: Value = server.get("/api/v1/sandboxes/").await.ok();
    assert_eq!(list.as_array().unwrap().len(), 1);
    let used = &server.get("/api/v1/workers").await.ok()[0]["usage"];
    assert_eq!((&used["sandboxes"], &used["memory_mb"]), (&json!(1), &sandbox["memory_mb"]));

    let ended = plane.exec(&name, "echo hello; echo oh >&2; exit 7").await;
    assert_eq!(
        (&ended["exit_code"], &ended["stdout"], &ended["stderr"]),
        (&json!(7), &json!("hello\n"), &json!("oh\n"))
    );
    assert!(ended["duration"].is_string() && ended["duration_ms"].is_u64(), "{ended}");

    let file = json!({"path": "/workspace/a.txt", "content": "hello"});
    assert_eq!(server.post(&format!("{path}/files"), file).await.ok(), json!({"status": "written"}));
    let read = server.get(&format!("{path}/files?path=/workspace/a.txt")).await;
    assert_eq!((read.header("content-type"), read.header("content-length")), ("application/octet-stream", "5"));
    assert_eq!(read.ok(), "hello");
    assert_eq!(plane.exec(&name, "cat a.txt").await["stdout"], "hello");

    for _ in 0..2 {
        assert_eq!(server.delete(&path).await.ok(), json!({"status": "destroyed"}));
    }
    let gone = server.get(&path).await.refused(404);
    assert_eq!(gone["code"], "NOT_FOUND");
    assert!(gone.get("error").is_none() && gone["request_id"].is_string(), "{gone}");
    let list = server.call(Method::GET, "/api/v1/sandboxes", &[], None).await.ok();
    assert_eq!(list, json!([]));
}
