//! Who is let in on the routes of the control plane.

use std::collections::{HashMap, HashSet};

use super::*;

fn everything() -> WorkerAuth {
    WorkerAuth {
        shared: Secret::new("shared-token"),
        per_worker: HashMap::from([("w-own".to_owned(), Secret::new("own-token").unwrap())]),
        keys: WorkerKeys { private: Some(private()), ..hmac_keys() },
        revoked: HashSet::from(["listed".to_owned()]),
        ..WorkerAuth::default()
    }
}

#[test]
fn each_row_of_who_is_let_in_on_routes_of_the_control_plane() {
    let auth = everything();
    let ed25519 = auth.keys.mint(&MintRequest {
        ed25519: true,
        scopes: Some([Scope::Lease].into_iter().collect()),
        ..MintRequest::new("w-own", Audience::ControlPlane, IAT)
    });
    let ed25519 = ed25519.unwrap().token;
    let good = signed_with(json!({}));
    let named = |id: &str| signed_with(json!({ "worker_id": id }));
    let (own, rpc) = (named("w-own"), signed_with(json!({"aud": "worker:rpc"})));
    let (listed, elsewhere) = (signed_with(json!({"jti": "listed"})), signed_with(json!({"jti": "elsewhere"})));
    for (id, token, expected) in [
        // Static tokens beside signing keys.
        (Some("w-own"), "own-token", Ok("w-own")),
        (Some("w-2"), "shared-token", Ok("w-2")),
        (Some("w-own"), "shared-token", Err(AuthError::Invalid)),
        // Signed tokens, with and without the header, also for a worker that has a static one.
        (Some("w-1"), good.as_str(), Ok("w-1")),
        (Some(" w-1 "), &good, Ok("w-1")),
        (None, &good, Ok("w-1")),
        (Some("w-own"), &own, Ok("w-own")),
        (Some("w-own"), ed25519.reveal(), Ok("w-own")),
        (Some("w-2"), &good, Err(AuthError::Invalid)),
        (Some("w-1"), &own, Err(AuthError::Invalid)),
        (Some("w-1"), &rpc, Err(AuthError::Invalid)),
        (Some("w-1"), &listed, Err(AuthError::Invalid)),
        (Some("w-1"), &elsewhere, Err(AuthError::Invalid)),
        (Some("w-1"), "stacyvm-worker-v1.x.y", Err(AuthError::Invalid)),
        (Some("w-1"), KEY, Err(AuthError::Invalid)),
    ] {
        let sent = WorkerCredential { id, token: Some(token), ..WorkerCredential::default() };
        let found = auth.authenticate(sent, IAT, &|id| id == "elsewhere");
        let found = found.map(|worker| worker.id.unwrap());
        assert_eq!(found, expected.map(ToOwned::to_owned), "{id:?} {token}");
    }
}

#[test]
fn a_signed_token_narrows_its_worker_and_proves_its_name() {
    let auth = everything();
    let by = |changes| {
        let token = signed_with(changes);
        let sent = WorkerCredential { token: Some(&token), ..WorkerCredential::default() };
        auth.authenticate(sent, IAT, &|_| false).unwrap()
    };
    let lease = by(json!({"worker_id": "w-own", "scopes": ["worker:lease"]}));
    assert!(lease.may(Scope::Lease) && !lease.may(Scope::Heartbeat));
    assert_eq!(auth.speaks_as(&lease, "w-own"), Ok(true), "it is not the shared token");
    assert_eq!(auth.speaks_as(&lease, "w-2"), Ok(false));
}

/// A static token that looks like a signed one does not open anything, in whatever place it stands.
#[test]
fn what_begins_like_a_signed_token_is_judged_as_one_only() {
    let looks = "tenure-worker-v1.looks.signed";
    let auth = WorkerAuth {
        shared: Secret::new(looks),
        shared_previous: Secret::new(HMAC_TOKEN),
        per_worker: HashMap::from([("w-1".to_owned(), Secret::new(looks).unwrap())]),
        ..WorkerAuth::default()
    };
    for (id, token, shared_token) in [
        (Some("w-1"), Some(looks), None),
        (None, Some(looks), None),
        (Some("w-2"), Some(looks), None),
        (None, None, Some(looks)),
        (None, None, Some(HMAC_TOKEN)),
        (None, Some(HMAC_TOKEN), Some(HMAC_TOKEN)),
    ] {
        let sent = WorkerCredential { id, token, shared_token, from: None };
        assert_eq!(auth.authenticate(sent, IAT, &|_| false), Err(AuthError::Invalid), "{sent:?}");
    }
    // Nor is a good one believed in the place of the shared token.
    let good = signed_with(json!({}));
    let sent = WorkerCredential { shared_token: Some(&good), ..WorkerCredential::default() };
    assert_eq!(everything().authenticate(sent, IAT, &|_| false), Err(AuthError::Invalid));
    let anonymous = WorkerAuth { anonymous: Anonymous::Everyone, ..WorkerAuth::default() };
    let sent = WorkerCredential { token: Some(&good), ..WorkerCredential::default() };
    assert_eq!(anonymous.authenticate(sent, IAT, &|_| false), Err(AuthError::Invalid));
}

#[test]
fn the_log_learns_why_and_sees_no_token() {
    let auth = everything();
    let why = |token: &str, id| {
        auth.refusal(WorkerCredential { id, token: Some(token), ..WorkerCredential::default() }, IAT, &|_| false)
    };
    assert_eq!(why(&signed_with(json!({})), Some("w-1")), None);
    assert_eq!(why(&signed_with(json!({})), Some("w-2")), Some(Refusal::OtherWorker));
    assert_eq!(why(&signed_with(json!({"jti": "listed"})), None), Some(Refusal::Revoked));
    assert_eq!(why("wrong", Some("w-1")), None, "it is not a signed one");
    let printed = format!("{auth:?}");
    for secret in [KEY, "shared-token", "own-token"] {
        assert!(!printed.contains(secret), "{printed}");
    }
}
