//! How the callback contract answers a fault.

use axum::http::StatusCode;
use axum::response::Response;
use tenure_contract::callback::CallbackError;
use tenure_core::command::Rejection;
use tenure_core::command::callback::{Refusal, RefusalReason};

use super::words;
use crate::contracts::wording::Wording;
use crate::error::{Credential, Fault, Unavailable};
use crate::request::RequestId;

pub fn refuse(fault: Fault, id: &RequestId) -> Response {
    let mut wording = Wording::of(&fault, refusal);
    if let Fault::Unavailable(Unavailable::Busy { .. } | Unavailable::ShuttingDown) = fault {
        // The words of this contract are a closed set.
        wording.word = "store_unavailable";
    }
    let mut body = CallbackError {
        error: wording.word.to_owned(),
        message: wording.message.clone(),
        field: fault.field(),
        retry_after_ms: fault.retry_after().map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX)),
        retryable: Some(is_worth_a_retry(wording.status)),
        request_id: Some(id.0.clone()),
        ..CallbackError::default()
    };
    if let Fault::Refused(Rejection::Callback(refusal)) = &fault {
        show_task(&mut body, refusal);
    }
    wording.respond(&fault, id, body)
}

/// Whether the same request may succeed later.
fn is_worth_a_retry(status: StatusCode) -> bool {
    status.is_server_error() || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT)
}

fn show_task(body: &mut CallbackError, refusal: &Refusal) {
    // A caller without a valid token learns nothing about the task.
    if refusal.why != RefusalReason::InvalidToken {
        body.state = Some(words::task_state(refusal.standing).to_owned());
    }
    match &refusal.why {
        RefusalReason::AttemptMismatch { expected, received } => {
            (body.expected_attempt, body.received_attempt) = (Some(*expected), Some(*received));
        }
        RefusalReason::AttemptIdMismatch { expected, received } => {
            body.expected_attempt_id = Some(expected.to_string());
            body.received_attempt_id = Some(received.to_string());
        }
        RefusalReason::TaskTerminal { cancel_reason } => {
            body.cancel_reason = cancel_reason.as_deref().map(ToOwned::to_owned);
        }
        _ => {}
    }
}

fn refusal(rejection: &Rejection) -> Option<Wording> {
    match rejection {
        Rejection::NotFound => Some(Wording::new(StatusCode::NOT_FOUND, "task_not_found", "no such task")),
        Rejection::Callback(refusal) => Some(of_callback(refusal)),
        _ => None,
    }
}

fn of_callback(refusal: &Refusal) -> Wording {
    let conflict = |word, message: String| Wording::new(StatusCode::CONFLICT, word, message);
    match &refusal.why {
        RefusalReason::AttemptMismatch { expected, received } if received < expected => {
            conflict("attempt_mismatch", format!("attempt {expected} is current: attempt {received} was superseded"))
        }
        RefusalReason::AttemptMismatch { expected, received } => {
            conflict("attempt_mismatch", format!("attempt {expected} is current: there is no attempt {received} yet"))
        }
        RefusalReason::AttemptIdMismatch { .. } => {
            conflict("attempt_id_mismatch", "attemptId does not match the current attempt".to_owned())
        }
        RefusalReason::InvalidToken => Wording::of(&Fault::InvalidCredential(Credential::TaskToken), self::refusal),
        RefusalReason::TaskTerminal { .. } => {
            conflict("task_already_terminal", format!("the task has ended: {}", words::task_state(refusal.standing)))
        }
        RefusalReason::AttemptCompleted => conflict("attempt_already_completed", "the attempt has ended".to_owned()),
        RefusalReason::AlreadyStarted => {
            conflict("attempt_already_started", "another worker holds the attempt".to_owned())
        }
        RefusalReason::Expired => {
            Wording::new(StatusCode::GONE, "task_expired", "the lease of the attempt has expired")
        }
    }
}
