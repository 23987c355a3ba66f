//! The tables of what is accepted and what is refused, row by row.

mod any;
mod claims;
mod signatures;
mod who;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::signed::{message, token};
use super::*;

const IAT: i64 = 1_767_225_600;
const KEY: &str = "worker-signing-key-with-at-least-32-bytes";
const PAYLOAD: &str = r#"{"worker_id":"worker-a","jti":"00112233445566778899aabbccddeeff","aud":"worker:rpc","exp":1767225900,"iat":1767225600}"#;
const HMAC_TOKEN: &str = "stacyvm-worker-v1.eyJ3b3JrZXJfaWQiOiJ3b3JrZXItYSIsImp0aSI6IjAwMTEyMjMzNDQ1NTY2Nzc4ODk5YWFiYmNjZGRlZWZmIiwiYXVkIjoid29ya2VyOnJwYyIsImV4cCI6MTc2NzIyNTkwMCwiaWF0IjoxNzY3MjI1NjAwfQ.6gr8kKCGY1f2AguSkKukUgEqg_LBPrOpxs9nVKRoRxY";
const ED25519_TOKEN: &str = "tenure-worker-v1.eyJ3b3JrZXJfaWQiOiJ3b3JrZXItYSIsImp0aSI6IjAwMTEyMjMzNDQ1NTY2Nzc4ODk5YWFiYmNjZGRlZWZmIiwiYXVkIjoid29ya2VyOnJwYyIsImV4cCI6MTc2NzIyNTkwMCwiaWF0IjoxNzY3MjI1NjAwfQ.foytVLikraTxTTdcBBSyP3dq6JscvOOF2Lb-Z555Q6j1pmy1gM3ImlasDlKys-joAFawLmwcmMXjs--8OLmyCg";
const PUBLIC: &str = "A6EHv_POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg";

fn private() -> PrivateKey {
    let bytes: Vec<u8> = (0..32).collect();
    PrivateKey::parse(&URL_SAFE_NO_PAD.encode(bytes)).unwrap()
}

fn hmac_keys() -> WorkerKeys {
    WorkerKeys { active: SigningKey::new(KEY), ..WorkerKeys::default() }
}

fn ed25519_keys() -> WorkerKeys {
    WorkerKeys { public: vec![PublicKey::parse(PUBLIC).unwrap()], ..WorkerKeys::default() }
}

/// A token of any payload under the key of the vectors.
fn signed_text(payload: &str) -> String {
    let message = message(Format::Hmac, payload.as_bytes());
    let signature = SigningKey::new(KEY).unwrap().sign(&message);
    token(&message, &signature)
}

/// The claims of a good token for the control plane, with some of them replaced; `null` takes one away.
fn signed_with(changes: Value) -> String {
    let mut claims =
        json!({"worker_id": "w-1", "jti": "t-1", "aud": "worker:control-plane", "exp": IAT + 300, "iat": IAT});
    for (name, value) in changes.as_object().unwrap() {
        claims[name] = value.clone();
    }
    claims.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    signed_text(&claims.to_string())
}

fn judge(keys: &WorkerKeys, token: &str, now: i64) -> Result<Claims, Refusal> {
    keys.verify(token, now, Some(Audience::ControlPlane), Some("w-1"), &|id| id == "revoked")
}
