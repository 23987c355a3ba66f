//! Runs whose tasks are pushed.

use serde_json::{Value, json};

use crate::callback::worker::{Held, Plane};
use crate::cases;
use crate::harness::Server;

cases!(
    Server,
    on_sqlite: [a_task_starts_when_its_worker_says_so],
    on_both_stores: [
        a_run_is_led_on_once_however_often_a_report_comes,
        in_whatever_order_callbacks_come_a_run_ends_alike,
    ],
);

/// Submits a chain of these tasks and gives the run's id.
async fn chain(plane: &Plane, keys: &[&str]) -> String {
    let entry = |(at, key): (usize, &&str)| {
        let depends_on: Vec<_> = at.checked_sub(1).map(|before| keys[before]).into_iter().collect();
        json!({"key": key, "queue": "q", "operator": "op", "depends_on": depends_on})
    };
    let tasks: Vec<_> = keys.iter().enumerate().map(entry).collect();
    let run = plane.server.post("/api/v1/runs", json!({"tasks": tasks})).await.ok();
    run["run_id"].as_str().unwrap().to_owned()
}

async fn shown(plane: &Plane, run: &str) -> Value {
    plane.server.get(&format!("/api/v1/runs/{run}")).await.ok()
}

async fn states(plane: &Plane, run: &str) -> Vec<String> {
    let tasks = shown(plane, run).await["tasks"].as_array().unwrap().clone();
    tasks.iter().map(|task| task["state"].as_str().unwrap().to_owned()).collect()
}

async fn finish(plane: &Plane, held: &Held) {
    plane.started(held).await;
    plane.succeeded(held).await.ok();
}

async fn a_run_is_led_on_once_however_often_a_report_comes(server: Server) {
    let plane = Plane::new(server).await;
    let run = chain(&plane, &["a", "b", "c"]).await;
    let a = plane.dispatch().await;
    plane.started(&a).await;
    let first = plane.succeeded(&a).await.ok();
    assert_eq!(states(&plane, &run).await, ["Succeeded", "Ready", "Blocked"]);
    let again = async |plane: &Plane| {
        let again = plane.succeeded(&a).await.ok();
        assert_eq!(again["disposition"], "duplicate");
        assert_eq!((&again["finalState"], &again["serverTime"]), (&first["finalState"], &first["serverTime"]));
    };
    again(&plane).await;
    let plane = plane.restart().await;
    again(&plane).await;
    let b = plane.dispatch().await;
    again(&plane).await;
    assert!(plane.try_dispatch().await.is_none(), "b is granted once, and c waits for it");
    assert_eq!(states(&plane, &run).await, ["Succeeded", "Running", "Blocked"]);
    finish(&plane, &b).await;
    again(&plane).await;
    let c = plane.dispatch().await;
    finish(&plane, &c).await;
    again(&plane).await;
    assert!(plane.try_dispatch().await.is_none());
    assert_eq!(shown(&plane, &run).await["state"], "Succeeded");
    assert_eq!(plane.attempts(&b).await.len(), 1);
}

async fn in_whatever_order_callbacks_come_a_run_ends_alike(server: Server) {
    let plane = Plane::new(server).await;
    let (started, beat, completed) = ("started", "heartbeat", "completed");
    for order in [
        [started, beat, completed],
        [started, completed, beat],
        [beat, started, completed],
        [beat, completed, started],
        [completed, started, beat],
        [completed, beat, started],
    ] {
        let run = chain(&plane, &["a", "b"]).await;
        let a = plane.dispatch().await;
        for call in order.into_iter().flat_map(|call| [call, call]) {
            plane.call(&a, call, json!({"outcome": "SUCCEEDED"})).await;
        }
        assert_eq!(states(&plane, &run).await, ["Succeeded", "Ready"], "{order:?}");
        let b = plane.dispatch().await;
        assert!(plane.try_dispatch().await.is_none(), "{order:?}");
        finish(&plane, &b).await;
        assert_eq!(shown(&plane, &run).await["state"], "Succeeded", "{order:?}");
    }
}

async fn a_task_starts_when_its_worker_says_so(server: Server) {
    let plane = Plane::new(server).await;
    let run = chain(&plane, &["a", "b"]).await;
    let a = plane.dispatch().await;
    let times = async |held: &Held, at: usize| {
        let (task, run) = (plane.task(held).await, shown(&plane, &run).await);
        assert_eq!(task.get("started_at"), run["tasks"][at].get("started_at"));
        task.get("started_at").cloned()
    };
    assert_eq!(times(&a, 0).await, None);
    plane.server.advance(10_000);
    plane.started(&a).await;
    let started = times(&a, 0).await;
    assert_ne!(started, Some(plane.attempts(&a).await[0]["granted_at"].clone()));
    plane.server.advance(10_000);
    plane.succeeded(&a).await.ok();
    assert!(started.is_some() && times(&a, 0).await == started);
    // One that no worker took up never started.
    let b = plane.dispatch().await;
    plane.server.post(&format!("/api/v1/tasks/{}/cancel", b.grant.task), json!({})).await.ok();
    assert_eq!(times(&b, 1).await, None);
}
