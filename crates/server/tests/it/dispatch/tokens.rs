use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::Method;
use serde_json::{Value, json};

use super::kit::{self, Plane};
use crate::cases;
use crate::harness::TOKEN;

cases!(
    kit,
    on_sqlite: [
        what_a_token_says,
        tokens_that_are_refused,
        no_credential_works_in_anothers_place,
        an_always_on_source_gets_fresh_tokens,
    ],
    on_both_stores: [a_token_is_for_one_attempt_of_one_task, grants_that_do_not_fit_into_a_token_are_looked_up],
);

pub fn claims_of(token: &str) -> Value {
    let body = token.split('.').nth(1).unwrap();
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(body).unwrap()).unwrap()
}

fn part(token: &str, index: usize, change: impl FnOnce(&mut Value)) -> String {
    let mut parts: Vec<String> = token.split('.').map(str::to_owned).collect();
    let mut value: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(&parts[index]).unwrap()).unwrap();
    change(&mut value);
    parts[index] = URL_SAFE_NO_PAD.encode(value.to_string());
    parts.join(".")
}

async fn what_a_token_says(plane: Plane) {
    plane.deploy(kit::CHAIN).await;
    let claim = plane.claim(&plane.fire("r-1").await).await;
    let claims = claims_of(claim.token());
    assert_eq!((&claims["iss"], &claims["aud"]), (&json!("tenure"), &json!("trace.task")));
    assert_eq!(claims["sub"], format!("task:{}", claim.task()));
    assert_eq!((&claims["attempt"], &claims["fence"]), (&json!(1), &json!(1)));
    assert_eq!(claims["org_id"], claim["task"]["org_id"]);
    assert_eq!(claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap(), 1_800 + 300);
    assert_eq!((&claims["datasets"], &claims["s3"]["read_prefixes"]), (&json!([]), &json!([])));
    let staging = claim["task"]["outputs"][0]["staging_prefix"].as_str().unwrap();
    let writes = claims["s3"]["write_prefixes"].as_array().unwrap();
    assert!(writes.iter().any(|prefix| staging.starts_with(prefix.as_str().unwrap())), "{writes:?}");
    assert!(claims["s3"]["scratch_prefix"].as_str().unwrap().ends_with(&format!("/scratch/{}/1/", claim.task())));
    // The key set verifies it, and has no private part.
    let keys = plane.get("/internal/jwks/task").await.ok();
    let head: Value =
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claim.token().split('.').next().unwrap()).unwrap()).unwrap();
    let key = keys["keys"].as_array().unwrap().iter().find(|key| key["kid"] == head["kid"]).unwrap();
    assert_eq!((&key["kty"], &key["crv"], &key["alg"]), (&json!("EC"), &json!("P-256"), &json!("ES256")));
    assert!(key.get("d").is_none());
    // An input is granted in its version.
    plane.events(&claim, json!([claim.event(0, json!({"partition_key": "1-5"}))])).await.ok();
    let decode = plane.claim(&plane.nth("decode", 1).await).await;
    let claims = claims_of(decode.token());
    let input = &decode["task"]["inputs"][0];
    assert_eq!(claims["datasets"][0]["alias"], "raw");
    assert_eq!(claims["datasets"][0]["storage_ref"], input["storage_ref"]);
    let read = claims["s3"]["read_prefixes"][0].as_str().unwrap();
    assert!(read.ends_with(input["storage_ref"]["prefix"].as_str().unwrap()), "{read}");
}

async fn an_always_on_source_gets_fresh_tokens(plane: Plane) {
    const DAY_S: i64 = 86_400;
    let now_s = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs().cast_signed();
    let keys = plane.config.task_keys.clone().unwrap();
    // The same token, with so much time left.
    let left = async |claim: &kit::Claim, left_s: i64| {
        let claims = keys.verify_capability(claim.token()).await.unwrap().claims;
        keys.get().issue_capability(&claims, now_s() + left_s - DAY_S, DAY_S as u32).unwrap().reveal().to_owned()
    };
    let beat = async |claim: &kit::Claim, token: &str| {
        plane.as_task("heartbeat", token, &claim.attempt()).await.ok()["capability_token"].clone()
    };
    plane.deploy(&kit::CHAIN.replace("kind: manual", "kind: always_on")).await;
    let task = plane.nth("import", 1).await;
    let claim = plane.claim(&task).await;
    assert!(claims_of(claim.token())["exp"].as_i64().unwrap() - now_s() > DAY_S - 60);
    assert_eq!(
        (beat(&claim, claim.token()).await, beat(&claim, &left(&claim, 900).await).await),
        (json!(null), json!(null))
    );
    let fresh = beat(&claim, &left(&claim, 300).await).await;
    let fresh = fresh.as_str().unwrap();
    assert!(claims_of(fresh)["exp"].as_i64().unwrap() - now_s() > DAY_S - 60);
    assert_eq!(claims_of(fresh)["sub"], claims_of(claim.token())["sub"]);
    assert_eq!(beat(&claim, fresh).await, json!(null), "it is good, and needs no other");
    // A restart is another attempt of the same task.
    plane.complete(&claim, json!({"status": "Failed", "error_message": "stopped"})).await.ok();
    plane.advance(60_000);
    let again = plane.claim(&task).await;
    assert_eq!((&again["attempt"], &again["task_id"]), (&json!(2), &claim["task_id"]));
    let refused = plane.as_task("heartbeat", fresh, &again.attempt()).await.refused(403);
    assert_eq!(refused["error"], "capability_mismatch", "it is of the first attempt");
    // Tasks that end do without.
    plane.deploy(kit::CHAIN).await;
    plane.active(2).await;
    let other = plane.claim(&plane.fire("r-1").await).await;
    assert_eq!(beat(&other, &left(&other, 300).await).await, json!(null));
}

/// A job that reads so much that its grants are longer than a token may be.
const WIDE: usize = 32;

async fn grants_that_do_not_fit_into_a_token_are_looked_up(plane: Plane) {
    let mut yaml = kit::CHAIN.replace("outputs: 2", &format!("outputs: {WIDE}"));
    yaml += "  - name: wide
    activation: reactive
    runtime: worker
    operator: wide
    outputs: 1
    execution_strategy: PerPartition
    update_strategy: replace
    inputs:
";
    for output in 0..WIDE {
        yaml += &format!("      - {{ from: {{ job: import, output: {output} }}, alias: i{output} }}\n");
    }
    plane.deploy(&yaml).await;
    let import = plane.claim(&plane.fire("r-1").await).await;
    plane.events(&import, json!([import.event(WIDE - 1, json!({"partition_key": "1-5"}))])).await.ok();
    let claim = plane.claim(&plane.nth("wide", 1).await).await;
    assert!(claim.token().len() <= 8 << 10, "{}", claim.token().len());
    let claims = claims_of(claim.token());
    assert!(claims["capability_id"].as_str().is_some_and(|id| !id.is_empty()), "{claims}");
    assert_eq!((&claims["datasets"], &claims["s3"]["read_prefixes"]), (&json!([]), &json!([])));
    assert_eq!(claims["s3"]["write_prefixes"], json!([]));
    plane.beat(&claim).await.ok();
    // It grants what the task was given, and nothing else.
    let root = format!("{}/", plane.objects.path().canonicalize().unwrap().display());
    let in_bucket = |prefix: &Value| {
        let path = prefix.as_str().unwrap().trim_start_matches("file://");
        format!("s3://tenure/{}", path.strip_prefix(&root).unwrap_or_else(|| panic!("{path}")))
    };
    let ask = async |kind: &str, prefix: &str| {
        plane.as_task("credentials", claim.token(), &json!({"want": {kind: [prefix]}})).await
    };
    for input in [0, WIDE - 1] {
        ask("read", &in_bucket(&claim["task"]["inputs"][input]["storage_ref"]["prefix"])).await.ok();
    }
    let output = &claim["task"]["outputs"][0];
    let own = in_bucket(&output["staging_prefix"]);
    ask("write", &own).await.ok();
    let elsewhere = own.replace(output["dataset_uuid"].as_str().unwrap(), import.task());
    let others = in_bucket(&import["task"]["outputs"][0]["staging_prefix"]);
    for (kind, prefix) in [("read", &elsewhere), ("write", &elsewhere), ("write", &others)] {
        assert_eq!(ask(kind, prefix).await.refused(403)["error"], "prefix_not_granted", "{kind} {prefix}");
    }
    plane.complete(&claim, json!({"status": "Completed"})).await.ok();
}

async fn a_token_is_for_one_attempt_of_one_task(plane: Plane) {
    plane.still().await;
    plane.deploy(kit::CHAIN).await;
    let (a, b) = (plane.claim(&plane.fire("r-1").await).await, plane.claim(&plane.fire("r-2").await).await);
    for call in ["heartbeat", "complete", "events"] {
        let body = b.with(json!({"status": "Completed", "events": []}));
        assert_eq!(plane.as_task(call, a.token(), &body).await.refused(403)["error"], "capability_mismatch", "{call}");
        let body = a.with(json!({"attempt": 2, "status": "Completed"}));
        assert_eq!(plane.as_task(call, a.token(), &body).await.refused(403)["error"], "capability_mismatch", "{call}");
    }
    let stranger = a.with(json!({"lease_token": "0190c0de-0000-7000-8000-000000000001", "status": "Completed"}));
    assert_eq!(plane.as_task("complete", a.token(), &stranger).await.refused(409)["error"], "stale_lease");
    // Both headers may have the same token, and no two.
    let bearer = format!("Bearer {}", a.token());
    let both = [("X-Trace-Task-Capability", a.token()), ("Authorization", bearer.as_str())];
    plane.call(Method::POST, "/v1/task/heartbeat", &both, Some(&a.attempt())).await.ok();
    plane.call(Method::POST, "/v1/task/heartbeat", &both[1..], Some(&a.attempt())).await.ok();
    let two = [("X-Trace-Task-Capability", b.token()), ("Authorization", bearer.as_str())];
    let refused = plane.call(Method::POST, "/v1/task/heartbeat", &two, Some(&a.attempt())).await.refused(401);
    assert_eq!(refused["error"], "invalid_capability");
    // A second attempt has another token; the first one's is good, and of no use.
    plane.advance(120_000);
    plane.not_claimed(a.task()).await;
    plane.advance(45_000);
    let second = plane.claim(a.task()).await;
    assert_eq!(plane.complete(&a, json!({"status": "Completed"})).await.refused(409)["error"], "stale_attempt");
    plane.complete(&second, json!({"status": "Completed"})).await.ok();
}

async fn tokens_that_are_refused(plane: Plane) {
    plane.deploy(kit::CHAIN).await;
    let claim = plane.claim(&plane.fire("r-1").await).await;
    let none = plane.call(Method::POST, "/v1/task/heartbeat", &[], Some(&claim.attempt())).await.refused(401);
    assert_eq!(none["error"], "missing_capability");
    let token = claim.token();
    let signed = token.rsplit_once('.').unwrap();
    let mut forged = vec![
        String::new(),
        "x".to_owned(),
        format!("{}.", signed.0),
        format!("{}.{}", signed.0, "A".repeat(signed.1.len())),
        part(token, 0, |head| head["alg"] = json!("none")),
        part(token, 0, |head| head["alg"] = json!("HS256")),
        part(token, 0, |head| head["kid"] = json!("../../etc/passwd")),
        part(token, 0, |head| head["jwk"] = json!({"kty": "EC"})),
        part(token, 0, |head| {
            head.as_object_mut().unwrap().remove("kid");
        }),
    ];
    for (claim, value) in [("exp", json!(4_102_444_800_i64)), ("attempt", json!(2)), ("aud", json!("tenure.callback"))]
    {
        forged.push(part(token, 1, |claims| claims[claim] = value));
    }
    for forged in forged {
        let refused = plane.as_task("heartbeat", &forged, &claim.attempt()).await.refused(401);
        assert!(refused["error"].as_str().unwrap().ends_with("_capability"), "{refused}");
        assert!(!refused.to_string().contains(signed.1));
    }
    plane.beat(&claim).await.ok();
}

async fn no_credential_works_in_anothers_place(plane: Plane) {
    plane.deploy(kit::CHAIN).await;
    let claim = plane.claim(&plane.fire("r-1").await).await;
    let bearer = format!("Bearer {}", claim.token());
    for (path, headers, word) in [
        ("/internal/heartbeat", vec![("X-Trace-Task-Capability", claim.token())], "missing_worker_token"),
        ("/internal/heartbeat", vec![("Authorization", bearer.as_str())], "invalid_worker_token"),
        ("/internal/task-claim", vec![("X-API-Key", "key")], "missing_worker_token"),
        ("/internal/task-claim", vec![("X-Trace-Worker-Token", "another")], "invalid_worker_token"),
        ("/v1/task/heartbeat", vec![("X-Trace-Worker-Token", TOKEN)], "missing_capability"),
        ("/v1/task/heartbeat", vec![("Authorization", "Bearer key")], "invalid_capability"),
        ("/v1/task/complete", vec![("X-API-Key", "key")], "missing_capability"),
    ] {
        let refused = plane.call(Method::POST, path, &headers, Some(&claim.attempt())).await.refused(401);
        assert_eq!(refused["error"], word, "{path} {headers:?}");
    }
    // The size of a body is judged before who sends it.
    let long = json!({"pad": "x".repeat(1 << 20)});
    assert_eq!(
        plane.call(Method::POST, "/v1/task/complete", &[], Some(&long)).await.refused(413)["error"],
        "body_too_large"
    );
}
