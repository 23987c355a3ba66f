//! One run: start, use sandboxes under faults, heal, end everything, judge.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, bail};
use futures_util::future::join_all;
use tokio::time::{Instant, interval, sleep};

use super::api::Api;
use super::checker::{self, Ended, Story};
use super::fleet::{self, Disks};
use super::history::{Answer, Journal, keep};
use super::report::Summary;
use super::session::{Pool, Session};
use super::{Settings, ending};
use crate::nemesis;
use crate::plan::Plan;
use crate::system::{Shape, System, find_binary};

/// How long the workers may take until a sandbox can be created, on a busy machine.
const START: Duration = Duration::from_secs(60);

/// Between two looks at the disks of the workers.
const LOOK: Duration = Duration::from_millis(100);

/// Runs and judges. `say` gets lines for people while it goes on.
pub async fn run(settings: &Settings, say: &(dyn Fn(String) + Sync)) -> Result<Summary> {
    let own_binary = std::env::current_exe()?;
    let limits = fleet::limits(settings.workers);
    let shape = Shape {
        seed: settings.seed,
        postgres: settings.postgres,
        redis: false,
        servers: settings.servers,
        workers: settings.workers,
        ttl_ms: 0,
        sandboxes: Some(limits.clone()),
        dags: false,
        pushes: false,
        faketime: None,
        power: false,
        binary: find_binary(settings.binary.clone(), &own_binary)?,
        own_binary,
    };
    let plan = settings.plan();
    let mut folder = tempfile::Builder::new().prefix("tenure-chaos-").tempdir()?;
    let path = folder.path().canonicalize()?;
    std::fs::write(path.join("plan.json"), serde_json::to_string_pretty(&plan)?)?;
    let system = Arc::new(System::start(shape, &path).await?);
    for index in 0..settings.workers {
        system.start_worker(index)?;
    }
    let disks = Disks::new((0..settings.workers).map(|index| system.worker_folder(index)).collect());
    let journal = Journal::default();
    let ended = work(settings, &system, &plan, &disks, &journal, say).await;
    let ended = match ended {
        Ok(ended) => ended,
        Err(error) => {
            folder.disable_cleanup(true);
            return Err(error.context(format!("logs are in {}", path.display())));
        }
    };
    let story = Story { ops: journal.ops(), sightings: disks.sightings(), downs: system.downs(), limits, ended };
    write_down(&path, &story)?;
    say(format!("checking {} requests and {} runtimes", story.ops.len(), story.sightings.len()));
    let violations = checker::check(&story);
    let mut summary = Summary::new(&plan, &story, violations, system.surprises());
    if settings.keep || !summary.is_good() {
        folder.disable_cleanup(true);
        summary.folder = Some(path);
    }
    Ok(summary)
}

fn write_down(folder: &Path, story: &Story) -> Result<()> {
    let folder = folder.join("history");
    keep(&folder.join("requests.jsonl"), &story.ops)?;
    keep(&folder.join("runtimes.jsonl"), &story.sightings)?;
    keep(&folder.join("downs.jsonl"), &story.downs)
}

/// Sessions, faults and the end of every sandbox.
async fn work(
    settings: &Settings,
    system: &Arc<System>,
    plan: &Plan,
    disks: &Disks,
    journal: &Journal,
    say: &(dyn Fn(String) + Sync),
) -> Result<Ended> {
    let api = Api::new(system.urls(), journal)?;
    wait_for_workers(&api, settings.servers).await?;
    let start = Instant::now();
    let faults = AtomicU64::new(0);
    let watch = async {
        let mut ticks = interval(LOOK);
        for tick in 1_u64.. {
            ticks.tick().await;
            disks.look();
            // As often as once a second.
            if tick.is_multiple_of(10) {
                system.look_after()?;
            }
            if tick.is_multiple_of(100) {
                let (requests, faults) = (journal.count(), faults.load(Ordering::Relaxed));
                say(format!("{:>5} s  {requests} requests, {faults} of {} faults", tick / 10, plan.steps.len()));
            }
        }
        bail!("the watch ended")
    };
    let phases = async {
        let (pool, end) = (Pool::default(), start + settings.length);
        let sessions =
            (0..settings.sessions).map(|index| Session::new(index, api.clone(), &pool, settings.seed, end).run());
        let (_, broken) = tokio::join!(
            join_all(sessions),
            nemesis::run(system, plan, start, |_| {
                faults.fetch_add(1, Ordering::Relaxed);
            })
        );
        broken?;
        say("all has healed, ending every sandbox".into());
        Ok(ending::drain(&api, disks).await)
    };
    tokio::select! {
        ended = phases => ended,
        failed = watch => failed,
    }
}

/// Every control plane answers, and a sandbox can be created.
async fn wait_for_workers(api: &Api<'_>, servers: usize) -> Result<()> {
    let until = Instant::now() + START;
    for server in 0..servers {
        loop {
            match api.list(server, None).await {
                Answer::Listed { .. } => break,
                other if Instant::now() > until => bail!("control plane {server} lists no sandboxes: {other:?}"),
                _ => sleep(Duration::from_millis(100)).await,
            }
        }
    }
    for turn in 0.. {
        match ending::probe(api, turn % servers, &format!("first-{turn}")).await {
            Answer::Ran { .. } => return Ok(()),
            other if Instant::now() > until => bail!("no sandbox can be created: {other:?}"),
            _ => sleep(Duration::from_millis(100)).await,
        }
    }
    Ok(())
}
