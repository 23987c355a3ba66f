//! Which slots a schedule has.
//!
//! Where a clock is set forward, wall-clock times are missing; where it is set back, they happen twice. What cron does
//! then depends on the fields for minute and hour:
//!
//! - Both name one value (`30 2 * * *`): the schedule fires once a day. A missing time fires at the first instant after
//!   the gap, a repeated time fires the first time only.
//! - Otherwise (`*/15 * * * *`, `0 1,2 * * *`): it follows the wall clock. A missing time does not fire, a repeated time
//!   fires twice.
//!
//! Rates and intervals measure elapsed time, and no clock change affects them.

use croner::{Cron, JobType};
use jiff::SignedDuration;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone};

use super::{Schedule, Series};
use crate::time::{DurationMs, Timestamp};

const MINUTE_MS: DurationMs = 60_000;
/// A search gives up after so many changes of the clock: about 200 years.
const CLOCK_CHANGES: usize = 400;

impl Schedule {
    /// The first slot later than `after`.
    pub fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        match &self.0 {
            Series::Every { period_ms, anchor } => {
                let periods = after.since(*anchor).div_euclid(*period_ms) + 1;
                let slot = anchor.as_millis().checked_add(periods.checked_mul(*period_ms)?)?;
                (slot <= Timestamp::MAX.as_millis()).then(|| Timestamp::from_millis(slot)).filter(|slot| *slot > after)
            }
            Series::Cron { cron, zone } => {
                let found = match cron.determine_job_type() {
                    JobType::FixedTime => once_a_day(cron, zone, instant(after)),
                    JobType::IntervalWildcard => by_the_clock(cron, zone, instant(after)),
                }?;
                let found = found.as_millisecond();
                (found <= Timestamp::MAX.as_millis()).then(|| Timestamp::from_millis(found))
            }
        }
    }

    /// The first `limit` slots later than `after` and not later than `until`, in order.
    pub fn slots_between(&self, after: Timestamp, until: Timestamp, limit: usize) -> Vec<Timestamp> {
        let next = |slot: &Timestamp| self.next_after(*slot);
        std::iter::successors(self.next_after(after), next).take_while(|slot| *slot <= until).take(limit).collect()
    }

    /// The last `limit` slots later than `after` and not later than `until`, in order. The work depends on `limit`, and not
    /// on how many slots there are before them.
    pub fn last_slots(&self, after: Timestamp, until: Timestamp, limit: usize) -> Vec<Timestamp> {
        let previous = |slot: &Timestamp| self.last_before(*slot, after);
        let mut slots: Vec<_> =
            std::iter::successors(self.last_before(until.plus(1), after), previous).take(limit).collect();
        slots.reverse();
        slots
    }

    /// The last slot before `end` and later than `after`.
    pub(super) fn last_before(&self, end: Timestamp, after: Timestamp) -> Option<Timestamp> {
        let mut window_ms = MINUTE_MS;
        let mut last = loop {
            let from = end.plus(-window_ms).max(after);
            match self.next_after(from) {
                Some(slot) if slot < end => break slot,
                _ if from <= after => return None,
                _ => window_ms = window_ms.saturating_mul(2),
            }
        };
        // `last` has a slot, and from `none` on there is none.
        let mut none = end;
        while self.next_after(last).is_some_and(|slot| slot < end) {
            let middle = last.plus(none.since(last) / 2);
            match self.next_after(middle) {
                Some(slot) if slot < end => last = slot,
                _ => none = middle,
            }
        }
        Some(last)
    }
}

fn instant(at: Timestamp) -> jiff::Timestamp {
    // Every value of a `Timestamp` lies inside jiff's range.
    jiff::Timestamp::from_millisecond(at.as_millis()).unwrap_or(jiff::Timestamp::MAX)
}

/// Wall-clock times only: clock changes are handled here. The search of the crate over zoned times fires a fixed time
/// twice on a day with a gap.
fn next_civil(cron: &Cron, from: DateTime, inclusive: bool) -> Option<DateTime> {
    cron.find_next_occurrence(&from, inclusive).ok()
}

/// Each wall-clock time that matches is one instant: the first of two, or the end of the gap that it lies in.
fn once_a_day(cron: &Cron, zone: &TimeZone, after: jiff::Timestamp) -> Option<jiff::Timestamp> {
    let mut civil = zone.to_datetime(after);
    loop {
        civil = next_civil(cron, civil, false)?;
        let ambiguous = zone.to_ambiguous_timestamp(civil);
        let slot = match ambiguous.offset() {
            AmbiguousOffset::Gap { .. } => {
                let beyond = ambiguous.later().ok()?.checked_add(SignedDuration::from_millis(1)).ok()?;
                zone.preceding(beyond).next()?.timestamp()
            }
            _ => ambiguous.earlier().ok()?,
        };
        if slot > after {
            return Some(slot);
        }
    }
}

/// Between two changes the clock runs evenly: the first match before the next change, or else after it.
fn by_the_clock(cron: &Cron, zone: &TimeZone, after: jiff::Timestamp) -> Option<jiff::Timestamp> {
    let (mut from, mut inclusive) = (after, false);
    for _ in 0..CLOCK_CHANGES {
        let civil = next_civil(cron, zone.to_datetime(from), inclusive)?;
        let slot = zone.to_offset(from).to_timestamp(civil).ok()?;
        match zone.following(from).next().map(|change| change.timestamp()) {
            Some(change) if slot >= change => (from, inclusive) = (change, true),
            _ => return Some(slot),
        }
    }
    None
}
