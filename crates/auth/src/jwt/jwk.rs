use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::rsa::PublicKeyComponents;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::compact::is_kid;
use super::{Algorithm, KeyError, VerifyingKey, decode, encode};

/// Members of a JWK that hold something private, for every key type that has such.
const PRIVATE_MEMBERS: [&str; 8] = ["d", "p", "q", "dp", "dq", "qi", "oth", "k"];

/// A public key of somebody else's set.
#[derive(Debug, Clone)]
pub(crate) struct Jwk {
    pub kid: Option<String>,
    pub key: VerifyingKey,
}

impl Jwk {
    /// A key for signatures by one of our algorithms. What the key says of its own use is respected.
    pub fn read(jwk: &Map<String, Value>) -> Result<Self, KeyError> {
        if has_private_part(jwk) {
            return Err(KeyError::PrivatePart);
        }
        if !is_for_verifying(jwk) {
            return Err(KeyError::Unsupported);
        }
        let key = match text(jwk, "kty")? {
            "EC" => {
                let (algorithm, point) = point_of(jwk)?;
                VerifyingKey::curve(algorithm, &point)?
            }
            "RSA" => rsa_of(jwk)?,
            _ => return Err(KeyError::Unsupported),
        };
        match jwk.get("alg") {
            Some(alg) if alg.as_str() != Some(key.algorithm().as_str()) => return Err(KeyError::Unsupported),
            _ => {}
        }
        let kid = jwk.get("kid").map(|kid| kid.as_str().filter(|kid| is_kid(kid)).ok_or(KeyError::Jwk));
        Ok(Self { kid: kid.transpose()?.map(ToOwned::to_owned), key })
    }
}

/// A key with a private part that was published is nobody's any more.
pub(crate) fn has_private_part(jwk: &Map<String, Value>) -> bool {
    PRIVATE_MEMBERS.iter().any(|name| jwk.contains_key(*name))
}

fn is_for_verifying(jwk: &Map<String, Value>) -> bool {
    let use_fits = jwk.get("use").is_none_or(|usage| usage.as_str() == Some("sig"));
    let ops_fit = jwk.get("key_ops").is_none_or(|ops| {
        ops.as_array().is_some_and(|ops| ops.iter().any(|operation| operation.as_str() == Some("verify")))
    });
    use_fits && ops_fit
}

fn text<'a>(jwk: &'a Map<String, Value>, name: &str) -> Result<&'a str, KeyError> {
    jwk.get(name).and_then(Value::as_str).ok_or(KeyError::Jwk)
}

/// The point of an EC key in its uncompressed form. Coordinates have their full length, as RFC 7518 asks.
pub(crate) fn point_of(jwk: &Map<String, Value>) -> Result<(Algorithm, Vec<u8>), KeyError> {
    let algorithm = Algorithm::of_curve(text(jwk, "crv")?).ok_or(KeyError::Unsupported)?;
    let mut point = vec![0x04];
    for name in ["x", "y"] {
        let coordinate = decode(text(jwk, name)?).ok_or(KeyError::Jwk)?;
        if Some(coordinate.len()) != algorithm.coordinate_bytes() {
            return Err(KeyError::Jwk);
        }
        point.extend(coordinate);
    }
    Ok((algorithm, point))
}

fn rsa_of(jwk: &Map<String, Value>) -> Result<VerifyingKey, KeyError> {
    let number = |name| decode(text(jwk, name)?).map(without_leading_zeros).ok_or(KeyError::Jwk);
    let components = PublicKeyComponents { n: number("n")?, e: number("e")? };
    let spki: PublicKeyX509Der<'_> = components.as_der().map_err(|_| KeyError::Unsupported)?;
    VerifyingKey::rsa(spki.as_ref())
}

/// RFC 7518 forbids a zero in front, and some providers write one all the same.
fn without_leading_zeros(mut bytes: Vec<u8>) -> Vec<u8> {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    bytes.drain(..zeros);
    bytes
}

/// The name of a P-256 key by RFC 7638. `x` and `y` are as they stand in its JWK.
pub(crate) fn thumbprint(x: &str, y: &str) -> String {
    let canonical = format!(r#"{{"crv":"P-256","kty":"EC","x":"{x}","y":"{y}"}}"#);
    encode(&Sha256::digest(canonical.as_bytes()))
}
