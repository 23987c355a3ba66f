//! Commands that look at a sandbox or change it.

use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;
use serde::Serialize;
use tenure_client::{ClientError, Sandboxes};
use tenure_contract::sandboxes::{SandboxStats, Snapshot};

use super::list::card;
use crate::cmd::confirm;
use crate::cmd::connect::ClientArgs;
use crate::exit::Exit;
use crate::output::{self, Card, cell, cell_or_dash, clean, number};
use crate::times;

#[derive(Debug, clap::Args)]
pub struct LogsArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Id of the sandbox
    #[arg(value_name = "SANDBOX")]
    id: String,
    /// Maximum number of lines, counted from the last; 0 for all
    #[arg(long, short = 'n', value_name = "N", default_value_t = 100)]
    lines: u32,
}

pub async fn logs(args: LogsArgs) -> anyhow::Result<Exit> {
    let lines = args.client.client()?.sandboxes().get(&args.id).await?.logs(Some(args.lines)).await?;
    if args.client.json {
        output::json(&lines)?;
    } else {
        lines.iter().try_for_each(|line| output::line(clean(line)))?;
    }
    Ok(Exit::Ok)
}

#[derive(Debug, clap::Args)]
pub struct StatsArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Id of the sandbox
    #[arg(value_name = "SANDBOX")]
    id: String,
}

pub async fn stats(args: StatsArgs) -> anyhow::Result<Exit> {
    let stats = args.client.client()?.sandboxes().get(&args.id).await?.stats().await?;
    if args.client.json {
        output::json(&stats)?;
    } else if stats.supported {
        output::line(stats_card(&stats))?;
    } else {
        output::line("The provider of this sandbox does not measure what it uses.")?;
    }
    Ok(Exit::Ok)
}

fn stats_card(stats: &SandboxStats) -> String {
    let memory = stats.mem_bytes.map(|used| match stats.mem_limit_bytes {
        Some(limit) if limit > 0 => format!("{} of {}", bytes(used), bytes(limit)),
        _ => bytes(used),
    });
    let mut card = Card::default();
    card.row_if("cpu", stats.cpu_pct.map(|percent| format!("{percent:.1} % of a core")))
        .row_if("memory", memory)
        .row_if("processes", stats.pids.map(|count| count.to_string()))
        .row_if("disk", stats.disk_bytes.map(bytes));
    card.render()
}

/// `1.5 MiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let (mut number, mut unit) = (count as f64, 0);
    while number >= 1024.0 && unit + 1 < UNITS.len() {
        number /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} bytes") } else { format!("{number:.1} {}", UNITS[unit]) }
}

#[derive(Debug, clap::Args)]
pub struct ExtendArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Id of the sandbox
    #[arg(value_name = "SANDBOX")]
    id: String,
    /// How long it lives from now on, such as 1h
    #[arg(value_name = "TIME", value_parser = times::wire)]
    ttl: Duration,
}

pub async fn extend(args: ExtendArgs) -> anyhow::Result<Exit> {
    let mut sandbox = args.client.client()?.sandboxes().get(&args.id).await?;
    sandbox.extend(args.ttl).await.context("the sandbox was not extended")?;
    if args.client.json {
        output::json(sandbox.info())?;
    } else {
        let expires = &sandbox.info().expires_at;
        let distance = times::distance(expires, Timestamp::now());
        output::line(clean(&format!("Sandbox {} expires at {expires} ({distance}).", sandbox.id())))?;
    }
    Ok(Exit::Ok)
}

const SNAPSHOT_DETAILS: &str = "\
A snapshot holds the files of a sandbox, and not its processes. It is kept at the server until `tenure sandbox rm SNAPSHOT`. \
`tenure sandbox create --snapshot` starts another sandbox with it, `tenure sandbox restore` puts it back.";

#[derive(Debug, clap::Args)]
#[command(after_help = SNAPSHOT_DETAILS)]
pub struct SnapshotArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Id of the sandbox
    #[arg(value_name = "SANDBOX")]
    id: String,
    /// Name of the snapshot, for people
    #[arg(long, value_name = "TEXT")]
    name: Option<String>,
}

pub async fn snapshot(args: SnapshotArgs) -> anyhow::Result<Exit> {
    let sandbox = args.client.client()?.sandboxes().get(&args.id).await?;
    let snapshot = sandbox.snapshot(args.name.as_deref()).await.context("no snapshot was made")?;
    if args.client.json {
        output::json(&snapshot)?;
    } else {
        let size = bytes(snapshot.size_bytes);
        output::line(clean(&format!("Made snapshot {} of {}: {size}", snapshot.id, snapshot.sandbox_id)))?;
    }
    Ok(Exit::Ok)
}

#[derive(Debug, clap::Args)]
pub struct SnapshotsArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Only those of this sandbox
    #[arg(value_name = "SANDBOX")]
    id: Option<String>,
}

pub async fn snapshots(args: SnapshotsArgs) -> anyhow::Result<Exit> {
    let sandboxes = args.client.client()?.sandboxes();
    let snapshots = match &args.id {
        None => sandboxes.snapshots().await?,
        Some(id) => sandboxes.get(id).await?.snapshots().await?,
    };
    if args.client.json {
        output::json(&snapshots)?;
    } else if snapshots.is_empty() {
        output::line("No snapshots.")?;
    } else {
        output::line(snapshot_table(&snapshots, Timestamp::now()))?;
    }
    Ok(Exit::Ok)
}

fn snapshot_table(snapshots: &[Snapshot], now: Timestamp) -> String {
    let rows = snapshots.iter().map(|snapshot| {
        vec![
            cell(&snapshot.id),
            cell_or_dash(Some(&snapshot.name).filter(|name| !name.is_empty())),
            cell(&snapshot.sandbox_id),
            cell(&snapshot.image),
            cell(&snapshot.provider),
            number(bytes(snapshot.size_bytes)),
            cell(times::age(&snapshot.created_at, now)),
        ]
    });
    output::table(&["SNAPSHOT", "NAME", "SANDBOX", "IMAGE", "PROVIDER", "SIZE", "AGE"], rows)
}

const RESTORE_DETAILS: &str =
    "Stops all processes of the sandbox and replaces its files. It is refused while a command runs.";

#[derive(Debug, clap::Args)]
#[command(after_help = RESTORE_DETAILS)]
pub struct RestoreArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Id of the sandbox
    #[arg(value_name = "SANDBOX")]
    id: String,
    /// Id of the snapshot
    #[arg(value_name = "SNAPSHOT")]
    snapshot: String,
}

pub async fn restore(args: RestoreArgs) -> anyhow::Result<Exit> {
    let mut sandbox = args.client.client()?.sandboxes().get(&args.id).await?;
    sandbox.restore(&args.snapshot).await.context("the snapshot was not restored")?;
    if args.client.json {
        output::json(sandbox.info())?;
    } else {
        output::line(format!("Restored {}.\n{}", clean(&args.snapshot), card(sandbox.info(), Timestamp::now())))?;
    }
    Ok(Exit::Ok)
}

const PORT_DETAILS: &str = "\
The first address is for browsers. The second one is below the API of the server and works where host names of the preview domain \
do not resolve. Both need the API key, in X-API-Key, unless the server is set up otherwise.";

#[derive(Debug, clap::Args)]
#[command(after_help = PORT_DETAILS)]
pub struct PortArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Id of the sandbox
    #[arg(value_name = "SANDBOX")]
    id: String,
    /// Port that something in the sandbox listens on
    #[arg(value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
}

#[derive(Debug, Serialize)]
struct Addresses {
    url: String,
    proxy_url: String,
}

pub async fn port(args: PortArgs) -> anyhow::Result<Exit> {
    let sandbox = args.client.client()?.sandboxes().get(&args.id).await?;
    let addresses = Addresses { url: sandbox.url(args.port), proxy_url: sandbox.proxy_url(args.port).into() };
    if args.client.json {
        output::json(&addresses)?;
    } else {
        output::line(clean(&addresses.url))?;
        if addresses.proxy_url != addresses.url {
            output::line(clean(&addresses.proxy_url))?;
        }
    }
    Ok(Exit::Ok)
}

#[derive(Debug, clap::Args)]
pub struct RmArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Ids of sandboxes or snapshots
    #[arg(value_name = "ID", required_unless_present_any = ["all", "expired"])]
    ids: Vec<String>,
    /// Destroy all sandboxes that this key reaches
    #[arg(long, conflicts_with_all = ["ids", "expired"])]
    all: bool,
    /// Remove the sandboxes that have expired
    #[arg(long, conflicts_with = "ids")]
    expired: bool,
    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
}

#[derive(Debug, Serialize)]
struct Removed<'a> {
    id: &'a str,
    status: String,
}

pub async fn rm(args: RmArgs) -> anyhow::Result<Exit> {
    let (sandboxes, json) = (args.client.client()?.sandboxes(), args.client.json);
    if args.expired {
        let pruned = sandboxes.prune().await?;
        let text = format!("Removed {pruned} expired sandboxes.");
        if json {
            output::json(&tenure_contract::sandboxes::Pruned { pruned })?
        } else {
            output::line(text)?
        }
        return Ok(Exit::Ok);
    }
    let ids = if args.all { all(&sandboxes, args.yes).await? } else { args.ids };
    let mut failed = None;
    for id in &ids {
        // One that cannot be removed does not keep the others.
        match remove(&sandboxes, id).await {
            Ok(status) if json => output::json(&Removed { id, status })?,
            Ok(status) => output::line(clean(&format!("{id}: {status}")))?,
            Err(error) => {
                let error = anyhow::Error::new(error).context(format!("{id} was not removed"));
                crate::exit::report(&error);
                failed.get_or_insert(crate::exit::code_of(&error));
            }
        }
    }
    Ok(failed.unwrap_or(Exit::Ok))
}

async fn remove(sandboxes: &Sandboxes, id: &str) -> Result<String, ClientError> {
    if id.starts_with("snap-") {
        return sandboxes.delete_snapshot(id).await.map(|()| "deleted".to_owned());
    }
    sandboxes.destroy(id).await
}

async fn all(sandboxes: &Sandboxes, yes: bool) -> anyhow::Result<Vec<String>> {
    if !yes {
        confirm::require_terminal("use --yes to destroy them without a question")?;
    }
    let list = sandboxes.list(&tenure_client::sandboxes::SandboxFilter::default()).await?;
    let ids: Vec<_> = list.items.into_iter().map(|sandbox| sandbox.id).collect();
    if !yes && !ids.is_empty() {
        confirm::ask(&format!("Destroy {} sandboxes?", ids.len()))?;
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        assert_eq!(
            [bytes(0), bytes(1023), bytes(1536), bytes(3 << 30)],
            ["0 bytes", "1023 bytes", "1.5 KiB", "3.0 GiB"]
        );
    }

    #[test]
    fn a_card_shows_what_was_measured() {
        console::set_colors_enabled(false);
        let stats = SandboxStats {
            supported: true,
            cpu_pct: Some(12.34),
            mem_bytes: Some(1 << 20),
            mem_limit_bytes: Some(512 << 20),
            pids: Some(3),
            disk_bytes: None,
        };
        assert_eq!(
            stats_card(&stats),
            "  cpu        12.3 % of a core\n  memory     1.0 MiB of 512.0 MiB\n  processes  3\n"
        );
    }
}
