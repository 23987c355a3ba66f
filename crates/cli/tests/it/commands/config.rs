//! `tenure config`

use std::path::Path;

use serde_json::Value;
use tenure_testkit::Output;

use crate::commands::kit::{Home, code, finish};

const LONG: &str = "0123456789abcdef0123456789abcdef";

fn write(home: &Home, text: &str) {
    std::fs::write(home.path().join("tenure.yaml"), text).unwrap();
}

/// The lines of one check, each with what to do below it.
fn lines<'a>(output: &'a Output, check: &str) -> Vec<&'a str> {
    let is_of_check =
        |line: &&str| line.split_once("] ").is_some_and(|(_, rest)| rest.starts_with(&format!("{check}: ")));
    output.stdout.lines().filter(is_of_check).collect()
}

async fn lint(home: &Home, text: &str, production: bool) -> Output {
    write(home, text);
    let args = if production { &["config", "lint", "--production"][..] } else { &["config", "lint"][..] };
    home.run(args).await
}

/// A configuration without anything to fail in production.
fn sound(home: &Home) -> String {
    for (name, secret) in [("user", "u"), ("admin", "a"), ("signing", "s")] {
        std::fs::write(home.path().join(name), format!("{secret}{LONG}\n")).unwrap();
    }
    "auth:
  enabled: true
  api_key_file: user
  admin_api_key_file: admin
  admin_audit_retention: 2160h
  worker_signing_key_file: signing
rate_limit: {enabled: true}
database: {path: /var/lib/tenure/tenure.db}
defaults: {default_exec_timeout: 10m, max_sandboxes: 100, max_sandboxes_per_owner: 10}
"
    .to_owned()
}

#[tokio::test]
async fn lint_ends_with_what_it_found() {
    let home = Home::new();
    let fine = lint(&home, &sound(&home), true).await;
    assert_eq!(code(&fine), 0, "{fine:?}");
    assert_eq!(fine.stderr, "");
    assert!(fine.stdout.starts_with("[PASS] config: tenure.yaml loads\n"), "{}", fine.stdout);
    assert!(fine.stdout.contains("\n[WARN] worker.rpc_tls.enabled: "), "{}", fine.stdout);

    // What fails in production is a warning elsewhere.
    let failing = sound(&home).replace("rate_limit: {enabled: true}", "rate_limit: {enabled: false, burst: 0}");
    let production = lint(&home, &failing, true).await;
    assert_eq!(code(&production), 1);
    assert_eq!(production.stderr, "config lint found 2 failing check(s)\n");
    let expected = "[FAIL] rate_limit.enabled: callers have no rate limit\n      fix: set rate_limit.enabled: true\n\
                    [FAIL] rate_limit.capacity: ";
    assert!(production.stdout.contains(expected), "{}", production.stdout);
    let summary = "\n  FAIL  rate_limit.enabled\n  FAIL  rate_limit.capacity: change rate_limit.requests_per_minute, \
                   rate_limit.burst\n";
    assert!(production.stdout.contains("\n\nSummary: 2 failed, "), "{}", production.stdout);
    assert!(production.stdout.contains(summary), "{}", production.stdout);
    let elsewhere = lint(&home, &failing, false).await;
    assert_eq!((code(&elsewhere), elsewhere.stderr.as_str()), (0, ""));
    assert!(elsewhere.stdout.contains("[WARN] rate_limit.enabled: "), "{}", elsewhere.stdout);

    for text in ["auth: {enabled: maybe}\n", "auth: {\n", "auth: {api_key_file: nowhere}\n", "sevrer: {}\n"] {
        let broken = lint(&home, text, true).await;
        assert_eq!((code(&broken), broken.stdout.as_str()), (2, ""), "{broken:?}");
        assert!(broken.stderr.contains("tenure.yaml line 1: "), "{}", broken.stderr);
    }
}

#[tokio::test]
async fn lint_looks_at_the_file_that_is_named() {
    let home = Home::new();
    write(&home, "sevrer: {}\n");
    std::fs::write(home.path().join("other.yaml"), "logging: {format: pretty}\n").unwrap();
    for flag in ["--file", "--config"] {
        let output = home.run(&["config", "lint", flag, "other.yaml"]).await;
        assert_eq!(code(&output), 0, "{output:?}");
        assert!(output.stdout.starts_with("[PASS] config: other.yaml loads\n"), "{}", output.stdout);
        assert!(output.stdout.contains("[WARN] logging.format: is not json"), "{}", output.stdout);
    }
    let missing = home.run(&["config", "lint", "--file", "nowhere.yaml"]).await;
    assert_eq!(code(&missing), 2, "{missing:?}");
}

/// A check, a configuration that it reports, and whether that fails in production.
const RULES: [(&str, &str, bool); 46] = [
    ("auth.enabled", "", true),
    ("auth.api_key", "", true),
    ("auth.api_key", "auth: {api_key: short}", true),
    ("auth.admin_api_key", "auth: {admin_api_key: change-me-0123456789abcdef0123456789}", true),
    ("auth.admin_api_key", "auth: {admin_api_key: REPLACE-ME-0123456789abcdef0123456789}", true),
    ("auth.key_separation", "auth: {api_key: same, admin_api_key: same}", true),
    ("auth.admin_fallback_enabled", "auth: {admin_fallback_enabled: true}", true),
    ("auth.admin_audit_retention", "", true),
    ("auth.worker_signing_key", "auth: {worker_signing_key: short}", true),
    ("auth.worker_signing_key", "auth: {worker_signing_keys: [former]}", true),
    ("auth.legacy_worker_tokens", "auth: {legacy_worker_tokens: true}", true),
    ("auth.worker_bootstrap_keys", "auth: {worker_bootstrap_keys: {w: short}}", true),
    ("auth.worker_bootstrap_keys", "auth: {worker_bootstrap_keys: {w: 0123456789abcdef0123456789abcdef}}", false),
    ("auth.worker_signing_key_file", "auth: {worker_signing_key: k}", false),
    ("auth.worker_token_file", "auth: {worker_token: t}", false),
    ("auth.worker_signing_keys", "auth: {worker_signing_key: k, worker_signing_keys: [k]}", false),
    ("auth.worker_signing_keys", "auth: {worker_signing_key: k, worker_signing_keys: [a, a]}", false),
    ("auth.worker_revoked_token_ids", "auth: {worker_revoked_token_ids: [i]}", false),
    ("auth.worker_token", "auth: {worker_signing_key: k, worker_token: t}", false),
    ("auth.worker_tokens", "auth: {worker_signing_key: k, worker_tokens: {w: t}}", false),
    ("auth.worker_tokens", "auth: {worker_token: t}", false),
    ("auth.worker_tokens", "", false),
    ("auth.oidc_issuer", "auth: {oidc_enabled: true}", true),
    ("auth.oidc_jwks_url", "auth: {oidc_enabled: true}", true),
    ("auth.oidc_public_key_file", "auth: {oidc_enabled: true, oidc_public_key: k}", false),
    ("auth.oidc_audience", "auth: {oidc_enabled: true}", false),
    ("auth.oidc_groups", "auth: {oidc_enabled: true}", false),
    ("server.cors_allowed_origins", "server: {cors_allowed_origins: ['https://a', '*']}", true),
    ("rate_limit.enabled", "", true),
    ("rate_limit.capacity", "rate_limit: {requests_per_minute: 0}", true),
    ("logging.format", "logging: {format: pretty}", true),
    ("server.tls", "server: {host: 0.0.0.0}", false),
    ("rate_limit.key_by", "rate_limit: {key_by: ip}", false),
    ("database.path", "", true),
    ("defaults.sandbox_caps", "defaults: {max_sandboxes: 1}", true),
    ("defaults.max_spawn_queue", "defaults: {max_spawn_queue: 0}", true),
    ("defaults.exec_timeouts", "", true),
    ("defaults.max_ttl", "defaults: {max_ttl: 0}", true),
    ("database.driver", "server: {host: 0.0.0.0}", false),
    ("worker.rpc_tls.server_cert", "worker: {rpc_tls: {enabled: true}}", true),
    ("worker.rpc_tls.insecure_skip_verify", "worker: {rpc_tls: {insecure_skip_verify: true}}", true),
    ("worker.rpc_tls.enabled", "", false),
    ("worker.rpc_tls.bind_worker_id", "worker: {rpc_tls: {enabled: true}}", false),
    ("worker.local", "worker: {local: true}\ndatabase: {driver: postgres, dsn: 'postgres://h/d'}", false),
    ("server.preview_auth", "server: {preview_auth: none}", true),
    ("compat", "compat: stacyvm", false),
];

fn is_key(name: &str) -> bool {
    tenure_config::keys().any(|key| key.path == name)
}

#[tokio::test]
async fn each_rule_is_reported_in_both_modes() {
    let home = Home::new();
    for (check, text, fails) in RULES {
        for production in [false, true] {
            let output = lint(&home, text, production).await;
            let level = if production && fails { "[FAIL]" } else { "[WARN]" };
            let found = lines(&output, check);
            assert!(found.iter().any(|line| line.starts_with(level)), "{check}: {text}: {found:?}");
            let fixes = output.stdout.matches("\n      fix: ").count();
            let reports =
                output.stdout.lines().filter(|line| !line.starts_with("[PASS]") && line.starts_with('[')).count();
            assert_eq!(fixes, reports, "{}", output.stdout);
            // Each finding is named again at the end, with keys that exist.
            let summary = output.stdout.split("\n\nSummary: ").nth(1).unwrap_or_else(|| panic!("{}", output.stdout));
            assert_eq!(summary.lines().count(), reports + 1, "{summary}");
            for line in summary.lines().skip(1) {
                let (name, keys) =
                    line.trim_start()[4..].trim().split_once(": change ").unwrap_or((line[6..].trim(), ""));
                let is_named = if keys.is_empty() { is_key(name) } else { keys.split(", ").all(is_key) };
                assert!(is_named || name == "compat", "{check}: {line}");
            }
            let failing = output.stdout.matches("[FAIL]").count();
            assert_eq!(code(&output), i32::from(failing > 0), "{output:?}");
        }
    }
    let both = "auth: {worker_signing_key: k, worker_token: t, worker_signing_keys: [k]}";
    let output = lint(&home, both, true).await;
    for line in [
        "[WARN] auth.worker_signing_keys: rotation keys include the active worker signing key",
        "[WARN] auth.worker_token: shared worker token still configured with signed worker tokens",
        "[PASS] auth.oidc_enabled: disabled",
    ] {
        assert!(output.stdout.lines().any(|found| found == line), "{line}\n{}", output.stdout);
    }
}

#[tokio::test]
async fn show_says_what_holds_and_where_it_was_set() {
    let home = Home::new();
    write(&home, "retention:\n  finished: 36h\ndatabase: {driver: postgres, dsn: 'postgres://u:hunter2@h/d'}\n");
    let mut command = home.command(&["config", "show"]);
    command.env("TENURE_SERVER__PORT", "9000").env("TENURE_AUTH__WORKER_TOKENS", r#"{"w-1":"hunter2"}"#);
    let output = finish(command).await;
    assert_eq!(code(&output), 0, "{output:?}");
    let row = |key: &str| {
        let line = output.stdout.lines().find(|line| line.split_whitespace().next() == Some(key));
        line.unwrap_or_else(|| panic!("no {key} in {}", output.stdout))
            .split_whitespace()
            .skip(1)
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(row("retention.finished"), "36h0m0s tenure.yaml line 2");
    assert_eq!(row("retention.dead_letters"), "720h0m0s default");
    assert_eq!(row("server.port"), "9000 the variable TENURE_SERVER__PORT");
    assert_eq!(row("auth.worker_tokens"), "w-1=*** the variable TENURE_AUTH__WORKER_TOKENS");
    assert_eq!(row("database.dsn"), "postgres://u:***@h/d tenure.yaml line 3");
    assert!(!output.stdout.contains("hunter2"), "{}", output.stdout);

    let output = home.run(&["config", "show", "--json", "--store", "sqlite:/x.db"]).await;
    let shown: Vec<Value> = serde_json::from_str(&output.stdout).unwrap();
    let find = |key: &str| shown.iter().find(|shown| shown["key"] == key).unwrap_or_else(|| panic!("no {key}"));
    assert_eq!(find("server.port")["value"], 7423);
    assert_eq!(find("database.path")["value"], "/x.db");
    assert_eq!(find("database.path")["origin"], "--store or TENURE_STORE");
    assert_eq!(find("database.driver")["value"], "sqlite");
    assert!(find("database.dsn").get("value").is_none());
}

/// A variable for each key that holds a secret, found by what `config show` masks or by its name.
fn canaries() -> [(&'static str, &'static str); 11] {
    [
        ("TENURE_AUTH__API_KEY", "hunter2-user"),
        ("TENURE_AUTH__ADMIN_API_KEY", "hunter2-admin"),
        ("TENURE_AUTH__WORKER_TOKEN", "hunter2"),
        ("TENURE_AUTH__WORKER_TOKEN_PREVIOUS", "hunter2"),
        ("TENURE_AUTH__WORKER_TOKENS", r#"{"w-1":"hunter2"}"#),
        ("TENURE_AUTH__WORKER_SIGNING_KEY", "hunter2"),
        ("TENURE_AUTH__WORKER_SIGNING_KEYS", "hunter2,hunter2"),
        ("TENURE_AUTH__WORKER_BOOTSTRAP_KEYS", r#"{"w-1":"hunter2"}"#),
        ("TENURE_CALLBACK__SHARED_SECRET", "hunter2"),
        ("TENURE_DATABASE__DRIVER", "postgres"),
        ("TENURE_DATABASE__DSN", "postgres://u:hunter2@h/d?password=hunter2"),
    ]
}

#[tokio::test]
async fn no_command_prints_a_secret() {
    let home = Home::new();
    let commands: [&[&str]; 4] =
        [&["config", "show"], &["config", "show", "--json"], &["config", "lint"], &["config", "lint", "--production"]];
    for args in commands {
        let mut command = home.command(args);
        command.envs(canaries());
        let output = finish(command).await;
        assert!(code(&output) <= 1, "{output:?}");
        assert!(!format!("{output:?}").contains("hunter2"), "{output:?}");
    }
    // The same from files, and the same when something is wrong.
    let secret = home.path().join("secret");
    std::fs::write(&secret, "hunter2\n").unwrap();
    let files = canaries().into_iter().filter(|(_, value)| value.starts_with("hunter2") && !value.contains(','));
    let files = files.map(|(name, _)| (format!("{name}_FILE"), 1));
    // What is no key of the right kind does not load.
    for (name, at_most) in files.chain([("TENURE_AUTH__WORKER_PRIVATE_KEY_FILE".to_owned(), 2)]) {
        for args in commands {
            let mut command = home.command(args);
            command.env(&name, &secret);
            let output = finish(command).await;
            assert!(code(&output) <= at_most, "{output:?}");
            assert!(!format!("{output:?}").contains("hunter2"), "{output:?}");
        }
    }
    for text in [
        "auth: {api_key: hunter2, worker_token: hunter2}\n",
        "auth: {api_key: [hunter2]}\n",
        "auth: {worker_tokens: hunter2}\n",
        "auth: {api_key: hunter2, api_key: hunter2}\n",
        "auth:\n  api_key: \"hunter2\n",
        "database: {dsn: 'postgres://u:hunter2@h/d'}\n",
        "auth: {worker_bootstrap_keys: {w: 'sha256:hunter2'}}\n",
    ] {
        write(&home, text);
        for args in commands {
            let output = home.run(args).await;
            assert_eq!(code(&output), 2, "{text}: {output:?}");
            assert!(!format!("{output:?}").contains("hunter2"), "{output:?}");
        }
    }
}

#[tokio::test]
async fn unknown_keys_are_named_with_the_one_that_was_meant() {
    let home = Home::new();
    write(&home, "worker:\n  rpc_tls:\n    server_cert: x\n");
    let output = home.run(&["config", "show"]).await;
    assert_eq!(code(&output), 2);
    let expected = "tenure.yaml line 3: unknown key `worker.rpc_tls.server_cert`; did you mean";
    assert!(output.stderr.contains(expected), "{}", output.stderr);
    write(&home, "");
    let mut command = home.command(&["config", "lint"]);
    command.env("TENURE_RATE_LIMIT__BRUST", "1");
    let output = finish(command).await;
    assert_eq!(code(&output), 2);
    let expected = "TENURE_RATE_LIMIT__BRUST: unknown key `rate_limit.brust`; did you mean `rate_limit.burst`?";
    assert!(output.stderr.contains(expected), "{}", output.stderr);
}

#[tokio::test]
async fn the_example_is_a_configuration_that_changes_nothing() {
    let home = Home::new();
    let before = home.run(&["config", "show", "--json"]).await;
    let example = home.run(&["config", "example"]).await;
    assert_eq!(code(&example), 0, "{example:?}");
    write(&home, &example.stdout);
    let after = home.run(&["config", "show", "--json"]).await;
    assert_eq!((code(&after), &after.stdout), (0, &before.stdout), "{after:?}");
    assert_eq!(code(&home.run(&["config", "lint"]).await), 0);
    assert!(!Path::new(&home.path().join(".tenure")).exists(), "it changed something");
}
