//! Worker wrappers: the aliases below `/internal/`, and both identities.

use std::sync::Arc;

use reqwest::Method;
use serde_json::{Value, json};
use tenure_auth::{Anonymous, Secret, WorkerAuth};
use tenure_engine::Engine;
use tenure_engine::store::Retention;
use tenure_server::{Listeners, ServerConfig};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::kit::{self, Plane, WORKER};
use crate::cases;
use crate::harness::{Server, TOKEN};

cases!(
    kit,
    on_sqlite: [
        the_shared_token_can_be_rotated,
        a_worker_of_its_own_speaks_for_itself,
        a_network_of_workers_does_not_include_its_proxy,
        without_a_key_for_tokens_nothing_is_granted,
    ],
    on_both_stores: [a_wrapper_works_without_a_capability_token, a_wrapper_may_leave_out_the_lease_token],
);

fn part(key: &str) -> Value {
    json!({"partition_key": key})
}

async fn a_wrapper_works_without_a_capability_token(plane: Plane) {
    plane.deploy(kit::CHAIN).await;
    let claim = plane.claim(&plane.fire("r-1").await).await;
    assert_eq!(plane.internal("heartbeat", claim.attempt()).await.ok()["status"], "Running");
    let events = claim.with(json!({"events": [claim.event(0, part("1-5"))]}));
    plane.internal("events", events).await.ok();
    let done = claim.with(json!({"status": "Completed"}));
    let first = plane.internal("task-complete", done.clone()).await.ok();
    assert_eq!(plane.internal("task-complete", done).await.ok(), first);
    assert_eq!(plane.complete(&claim, json!({"status": "Completed"})).await.ok(), first, "the same handlers");
    for path in ["task-claim", "heartbeat", "task-complete", "events"] {
        let body = claim.with(json!({"status": "Completed"}));
        let refused = plane.call(Method::POST, &format!("/internal/{path}"), &[], Some(&body)).await.refused(401);
        assert_eq!(refused["error"], "missing_worker_token", "{path}");
    }
}

async fn a_wrapper_may_leave_out_the_lease_token(plane: Plane) {
    plane.still().await;
    plane.deploy(kit::CHAIN).await;
    let claim = plane.claim(&plane.fire("r-1").await).await;
    let events = |extra: Value| {
        let mut body = json!({"task_id": claim["task_id"], "attempt": 1, "events": [claim.event(0, part("1-5"))]});
        crate::harness::merge(&mut body, extra);
        body
    };
    plane.internal("events", events(json!({"worker_id": WORKER}))).await.ok();
    let other = plane.internal("events", events(json!({"worker_id": "another"}))).await.refused(409);
    assert_eq!(other["error"], "stale_lease");
    assert_eq!(plane.internal("events", events(json!({}))).await.refused(400)["error"], "malformed_request");
    let wrong = plane.internal("events", events(json!({"worker_id": WORKER, "attempt": 2}))).await.refused(409);
    assert_eq!(wrong["error"], "stale_attempt");
    for call in ["heartbeat", "task-complete"] {
        let body = json!({"task_id": claim["task_id"], "attempt": 1, "status": "Completed", "worker_id": WORKER});
        assert_eq!(plane.internal(call, body).await.refused(400)["error"], "malformed_request", "{call}");
    }
    // It needs a live lease.
    plane.advance(120_000);
    let late = plane.internal("events", events(json!({"worker_id": WORKER}))).await.refused(409);
    assert_eq!(late["error"], "lease_expired");
}

async fn the_shared_token_can_be_rotated(plane: Plane) {
    plane.deploy(kit::CHAIN).await;
    let task = plane.fire("r-1").await;
    plane.config.access.update(|access| {
        access.workers.shared_previous = access.workers.shared.take();
        access.workers.shared = Secret::new("the-next-one");
    });
    let body = json!({"task_id": task, "worker_id": WORKER});
    for token in [TOKEN, "the-next-one"] {
        let headers = [("X-Trace-Worker-Token", token)];
        plane.call(Method::POST, "/internal/task-claim", &headers, Some(&body)).await.ok();
    }
    plane.config.access.update(|access| access.workers.shared_previous = None);
    let old = plane.call(Method::POST, "/internal/task-claim", &[("X-Trace-Worker-Token", TOKEN)], Some(&body)).await;
    assert_eq!(old.refused(401)["error"], "invalid_worker_token");
}

async fn a_network_of_workers_does_not_include_its_proxy(plane: Plane) {
    plane.deploy(kit::CHAIN).await;
    let task = plane.fire("r-1").await;
    plane.config.access.update(|access| {
        let networks = ["10.1.0.0/16", "127.0.0.0/8"].map(|text| text.parse::<ipnet::IpNet>().unwrap());
        access.workers = WorkerAuth { anonymous: Anonymous::From(networks.into()), ..WorkerAuth::default() };
        access.trusted_proxies = vec!["127.0.0.1/32".parse().unwrap()];
    });
    let claim = async |headers: &[(&str, &str)]| {
        let body = json!({"task_id": task, "worker_id": WORKER});
        plane.call(Method::POST, "/internal/task-claim", headers, Some(&body)).await
    };
    // The proxy is in the network of the workers. By itself it is nobody, for it may speak for anybody.
    let nothing: &[(&str, &str)] = &[];
    for headers in [nothing, &[("X-Forwarded-For", "10.2.0.1")], &[("X-Forwarded-For", "rubbish")]] {
        assert_eq!(claim(headers).await.refused(401)["error"], "missing_worker_token", "{headers:?}");
    }
    assert_eq!(claim(&[("X-Forwarded-For", "10.1.0.1")]).await.ok()["status"], "Claimed");
}

async fn without_a_key_for_tokens_nothing_is_granted(plane: Plane) {
    plane.deploy(kit::CHAIN).await;
    let task = plane.fire("r-1").await;
    let (home, clock) = (Arc::clone(&plane.home), Arc::clone(&plane.clock));
    let keyless = ServerConfig { task_keys: None, ..plane.config.clone() };
    let mut plane = plane;
    plane.server.stop().await;
    drop(plane);
    let server = Server::start_with(home, Retention::default(), clock, |_| keyless).await;
    let token = [("X-Trace-Worker-Token", TOKEN)];
    let body = json!({"task_id": task, "worker_id": WORKER});
    let refused = server.call(Method::POST, "/internal/task-claim", &token, Some(&body)).await.refused(503);
    assert_eq!(refused["error"], "signing_key_not_configured");
    assert!(refused["message"].as_str().unwrap().contains("dispatch.capability.key_file"), "{refused}");
    let path = format!("/internal/task-fetch?task_id={task}");
    let fetched = server.call(Method::GET, &path, &token, None).await.ok();
    assert_eq!((&fetched["status"], &fetched["attempt"]), (&json!("Queued"), &json!(0)), "no attempt was spent");
}

async fn a_worker_of_its_own_speaks_for_itself(plane: Plane) {
    plane.deploy(kit::CHAIN).await;
    plane.config.access.update(|access| {
        access.workers.per_worker.insert("w-1".to_owned(), Secret::new("token-of-w-1").unwrap());
    });
    let task = plane.fire("r-1").await;
    let own = [("X-Worker-ID", "w-1"), ("X-Worker-Token", "token-of-w-1")];
    let claim = |worker: &str| json!({"task_id": task, "worker_id": worker});
    let refused = plane.call(Method::POST, "/internal/task-claim", &own, Some(&claim("w-2"))).await.refused(403);
    assert_eq!(refused["error"], "worker_mismatch");
    let refused = plane.internal("task-claim", claim("w-1")).await.refused(401);
    assert_eq!(refused["error"], "invalid_worker_token", "the shared token is not that of w-1");
    let claimed = plane.call(Method::POST, "/internal/task-claim", &own, Some(&claim("w-1"))).await.ok();
    let events = json!({"task_id": task, "attempt": 1, "events": []});
    plane.call(Method::POST, "/internal/events", &own, Some(&events)).await.ok();
    assert_eq!(claimed["status"], "Claimed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_contract_has_a_listener_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("tenure.db").display());
    let engine = Engine::open(&url).await.unwrap();
    let bind = async || TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (public, internal) = (bind().await, bind().await);
    let address = |listener: &TcpListener| format!("http://{}", listener.local_addr().unwrap());
    let (outside, inside) = (address(&public), address(&internal));
    let stop = CancellationToken::new();
    let listeners = Listeners { public, internal: Some(internal), s3: None };
    let served =
        tokio::spawn(tenure_server::run(listeners, engine, ServerConfig::default(), stop.clone().cancelled_owned()));
    let status = async |base: &str, path: &str| {
        reqwest::Client::new().post(format!("{base}{path}")).body("{}").send().await.unwrap().status().as_u16()
    };
    for path in ["/internal/task-claim", "/internal/heartbeat", "/internal/events", "/v1/task/complete"] {
        assert_eq!(status(&outside, path).await, 404, "{path}");
        assert_ne!(status(&inside, path).await, 404, "{path}");
    }
    for path in ["/internal/worker/claim", "/api/v1/tasks"] {
        assert_eq!(status(&inside, path).await, 404, "{path}");
        assert_ne!(status(&outside, path).await, 404, "{path}");
    }
    let keys = reqwest::get(format!("{inside}/internal/jwks/task")).await.unwrap();
    assert_eq!(keys.status().as_u16(), 200);
    stop.cancel();
    served.await.unwrap().unwrap();
    assert!(reqwest::get(format!("{inside}/internal/jwks/task")).await.is_err(), "both are closed");
}
