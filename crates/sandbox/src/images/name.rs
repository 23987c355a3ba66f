use std::fmt;

use crate::error::{Error, Result};

/// The name of an image with its tag: `alpine:3.20`. A missing tag is `latest`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ImageName(String);

impl ImageName {
    pub(super) fn parse(name: &str) -> Result<Self> {
        let refuse = |why: &str| {
            Error::invalid(format!(
                "invalid image name {name:?}: {why}; use letters, digits, `.`, `_`, `-` and `/`, and an optional `:tag`"
            ))
        };
        if name.is_empty() || name.len() > 200 {
            return Err(refuse("it must have 1 to 200 characters"));
        }
        let tag_at = name.rfind('/').map_or(0, |slash| slash + 1);
        let (path, tag) = match name[tag_at..].find(':') {
            Some(colon) => (&name[..tag_at + colon], &name[tag_at + colon + 1..]),
            None => (name, "latest"),
        };
        let word = |text: &str| {
            text.starts_with(|first: char| first.is_ascii_alphanumeric())
                && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
        };
        if !word(tag) {
            return Err(refuse("the tag is empty or has other characters"));
        }
        // The first part may name a registry with a port.
        let parts = path.split('/').enumerate();
        if !parts.into_iter().all(|(at, part)| match part.split_once(':') {
            Some((host, port)) => at == 0 && word(host) && word(port),
            None => word(part),
        }) {
            return Err(refuse("a part is empty, starts with punctuation or has other characters"));
        }
        Ok(Self(format!("{path}:{tag}")))
    }

    /// The name as a file name.
    pub(super) fn file_name(&self) -> String {
        format!("{}.json", self.0.replace('/', "%2F"))
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_tag_is_latest() {
        for (name, full) in [
            ("alpine", "alpine:latest"),
            ("alpine:3.20", "alpine:3.20"),
            ("localhost:5000/team/app", "localhost:5000/team/app:latest"),
            ("localhost:5000/app:v1", "localhost:5000/app:v1"),
        ] {
            assert_eq!(ImageName::parse(name).expect("a name").to_string(), full);
        }
    }

    #[test]
    fn names_that_could_be_paths_are_refused() {
        for name in ["", "..", "../x", "/etc", "a//b", "a/../b", "a:", "a:b:c", "a b", "a\0", "-rf", "a@sha256:00"] {
            assert!(ImageName::parse(name).is_err(), "{name:?}");
        }
    }
}
