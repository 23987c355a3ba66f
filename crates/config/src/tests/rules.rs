//! What a configuration must not say.

use super::{from_file, load};
use crate::{Config, Flags};

/// Each row: a file, and what the error says about it. No error may quote `hunter2`.
fn refused(rows: &[(&str, &str)]) {
    for (text, part) in rows {
        let message = from_file(text).expect_err(text);
        assert!(message.contains(part), "{text}\n{message}\ndoes not say: {part}");
        assert!(!message.contains("hunter2"), "{message}");
    }
}

#[test]
fn values_of_the_wrong_kind_are_refused_with_their_place() {
    refused(&[
        ("server:\n  port: 70000\n", "/etc/t.yaml line 2: server.port must be a port from 0 to 65535, not `70000`"),
        ("server:\n  request_memory: 64KiB\n", "line 2: server.request_memory must be at least 1MiB"),
        (
            "server:\n  max_connections: 0\n",
            "line 2: server.max_connections must be a number from 1 to 1000000, not `0`",
        ),
        ("logging:\n  level: loud\n", "logging.level must be one of off, error, warn, info, debug, trace, not `loud`"),
        ("logging:\n  format: xml\n", "logging.format must be one of json, pretty"),
        ("rate_limit:\n  key_by: name\n", "rate_limit.key_by must be one of owner, api_key, ip, not `name`"),
        (
            "worker:\n  rpc_tls:\n    bind_worker_id: maybe\n",
            "line 3: worker.rpc_tls.bind_worker_id must be one of off,",
        ),
        ("server:\n  tls: {client_auth: maybe}\n", "server.tls.client_auth must be one of off, optional, required"),
        ("retention:\n  finished: 7\n", "retention.finished must be a duration such as 30s, 12h or 7d, not `7`"),
        ("retention:\n  finished: -7d\n", "retention.finished must be a duration"),
        ("auth:\n  admin_audit_retention: long\n", "auth.admin_audit_retention must be a duration"),
        ("audit:\n  retention: 1000y\n", "audit.retention must be a duration"),
        ("rate_limit:\n  bucket_ttl: 0\n", "rate_limit.bucket_ttl must be above 0"),
        ("rate_limit:\n  cleanup_interval: 0s\n", "rate_limit.cleanup_interval must be above 0"),
        ("retention:\n  max_finished: -1\n", "retention.max_finished must be a number of 0 or more, not `-1`"),
        ("tenants:\n  max_ready: -1\n", "tenants.max_ready must be a number of 0 or more"),
        ("tenants:\n  max_payload_bytes: -1\n", "tenants.max_payload_bytes must be a size such as 4096"),
        ("rate_limit:\n  burst: many\n", "rate_limit.burst must be a number"),
        ("auth:\n  enabled: perhaps\n", "auth.enabled must be true or false, not `perhaps`"),
        ("worker:\n  rpc_tls:\n    enabled: 2\n", "line 3: worker.rpc_tls.enabled must be true or false"),
        ("server:\n  host: ' '\n", "server.host is empty"),
        ("tokens:\n  issuer: ''\n", "tokens.issuer is empty"),
        (
            "server:\n  cors_allowed_origins: [https://a.example/]\n",
            "server.cors_allowed_origins must be a list of `*`",
        ),
        (
            "server:\n  trusted_proxies: [proxy]\n",
            "server.trusted_proxies must be a list of networks such as 10.0.0.0/8",
        ),
        ("push:\n  max_in_flight: 0\n", "line 2: push.max_in_flight must be a number from 1 to 100000, not `0`"),
        ("outbound:\n  allow_cidrs: [10.0.0.0/99]\n", "outbound.allow_cidrs must be a list of networks"),
        ("worker:\n  control_plane_url: localhost\n", "worker.control_plane_url must be an address"),
        ("worker:\n  control_plane_url: http://u:hunter2@h\n", "without a password"),
        ("worker:\n  listen_addr: localhost\n", "worker.listen_addr must be an address and a port"),
        (
            "worker:\n  metrics_addr: localhost\n",
            "worker.metrics_addr must be an address and a port such as 127.0.0.1:7431",
        ),
        ("worker:\n  listen_addr: host:70000\n", "worker.listen_addr must be an address and a port"),
        ("worker:\n  advertise_url: http://0.0.0.0:7430\n", "worker.advertise_url names an unspecified address"),
        ("worker:\n  advertise_url: http://[::]:7430\n", "worker.advertise_url names an unspecified address"),
        ("worker:\n  advertise_url: worker-a\n", "worker.advertise_url must be an address"),
        ("worker:\n  heartbeat_interval: 0\n", "worker.heartbeat_interval must be longer than 0"),
        ("worker:\n  lease_grace: -1s\n", "worker.lease_grace must be a duration"),
        ("worker:\n  capacity: {vcpus: -1}\n", "worker.capacity.vcpus must be a number of 0 or more"),
        ("providers:\n  namespace: {egress: open}\n", "providers.namespace.egress must be one of deny, allow_list"),
        ("providers:\n  docker: {cpus: many}\n", "providers.docker.cpus must be a number of processors"),
        ("providers:\n  docker: {memory: much}\n", "providers.docker.memory must be a size"),
        ("providers:\n  firecracker: {enabled: true}\n", "unknown key `providers.firecracker`"),
        ("auth:\n  oidc_jwks_url: https://u:hunter2@h/\n", "auth.oidc_jwks_url must be an address"),
        ("auth:\n  oidc_groups_claim: ''\n", "auth.oidc_groups_claim is empty"),
        ("auth:\n  api_key: hunter2\n  worker_signing_keys: hunter2\n", "/etc/t.yaml line 3"),
        ("auth:\n  worker_tokens: [hunter2]\n", "/etc/t.yaml line 2"),
        ("auth:\n  api_key: &a hunter2\nserver:\n  port: *a\n", "line 4: server.port must be a port from 0 to 65535"),
        (
            "server:\n  port: \"80\n   api_key: hunter2\n   x\"\n",
            "server.port must be a port from 0 to 65535, not `80 api_key…`",
        ),
        ("auth:\n  api_key: [hunter2]\n", "/etc/t.yaml line 2"),
    ]);
}

#[test]
fn limits_of_sandboxes_that_make_no_sense_are_refused() {
    let ports = "server.preview_ports must be ports and ranges such as 1024-65535";
    let domain = "server.preview_domain must be a domain such as preview.example.com";
    refused(&[
        ("defaults:\n  ttl: 0s\n", "line 2: defaults.ttl must be above 0"),
        ("defaults:\n  ttl: soon\n", "defaults.ttl must be a duration"),
        ("defaults:\n  max_ttl: -1h\n", "defaults.max_ttl must be a duration"),
        ("defaults:\n  image: ''\n", "defaults.image is empty: name an image"),
        ("defaults:\n  memory_mb: -1\n", "defaults.memory_mb must be a number of 0 or more, not `-1`"),
        ("defaults:\n  vcpus: 0.5\n", "defaults.vcpus must be a number of 0 or more, not `0.5`"),
        ("defaults:\n  disk_size_mb: -1\n", "defaults.disk_size_mb must be a number of 0 or more"),
        ("defaults:\n  pool_size: 1001\n", "defaults.pool_size must be a number from 0 to 1000, not `1001`"),
        ("defaults:\n  max_sandboxes: -1\n", "defaults.max_sandboxes must be a number of 0 or more"),
        ("defaults:\n  max_sandboxes_per_owner: -1\n", "max_sandboxes_per_owner must be a number of 0 or more"),
        ("defaults:\n  max_spawn_queue: -1\n", "defaults.max_spawn_queue must be a number of 0 or more"),
        ("defaults:\n  spawn_overflow: drop\n", "defaults.spawn_overflow must be one of reject, queue, not `drop`"),
        ("defaults:\n  spawn_queue_timeout: 0\n", "defaults.spawn_queue_timeout must be above 0"),
        ("leases:\n  ttl: 14s\n", "/etc/t.yaml line 2: leases.ttl must be 15s or more"),
        ("leases:\n  ttl: 2m\n  max_ttl: 1m\n", "line 3: leases.max_ttl must not be shorter than leases.ttl"),
        ("scheduler:\n  freshness: 0s\n", "scheduler.freshness must be above 0"),
        ("scheduler:\n  weights: {memory: -1}\n", "scheduler.weights.memory must be a number of 0 or more such as"),
        ("scheduler:\n  weights: {count: inf}\n", "scheduler.weights.count must be a number of 0 or more"),
        ("scheduler:\n  weights: {vcpus: NaN}\n", "scheduler.weights.vcpus must be a number of 0 or more"),
        ("scheduler:\n  weights: {memory: 0, vcpus: 0, count: 0}\n", "and the other weights are 0: set one above 0"),
        ("server:\n  preview_ports: 0-10\n", ports),
        ("server:\n  preview_ports: ''\n", ports),
        ("server:\n  preview_domain: https://a.example\n", domain),
        ("server:\n  preview_domain: .example\n", domain),
        ("server:\n  preview_domain: '*.example'\n", domain),
        ("server:\n  preview_domain: 127.0.0.1:80\n", domain),
        ("server:\n  preview_domain: '[::1]'\n", domain),
        ("server:\n  preview_auth: cookie\n", "server.preview_auth must be one of key, none, not `cookie`"),
        ("audit:\n  commands: none\n", "audit.commands must be one of full, hash"),
        ("metrics:\n  legacy_names: 1\n", "metrics.legacy_names must be true or false"),
        ("worker:\n  local: perhaps\n", "worker.local must be true or false"),
    ]);
}

#[test]
fn databases_that_make_no_sense_are_refused() {
    refused(&[
        ("database:\n  driver: mysql\n", "must be one of sqlite, postgres, not `mysql`"),
        ("database:\n  driver: postgres\n", "line 2: database.driver is postgres, but database.dsn is not set"),
        ("database:\n  dsn: postgres://u:hunter2@h/d\n", "database.driver is sqlite: set it to postgres"),
        ("database:\n  driver: postgres\n  dsn: mysql://u:hunter2@h/d\n", "must start with postgres://"),
        ("database:\n  driver: postgres\n  dsn: sqlite:hunter2\n", "must start with postgres://"),
        ("database:\n  path: ''\n", "database.path is empty"),
        ("database:\n  tls: {ca_file: ''}\n", "database.tls.ca_file is empty"),
    ]);
}

#[test]
fn object_stores_that_make_no_sense_are_refused() {
    let place = "dispatch.object_store.url must be s3://bucket/, s3://bucket/prefix/ or file:///path";
    refused(&[
        ("dispatch:\n  object_store: {url: 's3://Lake/'}\n", place),
        ("dispatch:\n  object_store: {url: 's3://lake/../x'}\n", place),
        ("dispatch:\n  object_store: {url: 'https://lake/'}\n", place),
        ("dispatch:\n  object_store: {url: 'file://srv/x'}\n", "must have an absolute path behind file://"),
        ("dispatch:\n  object_store: {url: 'file:///srv/../x'}\n", "must have an absolute path behind file://"),
        (
            "dispatch:\n  object_store: {url: 's3://lake', endpoint_url: 'https://u:hunter2@h/'}\n",
            "dispatch.object_store.endpoint_url must be an address",
        ),
        ("dispatch:\n  object_store: {url: 's3://lake', region: Frankfurt}\n", "must be a region such as eu-central-1"),
        (
            "dispatch:\n  object_store: {region: eu-central-1}\n",
            "dispatch.object_store.region is set, but dispatch.object_store.url is not an address that begins with s3://",
        ),
        ("dispatch:\n  runtimes: [Gpu]\n", "a lower-case letter"),
        ("dispatch:\n  runtimes: [lambda]\n", "has a meaning of its own"),
        ("dispatch:\n  retry_backoff: 25h\n", "a duration from 0s to 24h"),
        ("dispatch:\n  retry_backoff: 11m\n", "is longer than dispatch.retry_backoff_max"),
        ("dispatch:\n  lambda: {region: 'EU west'}\n", "a region such as eu-central-1"),
        ("dispatch:\n  lambda: {endpoint_url: 'http://user:pw@x'}\n", "without a password"),
        ("dispatch:\n  lambda: {functions: {a: 'b c'}}\n", "has no valid name for `a`"),
        ("dispatch: {s3: {listen: '7425'}}", "dispatch.s3.listen"),
        ("dispatch: {s3: {endpoint_url: 'ftp://h'}}", "dispatch.s3.endpoint_url must be an address"),
        (
            "dispatch: {object_store: {url: 's3://lake/'}, s3: {listen: '127.0.0.1:1'}}",
            "the endpoint is for a local folder",
        ),
        ("dispatch: {sts: {role_arn: 'arn:aws:iam::1:role/x'}}", "is not an address that begins with s3://"),
        ("dispatch: {object_store: {url: 's3://lake/'}, sts: {role_arn: 'x'}}", "the ARN of a role"),
        (
            "dispatch: {object_store: {url: 's3://lake/'}, sts: {region: eu-central-1}}",
            "is set without dispatch.sts.role_arn",
        ),
        ("dispatch:\n  write_prefixes: ['s3://lake/{task}/']\n", "'{task}' is unknown: use {task_id}, {attempt}"),
        ("dispatch:\n  staging_retention: 59m\n", "must be a duration from 1h to 365d, not `59m`"),
        ("dispatch:\n  write_prefixes: ['lake/{task_id}/']\n", "a prefix must begin with s3://"),
    ]);
}

#[test]
fn transports_that_make_no_sense_are_refused() {
    let redis = "redis.url must be an address such as rediss://user:password@host:6379/0";
    let visible = "sqs.visibility_timeout must be a duration of whole seconds from 1s to 12h";
    refused(&[
        ("transport:\n  default: kafka\n", "transport.default must be one of embedded, redis, sqs, not `kafka`"),
        ("transport:\n  default: redis\n", "line 2: transport.default is redis, but redis.url is not set: set it"),
        (
            "transport:\n  sweep_interval: 0s\n",
            "line 2: transport.sweep_interval must be a duration from 1s to 1h, not `0s`",
        ),
        ("transport:\n  sweep_interval: 61m\n", "must be a duration from 1s to 1h, not `61m`"),
        ("outbox:\n  max_tries: 0\n", "outbox.max_tries must be a number from 1 to 1000, not `0`"),
        ("redis:\n  url: http://u:hunter2@h\n", redis),
        ("redis:\n  url: redis://u:hunter2/@h\n", redis),
        ("redis:\n  url: 'rediss://u:hunter2@h/#insecure'\n", redis),
        ("redis:\n  url: ''\n", "redis.url is empty"),
        ("redis:\n  group: ''\n", "redis.group is empty"),
        ("redis:\n  group: a b\n", "redis.group must be a text of at most 128 bytes without white space"),
        ("redis:\n  key_prefix: a b\n", "redis.key_prefix must be a text"),
        (
            "redis:\n  url: redis://u:hunter2@h\n  tls: {ca_file: ca.pem}\n",
            "line 3: redis.tls.ca_file is set, but redis.url is without TLS: begin it with rediss://",
        ),
        ("sqs:\n  region: Frankfurt\n", "sqs.region must be a region such as eu-central-1, not `Frankfurt`"),
        ("sqs:\n  endpoint_url: https://u:hunter2@h/\n", "sqs.endpoint_url must be an address"),
        ("sqs:\n  queue_prefix: a.b\n", "sqs.queue_prefix must be a text of at most 79 letters, digits"),
        (&format!("sqs:\n  queue_prefix: {}\n", "a".repeat(80)), "sqs.queue_prefix must be a text of at most 79"),
        ("sqs:\n  visibility_timeout: 0s\n", visible),
        ("sqs:\n  visibility_timeout: 13h\n", visible),
        ("sqs:\n  visibility_timeout: 1500ms\n", visible),
        ("sqs:\n  create_queues: maybe\n", "sqs.create_queues must be true or false"),
    ]);
}

#[test]
fn half_pairs_of_certificates_are_refused() {
    refused(&[
        (
            "server:\n  tls: {cert_file: c}\n",
            "line 2: server.tls.cert_file is set without server.tls.key_file: set both",
        ),
        ("server:\n  tls: {key_file: k}\n", "server.tls.key_file is set without server.tls.cert_file"),
        ("server:\n  tls: {client_ca_file: c}\n", "server.tls.client_ca_file needs TLS: set server.tls.cert_file"),
        (
            "server:\n  tls: {cert_file: c, key_file: k, client_auth: required}\n",
            "server.tls.client_auth asks for certificates of clients: set server.tls.client_ca_file too",
        ),
        (
            "worker:\n  rpc_tls: {server_cert_file: c}\n",
            "server_cert_file is set without worker.rpc_tls.server_key_file",
        ),
        (
            "worker:\n  rpc_tls: {server_key_file: c}\n",
            "server_key_file is set without worker.rpc_tls.server_cert_file",
        ),
        (
            "worker:\n  rpc_tls: {client_cert_file: c}\n",
            "client_cert_file is set without worker.rpc_tls.client_key_file",
        ),
        (
            "worker:\n  rpc_tls: {client_key_file: c}\n",
            "client_key_file is set without worker.rpc_tls.client_cert_file",
        ),
    ]);
}

#[test]
fn secrets_that_are_empty_are_refused() {
    refused(&[
        ("auth:\n  api_key: ''\n", "line 2: auth.api_key is empty: set it, or remove the key"),
        ("auth:\n  worker_signing_key: ' '\n", "auth.worker_signing_key is empty"),
        ("auth:\n  worker_tokens: {w-1: ''}\n", "auth.worker_tokens has an empty value for `w-1`"),
        ("auth:\n  worker_signing_keys: [hunter2, '']\n", "auth.worker_signing_keys has an empty entry"),
        (
            "auth:\n  worker_bootstrap_keys: {w-1: 'sha256:hunter2'}\n",
            "`w-1` that begins with sha256: and lacks the 64",
        ),
        ("auth:\n  api_key_file: ''\n", "auth.api_key_file is empty: name a file"),
        ("auth:\n  api_key_file: nowhere\n", "line 2: auth.api_key_file names /etc/nowhere, which cannot be read"),
        (
            "auth:\n  enabled: true\n",
            "line 2: auth.enabled is true, but neither auth.api_key nor auth.admin_api_key is",
        ),
    ]);
}

#[test]
fn with_oidc_no_key_is_needed() {
    let config = from_file("auth: {enabled: true, oidc_enabled: true, oidc_issuer: i}\n").unwrap();
    assert!(config.auth.enabled && config.auth.oidc.unwrap().issuer.unwrap() == "i");
}

/// Every key that has a `_file` beside it.
const WITH_FILES: [&str; 11] = [
    "auth.api_key",
    "auth.admin_api_key",
    "auth.worker_token",
    "auth.worker_token_previous",
    "auth.worker_signing_key",
    "auth.oidc_public_key",
    "auth.worker_public_keys",
    "auth.worker_revoked_token_ids",
    "callback.shared_secret",
    "query.token",
    "redis.url",
];

#[test]
fn a_value_and_its_file_together_are_refused() {
    let listed = crate::keys::all().filter(|key| crate::keys::file_of(key).is_some()).map(|key| key.path);
    let mut listed: Vec<_> = listed.collect();
    let mut expected = WITH_FILES;
    listed.sort_unstable();
    expected.sort_unstable();
    assert_eq!(listed, expected);
    for key in WITH_FILES {
        let variable = crate::env::name_of(key);
        let (section, name) = key.split_once('.').unwrap();
        let file = format!("{section}:\n  {name}_file: /run/secret\n");
        let message = load(Flags::default(), &[(&variable, "hunter2")], Some(&file)).unwrap_err();
        let expected =
            format!("{key} (the variable {variable}) and {key}_file (/etc/t.yaml line 2) are both set: keep one");
        assert_eq!(message, expected);
    }
}

#[test]
fn secret_files_are_trimmed_and_have_to_hold_something() {
    let folder = tempfile::tempdir().unwrap();
    for key in WITH_FILES.map(|key| format!("{key}_file")).iter().chain([&"auth.worker_private_key_file".to_owned()]) {
        let (section, name) = key.split_once('.').unwrap();
        let load = || {
            let more = if name.starts_with("oidc") { "  oidc_enabled: true\n" } else { "" };
            let file = (folder.path().join("t.yaml"), format!("{section}:\n  {name}: secret\n{more}"));
            Config::from_sources(Flags::default(), "/data".into(), [], Some(file)).map_err(|error| error.to_string())
        };
        let secret = folder.path().join("secret");
        let message = load().unwrap_err();
        assert!(message.contains(&format!("line 2: {key} names")) && message.contains("cannot be read"), "{message}");
        std::fs::write(&secret, " \n").unwrap();
        assert!(load().unwrap_err().ends_with("which is empty"), "{key}");
        std::fs::write(&secret, b"\xffhunter2").unwrap();
        let message = load().unwrap_err();
        assert!(message.contains("not valid UTF-8") && !message.contains("hunter2"), "{message}");
        std::fs::write(&secret, format!(" {}\n", super::content_for(key))).unwrap();
        let config = load().unwrap();
        assert_eq!(config.settings.content(key).unwrap().reveal(), super::content_for(key));
        std::fs::remove_file(&secret).unwrap();
    }
}

#[test]
fn what_workers_hold_is_no_key_of_users() {
    // The digest of hunter2.
    let digest = "sha256:F52FBD32B2B3B86FF88EF6C490628285F482AF15DDCB29541F94BCF526A3F6C7";
    for user in ["api_key", "admin_api_key"] {
        for worker in [
            "auth: {worker_token: hunter2,",
            "auth: {worker_token_previous: hunter2,",
            "auth: {worker_tokens: {w-1: hunter2},",
            "auth: {worker_signing_key: hunter2,",
            "auth: {worker_signing_keys: [x, hunter2],",
            "auth: {worker_bootstrap_keys: {w-1: hunter2},",
            &format!("auth: {{worker_bootstrap_keys: {{w-1: '{digest}'}},"),
            "callback: {shared_secret: hunter2}\nauth: {",
        ] {
            let message = from_file(&format!("{worker} {user}: hunter2}}\n")).expect_err(worker);
            let said = format!("equals auth.{user} (/etc/t.yaml line");
            assert!(message.contains(&said) && !message.contains("hunter2"), "{message}");
            from_file(&format!("{worker} {user}: other}}\n")).unwrap();
        }
    }
}

#[test]
fn yaml_that_means_harm_is_an_error() {
    let bomb = |levels: usize| {
        let mut text = "x0: &x0 [a,a,a,a,a,a,a,a,a,a]\n".to_owned();
        for level in 1..levels {
            let before = format!("*x{}", level - 1);
            text += &format!("x{level}: &x{level} [{}]\n", [before.as_str(); 10].join(","));
        }
        text
    };
    let bomb_below_a_key = format!("auth:\n  worker_signing_keys: {}\n", bomb(9).replace('\n', " "));
    let laughs = "auth:\n  worker_tokens: &a {w: x}\n  worker_bootstrap_keys: {b: *a, c: *a}\n";
    for (what, text) in [
        ("a bomb of aliases", bomb(9)),
        ("a bomb below a key", bomb_below_a_key),
        ("an alias of a map for a text", laughs.to_owned()),
        ("an alias of itself", "auth:\n  worker_signing_keys: &a [*a]\n".to_owned()),
        ("an alias of nothing", "auth:\n  api_key: *nothing\n".to_owned()),
        ("a deep list", format!("auth:\n  api_key: {}{}\n", "[".repeat(100_000), "]".repeat(100_000))),
        ("an open deep list", "[".repeat(500_000)),
        ("a deep map", (0..5_000).fold(String::new(), |text, depth| text + &" ".repeat(depth) + "a:\n")),
        ("deep maps in one line", format!("auth: {}", "{a: ".repeat(100_000))),
        ("many documents", "---\nserver:\n".repeat(1000)),
        ("a tag of its own", "auth:\n  api_key: !!python/object:os.system hunter2\n".to_owned()),
        ("a local tag", "auth:\n  api_key: !vault hunter2\n".to_owned()),
        ("a key twice", "auth:\n  api_key: a\n  api_key: hunter2\n".to_owned()),
        ("a section twice", "auth:\n  api_key: a\nauth:\n  api_key: hunter2\n".to_owned()),
        ("an entry twice", "auth:\n  worker_tokens: {w: a, w: hunter2}\n".to_owned()),
        ("a list as a key", "? [a, b]\n: c\n".to_owned()),
        ("control characters", "auth:\n  api_key: \u{1}\n\u{0}hunter2".to_owned()),
        ("a huge key", format!("{}: 1\n", "a".repeat(2 << 20))),
        ("a huge scalar", format!("server:\n  host: {}\n", "a".repeat(5 << 20))),
        ("a text without end", "auth:\n  api_key: \"hunter2\n".to_owned()),
        ("a file that is no map", "hunter2\n".to_owned()),
        ("a merge of what is no map", "auth:\n  <<: hunter2\n".to_owned()),
    ] {
        let message = from_file(&text).expect_err(what);
        assert!(message.starts_with("/etc/t.yaml"), "{what}: {message}");
        assert!(message.len() < 400 && !message.contains("hunter2"), "{what}: {message}");
    }
}

#[test]
fn a_damaged_file_is_read_or_refused_and_nothing_else() {
    let whole = "server:\n  host: ::1\n  port: 1\nauth: {worker_tokens: {w-1: hunter2}, worker_signing_keys: [hunter2]}\n\
                 retention: {finished: 7d}\nworker:\n  operators: &a {x: \"./x.sh\"}\n  rpc_tls: {server_names: *a}\n";
    from_file(whole).unwrap();
    let pieces = [
        ":",
        "\n",
        " ",
        "-",
        "&a ",
        "*a",
        "!!binary ",
        "|\n",
        ">",
        "{",
        "}",
        "[",
        "]",
        "\"",
        "'",
        "#",
        "<<: ",
        "? ",
        "%",
        "\t",
        "~",
        "\u{feff}",
        "---\n",
        "...",
    ];
    // Numbers that are the same in every run.
    let mut state = 1_u64;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap() % below
    };
    let mut refused = 0;
    for _ in 0..4000 {
        let mut text = whole.to_owned();
        for _ in 0..=next(4) {
            let (at, piece) = (next(text.len()), pieces[next(pieces.len())]);
            if text.is_char_boundary(at) {
                text.insert_str(at, piece);
                let kept = text.chars().count() - next(6) * next(2);
                text = text.chars().take(kept).collect();
            }
        }
        let Err(message) = from_file(&text) else { continue };
        refused += 1;
        assert!(!message.contains("hunter2"), "{text}\n{message}");
    }
    assert!(refused > 1000, "only {refused} were damaged enough");
}

#[test]
fn anchors_and_merges_in_reasonable_numbers_are_fine() {
    let text = "auth:\n  oidc_admin_groups: &groups [a, b]\n  oidc_viewer_groups: *groups\n  oidc_enabled: true\n";
    let oidc = from_file(text).unwrap().auth.oidc.unwrap();
    assert_eq!(oidc.admin_groups, oidc.viewer_groups);
}
