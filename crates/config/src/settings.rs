//! What was set, by key, before it is read as what it means.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure_auth::Secret;
use tenure_contract::duration;

use super::error::{ConfigError, Origin, shortened};
use super::files;
use super::keys::{self, Key, Kind};

/// The one file without a value of the same name that is read at once.
const PRIVATE_KEY: &str = "auth.worker_private_key_file";
/// The maps of files that each hold a secret.
const SECRET_FILES: [&str; 3] = ["push.secret_files", "templates.secret_files", "dispatch.secret_files"];

/// A value as it was given.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Text(String),
    List(Vec<String>),
    Map(BTreeMap<String, String>),
}

impl Value {
    fn texts(&self) -> Vec<&str> {
        match self {
            Self::Text(text) => vec![text],
            Self::List(list) => list.iter().map(String::as_str).collect(),
            Self::Map(map) => map.values().map(String::as_str).collect(),
        }
    }
}

/// One key that was set somewhere.
#[derive(Clone)]
pub(crate) struct Given {
    pub key: &'static Key,
    pub value: Value,
    pub origin: Origin,
}

impl fmt::Debug for Given {
    /// Without the value: it may be a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {}", self.key.path, self.origin)
    }
}

/// All keys that were set; of two that set the same key the later source wins.
#[derive(Debug, Default, Clone)]
pub(crate) struct Settings {
    given: BTreeMap<&'static str, Given>,
    /// What the files hold that stand for a value, by the key of the file.
    contents: BTreeMap<&'static str, Secret>,
    /// What the files hold that stand for an entry of a map, by the key of the map.
    map_contents: BTreeMap<&'static str, BTreeMap<String, Secret>>,
}

impl Settings {
    pub fn overlay(&mut self, given: impl IntoIterator<Item = Given>) {
        self.given.extend(given.into_iter().map(|given| (given.key.path, given)));
    }

    /// Refuses two names of one key in the same file: nobody could tell which one counts.
    pub fn once(given: &[Given]) -> Result<(), ConfigError> {
        for (index, second) in given.iter().enumerate() {
            if let Some(first) = given.iter().take(index).find(|first| first.key.path == second.key.path) {
                return Err(ConfigError::Rule(format!(
                    "{} is set twice ({} and {}): keep one",
                    second.key.path, first.origin, second.origin
                )));
            }
        }
        Ok(())
    }

    pub fn overlay_text(&mut self, path: &str, text: String, origin: Origin) {
        let key = keys::find(path);
        self.overlay(key.map(|key| Given { key, value: Value::Text(text), origin }));
    }

    /// Puts another text in the place of one that was given.
    pub fn replace_text(&mut self, path: &str, text: &str) {
        if let Some(given) = self.given.get_mut(path) {
            given.value = Value::Text(text.to_owned());
        }
    }

    pub fn remove(&mut self, path: &str) {
        self.given.remove(path);
    }

    pub fn get(&self, key: &str) -> Option<&Given> {
        self.given.get(key)
    }

    pub fn origin(&self, key: &str) -> Option<&Origin> {
        self.get(key).map(|given| &given.origin)
    }

    pub fn is_set(&self, key: &str) -> bool {
        self.given.contains_key(key)
    }

    /// Reads the files that hold values. A value and its file together leave open which one is meant.
    pub fn open_files(&mut self) -> Result<(), ConfigError> {
        for key in keys::all() {
            let Some(file) = keys::file_of(key) else { continue };
            if let (Some(value), Some(origin)) = (self.origin(key.path), self.origin(file.path)) {
                return Err(ConfigError::Rule(format!(
                    "{} ({value}) and {} ({origin}) are both set: keep one",
                    key.path, file.path
                )));
            }
            self.open(file.path)?;
        }
        for key in SECRET_FILES {
            self.open_map(key)?;
        }
        self.open(PRIVATE_KEY)
    }

    fn open_map(&mut self, key: &'static str) -> Result<(), ConfigError> {
        let read = |name: &str, path: &Path| {
            let wrong =
                |problem: &str| self.wrong(key, format!("names {} for `{name}`, which {problem}", path.display()));
            let text = files::read(path).map_err(|error| wrong(&format!("cannot be read: {error}")))?;
            Secret::new(&text).ok_or_else(|| wrong("is empty"))
        };
        let found = self.path_map(key)?.into_iter().map(|(name, path)| Ok((name.clone(), read(&name, &path)?)));
        let found = found.collect::<Result<_, ConfigError>>()?;
        self.map_contents.insert(key, found);
        Ok(())
    }

    /// What the files of a map hold, by its names.
    pub fn contents_of(&self, key: &str) -> Option<&BTreeMap<String, Secret>> {
        self.map_contents.get(key)
    }

    fn open(&mut self, key: &'static str) -> Result<(), ConfigError> {
        let Some(path) = self.path(key)? else { return Ok(()) };
        let shown = path.display();
        let text = files::read(&path)
            .map_err(|error| self.wrong(key, format!("names {shown}, which cannot be read: {error}")))?;
        let content = Secret::new(&text).ok_or_else(|| self.wrong(key, format!("names {shown}, which is empty")))?;
        self.contents.insert(key, content);
        Ok(())
    }

    pub fn content(&self, file_key: &str) -> Option<&Secret> {
        self.contents.get(file_key)
    }

    /// What was given as a text, or the default.
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.get(key) {
            Some(Given { value: Value::Text(text), .. }) => Some(text),
            Some(_) => None,
            None => keys::find(key).map(|key| key.default).filter(|default| !default.is_empty()),
        }
    }

    /// A text without white space around it. One that is empty is not set.
    pub fn plain(&self, key: &str) -> Option<String> {
        self.text(key).map(str::trim).filter(|text| !text.is_empty()).map(ToOwned::to_owned)
    }

    /// An error about the value of a key. `problem` must not quote secrets.
    pub fn wrong(&self, key: &str, problem: impl Into<String>) -> ConfigError {
        match self.origin(key) {
            Some(origin) => ConfigError::Value { key: key.to_owned(), origin: origin.clone(), problem: problem.into() },
            None => ConfigError::Rule(format!("{key} {}", problem.into())),
        }
    }

    /// An error that quotes a value, so not for secrets.
    pub fn unfit(&self, key: &str, wanted: &str, text: &str) -> ConfigError {
        if self.tells_a_secret(text) {
            return self.wrong(key, format!("must be {wanted}"));
        }
        self.wrong(key, format!("must be {wanted}, not `{}`", shortened(text)))
    }

    /// An alias can carry a secret to where none belongs.
    fn tells_a_secret(&self, text: &str) -> bool {
        let secrets = self.given.values().filter(|given| given.key.kind.is_secret());
        secrets.flat_map(|given| given.value.texts()).any(|secret| !secret.is_empty() && text.contains(secret))
    }

    fn read<T>(&self, key: &str, wanted: &str, parse: impl Fn(&str) -> Option<T>) -> Result<Option<T>, ConfigError> {
        let Some(text) = self.text(key) else { return Ok(None) };
        parse(text.trim()).map(Some).ok_or_else(|| self.unfit(key, wanted, text))
    }

    pub fn flag(&self, key: &str) -> Result<bool, ConfigError> {
        self.flag_of(key, "true or false")
    }

    /// A flag in the place of which other things could be given, too.
    pub fn flag_of(&self, key: &str, wanted: &str) -> Result<bool, ConfigError> {
        let flag = self.read(key, wanted, |text| text.to_ascii_lowercase().parse().ok())?;
        Ok(flag.unwrap_or(false))
    }

    pub fn integer(&self, key: &str) -> Result<u64, ConfigError> {
        Ok(self.read(key, "a number of 0 or more", |text| text.parse().ok())?.unwrap_or(0))
    }

    pub fn integer_in(&self, key: &str, wanted: &str, range: RangeInclusive<u64>) -> Result<u64, ConfigError> {
        let number = self.read(key, wanted, |text| text.parse().ok().filter(|number| range.contains(number)))?;
        Ok(number.unwrap_or(*range.start()))
    }

    /// A decimal number of 0 or more.
    pub fn number(&self, key: &str) -> Result<f64, ConfigError> {
        let parse = |text: &str| text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
        Ok(self.read(key, "a number of 0 or more such as 0.5", parse)?.unwrap_or(0.0))
    }

    pub fn size(&self, key: &str) -> Result<u64, ConfigError> {
        Ok(self.read(key, "a size such as 4096, 64KiB or 1MiB", size)?.unwrap_or(0))
    }

    pub fn duration(&self, key: &str) -> Result<Duration, ConfigError> {
        let duration = self.read(key, "a duration such as 30s, 12h or 7d", duration::parse)?;
        Ok(duration.unwrap_or(Duration::ZERO))
    }

    /// A duration of something that cannot take no time.
    pub fn above_zero(&self, key: &str) -> Result<Duration, ConfigError> {
        let duration = self.duration(key)?;
        if duration.is_zero() { Err(self.wrong(key, "must be above 0, such as 1m")) } else { Ok(duration) }
    }

    pub fn choice(&self, key: &str) -> Result<Option<&'static str>, ConfigError> {
        let Some(Key { kind: Kind::Choice(choices), .. }) = keys::find(key) else { return Ok(None) };
        self.read(key, &format!("one of {}", choices.join(", ")), |text| {
            choices.iter().find(|name| name.eq_ignore_ascii_case(text)).copied()
        })
    }

    /// A secret from its value or its file.
    pub fn secret(&self, key: &str) -> Result<Option<Secret>, ConfigError> {
        match self.get(key) {
            Some(Given { value: Value::Text(text), .. }) => {
                Secret::new(text).map(Some).ok_or_else(|| self.wrong(key, "is empty: set it, or remove the key"))
            }
            _ => Ok(keys::find(key).and_then(keys::file_of).and_then(|file| self.content(file.path)).cloned()),
        }
    }

    pub fn list(&self, key: &str) -> &[String] {
        match self.get(key) {
            Some(Given { value: Value::List(list), .. }) => list,
            _ => &[],
        }
    }

    /// A list of texts without white space around them. One that is empty says nothing.
    pub fn texts(&self, key: &str) -> Vec<String> {
        self.list(key).iter().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty()).collect()
    }

    /// A list whose entries are checked one by one.
    pub fn list_of<T>(
        &self,
        key: &str,
        wanted: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Vec<T>, ConfigError> {
        self.texts(key).iter().map(|text| parse(text).ok_or_else(|| self.unfit(key, wanted, text))).collect()
    }

    pub fn secret_list(&self, key: &str) -> Result<Vec<Secret>, ConfigError> {
        let empty = || self.wrong(key, "has an empty entry: remove it");
        self.list(key).iter().map(|text| Secret::new(text).ok_or_else(empty)).collect()
    }

    pub fn secret_map(&self, key: &str) -> Result<BTreeMap<String, Secret>, ConfigError> {
        self.map(key)
            .map(|(name, text)| {
                let empty = || self.wrong(key, format!("has an empty value for `{name}`: remove it"));
                Ok((name.to_owned(), Secret::new(text).ok_or_else(empty)?))
            })
            .collect()
    }

    pub fn map(&self, key: &str) -> impl Iterator<Item = (&str, &str)> {
        let map = match self.get(key) {
            Some(Given { value: Value::Map(map), .. }) => Some(map),
            _ => None,
        };
        map.into_iter().flatten().map(|(name, text)| (name.as_str(), text.as_str()))
    }

    /// The path of a file.
    pub fn path(&self, key: &str) -> Result<Option<PathBuf>, ConfigError> {
        let Some(text) = self.text(key).map(str::trim) else { return Ok(None) };
        if text.is_empty() {
            return Err(self.wrong(key, "is empty: name a file, or remove the key"));
        }
        Ok(Some(self.resolve(key, text)))
    }

    /// The path of a folder. One that is empty is not set.
    pub fn folder(&self, key: &str) -> Option<PathBuf> {
        self.plain(key).map(|text| self.resolve(key, &text))
    }

    pub fn paths(&self, key: &str) -> Vec<PathBuf> {
        self.texts(key).iter().map(|text| self.resolve(key, text)).collect()
    }

    pub fn path_map(&self, key: &str) -> Result<BTreeMap<String, PathBuf>, ConfigError> {
        self.map(key)
            .map(|(name, text)| match text.trim() {
                "" => Err(self.wrong(key, format!("names no file for `{name}`: name one, or remove the entry"))),
                text => Ok((name.to_owned(), self.resolve(key, text))),
            })
            .collect()
    }

    /// A path that is not absolute starts where the file that names it lies, or at the working folder.
    fn resolve(&self, key: &str, text: &str) -> PathBuf {
        match self.origin(key) {
            Some(Origin::File { path: file, .. }) => file.parent().unwrap_or(Path::new("")).join(text),
            _ => PathBuf::from(text),
        }
    }

    /// Two files that are useless without each other.
    pub fn pair(&self, first: &str, second: &str) -> Result<Option<(PathBuf, PathBuf)>, ConfigError> {
        match (self.path(first)?, self.path(second)?) {
            (Some(a), Some(b)) => Ok(Some((a, b))),
            (None, None) => Ok(None),
            (Some(_), None) => Err(self.wrong(first, format!("is set without {second}: set both, or neither"))),
            (None, Some(_)) => Err(self.wrong(second, format!("is set without {first}: set both, or neither"))),
        }
    }
}

fn size(text: &str) -> Option<u64> {
    let units = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("KB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("B", 1),
    ];
    let found = units.iter().find_map(|(name, unit)| text.strip_suffix(name).map(|number| (number.trim_end(), *unit)));
    let (number, unit) = found.unwrap_or((text, 1));
    number.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [("0", 0), ("4096", 4096), ("64KiB", 65_536), ("1 MiB", 1 << 20), ("2KB", 2000), ("7B", 7)]
        {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        for text in ["", "KiB", "-1", "1.5MiB", "1TiB", "99999999999GiB"] {
            assert_eq!(size(text), None, "{text}");
        }
    }
}
