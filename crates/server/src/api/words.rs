//! The states of the core in the words of the user API, and back.

use tenure_contract::words::{AttemptState, RunState, TaskState};
use tenure_core::attempt::AttemptState as CoreAttempt;
use tenure_core::run::RunState as CoreRun;
use tenure_core::task::State;

use crate::error::Fault;

pub const fn task(state: State) -> TaskState {
    match state {
        State::Blocked => TaskState::Blocked,
        State::Scheduled => TaskState::Scheduled,
        State::Ready => TaskState::Ready,
        State::Running => TaskState::Running,
        State::Succeeded => TaskState::Succeeded,
        State::Failed => TaskState::Failed,
        State::Canceled => TaskState::Canceled,
        State::Skipped => TaskState::Skipped,
    }
}

pub const fn run(state: CoreRun) -> RunState {
    match state {
        CoreRun::Running => RunState::Running,
        CoreRun::Canceling => RunState::Canceling,
        CoreRun::Succeeded => RunState::Succeeded,
        CoreRun::Failed => RunState::Failed,
        CoreRun::Canceled => RunState::Canceled,
    }
}

pub const fn attempt(state: CoreAttempt) -> AttemptState {
    match state {
        CoreAttempt::Succeeded => AttemptState::Succeeded,
        CoreAttempt::Failed => AttemptState::Failed,
        CoreAttempt::Canceled => AttemptState::Canceled,
    }
}

/// `state` in a filter of tasks.
pub fn task_filter(text: &str) -> Result<State, Fault> {
    let asked = TaskState::parse(text).ok_or_else(|| unknown(TaskState::ALL.iter().map(TaskState::as_str)))?;
    State::ALL.into_iter().find(|state| task(*state) == asked).ok_or(Fault::Internal)
}

/// `state` in a filter of runs.
pub fn run_filter(text: &str) -> Result<CoreRun, Fault> {
    let asked = RunState::parse(text).ok_or_else(|| unknown(RunState::ALL.iter().map(RunState::as_str)))?;
    CoreRun::ALL.into_iter().find(|state| run(*state) == asked).ok_or(Fault::Internal)
}

fn unknown<'a>(words: impl Iterator<Item = &'a str>) -> Fault {
    Fault::invalid("state", &format!("must be one of {}", words.collect::<Vec<_>>().join(", ")))
}
