//! Objects of requests must be sent as objects.
//!
//! serde also accepts the fields of a struct one after the other in a list, without their names: `{"retry":[5000,2]}`. Such a
//! request is refused at any depth: a field that is added to a struct would change what it means.

use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, Unexpected, VariantAccess, Visitor,
};

/// Reads as the deserializer inside of it does, except that no struct can be a list.
#[derive(Debug)]
pub struct Objects<D>(pub D);

macro_rules! scalars {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            self.0.$method(visitor)
        }
    )*};
}

macro_rules! nested {
    ($($method:ident($($name:ident: $kind:ty),*);)*) => {$(
        fn $method<V: Visitor<'de>>(self, $($name: $kind,)* visitor: V) -> Result<V::Value, D::Error> {
            self.0.$method($($name,)* Inside { visitor, object: false })
        }
    )*};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Objects<D> {
    type Error = D::Error;

    scalars! {
        deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128 deserialize_f32 deserialize_f64
        deserialize_char deserialize_str deserialize_string deserialize_bytes deserialize_byte_buf
        deserialize_unit deserialize_identifier deserialize_ignored_any
    }

    nested! {
        deserialize_any();
        deserialize_option();
        deserialize_seq();
        deserialize_map();
        deserialize_unit_struct(name: &'static str);
        deserialize_newtype_struct(name: &'static str);
        deserialize_tuple(len: usize);
        deserialize_tuple_struct(name: &'static str, len: usize);
        deserialize_enum(name: &'static str, variants: &'static [&'static str]);
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_struct(name, fields, Inside { visitor, object: true })
    }

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }
}

/// A value, or the access to values, whose parts are read by the same rule.
struct Inside<V> {
    visitor: V,
    /// A list is refused.
    object: bool,
}

macro_rules! visits {
    ($($method:ident($kind:ty))*) => {$(
        fn $method<E: Error>(self, value: $kind) -> Result<V::Value, E> {
            self.visitor.$method(value)
        }
    )*};
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Inside<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    visits! {
        visit_bool(bool) visit_i8(i8) visit_i16(i16) visit_i32(i32) visit_i64(i64) visit_i128(i128)
        visit_u8(u8) visit_u16(u16) visit_u32(u32) visit_u64(u64) visit_u128(u128) visit_f32(f32) visit_f64(f64)
        visit_char(char) visit_str(&str) visit_borrowed_str(&'de str) visit_string(String)
        visit_bytes(&[u8]) visit_borrowed_bytes(&'de [u8]) visit_byte_buf(Vec<u8>)
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_some(Objects(deserializer))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_newtype_struct(Objects(deserializer))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<V::Value, A::Error> {
        if self.object {
            return Err(A::Error::invalid_type(Unexpected::Seq, &"an object"));
        }
        self.visitor.visit_seq(Parts(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_map(Parts(fields))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, variant: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_enum(Parts(variant))
    }
}

/// What a visitor gets its values from.
struct Parts<A>(A);

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Parts<A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.0.next_element_seed(Seed(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Parts<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.0.next_key_seed(seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.0.next_value_seed(Seed(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for Parts<A> {
    type Error = A::Error;
    type Variant = Parts<A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self::Variant), A::Error> {
        let (name, variant) = self.0.variant_seed(seed)?;
        Ok((name, Parts(variant)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Parts<A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.0.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.0.newtype_variant_seed(Seed(seed))
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.0.tuple_variant(len, Inside { visitor, object: false })
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.0.struct_variant(fields, Inside { visitor, object: true })
    }
}

struct Seed<S>(S);

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Seed<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Objects(deserializer))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;
    use serde_json::{Value, json};
    use tenure_contract::Json;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Inner {
        n: u8,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    enum Kind {
        Plain,
        Of(Inner),
        With { n: u8 },
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Wrapper(Inner);

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct Outer {
        one: Option<Inner>,
        many: Vec<Inner>,
        named: BTreeMap<String, Inner>,
        wrapped: Option<Wrapper>,
        kinds: Vec<Kind>,
        pair: Option<(u8, Inner)>,
        raw: Option<Json>,
        any: Value,
        text: Option<String>,
    }

    fn read(text: &str) -> Result<Outer, serde_json::Error> {
        Outer::deserialize(Objects(&mut serde_json::Deserializer::from_str(text)))
    }

    #[test]
    fn a_list_is_not_an_object_at_any_depth() {
        for text in [
            "[]",
            r#"{"one":[1]}"#,
            r#"{"one":[]}"#,
            r#"{"many":[[1]]}"#,
            r#"{"many":[{"n":1},[1]]}"#,
            r#"{"named":{"a":[1]}}"#,
            r#"{"wrapped":[1]}"#,
            r#"{"kinds":[{"Of":[1]}]}"#,
            r#"{"kinds":[{"With":[1]}]}"#,
            r#"{"pair":[1,[1]]}"#,
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.starts_with("invalid type: sequence, expected an object"), "{text}: {error}");
        }
    }

    #[test]
    fn all_else_is_read_as_before() {
        for text in [
            "{}",
            r#"{"one":null,"text":null,"any":null}"#,
            r#"{"one":{"n":1},"many":[{"n":2},{"n":3}],"named":{"a":{"n":4}},"wrapped":{"n":5}}"#,
            r#"{"kinds":["Plain",{"Of":{"n":1}},{"With":{"n":2}}],"pair":[1,{"n":2}]}"#,
            r#"{"raw":{"a":[1, 2.50],"b":[[]]},"any":{"a":[1,{"b":[true,null,-1,1.5,"x"]}]},"text":"a\"b","new":[[1]]}"#,
        ] {
            assert_eq!(read(text).unwrap(), serde_json::from_str::<Outer>(text).unwrap(), "{text}");
        }
        let read = read(r#"{"raw":{"a":[1, 2.50]},"any":[{"a":1}]}"#).unwrap();
        assert_eq!(read.raw.unwrap().as_str(), r#"{"a":[1, 2.50]}"#);
        assert_eq!(read.any, json!([{"a": 1}]));
    }
}
