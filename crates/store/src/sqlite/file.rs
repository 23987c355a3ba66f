//! The file of the store: who has it open, whose it is, and whether it is whole.

use std::fs::{File, Permissions, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::failed;
use crate::error::StoreError;

/// For its owner only: payloads, results and lease tokens are in it.
const PRIVATE: u32 = 0o600;

/// Keeps other processes out while it is open. It must be closed after every connection to the file: closing any descriptor of
/// a file drops the locks that SQLite has on it.
#[derive(Debug)]
pub struct Locks {
    _beside: File,
    _file: File,
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn lock_path(path: &Path) -> PathBuf {
    beside(path, ".lock")
}

/// Where the identity of the store is recorded.
pub fn id_path(path: &Path) -> PathBuf {
    beside(path, ".id")
}

/// Left when the file was found damaged: the next start looks at all of it.
fn suspect_path(path: &Path) -> PathBuf {
    beside(path, ".suspect")
}

fn unavailable(error: std::io::Error) -> StoreError {
    match error.kind() {
        ErrorKind::StorageFull => StoreError::DiskFull { operation: "open", source: error.into() },
        _ => StoreError::Unavailable { operation: "open", source: error.into() },
    }
}

/// SQLite lets many processes open a file; Tenure's cached queues and its clock do not.
///
/// Locked are a file beside it, by its name, and the file itself: it may have other names, and the file beside it may have
/// been removed.
pub fn lock(path: &Path) -> Result<Locks, StoreError> {
    let mut options = File::options();
    options.create(true).truncate(false).read(true).write(true).mode(PRIVATE);
    let lock = |path: &Path, named: &Path| {
        let file = options.open(path).map_err(unavailable)?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => Err(StoreError::InUse { path: named.display().to_string() }),
            Err(TryLockError::Error(error)) => Err(unavailable(error)),
        }
    };
    let beside = lock(&lock_path(path), path)?;
    let file = lock(path, path)?;
    for mine in [&file, &beside] {
        let open_to_others = mine.metadata().is_ok_and(|found| found.permissions().mode() & 0o077 != 0);
        if open_to_others && let Err(error) = mine.set_permissions(Permissions::from_mode(PRIVATE)) {
            tracing::warn!(%error, "other users of this machine may read the store, and its permissions cannot be changed");
        }
    }
    Ok(Locks { _beside: beside, _file: file })
}

/// Whether a server has it open. Trying a lock for a moment does no harm.
pub fn is_in_use(path: &Path) -> bool {
    let is_locked = |path: &Path| {
        File::open(path).is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    };
    is_locked(&lock_path(path)) || is_locked(path)
}

/// What is wrong with the structure of the file, if something is. Reads all of it.
pub fn damage(conn: &Connection) -> rusqlite::Result<Option<String>> {
    let found: String = conn.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    Ok((found != "ok").then_some(found))
}

/// Whether the error says that the file is damaged.
pub fn is_damage(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(rusqlite::ErrorCode::DatabaseCorrupt | rusqlite::ErrorCode::NotADatabase))
}

/// The file was found damaged while it was used.
pub fn suspect(path: &Path) {
    let mut options = File::options();
    if let Err(error) = options.create(true).truncate(true).write(true).mode(PRIVATE).open(suspect_path(path)) {
        tracing::warn!(%error, "the next start will not look for damage of the store");
    }
}

/// Looks at all of a file that is suspicious: found damaged before, or shorter than its header says.
pub fn check(conn: &Connection, path: &Path) -> Result<(), StoreError> {
    let is_short = || -> rusqlite::Result<bool> {
        let bytes = |name| conn.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        let expected = bytes("page_count")? * bytes("page_size")?;
        // Before the log is copied the file is shorter than the database.
        let log = std::fs::metadata(beside(path, "-wal")).map_or(0, |found| found.len());
        Ok(log == 0 && std::fs::metadata(path).is_ok_and(|found| found.len() < expected.unsigned_abs()))
    };
    let marked = suspect_path(path).exists();
    let look = || -> rusqlite::Result<Option<String>> { Ok(if marked || is_short()? { damage(conn)? } else { None }) };
    match look() {
        Ok(None) if marked => {
            tracing::info!("the store was found damaged before; all of it was checked and is whole");
            let _ = std::fs::remove_file(suspect_path(path));
            Ok(())
        }
        Ok(None) => Ok(()),
        Ok(Some(what)) => Err(damaged(path, what)),
        Err(error) if is_damage(&error) => Err(damaged(path, error.to_string())),
        Err(error) => Err(failed("check the file", error)),
    }
}

pub fn damaged(path: &Path, what: String) -> StoreError {
    StoreError::Damaged { path: path.display().to_string(), what }
}

/// Compares the identity of the store with the one that was recorded beside it at its first start: a file that is empty or of
/// another store would lose what was acknowledged without a word.
pub fn identify(conn: &Connection, path: &Path, is_empty: bool) -> Result<(), StoreError> {
    let recorded = match std::fs::read_to_string(id_path(path)) {
        Ok(text) => Some(text.trim().to_owned()),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(unavailable(error)),
    };
    let replaced = |what: &str| StoreError::Replaced {
        path: path.display().to_string(),
        what: what.to_owned(),
        record: id_path(path).display().to_string(),
    };
    if is_empty && recorded.is_some() {
        return Err(replaced("is empty"));
    }
    let mut id: i32 = pragma_id(conn)?;
    if id == 0 && recorded.is_none() {
        id = fresh_id();
        conn.pragma_update(None, "application_id", id).map_err(|error| failed("open", error))?;
    }
    let own = format!("{id:08x}");
    match recorded {
        Some(recorded) if recorded == own => Ok(()),
        Some(_) => Err(replaced("is another store")),
        None => record(path, &own).map_err(unavailable),
    }
}

fn pragma_id(conn: &Connection) -> Result<i32, StoreError> {
    conn.pragma_query_value(None, "application_id", |row| row.get(0)).map_err(|error| failed("open", error))
}

/// Random, and not 0.
fn fresh_id() -> i32 {
    use std::hash::{BuildHasher, RandomState};
    let drawn = RandomState::new().hash_one(std::process::id());
    i32::try_from(drawn & 0x7fff_fffe).map_or(1, |id| id + 1)
}

/// In one step: a record that was written half would refuse the store.
fn record(path: &Path, id: &str) -> std::io::Result<()> {
    let new = beside(path, ".id.new");
    let mut file = File::options().create(true).truncate(true).write(true).mode(PRIVATE).open(&new)?;
    std::io::Write::write_all(&mut file, format!("{id}\n").as_bytes())?;
    file.sync_all()?;
    std::fs::rename(new, id_path(path))
}
