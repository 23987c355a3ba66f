use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// JSON that is carried and never looked into: its text, kept as it came.
///
/// Cloning is cheap. Two values are equal when their texts are; use [`Json::value`] to compare as JSON values.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Json(Arc<str>);

impl Json {
    /// The JSON text `null`.
    pub fn null() -> Self {
        Self(Arc::from("null"))
    }

    /// An empty object.
    pub fn empty_object() -> Self {
        Self(Arc::from("{}"))
    }

    /// Takes text that is known to be JSON: it came from a parser or from the store.
    pub fn from_trusted(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// Checks the text and keeps it.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str::<&RawValue>(text).map(|raw| Self(Arc::from(raw.get())))
    }

    /// Encodes any value.
    pub fn of(value: &impl Serialize) -> Result<Self, serde_json::Error> {
        serde_json::to_string(value).map(|text| Self(Arc::from(text)))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn text(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }

    /// Length of the text in bytes: what the size limits speak of.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The decoded value.
    pub fn value(&self) -> serde_json::Value {
        serde_json::from_str(&self.0).unwrap_or(serde_json::Value::Null)
    }

    /// Decodes into a type.
    pub fn decode<'a, T: Deserialize<'a>>(&'a self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.0)
    }
}

impl fmt::Debug for Json {
    /// Payloads do not belong into logs: only the size is shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Json({} bytes)", self.0.len())
    }
}

impl Default for Json {
    fn default() -> Self {
        Self::null()
    }
}

impl From<serde_json::Value> for Json {
    fn from(value: serde_json::Value) -> Self {
        Self(Arc::from(value.to_string()))
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue = serde_json::from_str(&self.0).map_err(serde::ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw: Box<RawValue> = Box::deserialize(deserializer)?;
        Ok(Self(Arc::from(String::from(Box::<str>::from(raw)))))
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for Json {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        utoipa::openapi::schema::Schema::from(
            utoipa::openapi::schema::ObjectBuilder::new()
                .schema_type(utoipa::openapi::schema::SchemaType::AnyValue)
                .description(Some("Any JSON value.")),
        )
        .into()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for Json {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_kept_as_it_came() {
        #[derive(Serialize, Deserialize)]
        struct Holder {
            payload: Json,
        }
        let text = r#"{"payload":{"b":1.0,"a":[1, 2]}}"#;
        let holder: Holder = serde_json::from_str(text).unwrap();
        assert_eq!(holder.payload.as_str(), r#"{"b":1.0,"a":[1, 2]}"#);
        assert_eq!(serde_json::to_string(&holder).unwrap(), text);
    }

    #[test]
    fn debug_shows_no_content() {
        assert_eq!(format!("{:?}", Json::parse(r#"{"password":"x"}"#).unwrap()), "Json(16 bytes)");
    }
}
