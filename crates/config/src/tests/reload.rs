//! Reading again, showing, and the example.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use super::{content_for, from_file, load};
use crate::keys::{self, Kind, Shape};
use crate::{Config, Flags, Shown, changed_keys, example, needs_restart, show};

#[test]
fn a_reload_reads_files_again_and_keeps_flags_and_environment() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("t.yaml"), "auth:\n  api_key_file: key\n  worker_token: one\nretention: {finished: 7d}\n").unwrap();
    fs::write(at("key"), "first\n").unwrap();
    let env = [("TENURE_LOGGING__LEVEL".into(), "debug".into())];
    let flags = Flags { listen: Some(("::1".into(), 3)), ..Flags::default() };
    let text = fs::read_to_string(at("t.yaml")).unwrap();
    let old = Config::from_sources(flags, "/data".into(), env, Some((at("t.yaml"), text))).unwrap();
    assert_eq!(old.watched(), [at("key"), at("t.yaml")]);
    assert_eq!(changed_keys(&old, &old.reload().unwrap()), [""; 0]);

    fs::write(at("key"), "second\n").unwrap();
    // The same duration in other words is no change.
    let text = "auth:\n  api_key_file: key\n  worker_token: two\nretention: {finished: 168h}\nserver: {port: 9}\n\
                audit: {retention: 1h}\n";
    fs::write(at("t.yaml"), text).unwrap();
    let new = old.reload().unwrap();
    assert!(new.auth.api_key.as_ref().unwrap().matches("second"));
    assert_eq!((new.server.port, new.logging.level), (3, "debug"));
    let changed = changed_keys(&old, &new);
    assert_eq!(changed, ["audit.retention", "auth.api_key_file", "auth.worker_token"]);
    let restart: Vec<_> = changed.into_iter().filter(|key| needs_restart(key)).collect();
    assert_eq!(restart, ["audit.retention"]);

    fs::write(at("key"), "").unwrap();
    assert!(new.reload().unwrap_err().to_string().ends_with("which is empty"));
    fs::remove_file(at("t.yaml")).unwrap();
    assert!(new.reload().unwrap_err().to_string().contains("could not be read"));
}

#[test]
fn every_named_file_is_watched() {
    let files: Vec<_> = keys::all().filter(|key| matches!(key.kind, Kind::File | Kind::Files)).collect();
    let folder = tempfile::tempdir().unwrap();
    let env: Vec<_> = files
        .iter()
        .map(|key| {
            let path = folder.path().join(key.path);
            fs::write(&path, content_for(key.path)).unwrap();
            (crate::env::name_of(key.path).into(), path.into())
        })
        .collect();
    let config = Config::from_sources(Flags::default(), "/data".into(), env, None).unwrap();
    let mut expected: Vec<PathBuf> = files.iter().map(|key| folder.path().join(key.path)).collect();
    expected.sort();
    assert_eq!(config.watched(), expected);
}

/// A value for each key that holds a secret, with something to look for in it.
fn canaries() -> Vec<(String, &'static str)> {
    let secret = keys::all().filter(|key| key.kind.is_secret());
    let value = |kind: Kind| match kind {
        Kind::SecretMap => r#"{"w-1":"hunter2"}"#,
        Kind::Dsn => "postgres://u:hunter2@h/d?password=hunter2",
        Kind::Secrets => "hunter2,hunter2-b",
        _ => "hunter2",
    };
    let users = ["auth.api_key", "auth.admin_api_key"];
    let value = |key: &keys::Key| match key.path {
        "redis.url" => "redis://u:hunter2@redis.example",
        path if users.contains(&path) => "hunter2-of-users",
        _ => value(key.kind),
    };
    secret.map(|key| (crate::env::name_of(key.path), value(key))).collect()
}

#[test]
fn no_secret_is_shown_or_printed() {
    let canaries = canaries();
    assert!(canaries.len() >= 10, "{canaries:?}");
    let mut env: Vec<_> = canaries.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    env.push(("TENURE_DATABASE__DRIVER", "postgres"));
    let config = load(Flags::default(), &env, None).unwrap();
    let shown = show(&config);
    let lint = [true, false].map(|production| crate::lint(&config, production));
    let changed = changed_keys(&config, &load(Flags::default(), &[], None).unwrap());
    assert!(changed.contains(&"auth.worker_tokens") && changed.contains(&"database.dsn"));
    let texts: Vec<_> = shown.iter().map(Shown::text).collect();
    let printed = format!("{config:?} {config:#?} {shown:?} {texts:?} {lint:?} {changed:?} {}", config.store);
    assert!(!printed.contains("hunter2"), "{printed}");
    let by_key: BTreeMap<_, _> = shown.iter().map(|shown| (shown.key, shown.text())).collect();
    assert_eq!(by_key["auth.api_key"], "***");
    assert_eq!(by_key["auth.worker_tokens"], "w-1=***");
    assert_eq!(by_key["auth.worker_signing_keys"], "***, ***");
    assert_eq!(by_key["database.dsn"], "postgres://u:***@h/d?password=***");
    assert_eq!(by_key["redis.url"], "redis://u:***@redis.example");
}

#[test]
fn what_holds_is_shown_with_where_it_was_set() {
    let file = "retention: {finished: 36h}\nserver: {tls: {cert_file: c, key_file: k, client_ca_file: a}}\n\
                auth: {oidc_admin_groups: [a, b], enabled: false}\nworker: {operators: {x: ./x.sh}}\n";
    let env = [("TENURE_TENANTS__MAX_PAYLOAD_BYTES", "64KiB")];
    let flags = Flags { listen: Some(("::1".into(), 3)), ..Flags::default() };
    let shown = show(&load(flags, &env, Some(file)).unwrap());
    assert_eq!(shown.len(), keys::all().count());
    let by_key: BTreeMap<_, _> = shown.iter().map(|shown| (shown.key, (shown.text(), shown.origin.as_str()))).collect();
    for (key, value, origin) in [
        ("retention.finished", "36h0m0s", "/etc/t.yaml line 1"),
        ("retention.events", "1h0m0s", "default"),
        ("server.host", "::1", "--listen"),
        ("server.tls.client_auth", "required", "default"),
        ("server.tls.cert_file", "c", "/etc/t.yaml line 2"),
        ("tenants.max_payload_bytes", "65536", "the variable TENURE_TENANTS__MAX_PAYLOAD_BYTES"),
        ("auth.oidc_admin_groups", "a, b", "/etc/t.yaml line 3"),
        ("auth.api_key", "", "default"),
        ("worker.operators", "x=./x.sh", "/etc/t.yaml line 4"),
    ] {
        assert_eq!(by_key[key], (value.to_owned(), origin), "{key}");
    }
    let json = serde_json::to_value(&shown).unwrap();
    let find = |key: &str| json.as_array().unwrap().iter().find(|shown| shown["key"] == key).unwrap();
    assert_eq!(find("server.port")["value"], 3);
    assert_eq!(find("auth.enabled")["value"], false);
    assert_eq!(find("auth.oidc_admin_groups")["value"], serde_json::json!(["a", "b"]));
    assert!(find("auth.api_key").get("value").is_none());
}

#[test]
fn the_example_loads_as_it_is_and_changes_nothing() {
    let text = example();
    let defaults = load(Flags::default(), &[], None).unwrap();
    let config = from_file(&text).unwrap();
    assert_eq!(changed_keys(&config, &defaults), [""; 0]);
    assert!(text.lines().all(|line| line.chars().count() <= 120 && line.trim_end() == line), "{text}");
    // So it does when every key is set to the default that stands there.
    let key = |line: &str| {
        let name = line.trim_start().strip_prefix("# ")?.split_once(':')?.0;
        keys::all().any(|key| key.path.rsplit('.').next() == Some(name)).then(|| line.replacen("# ", "", 1))
    };
    let uncommented: String = text.lines().map(|line| key(line).unwrap_or(line.to_owned()) + "\n").collect();
    let config = from_file(&uncommented).unwrap();
    assert_eq!(changed_keys(&config, &defaults), [""; 0]);
    let set = keys::all().filter(|key| config.settings.is_set(key.path)).count();
    let with_value = keys::all().filter(|key| !key.default.is_empty() || key.kind.shape() != Shape::Text).count();
    assert_eq!(set, with_value, "{uncommented}");
}
