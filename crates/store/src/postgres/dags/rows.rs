//! Rows about DAGs and datasets as the core's types.

use tenure_core::TaskId;
use tenure_core::dag::data::{Partition, Position, Scope};
use tenure_core::dag::{DagVersionId, DatasetId, InvalidationId, JobId, VersionId};
use tokio_postgres::Row;
use uuid::Uuid;

use super::super::rows::{Result, text, text_if, time, time_if};
use crate::dags::{DagVersionRow, DataEvent, GenerationRow, InvalidationRow, JobRow, PartitionRow, Unread};

fn bits(row: &Row, column: usize) -> Result<u128> {
    row.try_get::<_, Uuid>(column).map(|uuid| uuid.as_u128())
}

fn bits_if(row: &Row, column: usize) -> Result<Option<u128>> {
    Ok(row.try_get::<_, Option<Uuid>>(column)?.map(|uuid| uuid.as_u128()))
}

pub fn version_id(row: &Row, column: usize) -> Result<VersionId> {
    bits(row, column).map(VersionId::from_u128)
}

fn ends(row: &Row, first: usize) -> Result<Option<(i64, i64)>> {
    let (start, end): (Option<i64>, Option<i64>) = (row.try_get(first)?, row.try_get(first + 1)?);
    Ok(start.zip(end))
}

fn producer(row: &Row, first: usize) -> Result<Option<(TaskId, u32)>> {
    let (task, attempt): (_, Option<i32>) = (bits_if(row, first)?, row.try_get(first + 1)?);
    Ok(task.map(TaskId::from_u128).zip(attempt.map(i32::unsigned_abs)))
}

pub fn dag_version(row: &Row) -> Result<DagVersionRow> {
    Ok(DagVersionRow {
        id: DagVersionId::from_u128(bits(row, 0)?),
        dag: text(row, 1)?,
        number: row.try_get(2)?,
        yaml: text(row, 3)?,
        created_at: time(row, 4)?,
    })
}

pub fn job(row: &Row) -> Result<JobRow> {
    Ok(JobRow {
        id: JobId(row.try_get(0)?),
        org: text(row, 1)?,
        dag: text(row, 2)?,
        name: text(row, 3)?,
        definition: text(row, 4)?,
        queue: text(row, 5)?,
    })
}

pub fn event(row: &Row) -> Result<DataEvent> {
    event_at(row, 0)
}

/// An event and its place in the question, counted from 1.
pub fn recorded(row: &Row) -> Result<(i64, DataEvent)> {
    Ok((row.try_get(0)?, event_at(row, 1)?))
}

fn event_at(row: &Row, first: usize) -> Result<DataEvent> {
    let position = match text_if(row, first + 5)? {
        Some(key) => Position::Partition(Partition { key, ends: ends(row, first + 6)? }),
        None => Position::Cursor(row.try_get(first + 4)?),
    };
    Ok(DataEvent {
        id: row.try_get(first)?,
        org: text(row, first + 1)?,
        dataset: DatasetId::from_u128(bits(row, first + 2)?),
        version: version_id(row, first + 3)?,
        position,
        generation: row.try_get(first + 8)?,
        producer: producer(row, first + 9)?,
        recorded_at: time(row, first + 11)?,
        unrouted: text_if(row, first + 12)?,
    })
}

pub fn partition(row: &Row) -> Result<PartitionRow> {
    Ok(PartitionRow {
        version: version_id(row, 0)?,
        key: text(row, 1)?,
        ends: ends(row, 2)?,
        generation: row.try_get(4)?,
        location: text_if(row, 5)?,
        row_count: row.try_get(6)?,
        bytes: row.try_get(7)?,
        schema_hash: text_if(row, 8)?,
        manifest: text_if(row, 9)?,
        artifact: bits_if(row, 10)?.map(VersionId::from_u128),
        materialized_at: time_if(row, 11)?,
        producer: producer(row, 12)?,
    })
}

pub fn unread(row: &Row) -> Result<Unread> {
    Ok(Unread { key: text(row, 0)?, ends: ends(row, 1)?, generation: row.try_get(3)? })
}

pub fn generation(row: &Row) -> Result<GenerationRow> {
    Ok(GenerationRow {
        version: version_id(row, 0)?,
        dataset: DatasetId::from_u128(bits(row, 1)?),
        generation: row.try_get(2)?,
        cursor: row.try_get(3)?,
        created_at: time(row, 4)?,
    })
}

pub fn invalidation(row: &Row) -> Result<InvalidationRow> {
    let scope = match text_if(row, 4)? {
        Some(partition_key) => Scope::Partition { partition_key },
        None => Scope::RowRange { row_filter: text(row, 5)? },
    };
    Ok(InvalidationRow {
        id: InvalidationId::from_u128(bits(row, 0)?),
        org: text(row, 1)?,
        dataset: DatasetId::from_u128(bits(row, 2)?),
        version: version_id(row, 3)?,
        scope,
        reason: text(row, 6)?,
        generation: row.try_get(7)?,
        created_at: time(row, 8)?,
        dependents: row.try_get(9)?,
        done: row.try_get(10)?,
    })
}
