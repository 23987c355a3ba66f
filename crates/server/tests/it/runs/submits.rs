//! What a run is made of, and what is refused.

use serde_json::{Value, json};

use crate::cases;
use crate::harness::Server;
use crate::runs::kit::{entry, shown, states, submit, task, these, with};

cases!(
    Server,
    on_sqlite: [
        a_run_is_new_and_shows_its_tasks,
        the_example_of_the_notes_is_a_run,
        defaults_and_order_make_no_difference_to_the_fingerprint,
        bad_graphs_are_refused_by_entry_and_field,
        bad_fields_are_refused_by_entry_and_field,
        camel_case_is_read_too,
        the_deadline_of_the_run_is_that_of_its_tasks,
        others_see_nothing_of_it,
    ],
    on_both_stores: [a_run_key_names_one_run, a_run_is_written_whole_or_not_at_all],
);

async fn a_run_is_new_and_shows_its_tasks(server: Server) {
    let entries = json!([entry("a", &[]), entry("b", &["a"]), with(entry("c", &[]), json!({"delay_ms": 60_000}))]);
    let answer = server.post("/api/v1/runs", json!({"labels": {"team": "etl"}, "tasks": entries})).await;
    assert_eq!(answer.status.as_u16(), 201, "{}", answer.body);
    let run = answer.body;
    let id = run["run_id"].as_str().unwrap();
    assert!(id.starts_with("run_") && id.len() == 30, "{id}");
    assert!(run["fingerprint"].as_str().unwrap().starts_with("sha256:"), "{run}");
    assert_eq!(
        (&run["state"], &run["created"], &run["labels"]),
        (&json!("Running"), &json!(true), &json!({"team": "etl"}))
    );
    assert_eq!(
        (&run["cancel_requested"], run.get("cancel_reason"), run.get("finished_at")),
        (&json!(false), None, None)
    );
    let counts = &run["counts"];
    assert_eq!(
        (&counts["total"], &counts["open"], &counts["blocked"], &counts["scheduled"], &counts["ready"]),
        (&json!(3), &json!(3), &json!(1), &json!(1), &json!(1))
    );
    let first = task(&run, "a");
    assert_eq!((&first["state"], &first["attempt"], &first["depends_on"]), (&json!("Ready"), &json!(0), &json!([])));
    assert_eq!(server.task(first["task_id"].as_str().unwrap()).await["task_id"], first["task_id"], "ids have one form");
    assert_eq!(states(&server, id).await, these(&[("a", "Ready"), ("b", "Blocked"), ("c", "Scheduled")]));

    // The same tasks in the words of tasks, and in all spellings of the id.
    let second = server.task(task(&run, "b")["task_id"].as_str().unwrap()).await;
    assert_eq!(
        (&second["state"], &second["run_id"], &second["task_key"]),
        (&json!("Blocked"), &run["run_id"], &json!("b"))
    );
    let blocked = server.get("/api/v1/tasks?state=Blocked").await.ok();
    assert_eq!(blocked["items"].as_array().unwrap().len(), 1);
    assert_eq!(shown(&server, &id[4..]).await["run_id"], json!(id));
    assert_eq!(shown(&server, &id.to_lowercase().replace("run_", "")).await["run_id"], json!(id));
    assert_eq!(server.get("/api/v1/runs/task_01HGW5N7XHJM4GX29KZRXQP6N9").await.refused(422)["field"], "id");
    assert_eq!(server.get("/api/v1/runs/run_01HGW5N7XHJM4GX29KZRXQP6N9").await.refused(404)["error"], "run_not_found");
}

async fn the_example_of_the_notes_is_a_run(server: Server) {
    let text = r#"{"run_key":"daily-2025-01-15","tenant":"acme","workspace":"prod","labels":{"team":"etl"},"deadline":"2035-01-15T18:00:00Z","tasks":[
 {"key":"extract","operator":"extract","queue":"etl","payload":{"day":"2025-01-15"},"timeout_ms":600000},
 {"key":"load","operator":"load","queue":"etl","depends_on":["extract"],"max_attempts":5,"retry":{"initial_backoff_ms":1000}}]}"#;
    let answer = server.send("/api/v1/runs", &[("Content-Type", "application/json")], text).await;
    assert_eq!(answer.status.as_u16(), 201, "{}", answer.body);
    let run = answer.ok();
    assert_eq!(
        (&run["run_key"], &run["tenant"], &run["workspace"]),
        (&json!("daily-2025-01-15"), &json!("acme"), &json!("prod"))
    );
    assert_eq!(task(&run, "load")["depends_on"], json!(["extract"]));
    let load = server.task(task(&run, "load")["task_id"].as_str().unwrap()).await;
    assert_eq!((&load["max_attempts"], &load["deadline"]), (&json!(5), &json!("2035-01-15T18:00:00Z")));
}

async fn a_run_key_names_one_run(server: Server) {
    let body =
        |payload: Value| json!({"run_key": "daily", "tasks": [with(entry("a", &[]), json!({"payload": payload}))]});
    let first = server.post("/api/v1/runs", body(json!({"n": 1}))).await;
    assert_eq!(first.status.as_u16(), 201);
    let first = first.body;
    let again = server.post("/api/v1/runs", body(json!({"n": 1}))).await;
    assert_eq!((again.status.as_u16(), &again.body["created"]), (200, &json!(false)));
    assert_eq!((&again.body["run_id"], &again.body["fingerprint"]), (&first["run_id"], &first["fingerprint"]));
    assert_eq!(again.body["tasks"], first["tasks"]);

    let other = server.post("/api/v1/runs", body(json!({"n": 2}))).await.refused(409);
    assert_eq!((&other["error"], &other["code"]), (&json!("run_key_conflict"), &json!("CONFLICT")));
    assert_eq!((&other["existing_run_id"], &other["existing_fingerprint"]), (&first["run_id"], &first["fingerprint"]));
    assert_ne!(other["requested_fingerprint"], first["fingerprint"]);
    assert!(other["requested_fingerprint"].as_str().unwrap().starts_with("sha256:"));

    // A key lives in its tenant and workspace.
    for scope in [json!({"workspace": "prod"}), json!({"tenant": "acme"})] {
        let answer = server.post("/api/v1/runs", with(body(json!({"n": 2})), scope)).await;
        assert_eq!(answer.status.as_u16(), 201, "{}", answer.body);
    }
    assert_eq!(server.get("/api/v1/tasks").await.ok()["items"].as_array().unwrap().len(), 3);
}

async fn defaults_and_order_make_no_difference_to_the_fingerprint(server: Server) {
    let short = json!({"run_key": "k", "tasks": [
        {"key": "a", "queue": "q", "operator": "op"}, {"key": "b", "queue": "q", "operator": "op"},
        {"key": "c", "queue": "q", "operator": "op", "depends_on": ["a", "b"]}]});
    let long = json!({"tasks": [
        {"operator": "op", "queue": "q", "key": "a", "payload": {}, "priority": 5, "max_attempts": 3, "depends_on": []},
        {"key": "b", "queue": "q", "operator": "op", "timeout_seconds": 3600, "tags": {}, "workspace": "default",
         "asset_id": "op", "resources": {"memory_bytes": 536_870_912, "cpu_millicores": 1000}},
        {"key": "c", "queue": "q", "operator": "op", "depends_on": ["b", "a"], "deadline": null}],
        "workspace": "default", "labels": {}, "run_key": "k"});
    assert_eq!(server.post("/api/v1/runs", short).await.status.as_u16(), 201);
    let again = server.post("/api/v1/runs", long).await;
    assert_eq!(again.status.as_u16(), 200, "{}", again.body);
}

async fn refused(server: &Server, body: Value, field: &str, says: &str) {
    let answer = server.post("/api/v1/runs", body).await.refused(422);
    let message = answer["message"].as_str().unwrap();
    assert_eq!((&answer["error"], &answer["field"]), (&json!("invalid_argument"), &json!(field)), "{answer}");
    assert!(message.contains(says), "{field}: {message}");
}

async fn bad_graphs_are_refused_by_entry_and_field(server: Server) {
    let tasks = |entries: Value| json!({"tasks": entries});
    refused(&server, json!({}), "tasks", "1 to 10000").await;
    refused(&server, tasks(json!([])), "tasks", "1 to 10000").await;
    let many: Vec<Value> = (0..=10_000).map(|n| json!({"key": n.to_string()})).collect();
    refused(&server, tasks(json!(many)), "tasks", "10001").await;
    refused(&server, tasks(json!([entry("a", &[]), entry("a", &[])])), "tasks[1].key", "tasks[0]").await;
    refused(&server, tasks(json!([entry("a", &["b"])])), "tasks[0].depends_on[0]", "the key b").await;
    refused(&server, tasks(json!([entry("a", &[]), entry("b", &["a", "a"])])), "tasks[1].depends_on[1]", "twice").await;
    refused(&server, tasks(json!([entry("a", &["a"])])), "tasks[0].depends_on", "a → a").await;
    let circle =
        json!([entry("x", &[]), entry("a", &["c", "x"]), entry("b", &["a"]), entry("c", &["b"]), entry("d", &["c"])]);
    let answer = server.post("/api/v1/runs", tasks(circle)).await.refused(422);
    let message = answer["message"].as_str().unwrap();
    assert!(message.contains("cycle") && ["a", "b", "c"].iter().all(|key| message.contains(key)), "{message}");
    assert!(!message.contains('d') || message.matches('→').count() == 3, "only the circle itself: {message}");

    let asks = |payload: Value| {
        tasks(json!([entry("a", &[]), entry("b", &[]), with(entry("c", &["a"]), json!({"payload": payload}))]))
    };
    refused(&server, asks(json!({"x": {"$from": "b"}})), "tasks[2].payload", "depends_on").await;
    refused(&server, asks(json!({"x": {"$from": "nobody"}})), "tasks[2].payload", "nobody").await;
    refused(&server, asks(json!([{"$from": "a", "path": "rows"}])), "tasks[2].payload", "JSON pointer").await;
    assert_eq!(server.get("/api/v1/runs").await.ok()["items"], json!([]));
}

async fn bad_fields_are_refused_by_entry_and_field(server: Server) {
    let one = |extra: Value| json!({"tasks": [entry("x", &[]), with(entry("a", &[]), extra)]});
    refused(&server, json!({"tasks": [{"queue": "q", "operator": "op"}]}), "tasks[0].key", "required").await;
    refused(&server, one(json!({"key": "with space"})), "tasks[1].key", "white space").await;
    refused(&server, one(json!({"key": 5})), "tasks[1].key", "string").await;
    refused(&server, one(json!({"depends_on": "x"})), "tasks[1].depends_on", "list").await;
    refused(&server, one(json!({"queue": ""})), "tasks[1].queue", "1 to").await;
    refused(&server, one(json!({"priority": 10})), "tasks[1].priority", "0 to 9").await;
    refused(&server, one(json!({"max_attempts": "many"})), "tasks[1].max_attempts", "").await;
    refused(&server, one(json!({"tenant": "other"})), "tasks[1].tenant", "that of the run").await;
    refused(&server, one(json!({"workspace": "other"})), "tasks[1].workspace", "that of the run").await;
    refused(&server, one(json!({"maxAttempts": 2})), "tasks[1].max_attempts", "two spellings").await;
    refused(&server, one(json!({"deadline": "soon"})), "tasks[1].deadline", "").await;
    refused(&server, with(one(json!({})), json!({"run_key": ""})), "run_key", "1 to 256").await;
    refused(&server, with(one(json!({})), json!({"workspace": "A"})), "workspace", "a-z").await;
    refused(&server, with(one(json!({})), json!({"labels": {"a:b": "c"}})), "labels", "':'").await;
    refused(&server, with(one(json!({})), json!({"deadline": 5})), "deadline", "").await;
    refused(&server, json!({"tasks": 5}), "tasks", "").await;
    let large = "x".repeat(1 << 20);
    let answer = server.post("/api/v1/runs", one(json!({"payload": large}))).await.refused(413);
    assert_eq!((&answer["error"], &answer["field"]), (&json!("payload_too_large"), &json!("tasks[1].payload")));
}

async fn a_run_is_written_whole_or_not_at_all(server: Server) {
    server.submit(json!({"idempotency_key": "taken"})).await;
    let entries = json!([entry("a", &[]), with(entry("b", &["a"]), json!({"idempotency_key": "taken"}))]);
    let answer = server.post("/api/v1/runs", json!({"run_key": "k", "tasks": entries})).await.refused(409);
    assert_eq!(answer["error"], "idempotency_conflict");
    assert_eq!(server.get("/api/v1/runs").await.ok()["items"], json!([]));
    assert_eq!(server.get("/api/v1/tasks").await.ok()["items"].as_array().unwrap().len(), 1);
    // The key of the run is as free as before.
    let answer = server.post("/api/v1/runs", json!({"run_key": "k", "tasks": [entry("a", &[])]})).await;
    assert_eq!(answer.status.as_u16(), 201);
}

async fn camel_case_is_read_too(server: Server) {
    let body = json!({"runKey": "k", "tasks": [
        {"key": "a", "queue": "q", "operator": "op", "maxAttempts": 7, "retry": {"initialBackoffMs": 1000}},
        {"key": "b", "queue": "q", "operator": "op", "dependsOn": ["a"], "payload": {"keepMe": {"$from": "a"}}}]});
    let run = server.post("/api/v1/runs", body).await.ok();
    assert_eq!((&run["run_key"], &task(&run, "b")["depends_on"]), (&json!("k"), &json!(["a"])));
    let first = server.task(task(&run, "a")["task_id"].as_str().unwrap()).await;
    assert_eq!(first["max_attempts"], 7);
    let second = server.task(task(&run, "b")["task_id"].as_str().unwrap()).await;
    assert_eq!(second["payload"], json!({"keepMe": {"$from": "a"}}));
}

async fn the_deadline_of_the_run_is_that_of_its_tasks(server: Server) {
    let own = with(entry("b", &["a"]), json!({"deadline": "2040-01-01T00:00:00Z"}));
    let body = json!({"deadline": "2035-01-01T00:00:00Z", "tasks": [entry("a", &[]), own]});
    let run = server.post("/api/v1/runs", body).await.ok();
    assert_eq!(run["deadline"], "2035-01-01T00:00:00Z");
    for (key, deadline) in [("a", "2035-01-01T00:00:00Z"), ("b", "2040-01-01T00:00:00Z")] {
        assert_eq!(server.task(task(&run, key)["task_id"].as_str().unwrap()).await["deadline"], deadline);
    }
}

async fn others_see_nothing_of_it(server: Server) {
    let run = submit(&server, vec![entry("a", &[])]).await;
    let as_other = [("X-Tenant-ID", "other")];
    let path = format!("/api/v1/runs/{run}");
    for (method, path) in [
        (reqwest::Method::GET, path.clone()),
        (reqwest::Method::POST, format!("{path}/cancel")),
        (reqwest::Method::POST, format!("{path}/rerun")),
    ] {
        let answer = server.call(method, &path, &as_other, None).await.refused(404);
        assert_eq!(answer["error"], "run_not_found", "{path}");
    }
    let list = server.call(reqwest::Method::GET, "/api/v1/runs", &as_other, None).await.ok();
    assert_eq!(list["items"], json!([]));
    assert_eq!(shown(&server, &run).await["state"], "Running");

    // Inside a tenant, what one owner submitted is not another's.
    let ann = [("X-User-ID", "ann")];
    let body = json!({"run_key": "k", "tasks": [entry("a", &[])]});
    let run = server.call(reqwest::Method::POST, "/api/v1/runs", &ann, Some(&body)).await.ok();
    assert_eq!(run["owner"], "ann");
    let path = format!("/api/v1/runs/{}", run["run_id"].as_str().unwrap());
    let bob = [("X-User-ID", "bob")];
    server.call(reqwest::Method::GET, &path, &bob, None).await.refused(404);
    let taken = server.call(reqwest::Method::POST, "/api/v1/runs", &bob, Some(&body)).await.refused(409);
    assert_eq!((&taken["error"], taken.get("existing_run_id")), (&json!("run_key_conflict"), None));
}
