use anyhow::Context;
use tenure_client::Client;
use tenure_client::run::{Run, RunSubmission};

use super::super::connect::text_or_file;
use super::watch;
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
    /// Key of the run, in place of the one in the file: submitting the same again gives the same run
    #[arg(long, value_name = "KEY")]
    run_key: Option<String>,
    /// Label, beside those in the file; can be given more than once
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// Follow the run to its end; the exit code says how it ended
    #[arg(long)]
    wait: bool,
}

fn label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("say it like team=etl")?;
    Ok((name.to_owned(), value.to_owned()))
}

pub async fn run(client: &Client, args: Args, json: bool) -> anyhow::Result<Exit> {
    let text = match args.file.as_str() {
        "-" => text_or_file("-")?,
        path => text_or_file(&format!("@{path}"))?,
    };
    let mut submission = parse(&text).map_err(|message| Stop::usage(format!("{} is no run: {message}", args.file)))?;
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
        Some(false) => format!("Run {id} was there already under this key: {state}"),
        _ => format!("Submitted run {id} of {} tasks: {state}", run.counts.total),
    }
}

/// JSON is read as JSON, so that its numbers keep their digits.
fn parse(text: &str) -> Result<RunSubmission, String> {
    if text.trim_start().starts_with('{') {
        return serde_json::from_str(text).map_err(|error| error.to_string());
    }
    // The largest run that the server takes, and no more.
    let options = serde_saphyr::options! {
        with_snippet: false,
        emit_comments: false,
        budget: serde_saphyr::budget! {
            max_depth: 128,
            max_events: 8_000_000,
            max_nodes: 4_000_000,
            max_documents: 1,
            max_total_scalar_bytes: 64 << 20,
        },
    };
    let value: serde_json::Value =
        serde_saphyr::from_str_with_options(text, options).map_err(|error| error.without_snippet().to_string())?;
    // serde would also take the fields one after the other in a list, without their names.
    if !value.is_object() {
        return Err("it has to be a mapping, with tasks in it".to_owned());
    }
    serde_json::from_value(value).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_and_json_are_the_same_run() {
        let yaml = "run_key: k\ntasks:\n  - key: a\n    queue: q\n    operator: op\n  - key: b\n    queue: q\n    operator: op\n    depends_on: [a]\n    payload: {x: {$from: a}}\n";
        let json = r#"{"run_key":"k","tasks":[{"key":"a","queue":"q","operator":"op"},
            {"key":"b","queue":"q","operator":"op","depends_on":["a"],"payload":{"x":{"$from":"a"}}}]}"#;
        let (yaml, json) = (parse(yaml).unwrap(), parse(json).unwrap());
        assert_eq!((yaml.run_key, yaml.tasks.len()), (json.run_key, 2));
        assert_eq!(yaml.tasks[1].depends_on, ["a"]);
        let payload = |run: &[tenure_client::run::RunEntry]| run[1].task.payload.as_ref().unwrap().value();
        assert_eq!(payload(&yaml.tasks), payload(&json.tasks));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, says) in [("tasks: 5", "expected a sequence"), ("{", "EOF"), ("- a", "mapping"), ("a: [", "")] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn a_run_of_ten_thousand_tasks_is_not_too_large() {
        let entries: String = (0..10_000)
            .map(|n| format!("  - key: t{n}\n    queue: q\n    operator: op\n    depends_on: []\n"))
            .collect();
        assert_eq!(parse(&format!("tasks:\n{entries}")).unwrap().tasks.len(), 10_000);
    }
}
