//! Quotas of owners. An owner may read its own; admins read and set all.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::get;
use tenure_auth::UserScope;
use tenure_contract::sandboxes::{Outcome, Quota, QuotaSummary, QuotaUsage, QuotaWrite};
use tenure_core::time::{DurationMs, Timestamp};
use tenure_engine::sandboxes::TENANT_WIDE;
use tenure_engine::store::QuotaRow;

use super::{params, render, respond};
use crate::access::caller::Caller;
use crate::access::guard::User;
use crate::error::{Fault, SandboxFault, SandboxFaultKind};
use crate::request::RequestId;
use crate::sandboxes::duration_ms;
use crate::state::App;
use crate::validate;

pub fn router() -> Router<App> {
    Router::new()
        .route("/api/v1/quotas", get(list))
        .route("/api/v1/quotas/summary", get(summary))
        .route("/api/v1/quotas/{owner}", get(show).put(set).delete(delete))
        .route("/api/v1/quotas/{owner}/usage", get(usage))
        .route("/api/v1/admin/quotas", get(admin_list))
        .route("/api/v1/admin/quotas/summary", get(admin_summary))
        .route("/api/v1/admin/quotas/{owner}", get(admin_show).put(admin_set).delete(admin_delete))
        .route("/api/v1/admin/quotas/{owner}/usage", get(admin_usage))
}

/// Whose quotas the caller sees: those of a tenant for admins, its own for others.
fn only(caller: &Caller) -> Option<Arc<str>> {
    if caller.role.may(UserScope::Admin) { caller.owner.clone() } else { Some(own(caller)) }
}

/// A caller without an owner has none whose quota it could see.
fn own(caller: &Caller) -> Arc<str> {
    caller.subject.clone().unwrap_or_else(|| "".into())
}

/// The owner of a path, if its quota is the caller's to read.
fn readable(caller: &Caller, owner: &str) -> Result<Arc<str>, Fault> {
    let covered = only(caller).is_none_or(|own| *own == *owner);
    if covered { named(owner) } else { Err(not_found()) }
}

fn named(owner: &str) -> Result<Arc<str>, Fault> {
    if owner == TENANT_WIDE { Ok(owner.into()) } else { validate::owner(owner, "owner") }
}

fn not_found() -> Fault {
    SandboxFault::fault(SandboxFaultKind::NotFound, "no such quota")
}

async fn rows(app: &App, caller: &Caller) -> Result<Vec<QuotaRow>, Fault> {
    let only = only(caller);
    let rows = app.sandboxes()?.manager.quotas(Some(&caller.home())).await?;
    Ok(rows.into_iter().filter(|row| only.as_ref().is_none_or(|own| **own == *row.owner)).collect())
}

/// List quotas
#[utoipa::path(get, path = "/api/v1/quotas", operation_id = "list_quotas", tag = "quotas", security(("api_key" = ["read"])),
    responses((status = 200, body = Vec<Quota>, description = "The quotas, by owner")))]
pub async fn list(State(app): State<App>, Extension(id): Extension<RequestId>, Extension(caller): User) -> Response {
    let answer = rows(&app, &caller).await.map(|rows| rows.iter().map(render::quota).collect::<Vec<_>>());
    respond(answer, &id)
}

/// List quotas, for admins
#[utoipa::path(get, path = "/api/v1/admin/quotas", operation_id = "admin_list_quotas", tag = "quotas", security(("api_key" = ["admin"])),
    responses((status = 200, body = Vec<Quota>, description = "The quotas, by owner")))]
pub async fn admin_list(app: State<App>, id: Extension<RequestId>, caller: User) -> Response {
    list(app, id, caller).await
}

/// Count quotas
#[utoipa::path(get, path = "/api/v1/quotas/summary", operation_id = "summarize_quotas", tag = "quotas", security(("api_key" = ["read"])),
    responses((status = 200, body = QuotaSummary, description = "How many there are, and how many set what")))]
pub async fn summary(State(app): State<App>, Extension(id): Extension<RequestId>, Extension(caller): User) -> Response {
    respond(rows(&app, &caller).await.map(|rows| summed(&rows)), &id)
}

pub fn summed(rows: &[QuotaRow]) -> QuotaSummary {
    let count = |has: fn(&QuotaRow) -> bool| rows.iter().filter(|row| has(row)).count() as u64;
    QuotaSummary {
        total: rows.len() as u64,
        with_max_sandboxes: count(|row| row.max_sandboxes > 0),
        with_max_ttl: count(|row| row.max_ttl_ms > 0),
        with_max_exec_timeout: count(|row| row.max_exec_timeout_ms > 0),
    }
}

/// Count quotas, for admins
#[utoipa::path(get, path = "/api/v1/admin/quotas/summary", operation_id = "admin_summarize_quotas", tag = "quotas", security(("api_key" = ["admin"])),
    responses((status = 200, body = QuotaSummary, description = "How many there are, and how many set what")))]
pub async fn admin_summary(app: State<App>, id: Extension<RequestId>, caller: User) -> Response {
    summary(app, id, caller).await
}

/// Show the quota of an owner
#[utoipa::path(get, path = "/api/v1/quotas/{owner}", operation_id = "get_quota", tag = "quotas", params(("owner" = String, Path)), security(("api_key" = ["read"])),
    responses((status = 200, body = Quota, description = "The quota")))]
pub async fn show(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(owner): Path<String>,
) -> Response {
    let answer = async {
        let owner = readable(&caller, &owner)?;
        let row = app.sandboxes()?.manager.quota(&caller.home(), &owner).await?;
        row.as_ref().map(render::quota).ok_or_else(not_found)
    };
    respond(answer.await, &id)
}

/// Show the quota of an owner, for admins
#[utoipa::path(get, path = "/api/v1/admin/quotas/{owner}", operation_id = "admin_get_quota", tag = "quotas", params(("owner" = String, Path)), security(("api_key" = ["admin"])),
    responses((status = 200, body = Quota, description = "The quota")))]
pub async fn admin_show(app: State<App>, id: Extension<RequestId>, caller: User, owner: Path<String>) -> Response {
    show(app, id, caller, owner).await
}

/// Show what an owner has and may have
#[utoipa::path(get, path = "/api/v1/quotas/{owner}/usage", operation_id = "get_quota_usage", tag = "quotas", params(("owner" = String, Path)), security(("api_key" = ["read"])),
    responses((status = 200, body = QuotaUsage, description = "The use")))]
pub async fn usage(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(owner): Path<String>,
) -> Response {
    let answer = async {
        let owner = readable(&caller, &owner)?;
        let usage = app.sandboxes()?.manager.owner_usage(&caller.home(), &owner).await?;
        let limit = |ms: DurationMs| if ms > 0 { render::canonical(ms) } else { String::new() };
        Ok(QuotaUsage {
            owner_id: usage.owner.to_string(),
            active_sandboxes: usage.active_sandboxes,
            max_sandboxes: usage.max_sandboxes,
            max_ttl: limit(usage.max_ttl_ms),
            max_exec_timeout: limit(usage.max_exec_timeout_ms),
            quota_configured: usage.is_configured,
        })
    };
    respond(answer.await, &id)
}

/// Show what an owner has and may have, for admins
#[utoipa::path(get, path = "/api/v1/admin/quotas/{owner}/usage", operation_id = "admin_get_quota_usage", tag = "quotas", params(("owner" = String, Path)), security(("api_key" = ["admin"])),
    responses((status = 200, body = QuotaUsage, description = "The use")))]
pub async fn admin_usage(app: State<App>, id: Extension<RequestId>, caller: User, owner: Path<String>) -> Response {
    usage(app, id, caller, owner).await
}

/// Set the quota of an owner
///
/// The owner `*` stands for all sandboxes of the tenant together.
#[utoipa::path(put, path = "/api/v1/quotas/{owner}", operation_id = "set_quota", tag = "quotas", params(("owner" = String, Path)), request_body = QuotaWrite, security(("api_key" = ["admin"])),
    responses((status = 200, body = Quota, description = "The quota")))]
pub async fn set(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(owner): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let (asked, _room): (QuotaWrite, _) = params::read(&app, &caller, &headers, body).await?;
        let now = Timestamp::from_millis(0);
        let row = QuotaRow {
            tenant: caller.home(),
            owner: named(&owner)?,
            max_sandboxes: asked.max_sandboxes,
            max_ttl_ms: seconds(&asked.max_ttl, "max_ttl")?,
            max_exec_timeout_ms: seconds(&asked.max_exec_timeout, "max_exec_timeout")?,
            // The store says when.
            created_at: now,
            updated_at: now,
        };
        Ok(render::quota(&app.sandboxes()?.manager.put_quota(&row).await?))
    };
    respond(answer.await, &id)
}

/// A limit in whole seconds; blank is none.
fn seconds(text: &str, field: &str) -> Result<DurationMs, Fault> {
    if text.is_empty() {
        return Ok(0);
    }
    let ms = duration_ms(text, field)?;
    Ok(if ms % 1000 == 0 { ms } else { (ms / 1000 + 1) * 1000 })
}

/// Set the quota of an owner, for admins
#[utoipa::path(put, path = "/api/v1/admin/quotas/{owner}", operation_id = "admin_set_quota", tag = "quotas", params(("owner" = String, Path)), request_body = QuotaWrite, security(("api_key" = ["admin"])),
    responses((status = 200, body = Quota, description = "The quota")))]
pub async fn admin_set(
    app: State<App>,
    id: Extension<RequestId>,
    caller: User,
    owner: Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    set(app, id, caller, owner, headers, body).await
}

/// Delete the quota of an owner
#[utoipa::path(delete, path = "/api/v1/quotas/{owner}", operation_id = "delete_quota", tag = "quotas", params(("owner" = String, Path)), security(("api_key" = ["admin"])),
    responses((status = 200, body = Outcome, description = "deleted")))]
pub async fn delete(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(owner): Path<String>,
) -> Response {
    let answer = async {
        let known = app.sandboxes()?.manager.delete_quota(&caller.home(), &named(&owner)?).await?;
        if known { Ok(Outcome::new("deleted")) } else { Err(not_found()) }
    };
    respond(answer.await, &id)
}

/// Delete the quota of an owner, for admins
#[utoipa::path(delete, path = "/api/v1/admin/quotas/{owner}", operation_id = "admin_delete_quota", tag = "quotas", params(("owner" = String, Path)), security(("api_key" = ["admin"])),
    responses((status = 200, body = Outcome, description = "deleted")))]
pub async fn admin_delete(app: State<App>, id: Extension<RequestId>, caller: User, owner: Path<String>) -> Response {
    delete(app, id, caller, owner).await
}
