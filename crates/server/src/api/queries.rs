//! SQL over datasets, for users.

use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tenure_auth::UserScope;
use tenure_contract::query::{QueryAnswer, QueryRequest};
use tenure_core::command::submit::Submit;
use tenure_engine::store::Asker;

use super::dags::read;
use super::errors::refuse;
use crate::access::caller::Caller;
use crate::access::guard::User;
use crate::access::limiter::Allowance;
use crate::error::{Fault, Unavailable};
use crate::query::{self, Question, batch, of_user};
use crate::request::RequestId;
use crate::state::App;

/// SQL of 64 KiB, escaped.
const BODY_BYTES: usize = 512 << 10;
/// Datasets that a request names.
const DATASETS: usize = 1_000;

pub fn router() -> Router<App> {
    Router::new().route("/api/v1/query", post(query)).route("/api/v1/query/{id}/result", get(result))
}

/// Query datasets with SQL
///
/// One SELECT over the published datasets of the tenant, which are relations of their names. Answers with rows, or with
/// `format` csv or parquet, or `export`, with a file in the object store; with `mode` batch with the task that will write it.
#[utoipa::path(post, path = "/api/v1/query", operation_id = "query_datasets", tag = "datasets",
    request_body = QueryRequest, security(("api_key" = ["read"])),
    responses((status = 200, body = QueryAnswer, description = "The rows, or where they are")))]
pub async fn query(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    headers: HeaderMap,
    body: Body,
) -> Response {
    ask(&app, &caller, &headers, body).await.unwrap_or_else(|fault| refuse(fault, &id))
}

async fn ask(app: &App, caller: &Caller, headers: &HeaderMap, body: Body) -> Result<Response, Fault> {
    let request: QueryRequest = read(headers, body, BODY_BYTES).await?.decode()?;
    limited(app, caller)?;
    if request.datasets.as_ref().is_some_and(|named| named.len() > DATASETS) {
        return Err(Fault::invalid("datasets", "has more than 1000 names"));
    }
    let is_batch = match request.mode.as_deref() {
        None | Some("interactive") => false,
        Some("batch") => true,
        Some(_) => return Err(Fault::invalid("mode", "must be interactive or batch")),
    };
    let exports =
        is_batch || request.export.unwrap_or(false) || matches!(request.format.as_deref(), Some("csv" | "parquet"));
    if exports {
        caller.require(UserScope::Api)?;
    }
    let org = caller.home();
    let datasets = of_user(&app.queries, &org, request.datasets.as_deref(), request.dataset_id.as_deref()).await?;
    if is_batch {
        let task = app.engine.mint(1).await?[0];
        let (task, answer) = batch::task(&app.queries, caller, &org, &request, task).await?;
        super::tasks::admit(app, [&task]).await?;
        let bytes = task.payload.len();
        app.engine.submit(Submit { tasks: vec![task], maker: None }, bytes).await??;
        return Ok(axum::Json(answer).into_response());
    }
    let question = Question {
        asker: Asker::User(caller.actor.to_string()),
        timeout: app.queries.config.user_timeout,
        exports: app.dispatch.config.objects.as_ref().and_then(|objects| query::of_org(objects, &org)),
        with_url: true,
        org,
        request,
        datasets,
    };
    query::answer(&app.queries, question).await
}

/// Queries cost more than other requests. Without keys there is nobody to count.
fn limited(app: &App, caller: &Caller) -> Result<(), Fault> {
    let limit = app.queries.config.per_minute;
    if limit == 0 || !app.access.get().users.enabled {
        return Ok(());
    }
    let allowance = Allowance { per_minute: f64::from(limit), burst: f64::from(limit) };
    let verdict = app.limiter.take(&format!("query:{}", caller.actor), allowance, Instant::now());
    if verdict.allowed {
        return Ok(());
    }
    metrics::counter!("tenure_rate_limit_blocked_total").increment(1);
    Err(Unavailable::RateLimited { limit, retry_after: verdict.retry_after }.into())
}

/// Download the result of a query that was exported
///
/// Answers for an hour after the query, where the object store has no addresses of its own.
#[utoipa::path(get, path = "/api/v1/query/{id}/result", operation_id = "query_result", tag = "datasets",
    params(("id" = String, Path, description = "query_id")), security(("api_key" = ["read"])),
    responses((status = 200, description = "The file", content_type = "application/octet-stream")))]
pub async fn result(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(query_id): Path<String>,
) -> Response {
    query::result(&app.queries, &caller, &query_id).await.unwrap_or_else(|fault| refuse(fault, &id))
}
