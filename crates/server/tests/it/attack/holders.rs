//! A lease belongs to its worker.

use std::collections::HashMap;

use reqwest::Method;
use serde_json::{Value, json};
use tenure_auth::Secret;
use tenure_auth::worker::BootstrapKey;

use crate::cases;
use crate::harness::{Answer, Server, TOKEN, report, retryable};

cases!(
    Server,
    on_sqlite: [the_shared_token_does_not_speak_for_workers_with_credentials_of_their_own],
    on_both_stores: [the_lease_of_another_worker_is_of_no_use],
);

async fn as_worker(server: &Server, who: &str, token: &str, call: &str, body: Value) -> Answer {
    let headers = [("X-Worker-ID", who), ("X-Worker-Token", token)];
    server.call(Method::POST, &format!("/internal/worker/{call}"), &headers, Some(&body)).await
}

fn with_own_tokens(server: &Server) {
    server.config.access.update(|access| {
        let own = |name: &str| (name.to_owned(), Secret::new(&format!("token-of-{name}")).unwrap());
        access.workers.per_worker = HashMap::from([own("w-1"), own("w-2")]);
        access.workers.bootstrap = HashMap::from([("w-boot".to_owned(), BootstrapKey::parse("boot").unwrap())]);
    });
}

async fn the_lease_of_another_worker_is_of_no_use(server: Server) {
    with_own_tokens(&server);
    let id = server.submit(json!({})).await;
    let claim = |who: &str| json!({"worker_id": who, "streams": ["q"], "max_wait_ms": 0, "claim_id": "c-1"});
    let job = as_worker(&server, "w-1", "token-of-w-1", "claim", claim("w-1")).await.ok();
    // With the lease token of the other: every call is refused.
    let stolen = report("w-2", &job);
    let with = |more: Value| {
        let mut body = stolen.clone();
        crate::harness::merge(&mut body, more);
        body
    };
    for (call, body) in [
        ("heartbeat", stolen.clone()),
        ("complete", with(json!({"result": {"by": "w-2"}}))),
        ("fail", with(json!({"error": retryable()}))),
    ] {
        let refused = as_worker(&server, "w-2", "token-of-w-2", call, body).await.refused(409);
        assert_eq!(refused["error"], "stale_lease", "{call}: {refused}");
    }
    let exchange = json!({"worker_id": "w-2", "complete": [with(json!({"result": 1}))], "heartbeat": [stolen]});
    let answer = as_worker(&server, "w-2", "token-of-w-2", "exchange", exchange).await.ok();
    for part in ["complete", "heartbeat"] {
        assert_eq!(
            (&answer[part][0]["ok"], &answer[part][0]["error"]),
            (&json!(false), &json!("stale_lease")),
            "{answer}"
        );
    }
    let rows = server.get("/api/v1/audit?action=lease.refused").await.ok();
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), 2, "one for each heartbeat: {rows:?}");
    for row in rows {
        assert_eq!((&row["actor"], &row["resource"]), (&json!("worker:w-2"), &json!(format!("task {id}"))), "{row}");
    }
    // Its claim id does not give the job away either.
    assert_eq!(as_worker(&server, "w-2", "token-of-w-2", "claim", claim("w-2")).await.ok()["claimed"], false);
    // The holder does not notice, and the history shows who tried.
    let mine = report("w-1", &job);
    as_worker(&server, "w-1", "token-of-w-1", "heartbeat", mine.clone()).await.ok();
    let mut done = mine;
    done["result"] = json!({"by": "w-1"});
    as_worker(&server, "w-1", "token-of-w-1", "complete", done).await.ok();
    assert_eq!(server.task(&id).await["result"], json!({"by": "w-1"}));
    let attempts = server.attempts(&id).await;
    let late = &attempts[0]["late_report"];
    assert_eq!((&attempts[0]["worker_id"], &late["outcome"]), (&json!("w-1"), &json!("Succeeded")), "{attempts:?}");
}

async fn the_shared_token_does_not_speak_for_workers_with_credentials_of_their_own(server: Server) {
    with_own_tokens(&server);
    for (who, status) in [("w-1", 401), ("w-boot", 401), ("w-9", 200)] {
        let claim = json!({"worker_id": who, "streams": ["q"], "max_wait_ms": 0});
        let named = as_worker(&server, who, TOKEN, "claim", claim.clone()).await;
        assert_eq!(named.status.as_u16(), status, "{who}, by header");
        let in_body = server.worker("claim", claim).await;
        assert_eq!(in_body.status.as_u16(), status, "{who}, in the body");
    }
}
