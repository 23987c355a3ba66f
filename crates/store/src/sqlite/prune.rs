//! Retention: one step per transaction.

use rusqlite::{Connection, params};
use tenure_core::Seq;
use tenure_core::queue::QueueId;
use tenure_core::retention::{Prunable, Pruned, Pruning, RUNS_PER_STEP, Retention, RunRemoval};
use tenure_core::time::Timestamp;

use super::{rows, sql};
use crate::task_logs::LOG_PIECES_MAX;

type Result<T> = rusqlite::Result<T>;

pub fn step(tx: &Connection, keep: &Retention, after: Seq, limit: usize, now: Timestamp) -> Result<Pruned> {
    let (cuts, most) = (keep.cuts(now), limit as i64);
    let events = tx.prepare_cached(sql::EVENTS_PRUNE)?.execute([cuts.events.as_millis(), most])?;
    tx.prepare_cached(sql::WORKERS_PRUNE)?.execute([cuts.workers.as_millis(), most])?;
    tx.prepare_cached(sql::TASK_LOGS_PRUNE)?.execute([cuts.logs.as_millis(), most])?;
    tx.prepare_cached(sql::TASK_LOGS_TRIM)?.execute([LOG_PIECES_MAX])?;
    tx.prepare_cached(sql::WORKER_RECORDS_PRUNE)?.execute([cuts.worker_records.as_millis(), most])?;
    tx.prepare_cached(sql::REDRIVES_PRUNE)?.execute([cuts.redrives.as_millis()])?;
    let finished: i64 = tx.prepare_cached(sql::COUNTS_FINISHED)?.query_row([], |row| row.get(0))?;
    let stretch: Vec<Prunable> = tx
        .prepare_cached(sql::FINISHED_PRUNE_CANDIDATES)?
        .query_map([after.0, most], rows::prunable)?
        .collect::<Result<_>>()?;
    let mut pruning = Pruning::of(&stretch, after, limit, finished.unsigned_abs(), keep, now);
    runs(tx, &mut pruning)?;
    for seq in &pruning.rows {
        remove(tx, seq.0)?;
    }
    for (queue, count) in &pruning.counts {
        let (finished, dead) = (count.finished, count.dead_lettered);
        if tx.prepare_cached(sql::DELETED_QUEUES_ADD)?.execute(params![queue.0, finished])? == 0 {
            tx.prepare_cached(sql::COUNTS_ADD)?.execute(params![queue.0, 0, 0, 0, 0, finished, dead])?;
        }
    }
    tx.prepare_cached(sql::DELETED_QUEUES_PRUNE)?.execute([])?;
    tx.prepare_cached(sql::QUEUE_SEEN_PRUNE)?.execute([])?;
    Ok(pruning.outcome(events))
}

fn remove(tx: &Connection, seq: i64) -> Result<()> {
    for statement in [sql::FINISHED_DELETE, sql::ATTEMPTS_DELETE, sql::TASK_LOGS_DELETE, sql::BODIES_DELETE] {
        tx.prepare_cached(statement)?.execute([seq])?;
    }
    Ok(())
}

/// Removes runs with their tasks.
fn runs(tx: &Connection, pruning: &mut Pruning) -> Result<()> {
    let before = pruning.runs_before;
    let [keys, failed, others] = [before.with_key, before.failed, before.others].map(Timestamp::as_millis);
    let runs: Vec<i64> = tx
        .prepare_cached(sql::RUNS_PRUNE)?
        .query_map(params![keys, failed, others, RUNS_PER_STEP], |row| row.get(0))?
        .collect::<Result<_>>()?;
    for run in runs {
        let found: Vec<(i64, (QueueId, bool))> = tx
            .prepare_cached(sql::RUN_TASKS_FINISHED)?
            .query_map([run, pruning.room() as i64], |row| Ok((row.get(0)?, (QueueId(row.get(1)?), row.get(2)?))))?
            .collect::<Result<_>>()?;
        let (rows, tasks): (Vec<_>, Vec<_>) = found.into_iter().unzip();
        rows.into_iter().try_for_each(|seq| remove(tx, seq))?;
        match pruning.remove_run(&tasks) {
            RunRemoval::Whole => {
                tx.prepare_cached(sql::RUN_TASKS_DELETE)?.execute([run])?;
                tx.prepare_cached(sql::RUNS_DELETE)?.execute([run])?;
            }
            RunRemoval::Begun => {
                tx.prepare_cached(sql::RUN_DOOM)?.execute([run])?;
                break;
            }
        }
    }
    Ok(())
}
