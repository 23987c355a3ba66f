//! Rules about time and about answers that should not come: how long a lease can live, how late a grant may be, how often
//! a server may fail, and with which reasons it may refuse.

use std::collections::{BTreeSet, HashMap};

use super::events::{CLOCKS_NS, Sorted, TaskHistory, first_asked};
use super::rules::story;
use super::{Ended, Rule, Violation};
use crate::faults::Faults;
use crate::history::{Answer, Call, History, MAX_BACKOFF_MS, Op};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// A request without an answer arrives within this time or never: it can wait in a stopped process or a slow connection.
const STRAGGLER_NS: u64 = 15 * SECOND;

/// After a fault, processes start and connections are made again.
const RECOVERY_NS: u64 = 10 * SECOND;

/// By how much the clock of the store may run slower, and a lease be longer.
const SLACK_NS: u64 = 500 * MS;

/// The reaper looks once a second.
const REAP_NS: u64 = SECOND;

/// A task that can run is granted within this time, not counting times of trouble: others may wait before it.
pub const LATE_NS: u64 = 30 * SECOND;

/// Answers of 502, 503 and 504 that a run may have while nothing is broken.
const FAILURES: usize = 5;

/// A request may have been answered as long after it was sent.
const PATIENCE_NS: u64 = 6 * SECOND;

struct Bounds<'a> {
    sorted: &'a Sorted<'a>,
    ended: &'a Ended,
    faults: &'a Faults,
    found: Vec<Violation>,
    /// The latest grant.
    latest_ns: u64,
}

/// The violations, and how late the latest grant was.
pub fn check(history: &History, sorted: &Sorted<'_>, ended: &Ended, faults: &Faults) -> (Vec<Violation>, u64) {
    let mut bounds = Bounds { sorted, ended, faults, found: Vec::new(), latest_ns: 0 };
    bounds.failures(history);
    bounds.reasons(history);
    for task in sorted.tasks.values() {
        bounds.renewals(task);
        bounds.late_grants(task);
        bounds.deadlines(task);
    }
    (bounds.found, bounds.latest_ns)
}

impl Bounds<'_> {
    fn report(&mut self, rule: Rule, task: &TaskHistory<'_>, what: String) {
        let ops = story(task, self.ended.tasks.get(task.id));
        self.found.push(Violation { rule, task: Some(task.id.to_owned()), what, ops });
    }

    /// When the lease of an attempt has ended for certain, by what was sent before `before`. `None` for an attempt that no
    /// answer tells of.
    fn lease_end(&self, task: &TaskHistory<'_>, attempt_id: &str, before: u64) -> Option<u64> {
        let grants = task.grants.iter().filter(|grant| grant.job.attempt_id == attempt_id);
        let (granted, ttl_ms) = grants.filter_map(|grant| Some((grant.op.answered?, grant.job.ttl_ms))).max()?;
        let beats = task.ops.iter().filter(|op| op.asked < before).filter_map(|op| match (&op.call, &op.answer) {
            (Call::Heartbeat { attempt_id: of, .. }, Answer::Renewed { .. }) if of == attempt_id => op.answered,
            (Call::Heartbeat { attempt_id: of, .. }, Answer::Unknown { .. }) if of == attempt_id => {
                Some(op.asked + STRAGGLER_NS)
            }
            _ => None,
        });
        let ttl_ns = ttl_ms * MS;
        let renewed = beats.chain([granted]).max()?;
        Some(self.faults.lengthened(renewed + ttl_ns, ttl_ns, RECOVERY_NS) + SLACK_NS)
    }

    /// An expired lease is never extended, whether somebody else has the task by then or not.
    fn renewals(&mut self, task: &TaskHistory<'_>) {
        for op in &task.ops {
            let (Call::Heartbeat { attempt_id, .. }, Answer::Renewed { .. }) = (&op.call, &op.answer) else { continue };
            let Some(end) = self.lease_end(task, attempt_id, op.asked) else { continue };
            if op.asked > end {
                let late = (op.asked - end) / MS;
                self.report(Rule::ExpiredRenewed, task, format!("{} was sent {late} ms after the end", op.id));
            }
        }
    }

    /// What can run is granted in time. A retry by hand or a redrive starts at any time, and a queue with limits grants when it
    /// can, so such tasks are left out.
    fn late_grants(&mut self, task: &TaskHistory<'_>) {
        let again = |op: &Op| matches!(op.call, Call::Retry { .. } | Call::Redrive { .. });
        let retried = |op: &&Op| again(op) && !matches!(op.answer, Answer::Refused { .. });
        let limited = task.submission().is_some_and(|submission| submission.limited.is_some());
        if limited || task.is_of_run() || task.ops.iter().copied().any(|op| retried(&op)) {
            return;
        }
        for grant in &task.grants {
            let asked = first_asked(self.sorted, grant.op);
            let Some(runnable) = self.runnable(task, grant.job.attempt) else { continue };
            let late = self.faults.calm(runnable, asked.max(runnable), RECOVERY_NS);
            self.latest_ns = self.latest_ns.max(late);
            if late > self.faults.late_ns.unwrap_or(LATE_NS) {
                let what = format!("{} got it {} ms after it could run, without a fault", grant.op.id, late / MS);
                self.report(Rule::LateGrant, task, what);
            }
        }
    }

    /// After its deadline a task is not granted, no lease of it is extended, and no report of it counts.
    fn deadlines(&mut self, task: &TaskHistory<'_>) {
        let Some(deadline) = task.submission().and_then(|submission| submission.deadline) else { return };
        let passed = deadline + CLOCKS_NS;
        for grant in task.grants.iter().filter(|grant| first_asked(self.sorted, grant.op) > passed) {
            self.report(Rule::PastDeadline, task, format!("{} was granted it", grant.op.id));
        }
        for op in task.ops.iter().filter(|op| op.asked > passed) {
            let accepted = match (&op.call, &op.answer) {
                (Call::Heartbeat { .. }, Answer::Renewed { .. }) | (Call::Retry { .. }, Answer::Retried { .. }) => true,
                (Call::Report { .. }, Answer::Reported { .. }) => {
                    let before = |other: &&Op| {
                        other.call == op.call
                            && other.asked <= passed
                            && matches!(other.answer, Answer::Unknown { .. } | Answer::Reported { .. })
                    };
                    !task.ops.iter().copied().any(|other| before(&other))
                }
                _ => false,
            };
            if accepted {
                let late = (op.asked - deadline) / MS;
                self.report(Rule::PastDeadline, task, format!("{} was accepted {late} ms after it", op.id));
            }
        }
    }

    /// When this attempt could be granted at the latest.
    fn runnable(&self, task: &TaskHistory<'_>, attempt: u32) -> Option<u64> {
        let backoff_ns = MAX_BACKOFF_MS * MS;
        let Some(before) = attempt.checked_sub(1).filter(|before| *before > 0) else {
            let submitted = task.submits.iter().filter_map(|(op, sent)| Some(op.answered? + sent.delay_ms * MS));
            return submitted.min();
        };
        let attempt_id = &task.grants.iter().find(|grant| grant.job.attempt == before)?.job.attempt_id;
        let end = self.lease_end(task, attempt_id, u64::MAX)? + REAP_NS + backoff_ns;
        let requeued = task.ops.iter().filter_map(|op| match (&op.call, &op.answer) {
            (Call::Report { attempt_id: of, .. }, Answer::Reported { body })
                if of == attempt_id && body["requeued"] == true =>
            {
                Some(op.answered? + backoff_ns)
            }
            _ => None,
        });
        requeued.chain([end]).min()
    }

    /// An internal error is a defect whatever is broken. Limits are not reached here. What cannot be reached is answered with
    /// 503 only while something is broken.
    fn failures(&mut self, history: &History) {
        let mut calm: Vec<String> = Vec::new();
        for op in &history.ops {
            let Answer::Unknown { why, status: Some(status) } = &op.answer else { continue };
            let (from, to) = (op.asked.saturating_sub(RECOVERY_NS), op.asked + PATIENCE_NS);
            let troubled = self.faults.troubles.iter().any(|trouble| trouble.from <= to && trouble.to >= from);
            let what = format!("{} got {why}", op.id);
            if *status < 300 {
                self.found.push(Violation { rule: Rule::Unreadable, task: None, what, ops: Vec::new() });
                continue;
            }
            if matches!(status, 500 | 501 | 505.. | 429) {
                self.found.push(Violation { rule: Rule::ServerError, task: None, what, ops: Vec::new() });
            } else if !troubled {
                calm.push(what);
            }
        }
        if calm.len() > FAILURES {
            let what = format!("{} answers although nothing was broken; {FAILURES} are allowed", calm.len());
            calm.truncate(10);
            self.found.push(Violation { rule: Rule::ServerError, task: None, what, ops: calm });
        }
    }

    /// Every refusal has a reason that such a request can have.
    fn reasons(&mut self, history: &History) {
        let mut keys: HashMap<&str, BTreeSet<&str>> = HashMap::new();
        for op in &history.ops {
            let Call::Submit { tasks } = &op.call else { continue };
            for task in tasks {
                keys.entry(task.key.as_deref().unwrap_or_default()).or_default().insert(&task.nonce);
            }
        }
        for op in &history.ops {
            let Answer::Refused { status, error } = &op.answer else { continue };
            let expected = match op.call {
                Call::Trespass { .. } => 404,
                Call::Knock => 401,
                _ => 409,
            };
            let right = *status == expected
                && match (&op.call, error.as_str()) {
                    (Call::Submit { tasks }, "idempotency_conflict") => {
                        tasks.iter().any(|task| task.key.as_deref().is_some_and(|key| keys[key].len() > 1))
                    }
                    (Call::Claim { worker, incarnation: Some(own), .. }, "stale_incarnation") => {
                        let claims = self.sorted.claims.get(worker.as_str()).into_iter().flatten();
                        claims.filter(|claim| Some(claim.asked) < op.answered).any(
                            |claim| matches!(&claim.call, Call::Claim { incarnation: Some(other), .. } if other > own),
                        )
                    }
                    (Call::Trespass { .. } | Call::Knock, _)
                    | (Call::Forged { .. }, "stale_lease")
                    | (Call::Heartbeat { .. }, "stale_attempt" | "lease_expired" | "attempt_closed")
                    | (Call::Report { .. }, "stale_attempt" | "attempt_closed" | "conflicting_completion")
                    | (Call::Cancel { .. }, "task_already_terminal")
                    | (Call::Retry { .. }, "task_not_retryable") => true,
                    _ => false,
                };
            if !right {
                let what = format!("{} was refused with {status} {error}: {:?}", op.id, op.call);
                self.found.push(Violation { rule: Rule::WrongReason, task: None, what, ops: Vec::new() });
            }
        }
    }
}
