//! Task changes as server-sent events.

use std::time::Duration;

use serde_json::{Value, json};
use tenure_testkit::wait_until;

use crate::cases;
use crate::harness::{SOON, Server, fatal, retryable};

cases!(
    Server,
    on_sqlite: [
        a_watcher_goes_on_behind_its_last_event,
        a_strange_id_is_refused_or_a_reset,
        a_watcher_without_an_id_sees_only_what_comes,
        a_drain_ends_the_stream,
    ],
    on_both_stores: [every_change_is_told_in_order, events_survive_a_restart, a_pruned_past_is_a_reset],
);

#[derive(Debug, Clone, PartialEq)]
struct Event {
    id: String,
    name: String,
    data: Value,
}

/// An open stream of events.
struct Watch {
    response: reqwest::Response,
    text: String,
}

impl Watch {
    async fn open(server: &Server, after: Option<&str>) -> Self {
        let mut request = reqwest::Client::new().get(format!("{}/api/v1/events", server.url));
        if let Some(after) = after {
            request = request.header("Last-Event-ID", after);
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.status().as_u16(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { response, text: String::new() }
    }

    /// The next event; `None` when the stream has ended.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| {
                    let line = event.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
                    line.map(|value| value.trim_start().to_owned())
                };
                let found = field("id").map(|id| {
                    let data = serde_json::from_str(&field("data").unwrap()).unwrap();
                    Event { id, name: field("event").unwrap(), data }
                });
                self.text = rest.to_owned();
                match found {
                    Some(event) => return Some(event),
                    // A comment keeps the connection alive.
                    None => continue,
                }
            }
            let chunk = tokio::time::timeout(SOON, self.response.chunk()).await.expect("no event in time");
            self.text.push_str(std::str::from_utf8(&chunk.unwrap()?).unwrap());
        }
    }

    async fn take(&mut self, n: usize) -> Vec<Event> {
        let mut events = Vec::new();
        for _ in 0..n {
            events.push(self.next().await.unwrap());
        }
        events
    }
}

fn kinds(events: &[Event]) -> Vec<&str> {
    events.iter().map(|event| event.data["kind"].as_str().unwrap()).collect()
}

async fn every_change_is_told_in_order(server: Server) {
    let mut watch = Watch::open(&server, None).await;
    let id = server.submit(json!({"max_attempts": 2, "retry": {"initial_backoff_ms": 0}})).await;
    let job = server.claim("w-1").await;
    server.fail("w-1", &job, retryable()).await.ok();
    let job = server.claim("w-1").await;
    server.fail("w-1", &job, fatal()).await.ok();
    server.post(&format!("/api/v1/tasks/{id}/retry"), json!({})).await.ok();
    let job = server.claim("w-1").await;
    server.post(&format!("/api/v1/tasks/{id}/cancel"), json!({})).await.ok();
    server.complete("w-1", &job, json!({})).await.ok();
    let events = watch.take(10).await;
    let expected = [
        "submitted",
        "started",
        "retrying",
        "started",
        "failed",
        "dead_lettered",
        "retried",
        "started",
        "cancel_requested",
        "succeeded",
    ];
    assert_eq!(kinds(&events), expected);
    assert!(events.iter().all(|event| event.name == "task" && event.data["task_id"] == json!(id)));
    assert!(events.iter().all(|event| event.data["queue"] == "q" && event.data["at"].as_str().unwrap().ends_with('Z')));
    let states: Vec<_> = events.iter().map(|event| event.data["state"].as_str().unwrap()).collect();
    let expected =
        ["Ready", "Running", "Ready", "Running", "Failed", "Failed", "Ready", "Running", "Running", "Succeeded"];
    assert_eq!(states, expected);
    let mut ids: Vec<_> = events.iter().map(|event| event.id.clone()).collect();
    ids.dedup();
    assert_eq!(ids.len(), 10);
}

async fn a_watcher_goes_on_behind_its_last_event(server: Server) {
    let mut watch = Watch::open(&server, None).await;
    let batch = json!({"tasks": vec![json!({"queue": "q", "operator": "op"}); 5]});
    server.post("/api/v1/tasks/batch", batch).await.ok();
    for _ in 0..3 {
        server.submit(json!({})).await;
    }
    let all = watch.take(8).await;
    drop(watch);
    // From behind each of them, also in the middle of what was committed together.
    for (n, event) in all.iter().enumerate() {
        let mut again = Watch::open(&server, Some(&event.id)).await;
        assert_eq!(again.take(all.len() - n - 1).await, all[n + 1..], "behind {}", event.id);
    }
    // The last one's watcher has nothing to read until something happens.
    let mut again = Watch::open(&server, Some(&all[7].id)).await;
    assert!(tokio::time::timeout(Duration::from_millis(700), again.next()).await.is_err());
    let id = server.submit(json!({})).await;
    assert_eq!(again.next().await.unwrap().data["task_id"], json!(id));
}

async fn events_survive_a_restart(server: Server) {
    let mut watch = Watch::open(&server, None).await;
    let first = server.submit(json!({})).await;
    let seen = watch.next().await.unwrap();
    assert_eq!(seen.data["task_id"], json!(first));
    let missed = server.submit(json!({})).await;
    let server = server.restart().await;
    let later = server.submit(json!({})).await;
    let mut watch = Watch::open(&server, Some(&seen.id)).await;
    let events = watch.take(2).await;
    assert_eq!((&events[0].data["task_id"], &events[1].data["task_id"]), (&json!(missed), &json!(later)));
}

async fn a_pruned_past_is_a_reset(server: Server) {
    let server = server.restart_with(|_, retention| retention.events_ms = 10_000).await;
    let mut watch = Watch::open(&server, None).await;
    server.submit(json!({})).await;
    let old = watch.next().await.unwrap();
    for _ in 0..3 {
        server.submit(json!({})).await;
    }
    let newest = watch.take(3).await.pop().unwrap();
    server.advance(60_000);
    let kept = server.submit(json!({})).await;
    // The old ones go; whoever was behind them is told.
    let mut reset = wait_until("a reset", SOON, async || {
        let mut watch = Watch::open(&server, Some(&old.id)).await;
        let first = watch.next().await.unwrap();
        (first.name == "reset").then_some((watch, first))
    })
    .await;
    assert_eq!(reset.1.data, json!({}));
    assert_eq!(reset.0.next().await.unwrap().data["task_id"], json!(kept));
    // From the id of the reset it goes on like from any other.
    let mut again = Watch::open(&server, Some(&reset.1.id)).await;
    assert_eq!(again.next().await.unwrap().data["task_id"], json!(kept));
    // Who had read all that was removed has missed nothing.
    let mut current = Watch::open(&server, Some(&newest.id)).await;
    assert_eq!(current.next().await.unwrap().data["task_id"], json!(kept));
}

async fn a_strange_id_is_refused_or_a_reset(server: Server) {
    for strange in ["x", "1", "1-", "-1-0", "a-b", "1-1-1", "99999999999999999999-0"] {
        let answer = server.call(reqwest::Method::GET, "/api/v1/events", &[("Last-Event-ID", strange)], None).await;
        assert_eq!(answer.refused(422)["field"], "Last-Event-ID", "{strange}");
    }
    // Of another store, or from the future: all that there is comes again.
    let id = server.submit(json!({})).await;
    let mut watch = Watch::open(&server, Some("999999-3")).await;
    assert_eq!(watch.next().await.unwrap().name, "reset");
    assert_eq!(watch.next().await.unwrap().data["task_id"], json!(id));
}

async fn a_watcher_without_an_id_sees_only_what_comes(server: Server) {
    server.submit(json!({})).await;
    let mut watch = Watch::open(&server, None).await;
    let id = server.submit(json!({})).await;
    assert_eq!(watch.next().await.unwrap().data["task_id"], json!(id));
}

async fn a_drain_ends_the_stream(mut server: Server) {
    let mut watch = Watch::open(&server, None).await;
    tokio::time::timeout(SOON, server.stop()).await.expect("it stops");
    assert_eq!(watch.next().await, None);
}
