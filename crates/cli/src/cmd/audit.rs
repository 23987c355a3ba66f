//! `tenure audit`

use jiff::Timestamp;
use tenure_client::{AdminAuditFilter, Client, CsvPage, OperationAuditFilter};
use tenure_contract::admin::{AdminAuditRow, OperationAuditRow};

use super::connect::{ClientArgs, pages};
use crate::exit::{CODES, Exit};
use crate::output::{self, cell, cell_or_dash, number};
use crate::times;

/// The largest page of the API.
const PAGE_MAX: u32 = 500;

#[derive(Debug, clap::Args)]
#[command(after_help = CODES)]
pub struct Args {
    /// What users changed, instead of what admins asked for
    #[arg(long)]
    operations: bool,
    /// Only what this actor did
    #[arg(long, value_name = "ACTOR")]
    actor: Option<String>,
    /// Only requests of this method, such as DELETE
    #[arg(long, value_name = "METHOD", conflicts_with = "operations")]
    method: Option<String>,
    /// Only requests that were answered with this status
    #[arg(long, value_name = "STATUS", conflicts_with = "operations")]
    status: Option<u16>,
    /// Only requests whose path begins so
    #[arg(long, value_name = "PATH", conflicts_with = "operations")]
    path: Option<String>,
    /// Only this kind of change, such as task.cancel
    #[arg(long, value_name = "ACTION", requires = "operations")]
    action: Option<String>,
    /// Maximum number to list, newest first
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// List everything, without a limit
    #[arg(long, conflicts_with = "limit")]
    all: bool,
    /// Print CSV
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    #[command(flatten)]
    client: ClientArgs,
}

pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let (client, json, csv) = (args.client.client()?, args.client.json, args.csv);
    let limit = if args.all { u32::MAX } else { args.limit };
    if args.operations {
        let filter = OperationAuditFilter { action: args.action, actor: args.actor, ..Default::default() };
        operations(&client, filter, limit, json, csv).await?;
    } else {
        let filter = AdminAuditFilter {
            actor: args.actor,
            method: args.method,
            status: args.status,
            path: args.path,
            ..Default::default()
        };
        requests(&client, filter, limit, json, csv).await?;
    }
    Ok(Exit::Ok)
}

async fn requests(client: &Client, filter: AdminAuditFilter, limit: u32, json: bool, csv: bool) -> anyhow::Result<()> {
    let page = |limit, cursor| AdminAuditFilter { limit: Some(limit), cursor, ..filter.clone() };
    if csv {
        return csv_pages(limit, async |limit, cursor| client.admin_audit_csv(&page(limit, cursor)).await).await;
    }
    let rows =
        pages(Some(limit), PAGE_MAX, async |limit, cursor| client.admin_audit(&page(limit, cursor)).await).await?;
    if json { output::json(&rows) } else { say(&rows.items, || requests_table(&rows.items, Timestamp::now())) }
}

async fn operations(
    client: &Client,
    filter: OperationAuditFilter,
    limit: u32,
    json: bool,
    csv: bool,
) -> anyhow::Result<()> {
    let page = |limit, cursor| OperationAuditFilter { limit: Some(limit), cursor, ..filter.clone() };
    if csv {
        return csv_pages(limit, async |limit, cursor| client.operation_audit_csv(&page(limit, cursor)).await).await;
    }
    let rows =
        pages(Some(limit), PAGE_MAX, async |limit, cursor| client.operation_audit(&page(limit, cursor)).await).await?;
    if json { output::json(&rows) } else { say(&rows.items, || operations_table(&rows.items, Timestamp::now())) }
}

/// Prints page after page, the line of column names once.
async fn csv_pages<E: Into<anyhow::Error>>(
    limit: u32,
    get: impl AsyncFn(u32, Option<String>) -> Result<CsvPage, E>,
) -> anyhow::Result<()> {
    let (mut missing, mut cursor, mut first) = (limit, None, true);
    while missing > 0 {
        let size = missing.min(PAGE_MAX);
        let page = get(size, cursor.take()).await.map_err(Into::into)?;
        let rows = if first { &*page.text } else { page.text.split_once('\n').map_or("", |(_names, rows)| rows) };
        if !rows.is_empty() {
            output::line(rows)?;
        }
        (missing, cursor, first) = (missing - size, page.next_cursor, false);
        if cursor.is_none() {
            break;
        }
    }
    Ok(())
}

fn say<T>(rows: &[T], table: impl FnOnce() -> String) -> anyhow::Result<()> {
    if rows.is_empty() { output::line("No entries.") } else { output::line(table()) }
}

fn requests_table(rows: &[AdminAuditRow], now: Timestamp) -> String {
    let rows = rows.iter().map(|row| {
        vec![
            cell(times::distance(&row.created_at, now)),
            cell(&row.actor),
            cell(&row.method),
            number(row.status),
            number(format!("{} ms", row.duration_ms)),
            cell(&row.remote_addr),
            cell(&row.path),
        ]
    });
    output::table(&["WHEN", "ACTOR", "METHOD", "STATUS", "TOOK", "FROM", "PATH"], rows)
}

fn operations_table(rows: &[OperationAuditRow], now: Timestamp) -> String {
    let some = |text: &String| (!text.is_empty()).then(|| text.clone());
    let rows = rows.iter().map(|row| {
        vec![
            cell(times::distance(&row.created_at, now)),
            cell(&row.actor),
            cell_or_dash(some(&row.tenant_id)),
            cell(&row.action),
            cell(&row.status),
            cell([row.sandbox_id.as_str(), &row.resource].join(" ").trim()),
            cell_or_dash(some(&row.detail)),
        ]
    });
    output::table(&["WHEN", "ACTOR", "TENANT", "ACTION", "STATUS", "RESOURCE", "DETAIL"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_shown_safely() {
        console::set_colors_enabled(false);
        let row = AdminAuditRow {
            id: 1,
            actor: "key:1f".into(),
            method: "DELETE".into(),
            path: "/api/v1/admin/\x1b[2J".into(),
            status: 403,
            duration_ms: 12,
            request_id: "req_1".into(),
            remote_addr: "10.0.0.1".into(),
            user_agent: String::new(),
            tenant_id: String::new(),
            created_at: "2026-01-01T00:00:00Z".into(),
        };
        let text = requests_table(&[row], "2026-01-01T00:00:10Z".parse().unwrap());
        assert!(text.contains("10s ago  key:1f  DELETE     403") && !text.contains('\x1b'), "{text}");
    }
}
