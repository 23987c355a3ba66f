//! Rows of a result as values of a type.

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{DeserializeOwned, Deserializer, Visitor};
use serde_json::Error;
use serde_json::value::RawValue;

use super::{QueryRows, ResultColumn};

impl QueryRows {
    /// Decodes every row: a struct or map by the names of the columns, a tuple or list by their order.
    ///
    /// Unsigned numbers of 64 bits, numbers of 128 bits and decimals are strings, moments are RFC 3339, bytes are base64.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<Vec<T>, Error> {
        let rows: Vec<Vec<&RawValue>> = self.rows.decode()?;
        rows.into_iter().map(|cells| T::deserialize(Row { columns: &self.columns, cells })).collect()
    }
}

struct Row<'de> {
    columns: &'de [ResultColumn],
    cells: Vec<&'de RawValue>,
}

impl<'de> Deserializer<'de> for Row<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let mut cells = SeqDeserializer::new(self.cells.into_iter());
        let value = visitor.visit_seq(&mut cells)?;
        cells.end()?;
        Ok(value)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let names = self.columns.iter().map(|column| column.name.as_str());
        visitor.visit_map(MapDeserializer::new(names.zip(self.cells)))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_map(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _name: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct seq
        tuple tuple_struct enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;
    use serde_json::{Value, json};

    use super::*;

    fn rows() -> QueryRows {
        let answer = json!({"mode": "inline", "delivery": "inline", "query_id": "q", "row_count": 2, "truncated": false,
            "duration_ms": 1, "columns": [{"name": "n", "type": "int64"}, {"name": "name", "type": "text"}],
            "rows": [[1, "a"], [2, null]]});
        serde_json::from_value(answer).unwrap()
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct ByName {
        name: Option<String>,
        n: i64,
    }

    #[test]
    fn rows_are_structs_by_name_and_tuples_by_order() {
        let named = |n, name: Option<&str>| ByName { name: name.map(ToOwned::to_owned), n };
        assert_eq!(rows().decode::<ByName>().unwrap(), [named(1, Some("a")), named(2, None)]);
        assert_eq!(rows().decode::<(i64, Option<String>)>().unwrap(), [(1, Some("a".into())), (2, None)]);
        let map = rows().decode::<BTreeMap<String, Value>>().unwrap();
        assert_eq!(map[1], BTreeMap::from([("n".to_owned(), json!(2)), ("name".to_owned(), Value::Null)]));
        assert_eq!(rows().decode::<Vec<Value>>().unwrap()[0], [json!(1), json!("a")]);
    }

    #[test]
    fn rows_that_do_not_fit_are_an_error() {
        assert!(rows().decode::<(i64, String)>().is_err());
        assert!(rows().decode::<(i64,)>().is_err());
        assert!(rows().decode::<BTreeMap<String, i64>>().is_err());
    }
}
