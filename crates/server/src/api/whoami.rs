//! Whom a credential stands for, and the keys that verify task tokens.

use axum::extract::{Extension, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use tenure_contract::admin::WhoAmI;

use crate::access::guard::User;
use crate::state::App;

pub fn router() -> Router<App> {
    Router::new().route("/api/v1/whoami", get(whoami)).merge(keys())
}

/// The keys alone, for whoever verifies tokens of tasks.
pub fn keys() -> Router<App> {
    Router::new().route("/internal/jwks/task", get(jwks))
}

/// The identity of the credential
#[utoipa::path(get, path = "/api/v1/whoami", operation_id = "whoami", tag = "health", security(("api_key" = ["read"])),
    responses((status = 200, body = WhoAmI, description = "The identity")))]
pub async fn whoami(Extension(caller): User) -> Response {
    Json(WhoAmI {
        actor: caller.actor.to_string(),
        role: caller.role.as_str().to_owned(),
        tenant: caller.tenant.as_deref().map(ToOwned::to_owned),
        owner: caller.owner.as_deref().map(ToOwned::to_owned),
    })
    .into_response()
}

/// Public keys of task tokens
#[utoipa::path(get, path = "/internal/jwks/task", operation_id = "get_task_jwks", tag = "worker identity",
    responses((status = 200, description = "a JSON Web Key Set", content_type = "application/json")))]
pub async fn jwks(State(app): State<App>) -> Response {
    let mut response = app.identity.jwks().into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("max-age=300"));
    response
}
