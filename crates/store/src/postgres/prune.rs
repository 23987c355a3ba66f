//! Retention: one step per transaction.

use std::collections::HashSet;

use tenure_core::queue::QueueId;
use tenure_core::retention::{Pruned, Pruning, RUNS_PER_STEP, Retention, RunRemoval};
use tenure_core::{Seq, Timestamp};
use tokio_postgres::types::ToSql;

use super::conn::Conn;
use super::load::query;
use super::rows::{self, Result, Time};
use super::{read, sql};
use crate::task_logs::LOG_PIECES_MAX;

pub async fn step(conn: &Conn, keep: &Retention, after: Seq, limit: usize, now: Timestamp) -> Result<Pruned> {
    let (cuts, most) = (keep.cuts(now), limit as i64);
    conn.batch_execute("BEGIN").await?;
    query(conn, sql::COUNTS_FOLD, &[]).await?;
    let events = query(conn, sql::EVENTS_PRUNE, &[&Time(cuts.events), &most]).await?.len();
    query(conn, sql::WORKERS_PRUNE, &[&Time(cuts.workers), &most]).await?;
    query(conn, sql::TASK_LOGS_PRUNE, &[&Time(cuts.logs), &most]).await?;
    query(conn, sql::TASK_LOGS_TRIM, &[&LOG_PIECES_MAX]).await?;
    query(conn, sql::WORKER_RECORDS_PRUNE, &[&Time(cuts.worker_records), &most]).await?;
    query(conn, sql::REDRIVES_PRUNE, &[&Time(cuts.redrives)]).await?;
    let finished: i64 = query(conn, sql::COUNTS_FINISHED, &[]).await?[0].try_get(0)?;
    let stretch = query(conn, sql::FINISHED_PRUNE_CANDIDATES, &[&after.0, &most]).await?;
    let stretch = stretch.iter().map(read::prunable).collect::<Result<Vec<_>>>()?;
    let mut pruning = Pruning::of(&stretch, after, limit, finished.unsigned_abs(), keep, now);
    runs(conn, &mut pruning).await?;
    let rows: Vec<i64> = pruning.rows.iter().map(|seq| seq.0).collect();
    remove(conn, &rows).await?;
    count(conn, &pruning).await?;
    query(conn, sql::QUEUE_SEEN_PRUNE, &[]).await?;
    conn.batch_execute("COMMIT").await?;
    Ok(pruning.outcome(events))
}

/// Deleted queues have only the number of their ended tasks, and are forgotten with the last of them.
async fn count(conn: &Conn, pruning: &Pruning) -> Result<()> {
    let finished = pruning.counts.values().map(|counts| counts.finished).collect::<Vec<i64>>();
    let queues = pruning.counts.keys().map(|queue| queue.0).collect::<Vec<i32>>();
    let mut deleted = HashSet::new();
    for row in query(conn, sql::DELETED_QUEUES_ADD, &[&queues, &finished]).await? {
        deleted.insert(QueueId(row.try_get(0)?));
    }
    query(conn, sql::DELETED_QUEUES_PRUNE, &[]).await?;
    let left = || pruning.counts.iter().filter(|(queue, _)| !deleted.contains(queue));
    let queues: Vec<i32> = left().map(|(queue, _)| queue.0).collect();
    let finished: Vec<i64> = left().map(|(_, counts)| counts.finished).collect();
    let dead: Vec<i64> = left().map(|(_, counts)| counts.dead_lettered).collect();
    let zeros = vec![0_i64; queues.len()];
    query(conn, sql::COUNTS_ADD, &[&queues, &zeros, &zeros, &zeros, &zeros, &finished, &dead]).await?;
    Ok(())
}

async fn remove(conn: &Conn, rows: &Vec<i64>) -> Result<()> {
    for statement in [sql::FINISHED_DELETE, sql::ATTEMPTS_DELETE, sql::TASK_LOGS_DELETE, sql::BODIES_DELETE] {
        query(conn, statement, &[rows]).await?;
    }
    Ok(())
}

/// Removes runs with their tasks.
async fn runs(conn: &Conn, pruning: &mut Pruning) -> Result<()> {
    let before = pruning.runs_before;
    let [keys, failed, others] = [before.with_key, before.failed, before.others].map(Time);
    let params: [&(dyn ToSql + Sync); 4] = [&keys, &failed, &others, &RUNS_PER_STEP];
    let runs = query(conn, sql::RUNS_PRUNE, &params).await?.iter().map(rows::seq).collect::<Result<Vec<_>>>()?;
    for run in runs {
        let found = query(conn, sql::RUN_TASKS_FINISHED, &[&run.0, &(pruning.room() as i64)]).await?;
        let (mut rows, mut tasks): (Vec<i64>, Vec<(QueueId, bool)>) = (Vec::new(), Vec::new());
        for row in &found {
            rows.push(row.try_get(0)?);
            tasks.push((QueueId(row.try_get(1)?), row.try_get(2)?));
        }
        remove(conn, &rows).await?;
        match pruning.remove_run(&tasks) {
            RunRemoval::Whole => {
                query(conn, sql::RUN_TASKS_DELETE, &[&run.0]).await?;
                query(conn, sql::RUNS_DELETE, &[&vec![run.0]]).await?;
            }
            RunRemoval::Begun => {
                query(conn, sql::RUN_DOOM, &[&run.0]).await?;
                break;
            }
        }
    }
    Ok(())
}
