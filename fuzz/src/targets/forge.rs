//! Inputs that are signed here, so that what lies behind the signature is reached.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

pub const NOW: i64 = 1_767_225_600;

pub fn b64(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// An input of two lines that both begin like JSON objects: a header and claims that the target signs.
pub fn header_and_claims(input: &str) -> Option<(&str, &str)> {
    input.split_once('\n').filter(|(header, claims)| header.starts_with('{') && claims.starts_with('{'))
}

/// The token of them, signed however `sign` likes.
pub fn compact(header: &str, claims: &str, sign: impl FnOnce(&[u8]) -> Vec<u8>) -> String {
    let message = format!("{}.{}", b64(header), b64(claims));
    let signature = sign(message.as_bytes());
    format!("{message}.{}", b64(signature))
}

/// What was believed is JSON for everybody else too.
pub fn object(text: &str) -> Map<String, Value> {
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => object,
        _ => panic!("what is no JSON object was believed"),
    }
}
