//! The words of the pull contract.

use tenure_core::task::State;

/// The state of a job.
pub const fn job_status(state: State, dead_lettered: bool) -> &'static str {
    match state {
        State::Blocked | State::Scheduled | State::Ready => "QUEUED",
        State::Running => "RUNNING",
        State::Succeeded => "COMPLETED",
        State::Failed if dead_lettered => "DLQ",
        State::Failed => "FAILED",
        State::Canceled | State::Skipped => "CANCELLED",
    }
}
