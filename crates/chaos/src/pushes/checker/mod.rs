//! Whether what was seen of pushed tasks keeps the promises.
//!
//! Every rule accuses only on certainty: a call without an answer may have taken effect at any time after it was sent.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use super::history::{Answer, Attempt, Call, Op};
use super::{CONCURRENCY, DISPATCH_MS, TTL_MS};
use crate::checker::{Ended, FinalTask};
use crate::faults::Faults;

const MS: u64 = 1_000_000;

/// By how much clocks and rounding may shorten a lease.
const TOLERANCE_NS: u64 = 20 * MS;

/// After a fault, processes start and connections are made again.
const RECOVERY_NS: u64 = 10_000 * MS;

/// Answers of 502, 503 and 504 that a run may have while nothing is broken.
const FAILURES: usize = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// What was acknowledged exists, once.
    LostSubmit,
    /// Every task ends.
    NotEnded,
    /// An envelope is what its receiver was promised: secret, token and ids fit together.
    Envelope,
    /// All deliveries of an attempt have the same ids, and no other attempt has them.
    DeliveryIds,
    /// Fences grow with the attempts.
    Fence,
    /// Nothing is accepted from a worker after a later attempt was delivered.
    StaleAccepted,
    /// One completion of a task succeeds.
    TwoCompletions,
    /// The same completion gets the same answer.
    ReceiptChanged,
    /// The task has succeeded with the output of the completion that was accepted.
    Outcome,
    /// The history of a task has every attempt that was delivered.
    AttemptHistory,
    /// No more attempts of a queue are open than it allows.
    LimitExceeded,
    /// A push that failed is repeated.
    NotRepeated,
    /// Every refusal has a reason that its call can have.
    WrongReason,
    /// No internal errors, and few answers of 503 while nothing is broken.
    ServerError,
}

impl Rule {
    pub const fn name(self) -> &'static str {
        match self {
            Self::LostSubmit => "an acknowledged submit is lost",
            Self::NotEnded => "a task has not ended",
            Self::Envelope => "an envelope is wrong",
            Self::DeliveryIds => "the ids of a delivery are not those of its attempt",
            Self::Fence => "a fence does not grow",
            Self::StaleAccepted => "a worker that was overtaken was accepted",
            Self::TwoCompletions => "two accepted completions",
            Self::ReceiptChanged => "the same completion, another answer",
            Self::Outcome => "the outcome is not that of the completion",
            Self::AttemptHistory => "the attempt history is wrong",
            Self::LimitExceeded => "more attempts are open than the queue allows",
            Self::NotRepeated => "a push was not repeated",
            Self::WrongReason => "refused with a wrong reason",
            Self::ServerError => "the server failed",
        }
    }
}

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub rule: Rule,
    pub what: String,
    /// The operations of the task.
    pub ops: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule.name(), self.what)?;
        self.ops.iter().try_for_each(|op| write!(f, "\n    {op}"))
    }
}

fn attempt(call: &Call) -> Option<&Attempt> {
    match call {
        Call::Submit { .. } => None,
        Call::Delivery { attempt, .. }
        | Call::Started { attempt }
        | Call::Heartbeat { attempt }
        | Call::Completed { attempt, .. } => Some(attempt),
    }
}

struct Checker<'a> {
    ended: &'a Ended,
    faults: &'a Faults,
    /// Operations by nonce, in order.
    tasks: BTreeMap<&'a str, Vec<&'a Op>>,
    last: HashMap<&'a str, &'a FinalTask>,
    found: Vec<Violation>,
}

/// Checks everything.
pub fn check(ops: &[Op], ended: &Ended, faults: &Faults) -> Vec<Violation> {
    let mut tasks: BTreeMap<&str, Vec<&Op>> = BTreeMap::new();
    for op in ops.iter().filter(|op| op.answer != Answer::NotSent) {
        let nonce = match &op.call {
            Call::Submit { nonce } => nonce,
            call => attempt(call).map(|attempt| &attempt.nonce).unwrap_or_else(|| unreachable!("all others have one")),
        };
        tasks.entry(nonce).or_default().push(op);
    }
    let last = ended.tasks.values().map(|task| (task.nonce.as_str(), task)).collect();
    let mut checker = Checker { ended, faults, tasks, last, found: Vec::new() };
    checker.failures(ops);
    checker.limits(ops);
    for nonce in checker.tasks.keys().copied().collect::<Vec<_>>() {
        checker.task(nonce);
    }
    checker.found
}

impl<'a> Checker<'a> {
    fn report(&mut self, rule: Rule, nonce: &str, what: String) {
        let ops = self.tasks.get(nonce).map(Vec::as_slice).unwrap_or_default();
        let start = ops.first().map_or(0, |op| op.asked);
        let ms = |at: u64| at.saturating_sub(start) / MS;
        let line = |op: &&Op| {
            let until = op.answered.map_or("?".to_owned(), |at| ms(at).to_string());
            format!("{:>7}..{until:<7} ms {}: {:?} -> {:?}", ms(op.asked), op.id, op.call, op.answer)
        };
        let mut ops: Vec<String> = ops.iter().map(line).collect();
        ops.extend(self.last.get(nonce).map(|last| format!("at the end: {last:?}")));
        self.found.push(Violation { rule, what, ops });
    }

    fn task(&mut self, nonce: &'a str) {
        let ops = self.tasks[nonce].clone();
        self.deliveries(nonce, &ops);
        self.stale(nonce, &ops);
        self.completions(nonce, &ops);
        self.reasons(nonce, &ops);
        let submitted: BTreeSet<&str> = ops
            .iter()
            .filter_map(|op| match &op.answer {
                Answer::Submitted { task } => Some(task.as_str()),
                _ => None,
            })
            .collect();
        let there = |id: &&str| self.ended.tasks.get(*id).is_some_and(|task| task.nonce == nonce);
        if submitted.len() > 1 || !submitted.iter().all(there) {
            self.report(Rule::LostSubmit, nonce, format!("{nonce} was told to be {submitted:?}"));
        }
        let Some(last) = self.last.get(nonce).copied() else { return };
        if !matches!(last.state.as_str(), "Succeeded" | "Failed" | "Canceled") {
            self.report(Rule::NotEnded, nonce, format!("{nonce} is still {}", last.state));
        }
        self.outcome(nonce, &ops, last);
        self.attempts(nonce, &ops, last);
    }

    /// What was delivered is sound, and belongs to its attempt.
    fn deliveries(&mut self, nonce: &str, ops: &[&Op]) {
        let mut ids: BTreeMap<u32, (&str, &str, u64)> = BTreeMap::new();
        for op in ops {
            let Call::Delivery { attempt, fence, dispatch_id, wrong, .. } = &op.call else { continue };
            if !wrong.is_empty() {
                self.report(Rule::Envelope, nonce, format!("{} has a wrong {}", op.id, wrong.join(", ")));
            }
            let own = (attempt.id.as_str(), dispatch_id.as_str(), *fence);
            let first = *ids.entry(attempt.number).or_insert(own);
            let shared =
                ids.iter().find(|(number, other)| **number != attempt.number && (other.0 == own.0 || other.1 == own.1));
            if first != own || shared.is_some() {
                let what = format!("{} has {own:?}, and before it came {first:?} and {shared:?}", op.id);
                self.report(Rule::DeliveryIds, nonce, what);
            }
        }
        if !ids.values().is_sorted_by(|a, b| a.2 < b.2) {
            self.report(Rule::Fence, nonce, format!("by attempt: {ids:?}"));
        }
    }

    /// Nothing but the receipt of what was accepted before is given to a worker that was overtaken.
    fn stale(&mut self, nonce: &str, ops: &[&Op]) {
        for op in ops {
            let accepted = match &op.answer {
                Answer::Started | Answer::Renewed => true,
                Answer::Recorded { disposition, .. } => disposition != "duplicate",
                _ => false,
            };
            let Some(own) = attempt(&op.call).filter(|_| accepted) else { continue };
            let later = ops.iter().find(|other| {
                matches!(&other.call, Call::Delivery { attempt, .. } if attempt.number > own.number)
                    && other.asked < op.asked
            });
            if let Some(later) = later {
                let what = format!("{} speaks for attempt {}, and {} had come", op.id, own.number, later.id);
                self.report(Rule::StaleAccepted, nonce, what);
            }
        }
    }

    fn completions(&mut self, nonce: &str, ops: &[&Op]) {
        let mut succeeded: BTreeSet<(u32, &str)> = BTreeSet::new();
        let mut first: HashMap<(u32, &str), (&str, &str)> = HashMap::new();
        for op in ops {
            let (Call::Completed { attempt, succeeded: well, content }, Answer::Recorded { state, at, .. }) =
                (&op.call, &op.answer)
            else {
                continue;
            };
            let own = (attempt.number, content.as_str());
            if *well {
                succeeded.insert(own);
            }
            let before = *first.entry(own).or_insert((state, at));
            if before != (state.as_str(), at.as_str()) {
                self.report(
                    Rule::ReceiptChanged,
                    nonce,
                    format!("{} got {state} {at}, before it was {before:?}", op.id),
                );
            }
        }
        if succeeded.len() > 1 {
            self.report(Rule::TwoCompletions, nonce, format!("accepted were {succeeded:?}"));
        }
    }

    fn outcome(&mut self, nonce: &str, ops: &[&Op], last: &FinalTask) {
        let output = |content: &str| {
            serde_json::from_str::<serde_json::Value>(content).map(|content| content["output"].to_string()).ok()
        };
        let mut possible = false;
        for op in ops {
            let Call::Completed { succeeded: true, content, .. } = &op.call else { continue };
            let same = output(content) == last.result;
            possible |= same && !matches!(op.answer, Answer::Refused { .. });
            if matches!(op.answer, Answer::Recorded { .. }) && (last.state != "Succeeded" || !same) {
                let what = format!("{} was accepted, and it is {} with {:?}", op.id, last.state, last.result);
                self.report(Rule::Outcome, nonce, what);
            }
        }
        if last.state == "Succeeded" && !possible {
            self.report(Rule::Outcome, nonce, format!("nobody completed it with {:?}", last.result));
        }
    }

    fn attempts(&mut self, nonce: &str, ops: &[&Op], last: &FinalTask) {
        let numbers: Vec<u32> = last.attempts.iter().map(|attempt| attempt.attempt).collect();
        if numbers != (1..=last.attempt).collect::<Vec<_>>() {
            self.report(Rule::AttemptHistory, nonce, format!("of {} attempts it shows {numbers:?}", last.attempt));
        }
        for op in ops {
            let Call::Delivery { attempt, fence, .. } = &op.call else { continue };
            let kept = last.attempts.iter().find(|kept| kept.attempt == attempt.number);
            if kept.is_none_or(|kept| kept.attempt_id != attempt.id || kept.fence != *fence) {
                self.report(Rule::AttemptHistory, nonce, format!("{} is not in it: {kept:?}", op.id));
            }
        }
        for attempt in last.attempts.iter().filter(|attempt| attempt.reason == "DISPATCH_FAILED") {
            let own = ops
                .iter()
                .filter(|op| matches!(&op.call, Call::Delivery { attempt: of, .. } if of.number == attempt.attempt));
            let own: Vec<&&Op> = own.collect();
            let [only] = own[..] else { continue };
            let failed = matches!(only.answer, Answer::Took { status: 500 | 503 });
            if failed && self.is_calm(only.asked, only.asked + DISPATCH_MS * MS) {
                self.report(Rule::NotRepeated, nonce, format!("{} was answered with an error", only.id));
            }
        }
    }

    fn is_calm(&self, from: u64, to: u64) -> bool {
        let touches =
            |from: u64, to: u64| self.faults.troubles.iter().any(|spell| spell.from <= to && spell.to >= from);
        !touches(from.saturating_sub(RECOVERY_NS), to)
    }

    fn reasons(&mut self, nonce: &str, ops: &[&Op]) {
        for op in ops {
            let Answer::Refused { status, error } = &op.answer else { continue };
            let closed = ["attempt_mismatch", "task_already_terminal", "attempt_already_completed"];
            let right = match &op.call {
                Call::Submit { .. } | Call::Delivery { .. } => false,
                Call::Heartbeat { .. } => {
                    (*status == 410 && error == "task_expired") || (*status == 409 && error == "attempt_mismatch")
                }
                // A process that was started anew has another name.
                Call::Started { .. } | Call::Completed { .. } => {
                    *status == 409 && (closed.contains(&error.as_str()) || error == "attempt_already_started")
                }
            };
            if !right {
                self.report(Rule::WrongReason, nonce, format!("{} got {status} {error}", op.id));
            }
        }
    }

    /// Attempts that are open for certain: from the answer to their start to the end of the lease, or the next completion.
    fn limits(&mut self, ops: &[Op]) {
        let queues: HashMap<&str, &str> = ops
            .iter()
            .filter_map(|op| match &op.call {
                Call::Delivery { attempt, queue, .. } => Some((attempt.nonce.as_str(), queue.as_str())),
                _ => None,
            })
            .collect();
        let mut edges: Vec<(u64, bool, &str, &str)> = Vec::new();
        for (nonce, ops) in &self.tasks {
            let Some(queue) = queues.get(nonce) else { continue };
            for op in ops {
                let (Call::Started { attempt: own }, Answer::Started, Some(from)) = (&op.call, &op.answer, op.answered)
                else {
                    continue;
                };
                let of_own = |op: &&&Op| attempt(&op.call) == Some(own);
                let renewed =
                    ops.iter().filter(of_own).filter(|op| matches!(op.answer, Answer::Renewed | Answer::Started));
                let renewed = renewed.map(|op| op.asked).max().unwrap_or(op.asked);
                let ends = ops.iter().filter(of_own).filter(|op| matches!(op.call, Call::Completed { .. }));
                let ends = ends.filter(|op| !matches!(op.answer, Answer::Refused { .. })).map(|op| op.asked).min();
                let until = (renewed + TTL_MS * MS - TOLERANCE_NS).min(ends.unwrap_or(u64::MAX));
                if from < until {
                    edges.extend([(from, true, *queue, *nonce), (until, false, *queue, *nonce)]);
                }
            }
        }
        edges.sort_unstable();
        let mut open: HashMap<&str, BTreeSet<&str>> = HashMap::new();
        let mut broken = Vec::new();
        for (_, begins, queue, nonce) in edges {
            let open = open.entry(queue).or_default();
            if !begins {
                open.remove(nonce);
            } else if open.insert(nonce) && open.len() as u64 > CONCURRENCY {
                broken.push((nonce, format!("open at the same time in {queue}: {open:?}")));
            }
        }
        for (nonce, what) in broken {
            self.report(Rule::LimitExceeded, nonce, what);
        }
    }

    /// An internal error is a defect whatever is broken. What cannot be reached is answered with 503 only while it is.
    fn failures(&mut self, ops: &[Op]) {
        let mut calm: Vec<String> = Vec::new();
        for op in ops {
            let Answer::Unknown { why, status: Some(status) } = &op.answer else { continue };
            let what = format!("{} got {why}", op.id);
            if matches!(status, 502..=504) {
                calm.extend(self.is_calm(op.asked, op.asked).then_some(what));
            } else {
                self.found.push(Violation { rule: Rule::ServerError, what, ops: Vec::new() });
            }
        }
        if calm.len() > FAILURES {
            let what = format!("{} answers although nothing was broken; {FAILURES} are allowed", calm.len());
            calm.truncate(10);
            self.found.push(Violation { rule: Rule::ServerError, what, ops: calm });
        }
    }
}
