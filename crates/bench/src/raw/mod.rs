//! The raw limit of a store: one table, two hand-written updates a task, no decisions, no network between.
//!
//! What is done to a task is what any queue in a database does: take the first ready rows of a queue in order, mark
//! them as held, mark them as done. No leases are checked, no history is kept, nothing is counted.

mod postgres;
mod sqlite;

use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::load::Pace;
use crate::picture::{Bar, BarKind, Bars, Panel, Picture};
use crate::progress::Watch;
use crate::report::{Machine, Report, Table, count};
use crate::stand::Place;

/// Rows in a transaction of the batch figure.
pub const BATCH: usize = 100;
/// Clients of the Postgres figures.
pub const CLIENTS: usize = 8;
/// How long single rows are claimed and completed.
const SINGLE_TIME: Duration = Duration::from_secs(2);

/// How much is done.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Rows of the batch figure.
    pub tasks: usize,
    /// Maximum number of rows one by one.
    pub single: usize,
}

/// What the store can do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Limits {
    /// One row claimed in one transaction and completed in another.
    pub single: Pace,
    /// A hundred rows a transaction.
    pub batch: Pace,
}

/// Measures both figures.
pub async fn measure(place: &Place, options: Options, progress: &Watch) -> Result<Limits> {
    Ok(Limits {
        single: single(place, options.single, progress).await?,
        batch: batch(place, options.tasks, progress).await?,
    })
}

pub async fn single(place: &Place, rows: usize, progress: &Watch) -> Result<Pace> {
    progress.begin("raw limit, single rows", rows as u64);
    run(place, rows, 1, progress).await
}

pub async fn batch(place: &Place, rows: usize, progress: &Watch) -> Result<Pace> {
    progress.begin("raw limit, batches", rows as u64);
    run(place, rows, BATCH, progress).await
}

async fn run(place: &Place, rows: usize, batch: usize, progress: &Watch) -> Result<Pace> {
    match place.postgres_url() {
        Some(url) => postgres::run(url, rows, batch, progress).await,
        None => {
            let (file, progress) = (place.folder().join("raw.db"), progress.clone());
            tokio::task::spawn_blocking(move || sqlite::run(&file, rows, batch, &*progress)).await?
        }
    }
}

/// A batch has no time limit: it ends when the rows do.
fn time_limit(batch: usize) -> Duration {
    if batch == 1 { SINGLE_TIME } else { Duration::MAX }
}

/// `tenure bench raw`
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RawReport {
    pub bench: String,
    pub store: String,
    pub machine: Machine,
    pub clients: usize,
    pub batch_rows: usize,
    pub raw: Limits,
}

pub async fn run_alone(place: &Place, options: Options, progress: &Watch) -> Result<RawReport> {
    Ok(RawReport {
        bench: "raw".to_owned(),
        store: place.choice.name().to_owned(),
        machine: Machine::look(Some(place)).await?,
        clients: if place.postgres_url().is_some() { CLIENTS } else { 1 },
        batch_rows: BATCH,
        raw: measure(place, options, progress).await?,
    })
}

impl Report for RawReport {
    fn table(&self) -> Table {
        let row = |what: &str, pace: &Pace| vec![what.to_owned(), count(pace.tasks as f64), count(pace.per_second)];
        Table {
            header: vec!["CLAIM AND COMPLETE", "ROWS", "ROWS/S"],
            rows: vec![
                row("single rows, two transactions each", &self.raw.single),
                row("100 rows a transaction", &self.raw.batch),
            ],
            notes: vec![format!("{} client(s) on {}, fsync on", self.clients, self.store)],
        }
    }

    fn picture(&self) -> Picture {
        let bar = |label: &str, pace: &Pace| Bar {
            label: label.to_owned(),
            value: pace.per_second,
            kind: BarKind::Limit,
            note: None,
        };
        Picture {
            title: format!("Raw limit of {}", self.store),
            subtitle: "Claim and complete with hand-written SQL, every commit durable".to_owned(),
            panels: vec![Panel::Bars(Bars {
                title: "Claim and complete".to_owned(),
                unit: "tasks/s".to_owned(),
                bars: vec![bar("single rows", &self.raw.single), bar("100 rows a transaction", &self.raw.batch)],
            })],
            notes: vec![self.machine.line()],
        }
    }
}
