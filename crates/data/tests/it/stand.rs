//! Both stores, and what is in their tables.

use std::sync::Arc;

use rusqlite::OpenFlags;
use tenure_core::dag::{Column, ColumnType, DatasetId, Schema};
use tenure_data::{Access, DataStore, Reading, Rows, SEQUENCE, Sqlite, Table};
use tenure_testkit::{Database, Postgres};
use uuid::Uuid;

pub const ORG: Uuid = Uuid::from_u128(0x0190_c0de_0000_7000_8000_0000_0000_0001);

pub struct Stand {
    pub store: Arc<dyn DataStore>,
    _database: Option<Database>,
    _folder: tempfile::TempDir,
}

/// Runs a test on each store.
pub async fn each(test: impl AsyncFn(&Stand)) {
    for stand in [sqlite(), postgres().await] {
        test(&stand).await;
    }
}

pub fn sqlite() -> Stand {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(Sqlite::new(folder.path().join("data.db")));
    Stand { store, _database: None, _folder: folder }
}

pub async fn postgres() -> Stand {
    let database = Postgres::shared().await.database().await;
    let store = Arc::new(tenure_data::Postgres::new(database.url(), None).unwrap());
    Stand { store, _database: Some(database), _folder: tempfile::tempdir().unwrap() }
}

pub fn column(name: &str, kind: &str, nullable: bool) -> Column {
    Column { name: name.into(), kind: kind.parse().unwrap(), nullable }
}

/// A table of organisation, key and number, with more columns.
pub fn table(n: u128, more: &[Column]) -> Table {
    let mut columns = vec![column("org_id", "uuid", false), column("key", "text", false), column("n", "int64", true)];
    columns.extend(more.iter().cloned());
    let schema = Schema {
        columns,
        unique: vec!["org_id".into(), "key".into()],
        indexes: vec![vec!["org_id".into(), "n".into()]],
    };
    Table::new(DatasetId::from_u128(n), Arc::new(schema))
}

pub fn rows(table: &Table, lines: &str) -> Rows {
    Rows::parse(&table.schema, ORG, lines.as_bytes()).unwrap()
}

/// Rows with these keys.
pub fn keys(table: &Table, keys: impl IntoIterator<Item = usize>) -> Rows {
    let lines: String = keys.into_iter().map(|key| format!("{{\"key\":\"k{key}\",\"n\":{key}}}\n")).collect();
    rows(table, &lines)
}

/// The rows behind `after`, by their numbers: the number, then each column as text, in one form for both stores.
pub async fn read(reading: &Reading, after: i64) -> Vec<(i64, Vec<Option<String>>)> {
    let names: Vec<String> = reading.columns.iter().map(|column| format!("\"{}\"", column.name)).collect();
    match &reading.access {
        Access::Sqlite { path } => {
            let file = rusqlite::Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
            let sql = format!(
                "SELECT {SEQUENCE}, {} FROM \"{}\" WHERE {SEQUENCE} > ?1 ORDER BY {SEQUENCE}",
                names.join(", "),
                reading.table
            );
            let mut statement = file.prepare(&sql).unwrap();
            let row = |row: &rusqlite::Row<'_>| {
                let cells =
                    (0..names.len()).map(|at| sqlite_text(row.get_ref(at + 1).unwrap(), reading.columns[at].kind));
                Ok((row.get(0)?, cells.collect()))
            };
            statement.query_map([after], row).unwrap().map(Result::unwrap).collect()
        }
        Access::Postgres { url, schema, .. } => {
            let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
            tokio::spawn(connection);
            client.batch_execute("SET default_transaction_read_only = on; SET extra_float_digits = 3").await.unwrap();
            let text = names.iter().zip(&reading.columns).map(|(name, column)| match column.kind {
                ColumnType::Timestamptz => {
                    format!("to_char({name} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')")
                }
                ColumnType::Bytes => format!("encode({name}, 'hex')"),
                _ => format!("{name}::text"),
            });
            let sql = format!(
                "SELECT {SEQUENCE}, {} FROM {schema}.\"{}\" WHERE {SEQUENCE} > $1 ORDER BY {SEQUENCE}",
                text.collect::<Vec<_>>().join(", "),
                reading.table
            );
            let found = client.query(&sql, &[&after]).await.unwrap();
            let cells = |row: &tokio_postgres::Row| {
                (1..row.len()).map(|at| one_form(row.get(at), reading.columns[at - 1].kind)).collect()
            };
            found.iter().map(|row| (row.get(0), cells(row))).collect()
        }
    }
}

fn sqlite_text(value: rusqlite::types::ValueRef<'_>, kind: ColumnType) -> Option<String> {
    use rusqlite::types::ValueRef;
    let text = match value {
        ValueRef::Null => return None,
        ValueRef::Integer(is) if kind == ColumnType::Bool => (is != 0).to_string(),
        ValueRef::Integer(number) => number.to_string(),
        ValueRef::Real(number) => number.to_string(),
        ValueRef::Text(text) => String::from_utf8(text.to_vec()).unwrap(),
        ValueRef::Blob(bytes) => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
    };
    one_form(Some(text), kind)
}

fn one_form(text: Option<String>, kind: ColumnType) -> Option<String> {
    let text = text?;
    Some(match kind {
        ColumnType::Float64 => text.parse::<f64>().unwrap().to_string(),
        ColumnType::Jsonb => serde_json::from_str::<serde_json::Value>(&text).unwrap().to_string(),
        _ => text,
    })
}
