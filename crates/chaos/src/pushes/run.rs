//! One run: start, push under faults, heal, wait, judge.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::checker::{self, Violation};
use super::history::{Answer, Call, History, Recorder};
use super::{CONCURRENCY, DISPATCH_MS, Settings, TTL_MS, queue};
use crate::checker::Ended;
use crate::faults::Faults;
use crate::http::{Http, Reply};
use crate::plan::Plan;
use crate::report::{TOLD, broken, list};
use crate::rng::Rng;
use crate::system::{Shape, System, find_binary};
use crate::{ending, nemesis};

/// How long the control planes may take until they answer, on a busy machine.
const START: Duration = Duration::from_secs(60);

/// How often a submit is sent again.
const TRIES: usize = 12;

/// Runs and judges. `say` gets lines for people while it goes on.
pub async fn run(settings: &Settings, say: &(dyn Fn(String) + Sync)) -> Result<Summary> {
    let own_binary = std::env::current_exe()?;
    let shape = Shape {
        seed: settings.seed,
        postgres: settings.postgres,
        redis: false,
        servers: settings.servers,
        workers: settings.workers,
        ttl_ms: TTL_MS,
        sandboxes: None,
        dags: false,
        pushes: true,
        faketime: None,
        power: false,
        binary: find_binary(settings.binary.clone(), &own_binary)?,
        own_binary,
    };
    let plan = settings.plan();
    let mut folder = tempfile::Builder::new().prefix("tenure-chaos-").tempdir()?;
    std::fs::write(folder.path().join("plan.json"), serde_json::to_string_pretty(&plan)?)?;
    let system = Arc::new(System::start(shape, folder.path()).await?);
    let http = Http::plain(system.urls())?;
    for index in 0..settings.workers {
        system.start_worker(index)?;
    }
    if let Err(error) = make_queues(&http, &system, settings.workers).await {
        folder.disable_cleanup(true);
        return Err(error.context(format!("logs are in {}", folder.path().display())));
    }
    let in_time = work(settings, &system, &plan, say).await?;
    for index in 0..settings.workers {
        system.kill_worker(index);
    }
    say("reading how every task stands".into());
    // What the workers had sent by then arrives.
    sleep(Duration::from_secs(1)).await;
    let history = History::read(&system.histories())?;
    let told = history.ops.iter().filter_map(|op| match &op.answer {
        Answer::Submitted { task } => Some(task.clone()),
        _ => None,
    });
    let ended = ending::read(&http, told.collect::<Vec<_>>(), TTL_MS).await?;
    say(format!("checking {} calls and {} tasks", history.ops.len(), ended.tasks.len()));
    let faults = Faults::new(&system.spells(), settings.servers);
    let violations = checker::check(&history.ops, &ended, &faults);
    let mut summary = Summary::new(&plan, &history, &ended, violations, system.surprises());
    summary.in_time = in_time;
    if settings.keep || !summary.is_good() {
        folder.disable_cleanup(true);
        summary.folder = Some(folder.path().to_owned());
    }
    Ok(summary)
}

async fn make_queues(http: &Http, system: &System, workers: usize) -> Result<()> {
    let until = Instant::now() + START;
    for server in 0..http.servers() {
        for worker in 0..workers {
            let push = json!({"url": system.push_url(worker), "secret_ref": "chaos", "concurrency": CONCURRENCY,
                "ack_timeout_ms": 1_000, "start_timeout_ms": 1_500, "dispatch_timeout_ms": DISPATCH_MS});
            let path = format!("/api/v1/queues/{}", queue(worker));
            loop {
                match http.put(server, &path, &json!({"push": push})).await {
                    Reply::Told { status, .. } if status < 300 => break,
                    Reply::Told { status, body } => bail!("{path} is refused with {status}: {body}"),
                    other if Instant::now() > until => bail!("control plane {server} does not answer: {other:?}"),
                    _ => sleep(Duration::from_millis(100)).await,
                }
            }
        }
    }
    Ok(())
}

/// Submits until `end`.
async fn submit(settings: Settings, http: Http, recorder: Arc<Recorder>, end: Instant) {
    let mut rng = Rng::fork(settings.seed, "submits");
    let mut open = JoinSet::new();
    for number in 0_u64.. {
        if Instant::now() > end {
            break;
        }
        let nonce = format!("p{number}");
        let body = json!({"queue": queue(rng.index(settings.workers)), "operator": "chaos", "payload": {"nonce": nonce},
            "idempotency_key": nonce, "max_attempts": rng.between(2, 6), "heartbeat_timeout_ms": TTL_MS,
            "heartbeat_interval_ms": TTL_MS / 3, "retry": {"initial_backoff_ms": 100, "max_backoff_ms": 1_000, "jitter": "none"}});
        let (http, recorder, server) = (http.clone(), Arc::clone(&recorder), rng.index(http.servers()));
        open.spawn(async move {
            for turn in 0..TRIES {
                let op = recorder.ask(Call::Submit { nonce: nonce.clone() });
                let reply = http.post(server, "/api/v1/tasks", &body, Duration::ZERO).await;
                let answer =
                    Answer::of(&reply, |body| Some(Answer::Submitted { task: body["task_id"].as_str()?.to_owned() }));
                recorder.answer(&op, &answer);
                if !answer.is_open() || Instant::now() > end {
                    return;
                }
                sleep(Duration::from_millis(100 << turn.min(4))).await;
            }
        });
        while open.try_join_next().is_some() {}
        sleep(Duration::from_secs_f64(1.0 / settings.rate)).await;
    }
    while open.join_next().await.is_some() {}
}

/// Submits, faults and the wait for the end. Whether every task ended in time.
async fn work(settings: &Settings, system: &Arc<System>, plan: &Plan, say: &(dyn Fn(String) + Sync)) -> Result<bool> {
    let start = Instant::now();
    let http = Http::plain(system.urls())?;
    let recorder = Arc::new(Recorder::create(&system.histories(), "submits")?);
    let submitting = tokio::spawn(submit(settings.clone(), http.clone(), recorder, start + settings.length));
    let faults = AtomicU64::new(0);
    let how_far = || format!("{} of {} faults", faults.load(Ordering::Relaxed), plan.steps.len());
    let watch = nemesis::watch(system, start, say, how_far);
    let phases = async {
        nemesis::run(system, plan, start, |_| {
            faults.fetch_add(1, Ordering::Relaxed);
        })
        .await?;
        submitting.await?;
        say("all has healed, waiting for the tasks to end".into());
        ending::wait_for_the_end(&http, settings.patience).await
    };
    tokio::select! {
        in_time = phases => in_time,
        failed = watch => failed,
    }
}

/// Figures and findings of a run.
#[derive(Debug)]
pub struct Summary {
    faults: BTreeMap<&'static str, usize>,
    tasks: BTreeMap<String, usize>,
    attempts: BTreeMap<String, usize>,
    /// Calls by kind: all, refused, without an answer.
    calls: BTreeMap<&'static str, [usize; 3]>,
    violations: Vec<Violation>,
    surprises: Vec<String>,
    in_time: bool,
    /// Where histories and logs are kept, if they are.
    folder: Option<PathBuf>,
}

impl Summary {
    fn new(plan: &Plan, history: &History, ended: &Ended, violations: Vec<Violation>, surprises: Vec<String>) -> Self {
        let mut calls: BTreeMap<&'static str, [usize; 3]> = BTreeMap::new();
        for op in &history.ops {
            let kind = match &op.call {
                Call::Submit { .. } => "submits",
                Call::Delivery { .. } => "pushes",
                Call::Started { .. } => "started",
                Call::Heartbeat { .. } => "heartbeats",
                Call::Completed { .. } => "completed",
            };
            let counts = calls.entry(kind).or_default();
            counts[0] += 1;
            match &op.answer {
                Answer::Refused { .. } => counts[1] += 1,
                Answer::Took { status } if *status >= 400 => counts[1] += 1,
                answer if answer.is_open() => counts[2] += 1,
                _ => {}
            }
        }
        let (mut tasks, mut attempts) = (BTreeMap::new(), BTreeMap::new());
        for task in ended.tasks.values() {
            *tasks.entry(task.state.clone()).or_default() += 1;
            for attempt in &task.attempts {
                *attempts.entry(attempt.reason.clone()).or_default() += 1;
            }
        }
        Self { faults: plan.counts(), tasks, attempts, calls, violations, surprises, in_time: true, folder: None }
    }

    /// Without a task that has succeeded nothing was tried.
    pub fn is_good(&self) -> bool {
        let tried = self.tasks.contains_key("Succeeded");
        self.violations.is_empty() && self.surprises.is_empty() && self.in_time && tried
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "tasks          {}", list(&self.tasks))?;
        writeln!(f, "faults         {}", list(&self.faults))?;
        writeln!(f, "attempts       {}", list(&self.attempts))?;
        for (kind, [all, refused, unknown]) in &self.calls {
            writeln!(f, "{kind:<14} {all}: {refused} refused, {unknown} without an answer")?;
        }
        for surprise in &self.surprises {
            writeln!(f, "SURPRISE       {surprise}, and nobody had asked it to")?;
        }
        if !self.in_time {
            writeln!(f, "TOO LATE       tasks were left when all time for them was over")?;
        }
        writeln!(f, "violations     {}", self.violations.len())?;
        broken(f, self.violations.iter().map(|violation| violation.rule.name()))?;
        for violation in self.violations.iter().take(TOLD) {
            writeln!(f, "\nVIOLATION      {violation}")?;
        }
        if let Some(folder) = &self.folder {
            writeln!(f, "\nhistories and logs are in {}", folder.display())?;
        }
        Ok(())
    }
}
