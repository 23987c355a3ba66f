//! Writes what a batch has changed, and commits: all statements travel together.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt, join_all};
use tenure_core::Timestamp;
use tenure_core::batch::{Saved, Write, Writes};
use tenure_core::queue::Queue;
use tokio_postgres::Statement;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::columns::{self, Columns, Split};
use super::conn::{Conn, commit_failed, failed};
use super::rows::{self, Time};
use super::{Postgres, dags, outbox, runs, sql};
use crate::codec;
use crate::dags::plan::DataWrites;
use crate::error::StoreError;

/// A statement and its arrays, ready to be sent.
struct Step<'a> {
    name: &'static str,
    statement: Statement,
    columns: Columns<'a>,
}

/// Writes, reads what the answers need, and commits.
pub async fn write(store: &Postgres, conn: &Conn, write: &Write) -> Result<Saved, StoreError> {
    let (writes, now) = (&write.writes, write.now);
    let finish = columns::split(&writes.tasks.finish);
    let data = DataWrites::of(&writes.data, &writes.artifacts);
    let steps = steps(conn, writes, &finish, &data, now).await.map_err(|error| failed("prepare a batch", error))?;
    let prepare = async |sql| conn.prepare_cached(sql).await.map_err(|error| failed("prepare a batch", error));
    let bodies = prepare(sql::BODIES_GET).await?;
    let receipts = prepare(sql::OUTBOX_RECEIPTS).await?;
    let settle = prepare(sql::OUTBOX_SETTLE).await?;
    for step in &steps {
        store.faults.before(step.name)?;
    }
    let wanted: Vec<i64> = write.bodies.iter().map(|seq| seq.0).collect();
    let mut sent: Vec<BoxFuture<'_, Result<Vec<tokio_postgres::Row>, tokio_postgres::Error>>> = Vec::new();
    if !wanted.is_empty() {
        sent.push(async { conn.query(&bodies, &[&wanted]).await }.boxed());
    }
    if !write.receipts.is_empty() {
        sent.push(async { conn.query(&receipts, &[&write.receipts]).await }.boxed());
    }
    if !writes.settled.is_empty() {
        store.faults.before("settle wake-ups")?;
        sent.push(async { conn.query(&settle, &[&writes.settled]).await }.boxed());
    }
    for step in &steps {
        let params: Vec<&(dyn ToSql + Sync)> = step.columns.iter().map(|column| &**column as _).collect();
        sent.push(async move { conn.query(&step.statement, &params).await }.boxed());
    }
    store.faults.before("commit")?;
    sent.push(async { conn.batch_execute("COMMIT").await.map(|()| Vec::new()) }.boxed());
    // Polled in order, so sent in order. Should one statement fail, the server turns the commit into a rollback.
    let mut answers = join_all(sent).await;
    let commit = answers.pop();
    let answers = answers.into_iter().collect::<Result<Vec<_>, _>>().map_err(commit_failed)?;
    commit.transpose().map_err(commit_failed)?;
    store.faults.after("commit")?;
    let mut answers = answers.into_iter();
    let mut next = |sent: bool| if sent { answers.next().unwrap_or_default() } else { Vec::new() };
    let (bodies, receipts, settled) =
        (next(!wanted.is_empty()), next(!write.receipts.is_empty()), next(!writes.settled.is_empty()));
    let read = || -> rows::Result<Saved> {
        let bodies = bodies.iter().map(|row| rows::body(row).map(|body| (body.seq(), Arc::new(body))));
        Ok(Saved {
            bodies: bodies.collect::<rows::Result<_>>()?,
            receipts: receipts.iter().map(outbox::receipt).collect::<rows::Result<_>>()?,
            settled: settled.iter().map(outbox::removed).collect::<rows::Result<_>>()?,
        })
    };
    read().map_err(|error| failed("read what was written", error))
}

async fn steps<'a>(
    conn: &Conn,
    w: &'a Writes,
    finish: &'a [Split<'a>],
    data: &'a DataWrites,
    now: Timestamp,
) -> Result<Vec<Step<'a>>, tokio_postgres::Error> {
    let mut plan: Vec<(&'static str, &'static str, Columns<'a>)> = Vec::new();
    for (name, sql, seqs) in [
        ("delete blocked", sql::BLOCKED_DELETE, &w.tasks.unblock),
        ("delete edges", sql::EDGES_DELETE, &w.runs.resolved),
        ("delete scheduled", sql::SCHEDULED_DELETE, &w.tasks.unschedule),
        ("delete ready", sql::READY_DELETE, &w.tasks.unready),
        ("delete running", sql::RUNNING_DELETE, &w.tasks.unrun),
        ("delete finished", sql::FINISHED_DELETE, &w.tasks.unfinish),
    ] {
        if !seqs.is_empty() {
            plan.push((name, sql, vec![Box::new(seqs.iter().map(|seq| seq.0).collect::<Vec<_>>())]));
        }
    }
    let mut rows = |name, sql, some: bool, columns: &dyn Fn() -> Columns<'a>| {
        if some {
            plan.push((name, sql, columns()));
        }
    };
    rows("insert bodies", sql::BODIES_INSERT, !w.tasks.bodies.is_empty(), &|| columns::bodies(&w.tasks.bodies));
    rows("insert blocked", sql::BLOCKED_INSERT, !w.tasks.block.is_empty(), &|| columns::blocked(&w.tasks.block));
    rows("count down", sql::BLOCKED_COUNT_DOWN, !w.tasks.count_down.is_empty(), &|| {
        vec![
            Box::new(w.tasks.count_down.iter().map(|(seq, _)| seq.0).collect::<Vec<_>>()),
            Box::new(w.tasks.count_down.iter().map(|(_, waiting_on)| waiting_on.cast_signed()).collect::<Vec<_>>()),
        ]
    });
    rows("fill payloads", sql::BODIES_FILL, !w.runs.payloads.is_empty(), &|| {
        vec![
            Box::new(w.runs.payloads.iter().map(|(seq, _)| seq.0).collect::<Vec<_>>()),
            Box::new(w.runs.payloads.iter().map(|(_, payload)| &**payload).collect::<Vec<_>>()),
        ]
    });
    rows("insert tasks of runs", sql::RUN_TASKS_INSERT, !w.runs.tasks.is_empty(), &|| runs::run_tasks(&w.runs.tasks));
    rows("insert edges", sql::EDGES_INSERT, !w.runs.edges.is_empty(), &|| runs::edges(&w.runs.edges));
    rows("insert scheduled", sql::SCHEDULED_INSERT, !w.tasks.schedule.is_empty(), &|| {
        columns::waiting(&w.tasks.schedule)
    });
    rows("insert ready", sql::READY_INSERT, !w.tasks.ready.is_empty(), &|| columns::waiting(&w.tasks.ready));
    if columns::are_fresh(&w.tasks.run) {
        rows("insert running", sql::RUNNING_INSERT_FRESH, !w.tasks.run.is_empty(), &|| columns::fresh(&w.tasks.run));
    } else {
        rows("insert running", sql::RUNNING_INSERT, true, &|| columns::running(&w.tasks.run));
    }
    rows("renew running", sql::RUNNING_RENEW, !w.tasks.renew.is_empty(), &|| columns::renewed(&w.tasks.renew));
    if columns::are_plain(finish) {
        rows("insert finished", sql::FINISHED_INSERT_PLAIN, !finish.is_empty(), &|| columns::plain(finish));
    } else {
        rows("insert finished", sql::FINISHED_INSERT, true, &|| columns::finished(finish));
    }
    rows("drop attempts", sql::ATTEMPTS_DELETE_NAMED, !w.tasks.drop_attempts.is_empty(), &|| {
        vec![
            Box::new(w.tasks.drop_attempts.iter().map(|(seq, _)| seq.0).collect::<Vec<_>>()),
            Box::new(w.tasks.drop_attempts.iter().map(|(_, number)| number.cast_signed()).collect::<Vec<_>>()),
        ]
    });
    rows("put attempts", sql::ATTEMPTS_PUT, !w.tasks.attempts.is_empty(), &|| columns::attempts(&w.tasks.attempts));
    rows("write counts", sql::COUNTS_ADD, !w.queues.counts.is_empty(), &|| counts(w));
    for queue in &w.queues.deleted {
        // In this order: the name and the number of ended tasks are read from what is removed.
        rows("keep the name of a queue", sql::DELETED_QUEUE_PUT, true, &|| vec![Box::new(queue.id.0)]);
        rows("delete counts", sql::COUNTS_DELETE, true, &|| vec![Box::new(queue.id.0)]);
        rows("delete a queue", sql::QUEUE_DELETE, true, &|| vec![Box::new(queue.id.0)]);
    }
    rows("write facts", sql::EVENT_INSERT, !w.facts.is_empty(), &|| {
        vec![Box::new(Time(now)), Box::new(codec::encode_facts(&w.facts))]
    });
    rows("insert effects", sql::OUTBOX_INSERT, !w.effects.is_empty(), &|| outbox::columns(&w.effects, now));
    for run in &w.runs.new {
        plan.push(("insert a run", sql::RUN_INSERT, runs::new_run(run)));
    }
    for run in &w.runs.changed {
        plan.push(("write a run", sql::RUN_SAVE, runs::saved_run(run)));
    }
    for queue in &w.queues.changed {
        plan.push(("write a queue", sql::QUEUE_SAVE, queue_columns(queue)));
    }
    for hello in &w.hellos {
        let columns: Columns<'a> = vec![Box::new(&*hello.worker), Box::new(&*hello.incarnation), Box::new(Time(now))];
        plan.push(("write a worker", sql::WORKERS_PUT, columns));
    }
    for redrive in &w.redrives {
        let columns: Columns<'a> = vec![
            Box::new(Uuid::from_u128(redrive.redrive_id)),
            Box::new(redrive.cursor.0),
            Box::new(redrive.released.cast_signed()),
            Box::new(redrive.finished),
        ];
        plan.push(("write a redrive", sql::REDRIVE_STEP, columns));
    }
    plan.extend(dags::save::steps(data, now));
    let mut steps = Vec::with_capacity(plan.len());
    for (name, sql, columns) in plan {
        steps.push(Step { name, statement: conn.prepare_cached(sql).await?, columns });
    }
    for queue in w.queues.changed.iter().filter(|queue| w.queues.refair.contains(&queue.id)) {
        // Rows carry the value that grants rotate over, so a new key means new values. Running tasks may return to the
        // queue.
        for statement in [sql::READY_REFAIR, sql::SCHEDULED_REFAIR, sql::RUNNING_REFAIR, sql::BLOCKED_REFAIR] {
            let (kind, tag) = codec::fairness_key(queue.settings.fairness_key.as_ref());
            let statement = conn.prepare_cached(statement).await?;
            let columns: Columns<'a> = vec![Box::new(queue.id.0), Box::new(kind), Box::new(tag.map(ToOwned::to_owned))];
            steps.push(Step { name: "rewrite fairness", statement, columns });
        }
    }
    Ok(steps)
}

fn counts(w: &Writes) -> Columns<'static> {
    let column = |pick: fn(&tenure_core::batch::Counts) -> i64| -> Box<dyn ToSql + Sync + Send> {
        Box::new(w.queues.counts.values().map(pick).collect::<Vec<_>>())
    };
    vec![
        Box::new(w.queues.counts.keys().map(|queue| queue.0).collect::<Vec<_>>()),
        column(|c| c.blocked),
        column(|c| c.scheduled),
        column(|c| c.ready),
        column(|c| c.running),
        column(|c| c.finished),
        column(|c| c.dead_lettered),
    ]
}

fn queue_columns(queue: &Queue) -> Columns<'static> {
    let settings = &queue.settings;
    vec![
        Box::new(queue.id.0),
        Box::new(queue.paused),
        Box::new(settings.max_running.map(u32::cast_signed)),
        Box::new(settings.rate.map(|rate| rate.per_second)),
        Box::new(settings.rate.map(|rate| rate.burst)),
        Box::new(settings.fairness_key.as_ref().map(ToString::to_string)),
        Box::new(settings.lease_ttl_ms),
        Box::new(settings.heartbeat_ms),
        Box::new(settings.no_dead_letter),
        Box::new(queue.bucket.level.map(|(tokens, _)| tokens)),
        Box::new(queue.bucket.level.map(|(_, at)| Time(at))),
        Box::new(queue.fair_cursor.as_deref().map(ToOwned::to_owned)),
        Box::new(codec::transport(queue.transport)),
        Box::new(codec::encode_push(queue)),
        Box::new(settings.strict),
        Box::new(codec::encode_dispatch(queue)),
    ]
}
