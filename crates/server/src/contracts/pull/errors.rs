//! How the pull contract answers a fault.

use axum::http::StatusCode;
use axum::response::Response;
use tenure_contract::error::WorkerError;
use tenure_contract::pull::ItemAnswer;
use tenure_core::command::{Conflict, ConflictKind, Rejection};

use super::words;
use crate::contracts::wording::Wording;
use crate::error::Fault;
use crate::request::RequestId;

pub fn refuse(fault: Fault, id: &RequestId) -> Response {
    let wording = Wording::of(&fault, refusal);
    let conflict = conflict(&fault);
    let body = WorkerError {
        ok: false,
        ack: conflict.map(|conflict| conflict.ack),
        error: wording.word.to_owned(),
        message: wording.message.clone(),
        status: conflict.map(status),
        field: fault.field(),
        request_id: id.0.clone(),
    };
    wording.respond(&fault, id, body)
}

/// The answer to one item of an exchange.
pub fn item(fault: &Fault) -> ItemAnswer {
    let wording = Wording::of(fault, refusal);
    let conflict = conflict(fault);
    ItemAnswer {
        ok: false,
        ack: conflict.map(|conflict| conflict.ack),
        error: Some(wording.word.to_owned()),
        message: Some(wording.message),
        status: conflict.map(status),
        field: fault.field(),
        http_status: Some(wording.status.as_u16()),
        ..ItemAnswer::default()
    }
}

fn conflict(fault: &Fault) -> Option<&Conflict> {
    match fault {
        Fault::Refused(Rejection::Conflict(conflict)) => Some(conflict),
        _ => None,
    }
}

fn status(conflict: &Conflict) -> String {
    words::job_status(conflict.state, conflict.dead_lettered).to_owned()
}

fn refusal(rejection: &Rejection) -> Option<Wording> {
    Some(match rejection {
        Rejection::NotFound => Wording::new(StatusCode::NOT_FOUND, "job_not_found", "no such task"),
        Rejection::StaleIncarnation => {
            Wording::new(StatusCode::CONFLICT, "stale_incarnation", "a newer process uses this worker_id: stop")
        }
        Rejection::Conflict(conflict) => of_conflict(conflict),
        _ => return None,
    })
}

fn of_conflict(conflict: &Conflict) -> Wording {
    let newer = format!("attempt {} is current: this one was superseded", conflict.attempt);
    let (word, message) = match conflict.kind {
        ConflictKind::StaleAttempt => ("stale_attempt", newer.as_str()),
        ConflictKind::StaleLease => ("stale_lease", "the lease token does not match the attempt"),
        ConflictKind::OtherWorker => ("stale_lease", "the lease belongs to another worker"),
        ConflictKind::LeaseExpired => ("lease_expired", "the lease has expired"),
        ConflictKind::AttemptClosed => ("attempt_closed", "the attempt has ended"),
        ConflictKind::ConflictingCompletion => {
            ("conflicting_completion", "the attempt was already reported with different content")
        }
    };
    Wording::new(StatusCode::CONFLICT, word, message)
}
