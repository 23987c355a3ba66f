//! Batches of rows for buffered datasets.

use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::{OptionalExtension, Row, params};
use tenure_core::dag::buffer::{Batch, NewPublish};
use tenure_core::dag::{DatasetId, PublishId};
use tenure_core::time::{DurationMs, Timestamp};

use super::dags::{save, write_data};
use super::{Sqlite, sql};
use crate::buffers::{BufferStore, PublishRow, PublishState, Settled};
use crate::dags::plan::DataWrites;
use crate::error::StoreError;
use crate::model::Page;
use crate::store::Lane;

type Result<T> = std::result::Result<T, StoreError>;

fn bits(row: &Row<'_>, column: usize) -> rusqlite::Result<u128> {
    row.get::<_, [u8; 16]>(column).map(u128::from_be_bytes)
}

fn publish(row: &Row<'_>) -> rusqlite::Result<PublishRow> {
    let (body, error): (String, Option<String>) = (row.get(5)?, row.get(10)?);
    let (done, dead): (Option<i64>, Option<i64>) = (row.get(8)?, row.get(9)?);
    Ok(PublishRow {
        number: row.get(0)?,
        id: PublishId::from_u128(bits(row, 1)?),
        org: row.get(2)?,
        dataset: DatasetId::from_u128(bits(row, 3)?),
        digest: row.get(4)?,
        batch: PublishRow::read_batch(&body),
        created_at: Timestamp::from_millis(row.get(6)?),
        receives: row.get(7)?,
        state: match (done, dead) {
            (_, Some(since)) => PublishState::Dead(Timestamp::from_millis(since)),
            (Some(_), None) => PublishState::Done,
            (None, None) => PublishState::Waiting,
        },
        error: error.and_then(|error| serde_json::from_str(&error).ok()),
    })
}

#[async_trait]
impl BufferStore for Sqlite {
    async fn publish(&self, org: &str, new: &[NewPublish]) -> Result<()> {
        let writes = DataWrites::publishing(org, new);
        self.transact(Lane::Work, "record batches", move |tx| write_data(tx, &writes)).await
    }

    async fn publishes(&self, ids: &[PublishId]) -> Result<Vec<PublishRow>> {
        let ids = ids.to_vec();
        self.read("look for batches", move |conn| {
            let mut statement = conn.prepare_cached(sql::PUBLISHES_GET)?;
            let found = ids.iter().map(|id| statement.query_row([id.as_u128().to_be_bytes()], publish).optional());
            Ok(found.collect::<rusqlite::Result<Vec<_>>>()?.into_iter().flatten().collect())
        })
        .await
    }

    async fn due_buffers(&self, limit: usize) -> Result<Vec<(Arc<str>, DatasetId)>> {
        let now = self.clock.read_process().now.as_millis();
        self.read("look for batches", move |conn| {
            let mut statement = conn.prepare_cached(sql::PUBLISHES_DUE)?;
            let dataset = |row: &Row<'_>| Ok((row.get(0)?, DatasetId::from_u128(bits(row, 1)?)));
            statement.query_map([now, limit as i64], dataset)?.collect()
        })
        .await
    }

    async fn take_publishes(&self, dataset: DatasetId, limit: usize, hold_ms: DurationMs) -> Result<Vec<PublishRow>> {
        let now = self.clock.read_process().now;
        self.write("take batches", move |tx| {
            let mut statement = tx.prepare_cached(sql::PUBLISHES_TAKE)?;
            let until = now.plus(hold_ms).as_millis();
            let params = params![dataset.as_u128().to_be_bytes(), now.as_millis(), limit as i64, until];
            let mut taken = statement.query_map(params, publish)?.collect::<rusqlite::Result<Vec<_>>>()?;
            taken.sort_unstable_by_key(|row| row.number);
            Ok(taken)
        })
        .await
    }

    async fn settle_publishes(&self, settled: &[(PublishId, Settled)]) -> Result<()> {
        let (now, settled) = (self.clock.read_process().now, settled.to_vec());
        self.write("settle batches", move |tx| {
            for (id, settled) in &settled {
                let columns = settled.columns(now);
                let params = params![
                    id.as_u128().to_be_bytes(),
                    columns.due_at.map(Timestamp::as_millis),
                    columns.done_at.map(Timestamp::as_millis),
                    columns.dead_at.map(Timestamp::as_millis),
                    columns.not_received,
                    columns.error,
                ];
                let waited = tx.prepare_cached(sql::PUBLISHES_SETTLE)?.execute(params)?;
                if let Some((transport, body)) = columns.transport.zip(settled.effect(*id)).filter(|_| waited > 0) {
                    save::announce(tx, settled.outbox(*id), transport, &body, now)?;
                }
            }
            Ok(())
        })
        .await
    }

    async fn wake_publishes(&self, ids: &[PublishId]) -> Result<()> {
        let (now, ids) = (self.clock.read_process().now.as_millis(), ids.to_vec());
        self.write("wake batches", move |tx| {
            let mut statement = tx.prepare_cached(sql::PUBLISHES_WAKE)?;
            ids.iter().try_for_each(|id| statement.execute(params![id.as_u128().to_be_bytes(), now]).map(drop))
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
        let org = org.to_owned();
        self.read("list dead letters of a dataset", move |conn| {
            let mut statement = conn.prepare_cached(sql::PUBLISHES_DEAD)?;
            let params = params![org, dataset.as_u128().to_be_bytes(), after, limit as i64 + 1];
            let items = statement.query_map(params, publish)?.collect::<rusqlite::Result<Vec<_>>>()?;
            Ok(PublishRow::page(items, limit))
        })
        .await
    }

    async fn open_publishes(&self, after: i64, limit: usize) -> Result<Page<PublishRow>> {
        self.read("list open batches", move |conn| {
            let mut statement = conn.prepare_cached(sql::PUBLISHES_OPEN)?;
            let items =
                statement.query_map([after, limit as i64 + 1], publish)?.collect::<rusqlite::Result<Vec<_>>>()?;
            Ok(PublishRow::page(items, limit))
        })
        .await
    }

    async fn replay_publishes(&self, org: &str, dataset: DatasetId, ids: Option<&[PublishId]>) -> Result<u64> {
        let (now, org, ids) = (self.clock.read_process().now.as_millis(), org.to_owned(), ids.map(<[_]>::to_vec));
        self.write("replay dead letters", move |tx| {
            let mut statement = tx.prepare_cached(sql::PUBLISHES_REPLAY)?;
            let dataset = dataset.as_u128().to_be_bytes();
            let mut replay = |id: Option<[u8; 16]>| statement.execute(params![org, dataset, now, id]);
            let replayed = match &ids {
                None => replay(None)?,
                Some(ids) => {
                    let each = ids.iter().map(|id| replay(Some(id.as_u128().to_be_bytes())));
                    each.sum::<rusqlite::Result<usize>>()?
                }
            };
            Ok(replayed as u64)
        })
        .await
    }

    async fn buffered_bytes(&self, org: &str) -> Result<i64> {
        let org = org.to_owned();
        self.read("count waiting batches", move |conn| {
            conn.prepare_cached(sql::PUBLISHES_BUFFERED)?.query_row([org], |row| row.get(0))
        })
        .await
    }

    async fn prune_publishes(
        &self,
        done_before: Timestamp,
        dead_before: Timestamp,
        limit: usize,
    ) -> Result<Vec<Option<Batch>>> {
        let params = [done_before.as_millis(), dead_before.as_millis(), limit as i64];
        self.write("forget batches", move |tx| {
            let mut statement = tx.prepare_cached(sql::PUBLISHES_PRUNE)?;
            let bodies = statement.query_map(params, |row| row.get::<_, String>(0))?;
            bodies.map(|body| Ok(PublishRow::read_batch(&body?))).collect()
        })
        .await
    }
}
