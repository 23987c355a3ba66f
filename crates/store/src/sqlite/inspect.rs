use std::fs::{File, TryLockError};
use std::path::Path;

use rusqlite::{Connection, OpenFlags, OptionalExtension};

use super::{failed, lock_path, rows, sql};
use crate::error::StoreError;
use crate::inspect::{Inspection, SHARED_WORKER_TOKEN, SharedSecret};
use crate::schema::SCHEMA;

pub fn inspect(path: &Path) -> Result<Option<Inspection>, StoreError> {
    if !path.exists() {
        return Ok(None);
    }
    let read = || {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let conn = Connection::open_with_flags(path, flags)?;
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
        Ok(Inspection { schema, in_use: is_in_use(path), queues, server: None, worker_token })
    };
    read().map(Some).map_err(|error| failed("read the file", error))
}

/// A server holds the lock beside its store. Trying it for a moment does no harm.
fn is_in_use(path: &Path) -> bool {
    File::open(lock_path(path)).is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
}
