//! Submitting one task or many.

use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::cases;
use crate::harness::{Server, between, time};

cases!(
    Server,
    on_sqlite: [
        the_same_key_and_content_is_the_same_task,
        the_same_key_with_other_content_is_a_conflict,
        a_key_is_unique_per_tenant_and_workspace,
        a_batch_repeats_what_exists_and_within_itself,
        a_batch_has_its_limits,
        a_delay_and_a_time_schedule_a_task,
        every_field_has_its_bounds,
        unknown_fields_are_refused_with_a_suggestion,
        missing_fields_are_required,
        a_list_is_not_an_object,
    ],
    on_both_stores: [
        a_task_is_shown_as_it_was_submitted,
        concurrent_submits_with_one_key_make_one_task,
        a_batch_is_all_or_nothing,
    ],
);

async fn submit(server: &Server, extra: Value) -> (StatusCode, Value) {
    let mut task = json!({"queue": "q", "operator": "op"});
    crate::harness::merge(&mut task, extra);
    let answer = server.post("/api/v1/tasks", task).await;
    (answer.status, answer.body)
}

async fn count(server: &Server) -> usize {
    server.get("/api/v1/tasks?limit=1000").await.ok()["items"].as_array().unwrap().len()
}

async fn a_task_is_shown_as_it_was_submitted(server: Server) {
    let task = json!({
        "queue": "etl", "operator": "extract", "payload": {"day": "2025-01-15"}, "priority": 7, "delay_ms": 0,
        "idempotency_key": "extract-2025-01-15", "max_attempts": 4, "lease_ttl_seconds": 60, "timeout_seconds": 3600,
        "retry": {"initial_backoff_ms": 5000, "factor": 2, "max_backoff_ms": 300000, "jitter": "full"},
        "tags": {"team": "etl"}, "tenant": "acme", "workspace": "prod",
    });
    let answer = server.post("/api/v1/tasks", task).await;
    assert_eq!(answer.status, StatusCode::CREATED);
    let id = answer.body["task_id"].as_str().unwrap();
    assert_eq!(answer.body, json!({"task_id": id, "state": "Ready", "created": true}));
    let shown = server.task(id).await;
    let expected = json!({
        "task_id": id, "queue": "etl", "operator": "extract", "state": "Ready", "priority": 7, "attempt": 0,
        "max_attempts": 4, "fence": 0, "payload": {"day": "2025-01-15"}, "tags": {"team": "etl"}, "tenant": "acme",
        "workspace": "prod", "cancel_requested": false, "idempotency_key": "extract-2025-01-15",
        "created_at": shown["created_at"], "run_at": shown["created_at"],
    });
    assert_eq!(shown, expected);
    let shown = server.task(&server.submit(json!({})).await).await;
    let defaults = json!([5, 3, {}, "default", "default", {}]);
    assert_eq!(
        json!([
            shown["priority"],
            shown["max_attempts"],
            shown["payload"],
            shown["tenant"],
            shown["workspace"],
            shown["tags"]
        ]),
        defaults
    );
}

async fn the_same_key_and_content_is_the_same_task(server: Server) {
    let task = json!({"idempotency_key": "k", "payload": {"a": 1, "b": [1, 2]}});
    let (status, first) = submit(&server, task.clone()).await;
    assert_eq!((status, &first["created"]), (StatusCode::CREATED, &json!(true)));
    let (status, again) = submit(&server, task.clone()).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(again, json!({"task_id": first["task_id"], "state": "Ready", "created": false}));
    // The order of keys is no content, nor are absent options written as null.
    let text = r#"{"payload":{"b":[1, 2],"a":1},"operator":"op","tenant":null,"queue":"q","idempotency_key":"k"}"#;
    let answer = server.send("/api/v1/tasks", &[("Content-Type", "application/json")], text).await;
    assert_eq!((answer.status, &answer.body["task_id"]), (StatusCode::OK, &first["task_id"]));
    // The state is the current one, also at the end and after a restart.
    let job = server.claim("w-1").await;
    assert_eq!(submit(&server, task.clone()).await.1["state"], "Running");
    server.complete("w-1", &job, json!({})).await.ok();
    let server = server.restart().await;
    let (status, again) = submit(&server, task).await;
    assert_eq!((status, &again["state"]), (StatusCode::OK, &json!("Succeeded")));
    assert_eq!(count(&server).await, 1);
}

async fn the_same_key_with_other_content_is_a_conflict(server: Server) {
    let (_, first) = submit(&server, json!({"idempotency_key": "k", "payload": {"a": 1}})).await;
    for other in [
        json!({"payload": {"a": 2}}),
        json!({"payload": {"a": 1}, "priority": 4}),
        json!({"payload": {"a": 1}, "queue": "other"}),
        json!({}),
    ] {
        let mut task = json!({"idempotency_key": "k"});
        crate::harness::merge(&mut task, other);
        let (status, refused) = submit(&server, task).await;
        assert_eq!((status.as_u16(), &refused["error"]), (409, &json!("idempotency_conflict")));
        let (message, owner) = (refused["message"].as_str().unwrap(), first["task_id"].as_str().unwrap());
        assert_eq!(message, format!("the idempotency key belongs to task {owner}, which has different content"));
    }
    assert_eq!(count(&server).await, 1);
}

async fn a_key_is_unique_per_tenant_and_workspace(server: Server) {
    let mut ids = Vec::new();
    for (tenant, workspace) in [("a", "x"), ("a", "y"), ("b", "x")] {
        let task = json!({"idempotency_key": "k", "tenant": tenant, "workspace": workspace});
        let (status, body) = submit(&server, task.clone()).await;
        assert_eq!(status, StatusCode::CREATED);
        ids.push(body["task_id"].to_string());
        assert_eq!(submit(&server, task).await.0, StatusCode::OK);
    }
    ids.dedup();
    assert_eq!(ids.len(), 3);
}

async fn concurrent_submits_with_one_key_make_one_task(server: Server) {
    let submits = (0..20).map(async |_| submit(&server, json!({"idempotency_key": "k"})).await);
    let answers = futures_util::future::join_all(submits).await;
    assert!(answers.iter().all(|(status, _)| status.is_success()), "{answers:?}");
    assert_eq!(answers.iter().filter(|(_, body)| body["created"] == true).count(), 1);
    assert!(answers.iter().all(|(_, body)| body["task_id"] == answers[0].1["task_id"]));
    assert_eq!(count(&server).await, 1);
}

async fn a_batch_is_all_or_nothing(server: Server) {
    let good = json!({"queue": "q", "operator": "op"});
    for (bad, field) in [
        (json!({"queue": "", "operator": "op"}), "tasks[3].queue"),
        (json!({"operator": "op"}), "tasks[3].queue"),
        (json!({"queue": "q", "operator": "op", "priority": 10}), "tasks[3].priority"),
        (json!({"queue": "q", "operator": 7}), "tasks[3].operator"),
        (json!({"queue": "q", "operator": "op", "retry": {"jitter": "some"}}), "tasks[3].retry.jitter"),
    ] {
        let tasks = [&good, &good, &good, &bad, &good];
        let refused = server.post("/api/v1/tasks/batch", json!({"tasks": tasks})).await.refused(422);
        assert_eq!((&refused["error"], &refused["field"]), (&json!("invalid_argument"), &json!(field)));
    }
    let big = json!({"queue": "q", "operator": "op", "payload": "x".repeat(1 << 20)});
    let refused = server.post("/api/v1/tasks/batch", json!({"tasks": [&good, &big]})).await.refused(413);
    assert_eq!((&refused["error"], &refused["field"]), (&json!("payload_too_large"), &json!("tasks[1].payload")));
    // A conflict of one entry's key refuses all as well.
    submit(&server, json!({"idempotency_key": "k"})).await;
    let conflict = json!({"queue": "q", "operator": "other", "idempotency_key": "k"});
    let refused = server.post("/api/v1/tasks/batch", json!({"tasks": [&good, &conflict]})).await.refused(409);
    assert_eq!(refused["error"], "idempotency_conflict");
    let message = refused["message"].as_str().unwrap();
    assert!(message.starts_with("the idempotency key of tasks[1] belongs to task "), "{message}");
    assert_eq!(count(&server).await, 1);
}

async fn a_batch_repeats_what_exists_and_within_itself(server: Server) {
    let (_, old) = submit(&server, json!({"idempotency_key": "old"})).await;
    let task = |key: Option<&str>, delay: u64| json!({"queue": "q", "operator": "op", "idempotency_key": key, "delay_ms": if delay > 0 { Some(delay) } else { None }});
    let tasks = [task(Some("old"), 0), task(Some("new"), 0), task(Some("new"), 0), task(None, 60_000)];
    let answer = server.post("/api/v1/tasks/batch", json!({"tasks": tasks})).await;
    assert_eq!(answer.status, StatusCode::OK);
    let items = &answer.body["tasks"];
    assert_eq!(answer.body["created"], 2);
    let told = |index: usize| json!([items[index]["index"], items[index]["state"], items[index]["created"]]);
    assert_eq!(told(0), json!([0, "Ready", false]));
    assert_eq!(told(1), json!([1, "Ready", true]));
    assert_eq!(told(2), json!([2, "Ready", false]));
    assert_eq!(told(3), json!([3, "Scheduled", true]));
    assert_eq!(items[0]["task_id"], old["task_id"]);
    assert_eq!(items[1]["task_id"], items[2]["task_id"]);
    assert_eq!(count(&server).await, 3);
}

async fn a_batch_has_its_limits(server: Server) {
    for tasks in [vec![], vec![json!({"queue": "q", "operator": "op"}); 10_001]] {
        assert_eq!(server.post("/api/v1/tasks/batch", json!({"tasks": tasks})).await.refused(422)["field"], "tasks");
    }
    assert_eq!(server.post("/api/v1/tasks/batch", json!({})).await.refused(422)["field"], "tasks");
    assert_eq!(count(&server).await, 0);
}

async fn a_delay_and_a_time_schedule_a_task(server: Server) {
    let later = server.submit(json!({"delay_ms": 60_000})).await;
    let task = server.task(&later).await;
    assert_eq!((&task["state"], between(&task["created_at"], &task["run_at"])), (&json!("Scheduled"), 60_000));
    let at = server.engine.now().await.unwrap().plus(30_000);
    let timed = server.submit(json!({"run_at": at.to_string()})).await;
    let task = server.task(&timed).await;
    assert_eq!((&task["state"], time(&task["run_at"])), (&json!("Scheduled"), at));
    // A time in the past is now; one with an offset is the same moment in UTC.
    let past = server.submit(json!({"run_at": "2020-01-01T00:00:00+02:00"})).await;
    assert_eq!(server.state(&past).await, "Ready");
    let far = server.submit(json!({"run_at": "2200-01-01T02:00:00+02:00"})).await;
    assert_eq!(server.task(&far).await["run_at"], "2200-01-01T00:00:00Z");
    server.claim("w-1").await;
    assert!(server.claim("w-1").await.is_null());
    server.advance(30_000);
    server.until(&timed, "Ready").await;
    assert_eq!(server.state(&later).await, "Scheduled");
    server.advance(30_000);
    server.until(&later, "Ready").await;
}

async fn every_field_has_its_bounds(server: Server) {
    let many: serde_json::Map<_, _> = (0..33).map(|n| (format!("t{n}"), json!("v"))).collect();
    for (extra, field) in [
        (json!({"queue": null}), "queue"),
        (json!({"queue": "two words"}), "queue"),
        (json!({"queue": "q".repeat(129)}), "queue"),
        (json!({"operator": ""}), "operator"),
        (json!({"priority": -1}), "priority"),
        (json!({"priority": 1.5}), "priority"),
        (json!({"max_attempts": 0}), "max_attempts"),
        (json!({"max_attempts": 1_001}), "max_attempts"),
        (json!({"lease_ttl_seconds": 0}), "lease_ttl_seconds"),
        (json!({"lease_ttl_seconds": 3_601}), "lease_ttl_seconds"),
        (json!({"lease_ttl_seconds": 10, "heartbeat_interval_seconds": 10}), "heartbeat_interval_seconds"),
        (json!({"timeout_seconds": 0}), "timeout_seconds"),
        (json!({"timeout_seconds": 5, "timeout_ms": 5_000}), "timeout_ms"),
        (json!({"delay_ms": 1, "run_at": "2025-01-15T10:00:00Z"}), "run_at"),
        (json!({"delay_ms": -1}), "delay_ms"),
        (json!({"run_at": "tomorrow"}), "run_at"),
        (json!({"deadline": 7}), "deadline"),
        (json!({"cancel_grace_period_ms": -1}), "cancel_grace_period_ms"),
        (json!({"retry": {"factor": 0.5}}), "retry.factor"),
        (json!({"retry": {"initial_backoff_ms": -1}}), "retry.initial_backoff_ms"),
        (json!({"tenant": "Acme!"}), "tenant"),
        (json!({"workspace": ""}), "workspace"),
        (json!({"tags": {"a:b": "c"}}), "tags"),
        (json!({"tags": many}), "tags"),
        (json!({"tags": {"team": 1}}), "tags.team"),
        (json!({"idempotency_key": ""}), "idempotency_key"),
        (json!({"idempotency_key": "x".repeat(257)}), "idempotency_key"),
        (json!({"traceparent": "a b"}), "traceparent"),
    ] {
        let (status, refused) = submit(&server, extra.clone()).await;
        assert_eq!(
            (status.as_u16(), &refused["error"], &refused["field"]),
            (422, &json!("invalid_argument"), &json!(field)),
            "{extra}"
        );
    }
    assert_eq!(count(&server).await, 0);
    for extra in [
        json!({"priority": 0}),
        json!({"priority": 9}),
        json!({"lease_ttl_seconds": 1}),
        json!({"lease_ttl_seconds": 3_600}),
        json!({"max_attempts": 1}),
        json!({"idempotency_key": "x".repeat(256)}),
    ] {
        assert_eq!(submit(&server, extra.clone()).await.0, StatusCode::CREATED, "{extra}");
    }
}

async fn unknown_fields_are_refused_with_a_suggestion(server: Server) {
    let task = server.submit(json!({"delay_ms": 60_000})).await;
    let member = json!({"key": "a", "queue": "q", "operator": "op"});
    let with = |mut body: Value, extra: Value| {
        crate::harness::merge(&mut body, extra);
        body
    };
    let one = json!({"queue": "q", "operator": "op"});
    for (path, body, field, meant) in [
        ("tasks", with(one.clone(), json!({"delay_mss": 1})), "delay_mss", "delay_ms"),
        ("tasks", with(one.clone(), json!({"timeout": 1})), "timeout", "timeout_ms"),
        ("tasks", with(one.clone(), json!({"retry": {"fator": 2}})), "retry.fator", "factor"),
        (
            "tasks/batch",
            json!({"tasks": [one, with(one.clone(), json!({"priorty": 1}))]}),
            "tasks[1].priorty",
            "priority",
        ),
        ("tasks/batch", json!({"task": []}), "task", "tasks"),
        (&format!("tasks/{task}/cancel"), json!({"resaon": "x"}), "resaon", "reason"),
        ("runs", json!({"runkey": "k", "tasks": [member]}), "runkey", "run_key"),
        (
            "runs",
            json!({"tasks": [with(member.clone(), json!({"depend_on": ["b"]}))]}),
            "tasks[0].depend_on",
            "depends_on",
        ),
        (
            "runs",
            json!({"tasks": [with(member.clone(), json!({"maxAttempt": 1}))]}),
            "tasks[0].max_attempt",
            "max_attempts",
        ),
        ("dead-letters/redrive", json!({"filter": {"que": "q"}}), "filter.que", "queue"),
        ("dead-letters/redrive", json!({"filter": {"queue": "q"}, "dryrun": true}), "dryrun", "dry_run"),
    ] {
        let refused = server.post(&format!("/api/v1/{path}"), body.clone()).await.refused(422);
        assert_eq!((&refused["error"], &refused["field"]), (&json!("unknown_field"), &json!(field)), "{body}");
        let message = refused["message"].as_str().unwrap();
        assert!(message.ends_with(&format!("; did you mean `{meant}`?")), "{message}");
    }
    let refused = server.put("/api/v1/queues/q", json!({"rate": {"per_sec": 1, "per_second": 1}})).await.refused(422);
    assert_eq!((&refused["error"], &refused["field"]), (&json!("unknown_field"), &json!("rate.per_sec")));
    for (list, meant) in [("tasks?stat=Ready", "state"), ("runs?labels=a:b", "label"), ("queues?cursr=a", "cursor")] {
        let refused = server.get(&format!("/api/v1/{list}")).await.refused(422);
        let (name, _) = list.split_once('?').unwrap().1.split_once('=').unwrap();
        let expected = format!("unknown parameter `{name}`; did you mean `{meant}`?");
        assert_eq!((&refused["error"], &refused["message"]), (&json!("unknown_field"), &json!(expected)));
    }
    assert_eq!(count(&server).await, 1);
}

async fn missing_fields_are_required(server: Server) {
    for (body, field) in [
        (json!({"queue": "q"}), "operator"),
        (json!({"operator": "op"}), "queue"),
        (json!({"queue": null, "operator": "op"}), "queue"),
    ] {
        let refused = server.post("/api/v1/tasks", body).await.refused(422);
        assert_eq!((&refused["field"], &refused["message"]), (&json!(field), &json!("is required")));
    }
    let refused = server.post("/api/v1/runs", json!({"tasks": [{"key": "a", "queue": "q"}]})).await.refused(422);
    assert_eq!((&refused["field"], &refused["message"]), (&json!("tasks[0].operator"), &json!("is required")));
}

async fn a_list_is_not_an_object(server: Server) {
    for (field, list) in
        [("retry", json!([5000, 2])), ("retry", json!([])), ("resources", json!([1])), ("runtime", json!([]))]
    {
        let (status, refused) = submit(&server, json!({field: list})).await;
        assert_eq!((status.as_u16(), &refused["field"]), (422, &json!(field)), "{refused}");
        assert_eq!(refused["message"], "invalid type: sequence, expected an object");
    }
    let task = json!({"key": "a", "queue": "q", "operator": "op", "retry": [5000]});
    for (path, body, field) in [
        ("/api/v1/tasks/batch", json!({"tasks": [["q", "op"]]}), "tasks[0]"),
        ("/api/v1/tasks", json!(["q", "op"]), "body"),
        ("/api/v1/runs", json!({"tasks": [task]}), "tasks[0].retry"),
    ] {
        let refused = server.post(path, body).await.refused(422);
        assert_eq!(refused["field"], field, "{refused}");
    }
    assert_eq!(count(&server).await, 0);
}
