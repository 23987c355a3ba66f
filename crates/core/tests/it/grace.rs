//! The grace of random outages, beside a list of them all.

use proptest::prelude::*;
use tenure_core::id::Fence;
use tenure_core::lease::{self, Lease};
use tenure_core::outage::{Marks, Reading};
use tenure_core::{LeaseToken, Timestamp};

#[derive(Debug, Clone, Copy)]
enum Step {
    /// Time passes, and control planes leave their marks all the while.
    Alive(i64),
    /// Time passes without a mark.
    Silent(i64),
    /// A control plane leaves a mark; the longest lease is that long.
    Mark(i64),
    /// A lease of that length is granted.
    Grant(i64),
    /// The last lease is renewed, if it may be.
    Renew(i64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1..20_000_i64).prop_map(Step::Alive),
        2 => prop_oneof![Just(5_000), Just(5_001), 1..60_000_i64].prop_map(Step::Silent),
        3 => (0..60_000_i64).prop_map(Step::Mark),
        3 => (1..60_000_i64).prop_map(Step::Grant),
        2 => (1..60_000_i64).prop_map(Step::Renew),
    ]
}

/// All that has happened.
#[derive(Debug)]
struct Story {
    now: Timestamp,
    ahead_ms: i64,
    marks: Marks,
    last_mark: Timestamp,
    /// End of each outage, and of the grace behind it.
    outages: Vec<(Timestamp, Timestamp)>,
    leases: Vec<(Lease<()>, Timestamp)>,
}

impl Story {
    fn reading(&self) -> Reading {
        Reading { now: self.now.plus(self.ahead_ms), alive: self.now }
    }

    /// Says in plain words what [`lease::is_expired`] must say.
    fn is_over(&self, expires_at: Timestamp, extended_at: Timestamp) -> bool {
        let now = self.reading().now;
        if now < expires_at || self.now.since(self.last_mark) > 5_000 {
            return false;
        }
        let covered = self.outages.last().is_some_and(|(ended, _)| extended_at <= *ended);
        !covered || self.outages.iter().all(|(_, until)| now >= *until)
    }

    fn mark(&mut self, longest_ms: i64) {
        let reading = self.reading();
        if self.now.since(self.last_mark) > 5_000 {
            self.outages.push((reading.now, reading.now.plus(longest_ms)));
        }
        self.last_mark = self.now;
        self.marks = self.marks.renewed(reading, self.marks.show_outage(reading).then_some(longest_ms));
    }

    fn renew(&mut self, ttl_ms: i64) {
        let (reading, grace) = (self.reading(), self.marks.grace(self.reading()));
        let Some((lease, extended_at)) = self.leases.pop() else { return };
        let extension =
            lease::Extension { ttl_ms, not_after: Timestamp::MAX, renewal: lease::Renewal::KeepsGeneration };
        let renewed = lease::renew(&lease, extended_at, TOKEN, extension, reading.now, grace);
        assert_eq!(renewed.is_err(), self.is_over(lease.expires_at, extended_at), "an expired lease is never extended");
        self.leases.push(renewed.map_or((lease, extended_at), |lease| (lease, reading.now)));
    }
}

const TOKEN: LeaseToken = LeaseToken::from_u128(1);

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_lease_is_held_back_by_the_outages_that_ended_after_it(steps in prop::collection::vec(step(), 1..30)) {
        let start = Timestamp::from_millis(1_000_000);
        let marks = Marks { alive_at: start, ..Marks::NONE };
        let (outages, leases) = (Vec::new(), Vec::new());
        let mut story = Story { now: start, ahead_ms: 0, marks, last_mark: start, outages, leases };
        for step in steps {
            match step {
                Step::Alive(ms) => story.ahead_ms += ms,
                Step::Silent(ms) => story.now = story.now.plus(ms),
                Step::Mark(longest_ms) => story.mark(longest_ms),
                Step::Grant(ttl_ms) => {
                    let now = story.reading().now;
                    story.leases.push((lease::acquire(Fence(0), (), TOKEN, ttl_ms, now), now));
                }
                Step::Renew(ttl_ms) => story.renew(ttl_ms),
            }
            let (reading, grace) = (story.reading(), story.marks.grace(story.reading()));
            for (lease, extended_at) in &story.leases {
                let expected = story.is_over(lease.expires_at, *extended_at);
                prop_assert_eq!(lease::is_expired(lease, *extended_at, reading.now, grace), expected, "{:?}", story);
            }
        }
    }
}
