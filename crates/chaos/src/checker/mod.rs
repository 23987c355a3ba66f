//! Whether what was seen can be the work of a control plane that keeps its promises.
//!
//! Two kinds of rules. The plain ones (`rules`, and `bounds` for those about time) each name one promise and are easy to
//! read in a report. The search for an order (`search`) holds all answers of a task, together with its state at the end, against a small sequential
//! machine (`model`); it finds whatever the plain ones do not name.

mod bounds;
mod events;
mod limits;
mod model;
mod rules;
mod search;
mod stream;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::faults::Faults;
use super::history::History;
use super::ledger::Effects;
use events::Sorted;
use search::Found;
pub use stream::{MARK, Seen, Stream};

/// A task as the control plane shows it after everything has healed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FinalTask {
    pub nonce: String,
    pub state: String,
    pub attempt: u32,
    pub fence: u64,
    /// The result as JSON text.
    pub result: Option<String>,
    pub ttl_ms: u64,
    pub attempts: Vec<FinalAttempt>,
}

/// An attempt in the task's own history.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FinalAttempt {
    pub attempt: u32,
    pub attempt_id: String,
    pub fence: u64,
    pub worker: String,
    pub reason: String,
}

/// How everything stands at the end.
#[derive(Debug, Clone, Default)]
pub struct Ended {
    /// When it was read.
    pub at: u64,
    pub tasks: BTreeMap<String, FinalTask>,
    /// What watchers saw of it.
    pub streams: Vec<Stream>,
}

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub rule: Rule,
    pub task: Option<String>,
    pub what: String,
    /// The operations that show it.
    pub ops: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// An acknowledged submit is there at the end.
    LostSubmit,
    /// The same idempotency key is the same task.
    KeySplit,
    /// One submission makes one task.
    DoubleCreate,
    /// A batch is all or nothing.
    HalfBatch,
    /// Only what was submitted is granted.
    Invented,
    /// A task has at most one accepted completion.
    TwoCompletions,
    /// The same report gets the same answer.
    ReceiptChanged,
    /// Nothing is accepted from a holder that was overtaken.
    StaleAccepted,
    /// Fences and attempt numbers grow with the grants.
    GrantOrder,
    /// No attempt, fence or number is granted twice.
    DoubleGrant,
    /// Every attempt in the history of a task was asked for, and every grant is in it.
    AttemptHistory,
    /// Every task ends.
    NotEnded,
    /// No order of the operations explains the answers.
    NoOrder,
    /// A claim sent again gets the jobs that it got.
    RepeatChanged,
    /// A token that nobody has is worth nothing.
    ForgedAccepted,
    /// A task of a run is granted after all that it depends on have succeeded, and skipped if they have not.
    RunOrder,
    /// A tenant sees nothing of another.
    TenantSeen,
    /// A revoked key is worth nothing.
    RevokedAccepted,
    /// A heartbeat extends no lease that has ended.
    ExpiredRenewed,
    /// A task that can run is granted in time.
    LateGrant,
    /// No internal errors, and no answers of 429 or 503 while nothing is broken.
    ServerError,
    /// A refusal has a reason that its request can have.
    WrongReason,
    /// An answer that says yes says what its request asks for.
    Unreadable,
    /// No more attempts of a queue are open than it allows.
    LimitExceeded,
    /// A queue grants no faster than it may.
    RateExceeded,
    /// A crowd does not delay others in its queue.
    Unfair,
    /// Nothing of a task is accepted after its deadline.
    PastDeadline,
    /// An acknowledged redrive releases the dead letters that it names.
    RedriveLost,
    /// Every change is an event.
    EventLost,
    /// Events come once, in the order of their ids.
    EventOrder,
    /// Guarded effects come in the order of the fences, and the last one is that of the accepted completion.
    Ledger,
}

impl Rule {
    pub const fn name(self) -> &'static str {
        match self {
            Self::LostSubmit => "an acknowledged submit is lost",
            Self::KeySplit => "one idempotency key, two tasks",
            Self::DoubleCreate => "one submission, two tasks",
            Self::HalfBatch => "a part of a batch is there",
            Self::Invented => "a task that nobody submitted",
            Self::TwoCompletions => "two accepted completions",
            Self::ReceiptChanged => "the same report, another answer",
            Self::StaleAccepted => "a holder that was overtaken was accepted",
            Self::GrantOrder => "a fence or an attempt number went back",
            Self::DoubleGrant => "the same attempt was granted twice",
            Self::AttemptHistory => "the attempt history is wrong",
            Self::NotEnded => "a task has not ended",
            Self::NoOrder => "no order explains the answers",
            Self::RepeatChanged => "the same claim, other jobs",
            Self::ForgedAccepted => "a forged token was accepted",
            Self::RunOrder => "a task of a run did not wait",
            Self::TenantSeen => "a task of another tenant was seen",
            Self::RevokedAccepted => "a revoked key was accepted",
            Self::ExpiredRenewed => "a lease was extended after its end",
            Self::LateGrant => "a task was granted too late",
            Self::ServerError => "the server failed",
            Self::WrongReason => "refused with a wrong reason",
            Self::Unreadable => "an answer that cannot be read",
            Self::LimitExceeded => "more attempts are open than the queue allows",
            Self::RateExceeded => "a queue grants faster than it may",
            Self::Unfair => "a crowd was served before others",
            Self::PastDeadline => "accepted after the deadline",
            Self::RedriveLost => "a redrive left a dead letter where it was",
            Self::EventLost => "an event is missing",
            Self::EventOrder => "events came twice or out of order",
            Self::Ledger => "the effects are not in the order of the fences",
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule.name(), self.what)?;
        if let Some(task) = &self.task {
            write!(f, "\n  task {task}")?;
        }
        self.ops.iter().try_for_each(|op| write!(f, "\n    {op}"))
    }
}

/// What the checker found.
#[derive(Debug, Default)]
pub struct Verdict {
    pub violations: Vec<Violation>,
    /// Tasks with too many possible orders to look at all.
    pub undecided: usize,
    /// How long after it could run, without a fault, the last task was granted.
    pub latest_grant: Duration,
}

/// Checks everything.
pub fn check(history: &History, ended: &Ended, effects: &Effects, faults: &Faults) -> Verdict {
    let sorted = Sorted::new(history, ended);
    let mut violations = rules::check(history, &sorted, ended, effects);
    let (bounds, latest_ns) = bounds::check(history, &sorted, ended, faults);
    violations.extend(bounds);
    violations.extend(limits::check(&sorted, ended));
    violations.extend(stream::check(ended));
    let mut verdict = Verdict { violations, undecided: 0, latest_grant: Duration::from_nanos(latest_ns) };
    for (id, task) in &sorted.tasks {
        let Some(last) = ended.tasks.get(*id) else { continue };
        let Some((events, mut facts)) = task.events(&sorted, last, ended.at) else { continue };
        facts.outages.clone_from(&faults.outages);
        match search::search(&events, &facts) {
            Found::Order => {}
            Found::GaveUp => verdict.undecided += 1,
            Found::Nothing { best, explained } => {
                let known = events.iter().filter(|event| event.must).count();
                let what = format!("{explained} of {known} answers can be explained, up to {best:?}");
                verdict.violations.push(Violation {
                    rule: Rule::NoOrder,
                    task: Some((*id).to_owned()),
                    what,
                    ops: rules::story(task, Some(last)),
                });
            }
        }
    }
    verdict
}
