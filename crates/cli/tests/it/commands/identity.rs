//! `tenure login`, `api-key`, `tenant`, `audit` and workers with bootstrap keys, against a server that asks for keys.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tenure_testkit::{Child, Output, Tenure, wait_until};

use crate::commands::kit::{Home, SOON, code, finish};

const ADMIN: &str = "admin-key-of-the-tests-with-32-bytes-or-more";
const USER: &str = "user-key-of-the-tests-with-32-bytes-or-more";
const WORKER: &str = "worker-token-of-the-tests-with-32-bytes";
const SIGNING: &str = "signing-key-of-the-tests-with-32-bytes";
const BOOTSTRAP: &str = "bootstrap-key-of-w1-with-32-bytes-or-more";

/// A server that asks for keys, and a home that is logged in as its admin.
struct Guarded {
    server: Tenure,
    home: Home,
}

impl Guarded {
    async fn new() -> Self {
        let keys = format!(r#"{{"w1":"{BOOTSTRAP}"}}"#);
        let server = Tenure::serve_with(&[], |command| {
            command
                .env("TENURE_AUTH__ENABLED", "true")
                .env("TENURE_AUTH__API_KEY", USER)
                .env("TENURE_AUTH__ADMIN_API_KEY", ADMIN)
                .env("TENURE_AUTH__WORKER_TOKEN", WORKER)
                .env("TENURE_AUTH__WORKER_SIGNING_KEY", SIGNING)
                .env("TENURE_AUTH__WORKER_BOOTSTRAP_KEYS", keys);
        })
        .await;
        let guarded = Self { server, home: Home::new() };
        let admin = guarded.file("admin.key", ADMIN);
        let mut login = guarded.command(&["login"]);
        login.stdin(Stdio::from(std::fs::File::open(admin).unwrap()));
        let login = finish(login).await;
        assert_eq!(code(&login), 0, "{login:?}");
        assert!(login.stdout.contains("admin") && !login.stdout.contains(ADMIN), "{}", login.stdout);
        guarded
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.home.path().join(name);
        std::fs::write(&path, format!("{text}\n")).unwrap();
        path
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.home.command(args);
        command.env("TENURE_SERVER", self.server.url());
        command
    }

    async fn run(&self, args: &[&str]) -> Output {
        finish(self.command(args)).await
    }

    /// As somebody else: with the key in this file.
    async fn run_as(&self, key_file: &str, args: &[&str]) -> Output {
        let mut command = self.command(args);
        command.env("TENURE_API_KEY_FILE", self.home.path().join(key_file));
        finish(command).await
    }

    async fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args).await;
        assert_eq!(code(&output), 0, "{args:?}: {output:?}");
        output.stdout
    }

    async fn json(&self, args: &[&str]) -> Value {
        parse(&self.ok(&[args, &["--json"]].concat()).await)
    }

    /// Makes a key, leaves it in a file of the same name, and returns its id.
    async fn key(&self, name: &str, flags: &[&str]) -> String {
        let file = format!("{name}.key");
        let create = ["api-key", "create", "--name", name, "--out", &file];
        self.ok(&[&create[..], flags].concat()).await.trim().to_owned()
    }
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn refused(output: &Output) {
    assert_eq!(code(output), 4, "{output:?}");
}

#[tokio::test]
async fn keys_are_made_used_listed_and_revoked() {
    let site = Guarded::new().await;
    let id = site.key("ci", &["--role", "viewer", "--tenant", "acme", "--expires-in", "720h"]).await;
    let me = site.run_as("ci.key", &["whoami", "--json"]).await;
    let me = parse(&me.stdout);
    assert_eq!((&me["role"], &me["tenant"]), (&json!("viewer"), &json!("acme")));
    assert_eq!(code(&site.run_as("ci.key", &["task", "list"]).await), 0);
    let submit = site.run_as("ci.key", &["task", "submit", "q", "echo"]).await;
    refused(&submit);
    assert!(submit.stderr.contains("403") && submit.stderr.contains("tenure whoami"), "{}", submit.stderr);
    refused(&site.run_as("ci.key", &["api-key", "list"]).await);

    let shown = site.json(&["api-key", "show", &id]).await;
    assert_eq!((&shown["name"], &shown["role"]), (&json!("ci"), &json!("viewer")));
    assert!(shown["expires_at"].is_string() && shown.get("key").is_none(), "{shown}");
    assert!(site.ok(&["api-key", "list"]).await.contains(&id));
    assert!(site.ok(&["api-key", "revoke", &id]).await.contains("revoked"));
    let gone = site.run_as("ci.key", &["whoami"]).await;
    refused(&gone);
    assert!(gone.stderr.contains("401"), "{}", gone.stderr);
    assert!(site.json(&["api-key", "show", &id]).await["revoked_at"].is_string());
    assert_eq!(code(&site.run(&["api-key", "show", "0000000000000000"]).await), 3);
}

#[tokio::test]
async fn nobody_hands_out_more_than_it_has() {
    let site = Guarded::new().await;
    site.key("lead", &["--role", "tenant_admin", "--tenant", "acme"]).await;
    let more = site.run_as("lead.key", &["api-key", "create", "--name", "x", "--role", "admin"]).await;
    refused(&more);
    let elsewhere = site.run_as("lead.key", &["api-key", "create", "--name", "x", "--tenant", "other"]).await;
    refused(&elsewhere);
    let own = site.run_as("lead.key", &["api-key", "create", "--name", "x", "--role", "api"]).await;
    assert_eq!(code(&own), 0, "{own:?}");
    assert_eq!(own.stdout.lines().count(), 1, "the key and nothing else: {}", own.stdout);
    assert!(!own.stderr.contains(own.stdout.trim()));
}

#[tokio::test]
async fn a_key_of_an_owner_sees_that_owner_only() {
    let site = Guarded::new().await;
    site.key("ann", &["--owner", "ann"]).await;
    site.key("bob", &["--owner", "bob"]).await;
    let task = site.run_as("ann.key", &["task", "submit", "q", "echo", "--json"]).await;
    assert_eq!(code(&task), 0, "{task:?}");
    let task = parse(&task.stdout)["task_id"].as_str().unwrap().to_owned();
    assert_eq!(code(&site.run_as("ann.key", &["task", "show", &task]).await), 0);
    assert_eq!(code(&site.run_as("bob.key", &["task", "show", &task]).await), 3, "what is not there is not refused");
    refused(&site.run_as("ann.key", &["task", "list", "--user-id", "bob"]).await);
    refused(&site.run_as("ann.key", &["task", "list", "--tenant-id", "other"]).await);
    // A key that is bound to nobody narrows itself.
    assert_eq!(code(&site.run(&["task", "show", &task, "--user-id", "bob"]).await), 3);
    assert_eq!(code(&site.run(&["task", "show", &task, "--user-id", "ann"]).await), 0);
}

#[tokio::test]
async fn tenants_have_limits() {
    let site = Guarded::new().await;
    assert_eq!(site.ok(&["tenant", "list"]).await, "No tenant has its own limits.\n");
    let set = site.json(&["tenant", "set", "acme", "--max-ready", "1", "--submits-per-second", "0"]).await;
    assert_eq!(set["tenant"]["limits"], json!({"max_ready": 1, "submits_per_second": 0.0}));
    let submit = ["task", "submit", "q", "echo", "--tenant", "acme"];
    assert_eq!(code(&site.run(&submit).await), 0);
    let full = site.run(&submit).await;
    assert_eq!(code(&full), 5, "{full:?}");
    assert!(full.stderr.contains("429"), "{}", full.stderr);
    let shown = site.json(&["tenant", "show", "acme"]).await;
    assert_eq!(shown["tenant"]["usage"]["ready"], 1);
    assert!(site.ok(&["tenant", "show", "acme"]).await.contains("1, limit 1"));
    assert!(site.ok(&["tenant", "list"]).await.contains("acme"));
    site.ok(&["tenant", "unset", "acme"]).await;
    assert_eq!(code(&site.run(&submit).await), 0);
    site.key("user", &["--tenant", "acme"]).await;
    refused(&site.run_as("user.key", &["tenant", "list"]).await);
}

#[tokio::test]
async fn what_was_done_can_be_looked_up() {
    let site = Guarded::new().await;
    site.key("ci", &["--role", "viewer"]).await;
    refused(&site.run_as("ci.key", &["api-key", "list"]).await);
    site.ok(&["task", "submit", "q", "echo"]).await;
    site.ok(&["queue", "pause", "q"]).await;

    let rows = site.json(&["audit", "--path", "/api/v1/admin/api-keys"]).await["items"].clone();
    let seen: Vec<_> =
        rows.as_array().unwrap().iter().map(|row| (row["method"].clone(), row["status"].clone())).collect();
    assert!(seen.contains(&(json!("POST"), json!(201))) && seen.contains(&(json!("GET"), json!(403))), "{rows}");
    let denied = site.json(&["audit", "--status", "403"]).await["items"].clone();
    assert!(denied.as_array().unwrap().iter().all(|row| row["status"] == 403), "{denied}");
    let csv = site.ok(&["audit", "--csv", "--method", "POST"]).await;
    let (names, first) = (csv.lines().next().unwrap(), csv.lines().nth(1).unwrap());
    assert!(names.contains("actor") && names.contains("path") && first.contains("/api/v1/admin/api-keys"), "{csv}");
    assert_eq!(site.ok(&["audit", "--all", "--csv"]).await.matches("request_id").count(), 1, "one line of names");
    assert!(site.ok(&["audit", "--limit", "1"]).await.starts_with("WHEN"));

    let operations = site.json(&["audit", "--operations"]).await["items"].clone();
    assert_eq!(operations[0]["action"], "queue.pause", "{operations}");
    let filtered = site.json(&["audit", "--operations", "--action", "queue.pause"]).await["items"].clone();
    assert_eq!(filtered.as_array().unwrap().len(), 1);
    assert_eq!(site.ok(&["audit", "--operations", "--action", "nothing"]).await, "No entries.\n");
    refused(&site.run_as("ci.key", &["audit"]).await);
    for secret in [ADMIN, USER, WORKER] {
        assert!(!csv.contains(secret) && !operations.to_string().contains(secret));
    }
}

#[tokio::test]
async fn a_worker_gets_its_tokens_for_its_bootstrap_key() {
    let site = Guarded::new().await;
    site.file("boot", BOOTSTRAP);
    let start = |id: &str| {
        let args =
            ["worker", "--id", id, "--bootstrap-key-file", "boot", "--bootstrap-token-ttl", "3s", "--queue", "q"];
        Child::spawn(site.command(&args))
    };
    let mut stranger = start("w2");
    assert_eq!(stranger.wait(SOON).await.code(), Some(4));
    let mut worker = start("w1");
    worker.wait_for_stderr("worker started", SOON).await;
    // Longer than a token lasts, and than the lease: that is kept with later ones.
    let payload = r#"{"ms": 11000}"#;
    let submit =
        ["task", "submit", "q", "sleep", "--payload", payload, "--lease-ttl", "9s", "--max-attempts", "1", "--wait"];
    assert_eq!(code(&site.run(&submit).await), 0);
    let said = worker.output().stderr;
    assert!(!said.contains(BOOTSTRAP) && !said.contains("-worker-v1."), "{said}");
}

#[tokio::test]
async fn a_worker_token_is_no_key_of_a_user() {
    let site = Guarded::new().await;
    site.file("worker.key", WORKER);
    refused(&site.run_as("worker.key", &["whoami"]).await);
    let file = site.file("user.key", USER);
    let output = site.run(&["worker", "--token-file", file.to_str().unwrap()]).await;
    refused(&output);
}

#[tokio::test]
async fn a_revoked_worker_token_is_refused() {
    let site = Guarded::new().await;
    site.file("sign", SIGNING);
    let mint = ["worker", "token", "w9", "--signing-key-file", "sign", "--format", "json"];
    let minted = parse(&site.ok(&mint).await);
    site.file("token", minted["token"].as_str().unwrap());
    let id = minted["token_id"].as_str().unwrap();
    let worker = ["worker", "--id", "w9", "--token-file", "token", "--until-eof"];
    assert_eq!(code(&site.run(&worker).await), 0);
    assert!(site.ok(&["worker", "token", "revoke", id]).await.contains("is revoked"));
    assert_eq!(site.json(&["worker", "token", "revoked"]).await, json!({"items": [id]}));
    let mut worker = Child::spawn(site.command(&worker[..5]));
    assert_eq!(worker.wait(SOON).await.code(), Some(4));
    site.file("user.key", USER);
    refused(&site.run_as("user.key", &["worker", "token", "revoke", id]).await);
}

#[tokio::test]
async fn a_key_ends_when_its_time_is_over() {
    let site = Guarded::new().await;
    site.key("brief", &["--expires-in", "2s"]).await;
    wait_until("the key expires", SOON, async || code(&site.run_as("brief.key", &["whoami"]).await) == 4).await;
    assert!(site.ok(&["api-key", "list"]).await.contains("expired"));
}
