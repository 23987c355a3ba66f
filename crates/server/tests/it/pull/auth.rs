//! Who is let in, and as whom.

use std::collections::HashMap;

use reqwest::Method;
use serde_json::{Value, json};
use tenure_auth::{Anonymous, Secret, UserAuth, WorkerAuth};

use crate::cases;
use crate::harness::{Server, TOKEN};

cases!(
    Server,
    on_sqlite: [
        each_way_to_be_a_worker,
        anonymous_workers_need_no_token,
        networks_of_workers_need_no_token,
        without_a_worker_credential_nobody_claims,
        each_way_to_be_a_user,
        worker_tokens_do_not_open_the_user_api,
        api_keys_do_not_open_the_worker_api,
        probes_need_no_key,
    ],
);

async fn with_tokens(server: Server) -> Server {
    server
        .restart_with(|config, _| {
            config.access.update(|access| {
                access.workers = WorkerAuth {
                    shared: Secret::new(TOKEN),
                    per_worker: HashMap::from([("w-own".to_owned(), Secret::new("own-token").unwrap())]),
                    ..WorkerAuth::default()
                };
                access.users = UserAuth {
                    enabled: true,
                    api_key: Secret::new("user-key"),
                    admin_api_key: Secret::new("admin-key"),
                    ..UserAuth::default()
                };
            });
        })
        .await
}

async fn claim_as(server: &Server, headers: &[(&str, &str)], worker: &str) -> (u16, Value) {
    let claim = json!({"worker_id": worker, "streams": ["q"], "max_wait_ms": 0});
    let answer = server.call(Method::POST, "/internal/worker/claim", headers, Some(&claim)).await;
    (answer.status.as_u16(), answer.body["error"].clone())
}

/// Headers, the id in the body, the status, and the word of the refusal.
type Case<'a> = (&'a [(&'a str, &'a str)], &'a str, u16, Value);

async fn each_way_to_be_a_worker(server: Server) {
    let server = with_tokens(server).await;
    let bearer = format!("Bearer {TOKEN}");
    let lower = format!("bearer {TOKEN}");
    let basic = format!("Basic {TOKEN}");
    let (token, id, auth, trace) = ("X-Worker-Token", "X-Worker-ID", "Authorization", "X-Trace-Worker-Token");
    let cases: &[Case<'_>] = &[
        // The shared token, in each of its places, with and without a name beside it.
        (&[(token, TOKEN)], "w-1", 200, Value::Null),
        (&[(token, TOKEN), (id, "w-1")], "w-1", 200, Value::Null),
        (&[(auth, &bearer)], "w-1", 200, Value::Null),
        (&[(auth, &lower), (id, "w-1")], "w-1", 200, Value::Null),
        (&[(trace, TOKEN)], "w-1", 200, Value::Null),
        (&[(trace, TOKEN), (token, TOKEN)], "w-1", 200, Value::Null),
        // A worker's own token, which also names it.
        (&[(token, "own-token")], "w-own", 200, Value::Null),
        (&[(token, "own-token"), (id, "w-own")], "w-own", 200, Value::Null),
        (&[(auth, "Bearer own-token")], "w-own", 200, Value::Null),
        // Nobody.
        (&[], "w-1", 401, json!("missing_worker_token")),
        (&[(id, "w-1")], "w-1", 401, json!("missing_worker_token")),
        (&[(auth, &basic)], "w-1", 401, json!("missing_worker_token")),
        (&[(token, "wrong")], "w-1", 401, json!("invalid_worker_token")),
        (&[(token, "")], "w-1", 401, json!("invalid_worker_token")),
        (&[(auth, "Bearer wrong")], "w-1", 401, json!("invalid_worker_token")),
        (&[(trace, "wrong")], "w-1", 401, json!("invalid_worker_token")),
        (&[(trace, "other"), (token, TOKEN)], "w-1", 401, json!("invalid_worker_token")),
        // The own token does not open by the header that takes the shared one only, nor for another name.
        (&[(trace, "own-token")], "w-own", 401, json!("invalid_worker_token")),
        (&[(token, "own-token"), (id, "w-1")], "w-1", 401, json!("invalid_worker_token")),
        // Who has a token of its own needs it.
        (&[(token, TOKEN), (id, "w-own")], "w-own", 401, json!("invalid_worker_token")),
        (&[(token, TOKEN)], "w-own", 401, json!("invalid_worker_token")),
        // Let in, and speaking as another.
        (&[(token, TOKEN), (id, "w-1")], "w-2", 403, json!("worker_mismatch")),
        (&[(token, "own-token")], "w-1", 403, json!("worker_mismatch")),
        (&[(token, "own-token"), (id, "w-own")], "w-1", 403, json!("worker_mismatch")),
    ];
    for (headers, worker, status, error) in cases {
        assert_eq!(claim_as(&server, headers, worker).await, (*status, error.clone()), "{headers:?} as {worker}");
    }
    // Every call of the contract asks.
    for call in ["claim", "heartbeat", "complete", "fail", "exchange"] {
        let path = format!("/internal/worker/{call}");
        let answer = server.call(Method::POST, &path, &[], Some(&json!({}))).await;
        assert_eq!((answer.status.as_u16(), &answer.body["error"]), (401, &json!("missing_worker_token")), "{call}");
    }
    let turn = json!({"worker_id": "w-2"});
    let answer = server.call(Method::POST, "/internal/worker/exchange", &[(token, "own-token")], Some(&turn)).await;
    assert_eq!((answer.status.as_u16(), &answer.body["error"]), (403, &json!("worker_mismatch")));
}

async fn anonymous_workers_need_no_token(server: Server) {
    let server = server
        .restart_with(|config, _| {
            let anonymous = WorkerAuth { anonymous: Anonymous::Everyone, ..WorkerAuth::default() };
            config.access.update(|access| access.workers = anonymous);
        })
        .await;
    assert_eq!(claim_as(&server, &[], "w-1").await.0, 200);
    assert_eq!(claim_as(&server, &[("X-Worker-ID", "w-1")], "w-1").await.0, 200);
    assert_eq!(claim_as(&server, &[("X-Worker-ID", "w-1")], "w-2").await, (403, json!("worker_mismatch")));
    assert_eq!(claim_as(&server, &[("X-Worker-Token", "any")], "w-1").await, (401, json!("invalid_worker_token")));
}

async fn without_a_worker_credential_nobody_claims(server: Server) {
    let server =
        server.restart_with(|config, _| config.access.update(|access| access.workers = WorkerAuth::default())).await;
    assert_eq!(
        claim_as(&server, &[("X-Worker-Token", "any")], "w-1").await,
        (503, json!("worker_auth_not_configured"))
    );
    assert_eq!(claim_as(&server, &[], "w-1").await, (503, json!("worker_auth_not_configured")));
}

async fn networks_of_workers_need_no_token(server: Server) {
    let networks = |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect::<Vec<ipnet::IpNet>>();
    let set = |workers: &[&str], proxies: &[&str]| {
        server.config.access.update(|access| {
            access.workers = WorkerAuth { anonymous: Anonymous::From(networks(workers)), ..WorkerAuth::default() };
            access.trusted_proxies = networks(proxies);
        });
    };
    let claim = async |headers: &[(&str, &str)]| {
        let body = json!({"worker_id": "w-1", "streams": ["q"], "max_wait_ms": 0});
        server.call(Method::POST, "/internal/worker/claim", headers, Some(&body)).await.status.as_u16()
    };
    let forwarded = |address: &'static str| [("X-Forwarded-For", address)];
    set(&["127.0.0.0/8"], &[]);
    assert_eq!(claim(&[]).await, 200);
    assert_eq!(claim(&[("X-Worker-Token", "wrong")]).await, 401, "a token that is sent counts");
    set(&["10.1.0.0/16"], &[]);
    assert_eq!(claim(&[]).await, 401);
    for header in ["X-Forwarded-For", "Forwarded", "X-Real-IP", "X-Client-IP"] {
        assert_eq!(claim(&[(header, "10.1.0.1")]).await, 401, "anybody can write {header}");
    }
    // A trusted proxy says who asks, and is nobody by itself.
    set(&["10.1.0.0/16", "127.0.0.0/8"], &["127.0.0.1/32"]);
    assert_eq!(claim(&forwarded("10.1.0.1")).await, 200);
    assert_eq!(claim(&forwarded("10.2.0.1")).await, 401);
    assert_eq!(claim(&forwarded("10.1.0.1, 10.2.0.1")).await, 401, "only the last one was written by the proxy");
    assert_eq!(claim(&forwarded("rubbish")).await, 401);
    assert_eq!(claim(&[]).await, 401);
}

async fn each_way_to_be_a_user(server: Server) {
    let server = with_tokens(server).await;
    for (headers, status, error) in [
        (vec![("X-API-Key", "user-key")], 200, Value::Null),
        (vec![("X-API-Key", "admin-key")], 200, Value::Null),
        (vec![("X-Admin-API-Key", "admin-key")], 200, Value::Null),
        (vec![("X-Admin-API-Key", "admin-key"), ("X-API-Key", "user-key")], 200, Value::Null),
        (vec![], 401, json!("missing_api_key")),
        (vec![("X-API-Key", "wrong")], 401, json!("invalid_api_key")),
        (vec![("X-Admin-API-Key", "user-key")], 200, Value::Null),
        (vec![("X-Admin-API-Key", ""), ("X-API-Key", "user-key")], 200, Value::Null),
        (vec![("X-Admin-API-Key", "wrong"), ("X-API-Key", "user-key")], 200, Value::Null),
        (vec![("X-API-Key", "")], 401, json!("missing_api_key")),
        (vec![("X-API-Key", " "), ("Authorization", "Bearer ")], 401, json!("missing_api_key")),
        (vec![("X-Admin-API-Key", "wrong"), ("X-API-Key", "")], 401, json!("invalid_api_key")),
        (vec![("X-Admin-API-Key", "wrong"), ("X-API-Key", "wrong")], 401, json!("invalid_api_key")),
    ] {
        let answer = server.call(Method::GET, "/api/v1/tasks", &headers, None).await;
        assert_eq!((answer.status.as_u16(), answer.body["error"].clone()), (status, error), "{headers:?}");
        if status == 401 {
            assert_eq!(answer.body["code"], "UNAUTHORIZED");
        }
    }
    // Every call of the user API asks, also for what does not exist.
    let id = "018c385a-9fb1-9509-0e89-33fe3b7b1aa9";
    for (method, path) in user_calls(id) {
        let answer = server.call(method.clone(), &path, &[], Some(&json!({}))).await;
        assert_eq!(
            (answer.status.as_u16(), &answer.body["error"]),
            (401, &json!("missing_api_key")),
            "{method} {path}"
        );
    }
}

fn user_calls(id: &str) -> Vec<(Method, String)> {
    let mut calls = vec![
        (Method::GET, "/api/v1/tasks".to_owned()),
        (Method::POST, "/api/v1/tasks".to_owned()),
        (Method::POST, "/api/v1/tasks/batch".to_owned()),
        (Method::GET, "/api/v1/queues".to_owned()),
        (Method::GET, "/api/v1/queues/q".to_owned()),
        (Method::PUT, "/api/v1/queues/q".to_owned()),
        (Method::POST, "/api/v1/queues/q/pause".to_owned()),
        (Method::POST, "/api/v1/queues/q/resume".to_owned()),
        (Method::GET, "/api/v1/dead-letters".to_owned()),
        (Method::POST, "/api/v1/dead-letters/redrive".to_owned()),
        (Method::GET, "/api/v1/events".to_owned()),
        (Method::GET, format!("/api/v1/tasks/{id}")),
    ];
    calls.extend(["attempts", "why"].map(|call| (Method::GET, format!("/api/v1/tasks/{id}/{call}"))));
    calls.extend(["cancel", "retry"].map(|call| (Method::POST, format!("/api/v1/tasks/{id}/{call}"))));
    calls
}

async fn worker_tokens_do_not_open_the_user_api(server: Server) {
    let server = with_tokens(server).await;
    let bearer = format!("Bearer {TOKEN}");
    for (method, path) in user_calls("018c385a-9fb1-9509-0e89-33fe3b7b1aa9") {
        for headers in [
            vec![("X-API-Key", TOKEN)],
            vec![("X-Admin-API-Key", TOKEN)],
            vec![("X-API-Key", "own-token")],
            vec![("X-Worker-Token", TOKEN), ("X-Worker-ID", "w-1")],
            vec![("Authorization", bearer.as_str())],
            vec![("X-Trace-Worker-Token", TOKEN)],
        ] {
            let answer = server.call(method.clone(), &path, &headers, Some(&json!({}))).await;
            assert_eq!(answer.status.as_u16(), 401, "{method} {path} {headers:?}");
        }
    }
}

async fn api_keys_do_not_open_the_worker_api(server: Server) {
    let server = with_tokens(server).await;
    for key in ["user-key", "admin-key"] {
        let bearer = format!("Bearer {key}");
        for (headers, error) in [
            (vec![("X-API-Key", key)], "missing_worker_token"),
            (vec![("X-Admin-API-Key", key)], "missing_worker_token"),
            (vec![("X-Worker-Token", key)], "invalid_worker_token"),
            (vec![("X-Trace-Worker-Token", key)], "invalid_worker_token"),
            (vec![("Authorization", bearer.as_str())], "invalid_worker_token"),
        ] {
            for call in ["claim", "heartbeat", "complete", "fail", "exchange"] {
                let body = json!({"worker_id": "w-1", "streams": ["q"], "max_wait_ms": 0});
                let answer =
                    server.call(Method::POST, &format!("/internal/worker/{call}"), &headers, Some(&body)).await;
                assert_eq!((answer.status.as_u16(), &answer.body["error"]), (401, &json!(error)), "{headers:?}");
            }
        }
    }
}

async fn probes_need_no_key(server: Server) {
    let server = with_tokens(server).await;
    for path in ["/api/v1/live", "/api/v1/ready", "/api/v1/health", "/api/v1/openapi.json", "/internal/jwks/task"] {
        server.get(path).await.ok();
    }
    // Figures tell about all tenants: they are for operators.
    for path in ["/metrics", "/api/v1/metrics/prometheus"] {
        server.get(path).await.refused(401);
        server.call(Method::GET, path, &[("X-API-Key", "user-key")], None).await.refused(403);
        server.call(Method::GET, path, &[("X-API-Key", "admin-key")], None).await.ok();
    }
}
