//! What somebody sees while the demo runs.

use std::time::{Duration, Instant};

use console::style;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use tenure_contract::user::Task;
use tenure_contract::words::TaskState;

use crate::output;

const TICK: Duration = Duration::from_millis(120);
/// Between two lines when there is no terminal.
const LINES: Duration = Duration::from_secs(2);

/// How many tasks are where.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub waiting: usize,
    pub running: usize,
    pub succeeded: usize,
    pub canceled: usize,
    pub failed: usize,
}

impl Counts {
    pub fn of(tasks: &[Task]) -> Self {
        let mut counts = Self::default();
        for task in tasks {
            match task.state {
                TaskState::Running => counts.running += 1,
                TaskState::Succeeded => counts.succeeded += 1,
                TaskState::Canceled => counts.canceled += 1,
                TaskState::Failed => counts.failed += 1,
                _ => counts.waiting += 1,
            }
        }
        counts
    }

    pub fn ended(&self) -> usize {
        self.succeeded + self.canceled + self.failed
    }
}

/// Bars on a terminal, lines elsewhere.
#[derive(Debug)]
pub struct Screen {
    started: Instant,
    live: Option<Live>,
    last_line: Option<(Instant, Counts)>,
}

#[derive(Debug)]
struct Live {
    all: MultiProgress,
    total: ProgressBar,
    states: ProgressBar,
    workers: Vec<(String, ProgressBar)>,
    /// Rows of workers that were killed.
    dead: Vec<ProgressBar>,
}

impl Screen {
    pub fn new(tasks: usize, workers: [&str; 2]) -> Self {
        let live = output::is_terminal().then(|| Live::new(tasks, workers));
        Self { started: Instant::now(), live, last_line: None }
    }

    pub fn started(&self) -> Instant {
        self.started
    }

    /// Something happened that is worth a line of its own.
    pub fn note(&self, text: &str) -> anyhow::Result<()> {
        let line = format!("  {}  {text}", style(format!("{:5.1} s", self.started.elapsed().as_secs_f64())).dim());
        match &self.live {
            Some(live) => live.all.suspend(|| output::line(line)),
            None => output::line(line),
        }
    }

    /// Where things stand.
    pub fn update(&mut self, tasks: &[Task]) -> anyhow::Result<()> {
        let counts = Counts::of(tasks);
        if let Some(live) = &self.live {
            live.update(&counts, tasks);
            return Ok(());
        }
        let due = self.last_line.is_none_or(|(at, last)| at.elapsed() >= LINES && last != counts);
        if due {
            self.last_line = Some((Instant::now(), counts));
            self.note(&sentence(&counts))?;
        }
        Ok(())
    }

    pub fn killed(&mut self, worker: &str) {
        if let Some(live) = &mut self.live {
            live.killed(worker);
        }
    }

    pub fn clear(&self) {
        if let Some(live) = &self.live {
            live.clear();
        }
    }
}

fn sentence(counts: &Counts) -> String {
    let Counts { waiting, running, succeeded, canceled, failed } = counts;
    format!(
        "{waiting} waiting, {running} running, {succeeded} succeeded, {canceled} canceled, {failed} failed for good"
    )
}

impl Live {
    fn new(tasks: usize, workers: [&str; 2]) -> Self {
        let all = MultiProgress::with_draw_target(ProgressDrawTarget::stdout());
        let bar = |length: usize, style: ProgressStyle| {
            let bar = all.add(ProgressBar::new(length as u64).with_style(style));
            bar.enable_steady_tick(TICK);
            bar
        };
        let total = bar(tasks, styled("\n  {spinner:.cyan} {bar:46.green/dim} {pos:>3} of {len} ended", "━╸━"));
        let states = bar(0, styled("    {wide_msg}", "  "));
        let slots = styled("    {prefix:9} {bar:6.cyan/dim} {msg}", "■■·");
        let workers = workers.map(|name| {
            let bar = bar(super::stage::CONCURRENCY, slots.clone());
            bar.set_prefix(name.to_owned());
            (name.to_owned(), bar)
        });
        let workers = workers.into();
        Self { total, states, workers, dead: Vec::new(), all }
    }

    fn update(&self, counts: &Counts, tasks: &[Task]) {
        self.total.set_position(counts.ended() as u64);
        self.states.set_message(
            [
                format!("{} waiting", counts.waiting),
                style(format!("{} running", counts.running)).cyan().to_string(),
                style(format!("{} succeeded", counts.succeeded)).green().to_string(),
                style(format!("{} canceled", counts.canceled)).yellow().to_string(),
                style(format!("{} failed for good", counts.failed)).red().to_string(),
            ]
            .join("  "),
        );
        for (name, bar) in &self.workers {
            let held = |task: &&Task| task.state == TaskState::Running && task.worker_id.as_ref() == Some(name);
            let held = tasks.iter().filter(held).count();
            bar.set_position(held as u64);
            bar.set_message(format!("{held} running"));
        }
    }

    /// The row stays, but nothing moves in it any more.
    fn killed(&mut self, worker: &str) {
        let Some(place) = self.workers.iter().position(|(name, _)| name == worker) else { return };
        let (_, bar) = self.workers.remove(place);
        bar.set_style(styled("    {prefix:9} {msg}", "  "));
        bar.set_message(style("killed").red().bold().to_string());
        self.dead.push(bar);
    }

    fn clear(&self) {
        let bars = self.workers.iter().map(|(_, bar)| bar).chain(&self.dead);
        for bar in bars.chain([&self.total, &self.states]) {
            bar.finish_and_clear();
        }
    }
}

fn styled(template: &str, chars: &str) -> ProgressStyle {
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    style.progress_chars(chars)
}
