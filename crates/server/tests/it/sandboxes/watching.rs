//! Events of sandboxes.

use serde_json::{Value, json};

use super::kit::Plane;
use crate::cases;
use crate::harness::SOON;

cases!(
    Plane,
    on_sqlite: [files_that_are_written_and_read_are_told, odd_ids_are_refused, sandboxes_are_mixed_into_the_events_of_tasks],
    on_both_stores: [what_happens_to_a_sandbox_is_told_and_told_again],
);

struct Watch {
    response: reqwest::Response,
    text: String,
}

impl Watch {
    async fn open(plane: &Plane, query: &str, after: Option<&str>) -> Self {
        let mut request = reqwest::Client::new().get(format!("{}/api/v1/events{query}", plane.server.url));
        if let Some(after) = after {
            request = request.header("Last-Event-ID", after);
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200);
        Self { response, text: String::new() }
    }

    /// The next event: its id, its name and its data.
    async fn next(&mut self) -> (String, String, Value) {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| {
                    event
                        .lines()
                        .find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim_start().to_owned()))
                };
                let (id, name, data) = (field("id"), field("event"), field("data"));
                self.text = rest.to_owned();
                if let Some(data) = data {
                    return (id.unwrap_or_default(), name.unwrap_or_default(), serde_json::from_str(&data).unwrap());
                }
                continue;
            }
            let piece = tokio::time::timeout(SOON, self.response.chunk()).await.unwrap().unwrap().unwrap();
            self.text.push_str(std::str::from_utf8(&piece).unwrap());
        }
    }
}

async fn what_happens_to_a_sandbox_is_told_and_told_again(plane: Plane) {
    let types = "?types=sandbox.created,sandbox.running,exec.started,exec.completed,sandbox.destroyed";
    let mut watch = Watch::open(&plane, types, None).await;
    let sandbox = plane.sandbox().await;
    plane.exec(&sandbox, "exit 3").await;
    plane.server.delete(&format!("/api/v1/sandboxes/{sandbox}")).await.ok();
    let mut seen = Vec::new();
    for kind in ["sandbox.created", "sandbox.running", "exec.started", "exec.completed", "sandbox.destroyed"] {
        let (id, name, event) = watch.next().await;
        assert_eq!((&event["type"], &event["sandbox_id"]), (&json!(kind), &json!(sandbox)), "{event}");
        assert_eq!((name.as_str(), format!("evt-{id}")), ("", event["id"].as_str().unwrap().to_owned()));
        assert!(event["timestamp"].as_str().unwrap().ends_with('Z'));
        seen.push((id, event));
    }
    assert_eq!(seen[3].1["data"]["exit_code"], 3);
    // Whoever comes back with its last id goes on after it.
    let mut again = Watch::open(&plane, &format!("?types=*&sandbox_id={sandbox}"), Some(&seen[2].0)).await;
    for (_, event) in &seen[3..] {
        assert_eq!(&again.next().await.2, event);
    }
    // Another tenant sees nothing of it.
    let headers = [("X-Tenant-ID", "theirs")];
    let mut request = reqwest::Client::new().get(format!("{}/api/v1/events?types=*", plane.server.url));
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let response = request.header("Last-Event-ID", "0").send().await.unwrap();
    let mut foreign = Watch { response, text: String::new() };
    let body = json!({"tenant_id": "theirs"});
    let own = plane.server.post("/api/v1/sandboxes", body).await.ok();
    assert_eq!(foreign.next().await.2["sandbox_id"], own["id"]);
}

async fn files_that_are_written_and_read_are_told(plane: Plane) {
    let sandbox = plane.sandbox().await;
    let mut watch = Watch::open(&plane, &format!("?types=file.written,file.read&sandbox_id={sandbox}"), None).await;
    let path = format!("/api/v1/sandboxes/{sandbox}/files");
    plane.server.post(&path, json!({"path": "/workspace/a", "content": "x"})).await.ok();
    let (_, _, event) = watch.next().await;
    assert_eq!((&event["type"], &event["data"]["path"]), (&json!("file.written"), &json!("/workspace/a")));
    plane.server.get(&format!("{path}?path=/workspace/a")).await.ok();
    assert_eq!(watch.next().await.2["type"], "file.read");
}

async fn sandboxes_are_mixed_into_the_events_of_tasks(plane: Plane) {
    let mut watch = Watch::open(&plane, "", None).await;
    let sandbox = plane.sandbox().await;
    let task = plane.server.submit(json!({})).await;
    let (mut of_sandbox, mut of_task) = (false, false);
    while !(of_sandbox && of_task) {
        let (id, name, event) = watch.next().await;
        match name.as_str() {
            "task" => {
                assert!(id.contains('-'), "{id}");
                of_task |= event["task_id"] == task.as_str();
            }
            // Without an id, so that a watcher of tasks goes on where it was.
            "" => {
                assert_eq!(id, "");
                of_sandbox |= event["sandbox_id"] == sandbox.as_str();
            }
            other => panic!("{other}: {event}"),
        }
    }
}

async fn odd_ids_are_refused(plane: Plane) {
    for (query, after, status) in
        [("?types=*", "x", 422), ("?types=*", "1-1", 422), ("", "x", 422), ("?sandbox_id=a%00b", "", 400)]
    {
        let url = format!("{}/api/v1/events{query}", plane.server.url);
        let answer = reqwest::Client::new().get(url).header("Last-Event-ID", after).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), status, "{query} {after}");
    }
}
