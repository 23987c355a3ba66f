//! Whether a claim gets slower with what waits and with what is finished.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use crate::Measuring;
use crate::load::{self, Drain, Held, Mode, SUBMIT_BATCH, Worker};
use crate::picture::{Curve, Curves, Panel, Picture};
use crate::progress::Watch;
use crate::report::{self, Machine, Report, Table, count};
use crate::samples::{Percentiles, Samples};
use crate::stand::{Place, Stand};

const QUEUE: &str = "bench-backlog";
/// After this many rows, the store gets a moment to write back.
const SETTLE: Duration = Duration::from_secs(5);
const FILL: Drain = Drain { mode: Mode::Exchange, workers: 8, batch: 100 };

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Options {
    /// How many tasks are ready, in growing order.
    pub levels: Vec<usize>,
    /// Claims that are timed at each level, one after the other.
    pub claims: usize,
    /// Whether to settle after each fill. Only a quick look does without.
    pub settle: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Level {
    pub ready: usize,
    pub finished: usize,
    pub claim_ms: Percentiles,
    /// The memory of the control plane, in bytes.
    pub memory: Option<u64>,
}

/// `tenure bench backlog`
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BacklogReport {
    pub bench: String,
    pub store: String,
    pub machine: Machine,
    pub settings: Options,
    pub levels: Vec<Level>,
    /// With the smallest backlog again, after everything else was finished.
    pub after: Level,
    /// p99 at the largest backlog by p99 at the smallest.
    pub growth_with_backlog: f64,
    /// p99 after everything was finished by p99 at the start, with the same backlog.
    pub growth_with_finished: f64,
    pub completed: usize,
}

/// What stands in the store.
struct State<'a> {
    stand: &'a Stand,
    place: Option<&'a Place>,
    options: &'a Options,
    progress: &'a Watch,
    ready: usize,
    finished: usize,
}

pub fn run<'a>(
    stand: &'a Stand,
    place: Option<&'a Place>,
    options: Options,
    progress: &'a Watch,
) -> Measuring<'a, BacklogReport> {
    Box::pin(run_all(stand, place, options, progress))
}

async fn run_all(stand: &Stand, place: Option<&Place>, options: Options, progress: &Watch) -> Result<BacklogReport> {
    ensure!(options.levels.is_sorted() && options.levels.len() > 1, "at least two levels in growing order are needed");
    ensure!(
        options.levels[0] >= options.claims,
        "at {} ready tasks {} cannot be claimed",
        options.levels[0],
        options.claims
    );
    let mut state = State { stand, place, options: &options, progress, ready: 0, finished: 0 };
    let mut levels = Vec::new();
    for ready in &options.levels {
        levels.push(state.measure(*ready).await?);
    }
    state.empty().await?;
    let after = state.measure(options.levels[0]).await?;
    state.empty().await?;
    let (first, last) = (&levels[0], &levels[levels.len() - 1]);
    Ok(BacklogReport {
        bench: "backlog".to_owned(),
        store: place.map_or("given", |place| place.choice.name()).to_owned(),
        machine: Machine::look(place).await?,
        growth_with_backlog: last.claim_ms.p99 / first.claim_ms.p99,
        growth_with_finished: after.claim_ms.p99 / first.claim_ms.p99,
        completed: state.finished,
        after,
        levels,
        settings: options,
    })
}

impl State<'_> {
    /// Fills up to `ready` tasks and times claims.
    async fn measure(&mut self, ready: usize) -> Result<Level> {
        let target = &self.stand.target;
        let missing = ready.saturating_sub(self.ready);
        load::submit(target, QUEUE, missing, SUBMIT_BATCH, self.progress).await?;
        self.ready += missing;
        if self.options.settle {
            if let Some(place) = self.place {
                place.tidy().await?;
            }
            self.progress.note(&format!(
                "{} ready, {} finished",
                count(self.ready as f64),
                count(self.finished as f64)
            ));
            tokio::time::sleep(SETTLE).await;
        }
        let finished = self.finished;
        self.progress.begin("claiming one by one", self.options.claims as u64);
        let mut worker = Worker::connect(target, "bench-backlog".to_owned(), QUEUE).await?;
        let mut samples = Samples::default();
        let mut held: Vec<Held> = Vec::new();
        for _ in 0..self.options.claims {
            let started = Instant::now();
            let claimed = worker.claim(0).await?;
            samples.push(started.elapsed());
            held.extend(claimed);
            self.progress.advance(1);
        }
        ensure!(held.len() == self.options.claims, "a claim found nothing among {} ready tasks", self.ready);
        for held in held.chunks(100) {
            worker.exchange(held, 0, 0).await?;
        }
        self.ready -= held.len();
        self.finished += held.len();
        Ok(Level { ready, finished, claim_ms: samples.percentiles(), memory: self.stand.memory() })
    }

    async fn empty(&mut self) -> Result<()> {
        let target = &self.stand.target;
        let drained = load::drain(target, QUEUE, self.ready, FILL, self.progress).await?;
        ensure!(drained.distinct == self.ready, "{} tasks waited and {} were completed", self.ready, drained.distinct);
        let left = load::left_over(target, QUEUE).await?;
        ensure!(left == 0, "{left} tasks are left in the queue");
        self.finished += self.ready;
        self.ready = 0;
        Ok(())
    }
}

impl Report for BacklogReport {
    fn table(&self) -> Table {
        let rows = self.levels.iter().chain([&self.after]).map(|level| {
            let mut cells = vec![count(level.ready as f64), count(level.finished as f64)];
            cells.extend(report::cells(&level.claim_ms));
            cells.push(level.memory.map(report::megabytes).unwrap_or_default());
            cells
        });
        Table {
            header: vec!["READY", "FINISHED", "P50", "P90", "P99", "MAX", "MEMORY"],
            rows: rows.collect(),
            notes: vec![
                format!("p99 at the largest backlog: {:.2} times that at the smallest", self.growth_with_backlog),
                format!("p99 after all was finished: {:.2} times that at the start", self.growth_with_finished),
            ],
        }
    }

    fn picture(&self) -> Picture {
        let curve = |label: &str, value: fn(&Percentiles) -> f64| Curve {
            label: label.to_owned(),
            points: self.levels.iter().map(|level| (level.ready as f64, value(&level.claim_ms))).collect(),
        };
        Picture {
            title: format!("Claim against backlog on {}", self.store),
            subtitle: "One claim after the other, every answer durable".to_owned(),
            panels: vec![Panel::Curves(Curves {
                title: "Time of a claim".to_owned(),
                unit: "ms".to_owned(),
                x_label: "ready tasks".to_owned(),
                log_x: true,
                log_y: false,
                curves: vec![curve("p50", |found| found.p50), curve("p99", |found| found.p99)],
            })],
            notes: vec![
                format!(
                    "p99 at the largest backlog is {:.2} times that at the smallest; after {} finished tasks {:.2} times",
                    self.growth_with_backlog,
                    count(self.after.finished as f64),
                    self.growth_with_finished
                ),
                self.machine.line(),
            ],
        }
    }
}
