//! The DAG as a tree of lines that change on a terminal, and are printed now and then elsewhere.

use std::time::{Duration, Instant};

use console::style;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use tenure_client::dags::DagVersion;

use super::scene::{JobSeen, Scene};
use crate::cmd::dag::{Graph, rails};
use crate::output::{self, clean, dim};

const TICK: Duration = Duration::from_millis(120);

#[derive(Debug)]
pub struct Screen {
    started: Instant,
    live: Option<Live>,
    /// What was printed last, off a terminal.
    last: Vec<String>,
}

#[derive(Debug)]
struct Live {
    all: MultiProgress,
    lines: Vec<ProgressBar>,
}

impl Screen {
    pub fn new() -> Self {
        let live = output::is_terminal()
            .then(|| Live { all: MultiProgress::with_draw_target(ProgressDrawTarget::stdout()), lines: Vec::new() });
        Self { started: Instant::now(), live, last: Vec::new() }
    }

    /// Something happened that is worth a line of its own.
    pub fn note(&self, text: &str) -> anyhow::Result<()> {
        let line = format!("  {}  {text}", dim(format!("{:5.1} s", self.started.elapsed().as_secs_f64())));
        self.print(line)
    }

    fn print(&self, text: String) -> anyhow::Result<()> {
        match &self.live {
            Some(live) => live.all.suspend(|| output::line(text)),
            None => output::line(text),
        }
    }

    /// Where things stand, for somebody who looks.
    pub fn update(&mut self, scene: &Scene) {
        if let Some(live) = &mut self.live {
            live.show(tree(scene));
        }
    }

    /// The end of a chapter: without a terminal the tree is printed if it has changed.
    pub fn chapter(&mut self, scene: &Scene, text: &str) -> anyhow::Result<()> {
        self.note(text)?;
        let lines = tree(scene);
        if self.live.is_none() && lines != self.last {
            self.print(lines.iter().map(|line| format!("           {line}")).collect::<Vec<_>>().join("\n"))?;
            self.last = lines;
        }
        Ok(())
    }

    pub fn clear(&self) {
        self.live.iter().flat_map(|live| &live.lines).for_each(ProgressBar::finish_and_clear);
    }
}

impl Live {
    fn show(&mut self, lines: Vec<String>) {
        while self.lines.len() < lines.len() {
            let template = if self.lines.is_empty() { "\n    {spinner:.cyan} {wide_msg}" } else { "      {wide_msg}" };
            let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner());
            let line = self.all.add(ProgressBar::new_spinner().with_style(style));
            line.enable_steady_tick(TICK);
            self.lines.push(line);
        }
        for (index, bar) in self.lines.iter().enumerate() {
            bar.set_message(lines.get(index).cloned().unwrap_or_default());
        }
    }
}

/// A line for the versions, then a line for each job with its edges.
fn tree(scene: &Scene) -> Vec<String> {
    let versions: Vec<_> = scene.versions.iter().rev().map(version).collect();
    let mut lines = vec![format!("{}  {}", style(clean(&scene.dag.name)).bold(), versions.join(", "))];
    let graph = Graph::of(&scene.dag);
    let rows = rails::draw(&graph).unwrap_or_default();
    let left = |row: &rails::Row| {
        let name = row.job.map(|job| clean(&graph.jobs[job].name)).unwrap_or_default();
        format!("{}  {name}", row.rails)
    };
    let width = rows.iter().map(|row| left(row).chars().count()).max().unwrap_or(0);
    for row in &rows {
        let left = left(row);
        let pad = " ".repeat(width - left.chars().count());
        let said = row.job.and_then(|job| scene.job(&graph.jobs[job].name)).map(work).unwrap_or_default();
        lines.push(format!("{left}{pad}  {said}").trim_end().to_owned());
    }
    lines
}

fn version(version: &DagVersion) -> String {
    let rebuild = version.rebuild;
    let rebuilt = match version.state.as_str() {
        "Staging" => format!(" ({} of {} rebuilt)", rebuild.done, rebuild.total),
        _ => String::new(),
    };
    format!("version {} {}{rebuilt}", version.version, clean(&version.state))
}

fn work(job: &JobSeen) -> String {
    let parts = [
        (job.done, style(format!("{} done", job.done)).green()),
        (job.running, style(format!("{} running", job.running)).cyan()),
        (job.queued, style(format!("{} waiting", job.queued)).yellow()),
        (job.failed, style(format!("{} failed", job.failed)).red()),
    ];
    let parts: Vec<_> = parts.iter().filter(|(count, _)| *count > 0).map(|(_, text)| text.to_string()).collect();
    format!("{:12}  {}", job.kind, parts.join("  "))
}

#[cfg(test)]
mod tests {
    use super::super::scene::tests::scene;
    use super::*;

    #[test]
    fn the_tree_has_edges_versions_and_what_each_job_does() {
        console::set_colors_enabled(false);
        assert_eq!(
            tree(&scene()),
            [
                "demo  version 1 Active, version 2 Staging (1 of 3 rebuilt)",
                "●  backfill        manual        2 done  1 running",
                "│ ●  every-minute  cron",
                "├─╯",
                "●  power           PerPartition  2 done  1 waiting",
                "●  sum             PerPartition  1 done  1 failed",
            ]
        );
    }
}
