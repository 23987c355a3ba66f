//! `tenure demo dag`

mod plan;
mod scene;
mod screen;
mod verify;
pub mod worker;

use std::time::Duration;

use anyhow::Context;
use console::style;
use tenure_client::dags::InvalidateRequest;
use tenure_client::{Client, DeployOptions};
use tenure_contract::user::Task;
use tenure_contract::words::TaskState;

use super::stage::{Stage, Worker};
use crate::exit::{Exit, Stop};
use crate::{output, signals};
use plan::{HELD, NAME, POWERS, RANGES};
use scene::Scene;
use screen::Screen;
use verify::Verdict;

const POLL: Duration = Duration::from_millis(200);
/// A back-off takes up to 45 s and a cron slot up to 60 s; more means that something hangs.
const LIMIT: Duration = Duration::from_secs(180);
const WORKERS: [&str; 2] = ["worker-a", "worker-b"];

const DETAILS: &str = "\
Starts a server on a free port with a store in a temporary folder, and two worker processes. Deploys a DAG of four jobs \
with a manual and a cron source; kills the worker that holds a task with SIGKILL; invalidates a partition; cuts over to a \
new version and rolls back; then checks what the server and the files say. Exits with 0 only if all of it is right. Takes \
about a minute, because a cron slot is a minute. Removes everything it created.";

#[derive(Debug, clap::Args)]
#[command(after_help = DETAILS)]
pub struct Args {
    /// Keep the temporary folder, with the store, the data and the logs of the workers
    #[arg(long)]
    keep: bool,
}

pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let stop = signals::stop_on_signal()?;
    let stage = Stage::open(None).await?;
    output::line(format!(
        "{}\n\n  server   {}\n  store    SQLite, in a temporary folder\n  logs     {}\n\n",
        style("Tenure demo: a DAG of four jobs, two workers, one of them about to be killed").bold(),
        stage.url,
        stage.folder().display(),
    ))?;
    let played = tokio::select! {
        played = tokio::time::timeout(LIMIT, play(&stage)) => Some(played),
        () = stop.cancelled() => None,
    };
    // Whatever is left of the workers was killed when it was dropped.
    let logs = super::worker_logs(stage.folder(), WORKERS);
    if let Some(folder) = stage.close(args.keep).await? {
        output::line(format!("\nKept: {}", folder.display()))?;
    }
    let verdict = match played {
        None => return Err(Stop::new(Exit::Interrupted, "interrupted").into()),
        Some(Err(_)) => anyhow::bail!("the demo did not finish within {} s{logs}", LIMIT.as_secs()),
        Some(Ok(Err(error))) => anyhow::bail!("the demo failed: {error:#}{logs}"),
        Some(Ok(Ok(verdict))) => verdict,
    };
    output::line(verdict.render())?;
    if verdict.is_good() { Ok(Exit::Ok) } else { Err(anyhow::anyhow!("the DAG did not end as expected")) }
}

/// From the first deployment to the last check.
async fn play(stage: &Stage) -> anyhow::Result<Verdict> {
    let [a, b] = WORKERS;
    let workers = [stage.start_dag_worker(a)?, stage.start_dag_worker(b)?];
    let mut show = Show { client: &stage.client, screen: Screen::new(), workers };
    let started = show.workers.each_ref().map(|worker| format!("{} (process {})", worker.name, worker.pid()));
    show.screen.note(&format!("started {}", started.join(" and ")))?;
    let verdict = show.run().await;
    show.screen.clear();
    for worker in show.workers {
        worker.stop().await;
    }
    verdict
}

struct Show<'a> {
    client: &'a Client,
    screen: Screen,
    workers: [Worker; 2],
}

impl Show<'_> {
    async fn run(&mut self) -> anyhow::Result<Verdict> {
        self.client.deploy_dag(&plan::yaml(POWERS[0]), DeployOptions::default()).await?;
        self.screen.note("deployed version 1: backfill (manual) and every-minute (cron) lead to power and sum")?;
        for range in RANGES {
            self.fire(range).await?;
        }
        let scene =
            self.until(|scene| RANGES.iter().all(|range| scene.is_right(&plan::key(*range), POWERS[0]))).await?;
        self.screen.chapter(&scene, &format!("{} ranges were asked for, squared and summed", RANGES.len()))?;
        let (held, victim) = self.kill_the_holder().await?;
        let again = self.invalidate().await?;
        self.switch_versions().await?;
        self.screen.note(&format!("waiting for attempt 2 of {}, and for the next minute", plan::key(HELD)))?;
        let scene = self
            .until(|scene| {
                let ranges = scene.committed("asked").chain(scene.committed("due"));
                scene.is_right(&plan::key(HELD), POWERS[0])
                    && scene.committed("due").next().is_some()
                    && ranges.into_iter().all(|range| scene.is_right(&range.partition_key, POWERS[0]))
            })
            .await?;
        self.screen.chapter(&scene, "every range that was asked for or due is summed")?;
        verify::verify(self.client, &held, &victim, &again).await
    }

    async fn fire(&self, range: (u64, u64)) -> anyhow::Result<String> {
        let (key, input) = (plan::key(range), plan::asked(range).into());
        let fired = self.client.trigger_job(NAME, "backfill", Some(&key), Some(input)).await;
        Ok(fired.context("the source was not fired")?.task_id)
    }

    /// Fires a task that does not end, and kills the worker that got it. Returns the task and the worker.
    async fn kill_the_holder(&mut self) -> anyhow::Result<(String, String)> {
        let held = self.fire(HELD).await?;
        let holder = self.until_task(&held, |task| task.worker_id.clone().filter(|_| is_running(task))).await?;
        let worker = self.workers.iter_mut().find(|worker| worker.name == holder);
        let worker = worker.with_context(|| format!("{holder} holds the task and is not a worker of this demo"))?;
        worker.kill().await?;
        let killed = style(format!("{holder} was killed with SIGKILL")).red().bold();
        self.screen.note(&format!("{killed} while it held {}", plan::key(HELD)))?;
        self.until_task(&held, |task| (!is_running(task)).then_some(())).await?;
        let scene = Scene::look(self.client).await?;
        self.screen
            .chapter(&scene, "its lease has expired: another attempt follows after a back-off of 30 s or more")?;
        Ok((held, holder))
    }

    /// Says that a partition has changed, and waits for what is made from it. Returns its key.
    async fn invalidate(&mut self) -> anyhow::Result<String> {
        let key = plan::key(RANGES[0]);
        let before = Scene::look(self.client).await?;
        let made_at = |scene: &Scene| {
            ["raised", "sums"]
                .map(|dataset| scene.partition(dataset, &key).and_then(|made| made.materialized_at.clone()))
        };
        let old = made_at(&before);
        let request = InvalidateRequest {
            scope: "partition".to_owned(),
            partition_key: Some(key.clone()),
            row_filter: None,
            reason: Some("correction".to_owned()),
        };
        self.client.invalidate_dataset("asked", &request, Some("demo")).await?;
        self.screen.note(&format!("{key} of the dataset asked was invalidated"))?;
        let scene =
            self.until(|scene| made_at(scene).iter().zip(&old).all(|(now, old)| now.is_some() && now != old)).await?;
        self.screen.chapter(&scene, &format!("power and sum made {key} again"))?;
        Ok(key)
    }

    /// Rebuilds with another power beside the active version, cuts over, and rolls back.
    async fn switch_versions(&mut self) -> anyhow::Result<()> {
        let options = DeployOptions { manual_cutover: true, ..DeployOptions::default() };
        self.client.deploy_dag(&plan::yaml(POWERS[1]), options).await?;
        self.screen.note("deployed version 2, with cubes: power and sum are rebuilt beside version 1")?;
        let scene = self.until(|scene| scene.version_in("Ready") == Some(2)).await?;
        self.screen.chapter(&scene, "version 2 is ready; version 1 is still active")?;
        for (switched, power, version) in [
            ("cut over to version 2: the sums are of cubes", POWERS[1], 2),
            ("rolled back: the sums are of squares again", POWERS[0], 1),
        ] {
            match version {
                2 => self.client.cut_over_dag(NAME, 2).await?,
                _ => self.client.roll_back_dag(NAME).await?,
            };
            let is_there = |scene: &Scene| {
                scene.version_in("Active") == Some(version)
                    && RANGES.iter().all(|range| scene.is_right(&plan::key(*range), power))
            };
            let scene = self.until(is_there).await?;
            self.screen.chapter(&scene, switched)?;
        }
        Ok(())
    }

    /// Looks again and again until the DAG is as wanted.
    async fn until(&mut self, wanted: impl Fn(&Scene) -> bool) -> anyhow::Result<Scene> {
        loop {
            let scene = self.look().await?;
            if wanted(&scene) {
                return Ok(scene);
            }
        }
    }

    async fn until_task<T>(&mut self, id: &str, wanted: impl Fn(&Task) -> Option<T>) -> anyhow::Result<T> {
        loop {
            if let Some(found) = wanted(&self.client.get(id).await?) {
                return Ok(found);
            }
            self.look().await?;
        }
    }

    /// Shows where things stand, and waits a little.
    async fn look(&mut self) -> anyhow::Result<Scene> {
        for worker in &mut self.workers {
            worker.check()?;
        }
        tokio::time::sleep(POLL).await;
        let scene = Scene::look(self.client).await?;
        self.screen.update(&scene);
        if let Some(job) = scene.jobs.iter().find(|job| job.failed > 0) {
            anyhow::bail!("a task of the job {} failed for good", job.name);
        }
        Ok(scene)
    }
}

fn is_running(task: &Task) -> bool {
    task.state == TaskState::Running
}
