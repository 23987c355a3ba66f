//! Task and capability tokens, and the keys that the control planes tell each other.

use std::sync::LazyLock;

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use tenure_auth::{HS256_KID, Secret, TaskKeys, TaskPublicKey};

use super::forge::{self, NOW};
use super::{leak, vectors};

/// Made for this file and used nowhere else.
pub const PRIVATE_PEM: &str = "-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgLXDwxC+s81nb+OCP
mbEYywjgpaHz9sm6OEuw3yOi6X6hRANCAATB20Qxx4oif8fBI1RpIYAEmdVJ6eY8
VYm9IEQBdbZVl9EnPN5dtuZDUDjZ7RmVELYYBWqFfqjjJIcn66bQIV6x
-----END PRIVATE KEY-----";
const KID: &str = "z3jm-YXMgYT-Qz3vQAARo1GwBlxE7TKWmhS39LbliAs";
const REFUSED_HEADERS: [&str; 7] = ["crit", "jwk", "jku", "x5u", "x5c", "b64", "zip"];

static KEYS: LazyLock<TaskKeys> = LazyLock::new(|| {
    let secret = |text: &str| Secret::new(text).expect("a text");
    let previous = TaskPublicKey::from_pem(&secret(vectors::TASK_KEY_PUBLIC)).expect("a public key");
    let keys = TaskKeys::new("tenure", &secret(PRIVATE_PEM)).expect("a private key").with_previous([previous]);
    keys.with_callback_secret(&secret(vectors::CALLBACK_SECRET)).expect("a long secret")
});
static PAIR: LazyLock<EcdsaKeyPair> = LazyLock::new(pair);

/// The key of [`PRIVATE_PEM`], to sign what is made up.
pub fn pair() -> EcdsaKeyPair {
    let text: String = PRIVATE_PEM.lines().filter(|line| !line.starts_with("-----")).collect();
    let der = STANDARD.decode(text).expect("base64");
    EcdsaKeyPair::from_private_key_der(&ECDSA_P256_SHA256_FIXED_SIGNING, &der).expect("a private key")
}

pub fn by_pair(pair: &EcdsaKeyPair) -> impl Fn(&[u8]) -> Vec<u8> {
    |message| pair.sign(&SystemRandom::new(), message).expect("a signature").as_ref().to_vec()
}

fn by_secret(message: &[u8]) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, vectors::CALLBACK_SECRET.as_bytes());
    hmac::sign(&key, message).as_ref().to_vec()
}

/// A token; a header and claims that are signed; or a key.
pub fn jwt(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    as_is(text);
    if let Some((header, claims)) = forge::header_and_claims(text) {
        signed(header, claims);
    }
    keys(text);
}

fn as_is(text: &str) {
    match KEYS.verify_task(text, NOW) {
        Ok(_) => assert!([vectors::TASK_TOKEN, vectors::TASK_TOKEN_HS256].contains(&text), "believed, not signed"),
        Err(error) => leak::nothing_of(text, &error.to_string()),
    }
    match KEYS.verify_capability(text, NOW) {
        Ok(_) => assert_eq!(text, vectors::CAPABILITY_TOKEN, "believed, not signed"),
        Err(error) => leak::nothing_of(text, &error.to_string()),
    }
}

fn signed(header: &str, claims: &str) {
    let by_key = forge::compact(header, claims, by_pair(&PAIR));
    let by_secret = forge::compact(header, claims, by_secret);
    for (token, algorithm) in [(&by_key, "ES256"), (&by_secret, "HS256")] {
        let task = KEYS.verify_task(token, NOW);
        let capability = KEYS.verify_capability(token, NOW);
        assert!(task.is_err() || capability.is_err(), "one token is good in two places");
        for error in [task.as_ref().err(), capability.as_ref().err()].into_iter().flatten() {
            leak::nothing_of(token, &error.to_string());
        }
        if let Ok(verified) = &task {
            check(header, claims, algorithm, "tenure.callback");
            assert!(verified.claims.attempt > 0 && verified.expires_at_s > NOW - 2 && verified.token_id.is_some());
        }
        if let Ok(verified) = &capability {
            assert_eq!(algorithm, "ES256", "the secret of the callback contract signed a capability");
            check(header, claims, algorithm, "trace.task");
            assert!(verified.claims.attempt > 0 && verified.expires_at_s > NOW - 2);
        }
    }
}

fn check(header: &str, claims: &str, algorithm: &str, audience: &str) {
    let (header, claims) = (forge::object(header), forge::object(claims));
    assert_eq!(header["alg"], algorithm);
    assert!(REFUSED_HEADERS.iter().all(|name| !header.contains_key(*name)));
    let kid = header.get("kid").and_then(Value::as_str);
    assert!(if algorithm == "ES256" { kid == Some(KID) } else { kid.is_none_or(|kid| kid == HS256_KID) });
    assert_eq!(claims["aud"], audience);
    assert_eq!(claims["iss"], "tenure");
}

fn keys(text: &str) {
    match TaskPublicKey::from_jwk(text) {
        Ok(key) => assert_eq!(TaskPublicKey::from_jwk(&key.jwk()).expect("what is written is read").kid(), key.kid()),
        Err(error) => leak::nothing_of(text, &error.to_string()),
    }
    let Some(secret) = Secret::new(text) else { return };
    if let Err(error) = TaskPublicKey::from_pem(&secret) {
        leak::nothing_of(text, &error.to_string());
    }
    match TaskKeys::new("tenure", &secret) {
        Ok(keys) => leak::nothing_of(text, &format!("{:?}", keys.issuer())),
        Err(error) => leak::nothing_of(text, &error.to_string()),
    }
}
