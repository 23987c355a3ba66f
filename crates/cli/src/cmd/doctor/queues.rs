//! The queues of the store, as far as they need more than the store.

use rusqlite::{Connection, OpenFlags};
use tenure_config::StoreUrl;
use tenure_core::queue::{Push, Transport};

use super::postgres;

const SELECT: &str =
    "SELECT name, transport, push FROM queues WHERE transport IS NOT NULL OR push IS NOT NULL ORDER BY name";

#[derive(Debug)]
pub struct Queue {
    pub name: String,
    pub transport: Transport,
    pub push: Option<Push>,
}

impl Queue {
    fn new(name: String, transport: Option<String>, push: Option<String>) -> Self {
        let transport = transport.and_then(|name| Transport::parse(&name)).unwrap_or_default();
        Self { name, transport, push: push.and_then(|push| serde_json::from_str(&push).ok()) }
    }
}

/// Those that push their tasks or have a transport. None if the store cannot be read or is of another version: that is
/// told where the store is looked at.
pub async fn read(url: &StoreUrl) -> Vec<Queue> {
    match url.path() {
        Some(path) if path.exists() => sqlite(path).unwrap_or_default(),
        Some(_) => Vec::new(),
        None => of_postgres(url.reveal()).await.unwrap_or_default(),
    }
}

fn sqlite(path: &std::path::Path) -> rusqlite::Result<Vec<Queue>> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    let mut statement = connection.prepare(SELECT)?;
    let rows = statement.query_map([], |row| Ok(Queue::new(row.get(0)?, row.get(1)?, row.get(2)?)))?;
    rows.collect()
}

async fn of_postgres(url: &str) -> Option<Vec<Queue>> {
    let rows = postgres::connect(url).await.ok()?.query(SELECT, &[]).await.ok()?;
    let queue =
        |row: &tokio_postgres::Row| Some(Queue::new(row.try_get(0).ok()?, row.try_get(1).ok()?, row.try_get(2).ok()?));
    rows.iter().map(queue).collect()
}
