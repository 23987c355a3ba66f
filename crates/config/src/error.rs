use std::fmt;
use std::path::PathBuf;

/// Where a value was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    Flag(&'static str),
    Env(String),
    File {
        path: PathBuf,
        line: u64,
    },
    /// A default of the profile `stacyvm`.
    Profile,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(name) => f.write_str(name),
            Self::Profile => f.write_str("the profile stacyvm"),
            Self::Env(name) => write!(f, "the variable {name}"),
            Self::File { path, line: 0 } => write!(f, "{}", path.display()),
            Self::File { path, line } => write!(f, "{} line {line}", path.display()),
        }
    }
}

/// Why a configuration cannot be used. No text of it holds a secret.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("{origin}: unknown key `{}`{}", shortened(key), suggestion(*.nearest))]
    UnknownKey { key: String, origin: Origin, nearest: Option<&'static str> },
    #[error("{origin}: {key} {problem}")]
    Value { key: String, origin: Origin, problem: String },
    #[error("{origin}: {message}")]
    Syntax { origin: Origin, message: String },
    #[error("the configuration file {} could not be read", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// Values that do not go together.
    #[error("{0}")]
    Rule(String),
}

/// So much of what was written is quoted.
const QUOTED: usize = 80;

/// What was written, as a message may quote it. A quote that was never closed makes one value of all lines below, and
/// those may set secrets: so it ends where another key would begin.
pub(crate) fn shortened(text: &str) -> String {
    let text = text.trim();
    let key = [": ", ":\"", "\":", "':"].into_iter().filter_map(|mark| text.find(mark)).min();
    let line = text.find(char::is_control);
    let long = text.char_indices().nth(QUOTED).map(|(end, _)| end);
    match [key, line, long].into_iter().flatten().min() {
        Some(end) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn suggestion(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |key| format!("; did you mean `{key}`?"))
}

#[cfg(test)]
mod tests {
    use super::shortened;

    #[test]
    fn a_quote_ends_where_another_key_would_begin() {
        for (text, quoted) in [
            (" 70000 ", "70000"),
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("http://x", "http://x"),
            ("::1", "::1"),
            ("80 auth: api_key: hunter2", "80 auth…"),
            ("80, \"auth\":{\"api_key\":\"hunter2\"}", "80, \"auth…"),
            ("80\nhunter2", "80…"),
        ] {
            assert_eq!(shortened(text), quoted);
        }
        assert_eq!(shortened(&"ä".repeat(81)).chars().count(), 81);
    }
}
