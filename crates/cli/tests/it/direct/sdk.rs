//! The worker of the Rust SDK, with wake-ups that the test publishes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tenure_client::{Json, TaskError};
use tenure_testkit::wait_until;
use tokio::sync::Semaphore;

use crate::direct::kit::{PATIENCE, Site, spawn};

#[tokio::test]
async fn a_wake_up_runs_its_job_once_and_is_gone_afterwards() {
    let site = Site::start().await;
    let unknown_to_the_stream = site.submit("echo", 60).await;
    let mut tasks = Vec::new();
    for _ in 0..20 {
        tasks.push(site.submit("echo", 60).await);
    }
    site.publish(&tasks.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let (stop, run) = spawn(site.worker().concurrency(4));
    for task in &tasks {
        site.until(task, "Succeeded").await;
        assert_eq!(site.client.get(task).await.unwrap().attempt, 1);
    }
    site.until_entries((0, 0)).await;
    assert_eq!(site.state(&unknown_to_the_stream).await, "Ready", "the server was not asked for work");
    // It waits at the Redis for a minute, and yet ends at once.
    stop.send(()).unwrap();
    tokio::time::timeout(Duration::from_secs(30), run).await.expect("it ends at once").unwrap().unwrap();
}

#[tokio::test]
async fn duplicates_and_stale_wake_ups_run_nothing() {
    let site = Site::start().await;
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let worker = site.worker().operator("count", move |_task| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Ok(()) }
    });
    let task = site.submit("count", 60).await;
    let nobodys = "018c385a-9fb1-9509-0e89-33fe3b7b1aa9";
    site.publish(&[&task, &task, nobodys, &task]).await;
    let (_stop, _run) = spawn(worker);
    site.until(&task, "Succeeded").await;
    site.until_entries((0, 0)).await;
    site.publish(&[&task]).await;
    site.until_entries((0, 0)).await;
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn no_more_wake_ups_are_taken_than_there_are_free_slots() {
    let site = Site::start().await;
    let gate = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&gate);
    let worker = site.worker().concurrency(3).operator("hold", move |_task| {
        let gate = Arc::clone(&held);
        async move {
            gate.acquire().await?.forget();
            Ok::<_, TaskError>(Json::null())
        }
    });
    let mut tasks = Vec::new();
    for _ in 0..8 {
        tasks.push(site.submit("hold", 3600).await);
    }
    site.publish(&tasks.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let (_stop, _run) = spawn(worker);
    site.until_entries((8, 3)).await;
    gate.add_permits(1);
    site.until_entries((7, 3)).await;
    gate.add_permits(7);
    site.until_entries((0, 0)).await;
}

#[tokio::test]
async fn a_wake_up_is_extended_while_its_job_runs() {
    let site = Site::start().await;
    let gate = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&gate);
    let worker = site.worker().operator("hold", move |_task| {
        let gate = Arc::clone(&held);
        async move {
            gate.acquire().await?.forget();
            Ok::<_, TaskError>(Json::null())
        }
    });
    let task = site.submit("hold", 10).await;
    site.publish(&[&task]).await;
    let (_stop, _run) = spawn(worker);
    site.until(&task, "Running").await;
    let since = Instant::now();
    // [id, consumer, idle milliseconds, deliveries]
    let idle = || site.run::<Vec<(String, String, u64, u64)>>(&["XPENDING", "q", "tenure", "-", "+", "10"])[0].2;
    wait_until("it is idle for less time than it runs, by far", PATIENCE, async || {
        let runs = u64::try_from(since.elapsed().as_millis()).unwrap();
        runs > 6_000 && idle() + 4_000 < runs
    })
    .await;
    gate.add_permits(1);
    site.until(&task, "Succeeded").await;
    site.until_entries((0, 0)).await;
}

#[tokio::test]
async fn a_failed_attempt_settles_its_wake_up_too() {
    let site = Site::start().await;
    let worker = site.worker().operator("fail", async |_task| Err::<(), _>(TaskError::data_quality("no good")));
    let task = site.submit("fail", 60).await;
    site.publish(&[&task]).await;
    let (_stop, _run) = spawn(worker);
    site.until(&task, "Failed").await;
    site.until_entries((0, 0)).await;
}

#[tokio::test]
async fn without_its_redis_a_worker_asks_the_server_and_then_goes_back() {
    let mut site = Site::start().await;
    let before = site.submit("echo", 60).await;
    site.publish(&[&before]).await;
    let (_stop, run) = spawn(site.worker());
    site.until(&before, "Succeeded").await;

    site.redis.kill();
    let meanwhile = site.submit("echo", 60).await;
    site.until(&meanwhile, "Succeeded").await;
    let meanwhile = site.submit("echo", 60).await;
    site.until(&meanwhile, "Succeeded").await;

    site.redis.restart().await;
    // Only who reads the stream finds out that this is over.
    site.publish(&[&before]).await;
    site.until_entries((0, 0)).await;
    let unknown_to_the_stream = site.submit("echo", 60).await;
    let after = site.submit("echo", 60).await;
    site.publish(&[&after]).await;
    site.until(&after, "Succeeded").await;
    site.until_entries((0, 0)).await;
    assert_eq!(site.state(&unknown_to_the_stream).await, "Ready", "the server is no longer asked");
    assert!(!run.is_finished());
}
