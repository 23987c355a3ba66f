mod compat;
mod reload;
mod rules;
mod sections;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use tenure_auth::Role;

use super::*;

fn load(flags: Flags, env: &[(&str, &str)], file: Option<&str>) -> Result<Config, String> {
    let env = env.iter().map(|(name, value)| (name.into(), value.into())).collect::<Vec<(OsString, OsString)>>();
    let file = file.map(|text| (PathBuf::from("/etc/t.yaml"), text.to_owned()));
    Config::from_sources(flags, "/data".into(), env, file).map_err(|error| error.to_string())
}

fn from_file(text: &str) -> Result<Config, String> {
    load(Flags::default(), &[], Some(text))
}

#[test]
fn defaults_hold_when_nothing_is_set() {
    let config = load(Flags::default(), &[], None).unwrap();
    assert_eq!((config.server.host.as_str(), config.server.port), ("127.0.0.1", 7423));
    assert_eq!(config.store.reveal(), "sqlite:/data/tenure.db");
    assert_eq!(config.logging, Logging { level: "info", access: false, format: None });
    let day = Duration::from_secs(24 * 3600);
    assert_eq!((config.retention.finished, config.retention.dead_letters), (7 * day, 30 * day));
    assert_eq!((config.retention.events, config.retention.max_finished), (Duration::from_secs(3600), 10_000_000));
    let auth = config.auth().unwrap();
    assert!(!auth.user.enabled && !auth.worker.is_configured());
}

#[test]
fn a_flag_wins_over_the_environment_and_that_over_the_file() {
    let file = "server:\n  host: ::1\n  port: 1\nlogging:\n  level: warn\n  format: pretty\n";
    let env = [("TENURE_SERVER__PORT", "2"), ("TENURE_LOGGING__LEVEL", "debug")];
    let config = load(Flags::default(), &env, Some(file)).unwrap();
    assert_eq!((config.server.host.as_str(), config.server.port), ("::1", 2));
    assert_eq!(config.logging, Logging { level: "debug", access: false, format: Some(LogFormat::Pretty) });
    let flags = Flags { listen: Some(("localhost".into(), 3)), ..Flags::default() };
    let config = load(flags, &env, Some(file)).unwrap();
    assert_eq!((config.server.host.as_str(), config.server.port), ("localhost", 3));
}

#[test]
fn the_store_comes_from_its_flag_or_from_the_database_section() {
    let postgres = "database:\n  driver: postgres\n  dsn: postgres://u:hunter2@h/d\n";
    let config = from_file(postgres).unwrap();
    assert_eq!(config.store.reveal(), "postgres://u:hunter2@h/d");
    let flags = Flags { store: Some(StoreUrl::parse("sqlite:x.db").unwrap()), ..Flags::default() };
    assert_eq!(load(flags, &[], Some(postgres)).unwrap().store.reveal(), "sqlite:x.db");
    assert_eq!(from_file("database:\n  path: other.db\n").unwrap().store.reveal(), "sqlite:/data/other.db");
}

#[test]
fn store_addresses_have_a_scheme() {
    for text in ["tenure.db", "mysql://x", "sqlite:", "postgres://"] {
        assert!(StoreUrl::parse(text).is_err(), "{text}");
    }
}

#[test]
fn retention_is_read() {
    let text = "retention:\n  finished: 12h\n  dead_letters: 90d\n  events: 10m\n  max_finished: 5\n";
    let kept = from_file(text).unwrap().retention;
    let hours = |hours: u64| Duration::from_secs(hours * 3600);
    assert_eq!((kept.finished, kept.dead_letters), (hours(12), hours(90 * 24)));
    assert_eq!((kept.events, kept.max_finished), (Duration::from_secs(600), 5));
}

#[test]
fn secrets_are_read_and_do_not_print() {
    let text = "auth:\n  enabled: true\n  api_key: hunter2\n  worker_token: hunter3\n  worker_tokens: {w-1: hunter4}\n\
                database:\n  driver: postgres\n  dsn: postgres://u:hunter5@h/d\n";
    let config = from_file(text).unwrap();
    let auth = config.auth().unwrap();
    assert!(auth.user.api_key.as_ref().unwrap().matches("hunter2"));
    assert!(auth.worker.shared.as_ref().unwrap().matches("hunter3"));
    assert!(auth.worker.per_worker["w-1"].matches("hunter4"));
    let printed = format!("{config:?} {config:#?} {auth:?} {}", config.store);
    assert!(!printed.contains("hunter"), "{printed}");
}

#[test]
fn keys_that_nobody_is_asked_for_are_noticed() {
    assert!(from_file("auth:\n  enabled: false\n  api_key: k\n").unwrap().has_idle_keys());
    assert!(from_file("auth:\n  enabled: false\n  oidc_enabled: true\n").unwrap().has_idle_keys());
    assert!(!from_file("auth:\n  api_key: k\n").unwrap().has_idle_keys());
    assert!(!from_file("auth:\n  enabled: true\n  api_key: k\n").unwrap().has_idle_keys());
    assert!(!from_file("").unwrap().has_idle_keys());
}

#[test]
fn authentication_is_on_when_it_is_asked_for_or_when_a_key_is_set() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    std::fs::write(&file, "k").unwrap();
    let in_file = format!("auth: {{api_key_file: {}}}\n", file.display());
    for (text, expected) in [
        ("", false),
        ("auth: {worker_token: t}\n", false),
        ("auth: {api_key: k}\n", true),
        ("auth: {admin_api_key: k}\n", true),
        (in_file.as_str(), true),
        ("auth: {oidc_enabled: true, oidc_issuer: i}\n", true),
        ("auth: {oidc_enabled: false, oidc_issuer: i}\n", false),
        ("auth: {oidc_issuer: '', oidc_admin_groups: [g]}\n", false),
        ("auth: {api_key: k, oidc_issuer: i}\n", true),
        ("auth: {enabled: false, api_key: k}\n", false),
        ("auth: {enabled: true, api_key: k}\n", true),
    ] {
        let config = from_file(text).unwrap();
        assert_eq!(config.auth.enabled, expected, "{text}");
        let shown = show(&config).into_iter().find(|shown| shown.key == "auth.enabled").unwrap();
        assert_eq!(shown.text(), expected.to_string(), "{text}");
    }
    // Half an identity provider is not an open API.
    for key in ["oidc_issuer: i", "oidc_jwks_url: 'https://i/keys'", "oidc_public_key: k"] {
        let message = from_file(&format!("auth: {{{key}}}\n")).unwrap_err();
        assert!(message.contains("is set, but auth.oidc_enabled is not: set it to true"), "{message}");
    }
}

#[test]
fn the_key_of_the_configuration_has_the_role_that_is_set() {
    for (text, role) in [("", Role::Api), ("viewer", Role::Viewer), ("Operator", Role::Operator)] {
        let text = if text.is_empty() { String::new() } else { format!(", api_key_role: {text}") };
        let auth = from_file(&format!("auth: {{api_key: k{text}}}\n")).unwrap().auth().unwrap();
        assert_eq!(auth.user.configured("k").unwrap().1, role);
    }
    let message = from_file("auth:\n  api_key_role: admin\n").unwrap_err();
    assert!(
        message.contains("line 2: auth.api_key_role must be one of viewer, api, operator, not `admin`"),
        "{message}"
    );
}

/// The key pair of the worker contract's test vector.
const PRIVATE_KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";
const PUBLIC_KEY: &str = "A6EHv_POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg";
/// The public key of RFC 8032's first test.
const OTHER_PUBLIC_KEY: &str = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";

/// What the file of a key may hold.
fn content_for(key: &str) -> &str {
    match key {
        "auth.worker_private_key_file" => PRIVATE_KEY,
        "auth.worker_public_keys_file" => PUBLIC_KEY,
        "redis.url_file" => "rediss://redis.example",
        other => other,
    }
}
