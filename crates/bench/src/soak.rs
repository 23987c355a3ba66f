//! Whether memory, store or latency grow while tasks come and go at a steady rate.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use crate::Measuring;
use crate::load::{self, Held, Worker};
use crate::picture::{Curve, Curves, Panel, Picture};
use crate::progress::{Silent, Watch};
use crate::report::{Machine, Report, Table, count, megabytes, milliseconds};
use crate::samples::{Percentiles, Samples};
use crate::stand::{Place, Stand};

const QUEUE: &str = "bench-soak";
/// Tasks are submitted so often.
const TICK: Duration = Duration::from_millis(100);
/// Number of intervals that the time is divided into.
const STRETCHES: u32 = 30;
/// A figure grows if its last third lies so much above its middle third. The first is for warming up.
const GROWTH: f64 = 1.2;

/// So that a soak can reach a steady state within minutes: the control plane forgets finished tasks early.
pub const SETTINGS: &str = "retention:\n  finished: 1m\n  events: 1m\n  max_finished: 5000\n";

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Options {
    pub minutes: f64,
    pub per_second: f64,
    pub workers: usize,
}

/// One stretch of time.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Stretch {
    /// Its end, from the start.
    pub at_seconds: f64,
    pub completed: usize,
    /// Of an exchange that claims and completes.
    pub exchange_ms: Percentiles,
    /// The memory of the control plane, in bytes.
    pub memory: Option<u64>,
    /// The size of the store on disk, in bytes.
    pub store: Option<u64>,
}

/// `tenure bench soak`
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SoakReport {
    pub bench: String,
    pub store: String,
    pub machine: Machine,
    pub settings: Options,
    pub submitted: usize,
    pub completed: usize,
    pub stretches: Vec<Stretch>,
    /// Last third by middle third.
    pub growth: Growth,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Growth {
    pub memory: Option<f64>,
    pub store: Option<f64>,
    pub exchange_p50: f64,
    /// What grows, by name.
    pub grows: Vec<String>,
}

pub fn run<'a>(
    stand: &'a Stand,
    place: Option<&'a Place>,
    options: Options,
    progress: &'a Watch,
) -> Measuring<'a, SoakReport> {
    Box::pin(run_all(stand, place, options, progress))
}

async fn run_all(stand: &Stand, place: Option<&Place>, options: Options, progress: &Watch) -> Result<SoakReport> {
    ensure!(options.minutes > 0.0 && options.per_second > 0.0, "minutes and a rate above 0 are needed");
    let time = Duration::from_secs_f64(options.minutes * 60.0);
    progress.begin("tasks come and go", (options.per_second * time.as_secs_f64()) as u64);
    let stop = Arc::new(AtomicBool::new(false));
    let left = Arc::new(AtomicUsize::new(0));
    let samples = Arc::new(Mutex::new(Samples::default()));
    let completed = Arc::new(AtomicUsize::new(0));
    let mut workers = JoinSet::new();
    for number in 0..options.workers {
        let worker = Worker::connect(&stand.target, format!("bench-{number}"), QUEUE).await?;
        let shared = (Arc::clone(&stop), Arc::clone(&left), Arc::clone(&samples), Arc::clone(&completed));
        workers.spawn(work(worker, shared, Arc::clone(progress)));
    }
    let started = Instant::now();
    let submitter = tokio::spawn(submit(stand.target.clone(), options.per_second, started, time, Arc::clone(&left)));
    let mut stretches = Vec::new();
    let mut before = 0;
    for number in 1..=STRETCHES {
        tokio::time::sleep_until((started + time / STRETCHES * number).into()).await;
        let taken = std::mem::take(&mut *samples.lock().unwrap_or_else(PoisonError::into_inner));
        let now = completed.load(Ordering::Relaxed);
        let store = match place {
            Some(place) => Some(place.store_bytes().await?),
            None => None,
        };
        stretches.push(Stretch {
            at_seconds: started.elapsed().as_secs_f64(),
            completed: now - before,
            exchange_ms: taken.percentiles(),
            memory: stand.memory(),
            store,
        });
        before = now;
    }
    let submitted = submitter.await??;
    stop.store(true, Ordering::Relaxed);
    load::all(workers).await?;
    let completed = completed.load(Ordering::Relaxed);
    ensure!(completed == submitted, "{submitted} tasks were submitted and {completed} completed");
    let remaining = load::left_over(&stand.target, QUEUE).await?;
    ensure!(remaining == 0, "{remaining} tasks are left in the queue");
    Ok(SoakReport {
        bench: "soak".to_owned(),
        store: place.map_or("given", |place| place.choice.name()).to_owned(),
        machine: Machine::look(place).await?,
        settings: options,
        submitted,
        completed,
        growth: growth(&stretches),
        stretches,
    })
}

async fn submit(
    target: crate::Target,
    per_second: f64,
    started: Instant,
    time: Duration,
    left: Arc<AtomicUsize>,
) -> Result<usize> {
    let silent: Watch = Arc::new(Silent);
    let mut submitted = 0;
    while started.elapsed() < time {
        let due = (started.elapsed().as_secs_f64() * per_second) as usize;
        // What could not be submitted in time is not made up for all at once.
        let count = (due - submitted).min(load::SUBMIT_BATCH);
        if count > 0 {
            left.fetch_add(count, Ordering::Relaxed);
            load::submit(&target, QUEUE, count, load::SUBMIT_BATCH, &silent).await?;
            submitted += count;
        }
        tokio::time::sleep(TICK).await;
    }
    Ok(submitted)
}

type Shared = (Arc<AtomicBool>, Arc<AtomicUsize>, Arc<Mutex<Samples>>, Arc<AtomicUsize>);

async fn work(mut worker: Worker, (stop, left, samples, completed): Shared, progress: Watch) -> Result<()> {
    let mut held: Vec<Held> = Vec::new();
    loop {
        let started = Instant::now();
        let next = worker.exchange(&held, 100, 200).await?;
        if !held.is_empty() {
            samples.lock().unwrap_or_else(PoisonError::into_inner).push(started.elapsed());
            completed.fetch_add(held.len(), Ordering::Relaxed);
            left.fetch_sub(held.len(), Ordering::Relaxed);
            progress.advance(held.len() as u64);
        }
        held = next;
        if held.is_empty() && stop.load(Ordering::Relaxed) && left.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
    }
}

/// Compares the last third with the middle one.
fn growth(stretches: &[Stretch]) -> Growth {
    let third = stretches.len() / 3;
    let (middle, last) = (&stretches[third..2 * third], &stretches[2 * third..]);
    let mean = |stretches: &[Stretch], value: &dyn Fn(&Stretch) -> Option<f64>| -> Option<f64> {
        let values: Option<Vec<f64>> = stretches.iter().map(value).collect();
        let values = values.filter(|values| !values.is_empty())?;
        Some(values.iter().sum::<f64>() / values.len() as f64)
    };
    let ratio = |value: &dyn Fn(&Stretch) -> Option<f64>| -> Option<f64> {
        let before = mean(middle, value).filter(|before| *before > 0.0)?;
        Some(mean(last, value)? / before)
    };
    let memory = ratio(&|stretch| stretch.memory.map(|bytes| bytes as f64));
    let store = ratio(&|stretch| stretch.store.map(|bytes| bytes as f64));
    let exchange_p50 = ratio(&|stretch| Some(stretch.exchange_ms.p50)).unwrap_or(1.0);
    let figures = [("memory", memory), ("store", store), ("latency", Some(exchange_p50))];
    let grows = figures.iter().filter(|(_, ratio)| ratio.is_some_and(|ratio| ratio > GROWTH));
    Growth { memory, store, exchange_p50, grows: grows.map(|(name, _)| (*name).to_owned()).collect() }
}

/// What is drawn of a stretch.
type Figure<'a> = &'a dyn Fn(&Stretch) -> Option<f64>;

impl Report for SoakReport {
    fn table(&self) -> Table {
        // A line for each tenth of the time.
        let rows = self.stretches.iter().skip(2).step_by(3).map(|stretch| {
            vec![
                format!("{:.0} s", stretch.at_seconds),
                count(stretch.completed as f64),
                milliseconds(stretch.exchange_ms.p50),
                milliseconds(stretch.exchange_ms.p99),
                stretch.memory.map(megabytes).unwrap_or_default(),
                stretch.store.map(megabytes).unwrap_or_default(),
            ]
        });
        let verdict = match self.growth.grows.as_slice() {
            [] => "nothing grows: the last third of the time is like the middle third".to_owned(),
            grows => format!("GROWS, last third against middle third: {}", grows.join(", ")),
        };
        Table {
            header: vec!["UNTIL", "COMPLETED", "P50", "P99", "MEMORY", "STORE"],
            rows: rows.collect(),
            notes: vec![
                format!("{} tasks submitted and completed, on {}", count(self.submitted as f64), self.store),
                verdict,
            ],
        }
    }

    fn picture(&self) -> Picture {
        let panel = |title: &str, unit: &str, curves: Vec<(&str, Figure<'_>)>| {
            let curves = curves.into_iter().map(|(label, value)| Curve {
                label: label.to_owned(),
                points: self.stretches.iter().filter_map(|at| Some((at.at_seconds / 60.0, value(at)?))).collect(),
            });
            Panel::Curves(Curves {
                title: title.to_owned(),
                unit: unit.to_owned(),
                x_label: "minutes".to_owned(),
                log_x: false,
                log_y: false,
                curves: curves.collect(),
            })
        };
        Picture {
            title: format!(
                "{} minutes at {} tasks a second on {}",
                self.settings.minutes, self.settings.per_second, self.store
            ),
            subtitle: "Memory, store and latency while tasks come and go".to_owned(),
            panels: vec![
                panel("Memory of the control plane", "MB", vec![("memory", &|at| Some(at.memory? as f64 / 1e6))]),
                panel("Store on disk", "MB", vec![("store", &|at| Some(at.store? as f64 / 1e6))]),
                panel(
                    "An exchange of up to 100 tasks",
                    "ms",
                    vec![("p50", &|at| Some(at.exchange_ms.p50)), ("p99", &|at| Some(at.exchange_ms.p99))],
                ),
            ],
            notes: vec![self.machine.line()],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretch(number: u32, memory: u64) -> Stretch {
        let exchange_ms = Percentiles { samples: 10, p50: 1.0, p90: 1.0, p99: 2.0, max: 3.0 };
        Stretch { at_seconds: f64::from(number), completed: 10, exchange_ms, memory: Some(memory), store: None }
    }

    #[test]
    fn what_grows_is_named() {
        let steady: Vec<_> = (0..30).map(|number| stretch(number, if number < 8 { 10 } else { 100 })).collect();
        assert!(growth(&steady).grows.is_empty());
        assert_eq!(growth(&steady).store, None);
        let growing: Vec<_> = (0..30).map(|number| stretch(number, 100 + u64::from(number) * 10)).collect();
        assert_eq!(growth(&growing).grows, ["memory"]);
    }
}
