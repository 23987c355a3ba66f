use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use tenure_core::outage::Reading;
use tenure_core::time::{DurationMs, Timestamp};
use tokio::sync::watch;

/// Moves the time that a store sees. In production it adds nothing; tests turn it instead of waiting.
#[derive(Debug, Default)]
pub struct Clock {
    /// Added to every reading, and to the readings that show whether a control plane is alive.
    outage_ms: AtomicI64,
    /// Added to every reading.
    ahead_ms: AtomicI64,
    /// The latest reading of the process's clock: it never goes back.
    latest: AtomicI64,
    /// Stands in for every reading of a real clock; 0 is off.
    frozen_at: AtomicI64,
    moved: watch::Sender<()>,
}

impl Clock {
    /// Time passes, and control planes were alive all the while.
    pub fn advance(&self, ms: DurationMs) {
        self.ahead_ms.fetch_add(ms, Ordering::SeqCst);
        self.moved.send_replace(());
    }

    /// Time passes in which no control plane could answer.
    pub fn advance_through_outage(&self, ms: DurationMs) {
        self.outage_ms.fetch_add(ms, Ordering::SeqCst);
        self.moved.send_replace(());
    }

    /// From now on real time does not pass: only [`Self::advance`] and [`Self::advance_through_outage`] move the clock.
    /// Stores that are compared with each other see the same time that way.
    pub fn freeze(&self, at: Timestamp) {
        self.frozen_at.store(at.as_millis(), Ordering::SeqCst);
        self.moved.send_replace(());
    }

    /// Changes when the clock is moved: whoever sleeps until a point in time should look again.
    pub fn moved(&self) -> watch::Receiver<()> {
        self.moved.subscribe()
    }

    /// The process's own clock, made monotonic: for a store without one.
    pub(crate) fn read_process(&self) -> Reading {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let millis = i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX);
        let latest = self.latest.fetch_max(millis, Ordering::SeqCst).max(millis);
        self.read_from(Timestamp::from_millis(latest))
    }

    /// A reading of the store's clock.
    pub(crate) fn read_from(&self, store: Timestamp) -> Reading {
        let store = match self.frozen_at.load(Ordering::SeqCst) {
            0 => store,
            at => Timestamp::from_millis(at),
        };
        let alive = store.plus(self.outage_ms.load(Ordering::SeqCst));
        Reading { now: alive.plus(self.ahead_ms.load(Ordering::SeqCst)), alive }
    }

    /// What tests set, for statements that read the server's clock themselves: the time at which it stands still, and
    /// what is added to it.
    pub(crate) fn settings(&self) -> (Option<Timestamp>, DurationMs) {
        let frozen = Some(self.frozen_at.load(Ordering::SeqCst)).filter(|at| *at != 0).map(Timestamp::from_millis);
        (frozen, self.outage_ms.load(Ordering::SeqCst) + self.ahead_ms.load(Ordering::SeqCst))
    }

    /// The process's clock must not be behind what the store has seen.
    pub(crate) fn not_before(&self, point: Timestamp) {
        self.latest.fetch_max(point.as_millis(), Ordering::SeqCst);
    }
}
