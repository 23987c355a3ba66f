//! Webhooks over HTTP: who may deliver, and what a delivery makes.

use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::hmac;
use serde_json::{Value, json};
use tenure_auth::Secret;
use tenure_core::command::Reach;
use tenure_engine::dags::{Dags, NewVersion};
use tenure_engine::store::TaskFilter;
use tenure_server::{DispatchSecrets, Live};
use tenure_testkit::RawClient;

use crate::cases;
use crate::harness::{Answer, SOON, Server};

cases!(
    Server,
    on_sqlite: [
        bodies_and_delivery_ids_have_bounds,
        failed_signatures_count_by_address,
        secrets_are_taken_from_the_configuration_as_it_is,
    ],
    on_both_stores: [
        a_signed_delivery_makes_one_task,
        a_delivery_cannot_be_sent_again_under_another_name,
        a_signature_that_is_wrong_old_or_missing_is_refused,
        github_signs_the_body_alone,
        the_same_delivery_many_times_at_once_makes_one_task,
    ],
);

const SECRET: &str = "hook-secret-of-the-tests";
const PATH: &str = "/api/v1/webhooks/chain/new-range";
const GITHUB: &str = "/api/v1/webhooks/push";

const YAML: &str = "name: hooks
jobs:
  - { name: range, activation: source, runtime: worker, operator: range, outputs: 0, source: { kind: webhook, webhook_path: chain/new-range, secret: hook_key } }
  - { name: push, activation: source, runtime: worker, operator: push, outputs: 0, source: { kind: webhook, webhook_path: push, secret: hook_key, signature: github } }
";

/// A server with a webhook of each kind.
async fn with_hooks(server: Server) -> Server {
    let server = server
        .restart_with(|config, _| {
            let secret = Secret::new(SECRET).unwrap();
            config.dispatch.secrets = DispatchSecrets(Live::new([("hook_key".to_owned(), secret)].into()));
        })
        .await;
    let dags: Dags = server.engine.dags(Default::default());
    dags.deploy(NewVersion { org: "acme", yaml: YAML, manual: false, dry_run: false }).await.unwrap();
    server
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs().cast_signed()
}

fn hmac_of(secret: &str, text: &[u8]) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    hmac::sign(&key, text).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn tenure(secret: &str, at: i64, body: &str) -> String {
    format!("t={at},v1={}", hmac_of(secret, format!("{at}.{body}").as_bytes()))
}

async fn send(server: &Server, body: &str, signature: &str, more: &[(&str, &str)]) -> Answer {
    let headers: Vec<_> = [("X-Tenure-Signature", signature)].into_iter().chain(more.iter().copied()).collect();
    server.send(PATH, &headers, body.to_owned()).await
}

/// The triggers of all tasks of an operator.
async fn triggers(server: &Server, operator: &str) -> Vec<Value> {
    let filter =
        TaskFilter { operator: Some(operator.to_owned()), reach: Reach::All, limit: 100, ..TaskFilter::default() };
    let tasks = server.engine.tasks(&filter).await.unwrap().items;
    let payload = |text: &str| serde_json::from_str::<Value>(text).unwrap()["trigger"].clone();
    tasks.iter().map(|task| payload(&task.body.payload)).collect()
}

async fn a_signed_delivery_makes_one_task(server: Server) {
    let server = with_hooks(server).await;
    let body = r#"{"from":1000000,"to":1010000}"#;
    let signature = tenure(SECRET, now(), body);
    let first = send(&server, body, &signature, &[("X-Tenure-Delivery", "d-1")]).await;
    assert_eq!(first.status.as_u16(), 202);
    assert_eq!((first.body["created"].clone(), first.body["task_id"].as_str().unwrap().len()), (json!(true), 36));
    // Sent again, also with a new time: the same delivery.
    for at in [now(), now() - 200] {
        let again = send(&server, body, &tenure(SECRET, at, body), &[("X-Tenure-Delivery", "d-1")]).await.ok();
        assert_eq!(again, json!({"task_id": first.body["task_id"], "created": false}));
    }
    assert_eq!(triggers(&server, "range").await, [json!({"kind": "webhook", "delivery_id": "d-1", "body": body})]);
    // Without an id of its own a delivery is what was signed: a replay makes nothing, a new signature a new task.
    let created = async |signature: &str| send(&server, body, signature, &[]).await.ok()["created"].clone();
    let other = tenure(SECRET, now() - 100, body);
    assert_eq!((created(&other).await, created(&other).await), (json!(true), json!(false)));
    assert_eq!(created(&tenure(SECRET, now() - 150, body)).await, json!(true));
    assert_eq!(triggers(&server, "range").await.len(), 3);
}

async fn a_delivery_cannot_be_sent_again_under_another_name(server: Server) {
    let server = with_hooks(server).await;
    let (body, at) = (r#"{"from":1}"#, now() - 50);
    let signature = tenure(SECRET, at, body);
    let first = send(&server, body, &signature, &[("X-Tenure-Delivery", "d-1")]).await.ok();
    assert_eq!(first["created"], true);
    let again = json!({"task_id": first["task_id"], "created": false});
    let nameless: &[(&str, &str)] = &[];
    for names in [nameless, &[("X-Tenure-Delivery", "d-2")], &[("X-GitHub-Delivery", "d-3")]] {
        assert_eq!(send(&server, body, &signature, names).await.ok(), again, "{names:?}");
    }
    // Also if it came without a name first, and however its signature is written.
    let signature = tenure(SECRET, at - 1, body);
    let first = send(&server, body, &signature, &[]).await.ok();
    let again = json!({"task_id": first["task_id"], "created": false});
    for written in [signature.clone(), format!("{signature},v1={}", "0".repeat(64)), signature.replace(',', " , ")] {
        assert_eq!(send(&server, body, &written, &[("X-Tenure-Delivery", "d-4")]).await.ok(), again, "{written}");
    }
    assert_eq!(triggers(&server, "range").await.len(), 2);
    // The same content signed at another time is another delivery.
    let later = tenure(SECRET, at + 1, body);
    assert_eq!(send(&server, body, &later, &[("X-Tenure-Delivery", "d-2")]).await.ok()["created"], true);
}

async fn a_signature_that_is_wrong_old_or_missing_is_refused(server: Server) {
    let server = with_hooks(server).await;
    let (body, now) = ("{}", now());
    let good = tenure(SECRET, now, body);
    for (what, signature) in [
        ("another secret", tenure("other", now, body)),
        ("another body", tenure(SECRET, now, "{ }")),
        ("too old", tenure(SECRET, now - 310, body)),
        ("of the future", tenure(SECRET, now + 310, body)),
        ("another time", good.replace(&now.to_string(), &(now - 1).to_string())),
        ("of GitHub", format!("sha256={}", hmac_of(SECRET, body.as_bytes()))),
        ("empty", String::new()),
    ] {
        let refused = send(&server, body, &signature, &[]).await.refused(401);
        assert_eq!(refused["error"], "invalid_signature", "{what}");
        assert!(!refused.to_string().contains(SECRET));
    }
    let none = server.send(PATH, &[("X-Hub-Signature-256", &good)], body).await.refused(401);
    assert_eq!(none["error"], "invalid_signature");
    for path in ["/api/v1/webhooks/chain", "/api/v1/webhooks/chain/new-range/x", "/api/v1/webhooks/chain%2Fnew-rangE"] {
        let unknown = server.send(path, &[("X-Tenure-Signature", &good)], body).await.refused(404);
        assert_eq!(unknown["error"], "webhook_not_found", "{path}");
    }
    assert_eq!(triggers(&server, "range").await, [Value::Null; 0]);
    send(&server, body, &good, &[]).await.ok();
}

async fn github_signs_the_body_alone(server: Server) {
    let server = with_hooks(server).await;
    let body = r#"{"ref":"refs/heads/main"}"#;
    let signature = format!("sha256={}", hmac_of(SECRET, body.as_bytes()));
    let headers = [("X-Hub-Signature-256", &*signature), ("X-GitHub-Delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958")];
    assert_eq!(server.send(GITHUB, &headers, body).await.ok()["created"], true);
    assert_eq!(server.send(GITHUB, &headers, body).await.ok()["created"], false);
    let trigger = &triggers(&server, "push").await[0];
    assert_eq!(trigger["delivery_id"], "72d3162e-cc78-11e3-81ab-4c9367dc0958");
    assert_eq!(server.send(GITHUB, &headers, "{}").await.refused(401)["error"], "invalid_signature");
    let tenure = tenure(SECRET, now(), body);
    let wrong_kind = server.send(GITHUB, &[("X-Tenure-Signature", &tenure)], body).await.refused(401);
    assert_eq!(wrong_kind["error"], "invalid_signature");
}

async fn the_same_delivery_many_times_at_once_makes_one_task(server: Server) {
    let server = with_hooks(server).await;
    let signature = tenure(SECRET, now(), "{}");
    let sends = (0..16).map(|_| send(&server, "{}", &signature, &[("X-Tenure-Delivery", "same")]));
    let answers: Vec<Value> = futures_util::future::join_all(sends).await.into_iter().map(Answer::ok).collect();
    assert_eq!(answers.iter().filter(|answer| answer["created"] == true).count(), 1);
    assert!(answers.iter().all(|answer| answer["task_id"] == answers[0]["task_id"]));
    assert_eq!(triggers(&server, "range").await.len(), 1);
}

async fn bodies_and_delivery_ids_have_bounds(server: Server) {
    let server = with_hooks(server).await;
    let large = "x".repeat(1 << 20);
    let signature = tenure(SECRET, now(), &large);
    assert_eq!(send(&server, &large, &signature, &[]).await.ok()["created"], true);
    let mut client = RawClient::connect(&server.url).await;
    client.send(format!("POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048577\r\n\r\n")).await.unwrap();
    let answer = client.read_until("request_id", SOON).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    let signature = tenure(SECRET, now(), "{}");
    let long = "x".repeat(101);
    for id in ["", "two words", &long] {
        let refused = send(&server, "{}", &signature, &[("X-Tenure-Delivery", id)]).await.refused(400);
        assert_eq!(refused["error"], "malformed_request", "{id}");
    }
    let latin = b"\xff\xfe";
    let at = now();
    let signed = [at.to_string().as_bytes(), b".", latin].concat();
    let header = format!("t={at},v1={}", hmac_of(SECRET, &signed));
    let refused = server.send(PATH, &[("X-Tenure-Signature", &header)], latin.to_vec()).await.refused(400);
    assert_eq!(refused["error"], "malformed_request");
}

async fn failed_signatures_count_by_address(server: Server) {
    let server = with_hooks(server).await;
    server.config.access.update(|access| access.failed_auth_per_minute = 3);
    let good = tenure(SECRET, now(), "{}");
    for _ in 0..2 {
        send(&server, "{}", "t=1,v1=0", &[]).await.refused(401);
    }
    // An unknown path is a try as well.
    server.send("/api/v1/webhooks/unknown", &[], "{}").await.refused(404);
    let blocked = send(&server, "{}", "t=1,v1=0", &[]).await;
    assert!(!blocked.header("Retry-After").is_empty());
    assert_eq!(blocked.refused(429)["error"], "rate_limited");
    assert_eq!(send(&server, "{}", &good, &[]).await.refused(429)["error"], "rate_limited");
    server.config.access.update(|access| access.failed_auth_per_minute = 0);
    send(&server, "{}", &good, &[]).await.ok();
}

async fn secrets_are_taken_from_the_configuration_as_it_is(server: Server) {
    let server = with_hooks(server).await;
    let secrets = server.config.dispatch.secrets.clone();
    let set = |map: &[(&str, &str)]| {
        let map = map.iter().map(|(name, text)| ((*name).to_owned(), Secret::new(text).unwrap()));
        secrets.0.set(map.collect());
    };
    let status = async |secret: &str| {
        let body = format!("{{\"n\":\"{secret}\"}}");
        send(&server, &body, &tenure(secret, now(), &body), &[]).await.status.as_u16()
    };
    set(&[("hook_key", "second")]);
    assert_eq!((status(SECRET).await, status("second").await), (401, 202));
    set(&[("hook_key", "second"), ("acme/hook_key", "own")]);
    assert_eq!((status("second").await, status("own").await), (401, 202));
    set(&[("other/hook_key", "second")]);
    assert_eq!((status("second").await, status("").await), (401, 401));
}
