//! The worker contracts, one file each.

pub mod callback;
pub mod exchange;
pub mod pull;

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use tenure_contract::{CALLBACK_CONTRACT, CONTRACT_HEADER, PULL_CONTRACT};

/// The contract that a path belongs to, if any.
fn contract_of(path: &str) -> Option<&'static str> {
    if pull::owns(path) {
        Some(PULL_CONTRACT)
    } else if callback::owns(path) {
        Some(CALLBACK_CONTRACT)
    } else {
        None
    }
}

/// Every answer of a worker contract says which one it speaks.
pub async fn name_contract(request: Request, next: Next) -> Response {
    let Some(contract) = contract_of(request.uri().path()) else { return next.run(request).await };
    let mut response = next.run(request).await;
    response.headers_mut().insert(HeaderName::from_static(CONTRACT_HEADER), HeaderValue::from_static(contract));
    response
}
