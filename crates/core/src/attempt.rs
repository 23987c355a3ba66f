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
    Cancelled,
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
}

impl Reason {
    pub const ALL: [Self; 10] = [
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::HeartbeatTimeout,
        Self::Timeout,
        Self::DeadlineExceeded,
        Self::CancelTimeout,
        Self::WorkerLost,
        Self::Undelivered,
        Self::Revoked,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "COMPLETED",
            Self::Failed => "FAILED",
            Self::Cancelled => "CANCELLED",
            Self::HeartbeatTimeout => "HEARTBEAT_TIMEOUT",
            Self::Timeout => "TIMEOUT",
            Self::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Self::CancelTimeout => "CANCEL_TIMEOUT",
            Self::WorkerLost => "WORKER_LOST",
            Self::Undelivered => "UNDELIVERED",
            Self::Revoked => "REVOKED",
        }
    }

    /// Whether the holder's own report may still replace this end, as long as nothing was granted since. A cancel and
    /// a passed deadline are final; an end that only guessed that the holder is gone is not.
    pub const fn yields_to_late_report(self) -> bool {
        matches!(self, Self::HeartbeatTimeout | Self::Timeout | Self::WorkerLost | Self::Undelivered)
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
}

impl Failure {
    /// Cuts what is too long, so that a replay of the same report compares equal.
    pub fn new(code: &str, message: &str, stack: Option<&str>, retryable: Option<bool>) -> Self {
        Self {
            code: limits::cut(code, limits::ERROR_CODE_BYTES).into(),
            message: limits::cut(message, limits::MESSAGE_BYTES).into(),
            stack: stack.map(|stack| limits::cut(stack, limits::STACK_BYTES).into()),
            retryable,
        }
    }

    /// An explicit `retryable` wins; else the code says.
    pub fn is_retryable(&self) -> bool {
        self.retryable.unwrap_or(!matches!(&*self.code, "DATA_QUALITY" | "CONFIGURATION" | "CANCELLED"))
    }

    /// The holder says that it stopped on purpose.
    pub fn is_cancelled(&self) -> bool {
        &*self.code == "CANCELLED" && self.retryable != Some(true)
    }

    pub fn is_timeout(&self) -> bool {
        &*self.code == "TIMEOUT"
    }
}

/// What a holder reports at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    Succeeded { result: Option<Arc<str>> },
    Failed(Failure),
}

/// The answer that a report got; an exact replay gets it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Receipt {
    Completed,
    Failed { requeued: bool, dlq: bool },
}

/// A report that could not be applied: kept, never acted on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    pub received_at: Timestamp,
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
        match report {
            Report::Succeeded { result } => Self { received_at, result: result.clone(), failure: None, more: 0 },
            Report::Failed(failure) => Self { received_at, result: None, failure: Some(failure.clone()), more: 0 },
        }
    }

    pub fn outcome(&self) -> &'static str {
        match &self.failure {
            None => "SUCCEEDED",
            Some(failure) if failure.is_cancelled() => "CANCELLED",
            Some(_) => "FAILED",
        }
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
    pub worker: WorkerId,
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Evidence>,
}

impl ClosedAttempt {
    /// Whether `report` is the one that this attempt's receipt answered. `result` is the stored result of the task,
    /// which belongs to this attempt if it completed.
    pub fn is_replay(&self, report: &Report, result: Option<&str>) -> bool {
        match (self.receipt, report) {
            (Some(Receipt::Completed), Report::Succeeded { result: sent }) => match (result, sent) {
                (None, None) => true,
                (Some(stored), Some(sent)) => json::same_value(stored, sent),
                _ => false,
            },
            (Some(Receipt::Failed { .. }), Report::Failed(sent)) => self.failure.as_ref() == Some(sent),
            _ => false,
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
    fn an_explicit_retryable_wins_over_the_code() {
        for (code, default) in [("X", true), ("DATA_QUALITY", false), ("CONFIGURATION", false), ("CANCELLED", false)] {
            assert_eq!(Failure::new(code, "", None, None).is_retryable(), default, "{code}");
            assert!(Failure::new(code, "", None, Some(true)).is_retryable(), "{code}");
            assert!(!Failure::new(code, "", None, Some(false)).is_retryable(), "{code}");
        }
    }

    #[test]
    fn a_long_stack_is_cut_at_a_character() {
        let stack = "é".repeat(limits::STACK_BYTES);
        let failure = Failure::new("X", "", Some(&stack), None);
        assert_eq!(failure.stack.unwrap().len(), limits::STACK_BYTES);
    }
}
