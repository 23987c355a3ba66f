//! Partition keys, ranges and cursors.
//!
//! Outside, a range is written `{start}-{end}`, with the last value or, in a DAG with `ranges: half_open`, the first value
//! that no longer belongs to it. Inside it is a half-open [`Span`]. [`Ranges`] converts, and nothing else does.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A position in a dataset, and either end of a range: 0 to 2^63-1. Written as an integer or as its decimal string.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize)]
#[serde(transparent)]
pub struct Cursor(u64);

impl Cursor {
    pub const MAX: Self = Self(i64::MAX as u64);

    pub fn new(value: u64) -> Option<Self> {
        (value <= Self::MAX.0).then_some(Self(value))
    }

    /// Digits without leading zeros.
    pub fn parse(text: &str) -> Option<Self> {
        let plain = text == "0" || !text.starts_with('0');
        (plain && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok().and_then(Self::new))?
    }

    pub const fn get(self) -> u64 {
        self.0
    }

    /// For stores, whose integers have a sign.
    pub const fn signed(self) -> i64 {
        self.0.cast_signed()
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'de> Deserialize<'de> for Cursor {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CursorVisitor)
    }
}

struct CursorVisitor;

impl serde::de::Visitor<'_> for CursorVisitor {
    type Value = Cursor;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an integer from 0 to 2^63-1, or its decimal string")
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Cursor, E> {
        Cursor::new(value).ok_or_else(|| E::invalid_value(serde::de::Unexpected::Unsigned(value), &self))
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Cursor, E> {
        let unsigned = u64::try_from(value).ok().and_then(Cursor::new);
        unsigned.ok_or_else(|| E::invalid_value(serde::de::Unexpected::Signed(value), &self))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Cursor, E> {
        Cursor::parse(text).ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &self))
    }
}

/// The values from `start` up to, and without, `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span {
    start: u64,
    end: u64,
}

impl Span {
    /// The first value that no span contains.
    pub const END: u64 = Cursor::MAX.0 + 1;

    pub fn new(start: u64, end: u64) -> Option<Self> {
        (start <= end && end <= Self::END).then_some(Self { start, end })
    }

    pub const fn start(self) -> u64 {
        self.start
    }

    pub const fn end(self) -> u64 {
        self.end
    }

    pub const fn is_empty(self) -> bool {
        self.start == self.end
    }

    pub const fn len(self) -> u64 {
        self.end - self.start
    }

    pub const fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }
}

/// What the second number of a range means outside: `ranges` of a DAG.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ranges {
    /// The last value of the range.
    #[default]
    Inclusive,
    /// The first value after the range.
    HalfOpen,
}

impl Ranges {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Inclusive => "inclusive",
            Self::HalfOpen => "half_open",
        }
    }

    /// A range as written, as a span. `None` if it ends before it starts.
    pub fn inside(self, start: Cursor, end: Cursor) -> Option<Span> {
        if start > end {
            return None;
        }
        match self {
            Self::Inclusive => Span::new(start.0, end.0 + 1),
            Self::HalfOpen => Span::new(start.0, end.0),
        }
    }

    /// A span as it is written. `None` if this kind cannot express it: an empty span as an inclusive range, or the last
    /// value of all in a half-open one.
    pub fn outside(self, span: Span) -> Option<(Cursor, Cursor)> {
        let end = match self {
            Self::Inclusive if span.is_empty() => return None,
            Self::Inclusive => span.end - 1,
            Self::HalfOpen => span.end,
        };
        Some((Cursor::new(span.start)?, Cursor::new(end)?))
    }
}

/// Characters of a partition key.
pub const KEY_CHARS: usize = 256;

/// The name of a partition. Two numbers with `-` between them are a range; any other key is only a name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "Arc<str>", try_from = "Arc<str>")]
pub struct PartitionKey {
    text: Arc<str>,
    range: Option<(Cursor, Cursor)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("a partition key has 1 to 256 characters of A-Z a-z 0-9 . _ = : -")]
    Invalid,
    #[error("`start` and `end` disagree with the partition key")]
    Mismatch,
}

impl PartitionKey {
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'=' | b':' | b'-');
        if !(1..=KEY_CHARS).contains(&text.len()) || !text.bytes().all(allowed) {
            return Err(KeyError::Invalid);
        }
        Ok(Self { text: text.into(), range: numbers(text) })
    }

    /// The key of a span, in the way of a DAG. `None` if that cannot express it.
    pub fn of(span: Span, ranges: Ranges) -> Option<Self> {
        let (start, end) = ranges.outside(span)?;
        Some(Self { text: format!("{start}-{end}").into(), range: Some((start, end)) })
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The two numbers as written, if it is a range.
    pub const fn numbers(&self) -> Option<(Cursor, Cursor)> {
        self.range
    }

    /// The values of the partition, if it is a range.
    pub fn span(&self, ranges: Ranges) -> Option<Span> {
        self.range.and_then(|(start, end)| ranges.inside(start, end))
    }

    /// Whether `start` and `end` that were sent beside the key agree with it. Both may be left out; a key that is not a
    /// range has neither.
    pub fn agrees(&self, start: Option<Cursor>, end: Option<Cursor>) -> Result<(), KeyError> {
        let (own_start, own_end) = self.range.unzip();
        let fits = |sent: Option<Cursor>, own: Option<Cursor>| sent.is_none() || sent == own;
        if fits(start, own_start) && fits(end, own_end) { Ok(()) } else { Err(KeyError::Mismatch) }
    }
}

fn numbers(key: &str) -> Option<(Cursor, Cursor)> {
    let (start, end) = key.split_once('-')?;
    let (start, end) = (Cursor::parse(start)?, Cursor::parse(end)?);
    (start <= end).then_some((start, end))
}

impl fmt::Display for PartitionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl From<PartitionKey> for Arc<str> {
    fn from(key: PartitionKey) -> Self {
        key.text
    }
}

impl TryFrom<Arc<str>> for PartitionKey {
    type Error = KeyError;

    fn try_from(text: Arc<str>) -> Result<Self, KeyError> {
        Self::parse(&text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cursor() -> impl Strategy<Value = Cursor> {
        let value = prop_oneof![0..1_000_u64, Just(Cursor::MAX.0 - 1), Just(Cursor::MAX.0), 0..=Cursor::MAX.0];
        value.prop_map(|value| Cursor::new(value).unwrap())
    }

    fn kind() -> impl Strategy<Value = Ranges> {
        prop_oneof![Just(Ranges::Inclusive), Just(Ranges::HalfOpen)]
    }

    proptest! {
        #[test]
        fn ranges_there_and_back(a in cursor(), b in cursor(), ranges in kind()) {
            let (start, end) = (a.min(b), a.max(b));
            let span = ranges.inside(start, end).unwrap();
            prop_assert_eq!(ranges.outside(span), Some((start, end)));
            prop_assert_eq!(span.len(), end.get() - start.get() + u64::from(ranges == Ranges::Inclusive));
        }

        #[test]
        fn spans_there_and_back(a in 0..=Span::END, b in 0..=Span::END, ranges in kind()) {
            let span = Span::new(a.min(b), a.max(b)).unwrap();
            let inexpressible = match ranges {
                Ranges::Inclusive => span.is_empty(),
                Ranges::HalfOpen => span.end() == Span::END,
            };
            match ranges.outside(span) {
                None => prop_assert!(inexpressible),
                Some((start, end)) => {
                    prop_assert!(!inexpressible);
                    prop_assert_eq!(ranges.inside(start, end), Some(span));
                }
            }
        }

        #[test]
        fn keys_of_spans_are_read_back(a in cursor(), b in cursor(), ranges in kind()) {
            let span = ranges.inside(a.min(b), a.max(b)).unwrap();
            let key = PartitionKey::of(span, ranges).unwrap();
            prop_assert_eq!(PartitionKey::parse(key.as_str()), Ok(key.clone()));
            prop_assert_eq!(key.span(ranges), Some(span));
        }

        #[test]
        fn any_text_is_a_key_or_refused(text in "[ -~]{0,40}|[0-9]{1,21}-[0-9]{1,21}") {
            if let Ok(key) = PartitionKey::parse(&text) {
                prop_assert_eq!(key.as_str(), &text);
                if let Some((start, end)) = key.numbers() {
                    prop_assert_eq!(format!("{start}-{end}"), text);
                }
            }
        }
    }

    #[test]
    fn the_example_has_10001_values() {
        let key = PartitionKey::parse("1000000-1010000").unwrap();
        assert_eq!(key.span(Ranges::Inclusive).unwrap().len(), 10_001);
        assert_eq!(key.span(Ranges::HalfOpen).unwrap().len(), 10_000);
    }

    #[test]
    fn which_keys_are_ranges() {
        for (text, range) in [
            ("0-0", Some((0, 0))),
            ("5-9", Some((5, 9))),
            ("9-5", None),
            ("05-9", None),
            ("5-09", None),
            ("5-", None),
            ("-5", None),
            ("1-2-3", None),
            ("2025-12-31", None),
            ("a=1", None),
            ("9223372036854775807-9223372036854775807", Some((Cursor::MAX.0, Cursor::MAX.0))),
            ("1-9223372036854775808", None),
        ] {
            let key = PartitionKey::parse(text).unwrap();
            assert_eq!(key.numbers().map(|(start, end)| (start.get(), end.get())), range, "{text}");
        }
        for wrong in ["", "a b", "a/b", "é", &"x".repeat(KEY_CHARS + 1)] {
            assert_eq!(PartitionKey::parse(wrong), Err(KeyError::Invalid), "{wrong}");
        }
        assert!(PartitionKey::parse(&"x".repeat(KEY_CHARS)).is_ok());
    }

    #[test]
    fn ends_beside_a_key_agree_with_it() {
        let n = |value| Cursor::new(value);
        let range = PartitionKey::parse("5-9").unwrap();
        for (start, end, fits) in [
            (None, None, true),
            (n(5), None, true),
            (None, n(9), true),
            (n(5), n(9), true),
            (n(5), n(10), false),
            (n(4), n(9), false),
        ] {
            assert_eq!(range.agrees(start, end).is_ok(), fits, "{start:?} {end:?}");
        }
        let name = PartitionKey::parse("today").unwrap();
        assert_eq!(name.agrees(None, None), Ok(()));
        assert_eq!(name.agrees(n(1), None), Err(KeyError::Mismatch));
    }

    #[test]
    fn cursors_are_integers_or_decimal_strings() {
        let read = |text: &str| serde_json::from_str::<Cursor>(text).ok().map(Cursor::get);
        assert_eq!(read("12345"), Some(12_345));
        assert_eq!(read(r#""12345""#), Some(12_345));
        assert_eq!(read("9223372036854775807"), Some(Cursor::MAX.0));
        assert_eq!(read(r#""0""#), Some(0));
        for wrong in [
            "-1",
            "9223372036854775808",
            "1.0",
            "1e3",
            r#""""#,
            r#""+1""#,
            r#""01""#,
            r#""9223372036854775808""#,
            "null",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
        assert_eq!(serde_json::to_string(&Cursor::MAX).unwrap(), "9223372036854775807");
    }
}
