//! The words of the pull contract.

use tenure_core::command::claim::NotGrantedReason;
use tenure_core::task::{End, State};

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

/// Why a job was not granted.
pub const fn not_granted(reason: NotGrantedReason) -> &'static str {
    match reason {
        NotGrantedReason::AlreadyRunning => "already_running",
        NotGrantedReason::Ended(End::Succeeded | End::Failed) => "completed",
        NotGrantedReason::Ended(End::Canceled | End::Skipped) => "cancelled",
        NotGrantedReason::NotDue => "not_due",
        NotGrantedReason::NotFound => "not_found",
    }
}
