use serde_json::json;

use super::kit::{self, Plane};
use crate::cases;
use crate::harness::time;

cases!(
    kit,
    on_sqlite: [
        a_heartbeat_without_its_parts_is_malformed,
        the_advised_interval_fits_the_lease,
        what_an_attempt_logs_is_kept_under_its_lease,
    ],
    on_both_stores: [a_heartbeat_extends_the_lease_up_to_the_deadline, who_holds_it_no_more_learns_why],
);

async fn a_heartbeat_extends_the_lease_up_to_the_deadline(plane: Plane) {
    plane.still().await;
    plane.deploy(&kit::CHAIN.replace("outputs: 2,", "outputs: 2, timeout_seconds: 200,")).await;
    let claim = plane.claim(&plane.fire("r-1").await).await;
    let granted = plane.engine.now().await.unwrap();
    plane.advance(60_000);
    let beat = plane.beat(&claim).await.ok();
    assert_eq!((&beat["status"], &beat["fence"]), (&json!("Running"), &json!(1)));
    assert_eq!(time(&beat["lease_expires_at"]).since(granted), 180_000, "not additive");
    assert!(beat.get("capability_token").is_none());
    // One lost heartbeat harms nobody; the deadline is the end.
    plane.advance(60_000);
    assert_eq!(time(&plane.beat(&claim).await.ok()["lease_expires_at"]).since(granted), 200_000);
    plane.advance(80_000);
    assert_eq!(plane.beat(&claim).await.refused(409)["error"], "lease_expired");
}

async fn who_holds_it_no_more_learns_why(plane: Plane) {
    plane.still().await;
    plane.deploy(kit::CHAIN).await;
    let claim = plane.claim(&plane.fire("r-1").await).await;
    // Another token, another attempt.
    let stranger = claim.with(json!({"lease_token": "0190c0de-0000-7000-8000-000000000001"}));
    for token in [&stranger, &claim.with(json!({"lease_token": "guess"}))] {
        assert_eq!(plane.as_task("heartbeat", claim.token(), token).await.refused(409)["error"], "stale_lease");
    }
    // The right token does not extend the lease under another number.
    let ends = async || plane.get(&format!("/api/v1/tasks/{}", claim.task())).await.ok()["lease_expires_at"].clone();
    let before = ends().await;
    plane.advance(10_000);
    let wrong = plane.internal("heartbeat", claim.with(json!({"attempt": 2}))).await;
    assert_eq!(wrong.refused(409)["error"], "stale_attempt");
    assert!(before.is_string());
    assert_eq!(ends().await, before);
    // Expired, whether or not it was reaped.
    plane.advance(120_000);
    assert_eq!(plane.beat(&claim).await.refused(409)["error"], "lease_expired");
    assert_eq!(plane.beat(&claim).await.refused(409)["error"], "lease_expired");
    // After its end.
    let claim = plane.claim(&plane.fire("r-2").await).await;
    plane.complete(&claim, json!({"status": "Completed"})).await.ok();
    assert_eq!(plane.beat(&claim).await.refused(409)["error"], "attempt_closed");
    // Canceled: told so as often as it asks, without an extension.
    let claim = plane.claim(&plane.fire("r-3").await).await;
    plane.advance(10_000);
    let expires = plane.beat(&claim).await.ok()["lease_expires_at"].clone();
    plane.advance(10_000);
    plane.post(&format!("/api/v1/tasks/{}/cancel", claim.task()), json!({"reason": "enough"})).await.ok();
    for _ in 0..2 {
        let beat = plane.beat(&claim).await.ok();
        assert_eq!((&beat["status"], &beat["lease_expires_at"]), (&json!("Canceled"), &expires));
    }
    let stranger = claim.with(json!({"lease_token": "0190c0de-0000-7000-8000-000000000001"}));
    assert_eq!(plane.as_task("heartbeat", claim.token(), &stranger).await.refused(409)["error"], "stale_lease");
    let unknown = json!({"task_id": "0190c0de-0000-7000-8000-000000000001", "attempt": 1, "lease_token": "x"});
    assert_eq!(plane.internal("heartbeat", unknown).await.refused(404)["error"], "task_not_found");
}

async fn the_advised_interval_fits_the_lease(plane: Plane) {
    plane.still().await;
    let leases = [(1, json!(0.25)), (2, json!(0.5)), (3, json!(0.75)), (4, json!(1)), (11, json!(2))];
    for ((lease, interval), version) in leases.into_iter().zip(1..) {
        let source = format!("outputs: 2, heartbeat_timeout_seconds: {lease},");
        plane.deploy(&kit::CHAIN.replace("outputs: 2,", &source)).await;
        plane.active(version).await;
        let claim = plane.claim(&plane.fire(&format!("r-{lease}")).await).await;
        assert_eq!(claim["heartbeat_interval_seconds"], interval, "{lease}");
        // Whoever keeps to it holds the lease.
        for _ in 0..5 {
            plane.advance((interval.as_f64().unwrap() * 1_000.0) as i64);
            plane.beat(&claim).await.ok();
        }
    }
}

async fn a_heartbeat_without_its_parts_is_malformed(plane: Plane) {
    plane.deploy(kit::CHAIN).await;
    let claim = plane.claim(&plane.fire("r-1").await).await;
    for field in ["task_id", "attempt", "lease_token"] {
        let mut body = claim.attempt();
        body.as_object_mut().unwrap().remove(field);
        let refused = plane.as_task("heartbeat", claim.token(), &body).await.refused(400);
        assert_eq!(refused["error"], "malformed_request", "{field}");
        assert!(refused["message"].as_str().unwrap().contains(field), "{refused}");
    }
}

async fn what_an_attempt_logs_is_kept_under_its_lease(plane: Plane) {
    plane.still().await;
    plane.deploy(kit::CHAIN).await;
    let claim = plane.claim(&plane.fire("r-1").await).await;
    let line = |text: &str| json!({"lines": [{"stream": "stdout", "text": text}]});
    let kept = json!({"kept": true});
    assert_eq!(plane.as_task("logs", claim.token(), &claim.with(line("of the code"))).await.ok(), kept);
    assert_eq!(plane.internal("task-logs", claim.with(line("of the wrapper"))).await.ok(), kept);
    let secret = format!("the token is {}", claim.token());
    assert_eq!(plane.internal("task-logs", claim.with(line(&secret))).await.ok(), kept);
    // Under another token it is not an error, and not kept.
    let stale = json!({"kept": false, "error": "stale_attempt"});
    let mut stranger = claim.with(line("of a stranger"));
    stranger["lease_token"] = json!("0190c0de-0000-7000-8000-000000000001");
    assert_eq!(plane.internal("task-logs", stranger.clone()).await.ok(), stale);
    assert_eq!(plane.as_task("logs", claim.token(), &stranger).await.ok(), stale);
    plane.internal("task-logs", claim.with(json!({"lines": ["text"]}))).await.refused(400);
    let other = plane.claim(&plane.fire("r-2").await).await;
    plane.as_task("logs", other.token(), &claim.with(line("of another task"))).await.refused(403);
    plane.complete(&claim, json!({"status": "Completed"})).await.ok();
    assert_eq!(plane.internal("task-logs", claim.with(line("late"))).await.ok(), stale);
    let shown = plane.get(&format!("/api/v1/tasks/{}/logs", claim.task())).await.ok();
    let texts: Vec<&str> = shown["items"].as_array().unwrap().iter().filter_map(|line| line["text"].as_str()).collect();
    assert_eq!(texts, ["of the code", "of the wrapper", "the token is ***"], "{shown}");
}
