//! Objects that must be sent as objects.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// An object or `null`. Without this serde would also take the fields of a struct one after the other in a list, without
/// their names.
pub fn object<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    Ok(Option::<Object<T>>::deserialize(deserializer)?.map(|Object(object)| object))
}

struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Fields(PhantomData))
    }
}

struct Fields<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(fields)).map(Object)
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Outer {
        #[serde(default, deserialize_with = "super::object")]
        inner: Option<Inner>,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Inner {
        n: u8,
    }

    #[test]
    fn a_list_is_not_an_object() {
        let read = |text| serde_json::from_str::<Outer>(text).map(|outer| outer.inner);
        assert_eq!(read(r#"{"inner":{"n":1}}"#).unwrap(), Some(Inner { n: 1 }));
        assert_eq!((read(r#"{"inner":null}"#).unwrap(), read("{}").unwrap()), (None, None));
        for text in [r#"{"inner":[1]}"#, r#"{"inner":[]}"#, r#"{"inner":1}"#, r#"{"inner":{"n":300}}"#] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
