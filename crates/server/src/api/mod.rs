//! The user API.

pub mod admin;
pub mod buffers;
pub mod bundles;
pub mod dags;
pub mod datasets;
pub mod dead_letters;
pub mod errors;
pub mod events;
pub mod health;
mod metric_help;
pub mod metrics;
mod process_metrics;
pub mod queries;
pub mod queues;
pub mod redrives;
pub mod render;
pub mod runs;
pub mod schedules;
pub mod task_logs;
pub mod tasks;
pub mod webhooks;
pub mod whoami;
pub mod why;
pub mod words;

use axum::Router;
use axum::http::StatusCode;
use axum::response::Response;
use tenure_contract::suggest;

use self::errors::refuse;
use crate::contracts::Dialect;
use crate::error::{BadRequest, Fault};
use crate::page;
use crate::request::RequestId;
use crate::state::App;

/// It names no contract in its answers, and owns every path that no other contract claims.
pub const DIALECT: Dialect = Dialect { name: None, owns: |_| true, router, refuse };

fn router() -> Router<App> {
    Router::new()
        .merge(admin::router())
        .merge(whoami::router())
        .merge(tasks::router())
        .merge(runs::router())
        .merge(queries::router())
        .merge(queues::router())
        .merge(schedules::router())
        .merge(webhooks::router())
        .merge(dags::router())
        .merge(buffers::router())
        .merge(bundles::router())
        .merge(datasets::router())
        .merge(dead_letters::router())
        .merge(redrives::router())
        .merge(events::router())
        .merge(health::router())
        .merge(metrics::router())
}

pub fn respond<T: serde::Serialize>(answer: Result<T, Fault>, id: &RequestId) -> Response {
    respond_with(StatusCode::OK, answer, id)
}

pub fn respond_with<T: serde::Serialize>(status: StatusCode, answer: Result<T, Fault>, id: &RequestId) -> Response {
    match answer {
        Ok(body) => page::whole(status, &body).unwrap_or_else(|fault| refuse(fault, id)),
        Err(fault) => refuse(fault, id),
    }
}

/// A query string as a type; what is wrong with it names its field.
pub fn query<T: serde::de::DeserializeOwned>(uri: &axum::http::Uri) -> Result<T, Fault> {
    // Postgres keeps no NUL in a text: nothing can match one.
    if uri.query().is_some_and(|query| query.contains("%00")) {
        return Err(Fault::invalid("query", "must not contain NUL"));
    }
    let query = axum::extract::Query::<T>::try_from_uri(uri);
    query.map(|query| query.0).map_err(|rejection| {
        let message = rejection.body_text();
        let message = message.trim_start_matches("Failed to deserialize query string: ");
        let name = message.split_once("unknown field `").and_then(|(_, rest)| rest.split('`').next());
        match (name, suggest::unknown_field(message, &[])) {
            (Some(name), Some(said)) => {
                BadRequest::UnknownField { field: name.to_owned(), message: said.replacen("field", "parameter", 1) }
                    .into()
            }
            _ => Fault::invalid("query", message),
        }
    })
}
