//! Tokens of workers: static and signed, accepted and refused, revoked.

use std::collections::HashMap;
use std::time::Duration;

use aws_lc_rs::hmac;
use aws_lc_rs::signature::Ed25519KeyPair;
use reqwest::Method;
use serde_json::{Value, json};
use tenure_auth::worker::{BootstrapKey, PrivateKey, PublicKey, SigningKey};
use tenure_auth::{Anonymous, Secret, WorkerAuth, WorkerKeys};
use tenure_core::time::Timestamp;
use tenure_testkit::wait_until;

use crate::cases;
use crate::harness::{Answer, Server, TOKEN, merge};
use crate::identity::people::{ADMIN, Header, USER, get, post, said, set, with_users};
use crate::identity::provider::{b64, now};

cases!(
    Server,
    on_sqlite: [tokens_that_are_accepted, tokens_that_are_refused, keys_change_without_a_restart],
    on_both_stores: [a_revoked_token_is_refused_at_once_and_stays_revoked, many_revocations_at_once_all_hold, a_worker_with_a_signed_token_is_known_everywhere],
);

const ACTIVE: &str = "the-active-signing-key-with-32-bytes-";
const ROTATED: &str = "the-former-signing-key-with-32-bytes-";
const SEED: [u8; 32] = *b"0123456789abcdef0123456789abcdef";
const SEED_ROTATED: [u8; 32] = *b"fedcba9876543210fedcba9876543210";

/// A server that knows every kind of worker credential.
pub fn with_workers(server: &Server) {
    with_users(server);
    let former = PrivateKey::parse(&b64(SEED_ROTATED)).unwrap();
    let keys = WorkerKeys {
        active: SigningKey::new(ACTIVE),
        rotation: SigningKey::new(ROTATED).into_iter().collect(),
        private: Some(PrivateKey::parse(&b64(SEED)).unwrap()),
        public: vec![former.public()],
        legacy: false,
    };
    let workers = WorkerAuth {
        shared: Secret::new(TOKEN),
        shared_previous: Secret::new("the-previous-shared-token"),
        per_worker: HashMap::from([("w-own".to_owned(), Secret::new("own-token").unwrap())]),
        keys,
        revoked: ["revoked-by-config".to_owned()].into(),
        bootstrap: HashMap::from([
            ("w-boot".to_owned(), BootstrapKey::parse("boot-key").unwrap()),
            // SHA-256 of `abc`.
            (
                "w-hashed".to_owned(),
                BootstrapKey::parse("sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad").unwrap(),
            ),
        ]),
        anonymous: Anonymous::Nobody,
    };
    set(server, |access| access.workers = workers);
}

/// Good claims of worker `w-1`, changed; what is null is left out.
fn claims(change: Value) -> Value {
    let mut claims = json!({"worker_id": "w-1", "jti": "token-1", "aud": "worker:control-plane",
        "exp": now() + 300, "iat": now()});
    merge(&mut claims, change);
    claims.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    claims
}

fn by_hmac(key: &str, claims: &Value) -> String {
    let message = format!("stacyvm-worker-v1.{}", b64(claims.to_string()));
    let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes()), message.as_bytes());
    format!("{message}.{}", b64(signature))
}

fn by_ed25519(seed: &[u8; 32], claims: &Value) -> String {
    let message = format!("tenure-worker-v1.{}", b64(claims.to_string()));
    let pair = Ed25519KeyPair::from_seed_unchecked(seed).unwrap();
    format!("{message}.{}", b64(pair.sign(message.as_bytes())))
}

pub async fn claim(server: &Server, headers: &[Header<'_>], worker: &str) -> Answer {
    let body = json!({"worker_id": worker, "streams": ["q"], "max_wait_ms": 0});
    server.call(Method::POST, "/internal/worker/claim", headers, Some(&body)).await
}

pub async fn by_token(server: &Server, token: &str) -> (u16, String) {
    let answer = claim(server, &[("X-Worker-Token", token), ("X-Worker-ID", "w-1")], "w-1").await;
    let (status, word) = said(&answer);
    (status, word.to_owned())
}

async fn tokens_that_are_accepted(server: Server) {
    with_workers(&server);
    let good = claims(json!({}));
    let signed = [
        ("HMAC", by_hmac(ACTIVE, &good)),
        ("HMAC by a rotation key", by_hmac(ROTATED, &good)),
        ("Ed25519", by_ed25519(&SEED, &good)),
        ("Ed25519 by a rotation key", by_ed25519(&SEED_ROTATED, &good)),
        ("scope lease", by_hmac(ACTIVE, &claims(json!({"scopes": ["worker:lease"]})))),
        ("scope lease among unknown ones", by_hmac(ACTIVE, &claims(json!({"scopes": ["x", "worker:lease"]})))),
        ("issued 25 s ahead", by_ed25519(&SEED, &claims(json!({"iat": now() + 25})))),
        ("valid in 25 s", by_ed25519(&SEED, &claims(json!({"nbf": now() + 25})))),
        ("15 minutes", by_hmac(ACTIVE, &claims(json!({"exp": now() + 900})))),
        ("a claim that is not known", by_hmac(ACTIVE, &claims(json!({"more": [1]})))),
    ];
    for (what, token) in &signed {
        let bearer = format!("Bearer {token}");
        for headers in [
            vec![("X-Worker-Token", token.as_str()), ("X-Worker-ID", "w-1")],
            vec![("X-Worker-Token", token)],
            vec![("Authorization", &bearer), ("X-Worker-ID", "w-1")],
        ] {
            assert_eq!(said(&claim(&server, &headers, "w-1").await), (200, ""), "{what} {headers:?}");
        }
    }
    let previous = "the-previous-shared-token";
    for (headers, worker) in [
        (vec![("X-Worker-Token", "own-token"), ("X-Worker-ID", "w-own")], "w-own"),
        (vec![("X-Worker-Token", TOKEN), ("X-Worker-ID", "w-2")], "w-2"),
        (vec![("X-Worker-Token", previous), ("X-Worker-ID", "w-2")], "w-2"),
        (vec![("X-Trace-Worker-Token", TOKEN)], "w-2"),
        (vec![("X-Trace-Worker-Token", previous)], "w-2"),
    ] {
        assert_eq!(said(&claim(&server, &headers, worker).await), (200, ""), "{headers:?}");
    }
    // A worker with a static token may hold a signed one too.
    let own = by_ed25519(&SEED, &claims(json!({"worker_id": "w-own"})));
    let headers = [("X-Worker-Token", own.as_str()), ("X-Worker-ID", "w-own")];
    assert_eq!(said(&claim(&server, &headers, "w-own").await), (200, ""));
}

async fn a_worker_with_a_signed_token_is_known_everywhere(server: Server) {
    with_workers(&server);
    let shared = async |server: &Server| {
        // Named in the header and the body, or in the body alone.
        let named = claim(server, &[("X-Worker-Token", TOKEN), ("X-Worker-ID", "w-1")], "w-1").await;
        let plain = claim(server, &[("X-Worker-Token", TOKEN)], "w-1").await;
        (named.status.as_u16(), plain.status.as_u16())
    };
    assert_eq!(shared(&server).await, (200, 200), "nobody has shown a credential of its own for this id");
    let second = if server.home.is_sqlite() { None } else { Some(server.beside().await) };
    assert_eq!(by_token(&server, &by_ed25519(&SEED, &claims(json!({})))).await.0, 200);
    assert_eq!(shared(&server).await, (401, 401));
    if let Some(second) = &second {
        let refused = async || (shared(second).await == (401, 401)).then_some(());
        wait_until("the other control plane knows of it", Duration::from_secs(30), refused).await;
    }
    drop(second);
    let written = async || {
        let found = server.engine.store().proven_workers(Timestamp::MIN).await.unwrap();
        (found.len() == 1).then_some(())
    };
    wait_until("it is written down", Duration::from_secs(30), written).await;
    let server = server.restart().await;
    let known = async || (server.call(Method::GET, "/api/v1/ready", &[], None).await.status == 200).then_some(());
    wait_until("a new process is ready", Duration::from_secs(30), known).await;
    assert_eq!(shared(&server).await, (401, 401));
    let other = claim(&server, &[("X-Worker-Token", TOKEN), ("X-Worker-ID", "w-2")], "w-2").await;
    assert_eq!(other.status.as_u16(), 200, "another id may share the token");
}

async fn tokens_that_are_refused(server: Server) {
    with_workers(&server);
    let (invalid, forbidden) = ((401, "invalid_worker_token"), (403, "forbidden"));
    let rows = [
        ("another worker", json!({"worker_id": "w-2"}), invalid),
        ("no worker", json!({"worker_id": null}), invalid),
        ("a blank worker", json!({"worker_id": " "}), invalid),
        ("expired", json!({"exp": now() - 1, "iat": now() - 100}), invalid),
        ("no expiry", json!({"exp": null}), invalid),
        ("expiry zero", json!({"exp": 0}), invalid),
        ("not yet valid", json!({"nbf": now() + 60}), invalid),
        ("issued in the future", json!({"iat": now() + 60, "exp": now() + 120}), invalid),
        ("a life of more than 15 minutes", json!({"iat": now(), "exp": now() + 902}), invalid),
        ("revoked by the configuration", json!({"jti": "revoked-by-config"}), invalid),
        ("no audience", json!({"aud": null}), invalid),
        ("no time of issue", json!({"iat": null}), invalid),
        ("no id", json!({"jti": null}), invalid),
        ("a blank id", json!({"jti": "  "}), invalid),
        ("the audience of workers", json!({"aud": "worker:rpc"}), invalid),
        ("another audience", json!({"aud": "tenure"}), invalid),
        ("audiences in a list", json!({"aud": ["worker:control-plane"]}), invalid),
        ("lacking scope", json!({"scopes": ["worker:heartbeat", "worker:exec"]}), forbidden),
        ("scopes of which none is known", json!({"scopes": ["lease", "admin", "*"]}), forbidden),
        ("no scopes", json!({"scopes": []}), forbidden),
    ];
    for (what, change, (status, word)) in rows {
        let claims = claims(change);
        for token in [by_hmac(ACTIVE, &claims), by_ed25519(&SEED, &claims)] {
            assert_eq!(by_token(&server, &token).await, (status, word.to_owned()), "{what}");
        }
    }
    let good = claims(json!({}));
    let (hmac, ed25519) = (by_hmac(ACTIVE, &good), by_ed25519(&SEED, &good));
    let without_signature = hmac.rsplit_once('.').unwrap().0.to_owned();
    for (what, token) in [
        ("another key", by_hmac("another-signing-key-with-at-least-32-bytes", &good)),
        ("another Ed25519 key", by_ed25519(&[7; 32], &good)),
        ("no signature", without_signature.clone()),
        ("an empty signature", format!("{without_signature}.")),
        ("a signature of the other format", hmac.replace("stacyvm", "tenure")),
        ("a part more", format!("{hmac}.x")),
        ("padding", format!("{ed25519}==")),
        ("a changed payload", ed25519.replacen(".e", ".f", 1)),
        ("the prefix alone", "tenure-worker-v1.".to_owned()),
        ("a key of the API", USER.1.to_owned()),
        ("a key of admins", ADMIN.1.to_owned()),
        ("a bootstrap key", "boot-key".to_owned()),
        ("the signing key itself", ACTIVE.to_owned()),
    ] {
        assert_eq!(by_token(&server, &token).await, (401, "invalid_worker_token".to_owned()), "{what}");
    }
    let token = hmac.as_str();
    for (what, headers, worker, expected) in [
        ("shared for a mapped id", vec![("X-Worker-Token", TOKEN), ("X-Worker-ID", "w-own")], "w-own", invalid),
        ("shared, naming a mapped id in the body", vec![("X-Worker-Token", TOKEN)], "w-own", invalid),
        ("the token of another", vec![("X-Worker-Token", "own-token"), ("X-Worker-ID", "w-1")], "w-1", invalid),
        ("header of another", vec![("X-Worker-Token", token), ("X-Worker-ID", "w-2")], "w-2", invalid),
        ("header of another, body of its own", vec![("X-Worker-Token", token), ("X-Worker-ID", "w-2")], "w-1", invalid),
        ("signed, in the header of the shared", vec![("X-Trace-Worker-Token", token)], "w-1", invalid),
        ("two that differ", vec![("X-Worker-Token", token), ("X-Trace-Worker-Token", TOKEN)], "w-1", invalid),
        ("body of another", vec![("X-Worker-Token", token)], "w-2", (403, "worker_mismatch")),
        ("body of a mapped one", vec![("X-Worker-Token", token)], "w-own", (403, "worker_mismatch")),
    ] {
        assert_eq!(said(&claim(&server, &headers, worker).await), expected, "{what}");
    }
    // Every call of the contract holds the token against its own scope.
    let narrow = by_hmac(ACTIVE, &claims(json!({"scopes": ["worker:heartbeat"]})));
    for call in ["claim", "heartbeat", "complete", "fail", "exchange"] {
        let headers = [("X-Worker-Token", narrow.as_str())];
        let answer = post(&server, &headers, &format!("/internal/worker/{call}"), json!({"worker_id": "w-1"})).await;
        assert_eq!(said(&answer), (403, "forbidden"), "{call}");
        assert!(answer.body["message"].as_str().unwrap().contains("worker:lease"), "{}", answer.body);
    }
}

async fn revoke(server: &Server, id: &str) {
    let answer = post(server, &[ADMIN], "/api/v1/admin/worker-tokens/revocations", json!({"token_id": id})).await;
    assert_eq!((answer.status.as_u16(), answer.body.as_str()), (204, Some("")));
}

async fn a_revoked_token_is_refused_at_once_and_stays_revoked(server: Server) {
    with_workers(&server);
    let token = by_ed25519(&SEED, &claims(json!({"jti": "stolen"})));
    let other = by_ed25519(&SEED, &claims(json!({"jti": "kept"})));
    assert_eq!(by_token(&server, &token).await.0, 200);
    let second = if server.home.is_sqlite() { None } else { Some(server.beside().await) };
    if let Some(second) = &second {
        assert_eq!(by_token(second, &token).await.0, 200);
    }
    revoke(&server, "stolen").await;
    assert_eq!(by_token(&server, &token).await, (401, "invalid_worker_token".to_owned()));
    if let Some(second) = &second {
        let refused = async || (by_token(second, &token).await.0 == 401).then_some(());
        wait_until("the other replica refuses it", Duration::from_secs(20), refused).await;
    }
    // Behind the servers' backs: who refuses this one has read again what was revoked. Nothing brings the first one back.
    let until = Timestamp::from_millis(i64::MAX / 2);
    server.engine.store().revoke_worker_token("marker", until, "test").await.unwrap();
    let marker = by_ed25519(&SEED, &claims(json!({"jti": "marker"})));
    for server in std::iter::once(&server).chain(&second) {
        let refused = async || (by_token(server, &marker).await.0 == 401).then_some(());
        wait_until("what was revoked is read again", Duration::from_secs(30), refused).await;
        assert_eq!(by_token(server, &token).await.0, 401);
        assert_eq!(by_token(server, &other).await.0, 200);
        let listed = get(server, &[ADMIN], "/api/v1/admin/worker-tokens/revocations").await.ok();
        assert_eq!(listed, json!({"items": ["marker", "stolen"]}));
    }
    drop(second);
    let server = server.restart().await;
    let refused = async || (by_token(&server, &token).await.0 == 401).then_some(());
    wait_until("a new process refuses it", Duration::from_secs(20), refused).await;
    for blank in ["", "  ", "a b"] {
        let body = json!({"token_id": blank});
        let answer = post(&server, &[ADMIN], "/api/v1/admin/worker-tokens/revocations", body).await;
        assert_eq!(said(&answer), (400, "invalid_argument"), "{blank:?}");
    }
}

async fn many_revocations_at_once_all_hold(server: Server) {
    with_workers(&server);
    let ids: Vec<String> = (0..40).map(|n| format!("token-{n}")).collect();
    futures_util::future::join_all(ids.iter().map(|id| revoke(&server, id))).await;
    for id in &ids {
        let token = by_hmac(ACTIVE, &claims(json!({"jti": id})));
        assert_eq!(by_token(&server, &token).await.0, 401, "{id}");
    }
}

async fn keys_change_without_a_restart(server: Server) {
    with_workers(&server);
    let token = by_hmac(ACTIVE, &claims(json!({})));
    let fresh = by_ed25519(&[9; 32], &claims(json!({})));
    assert_eq!((by_token(&server, &token).await.0, by_token(&server, &fresh).await.0), (200, 401));
    let public = PrivateKey::parse(&b64([9; 32])).unwrap().public();
    set(&server, |access| {
        access.workers.keys.active = None;
        access.workers.keys.public.push(PublicKey::clone(&public));
        access.workers.shared = None;
        access.workers.revoked.insert("token-9".to_owned());
    });
    assert_eq!((by_token(&server, &token).await.0, by_token(&server, &fresh).await.0), (401, 200));
    assert_eq!(by_token(&server, TOKEN).await.0, 401);
    let revoked = by_ed25519(&[9; 32], &claims(json!({"jti": "token-9"})));
    assert_eq!(by_token(&server, &revoked).await.0, 401);
}
