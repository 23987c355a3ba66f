use std::error::Error as StdError;
use std::time::Duration;

use tenure_contract::error::{ErrorClass, UserError};

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
}

impl ClientError {
    /// The HTTP status, if the server answered.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Api { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// The specific word of the server, such as `idempotency_conflict`.
    pub fn word(&self) -> Option<&str> {
        match self {
            Self::Api { error, .. } => Some(error),
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
            Ok(error) => Self::Api {
                status,
                code: error.code,
                error: error.error,
                message: error.message,
                field: error.field,
                request_id: Some(error.request_id),
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
    fn an_answer_of_a_proxy_is_classed_by_its_status() {
        let error = ClientError::from_answer("GET /api/v1/queues", 503, b"<html>bad gateway</html>");
        assert_eq!(error.word(), Some("http_503"));
        assert!(error.is_temporary());
        assert_eq!(error.to_string(), "GET /api/v1/queues was refused (http_503, HTTP 503)");
    }
}
