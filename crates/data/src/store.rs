use async_trait::async_trait;

use crate::access::Reading;
use crate::error::DataError;
use crate::rows::Rows;
use crate::table::Table;

/// What a transaction came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// Rows that were new.
    pub rows: u64,
    /// The highest number that the table has; `None` if it has no row.
    pub upto: Option<i64>,
}

/// Where rows of datasets are kept. It connects when it is first used, so it may be away when the process starts.
#[async_trait]
pub trait DataStore: std::fmt::Debug + Send + Sync {
    /// `sqlite` or `postgres`.
    fn name(&self) -> &'static str;

    /// Makes the table of a dataset, or adds the columns and indexes that it lacks.
    async fn ensure(&self, table: &Table) -> Result<(), DataError>;

    /// Writes batches in one transaction, in order. Rows that are there already are left out. A crash leaves all or
    /// nothing, and the same call again leaves the same rows.
    async fn append(&self, table: &Table, batches: Vec<Rows>) -> Result<Appended, DataError>;

    /// How to read the tables, and up to where each is committed now: all as of one moment, in their order.
    async fn readings(&self, tables: &[Table]) -> Result<Vec<Reading>, DataError>;

    /// The same for one table.
    async fn reading(&self, table: &Table) -> Result<Reading, DataError> {
        let found = self.readings(std::slice::from_ref(table)).await?.pop();
        let source = || "it has no answer".into();
        found.ok_or_else(|| DataError::Failed { operation: "read a table", source: source() })
    }
}
