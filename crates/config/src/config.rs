use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use tenure_auth::Secret;

use super::auth::{Auth, AuthSettings};
use super::compat::{self, Compat};
use super::data_store::DataStoreSettings;
use super::database::Database;
use super::defaults::{Defaults, Leases, Scheduler};
use super::error::{ConfigError, Origin};
use super::file::Parsed;
use super::functions::RuntimeSettings;
use super::keys::{self, Change, Key, Kind};
use super::limits::{AuditCommands, RateLimit, Retention, Tenants};
use super::objects::ObjectStoreSettings;
use super::push::PushSettings;
use super::query::QuerySettings;
use super::s3::CredentialSettings;
use super::sandboxes::ProviderSettings;
use super::server::{Logging, Server};
use super::settings::{Given, Settings};
use super::store_url::StoreUrl;
use super::tokens::{Outbound, Tokens};
use super::transport::TransportSettings;
use super::worker::Worker;
use super::{
    auth, data_store, database, defaults, env, file, files, functions, limits, objects, push, query, s3, sandboxes,
    server, show, tokens, transport, worker,
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
#[derive(Debug, Clone)]
pub struct Config {
    /// The file it was read from.
    pub file: Option<PathBuf>,
    /// There when the profile `stacyvm` is on.
    pub compat: Option<Compat>,
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
    pub objects: ObjectStoreSettings,
    pub credentials: CredentialSettings,
    pub data_store: DataStoreSettings,
    pub query: QuerySettings,
    /// What runs tasks of jobs.
    pub runtimes: RuntimeSettings,
    /// `HOST:PORT` of the listener of the dispatch contract.
    pub internal_listen: Option<String>,
    pub worker: Worker,
    pub defaults: Defaults,
    /// Secrets that templates of sandboxes can name: `NAME`, or `TENANT/NAME`.
    pub template_secrets: BTreeMap<String, Secret>,
    /// Secrets of webhook sources, by name.
    pub dispatch_secrets: BTreeMap<String, Secret>,
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
    /// Variables of StacyVM, read only when the profile is on.
    legacy_env: Vec<(String, OsString)>,
    /// The program was started as `stacyvm`.
    as_stacyvm: bool,
    /// The file was named by `STACYVM_CONFIG`.
    by_legacy_variable: bool,
}

impl Sources {
    fn new(
        flags: Flags,
        data: PathBuf,
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, ConfigError> {
        let variables: Vec<_> = variables.into_iter().collect();
        let legacy_env = env::legacy(variables.clone());
        let env = env::parse(variables)?;
        Ok(Self { flags, data, env, legacy_env, as_stacyvm: false, by_legacy_variable: false })
    }
}

impl Config {
    /// Reads the configuration of this process.
    pub fn load(flags: Flags) -> Result<Self, ConfigError> {
        let home = std::env::home_dir();
        let data = match (&flags.data, &home) {
            (Some(data), _) => data.clone(),
            (None, Some(home)) => home.join(".tenure"),
            (None, None) => return Err(ConfigError::Rule("the home folder is unknown: use --data DIR".to_owned())),
        };
        let named = flags.config.clone().or_else(|| path_in("TENURE_CONFIG"));
        let mut sources = Sources::new(flags, data, std::env::vars_os())?;
        sources.as_stacyvm = compat::started_as_stacyvm();
        let legacy = if named.is_none() { path_in("STACYVM_CONFIG") } else { None };
        sources.by_legacy_variable = legacy.is_some();
        let look_up = || {
            let mut places = compat::places(home.as_deref(), sources.as_stacyvm).into_iter();
            places.find(|path| path.is_file())
        };
        let path = named.or(legacy).or_else(look_up);
        Self::build(sources, read(path)?)
    }

    /// Reads all files again, under the same flags and environment.
    pub fn reload(&self) -> Result<Self, ConfigError> {
        Self::build(self.sources.clone(), read(self.file.clone())?)
    }

    #[cfg(test)]
    pub(crate) fn from_sources(
        flags: Flags,
        data: PathBuf,
        env: impl IntoIterator<Item = (OsString, OsString)>,
        file: Option<(PathBuf, String)>,
    ) -> Result<Self, ConfigError> {
        Self::build(Sources::new(flags, data, env)?, file)
    }

    /// The same in a program that was started as `stacyvm`.
    #[cfg(test)]
    pub(crate) fn as_stacyvm(
        env: impl IntoIterator<Item = (OsString, OsString)>,
        file: Option<(PathBuf, String)>,
    ) -> Result<Self, ConfigError> {
        let sources = Sources::new(Flags::default(), "/data".into(), env)?;
        Self::build(Sources { as_stacyvm: true, ..sources }, file)
    }

    /// Whether the text of a file makes sense in itself. Neither the environment nor the files that it names are looked
    /// at, so it can be asked about any text.
    pub fn check_text(text: &str) -> Result<(), ConfigError> {
        let sources = Sources::new(Flags::default(), PathBuf::new(), [])?;
        let file = Some((PathBuf::from("tenure.yaml"), text.to_owned()));
        let (settings, compat) = settings_of(&sources, file.as_ref())?;
        Self::of_settings(settings, compat, sources, file).map(drop)
    }

    fn build(sources: Sources, file: Option<(PathBuf, String)>) -> Result<Self, ConfigError> {
        let (mut settings, compat) = settings_of(&sources, file.as_ref())?;
        settings.open_files()?;
        Self::of_settings(settings, compat, sources, file)
    }

    fn of_settings(
        settings: Settings,
        compat: Option<Compat>,
        sources: Sources,
        file: Option<(PathBuf, String)>,
    ) -> Result<Self, ConfigError> {
        let (database, store) = database::database(&settings, &sources.data)?;
        let objects = objects::object_store(&settings, &sources.data)?;
        Ok(Self {
            file: file.map(|(path, _)| path),
            compat,
            data: sources.data.clone(),
            server: server::server(&settings)?,
            database,
            store: sources.flags.store.clone().unwrap_or_else(|| store.clone()),
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
            credentials: s3::credentials(&settings, &objects)?,
            objects,
            data_store: data_store::data_store(
                &settings,
                &sources.data,
                sources.flags.store.as_ref().unwrap_or(&store),
            )?,
            query: query::query(&settings)?,
            runtimes: functions::runtimes(&settings)?,
            internal_listen: worker::host_and_port(&settings, "dispatch.internal_listen", "127.0.0.1:7424")?,
            worker: worker::worker(&settings, &sources.data)?,
            defaults: defaults::defaults(&settings)?,
            dispatch_secrets: push::named_secrets(&settings, "dispatch.secrets", "dispatch.secret_files")?,
            template_secrets: push::named_secrets(&settings, "templates.secrets", "templates.secret_files")?,
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

    /// Keys or OIDC are set although `auth.enabled: false` requires neither.
    pub fn has_idle_keys(&self) -> bool {
        let auth = &self.auth;
        !auth.enabled && (auth.api_key.is_some() || auth.admin_api_key.is_some() || auth.oidc.is_some())
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
fn settings_of(sources: &Sources, file: Option<&(PathBuf, String)>) -> Result<(Settings, Option<Compat>), ConfigError> {
    let parsed = match file {
        Some((path, text)) => file::parse(path, text)?,
        None => Parsed::default(),
    };
    let named = file.map(|(path, _)| path.as_path());
    let named = named.filter(|path| sources.by_legacy_variable || compat::is_stacyvm_name(path));
    let compat = compat::detect(sources.as_stacyvm, named, &parsed, &sources.env)?;
    let mut settings = Settings::default();
    Settings::once(&parsed.given)?;
    match &compat {
        None => settings.overlay(parsed.given),
        Some(_) => {
            settings.overlay(compat::defaults());
            settings.overlay(parsed.given.into_iter().filter(compat::says_something));
            settings.overlay(env::parse_legacy(&sources.legacy_env)?);
        }
    }
    settings.overlay(sources.env.clone());
    settings.choice("compat")?;
    if compat.is_some() {
        compat::rename(&mut settings);
    }
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
    Ok((settings, compat))
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

/// The path that a variable names.
fn path_in(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from)
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
