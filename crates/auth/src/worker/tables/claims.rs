//! The rules about claims.

use serde_json::{Value, json};

use super::*;

#[test]
fn each_claim_rule_at_its_boundary() {
    let legacy = WorkerKeys { legacy: true, ..hmac_keys() };
    // Changes of the claims, seconds after `iat`, what a strict and what a lenient control plane says.
    let both = |refusal| (refusal, refusal);
    for (changes, after, (strict, lenient)) in [
        (json!({}), 0, both(None)),
        (json!({}), 299, both(None)),
        (json!({}), 300, both(Some(Refusal::Expired))),
        (json!({"exp": IAT}), 0, both(Some(Refusal::Expired))),
        (json!({"exp": null}), 0, both(Some(Refusal::NoExpiry))),
        (json!({"exp": 0}), 0, both(Some(Refusal::NoExpiry))),
        (json!({"exp": -1}), 0, both(Some(Refusal::NoExpiry))),
        (json!({"exp": IAT + 900}), 0, both(None)),
        (json!({"exp": IAT + 901}), 0, both(Some(Refusal::Lifetime))),
        (json!({"exp": IAT + 901}), 900, both(Some(Refusal::Lifetime))),
        (json!({"exp": i64::MAX}), 0, both(Some(Refusal::Lifetime))),
        (json!({"exp": i64::MAX, "iat": i64::MIN}), 0, both(Some(Refusal::Lifetime))),
        (json!({}), -30, both(None)),
        (json!({}), -31, both(Some(Refusal::IssuedLater))),
        (json!({"iat": i64::MAX}), 0, both(Some(Refusal::IssuedLater))),
        (json!({"nbf": IAT + 30}), 0, both(None)),
        (json!({"nbf": IAT + 31}), 0, both(Some(Refusal::NotYet))),
        (json!({"nbf": IAT + 31}), 1, both(None)),
        (json!({"nbf": i64::MAX}), 0, both(Some(Refusal::NotYet))),
        (json!({"worker_id": null}), 0, both(Some(Refusal::NoWorker))),
        (json!({"worker_id": " "}), 0, both(Some(Refusal::NoWorker))),
        (json!({"worker_id": "w-2"}), 0, both(Some(Refusal::OtherWorker))),
        (json!({"worker_id": "W-1"}), 0, both(Some(Refusal::OtherWorker))),
        (json!({"worker_id": "w-1 "}), 0, both(Some(Refusal::OtherWorker))),
        (json!({"jti": null}), 0, both(Some(Refusal::NoTokenId))),
        (json!({"jti": ""}), 0, both(Some(Refusal::NoTokenId))),
        (json!({"jti": "revoked"}), 0, both(Some(Refusal::Revoked))),
        (json!({"jti": " revoked"}), 0, both(Some(Refusal::Revoked))),
        (json!({"aud": "worker:rpc"}), 0, both(Some(Refusal::OtherAudience))),
        (json!({"aud": "worker"}), 0, both(Some(Refusal::OtherAudience))),
        (json!({"aud": ""}), 0, both(Some(Refusal::OtherAudience))),
        (json!({"aud": null}), 0, (Some(Refusal::NoAudience), None)),
        (json!({"iat": null}), 0, (Some(Refusal::NoIssue), None)),
        (json!({"iat": null, "aud": null}), 0, (Some(Refusal::NoAudience), None)),
        (json!({"iat": null, "exp": IAT + 930}), 0, (Some(Refusal::NoIssue), None)),
        (json!({"iat": null, "exp": IAT + 931}), 0, (Some(Refusal::NoIssue), Some(Refusal::Lifetime))),
        (json!({"aud": null, "exp": IAT + 901}), 0, (Some(Refusal::NoAudience), Some(Refusal::Lifetime))),
        (json!({"other": {"a": 1}}), 0, both(None)),
    ] {
        let token = signed_with(changes.clone());
        assert_eq!(judge(&hmac_keys(), &token, IAT + after).err(), strict, "{changes} {after}");
        assert_eq!(judge(&legacy, &token, IAT + after).err(), lenient, "legacy: {changes} {after}");
    }
}

#[test]
fn an_audience_is_not_the_other_one() {
    let keys = hmac_keys();
    let rpc = signed_with(json!({"aud": "worker:rpc"}));
    let control_plane = signed_with(json!({}));
    let by = |token: &str, audience| keys.verify(token, IAT, audience, None, &|_| false).err();
    assert_eq!(by(&rpc, Some(Audience::Rpc)), None);
    assert_eq!(by(&control_plane, Some(Audience::ControlPlane)), None);
    assert_eq!(by(&rpc, Some(Audience::ControlPlane)), Some(Refusal::OtherAudience));
    assert_eq!(by(&control_plane, Some(Audience::Rpc)), Some(Refusal::OtherAudience));
    assert_eq!((by(&rpc, None), by(&control_plane, None)), (None, None));
    assert_eq!(by(&signed_with(json!({"aud": "users"})), None), Some(Refusal::OtherAudience));
}

#[test]
fn scopes_of_a_token_only_narrow() {
    for (scopes, granted) in [
        (Value::Null, Scope::ALL.to_vec()),
        (json!(["worker:lease"]), vec![Scope::Lease]),
        (json!(["admin", "worker:exec"]), vec![Scope::Exec]),
        (json!(["admin", "worker:*"]), vec![]),
        (json!([]), vec![]),
    ] {
        let token = signed_with(json!({ "scopes": scopes }));
        let auth = WorkerAuth { keys: hmac_keys(), ..WorkerAuth::default() };
        let sent = WorkerCredential { token: Some(&token), ..WorkerCredential::default() };
        let worker = auth.authenticate(sent, IAT, &|_| false).unwrap();
        let may: Vec<Scope> = Scope::ALL.into_iter().filter(|scope| worker.may(*scope)).collect();
        assert_eq!(may, granted, "{scopes}");
    }
}
