//! Tokens of people, and the keys of their provider.

use std::sync::LazyLock;

use aws_lc_rs::signature::EcdsaKeyPair;
use tenure_auth::{JwkSet, OidcKeys, OidcVerifier, StaticKey};

use super::forge::{self, NOW};
use super::task::{by_pair, pair};
use super::{leak, vectors};

const ISSUER: &str = "https://id.example.com";
/// The public half of the key that signs what is made up.
const OWN_JWKS: &str = r#"{"keys":[{"kty":"EC","crv":"P-256","kid":"k1",
    "x":"wdtEMceKIn_HwSNUaSGABJnVSenmPFWJvSBEAXW2VZc","y":"0Sc83l225kNQONntGZUQthgFaoV-qOMkhyfrptAhXrE"}]}"#;

static PAIR: LazyLock<EcdsaKeyPair> = LazyLock::new(pair);
static OWN: LazyLock<OidcVerifier> = LazyLock::new(|| verifier(set(OWN_JWKS)));
static KNOWN: LazyLock<Vec<OidcVerifier>> = LazyLock::new(|| {
    let pems = [vectors::OIDC_RS256_PEM, vectors::OIDC_ES256_PEM, vectors::OIDC_ES384_PEM, vectors::OIDC_ES512_PEM];
    let fixed = pems.map(|pem| OidcKeys::Static(StaticKey::from_pem(pem).expect("a public key")));
    [set(vectors::OIDC_JWKS)].into_iter().chain(fixed).map(verifier).collect()
});

fn set(json: &str) -> OidcKeys {
    OidcKeys::Set(JwkSet::parse(json).expect("a key set"))
}

fn verifier(keys: OidcKeys) -> OidcVerifier {
    OidcVerifier {
        issuer: ISSUER.into(),
        audience: Some("tenure".into()),
        groups_claim: "realm_access.roles".into(),
        tenant_claim: "tenant_id".into(),
        admin_groups: vec!["admins".into()],
        operator_groups: vec!["ops".into()],
        viewer_groups: vec!["staff".into()],
        keys,
        leeway_s: 30,
    }
}

/// A token; a header and claims that are signed; a key set; or a key.
pub fn jwt(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let signed_by_provider =
        [vectors::OIDC_RS256_TOKEN, vectors::OIDC_ES256_TOKEN, vectors::OIDC_ES384_TOKEN, vectors::OIDC_ES512_TOKEN];
    for verifier in &*KNOWN {
        match verifier.verify(text, NOW) {
            Ok(_) => assert!(signed_by_provider.contains(&text), "believed, not signed"),
            Err(error) => leak::nothing_of(text, &error.to_string()),
        }
    }
    if let Some((header, claims)) = forge::header_and_claims(text) {
        signed(header, claims);
    }
    keys(text);
}

fn signed(header: &str, claims: &str) {
    let token = forge::compact(header, claims, by_pair(&PAIR));
    let user = match OWN.verify(&token, NOW) {
        Ok(user) => user,
        Err(error) => return leak::nothing_of(&token, &error.to_string()),
    };
    let (header, claims) = (forge::object(header), forge::object(claims));
    assert_eq!(header["alg"], "ES256");
    assert_eq!(claims["iss"], ISSUER);
    assert_eq!(claims["sub"], user.subject);
    assert!(claims["aud"] == "tenure" || claims["aud"].as_array().is_some_and(|list| list.contains(&"tenure".into())));
    assert!(user.expires_at_s > NOW - 30);
    for name in [Some(&user.subject), user.tenant.as_ref()].into_iter().flatten() {
        assert!(!name.is_empty() && name.len() <= 255 && name.trim() == name && !name.chars().any(char::is_control));
    }
    if user.role.is_some() {
        let groups = claims["realm_access"]["roles"].to_string();
        assert!(["admins", "ops", "staff"].iter().any(|group| groups.contains(group)), "a role out of nothing");
    }
}

fn keys(text: &str) {
    match JwkSet::parse(text) {
        Ok(set) => {
            let (usable, skipped) = set.counts();
            assert!(usable > 0 && usable + skipped <= 1000);
            // A set that nobody signed with believes nothing new.
            assert!(verifier(OidcKeys::Set(set)).verify("a.b.c", NOW).is_err());
        }
        Err(error) => leak::nothing_of(text, &error.to_string()),
    }
    match StaticKey::from_pem(text) {
        Ok(key) => assert!(["RS256", "ES256", "ES384", "ES512"].contains(&key.algorithm())),
        Err(error) => leak::nothing_of(text, &error.to_string()),
    }
}
