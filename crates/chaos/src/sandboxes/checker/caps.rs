//! Rules about how many there are at a time.

use std::collections::BTreeMap;

use super::{Answer, Findings, Op, Row, Rule};

/// The most intervals that have a moment in common, and that moment. Both ends belong to an interval.
fn most_at_once(intervals: impl IntoIterator<Item = (u64, u64)>) -> (u64, u64) {
    let mut edges: Vec<(u64, bool)> =
        intervals.into_iter().flat_map(|(from, to)| [(from, false), (to, true)]).collect();
    // What begins at a moment comes before what ends at it.
    edges.sort_unstable();
    let (mut open, mut most, mut when) = (0, 0, 0);
    for (at, is_end) in edges {
        if is_end {
            open -= 1;
        } else {
            open += 1;
            if open > most {
                (most, when) = (open, at);
            }
        }
    }
    (most, when)
}

fn exceeds(cap: u64, count: u64) -> bool {
    cap > 0 && count > cap
}

impl Findings<'_> {
    /// What is on the disk of a worker, and what the control plane puts there.
    pub(super) fn capacity(&mut self) {
        let story = self.story;
        let mut by_worker: BTreeMap<usize, Vec<(u64, u64)>> = BTreeMap::new();
        for seen in story.sightings.iter().filter(|seen| seen.first <= seen.last) {
            by_worker.entry(seen.worker).or_default().push((seen.first, seen.last));
        }
        for (worker, intervals) in by_worker {
            let (most, _) = most_at_once(intervals);
            if exceeds(story.limits.worker_sandboxes, most) {
                let what = format!("worker {worker} had {most} of {} runtimes", story.limits.worker_sandboxes);
                self.report(Rule::OverCapacity, None, what);
            }
        }
        for (op, rows) in self.lists() {
            let mut by_worker: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
            for row in rows.iter().filter(|row| row.counts()) {
                if let Some(worker) = &row.worker {
                    by_worker.entry(worker).or_default().push(row);
                }
            }
            for (worker, rows) in by_worker {
                let sums = [
                    ("sandboxes", rows.len() as u64, story.limits.worker_sandboxes),
                    ("MB", rows.iter().map(|row| row.memory_mb).sum(), story.limits.worker_memory_mb),
                    ("processors", rows.iter().map(|row| row.vcpus).sum(), story.limits.worker_vcpus),
                ];
                for (unit, sum, cap) in sums.into_iter().filter(|(_, sum, cap)| exceeds(*cap, *sum)) {
                    let what = format!("request {} shows {sum} {unit} on {worker}, which has {cap}", op.id);
                    self.report(Rule::OverCapacity, None, what);
                }
            }
        }
    }

    /// How many there are of an owner, and of all.
    pub(super) fn caps(&mut self) {
        let limits = self.story.limits.clone();
        let mut by_owner: BTreeMap<&str, Vec<(u64, u64)>> = BTreeMap::new();
        for life in self.lives.values() {
            if let (Some(owner), Some(certain)) = (life.owner, life.certain()) {
                by_owner.entry(owner).or_default().push(certain);
            }
        }
        let (most, at) = most_at_once(by_owner.values().flatten().copied());
        if exceeds(limits.total, most) {
            self.report(Rule::OverCap, None, format!("{most} of {} lived at {at} ns", limits.total));
        }
        for (owner, intervals) in by_owner {
            let (most, at) = most_at_once(intervals);
            if exceeds(limits.per_owner, most) {
                let what = format!("{most} of {} of {owner} lived at {at} ns", limits.per_owner);
                self.report(Rule::OverCap, None, what);
            }
        }
        for (op, rows) in self.lists() {
            let mut by_owner: BTreeMap<&str, u64> = BTreeMap::new();
            let mut total = 0;
            for row in rows.iter().filter(|row| row.counts() && row.worker.is_some()) {
                total += 1;
                *by_owner.entry(row.owner.as_deref().unwrap_or_default()).or_default() += 1;
            }
            if exceeds(limits.total, total) {
                self.report(Rule::OverCap, None, format!("request {} shows {total} of {}", op.id, limits.total));
            }
            for (owner, count) in by_owner.into_iter().filter(|(_, count)| exceeds(limits.per_owner, *count)) {
                let what = format!("request {} shows {count} of {} of {owner:?}", op.id, limits.per_owner);
                self.report(Rule::OverCap, None, what);
            }
        }
    }
}

impl<'a> Findings<'a> {
    /// Every list, which is how things stood at one moment.
    fn lists(&self) -> Vec<(&'a Op, &'a [Row])> {
        let rows = |op: &'a Op| match &op.answer {
            Answer::Listed { rows } => Some((op, rows.as_slice())),
            _ => None,
        };
        self.story.ops.iter().filter_map(rows).collect()
    }
}
