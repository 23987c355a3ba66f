//! How the dispatch contract answers a fault.

use axum::http::StatusCode;
use axum::response::Response;
use tenure_contract::dispatch::Error;
use tenure_core::command::{Conflict, ConflictKind, Rejection};
use tenure_core::task::State;

use crate::contracts::wording::Wording;
use crate::dispatch::status_of;
use crate::error::{BadRequest, Fault, Unavailable};
use crate::request::RequestId;

pub fn refuse(fault: Fault, id: &RequestId) -> Response {
    let wording = wording(&fault);
    let body = Error {
        error: wording.word.to_owned(),
        detail: wording.message.clone(),
        message: wording.message.clone(),
        request_id: id.0.clone(),
    };
    wording.respond(&fault, id, body)
}

/// Its words are a closed set.
fn wording(fault: &Fault) -> Wording {
    let wording = Wording::of(fault, refusal);
    match fault {
        Fault::Request(BadRequest::BodyTooLarge { .. } | BadRequest::PayloadTooLarge { .. }) => {
            Wording { word: "body_too_large", ..wording }
        }
        Fault::Request(BadRequest::BodyTimeout) => wording,
        Fault::Request(_) => Wording { status: StatusCode::BAD_REQUEST, word: "malformed_request", ..wording },
        Fault::Unavailable(Unavailable::Busy { .. } | Unavailable::ShuttingDown) => {
            Wording { word: "store_unavailable", ..wording }
        }
        _ => wording,
    }
}

fn refusal(rejection: &Rejection) -> Option<Wording> {
    match rejection {
        Rejection::NotFound => Some(Wording::new(StatusCode::NOT_FOUND, "task_not_found", "no such task")),
        Rejection::Conflict(conflict) => Some(of_conflict(conflict)),
        Rejection::Data(refusal) => Some(Wording::new(status_of(refusal.code), refusal.code, &refusal.message)),
        _ => None,
    }
}

fn of_conflict(conflict: &Conflict) -> Wording {
    let newer = format!("attempt {} is current: this one was superseded", conflict.attempt);
    let (word, message) = match conflict.kind {
        ConflictKind::AttemptClosed if conflict.state == State::Canceled => {
            ("task_canceled", "the task was canceled: stop")
        }
        ConflictKind::StaleAttempt => ("stale_attempt", newer.as_str()),
        ConflictKind::StaleLease => ("stale_lease", "the lease token does not match the attempt"),
        ConflictKind::OtherWorker => ("stale_lease", "the lease belongs to another worker"),
        ConflictKind::LeaseExpired => ("lease_expired", "the lease has expired: finish the work and report it"),
        ConflictKind::AttemptClosed => ("attempt_closed", "the attempt has ended"),
        ConflictKind::ConflictingCompletion => {
            ("completion_conflict", "the attempt was already reported with different content")
        }
    };
    Wording::new(StatusCode::CONFLICT, word, message)
}
