//! A configuration file as a list of keys with their lines.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

use super::error::{ConfigError, Origin, shortened};
use super::keys::{self, Place, Shape};
use super::settings::{Given, Value};

/// What a file says.
#[derive(Debug, Default)]
pub(crate) struct Parsed {
    pub given: Vec<Given>,
    pub foreign: Vec<Foreign>,
}

/// A section of StacyVM without a counterpart. Nothing but this is kept of it.
#[derive(Debug, Clone)]
pub(crate) struct Foreign {
    pub section: &'static str,
    /// Whether something in it is switched on.
    pub enabled: bool,
    pub origin: Origin,
}

/// Reads YAML. Scalars stay the text they are written as, so that a token of digits keeps its zeros.
pub(crate) fn parse(path: &Path, text: &str) -> Result<Parsed, ConfigError> {
    let mut reading = Reading { path, parsed: Parsed::default(), unknown: None };
    // Lines of the file are never quoted in messages: they may hold secrets.
    let options = serde_saphyr::options! {
        with_snippet: false,
        // They would be kept, up to a number that a well-explained file exceeds.
        emit_comments: false,
        reject_unsupported_tags: true,
        budget: budget(),
    };
    let read = serde_saphyr::with_deserializer_from_str_with_options(text, options, |deserializer| {
        Section { prefix: "", reading: &mut reading }.deserialize(deserializer)
    });
    match (read, reading.unknown) {
        (Ok(()), _) => Ok(reading.parsed),
        (Err(_), Some(unknown)) => Err(unknown),
        (Err(error), None) => {
            let line = error.location().map_or(0, |location| location.line());
            let origin = Origin::File { path: path.to_owned(), line };
            Err(ConfigError::Syntax { origin, message: plain(&error) })
        }
    }
}

/// Far more than any configuration needs, and far less than what would use up memory or stack.
fn budget() -> Option<serde_saphyr::Budget> {
    serde_saphyr::budget! {
        max_depth: 16,
        max_events: 100_000,
        max_nodes: 50_000,
        max_documents: 1,
        max_anchors: 100,
        max_aliases: 100,
        max_recorded_anchor_events: 10_000,
        max_recorded_anchor_bytes: 1 << 20,
        max_total_scalar_bytes: 4 << 20,
        max_merge_keys: 100,
    }
}

/// What the reader says, without the place, which is named anyway, and without what it quotes: a secret that begins
/// with `!` is a tag to it.
fn plain(error: &serde_saphyr::Error) -> String {
    let error = error.without_snippet();
    match error {
        serde_saphyr::Error::UnsupportedTag { .. } => {
            return "unsupported tag: put a value that begins with ! in quotes".to_owned();
        }
        serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. } => {
            return format!("the key `{}` is set twice", shortened(key));
        }
        _ => {}
    }
    let text = error.to_string();
    let text = text.split(['\n', '`', '"', '[']).next().unwrap_or_default().trim_end();
    match text.rsplit_once(" at line ") {
        Some((message, place)) if place.starts_with(|c: char| c.is_ascii_digit()) => message.to_owned(),
        _ => text.to_owned(),
    }
}

struct Reading<'a> {
    path: &'a Path,
    parsed: Parsed,
    unknown: Option<ConfigError>,
}

/// A section of the file, or the whole of it. One without content counts as absent.
struct Section<'a, 'b> {
    prefix: &'a str,
    reading: &'a mut Reading<'b>,
}

impl<'de> DeserializeSeed<'de> for Section<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for Section<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("keys with values")
    }

    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<Spanned<String>>()? {
            let path = if self.prefix.is_empty() { name.value } else { format!("{}.{}", self.prefix, name.value) };
            let origin = Origin::File { path: self.reading.path.to_owned(), line: name.referenced.line() };
            let value = match keys::place(&path) {
                Place::Key(key) => value_of(key.kind.shape(), &mut map)?.map(|value| (key, value)),
                Place::Section => {
                    map.next_value_seed(Section { prefix: &path, reading: self.reading })?;
                    None
                }
                Place::Foreign(section) => {
                    let Switch(enabled) = map.next_value()?;
                    self.reading.parsed.foreign.push(Foreign { section, enabled, origin });
                    continue;
                }
                Place::Nowhere => {
                    let nearest = keys::nearest(&path);
                    self.reading.unknown = Some(ConfigError::UnknownKey { key: path, origin, nearest });
                    return Err(A::Error::custom("unknown key"));
                }
            };
            if let Some((key, value)) = value {
                self.reading.parsed.given.push(Given { key, value, origin });
            }
        }
        Ok(())
    }
}

/// Whether `enabled` of a section is true. Its other values are skipped.
struct Switch(bool);

impl<'de> Deserialize<'de> for Switch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Values;
        impl<'de> Visitor<'de> for Values {
            type Value = Switch;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("keys with values")
            }

            fn visit_unit<E>(self) -> Result<Switch, E> {
                Ok(Switch(false))
            }

            fn visit_none<E>(self) -> Result<Switch, E> {
                Ok(Switch(false))
            }

            fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Switch, D::Error> {
                deserializer.deserialize_map(self)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Switch, A::Error> {
                let mut switch = Switch(false);
                while let Some(name) = map.next_key::<String>()? {
                    if name == "enabled" {
                        let text = map.next_value::<Option<String>>()?;
                        switch.0 = text.is_some_and(|text| text.trim().eq_ignore_ascii_case("true"));
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(switch)
            }
        }
        deserializer.deserialize_option(Values)
    }
}

/// A key without a value says nothing.
fn value_of<'de, A: MapAccess<'de>>(shape: Shape, map: &mut A) -> Result<Option<Value>, A::Error> {
    match shape {
        Shape::Text => Ok(map.next_value::<Option<String>>()?.map(Value::Text)),
        Shape::List => Ok(map.next_value::<Option<Vec<String>>>()?.map(Value::List)),
        Shape::FlagOrList => Ok(map.next_value::<Option<FlagOrList>>()?.map(|given| given.0)),
        Shape::Map => Ok(map.next_value::<Option<BTreeMap<String, String>>>()?.map(Value::Map)),
    }
}

/// `true`, `false`, or a list.
struct FlagOrList(Value);

impl<'de> Deserialize<'de> for FlagOrList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FlagOrListVisitor)
    }
}

struct FlagOrListVisitor;

impl<'de> Visitor<'de> for FlagOrListVisitor {
    type Value = FlagOrList;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("true, false, or a list")
    }

    fn visit_bool<E>(self, flag: bool) -> Result<FlagOrList, E> {
        Ok(FlagOrList(Value::Text(flag.to_string())))
    }

    fn visit_str<E>(self, text: &str) -> Result<FlagOrList, E> {
        Ok(FlagOrList(Value::Text(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<FlagOrList, A::Error> {
        let mut list = Vec::new();
        while let Some(entry) = entries.next_element()? {
            list.push(entry);
        }
        Ok(FlagOrList(Value::List(list)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<(String, u64)>, String> {
        let given = parse(Path::new("t.yaml"), text).map_err(|error| error.to_string())?.given;
        let line = |origin: &Origin| match origin {
            Origin::File { line, .. } => *line,
            _ => 0,
        };
        let show = |given: &Given| match &given.value {
            Value::Text(text) => format!("{}={text}", given.key.path),
            Value::List(list) => format!("{}={list:?}", given.key.path),
            Value::Map(map) => format!("{}={map:?}", given.key.path),
        };
        Ok(given.iter().map(|given| (show(given), line(&given.origin))).collect())
    }

    #[test]
    fn a_flag_may_be_a_list() {
        let one = |value: &str| read(&format!("auth: {{anonymous_workers: {value}}}\n"));
        for (value, shown) in
            [("true", "true"), ("'False'", "False"), ("[10.0.0.0/8, '::1']", r#"["10.0.0.0/8", "::1"]"#)]
        {
            assert_eq!(one(value).unwrap()[0].0, format!("auth.anonymous_workers={shown}"));
        }
        assert_eq!(one("").unwrap(), [], "it says nothing");
        for value in ["{a: b}", "[[10.0.0.0/8]]", "7"] {
            assert!(one(value).is_err(), "{value}");
        }
    }

    #[test]
    fn keys_are_read_with_their_lines_and_their_text() {
        let text =
            "# first\nserver:\n  host: ::1\n  port: 0123\nauth:\n  enabled: true\n  worker_tokens:\n    w-1: 007\n";
        let found = read(text).unwrap();
        let expected = [
            ("server.host=::1", 3),
            ("server.port=0123", 4),
            ("auth.enabled=true", 6),
            ("auth.worker_tokens={\"w-1\": \"007\"}", 7),
        ];
        assert_eq!(found, expected.map(|(text, line)| (text.to_owned(), line)));
    }

    #[test]
    fn sections_of_others_are_skipped_but_for_their_switch() {
        let text = "pool: {enabled: true, image: x}\nproviders:\n  e2b:\n    api_key: hunter2\n    enabled: false\n\
                    \u{20} proot: {languages: [a, b], more: {deep: [{er: 1}]}}\n  custom:\n  docker:\n    pool_security: {hidepid: true}\n";
        let found = parse(Path::new("t.yaml"), text).unwrap();
        assert!(found.given.is_empty() && !format!("{found:?}").contains("hunter2"));
        let sections: Vec<_> = found.foreign.iter().map(|foreign| (foreign.section, foreign.enabled)).collect();
        let expected = [
            ("pool", true),
            ("providers.e2b", false),
            ("providers.proot", false),
            ("providers.custom", false),
            ("providers.docker.pool_security", false),
        ];
        assert_eq!(sections, expected);
        for text in ["pool: on\n", "pool: [1]\n", "pool: {enabled: {a: b}}\n"] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn empty_files_sections_and_values_say_nothing() {
        for text in ["", "# only a comment\n", "server:\n", "server:\n  host:\n", "---\n"] {
            assert_eq!(read(text).unwrap(), [], "{text:?}");
        }
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line_and_the_one_that_was_meant() {
        assert_eq!(
            read("auth:\n  api_kye: x\n").unwrap_err(),
            "t.yaml line 2: unknown key `auth.api_kye`; did you mean `auth.api_key`?"
        );
        assert_eq!(
            read("\nsevrer:\n  port: 1\n").unwrap_err(),
            "t.yaml line 2: unknown key `sevrer`; did you mean `server`?"
        );
        assert_eq!(read("qqq: 1\n").unwrap_err(), "t.yaml line 1: unknown key `qqq`");
    }

    #[test]
    fn what_is_wrong_with_the_file_is_said_without_quoting_it() {
        for text in [
            "auth: [hunter2\n",
            "auth:\n  api_key: {a: hunter2}\n",
            "auth: hunter2\n",
            "auth:\n  api_key: a\n  api_key: hunter2\n",
            "auth:\n  api_key: !hunter2\n",
            "auth:\n  api_key: *hunter2\n",
            "auth:\n  api_key: @hunter2\n",
            "\"auth:\n  api_key: hunter2\": x\n",
        ] {
            let message = read(text).unwrap_err();
            assert!(message.starts_with("t.yaml line ") && !message.contains("hunter2"), "{message}");
        }
    }
}
