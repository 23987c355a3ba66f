/// Why a token was refused. The text holds nothing of the token.
///
/// The variants are for logs and metrics. Callers are told one thing for all of them, so that none learns how close it
/// came.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    #[error("the token is not a signed token in compact form")]
    Malformed,
    /// A header that could lead to a key of the sender's choice, or change what was signed.
    #[error("the token's header has `{0}`, which is never accepted")]
    Header(&'static str),
    #[error("the token is of another type")]
    Type,
    #[error("the token's algorithm is not that of its key")]
    Algorithm,
    #[error("the token names no key")]
    MissingKeyId,
    /// The caller may load its keys again, once, and try again.
    #[error("the token's key is not known")]
    UnknownKey { kid: Option<String> },
    #[error("the token's signature is not valid")]
    Signature,
    #[error("the token's claims are not a JSON object with each name once")]
    Claims,
    #[error("the token lacks the claim `{0}`")]
    MissingClaim(&'static str),
    #[error("the token's claim `{0}` is not of the right kind")]
    InvalidClaim(&'static str),
    #[error("the token is of another issuer")]
    Issuer,
    #[error("the token is for another audience")]
    Audience,
    #[error("the token's subject is not its task")]
    Subject,
    #[error("the token is not valid yet")]
    NotYetValid,
    #[error("the token has expired")]
    Expired,
    #[error("the token is a worker's and no user's")]
    WorkerToken,
}

/// Why a key could not be used. The text holds nothing of the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    #[error("no key in PEM form was found; expected a section PRIVATE KEY, EC PRIVATE KEY or PUBLIC KEY")]
    Pem,
    #[error("the key is not an EC key on the curve P-256; make one with `openssl ecparam -name prime256v1 -genkey`")]
    NotP256,
    #[error("the key is a public one; signing needs a private one")]
    NotPrivate,
    #[error("the key is neither RSA of 2048 to 8192 bits nor EC on P-256, P-384 or P-521")]
    Unsupported,
    #[error("the key is not a JWK, or not a set of them, in JSON with each name once")]
    Jwk,
    #[error("the key has a private part; only a public key belongs there")]
    PrivatePart,
    #[error("the key set has no key that can verify a signature by RS256, ES256, ES384 or ES512")]
    NoUsableKey,
    #[error("the key set is larger than {MAX_JWKS_BYTES} bytes or has more than {MAX_JWKS_KEYS} keys")]
    TooLarge,
    #[error("the shared secret has fewer than {MIN_SECRET_BYTES} bytes")]
    ShortSecret,
    #[error("the system could not make a key")]
    Generate,
}

/// Sets of providers have a handful of keys; the caps keep a hostile answer from costing time.
pub(crate) const MAX_JWKS_BYTES: usize = 256 * 1024;
pub(crate) const MAX_JWKS_KEYS: usize = 100;

/// RFC 7518, section 3.2: an HS256 key is at least as long as the hash.
pub(crate) const MIN_SECRET_BYTES: usize = 32;

/// Why no token was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IssueError {
    #[error("the token would live for less than a second or for more than {max_s} seconds")]
    Lifetime { max_s: u32 },
    /// The caller stores the grants and issues the token with a `capability_id`.
    #[error("the token would have {bytes} bytes; grants are inline up to {max} bytes only")]
    TooLarge { bytes: usize, max: usize },
    #[error("the token could not be signed")]
    Sign,
}
