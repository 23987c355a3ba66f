//! A Postgres that goes away and comes back.

use std::time::{Duration, Instant};

use serde_json::json;
use tenure_testkit::{Postgres, wait_until};

use crate::kit::{PATIENCE, Site};

/// Longer than a lease of the task that runs meanwhile.
const GONE: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_gone_for_twenty_seconds_loses_nothing() {
    let postgres = Postgres::start().await;
    let database = postgres.database().await;
    let site = Site::start(Some(database.url())).await;
    let _worker = site.worker(&["--name", "w", "--concurrency", "4"]);
    let running = site.submit("sleep", json!({"payload": {"ms": 28_000}, "lease_ttl_seconds": 5})).await;
    let waiting = site.submit("echo", json!({"delay_ms": 10_000})).await;
    site.until(&running, "Running").await;

    postgres.kill();
    let gone = Instant::now();
    wait_until("the server says so", PATIENCE, async || {
        let (status, answer) = site.post("/api/v1/tasks", &json!({"queue": "q", "operator": "echo"})).await;
        status == 503 && answer["error"] == "store_unavailable"
    })
    .await;
    tokio::time::sleep_until((gone + GONE).into()).await;
    postgres.start_again().await;

    let back = Instant::now();
    wait_until("the server is back", PATIENCE, async || {
        site.post("/api/v1/tasks", &json!({"queue": "q", "operator": "echo"})).await.0 == 201
    })
    .await;
    assert!(back.elapsed() < Duration::from_secs(5), "it took {:?}", back.elapsed());
    site.until(&waiting, "Succeeded").await;
    let task = site.until(&running, "Succeeded").await;
    assert_eq!(task["attempt"], 1, "the outage did not abort running work: {task}");
}
