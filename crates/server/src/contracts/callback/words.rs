//! The words of the callback contract.

use tenure_core::task::{Standing, State};

/// The state of a task.
pub const fn task_state(standing: Standing) -> &'static str {
    match standing.state {
        State::Blocked => "BLOCKED",
        State::Scheduled if standing.attempt == 0 => "BLOCKED",
        State::Scheduled => "RETRY_WAIT",
        State::Ready => "READY",
        State::Running if standing.started => "RUNNING",
        State::Running => "DISPATCHED",
        State::Succeeded => "SUCCEEDED",
        State::Failed => "FAILED",
        State::Skipped => "SKIPPED",
        State::Canceled => "CANCELLED",
    }
}
