use std::fmt;
use std::path::PathBuf;

/// Where a value was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    Flag(&'static str),
    Env(String),
    File { path: PathBuf, line: u64 },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(name) => f.write_str(name),
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

pub(crate) fn shortened(text: &str) -> String {
    match text.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn suggestion(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |key| format!("; did you mean `{key}`?"))
}
