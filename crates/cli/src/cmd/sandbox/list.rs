//! `tenure sandbox list`, `tenure sandbox show`

use jiff::Timestamp;
use tenure_client::sandboxes::SandboxFilter;
use tenure_contract::sandboxes::{Sandbox, SandboxState};

use crate::cmd::connect::{ClientArgs, pages};
use crate::exit::Exit;
use crate::output::{self, Card, cell, cell_or_dash, clean, number, state_cell, state_styled};
use crate::{times, words};

/// What the server gives at most in one page.
const PAGE_MAX: u32 = 1000;

#[derive(Debug, clap::Args)]
pub struct ListArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Only sandboxes in this state; warm ones (idle) are listed only with it
    #[arg(long, value_name = "STATE", value_parser = words::sandbox_state(), ignore_case = true)]
    state: Option<SandboxState>,
    /// Maximum number of sandboxes
    #[arg(long, short = 'n', value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// List all
    #[arg(long, conflicts_with = "limit")]
    all: bool,
    /// Print the ids alone
    #[arg(long, short, conflicts_with = "json")]
    quiet: bool,
}

pub async fn list(args: ListArgs) -> anyhow::Result<Exit> {
    let sandboxes = args.client.client()?.sandboxes();
    let limit = (!args.all).then_some(args.limit);
    let page = pages(limit, PAGE_MAX, async |size, cursor| {
        let filter = SandboxFilter { state: args.state.clone(), limit: Some(size), cursor };
        sandboxes.list(&filter).await
    })
    .await?;
    if args.quiet {
        page.items.iter().try_for_each(|sandbox| output::line(&sandbox.id))?;
    } else if args.client.json {
        // As the API gives it: a bare array.
        output::json(&page.items)?;
    } else {
        output::page(&page, false, "No sandboxes.", |items| table(items, Timestamp::now()))?;
    }
    Ok(Exit::Ok)
}

fn table(sandboxes: &[Sandbox], now: Timestamp) -> String {
    let rows = sandboxes.iter().map(|sandbox| {
        vec![
            cell(&sandbox.id),
            state_cell(sandbox.state.as_str()),
            cell(&sandbox.image),
            cell(&sandbox.provider),
            cell_or_dash(sandbox.worker_id.as_ref()),
            number(format!("{}M", sandbox.memory_mb)),
            number(sandbox.vcpus),
            cell_or_dash(sandbox.owner_id.as_ref()),
            cell(times::age(&sandbox.created_at, now)),
            cell(times::distance(&sandbox.expires_at, now)),
        ]
    });
    let header = ["SANDBOX", "STATE", "IMAGE", "PROVIDER", "WORKER", "MEMORY", "CPUS", "OWNER", "AGE", "EXPIRES"];
    output::table(&header, rows)
}

#[derive(Debug, clap::Args)]
pub struct ShowArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Id of the sandbox
    #[arg(value_name = "SANDBOX")]
    id: String,
}

pub async fn show(args: ShowArgs) -> anyhow::Result<Exit> {
    let sandbox = args.client.client()?.sandboxes().get(&args.id).await?;
    if args.client.json {
        output::json(sandbox.info())?;
    } else {
        output::line(card(sandbox.info(), Timestamp::now()))?;
    }
    Ok(Exit::Ok)
}

/// What is known about a sandbox, for people.
pub fn card(sandbox: &Sandbox, now: Timestamp) -> String {
    let mut card = Card::default();
    let text = |text: &Option<String>| text.as_deref().map(clean);
    let at = |point: &str| format!("{} ({})", clean(point), times::distance(point, now));
    card.row("sandbox", clean(&sandbox.id))
        .row("state", state_styled(sandbox.state.as_str()).to_string())
        .row_if("reason", text(&sandbox.reason))
        .row("image", clean(&sandbox.image))
        .row("provider", clean(&sandbox.provider))
        .row_if("worker", text(&sandbox.worker_id))
        .row_if("runtime", text(&sandbox.vm_id))
        .row("memory", format!("{} MiB", sandbox.memory_mb))
        .row("cpus", sandbox.vcpus.to_string())
        .row_if("owner", text(&sandbox.owner_id))
        .row_if("tenant", text(&sandbox.tenant_id))
        .row("created", at(&sandbox.created_at))
        .row("expires", at(&sandbox.expires_at))
        .row_if("preview", text(&sandbox.preview_domain));
    for (name, value) in &sandbox.metadata {
        card.row("metadata", clean(&format!("{name}={value}")));
    }
    card.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_is_one_row_and_one_card() {
        console::set_colors_enabled(false);
        let now: Timestamp = "2026-01-01T00:10:00Z".parse().unwrap();
        let sandbox = r#"{"id":"sb-0a1b2c3d","state":"unhealthy","provider":"process","image":"host","memory_mb":512,
            "vcpus":1,"worker_id":"w-1","created_at":"2026-01-01T00:00:00Z","expires_at":"2026-01-01T00:30:00Z",
            "reason":"worker_stale","metadata":{"a":"b\u001b"}}"#;
        let sandbox: Sandbox = serde_json::from_str(sandbox).unwrap();
        let row = table(std::slice::from_ref(&sandbox), now);
        let row = row.lines().nth(1).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(row, "sb-0a1b2c3d unhealthy host process w-1 512M 1 - 10m in 20m");
        let expected = "  sandbox   sb-0a1b2c3d
  state     unhealthy
  reason    worker_stale
  image     host
  provider  process
  worker    w-1
  memory    512 MiB
  cpus      1
  created   2026-01-01T00:00:00Z (10m ago)
  expires   2026-01-01T00:30:00Z (in 20m)
  metadata  a=b\u{fffd}
";
        assert_eq!(card(&sandbox, now), expected);
    }
}
