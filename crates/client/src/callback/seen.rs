//! Which dispatches are known. Pure.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

/// Dispatches that run, and the last ones that are done with: both by their id, in bounded memory.
#[derive(Debug)]
pub(crate) struct Seen {
    in_flight: HashSet<String>,
    finished: HashSet<Arc<str>>,
    /// The same, oldest first.
    order: VecDeque<Arc<str>>,
    remember: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It is in flight from now on.
    New,
    InFlight,
    Finished,
    /// As many run as may.
    Full,
}

impl Seen {
    pub(crate) fn new(remember: usize) -> Self {
        Self { in_flight: HashSet::new(), finished: HashSet::new(), order: VecDeque::new(), remember }
    }

    pub(crate) fn admit(&mut self, id: &str, at_most: usize) -> Admission {
        if self.finished.contains(id) {
            Admission::Finished
        } else if self.in_flight.contains(id) {
            Admission::InFlight
        } else if self.in_flight.len() >= at_most {
            Admission::Full
        } else {
            self.in_flight.insert(id.to_owned());
            Admission::New
        }
    }

    /// It runs no longer, and may come again.
    pub(crate) fn forget(&mut self, id: &str) {
        self.in_flight.remove(id);
    }

    /// Its end was told, or is nobody's business any more.
    pub(crate) fn finish(&mut self, id: &str) {
        self.in_flight.remove(id);
        let id: Arc<str> = Arc::from(id);
        if self.finished.insert(Arc::clone(&id)) {
            self.order.push_back(id);
        }
        while self.order.len() > self.remember {
            if let Some(oldest) = self.order.pop_front() {
                self.finished.remove(&oldest);
            }
        }
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dispatch_is_new_then_in_flight_then_finished() {
        let mut seen = Seen::new(10);
        assert_eq!(seen.admit("a", 9), Admission::New);
        assert_eq!(seen.admit("a", 9), Admission::InFlight);
        seen.finish("a");
        assert_eq!(seen.admit("a", 9), Admission::Finished);
    }

    #[test]
    fn one_that_was_given_up_may_come_again() {
        let mut seen = Seen::new(10);
        seen.admit("a", 9);
        seen.forget("a");
        assert_eq!(seen.admit("a", 9), Admission::New);
    }

    #[test]
    fn no_more_run_than_may_and_known_ones_are_known_also_then() {
        let mut seen = Seen::new(10);
        seen.admit("a", 1);
        assert_eq!(seen.admit("b", 1), Admission::Full);
        assert_eq!(seen.admit("a", 1), Admission::InFlight);
        seen.finish("a");
        assert_eq!(seen.admit("b", 1), Admission::New);
        assert_eq!(seen.admit("a", 1), Admission::Finished);
    }

    #[test]
    fn the_oldest_are_forgotten_first() {
        let mut seen = Seen::new(2);
        for id in ["a", "b", "b", "c"] {
            seen.finish(id);
        }
        assert_eq!(seen.order.len(), 2);
        assert_eq!(seen.finished.len(), 2);
        assert_eq!(seen.admit("a", 9), Admission::New);
        assert_eq!(seen.admit("b", 9), Admission::Finished);
    }
}
