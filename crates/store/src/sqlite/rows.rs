//! Rows of SQLite as the core's types, and back.

use std::sync::Arc;

use rusqlite::types::{FromSql, ToSql};
use rusqlite::{Row, Statement, params};
use serde::de::DeserializeOwned;
use tenure_core::attempt::{ClosedAttempt, Failure, Progress, Receipt};
use tenure_core::batch::Counts;
use tenure_core::lease::Lease;
use tenure_core::queue::{Bucket, FairnessKey, Queue, QueueId, QueueSettings, Rate, Transport};
use tenure_core::retention::Prunable;
use tenure_core::run::{InRun, Run, RunCounts, Upstream};
use tenure_core::task::{Blocked, Body, CancelRequest, Carry, FailReason, Finished, Idempotency, Running, Waiting};
use tenure_core::{AttemptId, Fence, LeaseToken, RunId, Seq, TaskId, Timestamp};

use crate::codec::{self, FinalAttempt, PushColumns, SpecTexts};
use crate::model::RunTaskView;

type Result<T> = rusqlite::Result<T>;

/// The cells of a row, read in the order in which the statements name their columns. Looking a column up by its name
/// costs more than reading it.
struct Cells<'a, 's> {
    row: &'a Row<'s>,
    next: usize,
}

impl<'a, 's> Cells<'a, 's> {
    fn of(row: &'a Row<'s>) -> Self {
        Self { row, next: 0 }
    }

    fn get<T: FromSql>(&mut self) -> Result<T> {
        let column = self.next;
        self.next += 1;
        self.row.get(column)
    }

    fn time(&mut self) -> Result<Timestamp> {
        self.get().map(Timestamp::from_millis)
    }

    fn time_if(&mut self) -> Result<Option<Timestamp>> {
        Ok(self.get::<Option<i64>>()?.map(Timestamp::from_millis))
    }

    fn bits(&mut self) -> Result<u128> {
        self.get::<[u8; 16]>().map(u128::from_be_bytes)
    }

    fn bits_if(&mut self) -> Result<Option<u128>> {
        Ok(self.get::<Option<[u8; 16]>>()?.map(u128::from_be_bytes))
    }

    fn id(&mut self) -> Result<TaskId> {
        self.bits().map(TaskId::from_u128)
    }

    fn queue(&mut self) -> Result<QueueId> {
        self.get().map(QueueId)
    }

    fn fence(&mut self) -> Result<Fence> {
        self.get::<i64>().map(|fence| Fence(fence.unsigned_abs()))
    }

    fn receipt(&mut self) -> Result<Option<Receipt>> {
        Ok(self.get::<Option<i16>>()?.map(codec::receipt_from))
    }

    fn carry(&mut self, seq: i64) -> Result<Carry> {
        let column = self.next;
        self.next += 1;
        Ok(codec::decode_carry(self.row.get_ref(column)?.as_str_or_null()?, seq))
    }

    /// JSON of what is rare; mostly there is none.
    fn decoded<T: DeserializeOwned + Default>(&mut self, what: &'static str, seq: i64) -> Result<T> {
        let column = self.next;
        self.next += 1;
        let text = self.row.get_ref(column)?.as_str_or_null()?;
        Ok(codec::decode(text, what, seq))
    }
}

pub fn waiting(row: &Row<'_>) -> Result<(TaskId, Waiting)> {
    let mut cells = Cells::of(row);
    let (seq, id) = (cells.get()?, cells.id()?);
    let (queue, priority, at, fair, message, attempt, fence) =
        (cells.queue()?, cells.get()?, cells.time()?, cells.get()?, cells.get()?, cells.get()?, cells.fence()?);
    let _deadline = cells.time_if()?;
    let carry = cells.carry(seq)?;
    Ok((id, Waiting { queue, priority, at, fair, message, attempt, fence, carry }))
}

pub fn insert_waiting(
    statement: &mut Statement<'_>,
    id: TaskId,
    waiting: &Waiting,
    specs: &mut SpecTexts,
) -> Result<()> {
    statement.execute(params![
        id.seq().0,
        id.as_u128().to_be_bytes(),
        waiting.queue.0,
        waiting.priority,
        waiting.at.as_millis(),
        waiting.fair,
        waiting.message,
        waiting.attempt,
        waiting.fence.0.cast_signed(),
        waiting.carry.spec.deadline.map(Timestamp::as_millis),
        specs.of_carry(&waiting.carry),
    ])?;
    Ok(())
}

pub fn blocked(row: &Row<'_>) -> Result<(TaskId, Blocked)> {
    let mut cells = Cells::of(row);
    let (seq, id) = (cells.get()?, cells.id()?);
    let (queue, priority, waiting_on, at, fair) =
        (cells.queue()?, cells.get()?, cells.get()?, cells.time()?, cells.get()?);
    let _deadline = cells.time_if()?;
    let carry = cells.carry(seq)?;
    Ok((id, Blocked { queue, priority, waiting_on, at, fair, carry }))
}

pub fn insert_blocked(statement: &mut Statement<'_>, id: TaskId, blocked: &Blocked) -> Result<()> {
    statement.execute(params![
        id.seq().0,
        id.as_u128().to_be_bytes(),
        blocked.queue.0,
        blocked.priority,
        blocked.waiting_on,
        blocked.at.as_millis(),
        blocked.fair,
        blocked.carry.spec.deadline.map(Timestamp::as_millis),
        codec::encode_carry(&blocked.carry),
    ])?;
    Ok(())
}

pub fn run(row: &Row<'_>) -> Result<Run> {
    let mut cells = Cells::of(row);
    let seq: i64 = cells.get()?;
    Ok(Run {
        id: RunId::from_u128(cells.bits()?),
        key: cells.get()?,
        tenant: cells.get()?,
        workspace: cells.get()?,
        owner: cells.get()?,
        fingerprint: cells.get()?,
        labels: cells.decoded("runs.labels", seq)?,
        deadline: cells.time_if()?,
        parent: cells.bits_if()?.map(RunId::from_u128),
        created_at: cells.time()?,
        finished_at: cells.time_if()?,
        cancel_reason: cells.get()?,
        counts: RunCounts {
            open: cells.get()?,
            succeeded: cells.get()?,
            failed: cells.get()?,
            skipped: cells.get()?,
            canceled: cells.get()?,
        },
    })
}

pub fn insert_run(statement: &mut Statement<'_>, run: &Run) -> Result<()> {
    let params: [&dyn ToSql; 19] = [
        &run.id.seq().0,
        &run.id.as_u128().to_be_bytes(),
        &run.key,
        &run.tenant,
        &run.workspace,
        &run.owner,
        &run.fingerprint,
        &codec::encode_tags(&run.labels),
        &run.deadline.map(Timestamp::as_millis),
        &run.parent.map(|parent| parent.as_u128().to_be_bytes()),
        &run.created_at.as_millis(),
        &run.finished_at.map(Timestamp::as_millis),
        &run.cancel_reason,
        &run.counts.open,
        &run.counts.succeeded,
        &run.counts.failed,
        &run.counts.skipped,
        &run.counts.canceled,
        &codec::run_state_code(run.state()),
    ];
    statement.execute(params.as_slice())?;
    Ok(())
}

/// A task of a run without the keys of those that it waits for: they come as rows.
pub fn upstream(row: &Row<'_>) -> Result<Upstream> {
    let mut cells = Cells::of(row);
    let task = cells.id()?;
    let key = cells.get()?;
    Ok(Upstream { key, task, state: codec::task_state(&cells.get::<String>()?) })
}

pub fn run_task(row: &Row<'_>) -> Result<(RunTaskView, Vec<Seq>)> {
    let mut cells = Cells::of(row);
    let seq: i64 = cells.get()?;
    let waits = cells.decoded("run_tasks.depends_on", seq)?;
    // The fields of a struct are evaluated in the order in which they are written here.
    let task = RunTaskView {
        depends_on: Vec::new(),
        id: cells.id()?,
        key: cells.get()?,
        operator: cells.get()?,
        queue: cells.get()?,
        state: codec::task_state(&cells.get::<String>()?),
        attempt: cells.get()?,
        started_at: cells.time_if()?,
        finished_at: cells.time_if()?,
        progress: Progress { pct: cells.get()?, message: cells.get()? },
        failure: cells.decoded::<Option<Failure>>("finished.failure", seq)?,
        cancel_reason: cells.get()?,
        due_at: cells.time_if()?,
    };
    Ok((task, waits))
}

pub fn running(row: &Row<'_>) -> Result<(TaskId, Running)> {
    let mut cells = Cells::of(row);
    let (seq, id) = (cells.get()?, cells.id()?);
    // The fields of a struct are evaluated in the order in which they are written here.
    let mut running = Running {
        queue: cells.queue()?,
        priority: cells.get()?,
        fair: cells.get()?,
        message: cells.get()?,
        lease: Lease {
            holder: codec::worker_from(cells.get()?),
            token: LeaseToken::from_u128(cells.bits()?),
            generation: cells.fence()?,
            expires_at: cells.time()?,
        },
        attempt: cells.get()?,
        attempt_id: AttemptId::from_u128(cells.bits()?),
        claim_id: cells.get()?,
        incarnation: cells.get()?,
        granted_at: cells.time()?,
        last_heartbeat_at: cells.time_if()?,
        progress: Progress { pct: cells.get()?, message: cells.get()? },
        lease_ttl_ms: cells.get()?,
        heartbeat_ms: cells.get()?,
        cancel: None,
        carry: Carry::default(),
    };
    let (reason, requested_at, signaled_at) = (cells.get::<Option<Arc<str>>>()?, cells.time_if()?, cells.time_if()?);
    running.cancel =
        reason.zip(requested_at).map(|(reason, requested_at)| CancelRequest { reason, requested_at, signaled_at });
    running.carry = cells.carry(seq)?;
    Ok((id, running))
}

pub fn insert_running(statement: &mut Statement<'_>, id: TaskId, running: &Running) -> Result<()> {
    let cancel = running.cancel.as_ref();
    let push = PushColumns::of(running);
    let params: [&dyn ToSql; 27] = [
        &id.seq().0,
        &id.as_u128().to_be_bytes(),
        &running.queue.0,
        &running.priority,
        &running.fair,
        &running.message,
        &codec::worker_id(running.lease.holder.as_ref()),
        &running.lease.token.reveal().to_be_bytes(),
        &running.lease.generation.0.cast_signed(),
        &running.lease.expires_at.as_millis(),
        &running.attempt,
        &running.attempt_id.as_u128().to_be_bytes(),
        &running.claim_id,
        &running.incarnation,
        &running.granted_at.as_millis(),
        &running.last_heartbeat_at.map(Timestamp::as_millis),
        &running.progress.pct,
        &running.progress.message,
        &running.lease_ttl_ms,
        &running.heartbeat_ms,
        &cancel.map(|cancel| &cancel.reason),
        &cancel.map(|cancel| cancel.requested_at.as_millis()),
        &cancel.and_then(|cancel| cancel.signaled_at).map(Timestamp::as_millis),
        &codec::encode_carry(&running.carry),
        &push.push_at.map(Timestamp::as_millis),
        &push.deliveries,
        &push.started_at.map(Timestamp::as_millis),
    ];
    statement.execute(params.as_slice())?;
    Ok(())
}

pub fn renew_running(statement: &mut Statement<'_>, seq: i64, running: &Running) -> Result<()> {
    let cancel = running.cancel.as_ref();
    let push = PushColumns::of(running);
    statement.execute(params![
        seq,
        running.lease.expires_at.as_millis(),
        running.last_heartbeat_at.map(Timestamp::as_millis),
        running.progress.pct,
        running.progress.message,
        cancel.map(|cancel| &cancel.reason),
        cancel.map(|cancel| cancel.requested_at.as_millis()),
        cancel.and_then(|cancel| cancel.signaled_at).map(Timestamp::as_millis),
        codec::encode_carry(&running.carry),
        codec::worker_id(running.lease.holder.as_ref()),
        push.push_at.map(Timestamp::as_millis),
        push.deliveries,
        push.started_at.map(Timestamp::as_millis),
    ])?;
    Ok(())
}

pub fn finished(row: &Row<'_>) -> Result<(TaskId, Finished)> {
    let mut cells = Cells::of(row);
    let seq: i64 = cells.get()?;
    let (queue, end, finished_at, result) =
        (cells.queue()?, codec::end_from(cells.get()?), cells.time()?, cells.get()?);
    let (failure, stack) = (cells.get::<Option<String>>()?, cells.get()?);
    let failure = codec::decode_failure(failure.as_deref(), stack, seq);
    let _error_code = cells.get::<Option<Arc<str>>>()?;
    let reason = cells.get::<Option<String>>()?.as_deref().and_then(FailReason::parse);
    let mut finished = Finished {
        queue,
        end,
        finished_at,
        result,
        failure,
        reason,
        dead_lettered_at: cells.time_if()?,
        cancel_reason: cells.get()?,
        attempt: cells.get()?,
        fence: cells.fence()?,
        carry: Carry::default(),
    };
    let (id, token, worker) = (cells.bits_if()?, cells.bits_if()?, cells.get::<Option<Arc<str>>>()?);
    let (granted_at, last_heartbeat_at, ended_at) = (cells.time_if()?, cells.time_if()?, cells.time_if()?);
    let (state, reason, receipt) = (cells.get::<Option<i16>>()?, cells.get::<Option<i16>>()?, cells.receipt()?);
    let attempt = match (id, token, worker, granted_at, state, reason) {
        (Some(id), Some(token), Some(worker), Some(granted_at), Some(state), Some(reason)) => Some(FinalAttempt {
            id: AttemptId::from_u128(id),
            token: LeaseToken::from_u128(token),
            worker: codec::worker_from(worker),
            granted_at,
            last_heartbeat_at,
            ended_at: ended_at.unwrap_or(finished.finished_at),
            state: codec::state_from(state),
            reason: codec::reason_from(reason),
            receipt,
        }),
        _ => None,
    };
    let (more, task, spec) = (cells.get::<Option<String>>()?, cells.id()?, cells.get::<Option<String>>()?);
    codec::join_finished(&mut finished, attempt, more.as_deref(), spec.as_deref(), seq);
    Ok((task, finished))
}

pub fn insert_finished(statement: &mut Statement<'_>, id: TaskId, finished: &Finished) -> Result<()> {
    let (attempt, more) = codec::split_finished(finished);
    let attempt = attempt.as_ref();
    let (failure, stack) = codec::encode_failure(finished.failure.as_ref());
    let push = PushColumns::of_last(finished);
    let params: [&dyn ToSql; 25] = [
        &id.seq().0,
        &finished.queue.0,
        &codec::end_code(finished.end),
        &finished.finished_at.as_millis(),
        &finished.result,
        &failure,
        &stack,
        &finished.failure.as_ref().map(|failure| &failure.code),
        &finished.reason.map(FailReason::as_str),
        &finished.dead_lettered_at.map(Timestamp::as_millis),
        &finished.cancel_reason,
        &finished.attempt,
        &finished.fence.0.cast_signed(),
        &attempt.map(|a| a.id.as_u128().to_be_bytes()),
        &attempt.map(|a| a.token.reveal().to_be_bytes()),
        &attempt.map(|a| codec::worker_id(a.worker.as_ref())),
        &attempt.map(|a| a.granted_at.as_millis()),
        &attempt.and_then(|a| a.last_heartbeat_at).map(Timestamp::as_millis),
        &attempt.filter(|a| a.ended_at != finished.finished_at).map(|a| a.ended_at.as_millis()),
        &attempt.map(|a| codec::state_code(a.state)),
        &attempt.map(|a| codec::reason_code(a.reason)),
        &attempt.and_then(|a| a.receipt).map(codec::receipt_code),
        &push.deliveries,
        &push.started_at.map(Timestamp::as_millis),
        &more,
    ];
    statement.execute(params.as_slice())?;
    Ok(())
}

pub fn attempt(row: &Row<'_>) -> Result<ClosedAttempt> {
    let mut cells = Cells::of(row);
    let seq: i64 = cells.get()?;
    Ok(ClosedAttempt {
        number: cells.get()?,
        id: AttemptId::from_u128(cells.bits()?),
        token: LeaseToken::from_u128(cells.bits()?),
        fence: cells.fence()?,
        worker: codec::worker_from(cells.get()?),
        granted_at: cells.time()?,
        last_heartbeat_at: cells.time_if()?,
        ended_at: cells.time()?,
        state: codec::state_from(cells.get()?),
        reason: codec::reason_from(cells.get()?),
        failure: cells.decoded::<Option<Failure>>("attempts.failure", seq)?,
        progress: Progress { pct: cells.get()?, message: cells.get()? },
        receipt: cells.receipt()?,
        evidence: cells.decoded("attempts.evidence", seq)?,
        metrics: cells.decoded("attempts.metrics", seq)?,
        callback: cells.decoded("attempts.callback", seq)?,
        retry_at: cells.time_if()?,
    })
}

pub fn put_attempt(statement: &mut Statement<'_>, seq: i64, attempt: &ClosedAttempt) -> Result<()> {
    let params: [&dyn ToSql; 19] = [
        &seq,
        &attempt.number,
        &attempt.id.as_u128().to_be_bytes(),
        &attempt.token.reveal().to_be_bytes(),
        &attempt.fence.0.cast_signed(),
        &codec::worker_id(attempt.worker.as_ref()),
        &attempt.granted_at.as_millis(),
        &attempt.last_heartbeat_at.map(Timestamp::as_millis),
        &attempt.ended_at.as_millis(),
        &codec::state_code(attempt.state),
        &codec::reason_code(attempt.reason),
        &codec::encode_unless(&attempt.failure, attempt.failure.is_none()),
        &attempt.progress.pct,
        &attempt.progress.message,
        &attempt.receipt.map(codec::receipt_code),
        &codec::encode_unless(&attempt.evidence, attempt.evidence.is_none()),
        &codec::encode_unless(&attempt.metrics, attempt.metrics.is_none()),
        &codec::encode_unless(&attempt.callback, attempt.callback.is_none()),
        &attempt.retry_at.map(Timestamp::as_millis),
    ];
    statement.execute(params.as_slice())?;
    Ok(())
}

pub fn body(row: &Row<'_>) -> Result<Body> {
    let mut cells = Cells::of(row);
    let seq: i64 = cells.get()?;
    let mut body = Body {
        id: cells.id()?,
        queue: cells.queue()?,
        operator: cells.get()?,
        tenant: cells.get()?,
        owner: None,
        workspace: cells.get()?,
        priority: cells.get()?,
        payload: cells.get()?,
        spec: Default::default(),
        tags: Default::default(),
        idempotency: None,
        traceparent: None,
        submitted_by: None,
        envelope: None,
        created_at: Timestamp::MIN,
        run_at: Timestamp::MIN,
        run: None,
    };
    (body.spec, body.envelope) = codec::decode_spec(cells.get::<Option<String>>()?.as_deref(), seq);
    body.tags = cells.decoded("bodies.tags", seq)?;
    let (key, fingerprint) = (cells.get::<Option<Arc<str>>>()?, cells.get::<Option<[u8; 32]>>()?);
    body.idempotency = key.zip(fingerprint).map(|(key, fingerprint)| Idempotency { key, fingerprint });
    (body.traceparent, body.created_at, body.run_at) = (cells.get()?, cells.time()?, cells.time()?);
    body.owner = cells.get()?;
    let (run, key) = (cells.bits_if()?, cells.get::<Option<Arc<str>>>()?);
    body.run = run.zip(key).map(|(run, key)| InRun { run: RunId::from_u128(run), key });
    body.submitted_by = cells.get()?;
    Ok(body)
}

pub fn insert_body(statement: &mut Statement<'_>, body: &Body, specs: &mut SpecTexts) -> Result<()> {
    statement.execute(params![
        body.seq().0,
        body.id.as_u128().to_be_bytes(),
        body.queue.0,
        body.operator,
        body.tenant,
        body.workspace,
        body.priority,
        body.payload,
        specs.of_body(body),
        codec::encode_tags(&body.tags),
        body.idempotency.as_ref().map(|idempotency| &idempotency.key),
        body.idempotency.as_ref().map(|idempotency| idempotency.fingerprint),
        body.traceparent,
        body.created_at.as_millis(),
        body.run_at.as_millis(),
        body.owner,
        body.run.as_ref().map(|run| run.run.as_u128().to_be_bytes()),
        body.run.as_ref().map(|run| &run.key),
        body.submitted_by,
    ])?;
    Ok(())
}

pub fn counts(row: &Row<'_>) -> rusqlite::Result<Counts> {
    Ok(Counts {
        blocked: row.get(0)?,
        scheduled: row.get(1)?,
        ready: row.get(2)?,
        running: row.get(3)?,
        finished: row.get(4)?,
        dead_lettered: row.get(5)?,
    })
}

pub fn queue(row: &Row<'_>) -> Result<Queue> {
    let mut cells = Cells::of(row);
    let (id, name, paused, max_running) = (cells.queue()?, cells.get()?, cells.get()?, cells.get()?);
    let (rate, burst) = (cells.get::<Option<f64>>()?, cells.get::<Option<f64>>()?);
    let fairness: Option<String> = cells.get()?;
    let mut settings = QueueSettings {
        max_running,
        rate: rate.zip(burst).map(|(per_second, burst)| Rate { per_second, burst }),
        fairness_key: fairness.as_deref().and_then(FairnessKey::parse),
        lease_ttl_ms: cells.get()?,
        heartbeat_ms: cells.get()?,
        no_dead_letter: cells.get()?,
        strict: false,
        push: None,
        dispatch: None,
    };
    let level = cells.get::<Option<f64>>()?.zip(cells.time_if()?);
    let (fair_cursor, tenant) = (cells.get()?, cells.get()?);
    let transport = cells.get::<Option<String>>()?;
    let transport = transport.as_deref().and_then(Transport::parse).unwrap_or_default();
    settings.push = codec::decode_push(cells.get::<Option<String>>()?.as_deref(), id.0);
    settings.strict = cells.get()?;
    settings.dispatch = codec::decode_dispatch(cells.get::<Option<String>>()?.as_deref(), id.0);
    Ok(Queue { id, name, tenant, paused, transport, settings, bucket: Bucket { level }, fair_cursor })
}

pub fn save_queue(statement: &mut Statement<'_>, queue: &Queue) -> Result<()> {
    let settings = &queue.settings;
    statement.execute(params![
        queue.id.0,
        queue.paused,
        settings.max_running,
        settings.rate.map(|rate| rate.per_second),
        settings.rate.map(|rate| rate.burst),
        settings.fairness_key.as_ref().map(ToString::to_string),
        settings.lease_ttl_ms,
        settings.heartbeat_ms,
        settings.no_dead_letter,
        queue.bucket.level.map(|(tokens, _)| tokens),
        queue.bucket.level.map(|(_, at)| at.as_millis()),
        queue.fair_cursor,
        codec::transport(queue.transport),
        codec::encode_push(queue),
        settings.strict,
        codec::encode_dispatch(queue),
    ])?;
    Ok(())
}

pub fn prunable(row: &Row<'_>) -> Result<Prunable> {
    let mut cells = Cells::of(row);
    Ok(Prunable {
        seq: Seq(cells.get()?),
        finished_at: cells.time()?,
        dead_lettered_at: cells.time_if()?,
        queue: cells.queue()?,
        created_at: cells.time()?,
        has_key: cells.get()?,
        in_run: cells.get()?,
    })
}
