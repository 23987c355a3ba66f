//! Optional fields as existing clients send them: `null`, `""` and `0` mean absent.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::{
    BoolDeserializer, F64Deserializer, I64Deserializer, MapAccessDeserializer, SeqAccessDeserializer, StrDeserializer,
    StringDeserializer, U64Deserializer,
};
use serde::de::{Error, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// For a field of type `Option<T>`.
pub(super) fn option<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    deserializer.deserialize_any(Blank(PhantomData))
}

/// For a field whose default means absent.
pub(super) fn value<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(option(deserializer)?.unwrap_or_default())
}

pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

struct Blank<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Blank<T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_none<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Self::Value, E> {
        let from: BoolDeserializer<E> = value.into_deserializer();
        T::deserialize(from).map(Some)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
        let from: I64Deserializer<E> = value.into_deserializer();
        if value == 0 { Ok(None) } else { T::deserialize(from).map(Some) }
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
        let from: U64Deserializer<E> = value.into_deserializer();
        if value == 0 { Ok(None) } else { T::deserialize(from).map(Some) }
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Self::Value, E> {
        let from: F64Deserializer<E> = value.into_deserializer();
        if value == 0.0 { Ok(None) } else { T::deserialize(from).map(Some) }
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Self::Value, E> {
        let from: StrDeserializer<'_, E> = value.into_deserializer();
        if value.is_empty() { Ok(None) } else { T::deserialize(from).map(Some) }
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Self::Value, E> {
        let empty = value.is_empty();
        let from: StringDeserializer<E> = value.into_deserializer();
        if empty { Ok(None) } else { T::deserialize(from).map(Some) }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Self::Value, A::Error> {
        T::deserialize(SeqAccessDeserializer::new(seq)).map(Some)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    struct Sample {
        #[serde(default, deserialize_with = "option")]
        text: Option<String>,
        #[serde(default, deserialize_with = "option")]
        number: Option<u32>,
        #[serde(default, deserialize_with = "value")]
        list: Vec<String>,
        #[serde(default, deserialize_with = "value")]
        map: BTreeMap<String, String>,
        #[serde(default, deserialize_with = "value")]
        flag: bool,
    }

    #[test]
    fn null_empty_text_and_zero_are_absent_in_every_field() {
        for blank in ["null", r#""""#, "0", "0.0"] {
            let text =
                format!(r#"{{"text":{blank},"number":{blank},"list":{blank},"map":{blank},"flag":{blank},"news":1}}"#);
            assert_eq!(serde_json::from_str::<Sample>(&text).expect(&text), Sample::default());
        }
        assert_eq!(serde_json::from_str::<Sample>("{}").unwrap(), Sample::default());
    }

    #[test]
    fn everything_else_is_read_and_wrong_types_are_refused() {
        let text = r#"{"text":"a\nb","number":7,"list":["x",""],"map":{"k":"v"},"flag":true}"#;
        let sample: Sample = serde_json::from_str(text).unwrap();
        assert_eq!((sample.text.as_deref(), sample.number, sample.flag), (Some("a\nb"), Some(7), true));
        assert_eq!((sample.list.len(), sample.map["k"].as_str()), (2, "v"));
        for wrong in [
            r#"{"number":-1}"#,
            r#"{"number":"7"}"#,
            r#"{"text":5}"#,
            r#"{"list":{}}"#,
            r#"{"map":[]}"#,
            r#"{"flag":"yes"}"#,
            r#"{"number":4294967296}"#,
        ] {
            assert!(serde_json::from_str::<Sample>(wrong).is_err(), "{wrong}");
        }
    }
}
