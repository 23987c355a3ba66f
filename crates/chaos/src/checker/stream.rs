//! Rules about the stream of events: every change is in it, once and in order, whoever watches and however often the watcher
//! goes away.

use std::collections::HashMap;

use super::{Ended, Rule, Violation};

/// An event that a watcher got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// The batch, and the place in it.
    pub id: (i64, u32),
    pub kind: Box<str>,
    /// Empty for an event of a run.
    pub task: Box<str>,
    pub state: Box<str>,
    pub attempt: u32,
}

/// What one watcher got, in this order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stream {
    pub name: String,
    pub seen: Vec<Seen>,
    /// Refusals, and events that cannot be read.
    pub problems: Vec<String>,
    /// It got the last event that there was.
    pub complete: bool,
}

/// Tasks whose names begin like this were made to be seen, some of them before a watcher was there.
pub const MARK: &str = "mark";

pub fn check(ended: &Ended) -> Vec<Violation> {
    ended.streams.iter().flat_map(|stream| of_one(stream, ended)).collect()
}

fn of_one(stream: &Stream, ended: &Ended) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut report = |rule, task: Option<&str>, what: String, ops: Vec<String>| {
        let what = format!("{}: {what}", stream.name);
        found.push(Violation { rule, task: task.map(ToOwned::to_owned), what, ops });
    };
    for problem in &stream.problems {
        report(Rule::EventLost, None, problem.clone(), Vec::new());
    }
    for two in stream.seen.windows(2) {
        if two[1].id <= two[0].id {
            report(Rule::EventOrder, None, format!("{:?} came after {:?}", two[1], two[0]), Vec::new());
        }
    }
    if stream.seen.iter().any(|seen| &*seen.kind == "reset") {
        report(Rule::EventLost, None, "it was told to start anew, and nothing was removed".to_owned(), Vec::new());
        return found;
    }
    if !stream.complete {
        report(Rule::EventLost, None, "the last event has not come".to_owned(), Vec::new());
    }
    let mut by_task: HashMap<&str, Vec<&Seen>> = HashMap::new();
    for seen in &stream.seen {
        by_task.entry(&seen.task).or_default().push(seen);
    }
    for (id, task) in ended.tasks.iter().filter(|(_, task)| !task.nonce.starts_with(MARK)) {
        let seen = by_task.get(id.as_str()).map(Vec::as_slice).unwrap_or_default();
        let lines = || seen.iter().map(|seen| format!("{seen:?}")).collect::<Vec<_>>();
        let of =
            |kind: &str| seen.iter().filter(|seen| &*seen.kind == kind).map(|seen| seen.attempt).collect::<Vec<_>>();
        let (submitted, started) = (of("submitted").len(), of("started"));
        if submitted != 1 {
            report(Rule::EventLost, Some(id), format!("it was submitted {submitted} times"), lines());
        }
        if started != (1..=task.attempt).collect::<Vec<_>>() {
            report(Rule::EventLost, Some(id), format!("of {} attempts it saw {started:?}", task.attempt), lines());
        }
        if seen.last().is_some_and(|last| *last.state != *task.state) {
            report(Rule::EventLost, Some(id), format!("it does not know that it is {}", task.state), lines());
        }
    }
    found
}
