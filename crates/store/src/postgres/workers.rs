//! Records of workers.

use async_trait::async_trait;
use tenure_core::command::Reach;
use tenure_core::{TaskId, WorkerId};
use tokio_postgres::Row;
use uuid::Uuid;

use super::load::query;
use super::rows::{self, Time, text, text_if, time};
use super::{Postgres, sql};
use crate::error::StoreError;
use crate::model::Page;
use crate::workers::{HeldTask, Sighting, Texts, WORKER_RECORDS_MAX, WorkerRecord, WorkerStore, from_text};

type Result<T> = std::result::Result<T, StoreError>;

fn record(row: &Row) -> rows::Result<WorkerRecord> {
    Ok(WorkerRecord {
        worker: text(row, 0)?,
        contracts: from_text(row.try_get(1)?),
        queues: from_text(row.try_get(2)?),
        details: from_text(row.try_get(3)?),
        first_seen_at: time(row, 4)?,
        seen_at: time(row, 5)?,
        drained_at: row.try_get::<_, Option<Time>>(6)?.map(|at| at.0),
        drain_reason: text_if(row, 7)?,
        held: row.try_get::<_, i64>(8)?.unsigned_abs(),
    })
}

fn held(row: &Row) -> rows::Result<HeldTask> {
    Ok(HeldTask {
        task: TaskId::from_u128(row.try_get::<_, Uuid>(0)?.as_u128()),
        queue: text(row, 1)?,
        operator: text(row, 2)?,
        attempt: row.try_get::<_, i32>(3)?.unsigned_abs(),
        granted_at: time(row, 4)?,
        last_heartbeat_at: row.try_get::<_, Option<Time>>(5)?.map(|at| at.0),
        expires_at: time(row, 6)?,
    })
}

#[async_trait]
impl WorkerStore for Postgres {
    async fn note_workers(&self, seen: &[Sighting]) -> Result<()> {
        self.outbox_write("note workers", async |conn, now| {
            let ids: Vec<&str> = seen.iter().map(|sighting| &*sighting.worker).collect();
            let texts: Vec<Texts> = seen.iter().map(Texts::of).collect();
            let contracts: Vec<&str> = texts.iter().map(|texts| texts.contracts.as_str()).collect();
            let queues: Vec<&str> = texts.iter().map(|texts| texts.queues.as_str()).collect();
            let details: Vec<&str> = texts.iter().map(|texts| texts.details.as_str()).collect();
            let at: Vec<Time> = seen.iter().map(|sighting| Time(now.plus(-sighting.ago_ms))).collect();
            query(conn, sql::WORKER_RECORD_PUT, &[&ids, &contracts, &queues, &details, &at]).await?;
            query(conn, sql::WORKER_RECORDS_TRIM, &[&(WORKER_RECORDS_MAX as i64)]).await.map(drop)
        })
        .await
    }

    async fn worker_records(&self, after: &str, limit: usize) -> Result<Page<WorkerRecord>> {
        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 2] = [&after, &(limit as i64 + 1)];
        let found = self.list("list workers", sql::WORKER_RECORDS_LIST, &params, record).await?;
        Ok(Page::of_names(found, limit, |record| record.worker.to_string()))
    }

    async fn worker_record(&self, worker: &str) -> Result<Option<WorkerRecord>> {
        let found = self.list("read a worker", sql::WORKER_RECORD_GET, &[&worker], record).await?;
        Ok(found.into_iter().next())
    }

    async fn held_tasks(&self, worker: &str, reach: &Reach, limit: usize) -> Result<Vec<HeldTask>> {
        let (tenant, owner, limit) = (reach.tenant(), reach.owner(), limit as i64);
        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 4] = [&worker, &tenant, &owner, &limit];
        self.list("list what a worker holds", sql::WORKER_RECORD_HELD, &params, held).await
    }

    async fn drain_worker(&self, worker: &str, drain: bool, reason: Option<&str>) -> Result<bool> {
        self.outbox_write("drain a worker", async |conn, now| {
            let reason = reason.filter(|_| drain);
            let changed = query(conn, sql::WORKER_RECORD_DRAIN, &[&worker, &drain, &Time(now), &reason]).await?;
            Ok(!changed.is_empty())
        })
        .await
    }

    async fn drained_workers(&self) -> Result<Vec<WorkerId>> {
        self.list("list drained workers", sql::WORKER_RECORDS_DRAINED, &[], |row| text(row, 0)).await
    }
}
