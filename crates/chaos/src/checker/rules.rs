//! The rules that can be read off the history directly.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::events::{CLOCKS_NS, Grant, Sorted, TaskHistory, unanswered};
use super::{Ended, FinalTask, Rule, Violation};
use crate::history::{Answer, Call, Granted, History, Op, ReportKind};
use crate::ledger::Effects;

struct Findings<'a> {
    sorted: &'a Sorted<'a>,
    ended: &'a Ended,
    found: Vec<Violation>,
}

pub fn check(history: &History, sorted: &Sorted<'_>, ended: &Ended, effects: &Effects) -> Vec<Violation> {
    let mut findings = Findings { sorted, ended, found: Vec::new() };
    findings.submits(history);
    findings.batches(history);
    findings.forged(history);
    findings.repeats();
    findings.doors(history);
    findings.runs(history);
    for task in sorted.tasks.values() {
        findings.invented(task);
        findings.reports(task);
        findings.stale(task);
        findings.grants(task);
        if let Some(last) = ended.tasks.get(task.id) {
            findings.attempts(task, last);
            findings.ended(task, last);
            findings.redriven(task, last);
            findings.effects(task, last, effects);
        }
    }
    findings.ledger_order(effects);
    findings.found
}

impl Findings<'_> {
    fn report(&mut self, rule: Rule, task: &str, what: String) {
        let story = self.sorted.tasks.get(task).map(|history| story(history, self.ended.tasks.get(task)));
        self.found.push(Violation { rule, task: Some(task.to_owned()), what, ops: story.unwrap_or_default() });
    }

    fn submits(&mut self, history: &History) {
        let mut by_key: HashMap<&str, &str> = HashMap::new();
        let mut by_nonce: HashMap<&str, BTreeSet<&str>> = HashMap::new();
        let mut created: HashMap<&str, usize> = HashMap::new();
        for op in &history.ops {
            let (Call::Submit { tasks }, Answer::Submitted { tasks: accepted }) = (&op.call, &op.answer) else {
                continue;
            };
            for (sent, got) in tasks.iter().zip(accepted) {
                if !self.ended.tasks.contains_key(&got.task) {
                    let what = format!("{} was told that it is task {}", op.id, got.task);
                    self.report(Rule::LostSubmit, &got.task, what);
                }
                if let Some(key) = &sent.key {
                    let first = *by_key.entry(key).or_insert(&got.task);
                    if first != got.task {
                        let what = format!("key {key} was task {first} and then {}, says {}", got.task, op.id);
                        self.report(Rule::KeySplit, &got.task, what);
                    }
                }
                by_nonce.entry(&sent.nonce).or_default().insert(&got.task);
                let other = self.ended.tasks.get(&got.task).filter(|last| last.nonce != sent.nonce);
                if let Some(other) = other {
                    let what = format!("{} sent {} and was told of {}", op.id, sent.nonce, other.nonce);
                    self.report(Rule::KeySplit, &got.task, what);
                }
                *created.entry(&got.task).or_default() += usize::from(got.created);
            }
        }
        for (task, times) in created.into_iter().filter(|(_, times)| *times > 1) {
            self.report(Rule::DoubleCreate, task, format!("{times} answers say that they created it"));
        }
        for (id, task) in &self.ended.tasks {
            by_nonce.entry(&task.nonce).or_default().insert(id);
        }
        for (nonce, tasks) in by_nonce.into_iter().filter(|(_, tasks)| tasks.len() > 1) {
            let first = tasks.first().copied().unwrap_or_default();
            self.report(Rule::DoubleCreate, first, format!("submission {nonce} became {tasks:?}"));
        }
    }

    fn batches(&mut self, history: &History) {
        let nonces: BTreeMap<&str, &str> =
            self.ended.tasks.iter().map(|(id, task)| (task.nonce.as_str(), id.as_str())).collect();
        for op in &history.ops {
            let Call::Submit { tasks } = &op.call else { continue };
            let there: Vec<&str> = tasks.iter().filter_map(|task| nonces.get(task.nonce.as_str()).copied()).collect();
            if let Some(first) = there.first()
                && there.len() < tasks.len()
            {
                let what = format!("of the {} tasks of {} only {} are there", tasks.len(), op.id, there.len());
                self.report(Rule::HalfBatch, first, what);
            }
        }
    }

    fn forged(&mut self, history: &History) {
        for op in &history.ops {
            if let (Call::Forged { task, .. }, Answer::Renewed { .. } | Answer::Reported { .. }) =
                (&op.call, &op.answer)
            {
                self.report(Rule::ForgedAccepted, task, format!("{} got {:?}", op.id, op.answer));
            }
        }
    }

    /// Nobody sees what is of another tenant, or anything with a revoked key.
    fn doors(&mut self, history: &History) {
        for op in history.ops.iter().filter(|op| matches!(op.answer, Answer::Reported { .. })) {
            let what = format!("{} got {:?}", op.id, op.answer);
            match &op.call {
                Call::Trespass { task } => self.report(Rule::TenantSeen, task, what),
                Call::Knock => {
                    self.found.push(Violation { rule: Rule::RevokedAccepted, task: None, what, ops: Vec::new() });
                }
                _ => {}
            }
        }
    }

    /// The last task of a run is granted after the others have succeeded, and never if one of them has not.
    fn runs(&mut self, history: &History) {
        let by_nonce: HashMap<&str, &str> =
            self.ended.tasks.iter().map(|(id, task)| (task.nonce.as_str(), id.as_str())).collect();
        let mut wrong = Vec::new();
        for op in &history.ops {
            let Call::Run { tasks } = &op.call else { continue };
            let Some((last, first)) = tasks.split_last() else { continue };
            let ids: Vec<&str> = tasks.iter().filter_map(|task| by_nonce.get(task.nonce.as_str()).copied()).collect();
            let known = matches!(op.answer, Answer::Submitted { .. });
            if ids.len() != tasks.len() && (known || !ids.is_empty()) {
                let what = format!("of the {} tasks of {} only {} are there", tasks.len(), op.id, ids.len());
                wrong.push((Rule::HalfBatch, last.nonce.clone(), what));
            }
            let Some(id) = by_nonce.get(last.nonce.as_str()) else { continue };
            let state = &self.ended.tasks[*id].state;
            let befores = first.iter().filter_map(|task| by_nonce.get(task.nonce.as_str()).copied());
            for before in befores {
                let other = &self.ended.tasks[before].state;
                if other != "Succeeded" && !matches!(state.as_str(), "Skipped" | "Canceled") {
                    let what = format!("it is {state} although {before} is {other}");
                    wrong.push((Rule::RunOrder, (*id).to_owned(), what));
                }
                for grant in self.sorted.tasks.get(id).into_iter().flat_map(|task| &task.grants) {
                    if !self.may_have_succeeded(before, grant.op.answered) {
                        let what = format!("{} was granted it, and {before} had not succeeded", grant.op.id);
                        wrong.push((Rule::RunOrder, (*id).to_owned(), what));
                    }
                }
            }
        }
        for (rule, task, what) in wrong {
            self.report(rule, &task, what);
        }
    }

    /// Whether a completion was sent before that, and was not refused.
    fn may_have_succeeded(&self, task: &str, by: Option<u64>) -> bool {
        self.sorted.tasks.get(task).is_some_and(|task| {
            task.ops.iter().any(|op| {
                matches!(&op.call, Call::Report { report, .. } if report.kind == ReportKind::Complete)
                    && matches!(op.answer, Answer::Reported { .. } | Answer::Unknown { .. })
                    && by.is_some_and(|by| op.asked < by)
            })
        })
    }

    /// While a job of the first answer lives, the same claim gets it again, and no other one.
    fn repeats(&mut self) {
        let mut first: HashMap<(&str, &str), &Op> = HashMap::new();
        let mut wrong = Vec::new();
        for op in self.sorted.claims.values().flatten() {
            let (Call::Claim { worker, claim_id: Some(claim_id), .. }, Answer::Granted { jobs }) =
                (&op.call, &op.answer)
            else {
                continue;
            };
            let before = *first.entry((worker, claim_id)).or_insert(op);
            let Answer::Granted { jobs: earlier } = &before.answer else { continue };
            let lives = |job: &&Granted| {
                let untouched = self.sorted.tasks.get(job.task.as_str()).is_some_and(|task| {
                    task.ops.iter().all(|other| {
                        let harmless = matches!(other.call, Call::Heartbeat { .. } | Call::Read { .. });
                        harmless || Some(other.asked) > op.answered
                    })
                });
                let deadline = self.sorted.tasks.get(job.task.as_str()).and_then(|task| task.submission()?.deadline);
                let ends = before.asked + (job.ttl_ms * 1_000_000).saturating_sub(20_000_000);
                let ends = deadline.map_or(ends, |deadline| ends.min(deadline.saturating_sub(CLOCKS_NS)));
                untouched && op.answered.is_some_and(|answered| answered < ends)
            };
            if let Some(job) = earlier.iter().find(lives)
                && (!jobs.contains(job) || jobs.iter().any(|job| !earlier.contains(job)))
            {
                wrong.push((job.task.clone(), format!("{} was granted it, {} was granted {jobs:?}", before.id, op.id)));
            }
        }
        for (task, what) in wrong {
            self.report(Rule::RepeatChanged, &task, what);
        }
    }

    fn invented(&mut self, task: &TaskHistory<'_>) {
        let nonces = task.grants.iter().map(|grant| grant.job.nonce.as_str());
        let nonces = nonces.chain(self.ended.tasks.get(task.id).map(|last| last.nonce.as_str()));
        if let Some(unknown) = nonces.into_iter().find(|nonce| !self.sorted.submissions.contains_key(nonce)) {
            self.report(Rule::Invented, task.id, format!("nobody submitted {unknown:?}"));
        }
    }

    /// At most one completion is accepted, and the same report gets the same answer.
    fn reports(&mut self, task: &TaskHistory<'_>) {
        let mut completions: BTreeMap<(&str, &str), &Op> = BTreeMap::new();
        let mut answers: Vec<(&Op, &Op)> = Vec::new();
        let mut first: HashMap<(&str, &crate::history::Report), &Op> = HashMap::new();
        for op in &task.ops {
            let (Call::Report { attempt_id, report, .. }, Answer::Reported { body }) = (&op.call, &op.answer) else {
                continue;
            };
            if report.kind == ReportKind::Complete {
                completions.entry((attempt_id, &report.content)).or_insert(op);
            }
            let before = *first.entry((attempt_id, report)).or_insert(op);
            if !matches!(&before.answer, Answer::Reported { body: earlier } if earlier == body) {
                answers.push((before, op));
            }
        }
        if completions.len() > 1 {
            let ops: Vec<_> = completions.values().map(|op| op.id.as_str()).collect();
            self.report(Rule::TwoCompletions, task.id, format!("accepted were {}", ops.join(" and ")));
        }
        for (before, op) in answers {
            let what = format!("{} got {:?}, {} got {:?}", before.id, before.answer, op.id, op.answer);
            self.report(Rule::ReceiptChanged, task.id, what);
        }
    }

    /// Nothing is accepted after a later grant was answered, but the receipt of what may have been accepted before.
    fn stale(&mut self, task: &TaskHistory<'_>) {
        let numbers: HashMap<&str, u32> =
            task.grants.iter().map(|grant| (grant.job.attempt_id.as_str(), grant.job.attempt)).collect();
        for op in &task.ops {
            let (attempt_id, report) = match (&op.call, &op.answer) {
                (Call::Heartbeat { attempt_id, .. }, Answer::Renewed { .. }) => (attempt_id, None),
                (Call::Report { attempt_id, report, .. }, Answer::Reported { .. }) => (attempt_id, Some(report)),
                _ => continue,
            };
            let Some(attempt) = numbers.get(attempt_id.as_str()) else { continue };
            let later = task.grants.iter().find(|grant| {
                let before = grant.op.answered.is_some_and(|answered| answered < op.asked);
                grant.job.attempt > *attempt && before && !is_replay(task, op, report, grant)
            });
            if let Some(later) = later {
                let number = later.job.attempt;
                let what =
                    format!("{} speaks for attempt {attempt}, but {number} was granted to {}", op.id, later.op.id);
                self.report(Rule::StaleAccepted, task.id, what);
            }
        }
    }

    fn grants(&mut self, task: &TaskHistory<'_>) {
        for (index, one) in task.grants.iter().enumerate() {
            for other in &task.grants[index + 1..] {
                let (a, b) = (one.job, other.job);
                if a.attempt_id == b.attempt_id {
                    if a != b || !is_repeat(one.op, other.op) {
                        let what = format!("{} and {} were granted {}", one.op.id, other.op.id, a.attempt_id);
                        self.report(Rule::DoubleGrant, task.id, what);
                    }
                    continue;
                }
                if a.fence == b.fence || a.attempt == b.attempt {
                    let what = format!(
                        "attempt {} fence {} to {}, attempt {} fence {} to {}",
                        a.attempt, a.fence, one.op.id, b.attempt, b.fence, other.op.id
                    );
                    self.report(Rule::DoubleGrant, task.id, what);
                    continue;
                }
                let before = |x: &Grant<'_>, y: &Grant<'_>| x.op.answered.is_some_and(|answered| answered < y.op.asked);
                let grows = |x: &Grant<'_>, y: &Grant<'_>| x.job.fence < y.job.fence && x.job.attempt < y.job.attempt;
                for (x, y) in [(one, other), (other, one)] {
                    if before(x, y) && !grows(x, y) {
                        let what = format!(
                            "attempt {} fence {} to {}, later attempt {} fence {} to {}",
                            x.job.attempt, x.job.fence, x.op.id, y.job.attempt, y.job.fence, y.op.id
                        );
                        self.report(Rule::GrantOrder, task.id, what);
                    }
                }
            }
        }
    }

    /// The task's own history has every attempt once, and each belongs to a claim.
    fn attempts(&mut self, task: &TaskHistory<'_>, last: &FinalTask) {
        let numbers: Vec<u32> = last.attempts.iter().map(|attempt| attempt.attempt).collect();
        if numbers != (1..=last.attempt).collect::<Vec<_>>() {
            self.report(Rule::AttemptHistory, task.id, format!("of {} attempts it shows {numbers:?}", last.attempt));
            return;
        }
        if !last.attempts.is_sorted_by(|a, b| a.fence < b.fence) {
            self.report(Rule::AttemptHistory, task.id, "the fences in it do not grow".into());
        }
        for grant in &task.grants {
            let kept = last.attempts.iter().find(|attempt| attempt.attempt == grant.job.attempt);
            if kept.is_none_or(|kept| kept.attempt_id != grant.job.attempt_id || kept.fence != grant.job.fence) {
                let what = format!("{} was granted {}, the history has {kept:?}", grant.op.id, grant.job.attempt_id);
                self.report(Rule::AttemptHistory, task.id, what);
            }
        }
        for attempt in &last.attempts {
            let granted = task.grants.iter().any(|grant| grant.job.attempt_id == attempt.attempt_id);
            if !granted && unanswered(self.sorted, &attempt.worker).next().is_none() {
                let what =
                    format!("attempt {} belongs to {}, which got all its answers", attempt.attempt, attempt.worker);
                self.report(Rule::AttemptHistory, task.id, what);
            }
        }
    }

    fn ended(&mut self, task: &TaskHistory<'_>, last: &FinalTask) {
        let skipped = last.state == "Skipped" && task.is_of_run();
        if !matches!(last.state.as_str(), "Succeeded" | "Failed" | "Canceled") && !skipped {
            let what = format!("it is still {} after everything has healed", last.state);
            self.report(Rule::NotEnded, task.id, what);
        }
    }

    /// A task that was a dead letter when its redrive was asked for, and was put back, has run again since.
    fn redriven(&mut self, task: &TaskHistory<'_>, last: &FinalTask) {
        let has_deadline = task.submission().is_some_and(|submission| submission.deadline.is_some());
        if last.state != "Failed" || has_deadline {
            return;
        }
        for op in task.ops.iter().filter(|op| matches!(op.answer, Answer::Redriving { .. })) {
            let dead = task.ops.iter().find(|read| {
                let failed = matches!(&read.answer, Answer::Seen { state, attempt, .. }
                    if state == "Failed" && *attempt == last.attempt);
                failed && read.answered.is_some_and(|answered| answered < op.asked)
            });
            if let Some(dead) = dead {
                let what = format!("{} found it Failed, {} redrove it, and it has not run since", dead.id, op.id);
                self.report(Rule::RedriveLost, task.id, what);
            }
        }
    }

    /// The last guarded write is by the holder whose completion counted, or at least by nobody from the future.
    fn effects(&mut self, task: &TaskHistory<'_>, last: &FinalTask, effects: &Effects) {
        let Some(written) = effects.guarded.get(task.id) else { return };
        if last.state == "Succeeded" && *written != last.fence || *written > last.fence {
            let what =
                format!("the last guarded write has fence {written}, the task {} with {}", last.state, last.fence);
            self.report(Rule::Ledger, task.id, what);
        }
    }

    fn ledger_order(&mut self, effects: &Effects) {
        let mut highest: HashMap<&str, u64> = HashMap::new();
        for write in &effects.accepted {
            let before = highest.entry(&write.task).or_default();
            if write.fence < *before {
                let what = format!("{} wrote with fence {} after {before}", write.worker, write.fence);
                self.report(Rule::Ledger, &write.task, what);
            }
            *before = write.fence.max(*before);
        }
    }
}

/// Whether this report may have been accepted before that later grant, and now only got its receipt again.
fn is_replay(task: &TaskHistory<'_>, op: &Op, report: Option<&crate::history::Report>, later: &Grant<'_>) -> bool {
    let Some(report) = report else { return false };
    task.ops.iter().any(|other| {
        let accepted = matches!(other.answer, Answer::Unknown { .. } | Answer::Reported { .. });
        let same = matches!((&other.call, &op.call), (Call::Report { attempt_id: a, report: r, .. },
            Call::Report { attempt_id: b, .. }) if a == b && r == report);
        other.id != op.id && same && accepted && later.op.answered.is_some_and(|answered| other.asked < answered)
    })
}

/// The same claim sent again.
fn is_repeat(one: &Op, other: &Op) -> bool {
    match (&one.call, &other.call) {
        (Call::Claim { worker: a, claim_id: Some(one), .. }, Call::Claim { worker: b, claim_id: Some(other), .. }) => {
            a == b && one == other
        }
        _ => false,
    }
}

/// What happened to a task, for people, in the order in which it was asked.
pub fn story(task: &TaskHistory<'_>, last: Option<&FinalTask>) -> Vec<String> {
    let ops = task.submits.iter().map(|(op, _)| *op);
    let mut ops: Vec<&Op> =
        ops.chain(task.grants.iter().map(|grant| grant.op)).chain(task.ops.iter().copied()).collect();
    ops.sort_by_key(|op| op.asked);
    ops.dedup_by(|a, b| a.id == b.id);
    let start = ops.first().map_or(0, |op| op.asked);
    let ms = |at: u64| at.saturating_sub(start) / 1_000_000;
    let mut lines: Vec<String> = ops
        .iter()
        .map(|op| {
            let until = op.answered.map_or("?".to_owned(), |at| ms(at).to_string());
            let answer = match &op.answer {
                Answer::Granted { jobs } => {
                    let own = jobs.iter().find(|job| job.task == task.id);
                    own.map_or("nothing".to_owned(), |job| {
                        format!(
                            "attempt {} fence {} id {} ttl {} ms",
                            job.attempt, job.fence, job.attempt_id, job.ttl_ms
                        )
                    })
                }
                Answer::Submitted { tasks } => {
                    let own = tasks.iter().find(|accepted| accepted.task == task.id);
                    own.map_or("another task".to_owned(), |accepted| format!("created: {}", accepted.created))
                }
                other => format!("{other:?}"),
            };
            let call = match &op.call {
                Call::Submit { tasks } => format!("Submit of {}", tasks.len()),
                other => format!("{other:?}"),
            };
            format!("{:>7}..{until:<7} ms {}: {call} -> {answer}", ms(op.asked), op.id)
        })
        .collect();
    if let Some(last) = last {
        let attempts: Vec<String> = last
            .attempts
            .iter()
            .map(|attempt| format!("{} fence {} {} {}", attempt.attempt, attempt.fence, attempt.worker, attempt.reason))
            .collect();
        lines.push(format!(
            "at the end: {} attempt {} fence {} result {:?}, attempts: {}",
            last.state,
            last.attempt,
            last.fence,
            last.result,
            attempts.join("; ")
        ));
    }
    lines
}
