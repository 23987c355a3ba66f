//! Heartbeats, time-outs, deadlines: receipt time decides.

use serde_json::json;

use crate::callback::worker::{Plane, at_once};
use crate::cases;
use crate::harness::{Server, later};

cases!(
    Server,
    on_sqlite: [
        the_second_attempt_is_not_judged_by_the_heartbeats_of_the_first,
        an_attempt_that_nobody_starts_is_closed,
        the_time_out_of_an_attempt_runs_from_its_start,
        a_deadline_ends_the_task_and_its_retries,
        a_clock_that_is_off_is_counted_and_decides_nothing,
    ],
    on_both_stores: [a_heartbeat_after_the_end_of_the_lease_is_refused_before_any_sweep],
);

async fn a_heartbeat_after_the_end_of_the_lease_is_refused_before_any_sweep(server: Server) {
    server.still().await;
    let plane = Plane::new(server).await;
    let times = json!({"heartbeat_interval_ms": 5_000, "heartbeat_timeout_ms": 10_000, "retry": later()});
    let held = plane.dispatched(times).await;
    plane.started(&held).await;
    plane.server.advance(6_000);
    plane.call(&held, "heartbeat", json!({})).await.ok();
    plane.server.advance(10_000);
    let gone = plane.call(&held, "heartbeat", json!({})).await.refused(410);
    assert_eq!((&gone["error"], &gone["state"]), (&json!("task_expired"), &json!("RETRY_WAIT")));
    assert_eq!(plane.attempts(&held).await[0]["reason"], "HEARTBEAT_TIMEOUT");
}

async fn the_second_attempt_is_not_judged_by_the_heartbeats_of_the_first(server: Server) {
    server.still().await;
    let plane = Plane::new(server).await;
    let first = plane.dispatched(at_once(3)).await;
    plane.call(&first, "heartbeat", json!({})).await.ok();
    plane.server.advance(90_000);
    plane.call(&first, "heartbeat", json!({})).await.refused(410);
    let second = plane.dispatch().await;
    assert!(plane.attempts(&second).await[1].get("last_heartbeat_at").is_none());
    plane.server.advance(200_000);
    plane.started(&second).await;
    plane.server.advance(89_000);
    plane.call(&second, "heartbeat", json!({})).await.ok();
}

async fn an_attempt_that_nobody_starts_is_closed(server: Server) {
    server.still().await;
    let plane = Plane::new(server).await;
    let held = plane.dispatched(at_once(2)).await;
    plane.server.advance(300_000);
    let late = plane.call(&held, "started", json!({})).await.refused(409);
    assert_eq!((&late["error"], &late["state"]), (&json!("attempt_already_completed"), &json!("READY")));
    assert_eq!(plane.attempts(&held).await[0]["reason"], "DISPATCH_FAILED");
    // Until another attempt is granted its report counts all the same.
    assert_eq!(plane.succeeded(&held).await.ok()["disposition"], "late");
}

async fn the_time_out_of_an_attempt_runs_from_its_start(server: Server) {
    server.still().await;
    let plane = Plane::new(server).await;
    let held = plane.dispatched(json!({"timeout_ms": 30_000})).await;
    plane.server.advance(100_000);
    plane.started(&held).await;
    plane.server.advance(29_000);
    let beat = plane.call(&held, "heartbeat", json!({})).await.ok();
    let ends = |text: &serde_json::Value| tenure_core::Timestamp::parse(text.as_str().unwrap()).unwrap();
    assert!(ends(&beat["leaseExpiresAt"]).since(ends(&beat["serverTime"])) <= 1_000, "{beat}");
    plane.server.advance(1_000);
    plane.call(&held, "heartbeat", json!({})).await.refused(410);
    let attempt = &plane.attempts(&held).await[0];
    assert_eq!(attempt["reason"], "TIMEOUT");
}

async fn a_deadline_ends_the_task_and_its_retries(server: Server) {
    let plane = Plane::new(server).await;
    let at = plane.server.engine.now().await.unwrap().plus(60_000);
    let soon = json!({"deadline": at.to_string(), "retry": {"initial_backoff_ms": 90_000, "jitter": "none"}});
    let held = plane.dispatched(soon).await;
    let end = plane.call(&held, "completed", json!({"outcome": "FAILED"})).await.ok();
    assert_eq!(end["finalState"], "FAILED");
    let task = plane.task(&held).await;
    assert_eq!((&task["state"], &task["reason"]), (&json!("Failed"), &json!("deadline_exceeded")));
}

async fn a_clock_that_is_off_is_counted_and_decides_nothing(server: Server) {
    server.still().await;
    let plane = Plane::new(server).await;
    let held = plane.dispatched(json!({})).await;
    let skew = async || {
        let metrics = plane.server.get("/metrics").await.body.as_str().unwrap().to_owned();
        let line =
            metrics.lines().find(|line| line.starts_with("tenure_worker_clock_skew_total ")).map(ToOwned::to_owned);
        line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
    };
    let before = skew().await;
    plane.call(&held, "started", json!({"startedAt": "2099-01-01T00:00:00Z"})).await.ok();
    plane.call(&held, "heartbeat", json!({"heartbeatAt": "2099-01-01T00:00:00Z"})).await.ok();
    assert_eq!(skew().await, before + 2);
    // A clock that was never set, and the end of all times.
    for at in ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"] {
        plane.call(&held, "heartbeat", json!({"heartbeatAt": at})).await.ok();
    }
    assert_eq!(skew().await, before + 4);
    plane.server.advance(90_000);
    plane.call(&held, "heartbeat", json!({"heartbeatAt": "2099-01-01T00:00:00Z"})).await.refused(410);
    let unset = json!({"outcome": "SUCCEEDED", "completedAt": "0001-01-01T00:00:00Z"});
    assert_eq!(plane.call(&held, "completed", unset).await.ok()["disposition"], "late");
}
