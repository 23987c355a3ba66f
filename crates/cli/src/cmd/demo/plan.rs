//! Which tasks the demo submits, and how each has to end.

use serde_json::{Value, json};
use tenure_contract::user::{RetryPolicy, TaskSubmission};

/// Short, so that the tasks of a killed worker are not missing for long.
const LEASE_TTL_SECONDS: i64 = 2;
const BACKOFF_MS: i64 = 200;
/// Generous: a busy machine may cost an attempt.
const ATTEMPTS: i64 = 8;
const POISON_ATTEMPTS: i64 = 3;
const CANCEL_GRACE_MS: i64 = 5_000;
const LONG_MS: u64 = 3_000;
/// More long tasks than one worker can hold, so that the other one holds some too.
const LONG_MIN: usize = 12;

pub const TASKS_MIN: usize = 50;
/// One page of the API, so that one call shows the state of everything.
pub const TASKS_MAX: usize = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Quick,
    Slow,
    Long,
    Flaky,
    Later,
    CanceledWaiting,
    CanceledRunning,
    Poison,
}

/// How a task has to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Succeeded,
    Canceled,
    DeadLetter,
}

impl Kind {
    pub const ALL: [Self; 8] = [
        Self::Quick,
        Self::Slow,
        Self::Long,
        Self::Flaky,
        Self::Later,
        Self::CanceledWaiting,
        Self::CanceledRunning,
        Self::Poison,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Slow => "slow",
            Self::Long => "long",
            Self::Flaky => "flaky",
            Self::Later => "later",
            Self::CanceledWaiting => "cancel-waiting",
            Self::CanceledRunning => "cancel-running",
            Self::Poison => "poison",
        }
    }

    /// Completes "tasks that …".
    pub fn story(self) -> &'static str {
        match self {
            Self::Quick => "return at once",
            Self::Slow => "take up to half a second",
            Self::Long => "take 3 seconds",
            Self::Flaky => "fail at first, then work",
            Self::Later => "are due later",
            Self::CanceledWaiting => "are canceled while waiting",
            Self::CanceledRunning => "are canceled while running",
            Self::Poison => "fail every time (poison)",
        }
    }

    pub fn ending(self) -> Ending {
        match self {
            Self::Quick | Self::Slow | Self::Long | Self::Flaky | Self::Later => Ending::Succeeded,
            Self::CanceledWaiting | Self::CanceledRunning => Ending::Canceled,
            Self::Poison => Ending::DeadLetter,
        }
    }

    /// Of 200; what is missing is quick.
    fn share(self) -> usize {
        match self {
            Self::Quick => 0,
            Self::Slow => 60,
            Self::Long => 20,
            Self::Flaky => 30,
            Self::Later => 8,
            Self::CanceledWaiting => 10,
            Self::CanceledRunning => 6,
            Self::Poison => 1,
        }
    }

    fn count(self, total: usize) -> usize {
        let scaled = (self.share() * total / 200).max(1);
        match self {
            // What takes time does not grow with the demo, or it would take minutes.
            Self::Slow | Self::CanceledRunning | Self::Poison => scaled.min(self.share()),
            Self::Long => scaled.clamp(LONG_MIN, self.share()),
            _ => scaled,
        }
    }

    /// Operator and payload of the `n`th task.
    fn work(self, n: usize) -> (&'static str, Value) {
        let varied = (n as u64 * 37) % 100;
        match self {
            Self::Quick | Self::Later | Self::CanceledWaiting => ("echo", json!({ "n": n })),
            Self::Slow => ("sleep", json!({ "ms": 100 + varied * 4 })),
            Self::Long => ("sleep", json!({ "ms": LONG_MS })),
            Self::CanceledRunning => ("sleep", json!({ "ms": 600_000 })),
            Self::Flaky => {
                ("fail", json!({ "code": "HTTP_503", "message": "service busy", "times": self.failures(n) }))
            }
            Self::Poison => ("fail", json!({ "code": "BAD_ROW", "message": "cannot parse row 7" })),
        }
    }

    /// How many attempts of the `n`th task fail by themselves.
    fn failures(self, n: usize) -> u32 {
        match self {
            Self::Flaky => 1 + u32::from(n.is_multiple_of(3)),
            Self::Poison => u32::MAX,
            _ => 0,
        }
    }
}

/// The queues of one demo. In a store that others use too the names have to be its own.
#[derive(Debug, Clone)]
pub struct Queues {
    pub mail: String,
    pub reports: String,
}

impl Queues {
    pub fn new(prefix: &str) -> Self {
        Self { mail: format!("{prefix}mail"), reports: format!("{prefix}reports") }
    }
}

/// A task before it is submitted.
#[derive(Debug)]
pub struct Planned {
    pub kind: Kind,
    /// So many attempts fail by themselves.
    pub failures: u32,
    pub submission: TaskSubmission,
}

/// `total` tasks in the order in which they are submitted. `run` tags them.
pub fn plan(total: usize, run: &str, queues: &Queues) -> Vec<Planned> {
    let others = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Quick);
    let mut tasks: Vec<_> = others.flat_map(|kind| (0..kind.count(total)).map(move |n| (kind, n))).collect();
    tasks.extend((0..total.saturating_sub(tasks.len())).map(|n| (Kind::Quick, n)));
    tasks.into_iter().map(|(kind, n)| planned(kind, n, run, queues)).collect()
}

fn planned(kind: Kind, n: usize, run: &str, queues: &Queues) -> Planned {
    let (operator, payload) = kind.work(n);
    let queue = match kind {
        Kind::Slow | Kind::Long | Kind::CanceledRunning => &queues.reports,
        _ => &queues.mail,
    };
    let delay_ms = match kind {
        Kind::Later => Some(1_000 + 500 * (n as i64 % 8)),
        Kind::CanceledWaiting => Some(3_600_000),
        _ => None,
    };
    // What is to be canceled or lost while it runs should run early.
    let priority = match kind {
        Kind::CanceledRunning => Some(0),
        Kind::Long => Some(1),
        _ => None,
    };
    let tags = [("demo", run), ("kind", kind.name())].map(|(name, value)| (name.to_owned(), value.to_owned()));
    let submission = TaskSubmission {
        queue: queue.clone(),
        operator: operator.to_owned(),
        payload: Some(payload.into()),
        priority,
        delay_ms,
        max_attempts: Some(if kind == Kind::Poison { POISON_ATTEMPTS } else { ATTEMPTS }),
        lease_ttl_seconds: Some(LEASE_TTL_SECONDS),
        cancel_grace_period_ms: Some(CANCEL_GRACE_MS),
        retry: Some(RetryPolicy {
            initial_backoff_ms: Some(BACKOFF_MS),
            factor: Some(2.0),
            max_backoff_ms: Some(4 * BACKOFF_MS),
            jitter: Some("none".to_owned()),
        }),
        tags: Some(tags.into()),
        ..TaskSubmission::default()
    };
    Planned { kind, failures: kind.failures(n), submission }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(total: usize) -> Vec<usize> {
        let tasks = plan(total, "r", &Queues::new(""));
        assert_eq!(tasks.len(), total);
        Kind::ALL.into_iter().map(|kind| tasks.iter().filter(|task| task.kind == kind).count()).collect()
    }

    #[test]
    fn every_kind_is_there_at_every_size() {
        assert_eq!(counts(200), [65, 60, 20, 30, 8, 10, 6, 1]);
        for total in [TASKS_MIN, 77, TASKS_MAX] {
            let counts = counts(total);
            assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
            // All of these run at a time, on one worker if need be.
            assert!(counts[6] <= super::super::stage::CONCURRENCY, "{counts:?}");
            assert_eq!(counts.last(), Some(&1));
        }
    }

    #[test]
    fn flaky_tasks_have_attempts_enough() {
        let tasks = plan(200, "r", &Queues::new(""));
        let flaky = tasks.iter().filter(|task| task.kind == Kind::Flaky);
        assert!(flaky.clone().all(|task| i64::from(task.failures) < ATTEMPTS));
        assert!(flaky.clone().any(|task| task.failures == 1) && flaky.clone().any(|task| task.failures == 2));
    }
}
