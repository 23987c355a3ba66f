//! The keys behind signed tokens.

use std::fmt;

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD_PAD_INDIFFERENT, URL_SAFE_NO_PAD, URL_SAFE_PAD_INDIFFERENT};
use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;
use ed25519_dalek::pkcs8::{DecodePrivateKey, DecodePublicKey, EncodePrivateKey, KeypairBytes};
use ed25519_dalek::{Signature, Signer};

use crate::Secret;

const PEM: &str = "-----BEGIN ";

/// Why a text is not a key. It never quotes the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("is empty")]
    Empty,
    #[error("is not an Ed25519 private key: it must be PKCS#8 in PEM, or 32 bytes in base64")]
    Private,
    #[error("is not an Ed25519 public key: it must be PEM, or 32 bytes in base64")]
    Public,
    #[error("is a private key where the public one belongs")]
    PrivateForPublic,
    #[error("is an Ed25519 public key that anybody can sign for")]
    Weak,
    #[error("must be a text, or sha256: and 64 hexadecimal digits")]
    Bootstrap,
}

/// The key of `stacyvm-worker-v1` tokens. A process that can verify with it can also sign.
#[derive(Clone)]
pub struct SigningKey {
    text: Secret,
    key: hmac::Key,
}

impl SigningKey {
    /// Surrounding white space is removed; an empty text is not a key.
    pub fn new(text: &str) -> Option<Self> {
        let text = Secret::new(text)?;
        let key = hmac::Key::new(hmac::HMAC_SHA256, text.reveal().as_bytes());
        Some(Self { text, key })
    }

    /// The text itself, to compare and measure.
    pub fn text(&self) -> &Secret {
        &self.text
    }

    pub(super) fn sign(&self, message: &str) -> Vec<u8> {
        hmac::sign(&self.key, message.as_bytes()).as_ref().to_vec()
    }

    /// In constant time.
    pub(super) fn verifies(&self, message: &str, signature: &[u8]) -> bool {
        hmac::verify(&self.key, message.as_bytes(), signature).is_ok()
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// The key that signs `tenure-worker-v1` tokens.
#[derive(Clone)]
pub struct PrivateKey(ed25519_dalek::SigningKey);

impl PrivateKey {
    /// PKCS#8 in PEM, or 32 bytes in base64 or base64url.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(KeyError::Empty);
        }
        if text.starts_with(PEM) {
            return ed25519_dalek::SigningKey::from_pkcs8_pem(text).map(Self).map_err(|_| KeyError::Private);
        }
        let bytes = bytes_of(text).ok_or(KeyError::Private)?;
        Ok(Self(ed25519_dalek::SigningKey::from_bytes(&bytes)))
    }

    pub fn random() -> Self {
        let mut bytes = [0_u8; 32];
        getrandom::fill(&mut bytes).unwrap_or_else(|error| panic!("the system provides no randomness: {error}"));
        Self(ed25519_dalek::SigningKey::from_bytes(&bytes))
    }

    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }

    /// PKCS#8 without the public half: the form that every tool reads.
    pub fn to_pem(&self) -> Option<Secret> {
        let pair = KeypairBytes { secret_key: self.0.to_bytes(), public_key: None };
        Secret::new(&pair.to_pkcs8_pem(LineEnding::LF).ok()?)
    }

    pub(super) fn sign(&self, message: &str) -> Vec<u8> {
        self.0.sign(message.as_bytes()).to_bytes().to_vec()
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// The key that verifies `tenure-worker-v1` tokens, and no secret. Prints as base64url.
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey(ed25519_dalek::VerifyingKey);

impl PublicKey {
    /// PEM, or 32 bytes in base64 or base64url.
    ///
    /// Refuses points of small order, for which a signature can be made without any key, and a second spelling of a
    /// point.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(KeyError::Empty);
        }
        let key = if text.starts_with(PEM) {
            if text.contains("PRIVATE KEY") {
                return Err(KeyError::PrivateForPublic);
            }
            ed25519_dalek::VerifyingKey::from_public_key_pem(text).map_err(|_| KeyError::Public)?
        } else {
            let bytes = bytes_of(text).ok_or(KeyError::Public)?;
            ed25519_dalek::VerifyingKey::from_bytes(&bytes).map_err(|_| KeyError::Public)?
        };
        if key.is_weak() {
            return Err(KeyError::Weak);
        }
        if key.to_edwards().compress().as_bytes() != key.as_bytes() {
            return Err(KeyError::Public);
        }
        Ok(Self(key))
    }

    pub(super) fn verifies(&self, message: &str, signature: &[u8]) -> bool {
        let Ok(signature) = Signature::from_slice(signature) else { return false };
        self.0.verify_strict(message.as_bytes(), &signature).is_ok()
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(self.0.as_bytes()))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// 32 bytes in either alphabet, padded or not.
fn bytes_of(text: &str) -> Option<[u8; 32]> {
    let engine = if text.contains(['-', '_']) { URL_SAFE_PAD_INDIFFERENT } else { STANDARD_PAD_INDIFFERENT };
    engine.decode(text).ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUBLIC: &str = "A6EHv_POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg";
    const PUBLIC_PEM: &str = "-----BEGIN PUBLIC KEY-----\n\
        MCowBQYDK2VwAyEAA6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=\n-----END PUBLIC KEY-----\n";
    /// The 32 bytes 00 01 02 .. 1f, as OpenSSL writes them.
    const PRIVATE_PEM: &str = "-----BEGIN PRIVATE KEY-----\n\
        MC4CAQAwBQYDK2VwBCIEIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f\n-----END PRIVATE KEY-----\n";
    const PRIVATE: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";

    #[test]
    fn a_private_key_is_read_in_each_of_its_forms() {
        for text in [PRIVATE_PEM, PRIVATE, &format!(" {PRIVATE}=\n"), &PRIVATE_PEM.replace('\n', "\r\n")] {
            let key = PrivateKey::parse(text).unwrap();
            assert_eq!(key.public().to_string(), PUBLIC);
            assert_eq!(key.to_pem().unwrap().reveal(), PRIVATE_PEM.trim());
        }
        for (text, error) in [
            ("", KeyError::Empty),
            (" \n", KeyError::Empty),
            ("AAEC", KeyError::Private),
            (PUBLIC_PEM, KeyError::Private),
            (&PRIVATE_PEM.replace("MC4C", "MC4D"), KeyError::Private),
            (&format!("{PRIVATE}AA"), KeyError::Private),
        ] {
            assert_eq!(PrivateKey::parse(text).unwrap_err(), error, "{text}");
        }
    }

    #[test]
    fn a_public_key_is_read_in_each_of_its_forms() {
        let standard = PUBLIC.replace('_', "/");
        for text in [PUBLIC, &standard, &format!("{standard}="), &format!("{PUBLIC}=\n"), PUBLIC_PEM] {
            assert_eq!(PublicKey::parse(text).unwrap().to_string(), PUBLIC, "{text}");
        }
        for (text, error) in [
            ("", KeyError::Empty),
            ("A6EH", KeyError::Public),
            (PRIVATE_PEM, KeyError::PrivateForPublic),
            // The last character has bits beyond the 32 bytes.
            (&format!("{}h", &PUBLIC[..42]), KeyError::Public),
        ] {
            assert_eq!(PublicKey::parse(text).unwrap_err(), error, "{text}");
        }
    }

    /// Any signature of small parts would pass under such a key.
    #[test]
    fn a_public_key_of_small_order_is_refused() {
        let mut identity = [0_u8; 32];
        identity[0] = 1;
        let mut order_two = [0xff_u8; 32];
        (order_two[0], order_two[31]) = (0xec, 0x7f);
        let mut order_eight = [0_u8; 32];
        for (byte, pair) in order_eight.iter_mut().zip([
            0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef, 0x98, 0xf0, 0xd5, 0xdf,
            0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53, 0xfc, 0x05,
        ]) {
            *byte = pair;
        }
        for bytes in [[0; 32], identity, order_two, order_eight] {
            assert_eq!(PublicKey::parse(&URL_SAFE_NO_PAD.encode(bytes)).unwrap_err(), KeyError::Weak, "{bytes:?}");
        }
    }

    #[test]
    fn a_public_key_has_one_spelling() {
        // y + p for a y that is small enough to be spelled twice; the point itself is a good one.
        let mut twice = [0xff_u8; 32];
        (twice[0], twice[31]) = (0xed + 3, 0x7f);
        assert!(ed25519_dalek::VerifyingKey::from_bytes(&twice).is_ok_and(|key| !key.is_weak()));
        assert_eq!(PublicKey::parse(&URL_SAFE_NO_PAD.encode(twice)).unwrap_err(), KeyError::Public);
    }

    #[test]
    fn keys_never_print() {
        let signing = SigningKey::new(" key \n").unwrap();
        assert!(signing.text().matches("key"));
        assert!(SigningKey::new(" \n").is_none());
        assert_eq!(format!("{signing:?} {:?}", PrivateKey::random()), "*** ***");
    }

    #[test]
    fn random_keys_differ() {
        assert_ne!(PrivateKey::random().public(), PrivateKey::random().public());
    }
}
