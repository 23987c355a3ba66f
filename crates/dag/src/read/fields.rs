//! Reads the entries of a map, and reports those that are missing, unknown or of another type.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::problem::{Code, Place, Report, quoted};
use crate::yaml::{At, Content, Key, Node, Scalar};

/// Keys that other systems know and this one refuses, so that nobody relies on them.
const RESERVED: [&str; 3] = ["max_queue_depth", "max_queue_age", "backpressure_mode"];

pub(super) struct Fields<'n, 'r> {
    pub at: At,
    pub place: Place,
    pub report: &'r Report,
    entries: &'n [(Key, Node)],
}

impl<'n, 'r> Fields<'n, 'r> {
    /// `None` if it is not a map.
    pub fn of(node: &'n Node, place: Place, report: &'r Report, known: &[&str]) -> Option<Self> {
        let Content::Map(entries) = &node.content else {
            report.error(node.at, &place, Code::WrongType, format!("expected a map, found {}", node.kind()));
            return None;
        };
        let fields = Self { at: node.at, place, report, entries };
        fields.refuse_unknown(known);
        Some(fields)
    }

    fn refuse_unknown(&self, known: &[&str]) {
        for (key, _) in self.entries.iter().filter(|(key, _)| !known.contains(&key.text.as_str())) {
            let place = self.place.key(&key.text);
            let name = quoted(&key.text);
            if RESERVED.contains(&key.text.as_str()) {
                let message = format!("'{name}' is reserved: limit running tasks with `scaling.max_concurrency`");
                self.report.error(key.at, &place, Code::ReservedKey, message);
            } else {
                let meant = self.report.meant(&key.text, known.iter().copied());
                self.report.error(key.at, &place, Code::UnknownKey, format!("unknown key '{name}'{meant}"));
            }
        }
    }

    /// The value of a key. One without content counts as absent.
    pub fn get(&self, key: &str) -> Option<&'n Node> {
        let mut named = self.entries.iter().filter(|(name, _)| name.text == key);
        named.next().map(|(_, value)| value).filter(|value| !value.is_null())
    }

    pub fn required(&self, key: &str) -> Option<&'n Node> {
        let value = self.get(key);
        if value.is_none() {
            self.missing(key, format!("'{key}' is required"));
        }
        value
    }

    pub fn missing(&self, key: &str, message: impl Into<String>) {
        self.report.error(self.at, &self.place.key(key), Code::MissingField, message);
    }

    /// About the value of a key, or about the map if the key is absent.
    pub fn error(&self, key: &str, code: Code, message: impl Into<String>) {
        let at = self.get(key).map_or(self.at, |value| value.at);
        self.report.error(at, &self.place.key(key), code, message);
    }

    pub fn warning(&self, key: &str, code: Code, message: impl Into<String>) {
        let at = self.get(key).map_or(self.at, |value| value.at);
        self.report.warning(at, &self.place.key(key), code, message);
    }

    /// Refuses keys that mean nothing here.
    pub fn forbid(&self, keys: &[&str], why: &str) {
        for key in keys {
            if let Some((name, _)) = self.entries.iter().find(|(name, _)| name.text == *key) {
                self.report.error(name.at, &self.place.key(key), Code::NotAllowed, format!("'{key}' {why}"));
            }
        }
    }

    pub fn map(&self, key: &str, known: &[&str]) -> Option<Fields<'n, 'r>> {
        self.get(key).and_then(|node| Fields::of(node, self.place.key(key), self.report, known))
    }

    pub fn list(&self, key: &str) -> Option<&'n [Node]> {
        let node = self.get(key)?;
        let Content::List(items) = &node.content else {
            self.error(key, Code::WrongType, format!("expected a list, found {}", node.kind()));
            return None;
        };
        Some(items)
    }

    pub fn text(&self, key: &str) -> Option<&'n str> {
        self.get(key).and_then(|node| text(node, &self.place.key(key), self.report))
    }

    pub fn required_text(&self, key: &str) -> Option<&'n str> {
        self.required(key).and_then(|node| text(node, &self.place.key(key), self.report))
    }

    pub fn number(&self, key: &str, allowed: RangeInclusive<u32>) -> Option<u32> {
        self.get(key).and_then(|node| number(node, &self.place.key(key), self.report, allowed))
    }

    pub fn boolean(&self, key: &str) -> Option<bool> {
        let node = self.get(key)?;
        let Some(Scalar::Bool(value)) = node.scalar() else {
            self.error(key, Code::WrongType, format!("expected true or false, found {}", node.kind()));
            return None;
        };
        Some(value)
    }

    /// One of a few words.
    pub fn word<T: Copy>(&self, key: &str, words: &[(&str, T)]) -> Option<T> {
        let text = self.text(key)?;
        let found = words.iter().find(|(word, _)| *word == text);
        if found.is_none() {
            let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            let meant = self.report.meant(text, known.iter().copied());
            let message = format!("'{}' is not one of: {}{meant}", quoted(text), known.join(", "));
            self.error(key, Code::InvalidValue, message);
        }
        found.map(|(_, value)| *value)
    }

    /// A list of different names.
    pub fn names(&self, key: &str, max: usize, valid: fn(&str) -> bool, rule: &str) -> Option<Vec<Arc<str>>> {
        let items = self.list(key)?;
        if items.len() > max {
            self.error(key, Code::OutOfRange, format!("at most {max} entries are allowed"));
            return None;
        }
        let mut seen = BTreeSet::new();
        let mut names = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            let place = self.place.key(key).index(index);
            let name = text(item, &place, self.report)?;
            if !valid(name) {
                let message = format!("'{}' is not a valid name: {rule}", quoted(name));
                self.report.error(item.at, &place, Code::InvalidName, message);
            } else if !seen.insert(name) {
                self.report.error(item.at, &place, Code::InvalidValue, format!("'{name}' is listed twice"));
            }
            names.push(name.into());
        }
        Some(names)
    }
}

pub(super) fn text<'n>(node: &'n Node, place: &Place, report: &Report) -> Option<&'n str> {
    match node.scalar() {
        Some(Scalar::Text(text)) => Some(text),
        found => {
            let quotes = if found.is_some_and(|found| found != Scalar::Null) { ": put it in quotes" } else { "" };
            report.error(node.at, place, Code::WrongType, format!("expected a text, found {}{quotes}", node.kind()));
            None
        }
    }
}

pub(super) fn number(node: &Node, place: &Place, report: &Report, allowed: RangeInclusive<u32>) -> Option<u32> {
    let Some(Scalar::Int(value)) = node.scalar() else {
        report.error(node.at, place, Code::WrongType, format!("expected a whole number, found {}", node.kind()));
        return None;
    };
    let found = u32::try_from(value).ok().filter(|value| allowed.contains(value));
    if found.is_none() {
        let message = format!("must be a number from {} to {}", allowed.start(), allowed.end());
        report.error(node.at, place, Code::OutOfRange, message);
    }
    found
}

/// A column, or a name for a relation.
pub(super) fn is_identifier(name: &str) -> bool {
    let part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (1..=63).contains(&name.len()) && !name.starts_with(|c: char| c.is_ascii_digit()) && name.bytes().all(part)
}

pub(super) const IDENTIFIER_RULE: &str = "letters, digits and _, not beginning with a digit, at most 63";
pub(super) const NAME_RULE: &str = "a lower-case letter, then up to 127 of a-z, 0-9, _ and -";
