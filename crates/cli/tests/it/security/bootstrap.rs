//! A worker that holds nothing but its bootstrap key.

use serde_json::json;
use tenure_testkit::{Child, wait_until};

use crate::security::kit::{ADMIN_KEY, API_KEY, Caller, Desk, PATIENCE, code};

const KEY: &str = "bootstrap-key-of-worker-one-0123456789";

/// Tokens that were issued for bootstrap keys.
const ISSUED: &str = r#"tenure_http_requests_total{route="/api/v1/worker/{id}/token",status="200"}"#;

#[tokio::test]
async fn a_worker_runs_tasks_over_many_tokens_and_its_key_is_good_for_nothing_else() {
    let desk = Desk::new();
    desk.ok(&["worker", "token", "keygen", "--private-key-file", "workers.pem"]).await;
    let key_file = desk.file("boot", &format!("{KEY}\n"));
    let yaml = format!(
        "auth:
  enabled: true
  api_key: {API_KEY}
  admin_api_key: {ADMIN_KEY}
  worker_private_key_file: workers.pem
  worker_bootstrap_keys: {{w-1: {KEY}}}
"
    );
    let server = desk.serve(&yaml).await;
    let (user, admin) = (Caller::new(server.url()).user(), Caller::new(server.url()).admin());

    let flags = ["worker", "--server", server.url(), "--bootstrap-key-file", &key_file, "--queue", "q"];
    let own = [&flags[..], &["--name", "w-1", "--bootstrap-token-ttl", "2s"]].concat();
    let mut worker = Child::spawn(desk.command(&own));
    let mut ran = 0;
    wait_until("tasks ran under each of several tokens", PATIENCE, async || {
        let task = user.submit("echo", &json!({"n": ran})).await;
        user.until(&task, "Succeeded").await;
        ran += 1;
        ran >= 4 && admin.counter(ISSUED).await >= 4
    })
    .await;
    assert_eq!(worker.terminate().await.code(), Some(0));
    let output = worker.output();
    assert!(!output.stderr.contains(KEY) && !output.stderr.contains("tenure-worker-v1."), "{}", output.stderr);

    let other = desk.run(&[&flags[..], &["--name", "w-2"]].concat()).await;
    assert_eq!(code(&other), 4, "{other:?}");
    assert!(other.stderr.contains("bootstrap key") && !other.stderr.contains(KEY), "{}", other.stderr);

    // Neither as a worker token nor as a key of users, and only for its own id.
    let bare = Caller::new(server.url());
    assert_eq!(bare.worker("w-1", KEY).claim("w-1").await.status, 401);
    assert_eq!(bare.header("X-API-Key", KEY).get("/api/v1/tasks").await.status, 401);
    let boot = bare.header("X-Worker-Bootstrap-Key", KEY);
    assert_eq!(boot.post("/api/v1/worker/w-2/token", &json!({})).await.status, 401);
    assert_eq!(boot.post("/api/v1/admin/worker-tokens", &json!({"worker_id": "w-1"})).await.status, 401);
    let token = boot.post("/api/v1/worker/w-1/token", &json!({})).await.json()["token"].as_str().unwrap().to_owned();
    assert_eq!(bare.worker("w-1", &token).claim("w-1").await.status, 200);
    assert_eq!(bare.worker("w-2", &token).claim("w-2").await.status, 401);
    let named_other = bare.worker("w-1", &token).claim("w-2").await;
    assert!(named_other.status >= 400, "{named_other:?}");
}

const ISSUED_TO_ADMINS: &str = r#"tenure_http_requests_total{route="/api/v1/admin/worker-tokens",status="200"}"#;

#[tokio::test]
async fn in_the_profile_stacyvm_a_worker_gets_its_tokens_with_a_key_of_an_admin() {
    let desk = Desk::new();
    let key_file = desk.file("admin", &format!("{ADMIN_KEY}\n"));
    let yaml = format!(
        "auth:
  api_key: {API_KEY}
  admin_api_key: {ADMIN_KEY}
  worker_signing_key: signing-key-of-the-tests-with-32-bytes
"
    );
    let server = desk.serve(&yaml).await;
    let (user, admin) = (Caller::new(server.url()).user(), Caller::new(server.url()).admin());
    let flags = ["worker", "--server", server.url(), "--queue", "q", "--name", "w-1"];
    let with_file = [&flags[..], &["--bootstrap-admin-key-file", &key_file, "--bootstrap-token-ttl", "2s"]].concat();
    let mut command = desk.command(&with_file);
    command.env("TENURE_COMPAT", "stacyvm");
    let mut worker = Child::spawn(command);
    let mut ran = 0;
    wait_until("tasks ran under each of several tokens", PATIENCE, async || {
        let task = user.submit("echo", &json!({"n": ran})).await;
        user.until(&task, "Succeeded").await;
        ran += 1;
        ran >= 2 && admin.counter(ISSUED_TO_ADMINS).await >= 2
    })
    .await;
    assert_eq!(worker.terminate().await.code(), Some(0));
    assert!(!worker.output().stderr.contains(ADMIN_KEY));

    // Elsewhere no worker should hold a key that can do everything.
    let outside = desk.run(&with_file).await;
    assert_eq!(code(&outside), 2, "{outside:?}");
    assert!(outside.stderr.contains("profile `stacyvm` only") && outside.stderr.contains("--bootstrap-key-file"));
    // A key of a user is refused.
    let mut command = desk.command(&[&flags[..], &["--bootstrap-admin-key", API_KEY]].concat());
    command.env("TENURE_COMPAT", "stacyvm");
    let mut refused = Child::spawn(command);
    assert_eq!(refused.wait(PATIENCE).await.code(), Some(4));
    let stderr = refused.output().stderr;
    assert!(stderr.contains("does not accept this key as one of an admin") && !stderr.contains(API_KEY), "{stderr}");
}
