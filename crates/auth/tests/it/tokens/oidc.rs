use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING,
    ECDSA_P521_SHA512_FIXED_SIGNING, EcdsaKeyPair, KeyPair,
};
use serde_json::{Value, json};
use tenure_auth::{JwkSet, OIDC_MAX_LEEWAY_S, OidcKeys, OidcUser, OidcVerifier, Role, TokenError};

use crate::tokens::forge::{NOW, b64, by_ec, by_hmac, by_rsa, ec, token, with};
use crate::tokens::vectors;

pub const ISSUER: &str = "https://id.example.com";

pub fn verifier(keys: OidcKeys) -> OidcVerifier {
    OidcVerifier {
        issuer: ISSUER.into(),
        audience: Some("tenure".into()),
        groups_claim: "groups".into(),
        tenant_claim: "tenant_id".into(),
        admin_groups: vec!["admins".into()],
        operator_groups: vec!["ops".into(), "sre".into()],
        viewer_groups: vec!["staff".into()],
        keys,
        leeway_s: OIDC_MAX_LEEWAY_S,
    }
}

pub fn claims() -> Value {
    json!({
        "iss": ISSUER, "aud": "tenure", "sub": "user-1", "exp": NOW + 300, "groups": ["staff"], "tenant_id": "acme"
    })
}

pub fn ec_jwk(curve: &str, kid: &str, pair: &EcdsaKeyPair) -> Value {
    let (x, y) = pair.public_key().as_ref()[1..].split_at((pair.public_key().as_ref().len() - 1) / 2);
    json!({"kty": "EC", "crv": curve, "kid": kid, "x": b64(x), "y": b64(y)})
}

pub fn set(keys: &[Value]) -> OidcKeys {
    OidcKeys::Set(JwkSet::parse(&json!({"keys": keys}).to_string()).unwrap())
}

/// A provider with one ES256 key.
struct Provider {
    pair: EcdsaKeyPair,
    verifier: OidcVerifier,
}

impl Provider {
    fn new() -> Self {
        let pair = ec(&ECDSA_P256_SHA256_FIXED_SIGNING);
        let verifier = verifier(set(&[ec_jwk("P-256", "k1", &pair)]));
        Self { pair, verifier }
    }

    fn header() -> Value {
        json!({"alg": "ES256", "kid": "k1"})
    }

    fn judge(&self, claims: &Value, now_s: i64) -> Result<OidcUser, TokenError> {
        self.verifier.verify(&token(&Self::header(), &claims.to_string(), by_ec(&self.pair)), now_s)
    }
}

#[test]
fn a_user_is_who_the_provider_says() {
    let found = Provider::new().judge(&claims(), NOW).unwrap();
    let expected = OidcUser {
        subject: "user-1".into(),
        tenant: Some("acme".into()),
        role: Some(Role::Viewer),
        expires_at_s: NOW + 300,
    };
    assert_eq!(found, expected);
}

#[test]
fn each_algorithm_works_with_its_key_and_with_no_other() {
    let rsa = aws_lc_rs::rsa::KeyPair::generate(aws_lc_rs::rsa::KeySize::Rsa2048).unwrap();
    let p256 = ec(&ECDSA_P256_SHA256_FIXED_SIGNING);
    let p384 = ec(&ECDSA_P384_SHA384_FIXED_SIGNING);
    let p521 = ec(&ECDSA_P521_SHA512_FIXED_SIGNING);
    let verifier = verifier(set(&[
        ec_jwk("P-256", "ES256", &p256),
        ec_jwk("P-384", "ES384", &p384),
        ec_jwk("P-521", "ES512", &p521),
        crate::tokens::oidc_keys::rsa_jwk("RS256", &rsa),
    ]));
    let text = claims().to_string();
    let names = ["ES256", "ES384", "ES512", "RS256"];
    for alg in names {
        for kid in names {
            let header = json!({"alg": alg, "kid": kid});
            let forged = match kid {
                "ES256" => token(&header, &text, by_ec(&p256)),
                "ES384" => token(&header, &text, by_ec(&p384)),
                "ES512" => token(&header, &text, by_ec(&p521)),
                _ => token(&header, &text, by_rsa(&rsa)),
            };
            let expected = if alg == kid { None } else { Some(TokenError::Algorithm) };
            assert_eq!(verifier.verify(&forged, NOW).err(), expected, "{alg} with the key of {kid}");
        }
    }
    for (alg, expected) in [("ES384", TokenError::Signature), ("PS256", TokenError::Algorithm)] {
        let forged = token(&json!({"alg": alg, "kid": alg}), &text, by_rsa(&rsa));
        assert_eq!(verifier.verify(&forged, NOW).err(), Some(expected), "{alg}");
    }
}

#[test]
fn forged_tokens_are_refused() {
    let provider = Provider::new();
    let other = ec(&ECDSA_P256_SHA256_FIXED_SIGNING);
    let der = ec(&ECDSA_P256_SHA256_ASN1_SIGNING);
    let der_verifier = verifier(set(&[ec_jwk("P-256", "k1", &der)]));
    let text = claims().to_string();
    let head = |name: &str, value: Value| with(&Provider::header(), name, value);
    let point = provider.pair.public_key().as_ref().to_vec();
    let own = ec_jwk("P-256", "k1", &other);
    let unknown = TokenError::UnknownKey { kid: Some("k2".into()) };
    for (what, forged, expected) in [
        ("none", token(&head("alg", json!("none")), &text, |_| vec![]), TokenError::Algorithm),
        ("HS256", token(&head("alg", json!("HS256")), &text, by_hmac(point)), TokenError::Algorithm),
        ("own key", token(&head("jwk", own), &text, by_ec(&other)), TokenError::Header("jwk")),
        ("crit", token(&head("crit", json!(["exp"])), &text, by_ec(&provider.pair)), TokenError::Header("crit")),
        ("logout token", token(&head("typ", json!("logout+jwt")), &text, by_ec(&provider.pair)), TokenError::Type),
        ("unknown key", token(&head("kid", json!("k2")), &text, by_ec(&provider.pair)), unknown),
        ("another's", token(&Provider::header(), &text, by_ec(&other)), TokenError::Signature),
        ("RS256 by no RSA", token(&head("alg", json!("RS256")), &text, by_ec(&other)), TokenError::Algorithm),
        ("text", "hello".to_owned(), TokenError::Malformed),
    ] {
        assert_eq!(provider.verifier.verify(&forged, NOW).err(), Some(expected), "{what}");
    }
    let forged = token(&Provider::header(), &text, by_ec(&der));
    assert_eq!(der_verifier.verify(&forged, NOW).err(), Some(TokenError::Signature), "DER");
    let access = token(&head("typ", json!("at+JWT")), &text, by_ec(&provider.pair));
    assert!(provider.verifier.verify(&access, NOW).is_ok());
}

#[test]
fn worker_tokens_are_not_judged_here() {
    let provider = Provider::new();
    for prefix in ["stacyvm-worker-v1", "tenure-worker-v1"] {
        let token = format!("{prefix}.{}.AAAA", b64(claims().to_string()));
        assert_eq!(provider.verifier.verify(&token, NOW).err(), Some(TokenError::WorkerToken));
    }
}

#[test]
fn claims_are_checked() {
    let provider = Provider::new();
    for (name, value, expected) in [
        ("iss", json!(null), Some(TokenError::MissingClaim("iss"))),
        ("iss", json!("https://id.example.com/"), Some(TokenError::Issuer)),
        ("aud", json!(null), Some(TokenError::MissingClaim("aud"))),
        ("aud", json!("other"), Some(TokenError::Audience)),
        ("aud", json!(["other", "tenure"]), None),
        ("aud", json!(["other"]), Some(TokenError::Audience)),
        ("sub", json!(null), Some(TokenError::MissingClaim("sub"))),
        ("sub", json!(7), Some(TokenError::InvalidClaim("sub"))),
        ("sub", json!("a\nb"), Some(TokenError::InvalidClaim("sub"))),
        ("sub", json!(" a"), Some(TokenError::InvalidClaim("sub"))),
        ("sub", json!("s".repeat(256)), Some(TokenError::InvalidClaim("sub"))),
        ("sub", json!("auth0|0123"), None),
        ("exp", json!(null), Some(TokenError::MissingClaim("exp"))),
        ("exp", json!("never"), Some(TokenError::InvalidClaim("exp"))),
        ("exp", json!(NOW as f64 + 0.5), None),
        ("exp", json!(1e300), Some(TokenError::InvalidClaim("exp"))),
        ("nbf", json!(NOW + 31), Some(TokenError::NotYetValid)),
        ("nbf", json!("soon"), Some(TokenError::InvalidClaim("nbf"))),
        ("tenant_id", json!(["a"]), Some(TokenError::InvalidClaim("tenant"))),
        ("tenant_id", json!(""), Some(TokenError::InvalidClaim("tenant"))),
    ] {
        let found = provider.judge(&with(&claims(), name, value.clone()), NOW);
        assert_eq!(found.err(), expected, "{name} {value}");
    }
    assert_eq!(provider.judge(&with(&claims(), "tenant_id", json!(null)), NOW).unwrap().tenant, None);
}

#[test]
fn without_a_configured_audience_any_is_taken() {
    let mut provider = Provider::new();
    provider.verifier.audience = None;
    assert!(provider.judge(&with(&claims(), "aud", json!("other")), NOW).is_ok());
    assert!(provider.judge(&with(&claims(), "aud", json!(null)), NOW).is_ok());
}

#[test]
fn the_leeway_is_what_is_configured_and_30_seconds_at_most() {
    let mut provider = Provider::new();
    for (leeway_s, late_s, expected) in [
        (0, 0, Some(TokenError::Expired)),
        (0, -1, None),
        (5, 4, None),
        (5, 5, Some(TokenError::Expired)),
        (30, 29, None),
        (30, 30, Some(TokenError::Expired)),
        (3600, 29, None),
        (3600, 30, Some(TokenError::Expired)),
    ] {
        provider.verifier.leeway_s = leeway_s;
        assert_eq!(provider.judge(&claims(), NOW + 300 + late_s).err(), expected, "{leeway_s} {late_s}");
    }
}

#[test]
fn groups_lead_to_the_highest_role() {
    let provider = Provider::new();
    for (groups, expected) in [
        (json!(["staff"]), Some(Role::Viewer)),
        (json!(["staff", "sre"]), Some(Role::Operator)),
        (json!(["staff", "ops", "admins"]), Some(Role::Admin)),
        (json!("staff admins"), Some(Role::Admin)),
        (json!("x,ops, staff"), Some(Role::Operator)),
        (json!("staff-admins"), None),
        (json!(["Admins"]), None),
        (json!(["staff admins"]), None),
        (json!([7, null, {"admins": "admins"}]), None),
        (json!({"admins": true}), None),
        (json!(""), None),
        (json!([]), None),
        (json!(null), None),
    ] {
        let found = provider.judge(&with(&claims(), "groups", groups.clone()), NOW).unwrap();
        assert_eq!(found.role, expected, "{groups}");
    }
}

#[test]
fn a_claim_is_found_by_its_name_and_then_by_its_path() {
    let mut provider = Provider::new();
    let nested = with(&claims(), "realm_access", json!({"roles": ["admins"], "org": {"id": "deep"}}));
    for (path, expected) in [
        ("realm_access.roles", Some(Role::Admin)),
        ("groups", Some(Role::Viewer)),
        ("realm_access.none", None),
        ("realm_access.roles.0", None),
        ("none.roles", None),
        ("", None),
        (".", None),
    ] {
        provider.verifier.groups_claim = path.into();
        assert_eq!(provider.judge(&nested, NOW).unwrap().role, expected, "{path}");
    }
    provider.verifier.groups_claim = "https://example.com/groups".into();
    let by_url = with(&claims(), "https://example.com/groups", json!(["ops"]));
    assert_eq!(provider.judge(&by_url, NOW).unwrap().role, Some(Role::Operator));
    provider.verifier.tenant_claim = "realm_access.org.id".into();
    assert_eq!(provider.judge(&nested, NOW).unwrap().tenant.as_deref(), Some("deep"));
}

#[test]
fn a_token_without_a_kid_needs_the_only_key_of_its_algorithm() {
    let (one, two) = (ec(&ECDSA_P256_SHA256_FIXED_SIGNING), ec(&ECDSA_P256_SHA256_FIXED_SIGNING));
    let other_curve = ec_jwk("P-384", "k3", &ec(&ECDSA_P384_SHA384_FIXED_SIGNING));
    let (jwk_one, jwk_two) = (ec_jwk("P-256", "k1", &one), ec_jwk("P-256", "k2", &two));
    let plain = token(&json!({"alg": "ES256"}), &claims().to_string(), by_ec(&one));
    for (keys, expected) in [
        (vec![jwk_one.clone()], None),
        (vec![jwk_one.clone(), other_curve.clone()], None),
        (vec![jwk_one, jwk_two.clone()], Some(TokenError::MissingKeyId)),
        (vec![jwk_two], Some(TokenError::Signature)),
        (vec![other_curve], Some(TokenError::UnknownKey { kid: None })),
    ] {
        assert_eq!(verifier(set(&keys)).verify(&plain, NOW).err(), expected);
    }
}

#[test]
fn keys_that_share_a_name_are_all_tried() {
    let (one, two) = (ec(&ECDSA_P256_SHA256_FIXED_SIGNING), ec(&ECDSA_P256_SHA256_FIXED_SIGNING));
    let third = ec(&ECDSA_P384_SHA384_FIXED_SIGNING);
    let keys = [ec_jwk("P-256", "k", &one), ec_jwk("P-384", "k", &third), ec_jwk("P-256", "k", &two)];
    let verifier = verifier(set(&keys));
    let text = claims().to_string();
    let head = json!({"alg": "ES256", "kid": "k"});
    assert!(verifier.verify(&token(&head, &text, by_ec(&two)), NOW).is_ok());
    let stranger = ec(&ECDSA_P256_SHA256_FIXED_SIGNING);
    let forged = token(&head, &text, by_ec(&stranger));
    assert_eq!(verifier.verify(&forged, NOW).err(), Some(TokenError::Signature));
    let forged = token(&json!({"alg": "ES512", "kid": "k"}), &text, by_ec(&two));
    assert_eq!(verifier.verify(&forged, NOW).err(), Some(TokenError::Algorithm));
}

#[test]
fn a_configured_key_serves_whatever_name_a_token_gives_and_its_own_algorithm_only() {
    let key = tenure_auth::StaticKey::from_pem(vectors::OIDC_ES256_PEM).unwrap();
    let verifier = verifier(OidcKeys::Static(key));
    assert!(verifier.verify(vectors::OIDC_ES256_TOKEN, NOW).is_ok());
    assert_eq!(verifier.verify(vectors::OIDC_ES384_TOKEN, NOW).err(), Some(TokenError::Algorithm));
    assert_eq!(verifier.verify(vectors::OIDC_RS256_TOKEN, NOW).err(), Some(TokenError::Algorithm));
}
