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
    assert_eq!((config.host.as_str(), config.port), ("127.0.0.1", 7423));
    assert_eq!(config.store.reveal(), "sqlite:/data/tenure.db");
    assert_eq!(config.logging, Logging { level: "info", format: None });
    assert_eq!(config.retention, Retention::default());
    let auth = config.auth().unwrap();
    assert!(!auth.user.enabled && !auth.worker.is_configured());
}

#[test]
fn a_flag_wins_over_the_environment_and_that_over_the_file() {
    let file = "server:\n  host: ::1\n  port: 1\nlogging:\n  level: warn\n  format: pretty\n";
    let env = [("TENURE_SERVER__PORT", "2"), ("TENURE_LOGGING__LEVEL", "debug")];
    let config = load(Flags::default(), &env, Some(file)).unwrap();
    assert_eq!((config.host.as_str(), config.port), ("::1", 2));
    assert_eq!(config.logging, Logging { level: "debug", format: Some(LogFormat::Pretty) });
    let flags = Flags { listen: Some(("localhost".into(), 3)), ..Flags::default() };
    let config = load(flags, &env, Some(file)).unwrap();
    assert_eq!((config.host.as_str(), config.port), ("localhost", 3));
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
fn databases_that_make_no_sense_are_refused() {
    for (text, part) in [
        ("database:\n  driver: mysql\n", "must be one of sqlite, postgres, not `mysql`"),
        ("database:\n  driver: postgres\n", "database.dsn is not set"),
        ("database:\n  dsn: postgres://h/d\n", "database.driver is sqlite"),
        ("database:\n  driver: postgres\n  dsn: mysql://u:hunter2@h/d\n", "must start with postgres://"),
        ("database:\n  path: ''\n", "database.path is empty"),
    ] {
        let message = from_file(text).unwrap_err();
        assert!(message.contains(part) && !message.contains("hunter2"), "{message}");
    }
    for text in ["tenure.db", "mysql://x", "sqlite:", "postgres://"] {
        assert!(StoreUrl::parse(text).is_err(), "{text}");
    }
}

#[test]
fn values_of_the_wrong_kind_are_refused_with_their_place() {
    for (text, part) in [
        ("server:\n  port: 70000\n", "/etc/t.yaml line 2: server.port must be a port from 0 to 65535, not `70000`"),
        ("logging:\n  level: loud\n", "logging.level must be one of off, error, warn, info, debug, trace"),
        ("retention:\n  finished: 7\n", "retention.finished must be a duration such as 30s, 12h or 7d, not `7`"),
        ("retention:\n  finished: -7d\n", "retention.finished must be a duration"),
        ("retention:\n  max_finished: -1\n", "retention.max_finished must be a number"),
        ("auth:\n  enabled: perhaps\n", "auth.enabled must be true or false"),
    ] {
        let message = from_file(text).unwrap_err();
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn retention_is_read() {
    let text = "retention:\n  finished: 12h\n  dead_letters: 90d\n  events: 10m\n  max_finished: 5\n";
    let kept = from_file(text).unwrap().retention;
    assert_eq!((kept.finished_ms, kept.dead_letter_ms), (12 * 3_600_000, 90 * 24 * 3_600_000));
    assert_eq!((kept.events_ms, kept.finished_count), (600_000, 5));
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
fn a_token_file_lies_beside_the_file_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    let load = || {
        let file = (folder.path().join("t.yaml"), "auth:\n  worker_token_file: token\n".to_owned());
        Config::from_sources(Flags::default(), "/data".into(), [], Some(file)).unwrap()
    };
    let message = load().auth().unwrap_err().to_string();
    assert!(
        message.contains("line 2: auth.worker_token_file names") && message.contains("cannot be read"),
        "{message}"
    );
    std::fs::write(&token, " \n").unwrap();
    assert!(load().auth().unwrap_err().to_string().ends_with("which is empty"));
    std::fs::write(&token, "hunter2\n").unwrap();
    assert!(load().auth().unwrap().worker.shared.unwrap().matches("hunter2"));
}

#[test]
fn credentials_that_contradict_each_other_are_refused() {
    let both = load(
        Flags::default(),
        &[("TENURE_AUTH__WORKER_TOKEN", "hunter2")],
        Some("auth:\n  worker_token_file: /run/token\n"),
    );
    assert_eq!(
        both.unwrap_err(),
        "auth.worker_token (the variable TENURE_AUTH__WORKER_TOKEN) and auth.worker_token_file (/etc/t.yaml line 2) \
         are both set: keep one"
    );
    assert!(from_file("auth:\n  enabled: true\n").unwrap_err().contains("neither auth.api_key nor"));
    assert!(from_file("auth:\n  api_key: ''\n").unwrap_err().ends_with("auth.api_key is empty"));
    let same = from_file("auth:\n  api_key: hunter2\n  worker_tokens: {w-1: hunter2}\n").unwrap();
    let message = same.auth().unwrap_err().to_string();
    assert!(message.starts_with("a worker token equals auth.api_key"), "{message}");
}

#[test]
fn keys_that_nobody_is_asked_for_are_noticed() {
    assert!(from_file("auth:\n  api_key: k\n").unwrap().has_idle_keys());
    assert!(!from_file("auth:\n  enabled: true\n  api_key: k\n").unwrap().has_idle_keys());
    assert!(!from_file("").unwrap().has_idle_keys());
}
