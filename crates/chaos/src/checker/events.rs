//! The operations of one task, sorted out of the history.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use serde_json::Value;

use super::model::Receipt;
use super::{Ended, FinalTask};
use crate::faults::Span;
use crate::history::{Answer, Call, Granted, History, MAX_BACKOFF_MS, Op, ReportKind, Submission};

/// By how much clocks and rounding may shorten a time: leases are kept in whole milliseconds.
const TOLERANCE_NS: u64 = 20_000_000;

const MS: u64 = 1_000_000;

/// By how much the clock of the store may differ from that of the submitter.
pub const CLOCKS_NS: u64 = 200 * MS;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome<T> {
    Ok(T),
    Refused(String),
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    Submit {
        max_attempts: u32,
        delay_ns: u64,
    },
    Grant {
        attempt: u32,
    },
    Heartbeat {
        attempt: u32,
        outcome: Outcome<bool>,
    },
    Report {
        attempt: u32,
        kind: ReportKind,
        report: usize,
        outcome: Outcome<Receipt>,
    },
    Cancel {
        immediate: bool,
        outcome: Outcome<String>,
    },
    Retry {
        outcome: Outcome<(u32, u32)>,
    },
    /// Puts a dead letter back. It is done at any time after it was asked for, or never if it finds none.
    Redrive,
    /// `report`: which report made the result that was read.
    Read {
        state: String,
        attempt: u32,
        fence: u64,
        report: Option<usize>,
    },
}

/// Something that happened between two points in time.
#[derive(Debug, Clone)]
pub struct Event {
    pub asked: u64,
    /// `None`: at any time after.
    pub answered: Option<u64>,
    pub what: What,
    /// It is known to have happened. What is not may be left out.
    pub must: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttemptInfo {
    pub fence: u64,
    pub ttl_ns: u64,
    /// No claim was answered with it.
    pub hidden: bool,
    /// From then on a newer process of the same worker may have voided it.
    pub void_from: Option<u64>,
}

/// What does not change in the course of a task.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    pub max_attempts: u32,
    /// Before the second attempt.
    pub backoff_ms: u64,
    pub attempts: BTreeMap<u32, AttemptInfo>,
    /// No lease that lived when one of them began ends before its holder had time to renew it.
    pub outages: Vec<Span>,
    /// The task may fail from then on because its deadline has passed.
    pub deadline: Option<u64>,
}

impl Facts {
    pub fn attempt(&self, attempt: u32) -> AttemptInfo {
        self.attempts.get(&attempt).cloned().unwrap_or_default()
    }

    /// A lease that was granted or renewed after `asked` does not end before this.
    pub fn lives_until(&self, attempt: u32, asked: u64) -> u64 {
        let ttl_ns = self.attempt(attempt).ttl_ns;
        self.outages.iter().fold(asked + ttl_ns, |until, outage| {
            let covered = asked <= outage.to && until > outage.from;
            if covered { until.max(outage.to + ttl_ns) } else { until }
        })
    }

    /// The attempt after this one, which ended at `at`, does not start before.
    pub fn retried_from(&self, attempt: u32, at: u64) -> u64 {
        let doubled = self.backoff_ms.saturating_mul(1 << attempt.saturating_sub(1).min(20));
        at + (doubled.min(MAX_BACKOFF_MS) * MS).saturating_sub(TOLERANCE_NS)
    }
}

/// A job and the claim that it was the answer to.
#[derive(Debug, Clone)]
pub struct Grant<'a> {
    pub op: &'a Op,
    pub job: &'a Granted,
}

/// Everything about one task.
#[derive(Debug, Default)]
pub struct TaskHistory<'a> {
    pub id: &'a str,
    pub submits: Vec<(&'a Op, &'a Submission)>,
    pub grants: Vec<Grant<'a>>,
    /// Heartbeats, reports, cancels, retries, reads.
    pub ops: Vec<&'a Op>,
}

/// The history by task, and what concerns no single one.
#[derive(Debug, Default)]
pub struct Sorted<'a> {
    pub tasks: BTreeMap<&'a str, TaskHistory<'a>>,
    /// Who asked for which submission, also without an answer.
    pub submissions: HashMap<&'a str, Vec<(&'a Op, &'a Submission)>>,
    /// Claims by worker, in order.
    pub claims: HashMap<&'a str, Vec<&'a Op>>,
    /// When each process of a worker first claimed.
    incarnations: HashMap<&'a str, BTreeMap<&'a str, u64>>,
    /// When a claim of a worker was first sent under its id.
    claim_ids: HashMap<(&'a str, &'a str), u64>,
}

impl<'a> Sorted<'a> {
    pub fn new(history: &'a History, ended: &'a Ended) -> Self {
        let mut sorted = Self::default();
        for op in history.ops.iter().filter(|op| op.answer != Answer::NotSent) {
            sorted.add(op);
        }
        for id in ended.tasks.keys() {
            sorted.task(id);
        }
        // A submission is that of the task which carries its nonce, whatever became of the answer.
        let mut nonces: HashMap<&str, &str> = HashMap::new();
        for (id, task) in &ended.tasks {
            nonces.insert(&task.nonce, id);
        }
        for (nonce, submits) in &sorted.submissions {
            if let Some(task) = nonces.get(nonce).and_then(|id| sorted.tasks.get_mut(id)) {
                task.submits.extend(submits.iter().copied());
            }
        }
        sorted
    }

    fn task(&mut self, id: &'a str) -> &mut TaskHistory<'a> {
        self.tasks.entry(id).or_insert_with(|| TaskHistory { id, ..TaskHistory::default() })
    }

    fn add(&mut self, op: &'a Op) {
        match &op.call {
            Call::Run { tasks } => {
                for submission in tasks {
                    self.submissions.entry(&submission.nonce).or_default().push((op, submission));
                }
            }
            Call::Redrive { tasks } => tasks.iter().for_each(|task| self.task(task).ops.push(op)),
            Call::Submit { tasks } => {
                for submission in tasks {
                    self.submissions.entry(&submission.nonce).or_default().push((op, submission));
                }
                if let Answer::Submitted { tasks: accepted } = &op.answer {
                    for accepted in accepted {
                        self.task(&accepted.task);
                    }
                }
            }
            Call::Claim { worker, claim_id, incarnation, .. } => {
                self.claims.entry(worker).or_default().push(op);
                if let Some(incarnation) = incarnation {
                    let first = self.incarnations.entry(worker).or_default().entry(incarnation).or_insert(op.asked);
                    *first = (*first).min(op.asked);
                }
                if let Some(claim_id) = claim_id {
                    let first = self.claim_ids.entry((worker, claim_id)).or_insert(op.asked);
                    *first = (*first).min(op.asked);
                }
                if let Answer::Granted { jobs } = &op.answer {
                    for job in jobs {
                        self.task(&job.task).grants.push(Grant { op, job });
                    }
                }
            }
            // Refused, it changes nothing. Anything else breaks a rule of its own.
            Call::Forged { .. } | Call::Trespass { .. } | Call::Knock => {}
            Call::Heartbeat { task, .. }
            | Call::Report { task, .. }
            | Call::Cancel { task, .. }
            | Call::Retry { task }
            | Call::Read { task } => self.task(task).ops.push(op),
        }
    }
}

impl TaskHistory<'_> {
    /// Whether it was submitted as a part of a run.
    pub fn is_of_run(&self) -> bool {
        self.submits.iter().any(|(op, _)| matches!(op.call, Call::Run { .. }))
    }

    /// What was asked for first.
    pub fn submission(&self) -> Option<&Submission> {
        self.submits.iter().min_by_key(|(op, _)| op.asked).map(|(_, submission)| *submission)
    }

    /// What is searched for an order. `None` when there is not enough to say: other rules complain then. Tasks of runs have
    /// rules of their own.
    pub fn events(&self, sorted: &Sorted<'_>, last: &FinalTask, end: u64) -> Option<(Vec<Event>, Facts)> {
        if self.is_of_run() {
            return None;
        }
        let mut facts = Facts::default();
        let mut events = vec![self.submit(&mut facts)?];
        let mut numbers: HashMap<&str, u32> = HashMap::new();
        for attempt in &last.attempts {
            numbers.insert(&attempt.attempt_id, attempt.attempt);
        }
        for grant in &self.grants {
            numbers.insert(&grant.job.attempt_id, grant.job.attempt);
        }
        self.grant_events(sorted, last, &mut facts, &mut events);
        let mut reports = Reports::default();
        for op in &self.ops {
            events.extend(event(op, &numbers, &mut reports));
        }
        let report = match &last.result {
            Some(result) if last.state == "Succeeded" => Some(reports.number(ReportKind::Complete, result)),
            _ => None,
        };
        let what = What::Read { state: last.state.clone(), attempt: last.attempt, fence: last.fence, report };
        events.push(Event { asked: end, answered: None, what, must: true });
        Some((events, facts))
    }

    fn submit(&self, facts: &mut Facts) -> Option<Event> {
        let (first, submission) = self.submits.iter().min_by_key(|(op, _)| op.asked)?;
        (facts.max_attempts, facts.backoff_ms) = (submission.max_attempts, submission.backoff_ms);
        facts.deadline = submission.deadline.map(|deadline| deadline.saturating_sub(CLOCKS_NS));
        let answered = self.submits.iter().filter_map(|(op, _)| op.answered).min();
        let delay_ns = (submission.delay_ms * MS).saturating_sub(TOLERANCE_NS);
        let what = What::Submit { max_attempts: submission.max_attempts, delay_ns };
        Some(Event { asked: first.asked, answered, what, must: true })
    }

    fn grant_events(&self, sorted: &Sorted<'_>, last: &FinalTask, facts: &mut Facts, events: &mut Vec<Event>) {
        let ttl_ns = last.ttl_ms.saturating_mul(MS).saturating_sub(TOLERANCE_NS);
        let mut seen: BTreeMap<u32, (u64, Option<u64>, &Op)> = BTreeMap::new();
        for grant in &self.grants {
            // Sent again under the same claim id it may have been granted by any of them.
            let asked = first_asked(sorted, grant.op);
            let entry = seen.entry(grant.job.attempt).or_insert((asked, grant.op.answered, grant.op));
            entry.0 = entry.0.min(asked);
            entry.1 = entry.1.min(grant.op.answered);
            let info = facts.attempts.entry(grant.job.attempt).or_default();
            (info.fence, info.ttl_ns) =
                (grant.job.fence, grant.job.ttl_ms.saturating_mul(MS).saturating_sub(TOLERANCE_NS));
            info.void_from = void_from(sorted, grant.op);
        }
        for (attempt, (asked, answered, _)) in &seen {
            let what = What::Grant { attempt: *attempt };
            events.push(Event { asked: *asked, answered: *answered, what, must: true });
        }
        for attempt in last.attempts.iter().filter(|attempt| !seen.contains_key(&attempt.attempt)) {
            let claims = unanswered(sorted, &attempt.worker);
            let asked = claims.map(|op| op.asked).min().unwrap_or(0);
            let void_from = sorted.claims.get(attempt.worker.as_str()).and_then(|claims| {
                // Which process asked is not known, so any newer process than the first will do.
                claims.iter().filter(|op| is_newer(op, claims.first().copied())).map(|op| op.asked).min()
            });
            let info = AttemptInfo { fence: attempt.fence, ttl_ns, hidden: true, void_from };
            facts.attempts.insert(attempt.attempt, info);
            events.push(Event { asked, answered: None, what: What::Grant { attempt: attempt.attempt }, must: true });
        }
    }
}

/// Claims of a worker whose answer nobody saw.
pub fn unanswered<'a>(sorted: &Sorted<'a>, worker: &str) -> impl Iterator<Item = &'a Op> {
    let claims = sorted.claims.get(worker).cloned().unwrap_or_default();
    claims.into_iter().filter(|op| matches!(op.answer, Answer::Unknown { .. }))
}

/// When this claim, or one before it under the same id, was sent.
pub fn first_asked(sorted: &Sorted<'_>, op: &Op) -> u64 {
    let Call::Claim { worker, claim_id: Some(claim_id), .. } = &op.call else { return op.asked };
    sorted.claim_ids.get(&(worker.as_str(), claim_id.as_str())).copied().unwrap_or(op.asked)
}

fn incarnation(op: &Op) -> Option<&str> {
    match &op.call {
        Call::Claim { incarnation, .. } => incarnation.as_deref(),
        _ => None,
    }
}

fn is_newer(op: &Op, than: Option<&Op>) -> bool {
    match (incarnation(op), than.and_then(incarnation)) {
        (Some(newer), Some(older)) => newer > older,
        _ => false,
    }
}

/// When the first claim of a newer process of the same worker was sent.
pub fn void_from(sorted: &Sorted<'_>, op: &Op) -> Option<u64> {
    let Call::Claim { worker, incarnation: Some(own), .. } = &op.call else { return None };
    let newer = (Bound::Excluded(own.as_str()), Bound::Unbounded);
    sorted.incarnations.get(worker.as_str())?.range::<str, _>(newer).map(|(_, first)| *first).min()
}

/// Numbers for the contents of reports, so that states are small.
#[derive(Debug, Default)]
struct Reports(Vec<(ReportKind, String)>);

impl Reports {
    fn number(&mut self, kind: ReportKind, content: &str) -> usize {
        let found = self.0.iter().position(|known| known.0 == kind && known.1 == content);
        found.unwrap_or_else(|| {
            self.0.push((kind, content.to_owned()));
            self.0.len() - 1
        })
    }
}

fn event(op: &Op, numbers: &HashMap<&str, u32>, reports: &mut Reports) -> Option<Event> {
    let unknown = matches!(op.answer, Answer::Unknown { .. });
    let refused = match &op.answer {
        Answer::Refused { error, .. } => Some(error.clone()),
        _ => None,
    };
    fn outcome<T>(unknown: bool, refused: Option<String>, ok: Option<T>) -> Option<Outcome<T>> {
        match (unknown, refused, ok) {
            (true, ..) => Some(Outcome::Unknown),
            (_, Some(error), _) => Some(Outcome::Refused(error)),
            (.., ok) => ok.map(Outcome::Ok),
        }
    }
    let what = match &op.call {
        // Whether a lease was longer than it had to be proves nothing.
        Call::Heartbeat { .. } if unknown => return None,
        Call::Heartbeat { attempt_id, .. } => {
            let ok = match op.answer {
                Answer::Renewed { should_cancel } => Some(should_cancel),
                _ => None,
            };
            let attempt = *numbers.get(attempt_id.as_str())?;
            What::Heartbeat { attempt, outcome: outcome(unknown, refused, ok)? }
        }
        Call::Report { attempt_id, report, .. } => {
            let attempt = *numbers.get(attempt_id.as_str())?;
            let ok = match &op.answer {
                Answer::Reported { body } => Some(receipt(body)),
                _ => None,
            };
            let number = reports.number(report.kind, &report.content);
            What::Report { attempt, kind: report.kind, report: number, outcome: outcome(unknown, refused, ok)? }
        }
        Call::Cancel { immediate, .. } => {
            let ok = match &op.answer {
                Answer::Canceled { state } => Some(state.clone()),
                _ => None,
            };
            What::Cancel { immediate: *immediate, outcome: outcome(unknown, refused, ok)? }
        }
        Call::Retry { .. } => {
            let ok = match op.answer {
                Answer::Retried { attempt, max_attempts } => Some((attempt, max_attempts)),
                _ => None,
            };
            What::Retry { outcome: outcome(unknown, refused, ok)? }
        }
        Call::Read { .. } => match &op.answer {
            Answer::Seen { state, attempt, fence } => {
                What::Read { state: state.clone(), attempt: *attempt, fence: *fence, report: None }
            }
            _ => return None,
        },
        Call::Redrive { .. } => {
            let done = matches!(op.answer, Answer::Redriving { .. } | Answer::Unknown { .. });
            let event = Event { asked: op.asked, answered: None, what: What::Redrive, must: false };
            return done.then_some(event);
        }
        Call::Submit { .. }
        | Call::Claim { .. }
        | Call::Forged { .. }
        | Call::Run { .. }
        | Call::Trespass { .. }
        | Call::Knock => return None,
    };
    Some(Event { asked: op.asked, answered: op.answered, what, must: !unknown })
}

fn receipt(body: &Value) -> Receipt {
    match (body["requeued"].as_bool(), body["dlq"].as_bool()) {
        (Some(requeued), Some(dlq)) => Receipt::Failed { requeued, dlq },
        _ => Receipt::Completed,
    }
}
