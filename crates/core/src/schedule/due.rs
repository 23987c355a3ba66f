//! Which slots are due, and what becomes of those that nobody fired in time.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Schedule;
use crate::limits;
use crate::time::{DurationMs, Timestamp};

/// What happens to slots that passed while nothing could fire them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CatchUp {
    /// The last of them fires.
    #[default]
    Latest,
    /// None of them fires. A slot counts as passed [`limits::SCHEDULE_LATE_MS`] after its time.
    None,
    /// Each of them fires, in order; of very many the last [`limits::SCHEDULE_CATCH_UP`].
    All,
}

impl CatchUp {
    pub const ALL: [Self; 3] = [Self::Latest, Self::None, Self::All];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Latest => "latest",
            Self::None => "none",
            Self::All => "all",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.as_str() == text)
    }
}

/// Spreads firings over time: each slot is due up to `max_ms` later, always the same for one id and slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Jitter {
    pub id: u128,
    pub max_ms: DurationMs,
}

impl Jitter {
    pub const NONE: Self = Self { id: 0, max_ms: 0 };

    /// When a slot is due.
    pub fn due_at(self, slot: Timestamp) -> Timestamp {
        if self.max_ms <= 0 {
            return slot;
        }
        let mut hash = Sha256::new();
        hash.update(self.id.to_be_bytes());
        hash.update(slot.as_millis().to_be_bytes());
        let drawn = hash.finalize().iter().take(8).fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
        slot.plus((drawn % (self.max_ms.unsigned_abs() + 1)) as DurationMs)
    }
}

/// What is due at a point in time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DueSlots {
    /// To be fired now, in order.
    pub fire: Vec<Timestamp>,
    /// The first and the last of the slots that are passed over, if there are any.
    pub missed: Option<(Timestamp, Timestamp)>,
    /// The first slot that is not due yet; `None` if there are no more.
    pub next: Option<Timestamp>,
}

impl Schedule {
    /// Judges the slots from `next` on, the first one that has not been judged yet.
    pub fn due(&self, next: Timestamp, now: Timestamp, catch_up: CatchUp, jitter: Jitter) -> DueSlots {
        let before = next.plus(-1);
        let keep = match catch_up {
            CatchUp::Latest | CatchUp::None => 1,
            CatchUp::All => limits::SCHEDULE_CATCH_UP,
        };
        // Slots whose jitter is not over yet stand at the end; there are few of them.
        let mut until = now;
        let mut fire = loop {
            let slots = self.last_slots(before, until, keep);
            match slots.iter().position(|slot| jitter.due_at(*slot) > now) {
                None => break slots,
                Some(waiting) => until = slots.get(waiting).map_or(before, |slot| slot.plus(-1)),
            }
        };
        let Some(last) = fire.last().copied() else {
            return DueSlots { next: self.next_after(before), ..DueSlots::default() };
        };
        if catch_up == CatchUp::None {
            fire.retain(|slot| now.since(jitter.due_at(*slot)) <= limits::SCHEDULE_LATE_MS);
        }
        let missed = match fire.first() {
            Some(first) if *first <= next => None,
            Some(first) => self.last_before(*first, before).map(|last| (next, last)),
            None => Some((next, last)),
        };
        DueSlots { fire, missed, next: self.next_after(last) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        Timestamp::parse(text).unwrap()
    }

    fn hourly() -> Schedule {
        Schedule::parse("0 * * * *", "UTC").unwrap()
    }

    fn due(now: &str, catch_up: CatchUp) -> DueSlots {
        hourly().due(at("2026-03-01T01:00:00Z"), at(now), catch_up, Jitter::NONE)
    }

    #[test]
    fn a_slot_in_time_fires_whatever_the_mode() {
        for mode in CatchUp::ALL {
            let early = due("2026-03-01T00:59:59.999Z", mode);
            assert_eq!(early, DueSlots { next: Some(at("2026-03-01T01:00:00Z")), ..DueSlots::default() }, "{mode:?}");
            let found = due("2026-03-01T01:00:00.500Z", mode);
            let fire = vec![at("2026-03-01T01:00:00Z")];
            assert_eq!(found, DueSlots { fire, missed: None, next: Some(at("2026-03-01T02:00:00Z")) }, "{mode:?}");
        }
    }

    #[test]
    fn missed_slots_are_caught_up_as_the_mode_says() {
        let (one, two, three) = (at("2026-03-01T01:00:00Z"), at("2026-03-01T02:00:00Z"), at("2026-03-01T03:00:00Z"));
        let next = Some(at("2026-03-01T04:00:00Z"));
        let now = "2026-03-01T03:30:00Z";
        assert_eq!(due(now, CatchUp::Latest), DueSlots { fire: vec![three], missed: Some((one, two)), next });
        assert_eq!(due(now, CatchUp::None), DueSlots { fire: vec![], missed: Some((one, three)), next });
        assert_eq!(due(now, CatchUp::All), DueSlots { fire: vec![one, two, three], missed: None, next });
        // The last one is not late.
        let now = "2026-03-01T03:01:00Z";
        assert_eq!(due(now, CatchUp::None), DueSlots { fire: vec![three], missed: Some((one, two)), next });
    }

    #[test]
    fn all_is_bounded_by_the_newest() {
        let found = due("2027-03-01T00:00:00Z", CatchUp::All);
        assert_eq!(found.fire.len(), limits::SCHEDULE_CATCH_UP);
        assert_eq!(found.fire.last(), Some(&at("2027-03-01T00:00:00Z")));
        let (first, last) = found.missed.unwrap();
        assert_eq!(first, at("2026-03-01T01:00:00Z"));
        assert_eq!(hourly().next_after(last).as_ref(), found.fire.first());
    }

    #[test]
    fn jitter_delays_a_slot_by_the_same_time_always() {
        let jitter = Jitter { id: 7, max_ms: 600_000 };
        let slots = hourly().slots_between(at("2026-03-01T00:00:00Z"), Timestamp::MAX, 200);
        let delays: Vec<_> = slots.iter().map(|slot| jitter.due_at(*slot).since(*slot)).collect();
        assert!(delays.iter().all(|ms| (0..=600_000).contains(ms)));
        assert!(delays.iter().any(|ms| *ms < 100_000) && delays.iter().any(|ms| *ms > 500_000));
        assert_eq!(delays, slots.iter().map(|slot| jitter.due_at(*slot).since(*slot)).collect::<Vec<_>>());
        let other = Jitter { id: 8, ..jitter };
        assert!(slots.iter().any(|slot| other.due_at(*slot) != jitter.due_at(*slot)));

        let slot = at("2026-03-01T01:00:00Z");
        let due_at = jitter.due_at(slot);
        for mode in CatchUp::ALL {
            assert_eq!(hourly().due(slot, due_at.plus(-1), mode, jitter).fire, [], "{mode:?}");
            assert_eq!(hourly().due(slot, due_at, mode, jitter).fire, [slot], "{mode:?}");
        }
        assert_eq!(Jitter::NONE.due_at(slot), slot);
    }
}
