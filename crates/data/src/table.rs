//! The table of a dataset.

use std::fmt::Write as _;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use tenure_core::dag::{ColumnType, DatasetId, Schema};

/// The column that numbers rows in the order of their commits.
pub const SEQUENCE: &str = "_seq";

/// `dataset_{uuid}`
pub fn table_name(dataset: DatasetId) -> String {
    format!("dataset_{dataset}")
}

/// A dataset and its declared schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    pub dataset: DatasetId,
    pub schema: Arc<Schema>,
}

impl Table {
    pub fn new(dataset: DatasetId, schema: Arc<Schema>) -> Self {
        Self { dataset, schema }
    }

    pub fn name(&self) -> String {
        table_name(self.dataset)
    }

    /// Names of columns, quoted, with commas between them.
    pub(crate) fn columns(&self) -> String {
        list(self.schema.columns.iter().map(|column| &*column.name))
    }

    pub(crate) fn unique(&self) -> String {
        list(self.schema.unique.iter().map(|name| &**name))
    }

    /// The name of each index and its columns, quoted.
    pub(crate) fn indexes(&self) -> impl Iterator<Item = (String, String)> {
        self.schema.indexes.iter().map(|columns| {
            let columns = list(columns.iter().map(|name| &**name));
            let digest = Sha256::digest(columns.as_bytes());
            let short = digest.iter().take(4).fold(String::new(), |mut text, byte| {
                let _ = write!(text, "{byte:02x}");
                text
            });
            (quoted(&format!("{}_i{short}", self.name())), columns)
        })
    }
}

/// An identifier in SQL.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(quoted).collect::<Vec<_>>().join(", ")
}

/// Why a table with these columns (name, type, nullable) cannot take rows of a schema: it may only lack nullable ones.
/// Columns that a later schema has brought are left as they are; rows of this schema have no value there.
pub(crate) fn misfit(
    schema: &Schema,
    found: &[(String, String, bool)],
    kind: impl Fn(ColumnType) -> String,
) -> Option<String> {
    for column in &schema.columns {
        match found.iter().find(|(name, ..)| **name == *column.name) {
            None if !column.nullable => return Some(format!("it has no column `{}`", column.name)),
            None => {}
            Some((_, is, nullable)) if *is != kind(column.kind) || *nullable != column.nullable => {
                return Some(format!("its column `{}` has another type or nullability", column.name));
            }
            Some(_) => {}
        }
    }
    let declared = |name: &str| name == SEQUENCE || schema.column(name).is_some();
    let required = found.iter().find(|(name, _, nullable)| !nullable && !declared(name));
    required.map(|(name, ..)| format!("its column `{name}` is required, and the schema lacks it"))
}
