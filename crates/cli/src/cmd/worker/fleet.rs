//! `tenure worker list`, `drain`, `undrain`

use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;
use tenure_client::Sandboxes;
use tenure_client::sandboxes::SandboxFilter;
use tenure_contract::sandboxes::WorkerInfo;

use crate::cmd::connect::{ClientArgs, all_pages};
use crate::exit::{CODES, Exit, Stop};
use crate::output::{self, cell, cell_or_dash, clean, number};
use crate::times;

/// Between two looks while the sandboxes of a drained worker end.
const LOOK: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
#[command(after_help = CODES)]
pub struct ListArgs {
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = CODES)]
pub struct DrainArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Id of the worker
    #[arg(value_name = "WORKER")]
    id: String,
    /// Reason, kept with the worker
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Wait up to this time until the worker has no sandboxes left; exit code 1 if it still has some
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = times::wire)]
    wait: Duration,
}

#[derive(Debug, clap::Args)]
#[command(after_help = CODES)]
pub struct UndrainArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Id of the worker
    #[arg(value_name = "WORKER")]
    id: String,
    /// Wait up to this time until the worker is online again; exit code 1 if it is not
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = times::wire)]
    wait: Duration,
}

pub async fn list(args: ListArgs) -> anyhow::Result<Exit> {
    let workers = args.client.client()?.sandboxes().workers().await?;
    if args.client.json {
        output::json(&workers)?;
    } else if workers.is_empty() {
        output::line("No workers. Start one with `tenure worker --listen 127.0.0.1:7430`.")?;
    } else {
        output::line(table(&workers, Timestamp::now()))?;
    }
    Ok(Exit::Ok)
}

fn table(workers: &[WorkerInfo], now: Timestamp) -> String {
    let rows = workers.iter().map(|worker| {
        let status = if worker.stale { format!("{} (stale)", worker.status) } else { worker.status.clone() };
        let (capacity, usage) = (&worker.capacity, worker.usage.unwrap_or_default());
        let of = |used: u64, limit: u64, unit: &str| match (worker.usage, limit) {
            (None, 0) => "-".to_owned(),
            (None, limit) => format!("{limit}{unit}"),
            (Some(_), 0) => format!("{used}{unit}"),
            (Some(_), limit) => format!("{used}/{limit}{unit}"),
        };
        vec![
            cell(&worker.id),
            cell(status),
            cell_or_dash(worker.desired_status.as_ref().filter(|wish| **wish != worker.status)),
            cell(worker.providers.join(",")),
            number(of(usage.sandboxes, capacity.max_sandboxes, "")),
            number(of(usage.memory_mb, capacity.memory_mb, "M")),
            number(of(usage.vcpus, capacity.vcpus, "")),
            cell(times::age(&worker.last_heartbeat, now)),
            cell_or_dash(capacity.rpc_url.as_ref()),
        ]
    });
    let header = ["WORKER", "STATUS", "WANTED", "PROVIDERS", "SANDBOXES", "MEMORY", "CPUS", "SEEN", "ADDRESS"];
    output::table(&header, rows)
}

pub async fn drain(args: DrainArgs) -> anyhow::Result<Exit> {
    let sandboxes = args.client.client()?.sandboxes();
    let worker = sandboxes.drain_worker(&args.id, args.reason.as_deref()).await;
    let worker = worker.context("the worker was not drained")?;
    say(&worker, args.client.json, "accepts no new sandboxes")?;
    let until = tokio::time::Instant::now() + args.wait;
    while !args.wait.is_zero() {
        let left = sandboxes_on(&sandboxes, &args.id).await?;
        if left == 0 {
            break;
        }
        if tokio::time::Instant::now() >= until {
            let message = format!("{} still has {left} sandboxes", clean(&args.id));
            return Err(Stop::new(Exit::Failure, message)
                .hint("wait longer, or remove them with `tenure sandbox rm`")
                .into());
        }
        tokio::time::sleep_until((tokio::time::Instant::now() + LOOK).min(until)).await;
    }
    Ok(Exit::Ok)
}

async fn sandboxes_on(sandboxes: &Sandboxes, worker_id: &str) -> anyhow::Result<usize> {
    let all =
        all_pages(async |cursor| sandboxes.list(&SandboxFilter { cursor, ..SandboxFilter::default() }).await).await?;
    let live = |state: &str| matches!(state, "creating" | "running" | "idle" | "unhealthy");
    Ok(all.iter().filter(|one| one.worker_id.as_deref() == Some(worker_id) && live(one.state.as_str())).count())
}

pub async fn undrain(args: UndrainArgs) -> anyhow::Result<Exit> {
    let sandboxes = args.client.client()?.sandboxes();
    let worker = sandboxes.undrain_worker(&args.id).await.context("the worker was not changed")?;
    say(&worker, args.client.json, "accepts sandboxes again")?;
    let until = tokio::time::Instant::now() + args.wait;
    while !args.wait.is_zero() {
        let worker = sandboxes.worker(&args.id).await?;
        if worker.status == "online" && !worker.stale {
            break;
        }
        if tokio::time::Instant::now() >= until {
            return Err(Stop::new(Exit::Failure, format!("{} is {}", clean(&args.id), clean(&worker.status))).into());
        }
        tokio::time::sleep_until((tokio::time::Instant::now() + LOOK).min(until)).await;
    }
    Ok(Exit::Ok)
}

fn say(worker: &WorkerInfo, json: bool, what: &str) -> anyhow::Result<()> {
    if json { output::json(worker) } else { output::line(clean(&format!("Worker {} {what}.", worker.id))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_shows_what_it_has_of_what_it_may_have() {
        console::set_colors_enabled(false);
        let worker = r#"{"id":"w-1","hostname":"h","status":"online","providers":["process","docker"],"capacity":{"max_sandboxes":10,
            "memory_mb":2048,"rpc_url":"http://h:1"},"last_heartbeat":"2026-01-01T00:00:00Z","stale":true,"desired_status":"draining",
            "usage":{"sandboxes":3,"memory_mb":1024,"vcpus":3}}"#;
        let worker: WorkerInfo = serde_json::from_str(worker).unwrap();
        let row = |worker: WorkerInfo| {
            let table = table(&[worker], "2026-01-01T00:00:05Z".parse().unwrap());
            table.lines().nth(1).unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(row(worker.clone()), "w-1 online (stale) draining process,docker 3/10 1024/2048M 3 5s http://h:1");
        let bare = WorkerInfo { usage: None, stale: false, desired_status: None, ..worker };
        assert_eq!(row(bare), "w-1 online - process,docker 10 2048M - 5s http://h:1");
    }
}
