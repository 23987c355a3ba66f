//! A file as the source or the target of a copy.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags, OptionalExtension, params_from_iter};
use tokio::sync::mpsc;

use super::chunks::{Chunk, Chunks};
use super::layout::Table;
use super::{CopyError, raising};
use crate::error::StoreError;
use crate::schema::SCHEMA;
use crate::sqlite::failed;

/// Chunks that wait while another is written.
const WAITING: usize = 2;

/// One snapshot of a file, which a server may have open.
pub struct Reader {
    conn: Arc<Mutex<Connection>>,
}

/// A file that gets its name when it is complete.
pub struct Writer {
    conn: Arc<Mutex<Connection>>,
    partial: PathBuf,
    path: PathBuf,
}

impl Reader {
    pub fn open(path: &Path) -> Result<Self, CopyError> {
        if !path.exists() {
            return Err(CopyError::NoSource(path.to_owned()));
        }
        let open = || {
            let conn = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
            conn.busy_timeout(Duration::from_secs(5))?;
            // The first read decides which state all others see.
            conn.execute_batch("BEGIN")?;
            let found: i64 = conn.pragma_query_value(None, "user_version", |row| row.get(0))?;
            conn.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get::<_, i64>(0))?;
            Ok((conn, found))
        };
        let (conn, found) = open().map_err(|error| failed("read the file", error))?;
        if found != SCHEMA {
            return Err(CopyError::Schema { found, known: SCHEMA });
        }
        Ok(Self { conn: Arc::new(Mutex::new(conn)) })
    }

    pub fn rows(&self, table: &Table) -> Chunks {
        rows(&self.conn, table)
    }

    /// The last number that the table gave out, if it ever gave one out.
    pub fn counter(&self, table: &Table) -> Result<Option<i64>, StoreError> {
        let conn = self.conn.lock().unwrap_or_else(PoisonError::into_inner);
        let seq = conn.query_row("SELECT seq FROM sqlite_sequence WHERE name = ?1", [&table.name], |row| row.get(0));
        seq.optional().map_err(|error| failed("read a counter", error))
    }
}

/// Reads a table in a thread of its own.
fn rows(conn: &Arc<Mutex<Connection>>, table: &Table) -> Chunks {
    let (sender, receiver) = mpsc::channel(WAITING);
    let conn = Arc::clone(conn);
    let sql = format!("SELECT {} FROM {}", table.columns.join(", "), table.name);
    let columns = table.columns.len();
    tokio::task::spawn_blocking(move || {
        let conn = conn.lock().unwrap_or_else(PoisonError::into_inner);
        let read = || {
            let mut statement = conn.prepare(&sql)?;
            let mut rows = statement.query([])?;
            let mut chunk = Chunk::default();
            while let Some(row) = rows.next()? {
                chunk.push((0..columns).map(|at| row.get(at)).collect::<Result<Vec<Value>, _>>()?);
                // Nobody receives any more: the copy has failed.
                if chunk.is_full() && sender.blocking_send(Ok(std::mem::take(&mut chunk).rows)).is_err() {
                    return Ok(());
                }
            }
            if !chunk.rows.is_empty() {
                let _ = sender.blocking_send(Ok(chunk.rows));
            }
            Ok(())
        };
        if let Err(error) = read() {
            let _ = sender.blocking_send(Err(failed("read a table", error)));
        }
    });
    Chunks::Sent(receiver)
}

impl Writer {
    pub fn create(path: &Path) -> Result<Self, CopyError> {
        // A log beside a file that is put there would be taken for its own.
        for suffix in ["", "-wal", "-shm"] {
            let taken = with_suffix(path, suffix);
            if taken.exists() {
                return Err(CopyError::Exists(taken));
            }
        }
        let partial = with_suffix(path, ".partial");
        let create = || {
            let mut options = File::options();
            options.write(true).create(true).truncate(true);
            // Payloads, results and lease tokens are for nobody else to read.
            #[cfg(unix)]
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
            options.open(&partial)
        };
        create().map_err(|error| StoreError::Unavailable { operation: "create the file", source: error.into() })?;
        let open = || {
            let conn = Connection::open(&partial)?;
            // A crash leaves a partial file, which nobody uses: it is synced once, at the end.
            conn.pragma_update(None, "journal_mode", "OFF")?;
            conn.pragma_update(None, "synchronous", "OFF")?;
            conn.execute_batch("BEGIN")?;
            conn.execute_batch(include_str!("../sqlite/schema.sql"))?;
            conn.pragma_update(None, "user_version", SCHEMA)?;
            conn.set_prepared_statement_cache_capacity(4);
            Ok(conn)
        };
        let conn = open().map_err(|error| failed("create the tables", error))?;
        Ok(Self { conn: Arc::new(Mutex::new(conn)), partial, path: path.to_owned() })
    }

    /// Removes the rows that the schema has put there.
    pub fn clear(&mut self, table: &Table) -> Result<(), StoreError> {
        let conn = self.conn.lock().unwrap_or_else(PoisonError::into_inner);
        conn.execute(&format!("DELETE FROM {}", table.name), []).map_err(|error| failed("write a table", error))?;
        Ok(())
    }

    pub fn insert(&mut self, table: &Table, rows: &[Vec<Value>]) -> Result<(), StoreError> {
        let conn = self.conn.lock().unwrap_or_else(PoisonError::into_inner);
        let places = vec!["?"; table.columns.len()].join(", ");
        let sql = format!("INSERT INTO {} ({}) VALUES ({places})", table.name, table.columns.join(", "));
        let insert = || {
            let mut statement = conn.prepare_cached(&sql)?;
            for row in rows {
                statement.execute(params_from_iter(row))?;
            }
            Ok(())
        };
        insert().map_err(|error| failed("write a table", error))
    }

    pub fn rows(&self, table: &Table) -> Chunks {
        rows(&self.conn, table)
    }

    pub fn set_counter(&mut self, table: &Table, value: i64) -> Result<(), StoreError> {
        let conn = self.conn.lock().unwrap_or_else(PoisonError::into_inner);
        let set = || {
            conn.execute("DELETE FROM sqlite_sequence WHERE name = ?1", [&table.name])?;
            conn.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?1, ?2)", (&table.name, value))?;
            Ok(())
        };
        set().map_err(|error| failed("set a counter", error))
    }

    /// After this the copy exists, whatever happens to the machine.
    pub fn finish(self, raise_fences: i64) -> Result<(), StoreError> {
        let finish = |conn: &Connection| {
            conn.execute_batch(&raising(raise_fences))?;
            conn.execute_batch("COMMIT")
        };
        finish(&self.conn.lock().unwrap_or_else(PoisonError::into_inner))
            .map_err(|error| failed("write the file", error))?;
        let name = || {
            File::open(&self.partial)?.sync_all()?;
            std::fs::rename(&self.partial, &self.path)?;
            // Of a store that was there before: this is another one.
            let record = with_suffix(&self.path, ".id");
            if record.exists() {
                std::fs::remove_file(record)?;
            }
            let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
            File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
        };
        name().map_err(|error| StoreError::Unavailable { operation: "write the file", source: error.into() })
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // After a success it has another name.
        let _ = std::fs::remove_file(&self.partial);
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
