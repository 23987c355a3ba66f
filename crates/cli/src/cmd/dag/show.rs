//! A DAG in the terminal, or as a picture.

use std::fmt::Write as _;

use anyhow::Context;
use jiff::Timestamp;
use tenure_client::Client;
use tenure_client::dags::{Dag, DagJob};

use super::graph::Graph;
use super::{rails, state_styled, svg};
use crate::output::{self, Card, clean, dim};
use crate::times;

/// So many jobs are shown unless all are asked for.
const SHOWN: usize = 100;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of the DAG
    #[arg(value_name = "DAG")]
    name: String,
    /// Show this version [default: the active one]
    #[arg(long, value_name = "N")]
    version: Option<i64>,
    /// Print the YAML of the version, and nothing else
    #[arg(long, conflicts_with = "svg")]
    yaml: bool,
    /// Write the graph as an SVG picture
    #[arg(long, value_name = "FILE")]
    svg: Option<std::path::PathBuf>,
    /// Show all jobs, without a limit
    #[arg(long)]
    all: bool,
}

pub async fn run(client: &Client, args: Args, json: bool) -> anyhow::Result<()> {
    let dag = client.dag(&args.name, args.version).await?;
    if let Some(path) = &args.svg {
        std::fs::write(path, svg::render(&dag)).with_context(|| format!("{} could not be written", path.display()))?;
        if !json {
            return output::line(format!("The graph of {} is in {}.", clean(&dag.name), path.display()));
        }
    }
    if json {
        output::json(&dag)
    } else if args.yaml {
        output::line(&dag.yaml)
    } else {
        output::line(page(&dag, if args.all { usize::MAX } else { SHOWN }, Timestamp::now()))
    }
}

fn page(dag: &Dag, limit: usize, now: Timestamp) -> String {
    let active = match dag.active_version {
        Some(active) if active == dag.version => "this one".to_owned(),
        Some(active) => format!("version {active}"),
        None => "none".to_owned(),
    };
    let mut card = Card::default();
    card.row("version", format!("{} {}", dag.version, state_styled(&dag.state)))
        .row("active", active)
        .row("latest", dag.latest_version.to_string())
        .row("updated", format!("{}  ({})", clean(&dag.updated_at), times::distance(&dag.updated_at, now)))
        .row("jobs", dag.jobs.len().to_string());
    let graph = Graph::of(dag);
    let mut text = format!("DAG {}\n{}\n{}", clean(&dag.name), card.render(), jobs(&graph, limit));
    for (name, readers) in &graph.outside {
        let readers: Vec<String> = readers.iter().map(|job| clean(&graph.jobs[*job].name)).collect();
        let _ = writeln!(
            text,
            "{}",
            dim(format!("dataset {} of another DAG is read by {}", clean(name), readers.join(", ")))
        );
    }
    text
}

/// A line for each job: the edges, its name, what it is, its tasks, and what it publishes.
fn jobs(graph: &Graph<'_>, limit: usize) -> String {
    let rows = rails::draw(graph);
    let drawn = rows.is_some();
    let rows = rows.unwrap_or_else(|| {
        (0..graph.jobs.len()).map(|job| rails::Row { rails: "·".to_owned(), job: Some(job) }).collect()
    });
    let left = |row: &rails::Row| {
        let name = row.job.map(|job| clean(&graph.jobs[job].name)).unwrap_or_default();
        format!("{}  {name}", row.rails)
    };
    let mut shown = 0;
    let rows: Vec<&rails::Row> = rows
        .iter()
        .take_while(|row| {
            shown += usize::from(row.job.is_some());
            shown <= limit
        })
        .collect();
    let width = rows.iter().map(|row| left(row).chars().count()).max().unwrap_or(0);
    let kinds =
        rows.iter().filter_map(|row| row.job).map(|job| kind(graph.jobs[job]).chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for row in rows {
        let left = left(row);
        let Some(job) = row.job else {
            text += &format!("{}\n", left.trim_end());
            continue;
        };
        let job = graph.jobs[job];
        let pad = " ".repeat(width - left.chars().count());
        let kind = kind(job);
        let gap = " ".repeat(kinds - kind.chars().count());
        let mut notes = Vec::from_iter(Some(tasks(job)).filter(|tasks| !tasks.is_empty()));
        notes.extend(published(job));
        if !drawn {
            notes.extend(reads(job));
        }
        let line = format!("{left}{pad}  {}{gap}  {}", dim(kind), notes.join("  "));
        text += &format!("{}\n", line.trim_end());
    }
    if shown > limit {
        text += &format!("… and {} more: use --all to show them\n", graph.jobs.len() - limit);
    }
    text
}

fn kind(job: &DagJob) -> String {
    let runs = job.source.as_ref().or(job.execution_strategy.as_ref()).cloned().unwrap_or_default();
    clean(&format!("{runs} {}/{}", job.runtime, job.operator))
}

fn tasks(job: &DagJob) -> String {
    let counts = job.tasks;
    let parts = [(counts.queued, "queued"), (counts.running, "running"), (counts.failed, "failed")];
    let parts: Vec<String> = parts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| {
            let text = format!("{count} {what}");
            match *what {
                "failed" => console::style(text).red().to_string(),
                "running" => console::style(text).cyan().to_string(),
                _ => text,
            }
        })
        .collect();
    parts.join(" ")
}

fn published(job: &DagJob) -> Option<String> {
    let names: Vec<String> =
        job.outputs.iter().filter_map(|output| output.dataset_name.as_deref()).map(clean).collect();
    (!names.is_empty()).then(|| format!("→ {}", names.join(", ")))
}

fn reads(job: &DagJob) -> Option<String> {
    let names: Vec<String> = job
        .inputs
        .iter()
        .filter_map(|input| input.from.job.as_deref().or(input.from.dataset.as_deref()))
        .map(clean)
        .collect();
    (!names.is_empty()).then(|| format!("reads {}", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::super::graph::tests::dag;
    use super::*;

    #[test]
    fn a_dag_is_drawn_with_its_edges_tasks_and_datasets() {
        console::set_colors_enabled(false);
        let mut shown = dag(&[("import", &[]), ("decode", &["import"]), ("count", &["decode", "@prices"])]);
        let job = shown.jobs.iter_mut().find(|job| job.name == "decode").unwrap();
        job.tasks.running = 2;
        job.tasks.failed = 1;
        job.outputs[0].dataset_name = Some("decoded".to_owned());
        let now: Timestamp = "2025-01-15T10:01:00Z".parse().unwrap();
        let text = page(&shown, 100, now);
        for part in ["DAG d", "1 Active", "this one", "(60s ago)", "●  import", "2 running 1 failed", "→ decoded"] {
            assert!(text.contains(part), "no {part} in\n{text}");
        }
        assert!(text.ends_with("dataset prices of another DAG is read by count\n"), "{text}");
        let short = page(&shown, 2, now);
        assert!(short.contains("… and 1 more: use --all to show them") && !short.contains("●  count"), "{short}");
    }

    #[test]
    fn a_graph_that_is_too_wide_lists_what_each_job_reads() {
        console::set_colors_enabled(false);
        let names: Vec<String> = (0..60).map(|n| format!("r{n}")).collect();
        let mut jobs: Vec<(&str, &[&str])> = vec![("a", &[])];
        jobs.extend(names.iter().map(|name| (name.as_str(), &["a"][..])));
        let text = page(&dag(&jobs), 100, Timestamp::now());
        assert!(text.contains("·  r7") && text.contains("reads a"), "{text}");
    }
}
