//! Who issues tokens to workers: admins, and the control plane itself for a bootstrap key.

use reqwest::Method;
use serde_json::{Value, json};
use tenure_auth::WorkerKeys;
use tenure_auth::worker::ClaimSet;

use crate::cases;
use crate::harness::{Server, TOKEN};
use crate::identity::people::{ADMIN, Header, USER, get, post, said, set};
use crate::identity::worker_tokens::{by_token, claim, with_workers};

cases!(
    Server,
    on_sqlite: [admins_issue_tokens, a_worker_gets_its_own_token_for_its_bootstrap_key],
);

async fn admins_issue_tokens(server: Server) {
    with_workers(&server);
    let path = "/api/v1/admin/worker-tokens";
    let issue = async |body: Value| post(&server, &[ADMIN], path, body).await;
    for (asked, lives_s, scopes, audience) in [
        (json!({"worker_id": "w-1"}), 300, None, "worker:control-plane"),
        (json!({"worker_id": " w-1 ", "ttl": "15m"}), 900, None, "worker:control-plane"),
        (json!({"worker_id": "w-1", "ttl": "1m30s", "audience": "worker:rpc"}), 90, None, "worker:rpc"),
        (
            json!({"worker_id": "w-1", "scopes": ["worker:lease", "worker:exec"]}),
            300,
            Some(["worker:exec", "worker:lease"]),
            "worker:control-plane",
        ),
    ] {
        let issued = issue(asked.clone()).await.ok();
        assert_eq!(issued.as_object().unwrap().len(), 3, "{issued}");
        assert_eq!(issued["worker_id"], "w-1");
        let token = issued["token"].as_str().unwrap();
        let claims = ClaimSet::inspect(token).unwrap();
        assert_eq!((claims.worker_id.as_deref(), claims.aud.as_deref()), (Some("w-1"), Some(audience)), "{asked}");
        assert_eq!(claims.exp.unwrap() - claims.iat.unwrap(), lives_s, "{asked}");
        assert_eq!(claims.scopes, scopes.map(|names| names.map(str::to_owned).to_vec()), "{asked}");
        assert_eq!(claims.jti.unwrap().len(), 32);
        assert_eq!(crate::harness::time(&issued["expires_at"]).as_millis(), claims.exp.unwrap() * 1000);
        let expected = if audience == "worker:rpc" { 401 } else { 200 };
        assert_eq!(by_token(&server, token).await.0, expected, "{asked}");
    }
    for (asked, field) in [
        (json!({}), "worker_id"),
        (json!({"worker_id": "  "}), "worker_id"),
        (json!({"worker_id": "a\nb"}), "worker_id"),
        (json!({"worker_id": "w".repeat(1000)}), "worker_id"),
        (json!({"worker_id": "w-1", "ttl": "0s"}), "ttl"),
        (json!({"worker_id": "w-1", "ttl": "-5m"}), "ttl"),
        (json!({"worker_id": "w-1", "ttl": "15m1s"}), "ttl"),
        (json!({"worker_id": "w-1", "ttl": "10ms"}), "ttl"),
        (json!({"worker_id": "w-1", "ttl": "soon"}), "ttl"),
        (json!({"worker_id": "w-1", "audience": "tenure"}), "audience"),
        (json!({"worker_id": "w-1", "audience": ""}), "audience"),
        (json!({"worker_id": "w-1", "scopes": ["worker:lease", "worker:everything"]}), "scopes[1]"),
        (json!({"worker_id": "w-1", "scopes": []}), "scopes"),
    ] {
        let answer = issue(asked.clone()).await;
        assert_eq!(said(&answer), (400, "invalid_argument"), "{asked}");
        assert_eq!((&answer.body["field"], &answer.body["code"]), (&json!(field), &json!("BAD_REQUEST")), "{asked}");
    }
    // Others do not issue.
    assert_eq!(said(&post(&server, &[USER], path, json!({"worker_id": "w-1"})).await), (403, "forbidden"));
    assert_eq!(said(&post(&server, &[], path, json!({"worker_id": "w-1"})).await), (401, "missing_api_key"));
    // Without an Ed25519 key the older format is issued, without any key nothing.
    set(&server, |access| access.workers.keys.private = None);
    let issued = issue(json!({"worker_id": "w-1"})).await.ok();
    assert!(issued["token"].as_str().unwrap().starts_with("stacyvm-worker-v1."));
    set(&server, |access| access.workers.keys.active = None);
    let answer = issue(json!({"worker_id": "w-1"})).await;
    assert_eq!(said(&answer), (503, "signing_key_not_configured"));
    assert_eq!(answer.body["code"], "UNAVAILABLE");
}

async fn a_worker_gets_its_own_token_for_its_bootstrap_key(server: Server) {
    with_workers(&server);
    let bootstrap = "X-Worker-Bootstrap-Key";
    let ask = async |id: &str, headers: &[Header<'_>], body: Option<&Value>| {
        server.call(Method::POST, &format!("/api/v1/worker/{id}/token"), headers, body).await
    };
    for (path, id, key) in
        [("w-boot", "w-boot", "boot-key"), ("w%2Dboot", "w-boot", "boot-key"), ("w-hashed", "w-hashed", "abc")]
    {
        for (body, lives_s) in [(None, 300), (Some(json!({})), 300), (Some(json!({"ttl": "15m"})), 900)] {
            let issued = ask(path, &[(bootstrap, key)], body.as_ref()).await.ok();
            assert_eq!(issued["worker_id"], id);
            let token = issued["token"].as_str().unwrap();
            let claims = ClaimSet::inspect(token).unwrap();
            assert_eq!((claims.worker_id.as_deref(), claims.aud.as_deref()), (Some(id), Some("worker:control-plane")));
            assert_eq!(claims.scopes.unwrap(), ["worker:heartbeat", "worker:lease"]);
            assert_eq!(claims.exp.unwrap() - claims.iat.unwrap(), lives_s);
            let headers = [("X-Worker-Token", token), ("X-Worker-ID", id)];
            assert_eq!(said(&claim(&server, &headers, id).await), (200, ""));
        }
    }
    // What it asks for beyond its time to live is not heard.
    let more = json!({"worker_id": "w-1", "scopes": ["worker:exec"], "audience": "worker:rpc"});
    let issued = ask("w-boot", &[(bootstrap, "boot-key")], Some(&more)).await.ok();
    let claims = ClaimSet::inspect(issued["token"].as_str().unwrap()).unwrap();
    assert_eq!((claims.worker_id.as_deref(), claims.aud.as_deref()), (Some("w-boot"), Some("worker:control-plane")));
    assert_eq!(claims.scopes.unwrap(), ["worker:heartbeat", "worker:lease"]);
    let hash = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let (missing, invalid) = ((401, "missing_bootstrap_key"), (401, "invalid_bootstrap_key"));
    for (id, headers, expected) in [
        ("w-boot", vec![], missing),
        ("w-boot", vec![("Authorization", "Bearer boot-key")], missing),
        ("w-boot", vec![("X-Worker-Token", "boot-key")], missing),
        ("w-boot", vec![ADMIN], missing),
        ("w-boot", vec![(bootstrap, "wrong")], invalid),
        ("w-boot", vec![(bootstrap, "")], invalid),
        ("w-boot", vec![(bootstrap, ADMIN.1)], invalid),
        ("w-boot", vec![(bootstrap, TOKEN)], invalid),
        ("w-boot", vec![(bootstrap, "abc")], invalid),
        ("w-hashed", vec![(bootstrap, hash)], invalid),
        ("w-hashed", vec![(bootstrap, "boot-key")], invalid),
        ("w-1", vec![(bootstrap, "boot-key")], invalid),
        ("W-BOOT", vec![(bootstrap, "boot-key")], invalid),
        ("w-boot%20", vec![(bootstrap, "boot-key")], invalid),
    ] {
        assert_eq!(said(&ask(id, &headers, None).await), expected, "{id} {headers:?}");
    }
    for ttl in ["0s", "16m", "x"] {
        let answer = ask("w-boot", &[(bootstrap, "boot-key")], Some(&json!({"ttl": ttl}))).await;
        assert_eq!(said(&answer), (400, "invalid_argument"), "{ttl}");
    }
    // On any other route the key is nothing.
    for (header, text) in [(bootstrap, "boot-key"), ("X-API-Key", "boot-key"), ("X-Admin-API-Key", "boot-key")] {
        assert_eq!(get(&server, &[(header, text)], "/api/v1/tasks").await.status.as_u16(), 401, "{header}");
        let body = json!({"worker_id": "w-boot"});
        assert_eq!(post(&server, &[(header, text)], "/api/v1/admin/worker-tokens", body).await.status.as_u16(), 401);
    }
    let headers = [(bootstrap, "boot-key"), ("X-Worker-ID", "w-boot")];
    assert_eq!(said(&claim(&server, &headers, "w-boot").await), (401, "missing_worker_token"));
    // No key to sign with; then no bootstrap keys at all.
    set(&server, |access| access.workers.keys = WorkerKeys::default());
    let answer = ask("w-boot", &[(bootstrap, "boot-key")], None).await;
    assert_eq!(said(&answer), (503, "signing_key_not_configured"));
    set(&server, |access| access.workers.bootstrap.clear());
    let answer = ask("w-boot", &[(bootstrap, "boot-key")], None).await;
    assert_eq!(said(&answer), (503, "worker_auth_not_configured"));
}
