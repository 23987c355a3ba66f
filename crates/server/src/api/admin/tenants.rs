//! Tenants: what they have, and what they may have.

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::get;
use tenure_contract::admin::{Tenant, TenantBody, TenantLimits, TenantUsage, TenantsBody};
use tenure_core::limits;

use crate::access::caller::Caller;
use crate::access::guard::User;
use crate::api::respond;
use crate::error::{Fault, Thing};
use crate::request::{self, RequestId};
use crate::state::App;
use crate::tenants::{from_wire, to_wire};
use crate::validate;

pub fn router() -> Router<App> {
    Router::new()
        .route("/api/v1/admin/tenants", get(list))
        .route("/api/v1/admin/tenants/{tenant}", get(show).put(set).delete(unset))
}

/// List tenants that have limits of their own
#[utoipa::path(get, path = "/api/v1/admin/tenants", operation_id = "list_tenants", tag = "admin", security(("api_key" = ["admin"])),
    responses((status = 200, body = TenantsBody, description = "The tenants")))]
pub async fn list(State(app): State<App>, Extension(id): Extension<RequestId>) -> Response {
    let answer = async {
        let all = app.admission.tenants.limits().await?;
        let mut tenants: Vec<Tenant> = all
            .iter()
            .map(|(name, limits)| Tenant { name: name.clone(), limits: to_wire(*limits), usage: None })
            .collect();
        tenants.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(TenantsBody { tenants })
    };
    respond(answer.await, &id)
}

/// Show what a tenant has and may have
#[utoipa::path(get, path = "/api/v1/admin/tenants/{tenant}", operation_id = "get_tenant", tag = "admin", params(("tenant" = String, Path)), security(("api_key" = ["tenant:admin"])),
    responses((status = 200, body = TenantBody, description = "The tenant")))]
pub async fn show(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(tenant): Path<String>,
) -> Response {
    let answer = async {
        let name = within_reach(&caller, &tenant)?;
        body(&app, name).await
    };
    respond(answer.await, &id)
}

/// Set the limits of a tenant
#[utoipa::path(put, path = "/api/v1/admin/tenants/{tenant}", operation_id = "set_tenant", tag = "admin", params(("tenant" = String, Path)), request_body = TenantLimits, security(("api_key" = ["admin"])),
    responses((status = 200, body = TenantBody, description = "The tenant with its new limits")))]
pub async fn set(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(tenant): Path<String>,
    headers: HeaderMap,
    request: Body,
) -> Response {
    let answer = async {
        let asked: TenantLimits = request::read(&headers, request, limits::BODY_BYTES).await?.decode()?;
        if asked.submits_per_second.is_some_and(|rate| !rate.is_finite() || !(0.0..=1e9).contains(&rate)) {
            return Err(Fault::invalid("submits_per_second", "must be from 0 to 1000000000"));
        }
        let name = within_reach(&caller, &tenant)?;
        app.admission.tenants.set(name, Some(from_wire(asked))).await?;
        body(&app, name).await
    };
    respond(answer.await, &id)
}

/// Take the limits of a tenant away; those of the configuration hold
#[utoipa::path(delete, path = "/api/v1/admin/tenants/{tenant}", operation_id = "unset_tenant", tag = "admin", params(("tenant" = String, Path)), security(("api_key" = ["admin"])),
    responses((status = 200, body = TenantBody, description = "The tenant with the limits of the configuration")))]
pub async fn unset(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(tenant): Path<String>,
) -> Response {
    let answer = async {
        let name = within_reach(&caller, &tenant)?;
        app.admission.tenants.set(name, None).await?;
        body(&app, name).await
    };
    respond(answer.await, &id)
}

fn within_reach<'a>(caller: &Caller, tenant: &'a str) -> Result<&'a str, Fault> {
    let is_name = validate::scope(tenant, "tenant").is_ok();
    let covers = caller.tenant.as_deref().is_none_or(|own| own == tenant);
    if is_name && covers { Ok(tenant) } else { Err(Fault::NotFound(Thing::Tenant)) }
}

async fn body(app: &App, name: &str) -> Result<TenantBody, Fault> {
    let limits = app.admission.tenants.limits().await?.get(name).copied().unwrap_or_default();
    let usage = app.admission.tenants.usage(name).await?;
    let usage = TenantUsage {
        ready: usage.ready,
        scheduled: usage.scheduled,
        running: usage.running,
        payload_bytes: usage.payload_bytes,
    };
    Ok(TenantBody { tenant: Tenant { name: name.to_owned(), limits: to_wire(limits), usage: Some(usage) } })
}
