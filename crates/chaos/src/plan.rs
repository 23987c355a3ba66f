//! What goes wrong when: the whole of it is drawn from a seed before anything starts.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::proxy::{Direction, Mode};
use super::rng::Rng;

/// A kind of fault that can be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// SIGKILL of control planes and workers.
    Kill,
    /// SIGSTOP of control planes and workers.
    Stop,
    Cut,
    Delay,
    Reset,
    HalfOpen,
    /// FLUSHALL, and DEL of one stream.
    Flush,
    /// SIGKILL of Postgres.
    Pg,
    /// SIGKILL of Redis.
    Redis,
    /// The wall clock of a control plane on SQLite is set by an hour, and back.
    Clock,
    /// A control plane on SQLite is killed and loses what it has not synced.
    Power,
}

impl Class {
    pub const ALL: [Self; 11] = [
        Self::Kill,
        Self::Stop,
        Self::Cut,
        Self::Delay,
        Self::Reset,
        Self::HalfOpen,
        Self::Flush,
        Self::Pg,
        Self::Redis,
        Self::Clock,
        Self::Power,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Stop => "stop",
            Self::Cut => "cut",
            Self::Delay => "delay",
            Self::Reset => "reset",
            Self::HalfOpen => "half-open",
            Self::Flush => "flush",
            Self::Pg => "pg",
            Self::Redis => "redis",
            Self::Clock => "clock",
            Self::Power => "power",
        }
    }
}

impl FromStr for Class {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|class| class.name() == text);
        known.ok_or_else(|| format!("{text:?} is no fault; there are {}", Self::ALL.map(Self::name).join(", ")))
    }
}

/// A connection that a proxy sits on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Link {
    /// From clients and workers to this control plane.
    ToServer(usize),
    /// From this control plane to Postgres.
    ToPostgres(usize),
    /// From this control plane to Redis.
    ToRedis(usize),
    /// From workers that read streams themselves to Redis.
    WorkersToRedis,
    /// From this worker, which holds sandboxes, to whichever control plane takes the connection.
    WorkerToServers(usize),
    /// From all control planes to this worker.
    ServersToWorker(usize),
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ToServer(index) => write!(f, "clients to control plane {index}"),
            Self::ToPostgres(index) => write!(f, "control plane {index} to Postgres"),
            Self::ToRedis(index) => write!(f, "control plane {index} to Redis"),
            Self::WorkersToRedis => f.write_str("workers to Redis"),
            Self::WorkerToServers(index) => write!(f, "worker {index} to control planes"),
            Self::ServersToWorker(index) => write!(f, "control planes to worker {index}"),
        }
    }
}

/// What is done. Everything but a flush has an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    KillServer(usize),
    KillWorker(usize),
    KillPostgres,
    KillRedis,
    StopServer(usize),
    StopWorker(usize),
    Link {
        link: Link,
        mode: Mode,
    },
    Flush,
    /// DEL of the stream of this queue.
    DeleteStream(usize),
    /// Killed, and its database files go back to their last sync.
    LosePower(usize),
    /// By an hour.
    SetClock {
        server: usize,
        ahead: bool,
    },
}

impl Fault {
    /// For counting.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::KillServer(_) => "kill control plane",
            Self::KillWorker(_) => "kill worker",
            Self::KillPostgres => "kill postgres",
            Self::KillRedis => "kill redis",
            Self::StopServer(_) => "stop control plane",
            Self::StopWorker(_) => "stop worker",
            Self::Link { mode: Mode::Cut, .. } => "cut",
            Self::Link { mode: Mode::Delay { .. }, .. } => "delay",
            Self::Link { mode: Mode::Reset { .. }, .. } => "reset",
            Self::Link { mode: Mode::HalfOpen { .. }, .. } => "half-open",
            Self::Link { mode: Mode::Pass, .. } => "pass",
            Self::Flush => "flush redis",
            Self::DeleteStream(_) => "delete stream",
            Self::SetClock { .. } => "set clock",
            Self::LosePower(_) => "lose power",
        }
    }

    /// What two faults must not do at the same time: a process that is down cannot be stopped.
    fn target(self) -> Option<Target> {
        match self {
            // A process that starts takes the clock as it is.
            Self::KillServer(index)
            | Self::StopServer(index)
            | Self::LosePower(index)
            | Self::SetClock { server: index, .. } => Some(Target::Server(index)),
            Self::KillWorker(index) | Self::StopWorker(index) => Some(Target::Worker(index)),
            Self::KillPostgres => Some(Target::Postgres),
            Self::KillRedis => Some(Target::Redis),
            Self::Link { link, .. } => Some(Target::Link(link)),
            Self::Flush | Self::DeleteStream(_) => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    Server(usize),
    Worker(usize),
    Postgres,
    Redis,
    Link(Link),
}

/// One fault and how long it lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// From the start of the run.
    pub at_ms: u64,
    pub for_ms: u64,
    pub fault: Fault,
}

/// What there is to break, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    pub seed: u64,
    pub length_ms: u64,
    pub classes: Vec<Class>,
    pub servers: usize,
    pub workers: usize,
    pub queues: usize,
    pub postgres: bool,
    pub redis: bool,
    /// Whether the workers hold sandboxes.
    pub sandboxes: bool,
    /// Control planes push tasks to workers.
    pub pushes: bool,
    /// The clocks of control planes can be set.
    pub clock: bool,
    /// Control planes can lose their power.
    pub power: bool,
    /// Lease time of the tasks: workers are stopped for longer.
    pub ttl_ms: u64,
}

/// All faults of a run, by time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub steps: Vec<Step>,
}

/// Before the first fault and between two of them, at most.
const GAP_MS: u64 = 2_500;

/// Draws for one point in time.
const TRIES: usize = 4;

impl Plan {
    pub fn draw(options: &Options) -> Self {
        let mut rng = Rng::fork(options.seed, "plan");
        let mut steps: Vec<Step> = Vec::new();
        let mut busy: BTreeMap<Target, u64> = BTreeMap::new();
        let mut at_ms = rng.between(500, GAP_MS);
        while at_ms < options.length_ms {
            // What is broken already is not broken again: then something else is.
            for _ in 0..TRIES {
                let Some((fault, for_ms)) = fault(options, &mut rng) else { break };
                let ends = at_ms + for_ms;
                let free = fault.target().is_none_or(|target| busy.get(&target).is_none_or(|until| *until < at_ms));
                if free && ends <= options.length_ms {
                    // A second of rest, so that what was healed is seen to work.
                    busy.extend(fault.target().map(|target| (target, ends + 1_000)));
                    steps.push(Step { at_ms, for_ms, fault });
                    break;
                }
            }
            at_ms += rng.between(200, GAP_MS);
        }
        Self { steps }
    }

    /// How often each kind of fault comes.
    pub fn counts(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        for step in &self.steps {
            *counts.entry(step.fault.kind()).or_default() += 1;
        }
        counts
    }
}

/// One fault and its length. `None` when no class that was chosen has something to break here.
fn fault(options: &Options, rng: &mut Rng) -> Option<(Fault, u64)> {
    let fits = |class: &Class| match class {
        Class::Pg => options.postgres,
        Class::Redis | Class::Flush => options.redis,
        Class::Clock => options.clock,
        Class::Power => options.power,
        _ => true,
    };
    let classes: Vec<Class> = options.classes.iter().copied().filter(fits).collect();
    let class = *rng.pick(&classes)?;
    let server = rng.index(options.servers);
    let worker = rng.index(options.workers);
    let of_worker = rng.chance(60);
    let link = link(options, rng);
    let on_link = |mode| Fault::Link { link, mode };
    Some(match class {
        Class::Kill if of_worker => (Fault::KillWorker(worker), rng.between(50, 2_000)),
        // Sometimes longer than the gap from which on an outage counts as one.
        Class::Kill => (Fault::KillServer(server), rng.between(50, 8_000)),
        Class::Stop if of_worker => (Fault::StopWorker(worker), options.ttl_ms + rng.between(100, options.ttl_ms * 2)),
        Class::Stop => (Fault::StopServer(server), rng.between(500, 6_000)),
        Class::Cut => (on_link(Mode::Cut), rng.between(100, 4_000)),
        Class::Delay => {
            let mode = Mode::Delay { ms: rng.between(5, 250), jitter_ms: rng.between(1, 150) };
            (on_link(mode), rng.between(1_000, 5_000))
        }
        Class::Reset => (on_link(Mode::Reset { after: rng.between(1, 6_000) }), rng.between(500, 3_000)),
        Class::HalfOpen => {
            let lost = if rng.chance(50) { Direction::Up } else { Direction::Down };
            (on_link(Mode::HalfOpen { lost }), rng.between(500, 6_000))
        }
        Class::Flush if rng.chance(50) => (Fault::Flush, 0),
        Class::Flush => (Fault::DeleteStream(rng.index(options.queues)), 0),
        Class::Pg => (Fault::KillPostgres, rng.between(100, 5_000)),
        Class::Redis => (Fault::KillRedis, rng.between(100, 5_000)),
        Class::Power => (Fault::LosePower(server), rng.between(50, 3_000)),
        Class::Clock => (Fault::SetClock { server, ahead: rng.chance(50) }, rng.between(200, 5_000)),
    })
}

fn link(options: &Options, rng: &mut Rng) -> Link {
    let server = rng.index(options.servers);
    let mut links = vec![Link::ToServer(server)];
    if options.postgres {
        links.push(Link::ToPostgres(server));
    }
    if options.redis {
        links.extend([Link::ToRedis(server), Link::WorkersToRedis]);
    }
    if options.sandboxes {
        let worker = rng.index(options.workers);
        links.extend([Link::WorkerToServers(worker), Link::ServersToWorker(worker)]);
    }
    if options.pushes {
        links.push(Link::ServersToWorker(rng.index(options.workers)));
    }
    links[rng.index(links.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(seed: u64) -> Options {
        Options {
            seed,
            length_ms: 600_000,
            classes: Class::ALL.to_vec(),
            servers: 2,
            workers: 4,
            queues: 3,
            postgres: true,
            redis: true,
            sandboxes: false,
            pushes: false,
            clock: true,
            power: true,
            ttl_ms: 2_000,
        }
    }

    fn bytes(options: &Options) -> String {
        serde_json::to_string(&Plan::draw(options)).unwrap()
    }

    #[test]
    fn the_same_seed_gives_the_same_plan_byte_for_byte_and_another_one_another() {
        assert_eq!(bytes(&options(7)), bytes(&options(7)));
        assert_ne!(bytes(&options(7)), bytes(&options(8)));
    }

    #[test]
    fn a_long_plan_has_every_kind_of_fault_and_ends_in_time() {
        let plan = Plan::draw(&options(1));
        let kinds: Vec<_> = plan.counts().into_keys().collect();
        assert_eq!(kinds.len(), 14, "{kinds:?}");
        assert!(plan.steps.iter().all(|step| step.at_ms + step.for_ms <= 600_000));
    }

    #[test]
    fn nothing_is_broken_twice_at_the_same_time() {
        for seed in 0..20 {
            let mut busy: BTreeMap<Target, u64> = BTreeMap::new();
            for step in Plan::draw(&options(seed)).steps {
                let Some(target) = step.fault.target() else { continue };
                assert!(busy.get(&target).is_none_or(|until| *until <= step.at_ms), "seed {seed}: {step:?}");
                busy.insert(target, step.at_ms + step.for_ms);
            }
        }
    }

    #[test]
    fn workers_with_sandboxes_are_cut_off_in_both_directions() {
        let plan = Plan::draw(&Options { sandboxes: true, redis: false, ..options(5) });
        let has = |wanted: fn(&Link) -> bool| {
            plan.steps.iter().any(|step| matches!(&step.fault, Fault::Link { link, .. } if wanted(link)))
        };
        assert!(
            has(|link| matches!(link, Link::WorkerToServers(_)))
                && has(|link| matches!(link, Link::ServersToWorker(_)))
        );
        assert!(Plan::draw(&options(5)).steps.iter().all(|step| {
            !matches!(step.fault, Fault::Link { link: Link::WorkerToServers(_) | Link::ServersToWorker(_), .. })
        }));
    }

    #[test]
    fn only_what_was_chosen_and_exists_is_broken() {
        let chosen = Options { classes: vec![Class::Cut, Class::Pg, Class::Flush], postgres: false, ..options(3) };
        let kinds: Vec<_> = Plan::draw(&chosen).counts().into_keys().collect();
        assert_eq!(kinds, ["cut", "delete stream", "flush redis"]);
        let alone = Options { redis: false, postgres: false, ..options(3) };
        for step in Plan::draw(&alone).steps {
            assert!(!matches!(step.fault, Fault::KillRedis | Fault::KillPostgres | Fault::Flush), "{step:?}");
            if let Fault::Link { link, .. } = step.fault {
                assert!(matches!(link, Link::ToServer(_)));
            }
        }
        assert!("half-open".parse::<Class>().is_ok());
        assert!("fire".parse::<Class>().unwrap_err().contains("half-open"));
    }
}
