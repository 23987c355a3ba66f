//! A directory in the object store.

use std::fmt;
use std::sync::Arc;

use super::path::{self, PathProblem};

/// What S3 allows a key to have.
pub const KEY_BYTES: usize = 1_024;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scheme {
    S3 { bucket: Arc<str> },
    File,
}

/// `s3://bucket/a/b/` or `file:///a/b/`. It stands for all that lies below it and for nothing beside it: a prefix of `p` is
/// the directory `p/`, which does not contain `p-evil`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    scheme: Scheme,
    /// Empty, or ends with a slash. Without the one at its beginning.
    path: Arc<str>,
}

/// Why a text is no prefix. The text itself may be a path of the server, so it is not part of the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PrefixError {
    #[error("a prefix must begin with s3://")]
    Scheme,
    #[error("the prefix has no valid bucket name")]
    Bucket,
    #[error("the path of the prefix {0}")]
    Path(#[from] PathProblem),
}

impl Prefix {
    /// Reads a prefix. The slash at the end may be missing.
    pub fn parse(text: &str, allow_file: bool) -> Result<Self, PrefixError> {
        let prefix = Self::parse_root(text, allow_file)?;
        if prefix.path.is_empty() { Err(PrefixError::Path(PathProblem::Empty)) } else { Ok(prefix) }
    }

    /// The same for a prefix that may be a whole bucket.
    pub fn parse_root(text: &str, allow_file: bool) -> Result<Self, PrefixError> {
        if let Some(path) = text.strip_prefix("file:///").filter(|_| allow_file) {
            return Self::of(Scheme::File, path);
        }
        let rest = text.strip_prefix("s3://").ok_or(PrefixError::Scheme)?;
        let (bucket, path) = rest.split_once('/').unwrap_or((rest, ""));
        if !is_bucket(bucket) {
            return Err(PrefixError::Bucket);
        }
        Self::of(Scheme::S3 { bucket: bucket.into() }, path)
    }

    fn of(scheme: Scheme, path: &str) -> Result<Self, PrefixError> {
        if path.is_empty() {
            return Ok(Self { scheme, path: path.into() });
        }
        let plain = path.strip_suffix('/').unwrap_or(path);
        if plain.len() >= KEY_BYTES {
            return Err(PathProblem::TooLong.into());
        }
        path::check(plain, false)?;
        Ok(Self { scheme, path: format!("{plain}/").into() })
    }

    pub fn scheme(&self) -> &Scheme {
        &self.scheme
    }

    pub fn bucket(&self) -> Option<&str> {
        match &self.scheme {
            Scheme::S3 { bucket } => Some(bucket),
            Scheme::File => None,
        }
    }

    /// Without a slash at the beginning; with one at the end, unless it is empty.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whether all that lies below `other` lies below this.
    pub fn covers(&self, other: &Self) -> bool {
        self.scheme == other.scheme && other.path.starts_with(&*self.path)
    }

    /// The directory `path` below this one.
    pub fn below(&self, path: &str) -> Result<Self, PrefixError> {
        if path.is_empty() {
            return Err(PathProblem::Empty.into());
        }
        Self::of(self.scheme.clone(), &format!("{}{path}", self.path))
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.scheme {
            Scheme::S3 { bucket } => write!(f, "s3://{bucket}/{}", self.path),
            Scheme::File => write!(f, "file:///{}", self.path),
        }
    }
}

/// As S3 wants it, without the names that look like an address.
fn is_bucket(text: &str) -> bool {
    let sane = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    let ends = |c: char| c.is_ascii_alphanumeric();
    (3..=63).contains(&text.len())
        && text.chars().all(sane)
        && text.starts_with(ends)
        && text.ends_with(ends)
        && !text.contains("..")
        && !text.chars().all(|c| c.is_ascii_digit() || c == '.')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        Prefix::parse(text, true).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn a_prefix_is_a_directory() {
        let granted = prefix("s3://tenure/p");
        assert_eq!(granted, prefix("s3://tenure/p/"));
        for covered in ["s3://tenure/p", "s3://tenure/p/", "s3://tenure/p/q/r"] {
            assert!(granted.covers(&prefix(covered)), "{covered}");
        }
        for other in ["s3://tenure/p-evil", "s3://tenure/pp/", "s3://other/p/", "s3://tenure/q/p/", "file:///p/"] {
            assert!(!granted.covers(&prefix(other)), "{other}");
        }
        assert!(!prefix("s3://tenure/p/q/").covers(&granted), "what lies above");
        assert!(Prefix::parse_root("s3://tenure", false).unwrap().covers(&granted));
    }

    #[test]
    fn texts_that_are_no_prefix() {
        for text in [
            "",
            "p/",
            "/p/",
            "s3:/tenure/p",
            "S3://tenure/p",
            "https://tenure/p/",
            "s3:///p/",
            "s3://tenure",
            "s3://tenure/",
            "s3://Tenure/p/",
            "s3://te/p/",
            "s3://user@tenure/p/",
            "s3://tenure:80/p/",
            "s3://127.0.0.1/p/",
            "s3://a..b/p/",
            "s3://tenure//p/",
            "s3://tenure/p//",
            "s3://tenure/../p/",
            "s3://tenure/p/%2e%2e/q/",
            "s3://tenure/p*/",
            "s3://tenure/p?/",
            "s3://tenure/p\\q/",
            "s3://tenure/p\n/",
            "file://host/p/",
            "file:/p/",
            "file:///",
            "file://",
        ] {
            assert!(Prefix::parse(text, true).is_err(), "{text:?}");
        }
        assert_eq!(Prefix::parse("file:///p/", false), Err(PrefixError::Scheme));
        assert!(Prefix::parse(&format!("s3://tenure/{}", "a/".repeat(600)), false).is_err());
    }

    #[test]
    fn what_lies_below_is_written_as_it_is_read() {
        let below = prefix("s3://tenure/p/").below("q/r").unwrap();
        assert_eq!(
            (below.to_string(), below.path(), below.bucket()),
            ("s3://tenure/p/q/r/".into(), "p/q/r/", Some("tenure"))
        );
        assert_eq!(prefix("file:///srv/data").to_string(), "file:///srv/data/");
        assert!(prefix("s3://tenure/p/").below("../q").is_err() && prefix("s3://tenure/p/").below("").is_err());
    }
}
