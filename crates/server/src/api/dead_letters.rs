//! Dead letters: look at them, and redrive them.

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use tenure_contract::user::{DeadLetterPage, Redrive, RedriveFilter as WireFilter, RedriveRequest};
use tenure_contract::words::RedriveState;
use tenure_core::command::Reach;
use tenure_core::limits;
use tenure_engine::random_bits;
use tenure_engine::store::{DeadLetterFilter, NewRedrive, RedriveFilter, TaskView};

use super::tasks::{cursor, narrowed};
use super::{query, queues};
use crate::access::caller::Caller;
use crate::access::guard::User;
use crate::api::errors::refuse;
use crate::api::render;
use crate::error::Fault;
use crate::request::{self, RequestId};
use crate::state::App;
use crate::{audit, page, validate};

pub fn router() -> Router<App> {
    Router::new().route("/api/v1/dead-letters", get(list)).route("/api/v1/dead-letters/redrive", post(redrive))
}

/// Filters of the dead letters
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ListQuery {
    queue: Option<String>,
    operator: Option<String>,
    /// max_attempts, non_retryable or deadline_exceeded
    #[param(pattern = "^(max_attempts|non_retryable|deadline_exceeded)$")]
    reason: Option<String>,
    tenant: Option<String>,
    /// 1..=1000, default 100
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    cursor: Option<String>,
}

/// List dead letters, oldest first
#[utoipa::path(get, path = "/api/v1/dead-letters", operation_id = "list_dead_letters", tag = "dead letters", params(ListQuery), security(("api_key" = ["read"])),
    responses((status = 200, body = DeadLetterPage, description = "A page of dead letters")))]
pub async fn list(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    uri: Uri,
) -> Response {
    let answer = async {
        let asked: ListQuery = query(&uri)?;
        let limit = validate::page_limit(asked.limit)?;
        let Some(reach) = narrowed(caller.reach(), asked.tenant.as_deref()) else {
            return Ok(page::Counted::empty());
        };
        let filter = DeadLetterFilter {
            filter: RedriveFilter {
                queue: asked.queue,
                operator: asked.operator,
                reason: asked.reason,
                ..RedriveFilter::default()
            },
            reach,
            after: asked.cursor.as_deref().map(cursor).transpose()?,
            limit,
        };
        let page = page::counted(app.engine.dead_letters(&filter), TaskView::bytes).await?;
        if let (true, Some(queue)) = (page.is_empty(), &filter.filter.queue) {
            queues::found(&app, &caller, queue).await?;
        }
        Ok(page)
    };
    page::respond(answer.await, render::dead_letter, &id)
}

/// Put matching dead letters back into their queues
#[utoipa::path(post, path = "/api/v1/dead-letters/redrive", operation_id = "redrive_dead_letters", tag = "dead letters", request_body = RedriveRequest,
    security(("api_key" = ["api"])),
    responses((status = 202, body = Redrive, description = "The redrive has started, or continues"), (status = 200, body = Redrive, description = "dry run")))]
pub async fn redrive(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let request: RedriveRequest = request::read(&headers, body, limits::BODY_BYTES).await?.decode()?;
        if request.filter == WireFilter::default() {
            return Err(Fault::invalid("filter", "an empty filter would match everything: name at least one field"));
        }
        let rate = request.rate;
        if rate.is_some_and(|rate| !rate.is_finite() || !(0.001..=1e6).contains(&rate)) {
            return Err(Fault::invalid("rate", "must be from 0.001 to 1000000 tasks per second"));
        }
        let key = match &request.idempotency_key {
            None => None,
            Some(key) => Some(validate::words(key, "idempotency_key", limits::IDEMPOTENCY_KEY_BYTES)?),
        };
        let filter = filter(request.filter, &caller)?;
        if let Some(queue) = &filter.queue {
            queues::found(&app, &caller, queue).await?;
        }
        if request.dry_run {
            let matched = app.engine.count_dead_letters(&filter).await?;
            return Ok(Redrive {
                redrive_id: None,
                dry_run: true,
                matched,
                released: 0,
                state: RedriveState::DryRun,
                filter: None,
                named_tasks: None,
                rate: None,
                started_at: None,
            });
        }
        // The same key of two tenants, or of two owners, is two keys. No tenant has a bracket in its name.
        let scope = filter.tenant.as_deref().unwrap_or("*").to_owned();
        let key = key.map(|key| match &filter.owner {
            None => format!("{scope}/{key}"),
            Some(owner) => serde_json::json!([scope, owner, key]).to_string(),
        });
        let new = NewRedrive { redrive_id: random_bits(), key, filter, rate };
        let view = app.engine.redrive(&new).await?;
        let redrive = render::redrive(&view);
        if view.filter != new.filter {
            return Err(Fault::RedriveConflict { redrive_id: redrive.redrive_id.unwrap_or_default() });
        }
        Ok(redrive)
    };
    let answer =
        audit::operation_about(&app, &caller, &id, "dead_letters.redrive", "dead-letters", answer.await, about).await;
    match answer {
        Ok(redrive) => {
            let status = if redrive.dry_run { StatusCode::OK } else { StatusCode::ACCEPTED };
            (status, Json(redrive)).into_response()
        }
        Err(fault) => refuse(fault, &id),
    }
}

/// What the audit says of a redrive: which, how many, and of which dead letters.
fn about(redrive: &Redrive) -> Option<String> {
    let ids = redrive.named_tasks.map(|count| format!(" and {count} task ids")).unwrap_or_default();
    let filter = redrive.filter.as_ref().and_then(|filter| serde_json::to_string(filter).ok()).unwrap_or_default();
    let what = redrive.redrive_id.as_deref().unwrap_or("dry run");
    Some(format!("{what}: {} matched {filter}{ids}", redrive.matched))
}

fn filter(wire: WireFilter, caller: &Caller) -> Result<RedriveFilter, Fault> {
    // Postgres keeps no NUL in a text: nothing can match one.
    for (name, text) in [
        ("queue", &wire.queue),
        ("operator", &wire.operator),
        ("reason", &wire.reason),
        ("error_code", &wire.error_code),
        ("tenant", &wire.tenant),
    ] {
        if text.as_ref().is_some_and(|text| text.contains('\0')) {
            return Err(Fault::invalid(format!("filter.{name}"), "must not contain NUL"));
        }
    }
    let tenant = match (caller.reach(), wire.tenant) {
        (Reach::All, tenant) => tenant,
        (_, asked) => Some(caller.tenant_for(asked.as_deref(), "filter.tenant")?.to_string()),
    };
    let rows = match wire.task_ids {
        None => None,
        Some(ids) if ids.len() > limits::REDRIVE_TASK_IDS => {
            let message = format!("at most {} ids", limits::REDRIVE_TASK_IDS);
            return Err(Fault::invalid("filter.task_ids", &message));
        }
        Some(ids) => {
            let ids = ids.iter().enumerate();
            let rows = ids.map(|(i, id)| Ok(validate::task_id(id, &format!("filter.task_ids[{i}]"))?.seq()));
            Some(rows.collect::<Result<Vec<_>, Fault>>()?)
        }
    };
    Ok(RedriveFilter {
        queue: wire.queue,
        operator: wire.operator,
        reason: wire.reason,
        error_code: wire.error_code,
        tenant,
        owner: caller.owner.as_deref().map(ToOwned::to_owned),
        after: wire.after.as_deref().map(|text| validate::time(text, "filter.after")).transpose()?,
        before: wire.before.as_deref().map(|text| validate::time(text, "filter.before")).transpose()?,
        rows,
    })
}
