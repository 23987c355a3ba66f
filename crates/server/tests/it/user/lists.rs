//! Lists of tasks and queues, settings of queues, and why a task is not running.

use serde_json::{Value, json};
use tenure_server::Transports;
use tenure_testkit::wait_until;

use crate::cases;
use crate::harness::{LONGEST_WAIT, SOON, Server, later, retryable, time};

cases!(
    Server,
    on_sqlite: [
        bad_queries_name_their_field,
        queues_are_set_shown_and_listed,
        a_setting_replaces_the_whole,
        a_patch_changes_what_it_names,
        a_queue_that_does_not_exist_is_not_found_and_not_made,
        a_transport_stays_until_another_one_is_named,
        a_paused_queue_lets_running_work_go_on,
        bad_settings_are_refused,
    ],
    on_both_stores: [
        tasks_are_paged_newest_first,
        tasks_are_filtered_by_every_field,
        queue_counts_follow_the_tasks,
        why_tells_each_cause,
        a_rate_limit_lets_waiting_claims_through_in_time,
    ],
);

fn ids(page: &Value) -> Vec<String> {
    page["items"].as_array().unwrap().iter().map(|item| item["task_id"].as_str().unwrap().to_owned()).collect()
}

async fn tasks_are_paged_newest_first(server: Server) {
    let mut submitted = Vec::new();
    for _ in 0..7 {
        submitted.push(server.submit(json!({})).await);
    }
    submitted.reverse();
    assert_eq!(ids(&server.get("/api/v1/tasks").await.ok()), submitted);
    let (mut found, mut cursor, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let page = server.get(&format!("/api/v1/tasks?limit=3{cursor}")).await.ok();
        found.extend(ids(&page));
        pages += 1;
        match page["next_cursor"].as_str() {
            None => break,
            Some(next) => cursor = format!("&cursor={next}"),
        }
    }
    assert_eq!((found, pages), (submitted.clone(), 3));
    // An item of the list is the task as it is shown alone.
    let page = server.get("/api/v1/tasks?limit=1").await.ok();
    assert_eq!(page["items"][0], server.task(&submitted[0]).await);
    assert_eq!(server.get("/api/v1/tasks?operator=none").await.ok(), json!({"items": [], "next_cursor": null}));
    // The time comes first in an id: all of these begin alike, and the whole id names one.
    let newest = &submitted[0];
    let page = server.get(&format!("/api/v1/tasks?limit=2&id_prefix={}", &newest[..4])).await.ok();
    assert_eq!((ids(&page), page["next_cursor"].is_string()), (submitted[..2].to_vec(), true));
    assert_eq!(ids(&server.get(&format!("/api/v1/tasks?id_prefix={newest}")).await.ok()), std::slice::from_ref(newest));
    assert_eq!(ids(&server.get("/api/v1/tasks?id_prefix=0000").await.ok()), [""; 0]);
}

async fn tasks_are_filtered_by_every_field(server: Server) {
    let running = server.submit(json!({"queue": "a", "operator": "x", "tags": {"team": "etl", "day": "mon"}})).await;
    let claim = json!({"worker_id": "w-1", "streams": ["a"], "max_wait_ms": 0});
    assert_eq!(server.worker("claim", claim.clone()).await.ok()["claimed"], true);
    let ready = server.submit(json!({"queue": "b", "operator": "x", "tags": {"team": "ml"}, "tenant": "acme"})).await;
    let later = server.submit(json!({"queue": "b", "operator": "y", "delay_ms": 60_000, "workspace": "prod"})).await;
    let done = server.submit(json!({"queue": "a", "operator": "y"})).await;
    let job = server.worker("claim", claim).await.ok();
    server.complete("w-1", &job, json!({})).await.ok();
    let failed = server.submit(json!({"queue": "c", "tags": {"team": "etl"}, "max_attempts": 1})).await;
    let job = server.worker("claim", json!({"worker_id": "w-1", "job_id": failed})).await.ok();
    server.fail("w-1", &job, retryable()).await.ok();
    let canceled = server.submit(json!({"queue": "c", "idempotency_key": "once"})).await;
    server.post(&format!("/api/v1/tasks/{canceled}/cancel"), json!({})).await.ok();
    for (query, expected) in [
        ("queue=a", vec![&done, &running]),
        ("state=Running", vec![&running]),
        ("state=Ready", vec![&ready]),
        ("state=Scheduled", vec![&later]),
        ("state=Succeeded", vec![&done]),
        ("state=Failed", vec![&failed]),
        ("state=Canceled", vec![&canceled]),
        ("state=CANCELLED", vec![&canceled]),
        ("state=running", vec![&running]),
        ("operator=y", vec![&done, &later]),
        ("tag=team:etl", vec![&failed, &running]),
        ("tag=day:mon", vec![&running]),
        ("tag=team:", vec![]),
        ("tenant=acme", vec![&ready]),
        ("workspace=prod", vec![&later]),
        ("queue=b&operator=x&state=Ready", vec![&ready]),
        ("queue=b&operator=x&state=Running", vec![]),
        ("worker=w-1", vec![&failed, &done, &running]),
        ("worker=w-1&state=Running", vec![&running]),
        ("error_code=HTTP_503", vec![&failed]),
        ("idempotency_key=once", vec![&canceled]),
        ("run=run_01M7KQVN86EYHR000000000KHG", vec![]),
        ("created_before=2020-01-01T00:00:00Z", vec![]),
        ("created_after=2020-01-01T00:00:00Z&operator=y", vec![&done, &later]),
    ] {
        let found = ids(&server.get(&format!("/api/v1/tasks?{query}")).await.ok());
        assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{query}");
    }
}

async fn bad_queries_name_their_field(server: Server) {
    for (path, field) in [
        ("tasks?id_prefix=018", "id_prefix"),
        ("tasks?id_prefix=run_01HGW5", "id_prefix"),
        ("tasks?id_prefix=not-an-id", "id_prefix"),
        ("runs?id_prefix=task_01HGW5", "id_prefix"),
        ("tasks?run=abc", "run"),
        ("tasks?created_after=today", "created_after"),
        ("tasks?created_before=x", "created_before"),
        ("tasks?limit=0", "limit"),
        ("tasks?limit=1001", "limit"),
        ("tasks?limit=many", "query"),
        ("tasks?cursor=abc", "cursor"),
        ("tasks?state=COMPLETED", "state"),
        ("tasks?state=Blocked!", "state"),
        ("tasks?tag=team", "tag"),
        ("tasks/not-an-id", "id"),
        ("tasks/not-an-id/why", "id"),
        ("tasks/not-an-id/attempts", "id"),
        ("queues?limit=-1", "limit"),
    ] {
        let refused = server.get(&format!("/api/v1/{path}")).await.refused(422);
        assert_eq!((&refused["error"], &refused["field"]), (&json!("invalid_argument"), &json!(field)), "{path}");
    }
    assert_eq!(server.get("/api/v1/tasks?limit=1000").await.ok()["items"], json!([]));
}

async fn queues_are_set_shown_and_listed(server: Server) {
    let settings = json!({"max_running": 100, "rate": {"per_second": 50.0, "burst": 100.0}, "fairness_key": "tenant",
        "lease_ttl_seconds": 60, "heartbeat_interval_seconds": 20, "dead_letter": true, "strict": true});
    let set = server.put("/api/v1/queues/etl", settings).await.ok();
    let expected = json!({
        "name": "etl", "paused": false, "kind": "pull", "transport": "embedded",
        "limits": {"max_running": 100, "rate": {"per_second": 50.0, "burst": 100.0}, "fairness_key": "tenant"},
        "lease_ttl_seconds": 60, "heartbeat_interval_seconds": 20, "dead_letter": true, "strict": true,
        "counts": {"scheduled": 0, "ready": 0, "running": 0, "dead_lettered": 0},
    });
    assert_eq!(set, expected);
    assert_eq!(server.queue("etl").await, expected);
    for name in ["b", "etl-2", "a", "etl.3", "e"] {
        server.put(&format!("/api/v1/queues/{name}"), json!({})).await.ok();
    }
    let names = |page: &Value| {
        page["items"].as_array().unwrap().iter().map(|q| q["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let first = server.get("/api/v1/queues?limit=4").await.ok();
    let second =
        server.get(&format!("/api/v1/queues?limit=4&cursor={}", first["next_cursor"].as_str().unwrap())).await.ok();
    assert_eq!([names(&first), names(&second)].concat(), ["a", "b", "e", "etl", "etl-2", "etl.3"]);
    assert_eq!(second["next_cursor"], Value::Null);
    for name in ["b", "e", "etl", "etl-2", "etl.3"] {
        assert_eq!(server.queue(name).await["name"], name);
    }
    let refused = server.get("/api/v1/queues/missing").await.refused(404);
    assert_eq!((&refused["error"], &refused["code"]), (&json!("queue_not_found"), &json!("NOT_FOUND")));
}

async fn a_patch_changes_what_it_names(server: Server) {
    let whole = json!({"max_running": 1, "rate": {"per_second": 5}, "fairness_key": "tenant", "lease_ttl_seconds": 30,
        "heartbeat_interval_seconds": 10, "dead_letter": false});
    let set = server.put("/api/v1/queues/q", whole).await.ok();
    let patch = async |change: Value| server.patch("/api/v1/queues/q", change).await;
    assert_eq!(patch(json!({})).await.ok(), set);
    let mut expected = set.clone();
    expected["limits"]["max_running"] = json!(9);
    assert_eq!(patch(json!({"max_running": 9})).await.ok(), expected);
    // Null is the default, and the rest stays.
    let open = patch(json!({"max_running": null, "rate": null, "dead_letter": null})).await.ok();
    assert_eq!((&open["limits"], &open["dead_letter"]), (&json!({"fairness_key": "tenant"}), &json!(true)));
    assert_eq!((&open["lease_ttl_seconds"], &open["heartbeat_interval_seconds"]), (&json!(30), &json!(10)));
    // What is named is judged with what stays.
    assert_eq!(patch(json!({"lease_ttl_seconds": 5})).await.refused(422)["field"], "heartbeat_interval_seconds");
    assert_eq!(patch(json!({"max_runing": 1})).await.refused(422)["error"], "unknown_field");
    assert_eq!(server.queue("q").await, open);
}

async fn a_queue_that_does_not_exist_is_not_found_and_not_made(server: Server) {
    server.submit(json!({"queue": "etl"})).await;
    for answer in [
        server.patch("/api/v1/queues/elt", json!({"max_running": 1})).await,
        server.post("/api/v1/queues/elt/pause", json!({})).await,
        server.post("/api/v1/queues/elt/resume", json!({})).await,
        server.delete("/api/v1/queues/elt").await,
        server.get("/api/v1/queues/elt").await,
        server.get("/api/v1/tasks?queue=elt").await,
        server.get("/api/v1/dead-letters?queue=elt").await,
        server.post("/api/v1/dead-letters/redrive", json!({"filter": {"queue": "elt"}})).await,
    ] {
        let refused = answer.refused(404);
        assert_eq!(
            (&refused["error"], &refused["message"]),
            (&json!("queue_not_found"), &json!("no such queue; did you mean `etl`?"))
        );
    }
    assert_eq!(server.get("/api/v1/queues").await.ok()["items"].as_array().unwrap().len(), 1);
    // One that is empty is there.
    assert_eq!(server.get("/api/v1/dead-letters?queue=etl").await.ok()["items"], json!([]));
    assert_eq!(server.get("/api/v1/tasks?queue=etl&state=Failed").await.ok()["items"], json!([]));
}

async fn a_setting_replaces_the_whole(server: Server) {
    server.put("/api/v1/queues/q", json!({"max_running": 1, "dead_letter": false})).await.ok();
    server.post("/api/v1/queues/q/pause", json!({})).await.ok();
    let set = server.put("/api/v1/queues/q", json!({"fairness_key": "tag:team"})).await.ok();
    assert_eq!((&set["limits"], &set["dead_letter"]), (&json!({"fairness_key": "tag:team"}), &json!(true)));
    // A pause is no setting.
    assert_eq!(set["paused"], true);
    let server = server.restart().await;
    assert_eq!(server.queue("q").await, set);
}

async fn a_transport_stays_until_another_one_is_named(server: Server) {
    let refused = server.put("/api/v1/queues/q", json!({"transport": "redis"})).await.refused(422);
    assert!(refused["message"].as_str().unwrap().contains("redis.url"), "{refused}");
    let server = server
        .restart_with(|config, _| config.transports = Transports { redis: true, sqs: Some("prod-".to_owned()) })
        .await;
    server.submit(json!({})).await;
    assert_eq!(server.queue("q").await["transport"], "embedded");
    let set = server.put("/api/v1/queues/q", json!({"transport": "redis", "max_running": 1})).await.ok();
    assert_eq!((&set["transport"], &set["limits"]["max_running"]), (&json!("redis"), &json!(1)));
    for settings in [json!({}), json!({"transport": null}), json!({"max_running": 2})] {
        assert_eq!(server.put("/api/v1/queues/q", settings).await.ok()["transport"], "redis");
    }
    let refused = server.put("/api/v1/queues/a.b", json!({"transport": "sqs"})).await.refused(422);
    assert_eq!((&refused["error"], &refused["field"]), (&json!("invalid_argument"), &json!("transport")));
    assert_eq!(server.put("/api/v1/queues/a-b", json!({"transport": "sqs"})).await.ok()["transport"], "sqs");
    let server = server.restart_with(|config, _| config.transports = Transports::default()).await;
    // One that is no longer configured stays as well, and can be left.
    assert_eq!(server.put("/api/v1/queues/q", json!({})).await.ok()["transport"], "redis");
    assert_eq!(server.put("/api/v1/queues/q", json!({"transport": "embedded"})).await.ok()["transport"], "embedded");
    let listed = server.get("/api/v1/queues").await.ok();
    let listed: Vec<_> = listed["items"].as_array().unwrap().iter().map(|queue| queue["transport"].clone()).collect();
    assert_eq!(listed, ["sqs", "embedded"]);
}

async fn queue_counts_follow_the_tasks(server: Server) {
    for extra in [json!({}), json!({}), json!({"delay_ms": 60_000}), json!({}), json!({})] {
        server.submit(extra).await;
    }
    let job = server.claim("w-1").await;
    server.claim("w-1").await;
    let queue = server.queue("q").await;
    assert_eq!(queue["counts"], json!({"scheduled": 1, "ready": 2, "running": 2, "dead_lettered": 0}));
    assert!(time(&queue["oldest_ready_at"]) <= server.engine.now().await.unwrap());
    server.fail("w-1", &job, json!({"code": "DATA_QUALITY", "message": "m"})).await.ok();
    let server = server.restart().await;
    assert_eq!(
        server.queue("q").await["counts"],
        json!({"scheduled": 1, "ready": 2, "running": 1, "dead_lettered": 1})
    );
    let metrics = server.get("/metrics").await.ok();
    assert!(metrics.as_str().unwrap().contains("tenure_queue_tasks{queue=\"q\",state=\"ready\"} 2"));
}

async fn a_paused_queue_lets_running_work_go_on(server: Server) {
    server.submit(json!({})).await;
    server.submit(json!({})).await;
    let job = server.claim("w-1").await;
    server.post("/api/v1/queues/q/pause", json!({})).await.ok();
    assert_eq!(server.queue("q").await["paused"], true);
    assert!(server.claim("w-2").await.is_null());
    assert_eq!(server.heartbeat("w-1", &job).await.ok()["ok"], true);
    assert_eq!(server.complete("w-1", &job, json!({})).await.ok()["ok"], true);
    // Submits are taken, and wait.
    server.submit(json!({})).await;
    let server = server.restart().await;
    assert!(server.claim("w-2").await.is_null());
    assert_eq!(server.post("/api/v1/queues/q/resume", json!({})).await.ok(), json!({"name": "q", "paused": false}));
    assert!(!server.claim("w-2").await.is_null());
}

async fn bad_settings_are_refused(server: Server) {
    for (settings, field) in [
        (json!({"max_running": -1}), "max_running"),
        (json!({"rate": {"per_second": 0}}), "rate.per_second"),
        (json!({"rate": {"per_second": 1, "burst": 0.5}}), "rate.burst"),
        (json!({"rate": 7}), "rate"),
        (json!({"fairness_key": "operator"}), "fairness_key"),
        (json!({"fairness_key": "tag:"}), "fairness_key"),
        (json!({"lease_ttl_seconds": 0}), "lease_ttl_seconds"),
        (json!({"heartbeat_interval_seconds": 60}), "heartbeat_interval_seconds"),
        (json!({"dead_letter": "yes"}), "dead_letter"),
        (json!({"transport": "kafka"}), "transport"),
        (json!({"transport": 1}), "transport"),
        (json!({"transport": "redis"}), "transport"),
        (json!({"transport": "sqs"}), "transport"),
    ] {
        let refused = server.put("/api/v1/queues/q", settings.clone()).await.refused(422);
        assert_eq!(refused["field"], field, "{settings}");
    }
    assert_eq!(server.put("/api/v1/queues/two%20words", json!({})).await.refused(422)["field"], "name");
    server.get("/api/v1/queues/q").await.refused(404);
}

async fn why_tells_each_cause(server: Server) {
    let why = async |id: &str| {
        let answer = server.get(&format!("/api/v1/tasks/{id}/why")).await.ok();
        assert_eq!(answer["task_id"], json!(id));
        let causes = answer["why"].as_array().unwrap().clone();
        assert!(causes.iter().all(|cause| !cause["message"].as_str().unwrap().is_empty()));
        (answer["state"].as_str().unwrap().to_owned(), causes)
    };
    let codes =
        |causes: &[Value]| causes.iter().map(|cause| cause["code"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    let delayed = server.submit(json!({"delay_ms": 60_000})).await;
    let (state, causes) = why(&delayed).await;
    assert_eq!((state.as_str(), codes(&causes)), ("Scheduled", vec!["waiting_until".to_owned()]));
    assert_eq!(causes[0]["detail"]["until"], server.task(&delayed).await["run_at"]);
    // Nobody has ever asked; then somebody has.
    let id = server.submit(json!({"retry": later()})).await;
    assert_eq!(codes(&why(&id).await.1), ["no_worker"]);
    let job = server.claim("w-1").await;
    let (state, causes) = why(&id).await;
    assert_eq!((state.as_str(), codes(&causes)), ("Running", vec!["running".to_owned()]));
    server.fail("w-1", &job, retryable()).await.ok();
    let (_, causes) = why(&id).await;
    assert_eq!((codes(&causes), &causes[0]["detail"]["after"]), (vec!["retry_backoff".to_owned()], &json!("FAILED")));
    assert_eq!(causes[0]["detail"]["attempt"], 1);
    server.post(&format!("/api/v1/tasks/{id}/cancel"), json!({})).await.ok();
    assert_eq!(codes(&why(&id).await.1), ["ended"]);
    // Full.
    server.put("/api/v1/queues/q", json!({"max_running": 1})).await.ok();
    server.submit(json!({})).await;
    let job = server.claim("w-1").await;
    let id = server.submit(json!({})).await;
    let (_, causes) = why(&id).await;
    assert_eq!((codes(&causes), &causes[0]["detail"]["max_running"]), (vec!["queue_limit".to_owned()], &json!(1)));
    assert_eq!(causes[0]["message"], "1 of 1 slots in use");
    assert!(time(&causes[0]["since"]) <= server.engine.now().await.unwrap());
    server.complete("w-1", &job, json!({})).await.ok();
    // Paused.
    server.post("/api/v1/queues/q/pause", json!({})).await.ok();
    assert_eq!(codes(&why(&id).await.1), ["queue_paused"]);
    server.post("/api/v1/queues/q/resume", json!({})).await.ok();
    // Held by the rate.
    server.put("/api/v1/queues/q", json!({"rate": {"per_second": 0.01, "burst": 1}})).await.ok();
    server.submit(json!({})).await;
    assert!(!server.claim("w-1").await.is_null());
    let id = ids(&server.get("/api/v1/tasks?queue=q&state=Ready").await.ok())[0].clone();
    let (_, causes) = why(&id).await;
    assert_eq!((codes(&causes), &causes[0]["detail"]["per_second"]), (vec!["rate_limit".to_owned()], &json!(0.01)));
    server.get("/api/v1/tasks/018c385a-9fb1-9509-0e89-33fe3b7b1aa9/why").await.refused(404);
}

async fn a_rate_limit_lets_waiting_claims_through_in_time(server: Server) {
    server.put("/api/v1/queues/q", json!({"rate": {"per_second": 5, "burst": 2}})).await.ok();
    for _ in 0..4 {
        server.submit(json!({})).await;
    }
    let claim = json!({"worker_id": "w-1", "streams": ["q"], "max_wait_ms": 0, "max_jobs": 10});
    assert_eq!(server.worker("claim", claim.clone()).await.ok()["jobs"].as_array().unwrap().len(), 2);
    // The next token comes by itself: no submit and no end wakes the claim.
    let started = std::time::Instant::now();
    let waiting = json!({"worker_id": "w-1", "streams": ["q"], "max_wait_ms": 60_000});
    assert_eq!(server.worker("claim", waiting).await.ok()["claimed"], true);
    assert!(started.elapsed() < LONGEST_WAIT);
    wait_until("the last one's token", SOON, async || {
        server.worker("claim", claim.clone()).await.ok()["claimed"] == true
    })
    .await;
}
