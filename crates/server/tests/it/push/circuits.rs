//! One dead target costs the others nothing, and its own tasks no attempts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_testkit::{Port, wait_until};

use crate::cases;
use crate::harness::{SOON, Server};
use crate::push::kit::{self, A_WHILE, Worker, answer, push_queue};

cases!(
    kit,
    on_sqlite: [
        nothing_is_granted_for_a_dead_target_but_probes,
        a_target_that_cannot_be_reached_spends_no_attempt_and_is_said_at_once,
        a_dead_target_is_tried_with_what_was_granted_before,
        a_target_that_hangs_for_longer_than_its_attempts_last_is_found_down,
        a_hanging_target_holds_up_its_queue_alone,
    ],
    on_both_stores: [a_dead_target_costs_others_nothing_and_its_tasks_no_attempts],
);

async fn submit(server: &Server, queue: &str, count: usize) -> Vec<String> {
    let tasks: Vec<_> = (0..count).map(|_| json!({"queue": queue, "operator": "op"})).collect();
    let answer = server.post("/api/v1/tasks/batch", json!({"tasks": tasks})).await.ok();
    answer["tasks"].as_array().unwrap().iter().map(|task| task["task_id"].as_str().unwrap().to_owned()).collect()
}

async fn counts(server: &Server, queue: &str) -> Value {
    server.queue(queue).await["counts"].clone()
}

async fn empty(server: &Server, queue: &str) {
    wait_until("an empty queue", A_WHILE, async || {
        let counts = counts(server, queue).await;
        (counts["ready"] == 0 && counts["running"] == 0).then_some(())
    })
    .await;
}

async fn well() -> Worker {
    Worker::start(|_, pushed| async move {
        pushed.succeed().await;
        answer(200)
    })
    .await
}

async fn a_dead_target_costs_others_nothing_and_its_tasks_no_attempts(server: Server) {
    // Kept from others until somebody listens there.
    let port = Port::reserve();
    let dead = format!("http://127.0.0.1:{}/dispatch", port.number());
    let sick_is_well = Arc::new(AtomicBool::new(false));
    let sick = {
        let well = Arc::clone(&sick_is_well);
        Worker::start(move |_, pushed| {
            let well = Arc::clone(&well);
            async move {
                if !well.load(Ordering::SeqCst) {
                    return answer(502);
                }
                pushed.succeed().await;
                answer(200)
            }
        })
        .await
    };
    let others = [well().await, well().await];
    push_queue(&server, "dead", &dead, json!({"concurrency": 10})).await.ok();
    push_queue(&server, "sick", &sick.url, json!({"concurrency": 10})).await.ok();
    for (number, worker) in others.iter().enumerate() {
        push_queue(&server, &format!("well-{number}"), &worker.url, json!({})).await.ok();
    }
    let of_dead = submit(&server, "dead", 30).await;
    let of_sick = submit(&server, "sick", 30).await;
    for queue in ["well-0", "well-1"] {
        submit(&server, queue, 40).await;
    }
    for queue in ["well-0", "well-1"] {
        empty(&server, queue).await;
    }
    let last = of_dead.last().unwrap();
    let why = wait_until("the open circuit", SOON, async || {
        let why = server.get(&format!("/api/v1/tasks/{last}/why")).await.ok();
        (why["why"][0]["code"] == "push_target_down").then_some(why)
    })
    .await;
    let told = why.to_string();
    assert!(told.contains(&format!("http://127.0.0.1:{}", port.number())) && !told.contains("no_worker"), "{why}");

    // Time passes: the circuit stays open, and nothing more is granted. Each of the few pushes is a probe.
    for queue in ["dead", "sick"] {
        let counts = counts(&server, queue).await;
        assert!(counts["ready"].as_i64() >= Some(20), "{counts}");
    }
    let metrics = server.get("/metrics").await.ok();
    let metrics = metrics.as_str().unwrap();
    assert!(metrics.contains("tenure_pushes_total{outcome=\"started\"}"), "{metrics}");
    assert!(metrics.contains("tenure_push_circuits_open"), "{metrics}");

    // They come back: a probe notices, and all is pushed.
    let back = Worker::at(port.number(), |_, pushed| async move {
        pushed.succeed().await;
        answer(200)
    })
    .await;
    sick_is_well.store(true, Ordering::SeqCst);
    wait_until("both queues drained", A_WHILE, async || {
        // What was pushed before is due again some seconds later.
        server.advance(50);
        let (dead, sick) = (counts(&server, "dead").await, counts(&server, "sick").await);
        [dead, sick].iter().all(|counts| counts["ready"] == 0 && counts["running"] == 0).then_some(())
    })
    .await;
    assert!(back.count() >= 30, "{}", back.count());
    for task in of_dead.iter().chain(&of_sick) {
        let attempts = server.attempts(task).await;
        assert_eq!((attempts.len(), &attempts[0]["state"]), (1, &json!("Succeeded")), "{attempts:?}");
    }
}

async fn a_hanging_target_holds_up_its_queue_alone(server: Server) {
    let hanging = Worker::start(|_, _| async {
        std::future::pending::<()>().await;
        answer(200)
    })
    .await;
    let other = well().await;
    // More open attempts than one queue has pushes in flight.
    push_queue(&server, "hanging", &hanging.url, json!({"concurrency": 1000, "ack_timeout_ms": 60_000})).await.ok();
    push_queue(&server, "well", &other.url, json!({})).await.ok();
    submit(&server, "hanging", 400).await;
    hanging.nth(100).await;
    submit(&server, "well", 50).await;
    empty(&server, "well").await;
    assert_eq!(other.count(), 50);
    assert!(hanging.count() <= 128, "{}", hanging.count());
}

async fn nothing_is_granted_for_a_dead_target_but_probes(server: Server) {
    let slots = json!({"concurrency": 5, "dispatch_timeout_ms": 5_000});
    push_queue(&server, "dead", "http://127.0.0.1:1/dispatch", slots).await.ok();
    let tasks: Vec<_> = (0..60).map(|_| json!({"queue": "dead", "operator": "op", "max_attempts": 1})).collect();
    server.post("/api/v1/tasks/batch", json!({"tasks": tasks})).await.ok();
    wait_until("the open circuit", SOON, async || {
        let metrics = server.get("/metrics").await.ok();
        metrics.as_str().unwrap().contains("tenure_push_circuits_open 1").then_some(())
    })
    .await;
    // What was granted ends again and again, and its slots are free: whatever is granted then is spent.
    let began = Instant::now();
    wait_until("some seconds of probes", SOON, async || {
        server.advance(1_000);
        (began.elapsed() > Duration::from_secs(3)).then_some(())
    })
    .await;
    let counts = counts(&server, "dead").await;
    assert!(counts["ready"].as_i64() >= Some(40), "{counts}");
}

async fn a_dead_target_is_tried_with_what_was_granted_before(server: Server) {
    let sick = Worker::answering(502).await;
    // Attempts last, however often the clock is moved.
    let slots = |concurrency: u32| json!({"concurrency": concurrency, "dispatch_timeout_ms": 1_800_000});
    push_queue(&server, "sick", &sick.url, slots(5)).await.ok();
    let tasks = submit(&server, "sick", 25).await;
    wait_until("the open circuit", SOON, async || {
        let why = server.get(&format!("/api/v1/tasks/{}/why", tasks[24])).await.ok();
        why.to_string().contains("push_target_down").then_some(())
    })
    .await;
    push_queue(&server, "sick", &sick.url, slots(10)).await.ok();
    let before = sick.count();
    wait_until("some probes", SOON, async || {
        server.advance(1_000);
        (sick.count() >= before + 2).then_some(())
    })
    .await;
    let counts = counts(&server, "sick").await;
    assert_eq!((&counts["ready"], &counts["running"]), (&json!(20), &json!(5)), "{counts}");
}

async fn a_target_that_hangs_for_longer_than_its_attempts_last_is_found_down(server: Server) {
    let hanging = Worker::start(|_, _| async {
        std::future::pending::<()>().await;
        answer(200)
    })
    .await;
    let times = json!({"concurrency": 10, "ack_timeout_ms": 1_500, "dispatch_timeout_ms": 1_000});
    push_queue(&server, "hanging", &hanging.url, times).await.ok();
    let tasks: Vec<_> = (0..200).map(|_| json!({"queue": "hanging", "operator": "op", "max_attempts": 1})).collect();
    let submitted = server.post("/api/v1/tasks/batch", json!({"tasks": tasks})).await.ok();
    let last = submitted["tasks"][199]["task_id"].as_str().unwrap().to_owned();
    // Each attempt is over before its push is.
    wait_until("the open circuit", SOON, async || {
        let why = server.get(&format!("/api/v1/tasks/{last}/why")).await.ok();
        (why["why"][0]["code"] == "push_target_down").then_some(())
    })
    .await;
    let counts = counts(&server, "hanging").await;
    assert!(counts["ready"].as_i64() >= Some(20), "{counts}");
}

async fn a_target_that_cannot_be_reached_spends_no_attempt_and_is_said_at_once(server: Server) {
    let port = Port::reserve();
    let dead = format!("http://127.0.0.1:{}/dispatch", port.number());
    push_queue(&server, "q", &dead, json!({"dispatch_timeout_ms": 10_000})).await.ok();
    let first = server.submit(json!({"max_attempts": 1})).await;
    let why = async |id: &str| server.get(&format!("/api/v1/tasks/{id}/why")).await.ok()["why"][0].clone();
    let said = wait_until("the reason", SOON, async || {
        let why = why(&first).await;
        (why["code"] == "push_target_down").then_some(why)
    })
    .await;
    assert!(said["message"].as_str().unwrap().contains("cannot be reached"), "{said}");
    let shown = server.task(&first).await;
    assert!(shown["not_started"].as_str().unwrap().contains(&format!("127.0.0.1:{}", port.number())), "{shown}");
    // One failure is enough: the next task is not even granted.
    let second = server.submit(json!({"max_attempts": 1})).await;
    assert_eq!(
        (&why(&second).await["code"], server.state(&second).await),
        (&json!("push_target_down"), "Ready".to_owned())
    );
    // Longer than an attempt may go without a start.
    let deliveries = kit::deliveries(&server, &first).await;
    server.advance(9_000);
    wait_until("another push", SOON, async || kit::deliveries(&server, &first).await > deliveries).await;
    server.advance(9_000);
    let worker = Worker::at(port.number(), |_, pushed| async move {
        pushed.succeed().await;
        answer(200)
    })
    .await;
    for id in [&first, &second] {
        let task = server.until(id, "Succeeded").await;
        assert_eq!((&task["attempt"], task.get("not_started")), (&json!(1), None), "{task}");
    }
    drop(worker);
}
