//! An identity provider: keys of every kind, tokens under them, and a place where the keys are published.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use aws_lc_rs::encoding::AsDer;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa;
use aws_lc_rs::signature::{
    self, ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, ECDSA_P521_SHA512_FIXED_SIGNING,
    EcdsaKeyPair, EcdsaSigningAlgorithm, KeyPair as _,
};
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use tenure_outbound::{Outbound, Policy, Trust};
use tenure_server::{KeySource, OidcAccess};

pub const ISSUER: &str = "https://id.example.com";

pub fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_secs()).unwrap()
}

pub fn b64(bytes: impl AsRef<[u8]>) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// What a good token says.
pub fn claims() -> Value {
    json!({"iss": ISSUER, "aud": "tenure", "sub": "ann", "exp": now() + 300, "groups": ["staff"], "tenant_id": "acme"})
}

/// A key of the provider.
pub struct Signer {
    kid: String,
    pair: Pair,
}

enum Pair {
    Curve(&'static str, &'static str, EcdsaKeyPair),
    Rsa(rsa::KeyPair),
}

impl Signer {
    /// `RS256`, `ES256`, `ES384` or `ES512`.
    pub fn new(algorithm: &'static str, kid: &str) -> Self {
        let curve = |name: &'static str, of: &'static EcdsaSigningAlgorithm| {
            Pair::Curve(algorithm, name, EcdsaKeyPair::generate(of).unwrap())
        };
        let pair = match algorithm {
            "ES256" => curve("P-256", &ECDSA_P256_SHA256_FIXED_SIGNING),
            "ES384" => curve("P-384", &ECDSA_P384_SHA384_FIXED_SIGNING),
            "ES512" => curve("P-521", &ECDSA_P521_SHA512_FIXED_SIGNING),
            _ => Pair::Rsa(rsa::KeyPair::generate(rsa::KeySize::Rsa2048).unwrap()),
        };
        Self { kid: kid.to_owned(), pair }
    }

    pub fn jwk(&self) -> Value {
        match &self.pair {
            Pair::Curve(algorithm, curve, pair) => {
                let point = &pair.public_key().as_ref()[1..];
                let (x, y) = point.split_at(point.len() / 2);
                json!({"kty": "EC", "crv": curve, "alg": algorithm, "kid": self.kid, "x": b64(x), "y": b64(y)})
            }
            Pair::Rsa(pair) => {
                let (n, e) = numbers(pair.public_key().as_ref());
                json!({"kty": "RSA", "alg": "RS256", "use": "sig", "kid": self.kid, "n": b64(n), "e": b64(e)})
            }
        }
    }

    /// The public key for a configuration.
    pub fn pem(&self) -> String {
        let der = match &self.pair {
            Pair::Curve(_, _, pair) => pair.public_key().as_der().unwrap(),
            Pair::Rsa(pair) => pair.public_key().as_der().unwrap(),
        };
        let text = BASE64_STANDARD.encode(der.as_ref());
        format!("-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n")
    }

    pub fn token(&self, claims: &Value) -> String {
        let algorithm = match &self.pair {
            Pair::Curve(algorithm, ..) => algorithm,
            Pair::Rsa(_) => "RS256",
        };
        let header = json!({"alg": algorithm, "typ": "JWT", "kid": self.kid});
        let message = format!("{}.{}", b64(header.to_string()), b64(claims.to_string()));
        let signature = match &self.pair {
            Pair::Curve(_, _, pair) => pair.sign(&SystemRandom::new(), message.as_bytes()).unwrap().as_ref().to_vec(),
            Pair::Rsa(pair) => {
                let mut made = vec![0; pair.public_modulus_len()];
                let how = &signature::RSA_PKCS1_SHA256;
                pair.sign(how, &SystemRandom::new(), message.as_bytes(), &mut made).unwrap();
                made
            }
        };
        format!("{message}.{}", b64(signature))
    }

    pub fn bearer(&self, claims: &Value) -> String {
        format!("Bearer {}", self.token(claims))
    }
}

/// Modulus and exponent of an RSA key in DER.
fn numbers(der: &[u8]) -> (&[u8], &[u8]) {
    fn item(der: &[u8]) -> (&[u8], &[u8]) {
        let (start, length) = match der[1] {
            short if short < 0x80 => (2, usize::from(short)),
            0x81 => (3, usize::from(der[2])),
            _ => (4, usize::from(der[2]) << 8 | usize::from(der[3])),
        };
        (&der[start..start + length], &der[start + length..])
    }
    let (n, rest) = item(item(der).0);
    (n.strip_prefix(&[0]).unwrap_or(n), item(rest).0)
}

/// Where keys are published.
#[derive(Clone)]
pub struct Published {
    pub url: String,
    state: Arc<Served>,
}

struct Served {
    answer: Mutex<Serves>,
    fetched: AtomicUsize,
}

#[derive(Debug, Clone)]
pub enum Serves {
    Keys(Vec<Value>),
    Status(u16),
    /// Nothing, for a long time.
    Silence,
}

impl Published {
    pub async fn start(keys: Vec<Value>) -> Self {
        let state = Arc::new(Served { answer: Mutex::new(Serves::Keys(keys)), fetched: AtomicUsize::new(0) });
        let router = axum::Router::new().route("/keys", get(serve)).with_state(Arc::clone(&state));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/keys", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, state }
    }

    pub fn serves(&self, answer: Serves) {
        *self.state.answer.lock().unwrap() = answer;
    }

    /// How often somebody asked.
    pub fn fetched(&self) -> usize {
        self.state.fetched.load(Ordering::SeqCst)
    }
}

async fn serve(State(state): State<Arc<Served>>) -> (StatusCode, String) {
    state.fetched.fetch_add(1, Ordering::SeqCst);
    let answer = state.answer.lock().unwrap().clone();
    match answer {
        Serves::Keys(keys) => (StatusCode::OK, json!({"keys": keys}).to_string()),
        Serves::Status(status) => (StatusCode::from_u16(status).unwrap(), String::new()),
        Serves::Silence => std::future::pending().await,
    }
}

/// May fetch keys from this machine.
pub fn outbound() -> Outbound {
    let policy = Policy { allow_http: true, allow_loopback: true, ..Policy::default() };
    Outbound::new(policy, &Trust::System).unwrap()
}

pub fn oidc(keys: KeySource) -> OidcAccess {
    OidcAccess {
        issuer: ISSUER.to_owned(),
        audience: Some("tenure".to_owned()),
        groups_claim: "groups".to_owned(),
        tenant_claim: "tenant_id".to_owned(),
        default_tenant: None,
        admin_groups: vec!["admins".to_owned()],
        operator_groups: vec!["ops".to_owned()],
        viewer_groups: vec!["staff".to_owned()],
        keys,
    }
}
