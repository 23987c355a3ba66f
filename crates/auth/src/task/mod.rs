//! Tokens that the control plane makes for tasks and takes back: task tokens of the callback contract and capability
//! tokens of the dispatch contract. One key set signs both; the audience tells them apart, and neither is taken in the
//! other's place.
//!
//! A good token is necessary and never enough: the fence in the store decides.

mod callback;
mod capability;
mod keys;
mod public;

pub use callback::{TASK_TOKEN_MAX_TTL_S, TaskClaims};
pub use capability::{
    Access, CAPABILITY_MAX_TTL_S, CapabilityClaims, DatasetGrant, MAX_INLINE_TOKEN_BYTES, S3Grant, StorageRef,
};
pub use keys::{HS256_KID, TaskKeys};
pub use public::TaskPublicKey;

use crate::jwt::{Claims, IssueError, TokenError, check_times};

/// `iss` unless another one is configured.
pub const DEFAULT_ISSUER: &str = "tenure";

/// Covers rounding and the way.
const LEEWAY_S: u32 = 2;

/// A token is good from so long before it is made. It comes back to another control plane, whose clock may be behind;
/// and a clock may be set back. Nobody has it before it is made, so nothing is lost.
const BACKDATED_S: i64 = 300;

/// What a good token says, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified<T> {
    pub claims: T,
    pub issued_at_s: i64,
    pub expires_at_s: i64,
    /// `jti`. Always there in task tokens.
    pub token_id: Option<String>,
}

/// What both kinds have in common: issuer, audience, dates.
fn check_common(claims: &Claims, issuer: &str, audience: &str, now_s: i64) -> Result<(), TokenError> {
    claims.check_issuer(issuer)?;
    claims.check_only_audience(audience)?;
    let not_before_s = claims.get("nbf").map(|_| claims.date("nbf")).transpose()?;
    claims.date("iat")?;
    check_times(not_before_s, claims.date("exp")?, now_s, LEEWAY_S)
}

fn verified<T>(claims: &Claims, token_id: Option<&str>, body: T) -> Result<Verified<T>, TokenError> {
    Ok(Verified {
        claims: body,
        issued_at_s: claims.date("iat")?,
        expires_at_s: claims.date("exp")?,
        token_id: token_id.map(ToOwned::to_owned),
    })
}

/// When a token made now ends.
fn expiry(now_s: i64, ttl_s: u32, max_s: u32) -> Result<i64, IssueError> {
    if !(1..=max_s).contains(&ttl_s) {
        return Err(IssueError::Lifetime { max_s });
    }
    now_s.checked_add(i64::from(ttl_s)).ok_or(IssueError::Lifetime { max_s })
}

/// 128 random bits: tokens of one attempt differ at least in this.
fn random_id() -> Result<String, IssueError> {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).map_err(|_| IssueError::Sign)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
