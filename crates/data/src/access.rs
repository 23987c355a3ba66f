//! What a reader of tables needs to know. Readers open connections of their own and never write.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use tenure_core::dag::Column;
use tenure_core::dag::schema::ORG_COLUMN;

use crate::table::{SEQUENCE, Table};

/// Where tables are.
#[derive(Clone, PartialEq, Eq)]
pub enum Access {
    /// A file in WAL mode. To be opened read-only.
    Sqlite { path: PathBuf },
    /// `is_read_only`: the role of the address cannot write. Otherwise the reader must begin read-only transactions.
    Postgres { url: Arc<str>, schema: &'static str, is_read_only: bool },
}

impl fmt::Debug for Access {
    /// Without the address, which can hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite { path } => f.debug_struct("Sqlite").field("path", path).finish(),
            Self::Postgres { schema, is_read_only, .. } => f
                .debug_struct("Postgres")
                .field("schema", schema)
                .field("is_read_only", is_read_only)
                .finish_non_exhaustive(),
        }
    }
}

/// A table as a reader finds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    pub access: Access,
    /// The name of the table, without quotes.
    pub table: String,
    /// The declared columns. The table may have more of them, and has [`Self::sequence`] besides.
    ///
    /// SQLite keeps `uuid`, `decimal`, `date`, `timestamptz` (in UTC with microseconds) and `jsonb` as text, `bool` as 0
    /// and 1, `bytes` as a blob.
    pub columns: Vec<Column>,
    /// The number of a row, a 64-bit integer.
    pub sequence: &'static str,
    /// Rows of others must be left out by this column.
    pub org: &'static str,
    /// The highest number that is committed; `None` before the first row.
    pub upto: Option<i64>,
}

impl Reading {
    /// The tables, of which these have numbers.
    pub(crate) fn of_all(access: &Access, tables: &[Table], found: &HashMap<String, i64>) -> Vec<Self> {
        let reading = |table: &Table| {
            let (name, columns) = (table.name(), table.schema.columns.clone());
            let upto = found.get(&name).copied().filter(|upto| *upto > 0);
            Self { access: access.clone(), table: name, columns, sequence: SEQUENCE, org: ORG_COLUMN, upto }
        };
        tables.iter().map(reading).collect()
    }
}
