//! Is it there, is it well, can it serve? No credential is needed, and nothing else is told.

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use tenure_contract::user::Health;

use crate::state::App;

pub fn router() -> Router<App> {
    Router::new()
        .route("/api/v1/live", get(live))
        .route("/api/v1/ready", get(ready))
        .route("/api/v1/health", get(health))
        .route("/api/v1/openapi.json", get(openapi))
}

/// The process runs
#[utoipa::path(get, path = "/api/v1/live", operation_id = "get_live", tag = "health", responses((status = 200, body = Health, description = "The process runs")))]
pub async fn live(State(app): State<App>) -> Response {
    Json(report(&app, "ok", None)).into_response()
}

/// The store answers: requests can be served
#[utoipa::path(get, path = "/api/v1/ready", operation_id = "get_ready", tag = "health",
    responses((status = 200, body = Health, description = "The store answers"), (status = 503, body = Health, description = "The store does not answer")))]
pub async fn ready(State(app): State<App>) -> Response {
    check(&app).await
}

/// The same as ready, with what is wrong
#[utoipa::path(get, path = "/api/v1/health", operation_id = "get_health", tag = "health",
    responses((status = 200, body = Health, description = "The store answers"), (status = 503, body = Health, description = "The store does not answer")))]
pub async fn health(State(app): State<App>) -> Response {
    check(&app).await
}

async fn check(app: &App) -> Response {
    match app.engine.now().await {
        Ok(_) => Json(report(app, "ok", None)).into_response(),
        Err(error) => {
            let body = report(app, "unavailable", Some(error.to_string()));
            (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
        }
    }
}

fn report(app: &App, status: &str, message: Option<String>) -> Health {
    Health {
        status: status.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        store: app.engine.store_kind().to_owned(),
        message,
    }
}

/// This document
#[utoipa::path(get, path = "/api/v1/openapi.json", operation_id = "get_openapi", tag = "health", responses((status = 200, description = "OpenAPI 3.1")))]
pub async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], crate::openapi::document()).into_response()
}
