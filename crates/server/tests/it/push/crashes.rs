//! Crashes between grant and push, and control planes beside each other.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::json;
use tenure_core::command::claim::{Claim, Claimer};
use tenure_engine::{ClaimWait, random_seed};
use tenure_testkit::wait_until;

use crate::cases;
use crate::harness::{SOON, Server};
use crate::push::kit::{self, A_WHILE, Worker, answer, deliveries, dev_targets, keys, on, push_to};

cases!(
    kit,
    on_both_stores: [
        a_crash_between_grant_and_push_repeats_the_push,
        a_push_without_an_answer_is_repeated_after_a_restart,
        a_new_address_holds_from_the_next_push_on,
    ],
);

async fn a_crash_between_grant_and_push_repeats_the_push(mut server: Server) {
    let worker = Worker::answering(202).await;
    push_to(&server, &worker.url, json!({})).await.ok();
    let (home, clock) = (Arc::clone(&server.home), Arc::clone(&server.clock));
    server.stop().await;
    drop(server);
    // It grants as the dispatcher does, and goes no further.
    let mut server = on(Arc::clone(&home), Arc::clone(&clock), None, keys()).await;
    let task = server.submit(json!({})).await;
    let claimer = Claimer::delivery(random_seed());
    let claim = Claim { claimer, queues: vec!["q".into()], max_jobs: 9 };
    let granted = server.engine.claim(claim, ClaimWait::NONE).await.unwrap().grants;
    assert_eq!(granted.len(), 1);
    server.stop().await;
    drop(server);

    let server = on(home, clock, Some(dev_targets()), keys()).await;
    assert_eq!((worker.count(), deliveries(&server, &task).await), (0, 1));
    server.advance(15_000);
    let pushed = worker.nth(1).await;
    assert_eq!(pushed.header("x-tenure-delivery-count"), "2");
    assert_eq!(pushed.envelope["attemptId"], granted[0].attempt_id.to_string());
    assert_eq!((&pushed.envelope["attempt"], &pushed.envelope["fence"]), (&json!(1), &json!(granted[0].fence.0)));
    pushed.succeed().await;
    server.until(&task, "Succeeded").await;
    assert_eq!((worker.count(), server.attempts(&task).await.len()), (1, 1));
}

async fn a_push_without_an_answer_is_repeated_after_a_restart(mut server: Server) {
    let worker = Worker::start(|number, _| async move {
        if number == 0 {
            std::future::pending::<()>().await;
        }
        answer(202)
    })
    .await;
    push_to(&server, &worker.url, json!({})).await.ok();
    let task = server.submit(json!({})).await;
    let first = worker.nth(1).await;
    let (home, clock) = (Arc::clone(&server.home), Arc::clone(&server.clock));
    server.stop().await;
    drop(server);
    let server = on(home, clock, Some(dev_targets()), keys()).await;
    server.advance(15_000);
    let second = worker.nth(2).await;
    for field in ["dispatchId", "attemptId", "attempt", "fence"] {
        assert_eq!(second.envelope[field], first.envelope[field], "{field}");
    }
    assert_eq!(second.header("x-tenure-delivery-count"), "2");
    second.succeed().await;
    server.until(&task, "Succeeded").await;
}

async fn a_new_address_holds_from_the_next_push_on(server: Server) {
    let (old, new) = (Worker::answering(500).await, Worker::answering(202).await);
    push_to(&server, &old.url, json!({})).await.ok();
    let task = server.submit(json!({})).await;
    let first = old.nth(1).await;
    push_to(&server, &new.url, json!({})).await.ok();
    server.advance(2_000);
    let second = new.nth(1).await;
    assert_eq!(second.envelope["dispatchId"], first.envelope["dispatchId"]);
    second.succeed().await;
    server.until(&task, "Succeeded").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_control_planes_one_pushes_each_task() {
    let one = kit::postgres().await;
    let two = on(Arc::clone(&one.home), Arc::clone(&one.clock), Some(dev_targets()), keys()).await;
    let worker = Worker::start(|_, pushed| async move {
        pushed.start().await;
        tokio::spawn(async move { pushed.succeed().await });
        answer(202)
    })
    .await;
    push_to(&one, &worker.url, json!({"concurrency": 20})).await.ok();
    // The second one learns of the queue within a second; until both push there is more to do.
    let mut submitted = 0;
    wait_until("both push", A_WHILE, async || {
        let tasks = vec![json!({"queue": "q", "operator": "op"}); 100];
        two.post("/api/v1/tasks/batch", json!({"tasks": tasks})).await.ok();
        submitted += 100;
        wait_until("all tasks", A_WHILE, async || {
            let counts = &one.queue("q").await["counts"];
            (counts["ready"] == 0 && counts["running"] == 0).then_some(())
        })
        .await;
        let by: Vec<_> = worker.pushed().iter().map(|one| one.envelope["callbackBaseUrl"].clone()).collect();
        [&one.url, &two.url].iter().all(|url| by.contains(&json!(url))).then_some(())
    })
    .await;
    let mut seen: HashMap<String, usize> = HashMap::new();
    for pushed in worker.pushed() {
        *seen.entry(pushed.task().to_owned()).or_default() += 1;
    }
    assert_eq!((seen.len(), seen.values().max()), (submitted, Some(&1)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dead_control_plane_left_is_pushed_by_the_other() {
    let alive = kit::postgres().await;
    let worker = Worker::answering(202).await;
    push_to(&alive, &worker.url, json!({"concurrency": 1})).await.ok();
    // The only slot is taken by one that dies with it.
    let mute = on(Arc::clone(&alive.home), Arc::clone(&alive.clock), None, keys()).await;
    alive.post("/api/v1/queues/q/pause", json!({})).await.ok();
    let task = alive.submit(json!({})).await;
    let claimed = wait_until("the grant", SOON, async || {
        alive.post("/api/v1/queues/q/resume", json!({})).await.ok();
        let claimer = Claimer::delivery(random_seed());
        let claim = Claim { claimer, queues: vec!["q".into()], max_jobs: 1 };
        let grants = mute.engine.claim(claim, ClaimWait::NONE).await.unwrap().grants;
        // Either of the two may have it; it matters only who is to push.
        (!grants.is_empty() || worker.count() > 0).then_some(grants)
    })
    .await;
    if !claimed.is_empty() {
        alive.advance(15_000);
    }
    let pushed = worker.nth(1).await;
    pushed.succeed().await;
    alive.until(&task, "Succeeded").await;
}
