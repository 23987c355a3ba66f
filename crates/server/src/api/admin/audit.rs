//! The audit: as JSON, or as CSV for a spreadsheet.

use axum::Router;
use axum::extract::{Extension, State};
use axum::http::{HeaderValue, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::{Deserialize, Serialize};
use tenure_contract::admin::{AdminAuditRow, OperationAuditRow};
use tenure_contract::user::Page;
use tenure_engine::store::{self, AdminAuditFilter, OperationAuditFilter};

use crate::access::guard::User;
use crate::api::errors::refuse;
use crate::api::query;
use crate::error::Fault;
use crate::request::RequestId;
use crate::state::App;
use crate::tenants::unavailable;

const LIMIT_DEFAULT: i64 = 100;
const LIMIT_MAX: i64 = 500;

pub fn router() -> Router<App> {
    Router::new().route("/api/v1/admin/audit", get(admin)).route("/api/v1/audit", get(operations))
}

/// Filters of the audit of admins
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct AdminQuery {
    /// 1..=500, default 100
    #[param(minimum = 1, maximum = 500)]
    limit: Option<i64>,
    actor: Option<String>,
    method: Option<String>,
    status: Option<u16>,
    /// What the path begins with
    path: Option<String>,
    /// json, the default, or csv
    #[param(pattern = "^(json|csv)$")]
    format: Option<String>,
    cursor: Option<String>,
}

/// What admins did, newest first
#[utoipa::path(get, path = "/api/v1/admin/audit", operation_id = "list_admin_audit", tag = "admin", params(AdminQuery), security(("api_key" = ["admin"])),
    responses((status = 200, description = "A page of requests, as JSON or CSV", content((Vec<AdminAuditRow> = "application/json"), (String = "text/csv")))))]
pub async fn admin(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    uri: Uri,
) -> Response {
    let answer = async {
        let asked: AdminQuery = query(&uri)?;
        let csv = wants_csv(asked.format.as_deref())?;
        let filter = AdminAuditFilter {
            actor: asked.actor,
            method: asked.method.map(|method| method.to_ascii_uppercase()),
            status: asked.status,
            path: asked.path,
            tenant: caller.tenant.map(|tenant| tenant.to_string()),
            before: before(asked.cursor.as_deref())?,
            limit: limit(asked.limit)?,
        };
        let page = app.engine.identity().admin_audit(&filter).await.map_err(unavailable)?;
        let rows = page.items.into_iter().map(|row| AdminAuditRow {
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
        });
        Ok::<_, Fault>((Page { items: rows.collect::<Vec<_>>(), next_cursor: page.next }, csv))
    };
    match answer.await {
        Ok((page, true)) => csv(&ADMIN_COLUMNS, page.items.iter().map(admin_cells), page.next_cursor.as_deref()),
        Ok((page, false)) => list(&page.items, page.next_cursor.as_deref()),
        Err(fault) => refuse(fault, &id),
    }
}

const ADMIN_COLUMNS: [&str; 11] = [
    "id",
    "created_at",
    "actor",
    "method",
    "path",
    "status",
    "duration_ms",
    "request_id",
    "remote_addr",
    "user_agent",
    "tenant_id",
];

fn admin_cells(row: &AdminAuditRow) -> [String; 11] {
    [
        row.id.to_string(),
        row.created_at.clone(),
        row.actor.clone(),
        row.method.clone(),
        row.path.clone(),
        row.status.to_string(),
        row.duration_ms.to_string(),
        row.request_id.clone(),
        row.remote_addr.clone(),
        row.user_agent.clone(),
        row.tenant_id.clone(),
    ]
}

/// Filters of the audit of operations
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct OperationQuery {
    /// 1..=500, default 100
    #[param(minimum = 1, maximum = 500)]
    limit: Option<i64>,
    action: Option<String>,
    actor: Option<String>,
    /// json, the default, or csv
    #[param(pattern = "^(json|csv)$")]
    format: Option<String>,
    cursor: Option<String>,
}

/// What users changed, newest first
#[utoipa::path(get, path = "/api/v1/audit", operation_id = "list_audit", tag = "admin", params(OperationQuery), security(("api_key" = ["read"])),
    responses((status = 200, description = "A page of changes, as JSON or CSV", content((Vec<OperationAuditRow> = "application/json"), (String = "text/csv")))))]
pub async fn operations(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    uri: Uri,
) -> Response {
    let answer = async {
        let asked: OperationQuery = query(&uri)?;
        let csv = wants_csv(asked.format.as_deref())?;
        // Who sees only its own things sees only its own doings.
        let own = caller.owner.is_some().then(|| caller.actor.to_string());
        let actor = match (own, asked.actor) {
            (Some(own), Some(asked)) if own != asked => return Ok((Page { items: vec![], next_cursor: None }, csv)),
            (Some(own), _) => Some(own),
            (None, asked) => asked,
        };
        let filter = OperationAuditFilter {
            action: asked.action,
            actor,
            tenant: caller.tenant.map(|tenant| tenant.to_string()),
            before: before(asked.cursor.as_deref())?,
            limit: limit(asked.limit)?,
        };
        let page = app.engine.identity().operation_audit(&filter).await.map_err(unavailable)?;
        let rows = page.items.into_iter().map(operation_row);
        Ok::<_, Fault>((Page { items: rows.collect::<Vec<_>>(), next_cursor: page.next }, csv))
    };
    match answer.await {
        Ok((page, true)) => {
            csv(&OPERATION_COLUMNS, page.items.iter().map(operation_cells), page.next_cursor.as_deref())
        }
        Ok((page, false)) => list(&page.items, page.next_cursor.as_deref()),
        Err(fault) => refuse(fault, &id),
    }
}

/// As clients see a row.
pub fn operation_row(row: store::OperationAuditRow) -> OperationAuditRow {
    let entry = row.entry;
    OperationAuditRow {
        id: row.id,
        actor: entry.actor,
        action: entry.action,
        sandbox_id: entry.sandbox.unwrap_or_default(),
        resource: entry.resource,
        provider: row.provider.unwrap_or_default(),
        status: entry.status,
        detail: entry.detail.unwrap_or_default(),
        tenant_id: entry.tenant.unwrap_or_default(),
        request_id: entry.request_id.unwrap_or_default(),
        created_at: row.at.to_string(),
    }
}

const OPERATION_COLUMNS: [&str; 11] = [
    "id",
    "created_at",
    "actor",
    "action",
    "sandbox_id",
    "resource",
    "provider",
    "status",
    "detail",
    "tenant_id",
    "request_id",
];

fn operation_cells(row: &OperationAuditRow) -> [String; 11] {
    [
        row.id.to_string(),
        row.created_at.clone(),
        row.actor.clone(),
        row.action.clone(),
        row.sandbox_id.clone(),
        row.resource.clone(),
        row.provider.clone(),
        row.status.clone(),
        row.detail.clone(),
        row.tenant_id.clone(),
        row.request_id.clone(),
    ]
}

fn wants_csv(format: Option<&str>) -> Result<bool, Fault> {
    match format {
        None | Some("json") => Ok(false),
        Some("csv") => Ok(true),
        Some(_) => Err(Fault::invalid("format", "must be json or csv")),
    }
}

fn limit(asked: Option<i64>) -> Result<usize, Fault> {
    let limit = crate::validate::within(asked.unwrap_or(LIMIT_DEFAULT), 1, LIMIT_MAX, "limit")?;
    Ok(usize::try_from(limit).unwrap_or(1))
}

fn before(cursor: Option<&str>) -> Result<Option<i64>, Fault> {
    let parse = |text: &str| {
        text.parse().map_err(|_| Fault::invalid("cursor", "must be X-Next-Cursor of the previous page, unchanged"))
    };
    cursor.map(parse).transpose()
}

/// A page as a list. `X-Next-Cursor` says where the next one begins.
fn list<T: Serialize>(rows: &[T], next_cursor: Option<&str>) -> Response {
    followed(axum::Json(rows).into_response(), next_cursor)
}

fn followed(mut response: Response, next_cursor: Option<&str>) -> Response {
    if let Some(cursor) = next_cursor.and_then(|cursor| HeaderValue::from_str(cursor).ok()) {
        response.headers_mut().insert("x-next-cursor", cursor);
    }
    response
}

/// A page as a table.
fn csv<const N: usize>(
    columns: &[&str; N],
    rows: impl Iterator<Item = [String; N]>,
    next_cursor: Option<&str>,
) -> Response {
    let mut text = columns.join(",");
    text.push_str("\r\n");
    for row in rows {
        text.push_str(&row.each_ref().map(|cell| cell_of(cell)).join(","));
        text.push_str("\r\n");
    }
    let mut response = text.into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/csv; charset=utf-8"));
    followed(response, next_cursor)
}

/// A cell as RFC 4180 has it. One that a spreadsheet would take for a formula gets an apostrophe in front.
fn cell_of(text: &str) -> String {
    let formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']) && text != "-";
    let text = if formula { format!("'{text}") } else { text.to_owned() };
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_quoted_and_no_formula_is_left() {
        for (text, expected) in [
            ("plain", "plain"),
            ("a,b", "\"a,b\""),
            ("say \"x\"", "\"say \"\"x\"\"\""),
            ("=cmd()", "'=cmd()"),
            ("@x,y", "\"'@x,y\""),
            ("-", "-"),
        ] {
            assert_eq!(cell_of(text), expected);
        }
    }
}
