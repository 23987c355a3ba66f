//! The store, looked at without changing it.

use std::fs::{File, TryLockError};
use std::path::Path;

use anyhow::Context;
use rusqlite::{Connection, OpenFlags};
use tenure_engine::store;

use super::{Finding, postgres};
use tenure_config::StoreUrl;

const CHECK: &str = "store";

pub async fn check(url: &StoreUrl) -> Vec<Finding> {
    let known = match known_schema().await {
        Ok(known) => known,
        Err(error) => {
            let fix = "free some space for temporary files, or set TMPDIR";
            return vec![Finding::fail(CHECK, format!("no store could be created for comparison: {error:#}"), fix)];
        }
    };
    match url.path() {
        Some(path) => vec![sqlite(path, known)],
        None => postgres::check(url.reveal(), known).await,
    }
}

/// The schema version that this binary makes. Both kinds of store count alike, so a new SQLite store tells it.
async fn known_schema() -> anyhow::Result<i64> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("new.db");
    drop(store::open(&format!("sqlite:{}", path.display()), Default::default()).await?);
    schema_of(&path).context("the version of a new store")
}

fn schema_of(path: &Path) -> rusqlite::Result<i64> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Connection::open_with_flags(path, flags)?.pragma_query_value(None, "user_version", |row| row.get(0))
}

fn sqlite(path: &Path, known: i64) -> Finding {
    let shown = path.display();
    if !path.exists() {
        return Finding::ok(CHECK, format!("{shown} does not exist yet; the first start creates it"));
    }
    match schema_of(path) {
        Ok(found) => match verdict(&shown.to_string(), found, known) {
            finding if is_in_use(path) => {
                Finding { message: format!("{}, and a server has it open", finding.message), ..finding }
            }
            finding => finding,
        },
        Err(error) => Finding::fail(
            CHECK,
            format!("{shown} cannot be read: {error}"),
            "check its permissions, or restore a backup",
        ),
    }
}

/// What a schema version means for this binary.
pub fn verdict(name: &str, found: i64, known: i64) -> Finding {
    let version = format!("{name} has schema version {found}");
    match found {
        0 => Finding::ok(CHECK, format!("{name} is empty; the first start creates the tables")),
        _ if found > known => Finding::fail(
            CHECK,
            format!("{version}, this binary knows versions up to {known}"),
            "start a newer tenure, or restore a backup made before the upgrade",
        ),
        _ if found < known => Finding::warn(
            CHECK,
            format!("{version}, this binary creates {known}"),
            "back it up; the next start upgrades it",
        ),
        _ => Finding::ok(CHECK, version),
    }
}

/// A server holds the lock beside its store. Trying it for a moment does no harm.
fn is_in_use(path: &Path) -> bool {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    File::open(name).is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    #[test]
    fn versions_are_compared() {
        assert_eq!(verdict("s", 0, 1).status, Status::Ok);
        assert_eq!(verdict("s", 1, 1).status, Status::Ok);
        assert_eq!(verdict("s", 1, 2).status, Status::Warn);
        assert_eq!(verdict("s", 2, 1).status, Status::Fail);
    }

    #[tokio::test]
    async fn a_store_is_looked_at_while_a_server_has_it_and_after() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tenure.db");
        let known = known_schema().await.unwrap();
        assert!(sqlite(&path, known).message.contains("does not exist yet"));
        let open = store::open(&format!("sqlite:{}", path.display()), Default::default()).await.unwrap();
        let finding = sqlite(&path, known);
        assert!(finding.status == Status::Ok && finding.message.ends_with("a server has it open"), "{finding:?}");
        drop(open);
        std::fs::write(&path, "this is no database at all, whatever its name says").unwrap();
        assert_eq!(sqlite(&path, known).status, Status::Fail);
    }
}
