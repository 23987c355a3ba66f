//! The keys that a configuration can have.

/// Every key, by its path.
const KEYS: [&str; 19] = [
    "server.host",
    "server.port",
    "database.driver",
    "database.path",
    "database.dsn",
    "auth.enabled",
    "auth.api_key",
    "auth.admin_api_key",
    "auth.worker_token",
    "auth.worker_token_file",
    "auth.worker_tokens",
    "auth.anonymous_workers",
    "worker.operators",
    "logging.level",
    "logging.format",
    "retention.finished",
    "retention.dead_letters",
    "retention.events",
    "retention.max_finished",
];

/// Keys whose value is a map and not a text.
const MAPS: [&str; 2] = ["auth.worker_tokens", "worker.operators"];

/// Below this likeness a key is no help as a suggestion.
const ALIKE: f64 = 0.75;

/// What a path leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Text(&'static str),
    Map(&'static str),
    Section,
    Nowhere,
}

pub(super) fn place(path: &str) -> Place {
    match KEYS.into_iter().find(|key| *key == path) {
        Some(key) if MAPS.contains(&key) => Place::Map(key),
        Some(key) => Place::Text(key),
        None if KEYS.iter().any(|key| key.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'))) => {
            Place::Section
        }
        None => Place::Nowhere,
    }
}

/// The key or section that was probably meant.
pub(super) fn nearest(path: &str) -> Option<&'static str> {
    let level = path.matches('.').count();
    let known = KEYS.into_iter().filter_map(|key| match level {
        0 => key.split('.').next(),
        _ => Some(key),
    });
    known
        .map(|key| (key, strsim::jaro_winkler(key, path)))
        .filter(|(_, likeness)| *likeness > ALIKE)
        .max_by(|a, b| a.1.total_cmp(&b.1))
        .map(|(key, _)| key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_to_keys_and_sections() {
        assert_eq!(place("server.port"), Place::Text("server.port"));
        assert_eq!(place("auth.worker_tokens"), Place::Map("auth.worker_tokens"));
        assert_eq!(place("retention"), Place::Section);
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
}
