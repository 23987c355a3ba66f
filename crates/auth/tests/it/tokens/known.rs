//! Tokens and keys of another implementation.

use tenure_auth::{JwkSet, OidcKeys, Role, Secret, StaticKey, TaskPublicKey};

use crate::tokens::forge::{NOW, Replica};
use crate::tokens::oidc::verifier;
use crate::tokens::vectors::*;

#[test]
fn task_and_capability_tokens_of_another_implementation_are_read() {
    let key = TaskPublicKey::from_pem(&Secret::new(TASK_KEY_PUBLIC).unwrap()).unwrap();
    assert_eq!(key.kid(), TASK_KID);
    let keys = Replica::new().keys.with_previous([key]);
    let task = keys.verify_task(TASK_TOKEN, NOW).unwrap();
    assert_eq!((task.claims.tenant_id.as_str(), task.claims.attempt), ("acme", 2));
    assert_eq!(task.token_id.as_deref(), Some("00112233445566778899aabbccddeeff"));
    let capability = keys.verify_capability(CAPABILITY_TOKEN, NOW).unwrap();
    assert_eq!((capability.claims.org_id.as_str(), capability.claims.fence), ("org-1", 7));
    let keys = keys.with_callback_secret(&Secret::new(CALLBACK_SECRET).unwrap()).unwrap();
    assert_eq!(keys.verify_task(TASK_TOKEN_HS256, NOW).unwrap(), task);
}

#[test]
fn user_tokens_of_another_implementation_are_read_by_set_and_by_key() {
    let set = OidcKeys::Set(JwkSet::parse(OIDC_JWKS).unwrap());
    for (algorithm, pem, token) in [
        ("RS256", OIDC_RS256_PEM, OIDC_RS256_TOKEN),
        ("ES256", OIDC_ES256_PEM, OIDC_ES256_TOKEN),
        ("ES384", OIDC_ES384_PEM, OIDC_ES384_TOKEN),
        ("ES512", OIDC_ES512_PEM, OIDC_ES512_TOKEN),
    ] {
        let key = StaticKey::from_pem(pem).unwrap();
        assert_eq!(key.algorithm(), algorithm);
        for keys in [set.clone(), OidcKeys::Static(key)] {
            let user = verifier(keys).verify(token, NOW).unwrap();
            assert_eq!(user.subject, format!("user-{}", algorithm.to_lowercase()));
            assert_eq!((user.tenant.as_deref(), user.role), (Some("acme"), Some(Role::Operator)));
        }
    }
}
