//! What is refused when a task is submitted, because its attempts could not be kept.

use serde_json::{Value, json};
use tenure_core::queue::Push;

use crate::callback::worker::Plane;
use crate::cases;
use crate::harness::{Server, merge};

cases!(
    Server,
    on_sqlite: [
        a_time_out_below_twice_the_interval_is_refused,
        tokens_that_cannot_cover_their_attempt_are_refused,
        a_queue_that_pushes_is_not_claimed_from,
    ],
    on_both_stores: [what_the_envelope_says_is_kept],
);

async fn submit(plane: &Plane, extra: Value) -> crate::harness::Answer {
    let mut task = json!({"queue": "q", "operator": "op"});
    merge(&mut task, extra);
    plane.server.post("/api/v1/tasks", task).await
}

async fn a_time_out_below_twice_the_interval_is_refused(server: Server) {
    let plane = Plane::new(server).await;
    for (extra, fine) in [
        (json!({"heartbeat_interval_ms": 10_000, "heartbeat_timeout_ms": 20_000}), true),
        (json!({"heartbeat_interval_ms": 10_000, "heartbeat_timeout_ms": 19_999}), false),
        (json!({"heartbeat_interval_ms": 45_000}), true),
        (json!({"heartbeat_interval_ms": 45_001}), false),
        (json!({"heartbeat_timeout_ms": 60_000}), true),
        (json!({"heartbeat_timeout_ms": 59_999}), false),
        (json!({"heartbeat_timeout_ms": 60_000, "lease_ttl_seconds": 60}), false),
        (json!({"heartbeat_timeout_ms": 999}), false),
    ] {
        let answer = submit(&plane, extra.clone()).await;
        if fine {
            answer.ok();
        } else {
            assert_eq!(answer.refused(422)["field"], "heartbeat_timeout_ms", "{extra}");
        }
    }
}

async fn tokens_that_cannot_cover_their_attempt_are_refused(server: Server) {
    let plane = Plane::new(server).await;
    // Default: 3600 s of run, 300 s of dispatch, 30 s of grace.
    for (extra, fine) in [
        (json!({}), true),
        (json!({"token_ttl_seconds": 3930}), true),
        (json!({"token_ttl_seconds": 3929}), false),
        (json!({"timeout_ms": 6_870_000}), true),
        (json!({"timeout_ms": 6_870_001}), false),
        (json!({"timeout_ms": 60_000, "token_ttl_seconds": 390}), true),
        (json!({"timeout_ms": 60_000, "token_ttl_seconds": 389}), false),
    ] {
        let answer = submit(&plane, extra.clone()).await;
        if fine {
            answer.ok();
        } else {
            let refused = answer.refused(422);
            assert_eq!(refused["error"], "token_ttl_too_short", "{extra}");
            assert!(refused["message"].as_str().unwrap().contains(" s"), "{refused}");
        }
    }
    let refused = submit(&plane, json!({"token_ttl_seconds": 100})).await.refused(422);
    assert_eq!(refused["field"], "token_ttl_seconds");
    let batch = json!({"tasks": [{"queue": "q", "operator": "op"}, {"queue": "q", "operator": "op", "token_ttl_seconds": 100}]});
    let in_a_batch = plane.server.post("/api/v1/tasks/batch", batch).await.refused(422);
    assert_eq!(in_a_batch["field"], "tasks[1].token_ttl_seconds");
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("3930 s") && message.contains("100 s"), "{message}");
    let at = plane.server.engine.now().await.unwrap().plus(60_000);
    submit(&plane, json!({"deadline": at.to_string(), "token_ttl_seconds": 390})).await.ok();
    submit(&plane, json!({"token_ttl_seconds": 7201})).await.refused(422);
    plane.push(Push { dispatch_timeout_ms: 1_000, ..Push::to("https://worker.example/d".into()) }).await;
    submit(&plane, json!({"timeout_ms": 60_000, "token_ttl_seconds": 91})).await.ok();
    // Queues that are claimed from have no tokens to run out.
    let long = json!({"queue": "pulled", "operator": "op", "timeout_ms": 86_400_000});
    plane.server.post("/api/v1/tasks", long).await.ok();
}

async fn what_the_envelope_says_is_kept(server: Server) {
    let plane = Plane::new(server).await;
    let extra = json!({"asset_id": "raw.events", "token_ttl_seconds": 7000,
        "resources": {"memory_bytes": 1_073_741_824, "cpu_millicores": 250}});
    let held = plane.dispatched(extra).await;
    let envelope = held.grant.body.as_ref().unwrap().envelope.clone().unwrap();
    assert_eq!(envelope.asset_id.as_deref(), Some("raw.events"));
    assert_eq!((envelope.memory_bytes, envelope.cpu_millicores), (Some(1_073_741_824), Some(250)));
    assert_eq!(envelope.token_ttl_ms, Some(7_000_000));
    for (extra, field) in [
        (json!({"asset_id": ""}), "asset_id"),
        (json!({"resources": {"memory_bytes": 0}}), "resources.memory_bytes"),
        (json!({"resources": {"cpu_millicores": -5}}), "resources.cpu_millicores"),
    ] {
        assert_eq!(submit(&plane, extra).await.refused(422)["field"], field);
    }
}

async fn a_queue_that_pushes_is_not_claimed_from(server: Server) {
    let plane = Plane::new(server).await;
    plane.server.submit(json!({})).await;
    assert_eq!(plane.server.claim("w").await, Value::Null);
    assert!(plane.try_dispatch().await.is_some());
}
