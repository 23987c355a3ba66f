//! Leases that nobody renews.

use serde_json::json;
use tenure_core::TaskId;
use tenure_testkit::wait_until;

use crate::cases;
use crate::harness::{SOON, Server, between, later};

cases!(
    Server,
    on_sqlite: [a_lease_that_is_renewed_does_not_expire, an_expired_lease_is_never_extended_swept_or_not],
    everywhere: [
        the_job_of_a_killed_worker_is_granted_again,
        a_poisoned_row_does_not_stop_the_reaper,
        hundreds_of_leases_that_expire_at_once_are_all_handled,
    ],
);

async fn the_job_of_a_killed_worker_is_granted_again(server: Server) {
    server.still().await;
    let retry = json!({"initial_backoff_ms": 2_000, "jitter": "none"});
    let id = server.submit(json!({"lease_ttl_seconds": 5, "retry": retry})).await;
    let first = server.claim("w-1").await;
    // A moment before the end of the lease nothing has happened.
    server.advance(4_000);
    assert!(server.claim("w-2").await.is_null());
    assert_eq!(server.state(&id).await, "Running");
    server.advance(1_000);
    let task = server.until(&id, "Scheduled").await;
    let attempts = server.attempts(&id).await;
    assert_eq!((&attempts[0]["state"], &attempts[0]["reason"]), (&json!("Failed"), &json!("HEARTBEAT_TIMEOUT")));
    // The lease, at most some seconds for the sweep, and then exactly the backoff.
    let held = between(&attempts[0]["granted_at"], &attempts[0]["ended_at"]);
    assert!((5_000..15_000).contains(&held), "{held}");
    assert_eq!(between(&attempts[0]["ended_at"], &task["run_at"]), 2_000);
    assert!(server.claim("w-2").await.is_null());
    server.advance(2_000);
    let second = wait_until("the job is granted again", SOON, async || {
        Some(server.claim("w-2").await).filter(|job| !job.is_null())
    })
    .await;
    assert_eq!((&second["job_id"], &second["attempt"]), (&first["job_id"], &json!(2)));
    assert_ne!(second["lease_token"], first["lease_token"]);
    assert_ne!(second["attempt_id"], first["attempt_id"]);
}

async fn a_poisoned_row_does_not_stop_the_reaper(server: Server) {
    server.still().await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(server.submit(json!({"lease_ttl_seconds": 5, "retry": later()})).await);
    }
    for _ in 0..5 {
        assert!(!server.claim("w-1").await.is_null());
    }
    let seq = |id: &str| TaskId::parse(id).unwrap().seq().0;
    // The first cannot be read, the second cannot be written: its place behind the expiry refuses it.
    let (unreadable, unwritable) = (seq(&ids[0]), seq(&ids[1]));
    server.home.execute(&format!("UPDATE running SET carry = '{{broken' WHERE seq = {unreadable}")).await;
    let refuse = if server.home.is_sqlite() {
        format!(
            "CREATE TRIGGER poison BEFORE INSERT ON scheduled WHEN new.seq = {unwritable}
             BEGIN SELECT raise(ABORT, 'poisoned'); END"
        )
    } else {
        format!("ALTER TABLE scheduled ADD CHECK (seq <> {unwritable})")
    };
    server.home.execute(&refuse).await;
    server.advance(6_000);
    for id in &ids[2..] {
        server.until(id, "Scheduled").await;
    }
    // The reaper goes on: what expires later is handled too.
    let later = server.submit(json!({"lease_ttl_seconds": 5, "queue": "later", "retry": later()})).await;
    let claim = json!({"worker_id": "w-1", "streams": ["later"], "max_wait_ms": 0});
    assert_eq!(server.worker("claim", claim).await.ok()["claimed"], true);
    server.advance(6_000);
    server.until(&later, "Scheduled").await;
    // The poisoned ones are still there, not lost.
    assert_eq!(server.state(&ids[1]).await, "Running");
    assert!(server.get("/metrics").await.ok().as_str().unwrap().contains("tenure_reaper_skipped_total"));
}

async fn hundreds_of_leases_that_expire_at_once_are_all_handled(server: Server) {
    let tasks = vec![json!({"queue": "q", "operator": "op", "lease_ttl_seconds": 5}); 500];
    assert_eq!(server.post("/api/v1/tasks/batch", json!({"tasks": tasks})).await.ok()["created"], 500);
    let claim = json!({"worker_id": "w-1", "claim": {"streams": ["q"], "max_jobs": 500, "max_wait_ms": 0}});
    assert_eq!(server.worker("exchange", claim).await.ok()["jobs"].as_array().unwrap().len(), 500);
    assert_eq!(server.queue("q").await["counts"]["running"], 500);
    server.advance(5_000);
    let counts = wait_until("none runs", SOON, async || {
        Some(server.queue("q").await["counts"].clone()).filter(|counts| counts["running"] == 0)
    })
    .await;
    let waiting = counts["scheduled"].as_u64().unwrap() + counts["ready"].as_u64().unwrap();
    assert_eq!(waiting, 500);
    // Each gets a second attempt, and only one.
    server.advance(300_000);
    let mut granted = std::collections::HashSet::new();
    wait_until("all are granted again", SOON, async || {
        let claim = json!({"worker_id": "w-2", "claim": {"streams": ["q"], "max_jobs": 500, "max_wait_ms": 0}});
        for job in server.worker("exchange", claim).await.ok()["jobs"].as_array().unwrap() {
            assert_eq!(job["attempt"], 2);
            assert!(granted.insert(job["job_id"].to_string()));
        }
        granted.len() == 500
    })
    .await;
}

async fn a_lease_that_is_renewed_does_not_expire(server: Server) {
    let id = server.submit(json!({"lease_ttl_seconds": 30})).await;
    let job = server.claim("w-1").await;
    for _ in 0..5 {
        server.advance(10_000);
        assert_eq!(server.heartbeat("w-1", &job).await.ok()["ok"], true);
    }
    assert_eq!(server.state(&id).await, "Running");
    assert_eq!(server.complete("w-1", &job, json!({})).await.ok()["ok"], true);
}

async fn an_expired_lease_is_never_extended_swept_or_not(server: Server) {
    server.still().await;
    let id = server.submit(json!({"lease_ttl_seconds": 30, "retry": later()})).await;
    let job = server.claim("w-1").await;
    // The heartbeat races with the reaper: the answer is the same whoever is first.
    server.advance(30_000);
    let refused = server.heartbeat("w-1", &job).await.refused(409);
    assert_eq!((&refused["error"], &refused["status"]), (&json!("lease_expired"), &json!("QUEUED")));
    assert_eq!(refused["ack"], true);
    server.until(&id, "Scheduled").await;
    let refused = server.heartbeat("w-1", &job).await.refused(409);
    assert_eq!(refused["error"], "lease_expired");
}
