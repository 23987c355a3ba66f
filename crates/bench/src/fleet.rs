//! Sandboxes through the user API of a control plane, beside the same calls straight to the worker: what the control
//! plane adds, and what a fleet that nobody uses costs it.

mod api;
mod idle;
mod workers;

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::task::JoinSet;

use crate::Measuring;
use crate::load;
use crate::picture::{Bar, BarKind, Bars, Panel, Picture};
use crate::progress::Watch;
use crate::report::{self, Machine, Report, Table, count};
use crate::samples::{Percentiles, Samples};
use crate::sandbox::RpcTarget;
use crate::stand::{Place, Stand};
use api::Api;
pub use idle::IdleCost;
use workers::WorkerProcess;

/// Rounds that are not counted: caches are cold.
const WARM_UP: usize = 3;
/// Commands on each way in one sandbox.
const EXECS: usize = 4;
const TEMPLATE: &str = "bench-warm";
const WORKER: &str = "bench-worker";
/// How long anything may take before a run is given up.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at something that is waited for.
const LOOK: Duration = Duration::from_millis(5);

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Options {
    /// Sandboxes of each client, at each number of clients.
    pub rounds: usize,
    pub clients: Vec<usize>,
    pub provider: String,
    pub image: String,
    /// Sandboxes that nobody uses, for their cost; 0 leaves it out.
    pub known: usize,
    /// The workers that hold them.
    pub workers: usize,
    /// For how long their cost is measured.
    pub seconds: f64,
}

/// `tenure bench fleet`
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FleetReport {
    pub bench: String,
    pub store: String,
    pub machine: Machine,
    pub settings: Options,
    pub levels: Vec<Level>,
    pub idle: Option<IdleCost>,
}

/// At one number of clients.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Level {
    pub clients: usize,
    /// `worker.spawn`, straight to the worker.
    pub rpc_spawn_ms: Percentiles,
    /// A create of the user API until its answer, which says `running`.
    pub create_ms: Percentiles,
    /// The same from the warm pool of a template.
    pub warm_create_ms: Percentiles,
    /// Creates that should have got a warm sandbox and did not. They are not among the times.
    pub not_warm: usize,
    /// `worker.exec`, straight to the worker.
    pub rpc_exec_ms: Percentiles,
    /// The same command in the same sandbox through the user API.
    pub exec_ms: Percentiles,
    pub destroy_ms: Percentiles,
}

impl Level {
    /// What the control plane adds to a command at the median.
    pub fn exec_adds_ms(&self) -> f64 {
        self.exec_ms.p50 - self.rpc_exec_ms.p50
    }

    pub fn create_adds_ms(&self) -> f64 {
        self.create_ms.p50 - self.rpc_spawn_ms.p50
    }
}

#[derive(Debug, Default)]
struct Timings {
    rpc_spawn: Samples,
    create: Samples,
    warm_create: Samples,
    not_warm: usize,
    rpc_exec: Samples,
    exec: Samples,
    destroy: Samples,
}

impl Timings {
    fn extend(&mut self, other: Self) {
        self.rpc_spawn.extend(other.rpc_spawn);
        self.create.extend(other.create);
        self.warm_create.extend(other.warm_create);
        self.not_warm += other.not_warm;
        self.rpc_exec.extend(other.rpc_exec);
        self.exec.extend(other.exec);
        self.destroy.extend(other.destroy);
    }
}

/// What all clients share.
struct Scene {
    api: Api,
    rpc: Arc<RpcTarget>,
    /// Sandboxes that were seen in the pool.
    warm: Mutex<HashSet<String>>,
    clients: usize,
}

/// Runs with a control plane and workers of its own. `tenure` is the program that they are.
pub fn run<'a>(
    tenure: &'a Path,
    place: &'a Place,
    options: Options,
    progress: &'a Watch,
) -> Measuring<'a, FleetReport> {
    Box::pin(run_all(tenure, place, options, progress))
}

async fn run_all(tenure: &Path, place: &Place, options: Options, progress: &Watch) -> Result<FleetReport> {
    ensure!(options.rounds > 0 && !options.clients.is_empty(), "at least one round and one client are needed");
    let settings = workers::settings(&options.provider);
    let stand = Stand::start(tenure, place, &settings)?;
    let mut levels = Vec::new();
    {
        let worker = WorkerProcess::start(tenure, place, &stand, WORKER, &options.provider)?;
        let api = Api::new(&stand.target, &options.provider, &options.image);
        api.wait_for_workers(1, PATIENCE).await.with_context(|| worker.said())?;
        let token = place.worker_token()?;
        let rpc = RpcTarget::new(&worker.rpc_url, &token, WORKER, &options.provider, &options.image)?;
        let rpc = Arc::new(rpc);
        for &clients in &options.clients {
            let scene = Scene { api: api.clone(), rpc: Arc::clone(&rpc), warm: Mutex::default(), clients };
            levels.push(level(&Arc::new(scene), &options, progress).await?);
        }
    }
    let idle = match options.known {
        0 => None,
        _ => Some(idle::measure(tenure, place, &stand, &options, progress).await?),
    };
    Ok(FleetReport {
        bench: "fleet".to_owned(),
        store: place.choice.name().to_owned(),
        machine: Machine::look(Some(place)).await?,
        settings: options,
        levels,
        idle,
    })
}

async fn level(scene: &Arc<Scene>, options: &Options, progress: &Watch) -> Result<Level> {
    let (api, clients) = (&scene.api, scene.clients);
    progress.begin(&format!("create, exec and destroy by {clients} clients"), total(clients, options));
    let mut all = rounds(scene, options, progress, cold).await?;
    // Kept only while they are claimed: filling a pool would disturb everything else.
    api.put_template(TEMPLATE, 2 * clients + 2).await?;
    progress.begin(&format!("create from a warm pool by {clients} clients"), total(clients, options));
    let claimed = rounds(scene, options, progress, warm).await;
    api.delete_template(TEMPLATE).await?;
    all.extend(claimed?);
    api.wait_for_idle("the pool to be emptied", PATIENCE, <[String]>::is_empty).await?;
    Ok(Level {
        clients,
        rpc_spawn_ms: all.rpc_spawn.percentiles(),
        create_ms: all.create.percentiles(),
        warm_create_ms: all.warm_create.percentiles(),
        not_warm: all.not_warm,
        rpc_exec_ms: all.rpc_exec.percentiles(),
        exec_ms: all.exec.percentiles(),
        destroy_ms: all.destroy.percentiles(),
    })
}

fn total(clients: usize, options: &Options) -> u64 {
    (clients * (options.rounds + WARM_UP)) as u64
}

async fn rounds<F, R>(scene: &Arc<Scene>, options: &Options, progress: &Watch, round: F) -> Result<Timings>
where
    F: Fn(Arc<Scene>) -> R + Send + Copy + 'static,
    R: Future<Output = Result<Timings>> + Send,
{
    let mut running = JoinSet::new();
    for _ in 0..scene.clients {
        let (scene, progress, rounds) = (Arc::clone(scene), Arc::clone(progress), options.rounds);
        running.spawn(async move {
            let mut timings = Timings::default();
            for number in 0..rounds + WARM_UP {
                let one = round(Arc::clone(&scene)).await?;
                if number >= WARM_UP {
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
    Ok(all)
}

/// The worker alone and the control plane take turns, so that both meet the same machine.
async fn cold(scene: Arc<Scene>) -> Result<Timings> {
    let (api, rpc, mut timings) = (&scene.api, &scene.rpc, Timings::default());
    let begun = Instant::now();
    let straight = rpc.spawn(None).await?;
    timings.rpc_spawn.push(begun.elapsed());
    rpc.destroy(&straight).await?;

    let begun = Instant::now();
    let sandbox = api.create(json!({})).await?;
    timings.create.push(begun.elapsed());
    for number in 0..=EXECS {
        let begun = Instant::now();
        rpc.exec(&sandbox).await?;
        let straight = begun.elapsed();
        let begun = Instant::now();
        api.exec(&sandbox).await?;
        let through = begun.elapsed();
        // The first command of a sandbox meets cold caches.
        if number > 0 {
            timings.rpc_exec.push(straight);
            timings.exec.push(through);
        }
    }
    let begun = Instant::now();
    api.destroy(&sandbox).await?;
    timings.destroy.push(begun.elapsed());
    Ok(timings)
}

async fn warm(scene: Arc<Scene>) -> Result<Timings> {
    let (api, mut timings) = (&scene.api, Timings::default());
    let enough = |idle: &[String]| idle.len() >= scene.clients;
    let idle = api.wait_for_idle("the pool to be filled", PATIENCE, enough).await?;
    let seen = || scene.warm.lock().unwrap_or_else(PoisonError::into_inner);
    seen().extend(idle);
    let begun = Instant::now();
    let sandbox = api.create(json!({"template": TEMPLATE})).await?;
    let took = begun.elapsed();
    if seen().contains(&sandbox) {
        timings.warm_create.push(took);
    } else {
        timings.not_warm += 1;
    }
    api.destroy(&sandbox).await?;
    Ok(timings)
}

impl Level {
    fn rows(&self) -> [(&'static str, &Percentiles, Option<f64>); 6] {
        let by = |times: &Percentiles, floor: &Percentiles| Some(times.p50 / floor.p50.max(1e-9));
        [
            ("spawn, straight to the worker", &self.rpc_spawn_ms, None),
            ("create, until it runs", &self.create_ms, by(&self.create_ms, &self.rpc_spawn_ms)),
            ("create from a warm pool", &self.warm_create_ms, by(&self.warm_create_ms, &self.rpc_spawn_ms)),
            ("exec, straight to the worker", &self.rpc_exec_ms, None),
            ("exec", &self.exec_ms, by(&self.exec_ms, &self.rpc_exec_ms)),
            ("destroy", &self.destroy_ms, None),
        ]
    }
}

impl Report for FleetReport {
    fn table(&self) -> Table {
        let mut rows = Vec::new();
        let mut notes = vec![format!(
            "provider {}, image {}, on {}; everything but the rows \"straight to the worker\" is through the user API",
            self.settings.provider, self.settings.image, self.store
        )];
        for level in &self.levels {
            for (what, times, ratio) in level.rows() {
                let mut row = vec![level.clients.to_string(), what.to_owned()];
                row.extend(report::cells(times));
                row.push(ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}")));
                rows.push(row);
            }
            notes.push(format!(
                "with {} clients the control plane adds {:.2} ms to a command and {:.2} ms to a spawn at the median",
                level.clients,
                level.exec_adds_ms(),
                level.create_adds_ms()
            ));
            if level.not_warm > 0 {
                notes.push(format!("with {} clients the pool was empty for {} creates", level.clients, level.not_warm));
            }
        }
        notes.extend(self.idle.iter().map(IdleCost::line));
        Table { header: vec!["CLIENTS", "WHAT", "P50", "P90", "P99", "MAX", "TO THE WORKER ALONE"], rows, notes }
    }

    fn picture(&self) -> Picture {
        let panels = self.levels.iter().map(|level| {
            let bars = level.rows().map(|(what, times, ratio)| Bar {
                label: what.to_owned(),
                value: times.p50,
                kind: if ratio.is_none() && what != "destroy" { BarKind::Limit } else { BarKind::Ours },
                note: Some(format!("p99 {}", report::milliseconds(times.p99))),
            });
            let title = format!("Median with {} clients", level.clients);
            Panel::Bars(Bars { title, unit: "ms".to_owned(), bars: bars.into() })
        });
        let mut panels: Vec<Panel> = panels.collect();
        if let Some(idle) = &self.idle {
            let title = format!("Processor with {} sandboxes that nobody uses", count(idle.sandboxes as f64));
            let bar = |label: &str, share: Option<f64>| {
                share.map(|share| Bar {
                    label: label.to_owned(),
                    value: share * 100.0,
                    kind: BarKind::Ours,
                    note: None,
                })
            };
            let bars = [bar("control plane", idle.processor), bar("Postgres", idle.store_processor)];
            let bars: Vec<Bar> = bars.into_iter().flatten().collect();
            if !bars.is_empty() {
                panels.push(Panel::Bars(Bars { title, unit: "% of one core".to_owned(), bars }));
            }
        }
        Picture {
            title: format!("Sandboxes through the control plane on {}", self.store),
            subtitle: format!("provider {}, image {}", self.settings.provider, self.settings.image),
            panels,
            notes: vec![self.machine.line()],
        }
    }
}
