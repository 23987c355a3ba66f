//! A long backlog and many workers.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::cases;
use crate::harness::Server;

cases!(
    Server,
    everywhere: [a_long_backlog_runs_to_its_last_task, a_mixed_backlog_keeps_the_order_of_streams],
);

const CLAIMERS: usize = 64;
const MAX_JOBS: usize = 50;

/// Submits so many tasks of a queue; of each hundred, nine belong to the tenant `some` and one to `few`.
async fn submit(server: &Server, queue: &str, count: usize) {
    let tenant = |n: usize| match n % 100 {
        99 => "few",
        90..99 => "some",
        _ => "crowd",
    };
    for start in (0..count).step_by(10_000) {
        let range = start..count.min(start + 10_000);
        // The crowd's come first, as if they had been there before the others.
        let mut order: Vec<usize> = range.collect();
        order.sort_by_key(|n| n % 100);
        let tasks: Vec<_> = order
            .into_iter()
            .map(|n| json!({"queue": queue, "operator": "op", "tenant": tenant(n), "payload": tenant(n)}))
            .collect();
        let created = server.post("/api/v1/tasks/batch", json!({"tasks": tasks})).await.ok()["created"].clone();
        assert_eq!(created, tasks.len());
    }
}

fn done(job: &Value) -> Value {
    json!({"job_id": job["job_id"], "attempt_id": job["attempt_id"], "lease_token": job["lease_token"], "result": null})
}

/// Claims and completes until nothing is left. Gives each job with its place in the order of arrival.
async fn work(server: &Server, worker: usize, arrived: &AtomicUsize) -> Vec<(usize, Value)> {
    let (mut complete, mut jobs) = (Vec::new(), Vec::new());
    let mut empty = 0;
    loop {
        let claim = json!({"streams": ["q"], "max_jobs": MAX_JOBS, "max_wait_ms": 0});
        let turn = json!({"worker_id": format!("w-{worker}"), "complete": complete, "claim": claim});
        let answer = server.worker("exchange", turn).await.ok();
        assert!(answer["complete"].as_array().unwrap().iter().all(|item| item["ok"] == true), "{answer}");
        let granted = answer["jobs"].as_array().unwrap();
        complete = granted.iter().map(done).collect();
        jobs.extend(granted.iter().map(|job| (arrived.fetch_add(1, Ordering::SeqCst), job.clone())));
        // On Postgres a claim may find all that is left locked by others for a moment.
        empty = if granted.is_empty() { empty + 1 } else { 0 };
        if empty == 3 {
            return jobs;
        }
    }
}

async fn a_long_backlog_runs_to_its_last_task(server: Server) {
    let count = if server.home.is_sqlite() { 50_000 } else { 20_000 };
    server.put("/api/v1/queues/q", json!({"fairness_key": "tenant"})).await.ok();
    submit(&server, "q", count).await;
    assert_eq!(server.queue("q").await["counts"]["ready"], count);
    let arrived = AtomicUsize::new(0);
    let workers = (0..CLAIMERS).map(|worker| work(&server, worker, &arrived));
    let jobs = futures_util::future::join_all(workers).await.concat();
    // Every task was granted, and none twice.
    assert_eq!(jobs.len(), count);
    let distinct: HashSet<_> = jobs.iter().map(|(_, job)| job["job_id"].as_str().unwrap()).collect();
    assert_eq!(distinct.len(), count);
    assert!(jobs.iter().all(|(_, job)| job["attempt"] == 1 && job["fence"] == 1));
    let counts = json!({"scheduled": 0, "ready": 0, "running": 0, "dead_lettered": 0});
    assert_eq!(server.queue("q").await["counts"], counts);
    // The few were served in turn with the crowd: a third of the grants until there were none left. Answers of
    // concurrent claims can overtake each other by what all of them hold at a time.
    let few: Vec<_> = jobs.iter().filter(|(_, job)| job["payload"] == "few").map(|(place, _)| *place).collect();
    assert_eq!(few.len(), count / 100);
    let (last, slack) = (few.iter().max().unwrap(), 2 * CLAIMERS * MAX_JOBS);
    assert!(*last < 3 * few.len() + slack, "the last of {} came as number {last}", few.len());
}

async fn a_mixed_backlog_keeps_the_order_of_streams(server: Server) {
    submit(&server, "low", 1_000).await;
    submit(&server, "high", 1_000).await;
    // One after the other, so that what is ready is known at each claim; high ones are added in between.
    let (mut high, mut low, mut ready) = (0, 0, 1_000_usize);
    for round in 0.. {
        let claim = json!({"streams": ["high", "low"], "max_jobs": MAX_JOBS, "max_wait_ms": 0});
        let turn = json!({"worker_id": "w-1", "claim": claim});
        let answer = server.worker("exchange", turn).await.ok();
        let streams: Vec<_> = answer["jobs"].as_array().unwrap().iter().map(|job| job["stream"] == "high").collect();
        if streams.is_empty() {
            break;
        }
        let of_high = streams.iter().filter(|is_high| **is_high).count();
        assert_eq!(of_high, ready.min(MAX_JOBS), "round {round}");
        assert!(streams.is_sorted_by(|a, b| a >= b), "high before low within a batch");
        ready -= of_high;
        high += of_high;
        low += streams.len() - of_high;
        if round % 5 == 0 && round < 30 {
            submit(&server, "high", 30).await;
            ready += 30;
        }
    }
    assert_eq!((high, low), (1_000 + 6 * 30, 1_000));
}
