//! The rules of the wire: headers, ids, times, what is ignored and what is not.

use reqwest::Method;
use serde_json::{Value, json};
use tenure_core::TaskId;

use crate::cases;
use crate::harness::{Server, TOKEN, fatal, report};

cases!(
    Server,
    on_sqlite: [
        every_answer_names_the_contract,
        unknown_fields_are_ignored_and_null_is_absent,
        ids_are_taken_in_three_spellings,
        request_ids_are_echoed_or_made,
        answers_are_not_stored_by_caches,
    ],
    on_both_stores: [every_time_is_utc, payloads_come_back_as_they_were],
);

async fn every_answer_names_the_contract(server: Server) {
    server.submit(json!({})).await;
    let claim = json!({"worker_id": "w-1", "streams": ["q"], "max_wait_ms": 0});
    let claimed = server.worker("claim", claim.clone()).await;
    let job = claimed.body.clone();
    let mut answers = vec![claimed, server.worker("claim", claim).await];
    answers.push(server.heartbeat("w-1", &job).await);
    answers.push(server.worker("exchange", json!({"worker_id": "w-1"})).await);
    answers.push(server.complete("w-1", &job, json!({})).await);
    // And on errors: 401, 404, 405, 409, 415, 422, unknown paths.
    answers.push(server.call(Method::POST, "/internal/worker/claim", &[], Some(&json!({}))).await);
    answers.push(server.fail("w-1", &job, fatal()).await);
    answers.push(server.worker("claim", json!({})).await);
    answers.push(server.send("/internal/worker/claim", &[], "x").await);
    answers.push(server.call(Method::GET, "/internal/worker/claim", &[], None).await);
    answers.push(server.call(Method::POST, "/internal/worker/nothing", &[], None).await);
    let statuses: Vec<_> = answers.iter().map(|answer| answer.status.as_u16()).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 401, 409, 422, 415, 405, 404]);
    for answer in answers {
        assert_eq!(answer.header("X-Tenure-Contract"), "pull/1", "{}", answer.body);
    }
    assert_eq!(server.get("/api/v1/tasks").await.header("X-Tenure-Contract"), "");
}

/// Looks at every text of a body whose name says that it is a time.
fn check_times(value: &Value, found: &mut usize) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value.as_str() {
                    Some(text) if name.ends_with("_at") || name == "deadline" || name == "since" || name == "until" => {
                        assert!(text.ends_with('Z') && text.contains('T'), "{name}: {text}");
                        tenure_core::time::Timestamp::parse(text).unwrap();
                        *found += 1;
                    }
                    _ => check_times(value, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| check_times(item, found)),
        _ => {}
    }
}

async fn every_time_is_utc(server: Server) {
    let task = json!({"deadline": "2200-01-15T20:00:00+02:00", "max_attempts": 2, "retry": {"initial_backoff_ms": 0}});
    let id = server.submit(task).await;
    let job = server.claim("w-1").await;
    assert_eq!(job["deadline"], "2200-01-15T18:00:00Z");
    let beat = server.heartbeat("w-1", &job).await.ok();
    let running = server.task(&id).await;
    server.fail("w-1", &job, json!({"code": "X", "message": "m"})).await.ok();
    let again = server.claim("w-2").await;
    server.complete("w-1", &job, json!({})).await.refused(409);
    server.fail("w-2", &again, json!({"code": "X", "message": "m"})).await.ok();
    let mut found = 0;
    for body in [
        job,
        beat,
        running,
        server.task(&id).await,
        json!(server.attempts(&id).await),
        server.get("/api/v1/dead-letters").await.ok(),
        server.get("/api/v1/queues").await.ok(),
        server.get(&format!("/api/v1/tasks/{id}/why")).await.ok(),
    ] {
        check_times(&body, &mut found);
    }
    assert!(found >= 20, "{found}");
}

async fn unknown_fields_are_ignored_and_null_is_absent(server: Server) {
    let task = json!({"priority": null, "payload": {"x": 1}, "tags": null, "retry": {"jitter": null}, "run_at": null});
    let id = server.submit(task).await;
    assert_eq!(server.task(&id).await["priority"], 5);
    let claim = json!({"worker_id": "w-1", "streams": ["q"], "max_wait_ms": 0, "max_jobs": null, "claim_id": null, "job_id": null, "zone": "b"});
    let job = server.worker("claim", claim).await.ok();
    assert_eq!((&job["claimed"], job.get("jobs")), (&json!(true), None));
    let beat = json!({"worker_id": "w-1", "job_id": job["job_id"], "lease_token": job["lease_token"], "progress_pct": null, "message": null, "cpu": 0.5});
    let beat = server.worker("heartbeat", beat).await.ok();
    // Absent options are omitted, not null.
    assert!(beat.get("cancel_reason").is_none());
    let mut complete = report("w-1", &job);
    crate::harness::merge(&mut complete, json!({"stream": null, "message_id": null, "result": null, "took_ms": 5}));
    server.worker("complete", complete).await.ok();
    let shown = server.task(&id).await;
    assert!(shown.as_object().unwrap().values().all(|value| !value.is_null()), "{shown}");
    // What the contract needs is not absent, and not null.
    for body in [json!({"worker_id": null, "streams": ["q"]}), json!({"streams": ["q"]})] {
        assert_eq!(server.worker("claim", body).await.refused(422)["field"], "worker_id");
    }
}

async fn ids_are_taken_in_three_spellings(server: Server) {
    for spelling in 0..4 {
        let id = server.submit(json!({})).await;
        assert_eq!(id, id.to_lowercase());
        let ulid = TaskId::parse(&id).unwrap().to_ulid_text();
        let other = match spelling {
            0 => id.clone(),
            1 => ulid.clone(),
            2 => ulid.trim_start_matches("task_").to_owned(),
            _ => id.to_uppercase(),
        };
        // Paths of the user API.
        for path in ["", "/attempts", "/why"] {
            server.get(&format!("/api/v1/tasks/{other}{path}")).await.ok();
        }
        assert_eq!(server.task(&other).await["task_id"], json!(id));
        // Worker calls.
        let mut job = server.worker("claim", json!({"worker_id": "w-1", "job_id": other})).await.ok();
        assert_eq!(job["job_id"], json!(id), "{other}");
        job["job_id"] = json!(other);
        server.heartbeat("w-1", &job).await.ok();
        server.complete("w-1", &job, json!({})).await.ok();
        let cancel = server.post(&format!("/api/v1/tasks/{other}/cancel"), json!({})).await;
        assert_eq!(cancel.status.as_u16(), 409);
    }
}

async fn request_ids_are_echoed_or_made(server: Server) {
    let path = "/api/v1/tasks/018c385a-9fb1-9509-0e89-33fe3b7b1aa9";
    let sent = server.call(Method::GET, path, &[("X-Request-ID", "req_7-a.b:c")], None).await;
    assert_eq!((sent.header("X-Request-ID"), &sent.body["request_id"]), ("req_7-a.b:c", &json!("req_7-a.b:c")));
    let worker = [("X-Request-ID", "abc"), ("X-Worker-Token", TOKEN)];
    let sent = server.call(Method::POST, "/internal/worker/claim", &worker, Some(&json!({}))).await;
    assert_eq!((sent.header("X-Request-ID"), &sent.body["request_id"]), ("abc", &json!("abc")));
    // On success too, and made where it is missing or could break a log line.
    for odd in ["", "has space", &"x".repeat(200)] {
        let made = server.call(Method::GET, "/api/v1/live", &[("X-Request-ID", odd)], None).await;
        assert!(made.header("X-Request-ID").starts_with("req_"), "{odd}");
    }
    let one = server.get("/api/v1/live").await;
    let two = server.get("/api/v1/live").await;
    assert_ne!(one.header("X-Request-ID"), two.header("X-Request-ID"));
}

async fn payloads_come_back_as_they_were(server: Server) {
    // Big numbers, repeated keys, odd characters: carried as text, never looked into.
    let payload = r#"{"n":12345678901234567890123,"f":1.10,"z":"\u0000\ud83d\ude00","b":1,"a":2}"#;
    let text = format!(r#"{{"queue":"q","operator":"op","payload":{payload}}}"#);
    let json = [("Content-Type", "application/json")];
    let id = server.send("/api/v1/tasks", &json, text).await.ok()["task_id"].as_str().unwrap().to_owned();
    let raw = async |path: &str, body: Option<String>| {
        let url = format!("{}{path}", server.url);
        let client = reqwest::Client::new();
        let request = match body {
            None => client.get(url),
            Some(body) => {
                client.post(url).header("X-Worker-Token", TOKEN).header("Content-Type", "application/json").body(body)
            }
        };
        request.send().await.unwrap().text().await.unwrap()
    };
    assert!(raw(&format!("/api/v1/tasks/{id}"), None).await.contains(payload));
    let claim = json!({"worker_id": "w-1", "streams": ["q"], "max_wait_ms": 0}).to_string();
    assert!(raw("/internal/worker/claim", Some(claim)).await.contains(payload));
}

async fn answers_are_not_stored_by_caches(server: Server) {
    for path in ["/api/v1/tasks", "/api/v1/nothing"] {
        let answer = server.get(path).await;
        assert_eq!(answer.header("Cache-Control"), "no-store");
        assert_eq!(answer.header("X-Content-Type-Options"), "nosniff");
        assert_eq!(answer.header("Content-Type"), "application/json");
    }
}
