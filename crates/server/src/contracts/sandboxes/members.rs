//! Who is listed as a member of a tenant. What callers may do is decided by their keys and tokens, never by this list.

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use serde::de::DeserializeOwned;
use tenure_auth::Role;
use tenure_contract::sandboxes::{Member, MemberBody, MemberCreate, MemberWrite, MembersBody};
use tenure_engine::store::{MEMBERS_MAX, MemberRow};

use super::errors::refuse;
use super::policies::within_reach;
use super::{respond, respond_with};
use crate::access::guard::User;
use crate::error::{Fault, SandboxFault, SandboxFaultKind};
use crate::request::{self, RequestId};
use crate::state::App;
use crate::tenants::unavailable;
use crate::validate;

const BODY_BYTES: usize = 64 << 10;

pub fn router() -> Router<App> {
    Router::new()
        .route("/api/v1/admin/tenants/{tenant}/members", get(list).post(create))
        .route("/api/v1/admin/tenants/{tenant}/members/{user}", put(set).delete(remove))
}

fn shown(tenant: &str, row: MemberRow) -> Member {
    let created_at = row.created_at.to_string();
    Member { tenant_id: tenant.to_owned(), user_id: row.user_id, role: row.role, created_at }
}

/// Of any type, as all routes of this contract read bodies.
async fn read<T: DeserializeOwned>(headers: &HeaderMap, body: Body) -> Result<T, Fault> {
    request::read_any(headers, body, BODY_BYTES).await?.decode()
}

async fn stored(app: &App, tenant: &str, user: &str, role: &str) -> Result<MemberBody, Fault> {
    let user = validate::owner(user, "user_id")?;
    let role = Role::parse(role)
        .ok_or_else(|| Fault::bad("role", "role must be viewer, api, operator, tenant_admin or admin"))?;
    let row = app.engine.identity().put_member(tenant, &user, role.as_str()).await.map_err(unavailable)?;
    let row = row.ok_or_else(|| {
        let message = format!("this tenant has {MEMBERS_MAX} members, the maximum: remove some");
        SandboxFault::with_reason(SandboxFaultKind::Limit, message, "max_members")
    })?;
    Ok(MemberBody { member: shown(tenant, row) })
}

/// List the members of a tenant
#[utoipa::path(get, path = "/api/v1/admin/tenants/{tenant}/members", operation_id = "list_members", tag = "admin", params(("tenant" = String, Path)), security(("api_key" = ["tenant:admin"])),
    responses((status = 200, body = MembersBody, description = "The members, by user")))]
pub async fn list(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(tenant): Path<String>,
) -> Response {
    let answer = async {
        let tenant = within_reach(&caller, &tenant)?;
        let rows = app.engine.identity().members(tenant).await.map_err(unavailable)?;
        Ok(MembersBody { members: rows.into_iter().map(|row| shown(tenant, row)).collect() })
    };
    respond(answer.await, &id)
}

/// Add a member to a tenant
#[utoipa::path(post, path = "/api/v1/admin/tenants/{tenant}/members", operation_id = "create_member", tag = "admin", params(("tenant" = String, Path)), request_body = MemberCreate, security(("api_key" = ["tenant:admin"])),
    responses((status = 201, body = MemberBody, description = "The member")))]
pub async fn create(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(tenant): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let tenant = within_reach(&caller, &tenant)?;
        let asked: MemberCreate = read(&headers, body).await?;
        stored(&app, tenant, &asked.user_id, &asked.role).await
    };
    respond_with(StatusCode::CREATED, answer.await, &id)
}

/// Set the role of a member
#[utoipa::path(put, path = "/api/v1/admin/tenants/{tenant}/members/{user}", operation_id = "set_member", tag = "admin", params(("tenant" = String, Path), ("user" = String, Path)), request_body = MemberWrite, security(("api_key" = ["tenant:admin"])),
    responses((status = 200, body = MemberBody, description = "The member")))]
pub async fn set(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path((tenant, user)): Path<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let tenant = within_reach(&caller, &tenant)?;
        let asked: MemberWrite = read(&headers, body).await?;
        stored(&app, tenant, &user, &asked.role).await
    };
    respond(answer.await, &id)
}

/// Remove a member from a tenant
#[utoipa::path(delete, path = "/api/v1/admin/tenants/{tenant}/members/{user}", operation_id = "delete_member", tag = "admin", params(("tenant" = String, Path), ("user" = String, Path)), security(("api_key" = ["tenant:admin"])),
    responses((status = 204, description = "removed")))]
pub async fn remove(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path((tenant, user)): Path<(String, String)>,
) -> Response {
    let answer = async {
        let tenant = within_reach(&caller, &tenant)?;
        let user = validate::owner(&user, "user_id")?;
        if app.engine.identity().delete_member(tenant, &user).await.map_err(unavailable)? {
            return Ok(());
        }
        Err(SandboxFault::fault(SandboxFaultKind::NotFound, "no such member"))
    };
    match answer.await {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(fault) => refuse(fault, &id),
    }
}
