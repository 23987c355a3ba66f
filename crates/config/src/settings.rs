//! What was set, by key, before it is read as what it means.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use tenure_auth::Secret;

use super::error::{ConfigError, Origin};

/// A value as it was given.
#[derive(Clone)]
pub enum Value {
    Text(String),
    Map(BTreeMap<String, String>),
}

/// One key that was set somewhere.
#[derive(Clone)]
pub struct Given {
    pub key: &'static str,
    pub value: Value,
    pub origin: Origin,
}

impl fmt::Debug for Given {
    /// Without the value: it may be a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {}", self.key, self.origin)
    }
}

/// All keys that were set; of two that set the same key the later source wins.
#[derive(Debug, Default)]
pub struct Settings(BTreeMap<&'static str, Given>);

impl Settings {
    pub fn overlay(&mut self, given: impl IntoIterator<Item = Given>) {
        self.0.extend(given.into_iter().map(|given| (given.key, given)));
    }

    pub fn origin(&self, key: &str) -> Option<&Origin> {
        self.0.get(key).map(|given| &given.origin)
    }

    pub fn text(&self, key: &str) -> Option<&str> {
        match &self.0.get(key)?.value {
            Value::Text(text) => Some(text),
            Value::Map(_) => None,
        }
    }

    /// An error about the value of a key. `problem` must not quote secrets.
    pub fn wrong(&self, key: &str, problem: impl Into<String>) -> ConfigError {
        match self.origin(key) {
            Some(origin) => ConfigError::Value { key: key.to_owned(), origin: origin.clone(), problem: problem.into() },
            None => ConfigError::Rule(format!("{key} {}", problem.into())),
        }
    }

    /// Reads a text that is no secret: the message quotes it.
    fn read<T>(&self, key: &str, wanted: &str, parse: impl Fn(&str) -> Option<T>) -> Result<Option<T>, ConfigError> {
        let Some(text) = self.text(key) else { return Ok(None) };
        let value = parse(text.trim()).ok_or_else(|| self.wrong(key, format!("must be {wanted}, not `{text}`")))?;
        Ok(Some(value))
    }

    pub fn flag(&self, key: &str) -> Result<Option<bool>, ConfigError> {
        self.read(key, "true or false", |text| text.to_ascii_lowercase().parse().ok())
    }

    pub fn number<T: FromStr>(&self, key: &str, wanted: &str) -> Result<Option<T>, ConfigError> {
        self.read(key, wanted, |text| text.parse().ok())
    }

    pub fn duration(&self, key: &str) -> Result<Option<Duration>, ConfigError> {
        self.read(key, "a duration such as 30s, 12h or 7d", |text| humantime::parse_duration(text).ok())
    }

    pub fn one_of<T: Copy>(&self, key: &str, choices: &[(&str, T)]) -> Result<Option<T>, ConfigError> {
        let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
        self.read(key, &format!("one of {}", names.join(", ")), |text| {
            choices.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|(_, choice)| *choice)
        })
    }

    pub fn secret(&self, key: &str) -> Result<Option<Secret>, ConfigError> {
        let Some(text) = self.text(key) else { return Ok(None) };
        Secret::new(text).map(Some).ok_or_else(|| self.wrong(key, "is empty"))
    }

    pub fn secrets(&self, key: &str) -> Result<BTreeMap<String, Secret>, ConfigError> {
        let Some(Given { value: Value::Map(map), .. }) = self.0.get(key) else { return Ok(BTreeMap::new()) };
        map.iter()
            .map(|(name, text)| {
                let secret =
                    Secret::new(text).ok_or_else(|| self.wrong(key, format!("has an empty token for `{name}`")))?;
                Ok((name.clone(), secret))
            })
            .collect()
    }

    /// A map of texts that are no secrets.
    pub fn texts(&self, key: &str) -> impl Iterator<Item = (&str, &str)> {
        let map = match self.0.get(key) {
            Some(Given { value: Value::Map(map), .. }) => Some(map),
            _ => None,
        };
        map.into_iter().flatten().map(|(name, text)| (name.as_str(), text.as_str()))
    }

    /// A path. One that is not absolute starts where the file that names it lies, or at the working folder.
    pub fn path(&self, key: &str) -> Option<PathBuf> {
        let path = Path::new(self.text(key)?);
        match self.origin(key) {
            Some(Origin::File { path: file, .. }) => Some(file.parent().unwrap_or(Path::new("")).join(path)),
            _ => Some(path.to_owned()),
        }
    }
}
