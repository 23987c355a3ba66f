//! `tenure bench`

mod sandbox;
mod screen;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::{Subcommand, ValueEnum};
use comfy_table::Cell;
use tenure_bench::picture::Picture;
use tenure_bench::progress::Watch;
use tenure_bench::{Place, Report, Stand, StoreChoice, Target};
use tenure_bench::{backlog, dag, fleet, heartbeat, latency, push, raw, sandbox as sandbox_bench, soak, throughput};

use super::connect;
use super::sandbox::{Name, Place as SandboxPlace};
use crate::exit::{Exit, Stop};
use crate::{output, signals};
use screen::Screen;

const DETAILS: &str = "\
Without --server a benchmark starts its own store and server in a temporary folder and removes them afterwards. \
--store postgres needs Postgres installed; postgres://… needs an empty database. The server is a separate process, \
called over HTTP, and answers only after a durable commit. The load runs on the same machine and is part of the \
measurement. Results differ between machines and runs: compare ratios within one run.";

#[derive(Debug, clap::Args)]
#[command(after_help = DETAILS)]
pub struct Args {
    #[command(subcommand)]
    question: Question,
}

#[derive(Debug, Subcommand)]
enum Question {
    /// Tasks per second: submit, then claim and complete all, compared with the raw limit of the store
    Throughput(ThroughputArgs),
    /// Time from submit to start at a low, fixed rate
    Latency(LatencyArgs),
    /// Time of a claim with a growing number of ready tasks, and after they are finished
    Backlog(BacklogArgs),
    /// Cost of held leases and time of a heartbeat, also under a flood of claims
    Heartbeat(HeartbeatArgs),
    /// A run of small tasks and the time from submit to start, pushed and pulled
    Push(PushArgs),
    /// Tasks that follow from events of DAGs, compared with a plain submit, and the time of a large deployment
    Dag(DagArgs),
    /// The raw limit of the store alone: hand-written claim and complete
    Raw(RawArgs),
    /// Memory, store and latency over time at a steady rate
    Soak(SoakArgs),
    /// Time to create a sandbox, run a command in it and remove it, compared with an ordinary process
    Sandbox(SandboxArgs),
    /// Sandboxes through the control plane: create, warm pool and exec, compared with the worker alone, and the cost of
    /// many that nobody uses
    Fleet(FleetArgs),
    /// Draw a chart from a JSON description
    Draw(DrawArgs),
}

/// What is measured, and where the figures go.
#[derive(Debug, clap::Args)]
struct Common {
    #[command(flatten)]
    store: StoreArg,
    /// Measure this server instead of starting one: http://HOST:PORT
    #[arg(long, value_name = "URL", conflicts_with = "store", help_heading = "What is measured")]
    server: Option<String>,
    /// File with the worker token of that server [env: TENURE_WORKER_TOKEN_FILE]
    #[arg(long, value_name = "FILE", requires = "server", help_heading = "What is measured")]
    token_file: Option<PathBuf>,
    /// File with an API key of that server [env: TENURE_API_KEY_FILE]
    #[arg(long, value_name = "FILE", requires = "server", help_heading = "What is measured")]
    api_key_file: Option<PathBuf>,
    #[command(flatten)]
    to: Destination,
}

#[derive(Debug, clap::Args)]
struct StoreArg {
    /// sqlite, postgres, or postgres://… for an empty database
    #[arg(long, value_name = "STORE", default_value = "sqlite", value_parser = StoreChoice::parse, help_heading = "What is measured")]
    store: StoreChoice,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Output")]
struct Destination {
    /// Write the results to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw a chart into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Mode {
    Exchange,
    Single,
}

#[derive(Debug, clap::Args)]
struct ThroughputArgs {
    /// Number of tasks [default: 100000, 20000 with --mode single]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    tasks: Option<usize>,
    /// exchange: one request completes and claims; single: one request claims a task, one completes it
    #[arg(long, value_enum, default_value = "exchange")]
    mode: Mode,
    /// Number of workers, each with its own connection [default: 8, 64 with --mode single]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    workers: Option<usize>,
    /// Tasks in one exchange
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = batch_size)]
    batch: usize,
    /// Tasks in one submit request
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = submit_size)]
    submit_batch: usize,
    /// Number of rounds, alternating between raw limit and server; the median is shown
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = at_least_one)]
    rounds: usize,
    /// Do not measure the raw limit of the store
    #[arg(long)]
    no_raw: bool,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
struct LatencyArgs {
    /// Tasks submitted per second
    #[arg(long, value_name = "N", default_value_t = 100.0, value_parser = above_zero)]
    rate: f64,
    /// Duration in seconds
    #[arg(long, value_name = "N", default_value_t = 10.0, value_parser = above_zero)]
    seconds: f64,
    /// Long-polling workers
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = at_least_one)]
    workers: usize,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
struct BacklogArgs {
    /// Numbers of ready tasks, growing [default: 1000,10000,100000,1000000]
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = at_least_one)]
    levels: Vec<usize>,
    /// Up to 10 million ready tasks; takes some minutes and some gigabytes
    #[arg(long, conflicts_with = "levels")]
    full: bool,
    /// Claims timed at each level
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = at_least_one)]
    claims: usize,
    /// Do not wait between filling and timing
    #[arg(long)]
    no_settle: bool,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
struct HeartbeatArgs {
    /// Leases held
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = at_least_one)]
    leases: usize,
    /// Seconds between two heartbeats of a lease
    #[arg(long, value_name = "SECONDS", default_value_t = 20.0, value_parser = above_zero)]
    interval: f64,
    /// Leases renewed by one request
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = batch_size)]
    batch: usize,
    /// Connections that send heartbeats
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = at_least_one)]
    workers: usize,
    /// Intervals that each of the two phases lasts
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = above_zero)]
    rounds: f64,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
struct DagArgs {
    /// Tasks of the source that are completed
    #[arg(long, value_name = "N", default_value_t = 400, value_parser = at_least_one)]
    completions: usize,
    /// Events of each completion
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = at_least_one)]
    events: usize,
    /// Jobs that read the output of the source
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = at_least_one)]
    readers: usize,
    /// Jobs of the DAG whose deployment is timed
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = at_least_one)]
    jobs: usize,
    /// Number of rounds, alternating between the two; the median is shown
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = at_least_one)]
    rounds: usize,
    /// Finished partitions that routing is also measured with, beside 1,000; such as 1_000_000
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = number)]
    finished: usize,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
struct PushArgs {
    /// Tasks of the run
    #[arg(long, value_name = "N", default_value_t = 400, value_parser = run_size)]
    tasks: usize,
    /// Workers of the run
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = at_least_one)]
    workers: usize,
    /// Number of rounds, alternating between the two; the median is shown
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = at_least_one)]
    rounds: usize,
    /// Tasks submitted per second for the time to start
    #[arg(long, value_name = "N", default_value_t = 100.0, value_parser = above_zero)]
    rate: f64,
    /// Duration in seconds
    #[arg(long, value_name = "N", default_value_t = 10.0, value_parser = above_zero)]
    seconds: f64,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
struct RawArgs {
    /// Number of rows in the batch measurement
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = at_least_one)]
    tasks: usize,
    #[command(flatten)]
    store: StoreArg,
    #[command(flatten)]
    to: Destination,
}

#[derive(Debug, clap::Args)]
struct SoakArgs {
    /// Duration in minutes
    #[arg(long, value_name = "N", default_value_t = 10.0, value_parser = above_zero)]
    minutes: f64,
    /// Tasks submitted per second
    #[arg(long, value_name = "N", default_value_t = 1000.0, value_parser = above_zero)]
    rate: f64,
    /// Workers
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = at_least_one)]
    workers: usize,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
struct SandboxArgs {
    #[command(flatten)]
    place: SandboxPlace,
    /// What makes the sandboxes
    #[arg(long, value_name = "NAME", value_enum, default_value_t)]
    provider: Name,
    /// Image of the sandboxes
    #[arg(long, value_name = "NAME", default_value = "host")]
    image: String,
    /// Sandboxes of each client
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = at_least_one)]
    rounds: usize,
    /// Numbers of clients that work at the same time
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [1, 4], value_parser = clients)]
    clients: Vec<usize>,
    /// Size of the file that is written and read
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = at_least_one)]
    file: usize,
    /// Do not measure calls over worker RPC
    #[arg(long)]
    no_rpc: bool,
    /// Do not measure bwrap and podman
    #[arg(long)]
    no_others: bool,
    #[command(flatten)]
    to: Destination,
}

#[derive(Debug, clap::Args)]
struct FleetArgs {
    /// What makes the sandboxes of the timed calls
    #[arg(long, value_name = "NAME", value_enum, default_value_t)]
    provider: Name,
    /// Image of the sandboxes
    #[arg(long, value_name = "NAME", default_value = "host")]
    image: String,
    /// Sandboxes of each client, cold and from the warm pool
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = at_least_one)]
    rounds: usize,
    /// Numbers of clients that work at the same time
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [1, 4], value_parser = clients)]
    clients: Vec<usize>,
    /// Sandboxes that nobody uses, for the cost of knowing them (provider process)
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = known, help_heading = "Cost of a fleet")]
    known: usize,
    /// Workers that hold them and send heartbeats
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clients, help_heading = "Cost of a fleet")]
    workers: usize,
    /// How long their cost is measured, in seconds
    #[arg(long, value_name = "N", default_value_t = 60.0, value_parser = above_zero, help_heading = "Cost of a fleet")]
    seconds: f64,
    /// Do not measure the cost of a fleet
    #[arg(long, conflicts_with_all = ["known", "workers", "seconds"], help_heading = "Cost of a fleet")]
    no_cost: bool,
    #[command(flatten)]
    store: StoreArg,
    #[command(flatten)]
    to: Destination,
}

#[derive(Debug, clap::Args)]
struct DrawArgs {
    /// The description
    file: PathBuf,
    /// File for the chart
    #[arg(long, value_name = "FILE")]
    svg: PathBuf,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    within(text, 1, usize::MAX)
}

fn number(text: &str) -> Result<usize, String> {
    within(text, 0, usize::MAX)
}

fn batch_size(text: &str) -> Result<usize, String> {
    within(text, 1, tenure_bench::EXCHANGE_MAX)
}

fn clients(text: &str) -> Result<usize, String> {
    within(text, 1, 64)
}

fn known(text: &str) -> Result<usize, String> {
    within(text, 1, 10_000)
}

fn run_size(text: &str) -> Result<usize, String> {
    within(text, 3, tenure_bench::SUBMIT_MAX)
}

fn submit_size(text: &str) -> Result<usize, String> {
    within(text, 1, tenure_bench::SUBMIT_MAX)
}

fn within(text: &str, least: usize, most: usize) -> Result<usize, String> {
    let number = text.replace('_', "").parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| match most {
        usize::MAX => format!("a number of at least {least}"),
        most => format!("a number from {least} to {most}"),
    })
}

fn above_zero(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "a number above 0".to_owned())
}

pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let stop = signals::stop_on_signal()?;
    tokio::select! {
        done = answer(args.question) => done.map(|()| Exit::Ok),
        // Whatever was started ends with what is dropped here.
        () = stop.cancelled() => Err(Stop::new(Exit::Interrupted, "interrupted").into()),
    }
}

async fn answer(question: Question) -> anyhow::Result<()> {
    let screen = Arc::new(Screen::new());
    let watch: Watch = Arc::clone(&screen) as Watch;
    let (report, to): (Box<dyn Report>, Destination) = match question {
        Question::Throughput(args) => {
            let (options, common) = args.split();
            let (place, stand) = common.prepare("").await?;
            (Box::new(throughput::run(&stand, place.as_ref(), options, &watch).await?), common.to)
        }
        Question::Latency(LatencyArgs { rate, seconds, workers, common }) => {
            let (place, stand) = common.prepare("").await?;
            let options = latency::Options { per_second: rate, seconds, workers };
            (Box::new(latency::run(&stand, place.as_ref(), options, &watch).await?), common.to)
        }
        Question::Backlog(args) => {
            let (options, common) = args.split()?;
            let (place, stand) = common.prepare("").await?;
            (Box::new(backlog::run(&stand, place.as_ref(), options, &watch).await?), common.to)
        }
        Question::Heartbeat(HeartbeatArgs { leases, interval, batch, workers, rounds, common }) => {
            let (place, stand) = common.prepare("").await?;
            let workers = workers.min(leases);
            let options = heartbeat::Options { leases, interval_seconds: interval, batch, workers, rounds };
            (Box::new(heartbeat::run(&stand, place.as_ref(), options, &watch).await?), common.to)
        }
        Question::Push(PushArgs { tasks, workers, rounds, rate, seconds, common }) => {
            let (place, stand) = common.prepare("").await?;
            let options = push::Options { tasks, workers, rounds, per_second: rate, seconds };
            (Box::new(push::run(&stand, place.as_ref(), options, &watch).await?), common.to)
        }
        Question::Dag(DagArgs { completions, events, readers, jobs, rounds, finished, common }) => {
            let (place, stand) = common.prepare("").await?;
            let options = dag::Options { completions, events, readers, jobs, rounds, finished };
            (Box::new(dag::run(&stand, place.as_ref(), options, &watch).await?), common.to)
        }
        Question::Raw(RawArgs { tasks, store, to }) => {
            let place = Place::prepare(store.store).await?;
            let options = raw::Options { tasks, single: tasks.min(20_000) };
            (Box::new(raw::run_alone(&place, options, &watch).await?), to)
        }
        Question::Soak(SoakArgs { minutes, rate, workers, common }) => {
            let (place, stand) = common.prepare(soak::SETTINGS).await?;
            let options = soak::Options { minutes, per_second: rate, workers };
            (Box::new(soak::run(&stand, place.as_ref(), options, &watch).await?), common.to)
        }
        Question::Sandbox(args) => {
            let private = args.provider.open(&args.place.load()?).await?;
            let (rpc, _listener) = if args.no_rpc {
                (None, None)
            } else {
                let (target, listener) = sandbox::listen(private.provider(), &args.image).await?;
                (Some(target), Some(listener))
            };
            let direct = sandbox_bench::DirectTarget::new(Arc::clone(private.provider()), args.image);
            let options = sandbox_bench::Options {
                rounds: args.rounds,
                clients: args.clients,
                file_mib: args.file,
                others: !args.no_others,
            };
            (Box::new(sandbox_bench::run(direct, rpc, options, &watch).await?), args.to)
        }
        Question::Fleet(args) => {
            let place = Place::prepare(args.store.store.clone()).await?;
            let tenure = std::env::current_exe().context("cannot find the path of this program")?;
            let (options, to) = args.split();
            (Box::new(fleet::run(&tenure, &place, options, &watch).await?), to)
        }
        Question::Draw(args) => return draw(&args),
    };
    screen.clear();
    show(&*report)?;
    to.write(&*report)
}

impl ThroughputArgs {
    fn split(self) -> (throughput::Options, Common) {
        let single = matches!(self.mode, Mode::Single);
        let options = throughput::Options {
            tasks: self.tasks.unwrap_or(if single { 20_000 } else { 100_000 }),
            mode: if single { tenure_bench::Mode::Single } else { tenure_bench::Mode::Exchange },
            workers: self.workers.unwrap_or(if single { 64 } else { 8 }),
            batch: self.batch,
            submit_batch: self.submit_batch,
            raw: !self.no_raw,
            rounds: self.rounds,
        };
        (options, self.common)
    }
}

impl FleetArgs {
    fn split(self) -> (fleet::Options, Destination) {
        let options = fleet::Options {
            rounds: self.rounds,
            clients: self.clients,
            provider: self.provider.text().to_owned(),
            image: self.image,
            known: if self.no_cost { 0 } else { self.known },
            workers: self.workers,
            seconds: self.seconds,
        };
        (options, self.to)
    }
}

impl BacklogArgs {
    fn split(self) -> anyhow::Result<(backlog::Options, Common)> {
        let mut levels = self.levels;
        if levels.is_empty() {
            levels = vec![1_000, 10_000, 100_000, 1_000_000];
        }
        if self.full {
            levels.push(10_000_000);
        }
        if levels.len() < 2 || !levels.is_sorted() {
            return Err(Stop::usage("--levels needs at least two numbers in ascending order").into());
        }
        if levels[0] < self.claims {
            return Err(Stop::usage(format!(
                "--claims {} is more than the {} tasks of the first level",
                self.claims, levels[0]
            ))
            .hint("each level claims from the tasks that are ready at that level")
            .into());
        }
        Ok((backlog::Options { levels, claims: self.claims, settle: !self.no_settle }, self.common))
    }
}

impl Common {
    /// Starts what is measured, or finds it. Nothing is known of the store of a server that was given.
    async fn prepare(&self, settings: &str) -> anyhow::Result<(Option<Place>, Stand)> {
        if let Some(url) = &self.server {
            let file =
                |flag: &Option<PathBuf>, variable| flag.clone().or_else(|| std::env::var_os(variable).map(Into::into));
            let secret = |path: Option<PathBuf>| path.map(|path| connect::read_key(&path)).transpose();
            let token = secret(file(&self.token_file, "TENURE_WORKER_TOKEN_FILE"))?;
            let key = secret(file(&self.api_key_file, "TENURE_API_KEY_FILE"))?;
            let target = Target::new(url, token.as_deref(), key.as_deref())
                .map_err(|error| Stop::usage(format!("{error:#}")))?;
            return Ok((None, Stand::given(target)));
        }
        let place = Place::prepare(self.store.store.clone()).await?;
        let tenure = std::env::current_exe().context("cannot find the path of this program")?;
        let stand = Stand::start(&tenure, &place, settings)?;
        Ok((Some(place), stand))
    }
}

fn show(report: &dyn Report) -> anyhow::Result<()> {
    let table = report.table();
    let rows = table.rows.iter().map(|row| row.iter().map(Cell::new).collect());
    output::line(output::table(&table.header, rows))?;
    for note in &table.notes {
        output::line(format!("  {note}"))?;
    }
    Ok(())
}

impl Destination {
    fn write(&self, report: &dyn Report) -> anyhow::Result<()> {
        if let Some(path) = &self.json {
            write(path, &(report.json()? + "\n"))?;
        }
        if let Some(path) = &self.svg {
            write(path, &report.picture().svg())?;
        }
        Ok(())
    }
}

fn draw(args: &DrawArgs) -> anyhow::Result<()> {
    let name = args.file.display();
    let text = std::fs::read_to_string(&args.file)
        .map_err(|error| Stop::usage(format!("{name} could not be read: {error}")))?;
    let picture: Picture = serde_json::from_str(&text)
        .map_err(|error| Stop::usage(format!("{name} is not a valid chart description: {error}")))?;
    write(&args.svg, &picture.svg())
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("{} could not be written", path.display()))
}
