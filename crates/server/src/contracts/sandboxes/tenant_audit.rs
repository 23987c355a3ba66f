//! Everything that the audit has about a tenant.

use axum::Router;
use axum::extract::{Extension, Path, State};
use axum::response::Response;
use axum::routing::get;
use tenure_contract::admin::AdminAuditRow;
use tenure_contract::sandboxes::TenantAudit;
use tenure_engine::store::{AdminAuditFilter, OperationAuditFilter};

use super::policies::within_reach;
use super::respond;
use crate::access::guard::User;
use crate::api::admin::audit::operation_row;
use crate::request::RequestId;
use crate::state::App;
use crate::tenants::unavailable;

/// Rows of each kind, newest first.
const ROWS: usize = 500;

pub fn router() -> Router<App> {
    Router::new().route("/api/v1/admin/tenants/{tenant}/audit", get(export))
}

/// Export the audit of a tenant
#[utoipa::path(get, path = "/api/v1/admin/tenants/{tenant}/audit", operation_id = "export_tenant_audit", tag = "admin", params(("tenant" = String, Path)), security(("api_key" = ["tenant:admin"])),
    responses((status = 200, body = TenantAudit, description = "The newest rows of each kind")))]
pub async fn export(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(tenant): Path<String>,
) -> Response {
    let answer = async {
        let tenant = within_reach(&caller, &tenant)?;
        let identity = app.engine.identity();
        let of_tenant = Some(tenant.to_owned());
        let admin = AdminAuditFilter { tenant: of_tenant.clone(), limit: ROWS, ..AdminAuditFilter::default() };
        let admin = identity.admin_audit(&admin).await.map_err(unavailable)?;
        let operations = OperationAuditFilter { tenant: of_tenant, limit: ROWS, ..OperationAuditFilter::default() };
        let operations = identity.operation_audit(&operations).await.map_err(unavailable)?;
        let now = app.engine.now().await?;
        Ok(TenantAudit {
            tenant_id: tenant.to_owned(),
            admin_audit: admin
                .items
                .into_iter()
                .map(|row| AdminAuditRow {
                    id: row.id,
                    actor: row.entry.actor,
                    method: row.entry.method,
                    path: row.entry.path,
                    status: row.entry.status,
                    duration_ms: row.entry.duration_ms,
                    request_id: row.entry.request_id,
                    remote_addr: row.entry.remote_addr,
                    user_agent: row.entry.user_agent.unwrap_or_default(),
                    tenant_id: row.entry.tenant.unwrap_or_default(),
                    created_at: row.at.to_string(),
                })
                .collect(),
            op_audit: operations.items.into_iter().map(operation_row).collect(),
            exported_at: now.to_string(),
        })
    };
    respond(answer.await, &id)
}
