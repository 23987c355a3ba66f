//! Tables in a file of their own.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ErrorCode, OptionalExtension, Statement, TransactionBehavior};
use tenure_core::dag::ColumnType;
use uuid::Uuid;

use crate::access::{Access, Reading};
use crate::cells::Cells;
use crate::error::DataError;
use crate::rows::Rows;
use crate::store::{Appended, DataStore};
use crate::table::{SEQUENCE, Table, misfit, quoted};

/// What was acknowledged survives a loss of power.
const SETTINGS: &str = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA busy_timeout = 5000;
    PRAGMA cache_size = -32768;
    CREATE TABLE IF NOT EXISTS tenure_tables (name TEXT PRIMARY KEY, seq INTEGER NOT NULL) WITHOUT ROWID;";

/// A data store in one file. One process writes to it; others may read.
#[derive(Debug, Clone)]
pub struct Sqlite {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    /// Opened when it is first needed, and anew after trouble with the file.
    writer: Mutex<Option<Connection>>,
}

impl Sqlite {
    /// Opens nothing yet.
    pub fn new(path: PathBuf) -> Self {
        Self { inner: Arc::new(Inner { path, writer: Mutex::new(None) }) }
    }

    /// Runs `work` on a thread that may block. Other callers wait meanwhile.
    async fn run<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&mut Connection) -> Result<T, SqliteError> + Send + 'static,
    ) -> Result<T, DataError> {
        let inner = Arc::clone(&self.inner);
        let done = tokio::task::spawn_blocking(move || inner.run(operation, work)).await;
        done.unwrap_or_else(|error| Err(DataError::Failed { operation, source: error.into() }))
    }
}

enum SqliteError {
    Sqlite(rusqlite::Error),
    Incompatible(String),
}

impl From<rusqlite::Error> for SqliteError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl Inner {
    fn run<T>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&mut Connection) -> Result<T, SqliteError>,
    ) -> Result<T, DataError> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let done = match &mut *writer {
            Some(connection) => work(connection),
            closed => {
                open(&self.path).map_err(SqliteError::from).and_then(|connection| work(closed.insert(connection)))
            }
        };
        done.map_err(|error| match error {
            SqliteError::Incompatible(why) => DataError::Incompatible(why),
            SqliteError::Sqlite(error) if is_passing(&error) => {
                *writer = None;
                DataError::Unavailable { operation, source: error.into() }
            }
            SqliteError::Sqlite(error) => DataError::Failed { operation, source: error.into() },
        })
    }
}

fn open(path: &std::path::Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.execute_batch(SETTINGS)?;
    Ok(connection)
}

/// Trouble with the file or its disk, and not with what was asked.
fn is_passing(error: &rusqlite::Error) -> bool {
    let codes = [
        ErrorCode::CannotOpen,
        ErrorCode::DatabaseBusy,
        ErrorCode::DatabaseLocked,
        ErrorCode::DiskFull,
        ErrorCode::FileLockingProtocolFailed,
        ErrorCode::OutOfMemory,
        ErrorCode::PermissionDenied,
        ErrorCode::ReadOnly,
        ErrorCode::SystemIoFailure,
    ];
    error.sqlite_error_code().is_some_and(|code| codes.contains(&code))
}

fn kind(of: ColumnType) -> String {
    match of {
        ColumnType::Bool | ColumnType::Int32 | ColumnType::Int64 => "INTEGER",
        ColumnType::Float64 => "REAL",
        ColumnType::Bytes => "BLOB",
        ColumnType::Uuid
        | ColumnType::Text
        | ColumnType::Decimal { .. }
        | ColumnType::Date
        | ColumnType::Timestamptz
        | ColumnType::Jsonb => "TEXT",
    }
    .to_owned()
}

#[async_trait]
impl DataStore for Sqlite {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    async fn ensure(&self, table: &Table) -> Result<(), DataError> {
        let table = table.clone();
        self.run("make a table", move |connection| {
            let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            ensure(&tx, &table)?;
            Ok(tx.commit()?)
        })
        .await
    }

    async fn append(&self, table: &Table, batches: Vec<Rows>) -> Result<Appended, DataError> {
        let table = table.clone();
        self.run("write rows", move |connection| {
            let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let name = table.name();
            let before: Option<i64> =
                tx.query_row("SELECT seq FROM tenure_tables WHERE name = ?1", [&name], |row| row.get(0)).optional()?;
            let before = match before {
                Some(before) => before,
                None => {
                    ensure(&tx, &table)?;
                    0
                }
            };
            let mut next = before;
            {
                let mut insert = tx.prepare_cached(&insert(&table))?;
                for rows in &batches {
                    for row in 0..rows.len() {
                        insert.raw_bind_parameter(1, next + 1)?;
                        for (at, cells) in rows.columns().iter().enumerate() {
                            bind(&mut insert, at + 2, cells, row)?;
                        }
                        next += i64::try_from(insert.raw_execute()?).unwrap_or_default();
                    }
                }
            }
            if next > before {
                tx.execute("UPDATE tenure_tables SET seq = ?2 WHERE name = ?1", (&name, next))?;
            }
            tx.commit()?;
            Ok(Appended { rows: next.abs_diff(before), upto: (next > 0).then_some(next) })
        })
        .await
    }

    async fn readings(&self, tables: &[Table]) -> Result<Vec<Reading>, DataError> {
        let names: Vec<String> = tables.iter().map(Table::name).collect();
        // One transaction sees one moment.
        let found: HashMap<String, i64> = self
            .run("read tables", move |connection| {
                let tx = connection.transaction()?;
                let mut found = HashMap::new();
                {
                    let mut seq = tx.prepare_cached("SELECT seq FROM tenure_tables WHERE name = ?1")?;
                    for name in names {
                        if let Some(at) = seq.query_row([&name], |row| row.get(0)).optional()? {
                            found.insert(name, at);
                        }
                    }
                }
                tx.commit()?;
                Ok(found)
            })
            .await?;
        let access = Access::Sqlite { path: self.inner.path.clone() };
        Ok(Reading::of_all(&access, tables, &found))
    }
}

fn ensure(tx: &Connection, table: &Table) -> Result<(), SqliteError> {
    let name = quoted(&table.name());
    let found: Vec<(String, String, bool)> = tx
        .prepare("SELECT name, type, \"notnull\" = 0 FROM pragma_table_info(?1)")?
        .query_map([table.name()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
        .collect::<Result<_, _>>()?;
    if let Some(why) = (!found.is_empty()).then(|| misfit(&table.schema, &found, kind)).flatten() {
        return Err(SqliteError::Incompatible(why));
    }
    if found.is_empty() {
        let columns = table.schema.columns.iter().map(|column| {
            let required = if column.nullable { "" } else { " NOT NULL" };
            format!(", {} {}{required}", quoted(&column.name), kind(column.kind))
        });
        let columns: String = columns.collect();
        tx.execute_batch(&format!("CREATE TABLE {name} ({SEQUENCE} INTEGER PRIMARY KEY NOT NULL{columns})"))?;
        tx.execute("INSERT INTO tenure_tables (name, seq) VALUES (?1, 0)", [table.name()])?;
        if !table.schema.unique.is_empty() {
            let index = quoted(&format!("{}_unique", table.name()));
            tx.execute_batch(&format!("CREATE UNIQUE INDEX {index} ON {name} ({})", table.unique()))?;
        }
    }
    for column in table.schema.columns.iter().filter(|_| !found.is_empty()) {
        if !found.iter().any(|(name, ..)| **name == *column.name) {
            let add = format!("ALTER TABLE {name} ADD COLUMN {} {}", quoted(&column.name), kind(column.kind));
            tx.execute_batch(&add)?;
        }
    }
    for (index, columns) in table.indexes() {
        tx.execute_batch(&format!("CREATE INDEX IF NOT EXISTS {index} ON {name} ({columns})"))?;
    }
    Ok(())
}

fn insert(table: &Table) -> String {
    let values: String = (0..table.schema.columns.len()).map(|_| ", ?").collect();
    let (name, columns) = (quoted(&table.name()), table.columns());
    let conflict = match table.unique() {
        unique if unique.is_empty() => String::new(),
        unique => format!(" ON CONFLICT ({unique}) DO NOTHING"),
    };
    format!("INSERT INTO {name} ({SEQUENCE}, {columns}) VALUES (?{values}){conflict}")
}

fn bind(statement: &mut Statement<'_>, at: usize, cells: &Cells, row: usize) -> rusqlite::Result<()> {
    let mut text = [0; uuid::fmt::Hyphenated::LENGTH];
    let time;
    let value = match cells {
        Cells::Uuid(cells) => {
            cells[row].map(|uuid: Uuid| ValueRef::Text(uuid.hyphenated().encode_lower(&mut text).as_bytes()))
        }
        Cells::Text(cells) => cells.0.get(row).map(ValueRef::Text),
        Cells::Bool(cells) => cells[row].map(|is| ValueRef::Integer(is.into())),
        Cells::Int(cells) => cells[row].map(ValueRef::Integer),
        Cells::Float(cells) => cells[row].map(ValueRef::Real),
        Cells::Time(cells) => {
            time = cells[row].and_then(|at| Timestamp::from_microsecond(at).ok()).map(|at| format!("{at:.6}"));
            time.as_deref().map(|time| ValueRef::Text(time.as_bytes()))
        }
        Cells::Bytes(cells) => cells.get(row).map(ValueRef::Blob),
    };
    statement.raw_bind_parameter(at, ToSqlOutput::Borrowed(value.unwrap_or(ValueRef::Null)))
}
