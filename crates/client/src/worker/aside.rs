//! Outcomes that do not get through, apart from all others.

use std::time::{Duration, Instant};

use super::report::Report;
use crate::http::Backoff;

/// The longest wait between two tries of one of them.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// For how long each is tried, at least, and beyond that as long as its lease is held.
const TRIED_FOR: Duration = Duration::from_secs(15 * 60);

/// Reports that do not get through even alone, or that the server cannot take though it takes others. They are tried one
/// at a time, each less and less often, and whatever becomes of them holds up nothing else.
#[derive(Default)]
pub(crate) struct Aside {
    waiting: Vec<(Report, Tries)>,
    /// Of the one that was taken last.
    taken: Option<Tries>,
}

struct Tries {
    since: Instant,
    next_at: Instant,
    backoff: Backoff,
}

impl Aside {
    /// Puts a report aside for about `wait` at first.
    pub(crate) fn put(&mut self, report: Report, wait: Duration) {
        let now = Instant::now();
        self.wait_for(report, Tries { since: now, next_at: now, backoff: Backoff::new(wait, LONGEST_WAIT) });
    }

    /// Puts the one back that was taken last.
    pub(crate) fn put_back(&mut self, report: Report) {
        match self.taken.take() {
            Some(tries) => self.wait_for(report, tries),
            None => self.put(report, LONGEST_WAIT),
        }
    }

    fn wait_for(&mut self, report: Report, mut tries: Tries) {
        tries.next_at = Instant::now() + tries.backoff.next(None);
        self.waiting.push((report, tries));
    }

    /// One whose time has come.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<Report> {
        let due = self.waiting.iter().position(|(_, tries)| tries.next_at <= now)?;
        let (report, tries) = self.waiting.swap_remove(due);
        self.taken = Some(tries);
        Some(report)
    }

    /// Whether the one that was taken last has had its time.
    pub(crate) fn is_hopeless(&self, now: Instant) -> bool {
        self.taken.as_ref().is_some_and(|tries| now.duration_since(tries.since) > TRIED_FOR)
    }

    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.waiting.iter().map(|(_, tries)| tries.next_at).min()
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::report::Outcome;
    use crate::{Json, TestLease};

    fn report() -> Report {
        Report { lease: TestLease::new("test", &()).into_lease(), outcome: Outcome::Complete(Json::null()) }
    }

    #[test]
    fn one_that_is_put_back_waits_longer_and_is_given_up_in_the_end() {
        let (mut aside, second) = (Aside::default(), Duration::from_secs(1));
        let began = Instant::now();
        aside.put(report(), second);
        assert!(aside.take_due(began).is_none());
        let mut now = began;
        for least in [1, 2, 4, 8, 16, 30, 30].map(|secs| second * secs / 2) {
            let next_at = aside.next_at().unwrap();
            assert!(next_at >= began + least, "{least:?}");
            now = now.max(next_at);
            let taken = aside.take_due(now).unwrap();
            assert_eq!((aside.len(), aside.is_hopeless(now)), (0, false));
            aside.put_back(taken);
        }
        assert!(aside.next_at().unwrap() <= Instant::now() + LONGEST_WAIT);
        aside.take_due(now + TRIED_FOR + LONGEST_WAIT).unwrap();
        assert!(aside.is_hopeless(began + TRIED_FOR + second * 60));
    }
}
