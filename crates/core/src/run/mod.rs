//! Runs: tasks that depend on each other.
//!
//! A run is its tasks and the edges between them. Each edge resolves once, when its upstream task ends, in the same
//! transaction. The row of the run counts how its tasks ended; its state follows from the counts.

pub mod plan;
pub mod reference;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::event::FactKind;
use crate::id::{RunId, Seq, TaskId};
use crate::task::{End, State};
use crate::time::Timestamp;

/// The run that a task belongs to, as stored in its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InRun {
    pub run: RunId,
    /// Its name within the run.
    pub key: Arc<str>,
}

/// What a task of a run carries from place to place. A task that was submitted alone has none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The row of its run.
    pub run: Seq,
    /// Other tasks have ended because of its end: nothing changes it any more.
    #[serde(default, skip_serializing_if = "is_false")]
    pub sealed: bool,
    /// The tasks whose outputs its payload names, by key; none once they are filled in.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub refs: BTreeMap<String, Seq>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_false(flag: &bool) -> bool {
    !*flag
}

/// The second task waits for the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Edge {
    pub upstream: Seq,
    pub downstream: Seq,
}

/// A task of a run, and what it was submitted to wait for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunTask {
    pub run: Seq,
    pub task: Seq,
    pub depends_on: Vec<Seq>,
}

/// A task that another one waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    pub key: Arc<str>,
    pub task: TaskId,
    pub state: State,
}

/// Row of `runs`.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    pub id: RunId,
    /// Unique in its tenant and workspace.
    pub key: Option<Arc<str>>,
    pub tenant: Arc<str>,
    pub workspace: Arc<str>,
    /// Its owner within the tenant; `None` if it has none.
    pub owner: Option<Arc<str>>,
    /// Digest of what was submitted.
    pub fingerprint: [u8; 32],
    pub labels: BTreeMap<String, String>,
    pub deadline: Option<Timestamp>,
    /// The run that this one repeats.
    pub parent: Option<RunId>,
    pub created_at: Timestamp,
    pub finished_at: Option<Timestamp>,
    /// Why it was asked to stop, if it was.
    pub cancel_reason: Option<Arc<str>>,
    pub counts: RunCounts,
}

/// How many tasks of a run have ended, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RunCounts {
    /// Not ended.
    pub open: u32,
    pub succeeded: u32,
    pub failed: u32,
    pub skipped: u32,
    pub canceled: u32,
}

impl RunCounts {
    pub fn total(&self) -> u32 {
        self.open + self.succeeded + self.failed + self.skipped + self.canceled
    }

    fn of(&mut self, end: Option<End>) -> &mut u32 {
        match end {
            None => &mut self.open,
            Some(End::Succeeded) => &mut self.succeeded,
            Some(End::Failed) => &mut self.failed,
            Some(End::Skipped) => &mut self.skipped,
            Some(End::Canceled) => &mut self.canceled,
        }
    }

    /// One task has moved.
    pub fn shift(&mut self, from: Option<End>, to: Option<End>) {
        let left = self.of(from);
        *left = left.saturating_sub(1);
        *self.of(to) += 1;
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RunState {
    Running,
    /// A cancel was requested, and some of its tasks have not ended.
    Canceling,
    Succeeded,
    Failed,
    Canceled,
}

impl RunState {
    pub const ALL: [Self; 5] = [Self::Running, Self::Canceling, Self::Succeeded, Self::Failed, Self::Canceled];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "RUNNING",
            Self::Canceling => "CANCELLING",
            Self::Succeeded => "SUCCEEDED",
            Self::Failed => "FAILED",
            Self::Canceled => "CANCELLED",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }

    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Canceled)
    }

    /// The fact that is recorded when a run reaches this state, with the state that the fact carries.
    pub(crate) const fn fact(self) -> (FactKind, State) {
        match self {
            Self::Running => (FactKind::RunCreated, State::Running),
            Self::Canceling => (FactKind::RunCancelRequested, State::Running),
            Self::Succeeded => (FactKind::RunSucceeded, State::Succeeded),
            Self::Failed => (FactKind::RunFailed, State::Failed),
            Self::Canceled => (FactKind::RunCanceled, State::Canceled),
        }
    }
}

impl Run {
    pub fn state(&self) -> RunState {
        let counts = &self.counts;
        if counts.open > 0 {
            if self.cancel_reason.is_some() { RunState::Canceling } else { RunState::Running }
        } else if counts.canceled > 0 {
            RunState::Canceled
        } else if counts.failed > 0 {
            RunState::Failed
        } else {
            RunState::Succeeded
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(counts: RunCounts, cancel_reason: Option<&str>) -> Run {
        Run {
            id: RunId::from_u128(7),
            key: None,
            tenant: "acme".into(),
            workspace: "default".into(),
            owner: None,
            fingerprint: [0; 32],
            labels: BTreeMap::new(),
            deadline: None,
            parent: None,
            created_at: Timestamp::MIN,
            finished_at: None,
            cancel_reason: cancel_reason.map(Into::into),
            counts,
        }
    }

    #[test]
    fn the_state_of_a_run_follows_from_how_its_tasks_ended() {
        let none = RunCounts::default();
        for (counts, cancel, state) in [
            (RunCounts { open: 1, ..none }, None, RunState::Running),
            (RunCounts { open: 1, failed: 1, ..none }, None, RunState::Running),
            (RunCounts { open: 1, canceled: 1, ..none }, None, RunState::Running),
            (RunCounts { open: 1, ..none }, Some("stop"), RunState::Canceling),
            (RunCounts { succeeded: 2, ..none }, None, RunState::Succeeded),
            // It was asked to stop, and all that was left of it finished its work.
            (RunCounts { succeeded: 2, ..none }, Some("stop"), RunState::Succeeded),
            (RunCounts { succeeded: 1, failed: 1, skipped: 3, ..none }, None, RunState::Failed),
            (RunCounts { succeeded: 1, failed: 1, canceled: 1, ..none }, None, RunState::Canceled),
        ] {
            assert_eq!(run(counts, cancel).state(), state, "{counts:?} {cancel:?}");
        }
    }

    #[test]
    fn words_of_states_lead_back_to_them() {
        for state in RunState::ALL {
            assert_eq!(RunState::parse(state.as_str()), Some(state));
        }
        assert_eq!(RunState::parse("Running"), None);
    }
}
