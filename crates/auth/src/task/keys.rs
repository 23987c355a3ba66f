use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use serde::Serialize;

use super::public::{PublicJwk, TaskPublicKey, pair_of_pem};
use crate::Secret;
use crate::jwt::{
    Accepts, Algorithm, Claims, IssueError, KeyError, TokenError, Unverified, VerifyingKey, encode, message, pem_text,
};

/// The `kid` of the shared secret. Tokens under it may also go without a `kid`, as the contract's own example does.
pub const HS256_KID: &str = "callback-hs256";

const ES256_ONLY: [Algorithm; 1] = [Algorithm::Es256];
const ES256_AND_HS256: [Algorithm; 2] = [Algorithm::Es256, Algorithm::Hs256];

/// The keys of task and capability tokens. Immutable and cheap to clone: a rotation makes new ones and swaps them in.
#[derive(Clone)]
pub struct TaskKeys {
    issuer: Arc<str>,
    signer: Arc<EcdsaKeyPair>,
    current: TaskPublicKey,
    previous: Arc<[TaskPublicKey]>,
    peers: Arc<HashMap<String, TaskPublicKey>>,
    callback_secret: Option<Arc<VerifyingKey>>,
}

impl TaskKeys {
    /// A new P-256 private key, as PKCS#8 in PEM form.
    pub fn generate() -> Result<Secret, KeyError> {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).map_err(|_| KeyError::Generate)?;
        let pkcs8 = pair.to_pkcs8v1().map_err(|_| KeyError::Generate)?;
        Secret::new(&pem_text(pkcs8.as_ref())).ok_or(KeyError::Generate)
    }

    /// `current` is the private key that signs: P-256, PEM, PKCS#8 or SEC1.
    pub fn new(issuer: &str, current: &Secret) -> Result<Self, KeyError> {
        let signer = pair_of_pem(current)?;
        let current = TaskPublicKey::of_pair(&signer)?;
        Ok(Self {
            issuer: issuer.into(),
            signer: Arc::new(signer),
            current,
            previous: Arc::default(),
            peers: Arc::default(),
            callback_secret: None,
        })
    }

    /// Keys that signed before. They verify until they are left out here.
    #[must_use]
    pub fn with_previous(mut self, previous: impl IntoIterator<Item = TaskPublicKey>) -> Self {
        self.previous = previous.into_iter().filter(|key| key.kid() != self.current.kid()).collect();
        self
    }

    /// A secret that older workers of the callback contract share. Task tokens are then made by HS256; those by ES256
    /// are taken as before. Capability tokens have nothing to do with it.
    pub fn with_callback_secret(mut self, secret: &Secret) -> Result<Self, KeyError> {
        self.callback_secret = Some(Arc::new(VerifyingKey::shared(secret)?));
        Ok(self)
    }

    /// The same keys with the other replicas' public keys, in place of those that were known. For reloads.
    #[must_use]
    pub fn with_peers(&self, peers: impl IntoIterator<Item = TaskPublicKey>) -> Self {
        let peers = peers.into_iter().map(|key| (key.kid().to_owned(), key)).collect();
        Self { peers: Arc::new(peers), ..self.clone() }
    }

    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// The `kid` of the key that signs.
    pub fn kid(&self) -> &str {
        self.current.kid()
    }

    /// The current public key as JSON, to be registered in the store for [`TaskPublicKey::from_jwk`].
    pub fn public_jwk(&self) -> String {
        self.current.jwk()
    }

    /// The `kid`s of this replica's own keys, the current one first.
    pub fn own_kids(&self) -> impl Iterator<Item = &str> {
        self.own().map(TaskPublicKey::kid)
    }

    /// The body of `GET /internal/jwks/task`: the current and the previous keys, and those of other replicas, so that
    /// it does not matter which replica is asked.
    pub fn jwks(&self) -> String {
        #[derive(Serialize)]
        struct Jwks<'a> {
            keys: Vec<PublicJwk<'a>>,
        }
        let own = |kid: &str| self.own().any(|key| key.kid() == kid);
        let mut peers: Vec<_> = self.peers.values().filter(|key| !own(key.kid())).collect();
        peers.sort_by_key(|key| key.kid());
        let keys = self.own().chain(peers).map(TaskPublicKey::public_jwk).collect();
        serde_json::to_string(&Jwks { keys }).unwrap_or_default()
    }

    fn own(&self) -> impl Iterator<Item = &TaskPublicKey> {
        std::iter::once(&self.current).chain(self.previous.iter())
    }

    fn public(&self, kid: &str) -> Result<&VerifyingKey, TokenError> {
        let own = self.own().find(|key| key.kid() == kid);
        let key = own.or_else(|| self.peers.get(kid));
        key.map(TaskPublicKey::verifying).ok_or_else(|| TokenError::UnknownKey { kid: Some(kid.to_owned()) })
    }

    /// The claims of a token that one of the task keys signed.
    pub(super) fn open(&self, token: &str) -> Result<Claims, TokenError> {
        let token = Unverified::parse(token, &Accepts { algorithms: &ES256_ONLY, types: &["jwt"] })?;
        let kid = token.kid.as_deref().ok_or(TokenError::MissingKeyId)?;
        token.verify(self.public(kid)?)
    }

    /// As [`TaskKeys::open`]; with a shared secret configured, a token under that too.
    pub(super) fn open_callback(&self, token: &str) -> Result<Claims, TokenError> {
        let Some(secret) = &self.callback_secret else { return self.open(token) };
        let token = Unverified::parse(token, &Accepts { algorithms: &ES256_AND_HS256, types: &["jwt"] })?;
        // The kid leads to the key and the key says the algorithm: a public key never becomes an HMAC secret.
        match token.kid.as_deref() {
            None | Some(HS256_KID) => token.verify(secret),
            Some(kid) => token.verify(self.public(kid)?),
        }
    }

    pub(super) fn seal(&self, claims: &impl Serialize) -> Result<Secret, IssueError> {
        let message = message(Algorithm::Es256, Some(self.kid()), claims).ok_or(IssueError::Sign)?;
        let signature = self.signer.sign(&SystemRandom::new(), message.as_bytes()).map_err(|_| IssueError::Sign)?;
        compact(&message, signature.as_ref())
    }

    pub(super) fn seal_callback(&self, claims: &impl Serialize) -> Result<Secret, IssueError> {
        let Some(secret) = &self.callback_secret else { return self.seal(claims) };
        let message = message(Algorithm::Hs256, None, claims).ok_or(IssueError::Sign)?;
        let signature = secret.sign_shared(message.as_bytes()).ok_or(IssueError::Sign)?;
        compact(&message, &signature)
    }
}

fn compact(message: &str, signature: &[u8]) -> Result<Secret, IssueError> {
    Secret::new(&format!("{message}.{}", encode(signature))).ok_or(IssueError::Sign)
}

impl fmt::Debug for TaskKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskKeys")
            .field("issuer", &self.issuer)
            .field("kid", &self.kid())
            .field("previous", &self.previous.len())
            .field("peers", &self.peers.len())
            .field("callback_secret", &self.callback_secret.is_some())
            .finish()
    }
}
