//! Batches of rows for buffered datasets.

use std::sync::Arc;

use async_trait::async_trait;
use tenure_core::dag::buffer::{Batch, NewPublish};
use tenure_core::dag::{DatasetId, PublishId};
use tenure_core::time::{DurationMs, Timestamp};
use tokio_postgres::Row;
use uuid::Uuid;

use super::load::query;
use super::rows::{self, Time, text, time, time_if};
use super::{Postgres, sql};
use crate::buffers::{BufferStore, PublishRow, PublishState, Settled, SettledColumns};
use crate::dags::plan::DataWrites;
use crate::error::StoreError;
use crate::model::Page;

type Result<T> = std::result::Result<T, StoreError>;

fn uuids(ids: &[PublishId]) -> Vec<Uuid> {
    ids.iter().map(|id| Uuid::from_u128(id.as_u128())).collect()
}

fn bits(row: &Row, column: usize) -> rows::Result<u128> {
    row.try_get::<_, Uuid>(column).map(|uuid| uuid.as_u128())
}

fn publish(row: &Row) -> rows::Result<PublishRow> {
    let error: Option<&str> = row.try_get(10)?;
    Ok(PublishRow {
        number: row.try_get(0)?,
        id: PublishId::from_u128(bits(row, 1)?),
        org: text(row, 2)?,
        dataset: DatasetId::from_u128(bits(row, 3)?),
        digest: text(row, 4)?,
        batch: PublishRow::read_batch(row.try_get(5)?),
        created_at: time(row, 6)?,
        receives: row.try_get::<_, i32>(7)?.unsigned_abs(),
        state: match (time_if(row, 8)?, time_if(row, 9)?) {
            (_, Some(since)) => PublishState::Dead(since),
            (Some(_), None) => PublishState::Done,
            (None, None) => PublishState::Waiting,
        },
        error: error.and_then(|error| serde_json::from_str(error).ok()),
    })
}

#[async_trait]
impl BufferStore for Postgres {
    async fn publish(&self, org: &str, new: &[NewPublish]) -> Result<()> {
        self.write_data("record batches", &DataWrites::publishing(org, new), None).await.map(drop)
    }

    async fn publishes(&self, ids: &[PublishId]) -> Result<Vec<PublishRow>> {
        self.list("look for batches", sql::PUBLISHES_GET, &[&uuids(ids)], publish).await
    }

    async fn due_buffers(&self, limit: usize) -> Result<Vec<(Arc<str>, DatasetId)>> {
        self.outbox_read("look for batches", async |conn, now| {
            let found = query(conn, sql::PUBLISHES_DUE, &[&Time(now), &(limit as i64)]).await?;
            found.iter().map(|row| Ok((text(row, 0)?, DatasetId::from_u128(bits(row, 1)?)))).collect()
        })
        .await
    }

    async fn take_publishes(&self, dataset: DatasetId, limit: usize, hold_ms: DurationMs) -> Result<Vec<PublishRow>> {
        self.outbox_write("take batches", async |conn, now| {
            let (dataset, until) = (Uuid::from_u128(dataset.as_u128()), Time(now.plus(hold_ms)));
            let found = query(conn, sql::PUBLISHES_TAKE, &[&dataset, &Time(now), &(limit as i64), &until]).await?;
            let mut taken = found.iter().map(publish).collect::<rows::Result<Vec<_>>>()?;
            taken.sort_unstable_by_key(|row| row.number);
            Ok(taken)
        })
        .await
    }

    async fn settle_publishes(&self, settled: &[(PublishId, Settled)]) -> Result<()> {
        self.outbox_write("settle batches", async |conn, now| {
            let ids: Vec<Uuid> = settled.iter().map(|(id, _)| Uuid::from_u128(id.as_u128())).collect();
            let outbox: Vec<i64> = settled.iter().map(|(id, settled)| settled.outbox(*id)).collect();
            let columns: Vec<SettledColumns> = settled.iter().map(|(_, settled)| settled.columns(now)).collect();
            let times = |of: fn(&SettledColumns) -> Option<Timestamp>| -> Vec<Option<Time>> {
                columns.iter().map(|row| of(row).map(Time)).collect()
            };
            let (due, done, dead) = (times(|row| row.due_at), times(|row| row.done_at), times(|row| row.dead_at));
            let not_received: Vec<i32> = columns.iter().map(|row| row.not_received.into()).collect();
            let errors: Vec<Option<&str>> = columns.iter().map(|row| row.error.as_deref()).collect();
            let transports: Vec<Option<&str>> = columns.iter().map(|row| row.transport).collect();
            let effects: Vec<Option<String>> = settled.iter().map(|(id, settled)| settled.effect(*id)).collect();
            let now = Time(now);
            query(
                conn,
                sql::PUBLISHES_SETTLE,
                &[&ids, &due, &done, &dead, &not_received, &errors, &transports, &effects, &outbox, &now],
            )
            .await
            .map(drop)
        })
        .await
    }

    async fn wake_publishes(&self, ids: &[PublishId]) -> Result<()> {
        self.outbox_write("wake batches", async |conn, now| {
            query(conn, sql::PUBLISHES_WAKE, &[&uuids(ids), &Time(now)]).await.map(drop)
        })
        .await
    }

    async fn dead_publishes(
        &self,
        org: &str,
        dataset: DatasetId,
        after: i64,
        limit: usize,
    ) -> Result<Page<PublishRow>> {
        let (dataset, most) = (Uuid::from_u128(dataset.as_u128()), limit as i64 + 1);
        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 4] = [&org, &dataset, &after, &most];
        let items = self.list("list dead letters of a dataset", sql::PUBLISHES_DEAD, &params, publish).await?;
        Ok(PublishRow::page(items, limit))
    }

    async fn open_publishes(&self, after: i64, limit: usize) -> Result<Page<PublishRow>> {
        let most = limit as i64 + 1;
        let items = self.list("list open batches", sql::PUBLISHES_OPEN, &[&after, &most], publish).await?;
        Ok(PublishRow::page(items, limit))
    }

    async fn replay_publishes(&self, org: &str, dataset: DatasetId, ids: Option<&[PublishId]>) -> Result<u64> {
        self.outbox_write("replay dead letters", async |conn, now| {
            let (dataset, ids) = (Uuid::from_u128(dataset.as_u128()), ids.map(uuids));
            let found = query(conn, sql::PUBLISHES_REPLAY, &[&org, &dataset, &Time(now), &ids]).await?;
            Ok(found.len() as u64)
        })
        .await
    }

    async fn buffered_bytes(&self, org: &str) -> Result<i64> {
        let found = self.list("count waiting batches", sql::PUBLISHES_BUFFERED, &[&org], |row| row.try_get(0)).await?;
        Ok(found.into_iter().next().unwrap_or(0))
    }

    async fn prune_publishes(
        &self,
        done_before: Timestamp,
        dead_before: Timestamp,
        limit: usize,
    ) -> Result<Vec<Option<Batch>>> {
        self.outbox_write("forget batches", async |conn, _| {
            let params: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
                [&Time(done_before), &Time(dead_before), &(limit as i64)];
            let bodies = query(conn, sql::PUBLISHES_PRUNE, &params).await?;
            Ok(bodies.iter().map(|row| PublishRow::read_batch(row.get(0))).collect())
        })
        .await
    }
}
