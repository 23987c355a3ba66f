//! The store goes away under the server, and comes back.

use std::time::{Duration, Instant};

use serde_json::json;
use tenure_testkit::{Postgres, wait_until};

use crate::harness::{Home, SOON, Server};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_goes_away_and_comes_back_loses_nothing() {
    let postgres = Postgres::start().await;
    let server = Server::on(Home::Postgres(postgres.database().await)).await;
    let ready = server.submit(json!({"queue": "ready"})).await;
    let held = server.submit(json!({"lease_ttl_seconds": 6})).await;
    let job = server.claim("w-1").await;
    assert_eq!(job["job_id"], json!(held));
    let done = server.submit(json!({})).await;
    let other = server.claim("w-1").await;
    server.complete("w-1", &other, json!({"rows": 1})).await.ok();

    postgres.kill();
    let gone = Instant::now();
    // As long as it is gone every call gets the documented answer, and soon.
    let mut tries = 0;
    while gone.elapsed() < Duration::from_secs(7) {
        let asked = Instant::now();
        for answer in [
            server.get(&format!("/api/v1/tasks/{ready}")).await,
            server.post("/api/v1/tasks", json!({"queue": "ready", "operator": "op", "idempotency_key": "k"})).await,
        ] {
            assert_eq!(answer.status.as_u16(), 503, "{}", answer.body);
            assert_eq!(
                (&answer.body["error"], &answer.body["code"]),
                (&json!("store_unavailable"), &json!("UNAVAILABLE"))
            );
            assert_eq!(answer.header("Retry-After"), "1");
        }
        let claim = json!({"worker_id": "w-1", "streams": ["q"], "max_wait_ms": 1_000});
        for answer in [
            server.worker("claim", claim).await,
            server.heartbeat("w-1", &job).await,
            server.complete("w-1", &job, json!({})).await,
        ] {
            assert_eq!(answer.status.as_u16(), 503, "{}", answer.body);
            assert_eq!((&answer.body["ok"], &answer.body["error"]), (&json!(false), &json!("store_unavailable")));
            assert_eq!((answer.header("Retry-After"), answer.header("X-Tenure-Contract")), ("1", "pull/1"));
        }
        // It is alive, and says that it cannot serve.
        assert_eq!(server.get("/api/v1/live").await.status.as_u16(), 200);
        for (path, status) in [("/api/v1/ready", "not_ready"), ("/api/v1/health", "unavailable")] {
            let answer = server.get(path).await;
            assert_eq!((answer.status.as_u16(), &answer.body["status"]), (503, &json!(status)));
        }
        tries += 1;
        assert!(asked.elapsed() < SOON, "{:?}", asked.elapsed());
        let round = Instant::now();
        wait_until("a moment", SOON, async || round.elapsed() > Duration::from_millis(250)).await;
    }
    assert!(tries > 1);

    postgres.start_again().await;
    let back = Instant::now();
    wait_until("it serves again", SOON, async || server.get("/api/v1/ready").await.status.is_success()).await;
    // The lease has run out while nobody could renew it. It is judged by the grace: the holder keeps its job.
    assert_eq!(server.heartbeat("w-1", &job).await.ok()["ok"], true);
    assert!(server.claim("w-2").await.is_null());
    assert_eq!(server.complete("w-1", &job, json!({})).await.ok(), json!({"ok": true, "ack": true}));
    assert_eq!(server.attempts(&held).await.len(), 1);
    // All that was accepted is there, and what was refused is not, until it is sent again.
    assert_eq!(server.task(&done).await["result"], json!({"rows": 1}));
    assert_eq!(server.complete("w-1", &other, json!({"rows": 1})).await.ok(), json!({"ok": true, "ack": true}));
    assert_eq!(server.state(&ready).await, "Ready");
    assert_eq!(server.queue("ready").await["counts"]["ready"], 1);
    server.post("/api/v1/tasks", json!({"queue": "ready", "operator": "op", "idempotency_key": "k"})).await.ok();
    assert_eq!(server.queue("ready").await["counts"]["ready"], 2);
    assert!(back.elapsed() < SOON, "{:?}", back.elapsed());
    // A claim that waits is served as before.
    let claim = json!({"worker_id": "w-1", "streams": ["q"], "max_wait_ms": 30_000});
    let (claimed, id) = tokio::join!(server.worker("claim", claim), server.submit(json!({})));
    assert_eq!(claimed.ok()["job_id"], json!(id));
    drop(server);
}
