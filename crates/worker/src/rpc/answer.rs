//! Answers to calls, and the responses that carry them.

use axum::Json;
use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response as HttpResponse};
use bytes::Bytes;
use serde::Serialize;
use tenure_contract::worker_rpc::{ApiError, Response};

use super::budget::Reserved;
use super::refusal::{Class, Refusal};
use super::request::Guarded;

/// A complete answer in the response envelope.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub status: StatusCode,
    /// `ok`, or the class of the failure; for metrics and logs.
    pub outcome: &'static str,
    pub body: Bytes,
    /// Whether a repeated request gets it again.
    pub executed: bool,
    /// Memory that the body takes.
    pub reserved: Option<std::sync::Arc<Reserved>>,
}

impl Answer {
    pub(super) fn ok(id: &str, worker_id: &str, result: Option<impl Serialize>) -> Self {
        let (id, worker_id) = (id.to_owned(), worker_id.to_owned());
        let body = encode(&Response { id, worker_id, error: None, code: None, result });
        Self { status: StatusCode::OK, outcome: "ok", body, executed: true, reserved: None }
    }

    pub(super) fn refused(id: &str, worker_id: &str, refusal: &Refusal) -> Self {
        let body = match refusal.class {
            Class::Api(code) => encode(&ApiError { code: code.to_owned(), message: refusal.message.clone() }),
            Class::Call(code) => encode(&Response::<()> {
                id: id.to_owned(),
                worker_id: worker_id.to_owned(),
                error: Some(refusal.message.clone()),
                code: Some(code.as_str().to_owned()),
                result: None,
            }),
        };
        let outcome = refusal.class.as_str();
        Self { status: refusal.status, outcome, body, executed: refusal.executed, reserved: None }
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> HttpResponse {
        let body = Body::from(self.body);
        let body = match self.reserved {
            Some(reserved) => Body::new(Guarded::new(body, reserved)),
            None => body,
        };
        let mut response = (self.status, body).into_response();
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    }
}

/// A refusal by a check that precedes the envelope, or on a route without one.
pub(super) fn api_error(status: StatusCode, code: &'static str, message: &str) -> HttpResponse {
    (status, Json(ApiError { code: code.to_owned(), message: message.to_owned() })).into_response()
}

fn encode(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).unwrap_or_else(|error| panic!("answers are plain JSON: {error}")).into()
}
