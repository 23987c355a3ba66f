//! Redrives that were started: how far they are, and stopping them.

use axum::Router;
use axum::extract::{Extension, Path, State};
use axum::http::Uri;
use axum::response::Response;
use axum::routing::{get, post};
use serde::Deserialize;
use tenure_contract::user::{Redrive, RedrivePage};
use tenure_core::Timestamp;
use tenure_core::id::ulid;
use tenure_engine::store::{RedriveChange, RedriveCursor, RedriveView};

use super::{query, render, respond};
use crate::access::caller::Caller;
use crate::access::guard::User;
use crate::error::Fault;
use crate::request::RequestId;
use crate::state::App;
use crate::{audit, validate};

const PREFIX: &str = "rd_";

pub fn router() -> Router<App> {
    Router::new()
        .route("/api/v1/redrives", get(list))
        .route("/api/v1/redrives/{id}", get(show))
        .route("/api/v1/redrives/{id}/pause", post(pause))
        .route("/api/v1/redrives/{id}/resume", post(resume))
        .route("/api/v1/redrives/{id}/cancel", post(cancel))
}

/// A page of redrives
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ListQuery {
    /// 1..=1000, default 100
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    cursor: Option<String>,
}

fn redrive_id(text: &str) -> Result<u128, Fault> {
    text.strip_prefix(PREFIX).and_then(|text| ulid::decode(text).ok()).ok_or(Fault::RedriveNotFound)
}

fn cursor_of(view: &RedriveView) -> String {
    format!("{}-{}", view.started_at.as_millis(), ulid::encode(view.redrive_id))
}

fn cursor(text: &str) -> Result<RedriveCursor, Fault> {
    let parsed = text.split_once('-').and_then(|(at, id)| {
        let started_at = at.parse().ok().filter(|at| (0..1 << 48).contains(at)).map(Timestamp::from_millis)?;
        Some(RedriveCursor { started_at, redrive_id: ulid::decode(id).ok()? })
    });
    parsed.ok_or_else(|| Fault::invalid("cursor", "must be next_cursor of the previous page, unchanged"))
}

/// List redrives, newest first
#[utoipa::path(get, path = "/api/v1/redrives", operation_id = "list_redrives", tag = "dead letters", params(ListQuery), security(("api_key" = ["read"])),
    responses((status = 200, body = RedrivePage, description = "A page of redrives")))]
pub async fn list(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    uri: Uri,
) -> Response {
    let answer = async {
        let asked: ListQuery = query(&uri)?;
        let limit = validate::page_limit(asked.limit)?;
        let after = asked.cursor.as_deref().map(cursor).transpose()?;
        let mut found = app.engine.redrives(&caller.reach(), after, limit + 1).await?;
        let more = found.len() > limit;
        found.truncate(limit);
        let next_cursor = found.last().filter(|_| more).map(cursor_of);
        Ok(RedrivePage { items: found.iter().map(render::redrive).collect(), next_cursor })
    };
    respond(answer.await, &id)
}

/// Show a redrive
#[utoipa::path(get, path = "/api/v1/redrives/{id}", operation_id = "get_redrive", tag = "dead letters", params(("id" = String, Path, description = "rd_<ULID>")), security(("api_key" = ["read"])),
    responses((status = 200, body = Redrive, description = "The redrive")))]
pub async fn show(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(redrive): Path<String>,
) -> Response {
    let answer = async {
        let found = app.engine.redrive_view(redrive_id(&redrive)?, &caller.reach()).await?;
        found.as_ref().map(render::redrive).ok_or(Fault::RedriveNotFound)
    };
    respond(answer.await, &id)
}

/// Pause a redrive
///
/// A step that is under way, up to 500 tasks, still ends. Nothing happens to a redrive that is done.
#[utoipa::path(post, path = "/api/v1/redrives/{id}/pause", operation_id = "pause_redrive", tag = "dead letters", params(("id" = String, Path, description = "rd_<ULID>")), security(("api_key" = ["api"])),
    responses((status = 200, body = Redrive, description = "The redrive")))]
pub async fn pause(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(redrive): Path<String>,
) -> Response {
    change(&app, &caller, &id, &redrive, RedriveChange::Pause).await
}

/// Resume a paused redrive
#[utoipa::path(post, path = "/api/v1/redrives/{id}/resume", operation_id = "resume_redrive", tag = "dead letters", params(("id" = String, Path, description = "rd_<ULID>")), security(("api_key" = ["api"])),
    responses((status = 200, body = Redrive, description = "The redrive")))]
pub async fn resume(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(redrive): Path<String>,
) -> Response {
    change(&app, &caller, &id, &redrive, RedriveChange::Resume).await
}

/// End a redrive
///
/// What was released stays released. A step that is under way, up to 500 tasks, still ends.
#[utoipa::path(post, path = "/api/v1/redrives/{id}/cancel", operation_id = "cancel_redrive", tag = "dead letters", params(("id" = String, Path, description = "rd_<ULID>")), security(("api_key" = ["api"])),
    responses((status = 200, body = Redrive, description = "The redrive")))]
pub async fn cancel(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(redrive): Path<String>,
) -> Response {
    change(&app, &caller, &id, &redrive, RedriveChange::Cancel).await
}

async fn change(app: &App, caller: &Caller, id: &RequestId, redrive: &str, change: RedriveChange) -> Response {
    let action = match change {
        RedriveChange::Pause => "redrive.pause",
        RedriveChange::Resume => "redrive.resume",
        RedriveChange::Cancel => "redrive.cancel",
    };
    let answer = async {
        let found = app.engine.change_redrive(redrive_id(redrive)?, &caller.reach(), change).await?;
        found.as_ref().map(render::redrive).ok_or(Fault::RedriveNotFound)
    };
    let released = |redrive: &Redrive| Some(format!("{} of {} released", redrive.released, redrive.matched));
    let answer = audit::operation_about(app, caller, id, action, redrive, answer.await, released).await;
    respond(answer, id)
}
