use aws_lc_rs::rsa;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, KeyPair};
use serde_json::{Value, json};
use tenure_auth::{JwkSet, KeyError, StaticKey};

use crate::tokens::forge::{b64, ec, pem_of, with};
use crate::tokens::oidc::ec_jwk;
use crate::tokens::vectors;

/// Reads `RSAPublicKey`: a sequence of two integers, each longer than 127 bytes or shorter than 128.
pub fn rsa_jwk(kid: &str, pair: &rsa::KeyPair) -> Value {
    fn item(der: &[u8]) -> (&[u8], &[u8]) {
        let (start, length) = match der[1] {
            short if short < 0x80 => (2, usize::from(short)),
            0x81 => (3, usize::from(der[2])),
            _ => (4, usize::from(der[2]) << 8 | usize::from(der[3])),
        };
        (&der[start..start + length], &der[start + length..])
    }
    let der = pair.public_key().as_ref();
    let (body, _) = item(der);
    let (n, rest) = item(body);
    let (e, _) = item(rest);
    json!({"kty": "RSA", "kid": kid, "n": b64(n.strip_prefix(&[0]).unwrap_or(n)), "e": b64(e)})
}

fn counts(keys: &[Value]) -> Result<(usize, usize), KeyError> {
    JwkSet::parse(&json!({"keys": keys}).to_string()).map(|set| set.counts())
}

#[test]
fn what_a_key_says_of_its_use_is_respected() {
    let good = ec_jwk("P-256", "k1", &ec(&ECDSA_P256_SHA256_FIXED_SIGNING));
    for (name, value, usable) in [
        ("use", json!("sig"), true),
        ("use", json!("enc"), false),
        ("use", json!(7), false),
        ("key_ops", json!(["verify"]), true),
        ("key_ops", json!(["sign", "verify"]), true),
        ("key_ops", json!(["encrypt"]), false),
        ("key_ops", json!([]), false),
        ("alg", json!("ES256"), true),
        ("alg", json!("ES384"), false),
        ("alg", json!("HS256"), false),
        ("alg", json!("RS256"), false),
        ("x5t", json!("ignored"), true),
        ("kid", json!(null), true),
        ("kid", json!(7), false),
        ("kid", json!("a b"), false),
        ("kty", json!("OKP"), false),
        ("kty", json!("oct"), false),
        ("kty", json!("RSA"), false),
        ("crv", json!("secp256k1"), false),
        ("crv", json!("P-384"), false),
        ("x", json!("AAAA"), false),
        ("x", json!("not base64url!"), false),
        ("x", good["y"].clone(), false),
        ("y", json!(null), false),
        ("d", json!("AAAA"), false),
        ("k", json!("AAAA"), false),
    ] {
        let found = counts(&[with(&good, name, value.clone())]);
        let expected = if usable { Ok((1, 0)) } else { Err(KeyError::NoUsableKey) };
        assert_eq!(found, expected, "{name} {value}");
    }
}

#[test]
fn an_odd_key_does_not_spoil_the_set() {
    let good = ec_jwk("P-256", "k1", &ec(&ECDSA_P256_SHA256_FIXED_SIGNING));
    let odd = [json!({"kty": "OKP", "crv": "Ed25519", "x": "AAAA"}), json!({}), json!("text"), json!(null)];
    assert_eq!(counts(&[&odd[..], &[good]].concat()), Ok((1, 4)));
}

#[test]
fn rsa_keys_have_2048_bits_at_least_and_a_sane_exponent() {
    let pair = rsa::KeyPair::generate(rsa::KeySize::Rsa2048).unwrap();
    let good = rsa_jwk("k", &pair);
    assert_eq!(counts(std::slice::from_ref(&good)), Ok((1, 0)));
    let n = good["n"].as_str().unwrap();
    let small: Value = serde_json::from_str(vectors::RSA_1024_JWK).unwrap();
    let padded = with(&good, "n", json!(format!("AAAA{n}")));
    assert_eq!(counts(&[padded]), Ok((1, 0)), "zeros in front");
    for (what, bad) in [
        ("1024 bits", small.clone()),
        ("1024 bits, made to look longer", {
            let n = small["n"].as_str().unwrap();
            with(&small, "n", json!(format!("{}{n}", "A".repeat(n.len() / 4 * 4 + 4))))
        }),
        ("2047 bits", with(&good, "n", json!(b64([&[0x7f][..], &[0xff; 255]].concat())))),
        ("even exponent", with(&good, "e", json!("Ag"))),
        ("exponent 1", with(&good, "e", json!("AQ"))),
        ("exponent 0", with(&good, "e", json!("AA"))),
        ("long exponent", with(&good, "e", json!(n))),
        ("no modulus", with(&good, "n", json!(""))),
        ("for PSS", with(&good, "alg", json!("PS256"))),
        ("for RS512", with(&good, "alg", json!("RS512"))),
        ("private", with(&good, "d", json!("AAAA"))),
    ] {
        assert_eq!(counts(&[bad]), Err(KeyError::NoUsableKey), "{what}");
    }
}

#[test]
fn a_set_that_is_none_is_refused() {
    let good = ec_jwk("P-256", "k1", &ec(&ECDSA_P256_SHA256_FIXED_SIGNING));
    let many = json!({"keys": vec![good.clone(); 101]}).to_string();
    let twice = format!(r#"{{"keys":[],"keys":[{good}]}}"#);
    for (what, text, expected) in [
        ("text", "no json", KeyError::Jwk),
        ("list", "[]", KeyError::Jwk),
        ("no keys", "{}", KeyError::Jwk),
        ("keys of another kind", r#"{"keys":{}}"#, KeyError::Jwk),
        ("empty", r#"{"keys":[]}"#, KeyError::NoUsableKey),
        ("a name twice", &twice, KeyError::Jwk),
        ("too many", &many, KeyError::TooLarge),
        ("too long", &" ".repeat(256 * 1024 + 1), KeyError::TooLarge),
    ] {
        assert_eq!(JwkSet::parse(text).err(), Some(expected), "{what}");
    }
}

#[test]
fn a_configured_key_is_public_and_of_a_supported_kind() {
    let private = tenure_auth::TaskKeys::generate().unwrap();
    for (what, pem, expected) in [
        ("1024 bits", vectors::RSA_1024_PEM, KeyError::Unsupported),
        ("for PSS only", vectors::RSA_PSS_PEM, KeyError::Unsupported),
        ("private", private.reveal(), KeyError::PrivatePart),
        ("text", "hello", KeyError::Pem),
        ("garbage", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----", KeyError::Unsupported),
        ("a bare point", &pem_of("PUBLIC KEY", &BASE_POINT), KeyError::Unsupported),
    ] {
        assert_eq!(StaticKey::from_pem(pem).err(), Some(expected), "{what}");
    }
}

/// The base point of P-256 in its compressed form.
const BASE_POINT: [u8; 33] = [
    0x03, 0x6b, 0x17, 0xd1, 0xf2, 0xe1, 0x2c, 0x42, 0x47, 0xf8, 0xbc, 0xe6, 0xe5, 0x63, 0xa4, 0x40, 0xf2, 0x77, 0x03,
    0x7d, 0x81, 0x2d, 0xeb, 0x33, 0xa0, 0xf4, 0xa1, 0x39, 0x45, 0xd8, 0x98, 0xc2, 0x96,
];
