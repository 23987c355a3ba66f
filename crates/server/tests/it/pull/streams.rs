//! Which job a claim gets.

use std::time::Instant;

use serde_json::{Value, json};
use tenure_testkit::wait_until;

use crate::cases;
use crate::harness::{LONGEST_WAIT, SOON, Server};

cases!(
    Server,
    on_sqlite: [
        low_streams_start_promptly_when_the_high_one_is_empty,
        the_order_within_a_stream_is_priority_then_readiness,
        an_empty_list_of_streams_is_refused,
        unknown_and_paused_streams_count_as_empty,
        a_full_stream_lets_the_next_one_have_its_turn,
        grants_rotate_over_the_fairness_key,
    ],
    everywhere: [
        a_claim_over_four_streams_leaves_nothing_behind,
        a_ready_high_stream_always_wins,
        a_paused_stream_wakes_its_waiters_when_it_is_resumed,
    ],
);

async fn claim(server: &Server, streams: &[&str], wait_ms: u64) -> Value {
    let claim = json!({"worker_id": "w-1", "streams": streams, "max_wait_ms": wait_ms});
    server.worker("claim", claim).await.ok()
}

async fn submit(server: &Server, queue: &str, n: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for _ in 0..n {
        ids.push(server.submit(json!({"queue": queue})).await);
    }
    ids
}

async fn a_claim_over_four_streams_leaves_nothing_behind(server: Server) {
    for queue in ["d", "b", "c", "a"] {
        submit(&server, queue, 2).await;
    }
    let mut order = Vec::new();
    for _ in 0..8 {
        let job = claim(&server, &["a", "b", "c", "d"], 0).await;
        assert_eq!(job["claimed"], true);
        order.push(job["stream"].as_str().unwrap().to_owned());
    }
    assert_eq!(order, ["a", "a", "b", "b", "c", "c", "d", "d"]);
    assert_eq!(claim(&server, &["a", "b", "c", "d"], 0).await, json!({"claimed": false}));
    for queue in ["a", "b", "c", "d"] {
        let counts = &server.queue(queue).await["counts"];
        assert_eq!((&counts["ready"], &counts["running"]), (&json!(0), &json!(2)));
    }
}

async fn a_ready_high_stream_always_wins(server: Server) {
    submit(&server, "low", 5).await;
    for _ in 0..5 {
        let high = submit(&server, "high", 1).await;
        let job = claim(&server, &["high", "low"], 0).await;
        assert_eq!((&job["stream"], &job["job_id"]), (&json!("high"), &json!(high[0])));
    }
    // The order is that of the request, not one of the queues' own.
    submit(&server, "high", 1).await;
    assert_eq!(claim(&server, &["low", "high"], 0).await["stream"], "low");
    // A batch takes all of the first before any of the second.
    submit(&server, "high", 2).await;
    let claim = json!({"worker_id": "w-1", "streams": ["high", "low"], "max_wait_ms": 0, "max_jobs": 5});
    let jobs = server.worker("claim", claim).await.ok()["jobs"].as_array().unwrap().clone();
    let streams: Vec<_> = jobs.iter().map(|job| job["stream"].as_str().unwrap()).collect();
    assert_eq!(streams, ["high", "high", "high", "low", "low"]);
}

async fn low_streams_start_promptly_when_the_high_one_is_empty(server: Server) {
    for queue in ["low", "lower", "lowest"] {
        let started = Instant::now();
        let streams = ["high", "low", "lower", "lowest"];
        let (job, id) = tokio::join!(claim(&server, &streams, 60_000), async {
            wait_until("the claim waits", SOON, async || server.engine.claims_waiting() == 1).await;
            server.submit(json!({"queue": queue})).await
        });
        assert_eq!((&job["stream"], &job["job_id"]), (&json!(queue), &json!(id)));
        assert!(started.elapsed() < LONGEST_WAIT, "{queue}");
    }
}

async fn the_order_within_a_stream_is_priority_then_readiness(server: Server) {
    let mut ids = Vec::new();
    for (name, priority, delay_ms) in
        [("late", 5, 20_000), ("early", 5, 10_000), ("now", 5, 0), ("urgent", 0, 15_000), ("idle", 9, 0)]
    {
        let task = json!({"priority": priority, "delay_ms": delay_ms, "payload": {"name": name}});
        ids.push(server.submit(task).await);
    }
    server.advance(20_000);
    for id in &ids {
        server.until(id, "Ready").await;
    }
    let mut order = Vec::new();
    for _ in 0..5 {
        order.push(server.claim("w-1").await["payload"]["name"].as_str().unwrap().to_owned());
    }
    assert_eq!(order, ["urgent", "now", "early", "late", "idle"]);
}

async fn an_empty_list_of_streams_is_refused(server: Server) {
    for body in [json!({"worker_id": "w-1", "streams": []}), json!({"worker_id": "w-1"})] {
        let refused = server.worker("claim", body).await.refused(422);
        assert_eq!((&refused["error"], &refused["field"]), (&json!("invalid_argument"), &json!("streams")));
    }
    let many: Vec<_> = (0..65).map(|n| format!("s-{n}")).collect();
    server.worker("claim", json!({"worker_id": "w-1", "streams": many, "max_wait_ms": 0})).await.refused(422);
    let bad = json!({"worker_id": "w-1", "streams": ["a", "b c"], "max_wait_ms": 0});
    assert_eq!(server.worker("claim", bad).await.refused(422)["field"], "streams[1]");
}

async fn unknown_and_paused_streams_count_as_empty(server: Server) {
    submit(&server, "paused", 1).await;
    let low = submit(&server, "low", 1).await;
    let answer = server.post("/api/v1/queues/paused/pause", json!({})).await.ok();
    assert_eq!(answer, json!({"name": "paused", "paused": true}));
    assert_eq!(claim(&server, &["no-such-queue"], 0).await, json!({"claimed": false}));
    assert_eq!(claim(&server, &["paused"], 0).await, json!({"claimed": false}));
    let job = claim(&server, &["no-such-queue", "paused", "low", "low"], 0).await;
    assert_eq!(job["job_id"], json!(low[0]));
    assert_eq!(claim(&server, &["no-such-queue", "paused", "low"], 0).await["claimed"], false);
    // Asking for a stream does not make it.
    server.get("/api/v1/queues/no-such-queue").await.refused(404);
    // It is claimed by its id neither.
    let ids = server.get("/api/v1/tasks?queue=paused").await.ok();
    let by_id = json!({"worker_id": "w-1", "job_id": ids["items"][0]["task_id"]});
    assert_eq!(server.worker("claim", by_id).await.ok()["reason"], "not_due");
}

async fn a_paused_stream_wakes_its_waiters_when_it_is_resumed(server: Server) {
    let id = submit(&server, "q", 1).await;
    server.post("/api/v1/queues/q/pause", json!({})).await.ok();
    let started = Instant::now();
    let (job, ()) = tokio::join!(claim(&server, &["q"], 60_000), async {
        wait_until("the claim waits", SOON, async || server.engine.claims_waiting() == 1).await;
        server.post("/api/v1/queues/q/resume", json!({})).await.ok();
    });
    assert_eq!(job["job_id"], json!(id[0]));
    assert!(started.elapsed() < LONGEST_WAIT);
}

async fn a_full_stream_lets_the_next_one_have_its_turn(server: Server) {
    server.put("/api/v1/queues/high", json!({"max_running": 1})).await.ok();
    submit(&server, "high", 2).await;
    submit(&server, "low", 1).await;
    let first = claim(&server, &["high", "low"], 0).await;
    assert_eq!(first["stream"], "high");
    assert_eq!(claim(&server, &["high", "low"], 0).await["stream"], "low");
    assert_eq!(claim(&server, &["high", "low"], 0).await["claimed"], false);
    // The slot ends with the attempt, and whoever waits for it gets it.
    let started = Instant::now();
    let (second, ()) = tokio::join!(claim(&server, &["high"], 60_000), async {
        wait_until("the claim waits", SOON, async || server.engine.claims_waiting() == 1).await;
        server.complete("w-1", &first, json!({})).await.ok();
    });
    assert_eq!(second["stream"], "high");
    assert!(started.elapsed() < LONGEST_WAIT);
}

async fn grants_rotate_over_the_fairness_key(server: Server) {
    server.put("/api/v1/queues/q", json!({"fairness_key": "tenant"})).await.ok();
    let mut tasks = Vec::new();
    for (tenant, n) in [("crowd", 300), ("some", 20), ("few", 10)] {
        tasks.extend(vec![json!({"queue": "q", "operator": "op", "tenant": tenant, "payload": tenant}); n]);
    }
    server.post("/api/v1/tasks/batch", json!({"tasks": tasks})).await.ok();
    let mut granted = Vec::new();
    // One by one and in batches alike.
    for max_jobs in [1, 1, 1, 1, 1, 1, 9, 15, 300] {
        let claim = json!({"worker_id": "w-1", "claim": {"streams": ["q"], "max_jobs": max_jobs, "max_wait_ms": 0}});
        for job in server.worker("exchange", claim).await.ok()["jobs"].as_array().unwrap() {
            granted.push(job["payload"].as_str().unwrap().to_owned());
        }
    }
    assert_eq!(granted.len(), 330);
    let among = |tenant: &str, n: usize| granted[..n].iter().filter(|granted| *granted == tenant).count();
    for n in [6, 15, 30] {
        assert_eq!([among("crowd", n), among("some", n), among("few", n)], [n / 3; 3], "first {n}");
    }
    assert_eq!(among("some", 50), 20);
}
