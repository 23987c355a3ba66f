//! Which credential a worker is shown.

use std::sync::Arc;

use tenure_auth::worker::{PrivateKey, SigningKey, WorkerKeys};
use tenure_auth::{Secret, WorkerAuth};
use tenure_rpc::{Call, Capabilities, Client, Error, Settings, Target, new_request_id};

use super::kit::*;
use super::wire::{Heard, answering, http};

const KEY: &str = "worker-signing-key-with-at-least-32-bytes";

fn hmac(key: &str) -> WorkerAuth {
    let keys = WorkerKeys { active: SigningKey::new(key), ..WorkerKeys::default() };
    WorkerAuth { keys, ..WorkerAuth::default() }
}

fn own(token: &str) -> WorkerAuth {
    let per_worker = [(WORKER.to_owned(), Secret::new(token).unwrap())].into_iter().collect();
    WorkerAuth { per_worker, ..WorkerAuth::default() }
}

fn calling(auth: WorkerAuth) -> Client {
    Client::new(Settings::default(), Arc::new(auth), None)
}

async fn worker(auth: WorkerAuth) -> Worker {
    Worker::with(Options { auth, ..Options::default() }).await
}

async fn status(client: &Client, target: &Target) -> Result<(), Error> {
    match client.status(target, Call::new(&new_request_id()), &sandbox("sb-1")).await {
        // It was let in: there is no such sandbox.
        Err(error) if error.code() == Some(tenure_rpc::wire::Code::NotFound) => Ok(()),
        other => other.map(drop),
    }
}

#[tokio::test]
async fn static_hmac_and_ed25519_credentials_are_accepted() {
    let private = PrivateKey::random();
    let public = WorkerAuth {
        keys: WorkerKeys { public: vec![private.public()], ..WorkerKeys::default() },
        ..WorkerAuth::default()
    };
    let signing =
        WorkerAuth { keys: WorkerKeys { private: Some(private), ..WorkerKeys::default() }, ..WorkerAuth::default() };
    for (known, shown) in [
        (shared(TOKEN), shared(TOKEN)),
        (own("own-token"), own("own-token")),
        (shared("own-token"), own("own-token")),
        (hmac(KEY), hmac(KEY)),
        (public, signing),
    ] {
        let name = format!("{shown:?}");
        let worker = worker(known).await;
        status(&calling(shown), &worker.target()).await.expect(&name);
    }
}

#[tokio::test]
async fn wrong_or_missing_credentials_are_not_authorized() {
    let worker = worker(hmac(KEY)).await;
    for auth in [WorkerAuth::default(), shared("wrong"), hmac("another-key-of-thirty-two-bytes-or-so")] {
        let client = calling(auth);
        let error = status(&client, &worker.target()).await.unwrap_err();
        assert!(matches!(error, Error::Unauthorized { .. }) && !error.may_have_run(), "{error:?}");
    }
    assert!(!calling(WorkerAuth::default()).can_authenticate(&worker.target()));
    let private = WorkerAuth {
        keys: WorkerKeys { private: Some(PrivateKey::random()), ..WorkerKeys::default() },
        ..WorkerAuth::default()
    };
    let client = calling(private);
    assert!(client.can_authenticate(&worker.target()) && !client.can_authenticate(&worker.plain_target()));
}

#[tokio::test]
async fn after_401_the_next_credential_is_tried() {
    // Each worker knows only the second of the two that the control plane has.
    let both = |first: WorkerAuth, second: WorkerAuth| WorkerAuth {
        shared: first.shared.or(second.shared),
        per_worker: first.per_worker.into_iter().chain(second.per_worker).collect(),
        keys: WorkerKeys { active: first.keys.active.or(second.keys.active), ..WorkerKeys::default() },
        ..WorkerAuth::default()
    };
    for (known, shown) in
        [(hmac(KEY), both(shared("unknown"), hmac(KEY))), (own("own-token"), both(hmac(KEY), own("own-token")))]
    {
        let worker = worker(known).await;
        let client = calling(shown);
        status(&client, &worker.target()).await.unwrap();
        status(&client, &worker.target()).await.unwrap();
    }
}

#[tokio::test]
async fn an_upload_finds_its_credential_before_it_is_sent() {
    let both = WorkerAuth { shared: Secret::new("unknown"), ..hmac(KEY) };
    let worker = worker(hmac(KEY)).await;
    let target = worker.target();
    spawn(&calling(hmac(KEY)), &target, "sb-1").await;
    let client = calling(both);
    let content = futures_util::stream::iter([Ok::<_, String>(bytes::Bytes::from_static(b"hello"))]);
    let id = new_request_id();
    client.write_file(&target, Call::new(&id), &file("/workspace/a"), "", None, content).await.unwrap();
    assert_eq!(exec(&client, &target, "cat a").await, "hello");
}

fn token(heard: &Heard) -> String {
    heard.header("x-worker-token").unwrap_or_default().to_owned()
}

fn ok(heard: &Heard) -> Vec<u8> {
    http(200, "application/json", &format!(r#"{{"id":"{}","worker_id":"{WORKER}"}}"#, heard.id()))
}

#[tokio::test]
async fn a_worker_with_its_own_token_never_sees_the_shared_one() {
    let (address, heard) = answering(|_| http(401, "application/json", r#"{"code":"UNAUTHORIZED"}"#)).await;
    let auth = WorkerAuth { shared: Secret::new("shared-secret"), ..own("own-token") };
    let target = at(&format!("http://{address}"), Capabilities::all());
    let error = calling(auth).shutdown(&target, Call::new(&new_request_id())).await.unwrap_err();
    assert!(matches!(error, Error::Unauthorized { .. }));
    let shown: Vec<String> = heard.lock().unwrap().iter().map(token).collect();
    assert_eq!(shown, ["own-token"]);
}

#[tokio::test]
async fn the_accepted_credential_is_remembered_and_a_minted_token_is_kept() {
    let accept = |heard: &Heard| match token(heard).starts_with("stacyvm-worker-v1.") {
        true => ok(heard),
        false => http(401, "application/json", r#"{"code":"UNAUTHORIZED","message":"no"}"#),
    };
    let (address, heard) = answering(accept).await;
    let auth = WorkerAuth { shared: Secret::new("shared"), ..hmac(KEY) };
    let client = calling(auth);
    let target = at(&format!("http://{address}"), Capabilities::all());
    let ids: Vec<String> = (0..3).map(|_| new_request_id()).collect();
    for id in &ids {
        client.shutdown(&target, Call::new(id)).await.unwrap();
    }
    {
        let heard = heard.lock().unwrap();
        assert_eq!(heard.len(), 4, "the refused credential is shown once");
        assert_eq!(token(&heard[0]), "shared");
        assert!(heard[1..].iter().all(|one| token(one) == token(&heard[1])), "one token serves all");
        assert_eq!(heard[0].body, heard[1].body, "the same call is sent again");
        for one in heard.iter() {
            assert_eq!(one.header("x-worker-id"), Some(WORKER));
            assert_eq!(one.header("x-request-id"), Some(one.id().as_str()));
            assert_eq!(one.header("content-type"), Some("application/json"));
        }
    }
    client.replace_auth(Arc::new(hmac("another-key-of-thirty-two-bytes-or-so")));
    client.shutdown(&target, Call::new(&new_request_id())).await.unwrap();
    let heard = heard.lock().unwrap();
    assert_ne!(token(&heard[4]), token(&heard[1]), "a new key mints a new token");
}

#[tokio::test]
async fn credentials_are_replaced_while_the_client_runs() {
    let worker = worker(hmac(KEY)).await;
    let client = calling(hmac("another-key-of-thirty-two-bytes-or-so"));
    let target = worker.target();
    assert!(matches!(status(&client, &target).await, Err(Error::Unauthorized { .. })));
    client.replace_auth(Arc::new(hmac(KEY)));
    status(&client, &target).await.unwrap();
    worker.credentials.replace(shared(TOKEN));
    assert!(matches!(status(&client, &target).await, Err(Error::Unauthorized { .. })));
    client.replace_auth(Arc::new(shared(TOKEN)));
    status(&client, &target).await.unwrap();
}
