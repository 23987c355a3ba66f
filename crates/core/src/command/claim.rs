//! A worker asks for work.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::{Answer, Change, Context, Decision, Task, expire};
use crate::event::FactKind;
use crate::id::{AttemptId, Fence, LeaseToken, Seq, TaskId, WorkerId};
use crate::lease;
use crate::queue::{Queue, QueueId};
use crate::task::{Body, Carry, End, Place, Running, Waiting};
use crate::time::{DurationMs, Timestamp};

/// Who asks, and the randomness for what it may be granted.
#[derive(Debug, Clone, PartialEq)]
pub struct Claimer {
    pub worker: WorkerId,
    pub incarnation: Option<Arc<str>>,
    /// The same claim sent again while its leases live gets the same jobs.
    pub claim_id: Option<Arc<str>>,
    pub seed: Seed,
}

/// 256 random bits, from which the attempt ids and tokens of one claim are drawn. The same claim decided again draws
/// the same ones: that is how a claim whose commit got no answer is found again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Seed(pub [u8; 32]);

impl std::fmt::Debug for Seed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seed(***)")
    }
}

impl Seed {
    pub fn draw(&self, index: usize) -> (AttemptId, LeaseToken) {
        let mut hash = Sha256::new();
        hash.update(self.0);
        hash.update((index as u64).to_be_bytes());
        let digest = hash.finalize();
        let half = |range: std::ops::Range<usize>| digest[range].iter().fold(0_u128, |v, b| v << 8 | u128::from(*b));
        (AttemptId::from_u128(half(0..16)), LeaseToken::from_u128(half(16..32)))
    }
}

/// Jobs of any of these queues, tried strictly in order.
#[derive(Debug, Clone, PartialEq)]
pub struct Claim {
    pub claimer: Claimer,
    pub queues: Vec<Arc<str>>,
    pub max_jobs: usize,
}

/// That very task.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimTask {
    pub claimer: Claimer,
    pub task: TaskId,
    /// The message that named it.
    pub message: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Claimed {
    pub grants: Vec<Grant>,
    /// Nothing was granted although tasks are ready: when to ask again, if time alone will help.
    pub retry_at: Option<Timestamp>,
    /// Queues whose slots are all held: an end of one of their attempts makes room.
    pub full: Vec<QueueId>,
}

/// A task under its new lease.
#[derive(Debug, Clone, PartialEq)]
pub struct Grant {
    pub task: TaskId,
    pub queue: QueueId,
    pub attempt: u32,
    pub attempt_id: AttemptId,
    pub token: LeaseToken,
    pub fence: Fence,
    pub message: i64,
    pub lease_ttl_ms: DurationMs,
    pub heartbeat_ms: DurationMs,
    pub deadline: Option<Timestamp>,
    pub checkpoint: Option<Arc<str>>,
    /// Filled in by the store, which reads it only for what was granted.
    pub body: Option<Arc<Body>>,
}

impl Grant {
    pub fn of(task: TaskId, running: &Running) -> Self {
        Self {
            task,
            queue: running.queue,
            attempt: running.attempt,
            attempt_id: running.attempt_id,
            token: running.lease.token,
            fence: running.lease.generation,
            message: running.message,
            lease_ttl_ms: running.lease_ttl_ms,
            heartbeat_ms: running.heartbeat_ms,
            deadline: running.carry.spec.deadline,
            checkpoint: running.carry.checkpoint.clone(),
            body: None,
        }
    }

    pub fn seq(&self) -> Seq {
        self.task.seq()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotGranted {
    pub reason: NotGrantedReason,
    pub ack: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotGrantedReason {
    AlreadyRunning,
    Completed,
    Cancelled,
    NotDue,
    NotFound,
}

impl NotGrantedReason {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AlreadyRunning => "already_running",
            Self::Completed => "completed",
            Self::Cancelled => "cancelled",
            Self::NotDue => "not_due",
            Self::NotFound => "not_found",
        }
    }
}

/// Grants one ready task. The caller has checked that the queue has room.
pub fn grant(
    task: TaskId,
    waiting: &Waiting,
    claimer: &Claimer,
    index: usize,
    queue: &Queue,
    ctx: &Context<'_>,
) -> (Change, Grant) {
    let (attempt_id, token) = claimer.seed.draw(index);
    let spec = &waiting.carry.spec;
    let lease_ttl_ms = spec.lease_ttl_ms(&queue.settings);
    let mut running = Running {
        queue: waiting.queue,
        priority: waiting.priority,
        fair: waiting.fair.clone(),
        message: waiting.message,
        lease: lease::acquire(waiting.fence, Arc::clone(&claimer.worker), token, lease_ttl_ms, ctx.now),
        attempt: waiting.attempt.saturating_add(1),
        attempt_id,
        claim_id: claimer.claim_id.clone(),
        incarnation: claimer.incarnation.clone(),
        granted_at: ctx.now,
        last_heartbeat_at: None,
        progress: Default::default(),
        lease_ttl_ms,
        heartbeat_ms: spec.heartbeat_ms(&queue.settings),
        cancel: None,
        carry: Carry { last: None, ..waiting.carry.clone() },
    };
    running.lease.expires_at = running.lease.expires_at.min(running.not_after());
    let grant = Grant::of(task, &running);
    (Change::to(Place::Running(running)).with_fact(task, FactKind::Started, None), grant)
}

/// Decides about the task that a [`ClaimTask`] names.
pub fn decide_task(task: &Task, command: &ClaimTask, queue: &Queue, running: u32, ctx: &mut Context<'_>) -> Decision {
    let (settled, earlier) = expire::settle(task, &queue.settings, ctx);
    judge_task(&settled, command, queue, running, ctx).after(earlier)
}

fn judge_task(task: &Task, command: &ClaimTask, queue: &Queue, running: u32, ctx: &Context<'_>) -> Decision {
    let refuse = |reason, live: Option<i64>| {
        // The message may go unless it is the one that still stands for this task.
        let ack = live.is_none_or(|live| command.message.is_some_and(|message| message != live));
        Decision::unchanged(Answer::NotGranted(NotGranted { reason, ack }))
    };
    match &task.place {
        Place::Ready(waiting) if queue.room(running, ctx.now).grants > 0 => {
            let (change, granted) = grant(task.id, waiting, &command.claimer, 0, queue, ctx);
            let claimed = Claimed { grants: vec![granted], ..Claimed::default() };
            Decision::accept(change, Answer::Claimed(claimed))
        }
        Place::Ready(waiting) => refuse(NotGrantedReason::NotDue, Some(waiting.message)),
        Place::Scheduled(_) => refuse(NotGrantedReason::NotDue, None),
        Place::Running(held) => {
            let same_claim = held.claim_id.is_some() && held.claim_id == command.claimer.claim_id;
            let (attempt_id, _) = command.claimer.seed.draw(0);
            if held.attempt_id == attempt_id || (same_claim && held.lease.holder == command.claimer.worker) {
                let claimed = Claimed { grants: vec![Grant::of(task.id, held)], ..Claimed::default() };
                return Decision::unchanged(Answer::Claimed(claimed));
            }
            refuse(NotGrantedReason::AlreadyRunning, Some(held.message))
        }
        Place::Finished(finished) => match finished.end {
            End::Canceled => refuse(NotGrantedReason::Cancelled, None),
            End::Succeeded | End::Failed => refuse(NotGrantedReason::Completed, None),
        },
    }
}
