//! Rows of SQLite as the core's types, and back.

use std::sync::Arc;

use rusqlite::types::ToSql;
use rusqlite::{Row, Statement, params};
use tenure_core::attempt::{ClosedAttempt, Failure, Progress};
use tenure_core::lease::Lease;
use tenure_core::queue::{Bucket, FairnessKey, Queue, QueueId, QueueSettings, Rate};
use tenure_core::task::{Body, CancelRequest, Carry, FailReason, Finished, Idempotency, Running, Waiting};
use tenure_core::{AttemptId, Fence, LeaseToken, TaskId, Timestamp};

use crate::codec::{self, FinalAttempt, Prunable};

type Result<T> = rusqlite::Result<T>;

fn time(row: &Row<'_>, column: &str) -> Result<Timestamp> {
    row.get(column).map(Timestamp::from_millis)
}

fn time_if(row: &Row<'_>, column: &str) -> Result<Option<Timestamp>> {
    Ok(row.get::<_, Option<i64>>(column)?.map(Timestamp::from_millis))
}

fn bits(row: &Row<'_>, column: &str) -> Result<u128> {
    row.get::<_, [u8; 16]>(column).map(u128::from_be_bytes)
}

fn text_if(row: &Row<'_>, column: &str) -> Result<Option<Arc<str>>> {
    row.get(column)
}

fn fence(row: &Row<'_>) -> Result<Fence> {
    row.get::<_, i64>("fence").map(|fence| Fence(fence.unsigned_abs()))
}

fn queue_id(row: &Row<'_>) -> Result<QueueId> {
    row.get("queue_id").map(QueueId)
}

fn carry(row: &Row<'_>) -> Result<Carry> {
    let text: Option<String> = row.get("carry")?;
    Ok(codec::decode(text.as_deref(), "carry", row.get("seq")?))
}

fn progress(row: &Row<'_>) -> Result<Progress> {
    Ok(Progress { pct: row.get("progress_pct")?, message: text_if(row, "progress_message")? })
}

pub fn waiting(row: &Row<'_>) -> Result<(TaskId, Waiting)> {
    let waiting = Waiting {
        queue: queue_id(row)?,
        priority: row.get("priority")?,
        at: time(row, "at")?,
        fair: text_if(row, "fair")?,
        message: row.get("message")?,
        attempt: row.get("attempt")?,
        fence: fence(row)?,
        carry: carry(row)?,
    };
    Ok((TaskId::from_u128(bits(row, "id")?), waiting))
}

pub fn insert_waiting(statement: &mut Statement<'_>, id: TaskId, waiting: &Waiting) -> Result<()> {
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
        codec::encode_carry(&waiting.carry),
    ])?;
    Ok(())
}

pub fn running(row: &Row<'_>) -> Result<(TaskId, Running)> {
    let cancel = match text_if(row, "cancel_reason")? {
        None => None,
        Some(reason) => Some(CancelRequest {
            reason,
            requested_at: time(row, "cancel_requested_at")?,
            signaled_at: time_if(row, "cancel_signaled_at")?,
        }),
    };
    let running = Running {
        queue: queue_id(row)?,
        priority: row.get("priority")?,
        fair: text_if(row, "fair")?,
        message: row.get("message")?,
        lease: Lease {
            holder: row.get("worker_id")?,
            token: LeaseToken::from_u128(bits(row, "token")?),
            generation: fence(row)?,
            expires_at: time(row, "expires_at")?,
        },
        attempt: row.get("attempt")?,
        attempt_id: AttemptId::from_u128(bits(row, "attempt_id")?),
        claim_id: text_if(row, "claim_id")?,
        incarnation: text_if(row, "incarnation")?,
        granted_at: time(row, "granted_at")?,
        last_heartbeat_at: time_if(row, "last_heartbeat_at")?,
        progress: progress(row)?,
        lease_ttl_ms: row.get("lease_ttl_ms")?,
        heartbeat_ms: row.get("heartbeat_ms")?,
        cancel,
        carry: carry(row)?,
    };
    Ok((TaskId::from_u128(bits(row, "id")?), running))
}

pub fn insert_running(statement: &mut Statement<'_>, id: TaskId, running: &Running) -> Result<()> {
    let cancel = running.cancel.as_ref();
    let params: [&dyn ToSql; 24] = [
        &id.seq().0,
        &id.as_u128().to_be_bytes(),
        &running.queue.0,
        &running.priority,
        &running.fair,
        &running.message,
        &running.lease.holder,
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
    ];
    statement.execute(params.as_slice())?;
    Ok(())
}

pub fn renew_running(statement: &mut Statement<'_>, seq: i64, running: &Running) -> Result<()> {
    let cancel = running.cancel.as_ref();
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
    ])?;
    Ok(())
}

pub fn finished(row: &Row<'_>) -> Result<(TaskId, Finished)> {
    let seq: i64 = row.get("seq")?;
    let failure: Option<String> = row.get("failure")?;
    let reason: Option<String> = row.get("reason")?;
    let mut finished = Finished {
        queue: queue_id(row)?,
        end: codec::end_from(row.get("ended")?),
        finished_at: time(row, "finished_at")?,
        result: text_if(row, "result")?,
        failure: codec::decode::<Option<Failure>>(failure.as_deref(), "finished.failure", seq),
        reason: reason.as_deref().and_then(FailReason::parse),
        dead_lettered_at: time_if(row, "dead_lettered_at")?,
        cancel_reason: text_if(row, "cancel_reason")?,
        attempt: row.get("attempt")?,
        fence: fence(row)?,
        carry: Carry::default(),
    };
    let attempt = match row.get::<_, Option<[u8; 16]>>("attempt_id")? {
        None => None,
        Some(id) => Some(FinalAttempt {
            id: AttemptId::from_u128(u128::from_be_bytes(id)),
            token: LeaseToken::from_u128(bits(row, "token")?),
            worker: row.get("worker_id")?,
            granted_at: time(row, "granted_at")?,
            last_heartbeat_at: time_if(row, "last_heartbeat_at")?,
            ended_at: time_if(row, "ended_at")?.unwrap_or(finished.finished_at),
            state: codec::state_from(row.get("attempt_state")?),
            reason: codec::reason_from(row.get("attempt_reason")?),
            receipt: row.get::<_, Option<i16>>("receipt")?.map(codec::receipt_from),
        }),
    };
    let more: Option<String> = row.get("more")?;
    let spec: Option<String> = row.get("spec")?;
    codec::join_finished(&mut finished, attempt, more.as_deref(), spec.as_deref(), seq);
    Ok((TaskId::from_u128(bits(row, "id")?), finished))
}

pub fn insert_finished(statement: &mut Statement<'_>, id: TaskId, finished: &Finished) -> Result<()> {
    let (attempt, more) = codec::split_finished(finished);
    let attempt = attempt.as_ref();
    let failure = codec::encode_unless(&finished.failure, finished.failure.is_none());
    let params: [&dyn ToSql; 22] = [
        &id.seq().0,
        &finished.queue.0,
        &codec::end_code(finished.end),
        &finished.finished_at.as_millis(),
        &finished.result,
        &failure,
        &finished.failure.as_ref().map(|failure| &failure.code),
        &finished.reason.map(FailReason::as_str),
        &finished.dead_lettered_at.map(Timestamp::as_millis),
        &finished.cancel_reason,
        &finished.attempt,
        &finished.fence.0.cast_signed(),
        &attempt.map(|a| a.id.as_u128().to_be_bytes()),
        &attempt.map(|a| a.token.reveal().to_be_bytes()),
        &attempt.map(|a| &a.worker),
        &attempt.map(|a| a.granted_at.as_millis()),
        &attempt.and_then(|a| a.last_heartbeat_at).map(Timestamp::as_millis),
        &attempt.filter(|a| a.ended_at != finished.finished_at).map(|a| a.ended_at.as_millis()),
        &attempt.map(|a| codec::state_code(a.state)),
        &attempt.map(|a| codec::reason_code(a.reason)),
        &attempt.and_then(|a| a.receipt).map(codec::receipt_code),
        &more,
    ];
    statement.execute(params.as_slice())?;
    Ok(())
}

pub fn attempt(row: &Row<'_>) -> Result<ClosedAttempt> {
    let seq: i64 = row.get("seq")?;
    let failure: Option<String> = row.get("failure")?;
    let evidence: Option<String> = row.get("evidence")?;
    Ok(ClosedAttempt {
        number: row.get("attempt")?,
        id: AttemptId::from_u128(bits(row, "attempt_id")?),
        token: LeaseToken::from_u128(bits(row, "token")?),
        fence: fence(row)?,
        worker: row.get("worker_id")?,
        granted_at: time(row, "granted_at")?,
        last_heartbeat_at: time_if(row, "last_heartbeat_at")?,
        ended_at: time(row, "ended_at")?,
        state: codec::state_from(row.get("attempt_state")?),
        reason: codec::reason_from(row.get("attempt_reason")?),
        failure: codec::decode::<Option<Failure>>(failure.as_deref(), "attempts.failure", seq),
        progress: progress(row)?,
        receipt: row.get::<_, Option<i16>>("receipt")?.map(codec::receipt_from),
        evidence: codec::decode(evidence.as_deref(), "attempts.evidence", seq),
    })
}

pub fn put_attempt(statement: &mut Statement<'_>, seq: i64, attempt: &ClosedAttempt) -> Result<()> {
    let params: [&dyn ToSql; 16] = [
        &seq,
        &attempt.number,
        &attempt.id.as_u128().to_be_bytes(),
        &attempt.token.reveal().to_be_bytes(),
        &attempt.fence.0.cast_signed(),
        &attempt.worker,
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
    ];
    statement.execute(params.as_slice())?;
    Ok(())
}

pub fn body(row: &Row<'_>) -> Result<Body> {
    let seq: i64 = row.get("seq")?;
    let spec: Option<String> = row.get("spec")?;
    let tags: Option<String> = row.get("tags")?;
    let key: Option<Arc<str>> = row.get("idempotency_key")?;
    let fingerprint: Option<[u8; 32]> = row.get("fingerprint")?;
    Ok(Body {
        id: TaskId::from_u128(bits(row, "id")?),
        queue: queue_id(row)?,
        operator: row.get("operator")?,
        tenant: row.get("tenant")?,
        workspace: row.get("workspace")?,
        priority: row.get("priority")?,
        payload: row.get("payload")?,
        spec: codec::decode(spec.as_deref(), "bodies.spec", seq),
        tags: codec::decode(tags.as_deref(), "bodies.tags", seq),
        idempotency: key.zip(fingerprint).map(|(key, fingerprint)| Idempotency { key, fingerprint }),
        traceparent: text_if(row, "traceparent")?,
        created_at: time(row, "created_at")?,
        run_at: time(row, "run_at")?,
    })
}

pub fn insert_body(statement: &mut Statement<'_>, body: &Body) -> Result<()> {
    statement.execute(params![
        body.seq().0,
        body.id.as_u128().to_be_bytes(),
        body.queue.0,
        body.operator,
        body.tenant,
        body.workspace,
        body.priority,
        body.payload,
        codec::encode_spec(&body.spec),
        codec::encode_tags(&body.tags),
        body.idempotency.as_ref().map(|idempotency| &idempotency.key),
        body.idempotency.as_ref().map(|idempotency| idempotency.fingerprint),
        body.traceparent,
        body.created_at.as_millis(),
        body.run_at.as_millis(),
    ])?;
    Ok(())
}

pub fn queue(row: &Row<'_>) -> Result<Queue> {
    let rate: Option<f64> = row.get("rate")?;
    let burst: Option<f64> = row.get("burst")?;
    let tokens: Option<f64> = row.get("bucket_tokens")?;
    let fairness: Option<String> = row.get("fairness_key")?;
    Ok(Queue {
        id: queue_id(row)?,
        name: row.get("name")?,
        paused: row.get("paused")?,
        settings: QueueSettings {
            max_running: row.get("max_running")?,
            rate: rate.zip(burst).map(|(per_second, burst)| Rate { per_second, burst }),
            fairness_key: fairness.as_deref().and_then(FairnessKey::parse),
            lease_ttl_ms: row.get("lease_ttl_ms")?,
            heartbeat_ms: row.get("heartbeat_ms")?,
            no_dead_letter: row.get("no_dead_letter")?,
        },
        bucket: Bucket { level: tokens.zip(time_if(row, "bucket_at")?) },
        fair_cursor: text_if(row, "fair_cursor")?,
    })
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
    ])?;
    Ok(())
}

pub fn prunable(row: &Row<'_>) -> Result<Prunable> {
    Ok(Prunable {
        seq: row.get("seq")?,
        finished_at: time(row, "finished_at")?,
        dead_lettered_at: time_if(row, "dead_lettered_at")?,
        queue: queue_id(row)?,
        created_at: time(row, "created_at")?,
        has_key: row.get("has_key")?,
    })
}
