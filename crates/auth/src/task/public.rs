use std::sync::Arc;

use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use rustls_pki_types::pem::SectionKind;
use serde::Serialize;

use crate::Secret;
use crate::jwt::{
    Algorithm, KeyError, VerifyingKey, encode, has_private_part, key_section, object, point_of, thumbprint,
};

/// The public half of a task key: it verifies and never signs.
#[derive(Debug, Clone)]
pub struct TaskPublicKey(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    kid: String,
    x: String,
    y: String,
    key: VerifyingKey,
}

/// What stands before the point in the `SubjectPublicKeyInfo` of a P-256 key.
const P256_SPKI: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// A key as `GET /internal/jwks/task` shows it.
#[derive(Debug, Serialize)]
pub(super) struct PublicJwk<'a> {
    kty: &'static str,
    crv: &'static str,
    #[serde(rename = "use")]
    usage: &'static str,
    alg: &'static str,
    kid: &'a str,
    x: &'a str,
    y: &'a str,
}

impl TaskPublicKey {
    /// From a private or a public key in PEM form. The private part is not kept.
    pub fn from_pem(pem: &Secret) -> Result<Self, KeyError> {
        match key_section(pem.reveal())? {
            (SectionKind::PublicKey, der) => Self::from_point(der.strip_prefix(&P256_SPKI).ok_or(KeyError::NotP256)?),
            (_, der) => Self::of_pair(&pair_of_der(&der)?),
        }
    }

    /// From what [`TaskPublicKey::jwk`] of another replica gave. Its `kid` is computed again and has to agree.
    pub fn from_jwk(json: &str) -> Result<Self, KeyError> {
        let jwk = object(json.as_bytes()).ok_or(KeyError::Jwk)?;
        if has_private_part(&jwk) {
            return Err(KeyError::PrivatePart);
        }
        let is = |name: &str, value: &str| jwk.get(name).and_then(|found| found.as_str()) == Some(value);
        if !is("kty", "EC") || !is("crv", "P-256") || !is("use", "sig") || !is("alg", "ES256") {
            return Err(KeyError::NotP256);
        }
        let (_, point) = point_of(&jwk)?;
        let public = Self::from_point(&point)?;
        if is("kid", public.kid()) { Ok(public) } else { Err(KeyError::Jwk) }
    }

    pub(super) fn of_pair(pair: &EcdsaKeyPair) -> Result<Self, KeyError> {
        Self::from_point(pair.public_key().as_ref())
    }

    /// From a point in its uncompressed form, one byte and two coordinates.
    fn from_point(point: &[u8]) -> Result<Self, KeyError> {
        let (Some(x), Some(y), 65) = (point.get(1..33), point.get(33..65), point.len()) else {
            return Err(KeyError::NotP256);
        };
        let key = VerifyingKey::curve(Algorithm::Es256, point).map_err(|_| KeyError::NotP256)?;
        let (x, y) = (encode(x), encode(y));
        Ok(Self(Arc::new(Inner { kid: thumbprint(&x, &y), x, y, key })))
    }

    /// The key's name: its RFC 7638 thumbprint.
    pub fn kid(&self) -> &str {
        &self.0.kid
    }

    /// The key as JSON, to be registered where other replicas find it.
    pub fn jwk(&self) -> String {
        serde_json::to_string(&self.public_jwk()).unwrap_or_default()
    }

    pub(super) fn public_jwk(&self) -> PublicJwk<'_> {
        let Inner { kid, x, y, .. } = &*self.0;
        PublicJwk { kty: "EC", crv: "P-256", usage: "sig", alg: "ES256", kid, x, y }
    }

    pub(super) fn verifying(&self) -> &VerifyingKey {
        &self.0.key
    }
}

/// The key pair of a private key in PEM form, PKCS#8 or SEC1.
pub(super) fn pair_of_pem(pem: &Secret) -> Result<EcdsaKeyPair, KeyError> {
    match key_section(pem.reveal())? {
        (SectionKind::PublicKey, _) => Err(KeyError::NotPrivate),
        (_, der) => pair_of_der(&der),
    }
}

fn pair_of_der(der: &[u8]) -> Result<EcdsaKeyPair, KeyError> {
    EcdsaKeyPair::from_private_key_der(&ECDSA_P256_SHA256_FIXED_SIGNING, der).map_err(|_| KeyError::NotP256)
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: &str = "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4";
    const Y: &str = "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM";

    fn jwk(change: impl FnOnce(&mut serde_json::Map<String, serde_json::Value>)) -> String {
        let kid = thumbprint(X, Y);
        let mut jwk = object(
            format!(r#"{{"kty":"EC","crv":"P-256","use":"sig","alg":"ES256","kid":"{kid}","x":"{X}","y":"{Y}"}}"#)
                .as_bytes(),
        )
        .unwrap();
        change(&mut jwk);
        serde_json::to_string(&jwk).unwrap()
    }

    #[test]
    fn the_key_of_rfc_7517_is_read_and_written() {
        let key = TaskPublicKey::from_jwk(&jwk(|_| ())).unwrap();
        let kid = key.kid();
        assert_eq!(
            key.jwk(),
            format!(r#"{{"kty":"EC","crv":"P-256","use":"sig","alg":"ES256","kid":"{kid}","x":"{X}","y":"{Y}"}}"#)
        );
    }

    #[test]
    fn a_registered_key_that_is_not_one_of_ours_is_refused() {
        type Change = fn(&mut serde_json::Map<String, serde_json::Value>);
        let rows: [(&str, Change, KeyError); 8] = [
            ("another name", |jwk| drop(jwk.insert("kid".into(), "k".into())), KeyError::Jwk),
            ("no name", |jwk| drop(jwk.remove("kid")), KeyError::Jwk),
            ("a private part", |jwk| drop(jwk.insert("d".into(), X.into())), KeyError::PrivatePart),
            ("another curve", |jwk| drop(jwk.insert("crv".into(), "P-384".into())), KeyError::NotP256),
            ("another algorithm", |jwk| drop(jwk.insert("alg".into(), "HS256".into())), KeyError::NotP256),
            ("another use", |jwk| drop(jwk.insert("use".into(), "enc".into())), KeyError::NotP256),
            ("a point off the curve", |jwk| drop(jwk.insert("y".into(), X.into())), KeyError::NotP256),
            ("a short coordinate", |jwk| drop(jwk.insert("y".into(), "AAAA".into())), KeyError::Jwk),
        ];
        for (what, change, expected) in rows {
            assert_eq!(TaskPublicKey::from_jwk(&jwk(change)).err(), Some(expected), "{what}");
        }
        assert_eq!(TaskPublicKey::from_jwk("{}").err(), Some(KeyError::NotP256));
        assert_eq!(TaskPublicKey::from_jwk("no json").err(), Some(KeyError::Jwk));
    }

    #[test]
    fn pem_without_a_usable_key_is_refused() {
        for (pem, expected) in [
            ("no pem", KeyError::Pem),
            ("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----", KeyError::NotP256),
            ("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----", KeyError::NotP256),
            ("-----BEGIN PRIVATE KEY-----\nAAAA", KeyError::Pem),
            ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----", KeyError::Pem),
        ] {
            assert_eq!(TaskPublicKey::from_pem(&Secret::new(pem).unwrap()).err(), Some(expected), "{pem}");
        }
    }
}
