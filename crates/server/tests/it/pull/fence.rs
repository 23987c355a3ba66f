//! The fence grows with every grant and guards what lies outside.

use serde_json::{Value, json};

use crate::cases;
use crate::harness::{Server, fatal, retryable};

cases!(
    Server,
    on_sqlite: [a_guarded_write_of_the_old_holder_fails, tokens_and_attempt_ids_are_fresh_with_every_grant],
    everywhere: [the_fence_grows_over_expiry_retry_and_redrive],
);

/// One task through every way of coming back, with the grant of each round.
async fn rounds(server: &Server) -> Vec<Value> {
    let retry = json!({"initial_backoff_ms": 0});
    let id = server.submit(json!({"lease_ttl_seconds": 5, "max_attempts": 3, "retry": retry})).await;
    let mut grants = vec![server.claim("w-1").await];
    // Expiry.
    server.advance(5_000);
    server.until(&id, "Ready").await;
    grants.push(server.claim("w-1").await);
    // A reported failure.
    server.fail("w-1", &grants[1], retryable()).await.ok();
    grants.push(server.claim("w-1").await);
    // The dead letters and a redrive.
    server.fail("w-1", &grants[2], fatal()).await.ok();
    server.post("/api/v1/dead-letters/redrive", json!({"filter": {"task_ids": [id]}})).await.ok();
    server.until(&id, "Ready").await;
    grants.push(server.claim("w-1").await);
    // A person's retry.
    server.fail("w-1", &grants[3], fatal()).await.ok();
    server.post(&format!("/api/v1/tasks/{id}/retry"), json!({})).await.ok();
    grants.push(server.claim("w-1").await);
    grants
}

async fn the_fence_grows_over_expiry_retry_and_redrive(server: Server) {
    let grants = rounds(&server).await;
    let fences: Vec<u64> = grants.iter().map(|job| job["fence"].as_u64().unwrap()).collect();
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
    assert!(fences.iter().all(|fence| *fence < 1 << 53));
    let attempts: Vec<u64> = grants.iter().map(|job| job["attempt"].as_u64().unwrap()).collect();
    assert_eq!(attempts, [1, 2, 3, 4, 5]);
    let id = grants[0]["job_id"].as_str().unwrap();
    let told: Vec<u64> = server.attempts(id).await.iter().map(|attempt| attempt["fence"].as_u64().unwrap()).collect();
    assert_eq!(told, fences);
    let server = server.restart().await;
    assert_eq!(server.task(id).await["fence"], json!(fences[4]));
}

async fn a_guarded_write_of_the_old_holder_fails(server: Server) {
    let grants = rounds(&server).await;
    let outside = rusqlite::Connection::open_in_memory().unwrap();
    outside
        .execute_batch("CREATE TABLE report (value TEXT, fence INTEGER); INSERT INTO report VALUES ('', 0)")
        .unwrap();
    let write = |job: &Value, value: &str| {
        let fence = job["fence"].as_i64().unwrap();
        let guarded = "UPDATE report SET value = ?1, fence = ?2 WHERE fence < ?2";
        outside.execute(guarded, rusqlite::params![value, fence]).unwrap()
    };
    assert_eq!(write(&grants[0], "first"), 1);
    for pair in grants.windows(2) {
        let [old, new] = pair else { unreachable!() };
        assert_eq!(write(new, "new"), 1);
        assert_eq!(write(old, "old"), 0);
    }
    let value: String = outside.query_row("SELECT value FROM report", [], |row| row.get(0)).unwrap();
    assert_eq!(value, "new");
}

async fn tokens_and_attempt_ids_are_fresh_with_every_grant(server: Server) {
    let grants = rounds(&server).await;
    for field in ["lease_token", "attempt_id"] {
        let mut values: Vec<_> = grants.iter().map(|job| job[field].as_str().unwrap()).collect();
        values.sort_unstable();
        values.dedup();
        assert_eq!(values.len(), grants.len(), "{field}");
    }
    // The messages too: each enqueue has a new one.
    let mut messages: Vec<_> = grants.iter().map(|job| job["message_id"].as_str().unwrap()).collect();
    messages.sort_unstable();
    messages.dedup();
    assert_eq!(messages.len(), grants.len());
}
