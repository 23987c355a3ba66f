//! Signed tokens as texts: `PREFIX.PAYLOAD.SIGNATURE`, and the claims in the payload.

use std::collections::HashSet;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::Refusal;

/// A longer text is not looked at.
pub const TOKEN_BYTES_MAX: usize = 8 * 1024;

/// How a token is signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `stacyvm-worker-v1`: HMAC-SHA256.
    Hmac,
    /// `tenure-worker-v1`: Ed25519.
    Ed25519,
}

impl Format {
    pub const ALL: [Self; 2] = [Self::Hmac, Self::Ed25519];

    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Hmac => "stacyvm-worker-v1",
            Self::Ed25519 => "tenure-worker-v1",
        }
    }

    /// The format that a token claims to have. Such a token is judged as a signed one and as nothing else, well-formed
    /// or not.
    pub fn of(token: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| {
            let rest = token.strip_prefix(format.prefix());
            rest.is_some_and(|rest| rest.starts_with('.'))
        })
    }
}

/// The claims of a token as they stand in it. A claim that is absent is not there; `null` is refused.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ClaimSet {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jti: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aud: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exp: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iat: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scopes: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nbf: Option<i64>,
}

impl ClaimSet {
    /// The claims of a token whose signature nobody has checked: they prove nothing.
    pub fn inspect(token: &str) -> Result<Self, Refusal> {
        Signed::parse(token)?.claims()
    }
}

impl<'de> Deserialize<'de> for ClaimSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Claims)
    }
}

/// Reads an object in which no key stands twice: two readers could differ on which one counts.
struct Claims;

impl<'de> Visitor<'de> for Claims {
    type Value = ClaimSet;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of claims")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ClaimSet, A::Error> {
        let mut claims = ClaimSet::default();
        let mut seen = HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            match name.as_str() {
                "worker_id" => claims.worker_id = Some(map.next_value()?),
                "jti" => claims.jti = Some(map.next_value()?),
                "aud" => claims.aud = Some(map.next_value()?),
                "exp" => claims.exp = Some(map.next_value()?),
                "iat" => claims.iat = Some(map.next_value()?),
                "scopes" => claims.scopes = Some(map.next_value()?),
                "nbf" => claims.nbf = Some(map.next_value()?),
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
            if !seen.insert(name) {
                return Err(A::Error::custom("a claim is repeated"));
            }
        }
        Ok(claims)
    }
}

/// A token taken apart. Nothing is proven yet.
pub(super) struct Signed<'a> {
    pub format: Format,
    /// What was signed: everything before the last dot.
    pub message: &'a str,
    pub signature: Vec<u8>,
    payload: Vec<u8>,
}

impl<'a> Signed<'a> {
    pub fn parse(token: &'a str) -> Result<Self, Refusal> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(Refusal::Length);
        }
        let format = Format::of(token).ok_or(Refusal::Prefix)?;
        let parts: Vec<&str> = token.split('.').collect();
        let [_, payload, signature] = parts[..] else { return Err(Refusal::Parts) };
        let message = &token[..token.len() - signature.len() - 1];
        // Strict: no padding, no other alphabet, no bits to spare. So a token has one spelling.
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| Refusal::Encoding);
        Ok(Self { format, message, signature: decode(signature)?, payload: decode(payload)? })
    }

    pub fn claims(&self) -> Result<ClaimSet, Refusal> {
        // The reason of the parser would quote values.
        serde_json::from_slice(&self.payload).map_err(|_| Refusal::Claims)
    }
}

/// `PREFIX.PAYLOAD`, ready to be signed.
pub(super) fn message(format: Format, payload: &[u8]) -> String {
    format!("{}.{}", format.prefix(), URL_SAFE_NO_PAD.encode(payload))
}

/// The token of a message and its signature.
pub(super) fn token(message: &str, signature: &[u8]) -> String {
    format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token_of(json: &str) -> String {
        token(&message(Format::Hmac, json.as_bytes()), b"signature")
    }

    #[test]
    fn the_shape_of_a_token_is_strict() {
        let good = token_of("{}");
        let (head, signature) = good.rsplit_once('.').unwrap();
        let payload = head.split_once('.').unwrap().1;
        assert_eq!(ClaimSet::inspect(&good), Ok(ClaimSet::default()));
        for (token, refusal) in [
            (String::new(), Refusal::Prefix),
            ("stacyvm-worker-v1".to_owned(), Refusal::Prefix),
            (good.replace("v1", "v2"), Refusal::Prefix),
            (good.to_uppercase(), Refusal::Prefix),
            (format!(" {good}"), Refusal::Prefix),
            (good.replace("stacyvm", "tenure-worker-v1.stacyvm"), Refusal::Parts),
            (head.to_owned(), Refusal::Parts),
            (format!("{good}."), Refusal::Parts),
            (format!("{good}.x"), Refusal::Parts),
            (format!("{good}="), Refusal::Encoding),
            (format!("{good} "), Refusal::Encoding),
            (format!("{good}\n"), Refusal::Encoding),
            (format!("{good}A"), Refusal::Encoding),
            (format!("stacyvm-worker-v1.{payload}=.{signature}"), Refusal::Encoding),
            // `e30` and `e31` differ only in bits that no byte has.
            (good.replace("e30", "e31"), Refusal::Encoding),
            (good.replace("e30", "e3/"), Refusal::Encoding),
            (format!("stacyvm-worker-v1..{signature}"), Refusal::Claims),
            (format!("{good}{}", "A".repeat(TOKEN_BYTES_MAX)), Refusal::Length),
        ] {
            assert_eq!(ClaimSet::inspect(&token), Err(refusal), "{}", &token[..token.len().min(100)]);
        }
    }

    #[test]
    fn a_token_may_be_as_long_as_the_limit() {
        let filled = |length: usize| token_of(&format!(r#"{{"x":"{}"}}"#, "x".repeat(length)));
        let longest = (0..TOKEN_BYTES_MAX).rev().map(filled).find(|token| token.len() <= TOKEN_BYTES_MAX).unwrap();
        assert!(longest.len() > TOKEN_BYTES_MAX - 4);
        assert!(ClaimSet::inspect(&longest).is_ok());
    }

    #[test]
    fn claims_are_read_strictly() {
        let all =
            r#"{"nbf":3,"scopes":["a"],"iat":1,"exp":2,"aud":"x","jti":"j","worker_id":"w","other":{"a":[null]}}"#;
        assert_eq!(
            ClaimSet::inspect(&token_of(all)),
            Ok(ClaimSet {
                worker_id: Some("w".into()),
                jti: Some("j".into()),
                aud: Some("x".into()),
                exp: Some(2),
                iat: Some(1),
                scopes: Some(vec!["a".into()]),
                nbf: Some(3),
            })
        );
        for json in [
            "",
            "[]",
            "null",
            "\"x\"",
            "{} {}",
            r#"{"exp":1.0}"#,
            r#"{"exp":1e3}"#,
            r#"{"exp":"1"}"#,
            r#"{"exp":null}"#,
            r#"{"exp":9223372036854775808}"#,
            r#"{"aud":["worker:rpc"]}"#,
            r#"{"aud":null}"#,
            r#"{"scopes":null}"#,
            r#"{"scopes":"worker:lease"}"#,
            r#"{"scopes":[1]}"#,
            r#"{"exp":1,"exp":1}"#,
            r#"{"exp":1,"\u0065xp":2}"#,
            r#"{"other":1,"other":1}"#,
            "{\"jti\":\"\u{1}\"}",
        ] {
            assert_eq!(ClaimSet::inspect(&token_of(json)), Err(Refusal::Claims), "{json}");
        }
        let not_utf8 = token(&message(Format::Hmac, b"{\"jti\":\"\xff\"}"), b"");
        assert_eq!(ClaimSet::inspect(&not_utf8), Err(Refusal::Claims));
    }
}
