//! How the user API answers a fault.

use axum::http::StatusCode;
use axum::response::Response;
use tenure_contract::error::{ErrorClass, UserError};
use tenure_core::command::Rejection;

use super::{render, words};
use crate::contracts::wording::Wording;
use crate::error::{Fault, token_ttl_message};
use crate::request::RequestId;

pub fn refuse(fault: Fault, id: &RequestId) -> Response {
    let wording = Wording::of(&fault, refusal);
    let mut body = UserError {
        code: class(wording.status),
        error: wording.word.to_owned(),
        message: wording.message.clone(),
        request_id: id.0.clone(),
        field: fault.field(),
        existing_run_id: None,
        existing_fingerprint: None,
        requested_fingerprint: None,
    };
    if let Fault::Refused(Rejection::RunKeyConflict { existing, requested }) = &fault {
        body.existing_run_id = existing.map(|(run, _)| run.to_string());
        body.existing_fingerprint = existing.map(|(_, digest)| render::fingerprint(&digest));
        body.requested_fingerprint = Some(render::fingerprint(requested));
    }
    wording.respond(&fault, id, body)
}

/// The stable word, for the audit.
pub fn word(fault: &Fault) -> &'static str {
    Wording::of(fault, refusal).word
}

fn class(status: StatusCode) -> ErrorClass {
    match status {
        StatusCode::UNAUTHORIZED => ErrorClass::Unauthorized,
        StatusCode::FORBIDDEN => ErrorClass::Forbidden,
        StatusCode::NOT_FOUND => ErrorClass::NotFound,
        StatusCode::CONFLICT => ErrorClass::Conflict,
        StatusCode::REQUEST_TIMEOUT => ErrorClass::Timeout,
        StatusCode::PAYLOAD_TOO_LARGE | StatusCode::TOO_MANY_REQUESTS => ErrorClass::ResourceLimit,
        StatusCode::SERVICE_UNAVAILABLE => ErrorClass::Unavailable,
        StatusCode::INTERNAL_SERVER_ERROR => ErrorClass::InternalError,
        _ => ErrorClass::BadRequest,
    }
}

fn refusal(rejection: &Rejection) -> Option<Wording> {
    let conflict = |word, message: String| Wording::new(StatusCode::CONFLICT, word, message);
    let not_found = |word, message| Wording::new(StatusCode::NOT_FOUND, word, message);
    Some(match rejection {
        Rejection::NotFound => not_found("task_not_found", "no such task"),
        Rejection::RunNotFound => not_found("run_not_found", "no such run"),
        Rejection::QueueNotFound => not_found("queue_not_found", "no such queue"),
        Rejection::QueueShared => Wording::new(
            StatusCode::FORBIDDEN,
            "queue_shared",
            "this queue is shared by all tenants: only an admin can change it",
        ),
        Rejection::TokenTtl { needed_ms, allowed_ms, .. } => Wording::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "token_ttl_too_short",
            token_ttl_message(*needed_ms, *allowed_ms),
        ),
        Rejection::IdempotencyConflict { index, existing } => {
            let owner = match existing {
                None => "a task of another owner: use another key".to_owned(),
                Some(existing) => format!("task {existing}, which has different content"),
            };
            conflict("idempotency_conflict", format!("the idempotency key of entry {index} belongs to {owner}"))
        }
        Rejection::AlreadyTerminal { state } => {
            conflict("task_already_terminal", format!("the task has ended: {}", state.as_str()))
        }
        Rejection::NotRetryable { state, past_deadline, sealed } => {
            let message = if *past_deadline {
                "the deadline of the task has passed".to_owned()
            } else if *sealed {
                "its run has ended or continued without it: rerun it with POST /api/v1/runs/{id}/rerun".to_owned()
            } else {
                format!("only a task that Failed or was Canceled can be retried; this one is {}", state.as_str())
            };
            conflict("task_not_retryable", message)
        }
        Rejection::RunKeyConflict { existing, .. } => {
            let owner = match existing {
                None => "a run of another owner: use another key".to_owned(),
                Some((run, _)) => format!("{run}, which has different content"),
            };
            conflict("run_key_conflict", format!("the run_key belongs to {owner}"))
        }
        Rejection::RunAlreadyTerminal { state } => {
            conflict("run_already_terminal", format!("the run has ended: {}", words::run(*state)))
        }
        Rejection::RunNotRerunnable { state } => conflict(
            "run_not_rerunnable",
            format!("only a run that is Failed or Canceled can be rerun; this one is {}", words::run(*state)),
        ),
        Rejection::Conflict(_) | Rejection::Callback(_) | Rejection::StaleIncarnation => return None,
    })
}

#[cfg(test)]
mod tests {
    use tenure_core::TaskId;

    use super::*;

    #[test]
    fn refusals_about_tenants_and_owners_say_what_and_no_more() {
        let hidden = Rejection::IdempotencyConflict { index: 2, existing: None };
        let named = Rejection::IdempotencyConflict { index: 2, existing: Some(TaskId::from_u128(7)) };
        for (rejection, status, word, expected) in [
            (Rejection::QueueNotFound, 404, "queue_not_found", ErrorClass::NotFound),
            (Rejection::QueueShared, 403, "queue_shared", ErrorClass::Forbidden),
            (hidden.clone(), 409, "idempotency_conflict", ErrorClass::Conflict),
            (named.clone(), 409, "idempotency_conflict", ErrorClass::Conflict),
        ] {
            let wording = refusal(&rejection).unwrap();
            assert_eq!((wording.status.as_u16(), wording.word), (status, word));
            assert_eq!(class(wording.status), expected);
        }
        let task = TaskId::from_u128(7).to_string();
        assert!(refusal(&named).unwrap().message.contains(&task));
        let message = refusal(&hidden).unwrap().message;
        assert!(message.contains("entry 2") && !message.contains(&task), "{message}");
    }
}
