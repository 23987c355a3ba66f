//! Each row of the answer table, and the times behind it.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::Response;
use futures_util::stream;
use serde_json::{Value, json};
use tenure_core::id::{dispatch_id, ulid};
use tenure_testkit::wait_until;
use tokio::sync::{Notify, mpsc};

use crate::cases;
use crate::harness::{SOON, Server, merge};
use crate::push::kit::{
    self, SECRET, Worker, answer, at_once, deliveries, next_push_in_ms, push_queue, push_to, running, with_header,
};

const CHUNK: [u8; 16 << 10] = [b' '; 16 << 10];

cases!(
    kit,
    on_sqlite: [
        a_duplicate_counts_as_accepted,
        a_worker_says_when_to_come_again,
        what_fails_is_pushed_again_with_a_back_off,
        no_answer_and_no_start_in_time_is_a_failure,
        a_refusal_fails_the_attempt_for_good,
        a_start_counts_as_delivery_whatever_the_exchange_comes_to,
        an_answer_that_goes_on_while_the_worker_works_is_kept_open,
        of_an_answer_without_end_only_the_beginning_is_read,
        an_answer_that_puts_a_push_off_is_not_kept_open,
        a_start_after_a_refusal_is_too_late,
        an_accepted_attempt_without_a_start_ends,
        an_attempt_that_nobody_accepts_ends,
    ],
    on_both_stores: [an_accepted_push_is_repeated_only_when_no_start_comes, the_whole_way_of_a_task],
);

async fn the_whole_way_of_a_task(server: Server) {
    let worker = Worker::answering(202).await;
    push_to(&server, &worker.url, json!({"secret_ref": "etl-dispatch"})).await.ok();
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let extra = json!({"payload": {"day": 1}, "asset_id": "raw.events", "traceparent": traceparent,
        "partition_key": "day=2025-01-15", "execution_location_id": "eu-west-1"});
    let task = server.submit(extra).await;
    let pushed = worker.nth(1).await;
    let envelope = &pushed.envelope;
    let id = pushed.task().strip_prefix("task_").unwrap();
    assert_eq!((pushed.task(), envelope["runId"].as_str()), (&*format!("task_{id}"), Some(&*format!("run_{id}"))));
    assert_eq!(server.task(pushed.task()).await["task_id"], *task);
    assert_eq!((&envelope["assetId"], &envelope["payload"]), (&json!("raw.events"), &json!({"day": 1})));
    assert_eq!((&envelope["attempt"], &envelope["workerQueue"]), (&json!(1), &json!("q")));
    let keys = (&envelope["partitionKey"], &envelope["executionLocationId"]);
    assert_eq!(keys, (&json!("day=2025-01-15"), &json!("eu-west-1")));
    assert_eq!((&envelope["tenantId"], &envelope["workspaceId"]), (&json!("default"), &json!("default")));
    assert_eq!(envelope["callbackBaseUrl"], *server.url);
    let number = ulid::decode(id).unwrap();
    assert_eq!(envelope["dispatchId"], dispatch_id(number, number, 1));
    for (name, value) in [
        ("x-tenure-dispatch-secret", SECRET),
        ("x-tenure-dispatch-id", envelope["dispatchId"].as_str().unwrap()),
        ("x-tenure-delivery-count", "1"),
        ("x-tenure-contract", "callback/1"),
        ("traceparent", traceparent),
        ("content-type", "application/json"),
    ] {
        assert_eq!(pushed.header(name), value, "{name}");
    }
    assert!(pushed.header("x-request-id").starts_with("req_"));

    pushed.start().await;
    let (status, beat) = pushed.call("heartbeat", json!({"progressPct": 45})).await;
    assert_eq!((status, &beat["shouldCancel"]), (200, &json!(false)), "{beat}");
    pushed.succeed().await;
    let task = server.until(&task, "Succeeded").await;
    assert_eq!(task["result"], json!({"rows": 7}), "{task}");
    assert_eq!(worker.count(), 1);
}

/// A queue for one case. A grant that is under way when a queue gets another target goes to the one before.
async fn queue_of(server: &Server, case: u16, worker: &Worker, extra: Value) -> String {
    let queue = format!("q-{case}");
    push_queue(server, &queue, &worker.url, extra).await.ok();
    queue
}

fn in_queue(mut task: Value, queue: &str) -> Value {
    merge(&mut task, json!({"queue": queue}));
    task
}

async fn an_accepted_push_is_repeated_only_when_no_start_comes(server: Server) {
    for status in [200, 202, 204] {
        let worker = Worker::answering(status).await;
        let queue = queue_of(&server, status, &worker, json!({})).await;
        let task = server.submit(json!({"queue": queue})).await;
        let first = worker.nth(1).await;
        let left = next_push_in_ms(&server, &task).await;
        assert!((50_000..=60_000).contains(&left), "{status}: {left}");
        server.advance(60_000);
        let second = worker.nth(2).await;
        for field in ["taskId", "attempt", "attemptId", "dispatchId", "fence", "leaseExpiresAt", "enqueuedAt"] {
            assert_eq!(first.envelope[field], second.envelope[field], "{field}");
        }
        assert_eq!(second.header("x-tenure-delivery-count"), "2");
        assert_ne!(first.envelope["taskToken"], second.envelope["taskToken"]);
        // Any token of the attempt will do.
        first.start().await;
        second.succeed().await;
        server.until(&task, "Succeeded").await;
        assert_eq!(worker.count(), 2);
    }
}

async fn a_duplicate_counts_as_accepted(server: Server) {
    let worker = Worker::answering(409).await;
    push_to(&server, &worker.url, json!({})).await.ok();
    let task = server.submit(json!({})).await;
    let pushed = worker.nth(1).await;
    let left = next_push_in_ms(&server, &task).await;
    assert!((50_000..=60_000).contains(&left), "{left}");
    assert!(running(&server, &task).await.unwrap().carry.delivery.unwrap().accepted_at.is_some());
    pushed.succeed().await;
    server.until(&task, "Succeeded").await;
}

async fn a_worker_says_when_to_come_again(server: Server) {
    for status in [429, 503] {
        let worker = Worker::start(move |number, _| async move {
            if number == 0 { with_header(status, "retry-after", "40") } else { answer(202) }
        })
        .await;
        let queue = queue_of(&server, status, &worker, json!({})).await;
        let task = server.submit(json!({"queue": queue})).await;
        worker.nth(1).await;
        let left = next_push_in_ms(&server, &task).await;
        assert!((30_000..=40_000).contains(&left), "{status}: {left}");
        server.advance(40_000);
        worker.nth(2).await.succeed().await;
        server.until(&task, "Succeeded").await;
    }
}

async fn what_fails_is_pushed_again_with_a_back_off(server: Server) {
    server.still().await;
    for status in [408, 429, 500, 502, 503] {
        let worker = Worker::start(move |number, _| async move { answer(if number < 3 { status } else { 200 }) }).await;
        let queue = queue_of(&server, status, &worker, json!({})).await;
        let task = server.submit(json!({"queue": queue})).await;
        let first = worker.nth(1).await;
        for (number, most) in [(2, 1_000), (3, 2_000), (4, 4_000)] {
            let left = next_push_in_ms(&server, &task).await;
            assert!(left <= most, "{status}: {left}");
            server.advance(most);
            let again = worker.nth(number).await;
            assert_eq!(again.envelope["dispatchId"], first.envelope["dispatchId"]);
            assert_eq!(again.header("x-tenure-delivery-count"), number.to_string());
        }
        first.succeed().await;
        server.until(&task, "Succeeded").await;
        assert_eq!(server.attempts(&task).await.len(), 1, "no attempt was spent");
    }
}

async fn no_answer_and_no_start_in_time_is_a_failure(server: Server) {
    let worker = Worker::start(|number, _| async move {
        if number == 0 {
            std::future::pending::<()>().await;
        }
        answer(200)
    })
    .await;
    push_to(&server, &worker.url, json!({"ack_timeout_ms": 200})).await.ok();
    let task = server.submit(json!({})).await;
    worker.nth(1).await;
    let second = worker.nth(2).await;
    assert_eq!(second.header("x-tenure-delivery-count"), "2");
    second.succeed().await;
    server.until(&task, "Succeeded").await;
}

async fn a_refusal_fails_the_attempt_for_good(server: Server) {
    let elsewhere = Worker::answering(200).await;
    for status in [400, 401, 404, 410, 422, 301, 302, 307, 308] {
        let location = elsewhere.url.clone();
        let worker = Worker::start(move |_, _| {
            let location = location.clone();
            async move { with_header(status, "location", &location) }
        })
        .await;
        let queue = queue_of(&server, status, &worker, json!({})).await;
        let task = server.submit(in_queue(at_once(3), &queue)).await;
        let ended = server.until(&task, "Failed").await;
        let attempts = server.attempts(&task).await;
        assert_eq!((attempts.len(), worker.count()), (1, 1), "{status}");
        assert_eq!(attempts[0]["reason"], "DISPATCH_REJECTED", "{attempts:?}");
        assert_eq!(ended["error"]["code"], "DISPATCH_REJECTED", "{ended}");
        let message = ended["error"]["message"].as_str().unwrap();
        assert!(message.contains(&status.to_string()) && !message.contains("/dispatch"), "{message}");
    }
    assert_eq!(elsewhere.count(), 0, "redirects are not followed");
}

async fn a_start_counts_as_delivery_whatever_the_exchange_comes_to(server: Server) {
    let release = Arc::new(Notify::new());
    let finished = Arc::new(AtomicBool::new(false));
    for status in [0, 500, 404, 302] {
        let worker = {
            let (release, finished) = (Arc::clone(&release), Arc::clone(&finished));
            finished.store(false, Ordering::SeqCst);
            Worker::start(move |_, pushed| {
                let (release, finished) = (Arc::clone(&release), Arc::clone(&finished));
                async move {
                    pushed.start().await;
                    if status > 0 {
                        return answer(status);
                    }
                    // It executes inside of the request, for longer than an answer may take.
                    release.notified().await;
                    finished.store(true, Ordering::SeqCst);
                    answer(500)
                }
            })
            .await
        };
        let queue = queue_of(&server, status, &worker, json!({"ack_timeout_ms": 5_000})).await;
        let task = server.submit(json!({"queue": queue})).await;
        let pushed = worker.nth(1).await;
        wait_until("the start", SOON, async || {
            running(&server, &task).await.filter(|running| running.started_at().is_some())
        })
        .await;
        assert_eq!(running(&server, &task).await.unwrap().carry.delivery.unwrap().next_at, None);
        if status == 0 {
            // Longer than the answer may take: nothing is repeated, and the exchange is kept.
            tokio::time::timeout(Duration::from_millis(7_000), worker.nth(2)).await.unwrap_err();
            release.notify_one();
            wait_until("the end of the exchange", SOON, async || finished.load(Ordering::SeqCst).then_some(())).await;
        }
        pushed.succeed().await;
        server.until(&task, "Succeeded").await;
        assert_eq!((worker.count(), server.attempts(&task).await.len()), (1, 1), "{status}");
    }
}

/// A body that says nothing and does not end. What it holds is dropped with it.
fn without_end(held: Option<mpsc::Sender<()>>) -> Body {
    Body::from_stream(stream::poll_fn(move |_| {
        let _held = &held;
        Poll::<Option<Result<Bytes, Infallible>>>::Pending
    }))
}

async fn an_answer_that_goes_on_while_the_worker_works_is_kept_open(server: Server) {
    // Its head says that it was taken; its body takes as long as the work. What it holds is dropped with it.
    let (held, mut dropped) = mpsc::channel::<()>(1);
    let held = Arc::new(Mutex::new(Some(held)));
    let worker = Worker::start(move |_, pushed| {
        let held = held.lock().unwrap().take();
        async move {
            pushed.start().await;
            Response::builder().status(200).body(without_end(held)).unwrap()
        }
    })
    .await;
    push_to(&server, &worker.url, json!({"ack_timeout_ms": 5_000})).await.ok();
    let task = server.submit(json!({})).await;
    let pushed = worker.nth(1).await;
    // Longer than an answer may take: the exchange is kept.
    tokio::time::timeout(Duration::from_millis(7_000), dropped.recv()).await.unwrap_err();
    pushed.succeed().await;
    server.until(&task, "Succeeded").await;
    assert_eq!((worker.count(), server.attempts(&task).await.len()), (1, 1));
}

async fn of_an_answer_without_end_only_the_beginning_is_read(server: Server) {
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let worker = Worker::start(move |_, pushed| {
        let counted = Arc::clone(&counted);
        async move {
            pushed.start().await;
            let body = stream::repeat_with(move || {
                counted.fetch_add(CHUNK.len(), Ordering::Relaxed);
                Ok::<_, Infallible>(Bytes::from_static(&CHUNK))
            });
            Response::builder().status(200).body(Body::from_stream(body)).unwrap()
        }
    })
    .await;
    push_to(&server, &worker.url, json!({})).await.ok();
    let task = server.submit(json!({})).await;
    let pushed = worker.nth(1).await;
    wait_until("the answer begins", SOON, async || sent.load(Ordering::Relaxed) > 64 << 10).await;
    // What lies between the two, in their buffers, fills up; then nothing more goes out.
    let mut before = 0;
    wait_until("it stands still", SOON, async || {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = sent.load(Ordering::Relaxed);
        std::mem::replace(&mut before, now) == now
    })
    .await;
    assert!(before < 64 << 20, "{before} bytes were taken");
    pushed.succeed().await;
    server.until(&task, "Succeeded").await;
    assert_eq!((worker.count(), server.attempts(&task).await.len()), (1, 1));
}

async fn an_answer_that_puts_a_push_off_is_not_kept_open(server: Server) {
    let (held, mut dropped) = mpsc::channel::<()>(1);
    let held = Arc::new(Mutex::new(Some(held)));
    let worker = Worker::start(move |_, _| {
        let held = held.lock().unwrap().take();
        async move { Response::builder().status(503).header("Retry-After", "60").body(without_end(held)).unwrap() }
    })
    .await;
    push_to(&server, &worker.url, json!({})).await.ok();
    server.submit(json!({})).await;
    worker.nth(1).await;
    assert_eq!(tokio::time::timeout(SOON, dropped.recv()).await.unwrap(), None);
}

async fn a_start_after_a_refusal_is_too_late(server: Server) {
    let worker = Worker::answering(400).await;
    push_to(&server, &worker.url, json!({})).await.ok();
    let task = server.submit(at_once(3)).await;
    server.until(&task, "Failed").await;
    let (status, body) = worker.nth(1).await.call("started", json!({})).await;
    assert_eq!((status, &body["error"]), (409, &json!("task_already_terminal")), "{body}");
}

async fn an_accepted_attempt_without_a_start_ends(server: Server) {
    let worker = Worker::answering(202).await;
    push_to(&server, &worker.url, json!({"dispatch_timeout_ms": 100_000})).await.ok();
    let task = server.submit(at_once(2)).await;
    let first = worker.nth(1).await;
    next_push_in_ms(&server, &task).await;
    server.advance(60_000);
    worker.nth(2).await;
    server.advance(60_000);
    let next = worker.nth(3).await;
    assert_eq!(server.attempts(&task).await[0]["reason"], "START_TIMEOUT");
    assert_eq!((&next.envelope["attempt"], next.header("x-tenure-delivery-count")), (&json!(2), "1"));
    for field in ["attemptId", "dispatchId", "taskToken"] {
        assert_ne!(next.envelope[field], first.envelope[field], "{field}");
    }
    assert!(next.envelope["fence"].as_u64() > first.envelope["fence"].as_u64());
    let (status, body) = first.call("started", json!({})).await;
    assert_eq!((status, &body["error"]), (409, &json!("attempt_mismatch")), "{body}");
    next.succeed().await;
    server.until(&task, "Succeeded").await;
}

async fn an_attempt_that_nobody_accepts_ends(server: Server) {
    let worker = Worker::answering(500).await;
    push_to(&server, &worker.url, json!({"dispatch_timeout_ms": 30_000})).await.ok();
    let task = server.submit(at_once(1)).await;
    worker.nth(1).await;
    next_push_in_ms(&server, &task).await;
    assert!(deliveries(&server, &task).await >= 1);
    server.advance(30_000);
    server.until(&task, "Failed").await;
    assert_eq!(server.attempts(&task).await[0]["reason"], "DISPATCH_FAILED");
}
