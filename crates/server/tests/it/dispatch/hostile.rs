//! Hostile clients: endless bodies, invalid values, credentials of others, too many requests at once.

use reqwest::Method;
use serde_json::{Value, json};
use tenure_engine::dags::NewVersion;
use tenure_testkit::{RawClient, wait_until};

use super::kit::{self, Claim, ORG, Plane};
use crate::cases;
use crate::harness::{SOON, TOKEN};
use crate::identity::people::{ADMIN, USER, with_users};

cases!(
    kit,
    on_sqlite: [
        bodies_without_end_are_cut_off,
        half_bodies_hold_up_nobody,
        pollers_of_one_tenant_do_not_hold_up_another,
        values_that_are_no_values_are_refused,
        names_that_look_like_others_are_refused,
        each_principal_has_its_own_routes,
    ],
    on_both_stores: [texts_with_nul_break_nothing],
);

/// A request whose body does not end, to each route that reads one of up to 1 MiB.
fn endless(claim: &Claim) -> Vec<String> {
    let head = |path: &str, more: &str| {
        format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Type: application/json\r\n{more}\r\n"
        )
    };
    let worker = format!("X-Trace-Worker-Token: {TOKEN}\r\n");
    let task = format!("X-Trace-Task-Capability: {}\r\n", claim.token());
    vec![
        head("/internal/task-complete", &worker),
        head("/internal/events", &worker),
        head("/v1/task/complete", &task),
        head("/v1/task/events", &task),
        head("/internal/task-logs", &worker),
        head("/v1/task/logs", &task),
        head("/api/v1/dags", ""),
        head("/api/v1/dags/chain/jobs/import/trigger", ""),
        head("/api/v1/webhooks/nobody/knows", ""),
    ]
}

async fn bodies_without_end_are_cut_off(plane: Plane) {
    plane.deploy(kit::CHAIN).await;
    let claim = plane.claim(&plane.fire("r-1").await).await;
    let chunk = format!("{:x}\r\n{}\r\n", 64 << 10, " ".repeat(64 << 10));
    for head in endless(&claim) {
        let mut client = RawClient::connect(&plane.url).await;
        client.send(&head).await.unwrap();
        let mut sent = 0;
        // It hangs up when it has read and dropped 64 MiB: at the most what the systems between have room for comes on top.
        while sent < 96 << 20 && client.send(&chunk).await.is_ok() {
            sent += 64 << 10;
        }
        assert!(sent < 96 << 20, "{head}: it reads for ever");
    }
    // One that is announced is not read at all, whoever sends it.
    for head in endless(&claim) {
        let mut client = RawClient::connect(&plane.url).await;
        let announced = head.replace("Transfer-Encoding: chunked", &format!("Content-Length: {}", (1 << 20) + 1));
        client.send(announced).await.unwrap();
        let answer = client.read_until("request_id", SOON).await;
        assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("body_too_large"), "{head}: {answer}");
    }
    plane.beat(&claim).await.ok();
}

async fn half_bodies_hold_up_nobody(plane: Plane) {
    plane.deploy(kit::CHAIN).await;
    let claim = plane.claim(&plane.fire("r-1").await).await;
    let mut clients = Vec::new();
    for n in 0..20 {
        for head in endless(&claim) {
            let mut client = RawClient::connect(&plane.url).await;
            let half = head.replace("Transfer-Encoding: chunked", "Content-Length: 1000");
            client.send(half).await.unwrap();
            client.send(&"{".repeat(n)).await.unwrap();
            clients.push(client);
        }
    }
    plane.beat(&claim).await.ok();
    plane.events(&claim, json!([claim.event(0, json!({"partition_key": "1-5"}))])).await.ok();
    plane.complete(&claim, json!({"status": "Completed"})).await.ok();
    plane.nth("decode", 1).await;
    drop(clients);
}

/// A manual source of a worker pool.
fn pool(name: &str) -> String {
    format!(
        "name: {name}\njobs:\n  - {{ name: work, activation: source, runtime: worker, operator: work, outputs: 0, \
         source: {{ kind: manual }}, scaling: {{ worker_pool: {name} }} }}\n"
    )
}

async fn pollers_of_one_tenant_do_not_hold_up_another(plane: Plane) {
    for org in ["many", "one"] {
        let version = NewVersion { org, yaml: &pool(org), manual: false, dry_run: false };
        plane.dags.deploy(version).await.unwrap();
    }
    let ask = |queue: &str| {
        let url = format!("{}/internal/task-wakeups?queue=worker.{queue}&wait_seconds=20", plane.url);
        let request = reqwest::Client::new().get(url).header("X-Trace-Worker-Token", TOKEN);
        tokio::spawn(async move { request.send().await.unwrap().json::<Value>().await.unwrap() })
    };
    let mut crowd: Vec<_> = (0..300).map(|_| ask("many")).collect();
    wait_until("a crowd waits", SOON, async || plane.engine.claims_waiting() >= 300).await;
    let alone = ask("one");
    wait_until("one more waits", SOON, async || plane.engine.claims_waiting() >= 301).await;
    let trigger = async |org: &str, request: &str| {
        plane.dags.trigger(org, org, "work", &request.into(), None).await.unwrap().task.to_string()
    };
    let task = trigger("one", "r-1").await;
    assert_eq!(alone.await.unwrap(), json!({"messages": [{"task_id": task}]}));
    assert!(crowd.iter().all(|poll| !poll.is_finished()), "nobody else was told");
    // Nor does a crowd get more than there is.
    let task = trigger("many", "r-1").await;
    let told = wait_until("somebody was told", SOON, async || crowd.iter().position(|poll| poll.is_finished())).await;
    assert_eq!(crowd.swap_remove(told).await.unwrap(), json!({"messages": [{"task_id": task}]}));
    crowd.iter().for_each(tokio::task::JoinHandle::abort);
}

async fn values_that_are_no_values_are_refused(plane: Plane) {
    plane.deploy(kit::CHAIN).await;
    let claim = plane.claim(&plane.fire("r-1").await).await;
    let task = claim.task();
    let version = &claim["task"]["outputs"][1]["dataset_version"];
    let dataset = &claim["task"]["outputs"][1]["dataset_uuid"];
    let deep = |open: &str, close: &str| format!("{}{}", open.repeat(5_000), close.repeat(5_000));
    let attempt = format!("\"task_id\":\"{task}\",\"lease_token\":{}", claim["lease_token"]);
    let event = |at: &str| {
        format!(
            "{{{attempt},\"attempt\":1,\"status\":\"Completed\",\"events\":[{{\"dataset_uuid\":{dataset},\"dataset_version\":{version},{at}}}]}}"
        )
    };
    let state = |state: &str| {
        format!("{{{attempt},\"attempt\":1,\"status\":\"Completed\",\"events\":[],\"operator_state\":{state}}}")
    };
    let number = |number: &str| format!("{{{attempt},\"attempt\":{number},\"status\":\"Completed\",\"events\":[]}}");
    for (body, statuses) in [
        (deep("[", "]"), [400, 400]),
        (deep("{\"a\":", "}"), [400, 400]),
        (state(&deep("{\"a\":", "}")), [400, 400]),
        (number("1e400"), [400, 400]),
        (number("1.5"), [400, 400]),
        (number("-1"), [400, 400]),
        (number("4294967296"), [400, 400]),
        (number("\"1\""), [400, 400]),
        (number("0"), [400, 400]),
        (event("\"cursor\":9223372036854775808"), [422, 422]),
        (event("\"cursor\":99999999999999999999999999999999"), [422, 422]),
        (event("\"cursor\":1e3"), [422, 422]),
        (event("\"cursor\":-1"), [422, 422]),
        (event("\"partition_key\":\"\""), [422, 422]),
        (event(&format!("\"partition_key\":\"{}\"", "x".repeat(257))), [422, 422]),
        (event("\"partition_key\":\"a\\u0000b\""), [422, 422]),
        (event("\"partition_key\":\"1\\u202e5-\""), [422, 422]),
        (event("\"partition_key\":\"01-05\",\"start\":1"), [422, 422]),
        (event("\"partition_key\":\"../../etc\""), [422, 422]),
    ] {
        for (call, status) in ["complete", "events"].into_iter().zip(statuses) {
            let token = [("X-Trace-Task-Capability", claim.token())];
            let answer = plane.send(&format!("/v1/task/{call}"), &token, body.clone()).await;
            // Midway there is no state, and it is not looked at.
            let ignored = call == "events" && body.contains("operator_state") && answer.status.is_success();
            assert!(ignored || answer.status.as_u16() == status, "{call}: {} {}", answer.status, answer.body);
        }
    }
    assert_eq!(plane.fetch(task).await.ok()["status"], "Running", "nothing of it counted");
    assert_eq!(plane.count("page").await, 0);
}

async fn texts_with_nul_break_nothing(plane: Plane) {
    plane.deploy(kit::CHAIN).await;
    let nul = "a\u{0}b";
    let task = plane.fire("r-1").await;
    for claim in [
        json!({"task_id": nul}),
        json!({"task_id": task, "worker_id": nul}),
        json!({"task_id": task, "worker_id": "w", "claim_id": nul}),
    ] {
        let refused = plane.internal("task-claim", claim.clone()).await;
        assert_eq!(refused.refused(400)["error"], "malformed_request", "{claim}");
    }
    let claim = plane.claim(&task).await;
    // Where it is data it is kept, or left out where a store has no room for it.
    let failed = json!({"status": "Failed", "error": {"category": nul, "message": nul, "stack": nul}});
    let first = plane.complete(&claim, failed.clone()).await.ok();
    assert_eq!(plane.complete(&claim, failed).await.ok(), first);
    let claim = plane.claim(&plane.fire("r-2").await).await;
    let invalidation = json!({"dataset_uuid": claim["task"]["outputs"][0]["dataset_uuid"], "scope": "row_range",
        "row_filter": {"name": {"gte": nul}}, "reason": "manual"});
    let body = json!({"status": "Completed", "operator_state": {"a": nul}, "invalidations": [invalidation]});
    plane.complete(&claim, body).await.ok();
    let next = plane.claim(&plane.fire("r-3").await).await;
    assert_eq!(next["task"]["operator_state"], json!({"a": nul}));
}

async fn names_that_look_like_others_are_refused(plane: Plane) {
    for name in ["ch\u{430}in", "chain\u{202e}", "\u{feff}chain", "ch\u{200b}ain", "CHAIN", "chain ", "cha\u{0}in"] {
        let yaml = kit::CHAIN.replacen("name: chain", &format!("name: {}", json!(name)), 1);
        let refused = plane.send("/api/v1/dags", &[("Content-Type", "application/yaml")], yaml).await.refused(422);
        assert_eq!(refused["error"], "invalid_dag", "{name:?}");
    }
    plane.deploy(kit::CHAIN).await;
    for name in ["ch%D0%B0in", "chain%E2%80%AE", "chain%20", "CHAIN", "chain%00", ".%2Fchain"] {
        assert_eq!(plane.get(&format!("/api/v1/dags/{name}")).await.status.as_u16(), 404, "{name}");
        let path = format!("/api/v1/dags/{name}/jobs/import/trigger");
        assert_eq!(plane.post(&path, json!({})).await.status.as_u16(), 404, "{name}");
    }
    assert_eq!(plane.dags.view(ORG).await.unwrap().deployment.dags.len(), 1);
}

async fn each_principal_has_its_own_routes(plane: Plane) {
    plane.deploy(kit::CHAIN).await;
    let claim = plane.claim(&plane.fire("r-1").await).await;
    with_users(&plane);
    let bearer = format!("Bearer {}", claim.token());
    let (worker_bearer, user_bearer) = (format!("Bearer {TOKEN}"), format!("Bearer {}", USER.1));
    let credentials = [
        ("worker", vec![("X-Trace-Worker-Token", TOKEN)]),
        ("worker", vec![("X-Worker-ID", kit::WORKER), ("X-Worker-Token", TOKEN)]),
        ("worker", vec![("Authorization", &*worker_bearer)]),
        ("task", vec![("X-Trace-Task-Capability", claim.token())]),
        ("task", vec![("Authorization", &*bearer)]),
        ("user", vec![USER]),
        ("user", vec![ADMIN]),
        ("nobody", vec![("Authorization", &*user_bearer)]),
        ("nobody", vec![("X-Trace-Worker-Token", USER.1)]),
        ("nobody", vec![("X-Trace-Worker-Token", claim.token())]),
        ("nobody", vec![("X-Trace-Task-Capability", TOKEN)]),
        ("nobody", vec![("X-API-Key", TOKEN)]),
        ("nobody", vec![("X-API-Key", claim.token())]),
        ("nobody", vec![]),
    ];
    let fetch = format!("/internal/task-fetch?task_id={}", claim.task());
    let routes = [
        ("worker", Method::POST, "/internal/task-claim"),
        ("worker", Method::GET, &*fetch),
        ("worker", Method::GET, "/internal/task-wakeups?queue=other&wait_seconds=0"),
        ("worker", Method::POST, "/internal/heartbeat"),
        ("worker", Method::POST, "/internal/events"),
        ("task", Method::POST, "/v1/task/heartbeat"),
        ("task", Method::POST, "/v1/task/events"),
        ("worker", Method::POST, "/internal/task-logs"),
        ("task", Method::POST, "/v1/task/logs"),
        ("user", Method::GET, "/api/v1/dags"),
        ("user", Method::GET, "/api/v1/dags/chain"),
        ("user", Method::GET, "/api/v1/datasets"),
        ("user", Method::POST, "/api/v1/dags/chain/jobs/import/trigger"),
        ("worker", Method::POST, "/internal/task-complete"),
        ("task", Method::POST, "/v1/task/complete"),
    ];
    for (owner, method, path) in &routes {
        for (who, headers) in &credentials {
            let mut body = claim.with(json!({"worker_id": kit::WORKER, "status": "Completed", "request_id": "r-9"}));
            if path.starts_with("/v1/task") {
                body.as_object_mut().unwrap().remove("worker_id");
            }
            let body = (*method == Method::POST).then_some(&body);
            let answer = plane.call(method.clone(), path, headers, body).await;
            let is_let_in = answer.status.as_u16() != 401;
            assert_eq!(is_let_in, owner == who, "{who} {headers:?} at {path}: {} {}", answer.status, answer.body);
            assert!(answer.status.as_u16() < 500, "{path}: {}", answer.body);
        }
    }
}
