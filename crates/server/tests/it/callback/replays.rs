//! Reports that come again, too late, or from an attempt that no longer counts.

use serde_json::{Value, json};

use crate::callback::worker::{Held, Plane, at_once};
use crate::cases;
use crate::harness::{Server, later};

cases!(
    Server,
    on_sqlite: [
        other_content_for_a_reported_attempt_is_refused_and_kept,
        a_late_success_counts_until_the_next_grant,
        after_the_next_grant_a_late_success_is_evidence,
        a_late_report_of_a_cancelled_or_overdue_task_is_evidence,
    ],
    on_both_stores: [a_replay_gets_the_first_answer_at_once_after_a_restart_and_after_a_newer_grant],
);

async fn fails(plane: &Plane, held: &Held) -> Value {
    let error = json!({"category": "USER_CODE", "message": "KeyError", "retryable": true});
    plane.call(held, "completed", json!({"outcome": "FAILED", "error": error})).await.ok()
}

async fn a_replay_gets_the_first_answer_at_once_after_a_restart_and_after_a_newer_grant(server: Server) {
    let plane = Plane::new(server).await;
    let first = plane.dispatched(at_once(2)).await;
    let mut answer = fails(&plane, &first).await;
    assert_eq!(answer["disposition"], "recorded");
    answer["disposition"] = json!("duplicate");
    assert_eq!(fails(&plane, &first).await, answer);
    let plane = plane.restart().await;
    assert_eq!(fails(&plane, &first).await, answer);
    let second = plane.dispatch().await;
    assert_eq!(fails(&plane, &first).await, answer);
    let mut done = plane.succeeded(&second).await.ok();
    done["disposition"] = json!("duplicate");
    plane.server.advance(1_000);
    assert_eq!(plane.succeeded(&second).await.ok(), done);
    assert_eq!(fails(&plane, &first).await, answer);
}

async fn other_content_for_a_reported_attempt_is_refused_and_kept(server: Server) {
    server.still().await;
    let plane = Plane::new(server).await;
    let held = plane.dispatched(json!({"retry": later()})).await;
    fails(&plane, &held).await;
    let refused = plane.succeeded(&held).await.refused(409);
    assert_eq!((&refused["error"], &refused["state"]), (&json!("attempt_already_completed"), &json!("RETRY_WAIT")));
    let late = &plane.attempts(&held).await[0]["late_report"];
    assert_eq!((&late["outcome"], &late["worker_id"]), (&json!("Succeeded"), &json!("w-1")));
    let done = plane.dispatched(json!({})).await;
    plane.succeeded(&done).await.ok();
    let other = plane.call(&done, "completed", json!({"outcome": "SUCCEEDED", "output": 1})).await.refused(409);
    assert_eq!((&other["error"], &other["state"]), (&json!("task_already_terminal"), &json!("SUCCEEDED")));
}

async fn a_late_success_counts_until_the_next_grant(server: Server) {
    server.still().await;
    let plane = Plane::new(server).await;
    for (extra, state) in
        [(json!({"retry": later()}), "Scheduled"), (at_once(3), "Ready"), (json!({"max_attempts": 1}), "Failed")]
    {
        let held = plane.dispatched(extra).await;
        plane.started(&held).await;
        plane.server.advance(90_000);
        let beat = plane.call(&held, "heartbeat", json!({})).await.refused(410);
        assert_eq!(beat["error"], "task_expired");
        assert_eq!(plane.task(&held).await["state"], state);
        let late = plane.succeeded(&held).await.ok();
        assert_eq!((&late["finalState"], &late["disposition"]), (&json!("SUCCEEDED"), &json!("late")));
        assert_eq!(plane.task(&held).await["state"], "Succeeded");
        assert!(plane.try_dispatch().await.is_none(), "no second execution");
        assert_eq!(plane.succeeded(&held).await.ok()["disposition"], "duplicate");
    }
}

async fn after_the_next_grant_a_late_success_is_evidence(server: Server) {
    server.still().await;
    let plane = Plane::new(server).await;
    let first = plane.dispatched(at_once(2)).await;
    plane.started(&first).await;
    plane.server.advance(90_000);
    plane.call(&first, "heartbeat", json!({})).await.refused(410);
    let second = plane.dispatch().await;
    let refused = plane.succeeded(&first).await.refused(409);
    assert_eq!(refused["error"], "attempt_mismatch");
    assert_eq!((&refused["expectedAttempt"], &refused["receivedAttempt"]), (&json!(2), &json!(1)));
    plane.succeeded(&first).await.refused(409);
    let attempts = plane.attempts(&first).await;
    assert_eq!(
        (&attempts[0]["reason"], &attempts[0]["late_report"]["outcome"]),
        (&json!("HEARTBEAT_TIMEOUT"), &json!("Succeeded"))
    );
    assert_eq!(plane.succeeded(&second).await.ok()["disposition"], "recorded");
}

async fn a_late_report_of_a_cancelled_or_overdue_task_is_evidence(server: Server) {
    let plane = Plane::new(server).await;
    let cancelled = plane.dispatched(json!({})).await;
    plane.started(&cancelled).await;
    plane.server.advance(90_000);
    plane.call(&cancelled, "heartbeat", json!({})).await.refused(410);
    let path = format!("/api/v1/tasks/{}/cancel", cancelled.grant.task);
    plane.server.post(&path, json!({"reason": "not_needed"})).await.ok();
    let refused = plane.succeeded(&cancelled).await.refused(409);
    assert_eq!((&refused["error"], &refused["state"]), (&json!("task_already_terminal"), &json!("CANCELLED")));
    assert_eq!(refused["cancelReason"], "not_needed");
    let at = plane.server.engine.now().await.unwrap().plus(60_000);
    let overdue = plane.dispatched(json!({"deadline": at.to_string()})).await;
    plane.started(&overdue).await;
    plane.server.advance(60_000);
    let refused = plane.succeeded(&overdue).await.refused(409);
    assert_eq!((&refused["error"], &refused["state"]), (&json!("task_already_terminal"), &json!("FAILED")));
    for held in [&cancelled, &overdue] {
        assert_eq!(plane.attempts(held).await[0]["late_report"]["outcome"], "Succeeded");
    }
}
