//! `/environments/*`: images that are built from descriptions. This server builds none, and clients that look for some find
//! empty lists.

use axum::extract::{Extension, Request};
use axum::http::Method;
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use tenure_contract::sandboxes::SandboxError;

use super::errors::refuse;
use crate::error::{SandboxFault, SandboxFaultKind};
use crate::http::any_method;
use crate::request::RequestId;
use crate::state::App;

pub fn router() -> Router<App> {
    Router::new()
        .route("/api/v1/environments", any_method(list))
        .route("/api/v1/environments/{*path}", any_method(below))
}

/// List environments: always empty
#[utoipa::path(get, path = "/api/v1/environments", operation_id = "list_environments", tag = "sandboxes", security(("api_key" = ["read"])),
    responses((status = 200, description = "An empty list"), (status = 501, body = SandboxError, description = "not available")))]
pub async fn list(id: Extension<RequestId>, request: Request) -> Response {
    below(id, request).await
}

/// List things of environments: always empty
#[utoipa::path(get, path = "/api/v1/environments/{path}", operation_id = "list_of_environments", tag = "sandboxes", params(("path" = String, Path)), security(("api_key" = ["read"])),
    responses((status = 200, description = "An empty list"), (status = 501, body = SandboxError, description = "not available")))]
pub async fn below(Extension(id): Extension<RequestId>, request: Request) -> Response {
    let rest = request.uri().path().trim_start_matches("/api/v1/environments").trim_matches('/');
    if *request.method() == Method::GET && !rest.contains('/') {
        return Json(Vec::<u8>::new()).into_response();
    }
    let message = "this server builds no environments: register an image at a worker instead";
    refuse(SandboxFault::fault(SandboxFaultKind::Unsupported, message), &id)
}
