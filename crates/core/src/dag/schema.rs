//! Schemas of datasets.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};

/// Digits of a `decimal`.
pub const DECIMAL_PRECISION_MAX: u8 = 38;
/// Columns of a dataset.
pub const COLUMNS: usize = 256;
pub const COLUMN_NAME_BYTES: usize = 63;
/// The column that every buffered dataset has and no other may.
pub const ORG_COLUMN: &str = "org_id";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schema {
    pub columns: Vec<Column>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unique: Vec<Arc<str>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub indexes: Vec<Vec<Arc<str>>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    pub name: Arc<str>,
    #[serde(rename = "type")]
    pub kind: ColumnType,
    pub nullable: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum ColumnType {
    Uuid,
    Text,
    Bool,
    Int32,
    Int64,
    Float64,
    Decimal { precision: u8, scale: u8 },
    Date,
    Timestamptz,
    Jsonb,
    Bytes,
}

impl ColumnType {
    /// The types by name; `decimal` takes precision and scale.
    pub const NAMES: [&str; 11] =
        ["uuid", "text", "bool", "int32", "int64", "float64", "decimal(p,s)", "date", "timestamptz", "jsonb", "bytes"];
}

impl fmt::Display for ColumnType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Uuid => "uuid",
            Self::Text => "text",
            Self::Bool => "bool",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::Float64 => "float64",
            Self::Date => "date",
            Self::Timestamptz => "timestamptz",
            Self::Jsonb => "jsonb",
            Self::Bytes => "bytes",
            Self::Decimal { precision, scale } => return write!(f, "decimal({precision},{scale})"),
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a column type")]
pub struct UnknownType;

impl FromStr for ColumnType {
    type Err = UnknownType;

    fn from_str(text: &str) -> Result<Self, UnknownType> {
        Ok(match text {
            "uuid" => Self::Uuid,
            "text" => Self::Text,
            "bool" => Self::Bool,
            "int32" => Self::Int32,
            "int64" => Self::Int64,
            "float64" => Self::Float64,
            "date" => Self::Date,
            "timestamptz" => Self::Timestamptz,
            "jsonb" => Self::Jsonb,
            "bytes" => Self::Bytes,
            _ => decimal(text).ok_or(UnknownType)?,
        })
    }
}

fn decimal(text: &str) -> Option<ColumnType> {
    let (precision, scale) = text.strip_prefix("decimal(")?.strip_suffix(')')?.split_once(',')?;
    let number = |text: &str| text.trim().parse::<u8>().ok().filter(|_| !text.contains('+'));
    let (precision, scale) = (number(precision)?, number(scale)?);
    ((1..=DECIMAL_PRECISION_MAX).contains(&precision) && scale <= precision)
        .then_some(ColumnType::Decimal { precision, scale })
}

impl From<ColumnType> for String {
    fn from(kind: ColumnType) -> Self {
        kind.to_string()
    }
}

impl TryFrom<String> for ColumnType {
    type Error = UnknownType;

    fn try_from(text: String) -> Result<Self, UnknownType> {
        text.parse()
    }
}

impl Schema {
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| &*column.name == name)
    }

    /// `sha256:` of the canonical JSON of `columns` and `unique`.
    pub fn hash(&self) -> String {
        let content = json!({"columns": self.columns, "unique": self.unique}).to_string();
        let digest = Sha256::digest(content.as_bytes());
        digest.iter().fold("sha256:".to_owned(), |text, byte| text + &format!("{byte:02x}"))
    }

    /// Why rows of an earlier schema cannot be read by this one, if they cannot: it may only gain nullable columns.
    pub fn breaks(&self, earlier: &Self) -> Option<Break> {
        for column in &earlier.columns {
            match self.column(&column.name) {
                None => return Some(Break::Removed(column.name.clone())),
                Some(now) if now != column => return Some(Break::Changed(column.name.clone())),
                Some(_) => {}
            }
        }
        if self.unique != earlier.unique {
            return Some(Break::Unique);
        }
        let required = self.columns.iter().find(|column| !column.nullable && earlier.column(&column.name).is_none());
        required.map(|column| Break::Required(column.name.clone()))
    }
}

/// What is incompatible about a new schema.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Break {
    #[error("column `{0}` was removed")]
    Removed(Arc<str>),
    #[error("column `{0}` has another type or nullability")]
    Changed(Arc<str>),
    #[error("new column `{0}` is not nullable")]
    Required(Arc<str>),
    #[error("`unique` has changed")]
    Unique,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(columns: &[(&str, &str, bool)]) -> Schema {
        let column = |&(name, kind, nullable): &(&str, &str, bool)| Column {
            name: name.into(),
            kind: kind.parse().unwrap(),
            nullable,
        };
        Schema { columns: columns.iter().map(column).collect(), unique: vec!["org_id".into()], indexes: vec![] }
    }

    #[test]
    fn types_there_and_back() {
        for name in ColumnType::NAMES {
            let name = name.replace("p,s", "10,2");
            assert_eq!(name.parse::<ColumnType>().unwrap().to_string(), name);
        }
        for wrong in ["", "Text", "int", "decimal", "decimal(0,0)", "decimal(39,0)", "decimal(5,6)", "decimal(+5,2)"] {
            assert_eq!(wrong.parse::<ColumnType>(), Err(UnknownType), "{wrong}");
        }
    }

    #[test]
    fn only_nullable_columns_may_come() {
        let old = schema(&[("org_id", "uuid", false), ("a", "text", true)]);
        let gained = schema(&[("b", "int64", true), ("org_id", "uuid", false), ("a", "text", true)]);
        assert_eq!(gained.breaks(&old), None);
        assert_eq!(old.breaks(&gained), Some(Break::Removed("b".into())));
        let other = schema(&[("org_id", "uuid", false), ("a", "int64", true)]);
        assert_eq!(other.breaks(&old), Some(Break::Changed("a".into())));
        let required = schema(&[("org_id", "uuid", false), ("a", "text", true), ("b", "text", false)]);
        assert_eq!(required.breaks(&old), Some(Break::Required("b".into())));
        let keyed = Schema { unique: vec!["org_id".into(), "a".into()], ..old.clone() };
        assert_eq!(keyed.breaks(&old), Some(Break::Unique));
    }

    #[test]
    fn the_hash_is_that_of_the_canonical_text() {
        let schema = Schema { indexes: vec![vec!["org_id".into()]], ..schema(&[("org_id", "uuid", false)]) };
        let text = r#"{"columns":[{"name":"org_id","nullable":false,"type":"uuid"}],"unique":["org_id"]}"#;
        let digest = Sha256::digest(text.as_bytes());
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(schema.hash(), format!("sha256:{hex}"));
    }
}
