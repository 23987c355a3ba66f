//! Following a version, live.

use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use jiff::Timestamp;
use serde_json::json;
use tenure_client::dags::{Dag, DagVersion};
use tenure_client::{Client, ClientError};

use super::state_styled;
use crate::exit::{Exit, Stop};
use crate::output::{self, clean, dim};
use crate::times;

/// How often the server is asked.
const EVERY: Duration = Duration::from_secs(1);
/// How long a server may be away before a watcher gives up.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of the DAG
    #[arg(value_name = "DAG")]
    name: String,
    /// Follow this version [default: the one that waits to become active, or the latest one]
    #[arg(long, value_name = "N")]
    version: Option<i64>,
}

pub async fn run(client: &Client, args: Args, json: bool) -> anyhow::Result<Exit> {
    let version = match args.version {
        Some(version) => version,
        None => newest(client, &args.name).await?,
    };
    follow(client, &args.name, version, json, true).await
}

/// As `watch`, but with `json` only the last word is printed, and a version that waits for a cutover is enough.
pub async fn until_settled(client: &Client, name: &str, version: i64, json: bool) -> anyhow::Result<Exit> {
    follow(client, name, version, json, false).await
}

/// The version that is most worth looking at.
async fn newest(client: &Client, name: &str) -> Result<i64, ClientError> {
    let (mut cursor, mut latest) = (None, None);
    loop {
        let page = client.dag_versions(name, cursor).await?;
        latest = latest.or_else(|| page.items.first().map(|version| version.version));
        let waits = page.items.iter().find(|version| matches!(version.state.as_str(), "Staging" | "Ready"));
        match (waits, page.next_cursor) {
            (Some(version), _) => return Ok(version.version),
            (None, Some(next)) => cursor = Some(next),
            (None, None) => return Ok(latest.unwrap_or(1)),
        }
    }
}

/// A version and the tasks of its jobs, at one moment.
struct Seen {
    version: DagVersion,
    dag: Dag,
}

impl Seen {
    async fn get(client: &Client, name: &str, number: i64) -> Result<Self, ClientError> {
        // A page of one: the cursor is the number after it.
        let page = client.dag_versions(name, Some((number + 1).to_string())).await?;
        let version = page.items.into_iter().find(|version| version.version == number);
        let dag = client.dag(name, Some(number)).await?;
        let version = version.ok_or_else(|| ClientError::Setup(format!("{name} has no version {number}")))?;
        Ok(Self { version, dag })
    }

    /// How it ended, if it did.
    fn end(&self) -> Option<Exit> {
        let rebuild = self.version.rebuild;
        match self.version.state.as_str() {
            "Active" => Some(Exit::Ok),
            "Abandoned" | "RolledBack" | "Superseded" => Some(Exit::TaskCanceled),
            "Staging" if rebuild.failed > 0 && rebuild.done + rebuild.failed == rebuild.total => Some(Exit::TaskFailed),
            _ => None,
        }
    }

    /// What changes.
    fn line(&self) -> String {
        let rebuild = self.version.rebuild;
        let mut parts = vec![format!("version {} {}", self.version.version, state_styled(&self.version.state))];
        if rebuild.total > 0 {
            let failed = if rebuild.failed > 0 { format!(", {} failed", rebuild.failed) } else { String::new() };
            parts.push(format!("rebuilt {}/{}{failed}", rebuild.done, rebuild.total));
        }
        let work: Vec<String> = self
            .dag
            .jobs
            .iter()
            .filter(|job| job.tasks.queued + job.tasks.running + job.tasks.failed > 0)
            .map(|job| {
                let tasks = job.tasks;
                let parts = [(tasks.queued, "queued"), (tasks.running, "running"), (tasks.failed, "failed")];
                let parts: Vec<String> = parts
                    .iter()
                    .filter(|(count, _)| *count > 0)
                    .map(|(count, what)| format!("{count} {what}"))
                    .collect();
                format!("{}: {}", clean(&job.name), parts.join(" "))
            })
            .collect();
        parts.extend((!work.is_empty()).then(|| work.join("; ")));
        parts.join("  ")
    }
}

async fn follow(client: &Client, name: &str, number: i64, json: bool, every: bool) -> anyhow::Result<Exit> {
    let bar = if json { None } else { output::progress_bar(1, "{pos}/{len} rebuilt") };
    let (mut last, mut silent_since) = (None, None);
    let (end, seen) = loop {
        match Seen::get(client, name, number).await {
            Ok(seen) => {
                silent_since = None;
                let line = seen.line();
                let end = seen.end().or_else(|| (!every && seen.version.state == "Ready").then_some(Exit::Ok));
                if last.as_ref() != Some(&line) {
                    show(bar.as_ref(), &seen, &line, json, (every, end.is_some()))?;
                    last = Some(line);
                }
                if let Some(end) = end {
                    break (end, seen);
                }
            }
            // A server that was never there is not waited for.
            Err(error) if last.is_some() && error.is_temporary() => {
                if silent_since.is_none() {
                    output::progress_line(bar.as_ref(), "the server does not answer; trying again");
                }
                if silent_since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                    return Err(error.into());
                }
            }
            Err(error) => return Err(error.into()),
        }
        tokio::time::sleep(EVERY).await;
    };
    bar.inspect(ProgressBar::finish_and_clear);
    match end {
        Exit::TaskFailed => {
            let failed = seen.version.rebuild.failed;
            let hint =
                format!("retry them with `tenure dead-letter redrive`, or deploy another version of {}", clean(name));
            Err(Stop::new(end, format!("{failed} tasks of the rebuild failed for good")).hint(hint).into())
        }
        Exit::TaskCanceled => Err(Stop::new(end, format!("version {number} is {}", clean(&seen.version.state))).into()),
        end => Ok(end),
    }
}

/// What changed goes to stderr, the end to stdout.
fn show(
    bar: Option<&ProgressBar>,
    seen: &Seen,
    line: &str,
    json: bool,
    (every, is_end): (bool, bool),
) -> anyhow::Result<()> {
    if json {
        let tasks: serde_json::Map<_, _> =
            seen.dag.jobs.iter().map(|job| (job.name.clone(), json!(job.tasks))).collect();
        let mut value = serde_json::to_value(&seen.version)?;
        value["tasks"] = tasks.into();
        return if every || is_end { output::json(&value) } else { Ok(()) };
    }
    let text = format!("{}  {line}", dim(times::clock(Timestamp::now())));
    if let Some(bar) = bar {
        bar.set_length(seen.version.rebuild.total.max(1));
        bar.set_position(seen.version.rebuild.done);
    }
    if is_end {
        bar.inspect(|bar| bar.finish_and_clear());
        return output::line(text);
    }
    output::progress_line(bar, &text);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::graph::tests::dag;
    use super::*;

    fn seen(state: &str, rebuild: &str) -> Seen {
        let version = format!(
            r#"{{"version":2,"dag_version_id":"id","yaml_hash":"sha256:0","state":"{state}","previous_version":1,
            "created_at":"2025-01-15T10:00:00Z","rebuild":{rebuild}}}"#
        );
        let mut dag = dag(&[("import", &[]), ("decode", &["import"])]);
        dag.jobs[1].tasks.queued = 3;
        dag.jobs[1].tasks.running = 1;
        Seen { version: serde_json::from_str(&version).unwrap(), dag }
    }

    #[test]
    fn a_version_ends_active_failed_or_replaced() {
        let none = r#"{"total":0,"done":0,"failed":0}"#;
        for (state, rebuild, end) in [
            ("Staging", r#"{"total":4,"done":1,"failed":1}"#, None),
            ("Staging", r#"{"total":4,"done":3,"failed":1}"#, Some(Exit::TaskFailed)),
            ("Staging", none, None),
            ("Ready", none, None),
            ("Active", none, Some(Exit::Ok)),
            ("Abandoned", none, Some(Exit::TaskCanceled)),
            ("RolledBack", none, Some(Exit::TaskCanceled)),
        ] {
            assert_eq!(seen(state, rebuild).end(), end, "{state} {rebuild}");
        }
    }

    #[test]
    fn a_line_tells_state_rebuild_and_tasks() {
        console::set_colors_enabled(false);
        let line = seen("Staging", r#"{"total":4,"done":1,"failed":1}"#).line();
        assert_eq!(line, "version 2 Staging  rebuilt 1/4, 1 failed  decode: 3 queued 1 running");
    }
}
