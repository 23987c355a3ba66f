//! Ways to break the rules of routing, one at a time, around the real decisions. Each must be found.

use std::sync::Arc;

use tenure_core::dag::route::Delivery;
use tenure_core::dag::task::{TaskInput, Trigger};
use tenure_core::dag::{DatasetId, Deployment, VersionId};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// Nothing is falsified.
    None,
    /// What made a task is part of its key.
    KeyOfCause,
    /// The generation is not part of a task's key.
    KeyWithoutGeneration,
    /// An invalidation is applied again when it is sent again.
    InvalidatedTwice,
    /// What is rewritten from changed data invalidates nothing.
    NoCascade,
    /// Only tasks that an invalidation made know that data has changed.
    CascadeOfInvalidationsOnly,
    /// Cursors are set to what is reported last.
    CursorsAreSet,
    /// A late task overwrites what a task of a later generation has written.
    StaleWrites,
    /// Events are marked as routed before their tasks are made.
    MarkedFirst,
    /// Nobody looks for what was missed.
    NoReconciler,
    /// The events of any version are taken for those of the current one.
    OldIsCurrent,
    /// The tasks of a staged version are not held.
    NotHeld,
    /// The tasks of a version that becomes active stay held.
    NotReleased,
    /// A version is ready before its rebuild tasks have succeeded.
    ReadyAtOnce,
    /// The tasks of a rebuild are counted, and not again after it was seen that all events are routed.
    CountedOnce,
    /// What was there before a version, and is routed after it was deployed, waits for the version.
    EarlierDataWaits,
    /// A rollback leaves the tasks of the version where they are.
    RollbackForgets,
    /// A task that was canceled with its version stays canceled when the version is active again.
    CanceledStays,
}

impl Mutant {
    pub fn tamper_key(self, key: &Arc<str>, trigger: &Trigger) -> Arc<str> {
        match (self, trigger) {
            (Self::KeyOfCause, Trigger::Invalidation) => format!("{key}!").into(),
            (Self::KeyWithoutGeneration, _) => {
                key.rsplit_once(":g").map_or_else(|| Arc::clone(key), |(key, _)| key.into())
            }
            _ => Arc::clone(key),
        }
    }

    pub fn tamper_version(self, version: VersionId, deployment: &Deployment, dataset: DatasetId) -> VersionId {
        match self {
            Self::OldIsCurrent => deployment.datasets[&dataset].current.unwrap_or(version),
            _ => version,
        }
    }

    pub fn tamper_delivery(self, delivery: Delivery, is_current: bool) -> Delivery {
        let rebuild = delivery.rebuild && !(self == Self::EarlierDataWaits && is_current);
        Delivery { rebuild, ..delivery }
    }

    /// Whether what this task rewrites invalidates what was made from it.
    pub fn cascades(self, input: &TaskInput) -> bool {
        match self {
            Self::NoCascade => false,
            Self::CascadeOfInvalidationsOnly => input.invalidation.is_some(),
            _ => true,
        }
    }
}
