//! Outages of the control plane: how one is noticed, and for how long it holds leases back.
//!
//! Every control plane leaves a mark of life in the store. The first one to find that there was none for a while grants
//! all leases that there are a grace as long as the longest of them.

use crate::lease::Grace;
use crate::limits;
use crate::time::{DurationMs, Timestamp};

/// One reading of the store's clock.
#[derive(Debug, Clone, Copy)]
pub struct Reading {
    /// The time that decides every expiry.
    pub now: Timestamp,
    /// The time that marks of life are compared with.
    pub alive: Timestamp,
}

/// The marks of life in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marks {
    /// When a control plane was last alive; [`Timestamp::MIN`] if there never was one.
    pub alive_at: Timestamp,
    /// No lease from before `gap_ended_at` expires before this.
    pub grace_until: Timestamp,
    /// When the last outage ended, in the time that decides expiry; [`Timestamp::MIN`] if there never was one.
    pub gap_ended_at: Timestamp,
}

impl Marks {
    /// Those of a store that no control plane has used yet.
    pub const NONE: Self = Self { alive_at: Timestamp::MIN, grace_until: Timestamp::MIN, gap_ended_at: Timestamp::MIN };

    /// In the order of their columns.
    pub const fn all(self) -> [Timestamp; 3] {
        [self.alive_at, self.grace_until, self.gap_ended_at]
    }

    /// The grace that a batch is decided with.
    pub fn grace(self, reading: Reading) -> Grace {
        if reading.alive.since(self.alive_at) > limits::OUTAGE_GAP_MS {
            Grace::OPEN
        } else {
            Grace::new(self.gap_ended_at, self.grace_until)
        }
    }

    /// Whether no control plane was alive for a while. The very first start does not follow an outage.
    pub fn show_outage(self, reading: Reading) -> bool {
        self.alive_at > Timestamp::MIN && reading.alive.since(self.alive_at) > limits::OUTAGE_GAP_MS
    }

    /// The marks that a living control plane leaves. After an outage it says how long the longest lease in use is.
    #[must_use]
    pub fn renewed(self, reading: Reading, longest_lease_ms: Option<DurationMs>) -> Self {
        let grace = longest_lease_ms.map_or(Timestamp::MIN, |longest| reading.now.plus(longest));
        let gap_ended_at = longest_lease_ms.map_or(Timestamp::MIN, |_| reading.now);
        // Another control plane's mark may be slightly ahead of a reading that waited for its lock.
        Self {
            alive_at: self.alive_at.max(reading.alive),
            grace_until: self.grace_until.max(grace),
            gap_ended_at: self.gap_ended_at.max(gap_ended_at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn reading(alive_ms: i64, ahead_ms: i64) -> Reading {
        Reading { now: at(alive_ms + ahead_ms), alive: at(alive_ms) }
    }

    #[test]
    fn a_gap_between_marks_is_an_outage_and_the_first_start_is_not() {
        let marks = Marks { alive_at: at(10_000), ..Marks::NONE };
        assert!(!marks.show_outage(reading(10_000 + limits::OUTAGE_GAP_MS, 0)));
        assert!(marks.show_outage(reading(10_001 + limits::OUTAGE_GAP_MS, 0)));
        assert!(!marks.show_outage(reading(10_001, 1_000_000)), "time in which control planes were alive");
        let never = Marks { alive_at: Timestamp::MIN, ..marks };
        assert!(!never.show_outage(reading(1_000_000, 0)));
    }

    #[test]
    fn an_outage_holds_leases_back_for_the_longest_of_them() {
        let marks = Marks { alive_at: at(10_000), grace_until: at(20_000), gap_ended_at: at(5_000) };
        let after = marks.renewed(reading(90_000, 500), Some(30_000));
        assert_eq!(after, Marks { alive_at: at(90_000), grace_until: at(120_500), gap_ended_at: at(90_500) });
        assert_eq!(marks.renewed(reading(11_000, 0), None), Marks { alive_at: at(11_000), ..marks });
    }

    #[test]
    fn no_mark_goes_back() {
        let marks = Marks { alive_at: at(90_000), grace_until: at(200_000), gap_ended_at: at(90_000) };
        assert_eq!(marks.renewed(reading(89_000, 0), Some(1_000)), marks);
    }

    #[test]
    fn an_outage_that_nobody_wrote_down_yet_has_not_ended() {
        let marks = Marks { alive_at: at(10_000), grace_until: at(20_000), gap_ended_at: at(5_000) };
        assert_eq!(marks.grace(reading(15_000, 0)), Grace::new(at(5_000), at(20_000)));
        assert_eq!(marks.grace(reading(15_001, 0)), Grace::OPEN);
    }

    #[test]
    fn of_two_outages_the_last_one_decides_which_leases_are_covered() {
        let first = Marks { alive_at: at(1_000), ..Marks::NONE }.renewed(reading(100_000, 0), Some(60_000));
        let second = first.renewed(reading(120_000, 0), Some(10_000));
        // The longer grace stands, and the leases from between the outages have it too.
        assert_eq!(second.grace(reading(120_000, 0)), Grace::new(at(120_000), at(160_000)));
    }
}
