//! Time in which no control plane could answer does not count against the holders of leases.

use serde_json::{Value, json};
use tenure_testkit::wait_until;

use crate::cases;
use crate::harness::{SOON, Server, later};

const TEN_MINUTES: i64 = 600_000;

cases!(
    Server,
    on_sqlite: [
        a_holder_that_comes_back_within_the_grace_keeps_its_job,
        what_nobody_renews_expires_when_the_grace_ends,
        a_timeout_and_a_cancel_wait_for_the_grace_too,
        a_deadline_does_not,
    ],
    on_both_stores: [
        an_outage_expires_no_lease_before_the_grace_ends,
        an_outage_of_the_store_alone_is_one_too,
        a_job_claimed_after_the_outage_has_no_grace,
        a_short_pause_is_no_outage,
    ],
);

async fn claimed(server: &Server, n: usize) -> Vec<Value> {
    let mut jobs = Vec::new();
    for _ in 0..n {
        server.submit(json!({"lease_ttl_seconds": 60, "retry": {"initial_backoff_ms": 0}})).await;
        jobs.push(server.claim("w-1").await);
    }
    jobs
}

/// Background work has looked at everything since the clock was moved last.
async fn settled(server: &Server) {
    // It looks each time the clock moves, or after a second: a task that is due now is promoted by the same rounds.
    let probe = server.submit(json!({"queue": "probe", "lease_ttl_seconds": 3_600, "delay_ms": 1})).await;
    server.until(&probe, "Ready").await;
    server.advance(1);
    let probe = server.submit(json!({"queue": "probe", "delay_ms": 1})).await;
    server.until(&probe, "Ready").await;
}

async fn all_run(server: &Server, jobs: &[Value]) {
    for job in jobs {
        assert_eq!(server.state(job["job_id"].as_str().unwrap()).await, "Running");
    }
}

async fn an_outage_expires_no_lease_before_the_grace_ends(server: Server) {
    let jobs = claimed(&server, 3).await;
    let server = server.outage(TEN_MINUTES).await;
    settled(&server).await;
    all_run(&server, &jobs).await;
    // Nothing is granted a second time either, however it is asked for.
    assert!(server.claim("w-2").await.is_null());
    for job in &jobs {
        let by_id = json!({"worker_id": "w-2", "job_id": job["job_id"]});
        assert_eq!(server.worker("claim", by_id).await.ok()["reason"], "already_running");
    }
    // Until the last moment of the grace, which is the longest lease from the restart on.
    server.advance(50_000);
    settled(&server).await;
    all_run(&server, &jobs).await;
    assert!(server.claim("w-2").await.is_null());
}

async fn an_outage_of_the_store_alone_is_one_too(server: Server) {
    // The same process all the while: the reaper wakes up as early as whoever writes the grace.
    for _ in 0..5 {
        let jobs = claimed(&server, 2).await;
        server.clock.advance_through_outage(TEN_MINUTES);
        settled(&server).await;
        all_run(&server, &jobs).await;
        for job in &jobs {
            server.complete("w-1", job, json!({})).await.ok();
            let id = job["job_id"].as_str().unwrap();
            assert_eq!(server.attempts(id).await[0]["reason"], "COMPLETED");
        }
    }
}

async fn a_holder_that_comes_back_within_the_grace_keeps_its_job(server: Server) {
    let jobs = claimed(&server, 2).await;
    let server = server.outage(TEN_MINUTES).await;
    let beat = server.heartbeat("w-1", &jobs[0]).await.ok();
    assert_eq!(beat["ok"], true);
    // From here on it lives by its own heartbeats.
    for _ in 0..4 {
        server.advance(30_000);
        assert_eq!(server.heartbeat("w-1", &jobs[0]).await.ok()["ok"], true);
    }
    all_run(&server, &jobs[..1]).await;
    assert_eq!(server.complete("w-1", &jobs[0], json!({})).await.ok(), json!({"ok": true, "ack": true}));
    // The other one is long gone.
    server.until(jobs[1]["job_id"].as_str().unwrap(), "Ready").await;
    server.heartbeat("w-1", &jobs[1]).await.refused(409);
}

async fn what_nobody_renews_expires_when_the_grace_ends(server: Server) {
    let jobs = claimed(&server, 2).await;
    let server = server.outage(TEN_MINUTES).await;
    server.advance(60_000);
    for job in &jobs {
        let id = job["job_id"].as_str().unwrap();
        server.until(id, "Ready").await;
        assert_eq!(server.attempts(id).await[0]["reason"], "HEARTBEAT_TIMEOUT");
    }
    let again = server.claim("w-2").await;
    assert_eq!(again["attempt"], 2);
    server.complete("w-1", &jobs[0], json!({})).await.refused(409);
}

async fn a_timeout_and_a_cancel_wait_for_the_grace_too(server: Server) {
    let timed = server.submit(json!({"timeout_seconds": 120, "retry": {"initial_backoff_ms": 0}})).await;
    server.claim("w-1").await;
    let cancelled = server.submit(json!({})).await;
    let job = server.claim("w-1").await;
    server.post(&format!("/api/v1/tasks/{cancelled}/cancel"), json!({})).await.ok();
    let server = server.outage(TEN_MINUTES).await;
    settled(&server).await;
    assert_eq!((server.state(&timed).await, server.state(&cancelled).await), ("Running".into(), "Running".into()));
    // The worker learns of the cancel now, and may still succeed.
    assert_eq!(server.heartbeat("w-1", &job).await.ok()["should_cancel"], true);
    server.complete("w-1", &job, json!({})).await.ok();
    server.advance(60_000);
    let attempt = wait_until("the time-out", SOON, async || {
        Some(server.attempts(&timed).await[0].clone()).filter(|attempt| attempt["state"] != "Running")
    })
    .await;
    assert_eq!(attempt["reason"], "TIMEOUT");
}

async fn a_job_claimed_after_the_outage_has_no_grace(server: Server) {
    // All leases are long enough for a slow machine.
    server.submit(json!({"lease_ttl_seconds": 600})).await;
    let old = [server.claim("w-1").await];
    let server = server.outage(TEN_MINUTES).await;
    server.advance(1);
    server.submit(json!({"lease_ttl_seconds": 60, "retry": {"initial_backoff_ms": 0}})).await;
    let new = server.claim("w-1").await;
    let id = new["job_id"].as_str().unwrap();
    server.advance(60_000);
    server.until(id, "Ready").await;
    assert_eq!(server.attempts(id).await[0]["reason"], "HEARTBEAT_TIMEOUT");
    // Another worker gets this one, and not the one from before.
    assert_eq!(server.claim("w-2").await["job_id"], id);
    assert!(server.claim("w-2").await.is_null());
    all_run(&server, &old).await;
}

async fn a_deadline_does_not(server: Server) {
    let deadline = server.engine.now().await.unwrap().plus(120_000).to_string();
    let id = server.submit(json!({"deadline": deadline})).await;
    server.claim("w-1").await;
    let server = server.outage(TEN_MINUTES).await;
    let task = server.until(&id, "Failed").await;
    assert_eq!(task["reason"], "deadline_exceeded");
}

async fn a_short_pause_is_no_outage(server: Server) {
    server.submit(json!({"lease_ttl_seconds": 1, "retry": later()})).await;
    let job = server.claim("w-1").await;
    server.clock.advance_through_outage(2_000);
    server.until(job["job_id"].as_str().unwrap(), "Scheduled").await;
}
