//! The system that is tried: real processes, with a fault proxy on every connection between them.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;
use tenure_testkit::{Database, Port, Postgres, PrivatePostgres, Redis};
use tokio::time::sleep;

use super::faults::Spell;
use super::history::now;
use super::http::{Http, Reply};
use super::plan::Link;
use super::process::Process;
use super::proxy::{Mode, Proxy};
use super::sandboxes::checker::Limits;
use super::sandboxes::fleet;
use super::sandboxes::history::Down;
use super::{power, pushes};

/// Queues of the run, in the order in which they are listed.
pub const QUEUES: [&str; 3] = ["chaos-a", "chaos-b", "chaos-c"];

/// The queue with slots. Grants from it rotate over those who submit.
pub const LIMITED: &str = "chaos-limited";

/// Its slots.
pub const SLOTS_OF_QUEUE: u64 = 4;

/// The queue with a rate.
pub const PACED: &str = "chaos-paced";

/// Its rate: grants per second.
pub const PACE: u64 = 5;

/// Grants that it makes at once.
pub const BURST: u64 = 2;

/// Jobs that a worker takes at a time.
const SLOTS: usize = 8;

/// What workers show. It guards nothing here.
const WORKER_TOKEN: &str = "a-token-for-chaos-workers";

/// The key of everybody but visitors, where keys are needed: in runs of tasks.
pub const ADMIN_KEY: &str = "a-key-for-everybody-in-chaos";

/// How long the control planes may take until they answer, on a busy machine.
const START: Duration = Duration::from_secs(60);

/// What the system is made of.
#[derive(Debug, Clone)]
pub struct Shape {
    pub seed: u64,
    pub postgres: bool,
    pub redis: bool,
    pub servers: usize,
    pub workers: usize,
    pub ttl_ms: u64,
    /// Workers hold sandboxes, within these limits, and pull no tasks.
    pub sandboxes: Option<Limits>,
    /// Workers are those of the dispatch contract.
    pub dags: bool,
    /// Tasks are pushed to workers.
    pub pushes: bool,
    /// The library with which the wall clock of a control plane can be set.
    pub faketime: Option<PathBuf>,
    /// Control planes can lose their power.
    pub power: bool,
    /// The `tenure` binary.
    pub binary: PathBuf,
    /// This program, which is also the worker.
    pub own_binary: PathBuf,
}

impl Shape {
    /// Whether workers ask for single tasks.
    fn has_pulling_workers(&self) -> bool {
        self.sandboxes.is_none() && !self.dags && !self.pushes
    }
}

#[derive(Debug)]
struct Server {
    port: Port,
    /// `None` while it is down on purpose.
    process: Option<Process>,
}

#[derive(Debug, Default)]
struct WorkerPlace {
    process: Option<Process>,
    /// How many processes there were in this place.
    started: usize,
    /// Where a worker with sandboxes listens.
    port: Option<Port>,
    /// When it was killed or stopped, and not brought back.
    down_since: Option<u64>,
}

/// Everything that runs. Ends when dropped.
#[derive(Debug)]
pub struct System {
    shape: Shape,
    folder: PathBuf,
    /// The library with which they do.
    power: Option<PathBuf>,
    workers: Vec<Mutex<WorkerPlace>>,
    servers: Vec<Mutex<Server>>,
    links: BTreeMap<Link, Proxy>,
    /// Its URL, and the server.
    redis: Option<(String, tokio::sync::Mutex<Redis>)>,
    /// Processes that ended though nobody ended them.
    surprises: Mutex<Vec<String>>,
    downs: Mutex<Vec<Down>>,
    spells: Mutex<Vec<Spell>>,
    database: Option<Database>,
    postgres: Option<PrivatePostgres>,
}

impl System {
    /// Starts all but the workers, and waits until every control plane answers.
    pub async fn start(shape: Shape, folder: &Path) -> Result<Self> {
        let postgres = if shape.postgres { Some(Postgres::start().await) } else { None };
        let database = match &postgres {
            Some(postgres) => Some(postgres.database().await),
            None => None,
        };
        let redis = if shape.redis { Some(Redis::start().await) } else { None };
        let redis_port = redis.as_ref().map(Redis::port);
        let mut links = BTreeMap::new();
        let mut servers = Vec::new();
        for index in 0..shape.servers {
            let port = Port::reserve();
            let mut upstreams = vec![(Link::ToServer(index), port.number())];
            upstreams.extend(postgres.as_ref().map(|postgres| (Link::ToPostgres(index), postgres.port())));
            upstreams.extend(redis_port.map(|port| (Link::ToRedis(index), port)));
            if index == 0 {
                upstreams.extend(redis_port.map(|port| (Link::WorkersToRedis, port)));
            }
            for (link, port) in upstreams {
                let upstream = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
                links.insert(link, Proxy::start(upstream, shape.seed).await?);
            }
            servers.push(Mutex::new(Server { port, process: None }));
        }
        let mut workers = Vec::new();
        for index in 0..shape.workers {
            let mut place = WorkerPlace::default();
            if shape.sandboxes.is_some() || shape.pushes {
                let address = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
                let port = Port::reserve();
                if shape.sandboxes.is_some() {
                    let planes = servers.iter().map(|server| address(lock(server).port.number())).collect();
                    links.insert(Link::WorkerToServers(index), Proxy::start_before(planes, shape.seed).await?);
                }
                let rpc = Proxy::start(address(port.number()), shape.seed).await?;
                links.insert(Link::ServersToWorker(index), rpc);
                place.port = Some(port);
            }
            workers.push(Mutex::new(place));
        }
        let folder = folder.to_owned();
        let power = if shape.power { Some(power::library(&folder)?) } else { None };
        let (surprises, downs, spells) = Default::default();
        let redis = redis.map(|redis| (redis.url(), tokio::sync::Mutex::new(redis)));
        let system =
            Self { shape, folder, power, workers, servers, links, redis, surprises, downs, spells, database, postgres };
        std::fs::create_dir_all(system.histories())?;
        for index in 0..system.shape.servers {
            system.set_clock(index, "+0");
            system.start_server(index)?;
        }
        if system.shape.has_pulling_workers() {
            system.make_queues().await?;
        }
        Ok(system)
    }

    pub fn histories(&self) -> PathBuf {
        self.folder.join("history")
    }

    pub fn ledger(&self) -> PathBuf {
        self.folder.join("ledger.db")
    }

    /// A client of the control planes, through their proxies.
    pub fn http(&self) -> Result<Http> {
        Http::new(self.urls(), WORKER_TOKEN)
    }

    pub fn urls(&self) -> Vec<String> {
        let ports = (0..self.shape.servers).filter_map(|index| Some(self.links.get(&Link::ToServer(index))?.port()));
        ports.map(|port| format!("http://127.0.0.1:{port}")).collect()
    }

    /// Where tasks are pushed to this worker.
    pub fn push_url(&self, index: usize) -> String {
        let port = self.links.get(&Link::ServersToWorker(index)).map_or(0, Proxy::port);
        format!("http://127.0.0.1:{port}/dispatch")
    }

    fn server(&self, index: usize) -> MutexGuard<'_, Server> {
        lock(&self.servers[index])
    }

    fn worker(&self, index: usize) -> MutexGuard<'_, WorkerPlace> {
        lock(&self.workers[index])
    }

    pub fn kill_server(&self, index: usize) {
        self.server(index).process = None;
    }

    /// Kills it, and what it has not synced is lost.
    pub fn cut_power(&self, index: usize) {
        self.kill_server(index);
        if let Err(error) = power::restore(&self.data(index)) {
            self.surprised(format!("the files of control plane {index} could not be put back: {error:?}"));
        }
    }

    fn data(&self, index: usize) -> PathBuf {
        self.folder.join(format!("server-{index}"))
    }

    pub fn start_server(&self, index: usize) -> Result<()> {
        let mut server = self.server(index);
        let mut command = self.tenure();
        command.args(["serve", "--listen", &format!("127.0.0.1:{}", server.port.number())]);
        command.arg("--data").arg(self.data(index));
        command.env("TENURE_AUTH__WORKER_TOKEN", WORKER_TOKEN);
        if self.shape.has_pulling_workers() {
            command.env("TENURE_AUTH__ENABLED", "true").env("TENURE_AUTH__ADMIN_API_KEY", ADMIN_KEY);
        }
        if let (Some(database), Some(link)) = (&self.database, self.links.get(&Link::ToPostgres(index))) {
            let behind = database.url().replace(&format!(":{}/", self.postgres_port()), &format!(":{}/", link.port()));
            command.args(["--store", &behind]);
        }
        if let Some(link) = self.links.get(&Link::ToRedis(index)) {
            command.env("TENURE_REDIS__URL", format!("redis://127.0.0.1:{}/", link.port()));
            // More often than by default, so that a short run sees it at work.
            command.env("TENURE_TRANSPORT__SWEEP_INTERVAL", "10s");
        }
        if let Some(limits) = &self.shape.sandboxes {
            fleet::configure_server(&mut command, limits);
        }
        let libraries: Vec<String> =
            self.power.iter().chain(&self.shape.faketime).map(|library| library.display().to_string()).collect();
        if !libraries.is_empty() {
            command.env("LD_PRELOAD", libraries.join(":")).env("POWER_DIR", &self.folder);
        }
        if self.shape.faketime.is_some() {
            command.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_TIMESTAMP_FILE", self.clock(index));
            command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("DONT_FAKE_MONOTONIC", "1");
        }
        if self.shape.pushes {
            command.env("TENURE_PUSH__SECRETS", json!({"chaos": pushes::SECRET}).to_string());
        }
        if self.shape.dags {
            // A short run sees the second attempt.
            command.env("TENURE_DISPATCH__RETRY_BACKOFF", "1s").env("TENURE_DISPATCH__RETRY_BACKOFF_MAX", "2s");
            command.env("TENURE_DISPATCH__REWAKE_AFTER", "2s");
            if self.shape.redis {
                command.env("TENURE_TRANSPORT__DEFAULT", "redis");
            }
        }
        server.process = Some(Process::start(command, &self.folder.join(format!("server-{index}.log")))?);
        Ok(())
    }

    fn clock(&self, index: usize) -> PathBuf {
        self.folder.join(format!("clock-{index}"))
    }

    /// Sets the wall clock of a control plane: how far it is off.
    pub fn set_clock(&self, index: usize, offset: &str) {
        if self.shape.faketime.is_none() {
            return;
        }
        // In one step: a half-written file is not a valid offset.
        let new = self.folder.join(format!("clock-{index}.new"));
        let set = std::fs::write(&new, offset).and_then(|()| std::fs::rename(new, self.clock(index)));
        if let Err(error) = set {
            self.surprised(format!("the clock of control plane {index} could not be set: {error}"));
        }
    }

    /// The binary, without the environment variables that configure Tenure.
    fn tenure(&self) -> Command {
        let mut command = Command::new(&self.shape.binary);
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"TENURE_") {
                command.env_remove(name);
            }
        }
        command
    }

    fn postgres_port(&self) -> u16 {
        self.postgres.as_ref().map_or(0, |postgres| postgres.port())
    }

    pub fn stop_server(&self, index: usize) {
        self.server(index).process.iter().for_each(Process::stop);
    }

    pub fn continue_server(&self, index: usize) {
        self.server(index).process.iter().for_each(Process::go_on);
    }

    pub fn kill_worker(&self, index: usize) {
        let mut place = self.worker(index);
        place.down_since.get_or_insert_with(now);
        place.process = None;
    }

    /// A worker that was killed or stopped can act again.
    fn is_back(&self, index: usize, place: &mut WorkerPlace) {
        if let Some(from) = place.down_since.take() {
            lock(&self.downs).push(Down { worker: index, from, to: now() });
        }
    }

    /// When workers could do nothing.
    pub fn downs(&self) -> Vec<Down> {
        lock(&self.downs).clone()
    }

    /// A fault that has come and gone.
    pub fn note(&self, spell: Spell) {
        lock(&self.spells).push(spell);
    }

    /// All faults so far.
    pub fn spells(&self) -> Vec<Spell> {
        lock(&self.spells).clone()
    }

    /// What the worker holds is in here.
    pub fn worker_folder(&self, index: usize) -> PathBuf {
        self.folder.join(format!("worker-{index}"))
    }

    fn start_sandbox_worker(&self, index: usize, place: &mut WorkerPlace, limits: &Limits) -> Result<()> {
        let port = |link: Link| self.links.get(&link).map_or(0, Proxy::port);
        let mut command = self.tenure();
        command.args(["worker", "--id", &format!("w{index}"), "--worker-token", WORKER_TOKEN]);
        command.args(["--control-plane", &format!("http://127.0.0.1:{}", port(Link::WorkerToServers(index)))]);
        command.args(["--advertise-url", &format!("http://127.0.0.1:{}", port(Link::ServersToWorker(index)))]);
        command.args(["--listen", &format!("127.0.0.1:{}", place.port.as_ref().map_or(0, Port::number))]);
        command.arg("--data").arg(&self.folder).arg("--data-dir").arg(self.worker_folder(index));
        fleet::configure_worker(&mut command, limits);
        place.process = Some(Process::start(command, &self.folder.join(format!("worker-{index}.log")))?);
        self.is_back(index, place);
        Ok(())
    }

    /// A new process in this place. Every second place keeps its name and shows an incarnation; the others are new
    /// workers each time.
    pub fn start_worker(&self, index: usize) -> Result<()> {
        let mut place = self.worker(index);
        if let Some(limits) = &self.shape.sandboxes {
            return self.start_sandbox_worker(index, &mut place, limits);
        }
        let process = format!("w{index}.{}", place.started);
        place.started += 1;
        let mut command = Command::new(&self.shape.own_binary);
        if self.shape.dags {
            command.args(["dispatch-worker", "--process", &process, "--seed", &self.shape.seed.to_string()]);
            command.args(self.urls().iter().flat_map(|url| ["--server", url])).arg("--history").arg(self.histories());
            command.args(["--token", WORKER_TOKEN, "--slots", &SLOTS.to_string()]);
            place.process = Some(Process::start(command, &self.folder.join(format!("worker-{index}.log")))?);
            return Ok(());
        }
        if self.shape.pushes {
            let port = place.port.as_ref().map_or(0, Port::number).to_string();
            command.args([
                "push-worker",
                "--process",
                &process,
                "--seed",
                &self.shape.seed.to_string(),
                "--port",
                &port,
            ]);
            command.args(self.urls().iter().flat_map(|url| ["--server", url])).arg("--history").arg(self.histories());
            place.process = Some(Process::start(command, &self.folder.join(format!("worker-{index}.log")))?);
            return Ok(());
        }
        command.args(["worker", "--process", &process, "--seed", &self.shape.seed.to_string()]);
        if index.is_multiple_of(2) {
            command.args(["--name", &format!("w{index}"), "--incarnation", &format!("{:020}", now())]);
        } else {
            command.args(["--name", &process]);
        }
        command.args(self.urls().iter().flat_map(|url| ["--server", url]));
        let redis = self.links.get(&Link::WorkersToRedis);
        let direct = redis.filter(|_| index % 4 >= 2);
        // With Redis the last queue is left to those who read streams: whatever message is lost has to come again.
        let polled = if self.has_direct() && direct.is_none() { &QUEUES[..2] } else { &QUEUES };
        command.args(polled.iter().flat_map(|queue| ["--queue", queue]));
        if direct.is_none() {
            command.args(["--queue", LIMITED, "--queue", PACED]);
        }
        command.arg("--history").arg(self.histories()).arg("--ledger").arg(self.ledger());
        command.args(["--token", WORKER_TOKEN, "--slots", &SLOTS.to_string()]);
        if let Some(link) = direct {
            command.args(["--redis", &format!("redis://127.0.0.1:{}/", link.port())]);
        }
        place.process = Some(Process::start(command, &self.folder.join(format!("worker-{index}.log")))?);
        Ok(())
    }

    /// Whether there are workers that read streams themselves.
    fn has_direct(&self) -> bool {
        self.shape.redis && self.shape.workers > 2
    }

    pub fn stop_worker(&self, index: usize) {
        let mut place = self.worker(index);
        place.down_since.get_or_insert_with(now);
        place.process.iter().for_each(Process::stop);
    }

    pub fn continue_worker(&self, index: usize) {
        let mut place = self.worker(index);
        place.process.iter().for_each(Process::go_on);
        self.is_back(index, &mut place);
    }

    pub fn kill_postgres(&self) {
        self.postgres.iter().for_each(|postgres| postgres.kill());
    }

    pub async fn start_postgres(&self) {
        if let Some(postgres) = &self.postgres {
            postgres.start_again().await;
        }
    }

    pub async fn kill_redis(&self) {
        if let Some((_, redis)) = &self.redis {
            redis.lock().await.kill();
        }
    }

    pub async fn start_redis(&self) {
        if let Some((_, redis)) = &self.redis {
            redis.lock().await.restart().await;
        }
    }

    /// One command to Redis itself, past the proxies. It is no matter when Redis is down.
    pub async fn tell_redis(&self, command: &[&str]) {
        let Some((url, _)) = &self.redis else { return };
        let told = async {
            let client = redis::Client::open(url.as_str())?;
            let mut connection = client.get_multiplexed_async_connection().await?;
            let mut told = redis::cmd(command[0]);
            told.arg(&command[1..]);
            told.query_async::<redis::Value>(&mut connection).await
        };
        let _ = tokio::time::timeout(Duration::from_secs(2), told).await;
    }

    pub fn set_link(&self, link: Link, mode: Mode) {
        self.links.get(&link).into_iter().for_each(|proxy| proxy.set(mode));
    }

    /// Starts again what ended by itself, and remembers that it did.
    pub fn look_after(&self) -> Result<()> {
        for index in 0..self.shape.servers {
            let ended = self.server(index).process.as_mut().and_then(Process::ended);
            if let Some(how) = ended {
                self.surprised(format!("control plane {index} ended with {how}"));
                self.start_server(index)?;
            }
        }
        for index in 0..self.shape.workers {
            let ended = self.worker(index).process.as_mut().and_then(Process::ended);
            if let Some(how) = ended {
                self.surprised(format!("worker {index} ended with {how}"));
                self.start_worker(index)?;
            }
        }
        Ok(())
    }

    fn has_ended(&self, index: usize) -> bool {
        self.server(index).process.as_mut().and_then(Process::ended).is_some()
    }

    fn surprised(&self, what: String) {
        lock(&self.surprises).push(what);
    }

    pub fn surprises(&self) -> Vec<String> {
        lock(&self.surprises).clone()
    }

    async fn make_queues(&self) -> Result<()> {
        let http = self.http()?;
        let until = Instant::now() + START;
        for server in 0..self.shape.servers {
            for queue in QUEUES.into_iter().chain([LIMITED, PACED]) {
                let mut settings = json!({"lease_ttl_seconds": self.shape.ttl_ms / 1_000});
                if queue == LIMITED {
                    settings["max_running"] = json!(SLOTS_OF_QUEUE);
                    settings["fairness_key"] = json!("tag:who");
                } else if queue == PACED {
                    settings["rate"] = json!({"per_second": PACE, "burst": BURST});
                } else if self.shape.redis {
                    settings["transport"] = json!("redis");
                }
                loop {
                    match http.put(server, &format!("/api/v1/queues/{queue}"), &settings).await {
                        Reply::Told { status, .. } if status < 300 => break,
                        Reply::Told { status, body } => bail!("queue {queue} is refused with {status}: {body}"),
                        _ if Instant::now() > until || self.has_ended(server) => {
                            let log = self.folder.join(format!("server-{server}.log"));
                            let log = std::fs::read_to_string(log).unwrap_or_default();
                            bail!("control plane {server} does not answer; its log:\n{log}");
                        }
                        _ => sleep(Duration::from_millis(100)).await,
                    }
                }
            }
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The library that answers programs with another wall clock, if it is installed.
pub fn faketime() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?.flatten().map(|entry| entry.path());
    folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1")).find(|library| library.exists())
}

/// The `tenure` binary: the one given, else `TENURE_BIN`, else the one beside this program.
pub fn find_binary(given: Option<PathBuf>, own: &Path) -> Result<PathBuf> {
    let beside = || Some(own.parent()?.join("tenure"));
    let found = given.or_else(|| std::env::var_os("TENURE_BIN").map(PathBuf::from)).or_else(beside);
    let found = found.context("this program lies in no folder")?;
    if !found.is_file() {
        bail!("there is no {}: build it with `cargo build -p tenure-cli`, or name it with --bin", found.display());
    }
    Ok(found)
}
