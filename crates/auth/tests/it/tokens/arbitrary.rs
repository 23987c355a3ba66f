//! Whatever is sent, the answer is an answer.

use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::json;
use tenure_auth::{JwkSet, OidcKeys, Secret, StaticKey, TaskKeys, TaskPublicKey};

use crate::tokens::forge::{NOW, Replica, b64, by_ec, token};
use crate::tokens::oidc::verifier;
use crate::tokens::vectors;

static REPLICA: LazyLock<Replica> = LazyLock::new(Replica::new);
static KEYS: LazyLock<TaskKeys> = LazyLock::new(|| {
    REPLICA.keys.clone().with_callback_secret(&Secret::new(vectors::CALLBACK_SECRET).unwrap()).unwrap()
});

fn refused_everywhere(token: &str) {
    assert!(KEYS.verify_task(token, NOW).is_err());
    assert!(KEYS.verify_capability(token, NOW).is_err());
    assert!(verifier(OidcKeys::Set(JwkSet::parse(vectors::OIDC_JWKS).unwrap())).verify(token, NOW).is_err());
}

proptest! {
    #[test]
    fn arbitrary_text_is_refused(text in "\\PC*") {
        refused_everywhere(&text);
    }

    #[test]
    fn arbitrary_parts_are_refused(
        header in any::<Vec<u8>>(), payload in any::<Vec<u8>>(), signature in any::<Vec<u8>>(),
    ) {
        refused_everywhere(&format!("{}.{}.{}", b64(header), b64(payload), b64(signature)));
    }

    #[test]
    fn arbitrary_claims_under_good_names_are_refused(
        alg in prop::sample::select(vec!["ES256", "ES384", "ES512", "RS256", "HS256", "none"]),
        kid in prop::sample::select(vec!["es256-1", "es384-1", "es512-1", "rs256-1", "callback-hs256", "x"]),
        payload in "\\PC*", signature in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        refused_everywhere(&token(&json!({"alg": alg, "kid": kid}), &payload, |_| signature));
    }

    #[test]
    fn arbitrary_claims_under_a_good_signature_are_refused(payload in "\\PC*") {
        refused_everywhere(&token(&REPLICA.header(), &payload, by_ec(&REPLICA.pair)));
    }

    #[test]
    fn a_token_with_one_letter_changed_is_refused(at in any::<prop::sample::Index>(), letter in "[A-Za-z0-9_.-]") {
        let good = vectors::OIDC_ES256_TOKEN;
        let at = at.index(good.len());
        let mut changed = good.to_owned();
        changed.replace_range(at..=at, &letter);
        prop_assume!(changed != good);
        refused_everywhere(&changed);
    }

    #[test]
    fn arbitrary_keys_are_refused(text in "\\PC*", der in any::<Vec<u8>>()) {
        let public = crate::tokens::forge::pem_of("PUBLIC KEY", &der);
        let private = Secret::new(&crate::tokens::forge::pem_of("PRIVATE KEY", &der)).unwrap();
        assert!(JwkSet::parse(&text).is_err());
        assert!(TaskPublicKey::from_jwk(&text).is_err());
        assert!(StaticKey::from_pem(&text).is_err());
        assert!(StaticKey::from_pem(&public).is_err());
        assert!(TaskPublicKey::from_pem(&Secret::new(&public).unwrap()).is_err());
        assert!(TaskKeys::new("tenure", &private).is_err());
    }
}
