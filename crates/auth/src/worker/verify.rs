//! Which signed tokens are believed.

use super::signed::{ClaimSet, Format, Signed};
use super::{Audience, PrivateKey, PublicKey, Scopes, SigningKey};

/// How far ahead of ours the clock of an issuer may be.
const SKEW_S: i64 = 30;
/// How long a token may live.
pub const LIFETIME_S_MAX: i64 = 15 * 60;

/// The keys of signed worker tokens.
#[derive(Debug, Clone, Default)]
pub struct WorkerKeys {
    /// `auth.worker_signing_key`: signs and verifies.
    pub active: Option<SigningKey>,
    /// `auth.worker_signing_keys`: verify only.
    pub rotation: Vec<SigningKey>,
    /// `auth.worker_private_key_file`: signs, and its public half verifies.
    pub private: Option<PrivateKey>,
    /// `auth.worker_public_keys`: verify only.
    pub public: Vec<PublicKey>,
    /// `auth.legacy_worker_tokens`: tokens without `aud` or without `iat` are believed.
    pub legacy: bool,
}

/// A token that was believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claims {
    pub worker_id: String,
    pub token_id: String,
    pub scopes: Scopes,
    /// The claims as they stand in the token.
    pub stated: ClaimSet,
}

/// Why a token is not believed. For logs and operators: who sent the token only learns that it is not valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the token is longer than 8 KiB")]
    Length,
    #[error("the token begins neither with stacyvm-worker-v1. nor with tenure-worker-v1.")]
    Prefix,
    #[error("the token has not exactly three parts")]
    Parts,
    #[error("a part of the token is not base64url without padding")]
    Encoding,
    #[error("the payload of the token is not a JSON object of claims, each once and of its type")]
    Claims,
    #[error("there is no key for tokens of this kind")]
    NoKey,
    #[error("the signature of the token matches none of the keys")]
    Signature,
    #[error("the token names no worker: worker_id is missing")]
    NoWorker,
    #[error("the token is for another worker")]
    OtherWorker,
    #[error("the token has no id: jti is missing")]
    NoTokenId,
    #[error("the token is revoked")]
    Revoked,
    #[error("the token has no audience: aud is missing")]
    NoAudience,
    #[error("the token is for another audience")]
    OtherAudience,
    #[error("the token has no expiry: exp is missing or not above 0")]
    NoExpiry,
    #[error("the token is expired")]
    Expired,
    #[error("the token has no time of issue: iat is missing")]
    NoIssue,
    #[error("the token was issued in the future")]
    IssuedLater,
    #[error("the token lives for more than 15 minutes")]
    Lifetime,
    #[error("the token is not valid yet")]
    NotYet,
}

impl WorkerKeys {
    /// Whether any signed token could be believed.
    pub fn can_verify(&self) -> bool {
        self.active.is_some() || !self.rotation.is_empty() || self.private.is_some() || !self.public.is_empty()
    }

    /// Judges a token at `now`, in unix seconds. `audience` and `worker_id` are what it has to be for; without them it
    /// may be for any.
    pub fn verify(
        &self,
        token: &str,
        now: i64,
        audience: Option<Audience>,
        worker_id: Option<&str>,
        revoked: &dyn Fn(&str) -> bool,
    ) -> Result<Claims, Refusal> {
        let signed = Signed::parse(token)?;
        // Nothing in the payload is looked at before it is known who wrote it.
        self.check_signature(&signed)?;
        let stated = signed.claims()?;
        let given = |text: &Option<String>| text.clone().filter(|text| !text.trim().is_empty());
        let named = given(&stated.worker_id).ok_or(Refusal::NoWorker)?;
        if worker_id.is_some_and(|expected| expected != named) {
            return Err(Refusal::OtherWorker);
        }
        let token_id = given(&stated.jti).ok_or(Refusal::NoTokenId)?;
        self.check_audience(&stated, audience)?;
        self.check_times(&stated, now)?;
        if revoked(token_id.trim()) {
            return Err(Refusal::Revoked);
        }
        let scopes = Scopes::of_claim(stated.scopes.as_deref());
        Ok(Claims { worker_id: named, token_id, scopes, stated })
    }

    fn check_signature(&self, signed: &Signed<'_>) -> Result<(), Refusal> {
        let (any, good) = match signed.format {
            Format::Hmac => {
                let mut keys = self.active.iter().chain(&self.rotation).peekable();
                (keys.peek().is_some(), keys.any(|key| key.verifies(signed.message, &signed.signature)))
            }
            Format::Ed25519 => {
                let own = self.private.as_ref().map(PrivateKey::public);
                let mut keys = own.iter().chain(&self.public).peekable();
                (keys.peek().is_some(), keys.any(|key| key.verifies(signed.message, &signed.signature)))
            }
        };
        match (any, good) {
            (_, true) => Ok(()),
            (true, false) => Err(Refusal::Signature),
            (false, false) => Err(Refusal::NoKey),
        }
    }

    fn check_audience(&self, stated: &ClaimSet, expected: Option<Audience>) -> Result<(), Refusal> {
        let Some(text) = &stated.aud else {
            return if self.legacy { Ok(()) } else { Err(Refusal::NoAudience) };
        };
        let audience = Audience::parse(text).ok_or(Refusal::OtherAudience)?;
        if expected.is_some_and(|expected| expected != audience) {
            return Err(Refusal::OtherAudience);
        }
        Ok(())
    }

    fn check_times(&self, stated: &ClaimSet, now: i64) -> Result<(), Refusal> {
        let latest = now.saturating_add(SKEW_S);
        let exp = stated.exp.filter(|exp| *exp > 0).ok_or(Refusal::NoExpiry)?;
        if now >= exp {
            return Err(Refusal::Expired);
        }
        let (lifetime, longest) = match stated.iat {
            Some(iat) if iat > latest => return Err(Refusal::IssuedLater),
            Some(iat) => (exp.saturating_sub(iat), LIFETIME_S_MAX),
            None if self.legacy => (exp.saturating_sub(now), LIFETIME_S_MAX + SKEW_S),
            None => return Err(Refusal::NoIssue),
        };
        if lifetime > longest {
            return Err(Refusal::Lifetime);
        }
        if stated.nbf.is_some_and(|nbf| nbf > latest) {
            return Err(Refusal::NotYet);
        }
        Ok(())
    }
}
