//! Retention: what nobody needs any more goes, in steps.

use tenure_core::{Seq, Timestamp};

use super::conn::Conn;
use super::load::query;
use super::rows::{Result, Time};
use super::{read, runs, sql};
use crate::codec::{Pruning, WORKERS_KEPT_MS};
use crate::model::Retention;
use crate::store::Pruned;

/// One step, as a transaction of its own.
pub async fn step(conn: &Conn, retention: &Retention, after: Seq, limit: usize, now: Timestamp) -> Result<Pruned> {
    conn.batch_execute("BEGIN").await?;
    query(conn, sql::COUNTS_FOLD, &[]).await?;
    let events_before = Time(now.plus(-retention.events_ms));
    let events = query(conn, sql::EVENTS_PRUNE, &[&events_before, &(limit as i64)]).await?.len();
    let workers_before = Time(now.plus(-WORKERS_KEPT_MS));
    query(conn, sql::WORKERS_PRUNE, &[&workers_before, &(limit as i64)]).await?;
    query(conn, sql::REDRIVES_PRUNE, &[&Time(now.plus(-retention.dead_letter_ms))]).await?;
    let finished: i64 = query(conn, sql::COUNTS_FINISHED, &[]).await?[0].try_get(0)?;
    let excess = finished.unsigned_abs().saturating_sub(retention.finished_count);
    let stretch = query(conn, sql::FINISHED_PRUNE_CANDIDATES, &[&after.0, &(limit as i64)]).await?;
    let stretch = stretch.iter().map(read::prunable).collect::<Result<Vec<_>>>()?;
    let mut pruning = Pruning::of(&stretch, retention, now, excess);
    let of_runs = runs::prune(conn, retention, now, excess > 0, limit, &mut pruning).await?;
    for statement in [sql::FINISHED_DELETE, sql::ATTEMPTS_DELETE, sql::BODIES_DELETE] {
        query(conn, statement, &[&pruning.gone]).await?;
    }
    let queues: Vec<i32> = pruning.counts.keys().map(|queue| queue.0).collect();
    let zeros = vec![0_i64; queues.len()];
    let finished: Vec<i64> = pruning.counts.values().map(|counts| counts.finished).collect();
    let dead: Vec<i64> = pruning.counts.values().map(|counts| counts.dead_lettered).collect();
    query(conn, sql::COUNTS_ADD, &[&queues, &zeros, &zeros, &zeros, &finished, &dead]).await?;
    conn.batch_execute("COMMIT").await?;
    Ok(pruning.outcome(&stretch, after, limit, events, of_runs))
}
