//! Deleting queues, and requests about queues that nobody sends by mistake.

use reqwest::Method;
use serde_json::{Value, json};
use tenure_testkit::RawClient;

use crate::cases;
use crate::harness::{SOON, Server, fatal};

cases!(
    Server,
    on_sqlite: [
        an_empty_queue_is_deleted_and_made_again_by_a_submit,
        what_is_in_a_queue_keeps_it,
        a_deletion_leaves_a_row_in_the_audit,
        errors_do_not_send_megabytes_back,
        odd_names_name_no_queue,
        queues_of_jobs_belong_to_their_dags,
    ],
    on_both_stores: [
        deletions_and_submits_at_once_lose_no_task,
        another_control_plane_sees_the_deletion,
    ],
);

const Q: &str = "/api/v1/queues/q";

fn message(answer: &Value) -> (&str, &str) {
    (answer["error"].as_str().unwrap(), answer["message"].as_str().unwrap())
}

async fn an_empty_queue_is_deleted_and_made_again_by_a_submit(server: Server) {
    server.put(Q, json!({"max_running": 1})).await.ok();
    let done = server.submit(json!({})).await;
    let job = server.claim("w-1").await;
    server.complete("w-1", &job, json!({"rows": 1})).await.ok();
    assert_eq!(server.delete(Q).await.ok(), json!({"name": "q", "deleted": true}));
    assert_eq!(server.get("/api/v1/queues").await.ok()["items"], json!([]));
    for answer in [
        server.get(Q).await,
        server.delete(Q).await,
        server.patch(Q, json!({"max_running": 1})).await,
        server.post(&format!("{Q}/pause"), json!({})).await,
        server.get("/api/v1/tasks?queue=q").await,
        server.get("/api/v1/dead-letters?queue=q").await,
    ] {
        assert_eq!(answer.refused(404)["error"], "queue_not_found");
    }
    // What has ended is still there.
    let task = server.task(&done).await;
    assert_eq!(
        (&task["queue"], &task["state"], &task["result"]),
        (&json!("q"), &json!("Succeeded"), &json!({"rows": 1}))
    );
    assert_eq!(server.get("/api/v1/tasks").await.ok()["items"][0], task);
    assert_eq!(server.attempts(&done).await.len(), 1);
    let why = server.get(&format!("/api/v1/tasks/{done}/why")).await.ok();
    assert_eq!(why["state"], "Succeeded", "{why}");

    let again = server.submit(json!({})).await;
    let made = server.queue("q").await;
    assert_eq!((&made["limits"], &made["counts"]["ready"]), (&json!({}), &json!(1)));
    assert_eq!(server.claim("w-1").await["job_id"], json!(again));
}

async fn what_is_in_a_queue_keeps_it(server: Server) {
    server.submit(json!({})).await;
    server.submit(json!({"delay_ms": 60_000})).await;
    let dead = server.submit(json!({"priority": 0})).await;
    let job = server.claim("w-1").await;
    let refused = server.delete(&format!("{Q}?force=true")).await.refused(409);
    let tasks = "the queue has tasks (1 scheduled, 1 ready, 1 running): let the tasks end, or cancel them";
    assert_eq!((message(&refused), &refused["code"]), (("queue_not_empty", tasks), &json!("CONFLICT")));
    server.fail("w-1", &job, fatal()).await.ok();
    for task in server.get("/api/v1/tasks").await.ok()["items"].as_array().unwrap() {
        if task["state"] != "Failed" {
            let id = task["task_id"].as_str().unwrap();
            server.post(&format!("/api/v1/tasks/{id}/cancel"), json!({})).await.ok();
        }
    }
    let refused = server.delete(Q).await.refused(409);
    let letters = "the queue has tasks (1 dead-lettered): redrive them, or set force to leave them behind";
    assert_eq!(message(&refused), ("queue_not_empty", letters));
    assert_eq!(server.delete(&format!("{Q}?force=maybe")).await.refused(422)["field"], "query");
    assert_eq!(server.delete(&format!("{Q}?froce=true")).await.refused(422)["error"], "unknown_field");
    server.delete(&format!("{Q}?force=true")).await.ok();
    assert_eq!(server.task(&dead).await["state"], "Failed");
    let refused = server.post(&format!("/api/v1/tasks/{dead}/retry"), json!({})).await.refused(409);
    assert_eq!(message(&refused), ("task_not_retryable", "its queue was deleted: submit a new task"));
}

async fn a_deletion_leaves_a_row_in_the_audit(server: Server) {
    server.put(Q, json!({})).await.ok();
    server.delete(Q).await.ok();
    server.delete(Q).await.refused(404);
    let rows = server.get("/api/v1/audit?action=queue.delete").await.ok();
    let rows: Vec<_> = rows.as_array().unwrap().iter().map(|row| (&row["resource"], &row["status"])).collect();
    assert_eq!(rows.len(), 2, "{rows:?}");
    assert!(rows.iter().all(|(resource, _)| **resource == json!("q")), "{rows:?}");
}

/// Names and values of megabytes: the answer says what is wrong, and stays small.
async fn errors_do_not_send_megabytes_back(server: Server) {
    server.put(Q, json!({})).await.ok();
    let long = "x".repeat(500_000);
    let bodies = [
        json!({ &long: 1 }),
        json!({"max_running": long}),
        json!({"rate": { &long: 1 }}),
        json!({"push": {"url": long}}),
        json!({"fairness_key": long}),
        json!({"transport": long}),
        json!({"push": {"url": "https://w.example/", &long: 1}}),
    ];
    for body in bodies {
        for method in [Method::PATCH, Method::PUT] {
            let answer = server.call(method.clone(), Q, &[], Some(&body)).await;
            assert_eq!(answer.status, 422, "{method}: {}", answer.body["error"]);
            let text = answer.body.to_string();
            assert!(text.len() < 2_000, "{method}: {} bytes", text.len());
        }
    }
    let mut client = RawClient::connect(&server.url).await;
    let head = format!(
        "PATCH {Q} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 20971520\r\n\r\n"
    );
    client.send(head).await.unwrap();
    let answer = client.read_until("request_id", SOON).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    let answer = server.get(&format!("/api/v1/tasks?{}=1", "x".repeat(5_000))).await;
    assert_eq!(answer.status, 422);
    assert!(answer.body.to_string().len() < 2_000);
    let mut task = json!({"queue": "q", "operator": "op"});
    task[&long] = json!(1);
    assert!(server.post("/api/v1/tasks", task).await.refused(422).to_string().len() < 2_000);
    assert_eq!(server.queue("q").await["limits"], json!({}));
}

async fn odd_names_name_no_queue(server: Server) {
    for name in
        ["%00", "%ff%fe", "a%20b", "..%2Fadmin", "%F0%9F%92%A9", "'%3B%20DROP%20TABLE%20queues", &"x".repeat(4_000)]
    {
        let path = format!("/api/v1/queues/{name}");
        for answer in [
            server.delete(&path).await,
            server.patch(&path, json!({"max_running": 1})).await,
            server.post(&format!("{path}/pause"), json!({})).await,
        ] {
            let status = answer.status.as_u16();
            assert!([400, 404, 422].contains(&status), "{name}: {status}");
            assert!(answer.body.to_string().len() < 2_000, "{name}");
        }
    }
    assert_eq!(server.get("/api/v1/queues").await.ok()["items"], json!([]));
}

async fn queues_of_jobs_belong_to_their_dags(server: Server) {
    let name = "dag:chain:decode:7";
    let path = format!("/api/v1/queues/{name}");
    for (answer, field) in [
        (server.post("/api/v1/tasks", json!({"queue": name, "operator": "x"})).await, "queue"),
        (server.put(&path, json!({"max_running": 1})).await, "name"),
        (server.patch(&path, json!({"max_running": 1})).await, "name"),
        (server.delete(&path).await, "name"),
    ] {
        let refused = answer.refused(422);
        assert_eq!(refused["field"], field);
        assert!(message(&refused).1.contains("deploy a DAG"), "{refused}");
    }
}

async fn deletions_and_submits_at_once_lose_no_task(server: Server) {
    let mut ids = Vec::new();
    for _ in 0..20 {
        let (submitted, deleted) =
            tokio::join!(server.post("/api/v1/tasks", json!({"queue": "q", "operator": "op"})), server.delete(Q));
        ids.push(submitted.ok()["task_id"].as_str().unwrap().to_owned());
        let refused = deleted.body["error"].as_str();
        assert!(matches!(refused, None | Some("queue_not_empty" | "queue_not_found")), "{refused:?}");
        let job = server.claim("w-1").await;
        assert_eq!(job["job_id"], json!(ids.last()));
        server.complete("w-1", &job, json!({})).await.ok();
    }
    for id in ids {
        assert_eq!(server.state(&id).await, "Succeeded");
    }
}

async fn another_control_plane_sees_the_deletion(server: Server) {
    let second = if server.home.is_sqlite() { None } else { Some(server.beside().await) };
    let other = second.as_ref().unwrap_or(&server);
    for round in 0..3 {
        server.put(Q, json!({"max_running": 1})).await.ok();
        let id = other.submit(json!({})).await;
        let job = other.claim("w-1").await;
        assert_eq!(job["job_id"], json!(id), "{round}");
        other.complete("w-1", &job, json!({})).await.ok();
        server.delete(Q).await.ok();
        assert_eq!(other.post(&format!("{Q}/pause"), json!({})).await.refused(404)["error"], "queue_not_found");
        let id = other.submit(json!({})).await;
        assert_eq!(server.queue("q").await["limits"], json!({}));
        let job = server.claim("w-1").await;
        assert_eq!(job["job_id"], json!(id), "{round}");
        server.complete("w-1", &job, json!({})).await.ok();
        other.delete(Q).await.ok();
    }
}
