//! `tenure dataset publish`, `dead-letters`, `replay`: rows of buffered datasets.

use anyhow::Context;
use tenure_client::Client;
use tenure_client::dags::DeadBatch;
use tenure_client::user::Page;

use crate::cmd::connect::{all_pages, text_or_file};
use crate::exit::{Exit, Stop};
use crate::output::{self, cell, cell_or_dash, clean, number};

const PUBLISH_DETAILS: &str = "\
Rows are JSON objects with the columns of the dataset, one on each line; org_id may be left out. The rows of a batch are \
written together, or none of them if one is wrong: see `tenure dataset dead-letters`.

Examples:
  tenure dataset publish alerts @alerts.jsonl
  echo '{\"dedupe_key\":\"a\",\"severity\":\"info\"}' | tenure dataset publish alerts -";

#[derive(Debug, clap::Args)]
#[command(after_help = PUBLISH_DETAILS)]
pub struct PublishArgs {
    /// Name or id of the dataset
    #[arg(value_name = "DATASET")]
    name: String,
    /// Rows as JSON lines: text, @FILE, or - for standard input
    #[arg(value_name = "ROWS", default_value = "-")]
    rows: String,
    /// Name of this batch: the same one again publishes nothing new
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
}

#[derive(Debug, clap::Args)]
pub struct DeadLettersArgs {
    /// Name or id of the dataset
    #[arg(value_name = "DATASET")]
    name: String,
}

#[derive(Debug, clap::Args)]
pub struct ReplayArgs {
    /// Name or id of the dataset
    #[arg(value_name = "DATASET")]
    name: String,
    /// Batches to try again
    #[arg(value_name = "PUBLISH_ID", required_unless_present = "all", conflicts_with = "all")]
    ids: Vec<String>,
    /// Try all of them again
    #[arg(long)]
    all: bool,
}

pub async fn publish(client: &Client, args: PublishArgs, json: bool) -> anyhow::Result<()> {
    let rows = text_or_file(&args.rows)?;
    if rows.trim().is_empty() {
        return Err(Stop::usage("there are no rows").hint("rows are JSON objects, one on each line").into());
    }
    let published = client.publish_lines(&args.name, &rows, args.key.as_deref()).await;
    let published = published.context("nothing was published")?;
    if json {
        return output::json(&published);
    }
    let again = if published.duplicate { " It was accepted before." } else { "" };
    output::line(format!("Batch {} is accepted.{again}", clean(&published.publish_id)))
}

pub async fn dead_letters(client: &Client, args: DeadLettersArgs, json: bool) -> anyhow::Result<()> {
    let items: Vec<DeadBatch> = all_pages(async |cursor| client.dead_batches(&args.name, cursor).await).await?;
    if json {
        return output::json(&Page { items, next_cursor: None });
    }
    if items.is_empty() {
        return output::line("No dead letters.");
    }
    let rows = items.iter().map(|batch| {
        vec![
            cell(&batch.publish_id),
            number(batch.receives),
            cell_or_dash(batch.error.line.map(|line| line.to_string())),
            cell(format!("{}: {}", batch.error.code, batch.error.message)),
            cell(&batch.dead_at),
        ]
    });
    output::line(output::table(&["BATCH", "RECEIVES", "LINE", "ERROR", "SINCE"], rows))
}

pub async fn replay(client: &Client, args: ReplayArgs, json: bool) -> anyhow::Result<()> {
    let named = !args.all;
    let replayed = client.replay_batches(&args.name, named.then_some(args.ids)).await;
    let replayed = replayed.context("nothing is tried again")?;
    if json {
        return output::json(&replayed);
    }
    if named && replayed.replayed == 0 {
        let hint = format!("`tenure dataset dead-letters {}` lists them", args.name);
        return Err(Stop::new(Exit::NotFound, "none of these is a dead letter of the dataset").hint(hint).into());
    }
    output::line(match replayed.replayed {
        1 => "1 batch is tried again.".to_owned(),
        many => format!("{many} batches are tried again."),
    })
}
