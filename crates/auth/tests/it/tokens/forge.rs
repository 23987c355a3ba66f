//! Tokens that nobody should make.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, EcdsaSigningAlgorithm,
};
use aws_lc_rs::{hmac, rsa, signature};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use tenure_auth::{Secret, TaskKeys};

pub const NOW: i64 = 1_767_225_600;

pub fn b64(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// A token with this header and these claims, signed however `sign` likes.
pub fn token(header: &Value, claims: &str, sign: impl FnOnce(&[u8]) -> Vec<u8>) -> String {
    let message = format!("{}.{}", b64(header.to_string()), b64(claims));
    let signature = sign(message.as_bytes());
    format!("{message}.{}", b64(signature))
}

pub fn by_ec(key: &EcdsaKeyPair) -> impl Fn(&[u8]) -> Vec<u8> {
    |message| key.sign(&SystemRandom::new(), message).unwrap().as_ref().to_vec()
}

pub fn by_rsa(key: &rsa::KeyPair) -> impl Fn(&[u8]) -> Vec<u8> {
    |message| {
        let mut signature = vec![0; key.public_modulus_len()];
        key.sign(&signature::RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut signature).unwrap();
        signature
    }
}

pub fn by_hmac(secret: impl AsRef<[u8]>) -> impl Fn(&[u8]) -> Vec<u8> {
    move |message| hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_ref()), message).as_ref().to_vec()
}

pub fn ec(algorithm: &'static EcdsaSigningAlgorithm) -> EcdsaKeyPair {
    EcdsaKeyPair::generate(algorithm).unwrap()
}

/// A replica's keys, with the private key in hand to forge with.
pub struct Replica {
    pub pem: Secret,
    pub keys: TaskKeys,
    pub pair: EcdsaKeyPair,
    pub pair_der: EcdsaKeyPair,
}

impl Replica {
    pub fn new() -> Self {
        let pem = TaskKeys::generate().unwrap();
        let keys = TaskKeys::new("tenure", &pem).unwrap();
        let der = der_of(pem.reveal());
        let pair = EcdsaKeyPair::from_private_key_der(&ECDSA_P256_SHA256_FIXED_SIGNING, &der).unwrap();
        let pair_der = EcdsaKeyPair::from_private_key_der(&ECDSA_P256_SHA256_ASN1_SIGNING, &der).unwrap();
        Self { pem, keys, pair, pair_der }
    }

    pub fn header(&self) -> Value {
        json!({"alg": "ES256", "typ": "JWT", "kid": self.keys.kid()})
    }

    /// Claims of any kind under the replica's own key.
    pub fn sign(&self, claims: &Value) -> String {
        token(&self.header(), &claims.to_string(), by_ec(&self.pair))
    }
}

pub fn der_of(pem: &str) -> Vec<u8> {
    STANDARD.decode(pem.lines().filter(|line| !line.starts_with("-----")).collect::<String>()).unwrap()
}

pub fn pem_of(label: &str, der: &[u8]) -> String {
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(der))
}

/// The claims with one of them changed, or taken away if the value is `null`.
pub fn with(claims: &Value, name: &str, value: Value) -> Value {
    let mut claims = claims.clone();
    let object = claims.as_object_mut().unwrap();
    match value {
        Value::Null => object.remove(name),
        value => object.insert(name.to_owned(), value),
    };
    claims
}

/// What a token says, unchecked.
pub fn claims_of(token: &str) -> Value {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap()).unwrap()
}

pub fn header_of(token: &str) -> Value {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(token.split('.').next().unwrap()).unwrap()).unwrap()
}
