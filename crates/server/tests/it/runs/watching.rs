//! Lists, reasons, events and limits.

use serde_json::{Value, json};

use crate::cases;
use crate::harness::{SOON, Server};
use crate::runs::kit::{chain, claim, complete, entry, fail, shown, submit, task, with};

cases!(
    Server,
    on_sqlite: [
        a_blocked_task_says_what_it_waits_for,
        a_task_alone_is_in_no_run,
        a_tenant_that_has_enough_submits_no_run,
    ],
    on_both_stores: [runs_are_listed_newest_first_and_by_filter, changes_of_runs_are_told],
);

async fn runs_are_listed_newest_first_and_by_filter(server: Server) {
    let mut ids = Vec::new();
    for (key, team) in [("k1", "etl"), ("k2", "web"), ("k3", "etl")] {
        let body = json!({"run_key": key, "labels": {"team": team}, "tasks": [entry("a", &[]), entry("b", &["a"])]});
        ids.push(server.post("/api/v1/runs", body).await.ok()["run_id"].clone());
        server.advance(1_000);
    }
    fail(&server, ids[0].as_str().unwrap(), "a").await;
    let list = async |query: &str| {
        let page = server.get(&format!("/api/v1/runs{query}")).await.ok();
        page["items"].as_array().unwrap().iter().map(|run| run["run_id"].clone()).collect::<Vec<Value>>()
    };
    let of = |wanted: &[usize]| wanted.iter().map(|index| ids[*index].clone()).collect::<Vec<_>>();
    assert_eq!(list("").await, of(&[2, 1, 0]));
    assert_eq!(list("?state=Failed").await, of(&[0]));
    assert_eq!(list("?state=Running").await, of(&[2, 1]));
    assert_eq!(list("?state=RUNNING").await, of(&[2, 1]));
    assert_eq!(list("?state=cancelling").await, of(&[]));
    assert_eq!(list("?label=team:etl").await, of(&[2, 0]));
    assert_eq!(list("?label=team:etl&state=Running").await, of(&[2]));
    assert_eq!(list("?run_key=k2").await, of(&[1]));
    assert_eq!(list("?tenant=other").await, of(&[]));
    assert_eq!(list("?workspace=default&limit=1").await, of(&[2]));
    let second = shown(&server, ids[1].as_str().unwrap()).await["created_at"].as_str().unwrap().to_owned();
    assert_eq!(list(&format!("?created_after={second}")).await, of(&[2, 1]));
    assert_eq!(list(&format!("?created_before={second}")).await, of(&[0]));

    let first = server.get("/api/v1/runs?limit=2").await.ok();
    let rest =
        server.get(&format!("/api/v1/runs?limit=2&cursor={}", first["next_cursor"].as_str().unwrap())).await.ok();
    assert_eq!((&rest["items"][0]["run_id"], &rest["next_cursor"]), (&ids[0], &Value::Null));
    let item = &rest["items"][0];
    assert_eq!(
        (&item["counts"]["failed"], &item["counts"]["skipped"], item.get("tasks")),
        (&json!(1), &json!(1), None)
    );
    for (query, field) in [
        ("state=READY", "state"),
        ("label=x", "label"),
        ("limit=0", "limit"),
        ("created_after=x", "created_after"),
        ("cursor=x", "cursor"),
    ] {
        assert_eq!(server.get(&format!("/api/v1/runs?{query}")).await.refused(422)["field"], field);
    }
}

async fn a_blocked_task_says_what_it_waits_for(server: Server) {
    let run = submit(&server, vec![entry("a", &[]), entry("b", &[]), entry("c", &["a", "b"])]).await;
    complete(&server, &run, "a", json!(1)).await;
    let view = shown(&server, &run).await;
    let id = task(&view, "c")["task_id"].as_str().unwrap();
    let why = server.get(&format!("/api/v1/tasks/{id}/why")).await.ok();
    assert_eq!(why["state"], "Blocked");
    let reason = &why["why"][0];
    assert_eq!(
        (&reason["code"], &reason["message"]),
        (&json!("blocked_on_dependencies"), &json!("waits for b (Ready)"))
    );
    let waits =
        json!({"waiting_on": 1, "tasks": [{"key": "b", "task_id": task(&view, "b")["task_id"], "state": "Ready"}]});
    assert_eq!(reason["detail"], waits);
}

/// Events of runs and of tasks that were skipped, as the stream tells them.
async fn told(server: &Server, headers: &[(&str, &str)], count: usize) -> Vec<(String, Value)> {
    let mut request =
        reqwest::Client::new().get(format!("{}/api/v1/events", server.url)).header("Last-Event-ID", "0-0");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let mut response = request.send().await.unwrap();
    let (mut text, mut events) = (String::new(), Vec::new());
    while events.len() < count {
        let chunk = tokio::time::timeout(SOON, response.chunk()).await.expect("no event in time").unwrap().unwrap();
        text.push_str(std::str::from_utf8(&chunk).unwrap());
        while let Some((event, rest)) = text.clone().split_once("\n\n") {
            let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            if let (Some(name), Some(data)) = (field("event"), field("data")) {
                let data: Value = serde_json::from_str(data).unwrap();
                if name.trim() == "run" || data["kind"] == "skipped" {
                    events.push((name.trim().to_owned(), data));
                }
            }
            text = rest.to_owned();
        }
    }
    events
}

async fn changes_of_runs_are_told(server: Server) {
    let run = chain(&server).await;
    claim(&server, &run, "other").await;
    fail(&server, &run, "extract").await;
    server.post(&format!("/api/v1/runs/{run}/cancel"), json!({"mode": "immediate"})).await.ok();
    let events = told(&server, &[], 5).await;
    let kinds: Vec<_> = events.iter().map(|(_, data)| data["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["run.created", "skipped", "skipped", "run.cancel_requested", "run.canceled"]);
    let states: Vec<_> =
        events.iter().filter(|(name, _)| name == "run").map(|(_, data)| data["state"].clone()).collect();
    assert_eq!(states, [json!("Running"), json!("Canceling"), json!("Canceled")]);
    assert!(
        events.iter().filter(|(name, _)| name == "run").all(|(_, data)| data["run_id"] == json!(run)),
        "{events:?}"
    );

    // A tenant is told of its own runs only.
    let body = json!({"tenant": "acme", "tasks": [entry("a", &[])]});
    let own = server.post("/api/v1/runs", body).await.ok()["run_id"].clone();
    let events = told(&server, &[("X-Tenant-ID", "acme")], 1).await;
    assert_eq!(events[0].1["run_id"], own);
}

async fn a_task_alone_is_in_no_run(server: Server) {
    let id = server.submit(json!({"payload": {"$from": "a"}})).await;
    let task = server.task(&id).await;
    assert_eq!((task.get("run_id"), task.get("task_key")), (None, None));
    assert_eq!(
        server.claim("w-1").await["payload"],
        json!({"$from": "a"}),
        "outside of runs it is a payload like any other"
    );
}

async fn a_tenant_that_has_enough_submits_no_run(server: Server) {
    server.put("/api/v1/admin/tenants/acme", json!({"max_ready": 3})).await.ok();
    let entries = |count: usize| (0..count).map(|n| entry(&n.to_string(), &[])).collect::<Vec<_>>();
    let body = |count: usize| json!({"tenant": "acme", "tasks": entries(count)});
    assert_eq!(server.post("/api/v1/runs", body(4)).await.refused(429)["error"], "tenant_limit");
    let blocked =
        json!({"tenant": "acme", "run_key": "k", "tasks": [entry("a", &[]), entry("b", &["a"]), entry("c", &["b"])]});
    let first = server.post("/api/v1/runs", blocked.clone()).await.ok();
    // What waits for others counts as well.
    tenure_testkit::wait_until("the count is taken", SOON, async || {
        server.post("/api/v1/runs", body(1)).await.status.as_u16() == 429
    })
    .await;
    // Sent again it brings nothing new; another one does, and one that differs is told so.
    let again = server.post("/api/v1/runs", blocked.clone()).await;
    assert_eq!((again.status.as_u16(), &again.body["run_id"]), (200, &first["run_id"]));
    let other = with(blocked.clone(), json!({"run_key": "k-2"}));
    assert_eq!(server.post("/api/v1/runs", other).await.refused(429)["error"], "tenant_limit");
    let differs = with(blocked, json!({"labels": {"a": "b"}}));
    assert_eq!(server.post("/api/v1/runs", differs).await.refused(409)["error"], "run_key_conflict");
}
