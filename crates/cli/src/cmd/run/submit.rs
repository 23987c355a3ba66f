use anyhow::Context;
use tenure_client::Client;
use tenure_client::run::Run;

use super::super::connect::text_or_file;
use super::{file, watch};
use crate::exit::{Exit, Stop};
use crate::output;

const DETAILS: &str = "\
The file is the body of POST /api/v1/runs, in YAML or JSON:

  run_key: daily-2025-01-15
  tasks:
    - key: extract
      queue: etl
      operator: extract
      payload: {day: 2025-01-15}
    - key: load
      queue: etl
      operator: load
      depends_on: [extract]
      payload: {rows: {$from: extract, path: /rows}}";

#[derive(Debug, clap::Args)]
#[command(after_help = DETAILS)]
pub struct Args {
    /// The run, in YAML or JSON; - for standard input
    #[arg(value_name = "FILE")]
    file: String,
    /// Key of the run, overriding the file: submitting the same run again returns the existing one
    #[arg(long, value_name = "KEY")]
    run_key: Option<String>,
    /// Label, in addition to those in the file; repeatable
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// Wait for the run to end; the exit code reports the outcome
    #[arg(long)]
    wait: bool,
}

fn label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it as team=etl")?;
    Ok((name.to_owned(), value.to_owned()))
}

pub async fn run(client: &Client, args: Args, json: bool) -> anyhow::Result<Exit> {
    let text = match args.file.as_str() {
        "-" => text_or_file("-")?,
        path => text_or_file(&format!("@{path}"))?,
    };
    let mut submission = file::parse(&text)
        .map_err(|message| Stop::usage(format!("{} is not a valid run file: {message}", args.file)))?;
    if args.run_key.is_some() {
        submission.run_key = args.run_key;
    }
    if !args.labels.is_empty() {
        submission.labels.get_or_insert_default().extend(args.labels);
    }
    let run = client.submit_run(&submission).await.context("the run was not submitted")?;
    if args.wait {
        if !json {
            eprintln!("{}", sentence(&run));
        }
        return watch::until_end(client, &run.run_id, json).await;
    }
    if json {
        output::json(&run)?;
    } else {
        output::line(sentence(&run))?;
    }
    Ok(Exit::Ok)
}

pub fn sentence(run: &Run) -> String {
    let (id, state) = (&run.run_id, &run.state);
    match run.created {
        Some(false) => format!("Run {id} already exists with this key: {state}"),
        _ if run.counts.total == 1 => format!("Submitted run {id} of 1 task: {state}"),
        _ => format!("Submitted run {id} of {} tasks: {state}", run.counts.total),
    }
}
