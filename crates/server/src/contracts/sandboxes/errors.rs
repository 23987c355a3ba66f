//! How the routes of sandboxes, and those of workers that hold them, answer a fault.

use axum::http::StatusCode;
use axum::response::Response;
use tenure_contract::error::ErrorClass;
use tenure_contract::sandboxes::SandboxError;

use crate::contracts::wording::Wording;
use crate::error::{Fault, Forbidden};
use crate::request::RequestId;

pub fn refuse(fault: Fault, id: &RequestId) -> Response {
    let wording = wording(&fault);
    let body = SandboxError {
        code: class(&fault, wording.status),
        message: wording.message.clone(),
        request_id: id.0.clone(),
        reason: reason(&fault),
    };
    wording.respond(&fault, id, body)
}

/// The class and the message, for the last line of a stream that has begun.
pub fn told(fault: &Fault) -> (ErrorClass, String) {
    let wording = wording(fault);
    (class(fault, wording.status), wording.message)
}

/// The stable word, for the audit.
pub fn word(fault: &Fault) -> &'static str {
    wording(fault).word
}

fn wording(fault: &Fault) -> Wording {
    let mut wording = Wording::of(fault, |_| None);
    // Clients of this contract know 400 only.
    if matches!(wording.status, StatusCode::UNPROCESSABLE_ENTITY | StatusCode::UNSUPPORTED_MEDIA_TYPE) {
        wording.status = StatusCode::BAD_REQUEST;
        // Their messages do not name the field, which the body of this contract has no place for.
        if let Some(field) = fault.field().filter(|field| !wording.message.contains(field.as_str())) {
            wording.message = format!("{field} {}", wording.message);
        }
    }
    wording
}

fn class(fault: &Fault, status: StatusCode) -> ErrorClass {
    // The contract counts a path of another worker among the wrong credentials.
    if matches!(fault, Fault::Forbidden(Forbidden::WorkerMismatch)) {
        return ErrorClass::Unauthorized;
    }
    match status {
        StatusCode::UNAUTHORIZED => ErrorClass::Unauthorized,
        StatusCode::FORBIDDEN => ErrorClass::Forbidden,
        StatusCode::NOT_FOUND => ErrorClass::NotFound,
        StatusCode::CONFLICT => ErrorClass::Conflict,
        StatusCode::REQUEST_TIMEOUT => ErrorClass::Timeout,
        StatusCode::PAYLOAD_TOO_LARGE | StatusCode::TOO_MANY_REQUESTS => ErrorClass::ResourceLimit,
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::BAD_GATEWAY | StatusCode::NOT_IMPLEMENTED => {
            ErrorClass::Unavailable
        }
        StatusCode::INTERNAL_SERVER_ERROR => ErrorClass::InternalError,
        _ => ErrorClass::BadRequest,
    }
}

fn reason(fault: &Fault) -> Option<String> {
    match fault {
        Fault::Sandbox(fault) => fault.reason.clone(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{SandboxFault, SandboxFaultKind};

    #[test]
    fn each_kind_of_fault_has_its_status_and_class() {
        use ErrorClass as Class;
        use SandboxFaultKind as Kind;
        for (kind, status, expected) in [
            (Kind::NotFound, 404, Class::NotFound),
            (Kind::Invalid, 400, Class::BadRequest),
            (Kind::Denied, 403, Class::Forbidden),
            (Kind::Conflict, 409, Class::Conflict),
            (Kind::Timeout, 408, Class::Timeout),
            (Kind::Limit, 429, Class::ResourceLimit),
            (Kind::TooLarge, 413, Class::ResourceLimit),
            (Kind::Unavailable, 503, Class::Unavailable),
            (Kind::NoAnswer, 502, Class::Unavailable),
            (Kind::Unsupported, 501, Class::Unavailable),
            (Kind::Range, 416, Class::BadRequest),
            (Kind::Internal, 500, Class::InternalError),
        ] {
            let fault = SandboxFault::fault(kind, "m");
            let wording = wording(&fault);
            assert_eq!((wording.status.as_u16(), class(&fault, wording.status)), (status, expected), "{kind:?}");
        }
    }

    #[test]
    fn what_other_routes_call_unprocessable_is_a_bad_request_that_names_its_field() {
        let (code, message) = told(&Fault::invalid("memory_mb", "must be a number"));
        assert_eq!((code, message.as_str()), (ErrorClass::BadRequest, "memory_mb must be a number"));
    }
}
