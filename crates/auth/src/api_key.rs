//! API keys that are made here: shown once, kept as a digest.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

use crate::Secret;

/// Tells people, and scanners for leaked secrets, what they found.
const PREFIX: &str = "tnr_";
const ID_BYTES: usize = 8;
const SECRET_BYTES: usize = 32;

/// What is kept of a key. Two hundred and fifty-six random bits need no slow hash.
pub type KeyDigest = [u8; 32];

/// A key that was just made.
#[derive(Debug)]
pub struct NewApiKey {
    /// Names the key where it is listed, revoked and written about.
    pub id: String,
    /// What its holder sends. Nobody can be told again.
    pub text: Secret,
    pub digest: KeyDigest,
}

impl NewApiKey {
    pub fn random() -> Self {
        let id: String = crate::secret::random_bytes::<ID_BYTES>().iter().map(|byte| format!("{byte:02x}")).collect();
        let secret = BASE64_URL_SAFE_NO_PAD.encode(crate::secret::random_bytes::<SECRET_BYTES>());
        let text = format!("{PREFIX}{id}_{secret}");
        Self { digest: digest(&text), text: Secret::from_own(text), id }
    }
}

/// The digest to look a key up by; `None` for a text that does not have the form of a key, which saves the look-up.
pub fn key_digest(text: &str) -> Option<KeyDigest> {
    let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
    let id_is_hex = id.len() == 2 * ID_BYTES && id.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    let secret = BASE64_URL_SAFE_NO_PAD.decode(secret).ok()?;
    (id_is_hex && secret.len() == SECRET_BYTES).then(|| digest(text))
}

fn digest(text: &str) -> KeyDigest {
    Sha256::digest(text.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_key_is_found_by_its_digest_and_does_not_print() {
        let (key, other) = (NewApiKey::random(), NewApiKey::random());
        assert_eq!(key_digest(key.text.reveal()), Some(key.digest));
        assert_ne!(key.digest, other.digest);
        assert!(key.text.reveal().starts_with(&format!("tnr_{}_", key.id)));
        assert!(!format!("{key:?}").contains(&key.text.reveal()[20..]));
    }

    #[test]
    fn what_is_no_key_is_not_looked_up() {
        let key = NewApiKey::random();
        let text = key.text.reveal();
        for wrong in
            ["", "tnr_", "tnr_x_y", &text[1..], &text[..text.len() - 1], &format!("{text}x"), &text.to_uppercase()]
        {
            assert_eq!(key_digest(wrong), None, "{wrong}");
        }
    }
}
