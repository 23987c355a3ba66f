//! Signatures of webhook deliveries: HMAC-SHA256 with a secret that sender and receiver share.

use aws_lc_rs::hmac;
use sha2::{Digest, Sha256};

use crate::secret::Secret;

/// How far the time of a signature may be from now, in seconds.
pub const WEBHOOK_WINDOW_S: i64 = 300;
/// Signatures of one header: a sender that changes its secret sends two.
const SIGNATURES: usize = 4;
const HEADER_BYTES: usize = 1024;

/// A signature as it was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WebhookSignature<'a> {
    /// `t=<unix>,v1=<hex>`, over the time, a dot and the body.
    Tenure(&'a str),
    /// `sha256=<hex>`, over the body.
    Github(&'a str),
}

/// A delivery whose signature is valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedDelivery {
    /// SHA-256 of what was signed, in hexadecimal.
    pub digest: String,
}

impl WebhookSignature<'_> {
    /// `None` if the signature is not of this secret and body, or too old. A missing secret takes as long as a wrong one.
    pub fn verify(self, secret: Option<&Secret>, body: &[u8], now_s: i64) -> Option<SignedDelivery> {
        let (prefix, signatures) = self.parse().unwrap_or_default();
        let in_time = prefix.as_ref().is_none_or(|(at, _)| now_s.abs_diff(*at) <= WEBHOOK_WINDOW_S.unsigned_abs());
        let prefix = prefix.map(|(_, text)| text).unwrap_or_default();
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.map_or(b"".as_slice(), |secret| secret.reveal().as_bytes()));
        let mut context = hmac::Context::with_key(&key);
        context.update(prefix.as_bytes());
        context.update(body);
        let expected = context.sign();
        let matches = signatures.iter().fold(false, |found, sent| {
            found | aws_lc_rs::constant_time::verify_slices_are_equal(expected.as_ref(), sent).is_ok()
        });
        if !matches || !in_time || secret.is_none() {
            return None;
        }
        let mut hash = Sha256::new();
        hash.update(prefix.as_bytes());
        hash.update(body);
        Some(SignedDelivery { digest: hex(&hash.finalize()) })
    }

    /// What is signed before the body, with its time, and the signatures.
    #[allow(clippy::type_complexity, reason = "used once")]
    fn parse(self) -> Option<(Option<(i64, String)>, Vec<[u8; 32]>)> {
        match self {
            Self::Github(text) => Some((None, vec![unhex(text.strip_prefix("sha256=")?)?])),
            Self::Tenure(text) if text.len() > HEADER_BYTES => None,
            Self::Tenure(text) => {
                let (mut at, mut signatures) = (None, Vec::new());
                for part in text.split(',').map(str::trim) {
                    match part.split_once('=')? {
                        ("t", time) if at.is_none() => at = Some((time.parse::<i64>().ok()?, format!("{time}."))),
                        ("t", _) => return None,
                        ("v1", signature) if signatures.len() < SIGNATURES => signatures.push(unhex(signature)?),
                        // Later kinds of signatures may stand beside it.
                        _ => {}
                    }
                }
                Some((Some(at?), signatures))
            }
        }
    }
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let (bytes, mut out) = (text.as_bytes(), [0; 32]);
    if bytes.len() != 64 {
        return None;
    }
    for (byte, pair) in out.iter_mut().zip(bytes.chunks_exact(2)) {
        let digit = |at: usize| pair.get(at).and_then(|digit| char::from(*digit).to_digit(16));
        *byte = u8::try_from(digit(0)? << 4 | digit(1)?).ok()?;
    }
    Some(out)
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = b"{\"n\":1}";
    const NOW: i64 = 1_767_182_400;
    /// `printf '1767182400.{"n":1}' | openssl dgst -sha256 -hmac hook-secret`
    const TENURE: &str = "db82fdb5e739d1c66813afab750d394d1c387d268e04145d945d1ce3b4bb9068";
    /// `printf '{"n":1}' | openssl dgst -sha256 -hmac hook-secret`
    const GITHUB: &str = "67c68039894eb0779896453bcdc83f5a88f657cfb5b454f43569a7135029ec28";

    fn secret() -> Secret {
        Secret::new("hook-secret").unwrap()
    }

    fn tenure(header: &str, body: &[u8], now: i64) -> bool {
        WebhookSignature::Tenure(header).verify(Some(&secret()), body, now).is_some()
    }

    fn github(header: &str, body: &[u8]) -> bool {
        WebhookSignature::Github(header).verify(Some(&secret()), body, NOW).is_some()
    }

    #[test]
    fn a_signature_is_of_one_secret_one_time_and_one_body() {
        let good = format!("t={NOW},v1={TENURE}");
        assert!(tenure(&good, BODY, NOW));
        assert!(tenure(&format!("v1={TENURE}, t={NOW}"), BODY, NOW), "in any order");
        assert!(tenure(&format!("t={NOW},v0=old,v1={},v1={TENURE}", "0".repeat(64)), BODY, NOW), "one of them");
        assert!(tenure(&good.to_uppercase().replace("T=", "t=").replace("V1", "v1"), BODY, NOW), "in capitals");
        assert!(!tenure(&good, b"{\"n\":2}", NOW));
        assert!(!tenure(&format!("t={},v1={TENURE}", NOW + 1), BODY, NOW), "the time is signed");
        let other = Secret::new("other").unwrap();
        assert_eq!(WebhookSignature::Tenure(&good).verify(Some(&other), BODY, NOW), None);
        assert_eq!(WebhookSignature::Tenure(&good).verify(None, BODY, NOW), None);
        assert!(github(&format!("sha256={GITHUB}"), BODY) && !github(&format!("sha256={GITHUB}"), b""));
    }

    #[test]
    fn nobody_signs_with_a_secret_that_is_missing() {
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"");
        let sent = format!("sha256={}", hex(hmac::sign(&key, BODY).as_ref()));
        assert_eq!(WebhookSignature::Github(&sent).verify(None, BODY, NOW), None);
    }

    #[test]
    fn an_old_signature_is_refused_and_so_is_one_of_the_future() {
        let good = format!("t={NOW},v1={TENURE}");
        for (offset, valid) in [(300, true), (301, false), (-300, true), (-301, false), (i64::MAX - NOW, false)] {
            assert_eq!(tenure(&good, BODY, NOW + offset), valid, "{offset}");
        }
    }

    #[test]
    fn what_is_no_signature_is_refused() {
        let zeros = "0".repeat(64);
        for header in [
            "".to_owned(),
            "t".to_owned(),
            format!("t={NOW}"),
            format!("v1={TENURE}"),
            format!("t=x,v1={TENURE}"),
            format!("t={NOW},v1={}", &TENURE[1..]),
            format!("t={NOW},v1={}g", &TENURE[1..]),
            format!("t={NOW},t={NOW},v1={TENURE}"),
            format!("t={NOW},v1={zeros},v1={zeros},v1={zeros},v1={zeros},v1={TENURE}"),
            format!("t={NOW},v1={TENURE},{}", "x=,".repeat(1_000)),
            format!("sha256={GITHUB}"),
        ] {
            assert!(!tenure(&header, BODY, NOW), "{header}");
        }
        for header in ["", "sha256=", GITHUB, &format!("sha1={GITHUB}"), &format!("sha256={GITHUB}0")] {
            assert!(!github(header, BODY), "{header}");
        }
    }

    #[test]
    fn the_digest_names_what_was_signed() {
        let digest = |header: &str, body| WebhookSignature::Github(header).verify(Some(&secret()), body, NOW);
        let found = digest(&format!("sha256={GITHUB}"), BODY).unwrap().digest;
        assert_eq!(found, hex(&Sha256::digest(BODY)));
        let timed = WebhookSignature::Tenure(&format!("t={NOW},v1={TENURE}")).verify(Some(&secret()), BODY, NOW);
        assert_ne!(timed.unwrap().digest, found);
    }
}
