use std::path::Path;

use rusqlite::{Connection, OpenFlags, OptionalExtension};

use super::file::{self, is_in_use};
use super::{failed, rows, sql};
use crate::error::StoreError;
use crate::inspect::{Inspection, SHARED_WORKER_TOKEN, SharedSecret};
use crate::schema::SCHEMA;

pub fn inspect(path: &Path) -> Result<Option<Inspection>, StoreError> {
    if !path.exists() {
        return Ok(None);
    }
    // Before the connection: closing the file would drop its locks.
    let in_use = is_in_use(path);
    let read = || {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let conn = Connection::open_with_flags(path, flags)?;
        if let Some(what) = file::damage(&conn)? {
            return Ok(Err(file::damaged(path, what)));
        }
        let schema: i64 = conn.pragma_query_value(None, "user_version", |row| row.get(0))?;
        let queues = match schema {
            SCHEMA => conn.prepare(sql::QUEUES_ALL)?.query_map([], rows::queue)?.collect::<Result<_, _>>()?,
            _ => Vec::new(),
        };
        let worker_token = match schema {
            SCHEMA => conn
                .prepare(sql::SHARED_SECRET_GET)?
                .query_row([SHARED_WORKER_TOKEN], |row| row.get(0).map(SharedSecret))
                .optional()?,
            _ => None,
        };
        Ok(Ok(Inspection { schema, in_use, queues, server: None, worker_token, store_id: None }))
    };
    match read() {
        Ok(found) => found.map(Some),
        Err(error) if file::is_damage(&error) => Err(file::damaged(path, error.to_string())),
        Err(error) => Err(failed("read the file", error)),
    }
}
