//! How long sandboxes take, beside the floor of the machine: a process that is forked and executed.

mod memory;
mod rpc;
mod target;

use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use tokio::process::Command;
use tokio::task::JoinSet;

use crate::Measuring;
use crate::load;
use crate::picture::{Bar, BarKind, Bars, Panel, Picture};
use crate::progress::Watch;
use crate::report::{self, Machine, Report, Table};
use crate::samples::{Percentiles, Samples};
pub use rpc::RpcTarget;
pub use target::{DirectTarget, Target};

/// Rounds that are not counted: caches are cold.
const WARM_UP: usize = 3;
/// Commands in a sandbox that has run one before.
const WARM_EXECS: usize = 4;
/// Sandboxes that do nothing, and as many again: the difference is the memory of these.
const IDLE: usize = 20;
/// Times that a file is written and read.
const FILE_ROUNDS: usize = 3;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Options {
    /// Sandboxes of each client, at each number of clients.
    pub rounds: usize,
    pub clients: Vec<usize>,
    pub file_mib: usize,
    /// Also measure `bwrap` and `podman`, where they are installed.
    pub others: bool,
}

/// `tenure bench sandbox`
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SandboxReport {
    pub bench: String,
    pub provider: String,
    pub image: String,
    pub machine: Machine,
    pub settings: Options,
    /// Called in this process.
    pub direct: Figures,
    /// Called over HTTP on loopback, as a control plane does.
    pub rpc: Option<Figures>,
    /// Of others, with one client.
    pub others: Vec<Other>,
    /// Of a sandbox that does nothing: its share of the memory of its processes. Absent if they cannot be told apart.
    pub idle_bytes: Option<u64>,
}

/// What was measured on one way to the sandboxes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Figures {
    pub levels: Vec<Level>,
    pub file_write_mb_per_second: f64,
    pub file_read_mb_per_second: f64,
}

/// At one number of clients.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Level {
    pub clients: usize,
    /// `true` as an ordinary process.
    pub fork_exec_ms: Percentiles,
    pub spawn_ms: Percentiles,
    /// From before the spawn until the first command has ended.
    pub first_exec_ms: Percentiles,
    pub warm_exec_ms: Percentiles,
    pub destroy_ms: Percentiles,
}

/// Another program that runs `true` in a sandbox, or why it was not measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Other {
    pub name: String,
    pub run_ms: Option<Percentiles>,
    pub problem: Option<String>,
}

#[derive(Debug, Default)]
struct Timings {
    fork_exec: Samples,
    spawn: Samples,
    first_exec: Samples,
    warm_exec: Samples,
    destroy: Samples,
}

impl Timings {
    fn extend(&mut self, other: Self) {
        self.fork_exec.extend(other.fork_exec);
        self.spawn.extend(other.spawn);
        self.first_exec.extend(other.first_exec);
        self.warm_exec.extend(other.warm_exec);
        self.destroy.extend(other.destroy);
    }
}

/// `rpc` is a listener with the same provider.
pub fn run(
    direct: DirectTarget,
    rpc: Option<RpcTarget>,
    options: Options,
    progress: &Watch,
) -> Measuring<'_, SandboxReport> {
    Box::pin(run_all(direct, rpc, options, progress))
}

async fn run_all(
    direct: DirectTarget,
    rpc: Option<RpcTarget>,
    options: Options,
    progress: &Watch,
) -> Result<SandboxReport> {
    ensure!(options.rounds > 0 && !options.clients.is_empty(), "at least one round and one client are needed");
    let target = Arc::new(Target::Direct(direct));
    let direct = figures(&target, &options, progress).await?;
    let rpc = match rpc {
        Some(rpc) => Some(figures(&Arc::new(Target::Rpc(rpc)), &options, progress).await?),
        None => None,
    };
    let others = if options.others { others(options.rounds, progress).await } else { Vec::new() };
    Ok(SandboxReport {
        bench: "sandbox".to_owned(),
        provider: target.name().to_owned(),
        image: target.image().to_owned(),
        machine: Machine::look(None).await?,
        settings: options,
        direct,
        rpc,
        others,
        idle_bytes: idle(&target).await?,
    })
}

async fn figures(target: &Arc<Target>, options: &Options, progress: &Watch) -> Result<Figures> {
    let mut levels = Vec::new();
    for &clients in &options.clients {
        levels.push(level(target, clients, options.rounds, progress).await?);
    }
    let (file_write_mb_per_second, file_read_mb_per_second) = files(target, options.file_mib).await?;
    Ok(Figures { levels, file_write_mb_per_second, file_read_mb_per_second })
}

async fn level(target: &Arc<Target>, clients: usize, rounds: usize, progress: &Watch) -> Result<Level> {
    progress.begin(&format!("sandboxes by {clients} clients"), (clients * (rounds + WARM_UP)) as u64);
    let mut running = JoinSet::new();
    for _ in 0..clients {
        let (target, progress) = (Arc::clone(target), Arc::clone(progress));
        running.spawn(async move {
            let mut timings = Timings::default();
            for round in 0..rounds + WARM_UP {
                let mut one = Timings::default();
                cycle(&target, &mut one).await?;
                if round >= WARM_UP {
                    timings.extend(one);
                }
                progress.advance(1);
            }
            Ok(timings)
        });
    }
    let mut all = Timings::default();
    for timings in load::all(running).await? {
        all.extend(timings);
    }
    Ok(Level {
        clients,
        fork_exec_ms: all.fork_exec.percentiles(),
        spawn_ms: all.spawn.percentiles(),
        first_exec_ms: all.first_exec.percentiles(),
        warm_exec_ms: all.warm_exec.percentiles(),
        destroy_ms: all.destroy.percentiles(),
    })
}

/// The floor and a sandbox take turns, so that both meet the same machine.
async fn cycle(target: &Target, timings: &mut Timings) -> Result<()> {
    let begun = Instant::now();
    run_true("true", &[]).await?;
    timings.fork_exec.push(begun.elapsed());

    let begun = Instant::now();
    let sandbox = target.spawn(None).await?;
    timings.spawn.push(begun.elapsed());
    target.exec(&sandbox).await?;
    timings.first_exec.push(begun.elapsed());
    for _ in 0..WARM_EXECS {
        let begun = Instant::now();
        target.exec(&sandbox).await?;
        timings.warm_exec.push(begun.elapsed());
    }
    let begun = Instant::now();
    target.destroy(&sandbox).await?;
    timings.destroy.push(begun.elapsed());
    Ok(())
}

async fn run_true(program: &str, args: &[&str]) -> Result<()> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let output = command.output().await.with_context(|| format!("{program} could not be started"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} failed: {}", said.lines().last().unwrap_or_default());
    Ok(())
}

/// The same command with other programs, each in a sandbox of its own.
async fn others(rounds: usize, progress: &Watch) -> Vec<Other> {
    let bwrap =
        ["--unshare-all", "--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64"];
    let bwrap =
        [&bwrap[..], &["/lib64", "--proc", "/proc", "--dev", "/dev", "--die-with-parent", "/usr/bin/true"]].concat();
    // Limits no higher than those of a machine that is itself a container.
    let podman = ["--runtime", "runc", "run", "--rm", "--network", "none", "--ulimit", "nofile=1024:1024"];
    let podman = [&podman[..], &["--ulimit", "nproc=1024:1024", "--rootfs", "/:O", "true"]].concat();
    let mut found = Vec::new();
    for (name, args, rounds) in [("bwrap", bwrap, rounds), ("podman", podman, rounds.min(10))] {
        progress.begin(name, rounds as u64);
        let measured = async {
            let mut samples = Samples::default();
            for round in 0..=rounds {
                let begun = Instant::now();
                run_true(name, &args).await?;
                if round > 0 {
                    samples.push(begun.elapsed());
                }
                progress.advance(1);
            }
            anyhow::Ok(samples.percentiles())
        };
        let (run_ms, problem) = match measured.await {
            Ok(times) => (Some(times), None),
            Err(error) => (None, Some(error.to_string())),
        };
        found.push(Other { name: name.to_owned(), run_ms, problem });
    }
    found
}

async fn idle(target: &Target) -> Result<Option<u64>> {
    let before = memory::first_processes();
    let mut sandboxes = Vec::new();
    let mut sums = Vec::new();
    for count in [IDLE, 2 * IDLE] {
        while sandboxes.len() < count {
            sandboxes.push(target.spawn(None).await?);
        }
        sums.extend(memory::taken_by(&before, count));
    }
    for sandbox in &sandboxes {
        target.destroy(sandbox).await?;
    }
    Ok(match sums[..] {
        [few, many] => Some(many.saturating_sub(few) / IDLE as u64),
        _ => None,
    })
}

/// Megabytes a second of a file that is written, and then read.
async fn files(target: &Target, mib: usize) -> Result<(f64, f64)> {
    let content = bytes::Bytes::from(vec![0x5a; mib << 20]);
    let sandbox = target.spawn(Some(2 * content.len() as u64)).await?;
    let (mut write, mut read) = (Duration::MAX, Duration::MAX);
    for _ in 0..FILE_ROUNDS {
        let begun = Instant::now();
        target.write(&sandbox, content.clone()).await?;
        write = write.min(begun.elapsed());
        let begun = Instant::now();
        let length = target.read(&sandbox).await?;
        read = read.min(begun.elapsed());
        ensure!(length == content.len(), "wrote {} bytes and read {length}", content.len());
    }
    target.destroy(&sandbox).await?;
    let pace = |time: Duration| content.len() as f64 / 1e6 / time.as_secs_f64().max(1e-9);
    Ok((pace(write), pace(read)))
}

impl Level {
    fn rows(&self) -> [(&'static str, &Percentiles); 5] {
        [
            ("fork + exec, no sandbox", &self.fork_exec_ms),
            ("spawn", &self.spawn_ms),
            ("spawn to the end of the first exec", &self.first_exec_ms),
            ("exec in a sandbox that runs", &self.warm_exec_ms),
            ("destroy", &self.destroy_ms),
        ]
    }
}

impl SandboxReport {
    fn ways(&self) -> impl Iterator<Item = (&'static str, &Figures)> {
        [("direct", Some(&self.direct)), ("rpc", self.rpc.as_ref())]
            .into_iter()
            .filter_map(|(way, figures)| Some((way, figures?)))
    }
}

impl Report for SandboxReport {
    fn table(&self) -> Table {
        let mut rows = Vec::new();
        for (way, figures) in self.ways() {
            for level in &figures.levels {
                for (what, times) in level.rows() {
                    let floor = times.p50 / level.fork_exec_ms.p50.max(1e-9);
                    let mut row = vec![way.to_owned(), level.clients.to_string(), what.to_owned()];
                    row.extend(report::cells(times));
                    row.push(format!("{floor:.1}"));
                    rows.push(row);
                }
            }
        }
        let floor = self.direct.levels.first().map_or(f64::NAN, |level| level.fork_exec_ms.p50.max(1e-9));
        let mut notes = vec![format!("provider {}, image {}", self.provider, self.image)];
        for other in &self.others {
            match (&other.run_ms, &other.problem) {
                (Some(times), _) => {
                    let mut row = vec!["-".to_owned(), "1".to_owned(), format!("{} running `true`", other.name)];
                    row.extend(report::cells(times));
                    row.push(format!("{:.1}", times.p50 / floor));
                    rows.push(row);
                }
                (None, problem) => {
                    notes.push(format!("{} was not measured: {}", other.name, problem.as_deref().unwrap_or("unknown")));
                }
            }
        }
        notes.push(match self.idle_bytes {
            Some(bytes) => format!("each further idle sandbox takes {} of resident memory", report::megabytes(bytes)),
            None => "the memory of an idle sandbox was not measured: its processes cannot be told apart".to_owned(),
        });
        for (way, figures) in self.ways() {
            notes.push(format!(
                "a file of {} MiB, {way}: written at {:.0} MB/s, read at {:.0} MB/s",
                self.settings.file_mib, figures.file_write_mb_per_second, figures.file_read_mb_per_second
            ));
        }
        Table { header: vec!["WAY", "CLIENTS", "WHAT", "P50", "P90", "P99", "MAX", "TO FORK + EXEC"], rows, notes }
    }

    fn picture(&self) -> Picture {
        let levels = self.ways().flat_map(|(way, figures)| figures.levels.iter().map(move |level| (way, level)));
        let panels = levels.map(|(way, level)| {
            let bars = level.rows().map(|(what, times)| Bar {
                label: what.to_owned(),
                value: times.p50,
                kind: if what.starts_with("fork") { BarKind::Limit } else { BarKind::Ours },
                note: Some(format!("p99 {}", report::milliseconds(times.p99))),
            });
            let title = format!("Median with {} clients, {way}", level.clients);
            Panel::Bars(Bars { title, unit: "ms".to_owned(), bars: bars.into() })
        });
        Picture {
            title: "Sandboxes".to_owned(),
            subtitle: format!("provider {}, image {}", self.provider, self.image),
            panels: panels.collect(),
            notes: vec![self.machine.line()],
        }
    }
}
