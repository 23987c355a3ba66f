//! The raw limit of SQLite: one connection, as SQLite has one writer.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use rusqlite::{Connection, TransactionBehavior, params};

use crate::load::Pace;
use crate::progress::Progress;

const SETTINGS: &str = "\
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
PRAGMA cache_size = -65536;";

const TABLE: &str = "\
DROP TABLE IF EXISTS tasks;
CREATE TABLE tasks (
    seq INTEGER PRIMARY KEY, queue INTEGER NOT NULL, priority INTEGER NOT NULL, state INTEGER NOT NULL,
    payload TEXT NOT NULL, worker TEXT, token BLOB, expires_at INTEGER, result TEXT, finished_at INTEGER
);
CREATE INDEX tasks_ready ON tasks (queue, priority, seq) WHERE state = 0;";

const FILL: &str = "\
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
INSERT INTO tasks (seq, queue, priority, state, payload) SELECT i, 1, 5, 0, '{\"n\":' || i || '}' FROM n";

const CLAIM: &str = "\
UPDATE tasks SET state = 1, worker = ?1, token = ?2, expires_at = ?3
WHERE seq IN (SELECT seq FROM tasks WHERE queue = 1 AND state = 0 ORDER BY priority, seq LIMIT ?4)
RETURNING seq, payload";

const COMPLETE: &str = "UPDATE tasks SET state = 2, result = ?1, finished_at = ?2 WHERE seq = ?3 AND token = ?4";

/// Claims and completes `batch` rows a transaction until none is left or the time is up.
pub fn run(file: &Path, rows: usize, batch: usize, progress: &dyn Progress) -> Result<Pace> {
    let mut db = Connection::open(file)?;
    db.execute_batch(SETTINGS)?;
    db.execute_batch(TABLE)?;
    db.execute(FILL, [i64::try_from(rows)?])?;
    db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    let token = [7_u8; 16];
    let limit = super::time_limit(batch);
    let started = Instant::now();
    let mut done = 0;
    while done < rows && started.elapsed() < limit {
        let mut claimed: Vec<(i64, String)> = Vec::with_capacity(batch);
        let claim = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        {
            let mut statement = claim.prepare_cached(CLAIM)?;
            let found = statement.query_map(params!["worker", token, 1_700_000_060_000_i64, batch as i64], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?;
            for row in found {
                claimed.push(row?);
            }
        }
        claim.commit()?;
        ensure!(!claimed.is_empty(), "the raw table ran dry");
        let complete = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        {
            let mut statement = complete.prepare_cached(COMPLETE)?;
            for (seq, _) in &claimed {
                let changed = statement.execute(params!["{\"ok\":true}", 1_700_000_000_000_i64, seq, token])?;
                ensure!(changed == 1, "a row was lost");
            }
        }
        complete.commit()?;
        done += claimed.len();
        progress.advance(claimed.len() as u64);
    }
    let pace = Pace::of(done, started.elapsed());
    db.execute_batch("DROP TABLE tasks")?;
    Ok(pace)
}
