//! Heartbeats and leases of workers.

use reqwest::Method;
use serde_json::{Value, json};
use tenure_auth::worker::{Audience, MintRequest, Scope, SigningKey};
use tenure_auth::{Secret, WorkerAuth};

use super::kit::{Plane, server};
use crate::cases;
use crate::harness::{Answer, Home, Server, TOKEN, between, time};

cases!(
    Plane,
    on_sqlite: [odd_heartbeats_are_refused, an_older_heartbeat_changes_nothing],
    on_both_stores: [a_lease_is_renewed_by_its_holder_only, a_worker_is_drained_removed_and_comes_back],
);

async fn beat(server: &Server, path_id: &str, headers: &[(&str, &str)], body: Value) -> Answer {
    let path = format!("/api/v1/worker/{path_id}/heartbeat/");
    server.call(Method::POST, &path, headers, Some(&body)).await
}

const SHARED: [(&str, &str); 2] = [("X-Worker-ID", "w-1"), ("X-Worker-Token", TOKEN)];

async fn odd_heartbeats_are_refused(plane: Plane) {
    let server = &plane.server;
    let answer =
        beat(server, "w-1", &SHARED, json!({"providers": null, "capacity": {"news": 1}, "news": []})).await.ok();
    assert_eq!((&answer["id"], &answer["status"], &answer["stale"]), (&json!("w-1"), &json!("online"), &json!(false)));
    assert_eq!(answer["features"], json!(["lease_renewal"]));
    assert_eq!((&answer["providers"], answer.get("desired_status")), (&json!([]), None));
    for body in [
        json!({"inventory": [{"sandbox_id": ""}]}),
        json!({"inventory": [{}]}),
        json!({"inventory": 7}),
        json!({"capacity": {"max_sandboxes": -1}}),
        json!({"hostname": "h".repeat(300)}),
        json!({"providers": ["a\u{0}b"]}),
        json!({"seq": -1}),
        json!([1]),
    ] {
        let refused = beat(server, "w-1", &SHARED, body.clone()).await;
        assert_eq!((refused.status.as_u16(), &refused.body["code"]), (400, &json!("BAD_REQUEST")), "{body}");
    }
    let other = beat(server, "w-2", &SHARED, json!({})).await.refused(403);
    assert_eq!(other["code"], "UNAUTHORIZED");
    for headers in [
        vec![("X-Worker-ID", "w-1")],
        vec![("X-Worker-Token", TOKEN)],
        vec![("X-Worker-ID", "w-1"), ("X-Worker-Token", "wrong")],
        vec![("X-Worker-ID", "w-1"), ("X-Worker-Token", "")],
    ] {
        let refused = beat(server, "w-1", &headers, json!({})).await.refused(401);
        assert_eq!(refused["code"], "UNAUTHORIZED", "{headers:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signed_tokens_are_judged_by_audience_scope_and_worker() {
    let server = server(Home::Sqlite(tempfile::tempdir().unwrap()), |_| {}).await;
    let key = SigningKey::new("worker-signing-key-with-at-least-32-bytes").unwrap();
    let mut auth = WorkerAuth::default();
    auth.keys.active = Some(key);
    auth.per_worker.insert("w-own".to_owned(), Secret::new("own-token-of-the-worker").unwrap());
    auth.shared = Secret::new(TOKEN);
    server.config.access.update(|access| access.workers = auth.clone());
    let now =
        i64::try_from(std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()).unwrap();
    let mint = |audience, scopes: Option<Vec<Scope>>, at| {
        let scopes = scopes.map(|scopes| scopes.into_iter().collect());
        let request = MintRequest { scopes, ..MintRequest::new("w-1", audience, at) };
        auth.keys.mint(&request).unwrap().token.reveal().to_owned()
    };
    let good = mint(Audience::ControlPlane, None, now);
    let ask = async |path: &str, worker: &str, token: &str| {
        let headers = [("X-Worker-ID", worker), ("X-Worker-Token", token)];
        server.call(Method::POST, path, &headers, Some(&json!({"ttl": "60s"}))).await.status.as_u16()
    };
    let (heartbeat, renewal) = ("/api/v1/worker/w-1/heartbeat", "/api/v1/worker/w-1/leases/sb-00000000/renew");
    assert_eq!((ask(heartbeat, "w-1", &good).await, ask(renewal, "w-1", &good).await), (200, 409));
    let beats = mint(Audience::ControlPlane, Some(vec![Scope::Heartbeat]), now);
    assert_eq!((ask(heartbeat, "w-1", &beats).await, ask(renewal, "w-1", &beats).await), (200, 403));
    let leases = mint(Audience::ControlPlane, Some(vec![Scope::Lease]), now);
    assert_eq!((ask(heartbeat, "w-1", &leases).await, ask(renewal, "w-1", &leases).await), (403, 409));
    for (what, token, worker) in [
        ("of another audience", mint(Audience::Rpc, None, now), "w-1"),
        ("expired", mint(Audience::ControlPlane, None, now - 3600), "w-1"),
        ("of another worker", good.clone(), "w-2"),
        ("shared, of a worker with its own", TOKEN.to_owned(), "w-own"),
    ] {
        let path = format!("/api/v1/worker/{worker}/heartbeat");
        assert_eq!(ask(&path, worker, &token).await, 401, "{what}");
    }
    assert_eq!(ask("/api/v1/worker/w-own/heartbeat", "w-own", "own-token-of-the-worker").await, 200);
    assert_eq!(ask("/api/v1/worker/w-2/heartbeat", "w-1", &good).await, 403);
}

async fn an_older_heartbeat_changes_nothing(plane: Plane) {
    let server = &plane.server;
    let body = |seq: u64, boot: &str, host: &str| json!({"boot_id": boot, "seq": seq, "hostname": host});
    beat(server, "w-1", &SHARED, body(5, "a", "new")).await.ok();
    assert_eq!(beat(server, "w-1", &SHARED, body(4, "a", "old")).await.ok()["hostname"], "new");
    assert_eq!(beat(server, "w-1", &SHARED, body(1, "b", "restarted")).await.ok()["hostname"], "restarted");
}

async fn a_lease_is_renewed_by_its_holder_only(plane: Plane) {
    let server = &plane.server;
    let sandbox = plane.sandbox().await;
    let renew = async |worker: &str, resource: &str, body: Value| {
        let headers = [("X-Worker-ID", worker), ("X-Worker-Token", TOKEN)];
        let path = format!("/api/v1/worker/{worker}/leases/{resource}/renew");
        server.call(Method::POST, &path, &headers, Some(&body)).await
    };
    let first = renew("worker-a", &sandbox, json!({"ttl": "60s"})).await.ok();
    let lease = &first["lease"];
    assert_eq!((&lease["resource_id"], &lease["holder_id"]), (&json!(sandbox), &json!("worker-a")));
    assert!(first["sandbox_expires_at"].is_string(), "{first}");
    let second = renew("worker-a", &sandbox, json!({})).await.ok();
    assert!(second["lease"]["generation"].as_i64() > lease["generation"].as_i64());
    // Longer than `leases.max_ttl` is shortened to it.
    let long = renew("worker-a", &sandbox, json!({"ttl": "10h"})).await.ok();
    let now = json!(server.engine.now().await.unwrap().to_string());
    assert!(between(&now, &long["lease"]["expires_at"]) <= 300_000, "{long}");
    assert!(time(&long["lease"]["expires_at"]) > time(&now));
    for (worker, resource) in [("worker-b", sandbox.as_str()), ("worker-a", "sb-00000000")] {
        let refused = renew(worker, resource, json!({"ttl": "60s"})).await.refused(409);
        assert_eq!(
            (&refused["code"], &refused["reason"]),
            (&json!("CONFLICT"), &json!("lease_stale")),
            "{worker} {resource}"
        );
    }
    for body in [json!({"ttl": "0"}), json!({"ttl": "soon"}), json!({"ttl": "-1s"})] {
        assert_eq!(renew("worker-a", &sandbox, body.clone()).await.status, 400, "{body}");
    }
}

async fn a_worker_is_drained_removed_and_comes_back(plane: Plane) {
    let server = &plane.server;
    let at = |rest: &str| format!("/api/v1/admin/workers/worker-a{rest}");
    let sandbox = plane.sandbox().await;
    let drained = server.post(&at("/drain"), json!({"reason": "maintenance"})).await.ok();
    assert_eq!((&drained["desired_status"], &drained["drain_reason"]), (&json!("draining"), &json!("maintenance")));
    let refused = server.post("/api/v1/sandboxes", json!({})).await.refused(429);
    assert_eq!((&refused["code"], &refused["reason"]), (&json!("RESOURCE_LIMIT"), &json!("worker_unavailable")));
    // What it holds goes on.
    assert_eq!(plane.exec(&sandbox, "echo still").await["stdout"], "still\n");
    server.post(&at("/undrain"), json!({})).await.ok();
    // A heartbeat from before may still say that it drains.
    let online = async || (server.get("/api/v1/workers/worker-a").await.ok()["status"] == "online").then_some(());
    tenure_testkit::wait_until("its next heartbeat says that it is online", crate::harness::SOON, online).await;
    let room = async || server.post("/api/v1/sandboxes", json!({})).await.status.is_success().then_some(());
    tenure_testkit::wait_until("it takes sandboxes again", crate::harness::SOON, room).await;
    assert_eq!(server.delete(&at("")).await.ok(), json!({"status": "deleted"}));
    let back = async || {
        let known = super::kit::workers(server).await;
        known.iter().any(|worker| worker["id"] == "worker-a").then_some(())
    };
    tenure_testkit::wait_until("its next heartbeat brings it back", crate::harness::SOON, back).await;
    assert_eq!(server.post("/api/v1/admin/workers/nobody/drain", json!({})).await.status, 404);
    assert_eq!(server.get("/api/v1/workers/nobody").await.status, 404);
}
