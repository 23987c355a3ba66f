//! Rows of Postgres as the core's types, and back. Columns are read by their place in the statements.

use std::error::Error;
use std::sync::Arc;

use bytes::{BufMut, BytesMut};
use tenure_core::attempt::{ClosedAttempt, Failure, Progress};
use tenure_core::batch::Counts;
use tenure_core::lease::Lease;
use tenure_core::queue::{Bucket, FairnessKey, Queue, QueueId, QueueSettings, Rate, Transport};
use tenure_core::run::InRun;
use tenure_core::task::{Blocked, Body, CancelRequest, Carry, FailReason, Finished, Idempotency, Running, Waiting};
use tenure_core::{AttemptId, Fence, LeaseToken, RunId, Seq, TaskId, Timestamp};
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};
use uuid::Uuid;

use crate::codec::{self, FinalAttempt};

pub type Result<T> = std::result::Result<T, tokio_postgres::Error>;

/// A point in time as `timestamptz`: microseconds since 2000-01-01T00:00:00Z.
#[derive(Debug, Clone, Copy)]
pub struct Time(pub Timestamp);

const POSTGRES_EPOCH_MS: i64 = 946_684_800_000;

impl ToSql for Time {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> std::result::Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.put_i64((self.0.as_millis() - POSTGRES_EPOCH_MS) * 1000);
        Ok(IsNull::No)
    }

    accepts!(TIMESTAMPTZ);
    to_sql_checked!();
}

impl<'a> FromSql<'a> for Time {
    fn from_sql(_: &Type, raw: &'a [u8]) -> std::result::Result<Self, Box<dyn Error + Sync + Send>> {
        let micros = i64::from_be_bytes(raw.try_into()?);
        Ok(Self(Timestamp::from_millis(micros.div_euclid(1000) + POSTGRES_EPOCH_MS)))
    }

    accepts!(TIMESTAMPTZ);
}

pub fn time(row: &Row, column: usize) -> Result<Timestamp> {
    row.try_get::<_, Time>(column).map(|time| time.0)
}

pub fn time_if(row: &Row, column: usize) -> Result<Option<Timestamp>> {
    row.try_get::<_, Option<Time>>(column).map(|time| time.map(|time| time.0))
}

pub fn text(row: &Row, column: usize) -> Result<Arc<str>> {
    row.try_get::<_, &str>(column).map(Arc::from)
}

pub fn text_if(row: &Row, column: usize) -> Result<Option<Arc<str>>> {
    row.try_get::<_, Option<&str>>(column).map(|text| text.map(Arc::from))
}

fn bits(row: &Row, column: usize) -> Result<u128> {
    row.try_get::<_, Uuid>(column).map(|uuid| uuid.as_u128())
}

fn number(row: &Row, column: usize) -> Result<u32> {
    row.try_get::<_, i32>(column).map(i32::unsigned_abs)
}

fn fence(row: &Row, column: usize) -> Result<Fence> {
    row.try_get::<_, i64>(column).map(|fence| Fence(fence.unsigned_abs()))
}

fn priority(row: &Row, column: usize) -> Result<u8> {
    row.try_get::<_, i16>(column).map(|priority| priority as u8)
}

fn carry(row: &Row, column: usize) -> Result<Carry> {
    Ok(codec::decode_carry(row.try_get(column)?, row.try_get(0)?))
}

fn progress(row: &Row, pct: usize) -> Result<Progress> {
    let percent: Option<i16> = row.try_get(pct)?;
    Ok(Progress { pct: percent.map(|percent| percent as u8), message: text_if(row, pct + 1)? })
}

/// Counts of a queue from this column on.
pub fn counts(row: &Row, first: usize) -> Result<Counts> {
    Ok(Counts {
        blocked: row.try_get(first)?,
        scheduled: row.try_get(first + 1)?,
        ready: row.try_get(first + 2)?,
        running: row.try_get(first + 3)?,
        finished: row.try_get(first + 4)?,
        dead_lettered: row.try_get(first + 5)?,
    })
}

pub fn seq(row: &Row) -> Result<Seq> {
    row.try_get(0).map(Seq)
}

pub fn waiting(row: &Row) -> Result<(TaskId, Waiting)> {
    let waiting = Waiting {
        queue: QueueId(row.try_get(2)?),
        priority: priority(row, 3)?,
        at: time(row, 4)?,
        fair: text_if(row, 5)?,
        message: row.try_get(6)?,
        attempt: number(row, 7)?,
        fence: fence(row, 8)?,
        carry: carry(row, 10)?,
    };
    Ok((TaskId::from_u128(bits(row, 1)?), waiting))
}

pub fn blocked(row: &Row) -> Result<(TaskId, Blocked)> {
    let blocked = Blocked {
        queue: QueueId(row.try_get(2)?),
        priority: priority(row, 3)?,
        waiting_on: number(row, 4)?,
        at: time(row, 5)?,
        fair: text_if(row, 6)?,
        carry: carry(row, 8)?,
    };
    Ok((TaskId::from_u128(bits(row, 1)?), blocked))
}

pub fn running(row: &Row) -> Result<(TaskId, Running)> {
    let cancel = match text_if(row, 20)? {
        None => None,
        Some(reason) => Some(CancelRequest { reason, requested_at: time(row, 21)?, signaled_at: time_if(row, 22)? }),
    };
    let running = Running {
        queue: QueueId(row.try_get(2)?),
        priority: priority(row, 3)?,
        fair: text_if(row, 4)?,
        message: row.try_get(5)?,
        lease: Lease {
            holder: codec::worker_from(text(row, 6)?),
            token: LeaseToken::from_u128(bits(row, 7)?),
            generation: fence(row, 8)?,
            expires_at: time(row, 9)?,
        },
        attempt: number(row, 10)?,
        attempt_id: AttemptId::from_u128(bits(row, 11)?),
        claim_id: text_if(row, 12)?,
        incarnation: text_if(row, 13)?,
        granted_at: time(row, 14)?,
        last_heartbeat_at: time_if(row, 15)?,
        progress: progress(row, 16)?,
        lease_ttl_ms: row.try_get(18)?,
        heartbeat_ms: row.try_get(19)?,
        cancel,
        carry: carry(row, 23)?,
    };
    Ok((TaskId::from_u128(bits(row, 1)?), running))
}

pub fn finished(row: &Row) -> Result<(TaskId, Finished)> {
    let seq: i64 = row.try_get(0)?;
    let reason: Option<&str> = row.try_get(8)?;
    let mut finished = Finished {
        queue: QueueId(row.try_get(1)?),
        end: codec::end_from(row.try_get(2)?),
        finished_at: time(row, 3)?,
        result: text_if(row, 4)?,
        failure: codec::decode_failure(row.try_get(5)?, text_if(row, 6)?, seq),
        reason: reason.and_then(FailReason::parse),
        dead_lettered_at: time_if(row, 9)?,
        cancel_reason: text_if(row, 10)?,
        attempt: number(row, 11)?,
        fence: fence(row, 12)?,
        carry: Carry::default(),
    };
    let attempt = match row.try_get::<_, Option<Uuid>>(13)? {
        None => None,
        Some(id) => Some(FinalAttempt {
            id: AttemptId::from_u128(id.as_u128()),
            token: LeaseToken::from_u128(bits(row, 14)?),
            worker: codec::worker_from(text(row, 15)?),
            granted_at: time(row, 16)?,
            last_heartbeat_at: time_if(row, 17)?,
            ended_at: time_if(row, 18)?.unwrap_or(finished.finished_at),
            state: codec::state_from(row.try_get(19)?),
            reason: codec::reason_from(row.try_get(20)?),
            receipt: row.try_get::<_, Option<i16>>(21)?.map(codec::receipt_from),
        }),
    };
    codec::join_finished(&mut finished, attempt, row.try_get(22)?, row.try_get(24)?, seq);
    Ok((TaskId::from_u128(bits(row, 23)?), finished))
}

pub fn attempt(row: &Row) -> Result<(Seq, ClosedAttempt)> {
    let seq: i64 = row.try_get(0)?;
    let attempt = ClosedAttempt {
        number: number(row, 1)?,
        id: AttemptId::from_u128(bits(row, 2)?),
        token: LeaseToken::from_u128(bits(row, 3)?),
        fence: fence(row, 4)?,
        worker: codec::worker_from(text(row, 5)?),
        granted_at: time(row, 6)?,
        last_heartbeat_at: time_if(row, 7)?,
        ended_at: time(row, 8)?,
        state: codec::state_from(row.try_get(9)?),
        reason: codec::reason_from(row.try_get(10)?),
        failure: codec::decode::<Option<Failure>>(row.try_get(11)?, "attempts.failure", seq),
        progress: progress(row, 12)?,
        receipt: row.try_get::<_, Option<i16>>(14)?.map(codec::receipt_from),
        evidence: codec::decode(row.try_get(15)?, "attempts.evidence", seq),
        metrics: codec::decode(row.try_get(16)?, "attempts.metrics", seq),
        callback: codec::decode(row.try_get(17)?, "attempts.callback", seq),
        retry_at: time_if(row, 18)?,
    };
    Ok((Seq(seq), attempt))
}

pub fn body(row: &Row) -> Result<Body> {
    let seq: i64 = row.try_get(0)?;
    let fingerprint: Option<&[u8]> = row.try_get(11)?;
    let fingerprint = fingerprint.and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
    let (spec, envelope) = codec::decode_spec(row.try_get(8)?, seq);
    Ok(Body {
        id: TaskId::from_u128(bits(row, 1)?),
        queue: QueueId(row.try_get(2)?),
        operator: text(row, 3)?,
        tenant: text(row, 4)?,
        owner: text_if(row, 15)?,
        workspace: text(row, 5)?,
        priority: priority(row, 6)?,
        payload: text(row, 7)?,
        spec,
        tags: codec::decode(row.try_get(9)?, "bodies.tags", seq),
        idempotency: text_if(row, 10)?.zip(fingerprint).map(|(key, fingerprint)| Idempotency { key, fingerprint }),
        traceparent: text_if(row, 12)?,
        submitted_by: text_if(row, 18)?,
        envelope,
        created_at: time(row, 13)?,
        run_at: time(row, 14)?,
        run: match row.try_get::<_, Option<Uuid>>(16)? {
            None => None,
            Some(run) => Some(InRun { run: RunId::from_u128(run.as_u128()), key: text(row, 17)? }),
        },
    })
}

/// `NULL` is embedded.
pub fn transport(text: Option<&str>) -> Transport {
    text.and_then(Transport::parse).unwrap_or_default()
}

pub fn queue(row: &Row) -> Result<Queue> {
    let rate: Option<f64> = row.try_get(4)?;
    let burst: Option<f64> = row.try_get(5)?;
    let fairness: Option<&str> = row.try_get(6)?;
    let tokens: Option<f64> = row.try_get(10)?;
    let max_running: Option<i32> = row.try_get(3)?;
    Ok(Queue {
        id: QueueId(row.try_get(0)?),
        name: text(row, 1)?,
        tenant: text_if(row, 13)?,
        paused: row.try_get(2)?,
        transport: transport(row.try_get(14)?),
        settings: QueueSettings {
            max_running: max_running.map(i32::unsigned_abs),
            rate: rate.zip(burst).map(|(per_second, burst)| Rate { per_second, burst }),
            fairness_key: fairness.and_then(FairnessKey::parse),
            lease_ttl_ms: row.try_get(7)?,
            heartbeat_ms: row.try_get(8)?,
            no_dead_letter: row.try_get(9)?,
            strict: row.try_get(16)?,
            dispatch: codec::decode_dispatch(row.try_get(17)?, row.try_get(0)?),
            push: codec::decode_push(row.try_get(15)?, row.try_get(0)?),
        },
        bucket: Bucket { level: tokens.zip(time_if(row, 11)?) },
        fair_cursor: text_if(row, 12)?,
    })
}
