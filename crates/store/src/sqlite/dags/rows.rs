//! Rows about DAGs and datasets as the core's types.

use rusqlite::Row;
use tenure_core::TaskId;
use tenure_core::dag::data::{Partition, Position, Scope};
use tenure_core::dag::{DagVersionId, DatasetId, InvalidationId, JobId, VersionId};
use tenure_core::time::Timestamp;

use crate::dags::{DagVersionRow, DataEvent, GenerationRow, InvalidationRow, JobRow, PartitionRow, Unread};

type Result<T> = rusqlite::Result<T>;

fn bits(row: &Row<'_>, column: usize) -> Result<u128> {
    row.get::<_, [u8; 16]>(column).map(u128::from_be_bytes)
}

fn bits_if(row: &Row<'_>, column: usize) -> Result<Option<u128>> {
    Ok(row.get::<_, Option<[u8; 16]>>(column)?.map(u128::from_be_bytes))
}

fn time(row: &Row<'_>, column: usize) -> Result<Timestamp> {
    row.get(column).map(Timestamp::from_millis)
}

pub fn version_id(row: &Row<'_>, column: usize) -> Result<VersionId> {
    bits(row, column).map(VersionId::from_u128)
}

fn ends(row: &Row<'_>, first: usize) -> Result<Option<(i64, i64)>> {
    let (start, end): (Option<i64>, Option<i64>) = (row.get(first)?, row.get(first + 1)?);
    Ok(start.zip(end))
}

fn producer(row: &Row<'_>, first: usize) -> Result<Option<(TaskId, u32)>> {
    let (task, attempt): (_, Option<u32>) = (bits_if(row, first)?, row.get(first + 1)?);
    Ok(task.map(TaskId::from_u128).zip(attempt))
}

pub fn dag_version(row: &Row<'_>) -> Result<DagVersionRow> {
    Ok(DagVersionRow {
        id: DagVersionId::from_u128(bits(row, 0)?),
        dag: row.get(1)?,
        number: row.get(2)?,
        yaml: row.get(3)?,
        created_at: time(row, 4)?,
    })
}

pub fn job(row: &Row<'_>) -> Result<JobRow> {
    Ok(JobRow {
        id: JobId(row.get(0)?),
        org: row.get(1)?,
        dag: row.get(2)?,
        name: row.get(3)?,
        definition: row.get(4)?,
        queue: row.get(5)?,
    })
}

pub fn event(row: &Row<'_>) -> Result<DataEvent> {
    let position = match row.get(5)? {
        Some(key) => Position::Partition(Partition { key, ends: ends(row, 6)? }),
        None => Position::Cursor(row.get(4)?),
    };
    Ok(DataEvent {
        id: row.get(0)?,
        org: row.get(1)?,
        dataset: DatasetId::from_u128(bits(row, 2)?),
        version: version_id(row, 3)?,
        position,
        generation: row.get(8)?,
        producer: producer(row, 9)?,
        recorded_at: time(row, 11)?,
        unrouted: row.get(12)?,
    })
}

pub fn partition(row: &Row<'_>) -> Result<PartitionRow> {
    Ok(PartitionRow {
        version: version_id(row, 0)?,
        key: row.get(1)?,
        ends: ends(row, 2)?,
        generation: row.get(4)?,
        location: row.get(5)?,
        row_count: row.get(6)?,
        bytes: row.get(7)?,
        schema_hash: row.get(8)?,
        manifest: row.get(9)?,
        artifact: bits_if(row, 10)?.map(VersionId::from_u128),
        materialized_at: row.get::<_, Option<i64>>(11)?.map(Timestamp::from_millis),
        producer: producer(row, 12)?,
    })
}

pub fn unread(row: &Row<'_>) -> Result<Unread> {
    Ok(Unread { key: row.get(0)?, ends: ends(row, 1)?, generation: row.get(3)? })
}

pub fn generation(row: &Row<'_>) -> Result<GenerationRow> {
    Ok(GenerationRow {
        version: version_id(row, 0)?,
        dataset: DatasetId::from_u128(bits(row, 1)?),
        generation: row.get(2)?,
        cursor: row.get(3)?,
        created_at: time(row, 4)?,
    })
}

pub fn invalidation(row: &Row<'_>) -> Result<InvalidationRow> {
    let scope = match row.get(4)? {
        Some(partition_key) => Scope::Partition { partition_key },
        None => Scope::RowRange { row_filter: row.get(5)? },
    };
    Ok(InvalidationRow {
        id: InvalidationId::from_u128(bits(row, 0)?),
        org: row.get(1)?,
        dataset: DatasetId::from_u128(bits(row, 2)?),
        version: version_id(row, 3)?,
        scope,
        reason: row.get(6)?,
        generation: row.get(7)?,
        created_at: time(row, 8)?,
        dependents: row.get(9)?,
        done: row.get(10)?,
    })
}
