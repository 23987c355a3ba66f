use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tenure_core::command::claim::Grant;
use tenure_core::command::push::PushOutcome;
use tenure_core::id::dispatch_id;
use tenure_core::queue::{Push, QueueSettings};
use tenure_core::task::Body;
use tenure_core::time::DurationMs;

/// Hands granted tasks to one kind of target, such as workers that are reached over HTTP.
pub trait Courier: fmt::Debug + Send + Sync {
    /// Whether the tasks of a queue with these settings travel this way. The first courier that says so is used.
    fn serves(&self, settings: &QueueSettings) -> bool;

    /// Says why nothing can be delivered with these settings now, such as a secret that the configuration lacks. Nothing
    /// is granted from the queue as long as that is so.
    fn check(&self, push: &Push) -> Result<(), String>;

    /// Makes one attempt to hand over a task. It need not watch the clock: when `ack_timeout_ms` has passed, the delivery
    /// counts as silent.
    ///
    /// The future may be dropped at any point, also after the target has the task. What was dropped is repeated with the
    /// same ids.
    fn deliver(&self, parcel: Parcel) -> BoxFuture<'_, Handover>;
}

/// A granted task on its way to its target.
#[derive(Debug)]
pub struct Parcel {
    pub queue: Arc<str>,
    pub push: Arc<Push>,
    pub grant: Grant,
    pub body: Arc<Body>,
}

impl Parcel {
    /// The id that every delivery of the attempt has.
    pub fn delivery_id(&self) -> String {
        dispatch_id(self.body.run_id().as_u128(), self.grant.task.as_u128(), self.grant.attempt)
    }

    /// Which delivery of its attempt this is, from 1.
    pub fn number(&self) -> u32 {
        self.grant.delivery.as_ref().map_or(1, |delivery| delivery.deliveries)
    }

    /// How long an exchange can last: a target may execute the task inside of it.
    pub fn longest(&self) -> Duration {
        millis(self.body.spec.timeout_ms().saturating_add(self.push.dispatch_timeout_ms))
    }
}

/// The end of one attempt to hand over a task.
pub struct Handover {
    pub outcome: Outcome,
    /// The rest of the exchange, for a target that may execute inside of it. It is kept alive as long as the attempt is.
    pub rest: Option<BoxFuture<'static, ()>>,
}

impl From<Outcome> for Handover {
    fn from(outcome: Outcome) -> Self {
        Self { outcome, rest: None }
    }
}

impl fmt::Debug for Handover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handover").field("outcome", &self.outcome).finish_non_exhaustive()
    }
}

/// What came of one attempt to hand over a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The target has the task.
    Accepted,
    /// The target had the task already.
    Duplicate,
    /// The target works and wants the task later: after this long, if it said so.
    PutOff { after_ms: Option<DurationMs> },
    /// There is no room for the task now. It waits for as long as it takes, without spending the attempt.
    NoRoom { why: Arc<str>, after_ms: DurationMs },
    /// The target answered with an error that may pass.
    Failed,
    /// The target will never accept the task.
    Rejected { message: String },
    /// The target could not be reached, for this reason.
    Unreachable { why: Arc<str> },
    /// The target did not answer in time.
    Silent,
    /// Nothing was sent, for a reason of this control plane's own. The courier has logged it.
    Withheld,
}

/// What a delivery says about its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    Alive,
    /// Does not answer, or only with errors.
    Down,
    /// Cannot be reached: nothing will be different for the next delivery.
    Gone,
}

impl Outcome {
    pub const fn health(&self) -> Health {
        match self {
            Self::Accepted | Self::Duplicate | Self::PutOff { .. } | Self::NoRoom { .. } | Self::Rejected { .. } => {
                Health::Alive
            }
            Self::Unreachable { .. } => Health::Gone,
            Self::Failed | Self::Silent | Self::Withheld => Health::Down,
        }
    }

    /// The `outcome` of the metrics.
    pub(super) const fn word(&self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Duplicate => "duplicate",
            Self::PutOff { after_ms: Some(_) } => "put_off",
            Self::NoRoom { .. } => "no_room",
            Self::PutOff { after_ms: None } | Self::Failed => "failed",
            Self::Rejected { .. } => "rejected",
            Self::Unreachable { .. } => "unreachable",
            Self::Silent => "silent",
            Self::Withheld => "refused",
        }
    }

    /// What it means for the attempt.
    pub(super) fn fate(&self) -> PushOutcome {
        match self {
            Self::Accepted | Self::Duplicate => PushOutcome::Accepted,
            Self::PutOff { after_ms } => PushOutcome::Again { after_ms: *after_ms },
            Self::NoRoom { why, after_ms } => PushOutcome::NoRoom { why: Arc::clone(why), after_ms: *after_ms },
            Self::Rejected { message } => PushOutcome::Rejected { message: message.clone() },
            Self::Unreachable { why } => PushOutcome::Unreachable { why: Arc::clone(why) },
            Self::Failed | Self::Silent | Self::Withheld => PushOutcome::Again { after_ms: None },
        }
    }
}

pub(super) fn millis(ms: DurationMs) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}
