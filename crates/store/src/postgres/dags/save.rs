//! Writes what reports say about datasets.

#![allow(unused_variables, reason = "each column is made of a part of the row")]

use tenure_core::time::Timestamp;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::super::columns::Columns;
use super::super::rows::Time;
use super::super::sql;
use super::uuid;
use crate::buffers::FOLLOW_UP_MS;
use crate::dags::plan::{DataWrites, InvalidationWrite, Producer};

/// Name of the step, statement, parameters.
type Step<'a> = (&'static str, &'static str, Columns<'a>);

/// One array per column, and one value for all rows at the end.
macro_rules! columns {
    ($rows:expr, $row:pat => $($value:expr),+ ; $($last:expr),*) => {
        vec![
            $(Box::new($rows.iter().map(|$row| $value).collect::<Vec<_>>()) as Box<dyn ToSql + Sync + Send + '_>,)+
            $(Box::new($last),)*
        ]
    };
}

/// The statements, in the order in which they are sent.
pub fn steps(writes: &DataWrites, now: Timestamp) -> Vec<Step<'_>> {
    let now = Time(now);
    let mut steps: Vec<Step<'_>> = Vec::new();
    let versions: Vec<Uuid> = writes.versions().into_iter().map(|version| uuid(version.as_u128())).collect();
    if !versions.is_empty() {
        steps.push(("hold generations", sql::GENERATIONS_LOCK, vec![Box::new(versions)]));
    }
    for row in &writes.invalidations {
        invalidate(row, now, &mut steps);
    }
    if !writes.produced.is_empty() {
        let columns = columns!(writes.produced, (version, cursor) => uuid(version.as_u128()), *cursor ;);
        steps.push(("write produced cursors", sql::GENERATIONS_ADVANCE, columns));
    }
    if !writes.partitions.is_empty() {
        steps.push(("write outputs", sql::PARTITIONS_COMMIT, partitions(writes, now)));
    }
    if !writes.artifacts.is_empty() {
        let columns = columns!(writes.artifacts, ((dataset, artifact), (version, digest)) =>
            uuid(dataset.as_u128()), uuid(artifact.as_u128()), uuid(version.as_u128()), digest.as_slice() ;);
        steps.push(("write artifacts", sql::ARTIFACTS_INSERT, columns));
    }
    if !writes.events.is_empty() {
        steps.push(("write data events", sql::DATA_EVENTS_INSERT, events(writes, now)));
    }
    if !writes.edge_cursors.is_empty() {
        let columns = columns!(writes.edge_cursors, ((job, version), cursor) =>
            job.0, uuid(version.as_u128()), *cursor ;);
        steps.push(("write cursors", sql::EDGE_CURSORS_ADVANCE, columns));
    }
    if !writes.edge_partitions.is_empty() {
        let columns = columns!(writes.edge_partitions, ((job, version, key), generation) =>
            job.0, uuid(version.as_u128()), &**key, *generation ;);
        steps.push(("write what was read", sql::EDGE_PARTITIONS_ADVANCE, columns));
    }
    if !writes.done.is_empty() {
        let columns = columns!(writes.done, (id, job) => uuid(id.as_u128()), job.0 ; now);
        steps.push(("write dependents", sql::DEPENDENTS_DONE, columns));
    }
    if !writes.operator_states.is_empty() {
        let columns = columns!(writes.operator_states, (job, state) => job.0, &**state ; now);
        steps.push(("write operator state", sql::OPERATOR_STATE_PUT, columns));
    }
    if !writes.publishes.is_empty() {
        steps.push(("write batches", sql::PUBLISHES_INSERT, publishes(writes, now)));
    }
    steps
}

fn invalidate<'a>(row: &'a InvalidationWrite, now: Time, steps: &mut Vec<Step<'a>>) {
    let id = uuid(row.new.id.as_u128());
    let columns: Columns<'a> = vec![
        Box::new(id),
        Box::new(&*row.org),
        Box::new(uuid(row.new.dataset.as_u128())),
        Box::new(uuid(row.new.version.as_u128())),
        Box::new(row.partition_key()),
        Box::new(row.row_filter()),
        Box::new(&*row.reason),
        Box::new(now),
    ];
    steps.push(("write an invalidation", sql::INVALIDATION_INSERT, columns));
    let apply: &[&str] = match row.partition_key() {
        Some(_) => &[sql::INVALIDATION_BUMP_PARTITION],
        None => &[sql::INVALIDATION_BUMP_PARTITIONS, sql::INVALIDATION_BUMP_VERSION],
    };
    for statement in apply.iter().chain(&[sql::INVALIDATION_SETTLE]) {
        steps.push(("apply an invalidation", statement, vec![Box::new(id)]));
    }
}

fn task(producer: Producer) -> Option<Uuid> {
    producer.map(|(task, _)| uuid(task.as_u128()))
}

fn attempt(producer: Producer) -> Option<i32> {
    producer.map(|(_, attempt)| attempt.cast_signed())
}

fn partitions(writes: &DataWrites, now: Time) -> Columns<'_> {
    columns!(writes.partitions, ((version, key), row) =>
        uuid(version.as_u128()),
        &**key,
        row.ends.map(|ends| ends.0),
        row.ends.map(|ends| ends.1),
        &*row.location,
        row.row_count,
        row.bytes,
        row.schema_hash.as_deref(),
        row.manifest.as_deref(),
        row.artifact.map(|artifact| uuid(artifact.as_u128())),
        task(row.producer),
        attempt(row.producer),
        row.made_from.as_ref().map(|from| from.job.0),
        row.made_from.as_ref().map(|from| uuid(from.version.as_u128())),
        row.made_from.as_ref().map(|from| &*from.key),
        row.made_from.as_ref().map(|from| from.generation) ;
        now
    )
}

fn events(writes: &DataWrites, now: Time) -> Columns<'_> {
    columns!(writes.events, ((version, position), row) =>
        &*row.org,
        uuid(row.dataset.as_u128()),
        uuid(version.as_u128()),
        &**position,
        row.cursor(),
        row.key(),
        row.ends().map(|ends| ends.0),
        row.ends().map(|ends| ends.1),
        task(row.producer),
        attempt(row.producer) ;
        now
    )
}

fn publishes(writes: &DataWrites, now: Time) -> Columns<'_> {
    columns!(writes.publishes, (id, row) =>
        uuid(id.as_u128()),
        &*row.org,
        uuid(row.dataset.as_u128()),
        &*row.digest,
        &*row.body,
        row.bytes,
        row.transport(),
        row.effect(*id),
        id.outbox() ;
        now,
        Time(now.0.plus(FOLLOW_UP_MS))
    )
}
