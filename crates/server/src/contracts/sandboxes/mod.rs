//! The user API of sandboxes. Clients of it exist, so its shapes are those of its own contract.
//!
//! The manager of the engine decides about sandboxes; calls that only pass through, as commands and files do, go from here
//! to the worker of the sandbox.

pub mod diagnostics;
pub mod environments;
pub mod errors;
pub mod exec;
pub mod files;
pub mod fleet;
pub mod lifecycle;
pub mod logs;
pub mod members;
pub mod params;
pub mod policies;
pub mod proxy;
pub mod quotas;
pub mod render;
pub mod snapshots;
pub mod socket;
pub mod stream;
pub mod templates;
pub mod tenant_audit;
pub mod workers;

pub use params::Params;

/// The handlers, for the document.
pub mod paths {
    pub use super::{
        diagnostics, environments, exec, files, fleet, lifecycle, logs, members, policies, proxy, quotas, snapshots,
        socket, templates, tenant_audit, workers,
    };
}

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use bytes::Bytes;
use serde::Serialize;

use super::Dialect;
use crate::access::caller::Caller;
use crate::error::Fault;
use crate::memory::Room;
use crate::request::RequestId;
use crate::state::App;

/// Names where a longer list goes on.
const NEXT_CURSOR: &str = "x-next-cursor";
/// Large answers are handed to the connection in pieces, so that their memory is counted until the last one.
const PIECE_BYTES: usize = 256 << 10;

pub const DIALECT: Dialect = Dialect { name: None, owns, router, refuse: errors::refuse };

/// The first parts of paths that belong to this contract.
const ROOTS: [&str; 11] = [
    "sandboxes",
    "snapshots",
    "templates",
    "pool",
    "providers",
    "workers",
    "quotas",
    "diagnostics",
    "system",
    "environments",
    "policies",
];
/// Of these, what stands below `/api/v1/admin/`.
const ADMIN_ROOTS: [&str; 6] = ["workers", "providers", "quotas", "diagnostics", "metrics", "policies"];

fn owns(path: &str) -> bool {
    let Some(rest) = path.strip_prefix("/api/v1/") else { return false };
    let mut parts = rest.split('/');
    match parts.next() {
        Some("metrics") => parts.next().is_none(),
        Some("admin") => match parts.next() {
            Some("tenants") => parts.nth(1).is_some_and(|part| matches!(part, "policies" | "audit" | "members")),
            Some(root) => ADMIN_ROOTS.contains(&root),
            None => false,
        },
        Some(root) => ROOTS.contains(&root),
        None => false,
    }
}

fn router() -> Router<App> {
    Router::new()
        .merge(lifecycle::router())
        .merge(exec::router())
        .merge(files::router())
        .merge(logs::router())
        .merge(snapshots::router())
        .merge(proxy::router())
        .merge(templates::router())
        .merge(fleet::router())
        .merge(workers::router())
        .merge(quotas::router())
        .merge(policies::router())
        .merge(members::router())
        .merge(tenant_audit::router())
        .merge(diagnostics::router())
        .merge(environments::router())
}

/// The answer of most handlers.
fn respond<T: Serialize>(answer: Result<T, Fault>, id: &RequestId) -> Response {
    respond_with(StatusCode::OK, answer, id)
}

fn respond_with<T: Serialize>(status: StatusCode, answer: Result<T, Fault>, id: &RequestId) -> Response {
    match answer {
        Ok(body) => (status, Json(body)).into_response(),
        Err(fault) => errors::refuse(fault, id),
    }
}

/// The answer of a handler whose answers can be large: its memory counts for the tenant of the caller.
async fn respond_whole<T: Serialize>(app: &App, caller: &Caller, answer: Result<T, Fault>, id: &RequestId) -> Response {
    let counted = async {
        let bytes = serde_json::to_vec(&answer?).map_err(|_| Fault::Internal)?;
        let mut room = app.sandboxes()?.bounds.room(&caller.share());
        room.enlarge(bytes.len()).await?;
        Ok((bytes, room))
    };
    match counted.await {
        Ok((bytes, room)) => whole(bytes.into(), room),
        Err(fault) => errors::refuse(fault, id),
    }
}

/// A JSON answer whose memory is counted until it has been sent.
fn whole(bytes: Bytes, room: Room) -> Response {
    let length = bytes.len();
    let pieces = futures_util::stream::unfold((bytes, room), |(mut bytes, room)| async move {
        let piece = bytes.split_to(bytes.len().min(PIECE_BYTES));
        (!piece.is_empty()).then_some((Ok::<_, std::convert::Infallible>(piece), (bytes, room)))
    });
    let mut response = Body::from_stream(pieces).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    response
}
