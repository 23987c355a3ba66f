use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use tenure_core::mutant;
use tenure_core::outage::Reading;
use tenure_core::time::{DurationMs, Timestamp};
use tokio::sync::watch;

const NS_PER_MS: i64 = 1_000_000;

/// The time of the process follows the wall clock by at most this part of the time that passes: 0.5 %.
const CORRECTION: i64 = 200;

/// A wall clock that differs by more was set, and did not drift.
const STEP_NS: i64 = 1_000 * NS_PER_MS;

/// The time that a store sees. Tests turn it instead of waiting.
#[derive(Debug, Default)]
pub struct Clock {
    /// Added to every reading, and to the readings that show whether a control plane is alive.
    outage_ms: AtomicI64,
    /// Added to every reading.
    ahead_ms: AtomicI64,
    process: Mutex<Steady>,
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

    /// The process's own clock: for a store without one.
    pub(crate) fn read_process(&self) -> Reading {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall_ns = i64::try_from(since_epoch.as_nanos()).unwrap_or(i64::MAX);
        // This clock also counts the time in which the machine was suspended: that is an outage.
        let running = clock_gettime(ClockId::Boottime);
        let running_ns = running.tv_sec.saturating_mul(1_000 * NS_PER_MS).saturating_add(running.tv_nsec);
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        let now_ns = process.read(wall_ns, running_ns);
        let now_ns = if mutant!("wall-clock-followed") { wall_ns } else { now_ns };
        if let Some(ahead_ns) = process.stepped() {
            let offset = ahead_ns / (1_000 * NS_PER_MS);
            tracing::warn!(
                clock.offset_seconds = offset,
                "the wall clock was set: times of tasks and leases follow it by 0.5 % of the time that passes; a restart applies it at once"
            );
        }
        drop(process);
        self.read_from(Timestamp::from_millis(now_ns / NS_PER_MS))
    }

    /// By how much the wall clock is ahead of the process's own clock, when it was last read. Always 0 for a store with a clock
    /// of its own.
    pub fn wall_ahead_ms(&self) -> DurationMs {
        self.process.lock().unwrap_or_else(PoisonError::into_inner).ahead_ns / NS_PER_MS
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
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        process.now_ns = process.now_ns.max(point.as_millis().saturating_mul(NS_PER_MS));
    }
}

/// A time that passes as fast as the clock of the running machine, starts at the wall clock, and follows it slowly. A wall
/// clock that is set back does not stop it, and one that is set forward ends no lease.
#[derive(Debug, Default)]
struct Steady {
    /// The last reading.
    now_ns: i64,
    /// The clock of the machine at the last reading; `None` before the first.
    running_ns: Option<i64>,
    /// By how much the wall clock was ahead.
    ahead_ns: i64,
    /// The difference that was told last.
    told_ns: i64,
}

impl Steady {
    fn read(&mut self, wall_ns: i64, running_ns: i64) -> i64 {
        match self.running_ns {
            None => self.now_ns = self.now_ns.max(wall_ns),
            Some(before) => {
                let passed = running_ns.saturating_sub(before).max(0);
                let now_ns = self.now_ns.saturating_add(passed);
                let most = passed / CORRECTION;
                self.now_ns = now_ns.saturating_add(wall_ns.saturating_sub(now_ns).clamp(-most, most));
            }
        }
        self.running_ns = Some(self.running_ns.map_or(running_ns, |before| before.max(running_ns)));
        self.ahead_ns = wall_ns.saturating_sub(self.now_ns);
        self.now_ns
    }

    /// By how much the wall clock is ahead, if it was set since this was last asked.
    fn stepped(&mut self) -> Option<i64> {
        if self.ahead_ns.abs() < STEP_NS / 2 {
            self.told_ns = 0;
        }
        let stepped = self.ahead_ns.saturating_sub(self.told_ns).abs() > STEP_NS && self.ahead_ns.abs() > STEP_NS;
        // The difference becomes smaller by itself: that is not told.
        let shrinks = self.ahead_ns.signum() == self.told_ns.signum() && self.ahead_ns.abs() < self.told_ns.abs();
        if shrinks {
            self.told_ns = self.ahead_ns;
        }
        if stepped && !shrinks {
            self.told_ns = self.ahead_ns;
            return Some(self.ahead_ns);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000 * NS_PER_MS;
    const HOUR: i64 = 3_600 * S;
    const START: i64 = 1_800_000_000 * S;

    #[test]
    fn a_wall_clock_that_is_set_back_stops_nothing() {
        let mut clock = Steady::default();
        assert_eq!(clock.read(START, 7 * S), START);
        let later = clock.read(START - HOUR + 10 * S, 17 * S);
        assert_eq!(later, START + 10 * S - 10 * S / CORRECTION, "ten seconds have passed, but for the correction");
        assert_eq!(clock.stepped().map(|ahead| ahead / S), Some(-3_599));
        assert_eq!(clock.stepped(), None, "told once");
    }

    #[test]
    fn a_wall_clock_that_is_set_forward_ends_nothing_early() {
        let mut clock = Steady::default();
        clock.read(START, 0);
        assert_eq!(clock.read(START + HOUR + 10 * S, 10 * S), START + 10 * S + 10 * S / CORRECTION);
        assert!(clock.stepped().is_some());
        // It follows, tells nothing more, and is level in the end.
        let (mut running, mut wall, mut now) = (10 * S, START + HOUR + 10 * S, 0);
        for _ in 0..(201 * 3_600 / 60) {
            (running, wall) = (running + 60 * S, wall + 60 * S);
            now = clock.read(wall, running);
            assert_eq!(clock.stepped(), None);
        }
        assert_eq!((now, clock.ahead_ns), (wall, 0));
    }

    #[test]
    fn readings_never_go_back_and_small_steps_add_up() {
        let mut clock = Steady::default();
        let mut before = clock.read(START, 0);
        for step in 1..=10_000_i64 {
            // A reading each 100 µs, against a wall clock that stands still.
            let now = clock.read(START, step * 100_000);
            assert!(now > before);
            before = now;
        }
        assert_eq!(before, START + S - S / CORRECTION);
        assert_eq!(clock.read(START, 0), before, "a clock of the machine that goes back is not believed");
        assert_eq!(clock.stepped(), None, "a second is drift");
    }

    #[test]
    fn time_goes_on_from_what_the_store_has_seen() {
        let clock = Clock::default();
        let seen = Timestamp::from_millis(5_000_000_000_000);
        clock.not_before(seen);
        assert_eq!(clock.read_process().now, seen);
        let mut steady = Steady { now_ns: START + HOUR, ..Steady::default() };
        steady.read(START, 0);
        assert!(steady.read(START + S, S) > START + HOUR, "it passes, although the wall clock is behind it");
        assert!(steady.stepped().is_some());
        assert!(clock.wall_ahead_ms() < 0);
    }
}
