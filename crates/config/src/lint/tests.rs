//! Each rule in both modes.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use super::{Check, Level, lint};
use crate::{Config, Flags};
use Level::{Fail, Pass, Warn};

const LONG: &str = "0123456789abcdef0123456789abcdef";

fn check(text: &str, production: bool) -> Vec<Check> {
    let file = Some((PathBuf::from("/etc/t.yaml"), text.to_owned()));
    let config = Config::from_sources(Flags::default(), "/data".into(), [], file);
    lint(&config.unwrap_or_else(|error| panic!("{text}: {error}")), production)
}

/// What a check of this name found, in order.
fn found(text: &str, production: bool, name: &str) -> Vec<(Level, String)> {
    let checks = check(text, production).into_iter().filter(|check| check.check == name);
    let checks: Vec<_> = checks
        .map(|check| {
            assert_eq!(check.fix.is_none(), check.level == Pass, "{check}");
            (check.level, check.message)
        })
        .collect();
    assert!(!checks.is_empty(), "there is no check {name}");
    checks
}

fn objects(endpoint_url: &str) -> String {
    format!("dispatch: {{object_store: {{url: 's3://lake/', endpoint_url: '{endpoint_url}'}}}}\n")
}

/// Rows: check, a file that it reports, a file that it passes.
fn rule(rows: &[(&str, &str, &str)], dev: Level, production: Level) {
    for (name, bad, good) in rows {
        for (mode, level) in [(false, dev), (true, production)] {
            let reported = found(bad, mode, name);
            assert!(reported.iter().any(|(found, _)| *found == level), "{name}: {bad}: {reported:?}");
            assert!(reported.iter().all(|(found, _)| *found <= level), "{name}: {bad}: {reported:?}");
            let passed = found(good, mode, name);
            assert!(passed.iter().all(|(found, _)| *found == Pass), "{name}: {good}: {passed:?}");
        }
    }
}

#[test]
fn what_is_a_risk_warns_and_fails_in_production() {
    let tls = "worker: {rpc_tls: {enabled: true";
    let with = |more: &str| format!("{tls}, {more}}}}}\n");
    let off = "worker: {rpc_tls: {enabled: false}}\n";
    let alone = format!("{tls}}}}}\n");
    let pair = with("server_cert_file: c, server_key_file: k");
    let client = with("client_cert_file: c, client_key_file: k");
    let (client_ca, ca) = (with("client_ca_file: a"), with("ca_file: a"));
    let key = |name: &str, value: &str| format!("auth: {{{name}: {value}}}\n");
    let api = key("api_key", LONG);
    let admin = key("admin_api_key", LONG);
    let signing = key("worker_signing_key", LONG);
    let placeholder = |word: &str| format!("{word}-{LONG}");
    let same = format!("auth: {{api_key: {LONG}, admin_api_key: {LONG}}}\n");
    let differ = format!("auth: {{api_key: {LONG}, admin_api_key: x{LONG}}}\n");
    let enabled = format!("auth: {{enabled: true, api_key: {LONG}}}\n");
    let bootstrap = format!("auth: {{worker_bootstrap_keys: {{w: {LONG}}}}}\n");
    let rotation = format!("auth: {{worker_signing_key: {LONG}, worker_signing_keys: [former]}}\n");
    let docker = |more: &str| format!("providers: {{docker: {{enabled: true, {more}}}}}\n");
    rule(
        &[
            ("auth.enabled", "", &enabled),
            ("auth.enabled", "auth: {enabled: false}\n", &api),
            ("auth.api_key", "", &api),
            ("auth.api_key", &key("api_key", &LONG[1..]), &api),
            ("auth.api_key", &key("api_key", &placeholder("Change-Me")), &api),
            ("auth.api_key", &key("api_key", &placeholder("changeme")), &api),
            ("auth.api_key", &key("api_key", &placeholder("replace-me")), &api),
            ("auth.admin_api_key", "", &admin),
            ("auth.admin_api_key", &key("admin_api_key", "short"), &admin),
            ("auth.admin_api_key", &key("admin_api_key", &placeholder("changeme")), &admin),
            ("auth.key_separation", &same, &differ),
            ("auth.admin_fallback_enabled", "auth: {admin_fallback_enabled: true}\n", ""),
            ("auth.admin_audit_retention", "", "auth: {admin_audit_retention: 1h}\n"),
            ("auth.worker_signing_key", &key("worker_signing_key", "short"), &signing),
            ("auth.worker_signing_key", &key("worker_signing_key", &placeholder("changeme")), ""),
            ("auth.worker_signing_key", "auth: {worker_signing_keys: [former]}\n", &rotation),
            ("auth.legacy_worker_tokens", "auth: {legacy_worker_tokens: true}\n", ""),
            ("auth.anonymous_workers", "auth: {anonymous_workers: true}\n", ""),
            (
                "auth.anonymous_workers",
                "auth: {anonymous_workers: [10.1.0.0/16]}\n",
                "auth: {anonymous_workers: [10.1.0.0/16], accept_network_policy: true}\n",
            ),
            (
                "auth.anonymous_workers",
                "auth: {anonymous_workers: true, accept_network_policy: true}\n",
                "auth: {accept_network_policy: true}\n",
            ),
            ("auth.oidc_issuer", "auth: {oidc_enabled: true}\n", "auth: {oidc_enabled: true, oidc_issuer: i}\n"),
            ("auth.oidc_issuer", "auth: {oidc_enabled: true}\n", ""),
            ("auth.oidc_jwks_url", "auth: {oidc_enabled: true}\n", "auth: {oidc_enabled: true, oidc_public_key: k}\n"),
            (
                "auth.oidc_jwks_url",
                "auth: {oidc_enabled: true}\n",
                "auth: {oidc_enabled: true, oidc_jwks_url: 'https://i/k'}\n",
            ),
            (
                "server.cors_allowed_origins",
                "server: {cors_allowed_origins: ['*']}\n",
                "server: {cors_allowed_origins: ['https://a']}\n",
            ),
            ("rate_limit.enabled", "", "rate_limit: {enabled: true}\n"),
            ("rate_limit.capacity", "rate_limit: {burst: 0}\n", ""),
            ("rate_limit.capacity", "rate_limit: {requests_per_minute: 0}\n", ""),
            ("logging.format", "logging: {format: pretty}\n", "logging: {format: json}\n"),
            ("logging.format", "logging: {format: pretty}\n", ""),
            ("database.path", "", "database: {path: /var/lib/t.db}\n"),
            ("database.path", "", "database: {driver: postgres, dsn: 'postgres://h/d'}\n"),
            ("worker.rpc_tls.server_cert", &alone, &pair),
            ("worker.rpc_tls.client_ca", &alone, &client_ca),
            ("worker.rpc_tls.ca", &alone, &ca),
            ("worker.rpc_tls.client_cert", &alone, &client),
            ("worker.rpc_tls.client_cert", &alone, off),
            ("redis.tls", "redis: {url: 'redis://h'}\n", "redis: {url: 'rediss://h'}\n"),
            ("redis.tls", "redis: {url: 'redis://:p@h'}\n", "redis: {url: 'redis://:p@127.0.0.1'}\n"),
            ("redis.tls", "redis: {url: 'redis://h'}\n", ""),
            ("sqs.endpoint_url", "sqs: {endpoint_url: 'http://sqs.example/'}\n", "sqs: {region: eu-central-1}\n"),
            (
                "sqs.endpoint_url",
                "sqs: {endpoint_url: 'http://h:9324'}\n",
                "sqs: {endpoint_url: 'http://[::1]:9324'}\n",
            ),
            ("sqs.endpoint_url", "sqs: {endpoint_url: 'http://h'}\n", "sqs: {endpoint_url: 'https://h'}\n"),
            ("dispatch.object_store.endpoint_url", &objects("http://h:9000"), &objects("http://127.0.0.1:9000")),
            ("dispatch.object_store.endpoint_url", &objects("http://h"), &objects("https://h")),
            (
                "dispatch.s3.endpoint_url",
                "dispatch: {s3: {endpoint_url: 'http://t.example'}}\n",
                "dispatch: {s3: {endpoint_url: 'https://t.example'}}\n",
            ),
            (
                "dispatch.sts.endpoint_url",
                "dispatch: {object_store: {url: 's3://lake/'}, sts: {role_arn: 'arn:aws:iam::1:role/x', endpoint_url: 'http://h'}}\n",
                "dispatch: {object_store: {url: 's3://lake/'}, sts: {role_arn: 'arn:aws:iam::1:role/x', endpoint_url: 'https://h'}}\n",
            ),
            (
                "dispatch.lambda.endpoint_url",
                "dispatch: {lambda: {functions: {a: b}, endpoint_url: 'http://h:9001'}}\n",
                "dispatch: {lambda: {functions: {a: b}, endpoint_url: 'http://127.0.0.1:9001'}}\n",
            ),
            (
                "query.endpoint",
                "query: {endpoint: ['unix:/run/q.sock', 'http://h:7500'], token: t}\n",
                "query: {endpoint: ['unix:/run/q.sock', 'http://127.0.0.1:7500'], token: t}\n",
            ),
            ("worker.rpc_tls.insecure_skip_verify", "worker: {rpc_tls: {insecure_skip_verify: true}}\n", ""),
            ("worker.advertise_url", "worker: {listen_addr: '0.0.0.0:7430'}\n", "worker: {listen_addr: 'h:7430'}\n"),
            ("worker.advertise_url", "worker: {listen_addr: '[::]:7430'}\n", ""),
            (
                "worker.advertise_url",
                "worker: {listen_addr: '0.0.0.0:7430'}\n",
                "worker: {listen_addr: '0.0.0.0:7430', advertise_url: 'http://h:7430'}\n",
            ),
            ("server.preview_auth", "server: {preview_auth: none}\n", ""),
            ("defaults.sandbox_caps", "", "defaults: {max_sandboxes: 9, max_sandboxes_per_owner: 3}\n"),
            (
                "defaults.sandbox_caps",
                "defaults: {max_sandboxes: 9}\n",
                "defaults: {max_sandboxes: 9, max_sandboxes_per_owner: 3}\n",
            ),
            (
                "defaults.sandbox_caps",
                "defaults: {max_sandboxes_per_owner: 3}\n",
                "defaults: {max_sandboxes: 9, max_sandboxes_per_owner: 3}\n",
            ),
            ("defaults.max_spawn_queue", "defaults: {max_spawn_queue: 0}\n", ""),
            ("defaults.max_ttl", "defaults: {max_ttl: 0s}\n", ""),
            ("defaults.exec_timeouts", "", "defaults: {default_exec_timeout: 1m}\n"),
            (
                "defaults.exec_timeouts",
                "defaults: {default_exec_timeout: 1m, max_exec_timeout: 0s}\n",
                "defaults: {default_exec_timeout: 1m}\n",
            ),
            ("providers.process", "providers: {process: {enabled: true}}\n", ""),
            ("providers.process", "providers: {default: mock, process: {enabled: true}}\n", ""),
            ("namespace.seccomp", "providers: {namespace: {seccomp: off}}\n", ""),
            ("namespace.egress", "providers: {namespace: {egress: allow_list}}\n", ""),
            ("namespace.resource_limits", "providers: {namespace: {pids_limit: 0}}\n", ""),
            ("namespace.resource_limits", "providers: {namespace: {max_memory_mb: 0}}\n", ""),
            ("namespace.resource_limits", "providers: {namespace: {max_vcpus: 0}}\n", ""),
            ("namespace.resource_limits", "providers: {namespace: {disk_mb: 0}}\n", ""),
            ("docker.runtime", &docker("runtime: ''"), &docker("")),
            ("docker.network_mode", &docker("network_mode: host"), &docker("")),
            ("docker.network_mode", &docker("network_mode: ''"), &docker("network_mode: bridge")),
            ("docker.seccomp_profile", &docker("seccomp_profile: unconfined"), &docker("")),
            ("docker.seccomp_profile", &docker("seccomp_profile: ''"), &docker("")),
            ("docker.added_caps", &docker("added_caps: [NET_ADMIN]"), &docker("")),
            ("docker.dropped_caps", &docker("dropped_caps: [NET_RAW]"), &docker("dropped_caps: [all]")),
            ("docker.resource_limits", &docker("memory: 0"), &docker("memory: 256m")),
            ("docker.resource_limits", &docker("cpus: 0"), &docker("cpus: 0.5")),
            ("docker.resource_limits", &docker("pids_limit: 0"), &docker("")),
            ("docker.user", &docker(""), &docker("user: '1000'")),
        ],
        Warn,
        Fail,
    );
    // Two checks share a name: a long plain key is still a plain one.
    for (production, level) in [(false, Warn), (true, Fail)] {
        let short = found("auth: {worker_bootstrap_keys: {w: short}}\n", production, "auth.worker_bootstrap_keys");
        assert_eq!(short[0].0, level);
        let long = found(&bootstrap, production, "auth.worker_bootstrap_keys");
        assert_eq!((long[0].0, long[1].0), (Pass, Warn));
    }
}

#[test]
fn what_could_be_better_warns_in_both_modes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    std::fs::write(&file, LONG).unwrap();
    let file = file.display();
    let in_file = |key: &str, more: &str| format!("auth: {{{key}: {file}{more}}}\n");
    let signed_and = |more: &str| format!("auth: {{worker_signing_key: {LONG}, {more}}}\n");
    let digest = format!("auth: {{worker_bootstrap_keys: {{w: 'sha256:{}'}}}}\n", LONG.repeat(2));
    let oidc = |more: &str| format!("auth: {{oidc_enabled: true{more}}}\n");
    let docker = |more: &str| format!("providers: {{docker: {{enabled: true, {more}}}}}\n");
    rule(
        &[
            ("auth.worker_signing_key_file", &signed_and(""), &in_file("worker_signing_key_file", "")),
            ("auth.worker_token_file", "auth: {worker_token: t}\n", &in_file("worker_token_file", "")),
            ("auth.worker_token_file", "auth: {worker_token: t}\n", ""),
            (
                "auth.worker_signing_keys",
                &signed_and(&format!("worker_signing_keys: [{LONG}]")),
                &signed_and("worker_signing_keys: [a, b]"),
            ),
            ("auth.worker_signing_keys", &signed_and("worker_signing_keys: [a, b, a]"), ""),
            (
                "auth.worker_revoked_token_ids",
                "auth: {worker_revoked_token_ids: [i]}\n",
                &signed_and("worker_revoked_token_ids: [i]"),
            ),
            ("auth.worker_token", &signed_and("worker_token: t"), &signed_and("")),
            ("auth.worker_token", &signed_and("worker_token: t"), "auth: {worker_token: t}\n"),
            ("auth.worker_tokens", &signed_and("worker_tokens: {w: t}"), "auth: {worker_tokens: {w: t}}\n"),
            ("auth.worker_tokens", "auth: {worker_token: t}\n", &signed_and("worker_token: t")),
            ("auth.worker_tokens", "", &signed_and("")),
            ("auth.worker_bootstrap_keys", &format!("auth: {{worker_bootstrap_keys: {{w: {LONG}}}}}\n"), &digest),
            (
                "auth.oidc_public_key_file",
                &oidc(", oidc_public_key: k"),
                &in_file("oidc_public_key_file", ", oidc_enabled: true"),
            ),
            (
                "auth.anonymous_workers",
                "server: {trusted_proxies: [10.1.2.3]}\n\
                 auth: {anonymous_workers: [10.1.0.0/16], accept_network_policy: true}\n",
                "server: {trusted_proxies: [10.2.0.0/16]}\n\
                 auth: {anonymous_workers: [10.1.0.0/16], accept_network_policy: true}\n",
            ),
            ("auth.oidc_audience", &oidc(""), &oidc(", oidc_audience: a")),
            ("auth.oidc_groups", &oidc(""), &oidc(", oidc_viewer_groups: [g]")),
            ("server.tls", "server: {host: 0.0.0.0}\n", "server: {host: 0.0.0.0, tls: {cert_file: c, key_file: k}}\n"),
            ("server.tls", "server: {host: example.com}\n", ""),
            ("rate_limit.key_by", "rate_limit: {key_by: ip}\n", "rate_limit: {key_by: api_key}\n"),
            ("database.driver", "server: {host: 0.0.0.0}\n", ""),
            (
                "database.driver",
                "worker: {rpc_tls: {enabled: true}}\n",
                "database: {driver: postgres, dsn: 'postgres://h/d'}\n",
            ),
            ("worker.rpc_tls.enabled", "", "worker: {rpc_tls: {enabled: true}}\n"),
            (
                "worker.rpc_tls.bind_worker_id",
                "worker: {rpc_tls: {enabled: true}}\n",
                "worker: {rpc_tls: {enabled: true, bind_worker_id: warn}}\n",
            ),
            ("worker.rpc_tls.bind_worker_id", "worker: {rpc_tls: {enabled: true}}\n", ""),
            (
                "worker.local",
                "worker: {local: true}\ndatabase: {driver: postgres, dsn: 'postgres://h/d'}\n",
                "worker: {local: true}\n",
            ),
            (
                "worker.local",
                "worker: {local: true}\ndatabase: {driver: postgres, dsn: 'postgres://h/d'}\n",
                "database: {driver: postgres, dsn: 'postgres://h/d'}\n",
            ),
            ("redis.password", "redis: {url: 'rediss://u@h'}\n", "redis: {url: 'rediss://u:p@h'}\n"),
            ("redis.password", "redis: {url: 'rediss://h'}\n", "redis: {url: 'redis://localhost'}\n"),
            ("redis.url_file", "redis: {url: 'rediss://u:p@h'}\n", "redis: {url: 'rediss://h'}\n"),
            ("sqs.create_queues", "sqs: {region: r, create_queues: true}\n", "sqs: {region: r}\n"),
            (
                "dispatch.write_prefixes",
                "dispatch: {write_prefixes: ['s3://lake/{dag}/']}\n",
                "dispatch: {write_prefixes: ['s3://lake/{task_id}/']}\n",
            ),
            ("dispatch.object_store.url", "database: {driver: postgres, dsn: 'postgres://h/d'}\n", ""),
            ("dispatch.data_store.read_url", "database: {driver: postgres, dsn: 'postgres://h/d'}\n", ""),
            (
                "dispatch.data_store.read_url",
                "database: {driver: postgres, dsn: 'postgres://h/d'}\n",
                "database: {driver: postgres, dsn: 'postgres://h/d'}\ndispatch: {data_store: {read_url: 'postgres://r@h/d'}}\n",
            ),
            (
                "dispatch.data_store.read_url",
                "database: {driver: postgres, dsn: 'postgres://h/d'}\n",
                "database: {driver: postgres, dsn: 'postgres://h/d'}\nquery: {enabled: false}\n",
            ),
            (
                "dispatch.object_store.url",
                "database: {driver: postgres, dsn: 'postgres://h/d'}\n",
                "database: {driver: postgres, dsn: 'postgres://h/d'}\ndispatch: {object_store: {url: 's3://lake'}}\n",
            ),
            ("namespace.image_aliases", "providers: {namespace: {image_aliases: {'*': host}}}\n", ""),
            ("docker.read_only_rootfs", &docker(""), &docker("read_only_rootfs: true")),
        ],
        Warn,
        Warn,
    );
}

#[test]
fn messages_that_are_quoted_stand_word_for_word() {
    let message = |text: &str, name: &str| found(text, false, name)[0].1.clone();
    let both = format!("auth: {{worker_signing_key: {LONG}, worker_token: t, worker_signing_keys: [{LONG}]}}\n");
    assert_eq!(message(&both, "auth.worker_signing_keys"), "rotation keys include the active worker signing key");
    assert_eq!(message(&both, "auth.worker_token"), "shared worker token still configured with signed worker tokens");
    assert_eq!(message("", "auth.oidc_enabled"), "disabled");
    assert_eq!(message("auth: {oidc_enabled: true}\n", "auth.oidc_enabled"), "enabled");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, LONG).unwrap();
    let named = message(&format!("auth: {{worker_token_file: {}}}\n", file.display()), "auth.worker_token_file");
    assert_eq!(named, format!("auth.worker_token comes from {}", file.display()));
    let checks = check("", true);
    assert_eq!(checks[0].to_string(), "[PASS] config: /etc/t.yaml loads");
    assert_eq!(
        checks[1].to_string(),
        "[FAIL] auth.enabled: everyone who reaches the API is an admin\n      fix: set auth.enabled: true and keys"
    );
}

#[test]
fn checks_come_in_the_order_of_the_table() {
    let order = [
        "config",
        "auth.enabled",
        "auth.api_key",
        "auth.admin_api_key",
        "auth.key_separation",
        "auth.admin_fallback_enabled",
        "auth.admin_audit_retention",
        "auth.worker_signing_key",
        "auth.legacy_worker_tokens",
        "auth.worker_bootstrap_keys",
        "auth.worker_signing_key_file",
        "auth.worker_token_file",
        "auth.worker_signing_keys",
        "auth.worker_revoked_token_ids",
        "auth.worker_token",
        "auth.worker_tokens",
        "auth.worker_bootstrap_keys",
        "auth.anonymous_workers",
        "auth.oidc_enabled",
        "auth.oidc_issuer",
        "auth.oidc_jwks_url",
        "auth.oidc_public_key_file",
        "auth.oidc_audience",
        "auth.oidc_groups",
        "server.cors_allowed_origins",
        "rate_limit.enabled",
        "rate_limit.capacity",
        "logging.format",
        "server.tls",
        "rate_limit.key_by",
        "database.path",
        "defaults.sandbox_caps",
        "defaults.max_spawn_queue",
        "defaults.exec_timeouts",
        "defaults.max_ttl",
        "database.driver",
        "worker.rpc_tls.server_cert",
        "worker.rpc_tls.client_ca",
        "worker.rpc_tls.ca",
        "worker.rpc_tls.client_cert",
        "worker.rpc_tls.insecure_skip_verify",
        "worker.advertise_url",
        "worker.rpc_tls.enabled",
        "worker.rpc_tls.bind_worker_id",
        "worker.local",
        "providers.process",
        "providers.default",
        "namespace.seccomp",
        "namespace.egress",
        "namespace.resource_limits",
        "namespace.image_aliases",
        "redis.tls",
        "redis.password",
        "redis.url_file",
        "sqs.endpoint_url",
        "sqs.create_queues",
        "callback.base_url",
        "push.secrets",
        "push.secret_files",
        "push.allow_http",
        "dispatch.object_store.endpoint_url",
        "dispatch.object_store.url",
        "dispatch.write_prefixes",
        "dispatch.s3.endpoint_url",
        "dispatch.sts.endpoint_url",
        "dispatch.lambda.endpoint_url",
        "query.endpoint",
        "dispatch.data_store.read_url",
        "dispatch.secrets",
        "dispatch.secret_files",
        "server.preview_auth",
        "compat",
    ];
    for text in ["", "auth: {oidc_enabled: true}\nworker: {rpc_tls: {enabled: true}}\n"] {
        let names: Vec<_> = check(text, true).into_iter().map(|check| check.check).collect();
        assert_eq!(names, order);
    }
}

#[test]
fn pushes_are_encrypted_and_say_where_to_report() {
    let base = |url: &str| format!("callback: {{base_url: '{url}'}}\n");
    let secret = |text: &str| format!("push: {{secrets: {{etl: {text}}}}}\n");
    let (plain, tls) = (base("http://t.example"), base("https://t.example"));
    let (weak, strong) = (secret("short"), secret(LONG));
    let rows = [
        ("callback.base_url", plain.as_str(), tls.as_str()),
        ("push.secrets", weak.as_str(), strong.as_str()),
        ("push.allow_http", "push: {allow_http: true}\n", ""),
    ];
    rule(&rows, Warn, Fail);
    let enabled = format!("auth: {{enabled: true, api_key: {LONG}}}\n");
    rule(&[("callback.base_url", &enabled, &base("http://127.0.0.1:1"))], Warn, Warn);
    rule(&[("push.secret_files", &strong, "")], Warn, Warn);
}

#[test]
fn secrets_of_webhooks_are_strong_named_by_somebody_and_in_files() {
    let secret = |name: &str, text: &str| format!("dispatch: {{secrets: {{'{name}': {text}}}}}\n");
    let strong = secret("acme/hook_key", LONG);
    rule(&[("dispatch.secrets", &secret("hook_key", "short"), &strong)], Warn, Fail);
    let wrong = [secret("1st", LONG), secret("acme/hook.key", LONG), secret("acme/-", LONG)];
    rule(&wrong.each_ref().map(|text| ("dispatch.secrets", text.as_str(), strong.as_str())), Warn, Warn);
    rule(&[("dispatch.secret_files", &strong, "")], Warn, Warn);
    assert!(found(&wrong[1], false, "dispatch.secrets")[0].1.contains("`acme/hook.key`"));

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret");
    std::fs::write(&path, LONG).unwrap();
    for (files, text) in [
        ("dispatch.secret_files", format!("dispatch: {{secret_files: {{hook_key: {}}}}}\n", path.display())),
        ("push.secret_files", format!("push: {{secret_files: {{etl: {}}}}}\n", path.display())),
    ] {
        for (mode, level) in [(0o600, Pass), (0o640, Pass), (0o644, Warn)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(found(&text, true, files)[0].0, level, "{files} {mode:o}");
        }
    }
}

#[test]
fn keys_that_nobody_needs_fail_in_both_modes() {
    let key = format!("auth: {{enabled: false, api_key: {LONG}}}\n");
    let admin = format!("auth: {{enabled: false, admin_api_key: {LONG}}}\n");
    let used = format!("auth: {{api_key: {LONG}}}\n");
    let oidc = "auth: {enabled: false, oidc_enabled: true}\n";
    rule(&[("auth.enabled", &key, &used), ("auth.enabled", &admin, &used), ("auth.enabled", oidc, &used)], Fail, Fail);
}

#[test]
fn the_profile_is_reported_with_its_reason_and_what_it_cannot_give() {
    let text =
        "compat: stacyvm\npool: {enabled: true}\nproviders: {firecracker: {enabled: true}, e2b: {enabled: false}}\n";
    rule(&[("compat", text, "")], Warn, Warn);
    let messages: Vec<_> = found(text, true, "compat").into_iter().map(|(_, message)| message).collect();
    let expected = [
        "the profile stacyvm is on: compat is stacyvm",
        "/etc/t.yaml line 2: pool is enabled but not available: each sandbox has a runtime of its own; \
         defaults.pool_size keeps some ready",
        "/etc/t.yaml line 3: providers.firecracker is enabled but not available: use namespace or docker",
    ];
    assert_eq!(messages, expected);
    // What it changes is judged as if it had been set.
    let failing: Vec<_> =
        check(text, true).into_iter().filter(|check| check.level == Fail).map(|check| check.check).collect();
    for name in ["server.cors_allowed_origins", "auth.admin_fallback_enabled", "server.preview_auth"] {
        assert!(failing.contains(&name), "{name}: {failing:?}");
    }
}

#[test]
fn a_default_provider_that_cannot_be_used_fails_in_both_modes() {
    let bad = "providers: {default: docker}\n";
    let good = "providers: {default: docker, docker: {enabled: true}}\n";
    rule(&[("providers.default", bad, good), ("providers.default", "providers: {default: vm}\n", "")], Fail, Fail);
}
