//! Writes what a batch has changed.

use rusqlite::{Connection, params};
use tenure_core::Seq;
use tenure_core::batch::{RemovedWake, Saved, Write, Writes};
use tenure_core::queue::FairnessKey;
use tenure_core::task::Waiting;
use tenure_core::time::Timestamp;

use super::{load, outbox, rows, runs, sql};
use crate::codec;
use crate::error::StoreError;
use crate::faults::Faults;

/// Writes, and reads what the answers need.
pub fn write(tx: &Connection, write: &Write, faults: &Faults) -> Result<Saved, StoreError> {
    let mut saved = Saved::default();
    if !write.bodies.is_empty() {
        faults.before("load bodies")?;
        saved.bodies = load::bodies(tx, &write.bodies).map_err(|error| super::failed("load bodies", error))?;
    }
    if !write.receipts.is_empty() {
        saved.receipts =
            outbox::receipts(tx, &write.receipts).map_err(|error| super::failed("load wake-ups", error))?;
    }
    if !write.writes.is_empty() {
        saved.settled = tables(tx, &write.writes, write.now, faults)?;
    }
    Ok(saved)
}

fn tables(tx: &Connection, writes: &Writes, now: Timestamp, faults: &Faults) -> Result<Vec<RemovedWake>, StoreError> {
    let step = |name: &'static str, work: &dyn Fn() -> rusqlite::Result<()>| {
        faults.before(name)?;
        work().map_err(|error| super::failed("write", error))?;
        faults.after(name)
    };
    step("delete rows", &|| {
        delete(tx, sql::BLOCKED_DELETE, &writes.tasks.unblock)?;
        delete(tx, sql::SCHEDULED_DELETE, &writes.tasks.unschedule)?;
        delete(tx, sql::READY_DELETE, &writes.tasks.unready)?;
        delete(tx, sql::RUNNING_DELETE, &writes.tasks.unrun)?;
        delete(tx, sql::FINISHED_DELETE, &writes.tasks.unfinish)
    })?;
    step("insert bodies", &|| {
        let mut statement = tx.prepare_cached(sql::BODIES_INSERT)?;
        writes.tasks.bodies.iter().try_for_each(|body| rows::insert_body(&mut statement, body))
    })?;
    step("insert waiting", &|| {
        let mut block = tx.prepare_cached(sql::BLOCKED_INSERT)?;
        writes.tasks.block.iter().try_for_each(|(id, blocked)| rows::insert_blocked(&mut block, *id, blocked))?;
        let mut count_down = tx.prepare_cached(sql::BLOCKED_COUNT_DOWN)?;
        for (seq, waiting_on) in &writes.tasks.count_down {
            count_down.execute(params![seq.0, waiting_on])?;
        }
        insert_waiting(tx, sql::SCHEDULED_INSERT, &writes.tasks.schedule)?;
        insert_waiting(tx, sql::READY_INSERT, &writes.tasks.ready)
    })?;
    step("insert running", &|| {
        let mut statement = tx.prepare_cached(sql::RUNNING_INSERT)?;
        writes.tasks.run.iter().try_for_each(|(id, running)| rows::insert_running(&mut statement, *id, running))
    })?;
    step("renew running", &|| {
        let mut statement = tx.prepare_cached(sql::RUNNING_RENEW)?;
        writes.tasks.renew.iter().try_for_each(|(seq, running)| rows::renew_running(&mut statement, seq.0, running))
    })?;
    step("insert finished", &|| {
        let mut statement = tx.prepare_cached(sql::FINISHED_INSERT)?;
        writes.tasks.finish.iter().try_for_each(|(id, finished)| rows::insert_finished(&mut statement, *id, finished))
    })?;
    step("write attempts", &|| {
        let mut drop = tx.prepare_cached(sql::ATTEMPTS_DELETE_NAMED)?;
        for (seq, number) in &writes.tasks.drop_attempts {
            drop.execute(params![seq.0, number])?;
        }
        let mut put = tx.prepare_cached(sql::ATTEMPTS_PUT)?;
        writes.tasks.attempts.iter().try_for_each(|(seq, attempt)| rows::put_attempt(&mut put, seq.0, attempt))
    })?;
    step("write queues", &|| {
        let mut statement = tx.prepare_cached(sql::QUEUE_SAVE)?;
        for queue in &writes.queues.changed {
            rows::save_queue(&mut statement, queue)?;
            if writes.queues.refair.contains(&queue.id) {
                refair(tx, queue.id.0, queue.settings.fairness_key.as_ref())?;
            }
        }
        Ok(())
    })?;
    step("write runs", &|| runs::save(tx, &writes.runs))?;
    step("write the rest", &|| rest(tx, writes, now))?;
    step("delete queues", &|| {
        for queue in &writes.queues.deleted {
            for statement in [sql::DELETED_QUEUE_PUT, sql::COUNTS_DELETE, sql::QUEUE_DELETE] {
                tx.prepare_cached(statement)?.execute([queue.id.0])?;
            }
        }
        Ok(())
    })?;
    step("insert effects", &|| outbox::insert(tx, &writes.effects, now))?;
    faults.before("settle wake-ups")?;
    let settled = outbox::settle(tx, &writes.settled).map_err(|error| super::failed("write", error))?;
    faults.after("settle wake-ups")?;
    Ok(settled)
}

fn delete(tx: &Connection, sql: &str, seqs: &[Seq]) -> rusqlite::Result<()> {
    let mut statement = tx.prepare_cached(sql)?;
    for seq in seqs {
        statement.execute([seq.0])?;
    }
    Ok(())
}

fn insert_waiting(tx: &Connection, sql: &str, waiting: &[(tenure_core::TaskId, Waiting)]) -> rusqlite::Result<()> {
    let mut statement = tx.prepare_cached(sql)?;
    waiting.iter().try_for_each(|(id, waiting)| rows::insert_waiting(&mut statement, *id, waiting))
}

fn rest(tx: &Connection, writes: &Writes, now: Timestamp) -> rusqlite::Result<()> {
    for (queue, counts) in &writes.queues.counts {
        tx.prepare_cached(sql::COUNTS_ADD)?.execute(params![
            queue.0,
            counts.blocked,
            counts.scheduled,
            counts.ready,
            counts.running,
            counts.finished,
            counts.dead_lettered
        ])?;
    }
    for hello in &writes.hellos {
        tx.prepare_cached(sql::WORKERS_PUT)?.execute(params![hello.worker, hello.incarnation, now.as_millis()])?;
    }
    for redrive in &writes.redrives {
        tx.prepare_cached(sql::REDRIVE_STEP)?.execute(params![
            redrive.redrive_id.to_be_bytes(),
            redrive.cursor.0,
            redrive.released.cast_signed(),
            redrive.finished
        ])?;
    }
    if !writes.facts.is_empty() {
        let facts = codec::encode_facts(&writes.facts);
        tx.prepare_cached(sql::EVENT_INSERT)?.execute(params![now.as_millis(), facts])?;
    }
    Ok(())
}

/// Rows carry the value that grants rotate over, so a new key means new values. Running tasks may return to the queue.
fn refair(tx: &Connection, queue: i32, key: Option<&FairnessKey>) -> rusqlite::Result<()> {
    let (kind, tag) = codec::fairness_key(key);
    for statement in [sql::READY_REFAIR, sql::SCHEDULED_REFAIR, sql::RUNNING_REFAIR, sql::BLOCKED_REFAIR] {
        tx.execute(statement, params![queue, kind, tag])?;
    }
    Ok(())
}
