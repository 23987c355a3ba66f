//! The holder is alive.

use std::sync::Arc;

use super::{Answer, Change, Conflict, ConflictKind, Context, Decision, Task, expire};
use crate::attempt::{ClosedAttempt, Progress};
use crate::id::{LeaseToken, TaskId};
use crate::lease;
use crate::queue::QueueSettings;
use crate::task::Place;
use crate::time::Timestamp;

#[derive(Debug, Clone, PartialEq)]
pub struct Heartbeat {
    pub task: TaskId,
    pub token: LeaseToken,
    /// Absent parts keep their last value.
    pub progress: Progress,
    pub checkpoint: Option<Arc<str>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renewed {
    pub expires_at: Timestamp,
    /// The reason, if somebody wants the task to stop.
    pub cancel: Option<Arc<str>>,
}

pub fn decide(
    task: &Task,
    command: &Heartbeat,
    history: &[ClosedAttempt],
    queue: &QueueSettings,
    ctx: &mut Context<'_>,
) -> Decision {
    let (settled, earlier) = expire::settle(task, queue, ctx);
    judge(&settled, command, history, ctx).after(earlier)
}

fn judge(task: &Task, command: &Heartbeat, history: &[ClosedAttempt], ctx: &Context<'_>) -> Decision {
    let refuse = |kind| Decision::refuse(Conflict::at(&task.place, kind));
    let Place::Running(running) = &task.place else {
        return match task.place.last_attempt() {
            Some(last) if last.token == command.token && last.receipt.is_some() => refuse(ConflictKind::AttemptClosed),
            Some(last) if last.token == command.token && last.reason.yields_to_late_report() => {
                refuse(ConflictKind::LeaseExpired)
            }
            Some(last) if last.token == command.token => refuse(ConflictKind::AttemptClosed),
            _ => refuse(stale(command, history)),
        };
    };
    let mut running = running.clone();
    if let Some(cancel) = &mut running.cancel {
        cancel.signaled_at.get_or_insert(ctx.now);
    }
    let not_after = running.not_after();
    match lease::renew(&running.lease, command.token, running.lease_ttl_ms, not_after, ctx.now, ctx.grace) {
        Ok(lease) => running.lease = lease,
        Err(lease::LeaseError::WrongToken) => return refuse(stale(command, history)),
        Err(lease::LeaseError::Expired) => return refuse(ConflictKind::LeaseExpired),
    }
    running.last_heartbeat_at = Some(ctx.now);
    if command.progress.pct.is_some() {
        running.progress.pct = command.progress.pct;
    }
    if command.progress.message.is_some() {
        running.progress.message.clone_from(&command.progress.message);
    }
    if command.checkpoint.is_some() {
        running.carry.checkpoint.clone_from(&command.checkpoint);
    }
    let renewed = Renewed {
        expires_at: running.lease.expires_at,
        cancel: running.cancel.as_ref().map(|cancel| Arc::clone(&cancel.reason)),
    };
    Decision::accept(Change::to(Place::Running(running)), Answer::Renewed(renewed))
}

/// A token of an earlier attempt tells its bearer that another was granted; any other token tells nothing.
fn stale(command: &Heartbeat, history: &[ClosedAttempt]) -> ConflictKind {
    if history.iter().any(|old| old.token == command.token) {
        ConflictKind::StaleAttempt
    } else {
        ConflictKind::StaleLease
    }
}
