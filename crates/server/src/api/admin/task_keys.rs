//! Keys of task tokens that replicas registered.

use axum::Router;
use axum::extract::{Extension, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get};
use tenure_contract::admin::TaskKeyIds;

use crate::api::errors::refuse;
use crate::api::respond;
use crate::error::{Fault, Thing};
use crate::request::RequestId;
use crate::state::App;
use crate::tenants::unavailable;
use crate::validate;

pub fn router() -> Router<App> {
    Router::new().route("/api/v1/admin/task-keys", get(list)).route("/api/v1/admin/task-keys/{id}", delete(forget))
}

/// List the ids of registered task keys
#[utoipa::path(get, path = "/api/v1/admin/task-keys", operation_id = "list_task_keys", tag = "admin", security(("api_key" = ["admin"])),
    responses((status = 200, body = TaskKeyIds, description = "The ids")))]
pub async fn list(State(app): State<App>, Extension(id): Extension<RequestId>) -> Response {
    let answer = async {
        let keys = app.engine.identity().task_keys().await.map_err(unavailable)?;
        Ok(TaskKeyIds { items: keys.into_iter().map(|(kid, _)| kid).collect() })
    };
    respond(answer.await, &id)
}

/// Take a task key back
///
/// For a key that leaked: replace its file on its replica first. Its tokens are then refused here at once, and on other
/// replicas within seconds.
#[utoipa::path(delete, path = "/api/v1/admin/task-keys/{id}", operation_id = "forget_task_key", tag = "admin", params(("id" = String, Path, description = "kid")), security(("api_key" = ["admin"])),
    responses((status = 204, description = "taken back")))]
pub async fn forget(State(app): State<App>, Extension(id): Extension<RequestId>, Path(kid): Path<String>) -> Response {
    let answer = async {
        let unknown = Fault::NotFound(Thing::TaskKey);
        if validate::name(&kid, "id").is_err() {
            return Err(unknown);
        }
        let forgotten = match app.identity.task_keys() {
            Some(keys) => keys.forget(&kid).await,
            None => app.engine.identity().forget_task_key(&kid).await,
        };
        if forgotten.map_err(unavailable)? { Ok(()) } else { Err(unknown) }
    };
    match answer.await {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(fault) => refuse(fault, &id),
    }
}
