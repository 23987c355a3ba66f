//! One run: start, deploy, work under faults, heal, wait, judge.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep};

use super::checker::{self, Ended};
use super::history::{History, Recorder};
use super::report::Summary;
use super::user::{Outputs, User};
use super::{Settings, TTL_MS, YAML, ending};
use crate::http::Http;
use crate::nemesis;
use crate::plan::Plan;
use crate::system::{Shape, System, find_binary};

/// How long the control planes may take until they answer, on a busy machine.
const START: Duration = Duration::from_secs(60);

/// How long after the last fault nothing may be left to do. The reconciler looks once a minute.
const LIVENESS: Duration = Duration::from_secs(180);

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
        dags: true,
        pushes: false,
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
    let outputs = match deploy(&http).await {
        Ok(outputs) => outputs,
        Err(error) => {
            folder.disable_cleanup(true);
            return Err(error.context(format!("logs are in {}", folder.path().display())));
        }
    };
    for index in 0..settings.workers {
        system.start_worker(index)?;
    }
    let in_time = work(settings, &system, &plan, &outputs, say).await?;
    for index in 0..settings.workers {
        system.kill_worker(index);
    }
    user(settings, &system, "last")?.look_once(&outputs).await;
    say("reading how every task stands".into());
    let ended = Ended { in_time, ..ending::read(&http, &outputs).await? };
    let history = History::read(&system.histories())?;
    say(format!("checking {} requests and {} tasks", history.ops.len(), ended.tasks.len()));
    let violations = checker::check(&history.ops, &ended);
    let mut summary = Summary::new(&plan, &history, &ended, violations, system.surprises());
    if settings.keep || !summary.is_good() {
        folder.disable_cleanup(true);
        summary.folder = Some(folder.path().to_owned());
    }
    Ok(summary)
}

fn user(settings: &Settings, system: &System, name: &str) -> Result<User> {
    let recorder = Recorder::create(&system.histories(), name)?;
    Ok(User::new(Http::plain(system.urls())?, recorder, settings.seed, name))
}

/// Every control plane answers, and the DAG is active.
async fn deploy(http: &Http) -> Result<Outputs> {
    let until = Instant::now() + START;
    for server in 0..http.servers() {
        loop {
            match http.post_text(server, "/api/v1/dags", YAML).await {
                crate::http::Reply::Told { status, .. } if status < 300 => break,
                crate::http::Reply::Told { status, body } => bail!("the DAG is refused with {status}: {body}"),
                other if Instant::now() > until => bail!("control plane {server} does not answer: {other:?}"),
                _ => sleep(Duration::from_millis(100)).await,
            }
        }
    }
    ending::outputs(http).await
}

/// Users, faults and the wait for the end. Whether that came in time.
async fn work(
    settings: &Settings,
    system: &Arc<System>,
    plan: &Plan,
    outputs: &Outputs,
    say: &(dyn Fn(String) + Sync),
) -> Result<bool> {
    let start = Instant::now();
    let Some(imported) = outputs.get("import:0") else { bail!("import has no dataset") };
    let read = outputs.iter().filter(|(name, _)| ["import:1", "tail:0"].contains(&name.as_str()));
    let read: Outputs = read.map(|(name, id)| (name.clone(), id.clone())).collect();
    let looking = tokio::spawn(user(settings, system, "looks")?.look(read));
    let firing = tokio::spawn(user(settings, system, "fires")?.fire(imported.clone(), start + settings.length));
    let faults = AtomicU64::new(0);
    let how_far = || format!("{} of {} faults", faults.load(Ordering::Relaxed), plan.steps.len());
    let watch = nemesis::watch(system, start, say, how_far);
    let phases = async {
        nemesis::run(system, plan, start, |_| {
            faults.fetch_add(1, Ordering::Relaxed);
        })
        .await?;
        let fired = firing.await?;
        say(format!("all has healed after {fired} requests, waiting until nothing is left to do"));
        ending::wait(&Http::plain(system.urls())?, LIVENESS).await
    };
    let ended = tokio::select! {
        in_time = phases => in_time,
        failed = watch => failed,
    };
    looking.abort();
    ended
}
