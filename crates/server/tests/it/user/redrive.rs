//! Putting dead letters back into their queues.

use serde_json::{Value, json};
use tenure_testkit::wait_until;

use crate::cases;
use crate::harness::{SOON, Server, fatal};

cases!(
    Server,
    on_sqlite: [
        a_dry_run_changes_nothing,
        a_key_with_another_filter_is_refused,
        a_redrive_is_listed_paused_resumed_and_canceled,
        matching_tasks_are_released_and_others_not,
        the_rate_is_kept,
        the_same_key_returns_the_current_counts,
        an_empty_filter_is_refused,
    ],
    on_both_stores: [every_filter_field_narrows, dead_letters_are_listed_and_paged],
    everywhere: [a_redrive_survives_a_restart, two_that_overlap_release_a_task_once],
);

/// Makes `n` dead letters of a queue with this operator and error code.
async fn dead(server: &Server, queue: &str, operator: &str, code: &str, n: usize) -> Vec<String> {
    let tasks = vec![json!({"queue": queue, "operator": operator}); n];
    let batch = server.post("/api/v1/tasks/batch", json!({"tasks": tasks})).await.ok();
    let turn = json!({"worker_id": "w-1", "claim": {"streams": [queue], "max_jobs": n, "max_wait_ms": 0}});
    let jobs = server.worker("exchange", turn).await.ok()["jobs"].as_array().unwrap().clone();
    let error = json!({"code": code, "message": "m", "retryable": false});
    let fail = |job: &Value| json!({"job_id": job["job_id"], "attempt_id": job["attempt_id"], "lease_token": job["lease_token"], "error": error});
    let fails: Vec<_> = jobs.iter().map(fail).collect();
    let answer = server.worker("exchange", json!({"worker_id": "w-1", "fail": fails})).await.ok();
    assert!(answer["fail"].as_array().unwrap().iter().all(|item| item["dlq"] == true));
    batch["tasks"].as_array().unwrap().iter().map(|task| task["task_id"].as_str().unwrap().to_owned()).collect()
}

async fn redrive(server: &Server, body: Value) -> Value {
    let answer = server.post("/api/v1/dead-letters/redrive", body).await;
    assert_eq!(answer.status.as_u16(), 202, "{}", answer.body);
    answer.body
}

async fn dead_count(server: &Server) -> usize {
    server.get("/api/v1/dead-letters?limit=1000").await.ok()["items"].as_array().unwrap().len()
}

async fn a_dry_run_changes_nothing(server: Server) {
    let ids = dead(&server, "q", "op", "A", 5).await;
    let before = server.get("/api/v1/dead-letters").await.ok();
    let answer = server.post("/api/v1/dead-letters/redrive", json!({"filter": {"queue": "q"}, "dry_run": true})).await;
    assert_eq!(answer.status.as_u16(), 200);
    assert_eq!(answer.body, json!({"dry_run": true, "matched": 5, "released": 0, "state": "dry_run"}));
    // A real one on something else proves that redrives run; the five are still where they were.
    let other = dead(&server, "other", "op", "A", 1).await;
    redrive(&server, json!({"filter": {"queue": "other"}})).await;
    server.until(&other[0], "Ready").await;
    assert_eq!(server.get("/api/v1/dead-letters?queue=q").await.ok(), before);
    assert_eq!(server.state(&ids[0]).await, "Failed");
}

async fn matching_tasks_are_released_and_others_not(server: Server) {
    let here = dead(&server, "q", "op", "A", 3).await;
    let there = dead(&server, "other", "op", "A", 2).await;
    let answer = redrive(&server, json!({"filter": {"queue": "q"}})).await;
    assert!(answer["redrive_id"].as_str().unwrap().starts_with("rd_"));
    assert_eq!((&answer["dry_run"], &answer["matched"]), (&json!(false), &json!(3)));
    for id in &here {
        let task = server.until(id, "Ready").await;
        assert_eq!((&task["attempt"], &task["fence"], &task["max_attempts"]), (&json!(1), &json!(1), &json!(6)));
        assert!(task.get("dead_lettered_at").is_none());
    }
    assert_eq!(server.state(&there[0]).await, "Failed");
    let job = server.claim("w-1").await;
    assert_eq!((&job["attempt"], &job["fence"]), (&json!(2), &json!(2)));
    server.fail("w-1", &job, fatal()).await.ok();
    let again = server.get("/api/v1/dead-letters?queue=q").await.ok();
    assert_eq!((&again["items"][0]["redrive_count"], &again["items"][0]["attempts"]), (&json!(1), &json!(2)));
}

async fn every_filter_field_narrows(server: Server) {
    let one = dead(&server, "q", "extract", "A", 2).await;
    let between = server.engine.now().await.unwrap().plus(30_000).to_string();
    server.advance(60_000);
    dead(&server, "q", "load", "B", 3).await;
    dead(&server, "other", "load", "A", 4).await;
    for (filter, matched) in [
        (json!({"queue": "q"}), 5),
        (json!({"operator": "load"}), 7),
        (json!({"error_code": "A"}), 6),
        (json!({"queue": "q", "error_code": "A"}), 2),
        (json!({"reason": "non_retryable"}), 9),
        (json!({"reason": "max_attempts"}), 0),
        (json!({"after": between}), 7),
        (json!({"before": between}), 2),
        (json!({"tenant": "default"}), 9),
        (json!({"tenant": "nobody"}), 0),
        (json!({"task_ids": one}), 2),
        (json!({"task_ids": [one[0]], "operator": "load"}), 0),
        (json!({"task_ids": ["018c385a-9fb1-9509-0e89-33fe3b7b1aa9"]}), 0),
        (json!({"task_ids": []}), 0),
    ] {
        let body = json!({"filter": filter, "dry_run": true});
        assert_eq!(server.post("/api/v1/dead-letters/redrive", body).await.ok()["matched"], matched, "{filter}");
    }
    redrive(&server, json!({"filter": {"operator": "load", "error_code": "A"}})).await;
    wait_until("four are released", SOON, async || dead_count(&server).await == 5).await;
}

async fn the_rate_is_kept(server: Server) {
    dead(&server, "q", "op", "A", 10).await;
    let started = std::time::Instant::now();
    redrive(&server, json!({"filter": {"queue": "q"}, "rate": 4, "idempotency_key": "slow"})).await;
    let mut seen = Vec::new();
    wait_until("all are released", SOON, async || {
        let left = dead_count(&server).await;
        let released = 10 - left;
        // What the first second allows at once, then so many a second.
        let allowed = 4.0 + started.elapsed().as_secs_f64() * 4.0;
        assert!(released as f64 <= allowed, "{released} after {:?}", started.elapsed());
        seen.push(released);
        left == 0
    })
    .await;
    assert!(started.elapsed().as_secs_f64() > 1.0 && seen.iter().any(|n| (1..10).contains(n)), "{seen:?}");
}

async fn the_same_key_returns_the_current_counts(server: Server) {
    dead(&server, "q", "op", "A", 3).await;
    let body = json!({"filter": {"queue": "q"}, "idempotency_key": "r-1"});
    let first = redrive(&server, body.clone()).await;
    let done = wait_until("the redrive is done", SOON, async || {
        Some(redrive(&server, body.clone()).await).filter(|answer| answer["state"] == "done")
    })
    .await;
    assert_eq!(done["redrive_id"], first["redrive_id"]);
    assert_eq!((&done["matched"], &done["released"]), (&json!(3), &json!(3)));
    // What comes to the dead letters later is another redrive's business.
    let later = dead(&server, "other", "op", "A", 1).await;
    let again = redrive(&server, body).await;
    assert_eq!((&again["redrive_id"], &again["released"]), (&first["redrive_id"], &json!(3)));
    assert_eq!(server.state(&later[0]).await, "Failed");
}

async fn an_empty_filter_is_refused(server: Server) {
    let ids = dead(&server, "q", "op", "A", 1).await;
    for body in [json!({"filter": {}}), json!({}), json!({"filter": {"queue": null}, "dry_run": true})] {
        let refused = server.post("/api/v1/dead-letters/redrive", body).await.refused(422);
        assert_eq!((&refused["error"], &refused["field"]), (&json!("invalid_argument"), &json!("filter")));
    }
    for (body, field) in [
        (json!({"filter": {"queue": "q"}, "rate": 0}), "rate"),
        (json!({"filter": {"queue": "q"}, "rate": -1}), "rate"),
        (json!({"filter": {"after": "yesterday"}}), "filter.after"),
        (json!({"filter": {"task_ids": ["nonsense"]}}), "filter.task_ids[0]"),
        (json!({"filter": {"queue": 7}}), "filter.queue"),
    ] {
        assert_eq!(server.post("/api/v1/dead-letters/redrive", body).await.refused(422)["field"], field);
    }
    assert_eq!(server.state(&ids[0]).await, "Failed");
}

async fn a_redrive_survives_a_restart(server: Server) {
    dead(&server, "q", "op", "A", 6).await;
    let body = json!({"filter": {"queue": "q"}, "rate": 3, "idempotency_key": "r-1"});
    let first = redrive(&server, body.clone()).await;
    wait_until("it has begun", SOON, async || dead_count(&server).await < 6).await;
    let server = server.restart().await;
    wait_until("it goes on by itself", SOON, async || dead_count(&server).await == 0).await;
    let done = wait_until("it is done", SOON, async || {
        Some(redrive(&server, body.clone()).await).filter(|answer| answer["state"] == "done")
    })
    .await;
    assert_eq!((&done["redrive_id"], &done["released"]), (&first["redrive_id"], &json!(6)));
    assert_eq!(server.queue("q").await["counts"]["ready"], 6);
}

async fn two_that_overlap_release_a_task_once(server: Server) {
    let ids = dead(&server, "q", "op", "A", 40).await;
    let (a, b) = tokio::join!(
        redrive(&server, json!({"filter": {"queue": "q"}, "idempotency_key": "a"})),
        redrive(&server, json!({"filter": {"operator": "op"}, "idempotency_key": "b"})),
    );
    assert_ne!(a["redrive_id"], b["redrive_id"]);
    let mut released = 0;
    for (key, filter) in [("a", json!({"queue": "q"})), ("b", json!({"operator": "op"}))] {
        let done = wait_until("both are done", SOON, async || {
            let body = json!({"filter": filter, "idempotency_key": key});
            Some(redrive(&server, body).await).filter(|answer| answer["state"] == "done")
        })
        .await;
        released += done["released"].as_u64().unwrap();
    }
    assert_eq!(released, 40);
    for id in &ids {
        let task = server.task(id).await;
        assert_eq!((&task["state"], &task["max_attempts"]), (&json!("Ready"), &json!(6)));
    }
    assert_eq!(server.queue("q").await["counts"]["ready"], 40);
}

async fn dead_letters_are_listed_and_paged(server: Server) {
    let a = dead(&server, "q", "extract", "A", 3).await;
    dead(&server, "other", "load", "B", 2).await;
    let first = server.get("/api/v1/dead-letters?limit=2").await.ok();
    let second = server
        .get(&format!("/api/v1/dead-letters?limit=2&cursor={}", first["next_cursor"].as_str().unwrap()))
        .await
        .ok();
    let last = server
        .get(&format!("/api/v1/dead-letters?limit=2&cursor={}", second["next_cursor"].as_str().unwrap()))
        .await
        .ok();
    let ids = |page: &Value| {
        page["items"].as_array().unwrap().iter().map(|i| i["task_id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let mut all: Vec<_> = [&first, &second, &last].into_iter().flat_map(ids).collect();
    assert_eq!(last["next_cursor"], Value::Null);
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 5);
    assert_eq!(ids(&server.get("/api/v1/dead-letters?queue=q").await.ok()), a);
    for (query, n) in [
        ("operator=load", 2),
        ("reason=non_retryable", 5),
        ("reason=max_attempts", 0),
        ("tenant=nobody", 0),
        ("tenant=default&queue=other", 2),
    ] {
        assert_eq!(ids(&server.get(&format!("/api/v1/dead-letters?{query}")).await.ok()).len(), n, "{query}");
    }
    assert_eq!(server.get("/api/v1/dead-letters?limit=0").await.refused(422)["field"], "limit");
    assert_eq!(server.get("/api/v1/dead-letters?cursor=x").await.refused(422)["field"], "cursor");
}

async fn a_key_with_another_filter_is_refused(server: Server) {
    dead(&server, "q", "op", "A", 2).await;
    dead(&server, "other", "op", "A", 2).await;
    let first = redrive(&server, json!({"filter": {"queue": "q"}, "idempotency_key": "k"})).await;
    let again = redrive(&server, json!({"filter": {"queue": "q"}, "idempotency_key": "k"})).await;
    assert_eq!(again["redrive_id"], first["redrive_id"]);
    let body = json!({"filter": {"queue": "other"}, "idempotency_key": "k"});
    let refused = server.post("/api/v1/dead-letters/redrive", body).await.refused(409);
    assert_eq!(refused["error"], "idempotency_conflict");
    assert!(refused["message"].as_str().unwrap().contains(first["redrive_id"].as_str().unwrap()), "{refused}");
    wait_until("the first is done", SOON, async || dead_count(&server).await == 2).await;
    let rows = server.get("/api/v1/audit?action=dead_letters.redrive").await.ok();
    let details = rows.to_string();
    assert!(
        details.contains("2 matched {\\\"queue\\\":\\\"q\\\"") && details.contains("idempotency_conflict"),
        "{details}"
    );
}

async fn a_redrive_is_listed_paused_resumed_and_canceled(server: Server) {
    dead(&server, "q", "op", "A", 10).await;
    let one = redrive(&server, json!({"filter": {"queue": "q"}, "rate": 1})).await;
    let path = format!("/api/v1/redrives/{}", one["redrive_id"].as_str().unwrap());
    let act = async |what: &str| server.post(&format!("{path}/{what}"), json!({})).await.ok();
    assert_eq!(act("pause").await["state"], "paused");
    // A step that was under way has ended when nothing changes over a look of the redriver at its work.
    let released = async || server.get(&path).await.ok()["released"].as_u64().unwrap();
    let other = dead(&server, "other", "op", "A", 1).await;
    let two = redrive(&server, json!({"filter": {"task_ids": other}})).await;
    server.until(&other[0], "Ready").await;
    let stopped = released().await;
    assert!(stopped < 10);
    let list = server.get("/api/v1/redrives?limit=1").await.ok();
    assert_eq!((&list["items"][0]["redrive_id"], &list["items"][0]["named_tasks"]), (&two["redrive_id"], &json!(1)));
    let rest = server.get(&format!("/api/v1/redrives?cursor={}", list["next_cursor"].as_str().unwrap())).await.ok();
    let first = &rest["items"][0];
    assert_eq!(
        (&first["redrive_id"], &first["state"], &first["rate"]),
        (&one["redrive_id"], &json!("paused"), &json!(1.0))
    );
    assert_eq!((&first["filter"], &rest["next_cursor"]), (&json!({"queue": "q"}), &Value::Null));
    assert_eq!(act("resume").await["state"], "running");
    wait_until("it goes on", SOON, async || released().await > stopped).await;
    let canceled = act("cancel").await;
    assert_eq!(canceled["state"], "canceled");
    assert_eq!(act("resume").await["state"], "canceled", "nothing brings it back");
    assert!(dead_count(&server).await > 0);
    for odd in ["rd_00000000000000000000000000", "rd_", "nothing"] {
        assert_eq!(server.get(&format!("/api/v1/redrives/{odd}")).await.refused(404)["error"], "redrive_not_found");
    }
    server.get("/api/v1/redrives?cursor=7").await.refused(422);
}
