//! The states of a sandbox and the changes between them. Every change is judged against the row as it stands, in the
//! transaction that writes it.

use std::sync::Arc;

use super::Sandbox;
use crate::id::WorkerId;
use crate::time::{DurationMs, Timestamp};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    Creating,
    Running,
    /// Warm, set up and owned by nobody.
    Idle,
    /// Its worker does not answer for it.
    Unhealthy,
    Error,
    /// Over, but its worker has not confirmed that the runtime is gone.
    Expired,
    Destroyed,
}

impl State {
    pub const ALL: [Self; 7] =
        [Self::Creating, Self::Running, Self::Idle, Self::Unhealthy, Self::Error, Self::Expired, Self::Destroyed];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Running => "running",
            Self::Idle => "idle",
            Self::Unhealthy => "unhealthy",
            Self::Error => "error",
            Self::Expired => "expired",
            Self::Destroyed => "destroyed",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }

    /// Whether a row in this state takes room on its worker and counts against caps.
    pub const fn counts(self) -> bool {
        matches!(self, Self::Creating | Self::Running | Self::Idle | Self::Unhealthy)
    }
}

/// What happens to a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The worker has the runtime, and setup is done. Warm sandboxes become idle.
    Confirm {
        worker: WorkerId,
        runtime_id: Arc<str>,
    },
    /// The runtime is known before the sandbox is set up.
    Found {
        worker: WorkerId,
        runtime_id: Arc<str>,
    },
    /// The worker refused: the row gives up its place and waits for another.
    Refuse {
        worker: WorkerId,
    },
    /// The spawn has failed for good.
    Fail {
        reason: Arc<str>,
    },
    /// The worker does not answer for it.
    Doubt {
        reason: Arc<str>,
    },
    /// The worker answers for it again.
    Recover,
    /// The worker says that the runtime is broken.
    Break {
        reason: Arc<str>,
    },
    /// Over, without word from the worker.
    Expire,
    /// The runtime is gone.
    Destroy {
        reason: Option<Arc<str>>,
    },
    Extend {
        ttl_ms: DurationMs,
    },
    /// A warm sandbox gets its owner.
    Claim {
        tenant: Arc<str>,
        owner: Option<Arc<str>>,
        ttl_ms: DurationMs,
        metadata: Vec<(String, String)>,
    },
}

/// What a change does to the lease of the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseStep {
    Keep,
    Release,
}

/// Why a change does not fit the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("the sandbox is {}", .0.as_str())]
    State(State),
    #[error("the sandbox belongs to another worker")]
    OtherWorker,
    #[error("the sandbox has expired")]
    Expired,
}

/// The row after a change, and what becomes of its lease.
pub fn apply(row: &Sandbox, change: &Change, now: Timestamp) -> Result<(Sandbox, LeaseStep), Refused> {
    use State::{Creating, Destroyed, Error, Expired, Idle, Running, Unhealthy};
    let from = |states: &[State]| if states.contains(&row.state) { Ok(()) } else { Err(Refused::State(row.state)) };
    let mut next = row.clone();
    let mut lease = LeaseStep::Keep;
    match change {
        Change::Confirm { worker, runtime_id } => {
            from(&[Creating])?;
            of_worker(row, worker)?;
            next.runtime_id = Some(Arc::clone(runtime_id));
            next.state = if row.pool.is_some() && row.owner.is_none() { Idle } else { Running };
            next.reason = None;
        }
        Change::Found { worker, runtime_id } => {
            from(&[Creating])?;
            of_worker(row, worker)?;
            next.runtime_id = Some(Arc::clone(runtime_id));
        }
        Change::Refuse { worker } => {
            from(&[Creating])?;
            of_worker(row, worker)?;
            next.worker = None;
            next.runtime_id = None;
            next.refused_by.push(Arc::clone(worker));
            lease = LeaseStep::Release;
        }
        Change::Fail { reason } => {
            from(&[Creating])?;
            (next.state, next.reason) = (Error, Some(Arc::clone(reason)));
            lease = LeaseStep::Release;
        }
        Change::Doubt { reason } => {
            from(&[Running, Idle, Unhealthy])?;
            (next.state, next.reason) = (Unhealthy, Some(Arc::clone(reason)));
        }
        Change::Recover => {
            from(&[Unhealthy])?;
            not_over(row, now)?;
            next.state = if row.pool.is_some() && row.owner.is_none() { Idle } else { Running };
            next.reason = None;
        }
        Change::Break { reason } => {
            from(&[Running, Idle, Unhealthy])?;
            (next.state, next.reason) = (Error, Some(Arc::clone(reason)));
        }
        Change::Expire => {
            from(&[Running, Idle, Unhealthy, Error])?;
            next.state = Expired;
            lease = LeaseStep::Release;
        }
        Change::Destroy { reason } => {
            from(&[Creating, Running, Idle, Unhealthy, Error, Expired])?;
            next.state = Destroyed;
            if reason.is_some() {
                next.reason.clone_from(reason);
            }
            lease = LeaseStep::Release;
        }
        Change::Extend { ttl_ms } => {
            from(&[Running, Unhealthy])?;
            not_over(row, now)?;
            next.expires_at = now.plus(*ttl_ms);
        }
        Change::Claim { tenant, owner, ttl_ms, metadata } => {
            from(&[Idle])?;
            not_over(row, now)?;
            next.state = Running;
            next.tenant = Arc::clone(tenant);
            next.owner.clone_from(owner);
            next.expires_at = now.plus(*ttl_ms);
            // Nobody's warm sandbox any more: it must not become idle again.
            next.pool = None;
            Arc::make_mut(&mut next.spec).metadata.extend(metadata.iter().cloned());
        }
    }
    if next.state != row.state {
        next.changed_at = now;
    }
    Ok((next, lease))
}

fn of_worker(row: &Sandbox, worker: &WorkerId) -> Result<(), Refused> {
    if row.worker.as_ref() == Some(worker) { Ok(()) } else { Err(Refused::OtherWorker) }
}

fn not_over(row: &Sandbox, now: Timestamp) -> Result<(), Refused> {
    if now < row.expires_at { Ok(()) } else { Err(Refused::Expired) }
}
