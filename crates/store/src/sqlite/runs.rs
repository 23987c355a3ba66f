//! Runs: what a batch needs of them, what it writes, and what people look at.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row, params};
use tenure_core::batch::{KnownRun, World, Writes};
use tenure_core::command::Reach;
use tenure_core::queue::QueueId;
use tenure_core::run::{Edge, Run, Upstream};
use tenure_core::task::Place;
use tenure_core::{RunId, Seq, Timestamp};

use super::load::{self, Finder};
use super::{Cache, read, rows, sql};
use crate::codec::{self, PRUNED_RUNS, Pruning};
use crate::model::{Page, Retention, RunFilter, RunMaterial, RunTaskView, RunView, RunWeight};
use crate::needs::{self, Needs};
use crate::store::Batch;

type Result<T> = rusqlite::Result<T>;

/// Runs that the batch names and those of ended tasks that it may change; of the runs to cancel also all that has not.
pub fn named(
    tx: &Connection,
    finder: &mut Finder<'_>,
    batch: &Batch,
    needs: &Needs<'_>,
    world: &mut World,
) -> Result<()> {
    for run in &needs.cancel_runs {
        let mut statement = tx.prepare_cached(sql::RUN_TASKS_OPEN)?;
        let open: Vec<Seq> = statement.query_map([run.0], |row| row.get(0).map(Seq))?.collect::<Result<_>>()?;
        for row in open.iter().filter(|row| !world.tasks.contains_key(row)).copied().collect::<Vec<_>>() {
            if let Some(task) = finder.task(row)? {
                world.add_task(task);
            }
        }
        world.members.insert(*run, open);
    }
    let mut wanted = needs::runs_of_ended(batch, needs, world);
    wanted.extend(needs.cancel_runs.iter().chain(&needs.made_runs));
    add(tx, &wanted, world)?;
    for scope in &needs.run_keys {
        let (tenant, workspace, key) = scope;
        if let Some(known) = of_key(tx, tenant, workspace, key)? {
            world.run_keys.insert(scope.clone(), known);
        }
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

fn add(tx: &Connection, wanted: &BTreeSet<Seq>, world: &mut World) -> Result<()> {
    for row in wanted {
        if let Some(run) = tx.prepare_cached(sql::RUNS_GET)?.query_row([row.0], rows::run).optional()? {
            world.add_run(run);
        }
    }
    Ok(())
}

/// Draws the consequences of what the batch has ended. The cost is one step per edge.
pub fn consequences(tx: &Connection, cache: &mut Cache, world: &mut World) -> Result<()> {
    while let Some(ends) = world.ends() {
        add(tx, &ends.runs, world)?;
        world.absent_runs.extend(ends.runs.iter().filter(|run| !world.runs.contains_key(run)));
        let edges = edges(tx, &ends.satisfied, &ends.broken)?;
        let mut finder = Finder::new(tx)?;
        for row in needs::behind(world, &edges) {
            if let Some(task) = finder.task(row)?.filter(|task| matches!(task.place, Place::Blocked(_))) {
                world.add_task(task);
            }
        }
        load::queues_of_tasks(tx, cache, world)?;
        world.follow(&edges);
        fill(tx, world)?;
    }
    Ok(())
}

/// Reads what tasks ask for that wait for nothing else any more: not more of it at a time than fits into memory.
fn fill(tx: &Connection, world: &mut World) -> Result<()> {
    let referring = world.referring();
    let mut bytes = HashMap::new();
    for row in referring.iter().flat_map(|one| &one.outputs).copied().collect::<BTreeSet<Seq>>() {
        let size = tx.prepare_cached(sql::FINISHED_RESULT_SIZES)?.query_row([row.0], |row| row.get(0)).optional()?;
        bytes.extend(size.map(|size: i64| (row, usize::try_from(size).unwrap_or(0))));
    }
    let mut rest = &referring[..];
    while !rest.is_empty() {
        let (count, named) = world.next_to_fill(rest, &bytes);
        let (now, later) = rest.split_at(count.max(1));
        let wanted: Vec<Seq> = now.iter().map(|one| one.task).collect();
        let bodies = load::bodies(tx, &wanted)?;
        let mut outputs = HashMap::new();
        for row in named {
            let result: Option<Option<Arc<str>>> =
                tx.prepare_cached(sql::FINISHED_RESULTS)?.query_row([row.0], |row| row.get(0)).optional()?;
            outputs.extend(result.map(|result| (row, result)));
        }
        world.fill_these(&wanted, &bodies, &outputs);
        rest = later;
    }
    Ok(())
}

/// The edges of the first, and all that can be reached from the second.
fn edges(tx: &Connection, satisfied: &BTreeSet<Seq>, broken: &BTreeSet<Seq>) -> Result<Vec<Edge>> {
    let mut statement = tx.prepare_cached(sql::EDGES_GET)?;
    let mut edges = Vec::new();
    let mut seen = HashSet::new();
    let mut line: Vec<(Seq, bool)> = satisfied.iter().map(|row| (*row, false)).collect();
    line.extend(broken.iter().map(|row| (*row, true)));
    while let Some((upstream, on)) = line.pop() {
        if !seen.insert(upstream) {
            continue;
        }
        let behind = statement.query_map([upstream.0], |row| row.get(0).map(Seq))?;
        for downstream in behind.collect::<Result<Vec<Seq>>>()? {
            edges.push(Edge { upstream, downstream });
            if on {
                line.push((downstream, true));
            }
        }
    }
    Ok(edges)
}

pub fn save(tx: &Connection, writes: &Writes) -> Result<()> {
    for run in &writes.new_runs {
        let mut statement = tx.prepare_cached(sql::RUN_INSERT)?;
        rows::insert_run(&mut statement, run)?;
    }
    let mut task = tx.prepare_cached(sql::RUN_TASKS_INSERT)?;
    for row in &writes.run_tasks {
        task.execute(params![row.task.0, row.run.0, codec::encode_rows(&row.depends_on)])?;
    }
    let mut edge = tx.prepare_cached(sql::EDGES_INSERT)?;
    for row in &writes.edges {
        edge.execute([row.upstream.0, row.downstream.0])?;
    }
    let mut resolved = tx.prepare_cached(sql::EDGES_DELETE)?;
    for row in &writes.resolved {
        resolved.execute([row.0])?;
    }
    for run in &writes.runs {
        let counts = &run.counts;
        tx.prepare_cached(sql::RUN_SAVE)?.execute(params![
            run.id.seq().0,
            run.finished_at.map(Timestamp::as_millis),
            run.cancel_reason,
            counts.open,
            counts.succeeded,
            counts.failed,
            counts.skipped,
            counts.canceled,
            codec::run_state_code(run.state()),
        ])?;
    }
    let mut fill = tx.prepare_cached(sql::BODIES_FILL)?;
    for (row, payload) in &writes.payloads {
        fill.execute(params![row.0, payload])?;
    }
    Ok(())
}

/// Removes runs that nobody needs any more, with their tasks. Gives how many tasks that were.
pub fn prune(
    tx: &Connection,
    retention: &Retention,
    now: Timestamp,
    excess: bool,
    limit: usize,
    pruning: &mut Pruning,
) -> Result<usize> {
    let [keys, failed, others] = codec::runs_before(retention, now, excess).map(Timestamp::as_millis);
    let runs: Vec<i64> = tx
        .prepare_cached(sql::RUNS_PRUNE)?
        .query_map(params![keys, failed, others, PRUNED_RUNS], |row| row.get(0))?
        .collect::<Result<_>>()?;
    let mut removed = 0;
    for run in runs {
        let gone: Vec<(i64, i32, bool)> = tx
            .prepare_cached(sql::RUN_TASKS_FINISHED)?
            .query_map([run, limit.saturating_sub(removed) as i64], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
            .collect::<Result<_>>()?;
        for (seq, queue, dead_lettered) in &gone {
            pruning.count_gone(QueueId(*queue), *dead_lettered);
            for statement in [sql::FINISHED_DELETE, sql::ATTEMPTS_DELETE, sql::BODIES_DELETE] {
                tx.prepare_cached(statement)?.execute([seq])?;
            }
        }
        // A run without tasks counts as something that went, too.
        removed += gone.len().max(1);
        if removed >= limit {
            // The rest of a large run goes in the next step, and then the run itself.
            tx.prepare_cached(sql::RUN_DOOM)?.execute([run])?;
            break;
        }
        tx.prepare_cached(sql::RUN_TASKS_DELETE)?.execute([run])?;
        tx.prepare_cached(sql::RUNS_DELETE)?.execute([run])?;
    }
    Ok(removed)
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
        between.0,
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
