//! Writes what reports say about datasets.

use rusqlite::{Connection, params};
use tenure_core::effect::EffectKind;
use tenure_core::time::Timestamp;

use super::super::sql;
use crate::buffers::FOLLOW_UP_MS;
use crate::dags::plan::{DataWrites, InvalidationWrite, Producer};

type Result<T> = rusqlite::Result<T>;
type Save = fn(&Connection, &DataWrites, Timestamp) -> Result<()>;

/// The parts, in the order in which they are written.
pub const STEPS: [(&str, Save); 7] = [
    ("write invalidations", invalidations),
    ("write outputs", outputs),
    ("write artifacts", artifacts),
    ("write data events", events),
    ("write what was read", reads),
    ("write operator state", states),
    ("write batches", publishes),
];

fn invalidations(tx: &Connection, writes: &DataWrites, now: Timestamp) -> Result<()> {
    writes.invalidations.iter().try_for_each(|row| invalidate(tx, row, now))
}

fn invalidate(tx: &Connection, row: &InvalidationWrite, now: Timestamp) -> Result<()> {
    let id = row.new.id.as_u128().to_be_bytes();
    tx.prepare_cached(sql::INVALIDATION_INSERT)?.execute(params![
        id,
        row.org,
        row.new.dataset.as_u128().to_be_bytes(),
        row.new.version.as_u128().to_be_bytes(),
        row.partition_key(),
        row.row_filter(),
        row.reason,
        now.as_millis(),
    ])?;
    let apply: &[&str] = match row.partition_key() {
        Some(_) => &[sql::INVALIDATION_BUMP_PARTITION],
        None => &[sql::INVALIDATION_BUMP_PARTITIONS, sql::INVALIDATION_BUMP_VERSION],
    };
    for statement in apply.iter().chain(&[sql::INVALIDATION_SETTLE]) {
        tx.prepare_cached(statement)?.execute([id])?;
    }
    Ok(())
}

fn columns(producer: Producer) -> (Option<[u8; 16]>, Option<u32>) {
    (producer.map(|(task, _)| task.as_u128().to_be_bytes()), producer.map(|(_, attempt)| attempt))
}

fn outputs(tx: &Connection, writes: &DataWrites, now: Timestamp) -> Result<()> {
    for (version, cursor) in &writes.produced {
        tx.prepare_cached(sql::GENERATIONS_ADVANCE)?.execute(params![version.as_u128().to_be_bytes(), cursor])?;
    }
    for ((version, key), row) in &writes.partitions {
        let (task, attempt) = columns(row.producer);
        let from = row.made_from.as_ref();
        tx.prepare_cached(sql::PARTITIONS_COMMIT)?.execute(params![
            version.as_u128().to_be_bytes(),
            key,
            row.ends.map(|ends| ends.0),
            row.ends.map(|ends| ends.1),
            row.location,
            row.row_count,
            row.bytes,
            row.schema_hash,
            row.manifest,
            row.artifact.map(|artifact| artifact.as_u128().to_be_bytes()),
            task,
            attempt,
            now.as_millis(),
            from.map(|from| from.job.0),
            from.map(|from| from.version.as_u128().to_be_bytes()),
            from.map(|from| &from.key),
            from.map(|from| from.generation),
        ])?;
    }
    Ok(())
}

fn artifacts(tx: &Connection, writes: &DataWrites, _: Timestamp) -> Result<()> {
    for ((dataset, artifact), (version, digest)) in &writes.artifacts {
        let ids = [dataset.as_u128(), artifact.as_u128(), version.as_u128()].map(u128::to_be_bytes);
        tx.prepare_cached(sql::ARTIFACTS_INSERT)?.execute(params![ids[0], ids[1], ids[2], digest])?;
    }
    Ok(())
}

fn events(tx: &Connection, writes: &DataWrites, now: Timestamp) -> Result<()> {
    if writes.events.is_empty() {
        return Ok(());
    }
    let mut insert = tx.prepare_cached(sql::DATA_EVENTS_INSERT)?;
    for ((version, position), row) in &writes.events {
        let (task, attempt) = columns(row.producer);
        insert.execute(params![
            row.org,
            row.dataset.as_u128().to_be_bytes(),
            version.as_u128().to_be_bytes(),
            position,
            row.cursor(),
            row.key(),
            row.ends().map(|ends| ends.0),
            row.ends().map(|ends| ends.1),
            task,
            attempt,
            now.as_millis(),
        ])?;
    }
    Ok(())
}

fn reads(tx: &Connection, writes: &DataWrites, now: Timestamp) -> Result<()> {
    for ((job, version), cursor) in &writes.edge_cursors {
        let version = version.as_u128().to_be_bytes();
        tx.prepare_cached(sql::EDGE_CURSORS_ADVANCE)?.execute(params![job.0, version, cursor])?;
    }
    for ((job, version, key), generation) in &writes.edge_partitions {
        let version = version.as_u128().to_be_bytes();
        tx.prepare_cached(sql::EDGE_PARTITIONS_ADVANCE)?.execute(params![job.0, version, key, generation])?;
    }
    for (invalidation, job) in &writes.done {
        let invalidation = invalidation.as_u128().to_be_bytes();
        tx.prepare_cached(sql::DEPENDENTS_DONE)?.execute(params![invalidation, job.0, now.as_millis()])?;
    }
    Ok(())
}

fn states(tx: &Connection, writes: &DataWrites, now: Timestamp) -> Result<()> {
    for (job, state) in &writes.operator_states {
        tx.prepare_cached(sql::OPERATOR_STATE_PUT)?.execute(params![job.0, state, now.as_millis()])?;
    }
    Ok(())
}

fn publishes(tx: &Connection, writes: &DataWrites, now: Timestamp) -> Result<()> {
    for (id, row) in &writes.publishes {
        let follow_up = if row.queue.is_some() { FOLLOW_UP_MS } else { 0 };
        let new = tx.prepare_cached(sql::PUBLISHES_INSERT)?.execute(params![
            id.as_u128().to_be_bytes(),
            row.org,
            row.dataset.as_u128().to_be_bytes(),
            row.digest,
            row.body,
            row.bytes,
            now.as_millis(),
            now.plus(follow_up).as_millis(),
        ])?;
        if let Some((transport, body)) = row.transport().zip(row.effect(*id)).filter(|_| new > 0) {
            announce(tx, id.outbox(), transport, &body, now)?;
        }
    }
    Ok(())
}

/// A message for an outside queue. The control plane that looks next sends it.
pub fn announce(tx: &Connection, id: i64, transport: &str, body: &str, now: Timestamp) -> Result<()> {
    let (kind, now) = (EffectKind::PublishBuffer.as_str(), now.as_millis());
    let none = None::<i64>;
    tx.prepare_cached(sql::OUTBOX_INSERT)?.execute(params![id, kind, transport, body, none, none, now, now]).map(drop)
}
