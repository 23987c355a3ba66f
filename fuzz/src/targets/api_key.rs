//! Which texts are looked up as API keys.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use tenure_auth::key_digest;

const KEY: &str = "tnr_00112233aabbccdd_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";

/// Every text that is looked up has the one spelling of a key, so that no two texts are the same key.
pub fn digest(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Some(digest) = key_digest(text) else {
        assert_ne!(text, KEY);
        return;
    };
    assert_eq!(digest, <[u8; 32]>::from(Sha256::digest(text)));
    assert_eq!(Some(digest) == key_digest(KEY), text == KEY);
    let (id, secret) = text[4..].split_once('_').expect("an id and a secret");
    assert!(text.starts_with("tnr_") && id.len() == 16);
    assert!(id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')), "{id}");
    let bytes = URL_SAFE_NO_PAD.decode(secret).expect("base64url");
    assert_eq!((bytes.len(), URL_SAFE_NO_PAD.encode(&bytes).as_str()), (32, secret));
}
