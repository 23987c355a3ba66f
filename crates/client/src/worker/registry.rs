//! The leases that this worker holds, shared by the claim loop and the supervisor.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tokio::sync::Notify;

use super::beat::Due;
use super::lease::Lease;
use super::lock;
use super::logs::Logs;

#[derive(Debug)]
pub(crate) struct Registry {
    inner: Mutex<Inner>,
    wake: Notify,
    /// What handlers log.
    pub(crate) logs: Arc<Logs>,
}

impl Default for Registry {
    fn default() -> Self {
        Self { inner: Mutex::default(), wake: Notify::new(), logs: Arc::new(Logs::off()) }
    }
}

#[derive(Debug, Default)]
struct Inner {
    leases: HashMap<u64, Arc<Lease>>,
    /// When the supervisor looks next; never, if it knows of no lease.
    wake_at: Option<Instant>,
}

/// What a look over all leases found.
#[derive(Debug, Default)]
pub(crate) struct Tick {
    pub(crate) expired: Vec<Arc<Lease>>,
    pub(crate) beats: Vec<Arc<Lease>>,
    pub(crate) wake_at: Option<Instant>,
}

impl Registry {
    /// One whose logs are sent to the server.
    pub(crate) fn with_logs() -> Self {
        Self { logs: Arc::default(), ..Self::default() }
    }

    /// Holds leases from now on. A burst of short tasks costs one lock and usually no wake-up.
    pub(crate) fn add(&self, leases: &[Arc<Lease>]) {
        lock(&self.inner).leases.extend(leases.iter().map(|lease| (lease.id, Arc::clone(lease))));
        if let Some(at) = leases.iter().map(|lease| lease.beat(|beat| beat.next_at())).min() {
            self.wake_by(at);
        }
    }

    pub(crate) fn remove(&self, lease: &Lease) {
        lock(&self.inner).leases.remove(&lease.id);
    }

    pub(crate) fn holds(&self, lease: &Lease) -> bool {
        lock(&self.inner).leases.contains_key(&lease.id)
    }

    /// Makes the supervisor look at this time or before.
    pub(crate) fn wake_by(&self, at: Instant) {
        let mut inner = lock(&self.inner);
        if inner.wake_at.is_none_or(|planned| at < planned) {
            inner.wake_at = Some(at);
            self.wake.notify_one();
        }
    }

    pub(crate) async fn woken(&self) {
        self.wake.notified().await;
    }

    /// Sorts out what is due. Expired leases are no longer held afterwards.
    pub(crate) fn tick(&self, now: Instant) -> Tick {
        let mut tick = Tick::default();
        let mut inner = lock(&self.inner);
        inner.leases.retain(|_, lease| {
            let look_at = match lease.beat(|beat| beat.due(now)) {
                Due::Expired => {
                    tick.expired.push(Arc::clone(lease));
                    return false;
                }
                Due::Beat(at) => {
                    tick.beats.push(Arc::clone(lease));
                    at
                }
                Due::At(at) => at,
            };
            tick.wake_at = Some(tick.wake_at.map_or(look_at, |planned| planned.min(look_at)));
            true
        });
        inner.wake_at = tick.wake_at;
        tick
    }

    /// Asks for a heartbeat of this job at once, if it is held.
    pub(crate) fn hurry(&self, job_id: &str) {
        let now = Instant::now();
        let held = lock(&self.inner).leases.values().find(|lease| lease.job.job_id == job_id).cloned();
        if let Some(lease) = held {
            lease.beat(|beat| beat.hurry(now));
            self.wake_by(now);
        }
    }

    /// Whether a lease is held since before this time.
    pub(crate) fn holds_since(&self, then: Instant) -> bool {
        lock(&self.inner).leases.values().any(|lease| lease.since < then)
    }

    pub(crate) fn all(&self) -> Vec<Arc<Lease>> {
        lock(&self.inner).leases.values().cloned().collect()
    }

    /// Gives up every lease.
    pub(crate) fn lose_all(&self, reason: &str) {
        let leases = std::mem::take(&mut lock(&self.inner).leases);
        for lease in leases.values() {
            lease.lose(reason.to_owned());
        }
    }
}
