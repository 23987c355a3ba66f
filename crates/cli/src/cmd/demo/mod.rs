//! `tenure demo`

mod dag;
mod plan;
mod report;
mod sandbox;
mod screen;
mod stage;
mod verify;

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use console::style;
use tenure_client::{Client, TaskFilter};
use tenure_contract::user::{CancelRequest, Task};
use tenure_contract::words::TaskState;

use super::control_plane::StoreParser;
use crate::exit::{Exit, Stop};
use crate::{output, signals};
use plan::{Kind, Planned, Queues};
use screen::{Counts, Screen};
use stage::{Stage, Worker};
use tenure_config::StoreUrl;
use verify::Verdict;

const POLL: Duration = Duration::from_millis(150);
/// The kill comes when there was something to see, and something to lose.
const KILL_AFTER: Duration = Duration::from_millis(2_500);
const KILL_HOLDING: usize = 3;
/// A request that was on its way when its sender was killed has arrived by then.
const SETTLE: Duration = Duration::from_millis(300);
/// It takes a third of this; more means that something hangs.
const LIMIT: Duration = Duration::from_secs(58);

const DETAILS: &str = "\
Starts a server on a free port with a store in a temporary folder, and two worker processes. Submits \
tasks that succeed, fail and are retried, are canceled, or are poison; kills one worker with SIGKILL \
while it holds leases; then checks that every task ended as expected. Exits with 0 only if all did. \
Removes everything it created.";

#[derive(Debug, clap::Args)]
#[command(after_help = DETAILS, args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    scene: Option<Scene>,
    /// Number of tasks
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = tasks)]
    tasks: usize,
    /// Use this store: sqlite:PATH or postgres://…; the tasks stay there
    #[arg(long, value_name = "URL", value_parser = StoreParser)]
    store: Option<StoreUrl>,
    /// Keep the temporary folder, with the store and the logs of the workers
    #[arg(long)]
    keep: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Scene {
    /// Watch attacks fail in sandboxes, beside honest work that goes on
    Sandbox(sandbox::Args),
    /// Watch a DAG survive a killed worker, an invalidation and a change of its version
    Dag(dag::Args),
    /// A worker of `demo dag`
    #[command(hide = true)]
    DagWorker(dag::worker::Args),
}

fn tasks(text: &str) -> Result<usize, String> {
    let range = plan::TASKS_MIN..=plan::TASKS_MAX;
    let count = text.parse().ok().filter(|count| range.contains(count));
    count.ok_or_else(|| format!("a number from {} to {}", range.start(), range.end()))
}

pub async fn run(args: Args) -> anyhow::Result<Exit> {
    match args.scene {
        Some(Scene::Sandbox(args)) => return sandbox::run(args).await,
        Some(Scene::Dag(args)) => return dag::run(args).await,
        Some(Scene::DagWorker(args)) => return dag::worker::run(args).await,
        None => {}
    }
    let stop = signals::stop_on_signal()?;
    let stage = Stage::open(args.store.as_ref()).await?;
    output::line(format!(
        "{}\n\n  server   {}\n  store    {}\n  logs     {}\n\n",
        style(format!("Tenure demo: {} tasks, two workers, one of them about to be killed", args.tasks)).bold(),
        stage.url,
        args.store.as_ref().map_or_else(|| "SQLite, in a temporary folder".to_owned(), ToString::to_string),
        stage.folder().display(),
    ))?;
    let run = format!("{:06x}", tenure_engine::random_bits() & 0xff_ffff);
    // In a store that others use, names have to be its own.
    let cast = Cast::new(args.store.as_ref().map(|_| run.as_str()));
    let played = tokio::select! {
        played = tokio::time::timeout(LIMIT, play(&stage, args.tasks, &run, &cast)) => Some(played),
        () = stop.cancelled() => None,
    };
    // Whatever is left of the workers was killed when it was dropped.
    let logs = worker_logs(stage.folder(), [&cast.survivor, &cast.victim]);
    let kept = stage.close(args.keep).await?;
    if let Some(folder) = kept {
        output::line(format!("\nKept: {}", folder.display()))?;
    }
    // A demo that nobody sees to its end has shown nothing.
    let verdict = match played {
        None => return Err(Stop::new(Exit::Interrupted, "interrupted").into()),
        Some(Err(_)) => anyhow::bail!("the demo did not finish within {} s{logs}", LIMIT.as_secs()),
        Some(Ok(Err(error))) => anyhow::bail!("the demo failed: {error:#}{logs}"),
        Some(Ok(Ok(verdict))) => verdict,
    };
    output::line(report::render(&verdict))?;
    if verdict.is_good() { Ok(Exit::Ok) } else { Err(anyhow::anyhow!("not every task ended as expected")) }
}

/// Who takes part.
#[derive(Debug)]
struct Cast {
    survivor: String,
    victim: String,
    queues: Queues,
}

impl Cast {
    fn new(run: Option<&str>) -> Self {
        let (before, after) = run.map_or_else(Default::default, |run| (format!("demo-{run}-"), format!("-{run}")));
        Self { survivor: format!("worker-a{after}"), victim: format!("worker-b{after}"), queues: Queues::new(&before) }
    }
}

/// From the first task to the last check.
async fn play(stage: &Stage, tasks: usize, run: &str, cast: &Cast) -> anyhow::Result<Verdict> {
    let Cast { survivor, victim, queues } = cast;
    let mut show = Show {
        client: &stage.client,
        run,
        cast,
        screen: Screen::new(tasks, [survivor, victim]),
        workers: [
            stage.start_worker(survivor, [&queues.mail, &queues.reports])?,
            stage.start_worker(victim, [&queues.reports, &queues.mail])?,
        ],
    };
    let started = show.workers.each_ref().map(|worker| format!("{} (process {})", worker.name, worker.pid()));
    show.screen.note(&format!("started {}", started.join(" and ")))?;
    let verdict = show.run(plan::plan(tasks, run, queues)).await;
    show.screen.clear();
    for worker in show.workers {
        worker.stop().await;
    }
    verdict
}

struct Show<'a> {
    client: &'a Client,
    run: &'a str,
    cast: &'a Cast,
    screen: Screen,
    /// The survivor and the victim.
    workers: [Worker; 2],
}

impl Show<'_> {
    async fn run(&mut self, plan: Vec<Planned>) -> anyhow::Result<Verdict> {
        let Cast { survivor, victim, queues } = self.cast;
        let planned = self.submit(plan).await?;
        self.cancel(&planned, Kind::CanceledWaiting, "canceled {} waiting tasks").await?;
        self.until(|tasks| {
            let to_cancel = tasks.iter().filter(|task| is(&planned, task, Kind::CanceledRunning));
            to_cancel.into_iter().all(|task| task.state == TaskState::Running)
        })
        .await?;
        self.cancel(&planned, Kind::CanceledRunning, "asked {} running tasks to stop").await?;
        let held = self.kill_victim(&planned).await?;
        let count = held.len();
        self.until(|tasks| tasks.iter().filter(|task| held.contains(&task.task_id)).all(|task| !is_held(task, victim)))
            .await?;
        self.screen.note(&format!("the leases of {count} lost tasks have expired; {survivor} takes over"))?;
        let tasks = self.until(|tasks| Counts::of(tasks).ended() == planned.len()).await?;
        self.screen.note("all tasks have ended; reading their histories")?;
        verify::verify(self.client, &planned, tasks, queues, victim, held).await
    }

    async fn submit(&mut self, plan: Vec<Planned>) -> anyhow::Result<HashMap<String, (Kind, u32)>> {
        let kinds: Vec<_> = plan.iter().map(|task| (task.kind, task.failures)).collect();
        let submissions = plan.into_iter().map(|task| task.submission).collect();
        let submitted = self.client.submit_batch(submissions).await.context("the tasks were not submitted")?;
        self.screen.note(&format!("submitted {} tasks in one call", submitted.created))?;
        Ok(submitted.tasks.into_iter().map(|task| (task.task_id, kinds[task.index])).collect())
    }

    async fn cancel(&mut self, planned: &HashMap<String, (Kind, u32)>, kind: Kind, note: &str) -> anyhow::Result<()> {
        let request = CancelRequest { reason: Some("demo".to_owned()), mode: None };
        let ids: Vec<_> = planned.iter().filter(|(_, (of, _))| *of == kind).map(|(id, _)| id).collect();
        for id in &ids {
            self.client.cancel(id, &request).await.context("a task was not canceled")?;
        }
        self.screen.note(&note.replace("{}", &ids.len().to_string()))
    }

    /// Kills the victim while it holds tasks, and says which.
    async fn kill_victim(&mut self, planned: &HashMap<String, (Kind, u32)>) -> anyhow::Result<BTreeSet<String>> {
        let victim = &self.cast.victim;
        let not_before = self.screen.started() + KILL_AFTER;
        self.until(|tasks| {
            let held = tasks.iter().filter(|task| is_held(task, victim) && is(planned, task, Kind::Long)).count();
            Instant::now() >= not_before && held >= KILL_HOLDING
        })
        .await?;
        self.workers[1].kill().await?;
        self.screen.killed(victim);
        tokio::time::sleep(SETTLE).await;
        let tasks = self.look().await?;
        let held: BTreeSet<_> =
            tasks.iter().filter(|task| is_held(task, victim)).map(|task| task.task_id.clone()).collect();
        let killed = style(format!("{victim} was killed with SIGKILL")).red().bold();
        self.screen.note(&format!("{killed} while it held {} tasks", held.len()))?;
        Ok(held)
    }

    /// Looks again and again until the tasks are as wanted.
    async fn until(&mut self, mut wanted: impl FnMut(&[Task]) -> bool) -> anyhow::Result<Vec<Task>> {
        loop {
            let tasks = self.look().await?;
            self.screen.update(&tasks)?;
            if wanted(&tasks) {
                return Ok(tasks);
            }
            for worker in &mut self.workers {
                worker.check()?;
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn look(&self) -> anyhow::Result<Vec<Task>> {
        let filter = TaskFilter {
            tag: Some(format!("demo:{}", self.run)),
            limit: u32::try_from(plan::TASKS_MAX).ok(),
            ..TaskFilter::default()
        };
        Ok(self.client.list(&filter).await?.items)
    }
}

fn is(planned: &HashMap<String, (Kind, u32)>, task: &Task, kind: Kind) -> bool {
    planned.get(&task.task_id).is_some_and(|(of, _)| *of == kind)
}

/// Whether the victim holds it.
fn is_held(task: &Task, victim: &str) -> bool {
    task.state == TaskState::Running && task.worker_id.as_deref() == Some(victim)
}

/// The end of what the workers wrote, for a demo that went wrong.
fn worker_logs(folder: &Path, workers: [&str; 2]) -> String {
    let mut text = String::new();
    for name in workers {
        let log = std::fs::read_to_string(folder.join(format!("{name}.log"))).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        for line in &lines[lines.len().saturating_sub(5)..] {
            text += &format!("; {name}: {line}");
        }
    }
    text
}
