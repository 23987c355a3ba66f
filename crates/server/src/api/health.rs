//! Is it there, is it well, can it serve? No credential is needed, and nothing else is told.

use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use tenure_contract::duration;
use tenure_contract::sandboxes::ProviderHealth;
use tenure_contract::user::{Health, ProviderState};

use crate::contracts::sandboxes::paths::fleet::provider_states;
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
    Json(report(&app, "alive", None)).into_response()
}

/// The store answers: requests can be served
///
/// On a server with a worker of its own, a provider of sandboxes must work too.
#[utoipa::path(get, path = "/api/v1/ready", operation_id = "get_ready", tag = "health",
    responses((status = 200, body = Health, description = "The store answers"), (status = 503, body = Health, description = "The store does not answer")))]
pub async fn ready(State(app): State<App>) -> Response {
    if let Err(error) = app.engine.now().await {
        return failed(&app, "not_ready", error.to_string());
    }
    if app.engine.is_full() {
        return failed(&app, "not_ready", "disk full: the store cannot write".to_owned());
    }
    if app.identity.revoked().is_none() {
        return failed(&app, "not_ready", "revocations of worker tokens have not been read yet".to_owned());
    }
    let mut body = report(&app, "ready", None);
    let Ok(part) = app.sandboxes() else { return Json(body).into_response() };
    let Ok(records) = provider_states(&app).await else {
        return failed(&app, "not_ready", "the providers of sandboxes cannot be read".to_owned());
    };
    let working = records.iter().filter(|record| record.healthy).count();
    (body.ready_providers, body.total_providers) = (Some(working as u64), Some(records.len() as u64));
    let state =
        |record: ProviderHealth| ProviderState { name: record.name, healthy: record.healthy, default: record.default };
    body.providers = Some(records.into_iter().map(state).collect());
    if part.is_local && working == 0 {
        body.status = "not_ready".to_owned();
        body.message = Some("no provider of sandboxes works".to_owned());
        return (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response();
    }
    Json(body).into_response()
}

fn failed(app: &App, status: &str, message: String) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, Json(report(app, status, Some(message)))).into_response()
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
        Err(error) => failed(app, "unavailable", error.to_string()),
    }
}

fn report(app: &App, status: &str, message: Option<String>) -> Health {
    Health {
        status: status.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        uptime: duration::canonical(Duration::from_secs(app.started.elapsed().as_secs())),
        store: app.engine.store_kind().to_owned(),
        message,
        providers: None,
        ready_providers: None,
        total_providers: None,
    }
}

/// This document
#[utoipa::path(get, path = "/api/v1/openapi.json", operation_id = "get_openapi", tag = "health", responses((status = 200, description = "OpenAPI 3.1")))]
pub async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], crate::openapi::document()).into_response()
}
