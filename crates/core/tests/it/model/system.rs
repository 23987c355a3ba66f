//! Workers, a network, a clock and a control plane.
//!
//! The network keeps every message and hands it over any number of times, in any order, or never: so a message can be
//! duplicated, reordered, delayed behind a crash, and lost. An answer is a message too; one that is never taken is the
//! lost answer of a committed command. A worker that does nothing while the clock goes on is a paused one: it keeps its
//! belief, and acts on it later.
//!
//! What a worker has to say about a grant it may send as soon as it knows of the grant, and the network may keep it for
//! ever. So there is no list of sent heartbeats and reports: all that the receiver of a grant could have sent can
//! arrive, at any time, whatever has become of that worker since.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use stateright::{Model, Property};
use tenure_core::attempt::{Category, Failure, Report};
use tenure_core::batch::Outcome;
use tenure_core::command::cancel::{Cancel, Mode};
use tenure_core::command::claim::{Claim, ClaimTask, Claimant, Claimer, Seed};
use tenure_core::command::report::AttemptReport;
use tenure_core::command::{Answer, Command, Reach, expire, heartbeat, hello, promote, release};
use tenure_core::id::Fence;
use tenure_core::queue::{Queue, QueueId, QueueSettings};
use tenure_core::retry::{Jitter, RetryPolicy};
use tenure_core::task::{Body, Carry, Place, Spec, Waiting};
use tenure_core::{AttemptId, LeaseToken, Seq, TaskId, Timestamp};

use crate::model::audit::{Audit, Seen};
use crate::model::mutant::Mutant;
use crate::model::plane::{Row, Store, boot_name};
use crate::model::properties::{self, Example};

/// Longer than the silence that makes an outage: one tick without a control plane is one.
pub const TICK_MS: i64 = 6_000;
/// A lease, in ticks.
pub const TTL: u8 = 2;

pub fn at(tick: u8) -> Timestamp {
    Timestamp::from_millis(i64::from(tick) * TICK_MS)
}

/// What the holder of a grant proves itself with.
pub fn credentials(grant: u8) -> (AttemptId, LeaseToken) {
    static DRAWN: LazyLock<Vec<(AttemptId, LeaseToken)>> =
        LazyLock::new(|| (0..16).map(|grant| seed(grant).draw(0)).collect());
    DRAWN[usize::from(grant)]
}

pub fn seed(grant: u8) -> Seed {
    Seed([grant + 1; 32])
}

pub fn result_text(grant: u8, content: Content) -> String {
    format!("[{grant},{content}]")
}

/// Which of several results a worker reports.
pub type Content = u8;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Failing {
    Retryable,
    Fatal,
    /// Only after the worker was told to stop.
    Canceled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Msg {
    Claim {
        worker: u8,
        boot: u8,
        claim: u8,
    },
    Hello {
        worker: u8,
        boot: u8,
    },
    Heartbeat {
        grant: u8,
    },
    Complete {
        grant: u8,
        content: Content,
    },
    Fail {
        grant: u8,
        failing: Failing,
    },
    /// A completion that names the attempt of one grant and proves itself with the token of another.
    Forged {
        grant: u8,
        token: u8,
    },
    /// Answer to a claim.
    Granted {
        grant: u8,
    },
    /// Answer to a heartbeat: stop, please.
    Stop {
        grant: u8,
    },
    /// Answer to a heartbeat or report, after which the worker has nothing left to do: refused or recorded.
    Over {
        grant: u8,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Worker {
    /// Which process of this name: grows with every crash.
    pub boot: u8,
    /// Claims sent so far; the last one is waited for while nothing is held.
    pub claims: u8,
    /// The grant that it believes to hold.
    pub held: Option<u8>,
}

#[derive(Debug, Clone, PartialEq, Hash)]
pub struct State {
    pub now: u8,
    /// No control plane answers while this is false.
    pub up: bool,
    pub outages: u8,
    pub releases: u8,
    pub store: Store,
    pub workers: Vec<Worker>,
    /// Sorted, each message once.
    pub net: Vec<Msg>,
    pub audit: Audit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Tick,
    /// The worker sends a claim.
    Claim(u8),
    Deliver(Msg),
    /// The worker's process ends and another one of its name starts, which knows nothing.
    Crash(u8),
    Reap(u8),
    Promote(u8),
    Cancel(u8, Mode),
    /// Takes back a grant whose claimer is gone.
    Release(u8),
    Outage,
    Recover,
    /// A control plane says that it is alive, and writes the grace if none was for a while.
    Mark,
}

/// The bounds of one model.
#[derive(Debug, Clone)]
pub struct Config {
    pub workers: u8,
    pub tasks: u8,
    /// The clock stops here.
    pub ticks: u8,
    pub max_attempts: u32,
    /// Ticks between a failure and the next attempt.
    pub backoff: u8,
    /// How long an attempt may run, in ticks.
    pub timeout: u8,
    /// Claims of each worker.
    pub claims: u8,
    /// A claim names its task, as by a worker that reads the stream itself.
    pub named: bool,
    pub heartbeats: bool,
    /// A worker may report an attempt more than once, and differently.
    pub contradicts: bool,
    pub failing: &'static [Failing],
    /// Whoever holds the token of one attempt may name another attempt.
    pub forgery: bool,
    /// Crashes of each worker.
    pub crashes: u8,
    /// A new process says hello.
    pub hello: bool,
    /// How many grants that reached nobody are released.
    pub releases: u8,
    pub cancel: &'static [Mode],
    pub outages: u8,
    /// The longest lease of all, of this queue or another, in ticks.
    pub longest_lease: u8,
    pub max_running: Option<u32>,
    /// The queue pushes, to so many at once. See [`crate::model::push`].
    pub concurrency: Option<u32>,
    /// What must be seen in some state.
    pub examples: &'static [Example],
    pub mutant: Mutant,
    pub bodies: Vec<Arc<Body>>,
}

impl Config {
    pub fn queue(&self) -> Queue {
        let push = self.concurrency.map(|concurrency| Arc::new(crate::model::push::settings(concurrency)));
        let settings = QueueSettings { max_running: self.max_running, push, ..QueueSettings::default() };
        Queue { settings, ..Queue::new(QueueId(1), "q".into()) }
    }

    fn spec(&self) -> Spec {
        let retry = RetryPolicy {
            initial_backoff_ms: i64::from(self.backoff) * TICK_MS,
            factor: 1.0,
            max_backoff_ms: i64::from(self.backoff) * TICK_MS,
            jitter: Jitter::None,
        };
        Spec {
            max_attempts: Some(self.max_attempts),
            lease_ttl_ms: Some(i64::from(TTL) * TICK_MS),
            heartbeat_ms: Some(TICK_MS),
            timeout_ms: Some(i64::from(self.timeout) * TICK_MS),
            cancel_grace_ms: Some(TICK_MS),
            deadline: None,
            retry: Some(retry),
            sandbox: false,
            rebuild: false,
        }
    }
}

#[derive(Debug, Clone)]
pub struct System(pub Config);

impl System {
    pub fn new(mut config: Config) -> Self {
        config.bodies = (0..config.tasks).map(|task| Arc::new(body(&config, task))).collect();
        Self(config)
    }
}

pub fn task_id(task: u8) -> TaskId {
    TaskId::new(0, 0, Seq(i64::from(task) + 1))
}

pub fn worker_name(worker: u8) -> Arc<str> {
    format!("w{worker}").into()
}

pub fn worker_index(name: &str) -> usize {
    name.trim_start_matches('w').parse().expect("workers are numbered")
}

pub fn body(config: &Config, task: u8) -> Body {
    Body {
        id: task_id(task),
        queue: QueueId(1),
        operator: "work".into(),
        tenant: "acme".into(),
        owner: None,
        workspace: "default".into(),
        priority: 5,
        payload: "{}".into(),
        spec: config.spec(),
        tags: BTreeMap::new(),
        idempotency: None,
        traceparent: None,
        submitted_by: None,
        envelope: None,
        created_at: at(0),
        run_at: at(0),
        run: None,
    }
}

pub fn submitted(config: &Config, task: u8) -> Row {
    let waiting = Waiting {
        queue: QueueId(1),
        priority: 5,
        at: at(0),
        fair: None,
        message: i64::from(task) + 1,
        attempt: 0,
        fence: Fence(0),
        carry: Carry::fresh(config.spec()),
    };
    Row::new(task_id(task), Place::Ready(waiting))
}

impl Model for System {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let config = &self.0;
        let rows = (0..config.tasks).map(|task| Arc::new(submitted(config, task))).collect();
        vec![State {
            now: 0,
            up: true,
            outages: 0,
            releases: 0,
            store: Store {
                rows,
                boots: vec![None; config.workers.into()],
                alive_at: 0,
                grace_until: 0,
                gap_ended_at: 0,
            },
            workers: vec![Worker::default(); config.workers.into()],
            net: Vec::new(),
            audit: Audit::new(config.tasks.into()),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let config = &self.0;
        let marked = state.store.alive_at == state.now;
        // A control plane that is up marks itself before the next tick.
        if state.now < config.ticks && (marked || !state.up) {
            actions.push(Action::Tick);
        }
        if state.up && state.outages < config.outages && marked {
            actions.push(Action::Outage);
        }
        if !state.up {
            actions.push(Action::Recover);
        }
        if state.up && !marked {
            actions.push(Action::Mark);
        }
        for worker in 0..config.workers {
            state.worker_actions(worker, config, actions);
        }
        for msg in &state.net {
            if state.up || msg.is_answer() {
                actions.push(Action::Deliver(*msg));
            }
        }
        if state.up {
            state.requests(config, actions);
            state.plane_actions(config, actions);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let config = &self.0;
        let mut state = last.clone();
        match action {
            Action::Tick => {
                state.now += 1;
                if state.up {
                    state.store.alive_at = state.now;
                }
            }
            Action::Claim(worker) => {
                let process = &mut state.workers[usize::from(worker)];
                let msg = Msg::Claim { worker, boot: process.boot, claim: process.claims };
                process.claims += 1;
                state.put(msg);
            }
            Action::Deliver(msg) if msg.is_answer() => state.take_answer(msg),
            Action::Deliver(msg) => {
                let command = last.command_of(msg, config);
                state.execute(&command, Some(msg), &last.store, config);
            }
            Action::Crash(worker) => {
                let process = &mut state.workers[usize::from(worker)];
                *process = Worker { boot: process.boot + 1, claims: process.claims, held: None };
                if config.hello {
                    let boot = process.boot;
                    state.put(Msg::Hello { worker, boot });
                }
            }
            Action::Reap(task) => {
                let row = task_id(task).seq();
                state.execute(&Command::Expire(expire::Expire { row }), None, &last.store, config);
            }
            Action::Promote(task) => {
                let row = task_id(task).seq();
                state.execute(&Command::Promote(promote::Promote { row }), None, &last.store, config);
            }
            Action::Cancel(task, mode) => {
                let cancel = Cancel { task: task_id(task), reason: "stop".into(), mode, reach: Reach::All };
                state.execute(&Command::Cancel(cancel), None, &last.store, config);
            }
            Action::Release(grant) => {
                let row = task_id(state.audit.grants[usize::from(grant)].task).seq();
                let attempt_id = credentials(grant).0;
                state.execute(
                    &Command::Release(release::Release { row, attempt_id, by_holder: false }),
                    None,
                    &last.store,
                    config,
                );
                state.releases += u8::from(state.store != last.store);
            }
            Action::Outage => {
                state.up = false;
                state.outages += 1;
            }
            Action::Recover => state.up = true,
            Action::Mark => {
                state.audit.observe_mark(state.now, state.in_silence(), config.longest_lease);
                state.store.mark(state.now, config.longest_lease);
            }
        }
        state.forget_useless_answers(config);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all(self.0.examples)
    }

    /// A broken system may go on for ever; one that keeps the rules needs no such bound.
    fn within_boundary(&self, state: &State) -> bool {
        self.0.mutant == Mutant::None || state.audit.grants.len() <= 4
    }
}

impl Msg {
    fn is_answer(self) -> bool {
        matches!(self, Self::Granted { .. } | Self::Stop { .. } | Self::Over { .. })
    }
}

impl State {
    /// Nobody has marked the control plane as alive for longer than an outage takes.
    fn in_silence(&self) -> bool {
        self.now > self.store.alive_at
    }

    fn worker_actions(&self, index: u8, config: &Config, actions: &mut Vec<Action>) {
        let worker = &self.workers[usize::from(index)];
        // Workers are alike: it is enough to look at the runs in which they first claim in their order.
        let in_order = index == 0 || self.workers[usize::from(index) - 1].claims > 0;
        if worker.held.is_none() && worker.claims < config.claims && in_order {
            actions.push(Action::Claim(index));
        }
        // A process that has done nothing has nothing to forget.
        if worker.boot < config.crashes && worker.claims > 0 {
            actions.push(Action::Crash(index));
        }
    }

    /// What the receivers of grants may have sent.
    fn requests(&self, config: &Config, actions: &mut Vec<Action>) {
        if config.forgery {
            let grants = self.audit.grants.len() as u8;
            // The token behind the last one is nobody's.
            let others = (0..grants).flat_map(|grant| (0..=grants).map(move |token| (grant, token)));
            let forged = others.filter(|(grant, token)| grant != token);
            actions.extend(forged.map(|(grant, token)| Action::Deliver(Msg::Forged { grant, token })));
        }
        for (grant, granted) in self.audit.grants.iter().enumerate().filter(|(_, granted)| granted.received) {
            let grant = grant as u8;
            let mut deliver = |msg| actions.push(Action::Deliver(msg));
            if config.heartbeats {
                deliver(Msg::Heartbeat { grant });
            }
            if let Some(said) = granted.said
                && !config.contradicts
            {
                deliver(said);
                continue;
            }
            for content in 0..=Content::from(config.contradicts) {
                deliver(Msg::Complete { grant, content });
            }
            for failing in config.failing {
                if granted.told || *failing != Failing::Canceled {
                    deliver(Msg::Fail { grant, failing: *failing });
                }
            }
        }
    }

    fn plane_actions(&self, config: &Config, actions: &mut Vec<Action>) {
        for (task, row) in self.store.rows.iter().enumerate() {
            let task = task as u8;
            match &row.place {
                Place::Running(_) => actions.push(Action::Reap(task)),
                Place::Scheduled(_) => actions.push(Action::Promote(task)),
                Place::Blocked(_) | Place::Ready(_) | Place::Finished(_) => {}
            }
            if !self.audit.tasks[usize::from(task)].cancel_asked && !matches!(row.place, Place::Finished(_)) {
                actions.extend(config.cancel.iter().map(|mode| Action::Cancel(task, *mode)));
            }
        }
        if self.releases < config.releases {
            for (grant, granted) in self.audit.grants.iter().enumerate() {
                if self.workers[usize::from(granted.worker)].boot > granted.boot {
                    actions.push(Action::Release(grant as u8));
                }
            }
        }
    }

    fn put(&mut self, msg: Msg) {
        if let Err(index) = self.net.binary_search(&msg) {
            self.net.insert(index, msg);
        }
    }

    fn take_answer(&mut self, msg: Msg) {
        let (Msg::Granted { grant } | Msg::Stop { grant } | Msg::Over { grant }) = msg else { return };
        let granted = &mut self.audit.grants[usize::from(grant)];
        let worker = &mut self.workers[usize::from(granted.worker)];
        match msg {
            Msg::Granted { .. } => {
                granted.received = true;
                worker.held = Some(grant);
            }
            Msg::Stop { .. } => granted.told = true,
            _ => worker.held = None,
        }
    }

    /// An answer to a process that is gone, or that waits for something else, changes nothing and never will.
    fn forget_useless_answers(&mut self, config: &Config) {
        let (workers, grants) = (&self.workers, &self.audit.grants);
        self.net.retain(|msg| {
            let (Msg::Granted { grant } | Msg::Stop { grant } | Msg::Over { grant }) = *msg else { return true };
            let granted = grants[usize::from(grant)];
            let worker = &workers[usize::from(granted.worker)];
            let of_use = match msg {
                Msg::Granted { .. } => worker.held.is_none() && granted.claim + 1 == worker.claims,
                Msg::Stop { .. } => worker.held == Some(grant) && !granted.told,
                _ => worker.held == Some(grant) && worker.claims < config.claims,
            };
            of_use && worker.boot == granted.boot
        });
    }

    fn command_of(&self, msg: Msg, config: &Config) -> Command {
        let name = |grant: u8| task_id(self.audit.grants[usize::from(grant)].task);
        match msg {
            Msg::Claim { worker, boot, claim } => {
                let claimant = Claimant {
                    id: worker_name(worker),
                    incarnation: config.hello.then(|| boot_name(boot)),
                    claim_id: Some(format!("c{claim}").into()),
                    kills_on_expiry: false,
                    dispatch: false,
                };
                let claimer = Claimer { worker: Some(claimant), seed: seed(self.audit.grants.len() as u8) };
                if config.named {
                    Command::ClaimTask(ClaimTask { claimer, task: task_id(0), message: None })
                } else {
                    Command::Claim(Claim { claimer, queues: vec!["q".into()], max_jobs: 1 })
                }
            }
            Msg::Hello { worker, boot } => {
                Command::Hello(hello::Hello { worker: worker_name(worker), incarnation: boot_name(boot) })
            }
            Msg::Heartbeat { grant } => Command::Heartbeat(heartbeat::Heartbeat {
                task: name(grant),
                attempt: None,
                token: credentials(grant).1,
                worker: None,
                progress: Default::default(),
                checkpoint: None,
            }),
            Msg::Complete { grant, content } => {
                let (attempt_id, token) = credentials(grant);
                let report = Report::succeeded(Some(result_text(grant, content).into()));
                Command::Report(AttemptReport { task: name(grant), attempt_id, token, report, data: None })
            }
            Msg::Fail { grant, failing } => {
                let (attempt_id, token) = credentials(grant);
                let failure = match failing {
                    Failing::Retryable => Failure::new("BUSY", "", None, None),
                    Failing::Fatal => {
                        Failure::new("DATA_QUALITY", "", None, None).of_category(Some(Category::DataQuality))
                    }
                    Failing::Canceled => {
                        Failure::new("CANCELLED", "", None, None).of_category(Some(Category::Canceled))
                    }
                };
                Command::Report(AttemptReport {
                    task: name(grant),
                    attempt_id,
                    token,
                    report: Report::failed(failure),
                    data: None,
                })
            }
            Msg::Forged { grant, token } => {
                let report = Report::succeeded(None);
                let (attempt_id, token) = (credentials(grant).0, credentials(token).1);
                Command::Report(AttemptReport { task: name(grant), attempt_id, token, report, data: None })
            }
            Msg::Granted { .. } | Msg::Stop { .. } | Msg::Over { .. } => unreachable!("answers go to workers"),
        }
    }

    /// Commits one command and sends its answer.
    fn execute(&mut self, command: &Command, msg: Option<Msg>, before: &Store, config: &Config) {
        let outcome = self.store.execute(command, self.now, config);
        self.audit.observe(&Seen {
            command,
            msg,
            outcome: &outcome,
            before,
            after: &self.store,
            workers: &self.workers,
            now: self.now,
            in_silence: self.in_silence(),
        });
        self.store.seal(config);
        if let Some(msg) = msg {
            self.answer(msg, &outcome);
        }
    }

    fn answer(&mut self, msg: Msg, outcome: &Outcome) {
        match (msg, outcome) {
            (Msg::Claim { .. }, Ok(Answer::Claimed(claimed))) => {
                for granted in &claimed.grants {
                    let known =
                        (0..self.audit.grants.len() as u8).find(|grant| credentials(*grant).0 == granted.attempt_id);
                    if let Some(grant) = known {
                        self.put(Msg::Granted { grant });
                    }
                }
            }
            (Msg::Heartbeat { grant }, Ok(Answer::Renewed(renewed))) if renewed.cancel.is_some() => {
                self.put(Msg::Stop { grant });
            }
            (Msg::Heartbeat { grant }, Err(_)) | (Msg::Complete { grant, .. } | Msg::Fail { grant, .. }, _) => {
                self.put(Msg::Over { grant });
            }
            _ => {}
        }
    }
}
