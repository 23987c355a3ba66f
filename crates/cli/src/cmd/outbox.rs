//! `tenure outbox`

use anyhow::Context;
use jiff::Timestamp;
use tenure_client::{Client, OutboxFilter};
use tenure_contract::admin::{OutboxEntry, OutboxRetryRequest};

use super::connect::{ClientArgs, pages};
use crate::exit::{CODES, Exit, Stop};
use crate::output::{self, cell, cell_or_dash, number};
use crate::times;

/// The largest page of the API, and the most entries that one retry names.
const PAGE_MAX: u32 = 1000;
const ERROR_LENGTH: usize = 60;

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
    /// List wake-ups sent over Redis or SQS, oldest first
    List(ListArgs),
    /// Retry failed wake-ups
    Retry(RetryArgs),
}

const LIST_DETAILS: &str = "\
Queues with the transport redis or sqs have an entry for each live wake-up. A failed entry does not block its \
task: workers can still claim it from the server.";

#[derive(Debug, clap::Args)]
#[command(after_help = LIST_DETAILS)]
struct ListArgs {
    /// Only entries that are waiting, published or failed
    #[arg(long, value_name = "STATE")]
    state: Option<String>,
    /// Only entries of this queue
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// Maximum number to list
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// List everything, without a limit
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

#[derive(Debug, clap::Args)]
struct RetryArgs {
    /// Only these entries, such as enqueue_task:184467
    #[arg(value_name = "ID", required_unless_present = "all", conflicts_with = "all")]
    ids: Vec<String>,
    /// All failed entries
    #[arg(long)]
    all: bool,
    /// With --all: only entries of this queue
    #[arg(long, value_name = "NAME", requires = "all", conflicts_with = "ids")]
    queue: Option<String>,
}

pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let (client, json) = (args.client.client()?, args.client.json);
    match args.command {
        Command::List(args) => list(&client, args, json).await,
        Command::Retry(args) => retry(&client, args, json).await,
    }
}

async fn list(client: &Client, args: ListArgs, json: bool) -> anyhow::Result<Exit> {
    let filter = OutboxFilter { state: args.state, queue: args.queue, ..OutboxFilter::default() };
    let page = pages((!args.all).then_some(args.limit), PAGE_MAX, async |limit, cursor| {
        client.outbox(&OutboxFilter { limit: Some(limit), cursor, ..filter.clone() }).await
    });
    output::page(&page.await?, json, "The outbox is empty.", |entries| table(entries, Timestamp::now()))?;
    Ok(Exit::Ok)
}

fn table(entries: &[OutboxEntry], now: Timestamp) -> String {
    let rows = entries.iter().map(|entry| {
        let state = match entry.state.as_str() {
            "failed" => cell(&entry.state).fg(comfy_table::Color::Red),
            "waiting" => cell(&entry.state).fg(comfy_table::Color::Yellow),
            state => cell(state),
        };
        vec![
            cell(&entry.id),
            state,
            cell(&entry.transport),
            cell(&entry.queue),
            cell(&entry.task_id),
            number(entry.tries),
            cell(times::age(&entry.created_at, now)),
            cell_or_dash(entry.error.as_ref().map(|error| output::shortened(error, ERROR_LENGTH))),
        ]
    });
    output::table(&["ID", "STATE", "TRANSPORT", "QUEUE", "TASK", "TRIES", "AGE", "LAST ERROR"], rows)
}

async fn retry(client: &Client, args: RetryArgs, json: bool) -> anyhow::Result<Exit> {
    let named = args.ids.len();
    if named > PAGE_MAX as usize {
        return Err(Stop::usage("more than 1000 entries named").hint("use --all, or name fewer at a time").into());
    }
    let request = if args.all {
        OutboxRetryRequest { all: Some(true), queue: args.queue, ids: None }
    } else {
        OutboxRetryRequest { ids: Some(args.ids), ..OutboxRetryRequest::default() }
    };
    let answer = client.retry_outbox(&request).await.context("no entry was retried")?;
    if json {
        output::json(&answer)?;
    } else {
        output::line(sentence(answer.retried))?;
    }
    // Named, and none of them failed.
    Ok(if named > 0 && answer.retried == 0 { Exit::NotFound } else { Exit::Ok })
}

fn sentence(retried: u64) -> String {
    match retried {
        0 => "No failed entry was found.".to_owned(),
        1 => "Retrying 1 entry.".to_owned(),
        count => format!("Retrying {count} entries."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_show_what_happened_to_them() {
        console::set_colors_enabled(false);
        let entry = r#"{"id":"enqueue_task:184467","kind":"enqueue_task","transport":"sqs","queue":"etl",
            "task_id":"018c","state":"failed","tries":20,"error":"AccessDenied","created_at":"2025-01-15T10:00:00Z",
            "failed_at":"2025-01-15T10:00:30Z"}"#;
        let text = table(&[serde_json::from_str(entry).unwrap()], "2025-01-15T10:01:00Z".parse().unwrap());
        let row: Vec<_> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(row, ["enqueue_task:184467", "failed", "sqs", "etl", "018c", "20", "60s", "AccessDenied"]);
    }

    #[test]
    fn a_retry_says_how_many() {
        assert_eq!(sentence(0), "No failed entry was found.");
        assert_eq!(sentence(1), "Retrying 1 entry.");
        assert_eq!(sentence(7), "Retrying 7 entries.");
    }
}
