//! Which credentials open the listener.

use jiff::Timestamp;
use serde_json::json;
use tenure_auth::worker::{Audience, MintRequest, PrivateKey, Scope, Scopes, SigningKey};
use tenure_auth::{Anonymous, Secret, WorkerAuth, WorkerKeys};
use tenure_worker::node::{Holdings, Node, NodeSettings, Providers};
use tenure_worker::rpc::{Credentials, Rpc, RpcSettings};

use super::kit::*;

const KEY: &str = "worker-signing-key-with-at-least-32-bytes";

fn hmac(key: &str) -> WorkerKeys {
    WorkerKeys { active: SigningKey::new(key), ..WorkerKeys::default() }
}

fn mint(keys: &WorkerKeys, change: impl FnOnce(&mut MintRequest<'_>)) -> String {
    let mut request = MintRequest::new(WORKER, Audience::Rpc, Timestamp::now().as_second());
    request.ed25519 = keys.private.is_some();
    change(&mut request);
    keys.mint(&request).unwrap().token.reveal().to_owned()
}

/// The status of a harmless call with this token.
async fn tried(worker: &Worker, token: &str) -> u16 {
    let request = worker.http.post(worker.url("/rpc")).header("x-worker-id", WORKER).header("x-worker-token", token);
    let body = worker.envelope("worker.undrain", json!({})).to_string();
    request.body(body).send().await.unwrap().status().as_u16()
}

#[tokio::test]
async fn signed_tokens_are_judged_by_every_rule() {
    let (private, other) = (PrivateKey::random(), PrivateKey::random());
    let auth = WorkerAuth {
        shared: Secret::new(TOKEN),
        keys: WorkerKeys {
            rotation: SigningKey::new("the-former-signing-key-of-32-bytes").into_iter().collect(),
            public: vec![private.public()],
            ..hmac(KEY)
        },
        revoked: ["revoked".to_owned()].into(),
        ..WorkerAuth::default()
    };
    let worker = Worker::with(Options { auth, ..Options::default() }).await;
    let signing = |key: PrivateKey| WorkerKeys { private: Some(key), ..WorkerKeys::default() };
    let now = Timestamp::now().as_second();
    let (key, ed25519) = (hmac(KEY), signing(private));
    for (token, expected, what) in [
        (mint(&key, |_| {}), 200, "HMAC"),
        (mint(&ed25519, |_| {}), 200, "Ed25519"),
        (mint(&hmac("the-former-signing-key-of-32-bytes"), |_| {}), 200, "rotation key"),
        (TOKEN.to_owned(), 200, "static beside a signing key"),
        (mint(&key, |request| request.now = now + 20), 200, "20 s of skew"),
        (mint(&hmac("another-signing-key-of-32-bytes-and-more"), |_| {}), 401, "another HMAC key"),
        (mint(&signing(other), |_| {}), 401, "another Ed25519 key"),
        (mint(&key, |request| request.worker_id = "worker-b"), 401, "another worker"),
        (mint(&key, |request| request.audience = Audience::ControlPlane), 401, "another audience"),
        (mint(&key, |request| request.now = now - 400), 401, "expired"),
        (mint(&key, |request| request.now = now + 120), 401, "issued in the future"),
        (mint(&key, |request| request.token_id = Some("revoked")), 401, "revoked"),
        (mint(&key, |request| request.scopes = Some([Scope::Logs].into_iter().collect())), 403, "without the scope"),
        ("user-api-key".to_owned(), 401, "a user key"),
        (format!("{}x", mint(&key, |_| {})), 401, "a damaged signature"),
    ] {
        assert_eq!(tried(&worker, &token).await, expected, "{what}");
    }
}

#[tokio::test]
async fn the_shared_token_is_refused_by_a_worker_with_its_own() {
    let auth = WorkerAuth {
        shared: Secret::new("shared"),
        per_worker: [(WORKER.to_owned(), Secret::new("own").unwrap())].into(),
        ..WorkerAuth::default()
    };
    let worker = Worker::with(Options { auth, ..Options::default() }).await;
    assert_eq!(tried(&worker, "own").await, 200);
    assert_eq!(tried(&worker, "shared").await, 401);
}

#[tokio::test]
async fn keys_and_revocations_change_without_a_restart() {
    let auth = |revoked: &[&str]| WorkerAuth {
        keys: hmac(KEY),
        revoked: revoked.iter().map(ToString::to_string).collect(),
        ..WorkerAuth::default()
    };
    let worker = Worker::with(Options { auth: auth(&[]), ..Options::default() }).await;
    let token = mint(&hmac(KEY), |request| request.token_id = Some("t-1"));
    assert_eq!(tried(&worker, &token).await, 200);
    worker.credentials.replace(auth(&["t-1"]));
    assert_eq!(tried(&worker, &token).await, 401);
    let next = "the-next-signing-key-with-at-least-32-bytes";
    worker.credentials.replace(WorkerAuth { keys: hmac(next), ..WorkerAuth::default() });
    assert_eq!(tried(&worker, &mint(&hmac(next), |_| {})).await, 200);
    assert_eq!(tried(&worker, &mint(&hmac(KEY), |_| {})).await, 401);
}

#[tokio::test]
async fn every_method_and_route_needs_its_scope() {
    let keys = hmac(KEY);
    let auth = WorkerAuth { keys: keys.clone(), ..WorkerAuth::default() };
    let worker = Worker::with(Options { auth, ..Options::default() }).await;
    let without = |scope: Scope| -> String {
        let scopes: Scopes = Scope::ALL.into_iter().filter(|other| *other != scope).collect();
        mint(&keys, |request| request.scopes = Some(scopes))
    };
    let only = |scope: Scope| mint(&keys, |request| request.scopes = Some([scope].into_iter().collect()));
    for (method, scope) in [
        ("worker.spawn", Scope::Spawn),
        ("worker.destroy", Scope::Destroy),
        ("worker.status", Scope::Status),
        ("worker.exec", Scope::Exec),
        ("worker.exec_stream", Scope::Exec),
        ("worker.file_write", Scope::Files),
        ("worker.file_read", Scope::Files),
        ("worker.file_list", Scope::Files),
        ("worker.file_delete", Scope::Files),
        ("worker.file_move", Scope::Files),
        ("worker.file_chmod", Scope::Files),
        ("worker.file_stat", Scope::Files),
        ("worker.file_glob", Scope::Files),
        ("worker.logs", Scope::Logs),
        ("worker.renew_lease", Scope::Lease),
        ("worker.shutdown", Scope::Spawn),
        ("worker.undrain", Scope::Spawn),
        ("worker.stats", Scope::Status),
        ("worker.snapshot", Scope::Files),
        ("worker.restore", Scope::Files),
    ] {
        let send = async |token: String| {
            // Bad parameters, so that nothing happens: the scope is checked before them.
            let body = worker.envelope(method, json!({"sandbox_id": 7})).to_string();
            let request = worker.http.post(worker.url("/rpc")).header("x-worker-id", WORKER).bearer_auth(token);
            answer(request.body(body).send().await.unwrap()).await
        };
        let (status, body) = send(without(scope)).await;
        assert_eq!((status.as_u16(), body["code"].as_str()), (403, Some("FORBIDDEN")), "{method}: {body}");
        let (status, body) = send(only(scope)).await;
        assert_ne!(status.as_u16(), 403, "{method}: {body}");
    }
    for (verb, path, scope) in [
        ("GET", "/rpc/files?sandbox_id=s&path=/a", Scope::Files),
        ("PUT", "/rpc/files?sandbox_id=s&path=/a", Scope::Files),
        ("GET", "/rpc/exec/ws", Scope::Exec),
        ("GET", "/rpc/proxy/rt-1/80/", Scope::Exec),
        ("GET", "/rpc/snapshots/snap-1", Scope::Files),
        ("PUT", "/rpc/snapshots/snap-1", Scope::Files),
    ] {
        for (token, refused) in [(without(scope), true), (only(scope), false)] {
            let request = worker.http.request(verb.parse().unwrap(), worker.url(path));
            let request = request.header("x-worker-id", WORKER).header("x-worker-token", token);
            let status = request.send().await.unwrap().status().as_u16();
            assert_eq!(status == 403, refused, "{verb} {path}: {status}");
        }
    }
}

#[tokio::test]
async fn a_listener_that_could_verify_nobody_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let holdings = Holdings::open(folder.path(), WORKER).unwrap();
    let node = Node::new(holdings, Providers::default(), None, NodeSettings::default());
    let anonymous = WorkerAuth { anonymous: Anonymous::Everyone, ..WorkerAuth::default() };
    let credentials = std::sync::Arc::new(Credentials::new(anonymous));
    let refused = Rpc::new(node, credentials, None, RpcSettings::new(folder.path())).unwrap_err();
    assert!(refused.to_string().contains("nothing to verify them with"), "{refused}");
}
