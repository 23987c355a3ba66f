//! Whether every task ended exactly as it should, judged by what the API shows.

use std::collections::{BTreeSet, HashMap};

use tenure_client::{Client, DeadLetterFilter};
use tenure_contract::user::{Attempt, Task};
use tenure_contract::words::{AttemptState, TaskState};

use super::plan::{Ending, Kind, Queues};

/// The reason of an attempt whose worker fell silent.
pub const LOST: &str = "HEARTBEAT_TIMEOUT";

/// A task of the demo: what was planned, what became of it.
#[derive(Debug)]
pub struct Record {
    pub kind: Kind,
    pub failures: u32,
    pub task: Task,
    pub attempts: Vec<Attempt>,
}

/// What the demo found out.
#[derive(Debug)]
pub struct Verdict {
    pub records: Vec<Record>,
    /// The tasks that the killed worker held.
    pub held: BTreeSet<String>,
    pub checks: Vec<(bool, String)>,
    /// What is wrong, task by task.
    pub complaints: Vec<String>,
}

impl Verdict {
    pub fn is_good(&self) -> bool {
        self.complaints.is_empty() && self.checks.iter().all(|(good, _)| *good)
    }

    pub fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &Record> {
        self.records.iter().filter(move |record| record.kind == kind)
    }
}

/// Reads all histories and judges them. `victim` is the worker that was killed while it held `held`.
pub async fn verify(
    client: &Client,
    planned: &HashMap<String, (Kind, u32)>,
    tasks: Vec<Task>,
    queues: &Queues,
    victim: &str,
    held: BTreeSet<String>,
) -> anyhow::Result<Verdict> {
    let mut records = Vec::new();
    for task in tasks {
        let Some((kind, failures)) = planned.get(&task.task_id).copied() else { continue };
        let attempts = if task.attempt == 0 { Vec::new() } else { client.attempts(&task.task_id, None).await?.items };
        records.push(Record { kind, failures, task, attempts });
    }
    let mut dead = BTreeSet::new();
    for queue in [&queues.mail, &queues.reports] {
        let filter = DeadLetterFilter { queue: Some(queue.clone()), ..DeadLetterFilter::default() };
        dead.extend(client.dead_letters(&filter).await?.items.into_iter().map(|letter| letter.task_id));
    }
    Ok(judge(records, planned.len(), dead, victim, held))
}

fn judge(
    records: Vec<Record>,
    expected: usize,
    dead: BTreeSet<String>,
    victim: &str,
    held: BTreeSet<String>,
) -> Verdict {
    let mut complaints: Vec<String> = Vec::new();
    for record in &records {
        let mut wrong = ending_fault(record).or_else(|| history_fault(record));
        if held.contains(&record.task.task_id) {
            wrong = wrong.or_else(|| recovery_fault(record, victim));
        }
        complaints.extend(wrong.map(|wrong| format!("{} task {}: {wrong}", record.kind.name(), record.task.task_id)));
    }
    let well = records.len().saturating_sub(complaints.len());
    let poison: BTreeSet<_> =
        records.iter().filter(|record| record.kind == Kind::Poison).map(|record| record.task.task_id.clone()).collect();
    let again = records.iter().filter(|record| held.contains(&record.task.task_id));
    let again = again.filter(|record| recovery_fault(record, victim).is_none()).count();
    let checks = vec![
        (well == expected, format!("{well} of {expected} tasks ended as expected")),
        (
            again == held.len() && !held.is_empty(),
            format!("{again} of {} tasks held by {victim} ran again under a higher fence, after {LOST}", held.len()),
        ),
        (dead == poison, dead_letters(&dead, &poison)),
    ];
    Verdict { records, held, checks, complaints }
}

fn dead_letters(dead: &BTreeSet<String>, poison: &BTreeSet<String>) -> String {
    match dead == poison {
        true => "the poison task is the only dead letter".to_owned(),
        false => format!("there are {} dead letters, and only the poison task should be one", dead.len()),
    }
}

fn ending_fault(record: &Record) -> Option<String> {
    let task = &record.task;
    let wanted = match record.kind.ending() {
        Ending::Succeeded => TaskState::Succeeded,
        Ending::Canceled => TaskState::Canceled,
        Ending::DeadLetter => TaskState::Failed,
    };
    if task.state != wanted {
        return Some(format!("is {}, not {wanted}", task.state));
    }
    if task.dead_lettered_at.is_some() != (record.kind.ending() == Ending::DeadLetter) {
        let wrong = if task.dead_lettered_at.is_some() { "is a dead letter" } else { "is not a dead letter" };
        return Some(wrong.to_owned());
    }
    if record.kind == Kind::CanceledWaiting && task.attempt > 0 {
        return Some("was granted after it was canceled".to_owned());
    }
    None
}

/// Fences grow, numbers have no gap, and there are no more attempts than failures and lost workers explain.
fn history_fault(record: &Record) -> Option<String> {
    let (task, attempts) = (&record.task, &record.attempts);
    let numbers: Vec<_> = attempts.iter().map(|attempt| attempt.attempt).collect();
    if numbers != (1..=task.attempt).collect::<Vec<_>>() {
        return Some(format!("has the attempts {numbers:?}, but reports {}", task.attempt));
    }
    if !attempts.is_sorted_by(|a, b| a.fence < b.fence) {
        return Some("has fences that do not increase".to_owned());
    }
    if attempts.iter().any(|attempt| attempt.ended_at.is_none()) {
        return Some("has ended but has an open attempt".to_owned());
    }
    let (last, before) = attempts.split_last()?;
    let explained = |attempt: &Attempt| attempt.attempt <= record.failures || is_lost(attempt);
    if let Some(odd) = before.iter().find(|attempt| !explained(attempt)) {
        let reason = odd.reason.as_deref().unwrap_or("nothing");
        return Some(format!("was tried again after attempt {}, which ended with {reason}", odd.attempt));
    }
    let successes = attempts.iter().filter(|attempt| attempt.state == AttemptState::Succeeded).count();
    let wanted = usize::from(record.kind.ending() == Ending::Succeeded);
    if successes != wanted {
        return Some(format!("succeeded {successes} times in its history"));
    }
    (wanted == 1 && last.state != AttemptState::Succeeded).then(|| "did not end with its last attempt".to_owned())
}

fn is_lost(attempt: &Attempt) -> bool {
    attempt.reason.as_deref() == Some(LOST)
}

/// What the victim held was taken away, and a task that is to succeed did so under a higher fence elsewhere.
fn recovery_fault(record: &Record, victim: &str) -> Option<String> {
    let Some(lost) = record.attempts.iter().find(|attempt| attempt.worker_id == victim && is_lost(attempt)) else {
        return Some(format!("was held by {victim} when it died, and its history does not show {LOST}"));
    };
    let later = record.attempts.iter().find(|attempt| attempt.fence > lost.fence && attempt.worker_id != victim);
    match (record.kind.ending(), later) {
        (Ending::Succeeded, None) => Some(format!("was not run again after {victim} died")),
        _ => None,
    }
}

/// How often tasks of these records were run again because a worker died.
pub fn rerun(records: &[&Record], held: &BTreeSet<String>) -> usize {
    records.iter().filter(|record| held.contains(&record.task.task_id)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(number: u32, worker: &str, state: &str, reason: &str) -> Attempt {
        let json = format!(
            r#"{{"attempt":{number},"attempt_id":"a","fence":{number},"worker_id":"{worker}","state":"{state}",
                "reason":"{reason}","granted_at":"2025-01-15T10:00:00Z","ended_at":"2025-01-15T10:00:01Z"}}"#
        );
        serde_json::from_str(&json).unwrap()
    }

    fn record(kind: Kind, failures: u32, state: &str, attempts: Vec<Attempt>) -> Record {
        let count = attempts.len();
        let dead = if kind == Kind::Poison { r#","dead_lettered_at":"2025-01-15T10:00:00Z""# } else { "" };
        let json = format!(
            r#"{{"task_id":"t","queue":"mail","operator":"echo","state":"{state}","priority":5,"attempt":{count},
                "max_attempts":8,"fence":{count},"payload":{{}},"tags":{{}},"tenant":"default","workspace":"default",
                "cancel_requested":false,"created_at":"2025-01-15T10:00:00Z","run_at":"2025-01-15T10:00:00Z"{dead}}}"#
        );
        Record { kind, failures, task: serde_json::from_str(&json).unwrap(), attempts }
    }

    fn fault(record: Record, held: bool) -> Option<String> {
        let dead = if record.kind == Kind::Poison { BTreeSet::from(["t".to_owned()]) } else { BTreeSet::new() };
        let held = if held { BTreeSet::from(["t".to_owned()]) } else { BTreeSet::new() };
        judge(vec![record], 1, dead, "b", held).complaints.pop()
    }

    #[test]
    fn what_went_as_planned_is_good() {
        let done = attempt(1, "a", "Succeeded", "SUCCEEDED");
        assert_eq!(fault(record(Kind::Quick, 0, "Succeeded", vec![done]), false), None);
        let flaky = vec![attempt(1, "a", "Failed", "FAILED"), attempt(2, "a", "Succeeded", "SUCCEEDED")];
        assert_eq!(fault(record(Kind::Flaky, 1, "Succeeded", flaky), false), None);
        let poison = vec![attempt(1, "a", "Failed", "FAILED"), attempt(2, "b", "Failed", "FAILED")];
        assert_eq!(fault(record(Kind::Poison, u32::MAX, "Failed", poison), false), None);
        assert_eq!(fault(record(Kind::CanceledWaiting, 0, "Canceled", vec![]), false), None);
        let again = vec![attempt(1, "b", "Failed", LOST), attempt(2, "a", "Succeeded", "SUCCEEDED")];
        assert_eq!(fault(record(Kind::Long, 0, "Succeeded", again), true), None);
    }

    #[test]
    fn every_way_to_go_wrong_is_noticed() {
        let ok = |number, worker: &str| attempt(number, worker, "Succeeded", "SUCCEEDED");
        let lost = |number| attempt(number, "b", "Failed", LOST);
        let failed = |number| attempt(number, "a", "Failed", "FAILED");
        for (record, held, part) in [
            (record(Kind::Quick, 0, "Failed", vec![failed(1)]), false, "is Failed, not Succeeded"),
            (
                record(Kind::Quick, 0, "Succeeded", vec![ok(1, "a"), ok(2, "a")]),
                false,
                "was tried again after attempt 1",
            ),
            (
                record(Kind::Quick, 0, "Succeeded", vec![failed(1), ok(2, "a")]),
                false,
                "was tried again after attempt 1",
            ),
            (record(Kind::Quick, 0, "Succeeded", vec![ok(2, "a")]), false, "has the attempts [2]"),
            (record(Kind::CanceledWaiting, 0, "Canceled", vec![failed(1)]), false, "was granted after"),
            (record(Kind::Long, 0, "Succeeded", vec![ok(1, "b")]), true, "does not show HEARTBEAT_TIMEOUT"),
            (record(Kind::Long, 0, "Succeeded", vec![lost(1), ok(2, "b")]), true, "was not run again"),
            (record(Kind::Long, 0, "Succeeded", vec![lost(1)]), false, "succeeded 0 times"),
        ] {
            let found = fault(record, held).unwrap_or_default();
            assert!(found.contains(part), "{found:?} has no {part:?}");
        }
    }

    #[test]
    fn a_demo_in_which_the_victim_held_nothing_proves_nothing() {
        let done = record(Kind::Quick, 0, "Succeeded", vec![attempt(1, "a", "Succeeded", "SUCCEEDED")]);
        assert!(!judge(vec![done], 1, BTreeSet::new(), "b", BTreeSet::new()).is_good());
    }
}
