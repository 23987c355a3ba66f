//! The profile `stacyvm`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use tenure_auth::Role;

use super::{from_file, load};
use crate::{CompatReason, Config, Driver, Flags, PreviewAuth, show};

fn variables(env: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    env.iter().map(|(name, value)| (name.into(), value.into())).collect()
}

/// As a program that was started as `stacyvm` reads it.
fn as_stacyvm(env: &[(&str, &str)], text: &str) -> Result<Config, String> {
    let file = Some((PathBuf::from("/etc/t.yaml"), text.to_owned()));
    Config::as_stacyvm(variables(env), file).map_err(|error| error.to_string())
}

fn at(path: &str, text: &str) -> Result<Config, String> {
    let file = Some((PathBuf::from(path), text.to_owned()));
    Config::from_sources(Flags::default(), "/data".into(), [], file).map_err(|error| error.to_string())
}

/// A configuration as installations have it.
const FILE: &str = r#"
server: {host: "127.0.0.1", port: 7423, preview_domain: "localhost"}
providers:
  default: "docker"
  mock: {enabled: true}
  docker:
    enabled: true
    socket: "unix:///var/run/docker.sock"
    memory: "512m"
    dropped_caps: ["ALL"]
    pool_security: {per_user_uid: false, workspace_permissions: true}
  firecracker: {enabled: true, kernel_path: "/var/lib/vmlinux.bin"}
  e2b: {enabled: false, api_key: "", base_url: "https://api.example"}
  custom: {enabled: false, name: "custom", timeout: "60s"}
  proot: {enabled: false, languages: ["python3", "bash"]}
defaults: {ttl: "30m", spawn_overflow: "queue", max_ttl: ""}
auth: {enabled: true, api_key: "k", admin_api_key: "", worker_token: "", oidc_issuer: ""}
database: {driver: "sqlite3", path: "/var/lib/s.db", dsn: ""}
logging: {level: "", format: "json"}
pool: {enabled: false, max_vms: 10, overflow: "reject"}
"#;

#[test]
fn the_profile_is_on_by_the_name_of_the_program_by_that_of_the_file_or_by_its_key() {
    assert_eq!(as_stacyvm(&[], "").unwrap().compat.unwrap().reason, CompatReason::Program);
    assert_eq!(from_file("compat: stacyvm\n").unwrap().compat.unwrap().reason, CompatReason::Setting);
    let by_variable = load(Flags::default(), &[("TENURE_COMPAT", "stacyvm")], None).unwrap();
    assert_eq!(by_variable.compat.unwrap().reason, CompatReason::Setting);
    for path in ["stacyvm.yaml", "/home/u/.stacyvm/config.yaml", "/etc/stacyvm.production.yaml"] {
        assert_eq!(at(path, "").unwrap().compat.unwrap().reason, CompatReason::File(path.into()));
    }
    for path in ["tenure.yaml", "/home/u/.tenure/config.yaml", "/srv/stacyvm/tenure.yaml", "mystacyvm.yaml"] {
        assert_eq!(at(path, "").unwrap().compat, None, "{path}");
    }
    let message = from_file("compat: other\n").unwrap_err();
    assert!(message.contains("/etc/t.yaml line 1: compat must be one of stacyvm, not `other`"), "{message}");
}

#[test]
fn files_of_both_names_are_looked_for_with_those_of_the_program_first() {
    let home = Path::new("/h");
    let places = |as_stacyvm| {
        let places = crate::compat::places(Some(home), as_stacyvm);
        places.iter().map(|path| path.display().to_string()).collect::<Vec<_>>()
    };
    let own = ["tenure.yaml", "/h/.tenure/config.yaml", "/etc/tenure/tenure.yaml"];
    let others = ["stacyvm.yaml", "/h/.stacyvm/config.yaml"];
    assert_eq!(places(false), [&own[..], &others[..]].concat());
    assert_eq!(places(true), [&others[..], &own[..]].concat());
}

#[test]
fn a_file_of_an_installation_loads_and_says_what_is_not_available() {
    let config = as_stacyvm(&[], FILE).unwrap();
    assert_eq!(config.database.driver, Driver::Sqlite);
    assert!(config.auth.enabled && config.auth.admin_api_key.is_none() && config.auth.worker.token.is_none());
    assert!(config.providers.process.enabled && config.providers.docker.enabled);
    assert_eq!(config.logging.level, "info");
    assert_eq!(config.defaults.max_ttl.as_secs(), 24 * 3600);
    let notices = config.compat.unwrap().notices;
    let expected = "/etc/t.yaml line 12: providers.firecracker is enabled but not available: use namespace or docker";
    assert_eq!(notices, [expected]);
    // The same file under another name is refused, with the first section that is unknown.
    let message = from_file(FILE).unwrap_err();
    assert!(message.contains("line 11: unknown key `providers.docker.pool_security`"), "{message}");
}

#[test]
fn defaults_change_unless_they_are_set() {
    let config = as_stacyvm(&[], "").unwrap();
    assert!(config.worker.local && config.legacy_metrics && config.auth.admin_fallback);
    assert_eq!(config.server.cors_allowed_origins, ["*"]);
    assert_eq!(config.server.preview.auth, PreviewAuth::None);
    assert_eq!(config.auth.api_key_role, Role::Operator);
    assert_eq!(config.providers.docker.network_mode, "bridge");
    assert!(!config.auth.enabled, "no key is set");
    let shown = show(&config).into_iter().find(|shown| shown.key == "worker.local").unwrap();
    assert_eq!((shown.text().as_str(), shown.origin.as_str()), ("true", "the profile stacyvm"));

    let text = "worker: {local: false}\nmetrics: {legacy_names: false}\n\
                auth: {admin_fallback_enabled: false, api_key_role: api}\n\
                server: {cors_allowed_origins: [], preview_auth: key}\nproviders: {docker: {network_mode: none}}\n";
    let config = as_stacyvm(&[], text).unwrap();
    assert!(!config.worker.local && !config.legacy_metrics && !config.auth.admin_fallback);
    assert!(config.server.cors_allowed_origins.is_empty());
    assert_eq!((config.server.preview.auth, config.auth.api_key_role), (PreviewAuth::Key, Role::Api));
    assert_eq!(config.providers.docker.network_mode, "none");
    // Without the profile nothing of it applies.
    let config = from_file("").unwrap();
    assert!(!config.worker.local && !config.legacy_metrics && !config.auth.admin_fallback);
    assert!(config.server.cors_allowed_origins.is_empty() && config.providers.docker.network_mode == "none");
    assert_eq!((config.server.preview.auth, config.auth.api_key_role), (PreviewAuth::Key, Role::Api));
}

#[test]
fn variables_of_the_other_name_come_after_the_own_and_before_the_file() {
    let env = [
        ("STACYVM_SERVER_PORT", "1"),
        ("STACYVM_SERVER_HOST", "::1"),
        ("TENURE_SERVER__PORT", "2"),
        ("STACYVM_LOGGING_LEVEL", ""),
        ("STACYVM_SOMETHING_NEW", "x"),
        ("STACYVM_API_KEY", "of the client"),
        ("STACYVM_AUTH_WORKER_TOKENS", r#"{"w-1":"t"}"#),
        ("STACYVM_DATABASE_DRIVER", "postgresql"),
        ("STACYVM_DATABASE_DSN", "postgres://h/d"),
    ];
    let config = as_stacyvm(&env, "server: {host: 127.0.0.1, port: 3}\nlogging: {level: warn}\n").unwrap();
    assert_eq!((config.server.host.as_str(), config.server.port), ("::1", 2));
    assert_eq!((config.logging.level, config.database.driver), ("warn", Driver::Postgres));
    assert!(config.auth.worker.tokens["w-1"].matches("t") && config.auth.api_key.is_none());
    let message = as_stacyvm(&[("STACYVM_SERVER_PORT", "many")], "").unwrap_err();
    assert!(message.contains("the variable STACYVM_SERVER_PORT: server.port must be a port"), "{message}");
    // Outside of the profile they are not read, and drivers have one name.
    let config = load(Flags::default(), &env[..2], None).unwrap();
    assert_eq!((config.server.host.as_str(), config.server.port), ("127.0.0.1", 7423));
    assert!(from_file("database: {driver: sqlite3}\n").unwrap_err().contains("must be one of sqlite, postgres"));
}

#[test]
fn the_provider_process_has_two_names_and_is_set_once() {
    for text in ["providers: {mock: {enabled: true}}\n", "providers: {default: mock, process: {enabled: true}}\n"] {
        assert!(from_file(text).unwrap().providers.process.enabled, "{text}");
    }
    let message = from_file("providers:\n  mock: {enabled: true}\n  process: {enabled: false}\n").unwrap_err();
    assert!(message.contains("providers.process.enabled is set twice (/etc/t.yaml line 2 and"), "{message}");
}

#[test]
fn a_reload_stays_in_the_profile() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("stacyvm.yaml");
    std::fs::write(&path, "auth: {api_key: one}\n").unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let old = Config::from_sources(Flags::default(), "/data".into(), [], Some((path.clone(), text))).unwrap();
    std::fs::write(&path, "auth: {api_key: two}\npool: {enabled: true}\n").unwrap();
    let new = old.reload().unwrap();
    assert!(new.auth.api_key.as_ref().unwrap().matches("two") && new.worker.local);
    assert_eq!(new.compat.as_ref().unwrap().notices.len(), 1);
    assert_eq!(crate::changed_keys(&old, &new), ["auth.api_key"]);
}
