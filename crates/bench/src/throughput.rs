//! How many tasks a second: submitted, then claimed and completed until the queue is empty.

use anyhow::{Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::Measuring;
use crate::load::{self, Drain, Mode, Pace};
use crate::picture::{Bar, BarKind, Bars, Panel, Picture};
use crate::progress::Watch;
use crate::raw::{self, Limits};
use crate::report::{self, Machine, Report, Table, count, percent};
use crate::samples::Percentiles;
use crate::stand::{Place, Stand};

const QUEUE: &str = "bench-throughput";

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Options {
    pub tasks: usize,
    pub mode: Mode,
    pub workers: usize,
    /// Tasks in one exchange.
    pub batch: usize,
    /// Tasks in one submit request.
    pub submit_batch: usize,
    /// Whether the raw limit of the store is measured in the same run.
    pub raw: bool,
    /// How often everything is measured, the raw limit and the control plane in turn.
    pub rounds: usize,
}

/// `tenure bench throughput`
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ThroughputReport {
    pub bench: String,
    pub store: String,
    pub machine: Machine,
    pub settings: Options,
    /// The round in the middle: by its ratio to the raw limit or, without one, by its pace.
    #[serde(flatten)]
    pub median: Round,
    pub rounds: Vec<Round>,
}

/// Everything once.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Round {
    pub submit: Pace,
    pub drain: Drained,
    pub raw: Option<Limits>,
    /// What the control plane did of what the raw store can do.
    pub ratio: Option<Ratio>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Drained {
    pub tasks: usize,
    pub completed: usize,
    /// Different tasks among the completed ones.
    pub distinct: usize,
    pub seconds: f64,
    pub per_second: f64,
    pub request_ms: Percentiles,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Ratio {
    pub to_raw_single: f64,
    pub to_raw_batch: f64,
}

pub fn run<'a>(
    stand: &'a Stand,
    place: Option<&'a Place>,
    options: Options,
    progress: &'a Watch,
) -> Measuring<'a, ThroughputReport> {
    Box::pin(run_all(stand, place, options, progress))
}

async fn run_all(stand: &Stand, place: Option<&Place>, options: Options, progress: &Watch) -> Result<ThroughputReport> {
    let mut rounds = Vec::new();
    for number in 1..=options.rounds {
        if options.rounds > 1 {
            progress.note(&format!("round {number} of {}", options.rounds));
        }
        rounds.push(round(stand, place, &options, progress).await?);
    }
    let mut order: Vec<&Round> = rounds.iter().collect();
    order.sort_by(|a, b| a.rank(options.mode).total_cmp(&b.rank(options.mode)));
    let Some(median) = order.get(order.len() / 2).map(|round| (*round).clone()) else {
        bail!("at least one round is needed");
    };
    Ok(ThroughputReport {
        bench: "throughput".to_owned(),
        store: place.map_or("given", |place| place.choice.name()).to_owned(),
        machine: Machine::look(place).await?,
        settings: options,
        median,
        rounds,
    })
}

async fn round(stand: &Stand, place: Option<&Place>, options: &Options, progress: &Watch) -> Result<Round> {
    let raw = match place.filter(|_| options.raw) {
        Some(place) => {
            let limit = raw::Options { tasks: options.tasks, single: options.tasks.min(20_000) };
            Some(raw::measure(place, limit, progress).await?)
        }
        None => None,
    };
    let submit = load::submit(&stand.target, QUEUE, options.tasks, options.submit_batch, progress).await?;
    let how = Drain { mode: options.mode, workers: options.workers, batch: options.batch };
    let drained = load::drain(&stand.target, QUEUE, options.tasks, how, progress).await?;
    ensure!(
        drained.completed == options.tasks && drained.distinct == options.tasks,
        "{} tasks were submitted, {} completions were accepted, of {} different tasks",
        options.tasks,
        drained.completed,
        drained.distinct,
    );
    let left = load::left_over(&stand.target, QUEUE).await?;
    ensure!(left == 0, "{left} tasks are left in the queue");
    let per_second = drained.pace.per_second;
    Ok(Round {
        submit,
        drain: Drained {
            tasks: options.tasks,
            completed: drained.completed,
            distinct: drained.distinct,
            seconds: drained.pace.seconds,
            per_second,
            request_ms: drained.requests.percentiles(),
        },
        ratio: raw.as_ref().map(|raw| Ratio {
            to_raw_single: per_second / raw.single.per_second,
            to_raw_batch: per_second / raw.batch.per_second,
        }),
        raw,
    })
}

impl Ratio {
    /// To the figure that is done in the same way.
    fn of(self, mode: Mode) -> f64 {
        match mode {
            Mode::Exchange => self.to_raw_batch,
            Mode::Single => self.to_raw_single,
        }
    }
}

impl Round {
    fn rank(&self, mode: Mode) -> f64 {
        self.ratio.map_or(self.drain.per_second, |ratio| ratio.of(mode))
    }
}

impl ThroughputReport {
    fn how(&self) -> String {
        let Options { mode, workers, batch, .. } = &self.settings;
        match mode {
            Mode::Exchange => format!("exchanges of {batch}, {workers} workers"),
            Mode::Single => format!("single calls, {workers} workers"),
        }
    }
}

impl Report for ThroughputReport {
    fn table(&self) -> Table {
        let tasks = count(self.settings.tasks as f64);
        let row = |what: String, tasks: &str, pace: f64, ratio: Option<f64>| {
            vec![what, tasks.to_owned(), count(pace), ratio.map(percent).unwrap_or_default()]
        };
        let Round { submit, drain, raw, ratio } = &self.median;
        let mut rows = vec![
            row(format!("submit, batches of {}", self.settings.submit_batch), &tasks, submit.per_second, None),
            row(
                format!("claim and complete, {}", self.how()),
                &tasks,
                drain.per_second,
                ratio.map(|ratio| ratio.of(self.settings.mode)),
            ),
        ];
        if let Some(raw) = raw {
            rows.push(row("raw store, 100 rows a transaction".into(), "", raw.batch.per_second, None));
            rows.push(row("raw store, single rows".into(), "", raw.single.per_second, None));
        }
        let found = report::cells(&drain.request_ms);
        let mut notes = vec![format!("request p50 {}, p90 {}, p99 {}, max {}", found[0], found[1], found[2], found[3])];
        if ratio.is_some() {
            notes.push(match self.settings.mode {
                Mode::Exchange => "OF RAW: compared with 100 rows a transaction".into(),
                Mode::Single => "OF RAW: compared with single rows".into(),
            });
        }
        if self.rounds.len() > 1 {
            let pace = |rounds: &mut dyn Iterator<Item = String>| rounds.collect::<Vec<_>>().join(", ");
            let mut paces = self.rounds.iter().map(|round| count(round.drain.per_second));
            notes.push(format!("the median of {} rounds; tasks/s of each: {}", self.rounds.len(), pace(&mut paces)));
            let mut ratios = self.rounds.iter().filter_map(|round| Some(percent(round.ratio?.of(self.settings.mode))));
            let ratios = pace(&mut ratios);
            if !ratios.is_empty() {
                notes.push(format!("of raw, in each round: {ratios}"));
            }
        }
        notes.push("every task was completed exactly once".into());
        Table { header: vec!["WHAT", "TASKS", "TASKS/S", "OF RAW"], rows, notes }
    }

    fn picture(&self) -> Picture {
        let bar = |label: &str, value: f64, kind: BarKind, note: Option<String>| Bar {
            label: label.to_owned(),
            value,
            kind,
            note,
        };
        let Round { submit, drain, raw, ratio } = &self.median;
        let mut bars = vec![bar(&self.how(), drain.per_second, BarKind::Ours, None)];
        if let (Some(raw), Some(ratio)) = (raw, ratio) {
            let limit = |label: &str, pace: &Pace, ratio: f64| {
                bar(label, pace.per_second, BarKind::Limit, Some(format!("tenure: {}", percent(ratio))))
            };
            bars.push(limit("raw store, 100 rows a transaction", &raw.batch, ratio.to_raw_batch));
            bars.push(limit("raw store, single rows", &raw.single, ratio.to_raw_single));
        }
        let found = &drain.request_ms;
        let times = [("p50", found.p50), ("p90", found.p90), ("p99", found.p99), ("max", found.max)];
        Picture {
            title: format!("Throughput on {}", self.store),
            subtitle: format!("{} tasks over HTTP, every answer durable", count(self.settings.tasks as f64)),
            panels: vec![
                Panel::Bars(Bars { title: "Claim and complete".into(), unit: "tasks/s".into(), bars }),
                Panel::Bars(Bars {
                    title: "Submit".into(),
                    unit: "tasks/s".into(),
                    bars: vec![bar(
                        &format!("batches of {}", self.settings.submit_batch),
                        submit.per_second,
                        BarKind::Ours,
                        None,
                    )],
                }),
                Panel::Bars(Bars {
                    title: "Time of a request".into(),
                    unit: "ms".into(),
                    bars: times.map(|(label, value)| bar(label, value, BarKind::Ours, None)).into(),
                }),
            ],
            notes: vec![self.machine.line()],
        }
    }
}
