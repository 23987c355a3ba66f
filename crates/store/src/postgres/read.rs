//! What people look at.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use tenure_core::batch::Counts;
use tenure_core::command::Reach;
use tenure_core::queue::QueueId;
use tenure_core::retention::Prunable;
use tenure_core::task::Place;
use tenure_core::{IdPrefix, Seq, TaskId, Timestamp, limits};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::conn::Conn;
use super::load::{self, query};
use super::rows::{self, Result, Time};
use super::sql;
use crate::codec;
use crate::model::{
    AttemptRange, AttemptView, DeadLetterFilter, EventBatch, NewRedrive, Page, PageRows, QueueStats, QueueView,
    RedriveFilter, RedriveView, TaskFilter, TaskView,
};

/// The tasks of these rows, in their order.
pub async fn views(conn: &Conn, seqs: &[Seq]) -> Result<Vec<TaskView>> {
    let wanted: BTreeSet<Seq> = seqs.iter().copied().collect();
    let mut bodies = load::bodies(conn, seqs).await?;
    let tasks = load::tasks(conn, &wanted, load::Look::Read).await?.unwrap_or_default();
    let mut places: HashMap<Seq, Place> = tasks.into_iter().map(|task| (task.id.seq(), task.place)).collect();
    let ids: Vec<i32> = bodies.values().map(|body| body.queue.0).collect::<BTreeSet<_>>().into_iter().collect();
    let names = queue_names(conn, &ids).await?;
    let view = |seq: &Seq| {
        let body = bodies.remove(seq)?;
        let queue = Arc::clone(names.get(&body.queue)?);
        Some(TaskView { body, place: places.remove(seq)?, queue })
    };
    Ok(seqs.iter().filter_map(view).collect())
}

/// Names of queues, and of deleted queues that still have ended tasks.
pub async fn queue_names(conn: &Conn, ids: &[i32]) -> Result<HashMap<QueueId, Arc<str>>> {
    let found = query(conn, sql::QUEUE_NAMES, &[&ids]).await?;
    found.iter().map(|row| Ok((QueueId(row.try_get(0)?), rows::text(row, 1)?))).collect()
}

pub async fn task(conn: &Conn, id: TaskId, reach: &Reach) -> Result<Option<TaskView>> {
    let found = views(conn, &[id.seq()]).await?.into_iter().next();
    Ok(found.filter(|view| view.body.id == id && reach.covers_task(&view.body)))
}

async fn queue_named(conn: &Conn, name: Option<&str>) -> Result<Option<i32>> {
    let Some(name) = name else { return Ok(None) };
    let found = query(conn, sql::QUEUES_OF_NAMES, &[&vec![name]]).await?;
    // A queue that does not exist has no tasks; no queue has this number.
    Ok(Some(found.first().map(rows::queue).transpose()?.map_or(-1, |queue| queue.id.0)))
}

pub async fn tasks(conn: &Conn, filter: &TaskFilter) -> Result<Page<TaskView>> {
    let tag = filter.tag.as_ref().and_then(|(name, value)| codec::tag_pattern(name, value));
    let (floor, [a, b, c, d]) = id_search(conn, sql::TASKS_NTH, filter.id_prefix.as_ref()).await?;
    let params: [&(dyn ToSql + Sync); 20] = [
        &filter.before.map_or(i64::MAX, |seq| seq.0),
        &queue_named(conn, filter.queue.as_deref()).await?,
        &filter.operator,
        &filter.reach.tenant(),
        &filter.workspace,
        &tag,
        &(filter.limit as i64 + 1),
        &filter.reach.owner(),
        &floor,
        &a,
        &b,
        &c,
        &d,
        &filter.run.map(|run| Uuid::from_u128(run.as_u128())),
        &filter.idempotency_key,
        &filter.worker,
        &filter.error_code,
        &filter.after.map(Time),
        &filter.until.map(Time),
        &filter.submitted_by,
    ];
    let found = query(conn, &sql::TASKS_LIST.replace("{source}", codec::tasks_of(filter.state)), &params).await?;
    let seqs = found.iter().map(rows::seq).collect::<Result<Vec<_>>>()?;
    page(conn, seqs, filter.limit).await
}

/// The tasks of these rows, of which there is one more than `limit` if there are more.
async fn page(conn: &Conn, seqs: Vec<Seq>, limit: usize) -> Result<Page<TaskView>> {
    let numbers: Vec<i64> = seqs.iter().map(|seq| seq.0).collect();
    let mut sizes: HashMap<Seq, usize> = HashMap::with_capacity(seqs.len());
    for row in query(conn, sql::BODIES_SIZES, &[&numbers]).await? {
        sizes.insert(rows::seq(&row)?, usize::try_from(row.try_get::<_, i64>(1)?).unwrap_or(0));
    }
    let rows = PageRows::fitting(seqs, limit, |seq| sizes.get(&seq).copied().unwrap_or(0));
    Ok(Page { items: views(conn, &rows.seqs).await?, next: rows.next() })
}

/// The oldest row that is searched for the beginning of an id, and the bounds of such ids.
pub async fn id_search(conn: &Conn, nth: &str, prefix: Option<&IdPrefix>) -> Result<(i64, [Option<Uuid>; 4])> {
    let Some(bounds) = prefix.and_then(codec::id_bounds) else { return Ok((i64::MIN, [None; 4])) };
    let found = query(conn, nth, &[&(limits::ID_PREFIX_ROWS as i64)]).await?;
    let floor = found.first().map(|row| row.try_get(0)).transpose()?;
    Ok((floor.unwrap_or(i64::MIN), bounds.map(|bound| Some(Uuid::from_u128(bound)))))
}

pub async fn attempts(conn: &Conn, id: TaskId, reach: &Reach) -> Result<Option<Vec<AttemptView>>> {
    let Some(view) = task(conn, id, reach).await? else { return Ok(None) };
    let closed = load::attempts(conn, &BTreeSet::from([id.seq()])).await?;
    let mut history: Vec<_> = closed.into_iter().map(|(_, attempt)| AttemptView::Closed(Box::new(attempt))).collect();
    history.extend(AttemptView::newest(view.place));
    Ok(Some(history))
}

pub async fn attempts_page(
    conn: &Conn,
    id: TaskId,
    reach: &Reach,
    asked: AttemptRange,
) -> Result<Option<Page<AttemptView>>> {
    let Some(view) = task(conn, id, reach).await? else { return Ok(None) };
    let params: [&(dyn ToSql + Sync); 4] =
        [&id.seq().0, &asked.after.cast_signed(), &(asked.limit as i64), &(limits::PAGE_BYTES as i64)];
    let found = query(conn, sql::ATTEMPTS_PAGE, &params).await?;
    let closed = found.iter().map(|row| Ok(rows::attempt(row)?.1)).collect::<Result<Vec<_>>>()?;
    // Another look is cheaper than a row more.
    let last = closed.last().map_or(asked.after, |last| last.number);
    let params: [&(dyn ToSql + Sync); 4] = [&id.seq().0, &last.cast_signed(), &1_i64, &0_i64];
    let more = !closed.is_empty() && !query(conn, sql::ATTEMPTS_PAGE, &params).await?.is_empty();
    Ok(Some(AttemptView::page(closed, more, view.place, asked)))
}

pub async fn queues(conn: &Conn, tenant: Option<&str>, after: &str, limit: usize) -> Result<Page<QueueStats>> {
    let found = query(conn, sql::QUEUES_LIST, &[&after, &tenant, &(limit as i64 + 1)]).await?;
    let mut found = found.iter().map(rows::queue).collect::<Result<Vec<_>>>()?;
    let more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| more).map(|queue| queue.name.to_string());
    let ids: Vec<i32> = found.iter().map(|queue| queue.id.0).collect();
    let mut stats: HashMap<i32, (Counts, Option<Timestamp>)> = HashMap::new();
    for row in query(conn, sql::QUEUE_STATS, &[&ids]).await? {
        stats.insert(row.try_get(0)?, (rows::counts(&row, 1)?, rows::time_if(&row, 7)?));
    }
    let items = found.into_iter().map(|queue| {
        let (counts, oldest_ready_at) = stats.remove(&queue.id.0).unwrap_or_default();
        QueueStats { queue, counts, oldest_ready_at }
    });
    Ok(Page { items: items.collect(), next })
}

pub async fn queue(conn: &Conn, id: QueueId, now: Timestamp) -> Result<Option<QueueView>> {
    let found = query(conn, sql::QUEUE_VIEW, &[&id.0]).await?;
    let Some(row) = found.first() else { return Ok(None) };
    let running: i64 = row.try_get(18)?;
    Ok(Some(QueueView {
        queue: rows::queue(row)?,
        running: u32::try_from(running).unwrap_or(u32::MAX),
        worker_seen_at: rows::time_if(row, 19)?,
        now,
    }))
}

pub async fn dead_letters(conn: &Conn, filter: &DeadLetterFilter) -> Result<Page<TaskView>> {
    let after = filter.after.unwrap_or(Seq(0));
    let seqs = dead_letter_rows(conn, &filter.filter, &filter.reach, after, filter.limit + 1).await?;
    page(conn, seqs, filter.limit).await
}

pub async fn dead_letter_rows(
    conn: &Conn,
    filter: &RedriveFilter,
    reach: &Reach,
    after: Seq,
    limit: usize,
) -> Result<Vec<Seq>> {
    let found = with_filter(conn, sql::FINISHED_DEAD_LIST, filter, reach, after, Some(limit as i64)).await?;
    found.iter().map(rows::seq).collect()
}

pub async fn count_dead_letters(conn: &Conn, filter: &RedriveFilter) -> Result<u64> {
    let found = with_filter(conn, sql::FINISHED_DEAD_COUNT, filter, &Reach::All, Seq(0), None).await?;
    let count: Option<i64> = found.first().map(|row| row.try_get(0)).transpose()?;
    Ok(count.unwrap_or(0).unsigned_abs())
}

async fn with_filter(
    conn: &Conn,
    statement: &str,
    filter: &RedriveFilter,
    reach: &Reach,
    after: Seq,
    limit: Option<i64>,
) -> Result<Vec<Row>> {
    // Outside of its reach a caller finds nothing.
    let Some((tenant, owner)) = filter.within(reach) else { return Ok(Vec::new()) };
    let rows: Option<Vec<i64>> = filter.rows.as_ref().map(|rows| rows.iter().map(|seq| seq.0).collect());
    let queue = queue_named(conn, filter.queue.as_deref()).await?;
    let (from, until) = (filter.after.map(Time), filter.before.map(Time));
    let mut params: Vec<&(dyn ToSql + Sync)> = vec![
        &after.0,
        &queue,
        &filter.operator,
        &filter.reason,
        &filter.error_code,
        &tenant,
        &from,
        &until,
        &rows,
        &owner,
    ];
    if let Some(limit) = &limit {
        params.push(limit);
    }
    query(conn, statement, &params).await
}

/// Of two starts under the same key or id one inserts, and both read what stands there.
pub async fn start_redrive(conn: &Conn, redrive: &NewRedrive, now: Timestamp) -> Result<RedriveView> {
    if let Some(known) = known_redrive(conn, redrive).await? {
        return Ok(known);
    }
    let matched = count_dead_letters(conn, &redrive.filter).await?;
    let started = RedriveView {
        redrive_id: redrive.redrive_id,
        filter: redrive.filter.clone(),
        rate: redrive.rate,
        matched,
        released: 0,
        cursor: Seq(0),
        started_at: now,
        finished: matched == 0,
        paused: false,
        canceled: false,
    };
    let filter = serde_json::to_string(&redrive.filter).unwrap_or_default();
    let params: [&(dyn ToSql + Sync); 7] = [
        &Uuid::from_u128(redrive.redrive_id),
        &redrive.key,
        &filter,
        &redrive.rate,
        &matched.cast_signed(),
        &Time(now),
        &started.finished,
    ];
    query(conn, sql::REDRIVE_INSERT, &params).await?;
    Ok(known_redrive(conn, redrive).await?.unwrap_or(started))
}

async fn known_redrive(conn: &Conn, redrive: &NewRedrive) -> Result<Option<RedriveView>> {
    let params: [&(dyn ToSql + Sync); 2] = [&Uuid::from_u128(redrive.redrive_id), &redrive.key];
    query(conn, sql::REDRIVE_KNOWN, &params).await?.first().map(self::redrive).transpose()
}

pub fn redrive(row: &Row) -> Result<RedriveView> {
    let filter: &str = row.try_get(1)?;
    Ok(RedriveView {
        redrive_id: row.try_get::<_, Uuid>(0)?.as_u128(),
        filter: codec::decode(Some(filter), "redrives.filter", 0),
        rate: row.try_get(2)?,
        matched: row.try_get::<_, i64>(3)?.unsigned_abs(),
        released: row.try_get::<_, i64>(4)?.unsigned_abs(),
        cursor: Seq(row.try_get(5)?),
        started_at: rows::time(row, 6)?,
        finished: row.try_get(7)?,
        paused: row.try_get(8)?,
        canceled: row.try_get(9)?,
    })
}

pub fn event(row: &Row) -> Result<EventBatch> {
    let facts: &[u8] = row.try_get(2)?;
    Ok(EventBatch { batch: row.try_get(0)?, at: rows::time(row, 1)?, facts: codec::decode_facts(facts) })
}

pub fn prunable(row: &Row) -> Result<Prunable> {
    Ok(Prunable {
        seq: rows::seq(row)?,
        finished_at: rows::time(row, 1)?,
        dead_lettered_at: rows::time_if(row, 2)?,
        queue: QueueId(row.try_get(3)?),
        created_at: rows::time(row, 4)?,
        has_key: row.try_get(5)?,
        in_run: row.try_get(6)?,
    })
}
