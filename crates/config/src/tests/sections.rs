//! What the sections come out as.

use std::path::Path;
use std::time::Duration;

use tenure_auth::Anonymous;
use tenure_tls::{BindWorkerId, ClientAuth};

use super::{OTHER_PUBLIC_KEY, PUBLIC_KEY, from_file, load};
use crate::{
    AuditCommands, Config, Driver, Flags, ObjectPlace, PreviewAuth, RateKey, SpawnOverflow, TransportName, Weights,
};

#[test]
fn every_default_holds_when_nothing_is_set() {
    let config = load(Flags::default(), &[], None).unwrap();
    assert!(config.server.tls.is_none() && config.server.cors_allowed_origins.is_empty());
    let server = &config.server;
    assert_eq!((server.max_connections, server.max_connections_per_address), (10_000, 5_000));
    assert_eq!((server.write_timeout, server.request_memory_bytes), (Duration::from_secs(60), 128 << 20));
    assert_eq!(config.database.driver, Driver::Sqlite);
    let limit = config.rate_limit;
    assert_eq!((limit.enabled, limit.requests_per_minute, limit.burst), (false, 120, 60));
    assert_eq!((limit.key_by, limit.failed_auth_per_minute), (RateKey::Owner, 30));
    assert_eq!((limit.bucket_ttl, limit.cleanup_interval), (Duration::from_secs(900), Duration::from_secs(60)));
    let tenants = config.tenants;
    assert_eq!((tenants.max_ready, tenants.max_running, tenants.submits_per_second), (0, 0, 0));
    assert_eq!(config.audit_retention, Duration::from_secs(30 * 24 * 3600));
    assert_eq!(config.tokens.issuer, "tenure");
    assert!(config.tokens.key_file.is_none() && config.tokens.callback_secret.is_none());
    assert!(config.outbound.allow_cidrs.is_empty() && !config.outbound.allow_http);
    assert_eq!(config.worker.control_plane_url, "http://localhost:7423");
    assert!(config.worker.id.is_none() && !config.worker.rpc_tls.enabled);
    assert_eq!(config.worker.rpc_tls.bind_worker_id, BindWorkerId::Off);
    let transport = config.transport;
    assert_eq!((transport.default, transport.outbox_max_tries), (TransportName::Embedded, 20));
    assert_eq!(transport.sweep_interval, Duration::from_secs(60));
    assert!(transport.redis.is_none() && transport.sqs.is_none());
    let auth = config.auth;
    assert!(!auth.enabled && !auth.admin_fallback && auth.oidc.is_none() && auth.admin_audit_retention.is_zero());
    assert!(!auth.worker.legacy && auth.worker.anonymous == Anonymous::Nobody);
}

#[test]
fn outputs_lie_in_a_folder_unless_a_bucket_is_named() {
    let objects = |file| load(Flags::default(), &[], file).unwrap().objects;
    let folder = objects(None);
    assert!(matches!(&folder.place, ObjectPlace::Folder(path) if path.ends_with("objects")));
    assert!(folder.allow_file && folder.write_prefixes.is_empty());
    assert_eq!(folder.staging_retention, Duration::from_secs(7 * 24 * 3_600));
    let other = objects(Some("dispatch: {object_store: {url: 'file:///srv/x', allow_file: false}}\n"));
    assert_eq!((other.place, other.allow_file), (ObjectPlace::Folder("/srv/x".into()), false));
    let file = "dispatch:\n  write_prefixes: ['s3://lake/{task_id}', 's3://lake/{dag}']\n  \
                object_store: {url: 's3://lake/a', region: eu-central-1, path_style: true}\n";
    let s3 = objects(Some(file));
    assert!(matches!(&s3.place, ObjectPlace::S3(root) if root.to_string() == "s3://lake/a/"));
    assert!(s3.path_style && !s3.allow_file, "a bucket has no files");
    let named: Vec<_> = s3.write_prefixes.iter().map(|template| template.names_task()).collect();
    assert_eq!((s3.region.as_deref(), named), (Some("eu-central-1"), vec![true, false]));
}

#[test]
fn sandboxes_have_defaults_and_limits() {
    let seconds = Duration::from_secs;
    let config = load(Flags::default(), &[], None).unwrap();
    let defaults = &config.defaults;
    assert_eq!((defaults.ttl, defaults.max_ttl), (seconds(1800), seconds(24 * 3600)));
    assert_eq!(defaults.image, "alpine:latest");
    assert_eq!((defaults.memory_mb, defaults.vcpus, defaults.disk_size_mb), (1024, 1, 1024));
    assert_eq!((defaults.pool_size, defaults.pool_template.as_deref()), (0, None));
    assert_eq!((defaults.max_sandboxes, defaults.max_sandboxes_per_owner), (0, 0));
    assert_eq!((defaults.spawn_overflow, defaults.max_spawn_queue), (SpawnOverflow::Reject, 100));
    assert_eq!(defaults.spawn_queue_timeout, seconds(30));
    assert_eq!((defaults.default_exec_timeout, defaults.max_exec_timeout), (seconds(0), seconds(600)));
    assert_eq!((config.leases.ttl, config.leases.max_ttl), (seconds(60), seconds(300)));
    assert_eq!(config.scheduler.freshness, seconds(120));
    assert_eq!(config.scheduler.weights, Weights { memory: 0.5, vcpus: 0.3, count: 0.2 });
    assert!(!config.worker.local && !config.legacy_metrics && config.audit_commands == AuditCommands::Full);
    let preview = &config.server.preview;
    assert_eq!((preview.domain.as_deref(), preview.auth), (None, PreviewAuth::Key));
    assert_eq!(preview.domain_at(7423), "localhost:7423");
    assert!(preview.ports.contains(1024) && preview.ports.contains(65_535) && !preview.ports.contains(80));
}

#[test]
fn sandboxes_are_set_in_the_file_and_by_variables() {
    let seconds = Duration::from_secs;
    let file = "server: {preview_domain: 'Preview.Example:8443', preview_ports: '80,3000-3999', preview_auth: none}\n\
                defaults: {ttl: 1h, max_ttl: 10m, spawn_overflow: queue, max_sandboxes: 3, pool_template: py}\n\
                leases: {ttl: 10m}\nscheduler: {freshness: 45s, weights: {memory: 1, count: 0}}\n\
                metrics: {legacy_names: true}\naudit: {commands: hash}\n";
    let env = [("TENURE_SCHEDULER__WEIGHTS__VCPUS", "0.25"), ("TENURE_WORKER__LOCAL", "true")];
    let config = load(Flags::default(), &env, Some(file)).unwrap();
    let preview = &config.server.preview;
    assert_eq!((preview.domain_at(1).as_str(), preview.auth), ("preview.example:8443", PreviewAuth::None));
    assert!(preview.ports.contains(80) && !preview.ports.contains(8080));
    // A default that is longer than the limit would refuse every request that names none.
    assert_eq!((config.defaults.ttl, config.defaults.max_ttl), (seconds(600), seconds(600)));
    assert_eq!((config.defaults.spawn_overflow, config.defaults.max_sandboxes), (SpawnOverflow::Queue, 3));
    assert_eq!(config.defaults.pool_template.as_deref(), Some("py"));
    assert_eq!((config.leases.ttl, config.leases.max_ttl), (seconds(600), seconds(600)));
    assert_eq!(config.scheduler.weights, Weights { memory: 1.0, vcpus: 0.25, count: 0.0 });
    assert!(config.worker.local && config.legacy_metrics && config.audit_commands == AuditCommands::Hash);
    let unlimited = from_file("defaults: {ttl: 48h, max_ttl: 0}\n").unwrap().defaults;
    assert_eq!((unlimited.ttl, unlimited.max_ttl), (seconds(48 * 3600), seconds(0)));
}

#[test]
fn templates_have_secrets_by_tenant() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), "hunter2\nsecond line\n").unwrap();
    let path = folder.path().join("token").display().to_string();
    let text = format!("templates: {{secrets: {{token: inline}}, secret_files: {{acme/token: {path}}}}}\n");
    let config = from_file(&text).unwrap();
    assert!(config.template_secrets["token"].matches("inline"));
    assert!(config.template_secrets["acme/token"].matches("hunter2\nsecond line"));
    assert!(!format!("{config:?}").contains("hunter2"));
    assert!(config.watched().iter().any(|watched| watched.display().to_string() == path));
    for (text, word) in [
        ("templates: {secrets: {a/b/c: hunter2}}", "TENANT/NAME"),
        ("templates: {secrets: {token: ''}}", "empty"),
        ("templates: {secret_files: {token: /nowhere/at/all}}", "cannot be read"),
        (&text.replace("acme/token", "token"), "templates.secret_files has `token`, which templates.secrets has too"),
    ] {
        let message = from_file(text).unwrap_err();
        assert!(message.contains(word) && !message.contains("hunter2"), "{text}: {message}");
    }
}

#[test]
fn a_client_ca_asks_for_certificates_unless_told_otherwise() {
    let auth = |more: &str| {
        let text = format!("server:\n  tls: {{cert_file: c.pem, key_file: /k.pem{more}}}\n");
        from_file(&text).unwrap().server.tls.unwrap()
    };
    assert_eq!(auth("").client_auth, ClientAuth::Off);
    assert_eq!(auth(", client_ca_file: ca").client_auth, ClientAuth::Required);
    assert_eq!(auth(", client_ca_file: ca, client_auth: optional").client_auth, ClientAuth::Optional);
    assert_eq!(auth(", client_ca_file: ca, client_auth: off").client_auth, ClientAuth::Off);
    let tls = auth("");
    assert_eq!((tls.cert_file.as_path(), tls.key_file.as_path()), (Path::new("/etc/c.pem"), Path::new("/k.pem")));
}

#[test]
fn lists_and_maps_come_from_the_file_and_from_variables() {
    let file = "server:\n  trusted_proxies: [10.0.0.0/8, fd00::1]\n  cors_allowed_origins: ['*']\n\
                outbound: {allow_cidrs: [10.1.0.0/16]}\n\
                worker:\n  id: w-1\n  rpc_tls: {server_names: {w-1: a.example}, allowed_client_names: [cp]}\n\
                dispatch: {capability: {previous_key_files: [old.pem, /older.pem], verify_key_files: [next.pem]}}\n";
    let env = [
        ("TENURE_OUTBOUND__ALLOW_CIDRS", "10.2.0.0/16, 10.3.0.0/16"),
        ("TENURE_AUTH__WORKER_SIGNING_KEYS", "k1,k2"),
        ("TENURE_AUTH__WORKER_BOOTSTRAP_KEYS", r#"{"w-1":"b"}"#),
        ("TENURE_WORKER__RPC_TLS__ENABLED", "true"),
        ("TENURE_TENANTS__MAX_PAYLOAD_BYTES", "64KiB"),
    ];
    let config = load(Flags::default(), &env, Some(file)).unwrap();
    let proxies: Vec<_> = config.server.trusted_proxies.iter().map(ToString::to_string).collect();
    assert_eq!(proxies, ["10.0.0.0/8", "fd00::1/128"]);
    let networks: Vec<_> = config.outbound.allow_cidrs.iter().map(ToString::to_string).collect();
    assert_eq!(networks, ["10.2.0.0/16", "10.3.0.0/16"]);
    assert!(config.auth.worker.signing_keys[1].matches("k2"));
    assert!(config.auth.worker.bootstrap_keys["w-1"].matches("b"));
    assert!(config.worker.rpc_tls.enabled);
    assert_eq!(config.worker.rpc_tls.server_names["w-1"], "a.example");
    assert_eq!(config.tokens.previous_key_files, [Path::new("/etc/old.pem"), Path::new("/older.pem")]);
    assert_eq!(config.tokens.verify_key_files, [Path::new("/etc/next.pem")]);
    assert_eq!(config.tenants.max_payload_bytes, 65_536);
}

#[test]
fn lists_of_ids_and_keys_come_from_files_too() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("ids"), "id-1\n# gone\nid-2\n").unwrap();
    std::fs::write(folder.path().join("keys"), format!("{PUBLIC_KEY}\n{OTHER_PUBLIC_KEY}\n")).unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let env = [
        ("TENURE_AUTH__WORKER_REVOKED_TOKEN_IDS_FILE", path("ids")),
        ("TENURE_AUTH__WORKER_PUBLIC_KEYS_FILE", path("keys")),
    ];
    let env = env.each_ref().map(|(name, value)| (*name, value.as_str()));
    let worker = load(Flags::default(), &env, None).unwrap().auth.worker;
    assert_eq!(worker.revoked_token_ids.into_iter().collect::<Vec<_>>(), ["id-1", "id-2"]);
    assert_eq!(worker.public_keys, [PUBLIC_KEY, OTHER_PUBLIC_KEY]);
}

#[test]
fn the_contracts_credentials_and_rpc_tls_are_taken_as_they_are() {
    let text = "
auth:
  worker_token: t
  worker_tokens: {worker-a: ta}
  worker_signing_key: worker-signing-key-with-at-least-32-bytes
  worker_signing_keys: [former]
  worker_revoked_token_ids: [00112233445566778899aabbccddeeff]
worker:
  rpc_tls:
    enabled: true
    server_cert_file: /etc/tls/worker.crt
    server_key_file: /etc/tls/worker.key
    client_ca_file: /etc/tls/control-plane-ca.crt
    ca_file: /etc/tls/worker-ca.crt
    client_cert_file: /etc/tls/control-plane.crt
    client_key_file: /etc/tls/control-plane.key
    server_name: worker-a.internal
    insecure_skip_verify: false
";
    let config = from_file(text).unwrap();
    assert!(config.auth.worker.signing_key.is_some() && config.auth.worker.revoked_token_ids.len() == 1);
    let tls = config.worker.rpc_tls;
    assert_eq!(tls.client_key_file.unwrap(), Path::new("/etc/tls/control-plane.key"));
    assert_eq!(tls.server_name.as_deref(), Some("worker-a.internal"));
}

#[test]
fn a_store_that_a_flag_names_stands_for_the_whole_section() {
    let postgres = "database:\n  driver: postgres\n  dsn: postgres://u:hunter2@h/d\n";
    let flags = |store: &str| Flags { store: Some(crate::StoreUrl::parse(store).unwrap()), ..Flags::default() };
    let config = load(flags("sqlite:x.db"), &[], Some(postgres)).unwrap();
    assert_eq!((config.store.reveal(), config.database.driver), ("sqlite:x.db", Driver::Sqlite));
    let config = load(flags("postgres://h/d"), &[], Some("database: {path: x.db}\n")).unwrap();
    assert_eq!((config.store.reveal(), config.database.driver), ("postgres://h/d", Driver::Postgres));
}

#[test]
fn transports_come_out_whole() {
    let text = "
transport: {default: redis, sweep_interval: 5s}
outbox: {max_tries: 3}
redis:
  url: rediss://u:hunter2@redis.example:6380/2
  key_prefix: 'tenure:'
  tls: {ca_file: tls/redis-ca.pem}
sqs: {region: eu-central-1, queue_prefix: prod-, create_queues: true, visibility_timeout: 2m}
";
    let transport = from_file(text).unwrap().transport;
    assert_eq!((transport.default, transport.outbox_max_tries), (TransportName::Redis, 3));
    assert_eq!(transport.sweep_interval, Duration::from_secs(5));
    let redis = transport.redis.unwrap();
    assert!(redis.url.matches("rediss://u:hunter2@redis.example:6380/2"));
    assert_eq!((redis.group.as_str(), redis.key_prefix.as_str()), ("tenure", "tenure:"));
    assert_eq!(redis.ca_file.as_deref(), Some(Path::new("/etc/tls/redis-ca.pem")));
    let sqs = transport.sqs.unwrap();
    assert_eq!((sqs.region.as_deref(), sqs.endpoint_url), (Some("eu-central-1"), None));
    assert_eq!((sqs.queue_prefix.as_str(), sqs.create_queues), ("prod-", true));
    assert_eq!(sqs.visibility_timeout, Duration::from_secs(120));
}

#[test]
fn sqs_is_there_when_its_place_is_named_or_it_is_the_default() {
    let sqs = |text: &str| from_file(text).unwrap().transport.sqs;
    assert!(sqs("sqs: {queue_prefix: prod-, create_queues: true}\n").is_none());
    assert!(sqs("sqs: {region: eu-central-1}\n").is_some());
    assert!(sqs("sqs: {endpoint_url: 'http://localhost:9324'}\n").is_some());
    let by_default = sqs("transport: {default: sqs}\n").unwrap();
    assert_eq!((by_default.region, by_default.visibility_timeout), (None, Duration::from_secs(60)));
}

#[test]
fn a_redis_can_be_named_by_a_file() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("redis"), "redis://u:hunter2@localhost\n").unwrap();
    let path = folder.path().join("redis").display().to_string();
    let env = [("TENURE_REDIS__URL_FILE", path.as_str()), ("TENURE_TRANSPORT__DEFAULT", "redis")];
    let redis = load(Flags::default(), &env, None).unwrap().transport.redis.unwrap();
    assert!(redis.url.matches("redis://u:hunter2@localhost"));
    // A text alone is judged without its files.
    Config::check_text("transport: {default: redis}\nredis: {url_file: /run/redis}\n").unwrap();
    std::fs::write(folder.path().join("redis"), "hunter2\n").unwrap();
    let message = load(Flags::default(), &env, None).unwrap_err();
    assert!(message.contains("redis.url_file must be an address") && !message.contains("hunter2"), "{message}");
}

#[test]
fn what_runs_tasks_of_jobs() {
    let none = from_file("outbox:\n  max_tries: 5\n").unwrap().runtimes;
    assert!(none.lambda.is_none() && none.runtimes.is_empty());
    assert_eq!((none.retry_backoff.as_secs(), none.retry_backoff_max.as_secs()), (30, 600));
    let arn = "arn:aws:lambda:eu-central-1:123456789012:function:page:live";
    let text = format!(
        "dispatch:\n  runtimes: [gpu, ecs_rust]\n  lambda:\n    region: eu-central-1\n    \
         endpoint_url: http://127.0.0.1:3001\n    functions: {{alert_route: page-on-call, udf.node: '{arn}', '*': any}}\n"
    );
    let runtimes = from_file(&text).unwrap().runtimes;
    assert_eq!(runtimes.runtimes, ["ecs_rust".to_owned(), "gpu".to_owned()].into());
    let lambda = runtimes.lambda.unwrap();
    assert_eq!(lambda.region.as_deref(), Some("eu-central-1"));
    assert_eq!(lambda.endpoint_url.as_deref(), Some("http://127.0.0.1:3001"));
    let functions: Vec<_> =
        lambda.functions.iter().map(|(name, function)| (name.as_str(), function.as_str())).collect();
    assert_eq!(functions, [("*", "any"), ("alert_route", "page-on-call"), ("udf.node", arn)]);
}

#[test]
fn pushes_have_secrets_certificates_and_networks_by_name() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("etl"), "from-a-file\n").unwrap();
    let text = format!(
        "callback: {{base_url: 'https://tenure.example/x/'}}\n\
         push:\n  secrets: {{acme/etl: inline}}\n  secret_files: {{etl: {}}}\n\
         \u{20} allow_cidrs: [10.1.0.0/16]\n  allow_http: true\n\
         \u{20} mtls: {{cert_files: {{etl: c.pem}}, key_files: {{etl: /k.pem}}, ca_files: {{etl: ca.pem, other: o.pem}}}}\n",
        folder.path().join("etl").display()
    );
    let config = from_file(&text).unwrap();
    let push = &config.push;
    assert_eq!(push.callback_base_url.as_deref(), Some("https://tenure.example/x"));
    assert!(push.secrets["acme/etl"].matches("inline") && push.secrets["etl"].matches("from-a-file"));
    assert!(push.allow_http && push.allow_cidrs.len() == 1 && push.max_in_flight == 1024);
    let own = push.mtls["etl"].own.as_ref().unwrap();
    assert_eq!((own.0.as_path(), own.1.as_path()), (Path::new("/etc/c.pem"), Path::new("/k.pem")));
    assert!(push.mtls["other"].own.is_none() && push.mtls["other"].ca.is_some());
    for path in ["/etc/c.pem", "/k.pem", "/etc/ca.pem", "/etc/o.pem"] {
        assert!(config.watched().iter().any(|watched| watched == Path::new(path)), "{path}");
    }
    let printed = format!("{config:?}");
    assert!(!printed.contains("inline") && !printed.contains("from-a-file"), "{printed}");

    std::fs::write(folder.path().join("etl"), "another\n").unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &text).unwrap();
    let sources = Some((file.path().to_owned(), text));
    let old = Config::from_sources(Flags::default(), "/data".into(), [], sources).unwrap();
    std::fs::write(folder.path().join("etl"), "a third\n").unwrap();
    let new = old.reload().unwrap();
    assert!(new.push.secrets["etl"].matches("a third"));
    assert_eq!(crate::changed_keys(&old, &new), ["push.secret_files"]);
}

#[test]
fn what_makes_no_sense_about_pushes_is_refused() {
    for (text, word) in [
        ("callback: {base_url: tenure.example}", "callback.base_url"),
        ("callback: {base_url: 'https://u:hunter2@t.example'}", "callback.base_url"),
        ("callback: {base_url: 'https://t.example/?x'}", "callback.base_url"),
        ("push: {secrets: {a/b/c: hunter2}}", "TENANT/NAME"),
        ("push: {secrets: {'a b': hunter2}}", "TENANT/NAME"),
        ("push: {secrets: {etl: ''}}", "empty"),
        ("push: {secrets: {etl: 'hunter2 é'}}", "ASCII"),
        ("push: {secret_files: {etl: /nowhere/at/all}}", "cannot be read"),
        ("push: {secret_files: {etl: ''}}", "names no file"),
        ("push: {secrets: {etl: hunter2}, secret_files: {etl: /dev/null}}", "push.secret_files"),
        ("push: {mtls: {cert_files: {etl: c}}}", "push.mtls.key_files"),
        ("push: {mtls: {key_files: {etl: c}}}", "push.mtls.cert_files"),
        ("push: {allow_cidrs: [10.0.0.0/33]}", "push.allow_cidrs"),
    ] {
        let message = from_file(text).unwrap_err();
        assert!(message.contains(word) && !message.contains("hunter2"), "{text}: {message}");
    }
}

#[test]
fn workers_without_a_token_are_everybody_nobody_or_networks() {
    let anonymous =
        |text: &str| from_file(&format!("auth: {{anonymous_workers: {text}}}\n")).map(|it| it.auth.worker.anonymous);
    assert_eq!(anonymous("true").unwrap(), Anonymous::Everyone);
    assert_eq!(anonymous("false").unwrap(), Anonymous::Nobody);
    assert_eq!(anonymous("[]").unwrap(), Anonymous::Nobody);
    let networks = Anonymous::From(vec!["10.1.0.0/16".parse().unwrap(), "fd00::1/128".parse().unwrap()]);
    assert_eq!(anonymous("[10.1.0.0/16, 'fd00::1']").unwrap(), networks);
    for (text, said) in [
        ("10.1.0.0/16", "must be true, false, or a list of networks"),
        ("[10.1.0.0/33]", "must be true, false, or a list of networks"),
        ("[true]", "must be true, false, or a list of networks"),
        ("[0.0.0.0/0]", "every address"),
        ("['::/0']", "every address"),
    ] {
        let error = anonymous(text).unwrap_err();
        assert!(error.contains("auth.anonymous_workers") && error.contains(said), "{text}: {error}");
    }
    let name = "TENURE_AUTH__ANONYMOUS_WORKERS";
    let by_variable = |value| load(Flags::default(), &[(name, value)], None).unwrap().auth.worker.anonymous;
    assert_eq!(by_variable("10.1.0.0/16, fd00::1"), networks);
    assert_eq!(
        (by_variable("TRUE"), by_variable("false"), by_variable("")),
        (Anonymous::Everyone, Anonymous::Nobody, Anonymous::Nobody)
    );
}
