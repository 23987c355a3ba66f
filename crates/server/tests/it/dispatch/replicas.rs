//! Two control planes on one store.

use std::sync::Arc;

use reqwest::Method;
use serde_json::json;
use tenure_auth::TaskKeys;
use tenure_engine::store::Retention;
use tenure_server::{ServerConfig, SharedTaskKeys};

use super::kit::{self, Plane, WORKER};
use crate::harness::{Server, TOKEN};

/// A control plane beside another one, with a key of its own.
async fn beside(plane: &Plane) -> Server {
    let config = plane.config.clone();
    let (home, clock) = (Arc::clone(&plane.home), Arc::clone(&plane.clock));
    Server::start_with(home, Retention::default(), clock, |engine| {
        let keys = TaskKeys::new("tenure", &TaskKeys::generate().unwrap()).unwrap();
        ServerConfig { task_keys: Some(Arc::new(SharedTaskKeys::new(engine.clone(), keys))), ..config }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_control_planes_grant_once_route_once_and_know_each_others_tokens() {
    let plane = kit::postgres().await;
    let mut other = beside(&plane).await;
    plane.deploy(kit::CHAIN).await;
    let tasks: Vec<String> =
        futures_util::future::join_all((0..6).map(async |n| plane.fire(&format!("r-{n}")).await)).await;
    let body = |task: &str| json!({"task_id": task, "worker_id": WORKER});
    let worker = [("X-Trace-Worker-Token", TOKEN)];
    for (n, task) in tasks.iter().enumerate() {
        let body = body(task);
        let (here, there) = tokio::join!(
            plane.internal("task-claim", body.clone()),
            other.call(Method::POST, "/internal/task-claim", &worker, Some(&body)),
        );
        let (here, there) = (here.ok(), there.ok());
        let granted = [&here, &there].map(|answer| answer["status"] == "Claimed");
        assert_eq!(granted.iter().filter(|granted| **granted).count(), 1, "{here} {there}");
        let claim = kit::Claim(if granted[0] { here } else { there });
        // Whoever granted it, both take its token.
        let token = [("X-Trace-Task-Capability", claim.token())];
        other.call(Method::POST, "/v1/task/heartbeat", &token, Some(&claim.attempt())).await.ok();
        plane.beat(&claim).await.ok();
        // The same event at both, and the same completion.
        let events = claim.with(json!({"events": [claim.event(0, json!({"partition_key": format!("{n}0-{n}9")}))]}));
        let (here, there) = tokio::join!(
            plane.as_task("events", claim.token(), &events),
            other.call(Method::POST, "/v1/task/events", &token, Some(&events)),
        );
        assert_eq!((&here.ok()["accepted"], &there.ok()["accepted"]), (&json!(1), &json!(1)));
        let done = claim.with(json!({"status": "Completed"}));
        let (here, there) = tokio::join!(
            plane.as_task("complete", claim.token(), &done),
            other.call(Method::POST, "/v1/task/complete", &token, Some(&done)),
        );
        assert_eq!(here.ok(), there.ok());
    }
    plane.nth("decode", tasks.len()).await;
    other.stop().await;
}
