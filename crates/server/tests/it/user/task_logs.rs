//! Logs of tasks, over HTTP.

use serde_json::{Value, json};

use crate::cases;
use crate::harness::{Server, TOKEN};

cases!(
    Server,
    on_sqlite: [
        lines_are_kept_under_the_lease_and_shown_in_order,
        known_secrets_are_removed,
        too_much_is_dropped_and_never_fails_an_attempt,
        a_reader_that_follows_waits_for_lines_and_for_the_end,
    ],
);

fn item(job: &Value, lines: &[&str]) -> Value {
    let lines: Vec<Value> = lines.iter().map(|text| json!({"stream": "stdout", "text": text})).collect();
    json!({"job_id": job["job_id"], "lease_token": job["lease_token"], "lines": lines})
}

async fn send(server: &Server, worker: &str, items: Vec<Value>) -> Value {
    server.worker("logs", json!({"worker_id": worker, "logs": items})).await.ok()["logs"].clone()
}

async fn logs(server: &Server, id: &str, query: &str) -> Value {
    server.get(&format!("/api/v1/tasks/{id}/logs{query}")).await.ok()
}

fn texts(logs: &Value) -> Vec<String> {
    logs["items"].as_array().unwrap().iter().map(|line| line["text"].as_str().unwrap().to_owned()).collect()
}

async fn lines_are_kept_under_the_lease_and_shown_in_order(server: Server) {
    let id = server.submit(json!({})).await;
    assert_eq!(logs(&server, &id, "").await, json!({"items": [], "follow_cursor": "0", "ended": false}));
    let job = server.claim("w-1").await;
    let timed = json!({"at": "2026-01-01T00:00:00Z", "stream": "stderr", "text": "two"});
    let mut first = item(&job, &["one"]);
    first["lines"].as_array_mut().unwrap().push(timed);
    first["dropped"] = json!(3);
    assert_eq!(send(&server, "w-1", vec![first]).await, json!([{"ok": true}]));
    let stale = json!([{"ok": false, "error": "stale_lease"}, {"ok": false, "error": "stale_lease"}]);
    let mut other = item(&job, &["not mine"]);
    other["lease_token"] = json!("lt_00000000000000000000000000");
    let mut unknown = item(&job, &["nobody's"]);
    unknown["job_id"] = json!("nothing");
    assert_eq!(send(&server, "w-1", vec![other, unknown]).await, stale);
    let shown = logs(&server, &id, "").await;
    assert_eq!(texts(&shown), ["[3 lines were dropped by the worker]", "one", "two"]);
    let last = &shown["items"][2];
    assert_eq!(
        (&last["attempt"], &last["stream"], &last["at"]),
        (&json!(1), &json!("stderr"), &json!("2026-01-01T00:00:00Z"))
    );
    assert!(texts(&logs(&server, &id, "?attempt=2").await).is_empty());
    let cursor = shown["follow_cursor"].as_str().unwrap();
    assert!(texts(&logs(&server, &id, &format!("?cursor={cursor}")).await).is_empty());
    server.complete("w-1", &job, json!({})).await.ok();
    let late = send(&server, "w-1", vec![item(&job, &["late"])]).await;
    assert_eq!(late[0]["error"], "stale_lease");
    assert_eq!(logs(&server, &id, "").await["ended"], true);
    let nobody = "/api/v1/tasks/00000000-0000-7000-8000-000000000000/logs";
    assert_eq!(server.get(nobody).await.refused(404)["error"], "task_not_found");
    server.get(&format!("/api/v1/tasks/{id}/logs?fellow=true")).await.refused(422);
}

async fn known_secrets_are_removed(server: Server) {
    let id = server.submit(json!({})).await;
    let job = server.claim("w-1").await;
    let lease = job["lease_token"].as_str().unwrap();
    let said = [format!("X-Worker-Token: {TOKEN}"), format!("mine is {lease}"), "nothing here".to_owned()];
    send(&server, "w-1", vec![item(&job, &said.each_ref().map(String::as_str))]).await;
    assert_eq!(texts(&logs(&server, &id, "").await), ["X-Worker-Token: ***", "mine is ***", "nothing here"]);
}

async fn too_much_is_dropped_and_never_fails_an_attempt(server: Server) {
    let id = server.submit(json!({})).await;
    let job = server.claim("w-1").await;
    let long = "x".repeat(20_000);
    let answers = send(&server, "w-1", vec![item(&job, &[long.as_str(); 12]); 4]).await;
    assert!(answers.as_array().unwrap().iter().all(|answer| answer["ok"] == true), "{answers}");
    assert!(texts(&logs(&server, &id, "").await).iter().all(|text| text.len() <= 8 << 10));
    for _ in 0..10 {
        send(&server, "w-1", vec![item(&job, &[long.as_str(); 12]); 4]).await;
    }
    let answers = send(&server, "w-1", vec![item(&job, &[long.as_str(); 12])]).await;
    assert_eq!(answers, json!([{"ok": false, "error": "dropped"}]));
    let many = vec![item(&job, &[]); 101];
    server.worker("logs", json!({"worker_id": "w-1", "logs": many})).await.refused(422);
    // The log has pages of a bounded size.
    let (mut cursor, mut lines) = ("0".to_owned(), 0);
    loop {
        let page = logs(&server, &id, &format!("?cursor={cursor}")).await;
        lines += texts(&page).len();
        match page["next_cursor"].as_str() {
            Some(next) => cursor = next.to_owned(),
            None => break,
        }
    }
    assert!(lines > 80, "{lines}");
    server.complete("w-1", &job, json!({})).await.ok();
}

async fn a_reader_that_follows_waits_for_lines_and_for_the_end(server: Server) {
    let id = server.submit(json!({})).await;
    let job = server.claim("w-1").await;
    let (shown, _) = tokio::join!(logs(&server, &id, "?follow=true"), send(&server, "w-1", vec![item(&job, &["one"])]));
    assert_eq!((texts(&shown), &shown["ended"]), (vec!["one".to_owned()], &json!(false)));
    let after = format!("?follow=true&cursor={}", shown["follow_cursor"].as_str().unwrap());
    let began = std::time::Instant::now();
    let (shown, _) = tokio::join!(logs(&server, &id, &after), server.complete("w-1", &job, json!({})));
    assert_eq!((texts(&shown).len(), &shown["ended"]), (0, &json!(true)));
    assert!(began.elapsed().as_secs() < 15);
}
