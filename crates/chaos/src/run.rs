//! One run: start, work under faults, heal, wait, judge.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep};

use super::checker;
use super::clients::Client;
use super::crowd::Crowd;
use super::faults::Faults;
use super::history::{Answer, Call, History, Recorder};
use super::http::Http;
use super::ledger::Ledger;
use super::plan::{Class, Options, Plan};
use super::report::Summary;
use super::rng::Rng;
use super::system::{QUEUES, Shape, System, faketime, find_binary};
use super::visitor::Visitor;
use super::watcher::{self, Watcher};
use super::{ending, nemesis, power};

/// Lease time of all tasks.
const TTL_MS: u64 = 2_000;

/// How long after the last fault every task must have ended, if nobody says otherwise: leases, back-off and the sweep of
/// lost messages.
pub const LIVENESS: Duration = Duration::from_secs(180);

/// Clients that submit.
const CLIENTS: usize = 2;

/// What to run.
#[derive(Debug, Clone)]
pub struct Settings {
    pub seed: u64,
    pub length: Duration,
    pub classes: Vec<Class>,
    pub postgres: bool,
    pub redis: bool,
    pub servers: usize,
    pub workers: usize,
    /// Tasks per second.
    pub rate: f64,
    /// How long after the last fault every task must have ended.
    pub patience: Duration,
    /// How long a task that can run may wait, not counting times of faults.
    pub late_ns: Option<u64>,
    pub binary: Option<PathBuf>,
    /// Keep the folder of the run also when all is well.
    pub keep: bool,
}

impl Settings {
    /// Whether the wall clock of the control plane can be set: Postgres has a clock of its own.
    fn sets_clocks(&self) -> bool {
        !self.postgres && self.classes.contains(&Class::Clock) && faketime().is_some()
    }

    /// Whether the control plane can lose what it has not synced.
    fn loses_power(&self) -> bool {
        !self.postgres && self.classes.contains(&Class::Power) && power::is_possible()
    }

    pub fn plan(&self) -> Plan {
        Plan::draw(&Options {
            seed: self.seed,
            length_ms: self.length.as_millis() as u64,
            classes: self.classes.clone(),
            servers: self.servers,
            workers: self.workers,
            queues: QUEUES.len(),
            postgres: self.postgres,
            redis: self.redis,
            sandboxes: false,
            pushes: false,
            clock: self.sets_clocks(),
            power: self.loses_power(),
            ttl_ms: TTL_MS,
        })
    }
}

/// Runs and judges. `say` gets lines for people while it goes on.
pub async fn run(settings: &Settings, say: &(dyn Fn(String) + Sync)) -> Result<Summary> {
    let own_binary = std::env::current_exe()?;
    let shape = Shape {
        seed: settings.seed,
        postgres: settings.postgres,
        redis: settings.redis,
        servers: settings.servers,
        workers: settings.workers,
        ttl_ms: TTL_MS,
        sandboxes: None,
        dags: false,
        pushes: false,
        faketime: faketime().filter(|_| settings.sets_clocks()),
        power: settings.loses_power(),
        binary: find_binary(settings.binary.clone(), &own_binary)?,
        own_binary,
    };
    let plan = settings.plan();
    let mut folder = tempfile::Builder::new().prefix("tenure-chaos-").tempdir()?;
    std::fs::write(folder.path().join("plan.json"), serde_json::to_string_pretty(&plan)?)?;
    let system = Arc::new(System::start(shape, folder.path()).await?);
    let ledger = Ledger::create(&system.ledger())?;
    for index in 0..settings.workers {
        system.start_worker(index)?;
    }

    let watchers = watchers(settings, &system);
    let watching: Vec<AbortOnDrop> = watchers.iter().map(|one| AbortOnDrop::of(Arc::clone(one).run())).collect();
    let marks = Recorder::create(&system.histories(), "marks")?;
    let first = format!("{}-first", checker::MARK);
    if watcher::mark(&system.http()?, &marks, &first, &watchers).await.contains(&false) {
        bail!("a watcher gets no events before anything is broken");
    }

    let in_time = work(settings, &system, &plan, say).await?;
    say("reading how every task stands".into());
    for index in 0..settings.workers {
        system.kill_worker(index);
    }
    // What the workers had sent by then arrives.
    sleep(Duration::from_secs(1)).await;
    let complete = watcher::mark(&system.http()?, &marks, &format!("{}-last", checker::MARK), &watchers).await;
    drop(watching);
    let history: History = History::read(&system.histories())?;
    let mut ended = ending::read(&system.http()?, told(&history), TTL_MS).await?;
    ended.streams = watchers.iter().zip(complete).map(|(one, complete)| one.stream(complete)).collect();
    let effects = ledger.effects()?;
    say(format!("checking {} operations on {} tasks", history.ops.len(), ended.tasks.len()));
    let faults = Faults { late_ns: settings.late_ns, ..Faults::new(&system.spells(), settings.servers) };
    let verdict = checker::check(&history, &ended, &effects, &faults);
    let mut summary = Summary::new(&plan, &history, &ended, &effects, verdict, system.surprises());
    summary.in_time = in_time;
    if settings.keep || !summary.is_good() {
        folder.disable_cleanup(true);
        summary.folder = Some(folder.path().to_owned());
    }
    Ok(summary)
}

/// Clients, faults and the wait for the end. Whether every task ended in time.
async fn work(settings: &Settings, system: &Arc<System>, plan: &Plan, say: &(dyn Fn(String) + Sync)) -> Result<bool> {
    let start = Instant::now();
    let end = start + settings.length;
    let submitted = Arc::new(AtomicU64::new(0));
    let mut clients = tokio::task::JoinSet::new();
    for index in 0..CLIENTS {
        let name = format!("client{index}");
        let recorder: Recorder = Recorder::create(&system.histories(), &name)?;
        let client = Client::new(&name, system.http()?, recorder, settings.seed, TTL_MS);
        clients.spawn(client.run(settings.rate / CLIENTS as f64, end, Arc::clone(&submitted)));
    }
    let visitor = Visitor {
        http: Http::plain(system.urls())?,
        recorder: Recorder::create(&system.histories(), "visitor")?,
        rng: Mutex::new(Rng::fork(settings.seed, "visitor")),
        ttl_s: TTL_MS / 1_000,
    };
    clients.spawn(visitor.run(end));
    let crowd = Crowd {
        http: system.http()?,
        recorder: Recorder::create(&system.histories(), "crowd")?,
        rng: Mutex::new(Rng::fork(settings.seed, "crowd")),
        ttl_s: TTL_MS / 1_000,
    };
    clients.spawn(crowd.run(end));
    let faults = AtomicU64::new(0);
    let how_far = || {
        let (tasks, faults) = (submitted.load(Ordering::Relaxed), faults.load(Ordering::Relaxed));
        format!("{tasks} tasks, {faults} of {} faults", plan.steps.len())
    };
    let watch = nemesis::watch(system, start, say, how_far);
    let phases = async {
        nemesis::run(system, plan, start, |_| {
            faults.fetch_add(1, Ordering::Relaxed);
        })
        .await?;
        while let Some(ended) = clients.join_next().await {
            ended?;
        }
        say("all has healed, waiting for the tasks to end".into());
        ending::wait_for_the_end(&system.http()?, settings.patience).await
    };
    tokio::select! {
        in_time = phases => in_time,
        failed = watch => failed,
    }
}

/// One that comes and goes, and one that stays.
fn watchers(settings: &Settings, system: &System) -> Vec<Arc<Watcher>> {
    let stays = [("comes and goes", Duration::from_secs(3)), ("stays", Duration::from_secs(60))];
    stays.into_iter().map(|(name, stays)| Watcher::new(name, system.urls(), stays, settings.seed)).collect()
}

/// A task that ends with its owner.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl AbortOnDrop {
    fn of(task: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(task))
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Tasks that somebody was told of.
fn told(history: &History) -> Vec<String> {
    let mut ids = Vec::new();
    for op in &history.ops {
        match (&op.call, &op.answer) {
            (_, Answer::Submitted { tasks }) => ids.extend(tasks.iter().map(|task| task.task.clone())),
            (Call::Claim { .. }, Answer::Granted { jobs }) => ids.extend(jobs.iter().map(|job| job.task.clone())),
            _ => {}
        }
    }
    ids
}
