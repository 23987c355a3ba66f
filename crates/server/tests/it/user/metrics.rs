//! Figures for Prometheus: what they say of queues and workers, and in which form.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::cases;
use crate::harness::{Server, fatal};

cases!(
    Server,
    on_sqlite: [
        every_figure_is_described_and_durations_are_histograms,
        workers_and_their_slots_are_counted,
    ],
    on_both_stores: [waits_runs_and_ends_are_counted_by_queue],
);

const QUEUE: &str = "figures";

async fn text(server: &Server) -> String {
    server.get("/metrics").await.ok().as_str().unwrap().to_owned()
}

/// The value of a series, written as it is in the text.
fn value(text: &str, series: &str) -> f64 {
    let found = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("no {series} in\n{text}")).parse().unwrap()
}

async fn claim(server: &Server, worker: &str, queue: &str) -> Value {
    let about = json!({"slots": 4, "operators": ["op"]});
    let claim = json!({"worker_id": worker, "streams": [queue], "max_wait_ms": 0, "worker": about});
    server.worker("claim", claim).await.ok()
}

async fn waits_runs_and_ends_are_counted_by_queue(server: Server) {
    // The recorder is shared by all tests of a process.
    let queue = &format!("figures-{:x}", tenure_engine::random_bits());
    for _ in 0..3 {
        server.submit(json!({"queue": queue, "max_attempts": 1})).await;
    }
    server.advance(7_000);
    let of = |figure: &str| format!("{figure}{{queue=\"{queue}\"}}");
    assert!(value(&text(&server).await, &of("tenure_queue_oldest_ready_seconds")) >= 7.0);
    let jobs =
        [claim(&server, "w-1", queue).await, claim(&server, "w-1", queue).await, claim(&server, "w-1", queue).await];
    server.advance(20_000);
    server.complete("w-1", &jobs[0], json!({})).await.ok();
    server.fail("w-1", &jobs[1], fatal()).await.ok();
    server
        .post(&format!("/api/v1/tasks/{}/cancel", jobs[2]["job_id"].as_str().unwrap()), json!({"mode": "immediate"}))
        .await
        .ok();
    let text = text(&server).await;
    assert!(value(&text, &of("tenure_queue_oldest_ready_seconds")) < 7.0, "none is ready");
    for (outcome, count) in [("succeeded", 1.0), ("failed", 1.0), ("canceled", 1.0)] {
        let series = format!("tenure_attempts_total{{queue=\"{queue}\",outcome=\"{outcome}\"}}");
        assert!((value(&text, &series) - count).abs() < f64::EPSILON, "{outcome}");
    }
    for (figure, least) in [("tenure_task_wait_seconds", 7.0), ("tenure_attempt_seconds", 20.0)] {
        assert!((value(&text, &of(&format!("{figure}_count"))) - 3.0).abs() < f64::EPSILON, "{figure}");
        assert!(value(&text, &of(&format!("{figure}_sum"))) >= 3.0 * least, "{figure}");
        // Buckets add up, so that those of several control planes do.
        let start = format!("{figure}_bucket{{queue=\"{queue}\",le=\"");
        let buckets: Vec<f64> = text
            .lines()
            .filter(|line| line.starts_with(&start))
            .map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
            .collect();
        assert!(buckets.len() > 5 && buckets.is_sorted(), "{figure}: {buckets:?}");
        assert!(buckets[0] < 1.0 && (buckets.last().unwrap() - 3.0).abs() < f64::EPSILON, "{figure}: {buckets:?}");
    }
}

async fn every_figure_is_described_and_durations_are_histograms(server: Server) {
    server.submit(json!({"queue": QUEUE})).await;
    let job = claim(&server, "w-1", QUEUE).await;
    server.complete("w-1", &job, json!({})).await.ok();
    let text = text(&server).await;
    let words = |start: &str| -> BTreeMap<&str, &str> {
        text.lines().filter_map(|line| line.strip_prefix(start)?.split_once(' ')).collect()
    };
    let (help, kinds) = (words("# HELP "), words("# TYPE "));
    for (name, kind) in &kinds {
        let described = help.get(name).unwrap_or_else(|| panic!("{name} has no HELP"));
        assert!(!described.starts_with("See "), "{name} has no text of its own");
        assert!(["counter", "gauge", "histogram"].contains(kind), "{name} is a {kind}");
        assert_eq!(text.matches(&format!("# TYPE {name} ")).count(), 1, "{name} is described once");
    }
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        assert!(kinds.contains_key(name) || family.is_some_and(|family| kinds.contains_key(family)), "{line}");
        assert!(!line.contains("quantile="), "{line}");
    }
    let version = env!("CARGO_PKG_VERSION");
    assert!((value(&text, &format!("tenure_build_info{{version=\"{version}\"}}")) - 1.0).abs() < f64::EPSILON);
    for name in
        ["process_cpu_seconds_total", "process_resident_memory_bytes", "process_start_time_seconds", "process_open_fds"]
    {
        assert!(value(&text, name) > 0.0, "{name}");
    }
    let timed: BTreeSet<&str> = kinds.iter().filter(|(_, kind)| **kind == "histogram").map(|(name, _)| *name).collect();
    for name in
        ["tenure_http_request_seconds", "tenure_batch_seconds", "tenure_task_wait_seconds", "tenure_attempt_seconds"]
    {
        assert!(timed.contains(name), "{name} is not a histogram: {timed:?}");
    }
}

async fn workers_and_their_slots_are_counted(server: Server) {
    server.submit(json!({"queue": QUEUE})).await;
    claim(&server, "w-1", QUEUE).await;
    claim(&server, "w-2", QUEUE).await;
    let counts = async || {
        let text = text(&server).await;
        let of = |status: &str| value(&text, &format!("tenure_task_workers{{status=\"{status}\"}}"));
        let rest = ["tenure_task_worker_slots", "tenure_task_worker_held"].map(|name| value(&text, name));
        [of("online"), of("draining"), of("offline"), rest[0], rest[1]].map(|figure| figure as i64)
    };
    tenure_testkit::wait_until("both are known", crate::harness::SOON, async || counts().await == [2, 0, 0, 8, 1])
        .await;
    server.post("/api/v1/workers/w-2/drain", json!({})).await.ok();
    assert_eq!(counts().await, [1, 1, 0, 8, 1]);
    server.advance(121_000);
    assert_eq!(counts().await[..4], [0, 0, 2, 0]);
}
