//! The keys that a configuration can have. All that is known about a key stands in one place.

use std::borrow::Cow;

mod auth;
mod sandbox;
mod server;
mod transport;
mod work;

/// What a value is, and so how it is written, read, checked and shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Text,
    Secret,
    /// The address of a Postgres: shown without its password.
    Dsn,
    Bool,
    /// A whole number of 0 or more.
    Integer,
    /// A decimal number of 0 or more.
    Number,
    /// Bytes: a number, or one with a unit such as `64KiB`.
    Size,
    Duration,
    Choice(&'static [&'static str]),
    Texts,
    /// Yes or no to all, or a list.
    FlagOrTexts,
    Secrets,
    TextMap,
    SecretMap,
    /// The path of a file. What is not absolute starts where the configuration file lies.
    File,
    Files,
    FileMap,
}

/// The form in which a value is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    Text,
    List,
    /// A flag as a text, or a list.
    FlagOrList,
    Map,
}

impl Kind {
    pub(crate) fn shape(self) -> Shape {
        match self {
            Self::Texts | Self::Secrets | Self::Files => Shape::List,
            Self::FlagOrTexts => Shape::FlagOrList,
            Self::TextMap | Self::SecretMap | Self::FileMap => Shape::Map,
            _ => Shape::Text,
        }
    }

    /// The type as people read it.
    pub fn name(self) -> String {
        match self {
            Self::Text => "text".to_owned(),
            Self::Secret => "secret".to_owned(),
            Self::Dsn => "address with a secret".to_owned(),
            Self::Bool => "true or false".to_owned(),
            Self::Integer => "number".to_owned(),
            Self::Number => "decimal number".to_owned(),
            Self::Size => "size".to_owned(),
            Self::Duration => "duration".to_owned(),
            Self::Choice(choices) => format!("one of {}", choices.join(", ")),
            Self::Texts => "list of texts".to_owned(),
            Self::FlagOrTexts => "true, false, or list of texts".to_owned(),
            Self::Secrets => "list of secrets".to_owned(),
            Self::TextMap => "map of texts".to_owned(),
            Self::SecretMap => "map of secrets".to_owned(),
            Self::File => "file".to_owned(),
            Self::Files => "list of files".to_owned(),
            Self::FileMap => "map of files".to_owned(),
        }
    }

    pub(crate) fn is_secret(self) -> bool {
        matches!(self, Self::Secret | Self::Secrets | Self::SecretMap | Self::Dsn)
    }
}

/// When a changed value takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The process reads it again when a file changes, and on SIGHUP.
    Reload,
    Restart,
}

/// All that is known about a key.
#[derive(Debug, PartialEq, Eq)]
pub struct Key {
    pub path: &'static str,
    pub kind: Kind,
    /// As it would be written. Empty: nothing is set.
    pub default: &'static str,
    pub change: Change,
    pub doc: &'static str,
}

/// `"path" Kind, "default", Reload or Restart, "meaning";`
macro_rules! keys {
    ($($path:literal $kind:expr, $default:literal, $change:ident, $doc:literal;)*) => {
        &[$($crate::keys::Key {
            path: $path,
            kind: $kind,
            default: $default,
            change: $crate::keys::Change::$change,
            doc: $doc,
        }),*]
    };
}
use keys;

const GROUPS: [&[Key]; 5] = [server::KEYS, auth::KEYS, transport::KEYS, work::KEYS, sandbox::KEYS];

/// Sections that configurations of StacyVM have. The profile `stacyvm` accepts them.
pub(crate) const FOREIGN: [&str; 6] = [
    "providers.firecracker",
    "providers.e2b",
    "providers.custom",
    "providers.proot",
    "providers.docker.pool_security",
    "pool",
];

/// Longer paths are not typos and are expensive to compare.
const LONGEST: usize = 100;
/// Below this similarity a key is not useful as a suggestion.
const ALIKE: f64 = 0.75;

/// Every key, in the order of the reference.
pub fn all() -> impl Iterator<Item = &'static Key> {
    GROUPS.into_iter().flatten()
}

pub fn find(path: &str) -> Option<&'static Key> {
    all().find(|key| key.path == path)
}

/// Every top section, in order, with what it is for.
pub(crate) fn sections() -> Vec<(&'static str, &'static str)> {
    let mut found: Vec<(&str, &str)> = Vec::new();
    for section in all().filter_map(|key| key.path.split('.').next()) {
        if found.iter().all(|(known, _)| *known != section) {
            found.push((section, meaning(section)));
        }
    }
    found
}

fn meaning(section: &str) -> &'static str {
    match section {
        "compat" => "Compatibility with existing installations.",
        "server" => "The HTTP listener of the control plane.",
        "database" => "The store.",
        "auth" => "Credentials of users, admins and workers.",
        "rate_limit" => "Rate limits of the user API.",
        "tenants" => "Limits of each tenant. 0 means no limit.",
        "retention" => "How long ended work is kept.",
        "audit" => "The audit log.",
        "transport" => "How wake-ups travel. Tasks are always granted from the store.",
        "outbox" => "Wake-ups that are committed and waiting to be published.",
        "redis" => "Redis Streams as a transport for wake-ups.",
        "sqs" => "SQS as a transport for wake-ups.",
        "tokens" => "Tokens that the control plane issues to running tasks.",
        "dispatch" => "The dispatch contract.",
        "query" => "SQL over datasets, run by query processes.",
        "callback" => "The callback contract.",
        "push" => "Pushing tasks to workers of the callback contract.",
        "outbound" => "Calls from the control plane to configured addresses, such as `auth.oidc_jwks_url`.",
        "worker" => "Settings of worker processes, and TLS for worker RPC.",
        "defaults" => "Defaults and limits of sandboxes. 0 in a limit means no limit.",
        "templates" => "Templates of sandboxes.",
        "leases" => "Leases of workers on sandboxes.",
        "scheduler" => "The choice of a worker for a sandbox.",
        "metrics" => "Metrics.",
        "providers" => "Where sandboxes come from, and their limits.",
        "logging" => "Logs.",
        _ => "",
    }
}

/// What a path leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Key(&'static Key),
    Section,
    /// A section of StacyVM without a counterpart.
    Foreign(&'static str),
    Nowhere,
}

pub(crate) fn place(path: &str) -> Place {
    let path = aliased(path);
    let below = |key: &Key| key.path.strip_prefix(&*path).is_some_and(|rest| rest.starts_with('.'));
    match find(&path) {
        Some(key) => Place::Key(key),
        None if all().any(below) => Place::Section,
        None => FOREIGN.into_iter().find(|section| **section == *path).map_or(Place::Nowhere, Place::Foreign),
    }
}

/// The provider `process` has two names.
fn aliased(path: &str) -> Cow<'_, str> {
    match path.strip_prefix("providers.mock") {
        Some(rest) if rest.is_empty() || rest.starts_with('.') => format!("providers.process{rest}").into(),
        _ => path.into(),
    }
}

/// The key or section that was probably meant.
pub(crate) fn nearest(path: &str) -> Option<&'static str> {
    if path.len() > LONGEST {
        return None;
    }
    let level = path.matches('.').count();
    let known = all().filter_map(|key| match level {
        0 => key.path.split('.').next(),
        _ => Some(key.path),
    });
    known
        .map(|key| (key, strsim::jaro_winkler(key, path)))
        .filter(|(_, likeness)| *likeness > ALIKE)
        .max_by(|a, b| a.1.total_cmp(&b.1))
        .map(|(key, _)| key)
}

/// The key that holds the path of a file with the value of this one.
pub(crate) fn file_of(key: &Key) -> Option<&'static Key> {
    all().find(|other| other.kind == Kind::File && other.path.strip_suffix("_file") == Some(key.path))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn paths_lead_to_keys_and_sections() {
        assert!(matches!(place("server.port"), Place::Key(key) if key.kind == Kind::Integer));
        assert!(matches!(place("auth.worker_tokens"), Place::Key(key) if key.kind == Kind::SecretMap));
        for section in ["retention", "server.tls", "worker.rpc_tls", "dispatch.capability"] {
            assert_eq!(place(section), Place::Section, "{section}");
        }
        assert!(matches!(place("providers.mock.enabled"), Place::Key(key) if key.path == "providers.process.enabled"));
        assert_eq!(place("providers.mock"), Place::Section);
        assert_eq!(place("pool"), Place::Foreign("pool"));
        assert_eq!(place("providers.mocks"), Place::Nowhere);
        assert_eq!(place("auth.worker"), Place::Nowhere);
        assert_eq!(place(""), Place::Nowhere);
    }

    #[test]
    fn a_slip_of_the_pen_finds_its_key() {
        assert_eq!(nearest("auth.api_kye"), Some("auth.api_key"));
        assert_eq!(nearest("server.prot"), Some("server.port"));
        assert_eq!(nearest("loging"), Some("logging"));
        assert_eq!(nearest("zzz"), None);
    }

    #[test]
    fn every_key_is_told_once_and_in_full() {
        let paths: BTreeSet<_> = all().map(|key| key.path).collect();
        assert_eq!(paths.len(), all().count(), "a key stands twice in the table");
        for key in all() {
            assert!(key.doc.len() > 20 && key.doc.ends_with('.'), "{}", key.path);
            assert!(!key.doc.contains('|'), "{} would break the table of the reference", key.path);
            assert!(!key.kind.is_secret() || key.default.is_empty(), "{} has a secret for a default", key.path);
            let section = key.path.rsplit_once('.').map(|(section, _)| place(section));
            assert!(section.is_none_or(|section| section == Place::Section), "{}", key.path);
        }
        for (section, meaning) in sections() {
            assert!(!meaning.is_empty(), "{section} is not explained");
        }
    }

    #[test]
    fn every_secret_can_come_from_a_file() {
        // Maps and lists of secrets, and a DSN, may stand in a file of secrets as a whole: the configuration itself.
        let single = all().filter(|key| key.kind == Kind::Secret);
        for key in single {
            assert!(file_of(key).is_some(), "{} has no {}_file", key.path, key.path);
        }
    }
}
