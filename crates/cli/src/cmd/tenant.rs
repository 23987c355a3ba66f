//! `tenure tenant`

use anyhow::Context;
use tenure_client::Client;
use tenure_contract::admin::{Tenant, TenantBody, TenantLimits, TenantsBody};

use super::connect::ClientArgs;
use crate::exit::{CODES, Exit};
use crate::output::{self, Card, cell, clean, number};

#[derive(Debug, clap::Args)]
#[command(after_help = CODES)]
pub struct Args {
    #[command(flatten)]
    client: ClientArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List tenants with their own limits
    List,
    /// Show the usage and the limits of a tenant
    Show(One),
    /// Replace all limits of a tenant
    Set(SetArgs),
    /// Remove the limits of a tenant; the server's configuration applies
    Unset(One),
}

#[derive(Debug, clap::Args)]
struct One {
    /// Name of the tenant
    #[arg(value_name = "TENANT")]
    name: String,
}

const SET_DETAILS: &str = "\
Replaces all limits: for a limit that is not named, the server's configuration applies. Zero means no limit.";

#[derive(Debug, clap::Args)]
#[command(after_help = SET_DETAILS)]
struct SetArgs {
    /// Name of the tenant
    #[arg(value_name = "TENANT")]
    name: String,
    /// Maximum number of waiting tasks (ready or scheduled)
    #[arg(long, value_name = "N")]
    max_ready: Option<u64>,
    /// Maximum number of running tasks
    #[arg(long, value_name = "N")]
    max_running: Option<u64>,
    /// Maximum number of tasks submitted per second; allows bursts of ten times that
    #[arg(long, value_name = "N")]
    submits_per_second: Option<f64>,
    /// Maximum total size of the payloads of waiting and running tasks
    #[arg(long, value_name = "BYTES")]
    max_payload_bytes: Option<u64>,
}

pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let (client, json) = (args.client.client()?, args.client.json);
    match args.command {
        Command::List => list(&client, json).await?,
        Command::Show(one) => show(client.tenant(&one.name).await?, json)?,
        Command::Set(args) => {
            let limits = TenantLimits {
                max_ready: args.max_ready,
                max_running: args.max_running,
                submits_per_second: args.submits_per_second,
                max_payload_bytes: args.max_payload_bytes,
            };
            let set = client.set_tenant(&args.name, &limits).await;
            show(set.context("the limits were not changed")?, json)?;
        }
        Command::Unset(one) => {
            let unset = client.unset_tenant(&one.name).await;
            show(unset.context("the limits were not changed")?, json)?;
        }
    }
    Ok(Exit::Ok)
}

async fn list(client: &Client, json: bool) -> anyhow::Result<()> {
    let tenants = client.tenants().await?;
    if json {
        output::json(&TenantsBody { tenants })
    } else if tenants.is_empty() {
        output::line("No tenant has its own limits.")
    } else {
        output::line(table(&tenants))
    }
}

fn show(tenant: Tenant, json: bool) -> anyhow::Result<()> {
    if json { output::json(&TenantBody { tenant }) } else { output::line(card(&tenant)) }
}

/// The text for a limit that is not set here, and for one that is set to no limit.
fn limit<T: PartialEq + Default + ToString>(limit: Option<T>) -> String {
    match limit {
        None => "as configured".to_owned(),
        Some(zero) if zero == T::default() => "none".to_owned(),
        Some(limit) => limit.to_string(),
    }
}

fn table(tenants: &[Tenant]) -> String {
    let rows = tenants.iter().map(|tenant| {
        let limits = &tenant.limits;
        vec![
            cell(if tenant.id.is_empty() { &tenant.name } else { &tenant.id }),
            number(limit(limits.max_ready)),
            number(limit(limits.max_running)),
            number(limit(limits.submits_per_second)),
            number(limit(limits.max_payload_bytes)),
        ]
    });
    output::table(&["TENANT", "READY", "RUNNING", "SUBMITS/S", "PAYLOAD BYTES"], rows)
}

fn card(tenant: &Tenant) -> String {
    let (limits, usage) = (&tenant.limits, tenant.usage.as_ref());
    let of = |used: Option<u64>, limit: String| match used {
        Some(used) => format!("{used}, limit {limit}"),
        None => format!("limit {limit}"),
    };
    let mut card = Card::default();
    card.row("tenant", clean(&tenant.name))
        .row("waiting", of(usage.map(|usage| usage.ready + usage.scheduled), limit(limits.max_ready)))
        .row("running", of(usage.map(|usage| usage.running), limit(limits.max_running)))
        .row("payloads", of(usage.map(|usage| usage.payload_bytes), limit(limits.max_payload_bytes)) + " bytes")
        .row("submits", format!("limit {} a second", limit(limits.submits_per_second)));
    card.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_shows_what_it_has_beside_what_it_may_have() {
        console::set_colors_enabled(false);
        let tenant = r#"{"name":"acme","limits":{"max_ready":100,"max_running":0,"submits_per_second":2.5},
            "usage":{"ready":3,"scheduled":4,"running":2,"payload_bytes":12}}"#;
        let tenant: Tenant = serde_json::from_str(tenant).unwrap();
        let expected = "  tenant    acme
  waiting   7, limit 100
  running   2, limit none
  payloads  12, limit as configured bytes
  submits   limit 2.5 a second
";
        assert_eq!(card(&tenant), expected);
        let row = table(&[tenant]).lines().nth(1).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(row, "acme 100 none 2.5 as configured");
    }
}
