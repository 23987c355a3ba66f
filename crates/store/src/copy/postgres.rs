//! A database as the source or the target of a copy.
//!
//! Values travel as the types of SQLite: times as milliseconds, ids as their bytes, booleans as 0 and 1.

use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::types::Value;
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;

use super::chunks::Chunks;
use super::layout::{Layout, Table};
use super::{CopyError, raising};
use crate::clock::Clock;
use crate::error::StoreError;
use crate::postgres::{Postgres, connect, failed};
use crate::schema::SCHEMA;

/// Counts of queues are spread over rows here, one for each connection, and are one row in a file.
const COUNTS: &str = "queue_counts";
/// A copy of a large store takes long, and nothing waits for it.
const SETTINGS: &str =
    "SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0; SET lock_timeout = '30s'";

/// A transaction: a snapshot to read, or everything that is written.
pub struct Session {
    client: Client,
    /// The types of the columns of each table.
    kinds: HashMap<(String, String), Kind>,
}

/// The type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Integer,
    Boolean,
    Time,
    Uuid,
    Real,
    Text,
    Bytes,
}

impl Kind {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "smallint" | "integer" | "bigint" => Self::Integer,
            "boolean" => Self::Boolean,
            "timestamp with time zone" => Self::Time,
            "uuid" => Self::Uuid,
            "double precision" => Self::Real,
            "text" => Self::Text,
            "bytea" => Self::Bytes,
            _ => return None,
        })
    }

    /// The type in which its values travel.
    pub fn on_the_way(self) -> &'static str {
        match self {
            Self::Integer | Self::Boolean | Self::Time => "bigint",
            Self::Uuid | Self::Bytes => "bytea",
            Self::Real => "double precision",
            Self::Text => "text",
        }
    }

    fn out(self, column: &str) -> String {
        match self {
            Self::Integer => format!("{column}::bigint"),
            Self::Boolean => format!("{column}::int::bigint"),
            Self::Time => format!("(extract(epoch FROM {column}) * 1000)::bigint"),
            Self::Uuid => format!("uuid_send({column})"),
            Self::Real | Self::Text | Self::Bytes => column.to_owned(),
        }
    }

    fn back(self, column: &str) -> String {
        match self {
            Self::Boolean => format!("{column} <> 0"),
            Self::Time => format!("'epoch'::timestamptz + {column} * interval '1 millisecond'"),
            Self::Uuid => format!("encode({column}, 'hex')::uuid"),
            Self::Integer | Self::Real | Self::Text | Self::Bytes => column.to_owned(),
        }
    }
}

impl Session {
    pub async fn read(url: &str) -> Result<Self, CopyError> {
        let client = connect(url, "tenure copy").await?;
        let begin = format!("{SETTINGS}; BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY");
        client.batch_execute(&begin).await.map_err(|error| failed("begin", error))?;
        let found = schema(&client).await?;
        if found != SCHEMA {
            return Err(CopyError::Schema { found, known: SCHEMA });
        }
        let kinds = kinds(&client).await?;
        Ok(Self { client, kinds })
    }

    /// Creates the tables if there are none. Nobody else can write to them until the copy ends.
    pub async fn write(url: &str, layout: &Layout) -> Result<Self, CopyError> {
        drop(Postgres::open(url, Arc::new(Clock::default())).await?);
        let client = connect(url, "tenure copy").await?;
        let names: Vec<&str> = layout.tables.iter().map(|table| table.name.as_str()).collect();
        let lock = format!("{SETTINGS}; BEGIN; LOCK TABLE {} IN ACCESS EXCLUSIVE MODE", names.join(", "));
        client.batch_execute(&lock).await.map_err(|error| failed("lock the tables", error))?;
        for table in &layout.tables {
            if table.has_first_rows {
                continue;
            }
            let any = format!("SELECT EXISTS (SELECT 1 FROM {})", table.name);
            let any: bool = client.query_one(&any, &[]).await.map_err(|error| failed("read a table", error))?.get(0);
            if any {
                return Err(CopyError::NotEmpty(table.name.clone()));
            }
        }
        let kinds = kinds(&client).await?;
        Ok(Self { client, kinds })
    }

    fn kinds_of(&self, table: &Table) -> Result<Vec<Kind>, StoreError> {
        let kind = |column: &String| self.kinds.get(&(table.name.clone(), column.clone())).copied();
        let unknown = || StoreError::Failed {
            operation: "read the columns",
            source: format!("the table {} has other columns", table.name).into(),
        };
        table.columns.iter().map(|column| kind(column).ok_or_else(unknown)).collect()
    }

    pub async fn rows(&self, table: &Table) -> Result<Chunks, StoreError> {
        let kinds = self.kinds_of(table)?;
        let columns = table.columns.iter().zip(&kinds);
        let sql = if table.name == COUNTS {
            let columns = columns.map(|(column, _)| match column.as_str() {
                "queue_id" => "queue_id::bigint".to_owned(),
                _ => format!("sum({column})::bigint"),
            });
            format!("SELECT {} FROM {COUNTS} GROUP BY queue_id", columns.collect::<Vec<_>>().join(", "))
        } else {
            let columns = columns.map(|(column, kind)| kind.out(column));
            format!("SELECT {} FROM {}", columns.collect::<Vec<_>>().join(", "), table.name)
        };
        let none: [&(dyn ToSql + Sync); 0] = [];
        let stream = self.client.query_raw(&sql, none).await.map_err(|error| failed("read a table", error))?;
        Ok(Chunks::Streamed(Some(Box::pin(stream)), kinds))
    }

    pub async fn clear(&mut self, table: &Table) -> Result<(), StoreError> {
        let deleted = self.client.execute(&format!("DELETE FROM {}", table.name), &[]).await;
        deleted.map(drop).map_err(|error| failed("write a table", error))
    }

    pub async fn insert(&mut self, table: &Table, rows: &[Vec<Value>]) -> Result<(), StoreError> {
        let kinds = self.kinds_of(table)?;
        let columns: Vec<Column> = kinds.iter().enumerate().map(|(at, kind)| Column::of(*kind, at, rows)).collect();
        let params: Vec<&(dyn ToSql + Sync)> = columns.iter().map(Column::as_param).collect();
        let given = kinds.iter().enumerate().map(|(at, kind)| format!("${}::{}[]", at + 1, kind.on_the_way()));
        let names: Vec<String> = (1..=kinds.len()).map(|at| format!("c{at}")).collect();
        let back = kinds.iter().zip(&names).map(|(kind, name)| kind.back(name));
        let (shard, zero) = if table.name == COUNTS { (", shard", ", 0") } else { ("", "") };
        let sql = format!(
            "INSERT INTO {} ({}{shard}) OVERRIDING SYSTEM VALUE SELECT {}{zero} FROM unnest({}) AS given ({})",
            table.name,
            table.columns.join(", "),
            back.collect::<Vec<_>>().join(", "),
            given.collect::<Vec<_>>().join(", "),
            names.join(", "),
        );
        let inserted = self.client.execute(&sql, &params).await;
        inserted.map(drop).map_err(|error| failed("write a table", error))
    }

    /// The last number that the table gave out, if it ever gave one out.
    pub async fn counter(&self, table: &Table) -> Result<Option<i64>, StoreError> {
        let Some(column) = table.columns.first() else { return Ok(None) };
        let sequence = format!("SELECT pg_get_serial_sequence('{}', '{column}')", table.name);
        let read = async {
            let sequence: String = self.client.query_one(&sequence, &[]).await?.try_get(0)?;
            let last = format!("SELECT last_value, is_called FROM {sequence}");
            let row = self.client.query_one(&last, &[]).await?;
            Ok(row.try_get::<_, bool>(1)?.then_some(row.try_get(0)?))
        };
        read.await.map_err(|error| failed("read a counter", error))
    }

    pub async fn set_counter(&mut self, table: &Table, value: i64) -> Result<(), StoreError> {
        let Some(column) = table.columns.first() else { return Ok(()) };
        let sql = format!("SELECT setval(pg_get_serial_sequence('{}', '{column}'), $1)", table.name);
        let set = self.client.query_one(&sql, &[&value.max(1)]).await;
        set.map(drop).map_err(|error| failed("set a counter", error))
    }

    pub async fn finish(self, raise_fences: i64) -> Result<(), StoreError> {
        let finish = format!("{}; COMMIT", raising(raise_fences));
        self.client.batch_execute(&finish).await.map_err(|error| failed("commit", error))?;
        // What was inserted at once has no statistics yet.
        self.client.batch_execute("ANALYZE").await.map_err(|error| failed("analyze", error))
    }
}

async fn schema(client: &Client) -> Result<i64, StoreError> {
    let look = async {
        let there: bool = client.query_one(crate::postgres::sql::SCHEMA_THERE, &[]).await?.try_get(0)?;
        match there {
            true => client.query_one(crate::postgres::sql::SCHEMA_GET, &[]).await?.try_get(0),
            false => Ok(0),
        }
    };
    look.await.map_err(|error| failed("read the schema", error))
}

async fn kinds(client: &Client) -> Result<HashMap<(String, String), Kind>, StoreError> {
    let sql = "SELECT table_name::text, column_name::text, data_type::text FROM information_schema.columns
               WHERE table_schema = current_schema()";
    let rows = client.query(sql, &[]).await.map_err(|error| failed("read the columns", error))?;
    let kinds = rows.iter().filter_map(|row| Some(((row.get(0), row.get(1)), Kind::parse(row.get(2))?)));
    Ok(kinds.collect())
}

/// The values of one column of several rows.
enum Column {
    Integers(Vec<Option<i64>>),
    Reals(Vec<Option<f64>>),
    Texts(Vec<Option<String>>),
    Bytes(Vec<Option<Vec<u8>>>),
}

impl Column {
    fn of(kind: Kind, at: usize, rows: &[Vec<Value>]) -> Self {
        let values = rows.iter().map(|row| row.get(at).cloned().unwrap_or(Value::Null));
        match kind.on_the_way() {
            "bigint" => Self::Integers(values.map(|value| integer(&value)).collect()),
            "double precision" => Self::Reals(values.map(|value| real(&value)).collect()),
            "bytea" => Self::Bytes(values.map(bytes).collect()),
            _ => Self::Texts(values.map(text).collect()),
        }
    }

    fn as_param(&self) -> &(dyn ToSql + Sync) {
        match self {
            Self::Integers(values) => values,
            Self::Reals(values) => values,
            Self::Texts(values) => values,
            Self::Bytes(values) => values,
        }
    }
}

// The tables of a file are strict: a value of another type than its column's is not there. If it were, the comparison of the
// copy with its source would notice that it is missing.

fn integer(value: &Value) -> Option<i64> {
    if let Value::Integer(number) = value { Some(*number) } else { None }
}

fn real(value: &Value) -> Option<f64> {
    if let Value::Real(number) = value { Some(*number) } else { None }
}

fn text(value: Value) -> Option<String> {
    if let Value::Text(text) = value { Some(text) } else { None }
}

fn bytes(value: Value) -> Option<Vec<u8>> {
    if let Value::Blob(bytes) = value { Some(bytes) } else { None }
}
