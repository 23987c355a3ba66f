use std::fmt;

use aws_lc_rs::hmac;
use aws_lc_rs::rsa::PublicEncryptingKey;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ECDSA_P521_SHA512_FIXED, ParsedPublicKey,
    RSA_PKCS1_2048_8192_SHA256, VerificationAlgorithm,
};

use super::KeyError;
use super::error::MIN_SECRET_BYTES;
use crate::Secret;

/// How a signature is made. There is no `none`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Es256,
    Es384,
    Es512,
    Rs256,
    Hs256,
}

impl Algorithm {
    const ALL: [Self; 5] = [Self::Es256, Self::Es384, Self::Es512, Self::Rs256, Self::Hs256];
    const CURVES: [Self; 3] = [Self::Es256, Self::Es384, Self::Es512];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Es256 => "ES256",
            Self::Es384 => "ES384",
            Self::Es512 => "ES512",
            Self::Rs256 => "RS256",
            Self::Hs256 => "HS256",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.as_str() == text)
    }

    /// The algorithm of a curve by its name in a JWK.
    pub fn of_curve(name: &str) -> Option<Self> {
        match name {
            "P-256" => Some(Self::Es256),
            "P-384" => Some(Self::Es384),
            "P-521" => Some(Self::Es512),
            _ => None,
        }
    }

    /// Bytes of a coordinate on the curve.
    pub fn coordinate_bytes(self) -> Option<usize> {
        match self {
            Self::Es256 => Some(32),
            Self::Es384 => Some(48),
            Self::Es512 => Some(66),
            Self::Rs256 | Self::Hs256 => None,
        }
    }

    /// Signatures are r and s side by side, never DER.
    fn of_library(self) -> Option<&'static dyn VerificationAlgorithm> {
        match self {
            Self::Es256 => Some(&ECDSA_P256_SHA256_FIXED),
            Self::Es384 => Some(&ECDSA_P384_SHA384_FIXED),
            Self::Es512 => Some(&ECDSA_P521_SHA512_FIXED),
            Self::Rs256 => Some(&RSA_PKCS1_2048_8192_SHA256),
            Self::Hs256 => None,
        }
    }
}

/// A key that can say whether a signature is good, by one algorithm and no other.
#[derive(Clone)]
pub(crate) struct VerifyingKey {
    algorithm: Algorithm,
    material: Material,
}

#[derive(Clone)]
enum Material {
    Public(ParsedPublicKey),
    /// Boxed, as it is twenty times the size of the other.
    Shared(Box<hmac::Key>),
}

/// The tag that every `SubjectPublicKeyInfo` begins with.
const SEQUENCE: u8 = 0x30;
/// `SEQUENCE { OID rsaEncryption, NULL }`. Keys marked for PSS only have another one and are not for RS256.
const RSA_ENCRYPTION: [u8; 15] =
    [0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00];

impl VerifyingKey {
    /// A point on a curve in the uncompressed form, or the curve's `SubjectPublicKeyInfo`.
    pub fn curve(algorithm: Algorithm, bytes: &[u8]) -> Result<Self, KeyError> {
        if !Algorithm::CURVES.contains(&algorithm) {
            return Err(KeyError::Unsupported);
        }
        Self::public(algorithm, bytes)
    }

    /// An RSA key as `SubjectPublicKeyInfo`.
    pub fn rsa(spki: &[u8]) -> Result<Self, KeyError> {
        // From 2048 bits on, the length before this part takes 3 bytes.
        if spki.get(4..19) != Some(&RSA_ENCRYPTION) {
            return Err(KeyError::Unsupported);
        }
        // This one checks the size; the parser of the signature algorithm leaves that to each verification.
        PublicEncryptingKey::from_der(spki).map_err(|_| KeyError::Unsupported)?;
        Self::public(Algorithm::Rs256, spki)
    }

    /// Any key that is supported, as `SubjectPublicKeyInfo`. What it is says which algorithm is used.
    pub fn spki(der: &[u8]) -> Result<Self, KeyError> {
        // The parser of a curve also takes a bare point, which says nothing of its curve.
        if der.first() != Some(&SEQUENCE) {
            return Err(KeyError::Unsupported);
        }
        let curve = Algorithm::CURVES.into_iter().find_map(|algorithm| Self::public(algorithm, der).ok());
        curve.map_or_else(|| Self::rsa(der), Ok)
    }

    pub fn shared(secret: &Secret) -> Result<Self, KeyError> {
        let bytes = secret.reveal().as_bytes();
        if bytes.len() < MIN_SECRET_BYTES {
            return Err(KeyError::ShortSecret);
        }
        let key = hmac::Key::new(hmac::HMAC_SHA256, bytes);
        Ok(Self { algorithm: Algorithm::Hs256, material: Material::Shared(Box::new(key)) })
    }

    fn public(algorithm: Algorithm, bytes: &[u8]) -> Result<Self, KeyError> {
        let library = algorithm.of_library().ok_or(KeyError::Unsupported)?;
        let key = ParsedPublicKey::new(library, bytes).map_err(|_| KeyError::Unsupported)?;
        Ok(Self { algorithm, material: Material::Public(key) })
    }

    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The time it takes says nothing about a shared secret.
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        match &self.material {
            Material::Public(key) => key.verify_sig(message, signature).is_ok(),
            Material::Shared(key) => hmac::verify(key, message, signature).is_ok(),
        }
    }

    /// The signature by a shared secret; public keys make none.
    pub fn sign_shared(&self, message: &[u8]) -> Option<Vec<u8>> {
        match &self.material {
            Material::Shared(key) => Some(hmac::sign(key, message).as_ref().to_vec()),
            Material::Public(_) => None,
        }
    }
}

impl fmt::Debug for VerifyingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VerifyingKey({})", self.algorithm.as_str())
    }
}
