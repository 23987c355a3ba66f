//! Looks for an order of the operations of one task that the sequential machine would have answered as they were.
//!
//! After Wing and Gong, with the memory of Lowe: an operation takes effect at some point between its question and its
//! answer; one without an answer at any point after its question, or never. Time goes along: each step is set as early
//! as it can be, which is the best choice because all bounds between steps are lower ones.

use std::collections::HashSet;

use super::events::{Event, Facts, Outcome, What};
use super::model::State;

/// States looked at before giving up on one task.
const LIMIT: usize = 400_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    Order,
    /// No order explains the answers. The state that explains the most of them, and how many.
    Nothing {
        best: State,
        explained: usize,
    },
    /// Too many to look at all.
    GaveUp,
}

pub fn search(events: &[Event], facts: &Facts) -> Found {
    let mut events = distinct(events);
    // What was answered first is tried first.
    events.sort_by_key(|event| (event.answered.unwrap_or(u64::MAX), event.asked));
    let mut search = Search { events: &events, facts, seen: HashSet::new(), best: (State::new(), 0), gave_up: false };
    let done = vec![false; events.len()];
    if search.explain(&done, &State::new()) {
        Found::Order
    } else if search.gave_up {
        Found::GaveUp
    } else {
        Found::Nothing { best: search.best.0, explained: search.best.1 }
    }
}

/// Of the same report sent several times without an answer the first one stands for all: it can take effect at any time
/// after, and once it has the others change nothing.
fn distinct(events: &[Event]) -> Vec<Event> {
    let mut kept: Vec<Event> = Vec::new();
    for event in events {
        let unknown = matches!(event.what, What::Report { outcome: Outcome::Unknown, .. });
        if unknown && kept.iter().any(|other| other.what == event.what && other.asked <= event.asked) {
            continue;
        }
        kept.push(event.clone());
    }
    kept
}

struct Search<'a> {
    events: &'a [Event],
    facts: &'a Facts,
    seen: HashSet<(Vec<bool>, State)>,
    best: (State, usize),
    gave_up: bool,
}

impl Search<'_> {
    fn explain(&mut self, done: &[bool], state: &State) -> bool {
        let left = || self.events.iter().zip(done).filter(|(event, done)| event.must && !**done);
        let open = left().count();
        if open == 0 {
            return true;
        }
        let explained = self.events.iter().filter(|event| event.must).count() - open;
        if explained >= self.best.1 {
            self.best = (state.clone(), explained);
        }
        // Whatever comes next comes before the first answer that is still open.
        let latest = left().filter_map(|(event, _)| event.answered).min().unwrap_or(u64::MAX);
        if self.seen.len() >= LIMIT {
            self.gave_up = true;
            return false;
        }
        if !self.seen.insert((done.to_vec(), state.clone())) {
            return false;
        }
        for (index, event) in self.events.iter().enumerate() {
            let at = state.now.max(event.asked);
            if done[index] || at > latest {
                continue;
            }
            if let Some(next) = state.apply(event, at, self.facts)
                && next.now <= latest
            {
                let mut after = done.to_vec();
                after[index] = true;
                if self.explain(&after, &next) {
                    return true;
                }
            }
        }
        let steps = state.inner_steps(self.facts);
        steps.iter().any(|next| next.now <= latest && self.explain(done, next))
    }
}
