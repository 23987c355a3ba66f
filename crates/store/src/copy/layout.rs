//! Which tables and columns there are, as the schema of SQLite has them.

use rusqlite::Connection;

use crate::error::StoreError;
use crate::sqlite::failed;

pub struct Layout {
    /// In the order in which they are created: a table comes after those that it refers to.
    pub tables: Vec<Table>,
}

pub struct Table {
    pub name: String,
    pub columns: Vec<String>,
    /// Its rows are numbered by the database, and a number is never given out twice.
    pub counts_itself: bool,
    /// The schema inserts rows that the copy replaces.
    pub has_first_rows: bool,
}

impl Layout {
    pub fn of_this_binary() -> Result<Self, StoreError> {
        let read = || {
            let conn = Connection::open_in_memory()?;
            conn.execute_batch(include_str!("../sqlite/schema.sql"))?;
            let mut tables = Vec::new();
            let mut named = conn.prepare(
                "SELECT name, sql LIKE '%AUTOINCREMENT%' FROM sqlite_master
                 WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY rowid",
            )?;
            let named = named.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, bool>(1)?)))?;
            for named in named {
                let (name, counts_itself) = named?;
                let mut columns = conn.prepare("SELECT name FROM pragma_table_info(?1) ORDER BY cid")?;
                let columns = columns.query_map([&name], |row| row.get(0))?.collect::<Result<Vec<String>, _>>()?;
                let any = format!("SELECT EXISTS (SELECT 1 FROM {name})");
                let has_first_rows = conn.query_row(&any, [], |row| row.get(0))?;
                tables.push(Table { name, columns, counts_itself, has_first_rows });
            }
            Ok(Self { tables })
        };
        read().map_err(|error| failed("read its own schema", error))
    }
}
