use serde_json::{Value, json};
use tenure_auth::{
    Access, CapabilityClaims, DatasetGrant, IssueError, S3Grant, Secret, StorageRef, TaskClaims, TaskPublicKey,
    TokenError,
};

use crate::tokens::forge::{NOW, Replica, by_ec, by_hmac, claims_of, header_of, token, with};

const TASK: &str = "018c385a-9fb1-9509-0e89-33fe3b7b1aa9";

fn claims() -> CapabilityClaims {
    let storage_ref =
        StorageRef::S3 { bucket: "tenure".into(), prefix: "dataset/u/version/v/".into(), glob: "*.parquet".into() };
    CapabilityClaims {
        org_id: "org-1".into(),
        task_id: TASK.into(),
        attempt: 1,
        fence: 7,
        access: Access::Inline {
            datasets: vec![DatasetGrant {
                alias: "raw_logs".into(),
                dataset_uuid: "u".into(),
                dataset_version: "v".into(),
                storage_ref: Some(storage_ref),
                table: None,
            }],
            s3: S3Grant {
                read_prefixes: vec!["s3://tenure/dataset/u/version/v/".into()],
                write_prefixes: vec!["s3://tenure/dataset/w/version/x/staging/t/1/".into()],
                scratch_prefix: Some("s3://tenure/scratch/t/1/".into()),
            },
        },
    }
}

fn wire() -> Value {
    json!({
        "iss": "tenure", "aud": "trace.task", "sub": format!("task:{TASK}"), "iat": NOW, "exp": NOW + 600, "jti": "j",
        "org_id": "org-1", "task_id": TASK, "attempt": 1, "fence": 7,
        "datasets": [{
            "alias": "raw_logs", "dataset_uuid": "u", "dataset_version": "v",
            "storage_ref": {"scheme": "s3", "bucket": "tenure", "prefix": "dataset/u/version/v/", "glob": "*.parquet"}
        }],
        "s3": {
            "read_prefixes": ["s3://tenure/dataset/u/version/v/"],
            "write_prefixes": ["s3://tenure/dataset/w/version/x/staging/t/1/"],
            "scratch_prefix": "s3://tenure/scratch/t/1/"
        }
    })
}

fn stored() -> Value {
    let nothing = json!({"read_prefixes": [], "write_prefixes": []});
    let wire = with(&with(&wire(), "datasets", json!([])), "s3", nothing);
    with(&wire, "capability_id", json!("cap-1"))
}

#[test]
fn a_token_says_what_it_was_issued_for() {
    let replica = Replica::new();
    let token = replica.keys.issue_capability(&claims(), NOW, 600).unwrap();
    let found = replica.keys.verify_capability(token.reveal(), NOW).unwrap();
    assert_eq!(found.claims, claims());
    assert_eq!((found.issued_at_s, found.expires_at_s), (NOW, NOW + 600));
    assert_eq!(header_of(token.reveal()), replica.header());
    let jti = claims_of(token.reveal())["jti"].clone();
    assert_eq!(claims_of(token.reveal()), with(&wire(), "jti", jti));
}

#[test]
fn grants_that_do_not_fit_are_stored_and_named() {
    let replica = Replica::new();
    let mut large = claims();
    let read_prefixes = (0..200).map(|at| format!("s3://tenure/dataset/{at}/version/v/")).collect();
    large.access = Access::Inline { datasets: vec![], s3: S3Grant { read_prefixes, ..S3Grant::default() } };
    assert!(matches!(
        replica.keys.issue_capability(&large, NOW, 600),
        Err(IssueError::TooLarge { bytes: 8193.., max: 8192 })
    ));
    large.access = Access::Stored { capability_id: "cap-1".into() };
    let token = replica.keys.issue_capability(&large, NOW, 600).unwrap();
    assert_eq!(with(&claims_of(token.reveal()), "jti", json!("j")), stored());
    assert_eq!(replica.keys.verify_capability(token.reveal(), NOW).unwrap().claims, large);
}

#[test]
fn a_token_is_good_to_its_end_and_2_seconds_more() {
    let keys = Replica::new().keys;
    let token = keys.issue_capability(&claims(), NOW, 600).unwrap();
    for (now, expected) in [(NOW, None), (NOW + 601, None), (NOW + 602, Some(TokenError::Expired))] {
        assert_eq!(keys.verify_capability(token.reveal(), now).err(), expected, "{}", now - NOW);
    }
    for (ttl_s, good) in [(0, false), (86_400, true), (86_401, false)] {
        assert_eq!(keys.issue_capability(&claims(), NOW, ttl_s).is_ok(), good, "{ttl_s}");
    }
}

#[test]
fn every_claim_but_the_token_id_and_the_fence_is_required() {
    let replica = Replica::new();
    for name in ["iss", "aud", "sub", "iat", "exp", "org_id", "task_id", "attempt", "datasets", "s3"] {
        let forged = replica.sign(&with(&wire(), name, Value::Null));
        assert_eq!(replica.keys.verify_capability(&forged, NOW).err(), Some(TokenError::MissingClaim(name)));
    }
    let without = replica.sign(&with(&wire(), "jti", Value::Null));
    assert_eq!(replica.keys.verify_capability(&without, NOW).unwrap().token_id, None);
    let without = replica.sign(&with(&wire(), "fence", Value::Null));
    assert_eq!(replica.keys.verify_capability(&without, NOW).unwrap().claims.fence, 0);
}

#[test]
fn claims_of_the_wrong_kind_are_refused() {
    let replica = Replica::new();
    let datasets = |storage_ref: Value| json!([{"alias": "a", "dataset_uuid": "u", "dataset_version": "v", "storage_ref": storage_ref}]);
    for (name, value, expected) in [
        ("iss", json!("someone"), TokenError::Issuer),
        ("aud", json!("tenure.callback"), TokenError::Audience),
        ("aud", json!(["trace.task"]), TokenError::Audience),
        ("sub", json!("task:another"), TokenError::Subject),
        ("sub", json!(TASK), TokenError::Subject),
        ("sub", json!(format!("task:{TASK} ")), TokenError::Subject),
        ("task_id", json!("another"), TokenError::Subject),
        ("nbf", json!(NOW + 3), TokenError::NotYetValid),
        ("nbf", json!("soon"), TokenError::InvalidClaim("nbf")),
        ("attempt", json!("1"), TokenError::InvalidClaim("attempt")),
        ("attempt", json!(0), TokenError::InvalidClaim("attempt")),
        ("fence", json!(-1), TokenError::InvalidClaim("fence")),
        ("fence", json!(7.0), TokenError::InvalidClaim("fence")),
        ("capability_id", json!("cap-1"), TokenError::InvalidClaim("capability_id")),
        ("datasets", json!({}), TokenError::InvalidClaim("datasets")),
        ("datasets", json!([{"alias": "a"}]), TokenError::InvalidClaim("datasets")),
        ("datasets", datasets(json!({"scheme": "http", "name": "x"})), TokenError::InvalidClaim("datasets")),
        ("datasets", datasets(json!({"bucket": "b", "prefix": "p/"})), TokenError::InvalidClaim("datasets")),
        ("datasets", datasets(json!({"scheme": "s3", "prefix": "p/"})), TokenError::InvalidClaim("datasets")),
        ("datasets", datasets(json!("s3://b/p/")), TokenError::InvalidClaim("datasets")),
        ("s3", json!({}), TokenError::InvalidClaim("s3")),
        ("s3", json!({"read_prefixes": "s3://b/", "write_prefixes": []}), TokenError::InvalidClaim("s3")),
    ] {
        let forged = replica.sign(&with(&wire(), name, value.clone()));
        assert_eq!(replica.keys.verify_capability(&forged, NOW).err(), Some(expected), "{name} {value}");
    }
    let table = datasets(json!({"scheme": "table", "name": "dataset_u"}));
    let forged = replica.sign(&with(&wire(), "datasets", table));
    assert_eq!(replica.keys.verify_capability(&forged, NOW).err(), Some(TokenError::InvalidClaim("datasets")));
    // Beside an id the grants may be absent, and must not be there.
    let absent = with(&with(&stored(), "datasets", Value::Null), "s3", Value::Null);
    assert!(replica.keys.verify_capability(&replica.sign(&absent), NOW).is_ok());
    let blank = replica.sign(&with(&stored(), "capability_id", json!("")));
    let expected = Some(TokenError::InvalidClaim("capability_id"));
    assert_eq!(replica.keys.verify_capability(&blank, NOW).err(), expected);
}

#[test]
fn each_place_of_data_is_read() {
    let replica = Replica::new();
    for (storage_ref, expected) in [
        (
            json!({"scheme": "s3", "bucket": "b", "prefix": "p/"}),
            Some(StorageRef::S3 { bucket: "b".into(), prefix: "p/".into(), glob: "*.parquet".into() }),
        ),
        (
            json!({"scheme": "file", "prefix": "/data/p/", "glob": "*.csv"}),
            Some(StorageRef::File { prefix: "/data/p/".into(), glob: "*.csv".into() }),
        ),
        (Value::Null, None),
    ] {
        let dataset = json!({"alias": "a", "dataset_uuid": "u", "dataset_version": "v"});
        let claims = with(&wire(), "datasets", json!([with(&dataset, "storage_ref", storage_ref)]));
        let found = replica.keys.verify_capability(&replica.sign(&claims), NOW).unwrap().claims.access;
        let Access::Inline { datasets, .. } = found else { panic!("the grants are inline") };
        assert_eq!(datasets[0].storage_ref, expected);
    }
}

#[test]
fn forged_tokens_are_refused() {
    let (replica, other) = (Replica::new(), Replica::new());
    let text = wire().to_string();
    let head = |name: &str, value: Value| with(&replica.header(), name, value);
    let jwk: Value = serde_json::from_str(&other.keys.public_jwk()).unwrap();
    let public = replica.keys.public_jwk();
    let unknown = TokenError::UnknownKey { kid: Some(other.keys.kid().to_owned()) };
    for (what, forged, expected) in [
        ("none", token(&head("alg", json!("none")), &text, |_| vec![]), TokenError::Algorithm),
        ("HS256", token(&head("alg", json!("HS256")), &text, by_hmac(public)), TokenError::Algorithm),
        ("its own key", token(&head("jwk", jwk), &text, by_ec(&other.pair)), TokenError::Header("jwk")),
        ("jku", token(&head("jku", json!("https://x")), &text, by_ec(&other.pair)), TokenError::Header("jku")),
        ("crit", token(&head("crit", json!([])), &text, by_ec(&replica.pair)), TokenError::Header("crit")),
        ("no kid", token(&head("kid", Value::Null), &text, by_ec(&replica.pair)), TokenError::MissingKeyId),
        ("another's key", other.sign(&wire()), unknown),
        ("another's signature", token(&replica.header(), &text, by_ec(&other.pair)), TokenError::Signature),
        ("DER", token(&replica.header(), &text, by_ec(&replica.pair_der)), TokenError::Signature),
    ] {
        assert_eq!(replica.keys.verify_capability(&forged, NOW).err(), Some(expected), "{what}");
    }
    assert!(replica.keys.verify_capability(&replica.sign(&wire()), NOW).is_ok());
}

#[test]
fn the_shared_secret_of_callbacks_signs_no_capability() {
    let secret = Secret::new("a-shared-secret-of-at-least-32-bytes").unwrap();
    let keys = Replica::new().keys.with_callback_secret(&secret).unwrap();
    for header in [json!({"alg": "HS256"}), json!({"alg": "HS256", "kid": tenure_auth::HS256_KID})] {
        let forged = token(&header, &wire().to_string(), by_hmac(secret.reveal()));
        assert_eq!(keys.verify_capability(&forged, NOW).err(), Some(TokenError::Algorithm));
    }
    let issued = keys.issue_capability(&claims(), NOW, 600).unwrap();
    assert_eq!(header_of(issued.reveal())["alg"], "ES256");
}

#[test]
fn task_tokens_and_capability_tokens_never_stand_in_for_each_other() {
    let keys = Replica::new().keys;
    let task = TaskClaims {
        task_id: TASK.into(),
        tenant_id: "acme".into(),
        workspace_id: "main".into(),
        run_id: "r".into(),
        attempt: 1,
        attempt_id: "att".into(),
    };
    let task = keys.issue_task(&task, NOW, 300).unwrap();
    let capability = keys.issue_capability(&claims(), NOW, 300).unwrap();
    assert!(keys.verify_task(task.reveal(), NOW).is_ok());
    assert!(keys.verify_capability(capability.reveal(), NOW).is_ok());
    assert_eq!(keys.verify_capability(task.reveal(), NOW).err(), Some(TokenError::Audience));
    assert_eq!(keys.verify_task(capability.reveal(), NOW).err(), Some(TokenError::Audience));
}

#[test]
fn rotation_and_replicas_work_as_for_task_tokens() {
    let (one, two) = (Replica::new(), Replica::new());
    let token = one.keys.issue_capability(&claims(), NOW, 600).unwrap();
    let key = TaskPublicKey::from_jwk(&one.keys.public_jwk()).unwrap();
    let unknown = Some(TokenError::UnknownKey { kid: Some(one.keys.kid().to_owned()) });
    assert_eq!(two.keys.verify_capability(token.reveal(), NOW).err(), unknown);
    assert!(two.keys.with_peers([key.clone()]).verify_capability(token.reveal(), NOW).is_ok());
    let rotated = two.keys.clone().with_previous([key]);
    assert!(rotated.verify_capability(token.reveal(), NOW).is_ok());
    assert_eq!(rotated.with_previous([]).verify_capability(token.reveal(), NOW).err(), unknown);
}
