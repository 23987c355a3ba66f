//! Runs: what a batch needs of them, what it writes, and what people look at.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row, params};
use tenure_core::batch::{KnownRun, RunLoad, RunWrites, World};
use tenure_core::command::Reach;
use tenure_core::run::{Edge, Run, Upstream};
use tenure_core::{RunId, Seq, Timestamp};

use super::load::{self, Finder};
use super::save::each;
use super::{read, rows, sql};
use crate::codec;
use crate::model::{Page, RunFilter, RunMaterial, RunTaskView, RunView, RunWeight};

type Result<T> = rusqlite::Result<T>;

pub fn load(tx: &Connection, load: &RunLoad, world: &mut World) -> Result<()> {
    if *load == RunLoad::default() {
        return Ok(());
    }
    for row in &load.rows {
        let run = tx.prepare_cached(sql::RUNS_GET)?.query_row([row.0], rows::run).optional()?;
        run.into_iter().for_each(|run| world.add_run(run));
    }
    for scope in &load.keys {
        let known = of_key(tx, &scope.0, &scope.1, &scope.2)?;
        known.into_iter().for_each(|known| world.add_run_key(scope.clone(), known));
    }
    let mut finder = Finder::new(tx);
    for run in &load.members {
        let mut open = tx.prepare_cached(sql::RUN_TASKS_OPEN)?;
        for row in open.query_map([run.0], |row| row.get(0).map(Seq))?.collect::<Result<Vec<_>>>()? {
            world.add_member(*run, row);
            finder.task(row)?.into_iter().for_each(|task| world.add_task(task));
        }
    }
    edges(tx, load, world)?;
    for row in &load.result_sizes {
        let size =
            tx.prepare_cached(sql::FINISHED_RESULT_SIZES)?.query_row([row.0], |row| row.get::<_, i64>(0)).optional()?;
        size.into_iter().for_each(|size| world.add_result_size(*row, usize::try_from(size).unwrap_or(0)));
    }
    for row in &load.results {
        let result = tx.prepare_cached(sql::FINISHED_RESULTS)?.query_row([row.0], |row| row.get(0)).optional()?;
        result.into_iter().for_each(|result| world.add_result(*row, result));
    }
    for body in load::bodies(tx, &load.bodies)?.into_values() {
        world.add_whole_body(body);
    }
    Ok(())
}

fn of_key(tx: &Connection, tenant: &str, workspace: &str, key: &str) -> Result<Option<KnownRun>> {
    let known = |row: &Row<'_>| {
        let id = RunId::from_u128(u128::from_be_bytes(row.get(0)?));
        Ok(KnownRun { id, owner: row.get(1)?, fingerprint: row.get(2)? })
    };
    tx.prepare_cached(sql::RUNS_OF_KEYS)?.query_row([tenant, workspace, key], known).optional()
}

fn edges(tx: &Connection, load: &RunLoad, world: &mut World) -> Result<()> {
    let mut statement = tx.prepare_cached(sql::EDGES_GET)?;
    let mut seen = HashSet::new();
    let mut line: Vec<(Seq, bool)> = load.satisfied.iter().map(|row| (*row, false)).collect();
    line.extend(load.broken.iter().map(|row| (*row, true)));
    while let Some((upstream, on)) = line.pop() {
        if !seen.insert(upstream) {
            continue;
        }
        let next = statement.query_map([upstream.0], |row| row.get(0).map(Seq))?;
        for downstream in next.collect::<Result<Vec<Seq>>>()? {
            world.add_edge(Edge { upstream, downstream });
            if on {
                line.push((downstream, true));
            }
        }
    }
    Ok(())
}

pub fn save(tx: &Connection, writes: &RunWrites) -> Result<()> {
    each(tx, sql::RUN_INSERT, &writes.new, rows::insert_run)?;
    each(tx, sql::RUN_TASKS_INSERT, &writes.tasks, |put, row| {
        put.execute(params![row.task.0, row.run.0, codec::encode_rows(&row.depends_on)]).map(drop)
    })?;
    each(tx, sql::EDGES_INSERT, &writes.edges, |put, row| put.execute([row.upstream.0, row.downstream.0]).map(drop))?;
    each(tx, sql::EDGES_DELETE, &writes.resolved, |delete, row| delete.execute([row.0]).map(drop))?;
    each(tx, sql::RUN_SAVE, &writes.changed, |save, run| {
        let counts = &run.counts;
        let params = params![
            run.id.seq().0,
            run.finished_at.map(Timestamp::as_millis),
            run.cancel_reason,
            counts.open,
            counts.succeeded,
            counts.failed,
            counts.skipped,
            counts.canceled,
            codec::run_state_code(run.state()),
        ];
        save.execute(params).map(drop)
    })?;
    each(tx, sql::BODIES_FILL, &writes.payloads, |fill, (row, payload)| fill.execute(params![row.0, payload]).map(drop))
}

fn found(tx: &Connection, id: RunId, reach: &Reach) -> Result<Option<Run>> {
    let found = tx.prepare_cached(sql::RUNS_GET)?.query_row([id.seq().0], rows::run).optional()?;
    Ok(found.filter(|run| run.id == id && reach.covers(&run.tenant, run.owner.as_deref())))
}

pub fn view(tx: &Connection, id: RunId, reach: &Reach) -> Result<Option<RunView>> {
    let Some(run) = found(tx, id, reach)? else { return Ok(None) };
    let mut statement = tx.prepare_cached(sql::RUN_SHOW)?;
    let found = statement.query_map([id.seq().0], rows::run_task)?.collect::<Result<Vec<_>>>()?;
    let keys: BTreeMap<Seq, Arc<str>> = found.iter().map(|(task, _)| (task.id.seq(), Arc::clone(&task.key))).collect();
    let tasks = found.into_iter().map(|(task, waits)| {
        let depends_on = waits.iter().filter_map(|row| keys.get(row)).cloned().collect();
        RunTaskView { depends_on, ..task }
    });
    Ok(Some(RunView { run, tasks: tasks.collect() }))
}

pub fn list(tx: &Connection, filter: &RunFilter) -> Result<Page<Run>> {
    let mut between = (i64::MIN, filter.before.map_or(i64::MAX, |seq| seq.0));
    // A whole key names one run: all others are left alone.
    if let (Some(tenant), Some(workspace), Some(key)) = (filter.reach.tenant(), &filter.workspace, &filter.run_key) {
        let Some(known) = of_key(tx, tenant, workspace, key)? else {
            return Ok(Page { items: Vec::new(), next: None });
        };
        let seq = known.id.seq().0;
        between = (seq, between.1.min(seq + 1));
    }
    let label = filter.label.as_ref().and_then(|(name, value)| codec::tag_pattern(name, value));
    let (floor, [a, b, c, d]) = read::id_search(tx, sql::RUNS_NTH, filter.id_prefix.as_ref())?;
    let params = params![
        between.1,
        filter.reach.tenant(),
        filter.reach.owner(),
        filter.workspace,
        filter.run_key,
        label,
        filter.after.map(Timestamp::as_millis),
        filter.until.map(Timestamp::as_millis),
        filter.state.map(codec::run_state_code),
        filter.limit as i64 + 1,
        between.0.max(floor),
        a,
        b,
        c,
        d,
    ];
    let mut items: Vec<Run> =
        tx.prepare_cached(sql::RUNS_LIST)?.query_map(params, rows::run)?.collect::<Result<_>>()?;
    let more = items.len() > filter.limit;
    items.truncate(filter.limit);
    let next = items.last().filter(|_| more).map(|run| run.id.seq().0.to_string());
    Ok(Page { items, next })
}

fn depends_on(row: &Row<'_>) -> Result<(Seq, Vec<Seq>)> {
    let seq: i64 = row.get(0)?;
    let waits: Option<String> = row.get(1)?;
    Ok((Seq(seq), codec::decode(waits.as_deref(), "run_tasks.depends_on", seq)))
}

pub fn weight(tx: &Connection, id: RunId, reach: &Reach) -> Result<Option<RunWeight>> {
    let Some(run) = found(tx, id, reach)? else { return Ok(None) };
    let bytes: i64 = tx.prepare_cached(sql::RUN_WEIGHT)?.query_row([id.seq().0], |row| row.get(0))?;
    Ok(Some(RunWeight { run, bytes: bytes.unsigned_abs() }))
}

pub fn material(tx: &Connection, id: RunId, reach: &Reach) -> Result<Option<RunMaterial>> {
    let Some(run) = found(tx, id, reach)? else { return Ok(None) };
    let mut statement = tx.prepare_cached(sql::RUN_TASKS_GET)?;
    let mut tasks = Vec::new();
    for (row, waits) in statement.query_map([id.seq().0], depends_on)?.collect::<Result<Vec<_>>>()? {
        tasks.extend(read::view(tx, row)?.map(|view| (view, waits)));
    }
    Ok(Some(RunMaterial { run, tasks }))
}

pub fn upstream(tx: &Connection, row: Seq) -> Result<Vec<Upstream>> {
    let found = tx.prepare_cached(sql::RUN_TASK_GET)?.query_row([row.0], depends_on).optional()?;
    let mut statement = tx.prepare_cached(sql::RUN_TASK_STATES)?;
    let mut upstream = Vec::new();
    for row in found.map(|(_, waits)| waits).unwrap_or_default() {
        upstream.extend(statement.query_row([row.0], rows::upstream).optional()?);
    }
    Ok(upstream)
}
