//! Copies a whole store: into a file (a backup), out of one (a restore), or from one kind of store to the other.
//!
//! Both schemas have the same tables and columns, so rows are copied without knowing what they mean. The source is read in one
//! snapshot and may be in use. The copy appears at once or not at all: a file gets its name, and a transaction commits, only
//! after every row was read back and compared.

mod chunks;
mod layout;
mod postgres;
mod sqlite;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;

use rusqlite::types::Value;

use crate::error::StoreError;
use chunks::Chunks;
use layout::{Layout, Table};

/// What was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copied {
    pub tables: usize,
    pub rows: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error("{}: there is no such store", .0.display())]
    NoSource(PathBuf),
    #[error("{}: already exists; a copy is made into a new file", .0.display())]
    Exists(PathBuf),
    #[error("the database already has rows in the table {0}; a copy is made into an empty one")]
    NotEmpty(String),
    #[error("the source has schema version {found}, this binary needs version {known}")]
    Schema { found: i64, known: i64 },
    #[error(
        "the table {table} was copied wrongly: {read} rows were read and {written} were found in the copy. Nothing was kept"
    )]
    Differs { table: String, read: u64, written: u64 },
    #[error("the source and the target are the same store")]
    Same,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Copies the store at one address to another, where there is none yet. `raise_fences` is added to every fence that can still
/// be granted, so that fences granted after the snapshot was taken are not given out again.
pub async fn copy(from: &str, to: &str, raise_fences: i64) -> Result<Copied, CopyError> {
    if from == to {
        return Err(CopyError::Same);
    }
    let layout = Layout::of_this_binary()?;
    let source = match from.strip_prefix("sqlite:") {
        Some(path) => Source::Sqlite(sqlite::Reader::open(path.as_ref())?),
        None => Source::Postgres(Box::new(postgres::Session::read(from).await?)),
    };
    let mut target = match to.strip_prefix("sqlite:") {
        Some(path) => Target::Sqlite(sqlite::Writer::create(path.as_ref())?),
        None => Target::Postgres(Box::new(postgres::Session::write(to, &layout).await?)),
    };
    let mut copied = Copied { tables: 0, rows: 0 };
    for table in &layout.tables {
        target.clear(table).await?;
        let mut read = Digest::default();
        let mut rows = source.rows(table).await?;
        while let Some(chunk) = rows.next().await? {
            chunk.iter().for_each(|row| read.add(row));
            target.insert(table, &chunk).await?;
        }
        let mut written = Digest::default();
        let mut rows = target.rows(table).await?;
        while let Some(chunk) = rows.next().await? {
            chunk.iter().for_each(|row| written.add(row));
        }
        if read != written {
            return Err(CopyError::Differs { table: table.name.clone(), read: read.rows, written: written.rows });
        }
        if let Some(counter) = source.counter(table).await? {
            target.set_counter(table, counter).await?;
        }
        copied.tables += 1;
        copied.rows += read.rows;
    }
    target.finish(raise_fences).await?;
    Ok(copied)
}

enum Source {
    Sqlite(sqlite::Reader),
    Postgres(Box<postgres::Session>),
}

enum Target {
    Sqlite(sqlite::Writer),
    Postgres(Box<postgres::Session>),
}

impl Source {
    async fn rows(&self, table: &Table) -> Result<Chunks, StoreError> {
        match self {
            Self::Sqlite(reader) => Ok(reader.rows(table)),
            Self::Postgres(session) => session.rows(table).await,
        }
    }

    /// The last number that the table gave out, if it numbers its rows.
    async fn counter(&self, table: &Table) -> Result<Option<i64>, StoreError> {
        match self {
            _ if !table.counts_itself => Ok(None),
            Self::Sqlite(reader) => reader.counter(table),
            Self::Postgres(session) => session.counter(table).await,
        }
    }
}

impl Target {
    async fn clear(&mut self, table: &Table) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(writer) => writer.clear(table),
            Self::Postgres(session) => session.clear(table).await,
        }
    }

    async fn insert(&mut self, table: &Table, rows: &[Vec<Value>]) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(writer) => writer.insert(table, rows),
            Self::Postgres(session) => session.insert(table, rows).await,
        }
    }

    /// What is there now.
    async fn rows(&self, table: &Table) -> Result<Chunks, StoreError> {
        match self {
            Self::Sqlite(writer) => Ok(writer.rows(table)),
            Self::Postgres(session) => session.rows(table).await,
        }
    }

    async fn set_counter(&mut self, table: &Table, value: i64) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(writer) => writer.set_counter(table, value),
            Self::Postgres(session) => session.set_counter(table, value).await,
        }
    }

    async fn finish(self, raise_fences: i64) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(writer) => writer.finish(raise_fences),
            Self::Postgres(session) => session.finish(raise_fences).await,
        }
    }
}

/// Rows of a table, whatever their order.
#[derive(Debug, Default, PartialEq, Eq)]
struct Digest {
    rows: u64,
    sum: u64,
}

impl Digest {
    fn add(&mut self, row: &[Value]) {
        let mut hasher = DefaultHasher::new();
        for value in row {
            match value {
                Value::Null => 0_u8.hash(&mut hasher),
                Value::Integer(number) => (1_u8, number).hash(&mut hasher),
                Value::Real(number) => (2_u8, number.to_bits()).hash(&mut hasher),
                Value::Text(text) => (3_u8, text).hash(&mut hasher),
                Value::Blob(bytes) => (4_u8, bytes).hash(&mut hasher),
            }
        }
        self.rows += 1;
        self.sum = self.sum.wrapping_add(hasher.finish());
    }
}

/// Raises what is given out with grants. The statements are the same for both stores.
fn raising(by: i64) -> String {
    format!(
        "UPDATE scheduled SET fence = fence + {by};
         UPDATE ready SET fence = fence + {by};
         UPDATE running SET fence = fence + {by};
         UPDATE finished SET fence = fence + {by} WHERE ended <> 1;
         UPDATE leases SET generation = generation + {by} WHERE resource_type = 'sandbox'"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_sees_every_value_and_no_order() {
        let row = |number: i64, text: &str| vec![Value::Integer(number), Value::Text(text.to_owned()), Value::Null];
        let of = |rows: &[Vec<Value>]| {
            let mut digest = Digest::default();
            rows.iter().for_each(|row| digest.add(row));
            digest
        };
        assert_eq!(of(&[row(1, "a"), row(2, "b")]), of(&[row(2, "b"), row(1, "a")]));
        assert_ne!(of(&[row(1, "a"), row(2, "b")]), of(&[row(1, "b"), row(2, "a")]));
        assert_ne!(of(&[row(1, "a")]), of(&[row(1, "a"), row(1, "a")]));
        assert_ne!(of(&[vec![Value::Null]]), of(&[vec![Value::Integer(0)]]));
        assert_ne!(of(&[vec![Value::Real(0.0)]]), of(&[vec![Value::Real(-0.0)]]));
    }

    #[test]
    fn every_table_of_the_schema_is_copied() {
        let layout = Layout::of_this_binary().unwrap();
        let schema = include_str!("postgres/schema.sql");
        assert_eq!(layout.tables.len(), schema.matches("CREATE TABLE ").count());
        let counts: Vec<&str> =
            layout.tables.iter().filter(|table| table.counts_itself).map(|table| table.name.as_str()).collect();
        assert_eq!(counts.len(), schema.matches("GENERATED ALWAYS AS IDENTITY").count(), "{counts:?}");
    }
}
