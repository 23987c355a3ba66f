//! Temporary keys for the object store, and the S3 endpoint that honours them.

mod s3;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_sdk_sqs::config::Credentials;
use aws_sigv4::http_request::SignableBody;
use reqwest::Method;
use serde_json::{Value, json};
use tenure_core::objects::{Prefix, Scope, WriteTemplate};
use tenure_core::{TaskId, Timestamp};
use tenure_s3::Holder;
use tenure_server::CredentialBackend;
use tenure_testkit::{Moto, RawClient, python_packages, wait_until};
use tenure_transport::sts::{Sts, StsConfig};

use super::kit::{self, Claim, Plane};
use crate::cases;
use crate::harness::{Home, SOON};
use s3::Client;

cases!(
    kit,
    on_sqlite: [
        keys_are_counted_by_task,
        requests_that_are_forged_or_old_are_refused,
        bodies_that_are_not_what_was_signed_leave_nothing,
        paths_lead_nowhere_else,
        connections_that_misbehave_end_by_themselves,
        keys_die_with_their_expiry,
        bodies_on_their_way_count_in_the_memory_of_requests,
        standard_clients_work,
        sts_makes_keys_by_the_session_policy,
    ],
    on_both_stores: [
        keys_reach_their_scope_and_nothing_else,
        wants_that_are_wrong_or_not_granted_are_refused,
        only_a_live_attempt_gets_keys,
    ],
);

const CLIENTS: [&str; 3] = ["boto3==1.44.3", "awscli==1.46.2", "pyarrow==26.0.1"];

async fn claimed(plane: &Plane) -> Claim {
    plane.deploy(kit::CHAIN).await;
    plane.claim(&plane.fire("r-1").await).await
}

async fn ask(plane: &Plane, claim: &Claim, body: Value) -> crate::harness::Answer {
    plane.as_task("credentials", claim.token(), &body).await
}

/// The path of a prefix of the claim, in the bucket: `file:` names are those of the folder.
fn path(plane: &Plane, prefix: &str) -> String {
    let root = plane.objects.path().canonicalize().unwrap();
    let below = prefix.strip_prefix(&format!("file://{}/", root.display()));
    below.unwrap_or_else(|| panic!("{prefix}")).to_owned()
}

fn staging(plane: &Plane, claim: &Claim) -> String {
    path(plane, claim["task"]["outputs"][0]["staging_prefix"].as_str().unwrap())
}

fn scratch(claim: &Claim) -> String {
    format!("scratch/{}/{}/", claim.task(), claim["attempt"])
}

async fn keys_reach_their_scope_and_nothing_else(plane: Plane) {
    let claim = claimed(&plane).await;
    let (write, scratch) = (staging(&plane, &claim), scratch(&claim));
    let answer = ask(&plane, &claim, json!({"purpose": "s3_data"})).await.ok();
    assert_eq!((&answer["endpoint_url"], &answer["region"]), (&json!(plane.url), &json!("us-east-1")));
    let expires_at = Timestamp::parse(answer["expires_at"].as_str().unwrap()).unwrap();
    let now = Timestamp::from_millis(jiff_now());
    assert!(expires_at > now && expires_at.since(now) <= 900_000, "{answer}");
    let all = Client::of(&answer);
    assert_eq!(all.put(&format!("/tenure/{write}a.parquet"), "PAR1").await.status, 200);
    assert_eq!(std::fs::read_to_string(plane.objects.path().join(format!("{write}a.parquet"))).unwrap(), "PAR1");
    assert_eq!(all.put(&format!("/tenure/{scratch}x"), "one").await.status, 200);
    let said = all.get(&format!("/tenure/{scratch}x")).await;
    assert_eq!((said.status, said.body.as_str()), (200, "one"));
    let listed = all.get(&format!("/tenure?list-type=2&prefix={scratch}")).await;
    assert!(listed.body.contains(&format!("<Key>{scratch}x</Key>")), "{}", listed.body);
    std::fs::create_dir_all(plane.objects.path().join("other")).unwrap();
    std::fs::write(plane.objects.path().join("other/x"), "secret").unwrap();
    for (method, path) in [
        (Method::GET, "/tenure/other/x".to_owned()),
        (Method::GET, "/tenure/other/none".to_owned()),
        (Method::PUT, "/tenure/other/y".to_owned()),
        (Method::DELETE, "/tenure/other/x".to_owned()),
        (Method::GET, format!("/tenure/{}-evil/x", scratch.trim_end_matches('/'))),
        (Method::GET, format!("/tenure/{write}a.parquet")),
        (Method::DELETE, format!("/tenure/{write}a.parquet")),
        (Method::GET, "/tenure?list-type=2".to_owned()),
        (Method::GET, "/tenure?list-type=2&prefix=other/".to_owned()),
        (Method::GET, format!("/tenure?list-type=2&prefix={}", scratch.trim_end_matches('/'))),
        (Method::GET, format!("/other/{scratch}x")),
        (Method::GET, "/other?location".to_owned()),
        (Method::POST, "/tenure/other/y?uploads".to_owned()),
    ] {
        let said = all.send(method.clone(), &path, b"").await;
        assert_eq!((said.status, said.code()), (403, "AccessDenied"), "{method} {path}");
    }
    assert_eq!(std::fs::read_to_string(plane.objects.path().join("other/x")).unwrap(), "secret");
    // Keys for less do less.
    let want = json!({"want": {"read": [format!("s3://tenure/{scratch}")]}});
    let narrow = Client::of(&ask(&plane, &claim, want).await.ok());
    assert_eq!(narrow.get(&format!("/tenure/{scratch}x")).await.status, 200);
    assert_eq!(narrow.put(&format!("/tenure/{scratch}x"), "two").await.code(), "AccessDenied");
    assert_eq!(narrow.put(&format!("/tenure/{write}b"), "two").await.code(), "AccessDenied");
    // Each grant is on record, without secrets.
    let task = TaskId::parse(claim.task()).unwrap();
    let rows = plane.engine.identity().credential_grants(task, 10).await.unwrap();
    assert_eq!(rows.len(), 2);
    let row = format!("{rows:?}");
    assert!(row.contains(&all.id) && row.contains(&scratch), "{row}");
    for secret in [&all.secret, &all.token, &narrow.secret, &narrow.token] {
        assert!(!row.contains(secret.as_str()));
    }
}

fn jiff_now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

async fn wants_that_are_wrong_or_not_granted_are_refused(plane: Plane) {
    let claim = claimed(&plane).await;
    let (write, scratch) = (staging(&plane, &claim), scratch(&claim));
    let own = format!("s3://tenure/{scratch}");
    for (prefix, status, word) in [
        (format!("{own}../x/"), 422, "invalid_prefix"),
        (format!("{own}*"), 422, "invalid_prefix"),
        (format!("{own}?/"), 422, "invalid_prefix"),
        (format!("{own}a\\b/"), 422, "invalid_prefix"),
        (format!("{own}a\nb/"), 422, "invalid_prefix"),
        (String::new(), 422, "invalid_prefix"),
        ("s3://tenure".to_owned(), 422, "invalid_prefix"),
        ("s3://tenure/".to_owned(), 422, "invalid_prefix"),
        (scratch.clone(), 422, "invalid_prefix"),
        (format!("file:///{scratch}"), 422, "invalid_prefix"),
        (format!("{}-evil/", own.trim_end_matches('/')), 403, "prefix_not_granted"),
        ("s3://tenure/scratch/".to_owned(), 403, "prefix_not_granted"),
        (format!("s3://other/{scratch}"), 403, "prefix_not_granted"),
        (format!("s3://tenure/{write}"), 403, "prefix_not_granted"),
    ] {
        let want = json!({"purpose": "s3_data", "want": {"read": [own, prefix]}});
        let refused = ask(&plane, &claim, want).await.refused(status);
        assert_eq!(refused["error"], word, "{prefix}");
    }
    for want in [json!({}), json!({"read": [], "write": null})] {
        let refused = ask(&plane, &claim, json!({"want": want})).await.refused(422);
        assert_eq!(refused["error"], "invalid_prefix");
    }
    for body in [json!({"purpose": "other"}), json!({"want": 5}), json!({"want": {"read": "s3://x/y/"}}), json!([])] {
        assert_eq!(ask(&plane, &claim, body).await.refused(400)["error"], "malformed_request");
    }
    // A slash at the end may be missing, `null` is absent and an empty body asks for everything.
    ask(&plane, &claim, json!({"want": {"write": [format!("s3://tenure/{}", write.trim_end_matches('/'))]}}))
        .await
        .ok();
    ask(&plane, &claim, json!({"purpose": null, "want": null})).await.ok();
    let token = [("X-Trace-Task-Capability", claim.token())];
    plane.call(Method::POST, "/v1/task/credentials", &token, None).await.ok();
    let nobody = plane.call(Method::POST, "/v1/task/credentials", &[], Some(&json!({}))).await.refused(401);
    assert_eq!(nobody["error"], "missing_capability");
}

async fn only_a_live_attempt_gets_keys(plane: Plane) {
    plane.still().await;
    let claim = claimed(&plane).await;
    let error = async |claim: &Claim| ask(&plane, claim, json!({})).await.refused(409)["error"].clone();
    ask(&plane, &claim, json!({})).await.ok();
    plane.advance(120_000);
    assert_eq!(error(&claim).await, "lease_expired", "nobody has noticed yet, or somebody has");
    plane.not_claimed(claim.task()).await;
    assert_eq!(error(&claim).await, "lease_expired");
    plane.advance(45_000);
    let second = plane.claim(claim.task()).await;
    assert_eq!(error(&claim).await, "stale_attempt");
    ask(&plane, &second, json!({})).await.ok();
    plane.complete(&second, json!({"status": "Completed"})).await.ok();
    assert_eq!(error(&second).await, "attempt_closed");
    let third = plane.claim(&plane.fire("r-2").await).await;
    plane.post(&format!("/api/v1/tasks/{}/cancel", third.task()), json!({})).await;
    assert_eq!(error(&third).await, "task_canceled");
}

async fn keys_are_counted_by_task(plane: Plane) {
    let claim = claimed(&plane).await;
    let other = plane.claim(&plane.fire("r-2").await).await;
    for _ in 0..10 {
        ask(&plane, &claim, json!({})).await.ok();
    }
    let answer = ask(&plane, &claim, json!({})).await;
    assert!(answer.header("retry-after").parse::<u64>().unwrap() > 0);
    assert_eq!(answer.refused(429)["error"], "rate_limited");
    ask(&plane, &other, json!({})).await.ok();
}

/// Keys for all of `s/`, made without a task.
fn keys_until(plane: &Plane, now_s: i64, ends_s: i64) -> Client {
    let scope = Scope { scratch: vec![Prefix::parse("s3://tenure/s/", false).unwrap()], ..Scope::default() };
    let holder = Holder { org: "o".to_owned(), task: "t".to_owned(), attempt: 1 };
    let issued = plane.keys.issue(holder, &scope, now_s, ends_s).unwrap();
    Client {
        url: plane.url.clone(),
        id: issued.access_key_id,
        secret: issued.secret_access_key,
        token: issued.session_token,
        at: SystemTime::now(),
    }
}

fn keys(plane: &Plane) -> Client {
    let now = jiff_now() / 1_000;
    keys_until(plane, now, now + 900)
}

async fn keys_die_with_their_expiry(plane: Plane) {
    let now = jiff_now() / 1_000;
    let dead = keys_until(&plane, now - 100, now - 10);
    assert_eq!(dead.get("/tenure/s/x").await.code(), "ExpiredToken");
    let dying = keys_until(&plane, now, jiff_now() / 1_000 + 2);
    wait_until("the keys are over", SOON, async || dying.get("/tenure/s/x").await.code() == "ExpiredToken").await;
    assert_eq!(keys(&plane).get("/tenure/s/x").await.code(), "NoSuchKey");
}

async fn requests_that_are_forged_or_old_are_refused(plane: Plane) {
    let good = keys(&plane);
    assert_eq!(good.put("/tenure/s/x", "x").await.status, 200);
    // An address is valid for as long as it says.
    let earlier = Client { at: good.at - Duration::from_secs(100), ..good.clone() };
    for (valid_for, status) in [(60, 403), (600, 200)] {
        let address = earlier.address("/tenure/s/x", Duration::from_secs(valid_for));
        assert_eq!(reqwest::get(address).await.unwrap().status().as_u16(), status, "{valid_for} s");
    }
    let other = keys(&plane);
    let minutes = |count: u64| Duration::from_secs(count * 60);
    for (client, code) in [
        (Client { secret: "guessed".to_owned(), ..good.clone() }, "SignatureDoesNotMatch"),
        (Client { id: other.id.clone(), ..good.clone() }, "InvalidToken"),
        (Client { token: other.token.clone(), ..good.clone() }, "InvalidToken"),
        (Client { token: "x".repeat(20_000), ..good.clone() }, "InvalidToken"),
        (Client { at: good.at - minutes(16), ..good.clone() }, "RequestTimeTooSkewed"),
        (Client { at: good.at + minutes(16), ..good.clone() }, "RequestTimeTooSkewed"),
    ] {
        let said = client.get("/tenure/s/x").await;
        assert_eq!(said.code(), code);
        assert!(!said.body.contains(&good.secret));
    }
    // A signature is for one request.
    let headers = good.headers("GET", "/tenure/s/x", SignableBody::Bytes(b""));
    for (method, path) in
        [(Method::DELETE, "/tenure/s/x"), (Method::GET, "/tenure/s/y"), (Method::GET, "/tenure/s/x?versionId=null")]
    {
        let said = good.send_with(method, path, &headers, b"").await;
        assert_eq!(said.code(), "SignatureDoesNotMatch", "{path}");
    }
    let said = good.send_with(Method::GET, "/tenure/s/x", &[], b"").await;
    assert_eq!((said.status, said.code()), (403, "AccessDenied"));
    let mut smuggled = headers;
    smuggled.push(("x-amz-copy-source".to_owned(), "/tenure/other/x".to_owned()));
    assert_eq!(good.send_with(Method::GET, "/tenure/s/x", &smuggled, b"").await.code(), "AccessDenied");
    // Other principals are nobody here, and keys are nobody elsewhere.
    let bearer = [("authorization".to_owned(), format!("Bearer {}", claimed(&plane).await.token()))];
    let said = good.send_with(Method::GET, "/tenure/s/x", &bearer, b"").await;
    assert_eq!(said.code(), "AuthorizationHeaderMalformed");
    assert_eq!(good.get("/api/v1/tasks").await.status, 403);
}

async fn bodies_that_are_not_what_was_signed_leave_nothing(plane: Plane) {
    let client = keys(&plane);
    let path = "/tenure/s/x";
    let put = async |payload: &str, extra: &[(&str, &str)], body: &[u8]| {
        let mut headers = client.headers("PUT", path, SignableBody::Precomputed(payload.to_owned()));
        headers.extend(extra.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        client.send_with(Method::PUT, path, &headers, body).await
    };
    let wrong = "0".repeat(64);
    assert_eq!(put(&wrong, &[], b"x").await.code(), "XAmzContentSHA256Mismatch");
    assert_eq!(put("UNSIGNED-PAYLOAD", &[("content-md5", "AAAAAAAAAAAAAAAAAAAAAA==")], b"x").await.code(), "BadDigest");
    assert_eq!(put("UNSIGNED-PAYLOAD", &[("content-md5", "?")], b"x").await.code(), "InvalidDigest");
    // Headers that begin with x-amz- must be signed, so a length of chunks cannot be added.
    let length = [("x-amz-decoded-content-length", "1")];
    assert_eq!(put("STREAMING-UNSIGNED-PAYLOAD-TRAILER", &length, b"1\r\nx\r\n0\r\n\r\n").await.code(), "AccessDenied");
    let signed = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD";
    let zeros = format!("1;chunk-signature={wrong}\r\nx\r\n0;chunk-signature={wrong}\r\n\r\n");
    let headers = {
        let mut client = client.clone();
        client.at = SystemTime::now();
        client.headers_with("PUT", path, SignableBody::Precomputed(signed.to_owned()), &length)
    };
    let said = client.send_with(Method::PUT, path, &headers, zeros.as_bytes()).await;
    assert_eq!(said.code(), "SignatureDoesNotMatch", "{said:?}");
    let headers = client.headers_with("PUT", path, SignableBody::Precomputed(signed.to_owned()), &length);
    let said = client.send_with(Method::PUT, path, &headers, b"zz\r\n").await;
    assert_eq!(said.code(), "InvalidRequest", "{said:?}");
    assert_eq!(client.get(path).await.code(), "NoSuchKey");
    let left = std::fs::read_dir(plane.objects.path().join(".tenure/tmp")).unwrap().count();
    assert_eq!(left, 0, "no file is left behind");
}

async fn paths_lead_nowhere_else(plane: Plane) {
    let client = keys(&plane);
    std::fs::write(plane.objects.path().join("secret"), "secret").unwrap();
    std::fs::create_dir_all(plane.objects.path().join("s")).unwrap();
    std::os::unix::fs::symlink("/etc", plane.objects.path().join("s/etc")).unwrap();
    std::os::unix::fs::symlink(plane.objects.path().join("secret"), plane.objects.path().join("s/link")).unwrap();
    for path in [
        "/tenure/s/%2e%2e/secret",
        "/tenure/s/%2e%2e%2fsecret",
        "/tenure/s/..%2fsecret",
        "/tenure/s//secret",
        "/tenure/s/./x",
        "/tenure/s/a%5c..%5csecret",
        "/tenure/s/x%00",
        "/tenure/s/etc/passwd",
        "/tenure/s/link",
        "/tenure/.tenure/s3.key",
        "/tenure/s/%252e%252e/secret",
    ] {
        let said = client.get(path).await;
        assert!(matches!(said.status, 400 | 403 | 404), "{path}: {said:?}");
        assert!(!said.body.contains("root:") && said.body != "secret", "{path}");
        let said = client.put(&format!("{path}-new"), "x").await;
        assert!(said.status >= 400 || path.ends_with("link"), "{path}: {said:?}");
    }
    let listed = client.get("/tenure?list-type=2&prefix=s/").await;
    assert!(!listed.body.contains("passwd") && !listed.body.contains("<Key>s/link</Key>"), "{}", listed.body);
    assert!(!std::path::Path::new("/etc/passwd-new").exists());
}

async fn connections_that_misbehave_end_by_themselves(plane: Plane) {
    let client = keys(&plane);
    let address = plane.url.strip_prefix("http://").unwrap().to_owned();
    // A head that never ends.
    let mut raw = RawClient::connect(&address).await;
    let endless = format!("GET /tenure/s/x HTTP/1.1\r\nhost: {address}\r\nx-long: {}", "a".repeat(1_000_000));
    // The server may hang up before it has read all of it.
    let _ = raw.send(endless).await;
    let answer = raw.read_for(SOON).await;
    assert!(answer.closed && !answer.text.starts_with("HTTP/1.1 200"), "{answer:?}");
    // A body that ends early.
    let mut headers = client.headers("PUT", "/tenure/s/half", SignableBody::UnsignedPayload);
    headers.push(("content-length".to_owned(), "1000".to_owned()));
    let head: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let mut raw = RawClient::connect(&address).await;
    raw.send(format!("PUT /tenure/s/half HTTP/1.1\r\nhost: {address}\r\n{head}\r\nhalf")).await.unwrap();
    drop(raw);
    assert_eq!(client.get("/tenure/s/half").await.code(), "NoSuchKey");
    let folder = plane.objects.path().join(".tenure/tmp");
    let is_gone = async || std::fs::read_dir(&folder).is_ok_and(|entries| entries.count() == 0);
    wait_until("what was half written is removed", SOON, is_gone).await;
}

async fn in_use(plane: &Plane) -> usize {
    let text = plane.get("/metrics").await.body;
    let line = text.as_str().unwrap().lines().find_map(|line| line.strip_prefix("tenure_request_memory_bytes "));
    line.unwrap().parse().unwrap()
}

async fn bodies_on_their_way_count_in_the_memory_of_requests(_: Plane) {
    let home = Arc::new(Home::Sqlite(tempfile::tempdir().unwrap()));
    let plane = kit::plane_with(home, Arc::default(), |_| {}, |config| config.request_memory_bytes = 18 << 20).await;
    let client = keys(&plane);
    let address = plane.url.strip_prefix("http://").unwrap().to_owned();
    let half_sent = async |start: String| {
        let mut raw = RawClient::connect(&address).await;
        raw.send(format!("{start}host: {address}\r\ncontent-length: 1000\r\n\r\nhalf")).await.unwrap();
        raw
    };
    let put = async |name: usize| {
        let path = format!("/tenure/s/{name}");
        let head = client.headers("PUT", &path, SignableBody::UnsignedPayload);
        let head: String = head.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        half_sent(format!("PUT {path} HTTP/1.1\r\n{head}")).await
    };
    let mut open = Vec::new();
    for count in 1..=9 {
        open.push(put(count).await);
        wait_until("the object counts", SOON, async || in_use(&plane).await == count << 20).await;
    }
    // That is half of all: others have the rest.
    let said = client.put("/tenure/s/more", "x").await;
    assert_eq!((said.status, said.code()), (503, "SlowDown"));
    let other = Holder { org: "other".to_owned(), task: "t".to_owned(), attempt: 1 };
    let scope = Scope { scratch: vec![Prefix::parse("s3://tenure/s/", false).unwrap()], ..Scope::default() };
    let now = jiff_now() / 1_000;
    let issued = plane.keys.issue(other, &scope, now, now + 900).unwrap();
    let (id, secret, token) = (issued.access_key_id, issued.secret_access_key, issued.session_token);
    let other = Client { id, secret, token, ..client.clone() };
    assert_eq!(other.put("/tenure/s/more", "x").await.status, 200);
    drop(open);
    wait_until("all is given back", SOON, async || in_use(&plane).await == 0).await;
    let bundle = half_sent("POST /api/v1/udf/bundles HTTP/1.1\r\n".to_owned()).await;
    wait_until("the bundle counts", SOON, async || in_use(&plane).await == 8 << 20).await;
    drop(bundle);
    wait_until("it is given back", SOON, async || in_use(&plane).await == 0).await;
}

async fn standard_clients_work(plane: Plane) {
    let programs = tokio::task::spawn_blocking(|| python_packages("s3-clients", &CLIENTS)).await.unwrap();
    let claim = claimed(&plane).await;
    let (write, scratch) = (staging(&plane, &claim), scratch(&claim));
    let prefix = |path: &str| Prefix::parse(&format!("s3://tenure/{path}"), false).unwrap();
    std::fs::create_dir_all(plane.objects.path().join("input")).unwrap();
    std::fs::write(plane.objects.path().join("input/input"), "input").unwrap();
    let scope = Scope { read: vec![prefix("input/")], write: vec![prefix(&write)], scratch: vec![prefix(&scratch)] };
    let holder = Holder { org: "o".to_owned(), task: claim.task().to_owned(), attempt: 1 };
    let now = jiff_now() / 1_000;
    let keys = plane.keys.issue(holder, &scope, now, now + 900).unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/dispatch/credentials/clients.py");
    let run = tokio::process::Command::new(programs.join("python"))
        .arg(script)
        .env("AWS_ACCESS_KEY_ID", &keys.access_key_id)
        .env("AWS_SECRET_ACCESS_KEY", &keys.secret_access_key)
        .env("AWS_SESSION_TOKEN", &keys.session_token)
        .env("AWS_DEFAULT_REGION", "us-east-1")
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .env("AWS_CONFIG_FILE", "/dev/null")
        .env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
        .env("S3_ENDPOINT", &plane.url)
        .env("S3_BUCKET", "tenure")
        .env("S3_SCRATCH", &scratch)
        .env("S3_WRITE", &write)
        .env("S3_READ", "input/")
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{out}\n{err}");
    assert_eq!(out.lines().collect::<Vec<_>>(), ["boto3", "aws", "pyarrow"]);
}

async fn sts_makes_keys_by_the_session_policy(_: Plane) {
    let moto = Moto::start().await;
    let role = "arn:aws:iam::123456789012:role/tenure-tasks";
    let config = StsConfig {
        role_arn: role.to_owned(),
        endpoint_url: Some(moto.url()),
        region: Some("eu-central-1".to_owned()),
    };
    let sts = Sts::with_credentials(config, Credentials::new("id", "secret", None, None, "test")).await.unwrap();
    let long = format!("s3://tenure/{{task_id}}/{}/", "x".repeat(900));
    let templates: Vec<WriteTemplate> =
        (0..3).map(|n| WriteTemplate::parse(&format!("{long}{n}/"), false).unwrap()).collect();
    let home = Arc::new(Home::Sqlite(tempfile::tempdir().unwrap()));
    let plane = kit::plane_on(home, Arc::default(), |dispatch| {
        dispatch.write_prefixes = templates;
        let broker = dispatch.credentials.as_mut().unwrap();
        broker.backend = CredentialBackend::Sts(sts);
        (broker.endpoint_url, broker.at_host) = (Some("https://s3.example".to_owned()), None);
    })
    .await;
    let claim = claimed(&plane).await;
    let refused = ask(&plane, &claim, json!({})).await.refused(422);
    assert_eq!(refused["error"], "scope_too_large");
    let (write, scratch) = (staging(&plane, &claim), scratch(&claim));
    let want = json!({"write": [format!("s3://tenure/{write}")], "scratch": [format!("s3://tenure/{scratch}")]});
    let answer = ask(&plane, &claim, json!({"want": want})).await.ok();
    assert!(answer["access_key_id"].as_str().unwrap().starts_with("ASIA"), "{answer}");
    assert_eq!(answer["endpoint_url"], "https://s3.example");
    let expires_at = Timestamp::parse(answer["expires_at"].as_str().unwrap()).unwrap();
    let left = expires_at.since(Timestamp::from_millis(jiff_now()));
    assert!((800_000..=905_000).contains(&left), "{answer}");
    // What STS was told, as the server has it.
    let told: Value = reqwest::get(format!("{}/moto-api/data.json", moto.url())).await.unwrap().json().await.unwrap();
    let roles = told["sts"]["AssumedRole"].as_array().unwrap();
    assert_eq!(roles.len(), 1, "{roles:?}");
    let policy: Value = serde_json::from_str(roles[0]["policy"].as_str().unwrap()).unwrap();
    let objects = |path: &str| json!([format!("arn:aws:s3:::tenure/{path}*")]);
    assert_eq!(
        policy,
        json!({"Version": "2012-10-17", "Statement": [
            {"Effect": "Allow", "Action": "s3:PutObject", "Resource": objects(&write)},
            {"Effect": "Allow", "Action": ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"], "Resource": objects(&scratch)},
            {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": "arn:aws:s3:::tenure",
             "Condition": {"StringLike": {"s3:prefix": [format!("{write}*"), format!("{scratch}*")]}}},
        ]})
    );
    let session = roles[0]["session_name"].as_str().unwrap();
    assert_eq!(session, format!("tenure-{}-1", claim.task()));
    let rows = plane.engine.identity().credential_grants(TaskId::parse(claim.task()).unwrap(), 10).await.unwrap();
    assert_eq!((rows.len(), rows[0].grant.backend.as_str()), (1, "sts"));
}
