use std::fmt;

use serde::{Deserialize, Deserializer};
use subtle::ConstantTimeEq;

/// A text that must not be seen: it prints as `***` and is compared in constant time.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// Surrounding white space is removed; an empty text is not a secret.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        (!text.is_empty()).then(|| Self(text.to_owned()))
    }

    /// 256 random bits in hexadecimal.
    pub fn random() -> Self {
        Self(random_bytes::<32>().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// A text that was made here, as it is.
    pub(crate) fn from_own(text: String) -> Self {
        Self(text)
    }

    /// Whether `other` is this secret. The time that takes says nothing about where they differ.
    pub fn matches(&self, other: &str) -> bool {
        self.0.as_bytes().ct_eq(other.as_bytes()).into()
    }

    /// The text itself, for those who must send or store it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

/// Bytes that nobody can guess.
pub(crate) fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0_u8; N];
    getrandom::fill(&mut bytes).unwrap_or_else(|error| panic!("the system provides no randomness: {error}"));
    bytes
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::new(&text).ok_or_else(|| serde::de::Error::custom("a secret must not be empty"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_never_prints() {
        let secret = Secret::new(" hunter2 \n").unwrap();
        assert_eq!(format!("{secret} {secret:?}"), "*** ***");
        assert!(secret.matches("hunter2"));
        assert!(!secret.matches("hunter"));
        assert!(!secret.matches("hunter22"));
    }

    #[test]
    fn what_is_blank_is_no_secret() {
        assert!(Secret::new(" \n").is_none());
    }

    #[test]
    fn random_secrets_are_long_and_differ() {
        let (a, b) = (Secret::random(), Secret::random());
        assert_eq!(a.reveal().len(), 64);
        assert!(!a.matches(b.reveal()));
    }
}
