//! `tenure worker list`, `show`, `drain`, `undrain`

use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;
use tenure_client::Sandboxes;
use tenure_client::sandboxes::SandboxFilter;
use tenure_contract::sandboxes::WorkerInfo;

use crate::cmd::connect::{ClientArgs, all_pages};
use crate::exit::{CODES, Exit, Stop};
use crate::output::{self, Card, cell, cell_or_dash, clean, number};
use crate::times;

/// Between two looks while the work of a drained worker ends.
const LOOK: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
#[command(after_help = CODES)]
pub struct ListArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Also list workers that have not been seen for two minutes
    #[arg(long)]
    all: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = CODES)]
pub struct ShowArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Id of the worker
    #[arg(value_name = "WORKER")]
    id: String,
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
    /// Wait up to this time until the worker has no tasks and sandboxes left; exit code 1 if it still has some
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
        return Ok(Exit::Ok);
    }
    let (shown, hidden): (Vec<_>, Vec<_>) =
        workers.into_iter().partition(|worker| args.all || worker.status != "offline" || worker.held > Some(0));
    if shown.is_empty() {
        output::line("No workers. Start one with `tenure worker`.")?;
    } else {
        output::line(table(&shown, Timestamp::now()))?;
    }
    if !hidden.is_empty() {
        output::line(format!("{} offline, shown with --all.", hidden.len()))?;
    }
    Ok(Exit::Ok)
}

fn status(worker: &WorkerInfo) -> String {
    let stale = worker.stale && worker.status != "offline";
    let wish = worker.desired_status.as_ref().filter(|wish| **wish != worker.status);
    let wish = wish.map(|wish| format!(", should be {wish}")).unwrap_or_default();
    format!("{}{}{wish}", worker.status, if stale { " (stale)" } else { "" })
}

/// What is in use, of what there is.
fn used(used: Option<u64>, limit: Option<u64>) -> Option<String> {
    match (used, limit.filter(|limit| *limit > 0)) {
        (None, None) => None,
        (None, Some(limit)) => Some(format!("-/{limit}")),
        (Some(used), None) => Some(used.to_string()),
        (Some(used), Some(limit)) => Some(format!("{used}/{limit}")),
    }
}

fn sandboxes_used(worker: &WorkerInfo) -> Option<String> {
    used(worker.usage.map(|usage| usage.sandboxes), Some(worker.capacity.max_sandboxes))
}

fn table(workers: &[WorkerInfo], now: Timestamp) -> String {
    let rows = workers.iter().map(|worker| {
        let serves: Vec<&str> = worker.queues.iter().chain(&worker.providers).map(String::as_str).collect();
        vec![
            cell(&worker.id),
            cell(status(worker)),
            cell(worker.contracts.join(",")),
            cell_or_dash(Some(serves.join(",")).filter(|text| !text.is_empty())),
            cell_or_dash(used(worker.held, worker.slots.map(u64::from))),
            cell_or_dash(sandboxes_used(worker)),
            cell_or_dash(worker.version.as_ref()),
            cell(times::age(&worker.last_heartbeat, now)),
        ]
    });
    output::table(&["WORKER", "STATUS", "CONTRACT", "SERVES", "TASKS", "SANDBOXES", "VERSION", "SEEN"], rows)
}

pub async fn show(args: ShowArgs) -> anyhow::Result<Exit> {
    let worker = args.client.client()?.sandboxes().worker(&args.id).await?;
    if args.client.json {
        output::json(&worker)?
    } else {
        output::line(card(&worker, Timestamp::now()))?
    }
    Ok(Exit::Ok)
}

fn card(worker: &WorkerInfo, now: Timestamp) -> String {
    let joined = |list: &[String]| (!list.is_empty()).then(|| clean(&list.join(", ")));
    let text = |text: &str| (!text.is_empty()).then(|| clean(text));
    let memory = used(worker.usage.map(|usage| usage.memory_mb), Some(worker.capacity.memory_mb));
    let mut card = Card::default();
    card.row("status", clean(&status(worker)))
        .row_if("reason", worker.drain_reason.as_deref().map(clean))
        .row("contract", clean(&worker.contracts.join(", ")))
        .row_if("host", text(&worker.hostname))
        .row_if("version", worker.version.as_deref().map(clean))
        .row_if("queues", joined(&worker.queues))
        .row_if("operators", joined(&worker.operators))
        .row_if("providers", joined(&worker.providers))
        .row_if("tasks", used(worker.held, worker.slots.map(u64::from)))
        .row_if("sandboxes", sandboxes_used(worker))
        .row_if("memory", memory.map(|memory| format!("{memory} MiB")))
        .row_if("address", worker.capacity.rpc_url.as_deref().map(clean))
        .row_if("clock", worker.clock_ahead_ms.map(clock))
        .row("first seen", format!("{} ago", times::age(&worker.created_at, now)))
        .row("last seen", format!("{} ago", times::age(&worker.last_heartbeat, now)));
    let mut text = format!("Worker {}\n{}", console::style(clean(&worker.id)).bold(), card.render());
    let held = worker.held_tasks.as_deref().unwrap_or_default();
    if !held.is_empty() {
        let rows = held.iter().map(|task| {
            vec![
                cell(&task.task_id),
                cell(&task.queue),
                cell(&task.operator),
                number(task.attempt),
                cell(times::age(&task.granted_at, now)),
                cell_or_dash(task.last_heartbeat_at.as_ref().map(|at| format!("{} ago", times::age(at, now)))),
                cell(times::distance(&task.lease_expires_at, now)),
            ]
        });
        let header = ["TASK", "QUEUE", "OPERATOR", "ATTEMPT", "FOR", "HEARTBEAT", "LEASE ENDS"];
        text = format!("{text}\n{}", output::table(&header, rows));
    }
    text
}

/// Less than a second is the time of the request on its way.
fn clock(ahead_ms: i64) -> String {
    let seconds = ahead_ms.unsigned_abs() as f64 / 1_000.0;
    match ahead_ms {
        -999..=999 => "in step with the server".to_owned(),
        1_000.. => format!("{seconds:.1} s ahead of the server"),
        _ => format!("{seconds:.1} s behind the server"),
    }
}

pub async fn drain(args: DrainArgs) -> anyhow::Result<Exit> {
    let sandboxes = args.client.client()?.sandboxes();
    let worker = sandboxes.drain_worker(&args.id, args.reason.as_deref()).await;
    let worker = worker.context("the worker was not drained")?;
    say(&worker, args.client.json, "gets no new work")?;
    let until = tokio::time::Instant::now() + args.wait;
    while !args.wait.is_zero() {
        let worker = sandboxes.worker(&args.id).await?;
        let tasks = worker.held.unwrap_or_default();
        let boxes = match worker.usage {
            Some(_) => sandboxes_on(&sandboxes, &args.id).await?,
            None => 0,
        };
        if tasks == 0 && boxes == 0 {
            break;
        }
        if tokio::time::Instant::now() >= until {
            let count =
                |number: u64, one: &str, many: &str| format!("{number} {}", if number == 1 { one } else { many });
            let (tasks, boxes) = (count(tasks, "task", "tasks"), count(boxes as u64, "sandbox", "sandboxes"));
            let message = format!("{} still has {tasks} and {boxes}", clean(&args.id));
            return Err(Stop::new(Exit::Failure, message)
                .hint("wait longer, cancel them with `tenure task cancel`, or remove them with `tenure sandbox rm`")
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
    say(&worker, args.client.json, "gets work again")?;
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
        assert_eq!(row(worker.clone()), "w-1 online (stale), should be draining process,docker - 3/10 - 5s");
        let asks = WorkerInfo {
            usage: None,
            stale: false,
            desired_status: None,
            contracts: vec!["pull".to_owned()],
            queues: vec!["etl".to_owned()],
            providers: Vec::new(),
            held: Some(2),
            slots: Some(8),
            version: Some("tenure-rust/0.1.0".to_owned()),
            capacity: tenure_contract::worker_plane::Capacity::default(),
            ..worker
        };
        assert_eq!(row(asks), "w-1 online pull etl 2/8 - tenure-rust/0.1.0 5s");
        assert_eq!(
            [clock(120), clock(2_500), clock(-61_000)],
            ["in step with the server", "2.5 s ahead of the server", "61.0 s behind the server"]
        );
    }
}
