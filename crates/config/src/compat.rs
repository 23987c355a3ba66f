//! The profile for existing installations of StacyVM: its names and some of its defaults, and nothing else.

use std::fmt;
use std::path::{Path, PathBuf};

use super::error::{ConfigError, Origin};
use super::file::{Foreign, Parsed};
use super::keys;
use super::settings::{Given, Settings, Value};

/// The name of the profile and of the program that it imitates.
pub const STACYVM: &str = "stacyvm";

/// The profile `stacyvm`, when it is on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compat {
    pub reason: CompatReason,
    /// What the configuration asks for and does not get, with where it was set.
    pub notices: Vec<String>,
}

/// Why the profile is on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CompatReason {
    /// The program was started under that name.
    Program,
    /// The configuration was found under a name of StacyVM.
    File(PathBuf),
    /// `compat: stacyvm`.
    Setting,
}

impl fmt::Display for CompatReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program => write!(f, "the program was started as {STACYVM}"),
            Self::File(path) => write!(f, "the configuration was found at {}", path.display()),
            Self::Setting => write!(f, "compat is {STACYVM}"),
        }
    }
}

/// Whether this process was started as `stacyvm`.
pub fn started_as_stacyvm() -> bool {
    std::env::args_os().next().is_some_and(|name| Path::new(&name).file_stem().is_some_and(|stem| stem == STACYVM))
}

/// Where a configuration is looked for, after flags and variables. The own names of the program come first.
pub(crate) fn places(home: Option<&Path>, as_stacyvm: bool) -> Vec<PathBuf> {
    let own = [
        Some(PathBuf::from("tenure.yaml")),
        home.map(|home| home.join(".tenure/config.yaml")),
        Some(PathBuf::from("/etc/tenure/tenure.yaml")),
    ];
    let others = [Some(PathBuf::from("stacyvm.yaml")), home.map(|home| home.join(".stacyvm/config.yaml"))];
    let (mut own, mut others): (Vec<_>, Vec<_>) =
        (own.into_iter().flatten().collect(), others.into_iter().flatten().collect());
    if as_stacyvm {
        others.append(&mut own);
        return others;
    }
    own.append(&mut others);
    own
}

/// Whether a file has a name that StacyVM looks for.
pub(crate) fn is_stacyvm_name(path: &Path) -> bool {
    let named = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("stacyvm."));
    named || path.parent().and_then(Path::file_name).is_some_and(|folder| folder == ".stacyvm")
}

/// Whether the profile is on, from what was read under any name. Sections of StacyVM are accepted only with it.
pub(crate) fn detect(
    program: bool,
    file: Option<&Path>,
    parsed: &Parsed,
    env: &[Given],
) -> Result<Option<Compat>, ConfigError> {
    let set = |given: &&Given| given.key.path == "compat";
    let setting = env.iter().find(set).or_else(|| parsed.given.iter().find(set));
    let reason = match file {
        _ if program => Some(CompatReason::Program),
        _ if setting.is_some() => Some(CompatReason::Setting),
        Some(path) => Some(CompatReason::File(path.to_owned())),
        None => None,
    };
    match (reason, parsed.foreign.first()) {
        (Some(reason), _) => Ok(Some(Compat { reason, notices: notices(&parsed.foreign) })),
        (None, None) => Ok(None),
        (None, Some(foreign)) => Err(ConfigError::UnknownKey {
            key: foreign.section.to_owned(),
            origin: foreign.origin.clone(),
            nearest: keys::nearest(foreign.section),
        }),
    }
}

fn notices(foreign: &[Foreign]) -> Vec<String> {
    let on = foreign.iter().filter(|foreign| foreign.enabled);
    on.map(|foreign| {
        let instead = match foreign.section {
            "pool" => "each sandbox has a runtime of its own; defaults.pool_size keeps some ready",
            _ => "use namespace or docker",
        };
        format!("{}: {} is enabled but not available: {instead}", foreign.origin, foreign.section)
    })
    .collect()
}

/// What the profile sets unless the configuration does.
pub(crate) fn defaults() -> Vec<Given> {
    let text = |path: &'static str, text: &str| (path, Value::Text(text.to_owned()));
    let values = [
        text("worker.local", "true"),
        ("server.cors_allowed_origins", Value::List(vec!["*".to_owned()])),
        text("server.preview_auth", "none"),
        text("auth.admin_fallback_enabled", "true"),
        text("auth.api_key_role", "operator"),
        text("providers.docker.network_mode", "bridge"),
        text("metrics.legacy_names", "true"),
    ];
    let given = |(path, value)| keys::find(path).map(|key| Given { key, value, origin: Origin::Profile });
    values.into_iter().filter_map(given).collect()
}

/// An empty text in a file of StacyVM says nothing, except where a file name is required.
pub(crate) fn says_something(given: &Given) -> bool {
    given.key.path == "database.path" || !matches!(&given.value, Value::Text(text) if text.trim().is_empty())
}

/// Other names of values.
pub(crate) fn rename(settings: &mut Settings) {
    let driver = match settings.plain("database.driver").map(|driver| driver.to_ascii_lowercase()).as_deref() {
        Some("sqlite3") => "sqlite",
        Some("postgresql") => "postgres",
        _ => return,
    };
    settings.replace_text("database.driver", driver);
}
