//! Both formats of worker tokens, and the keys behind them.

use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ed25519_dalek::Signer;
use tenure_auth::WorkerKeys;
use tenure_auth::worker::{
    BootstrapKey, ClaimSet, Claims, Format, LIFETIME_S_MAX, PrivateKey, PublicKey, SigningKey, TOKEN_BYTES_MAX,
};

use super::forge::{self, NOW, b64};
use super::leak;

const KEY: &str = "worker-signing-key-with-at-least-32-bytes";
const PUBLIC: &str = "A6EHv_POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg";
/// The vectors of the notes: the only texts that are believed as they are.
const HMAC_TOKEN: &str = "stacyvm-worker-v1.eyJ3b3JrZXJfaWQiOiJ3b3JrZXItYSIsImp0aSI6IjAwMTEyMjMzNDQ1NTY2Nzc4ODk5YWFiYmNjZGRlZWZmIiwiYXVkIjoid29ya2VyOnJwYyIsImV4cCI6MTc2NzIyNTkwMCwiaWF0IjoxNzY3MjI1NjAwfQ.6gr8kKCGY1f2AguSkKukUgEqg_LBPrOpxs9nVKRoRxY";
const ED25519_TOKEN: &str = "tenure-worker-v1.eyJ3b3JrZXJfaWQiOiJ3b3JrZXItYSIsImp0aSI6IjAwMTEyMjMzNDQ1NTY2Nzc4ODk5YWFiYmNjZGRlZWZmIiwiYXVkIjoid29ya2VyOnJwYyIsImV4cCI6MTc2NzIyNTkwMCwiaWF0IjoxNzY3MjI1NjAwfQ.foytVLikraTxTTdcBBSyP3dq6JscvOOF2Lb-Z555Q6j1pmy1gM3ImlasDlKys-joAFawLmwcmMXjs--8OLmyCg";

static HMAC_KEYS: LazyLock<WorkerKeys> =
    LazyLock::new(|| WorkerKeys { active: SigningKey::new(KEY), ..WorkerKeys::default() });
static ED25519_KEYS: LazyLock<WorkerKeys> =
    LazyLock::new(|| WorkerKeys { public: PublicKey::parse(PUBLIC).into_iter().collect(), ..WorkerKeys::default() });

/// A `stacyvm-worker-v1` token, or claims that are signed as one.
pub fn hmac(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, KEY.as_bytes());
    run(&HMAC_KEYS, &ED25519_KEYS, Format::Hmac, HMAC_TOKEN, text, |message| {
        aws_lc_rs::hmac::sign(&key, message).as_ref().to_vec()
    });
    bootstrap(text);
}

/// A `tenure-worker-v1` token, claims that are signed as one, or a key.
pub fn ed25519(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let key = ed25519_dalek::SigningKey::from_bytes(&std::array::from_fn(|at| at as u8));
    run(&ED25519_KEYS, &HMAC_KEYS, Format::Ed25519, ED25519_TOKEN, text, |message| {
        key.sign(message).to_bytes().to_vec()
    });
    keys(text);
}

fn run(own: &WorkerKeys, other: &WorkerKeys, format: Format, known: &str, text: &str, sign: impl Fn(&[u8]) -> Vec<u8>) {
    match own.verify(text, NOW, None, None, &|_| false) {
        Ok(_) => assert_eq!(text, known, "a token was believed that nobody signed"),
        Err(refusal) => {
            assert_ne!(text, known, "{refusal}");
            leak::nothing_of(text, &format!("{refusal} {refusal:?}"));
        }
    }
    let served = other.verify(text, NOW, None, None, &|_| false).is_ok();
    assert!(!served || Format::of(text) != Some(format), "the keys of one format served the other");
    if let Err(refusal) = ClaimSet::inspect(text) {
        leak::nothing_of(text, &refusal.to_string());
    }
    if text.starts_with('{') {
        signed(own, format, text, sign);
    }
}

/// The input as claims under a good signature.
fn signed(keys: &WorkerKeys, format: Format, claims: &str, sign: impl Fn(&[u8]) -> Vec<u8>) {
    let message = format!("{}.{}", format.prefix(), b64(claims));
    let token = format!("{message}.{}", b64(sign(message.as_bytes())));
    for legacy in [false, true] {
        let keys = WorkerKeys { legacy, ..keys.clone() };
        match keys.verify(&token, NOW, None, None, &|id| id == "revoked") {
            Ok(believed) => check(&believed, claims, legacy, &token),
            Err(refusal) => leak::nothing_of(&token, &refusal.to_string()),
        }
    }
}

/// The rules of the table, said in another way than in the code that is judged.
fn check(believed: &Claims, claims: &str, legacy: bool, token: &str) {
    let object = forge::object(claims);
    let text = |name: &str| object.get(name).map(|value| value.as_str().expect("a text"));
    let number = |name: &str| object.get(name).map(|value| value.as_i64().expect("a whole number"));
    assert!(token.len() <= TOKEN_BYTES_MAX);
    assert_eq!(text("worker_id"), Some(believed.worker_id.as_str()));
    assert_eq!(text("jti"), Some(believed.token_id.as_str()));
    assert!(!believed.worker_id.trim().is_empty() && !believed.token_id.trim().is_empty());
    assert_ne!(believed.token_id.trim(), "revoked");
    match text("aud") {
        Some(audience) => assert!(matches!(audience, "worker:rpc" | "worker:control-plane"), "{audience}"),
        None => assert!(legacy),
    }
    let exp = number("exp").expect("an end");
    assert!(exp > NOW);
    match number("iat") {
        Some(iat) => assert!(iat <= NOW + 30 && exp - iat <= LIFETIME_S_MAX),
        None => assert!(legacy && exp - NOW <= LIFETIME_S_MAX + 30),
    }
    assert!(number("nbf").is_none_or(|nbf| nbf <= NOW + 30));
}

fn bootstrap(text: &str) {
    match BootstrapKey::parse(text) {
        Ok(key) => {
            leak::nothing_of(text, &format!("{key:?}"));
            if let BootstrapKey::Plain(_) = &key {
                assert!(key.matches(text.trim()) && !key.matches(&format!("{}x", text.trim())));
            }
        }
        Err(error) => leak::nothing_of(text, &error.to_string()),
    }
}

fn keys(text: &str) {
    match PublicKey::parse(text) {
        Ok(key) => {
            let again = PublicKey::parse(&key.to_string()).expect("what is printed is read");
            assert_eq!(key, again);
            assert_eq!(URL_SAFE_NO_PAD.decode(key.to_string()).expect("base64url").len(), 32);
        }
        Err(error) => leak::nothing_of(text, &error.to_string()),
    }
    match PrivateKey::parse(text) {
        Ok(key) => {
            leak::nothing_of(text, &format!("{key:?}"));
            let pem = key.to_pem().expect("a key is written");
            assert_eq!(PrivateKey::parse(pem.reveal()).expect("and read").public(), key.public());
        }
        Err(error) => leak::nothing_of(text, &error.to_string()),
    }
}
