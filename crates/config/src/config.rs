use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure_auth::Secret;

use super::auth::{Auth, AuthSettings};
use super::database::Database;
use super::defaults::{Defaults, Leases, Scheduler};
use super::error::{ConfigError, Origin};
use super::keys::{self, Change, Key, Kind};
use super::limits::{AuditCommands, RateLimit, Retention, Tenants};
use super::push::PushSettings;
use super::sandboxes::ProviderSettings;
use super::server::{Logging, Server};
use super::settings::{Given, Settings};
use super::store_url::StoreUrl;
use super::tokens::{Outbound, Tokens};
use super::transport::TransportSettings;
use super::worker::Worker;
use super::{
    auth, database, defaults, env, file, files, limits, push, sandboxes, server, show, tokens, transport, worker,
};

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
    pub server: Server,
    pub database: Database,
    pub store: StoreUrl,
    pub auth: AuthSettings,
    pub rate_limit: RateLimit,
    pub tenants: Tenants,
    pub retention: Retention,
    /// How long the record of operations is kept; 0 is for ever.
    pub audit_retention: Duration,
    pub audit_commands: AuditCommands,
    /// Whether metrics of sandboxes have the names of StacyVM too.
    pub legacy_metrics: bool,
    pub tokens: Tokens,
    pub outbound: Outbound,
    pub push: PushSettings,
    pub transport: TransportSettings,
    pub worker: Worker,
    pub defaults: Defaults,
    pub leases: Leases,
    pub scheduler: Scheduler,
    pub providers: ProviderSettings,
    pub logging: Logging,
    pub(crate) settings: Settings,
    sources: Sources,
}

/// What a configuration is made of, kept so that it can be read again.
#[derive(Debug, Clone)]
struct Sources {
    flags: Flags,
    data: PathBuf,
    env: Vec<Given>,
}

impl Config {
    /// Reads the configuration of this process.
    pub fn load(flags: Flags) -> Result<Self, ConfigError> {
        let home = std::env::home_dir();
        let path = match flags.config.clone().or_else(config_variable) {
            Some(path) => Some(path),
            None => look_up(home.as_deref()),
        };
        let data = match (&flags.data, home) {
            (Some(data), _) => data.clone(),
            (None, Some(home)) => home.join(".tenure"),
            (None, None) => return Err(ConfigError::Rule("the home folder is unknown: use --data DIR".to_owned())),
        };
        Self::build(Sources { flags, data, env: env::parse(std::env::vars_os())? }, read(path)?)
    }

    /// Reads all files again, under the same flags and environment.
    pub fn reload(&self) -> Result<Self, ConfigError> {
        Self::build(self.sources.clone(), read(self.file.clone())?)
    }

    #[cfg(test)]
    pub(crate) fn from_sources(
        flags: Flags,
        data: PathBuf,
        env: impl IntoIterator<Item = (std::ffi::OsString, std::ffi::OsString)>,
        file: Option<(PathBuf, String)>,
    ) -> Result<Self, ConfigError> {
        Self::build(Sources { flags, data, env: env::parse(env)? }, file)
    }

    /// Whether the text of a file makes sense in itself. Neither the environment nor the files that it names are looked
    /// at, so it can be asked about any text.
    pub fn check_text(text: &str) -> Result<(), ConfigError> {
        let sources = Sources { flags: Flags::default(), data: PathBuf::new(), env: Vec::new() };
        let file = Some((PathBuf::from("tenure.yaml"), text.to_owned()));
        let settings = settings_of(&sources, file.as_ref())?;
        Self::of_settings(settings, sources, file).map(drop)
    }

    fn build(sources: Sources, file: Option<(PathBuf, String)>) -> Result<Self, ConfigError> {
        let mut settings = settings_of(&sources, file.as_ref())?;
        settings.open_files()?;
        Self::of_settings(settings, sources, file)
    }

    fn of_settings(settings: Settings, sources: Sources, file: Option<(PathBuf, String)>) -> Result<Self, ConfigError> {
        let (database, store) = database::database(&settings, &sources.data)?;
        Ok(Self {
            file: file.map(|(path, _)| path),
            data: sources.data.clone(),
            server: server::server(&settings)?,
            database,
            store: sources.flags.store.clone().unwrap_or(store),
            auth: auth::auth(&settings)?,
            rate_limit: limits::rate_limit(&settings)?,
            tenants: limits::tenants(&settings)?,
            retention: limits::retention(&settings)?,
            audit_retention: settings.duration("audit.retention")?,
            audit_commands: limits::audit_commands(&settings)?,
            legacy_metrics: settings.flag("metrics.legacy_names")?,
            tokens: tokens::tokens(&settings)?,
            outbound: tokens::outbound(&settings)?,
            push: push::push(&settings)?,
            transport: transport::transport(&settings)?,
            worker: worker::worker(&settings, &sources.data)?,
            defaults: defaults::defaults(&settings)?,
            leases: defaults::leases(&settings)?,
            scheduler: defaults::scheduler(&settings)?,
            providers: sandboxes::providers(&settings)?,
            logging: server::logging(&settings)?,
            settings,
            sources,
        })
    }

    /// The token that all workers share.
    pub fn worker_token(&self) -> Result<Option<Secret>, ConfigError> {
        Ok(self.auth.worker.token.clone())
    }

    /// The file with the key that signs worker tokens, if it is in a file.
    pub fn worker_signing_key_file(&self) -> Option<PathBuf> {
        self.settings.path("auth.worker_signing_key_file").ok().flatten()
    }

    /// Commands that run tasks of an operator, by its name.
    pub fn operators(&self) -> impl Iterator<Item = (&str, &str)> {
        self.settings.map("worker.operators")
    }

    /// An error about `worker.operators`.
    pub fn wrong_operator(&self, problem: impl Into<String>) -> ConfigError {
        self.settings.wrong("worker.operators", problem)
    }

    /// Settings of sandboxes of individual operators, by the operator's name.
    pub fn sandboxed_operators(&self) -> impl Iterator<Item = (&str, &str)> {
        self.settings.map("worker.sandbox.operators")
    }

    /// An error about a key of `worker.sandbox`.
    pub fn wrong_sandbox(&self, key: &str, problem: impl Into<String>) -> ConfigError {
        self.settings.wrong(key, problem)
    }

    /// Who is let in, as the server takes it.
    pub fn auth(&self) -> Result<Auth, ConfigError> {
        Auth::try_from(&self.auth)
    }

    /// The store's address, with the roots that `database.tls.ca_file` names.
    pub fn store_url(&self) -> StoreUrl {
        match &self.database.ca_file {
            Some(roots) => self.store.with_roots(roots),
            None => self.store.clone(),
        }
    }

    /// Keys are set although nobody is asked for them.
    pub fn has_idle_keys(&self) -> bool {
        !self.auth.enabled && (self.auth.api_key.is_some() || self.auth.admin_api_key.is_some())
    }

    /// How a key could be set, for messages: `auth.enabled` and its variable.
    pub fn how_to_set(key: &str) -> String {
        format!("{key} in the configuration file, or {}", env::name_of(key))
    }

    /// The files whose change can change this configuration: its own file and every secret, key and certificate.
    pub fn watched(&self) -> Vec<PathBuf> {
        let named = keys::all().flat_map(|key| match key.kind {
            Kind::File => self.settings.path(key.path).ok().flatten().into_iter().collect(),
            Kind::Files => self.settings.paths(key.path),
            Kind::FileMap => self.settings.path_map(key.path).unwrap_or_default().into_values().collect(),
            _ => Vec::new(),
        });
        let mut paths: Vec<_> = self.file.iter().cloned().chain(named).collect();
        paths.sort();
        paths.dedup();
        paths
    }
}

/// What was set, the later source over the earlier one.
fn settings_of(sources: &Sources, file: Option<&(PathBuf, String)>) -> Result<Settings, ConfigError> {
    let mut settings = Settings::default();
    if let Some((path, text)) = file {
        settings.overlay(file::parse(path, text)?);
    }
    settings.overlay(sources.env.clone());
    if let Some((host, port)) = &sources.flags.listen {
        let origin = Origin::Flag("--listen");
        settings.overlay_text("server.host", host.clone(), origin.clone());
        settings.overlay_text("server.port", port.to_string(), origin);
    }
    // What the file says about the database has to make sense also where a flag overrules it.
    database::database(&settings, &sources.data)?;
    if let Some(store) = &sources.flags.store {
        overrule_database(&mut settings, store);
    }
    Ok(settings)
}

/// The keys whose values differ, what their files hold included. What is only a path, such as that of a certificate,
/// is compared as a path.
pub fn changed_keys(old: &Config, new: &Config) -> Vec<&'static str> {
    let content = |config: &Config, key: &str| config.settings.content(key).map(|secret| secret.reveal().to_owned());
    let contents = |config: &Config, key: &str| {
        let all = config.settings.contents_of(key).into_iter().flatten();
        all.map(|(name, secret)| (name.clone(), secret.reveal().to_owned())).collect::<Vec<_>>()
    };
    let differs = |key: &&Key| {
        show::effective(&old.settings, key) != show::effective(&new.settings, key)
            || content(old, key.path) != content(new, key.path)
            || contents(old, key.path) != contents(new, key.path)
    };
    keys::all().filter(differs).map(|key| key.path).collect()
}

/// Whether a changed value of this key takes effect only after a restart.
pub fn needs_restart(key: &str) -> bool {
    keys::find(key).is_none_or(|key| key.change == Change::Restart)
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

fn read(path: Option<PathBuf>) -> Result<Option<(PathBuf, String)>, ConfigError> {
    let Some(path) = path else { return Ok(None) };
    match files::read(&path) {
        Ok(text) => Ok(Some((path, text))),
        Err(source) => Err(ConfigError::Read { path, source }),
    }
}

/// A store that a flag names stands in place of the whole section.
fn overrule_database(settings: &mut Settings, store: &StoreUrl) {
    let origin = Origin::Flag("--store or TENURE_STORE");
    let (driver, set, removed, value) = match store.path() {
        Some(path) => ("sqlite", "database.path", "database.dsn", path.display().to_string()),
        None => ("postgres", "database.dsn", "database.path", store.reveal().to_owned()),
    };
    settings.remove(removed);
    settings.overlay_text("database.driver", driver.to_owned(), origin.clone());
    settings.overlay_text(set, value, origin);
}
