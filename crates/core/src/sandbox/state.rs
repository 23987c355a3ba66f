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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use State::{Creating, Destroyed, Error, Expired, Idle, Running, Unhealthy};

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);

    fn row(state: State) -> Sandbox {
        let is_warm = state == Idle;
        Sandbox {
            id: "sb-00000001".into(),
            tenant: "acme".into(),
            owner: if is_warm { None } else { Some("ann".into()) },
            state,
            reason: None,
            spec: Arc::default(),
            worker: Some("worker-a".into()),
            runtime_id: if state == Creating { None } else { Some("rt-1".into()) },
            request_id: "req-1".into(),
            pool: is_warm.then(|| "py".into()),
            created_at: Timestamp::from_millis(1),
            changed_at: Timestamp::from_millis(1),
            expires_at: NOW.plus(1),
            spawn_deadline: NOW,
            refused_by: Vec::new(),
        }
    }

    fn all() -> [Change; 11] {
        let (worker, runtime_id): (WorkerId, Arc<str>) = ("worker-a".into(), "rt-1".into());
        let reason: Arc<str> = "why".into();
        [
            Change::Confirm { worker: Arc::clone(&worker), runtime_id: Arc::clone(&runtime_id) },
            Change::Found { worker: Arc::clone(&worker), runtime_id },
            Change::Refuse { worker },
            Change::Fail { reason: Arc::clone(&reason) },
            Change::Doubt { reason: Arc::clone(&reason) },
            Change::Recover,
            Change::Break { reason: Arc::clone(&reason) },
            Change::Expire,
            Change::Destroy { reason: Some(reason) },
            Change::Extend { ttl_ms: 500 },
            Change::Claim {
                tenant: "other".into(),
                owner: Some("bob".into()),
                ttl_ms: 700,
                metadata: vec![("k".into(), "v".into())],
            },
        ]
    }

    /// What each change makes of each state; `None` is refused. The lease is released where the last column says so.
    #[test]
    fn every_change_of_every_state() {
        let (keep, release) = (LeaseStep::Keep, LeaseStep::Release);
        #[rustfmt::skip]
        let table: [([Option<State>; 7], LeaseStep); 11] = [
            //creating         running          idle             unhealthy        error          expired        destroyed
            ([Some(Running),   None,            None,            None,            None,          None,          None], keep),
            ([Some(Creating),  None,            None,            None,            None,          None,          None], keep),
            ([Some(Creating),  None,            None,            None,            None,          None,          None], release),
            ([Some(Error),     None,            None,            None,            None,          None,          None], release),
            ([None,            Some(Unhealthy), Some(Unhealthy), Some(Unhealthy), None,          None,          None], keep),
            ([None,            None,            None,            Some(Running),   None,          None,          None], keep),
            ([None,            Some(Error),     Some(Error),     Some(Error),     None,          None,          None], keep),
            ([None,            Some(Expired),   Some(Expired),   Some(Expired),   Some(Expired), None,          None], release),
            ([Some(Destroyed), Some(Destroyed), Some(Destroyed), Some(Destroyed), Some(Destroyed), Some(Destroyed), None], release),
            ([None,            Some(Running),   None,            Some(Unhealthy), None,          None,          None], keep),
            ([None,            None,            Some(Running),   None,            None,          None,          None], keep),
        ];
        for (change, (row_of_table, lease)) in all().into_iter().zip(table) {
            for (state, expected) in State::ALL.into_iter().zip(row_of_table) {
                let before = row(state);
                match (apply(&before, &change, NOW), expected) {
                    (Ok((after, step)), Some(next)) => {
                        assert_eq!((after.state, step), (next, lease), "{change:?} of {state:?}");
                        let changed_at = if next == state { before.changed_at } else { NOW };
                        assert_eq!(after.changed_at, changed_at, "{change:?} of {state:?}");
                    }
                    (Err(refused), None) => assert_eq!(refused, Refused::State(state), "{change:?} of {state:?}"),
                    (outcome, _) => panic!("{change:?} of {state:?}: {outcome:?}"),
                }
            }
        }
    }

    #[test]
    fn a_spawn_belongs_to_the_worker_of_the_row() {
        let other: WorkerId = "worker-b".into();
        for change in [
            Change::Confirm { worker: Arc::clone(&other), runtime_id: "rt".into() },
            Change::Found { worker: Arc::clone(&other), runtime_id: "rt".into() },
            Change::Refuse { worker: other },
        ] {
            assert_eq!(apply(&row(Creating), &change, NOW).unwrap_err(), Refused::OtherWorker, "{change:?}");
        }
    }

    #[test]
    fn what_nobody_owns_becomes_idle() {
        let warm = Sandbox { owner: None, pool: Some("py".into()), ..row(Creating) };
        let confirm = &all()[0];
        assert_eq!(apply(&warm, confirm, NOW).unwrap().0.state, Idle);
        let unhealthy = Sandbox { state: Unhealthy, ..warm.clone() };
        assert_eq!(apply(&unhealthy, &Change::Recover, NOW).unwrap().0.state, Idle);
        let without_owner = Sandbox { pool: None, ..warm };
        assert_eq!(apply(&without_owner, confirm, NOW).unwrap().0.state, Running, "not warm, only nobody's");
    }

    #[test]
    fn a_claim_gives_an_owner_and_a_new_end() {
        let (after, _) = apply(&row(Idle), &all()[10], NOW).unwrap();
        assert_eq!((&*after.tenant, after.owner.as_deref(), after.pool), ("other", Some("bob"), None));
        assert_eq!((after.expires_at, &*after.spec.metadata["k"]), (NOW.plus(700), "v"));
    }

    #[test]
    fn what_is_over_is_not_revived() {
        for (state, change) in
            [(Unhealthy, Change::Recover), (Running, Change::Extend { ttl_ms: 1 }), (Idle, all()[10].clone())]
        {
            let over = Sandbox { expires_at: NOW, ..row(state) };
            assert_eq!(apply(&over, &change, NOW).unwrap_err(), Refused::Expired, "{change:?}");
            assert!(apply(&Sandbox { expires_at: NOW.plus(1), ..over }, &change, NOW).is_ok(), "{change:?}");
        }
    }

    #[test]
    fn a_refusal_gives_up_the_place() {
        let known = Sandbox { runtime_id: Some("rt".into()), ..row(Creating) };
        let (after, _) = apply(&known, &all()[2], NOW).unwrap();
        assert!(after.is_queued() && after.runtime_id.is_none());
        assert_eq!(after.refused_by, ["worker-a".into()]);
    }

    #[test]
    fn states_have_words() {
        for state in State::ALL {
            assert_eq!(State::parse(state.as_str()), Some(state));
        }
        assert_eq!(State::parse("Running"), None);
    }

    proptest! {
        /// Whatever happens in whatever order: a sandbox that is over keeps no lease and never comes back, a row that
        /// runs has a runtime, and an owner is never taken away.
        #[test]
        fn any_history_is_sound(steps in prop::collection::vec((0..11_usize, 0..3_i64), 0..40), warm in any::<bool>()) {
            let mut now = NOW;
            let mut row = Sandbox {
                owner: if warm { None } else { Some("ann".into()) },
                pool: warm.then(|| "py".into()),
                expires_at: NOW.plus(20),
                ..row(Creating)
            };
            let mut is_held = true;
            for (change, passed) in steps {
                now = now.plus(passed);
                let Ok((next, step)) = apply(&row, &all()[change], now) else { continue };
                prop_assert!(row.state != Destroyed, "destroyed is final");
                prop_assert!(row.state != Expired || next.state == Destroyed);
                prop_assert!(row.owner.is_none() || next.owner.is_some());
                prop_assert!(!matches!(next.state, Running | Idle) || next.runtime_id.is_some() && next.worker.is_some());
                prop_assert!(next.state != Idle || next.pool.is_some());
                is_held &= step == LeaseStep::Keep;
                prop_assert!(!matches!(next.state, Expired | Destroyed) || !is_held);
                prop_assert!(!next.state.counts() || next.worker.is_none() || is_held);
                row = next;
            }
        }
    }
}
