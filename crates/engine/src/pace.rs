//! Whether a batch of heartbeats should wait for more of them.
//!
//! Heartbeats arrive one by one from many workers, and a commit costs about the same however many it holds. When they
//! arrive fast, a wait of a few milliseconds puts several into one commit. When they arrive rarely, or all from one
//! caller that waits for each answer, a wait would only delay them, so there is none.

use std::time::{Duration, Instant};

/// How long a batch waits for more.
pub const GATHER: Duration = Duration::from_millis(4);
/// A wait is worth it if it can be expected to bring this many.
const WORTHWHILE: u128 = 2;
/// The time over which the speed is measured.
const WINDOW: Duration = Duration::from_millis(50);
/// How long nothing waits after a wait that brought nothing.
const FUTILE_FOR: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Pace {
    began: Instant,
    arrived: u32,
    fast: bool,
    futile_until: Instant,
}

impl Pace {
    pub const fn new(now: Instant) -> Self {
        Self { began: now, arrived: 0, fast: false, futile_until: now }
    }

    /// Whether a batch that begins now should wait.
    pub fn is_fast(&mut self, now: Instant) -> bool {
        let elapsed = now.saturating_duration_since(self.began);
        if elapsed >= WINDOW {
            self.fast = u128::from(self.arrived) * GATHER.as_micros() >= WORTHWHILE * elapsed.as_micros();
            (self.began, self.arrived) = (now, 0);
        }
        self.fast && now >= self.futile_until
    }

    /// A wait has brought this many.
    pub fn gathered(&mut self, more: usize, now: Instant) {
        if more == 0 {
            self.futile_until = now + FUTILE_FOR;
        }
    }

    /// A batch of this many requests has begun.
    pub fn took(&mut self, requests: usize) {
        self.arrived = self.arrived.saturating_add(u32::try_from(requests).unwrap_or(u32::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// One request every `every` for a second. Returns how many of them would have waited.
    fn waits(pace: &mut Pace, start: Instant, every: Duration) -> usize {
        let (mut now, mut waits) = (start, 0);
        while now < start + 1000 * MS {
            waits += usize::from(pace.is_fast(now));
            pace.took(1);
            now += every;
        }
        waits
    }

    #[test]
    fn what_arrives_fast_waits_and_what_arrives_rarely_does_not() {
        let start = Instant::now();
        assert!(waits(&mut Pace::new(start), start, MS) > 900, "a thousand a second");
        for every in [3, 10, 100] {
            assert_eq!(waits(&mut Pace::new(start), start, every * MS), 0, "every {every} ms");
        }
    }

    #[test]
    fn after_a_pause_nothing_waits() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        waits(&mut pace, start, MS);
        assert!(pace.is_fast(start + 1000 * MS));
        assert!(!pace.is_fast(start + 3000 * MS));
    }

    #[test]
    fn a_wait_that_brings_nothing_is_not_repeated_for_a_while() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        waits(&mut pace, start, MS);
        let end = start + 1000 * MS;
        pace.gathered(3, end);
        assert!(pace.is_fast(end));
        pace.gathered(0, end);
        assert_eq!(waits(&mut pace, end, MS), 0);
        assert!(waits(&mut pace, end + FUTILE_FOR, MS) > 900);
    }
}
