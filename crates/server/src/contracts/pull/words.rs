//! The words of the pull contract.

use tenure_contract::Json;
use tenure_contract::pull::Job;
use tenure_core::command::claim::{Grant, NotGrantedReason};
use tenure_core::task::{End, State};

use crate::api::render::whole_seconds;

/// `None` only if the store lost the body of a task that it granted.
pub fn job(grant: &Grant, stream: &str) -> Option<Job> {
    let body = grant.body.as_ref()?;
    Some(Job {
        job_id: grant.task.to_string(),
        attempt_id: grant.attempt_id.to_string(),
        lease_token: grant.token.reveal_text(),
        stream: stream.to_owned(),
        message_id: grant.receipt.as_deref().map_or_else(|| grant.message.to_string(), ToOwned::to_owned),
        payload: Json::from_trusted(body.payload.clone()),
        lease_ttl_seconds: whole_seconds(grant.lease_ttl_ms),
        heartbeat_interval_seconds: whole_seconds(grant.heartbeat_ms),
        attempt: grant.attempt,
        fence: grant.fence.0,
        operator: body.operator.to_string(),
        deadline: grant.deadline.map(|at| at.to_string()),
        traceparent: body.traceparent.as_deref().map(ToOwned::to_owned),
        previous_progress: grant.checkpoint.clone().map(Json::from_trusted),
    })
}

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
