//! The outbox: wake-ups that have to leave the store. It belongs to the whole system and to no tenant.

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, Uri};
use axum::response::Response;
use axum::routing::{get, post};
use serde::Deserialize;
use tenure_contract::admin::{OutboxEntry, OutboxEntryPage, OutboxRetried, OutboxRetryRequest};
use tenure_contract::user::Page;
use tenure_core::limits;
use tenure_engine::store::{OutboxFilter, OutboxRetry, OutboxState, OutboxView};

use crate::access::caller::Caller;
use crate::access::guard::User;
use crate::api::render;
use crate::api::{query, queues, respond};
use crate::error::Fault;
use crate::request::{self, RequestId};
use crate::state::App;
use crate::validate;

/// Entries that one request may name.
const IDS_MAX: usize = 1000;

pub fn router() -> Router<App> {
    Router::new().route("/api/v1/admin/outbox", get(list)).route("/api/v1/admin/outbox/retry", post(retry))
}

/// Filters of the outbox
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct OutboxQuery {
    /// waiting, published or failed
    #[param(pattern = "^(waiting|published|failed)$")]
    state: Option<String>,
    queue: Option<String>,
    /// 1..=1000, default 100
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    cursor: Option<String>,
}

/// List wake-ups sent over Redis or SQS, oldest first
#[utoipa::path(get, path = "/api/v1/admin/outbox", operation_id = "list_outbox", tag = "admin", params(OutboxQuery), security(("api_key" = ["admin"])),
    responses((status = 200, body = OutboxEntryPage, description = "A page of wake-ups")))]
pub async fn list(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    uri: Uri,
) -> Response {
    let answer = async {
        of_all(&caller)?;
        let asked: OutboxQuery = query(&uri)?;
        let state = asked.state.as_deref().map(|text| {
            OutboxState::parse(text).ok_or_else(|| Fault::invalid("state", "must be waiting, published or failed"))
        });
        let after = asked.cursor.as_deref().map(|text| {
            text.parse().map_err(|_| Fault::invalid("cursor", "must be next_cursor of the previous page, unchanged"))
        });
        let filter = OutboxFilter {
            state: state.transpose()?,
            queue: asked.queue,
            after: after.transpose()?,
            limit: validate::page_limit(asked.limit)?,
        };
        let page = app.engine.outbox(&filter).await?;
        if let (true, Some(queue)) = (page.items.is_empty(), &filter.queue) {
            queues::found(&app, &caller, queue).await?;
        }
        Ok(Page { items: page.items.iter().map(entry).collect(), next_cursor: page.next })
    };
    respond(answer.await, &id)
}

/// Try failed wake-ups again
#[utoipa::path(post, path = "/api/v1/admin/outbox/retry", operation_id = "retry_outbox", tag = "admin", request_body = OutboxRetryRequest, security(("api_key" = ["admin"])),
    responses((status = 200, body = OutboxRetried, description = "The number of wake-ups that are tried again")))]
pub async fn retry(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        of_all(&caller)?;
        let asked: OutboxRetryRequest = request::read(&headers, body, limits::BODY_BYTES).await?.decode()?;
        let which = which(asked)?;
        let retried = app.engine.retry_outbox(&which).await?;
        if let (0, OutboxRetry::All { queue: Some(queue) }) = (retried, &which) {
            queues::found(&app, &caller, queue).await?;
        }
        Ok(OutboxRetried { retried })
    };
    respond(answer.await, &id)
}

/// A caller that is narrowed to a tenant or an owner would be shown what is others'.
fn of_all(caller: &Caller) -> Result<(), Fault> {
    let header = match (&caller.tenant, &caller.owner) {
        (Some(_), _) => "X-Tenant-ID",
        (None, Some(_)) => "X-User-ID",
        (None, None) => return Ok(()),
    };
    Err(Fault::invalid(header, "the outbox belongs to the whole system: omit the header"))
}

fn which(asked: OutboxRetryRequest) -> Result<OutboxRetry, Fault> {
    match (asked.ids, asked.all) {
        (Some(ids), None | Some(false)) => {
            if asked.queue.is_some() {
                return Err(Fault::invalid("queue", "can be used with all, not with ids"));
            }
            if ids.is_empty() || ids.len() > IDS_MAX {
                return Err(Fault::invalid("ids", "must have 1 to 1000 entries"));
            }
            let message = |(place, id): (usize, &String)| {
                let wrong = || Fault::invalid(format!("ids[{place}]"), "must be an id such as enqueue_task:184467");
                id.strip_prefix("enqueue_task:").and_then(|number| number.parse().ok()).ok_or_else(wrong)
            };
            Ok(OutboxRetry::These(ids.iter().enumerate().map(message).collect::<Result<_, _>>()?))
        }
        (None, Some(true)) => {
            let queue = asked.queue.map(|queue| validate::name(&queue, "queue")).transpose()?;
            Ok(OutboxRetry::All { queue: queue.map(|queue| queue.to_string()) })
        }
        (Some(_), Some(true)) => Err(Fault::invalid("all", "cannot be combined with ids")),
        (None, _) => Err(Fault::invalid("ids", "is required, unless all is true")),
    }
}

fn entry(view: &OutboxView) -> OutboxEntry {
    OutboxEntry {
        id: format!("{}:{}", view.kind, view.message),
        kind: view.kind.to_string(),
        transport: view.transport.as_str().to_owned(),
        queue: view.queue.to_string(),
        task_id: view.task.to_string(),
        state: view.state().as_str().to_owned(),
        tries: view.tries,
        error: view.error.as_deref().map(ToOwned::to_owned),
        created_at: render::time(view.created_at),
        due_at: view.due_at.map(render::time),
        failed_at: view.failed_at.map(render::time),
        published_at: view.published_at.map(render::time),
        message_id: view.receipt.as_deref().map(ToOwned::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::BadRequest;

    fn asked(json: serde_json::Value) -> Result<OutboxRetry, String> {
        which(serde_json::from_value(json).unwrap()).map_err(|fault| match fault {
            Fault::Request(BadRequest::Invalid { field, .. }) => field,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn what_to_try_again_is_said_in_one_way() {
        use serde_json::json;
        let these = OutboxRetry::These(vec![7, 9]);
        assert_eq!(asked(json!({"ids": ["enqueue_task:7", "enqueue_task:9"]})), Ok(these));
        assert_eq!(asked(json!({"all": true})), Ok(OutboxRetry::All { queue: None }));
        assert_eq!(asked(json!({"all": true, "queue": "q"})), Ok(OutboxRetry::All { queue: Some("q".to_owned()) }));
        for (json, field) in [
            (json!({}), "ids"),
            (json!({"all": false}), "ids"),
            (json!({"queue": "q"}), "ids"),
            (json!({"ids": []}), "ids"),
            (json!({"ids": vec!["enqueue_task:1"; 1001]}), "ids"),
            (json!({"ids": ["enqueue_task:1"], "all": true}), "all"),
            (json!({"ids": ["enqueue_task:1"], "queue": "q"}), "queue"),
            (json!({"ids": ["enqueue_task:1", "7"]}), "ids[1]"),
            (json!({"ids": ["route_event:7"]}), "ids[0]"),
            (json!({"ids": ["enqueue_task:x"]}), "ids[0]"),
            (json!({"all": true, "queue": "two words"}), "queue"),
        ] {
            assert_eq!(asked(json.clone()), Err(field.to_owned()), "{json}");
        }
    }
}
