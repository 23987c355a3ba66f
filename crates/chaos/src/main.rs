//! Runs Tenure under faults and checks what it promises. `tenure-chaos --help` has the options.

#![allow(clippy::print_stderr, reason = "a program for people")]

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand, ValueEnum};
use tenure_chaos::plan::{Class, Plan};
use tenure_chaos::{LIVENESS, Settings, WorkerArgs, dags, pushes, run, run_worker, sandboxes};

/// Runs real control planes and workers under faults that a seed decides, and checks that what Tenure promises held.
///
/// Ends with 0 when it did, 1 when it did not, 2 when the run could not be made.
#[derive(Debug, Parser)]
#[command(name = "tenure-chaos", args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Part>,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// One worker process of a run.
    #[command(hide = true)]
    Worker(WorkerArgs),
    /// One worker process of a run with --dags.
    #[command(hide = true)]
    DispatchWorker(dags::DispatchArgs),
    /// One worker process of a run with --pushes.
    #[command(hide = true)]
    PushWorker(pushes::PushArgs),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Store {
    Sqlite,
    Postgres,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Transport {
    Embedded,
    Redis,
}

#[derive(Debug, Args)]
struct RunArgs {
    /// How long faults come, in minutes.
    #[arg(long, conflicts_with = "seconds", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    minutes: Option<u64>,
    /// How long faults come, in seconds. 60 if neither is given.
    #[arg(long, value_parser = clap::value_parser!(u64).range(5..=600_000))]
    seconds: Option<u64>,
    /// Decides every fault: the same seed is the same plan. Random if not given.
    #[arg(long)]
    seed: Option<u64>,
    /// Which faults: kill, stop, cut, delay, reset, half-open, flush, pg, redis, clock, power. All that fit if not given.
    #[arg(long, value_delimiter = ',')]
    faults: Vec<Class>,
    /// Break nothing.
    #[arg(long, conflicts_with = "faults")]
    calm: bool,
    /// Seconds after the last fault in which every task must end.
    #[arg(long, default_value_t = LIVENESS.as_secs(), conflicts_with_all = ["sandboxes", "dags"])]
    patience: u64,
    /// Seconds that a task which can run may wait for its grant, not counting times of faults. 30 if not given; a machine
    /// that does other work beside needs more.
    #[arg(long, conflicts_with_all = ["sandboxes", "dags"])]
    late: Option<u64>,
    #[arg(long, value_enum, default_value = "sqlite")]
    store: Store,
    #[arg(long, value_enum, default_value = "embedded")]
    transport: Transport,
    /// Control planes. 1 on SQLite, 2 on Postgres if not given.
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=8))]
    replicas: Option<u8>,
    /// 4 if not given, 3 with --sandboxes and --pushes.
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=32))]
    workers: Option<u8>,
    /// Tasks submitted per second. 40 if not given, 8 with --pushes.
    #[arg(long, conflicts_with_all = ["sandboxes", "dags"])]
    rate: Option<f64>,
    /// Run a DAG instead of single tasks. Workers are those of the dispatch contract.
    #[arg(long, conflicts_with = "sandboxes")]
    dags: bool,
    /// Push tasks to workers instead of letting them claim.
    #[arg(long, conflicts_with_all = ["sandboxes", "dags", "late"])]
    pushes: bool,
    /// Create and use sandboxes instead of submitting tasks. Workers use the provider `process`.
    #[arg(long)]
    sandboxes: bool,
    /// Users of sandboxes at a time.
    #[arg(long, default_value_t = 8, requires = "sandboxes", value_parser = clap::value_parser!(u8).range(1..=64))]
    sessions: u8,
    /// The `tenure` binary. `TENURE_BIN`, or the one beside this program, if not given.
    #[arg(long)]
    bin: Option<PathBuf>,
    /// Keep histories and logs also when all is well.
    #[arg(long)]
    keep: bool,
    /// Print the plan and do not run it.
    #[arg(long)]
    dry_run: bool,
}

impl RunArgs {
    fn workload(self) -> Result<Workload, String> {
        let postgres = self.store == Store::Postgres;
        let servers = self.replicas.map_or(if postgres { 2 } else { 1 }, usize::from);
        if !postgres && servers > 1 {
            return Err("SQLite is for one control plane: --replicas needs --store postgres".into());
        }
        let rate = self.rate.unwrap_or(if self.pushes { 8.0 } else { 40.0 });
        if !(rate > 0.0 && rate <= 10_000.0) {
            return Err("--rate must be above 0 and at most 10000".into());
        }
        if (self.sandboxes || self.pushes) && self.transport == Transport::Redis {
            return Err("sandboxes and pushes need no transport: leave out --transport".into());
        }
        let classes = match (self.calm, self.faults.is_empty()) {
            (true, _) => Vec::new(),
            (false, true) => Class::ALL.to_vec(),
            (false, false) => self.faults,
        };
        let length = Duration::from_secs(self.minutes.map_or(self.seconds.unwrap_or(60), |minutes| minutes * 60));
        let seed = self.seed.unwrap_or_else(random);
        if self.sandboxes {
            return Ok(Workload::Sandboxes(sandboxes::Settings {
                seed,
                length,
                classes,
                postgres,
                servers,
                workers: usize::from(self.workers.unwrap_or(3)),
                sessions: usize::from(self.sessions),
                binary: self.bin,
                keep: self.keep,
            }));
        }
        if self.dags {
            return Ok(Workload::Dags(dags::Settings {
                seed,
                length,
                classes,
                postgres,
                redis: self.transport == Transport::Redis,
                servers,
                workers: usize::from(self.workers.unwrap_or(4)),
                binary: self.bin,
                keep: self.keep,
            }));
        }
        if self.pushes {
            return Ok(Workload::Pushes(pushes::Settings {
                seed,
                length,
                classes,
                postgres,
                servers,
                workers: usize::from(self.workers.unwrap_or(3)),
                rate,
                patience: Duration::from_secs(self.patience),
                binary: self.bin,
                keep: self.keep,
            }));
        }
        Ok(Workload::Tasks(Settings {
            seed,
            length,
            classes,
            postgres,
            redis: self.transport == Transport::Redis,
            servers,
            workers: usize::from(self.workers.unwrap_or(4)),
            rate,
            patience: Duration::from_secs(self.patience),
            late_ns: self.late.map(|seconds| seconds.saturating_mul(1_000_000_000)),
            binary: self.bin,
            keep: self.keep,
        }))
    }
}

/// What the system is to do under faults.
enum Workload {
    Tasks(Settings),
    Dags(dags::Settings),
    Pushes(pushes::Settings),
    Sandboxes(sandboxes::Settings),
}

impl Workload {
    fn seed(&self) -> u64 {
        match self {
            Self::Tasks(settings) => settings.seed,
            Self::Dags(settings) => settings.seed,
            Self::Pushes(settings) => settings.seed,
            Self::Sandboxes(settings) => settings.seed,
        }
    }

    fn length(&self) -> Duration {
        match self {
            Self::Tasks(settings) => settings.length,
            Self::Dags(settings) => settings.length,
            Self::Pushes(settings) => settings.length,
            Self::Sandboxes(settings) => settings.length,
        }
    }

    fn plan(&self) -> Plan {
        match self {
            Self::Tasks(settings) => settings.plan(),
            Self::Dags(settings) => settings.plan(),
            Self::Pushes(settings) => settings.plan(),
            Self::Sandboxes(settings) => settings.plan(),
        }
    }

    fn system(&self) -> String {
        let (servers, postgres, redis, workers, load) = match self {
            Self::Tasks(it) => (it.servers, it.postgres, it.redis, it.workers, format!("{} tasks per second", it.rate)),
            Self::Dags(it) => (it.servers, it.postgres, it.redis, it.workers, "a DAG".to_owned()),
            Self::Pushes(it) => {
                (it.servers, it.postgres, false, it.workers, format!("{} pushed tasks per second", it.rate))
            }
            Self::Sandboxes(it) => {
                (it.servers, it.postgres, false, it.workers, format!("{} users of sandboxes", it.sessions))
            }
        };
        let store = if postgres { "Postgres" } else { "SQLite" };
        let redis = if redis { " with Redis" } else { "" };
        format!("{servers} control planes on {store}{redis}, {workers} workers, {load}")
    }

    /// Runs and judges. Gives the report, and whether all is well.
    async fn run(&self) -> anyhow::Result<(String, bool)> {
        Ok(match self {
            Self::Tasks(settings) => {
                let summary = run(settings, &|line| say(&line)).await?;
                (summary.to_string(), summary.is_good())
            }
            Self::Dags(settings) => {
                let summary = dags::run(settings, &|line| say(&line)).await?;
                (summary.to_string(), summary.is_good())
            }
            Self::Pushes(settings) => {
                let summary = pushes::run(settings, &|line| say(&line)).await?;
                (summary.to_string(), summary.is_good())
            }
            Self::Sandboxes(settings) => {
                let summary = sandboxes::run(settings, &|line| say(&line)).await?;
                (summary.to_string(), summary.is_good())
            }
        })
    }
}

/// Short enough to be typed again.
fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id()) % 1_000_000_000
}

/// A reader that has left is no reason to leave processes behind.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let Ok(runtime) = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() else {
        eprintln!("no runtime");
        return ExitCode::from(2);
    };
    match cli.command {
        Some(Part::Worker(args)) => ended(runtime.block_on(run_worker(args))),
        Some(Part::DispatchWorker(args)) => ended(runtime.block_on(dags::run_worker(args))),
        Some(Part::PushWorker(args)) => ended(runtime.block_on(pushes::run_worker(args))),
        None => {
            let dry_run = cli.run.dry_run;
            match cli.run.workload() {
                Ok(workload) => runtime.block_on(chaos(workload, dry_run)),
                Err(wrong) => {
                    eprintln!("{wrong}");
                    ExitCode::from(2)
                }
            }
        }
    }
}

fn ended(worker: anyhow::Result<()>) -> ExitCode {
    match worker {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:?}");
            ExitCode::from(2)
        }
    }
}

async fn chaos(workload: Workload, dry_run: bool) -> ExitCode {
    say(&format!("seed {}", workload.seed()));
    let plan = workload.plan();
    let kinds: Vec<String> = plan.counts().iter().map(|(kind, count)| format!("{count} × {kind}")).collect();
    say(&format!("plan           {} faults in {:?}: {}", plan.steps.len(), workload.length(), kinds.join(", ")));
    if dry_run {
        for step in &plan.steps {
            say(&format!("{:>9} ms for {:>5} ms  {:?}", step.at_ms, step.for_ms, step.fault));
        }
        return ExitCode::SUCCESS;
    }
    say(&format!("system         {}", workload.system()));
    let started = Instant::now();
    // A task of its own: a panic is then a run that could not be made, and all processes are ended.
    let running = tokio::spawn(async move { workload.run().await });
    let interrupted = async {
        let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).ok();
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = async { match &mut terminate { Some(signal) => signal.recv().await, None => std::future::pending().await } } => {}
        }
    };
    let abort = running.abort_handle();
    let ended = tokio::select! {
        ended = running => ended,
        () = interrupted => {
            abort.abort();
            eprintln!("interrupted");
            return ExitCode::from(2);
        }
    };
    match ended {
        Ok(Ok((summary, is_good))) => {
            say(&format!("\n{summary}took           {:.0?}", started.elapsed()));
            if is_good { ExitCode::SUCCESS } else { ExitCode::from(1) }
        }
        Ok(Err(error)) => {
            eprintln!("the run could not be made: {error:?}");
            ExitCode::from(2)
        }
        Err(error) => {
            eprintln!("the run could not be made: {error}");
            ExitCode::from(2)
        }
    }
}
