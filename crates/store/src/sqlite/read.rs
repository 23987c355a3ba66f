//! What people look at.

use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row, params};
use tenure_core::batch::Counts;
use tenure_core::command::Reach;
use tenure_core::queue::QueueId;
use tenure_core::time::Timestamp;
use tenure_core::{IdPrefix, Seq, TaskId, limits};

use super::{load, rows, sql};
use crate::codec;
use crate::model::{
    AttemptRange, AttemptView, DeadLetterFilter, EventBatch, NewRedrive, Page, PageRows, QueueStats, QueueView,
    RedriveFilter, RedriveView, TaskFilter, TaskView,
};

type Result<T> = rusqlite::Result<T>;

pub fn view(tx: &Connection, seq: Seq) -> Result<Option<TaskView>> {
    let (Some(body), Some(task)) = (load::body(tx, seq)?, load::Finder::new(tx).task(seq)?) else { return Ok(None) };
    let Some(queue) = queue_name(tx, body.queue)? else { return Ok(None) };
    Ok(Some(TaskView { body: Arc::new(body), place: task.place, queue }))
}

pub fn task(tx: &Connection, id: TaskId, reach: &Reach) -> Result<Option<TaskView>> {
    let found = view(tx, id.seq())?;
    Ok(found.filter(|view| view.body.id == id && reach.covers_task(&view.body)))
}

fn queue_named(tx: &Connection, name: Option<&str>) -> Result<Option<i32>> {
    let Some(name) = name else { return Ok(None) };
    let queue = tx.prepare_cached(sql::QUEUES_OF_NAMES)?.query_row([name], rows::queue).optional()?;
    // A queue that does not exist has no tasks; no queue has this number.
    Ok(Some(queue.map_or(-1, |queue| queue.id.0)))
}

pub fn tasks(tx: &Connection, filter: &TaskFilter) -> Result<Page<TaskView>> {
    let statement = sql::TASKS_LIST.replace("{source}", codec::tasks_of(filter.state));
    let tag = filter.tag.as_ref().and_then(|(name, value)| codec::tag_pattern(name, value));
    let (floor, [a, b, c, d]) = id_search(tx, sql::TASKS_NTH, filter.id_prefix.as_ref())?;
    let params = params![
        filter.before.map_or(i64::MAX, |seq| seq.0),
        queue_named(tx, filter.queue.as_deref())?,
        filter.operator,
        filter.reach.tenant(),
        filter.workspace,
        tag,
        filter.limit as i64 + 1,
        filter.reach.owner(),
        floor,
        a,
        b,
        c,
        d,
        filter.run.map(|run| run.as_u128().to_be_bytes()),
        filter.idempotency_key,
        filter.worker,
        filter.error_code,
        filter.after.map(Timestamp::as_millis),
        filter.until.map(Timestamp::as_millis),
        filter.submitted_by,
    ];
    let seqs: Vec<Seq> =
        tx.prepare_cached(&statement)?.query_map(params, |row| row.get(0).map(Seq))?.collect::<Result<_>>()?;
    page(tx, seqs, filter.limit)
}

/// The tasks of these rows, of which there is one more than `limit` if there are more.
fn page(tx: &Connection, seqs: Vec<Seq>, limit: usize) -> Result<Page<TaskView>> {
    let mut sizes = HashMap::with_capacity(seqs.len());
    let mut statement = tx.prepare_cached(sql::BODIES_SIZES)?;
    for seq in &seqs {
        let size: Option<i64> = statement.query_row([seq.0], |row| row.get(1)).optional()?;
        sizes.insert(*seq, usize::try_from(size.unwrap_or(0)).unwrap_or(0));
    }
    let rows = PageRows::fitting(seqs, limit, |seq| sizes.get(&seq).copied().unwrap_or(0));
    Ok(Page { items: views(tx, &rows.seqs)?, next: rows.next() })
}

/// The oldest row that is searched for the beginning of an id, and the bounds of such ids.
pub fn id_search(tx: &Connection, nth: &str, prefix: Option<&IdPrefix>) -> Result<(i64, [Option<[u8; 16]>; 4])> {
    let Some(bounds) = prefix.and_then(codec::id_bounds) else { return Ok((i64::MIN, [None; 4])) };
    let floor = tx.prepare_cached(nth)?.query_row([limits::ID_PREFIX_ROWS as i64], |row| row.get(0)).optional()?;
    Ok((floor.unwrap_or(i64::MIN), bounds.map(|bound| Some(bound.to_be_bytes()))))
}

fn views(tx: &Connection, seqs: &[Seq]) -> Result<Vec<TaskView>> {
    seqs.iter().filter_map(|seq| view(tx, *seq).transpose()).collect()
}

pub fn attempts(tx: &Connection, id: TaskId, reach: &Reach) -> Result<Option<Vec<AttemptView>>> {
    let Some(view) = task(tx, id, reach)? else { return Ok(None) };
    let closed = load::attempts(tx, id.seq())?;
    let mut history: Vec<_> = closed.into_iter().map(|attempt| AttemptView::Closed(Box::new(attempt))).collect();
    history.extend(AttemptView::newest(view.place));
    Ok(Some(history))
}

pub fn attempts_page(
    tx: &Connection,
    id: TaskId,
    reach: &Reach,
    asked: AttemptRange,
) -> Result<Option<Page<AttemptView>>> {
    let Some(view) = task(tx, id, reach)? else { return Ok(None) };
    let mut statement = tx.prepare_cached(sql::ATTEMPTS_PAGE)?;
    let mut found = statement.query(params![id.seq().0, asked.after, asked.limit as i64 + 1])?;
    let (mut closed, mut bytes, mut more) = (Vec::new(), 0, false);
    while let Some(row) = found.next()? {
        // The failure, the evidence and what callback workers sent.
        for column in [11, 15, 17] {
            bytes += row.get_ref(column)?.as_bytes_or_null().ok().flatten().map_or(0, <[u8]>::len);
        }
        if closed.len() == asked.limit || (!closed.is_empty() && bytes > limits::PAGE_BYTES) {
            more = true;
            break;
        }
        closed.push(rows::attempt(row)?);
    }
    Ok(Some(AttemptView::page(closed, more, view.place, asked)))
}

pub fn queues(tx: &Connection, tenant: Option<&str>, after: &str, limit: usize) -> Result<Page<QueueStats>> {
    let mut found: Vec<_> = tx
        .prepare_cached(sql::QUEUES_LIST)?
        .query_map(params![after, tenant, limit as i64 + 1], rows::queue)?
        .collect::<Result<_>>()?;
    let more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| more).map(|queue| queue.name.to_string());
    let items = found
        .into_iter()
        .map(|queue| {
            let counts = counts(tx, queue.id)?;
            let oldest_ready_at = oldest_ready(tx, queue.id)?;
            Ok(QueueStats { queue, counts, oldest_ready_at })
        })
        .collect::<Result<_>>()?;
    Ok(Page { items, next })
}

/// The name of a queue, or of a deleted queue that still has ended tasks.
pub fn queue_name(tx: &Connection, id: QueueId) -> Result<Option<Arc<str>>> {
    tx.prepare_cached(sql::QUEUE_NAMES)?.query_row([id.0], |row| row.get(0)).optional()
}

pub fn counts(tx: &Connection, queue: QueueId) -> Result<Counts> {
    let counts = tx.prepare_cached(sql::COUNTS_GET)?.query_row([queue.0], rows::counts);
    Ok(counts.optional()?.unwrap_or_default())
}

fn oldest_ready(tx: &Connection, queue: QueueId) -> Result<Option<Timestamp>> {
    let mut statement = tx.prepare_cached(sql::READY_OLDEST)?;
    let mut oldest: Option<i64> = None;
    for priority in 0..=limits::PRIORITY_MAX {
        let at: Option<i64> = statement.query_row(params![queue.0, priority], |row| row.get(0))?;
        oldest = oldest.into_iter().chain(at).min();
    }
    Ok(oldest.map(Timestamp::from_millis))
}

pub fn queue(tx: &Connection, id: QueueId, now: Timestamp) -> Result<Option<QueueView>> {
    let Some(queue) = tx.prepare_cached(sql::QUEUES_OF_IDS)?.query_row([id.0], rows::queue).optional()? else {
        return Ok(None);
    };
    let running = tx.prepare_cached(sql::COUNTS_RUNNING)?.query_row([id.0], |row| row.get(0))?;
    let seen: Option<i64> = tx.prepare_cached(sql::QUEUE_SEEN_GET)?.query_row([id.0], |row| row.get(0)).optional()?;
    Ok(Some(QueueView { queue, running, worker_seen_at: seen.map(Timestamp::from_millis), now }))
}

pub fn dead_letters(tx: &Connection, filter: &DeadLetterFilter) -> Result<Page<TaskView>> {
    let after = filter.after.unwrap_or(Seq(0));
    let seqs = dead_letter_rows(tx, &filter.filter, &filter.reach, after, filter.limit + 1)?;
    page(tx, seqs, filter.limit)
}

pub fn dead_letter_rows(
    tx: &Connection,
    filter: &RedriveFilter,
    reach: &Reach,
    after: Seq,
    limit: usize,
) -> Result<Vec<Seq>> {
    with_filter(tx, sql::FINISHED_DEAD_LIST, filter, reach, after, Some(limit as i64), |row| row.get(0).map(Seq))
}

pub fn count_dead_letters(tx: &Connection, filter: &RedriveFilter) -> Result<u64> {
    let counts =
        with_filter(tx, sql::FINISHED_DEAD_COUNT, filter, &Reach::All, Seq(0), None, |row| row.get::<_, i64>(0))?;
    Ok(counts.first().map_or(0, |count| count.unsigned_abs()))
}

fn with_filter<T>(
    tx: &Connection,
    statement: &str,
    filter: &RedriveFilter,
    reach: &Reach,
    after: Seq,
    limit: Option<i64>,
    read: impl Fn(&Row<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    let rows = filter.rows.as_ref().and_then(|rows| serde_json::to_string(rows).ok());
    // Outside of its reach a caller finds nothing.
    let Some((tenant, owner)) = filter.within(reach) else { return Ok(Vec::new()) };
    let params = params![
        after.0,
        queue_named(tx, filter.queue.as_deref())?,
        filter.operator,
        filter.reason,
        filter.error_code,
        tenant,
        filter.after.map(Timestamp::as_millis),
        filter.before.map(Timestamp::as_millis),
        rows,
        owner,
        limit,
    ];
    tx.prepare_cached(statement)?.query_map(params, read)?.collect()
}

pub fn start_redrive(tx: &Connection, redrive: &NewRedrive, now: Timestamp) -> Result<RedriveView> {
    let id = redrive.redrive_id.to_be_bytes();
    let known = tx.prepare_cached(sql::REDRIVE_KNOWN)?.query_row(params![id, redrive.key], self::redrive).optional()?;
    if let Some(known) = known {
        return Ok(known);
    }
    let matched = count_dead_letters(tx, &redrive.filter)?;
    let filter = serde_json::to_string(&redrive.filter).unwrap_or_default();
    tx.prepare_cached(sql::REDRIVE_INSERT)?.execute(params![
        id,
        redrive.key,
        filter,
        redrive.rate,
        matched.cast_signed(),
        now.as_millis(),
        matched == 0,
    ])?;
    Ok(RedriveView {
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
    })
}

pub fn redrive(row: &Row<'_>) -> Result<RedriveView> {
    let filter: String = row.get("filter")?;
    Ok(RedriveView {
        redrive_id: u128::from_be_bytes(row.get("redrive_id")?),
        filter: codec::decode(Some(&filter), "redrives.filter", 0),
        rate: row.get("rate")?,
        matched: row.get::<_, i64>("matched")?.unsigned_abs(),
        released: row.get::<_, i64>("released")?.unsigned_abs(),
        cursor: row.get("cursor").map(Seq)?,
        started_at: Timestamp::from_millis(row.get("started_at")?),
        finished: row.get("finished")?,
        paused: row.get("paused")?,
        canceled: row.get("canceled")?,
    })
}

pub fn event(row: &Row<'_>) -> Result<EventBatch> {
    let facts: Vec<u8> = row.get(2)?;
    Ok(EventBatch { batch: row.get(0)?, at: Timestamp::from_millis(row.get(1)?), facts: codec::decode_facts(&facts) })
}
