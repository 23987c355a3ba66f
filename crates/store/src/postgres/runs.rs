//! Runs: what a batch needs of them, what it writes, and what people look at.
//!
//! A batch that ends a task of a run holds the run until the commit, so that the ends of one run follow each other.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use futures_util::future::try_join;
use tenure_core::attempt::{Failure, Progress};
use tenure_core::batch::{IdempotencyScope, KnownRun, RunLoad, World};
use tenure_core::command::Reach;
use tenure_core::run::{Edge, Run, RunCounts, RunTask, Upstream};
use tenure_core::{RunId, Seq, TaskId};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::columns::Columns;
use super::conn::Conn;
use super::load::{self, Look, query};
use super::read;
use super::rows::{self, Result, Time};
use super::sql;
use crate::codec;
use crate::model::{Page, RunFilter, RunMaterial, RunTaskView, RunView, RunWeight};

fn numbers<'a>(rows: impl IntoIterator<Item = &'a Seq>) -> Vec<i64> {
    rows.into_iter().map(|row| row.0).collect()
}

fn count(row: &Row, column: usize) -> Result<u32> {
    row.try_get::<_, i32>(column).map(i32::unsigned_abs)
}

pub fn run(row: &Row) -> Result<Run> {
    let seq: i64 = row.try_get(0)?;
    let fingerprint: &[u8] = row.try_get(6)?;
    Ok(Run {
        id: RunId::from_u128(row.try_get::<_, Uuid>(1)?.as_u128()),
        key: rows::text_if(row, 2)?,
        tenant: rows::text(row, 3)?,
        workspace: rows::text(row, 4)?,
        owner: rows::text_if(row, 5)?,
        fingerprint: fingerprint.try_into().unwrap_or_default(),
        labels: codec::decode(row.try_get(7)?, "runs.labels", seq),
        deadline: rows::time_if(row, 8)?,
        parent: row.try_get::<_, Option<Uuid>>(9)?.map(|parent| RunId::from_u128(parent.as_u128())),
        created_at: rows::time(row, 10)?,
        finished_at: rows::time_if(row, 11)?,
        cancel_reason: rows::text_if(row, 12)?,
        counts: RunCounts {
            open: count(row, 13)?,
            succeeded: count(row, 14)?,
            failed: count(row, 15)?,
            skipped: count(row, 16)?,
            canceled: count(row, 17)?,
        },
    })
}

fn edge(row: &Row) -> Result<Edge> {
    Ok(Edge { upstream: Seq(row.try_get(0)?), downstream: Seq(row.try_get(1)?) })
}

/// The tasks of these runs that have not ended and do not depend on others.
pub async fn free_tasks(conn: &Conn, runs: &BTreeSet<Seq>) -> Result<BTreeSet<Seq>> {
    let mut free = BTreeSet::new();
    for row in query(conn, sql::RUN_TASKS_OPEN, &[&numbers(runs)]).await? {
        if !row.try_get::<_, bool>(2)? {
            free.insert(Seq(row.try_get(1)?));
        }
    }
    Ok(free)
}

/// Locks runs, then those of their tasks that are asked for. Returns `false` if others kept moving one of these.
pub async fn locked(conn: &Conn, load: &RunLoad, world: &mut World) -> Result<bool> {
    if !load.rows.is_empty() {
        for row in query(conn, sql::RUNS_LOCK, &[&numbers(&load.rows)]).await? {
            world.add_run(run(&row)?);
        }
    }
    if load.members.is_empty() {
        return Ok(true);
    }
    let mut missing = BTreeSet::new();
    for row in query(conn, sql::RUN_TASKS_OPEN, &[&numbers(&load.members)]).await? {
        let task = Seq(row.try_get(1)?);
        world.add_member(Seq(row.try_get(0)?), task);
        if !world.has_task(task) {
            missing.insert(task);
        }
    }
    let look = Look::Lock { scanned: &BTreeSet::new(), running: None };
    let Some(found) = load::tasks(conn, &missing, look).await? else { return Ok(false) };
    found.into_iter().for_each(|task| world.add_task(task));
    Ok(true)
}

/// Reads what needs no lock, or is covered by that of a run.
pub async fn read(conn: &Conn, load: &RunLoad, world: &mut World) -> Result<()> {
    if *load == RunLoad::default() {
        return Ok(());
    }
    keys(conn, &load.keys, world).await?;
    let ask = async |statement, about: &BTreeSet<Seq>| {
        if about.is_empty() { Ok(Vec::new()) } else { query(conn, statement, &[&numbers(about)]).await }
    };
    let (direct, all) = try_join(ask(sql::EDGES_GET, &load.satisfied), ask(sql::EDGES_REACHED, &load.broken)).await?;
    for row in direct.iter().chain(&all) {
        world.add_edge(edge(row)?);
    }
    for row in ask(sql::FINISHED_RESULT_SIZES, &load.result_sizes).await? {
        world.add_result_size(rows::seq(&row)?, usize::try_from(row.try_get::<_, i32>(1)?).unwrap_or(0));
    }
    for row in ask(sql::FINISHED_RESULTS, &load.results).await? {
        world.add_result(rows::seq(&row)?, rows::text_if(&row, 1)?);
    }
    for body in load::bodies(conn, &load.bodies).await?.into_values() {
        world.add_whole_body(body);
    }
    Ok(())
}

async fn keys(conn: &Conn, scopes: &[IdempotencyScope], world: &mut World) -> Result<()> {
    if scopes.is_empty() {
        return Ok(());
    }
    let [tenants, workspaces, names] = load::scope_columns(scopes);
    for row in query(conn, sql::RUNS_OF_KEYS, &[&tenants, &workspaces, &names]).await? {
        let fingerprint: &[u8] = row.try_get(2)?;
        let known = KnownRun {
            id: RunId::from_u128(row.try_get::<_, Uuid>(0)?.as_u128()),
            owner: rows::text_if(&row, 1)?,
            fingerprint: fingerprint.try_into().unwrap_or_default(),
        };
        world.add_run_key((rows::text(&row, 3)?, rows::text(&row, 4)?, rows::text(&row, 5)?), known);
    }
    Ok(())
}

pub fn new_run(run: &Run) -> Columns<'_> {
    let counts = &run.counts;
    vec![
        Box::new(run.id.seq().0),
        Box::new(Uuid::from_u128(run.id.as_u128())),
        Box::new(run.key.as_deref()),
        Box::new(&*run.tenant),
        Box::new(&*run.workspace),
        Box::new(run.owner.as_deref()),
        Box::new(run.fingerprint.as_slice()),
        Box::new(codec::encode_tags(&run.labels)),
        Box::new(run.deadline.map(Time)),
        Box::new(run.parent.map(|parent| Uuid::from_u128(parent.as_u128()))),
        Box::new(Time(run.created_at)),
        Box::new(run.finished_at.map(Time)),
        Box::new(run.cancel_reason.as_deref()),
        Box::new(counts.open.cast_signed()),
        Box::new(counts.succeeded.cast_signed()),
        Box::new(counts.failed.cast_signed()),
        Box::new(counts.skipped.cast_signed()),
        Box::new(counts.canceled.cast_signed()),
        Box::new(codec::run_state_code(run.state())),
    ]
}

pub fn saved_run(run: &Run) -> Columns<'_> {
    let counts = &run.counts;
    vec![
        Box::new(run.id.seq().0),
        Box::new(run.finished_at.map(Time)),
        Box::new(run.cancel_reason.as_deref()),
        Box::new(counts.open.cast_signed()),
        Box::new(counts.succeeded.cast_signed()),
        Box::new(counts.failed.cast_signed()),
        Box::new(counts.skipped.cast_signed()),
        Box::new(counts.canceled.cast_signed()),
        Box::new(codec::run_state_code(run.state())),
    ]
}

pub fn run_tasks(tasks: &[RunTask]) -> Columns<'_> {
    vec![
        Box::new(tasks.iter().map(|task| task.task.0).collect::<Vec<_>>()),
        Box::new(tasks.iter().map(|task| task.run.0).collect::<Vec<_>>()),
        Box::new(tasks.iter().map(|task| codec::encode_rows(&task.depends_on)).collect::<Vec<_>>()),
    ]
}

pub fn edges(edges: &[Edge]) -> Columns<'_> {
    vec![
        Box::new(edges.iter().map(|edge| edge.upstream.0).collect::<Vec<_>>()),
        Box::new(edges.iter().map(|edge| edge.downstream.0).collect::<Vec<_>>()),
    ]
}

async fn found(conn: &Conn, id: RunId, reach: &Reach) -> Result<Option<Run>> {
    let found = query(conn, sql::RUNS_GET, &[&vec![id.seq().0]]).await?.first().map(run).transpose()?;
    Ok(found.filter(|run| run.id == id && reach.covers(&run.tenant, run.owner.as_deref())))
}

pub async fn view(conn: &Conn, id: RunId, reach: &Reach) -> Result<Option<RunView>> {
    let Some(run) = found(conn, id, reach).await? else { return Ok(None) };
    let found = query(conn, sql::RUN_SHOW, &[&id.seq().0]).await?;
    let mut keys: BTreeMap<Seq, Arc<str>> = BTreeMap::new();
    for row in &found {
        keys.insert(rows::seq(row)?, rows::text(row, 3)?);
    }
    let tasks = found.iter().map(|row| run_task(row, &keys)).collect::<Result<_>>()?;
    Ok(Some(RunView { run, tasks }))
}

fn run_task(row: &Row, keys: &BTreeMap<Seq, Arc<str>>) -> Result<RunTaskView> {
    let seq: i64 = row.try_get(0)?;
    let depends_on: Vec<Seq> = codec::decode(row.try_get(1)?, "run_tasks.depends_on", seq);
    let pct: Option<i16> = row.try_get(10)?;
    Ok(RunTaskView {
        id: TaskId::from_u128(row.try_get::<_, Uuid>(2)?.as_u128()),
        key: rows::text(row, 3)?,
        operator: rows::text(row, 4)?,
        queue: rows::text(row, 5)?,
        depends_on: depends_on.iter().filter_map(|row| keys.get(row)).cloned().collect(),
        state: codec::task_state(row.try_get(6)?),
        attempt: count(row, 7)?,
        started_at: rows::time_if(row, 8)?,
        finished_at: rows::time_if(row, 9)?,
        progress: Progress { pct: pct.map(|pct| pct as u8), message: rows::text_if(row, 11)? },
        failure: codec::decode::<Option<Failure>>(row.try_get(12)?, "finished.failure", seq),
        cancel_reason: rows::text_if(row, 13)?,
        due_at: rows::time_if(row, 14)?,
    })
}

pub async fn list(conn: &Conn, filter: &RunFilter) -> Result<Page<Run>> {
    let label = filter.label.as_ref().and_then(|(name, value)| codec::tag_pattern(name, value));
    let (floor, [a, b, c, d]) = read::id_search(conn, sql::RUNS_NTH, filter.id_prefix.as_ref()).await?;
    let params: [&(dyn ToSql + Sync); 15] = [
        &filter.before.map_or(i64::MAX, |seq| seq.0),
        &filter.reach.tenant(),
        &filter.reach.owner(),
        &filter.workspace,
        &filter.run_key,
        &label,
        &filter.after.map(Time),
        &filter.until.map(Time),
        &filter.state.map(codec::run_state_code),
        &(filter.limit as i64 + 1),
        &floor,
        &a,
        &b,
        &c,
        &d,
    ];
    let found = query(conn, sql::RUNS_LIST, &params).await?;
    let mut items = found.iter().map(run).collect::<Result<Vec<_>>>()?;
    let more = items.len() > filter.limit;
    items.truncate(filter.limit);
    let next = items.last().filter(|_| more).map(|run| run.id.seq().0.to_string());
    Ok(Page { items, next })
}

fn depends_on(row: &Row) -> Result<(Seq, Vec<Seq>)> {
    let seq: i64 = row.try_get(0)?;
    Ok((Seq(seq), codec::decode(row.try_get(1)?, "run_tasks.depends_on", seq)))
}

pub async fn weight(conn: &Conn, id: RunId, reach: &Reach) -> Result<Option<RunWeight>> {
    let Some(run) = found(conn, id, reach).await? else { return Ok(None) };
    let rows = query(conn, sql::RUN_WEIGHT, &[&id.seq().0]).await?;
    let bytes = rows.first().map(|row| row.try_get::<_, i64>(0)).transpose()?.unwrap_or_default();
    Ok(Some(RunWeight { run, bytes: bytes.unsigned_abs() }))
}

pub async fn material(conn: &Conn, id: RunId, reach: &Reach) -> Result<Option<RunMaterial>> {
    let Some(run) = found(conn, id, reach).await? else { return Ok(None) };
    let found = query(conn, sql::RUN_TASKS_GET, &[&id.seq().0]).await?;
    let mut waits: HashMap<Seq, Vec<Seq>> = found.iter().map(depends_on).collect::<Result<_>>()?;
    let seqs: Vec<Seq> = found.iter().map(rows::seq).collect::<Result<_>>()?;
    let views = read::views(conn, &seqs).await?;
    let tasks = views.into_iter().map(|view| {
        let waits = waits.remove(&view.body.seq()).unwrap_or_default();
        (view, waits)
    });
    Ok(Some(RunMaterial { run, tasks: tasks.collect() }))
}

pub async fn upstream(conn: &Conn, row: Seq) -> Result<Vec<Upstream>> {
    let found = query(conn, sql::RUN_TASK_GET, &[&row.0]).await?;
    let Some((_, waits)) = found.first().map(depends_on).transpose()? else { return Ok(Vec::new()) };
    let open = query(conn, sql::RUN_TASK_STATES, &[&numbers(&waits)]).await?;
    let upstream = open.iter().map(|row| {
        Ok(Upstream {
            task: TaskId::from_u128(row.try_get::<_, Uuid>(0)?.as_u128()),
            key: rows::text(row, 1)?,
            state: codec::task_state(row.try_get(2)?),
        })
    });
    upstream.collect()
}
