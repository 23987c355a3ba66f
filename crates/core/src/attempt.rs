//! One execution of a task, from grant to end.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::id::{AttemptId, Fence, LeaseToken, WorkerId};
use crate::json;
use crate::limits;
use crate::time::Timestamp;

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AttemptState {
    Succeeded,
    Failed,
    Canceled,
}

impl AttemptState {
    pub const ALL: [Self; 3] = [Self::Succeeded, Self::Failed, Self::Canceled];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Canceled => "Canceled",
        }
    }
}

/// What ended an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Reason {
    /// The holder completed it.
    Completed,
    /// The holder reported a failure.
    Failed,
    /// The holder stopped because it was asked to, or of its own accord.
    #[serde(rename = "CANCELLED")]
    Canceled,
    /// The lease ran out without a heartbeat.
    HeartbeatTimeout,
    /// It ran longer than one attempt may.
    Timeout,
    /// The deadline of the whole task passed.
    DeadlineExceeded,
    /// The holder did not stop within the cancel grace.
    CancelTimeout,
    /// A newer process took over the holder's name.
    WorkerLost,
    /// The claimer was gone before the grant could reach it.
    Undelivered,
    /// An immediate cancel took the lease away.
    Revoked,
    /// A push was accepted, but no worker took the attempt up in time.
    StartTimeout,
    /// The holder had to stop for a reason of its own, and gave the task back.
    HandedBack,
    /// No push was accepted in time.
    DispatchFailed,
    /// The worker refused the push for good.
    DispatchRejected,
}

/// What kind of failure ended an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    UserCode,
    DataQuality,
    Infrastructure,
    Configuration,
    Timeout,
    Canceled,
}

impl Category {
    pub const ALL: [Self; 6] =
        [Self::UserCode, Self::DataQuality, Self::Infrastructure, Self::Configuration, Self::Timeout, Self::Canceled];

    /// Whether another attempt may go better, unless the holder says otherwise.
    pub const fn is_retryable(self) -> bool {
        !matches!(self, Self::DataQuality | Self::Configuration | Self::Canceled)
    }
}

impl Reason {
    /// The category of an end that the control plane set.
    pub const fn category(self) -> Option<Category> {
        match self {
            Self::HeartbeatTimeout
            | Self::StartTimeout
            | Self::DispatchFailed
            | Self::WorkerLost
            | Self::HandedBack
            | Self::Undelivered => Some(Category::Infrastructure),
            Self::Timeout | Self::DeadlineExceeded => Some(Category::Timeout),
            Self::DispatchRejected => Some(Category::Configuration),
            Self::CancelTimeout | Self::Revoked | Self::Canceled => Some(Category::Canceled),
            Self::Completed | Self::Failed => None,
        }
    }

    pub const ALL: [Self; 14] = [
        Self::Completed,
        Self::Failed,
        Self::Canceled,
        Self::HeartbeatTimeout,
        Self::Timeout,
        Self::DeadlineExceeded,
        Self::CancelTimeout,
        Self::WorkerLost,
        Self::Undelivered,
        Self::Revoked,
        Self::StartTimeout,
        Self::HandedBack,
        Self::DispatchFailed,
        Self::DispatchRejected,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "COMPLETED",
            Self::Failed => "FAILED",
            Self::Canceled => "CANCELLED",
            Self::HeartbeatTimeout => "HEARTBEAT_TIMEOUT",
            Self::Timeout => "TIMEOUT",
            Self::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Self::CancelTimeout => "CANCEL_TIMEOUT",
            Self::WorkerLost => "WORKER_LOST",
            Self::Undelivered => "UNDELIVERED",
            Self::Revoked => "REVOKED",
            Self::StartTimeout => "START_TIMEOUT",
            Self::HandedBack => "HANDED_BACK",
            Self::DispatchFailed => "DISPATCH_FAILED",
            Self::DispatchRejected => "DISPATCH_REJECTED",
        }
    }

    /// Whether the holder's own report may still replace this end, as long as nothing was granted since. A cancel and
    /// a passed deadline are final; an end that only guessed that the holder is gone is not.
    pub const fn yields_to_late_report(self) -> bool {
        matches!(
            self,
            Self::HeartbeatTimeout
                | Self::Timeout
                | Self::WorkerLost
                | Self::Undelivered
                | Self::StartTimeout
                | Self::DispatchFailed
        )
    }
}

/// What went wrong, in the words of the worker or of the control plane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub code: Arc<str>,
    pub message: Arc<str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retryable: Option<bool>,
    /// What the contract of the reporter reads from the code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub category: Option<Category>,
    /// The holder had to stop for a reason of its own and gives the task back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub handed_back: bool,
}

impl Failure {
    /// Cuts what is too long, so that a replay of the same report compares equal.
    pub fn new(code: &str, message: &str, stack: Option<&str>, retryable: Option<bool>) -> Self {
        // Postgres takes no NUL in a text, nor in JSON that it looks into.
        let text = |text: &str, max| Arc::from(limits::cut(text, max).replace('\0', "\u{fffd}"));
        Self {
            code: text(code, limits::ERROR_CODE_BYTES),
            message: text(message, limits::MESSAGE_BYTES),
            stack: stack.map(|stack| text(stack, limits::STACK_BYTES)),
            retryable,
            category: None,
            handed_back: false,
        }
    }

    #[must_use]
    pub fn given_back(self, handed_back: bool) -> Self {
        Self { handed_back, ..self }
    }

    #[must_use]
    pub fn of_category(self, category: Option<Category>) -> Self {
        Self { category, ..self }
    }

    /// An explicit `retryable` takes precedence over the category.
    pub fn is_retryable(&self) -> bool {
        self.retryable.unwrap_or(self.category.is_none_or(Category::is_retryable))
    }

    /// The holder says that it stopped on purpose.
    pub fn is_canceled(&self) -> bool {
        self.category == Some(Category::Canceled) && self.retryable != Some(true)
    }

    pub fn is_timeout(&self) -> bool {
        self.category == Some(Category::Timeout)
    }
}

/// How a holder says that its attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Succeeded {
        result: Option<Arc<str>>,
    },
    Failed(Failure),
    /// It stopped on purpose.
    Canceled(Option<Failure>),
}

/// What a holder reports at the end of its attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    pub outcome: Outcome,
    /// Who sends it, where the contract says so.
    pub worker: Option<WorkerId>,
    /// What the attempt used, where a holder that claimed it says so.
    pub metrics: Option<Metrics>,
    /// All that was sent, where the contract lets a holder say more than the outcome.
    pub completion: Option<Box<Completion>>,
}

/// What an attempt used, as its holder measured it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Metrics {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_time_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<u64>,
}

impl Report {
    pub const fn succeeded(result: Option<Arc<str>>) -> Self {
        Self { outcome: Outcome::Succeeded { result }, worker: None, metrics: None, completion: None }
    }

    pub fn failed(failure: Failure) -> Self {
        let outcome = if failure.is_canceled() { Outcome::Canceled(Some(failure)) } else { Outcome::Failed(failure) };
        Self { outcome, worker: None, metrics: None, completion: None }
    }

    /// The holder stopped on purpose.
    pub const fn canceled() -> Self {
        Self { outcome: Outcome::Canceled(None), worker: None, metrics: None, completion: None }
    }

    #[must_use]
    pub fn with_metrics(self, metrics: Option<Metrics>) -> Self {
        Self { metrics, ..self }
    }

    /// The report of a callback worker.
    pub fn completed(worker: WorkerId, sent: Completion) -> Self {
        let outcome = match sent.outcome {
            AttemptState::Succeeded => Outcome::Succeeded { result: sent.output.clone() },
            AttemptState::Canceled => Outcome::Canceled(sent.error.clone()),
            AttemptState::Failed => Outcome::Failed(sent.error.clone().unwrap_or_else(|| {
                Failure::new("USER_CODE", "the worker reported a failure without an error", None, None)
                    .of_category(Some(Category::UserCode))
            })),
        };
        Self { outcome, worker: Some(worker), metrics: None, completion: Some(Box::new(sent)) }
    }

    /// How it says that the attempt ended.
    pub const fn state(&self) -> AttemptState {
        match self.outcome {
            Outcome::Succeeded { .. } => AttemptState::Succeeded,
            Outcome::Failed(_) => AttemptState::Failed,
            Outcome::Canceled(_) => AttemptState::Canceled,
        }
    }

    /// The result of a success.
    pub const fn result(&self) -> Option<&Arc<str>> {
        match &self.outcome {
            Outcome::Succeeded { result } => result.as_ref(),
            Outcome::Failed(_) | Outcome::Canceled(_) => None,
        }
    }

    /// The error of a failure or a stop.
    pub const fn failure(&self) -> Option<&Failure> {
        match &self.outcome {
            Outcome::Succeeded { .. } => None,
            Outcome::Failed(failure) => Some(failure),
            Outcome::Canceled(failure) => failure.as_ref(),
        }
    }

    /// What it leaves to the next attempt.
    pub fn checkpoint(&self) -> Option<&Arc<str>> {
        self.completion.as_ref().and_then(|sent| sent.partial_progress.as_ref())
    }
}

/// The end of an attempt as a callback worker reports it. Parts that do not fit the outcome are kept as they were sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Completion {
    pub outcome: AttemptState,
    /// Left out of what is stored when it is the result of the task, which has a place of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partial_progress: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Arc<str>>,
    /// What the worker's clock said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told_completed_at: Option<Timestamp>,
}

impl Completion {
    /// Whether both say the same. Metrics and times do not count. `result` is the stored result of the task.
    fn is_same(&self, sent: &Self, result: Option<&str>) -> bool {
        let output = if self.outcome == AttemptState::Succeeded { result } else { self.output.as_deref() };
        self.outcome == sent.outcome
            && json::same(output, sent.output.as_deref())
            && self.error == sent.error
            && self.phase == sent.phase
            && json::same(self.partial_progress.as_deref(), sent.partial_progress.as_deref())
    }
}

/// What only a callback worker's attempt has to tell.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CallbackPart {
    /// When a worker took it up; `None` if none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told_started_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told_heartbeat_at: Option<Timestamp>,
    pub deliveries: u32,
    /// Why it was asked to stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_reason: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion: Option<Box<Completion>>,
}

/// The answer that a report got; an exact replay gets it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Receipt {
    Completed,
    Failed { requeued: bool, dlq: bool },
}

impl Receipt {
    /// Whether the task is tried again.
    pub const fn is_requeued(self) -> bool {
        matches!(self, Self::Failed { requeued: true, .. })
    }
}

/// A report that could not be applied: kept, never acted on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    pub received_at: Timestamp,
    /// Who sent it, where the report says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerId>,
    /// How it said that the attempt ended.
    pub state: AttemptState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// How many more came after the first.
    #[serde(default)]
    pub more: u32,
}

impl Evidence {
    pub fn of(report: &Report, received_at: Timestamp) -> Self {
        let (result, failure) = match &report.completion {
            Some(sent) => (sent.output.clone(), sent.error.clone()),
            None => (report.result().cloned(), report.failure().cloned()),
        };
        Self { received_at, worker: report.worker.clone(), state: report.state(), result, failure, more: 0 }
    }
}

/// What a holder says about how far it is. The last value wins.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Progress {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pct: Option<u8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Arc<str>>,
}

/// An ended attempt. An attempt in flight lives in [`crate::task::Running`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClosedAttempt {
    pub number: u32,
    pub id: AttemptId,
    pub token: LeaseToken,
    pub fence: Fence,
    /// `None` for a pushed attempt that no worker started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerId>,
    pub granted_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_at: Option<Timestamp>,
    pub ended_at: Timestamp,
    pub state: AttemptState,
    pub reason: Reason,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    #[serde(default)]
    pub progress: Progress,
    /// Set when the holder itself reported the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<Receipt>,
    /// When the retry that the receipt promises was due at that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Evidence>,
    /// Of an attempt that was claimed; a pushed one has its own in `callback`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Metrics>,
    /// Set for an attempt that was pushed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<Box<CallbackPart>>,
}

impl ClosedAttempt {
    /// The kind of failure: that of the reason, else the one that the holder reported.
    pub fn category(&self) -> Option<Category> {
        self.reason.category().or_else(|| self.failure.as_ref()?.category)
    }

    /// When a worker took it up. Whoever claims an attempt starts it; a pushed one may have reached nobody.
    pub fn started_at(&self) -> Option<Timestamp> {
        self.callback.as_ref().map_or(Some(self.granted_at), |part| part.started_at)
    }

    /// Whether `report` is the one that this attempt's receipt answered; metrics do not count. `result` is the stored result of the task,
    /// which belongs to this attempt if it completed.
    pub fn is_replay(&self, report: &Report, result: Option<&str>) -> bool {
        let Some(receipt) = self.receipt else { return false };
        if let Some(sent) = &report.completion {
            let stored = self.callback.as_ref().and_then(|part| part.completion.as_ref());
            return stored.is_some_and(|stored| stored.is_same(sent, result));
        }
        match (receipt, &report.outcome) {
            (Receipt::Completed, Outcome::Succeeded { result: sent }) => json::same(result, sent.as_deref()),
            (Receipt::Failed { .. }, Outcome::Failed(_) | Outcome::Canceled(_)) => {
                self.failure.as_ref() == report.failure()
            }
            _ => false,
        }
    }

    /// Records what its holder reported.
    pub fn take(&mut self, report: &Report, now: Timestamp) {
        self.state = report.state();
        self.failure = report.failure().cloned();
        self.metrics = report.metrics;
        self.ended_at = now;
        if report.worker.is_some() {
            self.worker.clone_from(&report.worker);
        }
        if let Some(sent) = &report.completion {
            let mut stored = sent.clone();
            if stored.outcome == AttemptState::Succeeded {
                stored.output = None;
            }
            let part = self.callback.get_or_insert_default();
            part.started_at.get_or_insert(now);
            part.completion = Some(stored);
        }
    }

    /// Keeps the first report that could not be applied, and counts the others.
    pub fn keep_evidence(&mut self, report: &Report, now: Timestamp) {
        match &mut self.evidence {
            Some(evidence) => evidence.more = evidence.more.saturating_add(1),
            None => self.evidence = Some(Evidence::of(report, now)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explicit_retryable_takes_precedence_over_the_category() {
        let known = Category::ALL.map(|category| (Some(category), category.is_retryable()));
        for (category, default) in known.into_iter().chain([(None, true)]) {
            let failure = |told| Failure::new("X", "", None, told).of_category(category);
            assert_eq!(failure(None).is_retryable(), default, "{category:?}");
            assert!(failure(Some(true)).is_retryable(), "{category:?}");
            assert!(!failure(Some(false)).is_retryable(), "{category:?}");
        }
        let final_ones: Vec<_> = Category::ALL.into_iter().filter(|category| !category.is_retryable()).collect();
        assert_eq!(final_ones, [Category::DataQuality, Category::Configuration, Category::Canceled]);
    }

    #[test]
    fn a_long_stack_is_cut_at_a_character() {
        let stack = "é".repeat(limits::STACK_BYTES);
        let failure = Failure::new("X", "", Some(&stack), None);
        assert_eq!(failure.stack.unwrap().len(), limits::STACK_BYTES);
    }
}
