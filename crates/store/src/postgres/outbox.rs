//! Effects that leave the process.
//!
//! Rows are locked with `SKIP LOCKED`: a row that a batch holds is about to go, and waiting for it here could turn into
//! a ring.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use tenure_core::batch::RemovedWake;
use tenure_core::effect::{DueEffect, Effect, EffectKind, enqueued_task};
use tenure_core::queue::{QueueId, Transport};
use tenure_core::time::{DurationMs, Timestamp};
use tenure_core::{Seq, TaskId};
use tokio_postgres::Row;

use super::columns::Columns;
use super::conn::{Conn, failed};
use super::load::query;
use super::rows::{self, Time};
use super::{Postgres, sql};
use crate::codec;
use crate::error::StoreError;
use crate::model::Page;
use crate::outbox::{
    CheckedWake, ExternalQueue, Fed, LiveWake, MAKERS_OWN_MS, NextTry, OutboxFilter, OutboxLag, OutboxRetry,
    OutboxStore, OutboxView, PublishedWake, PutOff, WakeCounts,
};

type Result<T> = std::result::Result<T, StoreError>;

/// New rows of a batch.
pub fn columns(effects: &[Effect], now: Timestamp) -> Columns<'_> {
    let subject = |effect: &Effect| effect.action.subject();
    vec![
        Box::new(effects.iter().map(|effect| effect.id).collect::<Vec<_>>()),
        Box::new(effects.iter().map(|effect| effect.action.kind().as_str()).collect::<Vec<_>>()),
        Box::new(effects.iter().map(|effect| effect.action.key()).collect::<Vec<_>>()),
        Box::new(effects.iter().map(|effect| effect.action.body()).collect::<Vec<_>>()),
        Box::new(effects.iter().map(|effect| subject(effect).map(|(_, queue)| queue.0)).collect::<Vec<_>>()),
        Box::new(effects.iter().map(|effect| subject(effect).map(|(task, _)| task.seq().0)).collect::<Vec<_>>()),
        Box::new(effects.iter().map(|effect| Time(effect.due_at.plus(MAKERS_OWN_MS))).collect::<Vec<_>>()),
        Box::new(Time(now)),
    ]
}

pub fn removed(row: &Row) -> rows::Result<RemovedWake> {
    let (queue, transport) = (QueueId(row.try_get(1)?), rows::transport(row.try_get(2)?));
    Ok(RemovedWake { message: row.try_get(0)?, queue, transport, receipt: rows::text_if(row, 3)? })
}

pub fn receipt(row: &Row) -> rows::Result<(i64, Arc<str>)> {
    Ok((row.try_get(0)?, rows::text(row, 1)?))
}

fn task(row: &Row, column: usize) -> rows::Result<TaskId> {
    Ok(enqueued_task(row.try_get(column)?).unwrap_or(TaskId::from_u128(0)))
}

fn count(row: &Row, column: usize) -> rows::Result<u64> {
    Ok(u64::try_from(row.try_get::<_, i64>(column)?).unwrap_or(0))
}

fn due(row: &Row, kind: EffectKind) -> rows::Result<DueEffect> {
    Ok(DueEffect {
        id: row.try_get(0)?,
        kind,
        key: rows::text(row, 1)?,
        body: rows::text(row, 2)?,
        queue: rows::text_if(row, 3)?,
        tries: row.try_get::<_, i32>(4)?.unsigned_abs(),
    })
}

fn view(row: &Row) -> rows::Result<OutboxView> {
    Ok(OutboxView {
        message: row.try_get(0)?,
        kind: rows::text(row, 1)?,
        transport: rows::transport(row.try_get(2)?),
        queue: rows::text(row, 3)?,
        task: task(row, 4)?,
        created_at: rows::time(row, 5)?,
        due_at: rows::time_if(row, 6)?,
        tries: row.try_get::<_, i32>(7)?.unsigned_abs(),
        error: rows::text_if(row, 8)?,
        failed_at: rows::time_if(row, 9)?,
        published_at: rows::time_if(row, 10)?,
        receipt: rows::text_if(row, 11)?,
    })
}

impl Postgres {
    /// One statement on a connection that may write, and the time at which it ran.
    pub(super) async fn outbox_write<T>(
        &self,
        operation: &'static str,
        work: impl AsyncFnOnce(&Conn, Timestamp) -> rows::Result<T>,
    ) -> Result<T> {
        let conn = Conn::get(&self.work).await?;
        let now = self.reading(&conn).await?;
        self.faults.before(operation)?;
        let done = work(&conn, now).await.map_err(|error| failed(operation, error))?;
        conn.give_back();
        self.faults.after(operation)?;
        Ok(done)
    }

    pub(super) async fn outbox_read<T>(
        &self,
        operation: &'static str,
        work: impl AsyncFnOnce(&Conn, Timestamp) -> rows::Result<T>,
    ) -> Result<T> {
        let conn = Conn::get(&self.read).await?;
        let now = self.reading(&conn).await?;
        let done = work(&conn, now).await.map_err(|error| failed(operation, error))?;
        conn.give_back();
        Ok(done)
    }
}

#[async_trait]
impl OutboxStore for Postgres {
    async fn take_effects(
        &self,
        kind: EffectKind,
        key: &str,
        limit: usize,
        hold_ms: DurationMs,
    ) -> Result<Vec<DueEffect>> {
        self.outbox_write("take effects", async |conn, now| {
            let (limit, until) = (limit as i64, Time(now.plus(hold_ms)));
            let found = query(conn, sql::OUTBOX_TAKE, &[&Time(now), &kind.as_str(), &key, &limit, &until]).await?;
            let mut effects = found.iter().map(|row| due(row, kind)).collect::<rows::Result<Vec<_>>>()?;
            effects.sort_unstable_by_key(|effect| effect.id);
            Ok(effects)
        })
        .await
    }

    async fn effects_done(&self, ids: &[i64]) -> Result<()> {
        self.outbox_write("remove effects", async |conn, _| {
            query(conn, sql::OUTBOX_DONE, &[&ids]).await?;
            Ok(())
        })
        .await
    }

    async fn outbox_published(&self, published: &[(i64, Arc<str>)]) -> Result<Vec<i64>> {
        let (messages, receipts): (Vec<i64>, Vec<&str>) = published.iter().map(|(m, r)| (*m, &**r)).unzip();
        self.outbox_write("note wake-ups as published", async |conn, now| {
            let kept = query(conn, sql::OUTBOX_PUBLISHED, &[&messages, &receipts, &Time(now)]).await?;
            let kept = kept.iter().map(|row| row.try_get(0)).collect::<rows::Result<HashSet<i64>>>()?;
            Ok(messages.iter().copied().filter(|message| !kept.contains(message)).collect())
        })
        .await
    }

    async fn put_off_effects(&self, put_off: &[PutOff]) -> Result<()> {
        self.outbox_write("put effects off", async |conn, now| {
            let ids: Vec<i64> = put_off.iter().map(|row| row.id).collect();
            let due: Vec<Option<Time>> = put_off.iter().map(|row| row.next.due(now).map(Time)).collect();
            let failed: Vec<Option<Time>> =
                put_off.iter().map(|row| (row.next == NextTry::Never).then_some(Time(now))).collect();
            let tried: Vec<i32> = put_off.iter().map(|row| row.next.tried()).collect();
            let errors: Vec<&str> = put_off.iter().map(|row| &*row.error).collect();
            query(conn, sql::OUTBOX_PUT_OFF, &[&ids, &due, &failed, &tried, &errors]).await?;
            Ok(())
        })
        .await
    }

    async fn outbox(&self, filter: &OutboxFilter) -> Result<Page<OutboxView>> {
        let (after, state) = (filter.after.unwrap_or(i64::MIN), filter.state.map(|state| state.as_str()));
        self.outbox_read("list the outbox", async |conn, _| {
            let limit = filter.limit as i64 + 1;
            let found = query(conn, sql::OUTBOX_LIST, &[&after, &filter.queue, &state, &limit]).await?;
            let items = found.iter().map(view).collect::<rows::Result<Vec<_>>>()?;
            Ok(OutboxView::page(items, filter.limit))
        })
        .await
    }

    async fn retry_outbox(&self, which: &OutboxRetry) -> Result<u64> {
        let (messages, queue) = match which {
            OutboxRetry::These(messages) => (Some(messages), None),
            OutboxRetry::All { queue } => (None, queue.as_deref()),
        };
        self.outbox_write("retry wake-ups", async |conn, now| {
            Ok(query(conn, sql::OUTBOX_RETRY, &[&Time(now), &messages, &queue]).await?.len() as u64)
        })
        .await
    }

    async fn outbox_lag(&self, kind: EffectKind, key: &str) -> Result<OutboxLag> {
        self.outbox_read("measure the outbox", async |conn, now| {
            let row = &query(conn, sql::OUTBOX_LAG, &[&kind.as_str(), &key]).await?[0];
            let oldest_ms = rows::time_if(row, 2)?.map_or(0, |oldest| now.since(oldest).max(0));
            Ok(OutboxLag { waiting: count(row, 0)?, failed: count(row, 1)?, oldest_ms })
        })
        .await
    }

    async fn external_queues(&self) -> Result<Vec<ExternalQueue>> {
        self.outbox_read("list external queues", async |conn, _| {
            let found = query(conn, sql::OUTBOX_QUEUES, &[]).await?;
            let queues = found.iter().map(|row| {
                Ok(ExternalQueue {
                    id: QueueId(row.try_get(0)?),
                    name: rows::text(row, 1)?,
                    transport: rows::transport(row.try_get(2)?),
                    lease_ttl_ms: row.try_get(3)?,
                })
            });
            queues.collect()
        })
        .await
    }

    async fn outbox_counts(&self, transport: Transport) -> Result<Vec<WakeCounts>> {
        self.outbox_read("count wake-ups", async |conn, _| {
            let found = query(conn, sql::OUTBOX_COUNTS, &[&transport.as_str()]).await?;
            let counts = found.iter().map(|row| {
                let (id, name, lease_ttl_ms) = (QueueId(row.try_get(0)?), rows::text(row, 1)?, row.try_get(2)?);
                Ok(WakeCounts {
                    queue: ExternalQueue { id, name, transport, lease_ttl_ms },
                    current: row.try_get(3)?,
                    rows: count(row, 4)?,
                    published: count(row, 5)?,
                    ready: count(row, 6)?,
                    running: count(row, 7)?,
                    job: codec::decode_dispatch(row.try_get(8)?, id.0),
                })
            });
            counts.collect()
        })
        .await
    }

    async fn feed_outbox(&self, queue: QueueId, after: Seq, limit: usize) -> Result<Fed> {
        self.outbox_read("feed the outbox", async |conn, now| {
            let asked = limit as i64;
            let row = &query(conn, sql::OUTBOX_FEED, &[&Time(now), &queue.0, &after.0, &asked]).await?[0];
            let (last, looked): (Option<i64>, i64) = (row.try_get(1)?, row.try_get(2)?);
            Ok(Fed { fed: count(row, 0)?, next: last.filter(|_| looked == asked).map(Seq) })
        })
        .await
    }

    async fn check_outbox(
        &self,
        queue: QueueId,
        transport: Transport,
        after: i64,
        limit: usize,
    ) -> Result<Vec<CheckedWake>> {
        self.outbox_read("look at wake-ups", async |conn, _| {
            let (transport, limit) = (transport.as_str(), limit as i64);
            let checked = query(conn, sql::OUTBOX_CHECK, &[&queue.0, &transport, &after, &limit]).await?;
            let checked = checked.iter().map(|row| {
                Ok(CheckedWake { message: row.try_get(0)?, receipt: rows::text_if(row, 1)?, needed: row.try_get(2)? })
            });
            checked.collect()
        })
        .await
    }

    async fn published_outbox(
        &self,
        queue: QueueId,
        age_ms: DurationMs,
        after: i64,
        limit: usize,
    ) -> Result<Vec<PublishedWake>> {
        self.outbox_read("look at published wake-ups", async |conn, now| {
            let before = Time(now.plus(-age_ms));
            let found = query(conn, sql::OUTBOX_WALK, &[&queue.0, &after, &before, &(limit as i64)]).await?;
            let wakes = found.iter().map(|row| {
                Ok(PublishedWake { message: row.try_get(0)?, receipt: rows::text(row, 1)?, ready: row.try_get(2)? })
            });
            wakes.collect()
        })
        .await
    }

    async fn republish(&self, messages: &[i64]) -> Result<u64> {
        self.outbox_write("publish wake-ups again", async |conn, now| {
            Ok(query(conn, sql::OUTBOX_REPUBLISH, &[&messages, &Time(now)]).await?.len() as u64)
        })
        .await
    }

    async fn live_wakes(&self, messages: &[i64]) -> Result<HashMap<i64, LiveWake>> {
        self.outbox_read("look at wake-ups", async |conn, _| {
            let found = query(conn, sql::OUTBOX_LIVE, &[&messages]).await?;
            let live = found
                .iter()
                .map(|row| Ok((row.try_get(0)?, LiveWake { receipt: rows::text_if(row, 1)?, ready: row.try_get(2)? })));
            live.collect()
        })
        .await
    }
}
