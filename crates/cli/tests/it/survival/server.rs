//! Servers that die.

use std::collections::HashSet;

use serde_json::{Value, json};
use tenure_testkit::wait_until;

use crate::survival::kit::{PATIENCE, Site};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_survives_a_killed_server() {
    let mut site = Site::start(None).await;
    let _worker = site.worker(&["--concurrency", "20"]);
    let ids = site.submit_many(400, "sleep").await;
    for _ in 0..3 {
        wait_until("some work is done", PATIENCE, async || {
            let done = site.get("/api/v1/tasks?state=Succeeded&limit=1000").await;
            !done["items"].as_array().unwrap().is_empty()
        })
        .await;
        site.kill();
        site.start_again().await;
    }
    for id in &ids {
        let task = site.until(id, "Succeeded").await;
        assert_eq!(task["attempt"], 1, "an outage aborts no running work, and nothing ran twice: {task}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_running_leases_survive_a_restart() {
    const LEASES: usize = 10_000;
    let mut site = Site::start(None).await;
    let ids: HashSet<String> = site.submit_many(LEASES, "op").await.into_iter().collect();
    let claim = json!({"worker_id": "w", "claim": {"streams": ["q"], "max_jobs": 1000, "max_wait_ms": 0}});
    let mut jobs: Vec<Value> = Vec::new();
    while jobs.len() < LEASES {
        let (status, answer) = site.post("/internal/worker/exchange", &claim).await;
        assert_eq!(status, 200, "{answer}");
        let granted = answer["jobs"].as_array().unwrap();
        assert!(!granted.is_empty(), "all tasks are ready, only {} were granted", jobs.len());
        jobs.extend(granted.iter().cloned());
    }
    let granted: HashSet<String> = jobs.iter().map(|job| job["job_id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(granted, ids, "each once");

    site.kill();
    site.start_again().await;

    let queue = site.get("/api/v1/queues/q").await;
    assert_eq!((&queue["counts"]["running"], &queue["counts"]["ready"]), (&json!(LEASES), &json!(0)));
    let (_, again) = site.post("/internal/worker/exchange", &claim).await;
    assert_eq!(again["jobs"], json!([]), "nothing is granted a second time");
    for chunk in jobs.chunks(1000) {
        let beats: Vec<Value> =
            chunk.iter().map(|job| json!({"job_id": job["job_id"], "lease_token": job["lease_token"]})).collect();
        let done: Vec<Value> = chunk
            .iter()
            .map(|job| {
                json!({"job_id": job["job_id"], "attempt_id": job["attempt_id"], "lease_token": job["lease_token"]})
            })
            .collect();
        let (_, beaten) = site.post("/internal/worker/exchange", &json!({"worker_id": "w", "heartbeat": beats})).await;
        assert!(beaten["heartbeat"].as_array().unwrap().iter().all(|answer| answer["ok"] == true));
        let (_, ended) = site.post("/internal/worker/exchange", &json!({"worker_id": "w", "complete": done})).await;
        assert!(ended["complete"].as_array().unwrap().iter().all(|answer| answer["ok"] == true));
    }
    let queue = site.get("/api/v1/queues/q").await;
    assert_eq!(queue["counts"]["running"], 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_ends_long_polls_and_exits_with_zero() {
    let mut site = Site::start(None).await;
    let mut server = site.server.take().unwrap();
    let id = site.submit("op", json!({})).await;
    // A paused queue grants nothing, but tells whether somebody asks for it.
    site.post("/api/v1/queues/q/pause", &json!({})).await;
    let claim = json!({"worker_id": "w", "streams": ["q"], "max_wait_ms": 60_000});
    let polling = site.post("/internal/worker/claim", &claim);
    let stopping = async {
        wait_until("the poll is known", PATIENCE, async || {
            let why = site.get(&format!("/api/v1/tasks/{id}/why")).await;
            why["why"].as_array().unwrap().iter().all(|reason| reason["code"] != "no_worker")
        })
        .await;
        server.terminate().await
    };
    let ((status, answer), exit) = tokio::join!(polling, stopping);
    assert_eq!((status, &answer["claimed"]), (200, &json!(false)), "{answer}");
    assert!(exit.success(), "{exit}");
}
