//! `tenure dead-letter`

mod redrives;

use anyhow::Context;
use jiff::Timestamp;
use tenure_client::{Client, DeadLetterFilter};
use tenure_contract::user::{DeadLetter, Redrive, RedriveFilter, RedriveRequest};
use tenure_contract::words::RedriveState;

use super::connect::{ClientArgs, pages};
use super::{confirm, ids};
use crate::exit::{CODES, Exit, Stop};
use crate::output::{self, cell, cell_or_dash, number};
use crate::times;

/// The largest page of the API.
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
    /// List dead letters, oldest first
    List(ListArgs),
    /// Return dead letters to their queues
    Redrive(RedriveArgs),
    /// List, show, pause, resume and cancel redrives
    #[command(subcommand)]
    Redrives(redrives::Command),
}

#[derive(Debug, clap::Args)]
struct Which {
    /// Only tasks of this queue
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// Only tasks of this operator
    #[arg(long, value_name = "NAME")]
    operator: Option<String>,
    /// Only tasks that ended for this reason: max_attempts, non_retryable or deadline_exceeded
    #[arg(long, value_name = "REASON")]
    reason: Option<String>,
    /// Only tasks of this tenant
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    #[command(flatten)]
    which: Which,
    /// Maximum number to list
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// List everything, without a limit
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

const REDRIVE_DETAILS: &str = "\
Shows how many tasks are selected and asks for confirmation. Tasks get a new budget of attempts. A started \
redrive continues by itself, also across restarts of the server.";

#[derive(Debug, clap::Args)]
#[command(after_help = REDRIVE_DETAILS)]
struct RedriveArgs {
    /// Only these tasks
    #[arg(value_name = "TASK")]
    tasks: Vec<String>,
    #[command(flatten)]
    which: Which,
    /// Only tasks whose last error has this code
    #[arg(long, value_name = "CODE")]
    error_code: Option<String>,
    /// Only tasks dead-lettered at or after this point in time, or less than this time ago
    #[arg(long, value_name = "WHEN", value_parser = times::point_or_ago)]
    after: Option<String>,
    /// Only tasks dead-lettered before this point in time, or longer than this time ago
    #[arg(long, value_name = "WHEN", value_parser = times::point_or_ago)]
    before: Option<String>,
    /// Count the tasks without changing anything
    #[arg(long)]
    dry_run: bool,
    /// Tasks per second [default: no limit]
    #[arg(long, value_name = "N")]
    rate: Option<f64>,
    /// Idempotency key: the same call again shows the progress
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
}

pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let (client, json) = (args.client.client()?, args.client.json);
    match args.command {
        Command::List(args) => list(&client, args, json).await,
        Command::Redrive(args) => redrive(&client, args, json).await,
        Command::Redrives(command) => redrives::run(&client, command, json).await,
    }
}

async fn list(client: &Client, args: ListArgs, json: bool) -> anyhow::Result<Exit> {
    let Which { queue, operator, reason, tenant } = args.which;
    let filter = DeadLetterFilter { queue, operator, reason, tenant, ..DeadLetterFilter::default() };
    let page = pages((!args.all).then_some(args.limit), PAGE_MAX, async |limit, cursor| {
        client.dead_letters(&DeadLetterFilter { limit: Some(limit), cursor, ..filter.clone() }).await
    });
    output::page(&page.await?, json, "No dead letters.", |letters| table(letters, Timestamp::now()))?;
    Ok(Exit::Ok)
}

fn table(letters: &[DeadLetter], now: Timestamp) -> String {
    let rows = letters.iter().map(|letter| {
        let error = letter.last_error.as_ref().map(|error| format!("{}: {}", error.code, error.message));
        vec![
            cell(&letter.task_id),
            cell(&letter.queue),
            cell(&letter.operator),
            cell(&letter.reason),
            number(letter.attempts),
            number(letter.redrive_count),
            cell(times::age(&letter.dead_lettered_at, now)),
            cell_or_dash(error.map(|error| output::shortened(&error, ERROR_LENGTH))),
        ]
    });
    output::table(&["TASK", "QUEUE", "OPERATOR", "REASON", "ATTEMPTS", "REDRIVES", "AGE", "LAST ERROR"], rows)
}

async fn redrive(client: &Client, args: RedriveArgs, json: bool) -> anyhow::Result<Exit> {
    let mut tasks = Vec::with_capacity(args.tasks.len());
    for task in &args.tasks {
        tasks.push(ids::task(client, task).await?);
    }
    let Which { queue, operator, reason, tenant } = args.which;
    let filter = RedriveFilter {
        queue,
        operator,
        reason,
        error_code: args.error_code,
        tenant,
        after: args.after,
        before: args.before,
        task_ids: (!tasks.is_empty()).then_some(tasks),
    };
    if filter == RedriveFilter::default() {
        return Err(Stop::usage("no dead letters selected").hint("name tasks, or use --queue").into());
    }
    let mut request = RedriveRequest { filter, dry_run: true, rate: args.rate, idempotency_key: args.key };
    if args.dry_run {
        let counted = client.redrive(&request).await.context("the dead letters were not counted")?;
        if json {
            output::json(&counted)?
        } else {
            output::line(format!("{} would be released.", letters(counted.matched)))?
        }
        return Ok(Exit::Ok);
    }
    if !args.yes {
        confirm::require_terminal("use --yes, or --dry-run to count them")?;
        let counted = client.redrive(&request).await.context("the dead letters were not counted")?;
        confirm::ask(&format!("Release {}?", letters(counted.matched)))?;
    }
    request.dry_run = false;
    let redrive = client.redrive(&request).await.context("the dead letters were not released")?;
    if json {
        output::json(&redrive)?
    } else {
        output::line(sentence(&redrive))?
    }
    Ok(Exit::Ok)
}

fn letters(count: u64) -> String {
    if count == 1 { "1 dead letter".to_owned() } else { format!("{count} dead letters") }
}

fn sentence(redrive: &Redrive) -> String {
    let id = redrive.redrive_id.as_deref().map(output::clean).unwrap_or_default();
    let so_far = if redrive.state == RedriveState::Running { " so far" } else { "" };
    let (state, released) = (output::clean(redrive.state.as_str()), redrive.released);
    format!("Redrive {id} is {state}: {released} of {} released{so_far}.", letters(redrive.matched))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redrive_says_how_far_it_is() {
        let redrive = Redrive {
            redrive_id: Some("rd_1".into()),
            dry_run: false,
            matched: 42,
            released: 0,
            state: RedriveState::Running,
            filter: None,
            named_tasks: None,
            rate: None,
            started_at: None,
        };
        assert_eq!(sentence(&redrive), "Redrive rd_1 is running: 0 of 42 dead letters released so far.");
        let redrive = Redrive { matched: 1, released: 1, state: RedriveState::Done, ..redrive };
        assert_eq!(sentence(&redrive), "Redrive rd_1 is done: 1 of 1 dead letter released.");
    }

    #[test]
    fn dead_letters_show_why_they_died() {
        console::set_colors_enabled(false);
        let letter = r#"{"task_id":"018c","queue":"etl","operator":"extract","reason":"max_attempts",
            "last_error":{"code":"HTTP_503","message":"busy"},"attempts":3,"redrive_count":0,"dead_lettered_at":"2025-01-15T10:00:00Z"}"#;
        let text = table(&[serde_json::from_str(letter).unwrap()], "2025-01-15T10:01:00Z".parse().unwrap());
        assert!(text.ends_with("60s  HTTP_503: busy"), "{text}");
    }
}
