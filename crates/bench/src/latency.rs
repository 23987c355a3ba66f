//! How long from submitting a task to its start, when there is little to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use crate::Measuring;
use crate::load::{self, Worker};
use crate::picture::{Bar, BarKind, Bars, Panel, Picture};
use crate::progress::Watch;
use crate::report::{self, Machine, Report, Table};
use crate::samples::{Percentiles, Samples};
use crate::stand::{Place, Stand};

const QUEUE: &str = "bench-latency";
/// Long polls are this long.
const WAIT_MS: u32 = 1_000;
/// Tasks at the start that are not counted: connections, caches and plans are cold.
const WARM_UP: usize = 50;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Options {
    pub per_second: f64,
    pub seconds: f64,
    pub workers: usize,
}

/// `tenure bench latency`
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LatencyReport {
    pub bench: String,
    pub store: String,
    pub machine: Machine,
    pub settings: Options,
    pub tasks: usize,
    pub completed: usize,
    /// From before the submit request is sent until a worker has the task.
    pub start_ms: Percentiles,
    /// From before the submit request is sent until its answer is there.
    pub submit_ms: Percentiles,
    /// Of the complete request.
    pub complete_ms: Percentiles,
}

#[derive(Deserialize)]
struct Job {
    payload: Stamp,
}

/// When the task was submitted, and which one it is.
#[derive(Serialize, Deserialize)]
struct Stamp {
    n: usize,
    at: u64,
}

pub fn run<'a>(
    stand: &'a Stand,
    place: Option<&'a Place>,
    options: Options,
    progress: &'a Watch,
) -> Measuring<'a, LatencyReport> {
    Box::pin(run_all(stand, place, options, progress))
}

async fn run_all(stand: &Stand, place: Option<&Place>, options: Options, progress: &Watch) -> Result<LatencyReport> {
    ensure!(options.per_second > 0.0 && options.seconds > 0.0, "a rate and a time above 0 are needed");
    let tasks = (options.per_second * options.seconds).round().max(1.0) as usize + WARM_UP;
    progress.begin("submitting at a steady rate", tasks as u64);
    let epoch = Instant::now();
    let completed = Arc::new(AtomicUsize::new(0));
    let mut workers = JoinSet::new();
    for number in 0..options.workers {
        let worker = Worker::connect(&stand.target, format!("bench-{number}"), QUEUE).await?;
        let (completed, progress) = (Arc::clone(&completed), Arc::clone(progress));
        workers.spawn(work(worker, epoch, tasks, completed, progress));
    }
    let submit_ms = submit(stand, epoch, tasks, options.per_second).await?;
    let (mut start, mut complete) = (Samples::default(), Samples::default());
    for (starts, completes) in load::all(workers).await? {
        start.extend(starts);
        complete.extend(completes);
    }
    let completed = completed.load(Ordering::Relaxed);
    ensure!(completed == tasks, "{tasks} tasks were submitted and {completed} completed");
    Ok(LatencyReport {
        bench: "latency".to_owned(),
        store: place.map_or("given", |place| place.choice.name()).to_owned(),
        machine: Machine::look(place).await?,
        settings: options,
        tasks,
        completed,
        start_ms: start.percentiles(),
        submit_ms,
        complete_ms: complete.percentiles(),
    })
}

/// Sends each at its time, whether the one before was answered or not would need a second connection: at a light rate
/// each is answered long before the next is due, and the delay of one that is late is part of its figure.
async fn submit(stand: &Stand, epoch: Instant, tasks: usize, per_second: f64) -> Result<Percentiles> {
    let mut connection = stand.target.connect().await?;
    let mut samples = Samples::default();
    let first = Instant::now();
    for number in 0..tasks {
        let due = first + Duration::from_secs_f64(number as f64 / per_second);
        tokio::time::sleep_until(due.into()).await;
        let sent = Instant::now();
        let stamp = Stamp { n: number, at: u64::try_from(sent.duration_since(epoch).as_nanos())? };
        let body =
            format!("{{\"queue\":\"{QUEUE}\",\"operator\":\"noop\",\"payload\":{}}}", serde_json::to_string(&stamp)?);
        connection.post("/api/v1/tasks", body.into_bytes()).await?;
        if number >= WARM_UP {
            samples.push(sent.elapsed());
        }
    }
    Ok(samples.percentiles())
}

async fn work(
    mut worker: Worker,
    epoch: Instant,
    tasks: usize,
    completed: Arc<AtomicUsize>,
    progress: Watch,
) -> Result<(Samples, Samples)> {
    let (mut starts, mut completes) = (Samples::default(), Samples::default());
    while completed.load(Ordering::Relaxed) < tasks {
        let (held, answer) = worker.claim_raw(WAIT_MS).await?;
        let now = epoch.elapsed();
        let Some(held) = held else { continue };
        let job: Job = serde_json::from_slice(&answer).context("a task without its time")?;
        let begun = Instant::now();
        worker.complete(&held).await?;
        if job.payload.n >= WARM_UP {
            starts.push(now.saturating_sub(Duration::from_nanos(job.payload.at)));
            completes.push(begun.elapsed());
        }
        completed.fetch_add(1, Ordering::Relaxed);
        progress.advance(1);
    }
    Ok((starts, completes))
}

impl Report for LatencyReport {
    fn table(&self) -> Table {
        let row = |what: &str, found: &Percentiles| {
            let mut cells = vec![what.to_owned()];
            cells.extend(report::cells(found));
            cells
        };
        Table {
            header: vec!["FROM … TO", "P50", "P90", "P99", "MAX"],
            rows: vec![
                row("submit sent … task at the worker", &self.start_ms),
                row("submit sent … submit answered", &self.submit_ms),
                row("complete sent … complete answered", &self.complete_ms),
            ],
            notes: vec![format!(
                "{} tasks at {} a second, {} long-polling workers, on {}",
                self.start_ms.samples, self.settings.per_second, self.settings.workers, self.store
            )],
        }
    }

    fn picture(&self) -> Picture {
        let panel = |title: &str, found: &Percentiles| {
            let times = [("p50", found.p50), ("p90", found.p90), ("p99", found.p99), ("max", found.max)];
            let bars =
                times.map(|(label, value)| Bar { label: label.to_owned(), value, kind: BarKind::Ours, note: None });
            Panel::Bars(Bars { title: title.to_owned(), unit: "ms".to_owned(), bars: bars.into() })
        };
        Picture {
            title: format!("Submit to start on {}", self.store),
            subtitle: format!(
                "{} tasks a second, long-polling workers, every answer durable",
                self.settings.per_second
            ),
            panels: vec![
                panel("From submit to the task at the worker", &self.start_ms),
                panel("The submit request itself", &self.submit_ms),
            ],
            notes: vec![self.machine.line()],
        }
    }
}
