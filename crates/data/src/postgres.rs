//! Tables in a schema of a Postgres database.

mod array;

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime};
use tenure_core::dag::ColumnType;
use tenure_store::postgres::PostgresAddress;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row};

use self::array::Array;
use crate::access::{Access, Reading};
use crate::error::DataError;
use crate::rows::Rows;
use crate::store::{Appended, DataStore};
use crate::table::{SEQUENCE, Table, misfit, quoted};

/// The schema of all tables.
const SCHEMA: &str = "tenure_data";
/// Connections to write with.
const CONNECTIONS: usize = 8;
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// A transaction that takes longer is given up.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// Two at once would both make the schema, and one of them would fail.
const SET_UP: &str = "BEGIN; SELECT pg_advisory_xact_lock(8390878263516622440);
    CREATE SCHEMA IF NOT EXISTS tenure_data;
    CREATE TABLE IF NOT EXISTS tenure_data.tenure_tables (name text PRIMARY KEY, seq bigint NOT NULL);
    COMMIT";

/// A data store in Postgres.
#[derive(Debug, Clone)]
pub struct Postgres {
    pool: Pool,
    access: Access,
}

impl Postgres {
    /// Connects to nothing yet. `read_url` is the address of a role that can only read.
    pub fn new(url: &str, read_url: Option<&str>) -> Result<Self, DataError> {
        let failed = |source| DataError::Failed { operation: "read its address", source };
        let PostgresAddress { config, tls } = PostgresAddress::parse(url).map_err(|error| failed(error.into()))?;
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let pool = Pool::builder(Manager::from_config(config, tls, recycling))
            .max_size(CONNECTIONS)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(ANSWER_WITHIN))
            .create_timeout(Some(CONNECT_WITHIN))
            .recycle_timeout(Some(CONNECT_WITHIN))
            .build()
            .map_err(|error| failed(error.into()))?;
        let access =
            Access::Postgres { url: read_url.unwrap_or(url).into(), schema: SCHEMA, is_read_only: read_url.is_some() };
        Ok(Self { pool, access })
    }

    /// Runs a transaction. A connection that it fails on is closed, and the server rolls back.
    async fn transaction<T>(
        &self,
        operation: &'static str,
        work: impl AsyncFnOnce(&Object) -> Result<T, PostgresError>,
    ) -> Result<T, DataError> {
        let away = |source| DataError::Unavailable { operation, source };
        let connection = self.pool.get().await.map_err(|error| away(error.into()))?;
        let done = tokio::time::timeout(ANSWER_WITHIN, async {
            connection.batch_execute("BEGIN").await?;
            let done = work(&connection).await?;
            connection.batch_execute("COMMIT").await?;
            Ok(done)
        });
        let done = done.await.unwrap_or_else(|_| Err(PostgresError::Silent));
        if done.is_err() {
            drop(Object::take(connection));
        }
        done.map_err(|error| match error {
            PostgresError::Incompatible(why) => DataError::Incompatible(why),
            PostgresError::Silent => away("it does not answer in time".into()),
            PostgresError::Postgres(error) if is_passing(&error) => away(error.into()),
            PostgresError::Postgres(error) => DataError::Failed { operation, source: error.into() },
        })
    }
}

enum PostgresError {
    Postgres(Error),
    Incompatible(String),
    Silent,
}

impl From<Error> for PostgresError {
    fn from(error: Error) -> Self {
        Self::Postgres(error)
    }
}

/// Trouble with the server or the way to it, and not with what was asked.
fn is_passing(error: &Error) -> bool {
    let io = std::error::Error::source(error).is_some_and(|source| source.is::<std::io::Error>());
    match error.code() {
        None => error.is_closed() || io,
        Some(code) => {
            let codes = [
                SqlState::T_R_SERIALIZATION_FAILURE,
                SqlState::T_R_DEADLOCK_DETECTED,
                SqlState::LOCK_NOT_AVAILABLE,
                SqlState::READ_ONLY_SQL_TRANSACTION,
                SqlState::INSUFFICIENT_PRIVILEGE,
            ];
            codes.contains(code) || ["08", "53", "57", "58"].iter().any(|class| code.code().starts_with(class))
        }
    }
}

fn kind(of: ColumnType) -> String {
    match of {
        ColumnType::Uuid => "uuid",
        ColumnType::Text => "text",
        ColumnType::Bool => "boolean",
        ColumnType::Int32 => "integer",
        ColumnType::Int64 => "bigint",
        ColumnType::Float64 => "double precision",
        ColumnType::Date => "date",
        ColumnType::Timestamptz => "timestamp with time zone",
        ColumnType::Jsonb => "jsonb",
        ColumnType::Bytes => "bytea",
        ColumnType::Decimal { precision, scale } => return format!("numeric({precision},{scale})"),
    }
    .to_owned()
}

/// The type that values of a column are sent as.
const fn sent_as(of: ColumnType) -> &'static str {
    match of {
        ColumnType::Uuid => "uuid",
        ColumnType::Bool => "bool",
        ColumnType::Int32 | ColumnType::Int64 => "int8",
        ColumnType::Float64 => "float8",
        ColumnType::Timestamptz => "timestamptz",
        ColumnType::Bytes => "bytea",
        ColumnType::Text | ColumnType::Decimal { .. } | ColumnType::Date | ColumnType::Jsonb => "text",
    }
}

fn qualified(table: &Table) -> String {
    format!("{SCHEMA}.{}", quoted(&table.name()))
}

#[async_trait]
impl DataStore for Postgres {
    fn name(&self) -> &'static str {
        "postgres"
    }

    async fn ensure(&self, table: &Table) -> Result<(), DataError> {
        let connection = self.pool.get().await;
        let connection =
            connection.map_err(|error| DataError::Unavailable { operation: "connect", source: error.into() })?;
        if let Err(error) = connection.batch_execute(SET_UP).await {
            drop(Object::take(connection));
            let (operation, source) = ("make its schema", error.into());
            return Err(DataError::Unavailable { operation, source });
        }
        drop(connection);
        self.transaction("make a table", async |connection| ensure(connection, table).await).await
    }

    async fn append(&self, table: &Table, batches: Vec<Rows>) -> Result<Appended, DataError> {
        self.transaction("write rows", async |connection| append(connection, table, &batches).await).await
    }

    async fn readings(&self, tables: &[Table]) -> Result<Vec<Reading>, DataError> {
        let names: Vec<String> = tables.iter().map(Table::name).collect();
        // One statement sees one moment.
        let found: HashMap<String, i64> = self
            .transaction("read tables", async |connection| {
                let seq = "SELECT name, seq FROM tenure_data.tenure_tables WHERE name = ANY ($1)";
                let rows = connection.query(seq, &[&names]).await?;
                Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
            })
            .await?;
        Ok(Reading::of_all(&self.access, tables, &found))
    }
}

async fn ensure(connection: &Object, table: &Table) -> Result<(), PostgresError> {
    let (name, index) = (qualified(table), quoted(&format!("{}_unique", table.name())));
    // The row is what all who write to the table wait for.
    let register = "INSERT INTO tenure_data.tenure_tables (name, seq) VALUES ($1, 0)
        ON CONFLICT (name) DO UPDATE SET seq = tenure_tables.seq";
    connection.execute(register, &[&table.name()]).await?;
    let found = connection
        .query(
            "SELECT a.attname::text, pg_catalog.format_type(a.atttypid, a.atttypmod), NOT a.attnotnull
             FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
             JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
             WHERE n.nspname = $1 AND c.relname = $2 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
            &[&SCHEMA, &table.name()],
        )
        .await?;
    let found: Vec<(String, String, bool)> =
        found.iter().map(|row: &Row| (row.get(0), row.get(1), row.get(2))).collect();
    if let Some(why) = (!found.is_empty()).then(|| misfit(&table.schema, &found, kind)).flatten() {
        return Err(PostgresError::Incompatible(why));
    }
    let mut statements = Vec::new();
    if found.is_empty() {
        let columns = table.schema.columns.iter().map(|column| {
            let required = if column.nullable { "" } else { " NOT NULL" };
            format!(", {} {}{required}", quoted(&column.name), kind(column.kind))
        });
        let columns: String = columns.collect();
        statements.push(format!("CREATE TABLE {name} ({SEQUENCE} bigint PRIMARY KEY{columns})"));
        if !table.schema.unique.is_empty() {
            statements.push(format!("CREATE UNIQUE INDEX {index} ON {name} ({})", table.unique()));
        }
    } else {
        let missing = table.schema.columns.iter().filter(|column| !found.iter().any(|(is, ..)| **is == *column.name));
        statements.extend(
            missing
                .map(|column| format!("ALTER TABLE {name} ADD COLUMN {} {}", quoted(&column.name), kind(column.kind))),
        );
    }
    let indexes = table.indexes();
    statements
        .extend(indexes.map(|(index, columns)| format!("CREATE INDEX IF NOT EXISTS {index} ON {name} ({columns})")));
    connection.batch_execute(&statements.join("; ")).await?;
    Ok(())
}

async fn append(connection: &Object, table: &Table, batches: &[Rows]) -> Result<Appended, PostgresError> {
    // Held until the commit: numbers are given in the order of commits.
    let lock =
        connection.prepare_cached("SELECT seq FROM tenure_data.tenure_tables WHERE name = $1 FOR UPDATE").await?;
    let before: i64 = match connection.query_opt(&lock, &[&table.name()]).await? {
        Some(row) => row.get(0),
        None => {
            ensure(connection, table).await?;
            0
        }
    };
    let insert = connection.prepare_cached(&insert(table)).await?;
    let (mut next, mut inserted) = (before, 0);
    for rows in batches.iter().filter(|rows| !rows.is_empty()) {
        let columns: Vec<Array<'_>> = rows.columns().iter().map(Array).collect();
        let mut params: Vec<&(dyn ToSql + Sync)> = vec![&next];
        params.extend(columns.iter().map(|column| column as &(dyn ToSql + Sync)));
        let new = connection.execute(&insert, &params).await?;
        inserted += new;
        // Numbers of rows that were there are left out.
        if new > 0 {
            next += i64::try_from(rows.len()).unwrap_or_default();
        }
    }
    if next > before {
        // The last rows of a batch may have been there.
        let highest = format!("SELECT max({SEQUENCE}) FROM {}", qualified(table));
        next = connection.query_one(&highest, &[]).await?.get(0);
        let advance =
            connection.prepare_cached("UPDATE tenure_data.tenure_tables SET seq = $2 WHERE name = $1").await?;
        connection.execute(&advance, &[&table.name(), &next]).await?;
    }
    Ok(Appended { rows: inserted, upto: (next > 0).then_some(next) })
}

fn insert(table: &Table) -> String {
    let columns = &table.schema.columns;
    let sent: Vec<String> =
        columns.iter().zip(2..).map(|(column, at)| format!("${at}::{}[]", sent_as(column.kind))).collect();
    let names: Vec<String> = (0..columns.len()).map(|at| format!("c{at}")).collect();
    let values: Vec<String> =
        columns.iter().zip(&names).map(|(column, name)| format!("rows.{name}::{}", kind(column.kind))).collect();
    let (name, targets) = (qualified(table), table.columns());
    let (sent, names, values) = (sent.join(", "), names.join(", "), values.join(", "));
    let conflict = match table.unique() {
        unique if unique.is_empty() => String::new(),
        unique => format!(" ON CONFLICT ({unique}) DO NOTHING"),
    };
    format!(
        "INSERT INTO {name} ({SEQUENCE}, {targets}) SELECT $1::int8 + rows.number, {values}
         FROM unnest({sent}) WITH ORDINALITY AS rows({names}, number){conflict}"
    )
}
