use std::error::Error as StdError;
use std::time::Duration;

use tenure_contract::dags::DagProblem;
use tenure_contract::error::{ErrorClass, UserError};
use tenure_contract::sandboxes::SandboxError;

/// Why a call to the user API did not give what was asked for.
///
/// The text never repeats that of its source: walk [`std::error::Error::source`] for the rest.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The server answered and refused.
    #[error("{message} ({error}, HTTP {status})")]
    Api {
        status: u16,
        /// The class of the error.
        code: ErrorClass,
        /// The specific word, such as `task_not_found`.
        error: String,
        message: String,
        /// Which field is at fault, on 422.
        field: Option<String>,
        request_id: Option<String>,
    },
    /// The text of a DAG has errors.
    #[error("{message} (invalid_dag, HTTP 422)")]
    InvalidDag {
        message: String,
        /// All of them, with their places.
        errors: Vec<DagProblem>,
        request_id: Option<String>,
    },
    /// No answer came. A call that changes something may have taken effect.
    #[error("{operation}: no answer from the server")]
    Network {
        operation: String,
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
    /// The answer is not what the contract says.
    #[error("{operation}: the answer could not be read")]
    Decode {
        operation: String,
        #[source]
        source: serde_json::Error,
    },
    /// The request could not be written as JSON.
    #[error("{operation}: the request could not be encoded")]
    Encode {
        operation: String,
        #[source]
        source: serde_json::Error,
    },
    /// The client was set up with something unusable.
    #[error("{0}")]
    Setup(String),
    /// The task was still going on when the time given to `wait` was over.
    #[error("task {task_id} is {state} after {} s", .waited.as_secs_f32())]
    StillRunning { task_id: String, state: String, waited: Duration },
    /// The sandbox does not run, and was waited for.
    #[error("sandbox {sandbox_id} is {state}{}", .reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default())]
    NotRunning { sandbox_id: String, state: String, reason: Option<String> },
    /// The output of a command broke off. Whether and how the command ended is not known.
    #[error("{operation}: the connection was lost before the command ended")]
    Truncated { operation: String },
}

impl ClientError {
    /// The HTTP status, if the server answered.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Api { status, .. } => Some(*status),
            Self::InvalidDag { .. } => Some(422),
            _ => None,
        }
    }

    /// The specific word of the server, such as `idempotency_conflict`.
    pub fn word(&self) -> Option<&str> {
        match self {
            Self::Api { error, .. } => Some(error),
            Self::InvalidDag { .. } => Some("invalid_dag"),
            _ => None,
        }
    }

    /// Whether the same call may succeed later without anybody changing anything.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Network { .. } => true,
            Self::Api { status, .. } => *status == 429 || *status >= 500,
            _ => false,
        }
    }

    /// Reads an error answer. What stands between client and server may answer too, in a body of its own kind.
    pub(crate) fn from_answer(operation: &str, status: u16, body: &[u8]) -> Self {
        match serde_json::from_slice::<UserError>(body) {
            Ok(error) if error.error == "invalid_dag" => {
                Self::InvalidDag { message: error.message, errors: error.errors, request_id: Some(error.request_id) }
            }
            Ok(error) => Self::Api {
                status,
                code: error.code,
                error: error.error,
                message: error.message,
                field: error.field,
                request_id: Some(error.request_id),
            },
            Err(_) => Self::from_sandbox_answer(operation, status, body),
        }
    }

    /// The routes of sandboxes have a form of their own.
    fn from_sandbox_answer(operation: &str, status: u16, body: &[u8]) -> Self {
        match serde_json::from_slice::<SandboxError>(body) {
            Ok(error) => Self::Api {
                status,
                code: error.code,
                error: error.reason.unwrap_or_else(|| word_of(error.code)),
                message: error.message,
                field: None,
                request_id: Some(error.request_id).filter(|id| !id.is_empty()),
            },
            Err(_) => Self::Api {
                status,
                code: class_of(status),
                error: format!("http_{status}"),
                message: format!("{operation} was refused"),
                field: None,
                request_id: None,
            },
        }
    }

    /// A failure that a stream reports in its last line.
    pub(crate) fn from_line(message: String, code: Option<&str>) -> Self {
        let quoted = code.map(|code| serde_json::Value::String(code.to_owned()));
        let class = quoted.and_then(|code| serde_json::from_value(code).ok()).unwrap_or(ErrorClass::InternalError);
        Self::Api {
            status: status_of(class),
            code: class,
            error: word_of(class),
            message,
            field: None,
            request_id: None,
        }
    }
}

/// The class in the form of a specific word.
fn word_of(class: ErrorClass) -> String {
    match class {
        ErrorClass::NotFound => "not_found",
        ErrorClass::BadRequest => "bad_request",
        ErrorClass::Unauthorized => "unauthorized",
        ErrorClass::Forbidden => "forbidden",
        ErrorClass::Conflict => "conflict",
        ErrorClass::Unavailable => "unavailable",
        ErrorClass::Timeout => "timeout",
        ErrorClass::ResourceLimit => "resource_limit",
        ErrorClass::InternalError => "internal_error",
    }
    .to_owned()
}

fn status_of(class: ErrorClass) -> u16 {
    match class {
        ErrorClass::NotFound => 404,
        ErrorClass::BadRequest => 400,
        ErrorClass::Unauthorized => 401,
        ErrorClass::Forbidden => 403,
        ErrorClass::Conflict => 409,
        ErrorClass::Unavailable => 503,
        ErrorClass::Timeout => 408,
        ErrorClass::ResourceLimit => 429,
        ErrorClass::InternalError => 500,
    }
}

fn class_of(status: u16) -> ErrorClass {
    match status {
        401 => ErrorClass::Unauthorized,
        403 => ErrorClass::Forbidden,
        404 | 410 => ErrorClass::NotFound,
        408 | 504 => ErrorClass::Timeout,
        409 => ErrorClass::Conflict,
        413 | 429 => ErrorClass::ResourceLimit,
        502 | 503 => ErrorClass::Unavailable,
        400..=499 => ErrorClass::BadRequest,
        _ => ErrorClass::InternalError,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_the_server_keeps_all_it_says() {
        let body = br#"{"code":"BAD_REQUEST","error":"invalid_argument","message":"queue is empty","request_id":"req_7","field":"queue"}"#;
        let ClientError::Api { status, code, error, field, request_id, .. } =
            ClientError::from_answer("POST /api/v1/tasks", 422, body)
        else {
            panic!("an answer is an Api error");
        };
        assert_eq!((status, code, error.as_str()), (422, ErrorClass::BadRequest, "invalid_argument"));
        assert_eq!((field.as_deref(), request_id.as_deref()), (Some("queue"), Some("req_7")));
    }

    #[test]
    fn an_answer_about_a_sandbox_has_its_reason_as_word() {
        let body = br#"{"code":"RESOURCE_LIMIT","message":"no room","request_id":"req-1","reason":"max_sandboxes"}"#;
        let error = ClientError::from_answer("POST /api/v1/sandboxes", 429, body);
        assert_eq!(
            (error.word(), error.to_string().as_str()),
            (Some("max_sandboxes"), "no room (max_sandboxes, HTTP 429)")
        );
        let error =
            ClientError::from_answer("GET /api/v1/sandboxes/x", 404, br#"{"code":"NOT_FOUND","message":"gone"}"#);
        assert_eq!((error.word(), error.status()), (Some("not_found"), Some(404)));
        let error = ClientError::from_line("exec timed out".into(), Some("TIMEOUT"));
        assert_eq!((error.word(), error.status()), (Some("timeout"), Some(408)));
        assert_eq!(ClientError::from_line("?".into(), Some("news")).status(), Some(500));
    }

    #[test]
    fn an_answer_of_a_proxy_is_classed_by_its_status() {
        let error = ClientError::from_answer("GET /api/v1/queues", 503, b"<html>bad gateway</html>");
        assert_eq!(error.word(), Some("http_503"));
        assert!(error.is_temporary());
        assert_eq!(error.to_string(), "GET /api/v1/queues was refused (http_503, HTTP 503)");
    }
}
