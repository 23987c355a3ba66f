//! Creating, templates, quotas, snapshots, and what operators see.

use reqwest::Method;
use serde_json::{Value, json};
use tenure_testkit::RawClient;

use super::kit::{Plane, id, server};
use crate::cases;
use crate::harness::{Home, SOON, between, time};

cases!(
    Plane,
    on_sqlite: [
        odd_bodies_are_refused_and_odd_types_read,
        a_list_has_pages,
        a_template_is_stored_changed_and_spawned,
        a_quota_limits_its_owner,
        operators_see_providers_figures_and_diagnostics,
        environments_are_empty,
        logs_and_stats_are_told,
    ],
    on_both_stores: [
        a_repeated_request_makes_one_sandbox,
        a_sandbox_is_extended_within_limits,
        snapshots_that_cannot_be_taken_leave_nothing,
        admission_says_what_would_happen,
    ],
);

async fn odd_bodies_are_refused_and_odd_types_read(plane: Plane) {
    let server = &plane.server;
    for body in [
        json!({"memory_mb": -1}),
        json!({"memory_mb": "much"}),
        json!({"vcpus": 1.5}),
        json!({"ttl": "soon"}),
        json!({"ttl": 7}),
        json!({"env": []}),
        json!({"template": "missing"}),
        json!({"allowed_hosts": ["example.com"]}),
        json!([]),
        json!("x"),
    ] {
        let refused = server.post("/api/v1/sandboxes", body.clone()).await;
        let status = refused.status.as_u16();
        assert!(
            status == 400 || (status == 404 && body.get("template").is_some()),
            "{body}: {status} {}",
            refused.body
        );
    }
    let limit = server.post("/api/v1/sandboxes", json!({"ttl": "48h"})).await.refused(429);
    assert_eq!(limit["reason"], "max_ttl");
    for (content_type, body) in
        [("text/plain", ""), ("application/x-www-form-urlencoded", "{\"image\":null,\"memory_mb\":0}")]
    {
        let url = format!("{}/api/v1/sandboxes/?wait=true&limit=", server.url);
        let answer =
            reqwest::Client::new().post(url).header("Content-Type", content_type).body(body).send().await.unwrap();
        assert_eq!(answer.status(), 201, "{content_type}");
    }
    // Announced only: the server does not read it, and a client that sends it may see its connection end first.
    let mut client = RawClient::connect(&server.url).await;
    let head = "POST /api/v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3145728\r\n\r\n";
    client.send(head).await.unwrap();
    let answer = client.read_until("request_id", SOON).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
}

async fn a_list_has_pages(plane: Plane) {
    let mut made = Vec::new();
    for _ in 0..3 {
        made.push(plane.sandbox().await);
    }
    let all = plane.server.get("/api/v1/sandboxes").await;
    assert_eq!(all.header("x-next-cursor"), "");
    let all: Vec<String> = all.ok().as_array().unwrap().iter().map(id).collect();
    made.reverse();
    assert_eq!(all, made);
    let first = plane.server.get("/api/v1/sandboxes?limit=2&state=running").await;
    let cursor = first.header("x-next-cursor").to_owned();
    assert_eq!(first.ok().as_array().unwrap().iter().map(id).collect::<Vec<_>>(), made[..2]);
    let rest = plane.server.get(&format!("/api/v1/sandboxes?limit=2&cursor={cursor}")).await;
    assert_eq!(rest.header("x-next-cursor"), "");
    assert_eq!(rest.ok().as_array().unwrap().iter().map(id).collect::<Vec<_>>(), made[2..]);
    assert_eq!(plane.server.get("/api/v1/sandboxes?state=idle").await.ok(), json!([]));
    for query in ["state=dancing", "limit=-1", "limit=x", "cursor=1", "cursor=1.sb-x"] {
        assert_eq!(plane.server.get(&format!("/api/v1/sandboxes?{query}")).await.status, 400, "{query}");
    }
    assert_eq!(plane.server.delete("/api/v1/sandboxes").await.ok(), json!({"pruned": 0}));
}

async fn a_repeated_request_makes_one_sandbox(plane: Plane) {
    let server = &plane.server;
    let create = async |key: &str, body: Value| {
        server.call(Method::POST, "/api/v1/sandboxes", &[("Idempotency-Key", key)], Some(&body)).await
    };
    let first = create("k-1", json!({"image": "a"})).await;
    let again = create("k-1", json!({"image": "a"})).await;
    assert_eq!((first.status.as_u16(), again.status.as_u16()), (201, 201));
    assert_eq!(id(&first.body), id(&again.body));
    assert_eq!(create("k-1", json!({"image": "b"})).await.refused(409)["code"], "CONFLICT");
    assert_ne!(id(&create("k-2", json!({"image": "a"})).await.ok()), id(&first.body));
    let soon = server.call(Method::POST, "/api/v1/sandboxes?wait=false", &[], Some(&json!({}))).await;
    assert_eq!((soon.status.as_u16(), &soon.body["state"]), (202, &json!("creating")));
    let path = format!("/api/v1/sandboxes/{}", id(&soon.body));
    let runs = async || (server.get(&path).await.ok()["state"] == "running").then_some(());
    tenure_testkit::wait_until("it runs", SOON, runs).await;
}

async fn a_sandbox_is_extended_within_limits(plane: Plane) {
    let sandbox = plane.create(json!({"ttl": "1m"})).await;
    assert_eq!(between(&sandbox["created_at"], &sandbox["expires_at"]), 60_000);
    let path = format!("/api/v1/sandboxes/{}/extend", id(&sandbox));
    let extended = plane.server.post(&path, json!({"ttl": "2h"})).await.ok();
    assert!(time(&extended["expires_at"]) > time(&sandbox["expires_at"]));
    for ttl in [json!("0"), json!(""), json!("-1h"), json!("soon"), json!("48h"), json!(null)] {
        assert_eq!(plane.server.post(&path, json!({"ttl": ttl})).await.status, 400, "{ttl}");
    }
    assert_eq!(plane.server.post("/api/v1/sandboxes/sb-00000000/extend", json!({"ttl": "1h"})).await.status, 404);
}

async fn admission_says_what_would_happen(plane: Plane) {
    let decision = plane.server.post("/api/v1/sandboxes/admission", json!({})).await.ok();
    assert_eq!(
        decision,
        json!({"allowed": true, "queueable": false, "active_sandboxes": 0, "max_sandboxes": 0, "max_ttl": "24h0m0s"})
    );
    let explained =
        plane.server.post("/api/v1/sandboxes/admission?explain=true", json!({"owner_id": "ann"})).await.ok();
    assert_eq!((&explained["selected_worker_id"], &explained["eligible_workers"]), (&json!("worker-a"), &json!(1)));
    assert_eq!(explained["active_owner_sandboxes"], 0);
    let refused = plane.server.post("/api/v1/sandboxes/admission", json!({"ttl": "48h"})).await.ok();
    assert_eq!((&refused["allowed"], &refused["reason"]), (&json!(false), &json!("max_ttl")));
    let refused = plane.server.post("/api/v1/sandboxes/admission", json!({"provider": "docker"})).await.ok();
    assert_eq!((&refused["allowed"], &refused["reason"]), (&json!(false), &json!("worker_unavailable")));
}

async fn a_template_is_stored_changed_and_spawned(plane: Plane) {
    let server = &plane.server;
    let template = json!({"name": "py", "image": "python", "env": {"GREETING": "hi"}, "setup": ["echo made > made"], "ttl": "10m",
        "vcpus": 2, "metadata": {"of": "template"}});
    let made = server.post("/api/v1/templates", template.clone()).await;
    assert_eq!((made.status.as_u16(), &made.body["version"]), (201, &json!(1)), "{}", made.body);
    assert_eq!(
        (&made.body["cpu_cores"], &made.body["ttl_seconds"], &made.body["memory_mb"]),
        (&json!(2), &json!(600), &json!(512))
    );
    let twice = server.post("/api/v1/templates", template).await.refused(409);
    assert!(twice["message"].as_str().unwrap().contains("already exists"));
    let sandbox = server.post("/api/v1/templates/py/spawn", json!({"ttl": "1m"})).await;
    assert_eq!(
        (sandbox.status.as_u16(), &sandbox.body["metadata"]),
        (201, &json!({"of": "template"})),
        "{}",
        sandbox.body
    );
    let told = plane.exec(&id(&sandbox.body), "cat made; echo $GREETING").await;
    assert_eq!(told["stdout"], "made\nhi\n");
    let changed = server.put("/api/v1/templates/py", json!({"image": "python:3"})).await.ok();
    assert_eq!((&changed["version"], &changed["image"]), (&json!(2), &json!("python:3")));
    assert_eq!(server.get("/api/v1/templates").await.ok().as_array().unwrap().len(), 1);
    assert_eq!(server.get("/api/v1/pool/status").await.ok(), json!({"enabled": false}));
    assert_eq!(server.delete("/api/v1/templates/py").await.ok(), json!({"status": "deleted"}));
    for path in ["/api/v1/templates/py", "/api/v1/templates/a%00b"] {
        assert!([400, 404].contains(&server.get(path).await.status.as_u16()), "{path}");
    }
    assert_eq!(server.post("/api/v1/templates", json!({"name": "a b", "image": "x"})).await.status, 400);
}

async fn a_quota_limits_its_owner(plane: Plane) {
    let server = &plane.server;
    let set = server
        .put("/api/v1/quotas/ann", json!({"max_sandboxes": 1, "max_ttl": "1h", "max_exec_timeout": "500ms"}))
        .await
        .ok();
    assert_eq!(
        (&set["owner_id"], &set["max_ttl"], &set["max_exec_timeout"]),
        (&json!("ann"), &json!("1h0m0s"), &json!("1s"))
    );
    let ann = [("X-User-ID", "ann")];
    let create = async |body: Value| server.call(Method::POST, "/api/v1/sandboxes", &ann, Some(&body)).await;
    assert_eq!(create(json!({"ttl": "2h"})).await.refused(429)["reason"], "max_ttl");
    let sandbox = create(json!({})).await.ok();
    let refused = create(json!({})).await.refused(429);
    assert_eq!((&refused["code"], &refused["reason"]), (&json!("RESOURCE_LIMIT"), &json!("max_sandboxes_per_owner")));
    let path = format!("/api/v1/sandboxes/{}/exec", id(&sandbox));
    assert_eq!(
        server.post(&path, json!({"command": "sleep 30", "timeout": "20s"})).await.refused(408)["code"],
        "TIMEOUT"
    );
    let usage = server.get("/api/v1/quotas/ann/usage").await.ok();
    assert_eq!(
        (&usage["active_sandboxes"], &usage["max_sandboxes"], &usage["quota_configured"]),
        (&json!(1), &json!(1), &json!(true))
    );
    let summary = json!({"total": 1, "with_max_sandboxes": 1, "with_max_ttl": 1, "with_max_exec_timeout": 1});
    for path in ["/api/v1/quotas/summary", "/api/v1/admin/quotas/summary"] {
        assert_eq!(server.get(path).await.ok(), summary);
    }
    assert_eq!(server.get("/api/v1/quotas").await.ok().as_array().unwrap().len(), 1);
    assert_eq!(server.delete("/api/v1/quotas/ann").await.ok(), json!({"status": "deleted"}));
    assert_eq!(server.get("/api/v1/quotas/ann").await.status, 404);
    create(json!({"ttl": "2h"})).await.ok();
    assert_eq!(server.put("/api/v1/quotas/ann", json!({"max_ttl": "soon"})).await.status, 400);
}

/// The provider `process` takes none; archives are covered by the tests of the manager.
async fn snapshots_that_cannot_be_taken_leave_nothing(plane: Plane) {
    let server = &plane.server;
    let sandbox = plane.sandbox().await;
    let at = |rest: &str| format!("/api/v1/sandboxes/{sandbox}{rest}");
    let refused = server.post(&at("/snapshots"), json!({"name": "first"})).await;
    assert_eq!((refused.status.as_u16(), &refused.body["code"]), (400, &json!("BAD_REQUEST")), "{}", refused.body);
    for path in ["/api/v1/snapshots".to_owned(), at("/snapshots")] {
        assert_eq!(server.get(&path).await.ok(), json!([]), "{path}");
    }
    assert_eq!(server.get("/api/v1/sandboxes/sb-00000000/snapshots").await.status, 404);
    for id in ["snap-00000000", "snap-x", "sb-00000000"] {
        assert_eq!(server.get(&format!("/api/v1/snapshots/{id}")).await.status, 404, "{id}");
        assert_eq!(server.delete(&format!("/api/v1/snapshots/{id}")).await.status, 404, "{id}");
        assert_eq!(server.post(&at("/restore"), json!({"snapshot": id})).await.status, 404, "{id}");
        assert_eq!(server.post("/api/v1/sandboxes", json!({"snapshot": id})).await.status, 404, "{id}");
    }
    assert_eq!(server.post(&at("/restore"), json!({})).await.status, 400);
    assert_eq!(server.post(&at("/snapshots"), json!({"name": "a\u{7}"})).await.status, 400);
}

async fn operators_see_providers_figures_and_diagnostics(plane: Plane) {
    let server = &plane.server;
    plane.sandbox().await;
    let providers = server.get("/api/v1/providers").await.ok();
    let only = &providers[0];
    assert_eq!((&only["name"], &only["healthy"], &only["default"]), (&json!("process"), &json!(true), &json!(true)));
    assert_eq!(server.post("/api/v1/providers/test", json!({})).await.ok(), json!({"process": true}));
    // The alias names the same provider.
    let info = server.get("/api/v1/providers/mock").await.ok();
    assert_eq!((&info["name"], &info["sandbox_count"], &info["config"]), (&json!("mock"), &json!(1), &json!({})));
    assert_eq!(server.get("/api/v1/providers/none").await.status, 404);
    let metrics = server.get("/api/v1/metrics").await.ok();
    for key in [
        "uptime",
        "goroutines",
        "memory_alloc",
        "memory_sys",
        "memory_heap_alloc",
        "gc_cycles",
        "sandboxes",
        "providers",
        "workers",
        "leases",
        "events",
        "operations",
        "scheduler",
        "quotas",
        "rate_limit",
    ] {
        assert!(metrics.get(key).is_some(), "{key}");
    }
    assert_eq!((&metrics["sandboxes"]["total"], &metrics["sandboxes"]["by_state"]["running"]), (&json!(1), &json!(1)));
    let state = server.get("/api/v1/diagnostics").await.ok();
    for (key, is_list) in [
        ("providers", true),
        ("redactions", true),
        ("operations", true),
        ("build", false),
        ("process", false),
        ("store", false),
        ("limits", false),
        ("scheduler", false),
        ("quotas", false),
        ("rate_limit", false),
        ("workers", false),
        ("leases", false),
        ("sandboxes", false),
        ("events", false),
        ("remediation", false),
    ] {
        assert_eq!((state[key].is_array(), state[key].is_object()), (is_list, !is_list), "{key}: {}", state[key]);
    }
    assert!(!state.to_string().contains(crate::harness::TOKEN));
    let stats = server.get("/api/v1/system/stats").await.ok();
    assert_eq!(stats.as_object().unwrap().len(), 6);
    let text = server.get("/api/v1/metrics/prometheus").await.ok().as_str().unwrap().to_owned();
    assert!(text.contains("tenure_provider_healthy{provider=\"process\"} 1\n"), "{text}");
    assert!(text.contains("tenure_uptime_seconds ") && !text.contains("stacyvm_"), "{text}");
    let ready = server.get("/api/v1/ready").await.ok();
    assert_eq!((&ready["ready_providers"], &ready["total_providers"]), (&json!(1), &json!(1)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_a_worker_of_its_own_is_ready_when_a_provider_works() {
    for (is_local, status) in [(false, 200), (true, 503)] {
        let server = server(Home::Sqlite(tempfile::tempdir().unwrap()), |config| {
            config.sandboxes.as_mut().unwrap().is_local = is_local;
        })
        .await;
        assert_eq!(server.get("/api/v1/ready").await.status.as_u16(), status);
    }
}

async fn environments_are_empty(plane: Plane) {
    for path in ["/api/v1/environments", "/api/v1/environments/specs/"] {
        assert_eq!(plane.server.get(path).await.ok(), json!([]));
    }
    assert_eq!(plane.server.get("/api/v1/environments/specs/x").await.refused(501)["code"], "UNAVAILABLE");
    assert_eq!(plane.server.post("/api/v1/environments/specs", json!({})).await.status, 501);
}

async fn logs_and_stats_are_told(plane: Plane) {
    let sandbox = plane.sandbox().await;
    let at = |rest: &str| format!("/api/v1/sandboxes/{sandbox}{rest}");
    assert!(plane.server.get(&at("/logs?lines=5")).await.ok().is_array());
    assert_eq!(plane.server.get(&at("/logs?lines=x")).await.status, 400);
    let stats = plane.server.get(&at("/stats")).await.ok();
    assert!(stats["supported"].is_boolean(), "{stats}");
}
