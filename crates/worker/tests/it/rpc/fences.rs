//! Leases: who may act, also after a restart.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::{MethodRouter, post};
use serde_json::{Value, json};
use tenure_client::{WorkerCalls, WorkerToken};
use tenure_contract::worker_plane::Capacity;
use tenure_worker::node::{Face, Plane};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::kit::*;

fn exec() -> Value {
    json!({"sandbox_id": "sb-1", "command": "true"})
}

#[tokio::test]
async fn a_lease_that_is_shown_is_checked_and_none_is_needed_for_commands() {
    let worker = Worker::start().await;
    worker.spawn("sb-1").await;
    assert_eq!(worker.call("worker.exec", exec()).await.0, 200);
    for (lease, code) in [
        (lease_of("sb-1", "worker-b", 9, 60), "lease_stale"),
        (lease_of("sb-2", WORKER, 9, 60), "lease_stale"),
        (lease_of("sb-1", WORKER, 9, -1), "lease_expired"),
        (lease_of("sb-1", WORKER, 0, 60), "lease_stale"),
    ] {
        for method in ["worker.exec", "worker.exec_stream", "worker.file_list", "worker.destroy"] {
            let mut envelope = worker.envelope(method, json!({"sandbox_id": "sb-1", "command": "true", "path": "/"}));
            envelope["lease"] = lease.clone();
            let (status, body) = worker.send(&envelope).await;
            assert_eq!((status.as_u16(), body["code"].as_str()), (403, Some(code)), "{method} {lease}: {body}");
        }
    }
    let (status, body) = worker.leased("worker.exec", exec(), 1).await;
    assert_eq!(status, 200, "an equal generation is accepted: {body}");
}

#[tokio::test]
async fn a_lower_generation_is_refused_also_after_a_restart() {
    let worker = Worker::start().await;
    worker.spawn("sb-1").await;
    let (status, body) = worker.leased("worker.exec", exec(), 5).await;
    assert_eq!(status, 200, "{body}");
    let (status, body) = worker.leased("worker.destroy", json!({"sandbox_id": "sb-1"}), 4).await;
    assert_eq!((status.as_u16(), body["code"].as_str()), (403, Some("lease_stale")), "{body}");
    let folder = worker.stop().await;
    let worker = Worker::in_folder(folder, Options::default()).await;
    for (generation, expected) in [(4, 403), (5, 200)] {
        let (status, body) = worker.leased("worker.destroy", json!({"sandbox_id": "sb-1"}), generation).await;
        assert_eq!(status.as_u16(), expected, "{generation}: {body}");
    }
}

/// A control plane that counts renewals and answers them in turn; the last answer stays.
async fn control_plane(answers: Vec<(u16, Value)>) -> (Plane, Arc<watch::Sender<usize>>) {
    let calls = Arc::new(watch::Sender::new(0));
    let (count, answers) = (Arc::clone(&calls), Arc::new(answers));
    let renew = move || {
        let (count, answers) = (Arc::clone(&count), Arc::clone(&answers));
        async move {
            let index = *count.borrow();
            count.send_modify(|count| *count += 1);
            let (status, body) = answers[index.min(answers.len() - 1)].clone();
            (StatusCode::from_u16(status).unwrap(), body.to_string())
        }
    };
    let heartbeat = async || json!({"features": ["lease_renewal"]}).to_string();
    (plane(&serve(post(renew), post(heartbeat)).await), calls)
}

async fn serve(renew: MethodRouter, heartbeat: MethodRouter) -> String {
    let app = Router::new()
        .route("/api/v1/worker/{worker}/leases/{resource}/renew", renew)
        .route("/api/v1/worker/{worker}/heartbeat", heartbeat);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    url
}

fn plane(url: &str) -> Plane {
    let calls = WorkerCalls::new(url, WORKER, WorkerToken::text("token"), None).unwrap();
    Plane::new(calls, Duration::from_secs(10))
}

#[tokio::test]
async fn a_renewal_goes_to_the_control_plane_unless_its_lease_is_void() {
    let renewed = json!({"lease": lease("sb-1", 2)});
    let stale = json!({"code": "CONFLICT", "message": "held by another", "reason": "lease_stale"});
    let expired = json!({"code": "CONFLICT", "message": "too late", "reason": "lease_expired"});
    let (plane, calls) = control_plane(vec![(200, renewed), (409, stale), (409, expired)]).await;
    let worker = Worker::with(Options { plane: Some(plane), ..Options::default() }).await;
    worker.spawn("sb-1").await;
    let renew = async |lease: Value| {
        let mut envelope = worker.envelope("worker.renew_lease", json!({"resource_id": "sb-1", "ttl": "60s"}));
        envelope["lease"] = lease;
        worker.send(&envelope).await
    };
    let (status, body) = renew(lease_of("sb-1", WORKER, 1, -1)).await;
    assert_eq!((status.as_u16(), body["code"].as_str()), (403, Some("lease_expired")), "{body}");
    assert_eq!(*calls.borrow(), 0, "nobody was asked");
    let (status, body) = renew(lease("sb-1", 1)).await;
    assert_eq!((status.as_u16(), &body["result"]["lease"]["generation"]), (200, &json!(2)), "{body}");
    let (status, body) = renew(lease("sb-1", 1)).await;
    assert_eq!((status.as_u16(), body["code"].as_str()), (403, Some("lease_stale")), "the old token: {body}");
    for code in ["lease_stale", "lease_expired"] {
        let (status, body) = renew(lease("sb-1", 2)).await;
        assert_eq!((status.as_u16(), body["code"].as_str()), (409, Some(code)), "{body}");
    }
    assert_eq!(*calls.borrow(), 3);
}

#[tokio::test]
async fn a_spawn_after_its_own_destroy_is_refused() {
    let worker = Worker::start().await;
    let (status, _) = worker.leased("worker.destroy", json!({"sandbox_id": "sb-1"}), 3).await;
    assert_eq!(status, 200);
    let (status, body) = worker.leased("worker.spawn", spawn_params("sb-1"), 3).await;
    assert_eq!((status.as_u16(), body["code"].as_str()), (404, Some("destroyed")), "{body}");
    let (status, body) = worker.leased("worker.spawn", spawn_params("sb-1"), 4).await;
    assert_eq!(status, 200, "a newer lease may: {body}");
}

#[tokio::test]
async fn without_an_answer_of_the_control_plane_a_renewal_is_unavailable() {
    let worker = Worker::with(Options { plane: Some(plane("http://127.0.0.1:1")), ..Options::default() }).await;
    let mut envelope = worker.envelope("worker.renew_lease", json!({"resource_id": "sb-1", "ttl": "60s"}));
    envelope["lease"] = lease("sb-1", 1);
    let (status, body) = worker.send(&envelope).await;
    assert_eq!((status.as_u16(), body["code"].as_str()), (503, Some("provider_unavailable")), "{body}");
}

#[tokio::test]
async fn a_runtime_whose_lease_lapsed_refuses_commands_and_files_until_it_is_renewed() {
    let open = Arc::new(AtomicBool::new(false));
    let renew = {
        let open = Arc::clone(&open);
        async move || match open.load(Ordering::SeqCst) {
            true => (StatusCode::OK, json!({"lease": lease("sb-1", 3)}).to_string()),
            false => (StatusCode::SERVICE_UNAVAILABLE, String::new()),
        }
    };
    let heartbeat = async || json!({"features": ["lease_renewal"]}).to_string();
    let plane = plane(&serve(post(renew), post(heartbeat)).await);
    let worker = Worker::with(Options { plane: Some(plane), ..Options::default() }).await;
    let face = Face::new("host".into(), Vec::new(), Capacity::default());
    worker.node.beat_once(&face, None).await.unwrap();
    let (node, stop) = (Arc::clone(&worker.node), CancellationToken::new());
    let defending = tokio::spawn({
        let stop = stop.clone();
        async move { node.defend(&stop).await }
    });
    let mut spawn = worker.envelope("worker.spawn", spawn_params("sb-1"));
    spawn["lease"] = lease_of("sb-1", WORKER, 1, 3);
    let (status, body) = worker.send(&spawn).await;
    assert_eq!(status, 200, "{body}");
    wait_until("the sandbox is frozen", || worker.node.all().iter().any(|held| held.frozen)).await;
    for method in ["worker.exec", "worker.exec_stream", "worker.file_list", "worker.file_stat"] {
        let params = json!({"sandbox_id": "sb-1", "command": "true", "path": "/", "provider": "warp"});
        let (status, body) = worker.call(method, params).await;
        assert_eq!((status.as_u16(), body["code"].as_str()), (403, Some("lease_expired")), "{method}: {body}");
    }
    let url = worker.url("/rpc/files?sandbox_id=sb-1&path=/workspace/a");
    let (status, body) = answer(worker.signed(worker.http.put(url)).body("x").send().await.unwrap()).await;
    assert_eq!((status.as_u16(), body["code"].as_str()), (403, Some("lease_expired")), "{body}");
    let status = worker.ok("worker.status", json!({"sandbox_id": "sb-1"})).await;
    assert_eq!(status["state"], "unhealthy", "{status}");

    open.store(true, Ordering::SeqCst);
    let mut renewal = worker.envelope("worker.renew_lease", json!({"resource_id": "sb-1", "ttl": "60s"}));
    renewal["lease"] = lease("sb-1", 2);
    let (status, body) = worker.send(&renewal).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(worker.exec("sb-1", "echo thawed").await["stdout"], "thawed\n");
    stop.cancel();
    defending.await.unwrap();
}
