//! A cancel at each state, and what becomes of it.

use serde_json::{Value, json};

use crate::callback::worker::{Held, Plane, at_once};
use crate::cases;
use crate::harness::{Server, later};

cases!(
    Server,
    on_sqlite: [
        what_has_not_started_is_cancelled_at_once_and_the_reason_arrives,
        after_the_grace_the_attempt_has_failed_and_the_task_is_cancelled,
        a_cancelled_task_of_a_dead_worker_is_never_granted_again,
    ],
    on_both_stores: [a_heartbeat_that_waits_is_answered_when_the_task_is_to_stop, a_running_task_learns_by_heartbeat_and_may_stop_in_peace, ends_within_the_grace],
);

async fn cancel(plane: &Plane, held: &Held, reason: &str) -> Value {
    let path = format!("/api/v1/tasks/{}/cancel", held.grant.task);
    plane.server.post(&path, json!({"reason": reason})).await.ok()
}

async fn what_has_not_started_is_cancelled_at_once_and_the_reason_arrives(server: Server) {
    server.still().await;
    let plane = Plane::new(server).await;
    let dispatched = plane.dispatched(json!({})).await;
    let waiting = plane.dispatched(json!({"retry": later()})).await;
    plane.call(&waiting, "completed", json!({"outcome": "FAILED"})).await.ok();
    let ready = plane.dispatched(at_once(3)).await;
    plane.call(&ready, "completed", json!({"outcome": "FAILED"})).await.ok();
    for (held, completed) in [(&dispatched, false), (&waiting, true), (&ready, true)] {
        assert_eq!(cancel(&plane, held, "grund-äöü").await["state"], "Canceled");
        let refused = plane.call(held, "started", json!({})).await.refused(409);
        assert_eq!((&refused["error"], &refused["state"]), (&json!("task_already_terminal"), &json!("CANCELLED")));
        assert_eq!(refused["cancelReason"], "grund-äöü");
        let attempt = &plane.attempts(held).await[0];
        assert_eq!(attempt["reason"], if completed { "FAILED" } else { "REVOKED" });
        // An attempt that had ended before was not asked to stop.
        let told = if completed { Value::Null } else { json!("grund-äöü") };
        assert_eq!(attempt["callback"]["cancel_reason"], told);
        assert_eq!(plane.task(held).await["cancel_reason"], "grund-äöü");
    }
    assert!(plane.try_dispatch().await.is_none());
}

async fn a_running_task_learns_by_heartbeat_and_may_stop_in_peace(server: Server) {
    let plane = Plane::new(server).await;
    let held = plane.dispatched(json!({})).await;
    plane.started(&held).await;
    assert_eq!(cancel(&plane, &held, "first").await["state"], "Running");
    cancel(&plane, &held, "second").await;
    let beat = plane.call(&held, "heartbeat", json!({})).await.ok();
    assert_eq!((&beat["shouldCancel"], &beat["cancelReason"]), (&json!(true), &json!("first")));
    let end = plane.call(&held, "completed", json!({"outcome": "CANCELLED"})).await.ok();
    assert_eq!((&end["finalState"], &end["disposition"]), (&json!("CANCELLED"), &json!("recorded")));
    let task = plane.task(&held).await;
    assert_eq!((&task["state"], &task["cancel_reason"]), (&json!("Canceled"), &json!("first")));
}

async fn a_heartbeat_that_waits_is_answered_when_the_task_is_to_stop(server: Server) {
    let plane = Plane::new(server).await;
    let held = plane.dispatched(json!({})).await;
    plane.started(&held).await;
    let quiet = plane.call(&held, "heartbeat", json!({"waitMs": 1})).await.ok();
    assert_eq!(quiet["shouldCancel"], false);
    let begun = std::time::Instant::now();
    let (beat, _) =
        tokio::join!(plane.call(&held, "heartbeat", json!({"waitMs": 60_000})), cancel(&plane, &held, "now"));
    let beat = beat.ok();
    assert_eq!((&beat["shouldCancel"], &beat["cancelReason"]), (&json!(true), &json!("now")));
    assert!(begun.elapsed().as_secs() < 30, "{:?}", begun.elapsed());
    assert_eq!(plane.call(&held, "heartbeat", json!({"waitMs": 60_001})).await.refused(422)["field"], "waitMs");
}

async fn ends_within_the_grace(server: Server) {
    let plane = Plane::new(server).await;
    for (outcome, attempt, task) in [
        ("SUCCEEDED", "Succeeded", "Succeeded"),
        ("FAILED", "Failed", "Canceled"),
        ("CANCELLED", "Canceled", "Canceled"),
    ] {
        let held = plane.dispatched(at_once(3)).await;
        plane.started(&held).await;
        cancel(&plane, &held, "stop").await;
        plane.call(&held, "heartbeat", json!({})).await.ok();
        assert_eq!(plane.call(&held, "completed", json!({"outcome": outcome})).await.ok()["finalState"], outcome);
        let shown = plane.task(&held).await;
        let reason = (&shown["cancel_reason"], &shown["cancel_requested"]);
        assert_eq!((&shown["state"], reason), (&json!(task), (&json!("stop"), &json!(true))), "{outcome}");
        assert_eq!(plane.attempts(&held).await[0]["state"], attempt, "{outcome}");
        assert!(plane.try_dispatch().await.is_none(), "{outcome}");
    }
}

async fn after_the_grace_the_attempt_has_failed_and_the_task_is_cancelled(server: Server) {
    server.still().await;
    let plane = Plane::new(server).await;
    let held = plane.dispatched(json!({"cancel_grace_period_ms": 20_000})).await;
    plane.started(&held).await;
    cancel(&plane, &held, "stop").await;
    plane.call(&held, "heartbeat", json!({})).await.ok();
    plane.server.advance(19_000);
    plane.call(&held, "heartbeat", json!({})).await.ok();
    plane.server.advance(1_000);
    plane.call(&held, "heartbeat", json!({})).await.refused(410);
    let attempt = &plane.attempts(&held).await[0];
    assert_eq!((&attempt["state"], &attempt["reason"]), (&json!("Failed"), &json!("CANCEL_TIMEOUT")));
    assert_eq!(plane.task(&held).await["state"], "Canceled");
    assert_eq!(plane.succeeded(&held).await.refused(409)["error"], "task_already_terminal");
}

async fn a_cancelled_task_of_a_dead_worker_is_never_granted_again(server: Server) {
    server.still().await;
    let plane = Plane::new(server).await;
    let held = plane.dispatched(at_once(3)).await;
    plane.started(&held).await;
    cancel(&plane, &held, "stop").await;
    // It never sends another heartbeat: the grace runs from one interval after the request.
    plane.server.advance(60_000);
    tenure_testkit::wait_until("the reaper comes", crate::harness::SOON, async || {
        plane.task(&held).await["state"] == "Canceled"
    })
    .await;
    assert!(plane.try_dispatch().await.is_none());
}
