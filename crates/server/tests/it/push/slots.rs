//! How many attempts are open at once, and how fast they come.

use serde_json::json;
use tenure_testkit::wait_until;

use crate::cases;
use crate::harness::{SOON, Server};
use crate::push::kit::{self, Worker, push_to};

cases!(
    kit,
    on_sqlite: [
        the_rate_holds_back_what_is_more,
        a_task_of_a_push_queue_cannot_be_claimed,
        a_paused_queue_pushes_nothing_new,
    ],
    on_both_stores: [slots_are_freed_by_the_end_of_an_attempt],
);

async fn slots_are_freed_by_the_end_of_an_attempt(server: Server) {
    let worker = Worker::answering(202).await;
    push_to(&server, &worker.url, json!({"concurrency": 2})).await.ok();
    let mut tasks = Vec::new();
    for _ in 0..5 {
        tasks.push(server.submit(json!({"max_attempts": 1})).await);
    }
    worker.nth(2).await;
    let queue = server.queue("q").await;
    assert_eq!((&queue["counts"]["running"], &queue["counts"]["ready"]), (&json!(2), &json!(3)), "{queue}");
    let why = server.get(&format!("/api/v1/tasks/{}/why", tasks[4])).await.ok();
    assert_eq!(why["why"][0]["code"], "queue_limit", "{why}");

    // By a success, by a failure, by a cancel before the start.
    worker.pushed()[0].succeed().await;
    let third = worker.nth(3).await;
    assert_eq!(worker.count(), 3);
    let failed = json!({"outcome": "FAILED", "error": {"category": "DATA_QUALITY", "message": "no"}});
    let (status, body) = third.call("completed", failed).await;
    assert_eq!(status, 200, "{body}");
    let fourth = worker.nth(4).await;
    server.post(&format!("/api/v1/tasks/{}/cancel", fourth.task()), json!({})).await.ok();
    let fifth = worker.nth(5).await;
    let (status, body) = fourth.call("started", json!({})).await;
    assert_eq!((status, &body["state"]), (409, &json!("CANCELLED")), "{body}");
    worker.pushed()[1].succeed().await;
    fifth.succeed().await;
    wait_until("an empty queue", SOON, async || (server.queue("q").await["counts"]["running"] == 0).then_some(()))
        .await;
}

async fn the_rate_holds_back_what_is_more(server: Server) {
    let worker = Worker::answering(202).await;
    push_to(&server, &worker.url, json!({"rate_per_second": 0.05})).await.ok();
    let first = server.submit(json!({})).await;
    let second = server.submit(json!({})).await;
    let pushed = worker.nth(1).await;
    assert_eq!(server.task(pushed.task()).await["task_id"], *first);
    let why = server.get(&format!("/api/v1/tasks/{second}/why")).await.ok();
    assert_eq!(why["why"][0]["code"], "rate_limit", "{why}");
    server.advance(20_000);
    worker.nth(2).await;
}

async fn a_task_of_a_push_queue_cannot_be_claimed(server: Server) {
    // Nothing listens there: the task stays where it is.
    push_to(&server, "http://127.0.0.1:1/dispatch", json!({})).await.ok();
    let first = server.submit(json!({})).await;
    assert!(server.claim("w").await.is_null());
    server.until(&first, "Running").await;
    server.put("/api/v1/queues/q", json!({"push": null})).await.ok();
    let task = server.submit(json!({})).await;
    let job = server.claim("w").await;
    assert_eq!(job["job_id"], *task);
}

async fn a_paused_queue_pushes_nothing_new(server: Server) {
    let worker = Worker::answering(202).await;
    push_to(&server, &worker.url, json!({})).await.ok();
    server.post("/api/v1/queues/q/pause", json!({})).await.ok();
    let task = server.submit(json!({})).await;
    assert_eq!(server.state(&task).await, "Ready");
    assert_eq!(worker.count(), 0);
    server.post("/api/v1/queues/q/resume", json!({})).await.ok();
    worker.nth(1).await.succeed().await;
    server.until(&task, "Succeeded").await;
}
