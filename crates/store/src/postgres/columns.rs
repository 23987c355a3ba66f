//! Rows to write, turned into one array per column: a statement writes any number of rows.

#![allow(unused_variables, reason = "each column is made of a part of the row")]

use tenure_core::attempt::ClosedAttempt;
use tenure_core::task::{Blocked, Body, FailReason, Finished, Running, Waiting};
use tenure_core::{Seq, TaskId, Timestamp};
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::rows::Time;
use crate::codec::{self, FinalAttempt, PushColumns};

/// The arrays of one statement.
pub type Columns<'a> = Vec<Box<dyn ToSql + Sync + Send + 'a>>;

macro_rules! columns {
    ($rows:expr, $row:pat => $($value:expr),+ $(,)?) => {
        vec![$(Box::new($rows.iter().map(|$row| $value).collect::<Vec<_>>()) as Box<dyn ToSql + Sync + Send + '_>),+]
    };
}

fn times(at: Option<Timestamp>) -> Option<Time> {
    at.map(Time)
}

pub fn waiting(rows: &[(TaskId, Waiting)]) -> Columns<'_> {
    columns!(rows, (id, w) =>
        id.seq().0,
        Uuid::from_u128(id.as_u128()),
        w.queue.0,
        i16::from(w.priority),
        Time(w.at),
        w.fair.as_deref(),
        w.message,
        w.attempt.cast_signed(),
        w.fence.0.cast_signed(),
        times(w.carry.spec.deadline),
        codec::encode_carry(&w.carry),
    )
}

pub fn blocked(rows: &[(TaskId, Blocked)]) -> Columns<'_> {
    columns!(rows, (id, b) =>
        id.seq().0,
        Uuid::from_u128(id.as_u128()),
        b.queue.0,
        i16::from(b.priority),
        b.waiting_on.cast_signed(),
        Time(b.at),
        b.fair.as_deref(),
        times(b.carry.spec.deadline),
        codec::encode_carry(&b.carry),
    )
}

pub fn running(rows: &[(TaskId, Running)]) -> Columns<'_> {
    columns!(rows, (id, r) =>
        id.seq().0,
        Uuid::from_u128(id.as_u128()),
        r.queue.0,
        i16::from(r.priority),
        r.fair.as_deref(),
        r.message,
        codec::worker_id(r.lease.holder.as_ref()),
        Uuid::from_u128(r.lease.token.reveal()),
        r.lease.generation.0.cast_signed(),
        Time(r.lease.expires_at),
        r.attempt.cast_signed(),
        Uuid::from_u128(r.attempt_id.as_u128()),
        r.claim_id.as_deref(),
        r.incarnation.as_deref(),
        Time(r.granted_at),
        times(r.last_heartbeat_at),
        r.progress.pct.map(i16::from),
        r.progress.message.as_deref(),
        r.lease_ttl_ms,
        r.heartbeat_ms,
        r.cancel.as_ref().map(|cancel| &*cancel.reason),
        r.cancel.as_ref().map(|cancel| Time(cancel.requested_at)),
        r.cancel.as_ref().and_then(|cancel| times(cancel.signaled_at)),
        codec::encode_carry(&r.carry),
        times(PushColumns::of(r).push_at),
        PushColumns::of(r).deliveries,
        times(PushColumns::of(r).started_at),
    )
}

/// Whether nothing has happened to these leases yet.
pub fn are_fresh(rows: &[(TaskId, Running)]) -> bool {
    rows.iter().all(|(_, r)| {
        let progress = &r.progress;
        PushColumns::of(r) == PushColumns::default()
            && r.last_heartbeat_at.is_none()
            && progress.pct.is_none()
            && progress.message.is_none()
            && r.cancel.is_none()
    })
}

/// Leases that [`are_fresh`].
pub fn fresh(rows: &[(TaskId, Running)]) -> Columns<'_> {
    columns!(rows, (id, r) =>
        id.seq().0,
        Uuid::from_u128(id.as_u128()),
        r.queue.0,
        i16::from(r.priority),
        r.fair.as_deref(),
        r.message,
        codec::worker_id(r.lease.holder.as_ref()),
        Uuid::from_u128(r.lease.token.reveal()),
        r.lease.generation.0.cast_signed(),
        Time(r.lease.expires_at),
        r.attempt.cast_signed(),
        Uuid::from_u128(r.attempt_id.as_u128()),
        r.claim_id.as_deref(),
        r.incarnation.as_deref(),
        Time(r.granted_at),
        r.lease_ttl_ms,
        r.heartbeat_ms,
        codec::encode_carry(&r.carry),
    )
}

pub fn renewed(rows: &[(Seq, Running)]) -> Columns<'_> {
    columns!(rows, (seq, r) =>
        seq.0,
        Time(r.lease.expires_at),
        times(r.last_heartbeat_at),
        r.progress.pct.map(i16::from),
        r.progress.message.as_deref(),
        r.cancel.as_ref().map(|cancel| &*cancel.reason),
        r.cancel.as_ref().map(|cancel| Time(cancel.requested_at)),
        r.cancel.as_ref().and_then(|cancel| times(cancel.signaled_at)),
        codec::encode_carry(&r.carry),
        codec::worker_id(r.lease.holder.as_ref()),
        times(PushColumns::of(r).push_at),
        PushColumns::of(r).deliveries,
        times(PushColumns::of(r).started_at),
    )
}

/// A row of `finished` with its final attempt taken out of what it carries.
pub type Split<'a> = (i64, &'a Finished, (Option<FinalAttempt>, Option<String>));

pub fn split(rows: &[(TaskId, Finished)]) -> Vec<Split<'_>> {
    rows.iter().map(|(id, f)| (id.seq().0, f, codec::split_finished(f))).collect()
}

/// Whether all ended as most do: with success, and nothing to say beside it.
pub fn are_plain(rows: &[Split<'_>]) -> bool {
    rows.iter().all(|(_, f, (attempt, more))| {
        let usual = |a: &FinalAttempt| a.last_heartbeat_at.is_none() && a.ended_at == f.finished_at;
        let good = f.failure.is_none() && f.reason.is_none() && f.dead_lettered_at.is_none();
        good && f.cancel_reason.is_none() && more.is_none() && attempt.as_ref().is_none_or(usual)
    })
}

/// Rows that [`are_plain`].
pub fn plain<'a>(rows: &'a [Split<'_>]) -> Columns<'a> {
    columns!(rows, (seq, f, (attempt, _)) =>
        *seq,
        f.queue.0,
        codec::end_code(f.end),
        Time(f.finished_at),
        f.result.as_deref(),
        f.attempt.cast_signed(),
        f.fence.0.cast_signed(),
        attempt.as_ref().map(|a| Uuid::from_u128(a.id.as_u128())),
        attempt.as_ref().map(|a| Uuid::from_u128(a.token.reveal())),
        attempt.as_ref().map(|a| codec::worker_id(a.worker.as_ref())),
        attempt.as_ref().map(|a| Time(a.granted_at)),
        attempt.as_ref().map(|a| codec::state_code(a.state)),
        attempt.as_ref().map(|a| codec::reason_code(a.reason)),
        attempt.as_ref().and_then(|a| a.receipt).map(codec::receipt_code),
    )
}

pub fn finished<'a>(rows: &'a [Split<'_>]) -> Columns<'a> {
    columns!(rows, (seq, f, (attempt, more)) =>
        *seq,
        f.queue.0,
        codec::end_code(f.end),
        Time(f.finished_at),
        f.result.as_deref(),
        codec::encode_failure(f.failure.as_ref()).0,
        codec::encode_failure(f.failure.as_ref()).1,
        f.failure.as_ref().map(|failure| &*failure.code),
        f.reason.map(FailReason::as_str),
        times(f.dead_lettered_at),
        f.cancel_reason.as_deref(),
        f.attempt.cast_signed(),
        f.fence.0.cast_signed(),
        attempt.as_ref().map(|a| Uuid::from_u128(a.id.as_u128())),
        attempt.as_ref().map(|a| Uuid::from_u128(a.token.reveal())),
        attempt.as_ref().map(|a| codec::worker_id(a.worker.as_ref())),
        attempt.as_ref().map(|a| Time(a.granted_at)),
        attempt.as_ref().and_then(|a| times(a.last_heartbeat_at)),
        attempt.as_ref().filter(|a| a.ended_at != f.finished_at).map(|a| Time(a.ended_at)),
        attempt.as_ref().map(|a| codec::state_code(a.state)),
        attempt.as_ref().map(|a| codec::reason_code(a.reason)),
        attempt.as_ref().and_then(|a| a.receipt).map(codec::receipt_code),
        PushColumns::of_last(f).deliveries,
        times(PushColumns::of_last(f).started_at),
        more.as_deref(),
    )
}

pub fn attempts(rows: &[(Seq, ClosedAttempt)]) -> Columns<'_> {
    columns!(rows, (seq, a) =>
        seq.0,
        a.number.cast_signed(),
        Uuid::from_u128(a.id.as_u128()),
        Uuid::from_u128(a.token.reveal()),
        a.fence.0.cast_signed(),
        codec::worker_id(a.worker.as_ref()),
        Time(a.granted_at),
        times(a.last_heartbeat_at),
        Time(a.ended_at),
        codec::state_code(a.state),
        codec::reason_code(a.reason),
        codec::encode_unless(&a.failure, a.failure.is_none()),
        a.progress.pct.map(i16::from),
        a.progress.message.as_deref(),
        a.receipt.map(codec::receipt_code),
        codec::encode_unless(&a.evidence, a.evidence.is_none()),
        codec::encode_unless(&a.metrics, a.metrics.is_none()),
        codec::encode_unless(&a.callback, a.callback.is_none()),
        times(a.retry_at),
    )
}

pub fn bodies(rows: &[std::sync::Arc<Body>]) -> Columns<'_> {
    columns!(rows, b =>
        b.seq().0,
        Uuid::from_u128(b.id.as_u128()),
        b.queue.0,
        &*b.operator,
        &*b.tenant,
        &*b.workspace,
        i16::from(b.priority),
        &*b.payload,
        codec::encode_spec(b),
        codec::encode_tags(&b.tags),
        b.idempotency.as_ref().map(|idempotency| &*idempotency.key),
        b.idempotency.as_ref().map(|idempotency| idempotency.fingerprint.as_slice()),
        b.traceparent.as_deref(),
        Time(b.created_at),
        Time(b.run_at),
        b.owner.as_deref(),
        b.run.as_ref().map(|run| Uuid::from_u128(run.run.as_u128())),
        b.run.as_ref().map(|run| &*run.key),
        b.submitted_by.as_deref(),
    )
}
