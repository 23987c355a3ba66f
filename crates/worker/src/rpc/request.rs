//! The id of a request, and what lives as long as its answer.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tenure_auth::WorkerCredential;
use tenure_contract::worker_rpc::{REQUEST_ID_HEADER, WORKER_ID_HEADER, WORKER_TOKEN_HEADER};

pub(super) const REQUEST_ID_BYTES: usize = 128;

/// Names one request in answers and logs.
#[derive(Debug, Clone)]
pub(super) struct RequestId(pub String);

/// Takes the caller's request id or makes one, and sends it back.
pub(super) async fn with_request_id(mut request: Request, next: Next) -> Response {
    let id = text(request.headers(), REQUEST_ID_HEADER).filter(|id| is_plain(id));
    let id = id.map_or_else(crate::node::request_id, ToOwned::to_owned);
    request.extensions_mut().insert(RequestId(id.clone()));
    let mut response = next.run(request).await;
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID_HEADER, value);
    }
    response
}

/// Request ids go into logs: only what cannot break a line is taken.
fn is_plain(id: &str) -> bool {
    !id.is_empty()
        && id.len() <= REQUEST_ID_BYTES
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:/+=@".contains(&byte))
}

/// What a caller shows. The bearer token counts only without `X-Worker-Token`.
pub(super) fn credential(headers: &HeaderMap) -> WorkerCredential<'_> {
    let bearer = || {
        let (scheme, token) = text(headers, "authorization")?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
    };
    let token = match headers.get(WORKER_TOKEN_HEADER) {
        Some(token) => token.to_str().ok().map(str::trim),
        None => bearer(),
    };
    WorkerCredential {
        id: text(headers, WORKER_ID_HEADER),
        token: token.filter(|token| !token.is_empty()),
        ..WorkerCredential::default()
    }
}

pub(super) fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// A body with something that must live until it was sent.
pub(super) struct Guarded<G> {
    body: Body,
    _guard: G,
}

impl<G> Guarded<G> {
    pub(super) fn new(body: Body, guard: G) -> Self {
        Self { body, _guard: guard }
    }
}

impl<G: Unpin> HttpBody for Guarded<G> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bearer_token_counts_only_without_the_header_of_the_contract() {
        let of = |pairs: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            pairs.iter().for_each(|(name, value)| drop(headers.insert(*name, HeaderValue::from_static(value))));
            credential(&headers).token.map(ToOwned::to_owned)
        };
        assert_eq!(of(&[("authorization", "Bearer a")]).as_deref(), Some("a"));
        assert_eq!(of(&[("authorization", "bearer  a")]).as_deref(), Some("a"));
        assert_eq!(of(&[("authorization", "Basic a")]), None);
        assert_eq!(of(&[("authorization", "Bearer a"), ("x-worker-token", "b")]).as_deref(), Some("b"));
        assert_eq!(of(&[("authorization", "Bearer a"), ("x-worker-token", "")]), None);
        assert_eq!(of(&[]), None);
    }
}
