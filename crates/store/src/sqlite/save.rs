//! Writes what a batch has changed.

use rusqlite::{Connection, Statement, params};
use tenure_core::Seq;
use tenure_core::batch::{RemovedWake, Saved, Write, Writes};
use tenure_core::mutant;
use tenure_core::queue::FairnessKey;
use tenure_core::time::Timestamp;

use super::{dags, load, outbox, rows, runs, sql};
use crate::codec::{self, SpecTexts};
use crate::dags::plan::DataWrites;
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
    let tasks = &writes.tasks;
    step("delete rows", &|| {
        delete(tx, sql::BLOCKED_DELETE, &tasks.unblock)?;
        delete(tx, sql::SCHEDULED_DELETE, &tasks.unschedule)?;
        delete(tx, sql::READY_DELETE, &tasks.unready)?;
        delete(tx, sql::RUNNING_DELETE, &tasks.unrun)?;
        delete(tx, sql::FINISHED_DELETE, &tasks.unfinish)
    })?;
    step("insert bodies", &|| {
        let mut specs = SpecTexts::default();
        each(tx, sql::BODIES_INSERT, &tasks.bodies, |put, body| rows::insert_body(put, body, &mut specs))
    })?;
    step("insert waiting", &|| {
        each(tx, sql::BLOCKED_INSERT, &tasks.block, |put, (id, blocked)| rows::insert_blocked(put, *id, blocked))?;
        each(tx, sql::BLOCKED_COUNT_DOWN, &tasks.count_down, |count, (seq, waiting_on)| {
            count.execute(params![seq.0, waiting_on]).map(drop)
        })?;
        let mut specs = SpecTexts::default();
        each(tx, sql::SCHEDULED_INSERT, &tasks.schedule, |put, (id, waiting)| {
            rows::insert_waiting(put, *id, waiting, &mut specs)
        })?;
        let ready = if mutant!("task-left-out", every 50) { &[] } else { &tasks.ready[..] };
        each(tx, sql::READY_INSERT, ready, |put, (id, waiting)| rows::insert_waiting(put, *id, waiting, &mut specs))
    })?;
    step("insert running", &|| {
        each(tx, sql::RUNNING_INSERT, &tasks.run, |put, (id, running)| rows::insert_running(put, *id, running))
    })?;
    step("renew running", &|| {
        each(tx, sql::RUNNING_RENEW, &tasks.renew, |put, (seq, running)| rows::renew_running(put, seq.0, running))
    })?;
    step("insert finished", &|| {
        each(tx, sql::FINISHED_INSERT, &tasks.finish, |put, (id, finished)| rows::insert_finished(put, *id, finished))
    })?;
    step("write attempts", &|| {
        each(tx, sql::ATTEMPTS_DELETE_NAMED, &tasks.drop_attempts, |drop_one, (seq, number)| {
            drop_one.execute(params![seq.0, number]).map(drop)
        })?;
        let kept = if mutant!("attempt-not-kept", every 10) { &[] } else { &tasks.attempts[..] };
        each(tx, sql::ATTEMPTS_PUT, kept, |put, (seq, attempt)| rows::put_attempt(put, seq.0, attempt))
    })?;
    step("write queues", &|| {
        each(tx, sql::QUEUE_SAVE, &writes.queues.changed, rows::save_queue)?;
        let mut changed = writes.queues.changed.iter().filter(|queue| writes.queues.refair.contains(&queue.id));
        changed.try_for_each(|queue| refair(tx, queue.id.0, queue.settings.fairness_key.as_ref()))
    })?;
    step("write runs", &|| runs::save(tx, &writes.runs))?;
    if !writes.data.is_empty() {
        let data = DataWrites::of(&writes.data, &writes.artifacts);
        for (name, save) in dags::save::STEPS {
            step(name, &|| save(tx, &data, now))?;
        }
    }
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

/// Executes a statement for each row. With no rows, as for most tables of a batch, it is not even looked up.
pub fn each<T>(
    tx: &Connection,
    sql: &str,
    rows: &[T],
    mut execute: impl FnMut(&mut Statement<'_>, &T) -> rusqlite::Result<()>,
) -> rusqlite::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let mut statement = tx.prepare_cached(sql)?;
    rows.iter().try_for_each(|row| execute(&mut statement, row))
}

fn delete(tx: &Connection, sql: &str, seqs: &[Seq]) -> rusqlite::Result<()> {
    each(tx, sql, seqs, |delete, seq| delete.execute([seq.0]).map(drop))
}

fn rest(tx: &Connection, writes: &Writes, now: Timestamp) -> rusqlite::Result<()> {
    for (queue, counts) in &writes.queues.counts {
        let running = if mutant!("slot-not-freed") { counts.running.max(0) } else { counts.running };
        tx.prepare_cached(sql::COUNTS_ADD)?.execute(params![
            queue.0,
            counts.blocked,
            counts.scheduled,
            counts.ready,
            running,
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
    if !writes.facts.is_empty() && !mutant!("event-left-out", every 40) {
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
