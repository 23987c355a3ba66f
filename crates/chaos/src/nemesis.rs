//! Carries out a plan.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, sleep_until};

use super::faults::Spell;
use super::history::now;
use super::plan::{Fault, Plan, Step};
use super::proxy::Mode;
use super::system::{QUEUES, System};

/// Does every step at its time. Returns when all have healed.
pub async fn run(system: &Arc<System>, plan: &Plan, start: Instant, mut tell: impl FnMut(&Step)) -> Result<()> {
    let mut open = JoinSet::new();
    // A store that starts again takes as long as it takes. It is not killed before it is up: on a slow machine kills would
    // pile up, and go on long after the last of them is due.
    let (postgres, redis) = (Arc::new(Mutex::new(())), Arc::new(Mutex::new(())));
    for step in &plan.steps {
        sleep_until(start + Duration::from_millis(step.at_ms)).await;
        tell(step);
        let (system, step) = (Arc::clone(system), *step);
        let turn = match step.fault {
            Fault::KillPostgres => Some(Arc::clone(&postgres)),
            Fault::KillRedis => Some(Arc::clone(&redis)),
            _ => None,
        };
        open.spawn(async move {
            let turn = turn.map(Mutex::try_lock_owned).transpose();
            let Ok(_turn) = turn else { return Ok(()) };
            let from = now();
            begin(&system, step.fault).await;
            let on = now();
            sleep(Duration::from_millis(step.for_ms)).await;
            let off = now();
            heal(&system, step.fault).await?;
            system.note(Spell { fault: step.fault, from, on, off, to: now() });
            Ok(())
        });
    }
    while let Some(healed) = open.join_next().await {
        let healed: Result<()> = healed?;
        healed?;
    }
    Ok(())
}

async fn begin(system: &System, fault: Fault) {
    match fault {
        Fault::KillServer(index) => system.kill_server(index),
        Fault::LosePower(index) => system.cut_power(index),
        Fault::KillWorker(index) => system.kill_worker(index),
        Fault::KillPostgres => system.kill_postgres(),
        Fault::KillRedis => system.kill_redis().await,
        Fault::StopServer(index) => system.stop_server(index),
        Fault::StopWorker(index) => system.stop_worker(index),
        Fault::Link { link, mode } => system.set_link(link, mode),
        Fault::Flush => system.tell_redis(&["FLUSHALL"]).await,
        Fault::DeleteStream(index) => system.tell_redis(&["DEL", QUEUES[index]]).await,
        Fault::SetClock { server, ahead } => system.set_clock(server, if ahead { "+1h" } else { "-1h" }),
    }
}

async fn heal(system: &System, fault: Fault) -> Result<()> {
    match fault {
        Fault::KillServer(index) | Fault::LosePower(index) => system.start_server(index)?,
        Fault::KillWorker(index) => system.start_worker(index)?,
        Fault::KillPostgres => system.start_postgres().await,
        Fault::KillRedis => system.start_redis().await,
        Fault::StopServer(index) => system.continue_server(index),
        Fault::StopWorker(index) => system.continue_worker(index),
        Fault::Link { link, .. } => system.set_link(link, Mode::Pass),
        Fault::SetClock { server, .. } => system.set_clock(server, "+0"),
        Fault::Flush | Fault::DeleteStream(_) => {}
    }
    Ok(())
}

/// Looks after the processes and tells how far the run is, until it is dropped. Ends only if it fails.
pub async fn watch<T>(
    system: &System,
    start: Instant,
    say: &(dyn Fn(String) + Sync),
    how_far: impl Fn() -> String,
) -> Result<T> {
    let mut ticks = interval(Duration::from_secs(1));
    loop {
        ticks.tick().await;
        system.look_after()?;
        let seconds = start.elapsed().as_secs();
        if seconds > 0 && seconds.is_multiple_of(10) {
            say(format!("{seconds:>5} s  {}", how_far()));
        }
    }
}
