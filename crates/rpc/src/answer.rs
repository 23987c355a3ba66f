//! What an answer means.

use hyper::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tenure_contract::worker_rpc::{Code, ERROR_HEADER, Response};

use crate::Error;
use crate::error::shown;

/// Whose answer is awaited.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expected<'a> {
    pub request_id: &'a str,
    pub worker_id: &'a str,
}

/// The result of a call from a whole answer; none if the envelope has none.
pub(crate) fn result<R: DeserializeOwned>(
    status: StatusCode,
    body: &[u8],
    expected: Expected<'_>,
) -> Result<Option<R>, Error> {
    if status.as_u16() >= 300 {
        return Err(failure(status, body, Some(expected)));
    }
    let envelope: Response<&RawValue> = serde_json::from_slice(body)
        .map_err(|error| Error::unknown(format!("the answer is not an envelope: {error}")))?;
    if envelope.error.as_ref().is_some_and(|error| !error.is_empty()) {
        return Err(failure(status, body, Some(expected)));
    }
    if envelope.id != expected.request_id || envelope.worker_id != expected.worker_id {
        return Err(strange());
    }
    let Some(result) = envelope.result else { return Ok(None) };
    let read = serde_json::from_str(result.get());
    read.map(Some).map_err(|error| Error::unknown(format!("the result is not one of this method: {error}")))
}

/// The parts of a failed answer: of an envelope, or of an `ApiError`, which has a message.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Failure {
    id: Option<String>,
    worker_id: Option<String>,
    error: Option<String>,
    code: Option<String>,
    message: Option<String>,
}

/// Why a call failed. The code decides, and without one the status. What is neither an envelope nor an `ApiError` comes
/// from somebody else on the way, who cannot say that a sandbox does not exist.
pub(crate) fn failure(status: StatusCode, body: &[u8], expected: Option<Expected<'_>>) -> Error {
    let read: Failure = serde_json::from_slice(body).unwrap_or_default();
    let is_other =
        |found: &Option<String>, wanted: &str| found.as_ref().is_some_and(|id| !id.is_empty() && id != wanted);
    if let Some(expected) = expected
        && (is_other(&read.id, expected.request_id) || is_other(&read.worker_id, expected.worker_id))
    {
        return strange();
    }
    let text = [&read.error, &read.message].into_iter().flatten().find(|text| !text.is_empty());
    let message = text.map_or_else(|| format!("status {}", status.as_u16()), |text| shown(text));
    if status == StatusCode::UNAUTHORIZED {
        return Error::Unauthorized { message };
    }
    let is_envelope = read.error.is_some_and(|error| !error.is_empty());
    if is_envelope {
        return Error::Failed { code: Code::of(read.code.as_deref(), status.as_u16()), message };
    }
    let code = match status.as_u16() {
        403 if read.code.is_some() => return Error::Unauthorized { message },
        300..400 => {
            let message = format!("it redirects the call (status {}), which is not followed", status.as_u16());
            return Error::Failed { code: Code::Internal, message };
        }
        400 | 405 | 413 => Code::Invalid,
        503 => Code::ProviderUnavailable,
        504 => Code::Timeout,
        _ => Code::Internal,
    };
    Error::Failed { code, message }
}

/// Whether the worker itself gave an answer in place of a port in a sandbox.
pub(crate) fn is_marked(headers: &HeaderMap) -> bool {
    headers.contains_key(ERROR_HEADER)
}

fn strange() -> Error {
    Error::unknown("the answer is for another request or from another worker")
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPECTED: Expected<'_> = Expected { request_id: "req-1", worker_id: "w" };

    fn read(status: u16, body: &str) -> Result<Option<serde_json::Value>, Error> {
        result(StatusCode::from_u16(status).expect("a status"), body.as_bytes(), EXPECTED)
    }

    #[test]
    fn a_result_is_taken_only_from_the_answer_to_this_call() {
        let answer = read(200, r#"{"id":"req-1","worker_id":"w","result":{"a":1},"news":[]}"#);
        assert_eq!(answer.expect("a result").expect("not empty")["a"], 1);
        assert_eq!(read(200, r#"{"id":"req-1","worker_id":"w","result":null}"#), Ok(None));
        for body in [
            "",
            "[]",
            "<html>",
            "{}",
            r#"{"id":"req-2","worker_id":"w","result":{}}"#,
            r#"{"id":"req-1","worker_id":"v","result":{}}"#,
            r#"{"id":"req-1","worker_id":"w","result":{}"#,
        ] {
            let error = read(200, body).expect_err(body);
            assert!(matches!(error, Error::Unreachable { sent: true, .. }), "{body}: {error:?}");
        }
    }

    #[test]
    fn the_class_of_a_failure_is_that_of_the_table() {
        let table: &[(u16, &str, Code)] = &[
            (404, r#"{"id":"req-1","worker_id":"w","error":"gone","code":"destroyed"}"#, Code::Destroyed),
            (200, r#"{"id":"req-1","worker_id":"w","error":"x","code":"draining"}"#, Code::Draining),
            (404, r#"{"id":"req-1","worker_id":"w","error":"x","code":"news"}"#, Code::Internal),
            (400, r#"{"id":"req-1","worker_id":"w","error":"x"}"#, Code::Invalid),
            (413, r#"{"error":"x"}"#, Code::Invalid),
            (403, r#"{"error":"x"}"#, Code::LeaseStale),
            (404, r#"{"error":"x"}"#, Code::NotFound),
            (409, r#"{"error":"x"}"#, Code::LeaseStale),
            (503, r#"{"error":"x"}"#, Code::ProviderUnavailable),
            (504, r#"{"error":"x"}"#, Code::Timeout),
            (500, r#"{"error":"x"}"#, Code::Internal),
            (404, r#"{"code":"NOT_FOUND","message":"nothing here"}"#, Code::Internal),
            (404, "<html>no such page</html>", Code::Internal),
            (405, r#"{"code":"BAD_REQUEST","message":"method not allowed"}"#, Code::Invalid),
            (502, "bad gateway", Code::Internal),
            (503, "", Code::ProviderUnavailable),
            (302, "", Code::Internal),
        ];
        for (status, body, code) in table {
            assert_eq!(read(*status, body).expect_err(body).code(), Some(*code), "{status} {body}");
        }
    }

    #[test]
    fn a_refused_caller_is_told_apart_from_a_stale_lease() {
        for (status, body) in [
            (401, r#"{"code":"UNAUTHORIZED","message":"no"}"#),
            (401, "no"),
            (403, r#"{"code":"FORBIDDEN","message":"the token lacks the scope"}"#),
            (403, r#"{"code":"UNAUTHORIZED","message":"for another worker"}"#),
        ] {
            assert!(matches!(read(status, body), Err(Error::Unauthorized { .. })), "{status} {body}");
        }
        let other = r#"{"id":"req-9","worker_id":"w","error":"gone","code":"not_found"}"#;
        assert!(matches!(read(404, other), Err(Error::Unreachable { sent: true, .. })));
    }
}
