//! Signed tokens in the compact form of RFC 7515, read strictly.
//!
//! Three rules hold for every token. The key says which algorithm is used, and the token only has to agree. Nothing in
//! a token leads to a key other than by its name. No claim is looked at before the signature was found good.
//!
//! Not the crate `jsonwebtoken`, which leaves these rules to each caller. Here they have one place, together with what is
//! refused in any token: names that occur twice, headers such as `jku`, `x5u` and `crit`, anything too long. Messages never
//! quote a token, and `fuzz/` checks that no token is accepted that nobody signed. The cryptography itself is that of
//! `aws-lc-rs` and `ed25519-dalek`.

mod claims;
mod compact;
mod error;
mod json;
mod jwk;
mod key;
mod pem;

pub(crate) use claims::{Claims, check_times};
pub(crate) use compact::{Accepts, Unverified, message};
pub use error::{IssueError, KeyError, TokenError};
pub(crate) use error::{MAX_JWKS_BYTES, MAX_JWKS_KEYS};
pub(crate) use json::object;
pub(crate) use jwk::{Jwk, has_private_part, point_of, thumbprint};
pub(crate) use key::{Algorithm, VerifyingKey};
pub(crate) use pem::{key_section, pem_text};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// No token that we make or expect comes near this; what is longer is not even decoded.
pub const MAX_TOKEN_BYTES: usize = 16 * 1024;

pub(crate) fn encode(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Only the one spelling that [`encode`] gives: no padding, no white space, no stray bits at the end.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_canonical_spelling_is_decoded() {
        assert_eq!(decode("-_8"), Some(vec![0xfb, 0xff]));
        for odd in ["-_8=", "-_9", "+/8", " -_8", "-_8\n", "A"] {
            assert_eq!(decode(odd), None, "{odd:?}");
        }
    }
}
