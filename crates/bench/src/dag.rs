//! Completions that tell of new partitions, and the tasks that follow from them, beside a plain submit of as many tasks.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::Measuring;
use crate::history::{self, Output};
use crate::http::{Connection, Target};
use crate::load::{self, Pace, SUBMIT_BATCH};
use crate::picture::{Bar, BarKind, Bars, Panel, Picture};
use crate::progress::Watch;
use crate::report::{Machine, Report, Table, count, milliseconds, percent};
use crate::stand::{Place, Stand};

/// Finished partitions of an installation that has just begun.
pub const FEW: usize = 1_000;
const QUEUE: &str = "bench-dag";
const WORKERS: usize = 4;
/// How long all tasks of a round may take to appear.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Options {
    /// Tasks of the source that are completed.
    pub completions: usize,
    /// Events of each completion.
    pub events: usize,
    /// Jobs that read the output of the source.
    pub readers: usize,
    /// Jobs of the DAG whose deployment is timed.
    pub jobs: usize,
    pub rounds: usize,
    /// Finished partitions that routing is measured with, beside [`FEW`]; 0 leaves that out.
    pub finished: usize,
}

impl Options {
    const fn tasks(&self) -> usize {
        self.completions * self.events * self.readers
    }
}

/// `tenure bench dag`
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DagReport {
    pub bench: String,
    pub store: String,
    pub machine: Machine,
    pub settings: Options,
    /// The round in the middle, by its ratio.
    #[serde(flatten)]
    pub median: Round,
    pub rounds: Vec<Round>,
    /// How long a deployment of `jobs` jobs took.
    pub deploy_ms: f64,
    /// Routing in front of finished partitions, to one job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished: Option<Finished>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Finished {
    /// With [`FEW`] finished partitions: the median of the rounds.
    pub few: Pace,
    /// With as many as were asked for.
    pub many: Pace,
    /// How much longer a task takes with many.
    pub growth: f64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Round {
    pub submit: Pace,
    /// From the first completion until all tasks are there.
    pub routed: Pace,
    /// What routing did of what a plain submit does.
    pub ratio: f64,
}

pub fn run<'a>(
    stand: &'a Stand,
    place: Option<&'a Place>,
    options: Options,
    progress: &'a Watch,
) -> Measuring<'a, DagReport> {
    Box::pin(run_all(stand, place, options, progress))
}

async fn run_all(stand: &Stand, place: Option<&Place>, options: Options, progress: &Watch) -> Result<DagReport> {
    ensure!(options.rounds > 0 && options.tasks() > 0, "at least one round and one task are needed");
    let target = &stand.target;
    let mut connection = target.connect().await?;
    progress.note(&format!("deploying {} jobs", options.jobs));
    let wide = wide(options.jobs);
    let started = Instant::now();
    deploy(&mut connection, wide).await?;
    let deploy_ms = started.elapsed().as_secs_f64() * 1_000.0;
    let mut rounds = Vec::new();
    for number in 1..=options.rounds {
        if options.rounds > 1 {
            progress.note(&format!("round {number} of {}", options.rounds));
        }
        let submit = load::submit(target, QUEUE, options.tasks(), SUBMIT_BATCH, progress).await?;
        let name = format!("bench-fan-{number}");
        deploy(&mut connection, fan(&name, options.readers)).await?;
        let routed = route(target, &mut connection, &name, &options, progress).await?;
        rounds.push(Round { submit, routed, ratio: routed.per_second / submit.per_second });
    }
    let finished = match (options.finished, place) {
        (0, _) => None,
        (_, Some(place)) => Some(finished(target, place, &mut connection, &options, progress).await?),
        (_, None) => {
            bail!("finished partitions are written into the store, which only a server that is started here has")
        }
    };
    let mut order: Vec<&Round> = rounds.iter().collect();
    order.sort_by(|a, b| a.ratio.total_cmp(&b.ratio));
    let Some(median) = order.get(order.len() / 2).map(|round| (*round).clone()) else { bail!("no round") };
    Ok(DagReport {
        bench: "dag".to_owned(),
        store: place.map_or("given", |place| place.choice.name()).to_owned(),
        machine: Machine::look(place).await?,
        settings: options,
        median,
        rounds,
        deploy_ms,
        finished,
    })
}

/// The same tasks in front of few and of many finished partitions.
async fn finished(
    target: &Target,
    place: &Place,
    connection: &mut Connection,
    options: &Options,
    progress: &Watch,
) -> Result<Finished> {
    let options = Options { readers: 1, ..options.clone() };
    let mut paces = [Vec::new(), Vec::new()];
    for round in 1..=options.rounds {
        for (partitions, paces) in [FEW, options.finished].into_iter().zip(&mut paces) {
            progress.note(&format!("{partitions} finished partitions, round {round} of {}", options.rounds));
            let name = format!("bench-old-{partitions}-{round}");
            deploy(connection, fan(&name, options.readers)).await?;
            let dag: Value = serde_json::from_slice(&connection.get(&format!("/api/v1/dags/{name}")).await?)?;
            let jobs = dag["jobs"].as_array().into_iter().flatten();
            let output = jobs.filter_map(|job| job["outputs"].get(0)).next().context("the source has no output")?;
            let id = |field: &str| {
                let text = output[field].as_str().unwrap_or_default().replace('-', "");
                u128::from_str_radix(&text, 16).with_context(|| format!("{field} is not an id"))
            };
            let output = Output { dag: &name, dataset: id("dataset_uuid")?, version: id("dataset_version")? };
            history::write(place, output, partitions).await?;
            paces.push(route(target, connection, &name, &options, progress).await?);
        }
    }
    let [few, many] = paces.map(|mut paces| {
        paces.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
        paces.get(paces.len() / 2).copied()
    });
    let (few, many) = few.zip(many).context("no round")?;
    Ok(Finished { few, many, growth: few.per_second / many.per_second })
}

/// A source with one output, and jobs that read it.
fn fan(name: &str, readers: usize) -> String {
    let mut yaml = format!(
        "name: {name}\njobs:\n  - {{ name: source, activation: source, runtime: worker, operator: source, outputs: 1, \
         source: {{ kind: manual }} }}\n"
    );
    for reader in 0..readers {
        let _ = writeln!(
            yaml,
            "  - {{ name: reader{reader}, activation: reactive, runtime: worker, operator: read, outputs: 0, \
             execution_strategy: PerPartition, inputs: [{{ from: {{ job: source, output: 0 }} }}] }}"
        );
    }
    yaml
}

/// A source, and chains of ten jobs each behind it.
fn wide(jobs: usize) -> String {
    let mut yaml = "name: bench-wide\njobs:\n  - { name: job0, activation: source, runtime: worker, operator: source, \
                    outputs: 1, source: { kind: manual } }\n"
        .to_owned();
    for job in 1..jobs {
        let from = if job % 10 == 1 { 0 } else { job - 1 };
        let _ = writeln!(
            yaml,
            "  - {{ name: job{job}, activation: reactive, runtime: worker, operator: work, outputs: 1, \
             execution_strategy: PerPartition, update_strategy: replace, inputs: [{{ from: {{ job: job{from}, output: 0 \
             }} }}] }}"
        );
    }
    yaml
}

async fn deploy(connection: &mut Connection, yaml: String) -> Result<()> {
    let answer = connection.post("/api/v1/dags", yaml.into_bytes()).await?;
    let answer: Value = serde_json::from_slice(&answer)?;
    ensure!(answer["state"] == "Active", "the DAG is {}", answer["state"]);
    Ok(())
}

async fn route(
    target: &Target,
    connection: &mut Connection,
    name: &str,
    options: &Options,
    progress: &Watch,
) -> Result<Pace> {
    progress.begin("claiming", options.completions as u64);
    let mut reports = Vec::with_capacity(options.completions);
    for number in 0..options.completions {
        reports.push(claim(connection, name, number, options.events).await?);
        progress.advance(1);
    }
    progress.begin("routing", options.tasks() as u64);
    let mut connections = target.connect_many(WORKERS).await?;
    let started = Instant::now();
    let mut workers = JoinSet::new();
    for (at, mut connection) in connections.drain(..).enumerate() {
        let own: Vec<Vec<u8>> = reports.iter().skip(at).step_by(WORKERS).cloned().collect();
        workers.spawn(async move {
            for report in own {
                connection.post("/internal/task-complete", report).await?;
            }
            Ok(())
        });
    }
    load::all(workers).await?;
    loop {
        let seen = queued(connection, name).await?;
        if seen >= options.tasks() {
            ensure!(seen == options.tasks(), "{} tasks were to be made, {seen} were", options.tasks());
            return Ok(Pace::of(seen, started.elapsed()));
        }
        ensure!(started.elapsed() < PATIENCE, "{seen} of {} tasks after {PATIENCE:?}", options.tasks());
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Fires the source and claims its task. Gives the completion.
async fn claim(connection: &mut Connection, dag: &str, number: usize, events: usize) -> Result<Vec<u8>> {
    let request = json!({"request_id": format!("r-{number}")}).to_string().into_bytes();
    let path = format!("/api/v1/dags/{dag}/jobs/source/trigger");
    let fired: Value = serde_json::from_slice(&connection.post(&path, request).await?)?;
    let claim = json!({"task_id": fired["task_id"], "worker_id": "bench"}).to_string().into_bytes();
    let claimed: Value = serde_json::from_slice(&connection.post("/internal/task-claim", claim).await?)?;
    let output = claimed["task"]["outputs"].get(0).context("the task was not granted")?;
    let told: Vec<Value> = (0..events)
        .map(|event| {
            json!({"dataset_uuid": output["dataset_uuid"], "dataset_version": output["dataset_version"],
                   "partition_key": format!("p{number}-{event}")})
        })
        .collect();
    let report = json!({
        "task_id": claimed["task_id"], "attempt": claimed["attempt"], "lease_token": claimed["lease_token"],
        "status": "Completed", "events": told,
    });
    Ok(report.to_string().into_bytes())
}

async fn queued(connection: &mut Connection, dag: &str) -> Result<usize> {
    let answer: Value = serde_json::from_slice(&connection.get(&format!("/api/v1/dags/{dag}")).await?)?;
    let jobs = answer["jobs"].as_array().context("the DAG has no jobs")?;
    let queued = jobs.iter().filter_map(|job| job["tasks"]["queued"].as_u64()).sum::<u64>();
    Ok(usize::try_from(queued).unwrap_or(usize::MAX))
}

impl Report for DagReport {
    fn table(&self) -> Table {
        let Round { submit, routed, ratio } = &self.median;
        let tasks = count(self.settings.tasks() as f64);
        let how = format!("routed, {} events to {} jobs each", self.settings.events, self.settings.readers);
        let ratios: Vec<String> = self.rounds.iter().map(|round| percent(round.ratio)).collect();
        let row = |what: String, pace: f64, ratio: String| vec![what, tasks.clone(), count(pace), ratio];
        let mut rows = vec![
            row(format!("submit, batches of {SUBMIT_BATCH}"), submit.per_second, String::new()),
            row(how, routed.per_second, percent(*ratio)),
        ];
        let mut notes = vec![
            format!("a DAG of {} jobs was deployed in {}", self.settings.jobs, milliseconds(self.deploy_ms)),
            format!("of a plain submit, in each round: {}", ratios.join(", ")),
            "every event made one task of each job".to_owned(),
        ];
        if let Some(Finished { few, many, growth }) = &self.finished {
            for (partitions, pace) in [(FEW, few), (self.settings.finished, many)] {
                let what = format!("routed to one job, {} finished partitions", count(partitions as f64));
                rows.push(vec![what, count(pace.tasks as f64), count(pace.per_second), String::new()]);
            }
            notes.push(format!("with many finished partitions a task takes {growth:.2} times as long as with few"));
        }
        Table { header: vec!["WHAT", "TASKS", "TASKS/S", "OF A PLAIN SUBMIT"], rows, notes }
    }

    fn picture(&self) -> Picture {
        let bar = |label: &str, value: f64, kind: BarKind| Bar { label: label.to_owned(), value, kind, note: None };
        let Round { submit, routed, .. } = &self.median;
        let bars = vec![
            bar("routed", routed.per_second, BarKind::Ours),
            bar("plain submit", submit.per_second, BarKind::Limit),
        ];
        Picture {
            title: format!("Routing on {}", self.store),
            subtitle: format!("{} tasks that follow from events", count(self.settings.tasks() as f64)),
            panels: vec![Panel::Bars(Bars { title: "Tasks".into(), unit: "tasks/s".into(), bars })],
            notes: vec![self.machine.line()],
        }
    }
}
