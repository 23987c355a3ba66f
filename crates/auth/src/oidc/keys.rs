use rustls_pki_types::pem::SectionKind;
use serde_json::Value;

use crate::jwt::{
    Claims, Jwk, KeyError, MAX_JWKS_BYTES, MAX_JWKS_KEYS, TokenError, Unverified, VerifyingKey, key_section, object,
};

/// What a provider's tokens are verified with.
#[derive(Debug, Clone)]
pub enum OidcKeys {
    /// The provider's key set. It changes when the provider rotates.
    Set(JwkSet),
    /// One configured key. It takes the place of the set, and tokens may name it as they like.
    Static(StaticKey),
}

/// The usable keys of a JSON Web Key Set.
#[derive(Debug, Clone)]
pub struct JwkSet {
    keys: Vec<Jwk>,
    skipped: usize,
}

/// A public key in PEM form. Its own type says which algorithm is used.
#[derive(Debug, Clone)]
pub struct StaticKey(VerifyingKey);

impl OidcKeys {
    pub(super) fn open(&self, token: &Unverified<'_>) -> Result<Claims, TokenError> {
        match self {
            Self::Set(set) => set.open(token),
            Self::Static(StaticKey(key)) => token.verify(key),
        }
    }
}

impl JwkSet {
    /// Reads what a `jwks_uri` gives. Keys of other types, for other uses, malformed ones and ones with a private part
    /// are left out, so that one odd key does not lock everybody out. A set without any usable key is an error.
    pub fn parse(json: &str) -> Result<Self, KeyError> {
        if json.len() > MAX_JWKS_BYTES {
            return Err(KeyError::TooLarge);
        }
        let set = object(json.as_bytes()).ok_or(KeyError::Jwk)?;
        let list = set.get("keys").and_then(Value::as_array).ok_or(KeyError::Jwk)?;
        if list.len() > MAX_JWKS_KEYS {
            return Err(KeyError::TooLarge);
        }
        let keys: Vec<Jwk> = list.iter().filter_map(Value::as_object).filter_map(|jwk| Jwk::read(jwk).ok()).collect();
        if keys.is_empty() {
            return Err(KeyError::NoUsableKey);
        }
        Ok(Self { skipped: list.len() - keys.len(), keys })
    }

    /// How many keys can verify, and how many were left out.
    pub fn counts(&self) -> (usize, usize) {
        (self.keys.len(), self.skipped)
    }

    fn open(&self, token: &Unverified<'_>) -> Result<Claims, TokenError> {
        let Some(kid) = token.kid.as_deref() else { return self.open_without_kid(token) };
        // Two keys may share a name. Both are the provider's, so either may have signed.
        let mut last = TokenError::UnknownKey { kid: Some(kid.to_owned()) };
        for jwk in self.keys.iter().filter(|jwk| jwk.kid.as_deref() == Some(kid)) {
            match token.verify(&jwk.key) {
                Err(error @ TokenError::Signature) => last = error,
                Err(error @ TokenError::Algorithm) if last != TokenError::Signature => last = error,
                Err(TokenError::Algorithm) => {}
                other => return other,
            }
        }
        Err(last)
    }

    /// Without a name there must be no choice.
    fn open_without_kid(&self, token: &Unverified<'_>) -> Result<Claims, TokenError> {
        let mut fitting = self.keys.iter().filter(|jwk| jwk.key.algorithm() == token.algorithm);
        match (fitting.next(), fitting.next()) {
            (Some(only), None) => token.verify(&only.key),
            (None, _) => Err(TokenError::UnknownKey { kid: None }),
            (Some(_), Some(_)) => Err(TokenError::MissingKeyId),
        }
    }
}

impl StaticKey {
    /// `SubjectPublicKeyInfo` in PEM form, the section `PUBLIC KEY`.
    pub fn from_pem(pem: &str) -> Result<Self, KeyError> {
        match key_section(pem)? {
            (SectionKind::PublicKey, der) => VerifyingKey::spki(&der).map(Self),
            _ => Err(KeyError::PrivatePart),
        }
    }

    /// The algorithm that the key's type says.
    pub fn algorithm(&self) -> &'static str {
        self.0.algorithm().as_str()
    }
}
