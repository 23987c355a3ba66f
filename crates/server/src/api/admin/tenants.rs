//! Tenants: what they have, and what they may have.

use std::collections::BTreeMap;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::Value;
use tenure_contract::admin::{Tenant, TenantBody, TenantCreate, TenantLimits, TenantSet, TenantUsage, TenantsBody};
use tenure_core::limits;
use tenure_core::tenant::TenantLimits as CoreLimits;
use tenure_engine::store::{TENANTS_MAX, TenantRecord, TenantRow};

use crate::access::caller::Caller;
use crate::access::guard::User;
use crate::api::errors::refuse;
use crate::api::{respond, respond_with};
use crate::error::{Fault, SandboxFault, SandboxFaultKind, Thing};
use crate::request::{self, RequestId};
use crate::state::App;
use crate::tenants::{from_wire, to_wire, unavailable};
use crate::validate;

const NAME_BYTES: usize = 256;
const SETTINGS_BYTES: usize = 64 << 10;

pub fn router() -> Router<App> {
    Router::new()
        .route("/api/v1/admin/tenants", get(list).post(create))
        .route("/api/v1/admin/tenants/{tenant}", get(show).put(set).delete(unset))
}

/// List tenants that have a record, or limits of their own
#[utoipa::path(get, path = "/api/v1/admin/tenants", operation_id = "list_tenants", tag = "admin", security(("api_key" = ["admin"])),
    responses((status = 200, body = TenantsBody, description = "The tenants")))]
pub async fn list(State(app): State<App>, Extension(id): Extension<RequestId>) -> Response {
    let answer = async {
        let mut rows: BTreeMap<String, Option<TenantRow>> = BTreeMap::new();
        let all = app.admission.tenants.limits().await?;
        rows.extend(all.keys().map(|name| (name.clone(), None)));
        let records = app.engine.identity().tenants().await.map_err(unavailable)?;
        rows.extend(records.into_iter().map(|row| (row.record.id.clone(), Some(row))));
        let tenants = rows.into_iter().map(|(id, row)| {
            let limits = all.get(&id).copied().unwrap_or_default();
            shown(&id, row, limits, None)
        });
        Ok(TenantsBody { tenants: tenants.collect() })
    };
    respond(answer.await, &id)
}

/// Create a tenant
///
/// Tenants can be used without being created: what this stores is their name, owner and settings.
#[utoipa::path(post, path = "/api/v1/admin/tenants", operation_id = "create_tenant", tag = "admin", request_body = TenantCreate, security(("api_key" = ["admin"])),
    responses((status = 201, body = TenantBody, description = "The tenant")))]
pub async fn create(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    headers: HeaderMap,
    request: Body,
) -> Response {
    let answer = async {
        let asked: TenantCreate = request::read(&headers, request, limits::BODY_BYTES).await?.decode()?;
        let tenant = match &asked.id {
            Some(id) => validate::scope(id, "id")?.to_string(),
            // Who is bound to a tenant can mean no other.
            None => caller.tenant.as_deref().map_or_else(random_id, ToOwned::to_owned),
        };
        within_reach(&caller, &tenant)?;
        let record = record(&tenant, asked.name, asked.owner_id, asked.settings)?;
        if !app.engine.identity().create_tenant(&record).await.map_err(unavailable)? {
            let known = app.engine.identity().tenant(&tenant).await.map_err(unavailable)?.is_some();
            let kind = if known { SandboxFaultKind::Conflict } else { SandboxFaultKind::Limit };
            let why = if known { format!("tenant {tenant} already exists") } else { too_many() };
            return Err(SandboxFault::fault(kind, why));
        }
        body(&app, &tenant).await
    };
    respond_with(StatusCode::CREATED, answer.await, &id)
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

/// Set the record of a tenant, or its limits
#[utoipa::path(put, path = "/api/v1/admin/tenants/{tenant}", operation_id = "set_tenant", tag = "admin", params(("tenant" = String, Path)), request_body = TenantSet, security(("api_key" = ["admin"])),
    responses((status = 200, body = TenantBody, description = "The tenant as it is now")))]
pub async fn set(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(tenant): Path<String>,
    headers: HeaderMap,
    request: Body,
) -> Response {
    let answer = async {
        let asked: TenantSet = request::read(&headers, request, limits::BODY_BYTES).await?.decode()?;
        if asked.submits_per_second.is_some_and(|rate| !rate.is_finite() || !(0.0..=1e9).contains(&rate)) {
            return Err(Fault::invalid("submits_per_second", "must be from 0 to 1000000000"));
        }
        let name = within_reach(&caller, &tenant)?;
        let TenantSet { max_ready, max_running, submits_per_second, max_payload_bytes, .. } = asked;
        let limits = TenantLimits { max_ready, max_running, submits_per_second, max_payload_bytes };
        let has_record = asked.name.is_some() || asked.owner_id.is_some() || asked.settings.is_some();
        if has_record {
            let record = record(name, asked.name, asked.owner_id, asked.settings)?;
            if !app.engine.identity().put_tenant(&record).await.map_err(unavailable)? {
                return Err(SandboxFault::fault(SandboxFaultKind::Limit, too_many()));
            }
        }
        if !has_record || limits != TenantLimits::default() {
            let own = (limits != TenantLimits::default()).then(|| from_wire(limits));
            app.admission.tenants.set(name, own).await?;
        }
        body(&app, name).await
    };
    respond(answer.await, &id)
}

/// Delete the record, the members and the limits of a tenant
///
/// Its tasks and sandboxes stay, and the limits of the configuration hold.
#[utoipa::path(delete, path = "/api/v1/admin/tenants/{tenant}", operation_id = "unset_tenant", tag = "admin", params(("tenant" = String, Path)), security(("api_key" = ["admin"])),
    responses((status = 204, description = "deleted")))]
pub async fn unset(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(tenant): Path<String>,
) -> Response {
    let answer = async {
        let name = within_reach(&caller, &tenant)?;
        app.admission.tenants.set(name, None).await?;
        app.engine.identity().delete_tenant(name).await.map_err(unavailable)?;
        Ok(())
    };
    match answer.await {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(fault) => refuse(fault, &id),
    }
}

fn random_id() -> String {
    format!("tenant-{:08x}", tenure_engine::random_bits() as u32)
}

fn too_many() -> String {
    format!("there are {TENANTS_MAX} tenants, the maximum: delete some")
}

/// What is stored about a tenant. Without a name it is called by its id.
fn record(
    id: &str,
    name: Option<String>,
    owner: Option<String>,
    settings: Option<Value>,
) -> Result<TenantRecord, Fault> {
    let name = name.filter(|name| !name.is_empty()).unwrap_or_else(|| id.to_owned());
    let name = validate::words(&name, "name", NAME_BYTES)?.to_string();
    let owner = owner.filter(|owner| !owner.is_empty());
    let owner = owner.map(|owner| validate::owner(&owner, "owner_id").map(|owner| owner.to_string())).transpose()?;
    let settings = settings.map(|settings| settings.to_string());
    if settings.as_ref().is_some_and(|settings| settings.len() > SETTINGS_BYTES || settings.contains("\\u0000")) {
        return Err(Fault::invalid("settings", "must have at most 65536 bytes as JSON, without NUL"));
    }
    Ok(TenantRecord { id: id.to_owned(), name, owner, settings })
}

fn shown(id: &str, row: Option<TenantRow>, limits: CoreLimits, usage: Option<TenantUsage>) -> Tenant {
    let times = row.as_ref().map(|row| (row.created_at.to_string(), row.updated_at.to_string()));
    let (created_at, updated_at) = times.unzip();
    let record = row.map(|row| row.record);
    let settings = record.as_ref().and_then(|record| record.settings.as_deref());
    Tenant {
        id: id.to_owned(),
        settings: settings.and_then(|settings| serde_json::from_str(settings).ok()),
        name: record.as_ref().map_or_else(|| id.to_owned(), |record| record.name.clone()),
        owner_id: record.and_then(|record| record.owner),
        created_at,
        updated_at,
        limits: to_wire(limits),
        usage,
    }
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
    let row = app.engine.identity().tenant(name).await.map_err(unavailable)?;
    Ok(TenantBody { tenant: shown(name, row, limits, Some(usage)) })
}
