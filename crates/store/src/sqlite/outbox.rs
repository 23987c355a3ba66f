//! Effects that leave the process.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row, params};
use tenure_core::batch::RemovedWake;
use tenure_core::effect::{DueEffect, Effect, EffectKind, enqueued_task};
use tenure_core::queue::{QueueId, Transport};
use tenure_core::time::{DurationMs, Timestamp};
use tenure_core::{Seq, TaskId};

use super::save::each;
use super::{Sqlite, sql};
use crate::codec;
use crate::error::StoreError;
use crate::model::Page;
use crate::outbox::{
    CheckedWake, ExternalQueue, Fed, LiveWake, MAKERS_OWN_MS, NextTry, OutboxFilter, OutboxLag, OutboxRetry,
    OutboxStore, OutboxView, PublishedWake, PutOff, WakeCounts,
};

type Result<T> = std::result::Result<T, StoreError>;

pub fn insert(tx: &Connection, effects: &[Effect], now: Timestamp) -> rusqlite::Result<()> {
    each(tx, sql::OUTBOX_INSERT, effects, |put, Effect { id, due_at, action }| {
        let subject = action.subject();
        let params = params![
            id,
            action.kind().as_str(),
            action.key(),
            action.body(),
            subject.map(|(_, queue)| queue.0),
            subject.map(|(task, _)| task.seq().0),
            now.as_millis(),
            due_at.plus(MAKERS_OWN_MS).as_millis(),
        ];
        put.execute(params).map(drop)
    })
}

pub fn settle(tx: &Connection, messages: &[i64]) -> rusqlite::Result<Vec<RemovedWake>> {
    if messages.is_empty() {
        return Ok(Vec::new());
    }
    let mut statement = tx.prepare_cached(sql::OUTBOX_SETTLE)?;
    let removed = messages.iter().filter_map(|message| statement.query_row([message], removed).optional().transpose());
    removed.collect()
}

pub fn receipts(tx: &Connection, messages: &[i64]) -> rusqlite::Result<HashMap<i64, Arc<str>>> {
    let mut statement = tx.prepare_cached(sql::OUTBOX_RECEIPTS)?;
    let receipts = messages.iter().filter_map(|message| {
        let found = statement.query_row([message], |row| row.get(0)).optional();
        found.map(|receipt| receipt.map(|receipt| (*message, receipt))).transpose()
    });
    receipts.collect()
}

fn removed(row: &Row<'_>) -> rusqlite::Result<RemovedWake> {
    let queue = QueueId(row.get(1)?);
    Ok(RemovedWake { message: row.get(0)?, queue, transport: transport(row, 2)?, receipt: row.get(3)? })
}

fn transport(row: &Row<'_>, column: usize) -> rusqlite::Result<Transport> {
    let text: String = row.get(column)?;
    Ok(Transport::parse(&text).unwrap_or_default())
}

fn task(row: &Row<'_>, column: usize) -> rusqlite::Result<TaskId> {
    let body: String = row.get(column)?;
    Ok(enqueued_task(&body).unwrap_or(TaskId::from_u128(0)))
}

fn time_if(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Timestamp>> {
    row.get::<_, Option<i64>>(column).map(|millis| millis.map(Timestamp::from_millis))
}

fn due(row: &Row<'_>, kind: EffectKind) -> rusqlite::Result<DueEffect> {
    Ok(DueEffect { id: row.get(0)?, kind, key: row.get(1)?, body: row.get(2)?, queue: row.get(3)?, tries: row.get(4)? })
}

fn view(row: &Row<'_>) -> rusqlite::Result<OutboxView> {
    Ok(OutboxView {
        message: row.get(0)?,
        kind: row.get(1)?,
        transport: transport(row, 2)?,
        queue: row.get(3)?,
        task: task(row, 4)?,
        created_at: Timestamp::from_millis(row.get(5)?),
        due_at: time_if(row, 6)?,
        tries: row.get(7)?,
        error: row.get(8)?,
        failed_at: time_if(row, 9)?,
        published_at: time_if(row, 10)?,
        receipt: row.get(11)?,
    })
}

fn count(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    Ok(u64::try_from(row.get::<_, i64>(column)?).unwrap_or(0))
}

fn json<T: serde::Serialize>(values: &[T]) -> String {
    serde_json::to_string(values).unwrap_or_default()
}

#[async_trait]
impl OutboxStore for Sqlite {
    async fn take_effects(
        &self,
        kind: EffectKind,
        key: &str,
        limit: usize,
        hold_ms: DurationMs,
    ) -> Result<Vec<DueEffect>> {
        let (now, key) = (self.clock.read_process().now, Arc::<str>::from(key));
        // Most of the time there is nothing, and a look needs no turn of the writer.
        let looked = Arc::clone(&key);
        let found = self.read("look for effects", move |conn| {
            conn.prepare_cached(sql::OUTBOX_DUE)?.exists(params![now.as_millis(), kind.as_str(), looked, 1])
        });
        if !found.await? {
            return Ok(Vec::new());
        }
        self.write("take effects", move |tx| {
            let mut statement = tx.prepare_cached(sql::OUTBOX_DUE)?;
            let params = params![now.as_millis(), kind.as_str(), key, limit as i64];
            let mut effects =
                statement.query_map(params, |row| due(row, kind))?.collect::<rusqlite::Result<Vec<_>>>()?;
            let mut hold = tx.prepare_cached(sql::OUTBOX_HOLD)?;
            for effect in &effects {
                hold.execute(params![effect.id, now.plus(hold_ms).as_millis()])?;
            }
            effects.sort_unstable_by_key(|effect| effect.id);
            Ok(effects)
        })
        .await
    }

    async fn effects_done(&self, ids: &[i64]) -> Result<()> {
        let ids = ids.to_vec();
        self.write("remove effects", move |tx| {
            let mut statement = tx.prepare_cached(sql::OUTBOX_DONE)?;
            ids.iter().try_for_each(|id| statement.execute([id]).map(drop))
        })
        .await
    }

    async fn outbox_published(&self, published: &[(i64, Arc<str>)]) -> Result<Vec<i64>> {
        let (published, now) = (published.to_vec(), self.clock.read_process().now);
        self.write("note wake-ups as published", move |tx| {
            let mut statement = tx.prepare_cached(sql::OUTBOX_PUBLISHED)?;
            let mut gone = Vec::new();
            for (message, receipt) in &published {
                if statement.execute(params![message, receipt, now.as_millis()])? == 0 {
                    gone.push(*message);
                }
            }
            Ok(gone)
        })
        .await
    }

    async fn put_off_effects(&self, rows: &[PutOff]) -> Result<()> {
        let (rows, now) = (rows.to_vec(), self.clock.read_process().now);
        self.write("put effects off", move |tx| {
            let mut statement = tx.prepare_cached(sql::OUTBOX_PUT_OFF)?;
            for row in &rows {
                let failed_at = (row.next == NextTry::Never).then(|| now.as_millis());
                let due_at = row.next.due(now).map(Timestamp::as_millis);
                statement.execute(params![row.id, due_at, failed_at, row.next.tried(), row.error])?;
            }
            Ok(())
        })
        .await
    }

    async fn outbox(&self, filter: &OutboxFilter) -> Result<Page<OutboxView>> {
        let filter = filter.clone();
        self.read("list the outbox", move |conn| {
            let (after, state) = (filter.after.unwrap_or(i64::MIN), filter.state.map(|state| state.as_str()));
            let mut statement = conn.prepare_cached(sql::OUTBOX_LIST)?;
            let items = statement.query_map(params![after, filter.queue, state, filter.limit as i64 + 1], view)?;
            Ok(OutboxView::page(items.collect::<rusqlite::Result<_>>()?, filter.limit))
        })
        .await
    }

    async fn retry_outbox(&self, which: &OutboxRetry) -> Result<u64> {
        let now = self.clock.read_process().now;
        let (messages, queue) = match which {
            OutboxRetry::These(messages) => (Some(json(messages)), None),
            OutboxRetry::All { queue } => (None, queue.clone()),
        };
        self.write("retry wake-ups", move |tx| {
            Ok(tx.prepare_cached(sql::OUTBOX_RETRY)?.execute(params![now.as_millis(), messages, queue])? as u64)
        })
        .await
    }

    async fn outbox_lag(&self, kind: EffectKind, key: &str) -> Result<OutboxLag> {
        let (now, key) = (self.clock.read_process().now, key.to_owned());
        self.read("measure the outbox", move |conn| {
            conn.prepare_cached(sql::OUTBOX_LAG)?.query_row([kind.as_str(), &key], |row| {
                let oldest_ms = time_if(row, 2)?.map_or(0, |oldest| now.since(oldest).max(0));
                Ok(OutboxLag { waiting: count(row, 0)?, failed: count(row, 1)?, oldest_ms })
            })
        })
        .await
    }

    async fn external_queues(&self) -> Result<Vec<ExternalQueue>> {
        self.read("list external queues", |conn| {
            let mut statement = conn.prepare_cached(sql::OUTBOX_QUEUES)?;
            let queues = statement.query_map([], |row| {
                Ok(ExternalQueue {
                    id: QueueId(row.get(0)?),
                    name: row.get(1)?,
                    transport: transport(row, 2)?,
                    lease_ttl_ms: row.get(3)?,
                })
            })?;
            queues.collect()
        })
        .await
    }

    async fn outbox_counts(&self, transport: Transport) -> Result<Vec<WakeCounts>> {
        self.read("count wake-ups", move |conn| {
            let mut statement = conn.prepare_cached(sql::OUTBOX_COUNTS)?;
            let counts = statement.query_map([transport.as_str()], |row| {
                let (id, name, lease_ttl_ms) = (QueueId(row.get(0)?), row.get(1)?, row.get(2)?);
                Ok(WakeCounts {
                    queue: ExternalQueue { id, name, transport, lease_ttl_ms },
                    current: row.get(3)?,
                    rows: count(row, 4)?,
                    published: count(row, 5)?,
                    ready: count(row, 6)?,
                    running: count(row, 7)?,
                    job: codec::decode_dispatch(row.get::<_, Option<String>>(8)?.as_deref(), id.0),
                })
            })?;
            counts.collect()
        })
        .await
    }

    async fn feed_outbox(&self, queue: QueueId, after: Seq, limit: usize) -> Result<Fed> {
        // The search goes over all that waits, and must not keep the writer from others.
        let unfed = self.read("look for tasks without a wake-up", move |conn| {
            let mut statement = conn.prepare_cached(sql::OUTBOX_UNFED)?;
            let unfed =
                statement.query_map(params![queue.0, after.0, limit as i64], |row| Ok((row.get(0)?, row.get(1)?)))?;
            unfed.collect::<rusqlite::Result<Vec<(i64, i64)>>>()
        });
        let unfed = unfed.await?;
        let next = unfed.last().filter(|_| unfed.len() == limit).map(|(seq, _)| Seq(*seq));
        if unfed.is_empty() {
            return Ok(Fed { fed: 0, next });
        }
        let now = self.clock.read_process().now;
        let fed = self.write("feed the outbox", move |tx| {
            let mut statement = tx.prepare_cached(sql::OUTBOX_FEED)?;
            unfed.iter().try_fold(0, |sum, (seq, message)| {
                Ok(sum + statement.execute(params![seq, message, now.as_millis()])? as u64)
            })
        });
        Ok(Fed { fed: fed.await?, next })
    }

    async fn check_outbox(
        &self,
        queue: QueueId,
        transport: Transport,
        after: i64,
        limit: usize,
    ) -> Result<Vec<CheckedWake>> {
        self.read("look at wake-ups", move |conn| {
            let mut statement = conn.prepare_cached(sql::OUTBOX_CHECK)?;
            let checked = statement.query_map(params![queue.0, transport.as_str(), after, limit as i64], |row| {
                Ok(CheckedWake { message: row.get(0)?, receipt: row.get(1)?, needed: row.get(2)? })
            })?;
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
        let before = self.clock.read_process().now.plus(-age_ms);
        self.read("look at published wake-ups", move |conn| {
            let mut statement = conn.prepare_cached(sql::OUTBOX_WALK)?;
            let wakes = statement.query_map(params![queue.0, after, before.as_millis(), limit as i64], |row| {
                Ok(PublishedWake { message: row.get(0)?, receipt: row.get(1)?, ready: row.get(2)? })
            })?;
            wakes.collect()
        })
        .await
    }

    async fn republish(&self, messages: &[i64]) -> Result<u64> {
        let (messages, now) = (messages.to_vec(), self.clock.read_process().now);
        self.write("publish wake-ups again", move |tx| {
            let mut statement = tx.prepare_cached(sql::OUTBOX_REPUBLISH)?;
            messages
                .iter()
                .try_fold(0, |sum, message| Ok(sum + statement.execute(params![message, now.as_millis()])? as u64))
        })
        .await
    }

    async fn live_wakes(&self, messages: &[i64]) -> Result<HashMap<i64, LiveWake>> {
        let messages = messages.to_vec();
        self.read("look at wake-ups", move |conn| {
            let mut statement = conn.prepare_cached(sql::OUTBOX_LIVE)?;
            let live = messages.iter().filter_map(|message| {
                let found = statement
                    .query_row([message], |row| Ok((*message, LiveWake { receipt: row.get(0)?, ready: row.get(1)? })));
                found.optional().transpose()
            });
            live.collect()
        })
        .await
    }
}
