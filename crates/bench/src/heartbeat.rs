//! What held leases cost, and how fast a heartbeat is answered, also while claims flood.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use crate::Measuring;
use crate::load::{self, Held, SUBMIT_BATCH, Worker};
use crate::picture::{Bar, BarKind, Bars, Panel, Picture};
use crate::progress::Watch;
use crate::report::{self, Machine, Report, Table, count, percent};
use crate::samples::{Percentiles, Samples};
use crate::stand::{Place, Stand, Usage};

const QUEUE: &str = "bench-heartbeat";
const FLOOD_QUEUE: &str = "bench-flood";
/// Tasks in one exchange of the flood.
const FLOOD_BATCH: usize = 100;
const FLOOD_WORKERS: usize = 4;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Options {
    pub leases: usize,
    pub interval_seconds: f64,
    /// Leases that one request renews; with 1 each has a request of its own.
    pub batch: usize,
    /// How many connections the heartbeats come from.
    pub workers: usize,
    /// How many intervals each phase lasts.
    pub rounds: f64,
}

/// `tenure bench heartbeat`
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HeartbeatReport {
    pub bench: String,
    pub store: String,
    pub machine: Machine,
    pub settings: Options,
    pub quiet: Phase,
    /// While workers claim and complete as fast as they can.
    pub flooded: Phase,
    /// Tasks that the flood completed.
    pub flood_completed: usize,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Phase {
    /// Leases renewed.
    pub renewed: usize,
    pub per_second: f64,
    pub answer_ms: Percentiles,
    /// Of one core, used by the control plane.
    pub processor: Option<f64>,
    /// Of one core, used by a Postgres that was started here.
    pub store_processor: Option<f64>,
    /// What the control plane alone used of one core in the same time before anybody held a lease.
    pub idle_processor: Option<f64>,
}

pub fn run<'a>(
    stand: &'a Stand,
    place: Option<&'a Place>,
    options: Options,
    progress: &'a Watch,
) -> Measuring<'a, HeartbeatReport> {
    Box::pin(run_all(stand, place, options, progress))
}

async fn run_all(stand: &Stand, place: Option<&Place>, options: Options, progress: &Watch) -> Result<HeartbeatReport> {
    ensure!(options.interval_seconds > 0.0 && options.rounds > 0.0, "an interval and rounds above 0 are needed");
    ensure!(options.leases >= options.workers, "more connections than leases");
    let idle = Usage::begin(stand, place);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (idle, _) = idle.end();
    load::submit(&stand.target, QUEUE, options.leases, SUBMIT_BATCH, progress).await?;
    progress.begin("claiming", options.leases as u64);
    let mut beaters = JoinSet::new();
    for number in 0..options.workers {
        let mut worker = Worker::connect(&stand.target, format!("bench-{number}"), QUEUE).await?;
        // The first ones hold one more where it does not come out even.
        let share = options.leases / options.workers + usize::from(number < options.leases % options.workers);
        let progress = Arc::clone(progress);
        beaters.spawn(async move {
            let mut held = Vec::with_capacity(share);
            while held.len() < share {
                let more = worker.exchange(&[], (share - held.len()).min(100), 1_000).await?;
                progress.advance(more.len() as u64);
                held.extend(more);
            }
            Ok((worker, held))
        });
    }
    let beaters = load::all(beaters).await?;
    progress.begin("heartbeats", options.beats());
    let usage = Usage::begin(stand, place);
    let (beaters, quiet) = beat(beaters, &options, progress).await?;
    let quiet = quiet.with(usage, idle);
    let stop = Arc::new(AtomicBool::new(false));
    let completed = Arc::new(AtomicUsize::new(0));
    let mut flood = JoinSet::new();
    for number in 0..FLOOD_WORKERS {
        let worker = Worker::connect(&stand.target, format!("flood-{number}"), FLOOD_QUEUE).await?;
        let submitter = stand.target.clone();
        flood.spawn(pour(worker, submitter, Arc::clone(&stop), Arc::clone(&completed)));
    }
    progress.begin("heartbeats in a flood of claims", options.beats());
    let usage = Usage::begin(stand, place);
    let (_, flooded) = beat(beaters, &options, progress).await?;
    let flooded = flooded.with(usage, None);
    stop.store(true, Ordering::Relaxed);
    load::all(flood).await?;
    Ok(HeartbeatReport {
        bench: "heartbeat".to_owned(),
        store: place.map_or("given", |place| place.choice.name()).to_owned(),
        machine: Machine::look(place).await?,
        settings: options,
        quiet,
        flooded,
        flood_completed: completed.load(Ordering::Relaxed),
    })
}

/// Submits, claims and completes without a pause.
async fn pour(
    mut worker: Worker,
    target: crate::Target,
    stop: Arc<AtomicBool>,
    completed: Arc<AtomicUsize>,
) -> Result<()> {
    let silent: Watch = Arc::new(crate::progress::Silent);
    let mut held: Vec<Held> = Vec::new();
    loop {
        let last = stop.load(Ordering::Relaxed);
        let next = worker.exchange(&held, if last { 0 } else { FLOOD_BATCH }, 0).await?;
        completed.fetch_add(held.len(), Ordering::Relaxed);
        held = next;
        if last {
            return Ok(());
        }
        if held.is_empty() {
            load::submit(&target, FLOOD_QUEUE, 2 * SUBMIT_BATCH, SUBMIT_BATCH, &silent).await?;
        }
    }
}

impl Options {
    fn beats(&self) -> u64 {
        (self.leases as f64 * self.rounds) as u64
    }
}

/// A worker and the leases that it holds.
type Beater = (Worker, Vec<Held>);

/// The heartbeats of one phase.
struct Beats {
    renewed: usize,
    time: Duration,
    answers: Samples,
}

impl Beats {
    fn with(self, usage: Usage<'_>, idle_processor: Option<f64>) -> Phase {
        let (processor, store_processor) = usage.end();
        Phase {
            renewed: self.renewed,
            per_second: self.renewed as f64 / self.time.as_secs_f64(),
            answer_ms: self.answers.percentiles(),
            processor,
            store_processor,
            idle_processor,
        }
    }
}

/// Renews every lease once an interval, spread evenly over it.
async fn beat(beaters: Vec<Beater>, options: &Options, progress: &Watch) -> Result<(Vec<Beater>, Beats)> {
    let started = Instant::now();
    let mut running = JoinSet::new();
    let workers = beaters.len();
    for (number, beater) in beaters.into_iter().enumerate() {
        let phase = number as f64 / workers as f64;
        running.spawn(beat_one(beater, started, phase, options.clone(), Arc::clone(progress)));
    }
    let mut beats = Beats { renewed: 0, time: Duration::ZERO, answers: Samples::default() };
    let mut beaters = Vec::new();
    for (beater, renewed, answers) in load::all(running).await? {
        beaters.push(beater);
        beats.renewed += renewed;
        beats.answers.extend(answers);
    }
    beats.time = started.elapsed();
    Ok((beaters, beats))
}

async fn beat_one(
    (mut worker, held): Beater,
    started: Instant,
    phase: f64,
    options: Options,
    progress: Watch,
) -> Result<(Beater, usize, Samples)> {
    let (mut renewed, mut answers) = (0, Samples::default());
    let batches: Vec<&[Held]> = held.chunks(options.batch).collect();
    let pause = options.interval_seconds / batches.len() as f64;
    let count = (batches.len() as f64 * options.rounds).round() as usize;
    for (number, batch) in batches.iter().cycle().take(count).enumerate() {
        // Workers that beat at the same moments would be answered together and wait for each other.
        let due = Duration::from_secs_f64(pause * (number as f64 + phase));
        tokio::time::sleep_until((started + due).into()).await;
        let sent = Instant::now();
        match batch {
            [one] if options.batch == 1 => worker.heartbeat_one(one).await?,
            batch => worker.heartbeat(batch).await?,
        }
        answers.push(sent.elapsed());
        renewed += batch.len();
        progress.advance(batch.len() as u64);
    }
    Ok(((worker, held), renewed, answers))
}

impl Report for HeartbeatReport {
    fn table(&self) -> Table {
        let row = |what: &str, phase: &Phase| {
            let share = |value: Option<f64>| value.map(percent).unwrap_or_default();
            let mut cells = vec![what.to_owned(), count(phase.per_second)];
            cells.extend(report::cells(&phase.answer_ms));
            cells.extend([share(phase.processor), share(phase.store_processor)]);
            cells
        };
        let mut notes = vec![format!(
            "{} leases, each renewed every {} s, {} in a request, on {}",
            count(self.settings.leases as f64),
            self.settings.interval_seconds,
            self.settings.batch,
            self.store
        )];
        if let Some(idle) = self.quiet.idle_processor {
            notes.push(format!("CPU is in shares of one core; idle, the control plane used {}", percent(idle)));
        }
        notes.push(format!("the flood completed {} tasks meanwhile", count(self.flood_completed as f64)));
        Table {
            header: vec!["WHEN", "RENEWED/S", "P50", "P90", "P99", "MAX", "CPU", "CPU OF POSTGRES"],
            rows: vec![row("quiet", &self.quiet), row("in a flood of claims", &self.flooded)],
            notes,
        }
    }

    fn picture(&self) -> Picture {
        let bar = |label: &str, value: f64| Bar { label: label.to_owned(), value, kind: BarKind::Ours, note: None };
        let times = |title: &str, found: &Percentiles| {
            Panel::Bars(Bars {
                title: title.to_owned(),
                unit: "ms".to_owned(),
                bars: vec![bar("p50", found.p50), bar("p99", found.p99), bar("max", found.max)],
            })
        };
        let mut panels = vec![
            times("Answer to a heartbeat, quiet", &self.quiet.answer_ms),
            times("Answer to a heartbeat, in a flood of claims", &self.flooded.answer_ms),
        ];
        if let Some(processor) = self.quiet.processor {
            let mut bars = vec![bar("control plane", processor * 100.0)];
            bars.extend(self.quiet.store_processor.map(|share| bar("Postgres", share * 100.0)));
            panels.push(Panel::Bars(Bars { title: "Processor, quiet".into(), unit: "% of one core".into(), bars }));
        }
        Picture {
            title: format!("{} held leases on {}", count(self.settings.leases as f64), self.store),
            subtitle: format!("Each renewed every {} s, every answer durable", self.settings.interval_seconds),
            panels,
            notes: vec![self.machine.line()],
        }
    }
}
