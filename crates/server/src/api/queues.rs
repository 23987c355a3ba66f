//! Queues: look at them, set their limits, pause, resume and delete them.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, Uri};
use axum::response::Response;
use axum::routing::{get, post, put};
use serde::Deserialize;
use tenure_contract::suggest;
use tenure_contract::user::{
    Page, PushSettings, Queue, QueueChange, QueueDeleted, QueuePage, QueuePaused, QueueSettings,
};
use tenure_core::command::Reach;
use tenure_core::command::queues::{DeleteQueue, PatchQueue, PauseQueue, QueueChange as CoreChange, SetQueue};
use tenure_core::limits;
use tenure_core::queue::{Push, QueueSettings as CoreSettings, Transport};
use tenure_engine::store::QueueStats;

use super::{query, respond};
use crate::access::caller::Caller;
use crate::access::guard::User;
use crate::api::render;
use crate::error::Fault;
use crate::live::Live;
use crate::request::{self, RequestId};
use crate::state::App;
use crate::{audit, push, validate};

pub fn router() -> Router<App> {
    Router::new()
        .route("/api/v1/queues", get(list))
        .route("/api/v1/queues/{name}", put(set).patch(change).get(show).delete(delete))
        .route("/api/v1/queues/{name}/pause", post(pause))
        .route("/api/v1/queues/{name}/resume", post(resume))
}

/// A page of a list
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct PageQuery {
    /// 1..=1000, default 100
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<i64>,
    pub cursor: Option<String>,
}

/// List queues by name
#[utoipa::path(get, path = "/api/v1/queues", operation_id = "list_queues", tag = "queues", params(PageQuery), security(("api_key" = ["read"])),
    responses((status = 200, body = QueuePage, description = "A page of queues")))]
pub async fn list(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    uri: Uri,
) -> Response {
    let answer = async {
        let asked: PageQuery = query(&uri)?;
        let limit = validate::page_limit(asked.limit)?;
        let page = app.engine.queues(caller.queues_of(), asked.cursor.as_deref(), limit).await?;
        Ok(Page { items: page.items.iter().map(render::queue).collect(), next_cursor: page.next })
    };
    respond(answer.await, &id)
}

/// Show a queue
#[utoipa::path(get, path = "/api/v1/queues/{name}", operation_id = "get_queue", tag = "queues", params(("name" = String, Path)), security(("api_key" = ["read"])),
    responses((status = 200, body = Queue, description = "The queue")))]
pub async fn show(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(name): Path<String>,
) -> Response {
    respond(found(&app, &caller, &name).await.as_ref().map(render::queue).map_err(Clone::clone), &id)
}

/// The queue of this name, if the caller may see it.
pub async fn found(app: &App, caller: &Caller, name: &str) -> Result<QueueStats, Fault> {
    if let Some(stats) = stats(app, caller, name).await? {
        return Ok(stats);
    }
    let page = app.engine.queues(caller.queues_of(), None, limits::LIST_LIMIT_MAX).await?;
    let near = suggest::nearest(name, page.items.iter().map(|stats| &*stats.queue.name));
    Err(Fault::QueueNotFound { near: near.map(ToOwned::to_owned) })
}

/// The same without a suggestion.
pub async fn stats(app: &App, caller: &Caller, name: &str) -> Result<Option<QueueStats>, Fault> {
    // No queue can have such a name, and not every store could be asked for it.
    if validate::name(name, "name").is_err() {
        return Ok(None);
    }
    // The list is ordered by name; the queue is the first one behind everything that sorts before it.
    let mut before = name.to_owned();
    let last = before.pop();
    if let Some(previous) = last.and_then(|last| char::from_u32(u32::from(last).saturating_sub(1))) {
        before.push(previous);
        before.push('\u{10ffff}');
    }
    let page = app.engine.queues(caller.queues_of(), Some(&before), 2).await?;
    Ok(page.items.into_iter().find(|stats| &*stats.queue.name == name))
}

/// Set the limits of a queue; it is created if it does not exist
#[utoipa::path(put, path = "/api/v1/queues/{name}", operation_id = "set_queue", tag = "queues", params(("name" = String, Path)), request_body = QueueSettings,
    security(("api_key" = ["api"])),
    responses((status = 200, body = Queue, description = "The queue with its new settings")))]
pub async fn set(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    headers: HeaderMap,
    Path(name): Path<String>,
    body: Body,
) -> Response {
    let answer = async {
        let settings: QueueSettings = request::read(&headers, body, limits::BODY_BYTES).await?.decode()?;
        let queue = validate::queue_name(&name, "name")?;
        let current = stats(&app, &caller, &name).await?;
        let (reach, keep_push) = (caller.tenant_reach(), settings.push.is_none());
        let asked = settings.transport.as_deref();
        let (transport, push) = way(&app, &queue, current.as_ref(), asked, &settings.push, &reach).await?;
        let settings = CoreSettings { push: push.clone().flatten(), ..validate::queue_settings(&settings)? };
        refuse_strict_push(settings.strict, pushes(&push, current.as_ref()))?;
        app.engine.set_queue(SetQueue { queue, settings, transport, keep_push, reach }).await??;
        stats(&app, &caller, &name).await?.as_ref().map(render::queue).ok_or(Fault::Internal)
    };
    let answer = audit::operation(&app, &caller, &id, "queue.set", &name, answer.await).await;
    respond(answer, &id)
}

/// Change what is named about a queue; everything else stays
#[utoipa::path(patch, path = "/api/v1/queues/{name}", operation_id = "change_queue", tag = "queues", params(("name" = String, Path)),
    request_body = QueueChange, security(("api_key" = ["api"])),
    responses((status = 200, body = Queue, description = "The queue with its new settings")))]
pub async fn change(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    headers: HeaderMap,
    Path(name): Path<String>,
    body: Body,
) -> Response {
    let answer = async {
        let wire: QueueChange = request::read(&headers, body, limits::BODY_BYTES).await?.decode()?;
        validate::queue_name(&name, "name")?;
        let current = found(&app, &caller, &name).await?;
        let (queue, reach) = (Arc::clone(&current.queue.name), caller.tenant_reach());
        let asked = wire.transport.as_deref();
        let (transport, push) = way(&app, &queue, Some(&current), asked, &wire.push, &reach).await?;
        let change = validate::queue_change(&wire, &current.queue.settings)?;
        let strict = change.strict.unwrap_or(current.queue.settings.strict);
        refuse_strict_push(strict, pushes(&push, Some(&current)))?;
        let change = CoreChange { transport, push, ..change };
        app.engine.patch_queue(PatchQueue { queue, change, reach }).await??;
        found(&app, &caller, &name).await.as_ref().map(render::queue).map_err(Clone::clone)
    };
    let answer = audit::operation(&app, &caller, &id, "queue.set", &name, answer.await).await;
    respond(answer, &id)
}

/// What carries wake-ups and where tasks are pushed, of which a queue can have only one. `None` stays as it is.
async fn way(
    app: &App,
    queue: &Arc<str>,
    current: Option<&QueueStats>,
    transport: Option<&str>,
    push: &Option<Option<PushSettings>>,
    reach: &Reach,
) -> Result<(Option<Transport>, Option<Option<Arc<Push>>>), Fault> {
    let transport = transport.map(|asked| app.transports.of_queue(queue, asked)).transpose()?;
    let push = match push {
        None => None,
        Some(None) => Some(None),
        Some(Some(wire)) => {
            let targets = app.push.as_ref().map(Live::get);
            Some(Some(Arc::new(push::block(wire, targets.as_deref(), reach).await?)))
        }
    };
    if pushes(&push, current) && transport.is_some_and(Transport::is_external) {
        let message = "a push queue has no transport: omit it, or remove the push block";
        return Err(Fault::invalid("transport", message));
    }
    Ok((transport, push))
}

/// Whether the queue pushes once this is set.
fn pushes(push: &Option<Option<Arc<Push>>>, current: Option<&QueueStats>) -> bool {
    match push {
        None => current.is_some_and(|stats| stats.queue.settings.push.is_some()),
        Some(push) => push.is_some(),
    }
}

/// A pushed task runs where nothing is known about what happens to a lost attempt.
fn refuse_strict_push(strict: bool, pushes: bool) -> Result<(), Fault> {
    if strict && pushes {
        return Err(Fault::invalid(
            "strict",
            "a queue that pushes cannot be strict: remove the push block or `strict`",
        ));
    }
    Ok(())
}

/// Stop grants of a queue; running work continues
#[utoipa::path(post, path = "/api/v1/queues/{name}/pause", operation_id = "pause_queue", tag = "queues", params(("name" = String, Path)), security(("api_key" = ["api"])),
    responses((status = 200, body = QueuePaused, description = "The queue is paused")))]
pub async fn pause(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(name): Path<String>,
) -> Response {
    let answer = set_paused(&app, &caller, &name, true).await;
    respond(audit::operation(&app, &caller, &id, "queue.pause", &name, answer).await, &id)
}

/// Resume a paused queue
#[utoipa::path(post, path = "/api/v1/queues/{name}/resume", operation_id = "resume_queue", tag = "queues", params(("name" = String, Path)), security(("api_key" = ["api"])),
    responses((status = 200, body = QueuePaused, description = "The queue is open")))]
pub async fn resume(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(name): Path<String>,
) -> Response {
    let answer = set_paused(&app, &caller, &name, false).await;
    respond(audit::operation(&app, &caller, &id, "queue.resume", &name, answer).await, &id)
}

/// How a queue is deleted
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct DeleteQuery {
    /// Delete the queue even if it has dead letters: they stay readable, and can no longer be retried or redriven
    pub force: Option<bool>,
}

/// Delete an empty queue
///
/// A queue with tasks that have not ended is refused, and so is one with dead letters unless `force` is set. Ended tasks
/// stay readable until retention removes them. A later submit under the name creates another queue with the default
/// settings.
#[utoipa::path(delete, path = "/api/v1/queues/{name}", operation_id = "delete_queue", tag = "queues", params(("name" = String, Path), DeleteQuery), security(("api_key" = ["api"])),
    responses((status = 200, body = QueueDeleted, description = "The queue is deleted")))]
pub async fn delete(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(name): Path<String>,
    uri: Uri,
) -> Response {
    let answer = async {
        let asked: DeleteQuery = query(&uri)?;
        validate::queue_name(&name, "name")?;
        let queue = found(&app, &caller, &name).await?.queue.name;
        let (force, reach) = (asked.force.unwrap_or(false), caller.tenant_reach());
        let deleted = app.engine.delete_queue(DeleteQueue { queue, force, reach }).await??;
        Ok(QueueDeleted { name: name.clone(), deleted })
    };
    let answer = audit::operation(&app, &caller, &id, "queue.delete", &name, answer.await).await;
    respond(answer, &id)
}

async fn set_paused(app: &App, caller: &Caller, name: &str, paused: bool) -> Result<QueuePaused, Fault> {
    validate::name(name, "name")?;
    let queue = found(app, caller, name).await?.queue.name;
    let queue = app.engine.pause_queue(PauseQueue { queue, paused, reach: caller.tenant_reach() }).await??;
    Ok(QueuePaused { name: queue.name.to_string(), paused: queue.paused })
}
