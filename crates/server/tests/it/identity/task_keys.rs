//! Keys of task tokens: published without their private half, and known to every replica.

use std::sync::Arc;

use serde_json::{Value, json};
use tenure_auth::{CapabilityClaims, DEFAULT_ISSUER, S3Grant, Secret, TaskClaims, TaskKeys, TaskPublicKey, TokenError};
use tenure_engine::Engine;
use tenure_engine::store::Retention;
use tenure_server::{Live, ServerConfig, SharedTaskKeys, Unverified};
use tenure_testkit::{Postgres, wait_until};

use crate::cases;
use crate::harness::{Home, SOON, Server};
use crate::identity::people::{delete, get, post, with_users};
use crate::identity::provider::now;

cases!(
    Server,
    on_sqlite: [
        the_keys_are_published_without_their_private_half,
        a_new_key_signs_at_once_and_the_former_one_goes_on_verifying,
        what_is_no_task_token_is_refused,
    ],
    on_both_stores: [a_token_of_one_replica_is_good_at_another, a_key_that_was_taken_back_is_refused],
);

fn keys(pem: &Secret) -> TaskKeys {
    TaskKeys::new(DEFAULT_ISSUER, pem).unwrap()
}

fn task() -> TaskClaims {
    TaskClaims {
        task_id: "task-1".into(),
        tenant_id: "acme".into(),
        workspace_id: "default".into(),
        run_id: "run-1".into(),
        attempt: 2,
        attempt_id: "attempt-2".into(),
    }
}

fn capability() -> CapabilityClaims {
    let access = tenure_auth::Access::Inline { datasets: vec![], s3: S3Grant::default() };
    CapabilityClaims { org_id: "acme".into(), task_id: "task-1".into(), attempt: 2, fence: 7, access }
}

/// The same store behind a server with these keys.
async fn with_keys(mut server: Server, keys: TaskKeys) -> (Server, Arc<SharedTaskKeys>) {
    server.stop().await;
    let (home, clock) = (Arc::clone(&server.home), Arc::clone(&server.clock));
    // The former keys hold on to the former engine.
    let config = ServerConfig { task_keys: None, ..server.config.clone() };
    drop(server);
    start(home, clock, config, keys).await
}

async fn start(
    home: Arc<Home>,
    clock: Arc<tenure_engine::store::Clock>,
    config: ServerConfig,
    keys: TaskKeys,
) -> (Server, Arc<SharedTaskKeys>) {
    let mut shared = None;
    let server = Server::start_with(home, Retention::default(), clock, |engine: &Engine| {
        let keys = Arc::new(SharedTaskKeys::new(engine.clone(), keys));
        shared = Some(Arc::clone(&keys));
        ServerConfig { task_keys: Some(keys), ..config }
    })
    .await;
    (server, shared.unwrap())
}

/// Another server on the same store, with keys of its own.
async fn beside(server: &Server, keys: TaskKeys) -> (Server, Arc<SharedTaskKeys>) {
    let config = ServerConfig { access: Live::clone(&server.config.access), ..server.config.clone() };
    start(Arc::clone(&server.home), Arc::clone(&server.clock), config, keys).await
}

async fn the_keys_are_published_without_their_private_half(server: Server) {
    let jwks = "/internal/jwks/task";
    let none = get(&server, &[], jwks).await;
    assert_eq!((none.status.as_u16(), &none.body), (200, &json!({"keys": []})));
    let (pem, former) = (TaskKeys::generate().unwrap(), TaskKeys::generate().unwrap());
    let former_public = TaskPublicKey::from_pem(&former).unwrap();
    let (server, shared) = with_keys(server, keys(&pem).with_previous([former_public.clone()])).await;
    with_users(&server);
    let answer = get(&server, &[], jwks).await;
    assert_eq!(answer.status.as_u16(), 200);
    assert_eq!(answer.header("content-type"), "application/json");
    assert_eq!(answer.header("cache-control"), "max-age=300");
    let published = answer.body["keys"].as_array().unwrap();
    let kids: Vec<&str> = published.iter().map(|key| key["kid"].as_str().unwrap()).collect();
    assert_eq!(kids, [shared.get().kid(), former_public.kid()]);
    for key in published {
        let mut names: Vec<&str> = key.as_object().unwrap().keys().map(String::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["alg", "crv", "kid", "kty", "use", "x", "y"]);
        let is = ["alg", "crv", "kty", "use"].map(|name| key[name].as_str().unwrap());
        assert_eq!(is, ["ES256", "P-256", "EC", "sig"]);
        // What is published is enough to verify with, and only that.
        assert!(TaskPublicKey::from_jwk(&key.to_string()).is_ok());
    }
    // Somebody who has only the answer verifies a token of this server.
    let token = shared.get().issue_task(&task(), now(), 60).unwrap();
    let reader = keys(&TaskKeys::generate().unwrap());
    assert!(matches!(reader.verify_task(token.reveal(), now()), Err(TokenError::UnknownKey { .. })));
    let read = published.iter().map(|key: &Value| TaskPublicKey::from_jwk(&key.to_string()).unwrap());
    assert_eq!(reader.with_peers(read).verify_task(token.reveal(), now()).unwrap().claims, task());
}

async fn a_token_of_one_replica_is_good_at_another(server: Server) {
    let (first, one) = with_keys(server, keys(&TaskKeys::generate().unwrap())).await;
    if first.home.is_sqlite() {
        // One process at a time: what another one signed before is good after.
        let (token, kid) = (one.get().issue_task(&task(), now(), 60).unwrap(), one.get().kid().to_owned());
        wait_until("its key is registered", SOON, async || {
            let registered = first.engine.store().task_keys().await.unwrap();
            registered.iter().any(|(known, _)| *known == kid).then_some(())
        })
        .await;
        drop(one);
        let (_second, two) = with_keys(first, keys(&TaskKeys::generate().unwrap())).await;
        assert_eq!(two.verify_task(token.reveal()).await.unwrap().claims, task());
        return;
    }
    let (second, two) = beside(&first, keys(&TaskKeys::generate().unwrap())).await;
    wait_until("both keys are registered", SOON, async || {
        (first.engine.store().task_keys().await.unwrap().len() == 2).then_some(())
    })
    .await;
    // The first began before the second was there: it learns of the key when it meets it.
    for (signs, verifies) in [(&one, &two), (&two, &one)] {
        let token = signs.get().issue_task(&task(), now(), 60).unwrap();
        assert_eq!(verifies.verify_task(token.reveal()).await.unwrap().claims, task());
        let token = signs.get().issue_capability(&capability(), now(), 60).unwrap();
        assert_eq!(verifies.verify_capability(token.reveal()).await.unwrap().claims, capability());
        // Neither is taken in the other's place, at no replica.
        assert!(verifies.verify_task(token.reveal()).await.is_err());
        // Whichever replica is asked for the public keys, they are all there.
        let keys = verifies.get().jwks();
        assert!(keys.contains(verifies.get().kid()) && keys.contains(signs.get().kid()));
    }
    // A key that nobody registered stays unknown. Whoever asks for such keeps nobody from what was registered a moment ago.
    let stranger = keys(&TaskKeys::generate().unwrap()).issue_task(&task(), now(), 60).unwrap();
    for _ in 0..3 {
        let late = keys(&TaskKeys::generate().unwrap());
        second.engine.store().register_task_key(late.kid(), &late.public_jwk()).await.unwrap();
        let tokens: Vec<_> = (0..20).map(|_| late.issue_task(&task(), now(), 60).unwrap()).collect();
        let verified = futures_util::future::join_all(tokens.iter().map(|token| two.verify_task(token.reveal())));
        let (refused, verified) = tokio::join!(two.verify_task(stranger.reveal()), verified);
        assert!(verified.iter().all(Result::is_ok), "{verified:?}");
        assert!(matches!(refused, Err(Unverified::Refused(TokenError::UnknownKey { .. }))), "{refused:?}");
    }
    drop(second);
}

async fn a_new_key_signs_at_once_and_the_former_one_goes_on_verifying(server: Server) {
    let (before, after) = (TaskKeys::generate().unwrap(), TaskKeys::generate().unwrap());
    let (server, shared) = with_keys(server, keys(&before)).await;
    let other = if server.home.is_sqlite() { None } else { Some(beside(&server, keys(&before)).await) };
    let former = shared.get().issue_task(&task(), now(), 60).unwrap();
    let public = TaskPublicKey::from_pem(&before).unwrap();
    shared.replace(keys(&after).with_previous([public.clone()])).await;
    let current = shared.get().issue_task(&task(), now(), 60).unwrap();
    let published = get(&server, &[], "/internal/jwks/task").await.ok();
    let kids: Vec<&str> =
        published["keys"].as_array().unwrap().iter().map(|key| key["kid"].as_str().unwrap()).collect();
    assert_eq!(kids, [TaskPublicKey::from_pem(&after).unwrap().kid(), public.kid()]);
    for token in [&former, &current] {
        assert_eq!(shared.verify_task(token.reveal()).await.unwrap().claims, task());
        if let Some((_, other)) = &other {
            assert_eq!(
                other.verify_task(token.reveal()).await.unwrap().claims,
                task(),
                "at a replica that has not rotated"
            );
        }
    }
    // Left out, it is retired, whatever the store knew of it.
    shared.replace(keys(&after)).await;
    let refused = shared.verify_task(former.reveal()).await;
    assert!(matches!(refused, Err(Unverified::Refused(TokenError::UnknownKey { .. }))), "{refused:?}");
    assert_eq!(shared.verify_task(current.reveal()).await.unwrap().claims, task());
}

async fn a_key_that_was_taken_back_is_refused(server: Server) {
    let (server, shared) = with_keys(server, keys(&TaskKeys::generate().unwrap())).await;
    let peer = keys(&TaskKeys::generate().unwrap());
    server.engine.store().register_task_key(peer.kid(), &peer.public_jwk()).await.unwrap();
    let token = peer.issue_task(&task(), now(), 60).unwrap();
    assert_eq!(shared.verify_task(token.reveal()).await.unwrap().claims, task());
    let listed = get(&server, &[], "/api/v1/admin/task-keys").await.ok();
    assert!(listed["items"].as_array().unwrap().contains(&json!(peer.kid())), "{listed}");
    let path = format!("/api/v1/admin/task-keys/{}", peer.kid());
    assert_eq!(delete(&server, &[], &path).await.status.as_u16(), 204);
    let refused = shared.verify_task(token.reveal()).await;
    assert!(matches!(refused, Err(Unverified::Refused(TokenError::UnknownKey { .. }))), "{refused:?}");
    assert_eq!(delete(&server, &[], &path).await.refused(404)["error"], "task_key_not_found");
}

async fn what_is_no_task_token_is_refused(server: Server) {
    let pem = TaskKeys::generate().unwrap();
    let (_server, shared) = with_keys(server, keys(&pem)).await;
    let secret = Secret::new("a-callback-secret-that-nobody-configured-here").unwrap();
    let by_secret = keys(&pem).with_callback_secret(&secret).unwrap();
    let elsewhere = TaskKeys::new("https://other.example", &pem).unwrap();
    let good = shared.get().issue_task(&task(), now(), 60).unwrap();
    let (head, rest) = good.reveal().split_once('.').unwrap();
    let none =
        crate::identity::provider::b64(json!({"alg": "none", "typ": "JWT", "kid": shared.get().kid()}).to_string());
    for (what, token) in [
        ("a capability token", shared.get().issue_capability(&capability(), now(), 60).unwrap()),
        ("HS256 without a configured secret", by_secret.issue_task(&task(), now(), 60).unwrap()),
        ("another issuer", elsewhere.issue_task(&task(), now(), 60).unwrap()),
        ("expired", shared.get().issue_task(&task(), now() - 63, 60).unwrap()),
        ("not yet valid", shared.get().issue_task(&task(), now() + 400, 60).unwrap()),
        ("no algorithm", Secret::new(&format!("{none}.{rest}")).unwrap()),
        ("no signature", Secret::new(&format!("{head}.{}.", rest.split_once('.').unwrap().0)).unwrap()),
        ("a key that nobody registered", keys(&TaskKeys::generate().unwrap()).issue_task(&task(), now(), 60).unwrap()),
    ] {
        assert!(shared.verify_task(token.reveal()).await.is_err(), "{what}");
    }
    assert!(shared.verify_capability(good.reveal()).await.is_err());
    assert!(shared.verify_task(good.reveal()).await.is_ok());
}

/// A worker that gets 401 gives its task up; an outage must not make it do so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_cannot_be_looked_for_is_not_refused() {
    let postgres = Postgres::start().await;
    let server = Server::on(Home::Postgres(postgres.database().await)).await;
    let (server, shared) = with_keys(server, keys(&TaskKeys::generate().unwrap())).await;
    let peer = keys(&TaskKeys::generate().unwrap()).issue_task(&task(), now(), 60).unwrap();
    postgres.kill();
    let unverified = shared.verify_task(peer.reveal()).await;
    assert!(matches!(unverified, Err(Unverified::KeysUnavailable)), "{unverified:?}");
    let bearer = format!("Bearer {}", peer.reveal());
    let path = "/v1/tasks/task_01HGW5N7XHJM4GX29KZRXQP6N9/heartbeat";
    let answer = post(&server, &[("Authorization", &bearer)], path, json!({"attempt": 2})).await;
    assert_eq!((answer.status.as_u16(), &answer.body["error"]), (503, &json!("store_unavailable")));
}
