//! Making signed tokens.

use std::time::Duration;

use super::signed::{self, ClaimSet, Format, TOKEN_BYTES_MAX};
use super::verify::LIFETIME_S_MAX;
use super::{Audience, Scopes, WorkerKeys};
use crate::Secret;

/// How long a token lives unless it was asked otherwise.
pub const TTL_DEFAULT: Duration = Duration::from_secs(5 * 60);

/// The token that is wanted.
#[derive(Debug, Clone, Copy)]
pub struct MintRequest<'a> {
    pub worker_id: &'a str,
    pub audience: Audience,
    /// Counted in whole seconds.
    pub ttl: Duration,
    /// What the token lists. Without a list it grants everything.
    pub scopes: Option<Scopes>,
    /// From now on. With zero the claim is left out.
    pub not_before: Duration,
    /// Without one it gets 128 random bits.
    pub token_id: Option<&'a str>,
    /// Unix seconds.
    pub now: i64,
    /// Whoever it will be shown to knows Ed25519.
    pub ed25519: bool,
}

impl<'a> MintRequest<'a> {
    pub fn new(worker_id: &'a str, audience: Audience, now: i64) -> Self {
        let (ttl, not_before) = (TTL_DEFAULT, Duration::ZERO);
        Self { worker_id, audience, ttl, scopes: None, not_before, token_id: None, now, ed25519: false }
    }
}

/// A new token. Times are unix seconds.
#[derive(Debug, Clone)]
pub struct Minted {
    pub token: Secret,
    pub token_id: String,
    pub worker_id: String,
    pub audience: Audience,
    pub scopes: Option<Scopes>,
    pub issued_at: i64,
    pub not_before: Option<i64>,
    pub expires_at: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MintError {
    #[error("the worker id is blank")]
    WorkerId,
    #[error("the time to live must be from 1 s to 15 min")]
    Ttl,
    #[error("the token would expire before it is valid")]
    NotBefore,
    #[error("the token id is blank")]
    TokenId,
    #[error("an empty list of scopes grants nothing")]
    NoScope,
    #[error("the token would be longer than 8 KiB")]
    Length,
    #[error("no signing key")]
    NoKey,
}

impl WorkerKeys {
    /// Makes a token: Ed25519 if it is wanted and there is a private key, else HMAC.
    pub fn mint(&self, wanted: &MintRequest<'_>) -> Result<Minted, MintError> {
        let worker_id = wanted.worker_id.trim();
        if worker_id.is_empty() {
            return Err(MintError::WorkerId);
        }
        let token_id = match wanted.token_id.map(str::trim) {
            Some("") => return Err(MintError::TokenId),
            Some(id) => id.to_owned(),
            None => random_id(),
        };
        if wanted.scopes.is_some_and(Scopes::is_empty) {
            return Err(MintError::NoScope);
        }
        let (not_before, expires_at) = times_of(wanted)?;
        let token = self.sign(
            wanted.ed25519,
            &ClaimSet {
                worker_id: Some(worker_id.to_owned()),
                jti: Some(token_id.clone()),
                aud: Some(wanted.audience.as_str().to_owned()),
                exp: Some(expires_at),
                iat: Some(wanted.now),
                scopes: wanted.scopes.map(|scopes| scopes.iter().map(|scope| scope.as_str().to_owned()).collect()),
                nbf: not_before,
            },
        )?;
        Ok(Minted {
            token,
            token_id,
            worker_id: worker_id.to_owned(),
            audience: wanted.audience,
            scopes: wanted.scopes,
            issued_at: wanted.now,
            not_before,
            expires_at,
        })
    }

    fn sign(&self, ed25519: bool, claims: &ClaimSet) -> Result<Secret, MintError> {
        let payload = serde_json::to_vec(claims).unwrap_or_else(|error| panic!("claims are plain JSON: {error}"));
        let (message, signature) = match (&self.private, &self.active) {
            (Some(key), _) if ed25519 => {
                let message = signed::message(Format::Ed25519, &payload);
                let signature = key.sign(&message);
                (message, signature)
            }
            (_, Some(key)) => {
                let message = signed::message(Format::Hmac, &payload);
                let signature = key.sign(&message);
                (message, signature)
            }
            (_, None) => return Err(MintError::NoKey),
        };
        let token = signed::token(&message, &signature);
        Secret::new(&token).filter(|_| token.len() <= TOKEN_BYTES_MAX).ok_or(MintError::Length)
    }
}

/// From when to when it is good.
fn times_of(wanted: &MintRequest<'_>) -> Result<(Option<i64>, i64), MintError> {
    let longest = Duration::from_secs(LIFETIME_S_MAX.unsigned_abs());
    if wanted.ttl < Duration::from_secs(1) || wanted.ttl > longest {
        return Err(MintError::Ttl);
    }
    let later = |by: Duration| i64::try_from(by.as_secs()).ok().and_then(|by| wanted.now.checked_add(by));
    let expires_at = later(wanted.ttl).ok_or(MintError::Ttl)?;
    if wanted.not_before.is_zero() {
        return Ok((None, expires_at));
    }
    let not_before = later(wanted.not_before).filter(|from| *from < expires_at).ok_or(MintError::NotBefore)?;
    Ok((Some(not_before), expires_at))
}

/// 128 random bits in hexadecimal.
fn random_id() -> String {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).unwrap_or_else(|error| panic!("the system provides no randomness: {error}"));
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{PrivateKey, Scope, SigningKey};
    use super::*;

    const NOW: i64 = 1_767_225_600;

    fn keys() -> WorkerKeys {
        WorkerKeys { active: SigningKey::new("key"), private: Some(PrivateKey::random()), ..WorkerKeys::default() }
    }

    fn wanted<'a>() -> MintRequest<'a> {
        MintRequest::new("w-1", Audience::ControlPlane, NOW)
    }

    #[test]
    fn what_was_minted_verifies_and_says_what_it_is() {
        let keys = keys();
        let scopes: Scopes = [Scope::Lease, Scope::Heartbeat].into_iter().collect();
        for ed25519 in [false, true] {
            let request = MintRequest {
                ttl: Duration::from_secs(900),
                scopes: Some(scopes),
                not_before: Duration::from_secs(20),
                token_id: Some(" t-1 "),
                ed25519,
                ..MintRequest::new(" w-1 ", Audience::Rpc, NOW)
            };
            let minted = keys.mint(&request).unwrap();
            assert_eq!((minted.worker_id.as_str(), minted.token_id.as_str()), ("w-1", "t-1"));
            assert_eq!((minted.not_before, minted.expires_at), (Some(NOW + 20), NOW + 900));
            let token = minted.token.reveal();
            assert_eq!(Format::of(token), Some(if ed25519 { Format::Ed25519 } else { Format::Hmac }));
            let claims = keys.verify(token, NOW, Some(Audience::Rpc), Some("w-1"), &|_| false).unwrap();
            assert_eq!((claims.token_id.as_str(), claims.scopes), ("t-1", scopes));
            assert_eq!(claims.stated.scopes.unwrap(), ["worker:heartbeat", "worker:lease"]);
            assert!(!format!("{minted:?}").contains(token));
        }
    }

    #[test]
    fn a_plain_token_lives_five_minutes_and_has_a_random_id() {
        let keys = keys();
        let (a, b) = (keys.mint(&wanted()).unwrap(), keys.mint(&wanted()).unwrap());
        assert_eq!((a.expires_at - a.issued_at, a.not_before, a.scopes), (300, None, None));
        assert!(a.token_id.len() == 32 && a.token_id.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_ne!(a.token_id, b.token_id);
        let claims = keys.verify(a.token.reveal(), NOW, None, None, &|_| false).unwrap();
        assert_eq!((claims.stated.nbf, claims.stated.scopes, claims.scopes), (None, None, Scopes::all()));
    }

    #[test]
    fn ed25519_needs_a_private_key_and_is_used_when_it_is_wanted() {
        let format = |keys: &WorkerKeys, ed25519| {
            let minted = keys.mint(&MintRequest { ed25519, ..wanted() })?;
            Ok(Format::of(minted.token.reveal()).unwrap())
        };
        let hmac = WorkerKeys { active: SigningKey::new("key"), ..WorkerKeys::default() };
        let private = WorkerKeys { private: Some(PrivateKey::random()), ..WorkerKeys::default() };
        let only_verifies = WorkerKeys {
            rotation: SigningKey::new("key").into_iter().collect(),
            public: vec![PrivateKey::random().public()],
            ..WorkerKeys::default()
        };
        for (keys, ed25519, expected) in [
            (&keys(), true, Ok(Format::Ed25519)),
            (&keys(), false, Ok(Format::Hmac)),
            (&hmac, true, Ok(Format::Hmac)),
            (&private, true, Ok(Format::Ed25519)),
            (&private, false, Err(MintError::NoKey)),
            (&only_verifies, true, Err(MintError::NoKey)),
            (&only_verifies, false, Err(MintError::NoKey)),
        ] {
            assert_eq!(format(keys, ed25519), expected, "{keys:?} {ed25519}");
        }
    }

    #[test]
    fn what_nobody_would_believe_is_not_minted() {
        let (second, long) = (Duration::from_secs(1), "x".repeat(8 * 1024));
        for (request, error) in [
            (MintRequest { worker_id: " ", ..wanted() }, MintError::WorkerId),
            (MintRequest { worker_id: &long, ..wanted() }, MintError::Length),
            (MintRequest { token_id: Some(" "), ..wanted() }, MintError::TokenId),
            (MintRequest { ttl: Duration::ZERO, ..wanted() }, MintError::Ttl),
            (MintRequest { ttl: Duration::from_millis(999), ..wanted() }, MintError::Ttl),
            (MintRequest { ttl: 900 * second + Duration::from_nanos(1), ..wanted() }, MintError::Ttl),
            (MintRequest { ttl: Duration::MAX, ..wanted() }, MintError::Ttl),
            (MintRequest { now: i64::MAX, ..wanted() }, MintError::Ttl),
            (MintRequest { not_before: 300 * second, ..wanted() }, MintError::NotBefore),
            (MintRequest { not_before: Duration::MAX, ..wanted() }, MintError::NotBefore),
            (MintRequest { scopes: Some(Scopes::none()), ..wanted() }, MintError::NoScope),
        ] {
            assert_eq!(keys().mint(&request).unwrap_err(), error);
        }
        assert!(keys().mint(&MintRequest { not_before: 299 * second, ..wanted() }).is_ok());
        assert!(keys().mint(&MintRequest { ttl: second, ..wanted() }).is_ok());
    }
}
