//! The configuration: flags, then environment, then a file, then defaults.

mod env;
mod error;
mod file;
mod keys;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure_auth::{Secret, UserAuth, WorkerAuth};

pub use error::{ConfigError, Origin};
use settings::{Given, Settings, Value};

const HOST_DEFAULT: &str = "127.0.0.1";
const PORT_DEFAULT: u16 = 7423;
const STORE_FILE: &str = "tenure.db";

/// What the command line says about the configuration.
#[derive(Debug, Default, Clone)]
pub struct Flags {
    pub config: Option<PathBuf>,
    pub data: Option<PathBuf>,
    /// `--store` or `TENURE_STORE`.
    pub store: Option<StoreUrl>,
    /// Host and port.
    pub listen: Option<(String, u16)>,
}

/// A configuration that was read and makes sense in itself.
#[derive(Debug)]
pub struct Config {
    /// The file it was read from.
    pub file: Option<PathBuf>,
    /// Where the store and the worker token are by default.
    pub data: PathBuf,
    pub host: String,
    pub port: u16,
    pub store: StoreUrl,
    pub logging: Logging,
    pub retention: Retention,
    settings: Settings,
}

/// How long what has ended is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    pub finished: Duration,
    pub dead_letters: Duration,
    pub events: Duration,
    /// At most so many ended tasks, whatever their age.
    pub max_finished: u64,
}

impl Default for Retention {
    fn default() -> Self {
        const DAY: Duration = Duration::from_secs(24 * 3600);
        Self { finished: 7 * DAY, dead_letters: 30 * DAY, events: Duration::from_secs(3600), max_finished: 10_000_000 }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Logging {
    pub level: &'static str,
    /// Absent: JSON, unless somebody looks at it on a terminal.
    pub format: Option<LogFormat>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    Json,
    Pretty,
}

/// Who is let in.
#[derive(Debug, Clone)]
pub struct Auth {
    pub user: UserAuth,
    pub worker: WorkerAuth,
}

/// The address of a store. It may hold a password, so it does not print.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl(String);

impl StoreUrl {
    /// `sqlite:PATH` or `postgres://…`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let known = ["sqlite:", "postgres://", "postgresql://"];
        let (rest, _) = known
            .iter()
            .find_map(|scheme| text.strip_prefix(scheme).map(|rest| (rest, scheme)))
            .ok_or("a store is `sqlite:PATH` or `postgres://user@host/database`")?;
        if rest.is_empty() {
            return Err("the address of the store ends after its scheme".to_owned());
        }
        Ok(Self(text.to_owned()))
    }

    pub fn sqlite(path: &Path) -> Self {
        Self(format!("sqlite:{}", path.display()))
    }

    /// The address, for those who connect to it.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    pub fn is_postgres(&self) -> bool {
        !self.0.starts_with("sqlite:")
    }

    /// The file of an SQLite store.
    pub fn path(&self) -> Option<&Path> {
        self.0.strip_prefix("sqlite:").map(Path::new)
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path() {
            Some(path) => write!(f, "sqlite:{}", path.display()),
            None => f.write_str("postgres"),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Config {
    /// Reads the configuration of this process.
    pub fn load(flags: Flags) -> Result<Self, ConfigError> {
        let home = std::env::home_dir();
        let file = match flags.config.clone().or_else(config_variable) {
            Some(path) => Some(path),
            None => look_up(home.as_deref()),
        };
        let data = match (&flags.data, home) {
            (Some(data), _) => data.clone(),
            (None, Some(home)) => home.join(".tenure"),
            (None, None) => return Err(ConfigError::Rule("there is no home folder: say --data DIR".to_owned())),
        };
        let text = file.map(|path| match std::fs::read_to_string(&path) {
            Ok(text) => Ok((path, text)),
            Err(source) => Err(ConfigError::Read { path, source }),
        });
        Self::from_sources(flags, data, std::env::vars_os(), text.transpose()?)
    }

    fn from_sources(
        flags: Flags,
        data: PathBuf,
        env: impl IntoIterator<Item = (OsString, OsString)>,
        file: Option<(PathBuf, String)>,
    ) -> Result<Self, ConfigError> {
        let mut settings = Settings::default();
        if let Some((path, text)) = &file {
            settings.overlay(file::parse(path, text)?);
        }
        settings.overlay(env::parse(env)?);
        if let Some((host, port)) = flags.listen {
            let origin = Origin::Flag("--listen");
            settings.overlay([("server.host", host), ("server.port", port.to_string())].map(|(key, text)| Given {
                key,
                value: Value::Text(text),
                origin: origin.clone(),
            }));
        }
        let host = settings.text("server.host").unwrap_or(HOST_DEFAULT).trim().to_owned();
        if host.is_empty() {
            return Err(settings.wrong("server.host", "is empty"));
        }
        let port = settings.number("server.port", "a port from 0 to 65535")?.unwrap_or(PORT_DEFAULT);
        let database = database(&settings, &data)?;
        let store = flags.store.unwrap_or(database);
        let config = Self {
            file: file.map(|(path, _)| path),
            host,
            port,
            store,
            logging: logging(&settings)?,
            retention: retention(&settings)?,
            settings,
            data,
        };
        config.check_auth()?;
        Ok(config)
    }

    /// What can be said about `auth` without opening secret files.
    fn check_auth(&self) -> Result<(), ConfigError> {
        let settings = &self.settings;
        let user = self.user_auth()?;
        if user.enabled && user.api_key.is_none() && user.admin_api_key.is_none() {
            return Err(
                settings.wrong("auth.enabled", "is true, but neither auth.api_key nor auth.admin_api_key is set")
            );
        }
        if let (Some(value), Some(file)) =
            (settings.origin("auth.worker_token"), settings.origin("auth.worker_token_file"))
        {
            return Err(ConfigError::Rule(format!(
                "auth.worker_token ({value}) and auth.worker_token_file ({file}) are both set: keep one"
            )));
        }
        settings.flag("auth.anonymous_workers")?;
        settings.secret("auth.worker_token")?;
        settings.secrets("auth.worker_tokens")?;
        Ok(())
    }

    fn user_auth(&self) -> Result<UserAuth, ConfigError> {
        Ok(UserAuth {
            enabled: self.settings.flag("auth.enabled")?.unwrap_or(false),
            api_key: self.settings.secret("auth.api_key")?,
            admin_api_key: self.settings.secret("auth.admin_api_key")?,
            admin_fallback: false,
        })
    }

    /// The token that all workers share, from the value or its file.
    pub fn worker_token(&self) -> Result<Option<Secret>, ConfigError> {
        let key = "auth.worker_token_file";
        let Some(path) = self.settings.path(key) else { return self.settings.secret("auth.worker_token") };
        let text = std::fs::read_to_string(&path).map_err(|error| {
            self.settings.wrong(key, format!("names {}, which cannot be read: {error}", path.display()))
        })?;
        let empty = || self.settings.wrong(key, format!("names {}, which is empty", path.display()));
        Secret::new(&text).map(Some).ok_or_else(empty)
    }

    /// Commands that run tasks of an operator, by its name.
    pub fn operators(&self) -> impl Iterator<Item = (&str, &str)> {
        self.settings.texts("worker.operators")
    }

    /// An error about `worker.operators`.
    pub fn wrong_operator(&self, problem: impl Into<String>) -> ConfigError {
        self.settings.wrong("worker.operators", problem)
    }

    /// Who is let in. Opens the secret files.
    pub fn auth(&self) -> Result<Auth, ConfigError> {
        let user = self.user_auth()?;
        let worker = WorkerAuth {
            shared: self.worker_token()?,
            per_worker: self.settings.secrets("auth.worker_tokens")?.into_iter().collect::<HashMap<_, _>>(),
            anonymous: self.settings.flag("auth.anonymous_workers")?.unwrap_or(false),
            ..WorkerAuth::default()
        };
        let user_keys = [("auth.api_key", &user.api_key), ("auth.admin_api_key", &user.admin_api_key)];
        for (key, secret) in user_keys.into_iter().filter_map(|(key, secret)| Some((key, secret.as_ref()?))) {
            if worker.shared.iter().chain(worker.per_worker.values()).any(|token| token.matches(secret.reveal())) {
                return Err(ConfigError::Rule(format!(
                    "a worker token equals {key}: a worker must not be able to act as a user"
                )));
            }
        }
        Ok(Auth { user, worker })
    }

    /// Keys are set although nobody is asked for them.
    pub fn has_idle_keys(&self) -> bool {
        let set = |key| self.settings.text(key).is_some();
        (set("auth.api_key") || set("auth.admin_api_key"))
            && self.settings.flag("auth.enabled").ok() != Some(Some(true))
    }

    /// How a key could be set, for messages: `auth.enabled` and its variable.
    pub fn how_to_set(key: &str) -> String {
        format!("{key} in the configuration file, or {}", env::name_of(key))
    }
}

fn config_variable() -> Option<PathBuf> {
    std::env::var_os("TENURE_CONFIG").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// The first of the usual places that has a file.
fn look_up(home: Option<&Path>) -> Option<PathBuf> {
    let places = [
        Some(PathBuf::from("tenure.yaml")),
        home.map(|home| home.join(".tenure/config.yaml")),
        Some(PathBuf::from("/etc/tenure/tenure.yaml")),
    ];
    places.into_iter().flatten().find(|path| path.is_file())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Driver {
    Sqlite,
    Postgres,
}

fn database(settings: &Settings, data: &Path) -> Result<StoreUrl, ConfigError> {
    let drivers = [("sqlite", Driver::Sqlite), ("postgres", Driver::Postgres)];
    let driver = settings.one_of("database.driver", &drivers)?.unwrap_or(Driver::Sqlite);
    let dsn = settings.text("database.dsn").map(str::trim).filter(|dsn| !dsn.is_empty());
    match (driver, dsn) {
        (Driver::Sqlite, None) => {
            let path = settings.text("database.path").unwrap_or(STORE_FILE);
            if path.trim().is_empty() {
                return Err(settings.wrong("database.path", "is empty"));
            }
            Ok(StoreUrl::sqlite(&data.join(path)))
        }
        (Driver::Sqlite, Some(_)) => {
            Err(settings.wrong("database.dsn", "is set, but database.driver is sqlite: set it to postgres"))
        }
        (Driver::Postgres, None) => Err(settings.wrong("database.driver", "is postgres, but database.dsn is not set")),
        (Driver::Postgres, Some(dsn)) => match StoreUrl::parse(dsn) {
            Ok(url) if url.is_postgres() => Ok(url),
            Ok(_) | Err(_) => Err(settings.wrong("database.dsn", "must start with postgres://")),
        },
    }
}

fn logging(settings: &Settings) -> Result<Logging, ConfigError> {
    let levels = ["off", "error", "warn", "info", "debug", "trace"].map(|level| (level, level));
    let formats = [("json", LogFormat::Json), ("pretty", LogFormat::Pretty)];
    Ok(Logging {
        level: settings.one_of("logging.level", &levels)?.unwrap_or("info"),
        format: settings.one_of("logging.format", &formats)?,
    })
}

fn retention(settings: &Settings) -> Result<Retention, ConfigError> {
    let default = Retention::default();
    Ok(Retention {
        finished: settings.duration("retention.finished")?.unwrap_or(default.finished),
        dead_letters: settings.duration("retention.dead_letters")?.unwrap_or(default.dead_letters),
        events: settings.duration("retention.events")?.unwrap_or(default.events),
        max_finished: settings.number("retention.max_finished", "a number")?.unwrap_or(default.max_finished),
    })
}
