use aws_lc_rs::encoding::{AsDer, EcPrivateKeyRfc5915Der, PublicKeyX509Der};
use aws_lc_rs::signature::KeyPair;
use serde_json::{Value, json};
use tenure_auth::{HS256_KID, IssueError, KeyError, Secret, TaskClaims, TaskKeys, TaskPublicKey, TokenError};

use crate::tokens::forge::{NOW, Replica, by_ec, by_hmac, claims_of, header_of, pem_of, token, with};

const SECRET: &str = "a-shared-secret-of-at-least-32-bytes";

fn claims() -> TaskClaims {
    TaskClaims {
        task_id: "task_01HGW5N7XHJM4GX29KZRXQP6N9".into(),
        tenant_id: "acme".into(),
        workspace_id: "main".into(),
        run_id: "run_01HGW5N7XHJM4GX29KZRXQP6N8".into(),
        attempt: 2,
        attempt_id: "att_01HGW5N7XHJM4GX29KZRXQP6NA".into(),
    }
}

fn wire() -> Value {
    json!({
        "taskId": "task_01HGW5N7XHJM4GX29KZRXQP6N9", "tenantId": "acme", "workspaceId": "main",
        "runId": "run_01HGW5N7XHJM4GX29KZRXQP6N8", "attempt": 2, "attemptId": "att_01HGW5N7XHJM4GX29KZRXQP6NA",
        "iss": "tenure", "aud": "tenure.callback", "iat": NOW, "nbf": NOW, "exp": NOW + 300, "jti": "j"
    })
}

fn secret() -> Secret {
    Secret::new(SECRET).unwrap()
}

#[test]
fn a_token_says_what_it_was_issued_for() {
    let replica = Replica::new();
    let token = replica.keys.issue_task(&claims(), NOW, 300).unwrap();
    let found = replica.keys.verify_task(token.reveal(), NOW).unwrap();
    assert_eq!(found.claims, claims());
    assert_eq!((found.issued_at_s, found.expires_at_s), (NOW, NOW + 300));
    assert_eq!(found.token_id.as_deref().map(str::len), Some(32));
    assert_eq!(header_of(token.reveal()), replica.header());
    let jti = claims_of(token.reveal())["jti"].clone();
    let dated_back = with(&wire(), "nbf", json!(NOW - 300));
    assert_eq!(claims_of(token.reveal()), with(&dated_back, "jti", jti));
}

#[test]
fn two_tokens_of_one_attempt_differ() {
    let keys = Replica::new().keys;
    let jti = || claims_of(keys.issue_task(&claims(), NOW, 300).unwrap().reveal())["jti"].clone();
    assert_ne!(jti(), jti());
}

#[test]
fn a_token_is_good_from_before_its_start_to_its_end_and_2_seconds_more() {
    let keys = Replica::new().keys;
    let token = keys.issue_task(&claims(), NOW, 300).unwrap();
    for (now, expected) in [
        // It is dated back by five minutes, for those whose clock is behind.
        (NOW - 303, Some(TokenError::NotYetValid)),
        (NOW - 302, None),
        (NOW + 299, None),
        (NOW + 301, None),
        (NOW + 302, Some(TokenError::Expired)),
        (i64::MIN, Some(TokenError::NotYetValid)),
        (i64::MAX, Some(TokenError::Expired)),
    ] {
        assert_eq!(keys.verify_task(token.reveal(), now).err(), expected, "{}", now.saturating_sub(NOW));
    }
}

#[test]
fn lifetimes_have_a_bound() {
    let keys = Replica::new().keys;
    for (ttl_s, expected) in [
        (0, Some(IssueError::Lifetime { max_s: 7200 })),
        (1, None),
        (7200, None),
        (7201, Some(IssueError::Lifetime { max_s: 7200 })),
    ] {
        assert_eq!(keys.issue_task(&claims(), NOW, ttl_s).err(), expected, "{ttl_s}");
    }
    assert!(keys.issue_task(&claims(), i64::MAX, 1).is_err());
}

#[test]
fn each_header_that_leads_elsewhere_is_refused() {
    let replica = Replica::new();
    let jwk: Value = serde_json::from_str(&replica.keys.public_jwk()).unwrap();
    for (name, value, expected) in [
        ("jwk", jwk, TokenError::Header("jwk")),
        ("jku", json!("https://evil.example.com/jwks"), TokenError::Header("jku")),
        ("x5u", json!("https://evil.example.com/cert"), TokenError::Header("x5u")),
        ("x5c", json!(["AAAA"]), TokenError::Header("x5c")),
        ("crit", json!(["exp"]), TokenError::Header("crit")),
        ("b64", json!(false), TokenError::Header("b64")),
        ("typ", json!("at+jwt"), TokenError::Type),
        ("kid", json!(null), TokenError::MissingKeyId),
        ("kid", json!("another"), TokenError::UnknownKey { kid: Some("another".into()) }),
        ("kid", json!("../../etc/passwd"), TokenError::UnknownKey { kid: Some("../../etc/passwd".into()) }),
        ("kid", json!(HS256_KID), TokenError::UnknownKey { kid: Some(HS256_KID.into()) }),
        ("alg", json!("none"), TokenError::Algorithm),
        ("alg", json!("ES384"), TokenError::Algorithm),
        ("alg", json!("RS256"), TokenError::Algorithm),
        ("alg", json!("HS256"), TokenError::Algorithm),
        ("alg", json!("ES256K"), TokenError::Algorithm),
    ] {
        let forged = token(&with(&replica.header(), name, value.clone()), &wire().to_string(), by_ec(&replica.pair));
        assert_eq!(replica.keys.verify_task(&forged, NOW).err(), Some(expected), "{name} {value}");
    }
    let good = token(&with(&replica.header(), "typ", json!(null)), &wire().to_string(), by_ec(&replica.pair));
    assert!(replica.keys.verify_task(&good, NOW).is_ok());
}

#[test]
fn a_token_without_a_good_signature_is_refused() {
    let (replica, other) = (Replica::new(), Replica::new());
    let text = wire().to_string();
    let none = json!({"alg": "none", "typ": "JWT", "kid": replica.keys.kid()});
    let unsigned = token(&none, &text, |_| Vec::new());
    assert_eq!(replica.keys.verify_task(&unsigned, NOW).err(), Some(TokenError::Algorithm));
    let by_another = token(&replica.header(), &text, by_ec(&other.pair));
    let der = token(&replica.header(), &text, by_ec(&replica.pair_der));
    let zeros = token(&replica.header(), &text, |_| vec![0; 64]);
    let longer = token(&replica.header(), &text, |message| [by_ec(&replica.pair)(message), vec![0]].concat());
    let good = replica.sign(&wire());
    let parts: Vec<&str> = good.split('.').collect();
    let moved = format!(
        "{}.{}.{}",
        parts[0],
        crate::tokens::forge::b64(with(&wire(), "attempt", json!(3)).to_string()),
        parts[2]
    );
    for (what, forged) in
        [("another's", by_another), ("DER", der), ("zeros", zeros), ("longer", longer), ("moved", moved)]
    {
        assert_eq!(replica.keys.verify_task(&forged, NOW).err(), Some(TokenError::Signature), "{what}");
    }
    assert!(replica.keys.verify_task(&good, NOW).is_ok());
}

#[test]
fn a_public_key_is_no_hmac_secret() {
    let replica = Replica::new();
    let with_secret = replica.keys.clone().with_callback_secret(&secret()).unwrap();
    let header = json!({"alg": "HS256", "typ": "JWT", "kid": replica.keys.kid()});
    let without_kid = json!({"alg": "HS256", "typ": "JWT"});
    let point = replica.pair.public_key().as_ref().to_vec();
    for material in [point, replica.keys.public_jwk().into_bytes(), replica.keys.kid().as_bytes().to_vec()] {
        let forged = token(&header, &wire().to_string(), by_hmac(&material));
        assert_eq!(replica.keys.verify_task(&forged, NOW).err(), Some(TokenError::Algorithm));
        assert_eq!(with_secret.verify_task(&forged, NOW).err(), Some(TokenError::Algorithm));
        let forged = token(&without_kid, &wire().to_string(), by_hmac(&material));
        assert_eq!(replica.keys.verify_task(&forged, NOW).err(), Some(TokenError::Algorithm));
        assert_eq!(with_secret.verify_task(&forged, NOW).err(), Some(TokenError::Signature));
    }
}

#[test]
fn hs256_is_taken_only_under_the_configured_secret() {
    let replica = Replica::new();
    let with_secret = replica.keys.clone().with_callback_secret(&secret()).unwrap();
    let text = wire().to_string();
    let signed = |header: Value| token(&header, &text, by_hmac(SECRET));
    let plain = signed(json!({"alg": "HS256", "typ": "JWT"}));
    let named = signed(json!({"alg": "HS256", "kid": HS256_KID}));
    let other = signed(json!({"alg": "HS256", "kid": "other"}));
    for token in [&plain, &named, &other] {
        assert_eq!(replica.keys.verify_task(token, NOW).err(), Some(TokenError::Algorithm));
    }
    assert!(with_secret.verify_task(&plain, NOW).is_ok());
    assert!(with_secret.verify_task(&named, NOW).is_ok());
    assert_eq!(with_secret.verify_task(&other, NOW).err(), Some(TokenError::UnknownKey { kid: Some("other".into()) }));
    let guessed = token(&json!({"alg": "HS256"}), &text, by_hmac("another-shared-secret-of-32-bytes!"));
    assert_eq!(with_secret.verify_task(&guessed, NOW).err(), Some(TokenError::Signature));
    let es256_without_kid = token(&json!({"alg": "ES256"}), &text, by_ec(&replica.pair));
    assert_eq!(with_secret.verify_task(&es256_without_kid, NOW).err(), Some(TokenError::Algorithm));
    assert!(with_secret.verify_task(&replica.sign(&wire()), NOW).is_ok());
}

#[test]
fn with_a_secret_task_tokens_are_made_as_older_workers_know_them() {
    let keys = Replica::new().keys.with_callback_secret(&secret()).unwrap();
    let token = keys.issue_task(&claims(), NOW, 300).unwrap();
    // The head of the token in the contract's own example.
    assert!(token.reveal().starts_with("eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9."));
    assert_eq!(keys.verify_task(token.reveal(), NOW).unwrap().claims, claims());
    let short = Secret::new("only-31-bytes-are-in-this-text.").unwrap();
    assert_eq!(Replica::new().keys.with_callback_secret(&short).err(), Some(KeyError::ShortSecret));
}

#[test]
fn every_claim_is_required() {
    let replica = Replica::new();
    for name in
        ["taskId", "tenantId", "workspaceId", "runId", "attempt", "attemptId", "exp", "iat", "nbf", "iss", "aud", "jti"]
    {
        let forged = replica.sign(&with(&wire(), name, Value::Null));
        assert_eq!(replica.keys.verify_task(&forged, NOW).err(), Some(TokenError::MissingClaim(name)));
        let mut null = wire();
        null[name] = Value::Null;
        assert_eq!(replica.keys.verify_task(&replica.sign(&null), NOW).err(), Some(TokenError::MissingClaim(name)));
    }
}

#[test]
fn claims_of_the_wrong_kind_are_refused() {
    let replica = Replica::new();
    for (name, value, expected) in [
        ("attempt", json!("2"), TokenError::InvalidClaim("attempt")),
        ("attempt", json!(2.0), TokenError::InvalidClaim("attempt")),
        ("attempt", json!(0), TokenError::InvalidClaim("attempt")),
        ("attempt", json!(-1), TokenError::InvalidClaim("attempt")),
        ("attempt", json!(4_294_967_296_u64), TokenError::InvalidClaim("attempt")),
        ("taskId", json!(""), TokenError::InvalidClaim("taskId")),
        ("taskId", json!(7), TokenError::InvalidClaim("taskId")),
        ("jti", json!(""), TokenError::InvalidClaim("jti")),
        ("exp", json!(1_767_225_900.0), TokenError::InvalidClaim("exp")),
        ("exp", json!("1767225900"), TokenError::InvalidClaim("exp")),
        ("exp", json!(u64::MAX), TokenError::InvalidClaim("exp")),
        ("iat", json!("now"), TokenError::InvalidClaim("iat")),
        ("nbf", json!([NOW]), TokenError::InvalidClaim("nbf")),
        ("iss", json!("someone"), TokenError::Issuer),
        ("iss", json!("Tenure"), TokenError::Issuer),
        ("iss", json!(["tenure"]), TokenError::InvalidClaim("iss")),
        ("aud", json!("trace.task"), TokenError::Audience),
        ("aud", json!(["tenure.callback"]), TokenError::Audience),
        ("aud", json!(["tenure.callback", "trace.task"]), TokenError::Audience),
        ("aud", json!(""), TokenError::Audience),
    ] {
        let forged = replica.sign(&with(&wire(), name, value.clone()));
        assert_eq!(replica.keys.verify_task(&forged, NOW).err(), Some(expected), "{name} {value}");
    }
}

#[test]
fn a_claim_that_occurs_twice_is_refused_under_a_good_signature() {
    let replica = Replica::new();
    let text = wire().to_string();
    for twice in [text.replacen('{', r#"{"attempt":1,"#, 1), text.replacen('{', r#"{"x":{"y":1,"y":1},"#, 1)] {
        let forged = token(&replica.header(), &twice, by_ec(&replica.pair));
        assert_eq!(replica.keys.verify_task(&forged, NOW).err(), Some(TokenError::Claims));
    }
    let list = token(&replica.header(), "[]", by_ec(&replica.pair));
    assert_eq!(replica.keys.verify_task(&list, NOW).err(), Some(TokenError::Claims));
}

#[test]
fn the_signature_is_judged_before_any_claim() {
    let (replica, other) = (Replica::new(), Replica::new());
    for claims in [with(&wire(), "exp", json!(1)), with(&wire(), "iss", json!("x")), with(&wire(), "aud", json!("x"))] {
        let forged = token(&replica.header(), &claims.to_string(), by_ec(&other.pair));
        assert_eq!(replica.keys.verify_task(&forged, NOW).err(), Some(TokenError::Signature));
    }
}

#[test]
fn a_previous_key_verifies_until_it_is_removed_and_never_signs() {
    let (old, new) = (Replica::new(), Replica::new());
    let token = old.keys.issue_task(&claims(), NOW, 300).unwrap();
    let unknown = Some(TokenError::UnknownKey { kid: Some(old.keys.kid().to_owned()) });
    assert_eq!(new.keys.verify_task(token.reveal(), NOW).err(), unknown);
    let rotated = new.keys.clone().with_previous([TaskPublicKey::from_pem(&old.pem).unwrap()]);
    assert_eq!(rotated.verify_task(token.reveal(), NOW).unwrap().claims, claims());
    assert_eq!(rotated.kid(), new.keys.kid());
    let fresh = rotated.issue_task(&claims(), NOW, 300).unwrap();
    assert_eq!(header_of(fresh.reveal())["kid"], new.keys.kid());
    let removed = rotated.with_previous([]);
    assert_eq!(removed.verify_task(token.reveal(), NOW).err(), unknown);
}

#[test]
fn a_replica_verifies_what_another_signed_by_its_registered_key() {
    let (one, two) = (Replica::new(), Replica::new());
    let token = one.keys.issue_task(&claims(), NOW, 300).unwrap();
    let registered = TaskPublicKey::from_jwk(&one.keys.public_jwk()).unwrap();
    assert_eq!(registered.kid(), one.keys.kid());
    let with_peer = two.keys.with_peers([registered]);
    assert_eq!(with_peer.verify_task(token.reveal(), NOW).unwrap().claims, claims());
    let gone = with_peer.with_peers([]);
    assert!(matches!(gone.verify_task(token.reveal(), NOW), Err(TokenError::UnknownKey { kid: Some(_) })));
}

#[test]
fn the_key_set_shows_own_keys_first_and_those_of_others_without_private_parts() {
    let (old, new, peer) = (Replica::new(), Replica::new(), Replica::new());
    let keys = new
        .keys
        .clone()
        .with_previous([TaskPublicKey::from_pem(&old.pem).unwrap(), TaskPublicKey::from_pem(&new.pem).unwrap()])
        .with_peers([TaskPublicKey::from_jwk(&peer.keys.public_jwk()).unwrap()]);
    let jwks: Value = serde_json::from_str(&keys.jwks()).unwrap();
    assert_eq!(jwks.as_object().unwrap().len(), 1);
    let list = jwks["keys"].as_array().unwrap();
    let kids: Vec<_> = list.iter().map(|key| key["kid"].as_str().unwrap()).collect();
    assert_eq!(kids, [new.keys.kid(), old.keys.kid(), peer.keys.kid()]);
    for key in list {
        let names: Vec<&str> = key.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(names, ["alg", "crv", "kid", "kty", "use", "x", "y"]);
        assert_eq!((&key["kty"], &key["crv"]), (&json!("EC"), &json!("P-256")));
        assert_eq!((&key["use"], &key["alg"]), (&json!("sig"), &json!("ES256")));
    }
    // Whoever reads the set can verify with it.
    let read = TaskPublicKey::from_jwk(&list[0].to_string()).unwrap();
    let token = keys.issue_task(&claims(), NOW, 300).unwrap();
    assert!(peer.keys.with_peers([read]).verify_task(token.reveal(), NOW).is_ok());
}

#[test]
fn a_key_has_one_name_in_every_form() {
    let replica = Replica::new();
    let sec1: EcPrivateKeyRfc5915Der<'_> = replica.pair.private_key().as_der().unwrap();
    let spki: PublicKeyX509Der<'_> = replica.pair.public_key().as_der().unwrap();
    let sec1 = Secret::new(&pem_of("EC PRIVATE KEY", sec1.as_ref())).unwrap();
    let spki = Secret::new(&pem_of("PUBLIC KEY", spki.as_ref())).unwrap();
    for pem in [&replica.pem, &sec1, &spki] {
        assert_eq!(TaskPublicKey::from_pem(pem).unwrap().kid(), replica.keys.kid());
    }
    assert_eq!(TaskKeys::new("tenure", &sec1).unwrap().kid(), replica.keys.kid());
    assert_eq!(TaskKeys::new("tenure", &spki).err(), Some(KeyError::NotPrivate));
}

#[test]
fn nothing_private_prints() {
    let replica = Replica::new();
    let keys = replica.keys.clone().with_callback_secret(&secret()).unwrap();
    let token = keys.issue_task(&claims(), NOW, 300).unwrap();
    let shown = format!("{keys:?} {token:?} {:?}", replica.pem);
    assert!(!shown.contains(SECRET) && !shown.contains("PRIVATE") && !shown.contains("eyJ"), "{shown}");
    let error = replica.keys.verify_task(token.reveal(), NOW).unwrap_err();
    assert_eq!(error.to_string(), "the token's algorithm is not that of its key");
}
