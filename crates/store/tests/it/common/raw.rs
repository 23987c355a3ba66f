//! A second connection to the tables: what the store says is checked against what stands there.

use std::sync::Mutex;
use std::time::Duration;

use rusqlite::types::ValueRef;
use tokio_postgres::{NoTls, SimpleQueryMessage};

use super::Home;

pub enum Raw {
    Sqlite(Mutex<rusqlite::Connection>),
    Postgres(tokio_postgres::Client),
}

impl std::fmt::Debug for Raw {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Raw")
    }
}

impl Raw {
    pub async fn connect(home: &Home) -> Self {
        match home {
            Home::Sqlite(_) => {
                let connection = rusqlite::Connection::open(home.path()).unwrap();
                connection.busy_timeout(Duration::from_secs(10)).unwrap();
                Self::Sqlite(Mutex::new(connection))
            }
            Home::Postgres(database) => {
                let (client, connection) = tokio_postgres::connect(database.url(), NoTls).await.unwrap();
                tokio::spawn(connection);
                Self::Postgres(client)
            }
        }
    }

    /// Runs statements and gives the rows of the last one, every value as text.
    pub async fn try_rows(&self, sql: &str) -> Result<Vec<Vec<Option<String>>>, String> {
        match self {
            Self::Sqlite(connection) => {
                sqlite_rows(&connection.lock().unwrap(), sql).map_err(|error| error.to_string())
            }
            Self::Postgres(client) => {
                let messages = client.simple_query(sql).await.map_err(|error| {
                    error.as_db_error().map_or_else(|| error.to_string(), |error| error.message().to_owned())
                })?;
                let rows = messages.iter().filter_map(|message| match message {
                    SimpleQueryMessage::Row(row) => Some(row),
                    _ => None,
                });
                Ok(rows.map(|row| (0..row.len()).map(|i| row.get(i).map(ToOwned::to_owned)).collect()).collect())
            }
        }
    }

    pub async fn rows(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        self.try_rows(sql).await.unwrap_or_else(|error| panic!("{error}: {sql}"))
    }

    /// The first value of the first row, as a number.
    pub async fn number(&self, sql: &str) -> i64 {
        let rows = self.rows(sql).await;
        let value = rows.first().and_then(|row| row.first()?.as_deref());
        value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no number: {sql}"))
    }

    pub async fn execute(&self, sql: &str) {
        self.rows(sql).await;
    }
}

fn sqlite_rows(connection: &rusqlite::Connection, sql: &str) -> rusqlite::Result<Vec<Vec<Option<String>>>> {
    let mut statement = connection.prepare(sql)?;
    let columns = statement.column_count();
    let mut rows = statement.query([])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let values = (0..columns).map(|column| {
            Ok(match row.get_ref(column)? {
                ValueRef::Null => None,
                ValueRef::Integer(number) => Some(number.to_string()),
                ValueRef::Real(number) => Some(number.to_string()),
                ValueRef::Text(text) => Some(String::from_utf8_lossy(text).into_owned()),
                ValueRef::Blob(bytes) => Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
            })
        });
        found.push(values.collect::<rusqlite::Result<Vec<_>>>()?);
    }
    Ok(found)
}
