//! Records of workers.

use async_trait::async_trait;
use rusqlite::{OptionalExtension, Row, params};
use tenure_core::command::Reach;
use tenure_core::time::Timestamp;
use tenure_core::{TaskId, WorkerId};

use super::{Sqlite, sql};
use crate::error::StoreError;
use crate::model::Page;
use crate::workers::{HeldTask, Sighting, Texts, WORKER_RECORDS_MAX, WorkerRecord, WorkerStore, from_text};

type Result<T> = std::result::Result<T, StoreError>;

fn record(row: &Row<'_>) -> rusqlite::Result<WorkerRecord> {
    let text = |column| row.get::<_, String>(column);
    Ok(WorkerRecord {
        worker: row.get(0)?,
        contracts: from_text(&text(1)?),
        queues: from_text(&text(2)?),
        details: from_text(&text(3)?),
        first_seen_at: Timestamp::from_millis(row.get(4)?),
        seen_at: Timestamp::from_millis(row.get(5)?),
        drained_at: row.get::<_, Option<i64>>(6)?.map(Timestamp::from_millis),
        drain_reason: row.get(7)?,
        held: row.get::<_, i64>(8)?.unsigned_abs(),
    })
}

fn held(row: &Row<'_>) -> rusqlite::Result<HeldTask> {
    Ok(HeldTask {
        task: TaskId::from_u128(u128::from_be_bytes(row.get(0)?)),
        queue: row.get(1)?,
        operator: row.get(2)?,
        attempt: row.get(3)?,
        granted_at: Timestamp::from_millis(row.get(4)?),
        last_heartbeat_at: row.get::<_, Option<i64>>(5)?.map(Timestamp::from_millis),
        expires_at: Timestamp::from_millis(row.get(6)?),
    })
}

#[async_trait]
impl WorkerStore for Sqlite {
    async fn note_workers(&self, seen: &[Sighting]) -> Result<()> {
        let (now, seen) = (self.clock.read_process().now, seen.to_vec());
        self.write("note workers", move |tx| {
            let mut put = tx.prepare_cached(sql::WORKER_RECORD_PUT)?;
            for sighting in &seen {
                let Texts { contracts, queues, details } = Texts::of(sighting);
                let at = now.plus(-sighting.ago_ms).as_millis();
                put.execute(params![&*sighting.worker, contracts, queues, details, at])?;
            }
            tx.prepare_cached(sql::WORKER_RECORDS_TRIM)?.execute([WORKER_RECORDS_MAX as i64]).map(drop)
        })
        .await
    }

    async fn worker_records(&self, after: &str, limit: usize) -> Result<Page<WorkerRecord>> {
        let after = after.to_owned();
        let found = self.read("list workers", move |conn| {
            let mut statement = conn.prepare_cached(sql::WORKER_RECORDS_LIST)?;
            statement.query_map(params![after, limit as i64 + 1], record)?.collect::<rusqlite::Result<Vec<_>>>()
        });
        Ok(Page::of_names(found.await?, limit, |record| record.worker.to_string()))
    }

    async fn worker_record(&self, worker: &str) -> Result<Option<WorkerRecord>> {
        let worker = worker.to_owned();
        self.read("read a worker", move |conn| {
            conn.prepare_cached(sql::WORKER_RECORD_GET)?.query_row([worker], record).optional()
        })
        .await
    }

    async fn held_tasks(&self, worker: &str, reach: &Reach, limit: usize) -> Result<Vec<HeldTask>> {
        let (worker, reach) = (worker.to_owned(), reach.clone());
        self.read("list what a worker holds", move |conn| {
            let mut statement = conn.prepare_cached(sql::WORKER_RECORD_HELD)?;
            let rows = statement.query_map(params![worker, reach.tenant(), reach.owner(), limit as i64], held)?;
            rows.collect()
        })
        .await
    }

    async fn drain_worker(&self, worker: &str, drain: bool, reason: Option<&str>) -> Result<bool> {
        let (worker, reason) = (worker.to_owned(), reason.filter(|_| drain).map(ToOwned::to_owned));
        let now = self.clock.read_process().now.as_millis();
        self.write("drain a worker", move |tx| {
            let changed = tx.prepare_cached(sql::WORKER_RECORD_DRAIN)?.execute(params![worker, drain, now, reason])?;
            Ok(changed > 0)
        })
        .await
    }

    async fn drained_workers(&self) -> Result<Vec<WorkerId>> {
        self.read("list drained workers", move |conn| {
            let mut statement = conn.prepare_cached(sql::WORKER_RECORDS_DRAINED)?;
            statement.query_map([], |row| row.get(0))?.collect()
        })
        .await
    }
}
