//! Task tokens: what they open, for how long, and what never passes for one.

use aws_lc_rs::hmac;
use serde_json::{Value, json};
use tenure_auth::{CapabilityClaims, DEFAULT_ISSUER, S3Grant, Secret, TaskKeys};
use tenure_core::Timestamp;

use crate::callback::worker::{Plane, claims, now};
use crate::cases;
use crate::harness::Server;

cases!(
    Server,
    on_sqlite: [
        what_is_no_token_of_this_attempt_is_refused,
        a_token_is_renewed_by_the_heartbeat_and_the_old_one_stays_good,
        the_leeway_is_two_seconds,
        with_a_shared_secret_older_tokens_are_taken_too,
    ],
);

fn b64(bytes: impl AsRef<[u8]>) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes)
}

/// A token of these claims, by a shared secret or by nothing.
fn jwt(header: &Value, claims: &Value, secret: Option<&str>) -> String {
    let message = format!("{}.{}", b64(header.to_string()), b64(claims.to_string()));
    let signature = secret.map_or_else(String::new, |secret| {
        b64(hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), message.as_bytes()))
    });
    format!("{message}.{signature}")
}

fn payload(token: &str) -> Value {
    use base64::Engine as _;
    let part = token.split('.').nth(1).unwrap();
    serde_json::from_slice(&base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap()
}

async fn what_is_no_token_of_this_attempt_is_refused(server: Server) {
    let plane = Plane::new(server).await;
    let held = plane.dispatched(json!({})).await;
    let good = payload(&held.token);
    for name in
        ["taskId", "tenantId", "workspaceId", "runId", "attempt", "attemptId", "exp", "iat", "nbf", "iss", "aud", "jti"]
    {
        assert!(good.get(name).is_some(), "{name} in {good}");
    }
    let secret = "a-secret-that-nobody-configured-of-32-bytes";
    let access = tenure_auth::Access::Inline { datasets: vec![], s3: S3Grant::default() };
    let task = held.grant.task.to_string();
    let capability = CapabilityClaims { org_id: "default".into(), task_id: task, attempt: 1, fence: 1, access };
    let stranger = TaskKeys::new(DEFAULT_ISSUER, &TaskKeys::generate().unwrap()).unwrap();
    let other_issuer = TaskKeys::new("somebody", &TaskKeys::generate().unwrap()).unwrap();
    let mut tampered: Vec<String> = held.token.split('.').map(ToOwned::to_owned).collect();
    let mut longer = good.clone();
    longer["exp"] = json!(now() + 100_000);
    tampered[1] = b64(longer.to_string());
    for (what, token) in [
        ("no token", String::new()),
        ("no JWT", "abc".to_owned()),
        ("alg none", jwt(&json!({"alg": "none", "typ": "JWT"}), &good, None)),
        ("HS256 though no secret is configured", jwt(&json!({"alg": "HS256", "typ": "JWT"}), &good, Some(secret))),
        ("HS256 under the kid of the key", jwt(&json!({"alg": "HS256", "kid": plane.keys.kid()}), &good, Some(secret))),
        ("a capability token", plane.keys.issue_capability(&capability, now(), 60).unwrap().reveal().to_owned()),
        ("an unknown key", stranger.issue_task(&claims(&held.grant), now(), 60).unwrap().reveal().to_owned()),
        ("another issuer", other_issuer.issue_task(&claims(&held.grant), now(), 60).unwrap().reveal().to_owned()),
        ("expired", plane.token_at(&held.grant, 60, now() - 100)),
        ("not yet good", plane.token_at(&held.grant, 60, now() + 400)),
        ("longer than it was made", tampered.join(".")),
        ("a worker's token", crate::harness::TOKEN.to_owned()),
    ] {
        let path = format!("/v1/tasks/{}/started", held.grant.task);
        let refused = plane.call_at(&path, &token, held.body(json!({}))).await.refused(401);
        assert_eq!(refused["error"], "invalid_token", "{what}");
    }
    plane.started(&held).await;
}

async fn a_token_is_renewed_by_the_heartbeat_and_the_old_one_stays_good(server: Server) {
    let plane = Plane::new(server).await;
    let mut held = plane.dispatched(json!({})).await;
    let path = format!("/v1/tasks/{}/heartbeat", held.grant.task);
    let fresh = plane.call(&held, "heartbeat", json!({})).await.ok();
    assert!(fresh.get("taskToken").is_none() && fresh.get("tokenExpiresAt").is_none());
    let old = plane.token_at(&held.grant, 300, now() - 201);
    let renewed = plane.call_at(&path, &old, held.body(json!({}))).await.ok();
    let token = renewed["taskToken"].as_str().unwrap().to_owned();
    let (before, after) = (payload(&old), payload(&token));
    for name in ["taskId", "tenantId", "workspaceId", "runId", "attempt", "attemptId", "iss", "aud"] {
        assert_eq!(before[name], after[name], "{name}");
    }
    assert_ne!(before["jti"], after["jti"]);
    let expires_at = Timestamp::parse(renewed["tokenExpiresAt"].as_str().unwrap()).unwrap();
    assert_eq!(expires_at.as_millis(), after["exp"].as_i64().unwrap() * 1000);
    assert_eq!(after["exp"].as_i64().unwrap() - after["iat"].as_i64().unwrap(), 300);
    plane.call_at(&path, &old, held.body(json!({}))).await.ok();
    held.token = token;
    plane.succeeded(&held).await.ok();
}

async fn the_leeway_is_two_seconds(server: Server) {
    let plane = Plane::new(server).await;
    let held = plane.dispatched(json!({})).await;
    let path = format!("/v1/tasks/{}/heartbeat", held.grant.task);
    // A second may pass between making it and its check; the edges themselves are tested where the clock is an argument.
    tenure_testkit::wait_until("a token within the leeway", crate::harness::SOON, async || {
        let just_over = plane.token_at(&held.grant, 60, now() - 60);
        plane.call_at(&path, &just_over, held.body(json!({}))).await.status.is_success()
    })
    .await;
    let gone = plane.token_at(&held.grant, 60, now() - 63);
    plane.call_at(&path, &gone, held.body(json!({}))).await.refused(401);
}

async fn with_a_shared_secret_older_tokens_are_taken_too(server: Server) {
    let secret = "the-shared-secret-of-older-workers-32b";
    let keys = TaskKeys::new(DEFAULT_ISSUER, &TaskKeys::generate().unwrap()).unwrap();
    let keys = keys.with_callback_secret(&Secret::new(secret).unwrap()).unwrap();
    let plane = Plane::with(server, keys).await;
    let held = plane.dispatched(json!({})).await;
    let header: Value = {
        use base64::Engine as _;
        let part = held.token.split('.').next().unwrap();
        serde_json::from_slice(&base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap()
    };
    assert_eq!(header["alg"], "HS256");
    plane.started(&held).await;
    let path = format!("/v1/tasks/{}/heartbeat", held.grant.task);
    let wrong = jwt(&header, &payload(&held.token), Some("another-secret-of-at-least-32-bytes!"));
    plane.call_at(&path, &wrong, held.body(json!({}))).await.refused(401);
}
