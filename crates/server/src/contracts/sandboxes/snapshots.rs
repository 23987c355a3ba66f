//! Snapshots: the files of a sandbox, kept at the control plane.

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::{get, post};
use tenure_contract::sandboxes::{Outcome, RestoreRequest, Sandbox, Snapshot, SnapshotWrite};

use super::lifecycle::{asker, shown};
use super::{params, render, respond, respond_whole, respond_with};
use crate::access::guard::User;
use crate::error::{Fault, SandboxFault, SandboxFaultKind};
use crate::request::RequestId;
use crate::sandboxes::calls::known;
use crate::sandboxes::is_id;
use crate::state::App;

pub fn router() -> Router<App> {
    Router::new()
        .route("/api/v1/sandboxes/{id}/snapshots", post(create).get(list_of))
        .route("/api/v1/sandboxes/{id}/restore", post(restore))
        .route("/api/v1/snapshots", get(list))
        .route("/api/v1/snapshots/{id}", get(show).delete(delete))
}

fn known_snapshot(id: &str) -> Result<(), Fault> {
    if is_id(id, "snap-") {
        return Ok(());
    }
    Err(SandboxFault::fault(SandboxFaultKind::NotFound, "no such snapshot"))
}

/// Take a snapshot of a sandbox
#[utoipa::path(post, path = "/api/v1/sandboxes/{id}/snapshots", operation_id = "create_snapshot", tag = "snapshots", params(("id" = String, Path)), request_body = SnapshotWrite, security(("api_key" = ["api"])),
    responses((status = 201, body = Snapshot, description = "The snapshot")))]
pub async fn create(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(sandbox): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let (asked, _room): (SnapshotWrite, _) = params::read(&app, &caller, &headers, body).await?;
        known(&sandbox)?;
        let name = asked.name.unwrap_or_default();
        if name.chars().any(char::is_control) {
            return Err(Fault::bad("name", "name must not contain control characters"));
        }
        let row = app.sandboxes()?.manager.create_snapshot(&sandbox, &name, &asker(&caller, &id)).await?;
        Ok(render::snapshot(&row))
    };
    respond_with(StatusCode::CREATED, answer.await, &id)
}

/// List the snapshots of a sandbox, newest first
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}/snapshots", operation_id = "list_sandbox_snapshots", tag = "snapshots", params(("id" = String, Path)), security(("api_key" = ["read"])),
    responses((status = 200, body = Vec<Snapshot>, description = "The snapshots")))]
pub async fn list_of(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(sandbox): Path<String>,
) -> Response {
    let answer = async {
        known(&sandbox)?;
        let manager = &app.sandboxes()?.manager;
        // Snapshots outlive their sandbox, which must have been the caller's.
        if manager.stored(&sandbox, &asker(&caller, &id)).await?.is_none() {
            return Err(SandboxFault::fault(SandboxFaultKind::NotFound, "no such sandbox"));
        }
        let rows = manager.snapshots(&caller.reach(), Some(&sandbox)).await?;
        Ok(rows.iter().map(render::snapshot).collect::<Vec<_>>())
    };
    respond_whole(&app, &caller, answer.await, &id).await
}

/// Restore a sandbox from a snapshot
///
/// Stops its processes and replaces its files.
#[utoipa::path(post, path = "/api/v1/sandboxes/{id}/restore", operation_id = "restore_sandbox", tag = "snapshots", params(("id" = String, Path)), request_body = RestoreRequest, security(("api_key" = ["api"])),
    responses((status = 200, body = Sandbox, description = "The sandbox"), (status = 409, body = tenure_contract::sandboxes::SandboxError, description = "a command runs in it")))]
pub async fn restore(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(sandbox): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let (asked, _room): (RestoreRequest, _) = params::read(&app, &caller, &headers, body).await?;
        if asked.snapshot.is_empty() {
            return Err(Fault::bad("snapshot", "snapshot is required"));
        }
        known(&sandbox)?;
        known_snapshot(&asked.snapshot)?;
        let row = app.sandboxes()?.manager.restore(&sandbox, &asked.snapshot, &asker(&caller, &id)).await?;
        shown(&app, &row).await
    };
    respond(answer.await, &id)
}

/// List snapshots, newest first
#[utoipa::path(get, path = "/api/v1/snapshots", operation_id = "list_snapshots", tag = "snapshots", security(("api_key" = ["read"])),
    responses((status = 200, body = Vec<Snapshot>, description = "The snapshots")))]
pub async fn list(State(app): State<App>, Extension(id): Extension<RequestId>, Extension(caller): User) -> Response {
    let answer = async {
        let rows = app.sandboxes()?.manager.snapshots(&caller.reach(), None).await?;
        Ok(rows.iter().map(render::snapshot).collect::<Vec<_>>())
    };
    respond_whole(&app, &caller, answer.await, &id).await
}

/// Show a snapshot
#[utoipa::path(get, path = "/api/v1/snapshots/{id}", operation_id = "get_snapshot", tag = "snapshots", params(("id" = String, Path)), security(("api_key" = ["read"])),
    responses((status = 200, body = Snapshot, description = "The snapshot")))]
pub async fn show(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(snapshot): Path<String>,
) -> Response {
    let answer = async {
        known_snapshot(&snapshot)?;
        Ok(render::snapshot(&app.sandboxes()?.manager.snapshot(&snapshot, &caller.reach()).await?))
    };
    respond(answer.await, &id)
}

/// Delete a snapshot
#[utoipa::path(delete, path = "/api/v1/snapshots/{id}", operation_id = "delete_snapshot", tag = "snapshots", params(("id" = String, Path)), security(("api_key" = ["api"])),
    responses((status = 200, body = Outcome, description = "deleted")))]
pub async fn delete(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(snapshot): Path<String>,
) -> Response {
    let answer = async {
        known_snapshot(&snapshot)?;
        app.sandboxes()?.manager.delete_snapshot(&snapshot, &caller.reach()).await?;
        Ok(Outcome::new("deleted"))
    };
    respond(answer.await, &id)
}
