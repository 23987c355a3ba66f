use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::KeyError;
use crate::Secret;

const HASHED: &str = "sha256:";

/// `auth.worker_bootstrap_keys.<worker_id>`: with it a worker asks for its first token, and for nothing else.
#[derive(Debug, Clone)]
pub enum BootstrapKey {
    Plain(Secret),
    /// Its SHA-256, so that the configuration does not hold it.
    Hashed(KeyHash),
}

#[derive(Clone)]
pub struct KeyHash([u8; 32]);

impl std::fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

impl BootstrapKey {
    /// The key itself, or `sha256:` and 64 hexadecimal digits.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let secret = Secret::new(text).ok_or(KeyError::Empty)?;
        match secret.reveal().strip_prefix(HASHED) {
            Some(digits) => Ok(Self::Hashed(KeyHash(hash_of(digits).ok_or(KeyError::Bootstrap)?))),
            None => Ok(Self::Plain(secret)),
        }
    }

    /// In constant time.
    pub fn matches(&self, sent: &str) -> bool {
        match self {
            Self::Plain(secret) => secret.matches(sent),
            Self::Hashed(hash) => Sha256::digest(sent).as_slice().ct_eq(&hash.0).into(),
        }
    }
}

fn hash_of(digits: &str) -> Option<[u8; 32]> {
    let digits = digits.as_bytes();
    if digits.len() != 64 {
        return None;
    }
    let mut hash = [0; 32];
    for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16);
        *byte = u8::try_from(digit(0)? * 16 + digit(1)?).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SHA-256 of `abc`.
    const ABC: &str = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn a_key_matches_plain_and_hashed() {
        let upper = ABC.replace("ba78", "BA78");
        for text in ["abc", " abc\n", ABC, &upper] {
            let key = BootstrapKey::parse(text).unwrap();
            assert!(key.matches("abc"), "{text}");
            for sent in ["", "ab", "abcd", "Abc", ABC] {
                assert!(!key.matches(sent), "{text}: {sent}");
            }
            assert!(!format!("{key:?}").contains("abc"));
        }
        assert!(matches!(BootstrapKey::parse(ABC), Ok(BootstrapKey::Hashed(_))));
    }

    #[test]
    fn what_looks_like_a_hash_must_be_one() {
        assert_eq!(BootstrapKey::parse("  ").unwrap_err(), KeyError::Empty);
        for text in ["sha256:", "sha256:abc", &ABC.replace("ba", "xy"), &format!("{ABC}00"), &ABC.replace("ba", "ü")] {
            assert_eq!(BootstrapKey::parse(text).unwrap_err(), KeyError::Bootstrap, "{text}");
        }
    }
}
