//! Policies on what sandboxes may be: of a tenant, and for all.

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get};
use tenure_contract::sandboxes::{PoliciesBody, PolicyBody, PolicyWrite};

use super::errors::refuse;
use super::{params, render, respond, respond_with};
use crate::access::caller::Caller;
use crate::access::guard::User;
use crate::error::{Fault, SandboxFault, SandboxFaultKind, Thing};
use crate::request::RequestId;
use crate::state::App;
use crate::validate;

const PRIORITY_DEFAULT: i64 = 10;

pub fn router() -> Router<App> {
    Router::new()
        .route("/api/v1/admin/policies", get(list_global).post(create_global))
        .route("/api/v1/admin/policies/{policy}", delete(delete_global))
        .route("/api/v1/admin/tenants/{tenant}/policies", get(list).post(create))
        .route("/api/v1/admin/tenants/{tenant}/policies/{policy}", delete(remove))
}

/// The tenant of the path, if the caller may administer it.
pub fn within_reach<'a>(caller: &Caller, tenant: &'a str) -> Result<&'a str, Fault> {
    let is_name = validate::scope(tenant, "tenant").is_ok();
    let covers = caller.tenant.as_deref().is_none_or(|own| own == tenant);
    if is_name && covers { Ok(tenant) } else { Err(Fault::NotFound(Thing::Tenant)) }
}

/// What holds for every tenant is for admins of all.
fn over_all(caller: &Caller) -> Result<(), Fault> {
    match caller.tenant {
        None => Ok(()),
        Some(_) => Err(crate::error::Forbidden::Tenant.into()),
    }
}

async fn stored(
    app: &App,
    caller: &Caller,
    tenant: Option<&str>,
    headers: &HeaderMap,
    body: Body,
) -> Result<PolicyBody, Fault> {
    let (asked, _room): (PolicyWrite, _) = params::read(app, caller, headers, body).await?;
    let priority = asked.priority.unwrap_or(PRIORITY_DEFAULT);
    let manager = &app.sandboxes()?.manager;
    let row = manager.create_policy(tenant, &asked.resource_type, &asked.effect, &asked.pattern, priority).await?;
    Ok(PolicyBody { policy: render::policy(&row) })
}

async fn removed(app: &App, tenant: Option<&str>, policy: &str) -> Result<(), Fault> {
    let known = !policy.contains('\0') && app.sandboxes()?.manager.delete_policy(tenant, policy).await?;
    if known { Ok(()) } else { Err(SandboxFault::fault(SandboxFaultKind::NotFound, "no such policy")) }
}

fn gone(answer: Result<(), Fault>, id: &RequestId) -> Response {
    match answer {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(fault) => refuse(fault, id),
    }
}

/// List the policies for all tenants
#[utoipa::path(get, path = "/api/v1/admin/policies", operation_id = "list_global_policies", tag = "policies", security(("api_key" = ["admin"])),
    responses((status = 200, body = PoliciesBody, description = "The policies, in the order in which they decide")))]
pub async fn list_global(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
) -> Response {
    let answer = async {
        over_all(&caller)?;
        // No tenant has an empty name.
        let rows = app.sandboxes()?.manager.policies("").await?;
        let policies = rows.iter().filter(|row| row.tenant.is_none()).map(render::policy).collect();
        Ok(PoliciesBody { policies })
    };
    respond(answer.await, &id)
}

/// Create a policy for all tenants
#[utoipa::path(post, path = "/api/v1/admin/policies", operation_id = "create_global_policy", tag = "policies", request_body = PolicyWrite, security(("api_key" = ["admin"])),
    responses((status = 201, body = PolicyBody, description = "The policy")))]
pub async fn create_global(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        over_all(&caller)?;
        stored(&app, &caller, None, &headers, body).await
    };
    respond_with(StatusCode::CREATED, answer.await, &id)
}

/// Delete a policy for all tenants
#[utoipa::path(delete, path = "/api/v1/admin/policies/{policy}", operation_id = "delete_global_policy", tag = "policies", params(("policy" = String, Path)), security(("api_key" = ["admin"])),
    responses((status = 204, description = "deleted")))]
pub async fn delete_global(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(policy): Path<String>,
) -> Response {
    let answer = async {
        over_all(&caller)?;
        removed(&app, None, &policy).await
    };
    gone(answer.await, &id)
}

/// List the policies of a tenant, with those for all
#[utoipa::path(get, path = "/api/v1/admin/tenants/{tenant}/policies", operation_id = "list_policies", tag = "policies", params(("tenant" = String, Path)), security(("api_key" = ["tenant:admin"])),
    responses((status = 200, body = PoliciesBody, description = "The policies, in the order in which they decide")))]
pub async fn list(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(tenant): Path<String>,
) -> Response {
    let answer = async {
        let rows = app.sandboxes()?.manager.policies(within_reach(&caller, &tenant)?).await?;
        Ok(PoliciesBody { policies: rows.iter().map(render::policy).collect() })
    };
    respond(answer.await, &id)
}

/// Create a policy of a tenant
#[utoipa::path(post, path = "/api/v1/admin/tenants/{tenant}/policies", operation_id = "create_policy", tag = "policies", params(("tenant" = String, Path)), request_body = PolicyWrite, security(("api_key" = ["tenant:admin"])),
    responses((status = 201, body = PolicyBody, description = "The policy")))]
pub async fn create(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(tenant): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async { stored(&app, &caller, Some(within_reach(&caller, &tenant)?), &headers, body).await };
    respond_with(StatusCode::CREATED, answer.await, &id)
}

/// Delete a policy of a tenant
#[utoipa::path(delete, path = "/api/v1/admin/tenants/{tenant}/policies/{policy}", operation_id = "delete_policy", tag = "policies", params(("tenant" = String, Path), ("policy" = String, Path)), security(("api_key" = ["tenant:admin"])),
    responses((status = 204, description = "deleted")))]
pub async fn remove(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path((tenant, policy)): Path<(String, String)>,
) -> Response {
    let answer = async { removed(&app, Some(within_reach(&caller, &tenant)?), &policy).await };
    gone(answer.await, &id)
}
