//! Effects outside of Tenure: a database of its own, in which workers "do the work".
//!
//! One table is guarded by the fence, as docs/GUARANTEES.md tells people to do it: a holder that was overtaken is
//! refused. Each accepted write is noted in the same transaction. The other table takes everything; what is there more
//! than once per task is what at-least-once means.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use rusqlite::{Connection, TransactionBehavior, params};

use super::history::now;

/// Longer than a process that holds the lock is stopped.
const BUSY: Duration = Duration::from_secs(30);

const SCHEMA: &str = "
    CREATE TABLE guarded (task TEXT PRIMARY KEY, fence INTEGER NOT NULL, worker TEXT NOT NULL);
    CREATE TABLE accepted (seq INTEGER PRIMARY KEY AUTOINCREMENT, task TEXT NOT NULL,
        fence INTEGER NOT NULL, attempt INTEGER NOT NULL, worker TEXT NOT NULL, at INTEGER NOT NULL);
    CREATE TABLE refused (task TEXT NOT NULL, fence INTEGER NOT NULL, worker TEXT NOT NULL);
    CREATE TABLE unguarded (task TEXT NOT NULL, fence INTEGER NOT NULL, worker TEXT NOT NULL);";

const GUARDED: &str = "
    INSERT INTO guarded (task, fence, worker) VALUES (?1, ?2, ?3)
    ON CONFLICT (task) DO UPDATE SET fence = excluded.fence, worker = excluded.worker
    WHERE guarded.fence <= excluded.fence";

/// Who writes what for which task.
#[derive(Debug, Clone)]
pub struct Effect {
    pub task: String,
    pub fence: u64,
    pub attempt: u32,
    pub worker: String,
}

/// The database of effects, as one process sees it.
#[derive(Debug)]
pub struct Ledger {
    connection: Connection,
}

impl Ledger {
    /// Makes a new one. While this value lives, those who open and leave it need not put the log in order.
    pub fn create(path: &Path) -> Result<Self> {
        let ledger = Self::open(path)?;
        ledger.connection.pragma_update(None, "journal_mode", "wal")?;
        ledger.connection.execute_batch(SCHEMA)?;
        Ok(ledger)
    }

    pub fn open(path: &Path) -> Result<Self> {
        let connection = Connection::open(path)?;
        connection.busy_timeout(BUSY)?;
        // Processes die here, machines do not.
        connection.pragma_update(None, "synchronous", "off")?;
        Ok(Self { connection })
    }

    /// Writes to both tables. Whether the guard let the write in.
    pub fn write(&mut self, effect: &Effect) -> Result<bool> {
        let Effect { task, fence, attempt, worker } = effect;
        let fence = i64::try_from(*fence)?;
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute("INSERT INTO unguarded VALUES (?1, ?2, ?3)", params![task, fence, worker])?;
        let accepted = transaction.execute(GUARDED, params![task, fence, worker])? == 1;
        if accepted {
            let at = i64::try_from(now())?;
            let note = "INSERT INTO accepted (task, fence, attempt, worker, at) VALUES (?1, ?2, ?3, ?4, ?5)";
            transaction.execute(note, params![task, fence, attempt, worker, at])?;
        } else {
            transaction.execute("INSERT INTO refused VALUES (?1, ?2, ?3)", params![task, fence, worker])?;
        }
        transaction.commit()?;
        Ok(accepted)
    }

    /// Everything that was written.
    pub fn effects(&self) -> Result<Effects> {
        let count = |sql: &str| self.connection.query_row(sql, [], |row| row.get::<_, i64>(0));
        let mut effects = Effects {
            refused: count("SELECT count(*) FROM refused")?.unsigned_abs(),
            executions: count("SELECT count(*) FROM unguarded")?.unsigned_abs(),
            executed_tasks: count("SELECT count(DISTINCT task) FROM unguarded")?.unsigned_abs(),
            ..Effects::default()
        };
        let mut rows = self.connection.prepare("SELECT task, fence, worker FROM accepted ORDER BY seq")?;
        let rows = rows.query_map([], |row| {
            Ok(Write { task: row.get(0)?, fence: row.get::<_, i64>(1)?.unsigned_abs(), worker: row.get(2)? })
        })?;
        effects.accepted = rows.collect::<Result<_, _>>()?;
        let mut rows = self.connection.prepare("SELECT task, fence FROM guarded")?;
        let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?.unsigned_abs())))?;
        effects.guarded = rows.collect::<Result<_, _>>()?;
        Ok(effects)
    }
}

/// A write that the guard let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    pub task: String,
    pub fence: u64,
    pub worker: String,
}

/// What the ledger holds at the end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Effects {
    /// In the order of the commits.
    pub accepted: Vec<Write>,
    /// The last fence of each task.
    pub guarded: BTreeMap<String, u64>,
    /// Writes of holders that were overtaken.
    pub refused: u64,
    pub executions: u64,
    pub executed_tasks: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect(task: &str, fence: u64) -> Effect {
        Effect { task: task.into(), fence, attempt: 1, worker: "w".into() }
    }

    #[test]
    fn a_holder_that_was_overtaken_is_refused_and_all_is_noted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.db");
        let (mut one, mut other) = (Ledger::create(&path).unwrap(), Ledger::open(&path).unwrap());
        assert!(one.write(&effect("a", 1)).unwrap());
        assert!(one.write(&effect("a", 1)).unwrap(), "the same holder may write again");
        assert!(other.write(&effect("a", 3)).unwrap());
        assert!(!one.write(&effect("a", 2)).unwrap(), "it was overtaken");
        assert!(one.write(&effect("b", 1)).unwrap(), "fences of other tasks do not matter");

        let effects = one.effects().unwrap();
        let fences: Vec<_> = effects.accepted.iter().map(|write| (write.task.as_str(), write.fence)).collect();
        assert_eq!(fences, [("a", 1), ("a", 1), ("a", 3), ("b", 1)]);
        assert_eq!(effects.guarded, BTreeMap::from([("a".into(), 3), ("b".into(), 1)]));
        assert_eq!((effects.refused, effects.executions, effects.executed_tasks), (1, 5, 2));
    }
}
