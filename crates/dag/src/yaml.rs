//! YAML as a tree that knows its places.

use std::borrow::Cow;

use granit_parser::{ErrorKind, Event, Marker, Parser, ScalarStyle};
use serde_json::{Number, Value};

use crate::problem::{Code, Place, Report, quoted};

/// How deep values may be nested.
const DEPTH: usize = 32;
/// Values in a text, keys included.
const VALUES: usize = 300_000;
const TOO_DEEP: &str = "values may be nested 32 levels deep";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct At {
    pub line: u32,
    pub column: u32,
}

impl At {
    pub const START: Self = Self { line: 1, column: 1 };

    fn of(mark: &Marker) -> Self {
        let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        Self { line: number(mark.line()).max(1), column: number(mark.col()).saturating_add(1) }
    }
}

#[derive(Debug)]
pub(crate) struct Node {
    pub at: At,
    pub content: Content,
    /// Written before the value: an anchor or a tag.
    pub mark: Option<Mark>,
}

#[derive(Debug)]
pub(crate) enum Content {
    Scalar {
        text: String,
        plain: bool,
    },
    List(Vec<Node>),
    /// In the order of the text, duplicates included.
    Map(Vec<(Key, Node)>),
    /// A reference to an anchor.
    Alias,
}

#[derive(Debug)]
pub(crate) struct Key {
    pub at: At,
    pub text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    Anchor,
    Tag,
}

/// What a scalar means by the core schema of YAML 1.2.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Scalar<'a> {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(&'a str),
}

impl Node {
    pub fn scalar(&self) -> Option<Scalar<'_>> {
        match &self.content {
            Content::Scalar { text, plain: true } => Some(resolve(text)),
            Content::Scalar { text, plain: false } => Some(Scalar::Text(text)),
            _ => None,
        }
    }

    pub fn is_null(&self) -> bool {
        self.scalar() == Some(Scalar::Null)
    }

    pub fn entry(&self, key: &str) -> Option<&Self> {
        match &self.content {
            Content::Map(entries) => entries.iter().find(|(name, _)| name.text == key).map(|(_, value)| value),
            _ => None,
        }
    }

    /// What it is, for messages.
    pub fn kind(&self) -> &'static str {
        match (&self.content, self.scalar()) {
            (Content::List(_), _) => "a list",
            (Content::Map(_), _) => "a map",
            (_, Some(Scalar::Null)) => "nothing",
            (_, Some(Scalar::Bool(_))) => "a boolean",
            (_, Some(Scalar::Int(_) | Scalar::Float(_))) => "a number",
            _ => "a text",
        }
    }

    /// As JSON. Of duplicate keys, which are errors elsewhere, the last is kept.
    pub fn json(&self, place: &Place, report: &Report) -> Value {
        match &self.content {
            Content::Alias => Value::Null,
            Content::List(items) => {
                items.iter().enumerate().map(|(index, item)| item.json(&place.index(index), report)).collect()
            }
            Content::Map(entries) => {
                let entry = |(key, value): &(Key, Self)| (key.text.clone(), value.json(&place.key(&key.text), report));
                Value::Object(entries.iter().map(entry).collect())
            }
            Content::Scalar { text, .. } => match self.scalar() {
                Some(Scalar::Bool(value)) => Value::Bool(value),
                Some(Scalar::Text(text)) => Value::from(text),
                Some(Scalar::Int(value)) => number(Integer(value).try_into().ok(), text, self.at, place, report),
                Some(Scalar::Float(value)) => number(Number::from_f64(value), text, self.at, place, report),
                _ => Value::Null,
            },
        }
    }
}

fn number(value: Option<Number>, text: &str, at: At, place: &Place, report: &Report) -> Value {
    let Some(value) = value else {
        let message = format!("'{}' is not a JSON number of 64 bits: put it in quotes", quoted(text));
        report.error(at, place, Code::OutOfRange, message);
        return Value::Null;
    };
    Value::Number(value)
}

struct Integer(i128);

impl TryFrom<Integer> for Number {
    type Error = ();

    fn try_from(Integer(value): Integer) -> Result<Self, ()> {
        i64::try_from(value).map(Self::from).or_else(|_| u64::try_from(value).map(Self::from)).map_err(|_| ())
    }
}

fn resolve(text: &str) -> Scalar<'_> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Scalar::Null,
        "true" | "True" | "TRUE" => Scalar::Bool(true),
        "false" | "False" | "FALSE" => Scalar::Bool(false),
        _ => integer(text).map(Scalar::Int).or_else(|| float(text).map(Scalar::Float)).unwrap_or(Scalar::Text(text)),
    }
}

fn integer(text: &str) -> Option<i128> {
    if let Some(octal) = text.strip_prefix("0o") {
        return digits(octal, 8);
    }
    if let Some(hex) = text.strip_prefix("0x") {
        return digits(hex, 16);
    }
    match text.strip_prefix('-') {
        Some(rest) => digits(rest, 10).map(|value| -value),
        None => digits(text.strip_prefix('+').unwrap_or(text), 10),
    }
}

/// Numbers that are too large for any use stay large.
fn digits(text: &str, radix: u32) -> Option<i128> {
    let valid = !text.is_empty() && text.chars().all(|c| c.is_digit(radix));
    valid.then(|| i128::from_str_radix(text, radix).unwrap_or(i128::MAX))
}

fn float(text: &str) -> Option<f64> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    match unsigned {
        ".inf" | ".Inf" | ".INF" => return Some(f64::INFINITY),
        ".nan" | ".NaN" | ".NAN" if unsigned == text => return Some(f64::NAN),
        _ => {}
    }
    let looks = unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && unsigned.bytes().any(|byte| byte.is_ascii_digit())
        && unsigned.bytes().all(|byte| byte.is_ascii_digit() || b".eE+-".contains(&byte));
    looks.then(|| text.parse().ok())?
}

/// Reads one document. `None` if it cannot be read to its end; the reason is in the report.
pub(crate) fn read(text: &str, report: &Report) -> Option<Node> {
    let options = granit_parser::options! {
        emit_comments: false,
        emit_unresolved_aliases: true,
        flow_nesting_limit: DEPTH * 2,
        block_nesting_limit: DEPTH * 2,
    };
    let mut builder = Builder { report, open: Vec::new(), root: None, values: 0 };
    for next in Parser::new_from_str_with_options(text, options) {
        match next {
            Ok((event, span)) => builder.event(event, At::of(&span.start))?,
            Err(error) => {
                let at = At::of(error.marker());
                if matches!(error.kind(), ErrorKind::RecursionLimitExceeded) {
                    builder.fail(at, Code::TooDeep, TOO_DEEP);
                } else {
                    report.error(at, &Place::default(), Code::Syntax, quoted(&error.info()));
                }
                return None;
            }
        }
    }
    builder.root
}

/// Containers that are not complete yet.
enum Open {
    List(At, Option<Mark>, Vec<Node>),
    Map(At, Option<Mark>, Vec<(Key, Node)>, Option<Key>),
}

struct Builder<'a> {
    report: &'a Report,
    open: Vec<Open>,
    root: Option<Node>,
    values: usize,
}

impl Builder<'_> {
    /// `None` ends the reading.
    fn event(&mut self, event: Event<'_>, at: At) -> Option<()> {
        match event {
            Event::DocumentStart(..) if self.root.is_some() => {
                self.fail(at, Code::SeveralDocuments, "a DAG is one YAML document; send each one by itself")
            }
            Event::Scalar(text, style, anchor, tag) => {
                let content = Content::Scalar { text: text.into_owned(), plain: style == ScalarStyle::Plain };
                self.value(Node { at, content, mark: mark(anchor, tag.is_some()) })
            }
            Event::Alias(_) | Event::UnresolvedAlias(_) => self.value(Node { at, content: Content::Alias, mark: None }),
            Event::SequenceStart(_, anchor, tag) => {
                self.start(at, Open::List(at, mark(anchor, tag.is_some()), Vec::new()))
            }
            Event::MappingStart(_, anchor, tag) => {
                self.start(at, Open::Map(at, mark(anchor, tag.is_some()), Vec::new(), None))
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let node = match self.open.pop()? {
                    Open::List(at, mark, items) => Node { at, content: Content::List(items), mark },
                    Open::Map(at, mark, entries, _) => Node { at, content: Content::Map(entries), mark },
                };
                self.place(node)
            }
            _ => Some(()),
        }
    }

    fn start(&mut self, at: At, open: Open) -> Option<()> {
        if self.open.len() >= DEPTH {
            return self.fail(at, Code::TooDeep, TOO_DEEP);
        }
        if let Some(Open::Map(_, _, _, None)) = self.open.last() {
            return self.fail(at, Code::WrongType, "a key is a single word");
        }
        self.count(at)?;
        self.open.push(open);
        Some(())
    }

    fn value(&mut self, node: Node) -> Option<()> {
        self.count(node.at)?;
        self.place(node)
    }

    fn count(&mut self, at: At) -> Option<()> {
        self.values += 1;
        if self.values > VALUES {
            return self.fail(at, Code::TooManyValues, format!("a DAG has at most {VALUES} values"));
        }
        Some(())
    }

    fn place(&mut self, node: Node) -> Option<()> {
        match self.open.last_mut() {
            None => self.root = Some(node),
            Some(Open::List(_, _, items)) => items.push(node),
            Some(Open::Map(_, _, entries, key)) => match key.take() {
                Some(name) => entries.push((name, node)),
                None => return self.key(node),
            },
        }
        Some(())
    }

    fn key(&mut self, node: Node) -> Option<()> {
        let at = node.at;
        if let Some(mark) = node.mark {
            mark.refuse(at, &Place::default(), self.report);
        }
        let text = match node.content {
            Content::Scalar { text, .. } => text,
            Content::Alias => {
                Mark::Anchor.refuse(at, &Place::default(), self.report);
                return None;
            }
            _ => return self.fail(at, Code::WrongType, "a key is a single word"),
        };
        if let Some(Open::Map(_, _, _, key)) = self.open.last_mut() {
            *key = Some(Key { at, text });
        }
        Some(())
    }

    fn fail(&self, at: At, code: Code, message: impl Into<Cow<'static, str>>) -> Option<()> {
        self.report.error(at, &Place::default(), code, message.into());
        None
    }
}

fn mark(anchor: usize, tag: bool) -> Option<Mark> {
    match (anchor, tag) {
        (0, false) => None,
        (0, true) => Some(Mark::Tag),
        _ => Some(Mark::Anchor),
    }
}

impl Mark {
    pub fn refuse(self, at: At, place: &Place, report: &Report) {
        match self {
            Self::Anchor => report.error(
                at,
                place,
                Code::Anchor,
                "anchors (&) and aliases (*) are not allowed: write the value out, or put it in quotes",
            ),
            Self::Tag => {
                report.error(at, place, Code::Tag, "tags (!) are not allowed: put a text that begins with ! in quotes")
            }
        }
    }
}
