//! How the user API answers a fault.

use axum::http::StatusCode;
use axum::response::Response;
use tenure_contract::error::{ErrorClass, UserError};
use tenure_core::batch::Counts;
use tenure_core::command::{NotRetryableReason, Rejection};
use tenure_core::task::State;

use super::{render, words};
use crate::contracts::wording::Wording;
use crate::error::{Fault, key_owner, runtime_message, token_ttl_message};
use crate::request::RequestId;

pub fn refuse(fault: Fault, id: &RequestId) -> Response {
    let wording = Wording::of(&fault, refusal);
    let mut body = UserError {
        code: class(wording.status),
        error: wording.word.to_owned(),
        message: wording.message.clone(),
        detail: wording.message.clone(),
        request_id: id.0.clone(),
        field: fault.field(),
        existing_run_id: None,
        existing_fingerprint: None,
        requested_fingerprint: None,
        errors: Vec::new(),
    };
    if let Fault::Refused(Rejection::RunKeyConflict { existing, requested }) = &fault {
        body.existing_run_id = existing.map(|(run, _)| run.to_string());
        body.existing_fingerprint = existing.map(|(_, digest)| render::fingerprint(&digest));
        body.requested_fingerprint = Some(render::fingerprint(requested));
    }
    if let Fault::Dispatch(fault) = &fault {
        body.errors.clone_from(&fault.problems);
    }
    wording.respond(&fault, id, body)
}

/// The stable word, for the audit.
pub fn word(fault: &Fault) -> &'static str {
    Wording::of(fault, refusal).word
}

/// What a caller would be told.
pub fn message(fault: &Fault) -> String {
    Wording::of(fault, refusal).message
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
        Rejection::Data(refusal) => {
            Wording::new(StatusCode::UNPROCESSABLE_ENTITY, refusal.code, refusal.message.clone())
        }
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
        Rejection::Runtime { wants_sandbox, .. } => {
            Wording::new(StatusCode::UNPROCESSABLE_ENTITY, "wrong_runtime", runtime_message(*wants_sandbox))
        }
        Rejection::IdempotencyConflict { index, existing } => {
            let owner = key_owner(*existing);
            conflict("idempotency_conflict", format!("the idempotency key of tasks[{index}] {owner}"))
        }
        Rejection::AlreadyTerminal { state } => {
            conflict("task_already_terminal", format!("the task has ended: {}", state.as_str()))
        }
        Rejection::NotRetryable { state, reason } => conflict("task_not_retryable", not_retryable(*state, *reason)),
        Rejection::QueueNotEmpty(tasks) => conflict("queue_not_empty", not_empty(tasks)),
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

fn not_retryable(state: State, reason: NotRetryableReason) -> String {
    match reason {
        NotRetryableReason::PastDeadline => "the deadline of the task has passed".to_owned(),
        NotRetryableReason::Sealed => {
            "its run has ended or continued without it: rerun it with POST /api/v1/runs/{id}/rerun".to_owned()
        }
        NotRetryableReason::QueueDeleted => "its queue was deleted: submit a new task".to_owned(),
        NotRetryableReason::State => {
            format!("only a task that Failed or was Canceled can be retried; this one is {}", state.as_str())
        }
    }
}

/// Names the counts that are not zero, and what to do about them.
fn not_empty(tasks: &Counts) -> String {
    let Counts { blocked, scheduled, ready, running, dead_lettered, .. } = *tasks;
    let counts = [(blocked, "blocked"), (scheduled, "scheduled"), (ready, "ready"), (running, "running")];
    let mut counts: Vec<String> =
        counts.iter().filter(|(count, _)| *count > 0).map(|(count, state)| format!("{count} {state}")).collect();
    let advice = if counts.is_empty() {
        "redrive them, or set force to leave them behind"
    } else {
        "let the tasks end, or cancel them"
    };
    if dead_lettered > 0 {
        counts.push(format!("{dead_lettered} dead-lettered"));
    }
    format!("the queue has tasks ({}): {advice}", counts.join(", "))
}

#[cfg(test)]
mod tests {
    use tenure_core::TaskId;

    use super::*;

    #[test]
    fn a_queue_that_is_not_empty_says_what_is_in_it_and_what_to_do() {
        let tasks = Counts { ready: 2, running: 1, finished: 9, dead_lettered: 3, ..Counts::default() };
        assert_eq!(
            not_empty(&tasks),
            "the queue has tasks (2 ready, 1 running, 3 dead-lettered): let the tasks end, or cancel them"
        );
        assert_eq!(
            not_empty(&Counts { dead_lettered: 1, ..Counts::default() }),
            "the queue has tasks (1 dead-lettered): redrive them, or set force to leave them behind"
        );
        let wording = refusal(&Rejection::QueueNotEmpty(tasks)).unwrap();
        assert_eq!((wording.status.as_u16(), wording.word), (409, "queue_not_empty"));
    }

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
        assert!(message.contains("tasks[2]") && !message.contains(&task), "{message}");
    }
}
