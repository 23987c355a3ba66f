//! What pushing costs beside pulling: a run of small tasks from end to end, and the time from submit to the worker.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tenure_contract::callback::TaskEnvelope;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;

use crate::Measuring;
use crate::http::{Connection, Target};
use crate::latency;
use crate::load::{self, Worker};
use crate::picture::{Bar, BarKind, Bars, Panel, Picture};
use crate::progress::Watch;
use crate::report::{self, Machine, Report, Table};
use crate::samples::{Percentiles, Samples};
use crate::stand::{Place, Stand};

const PULLED: &str = "bench-run-pulled";
const PUSHED: &str = "bench-run-pushed";
const LIGHT: &str = "bench-push-latency";
/// Long polls are this long.
const WAIT_MS: u32 = 1_000;
/// Tasks at the start that are not counted.
const WARM_UP: usize = 50;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Options {
    /// Tasks of the run.
    pub tasks: usize,
    pub workers: usize,
    /// How often the run is made each way, in turn.
    pub rounds: usize,
    pub per_second: f64,
    pub seconds: f64,
}

/// `tenure bench push`
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PushReport {
    pub bench: String,
    pub store: String,
    pub machine: Machine,
    pub settings: Options,
    /// Medians, from before the run is submitted until the completion of its last task is answered.
    pub pulled_run_seconds: f64,
    pub pushed_run_seconds: f64,
    /// From before the submit request is sent until a worker has the task.
    pub pulled_start_ms: Percentiles,
    pub pushed_start_ms: Percentiles,
}

pub fn run<'a>(
    stand: &'a Stand,
    place: Option<&'a Place>,
    options: Options,
    progress: &'a Watch,
) -> Measuring<'a, PushReport> {
    Box::pin(run_all(stand, place, options, progress))
}

async fn run_all(stand: &Stand, place: Option<&Place>, options: Options, progress: &Watch) -> Result<PushReport> {
    ensure!(options.tasks >= 3, "a run of at least three tasks is needed: one before all, and one after all");
    let inbox = Inbox::listen().await?;
    let mut control = stand.target.connect().await?;
    for (queue, concurrency) in [(PUSHED, options.workers), (LIGHT, 32)] {
        let push = json!({"push": {"url": inbox.url, "concurrency": concurrency}});
        control.put(&format!("/api/v1/queues/{queue}"), push.to_string().into_bytes()).await?;
    }
    progress.begin("runs, pulled and pushed in turn", (2 * options.rounds * options.tasks) as u64);
    let (mut pulled, mut pushed) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        pulled.push(pulled_run(&stand.target, &options, progress).await?);
        pushed.push(pushed_run(&stand.target, &inbox, &options, progress).await?);
    }
    let light = latency::Options { per_second: options.per_second, seconds: options.seconds, workers: 4 };
    let pulled_start_ms = latency::run(stand, place, light, progress).await?.start_ms;
    let pushed_start_ms = pushed_latency(&stand.target, &inbox, &options, progress).await?;
    Ok(PushReport {
        bench: "push".to_owned(),
        store: place.map_or("given", |place| place.choice.name()).to_owned(),
        machine: Machine::look(place).await?,
        settings: options,
        pulled_run_seconds: median(pulled),
        pushed_run_seconds: median(pushed),
        pulled_start_ms,
        pushed_start_ms,
    })
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(0.0, Duration::as_secs_f64)
}

/// One task before all, one after all, the others side by side between them.
fn run_body(queue: &str, tasks: usize) -> Vec<u8> {
    let middle: Vec<String> = (1..tasks - 1).map(|n| format!("t{n}")).collect();
    let entries = (0..tasks).map(|n| {
        let depends_on = match n {
            0 => json!([]),
            n if n == tasks - 1 => json!(middle),
            _ => json!(["t0"]),
        };
        json!({"key": format!("t{n}"), "queue": queue, "operator": "noop", "payload": {"n": n}, "depends_on": depends_on})
    });
    json!({"tasks": entries.collect::<Vec<_>>()}).to_string().into_bytes()
}

async fn pulled_run(target: &Target, options: &Options, progress: &Watch) -> Result<Duration> {
    let (done, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let mut workers = JoinSet::new();
    for number in 0..options.workers {
        let mut worker = Worker::connect(target, format!("bench-{number}"), PULLED).await?;
        let (done, over, progress, tasks) = (Arc::clone(&done), Arc::clone(&over), Arc::clone(progress), options.tasks);
        workers.spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let Some(held) = worker.claim(WAIT_MS).await? else { continue };
                worker.complete(&held).await?;
                progress.advance(1);
                if done.fetch_add(1, Ordering::Relaxed) + 1 == tasks {
                    over.store(true, Ordering::Relaxed);
                    return Ok(Some(Instant::now()));
                }
            }
            Ok(None)
        });
    }
    let mut control = target.connect().await?;
    let begun = Instant::now();
    control.post("/api/v1/runs", run_body(PULLED, options.tasks)).await?;
    let ends = load::all(workers).await?;
    let end = ends.into_iter().flatten().max().context("no worker had the last task")?;
    Ok(end - begun)
}

async fn pushed_run(target: &Target, inbox: &Inbox, options: &Options, progress: &Watch) -> Result<Duration> {
    let done = Arc::new(AtomicUsize::new(0));
    let mut workers = JoinSet::new();
    for number in 0..options.workers {
        let (mut connection, inbox) = (target.connect().await?, inbox.clone());
        let (done, progress, tasks) = (Arc::clone(&done), Arc::clone(progress), options.tasks);
        workers.spawn(async move {
            while done.load(Ordering::Relaxed) < tasks {
                let Some((envelope, _)) = inbox.next(Duration::from_millis(u64::from(WAIT_MS))).await else { continue };
                complete(&mut connection, &envelope, &format!("bench-{number}")).await?;
                progress.advance(1);
                if done.fetch_add(1, Ordering::Relaxed) + 1 == tasks {
                    return Ok(Some(Instant::now()));
                }
            }
            Ok(None)
        });
    }
    let mut control = target.connect().await?;
    let begun = Instant::now();
    control.post("/api/v1/runs", run_body(PUSHED, options.tasks)).await?;
    let ends = load::all(workers).await?;
    let end = ends.into_iter().flatten().max().context("no worker had the last task")?;
    Ok(end - begun)
}

async fn complete(connection: &mut Connection, envelope: &TaskEnvelope, worker: &str) -> Result<()> {
    let body = json!({"attempt": envelope.attempt, "workerId": worker, "outcome": "SUCCEEDED"});
    let path = format!("/v1/tasks/{}/completed", envelope.task_id);
    connection.post_as(&path, &envelope.task_token, body.to_string().into_bytes()).await?;
    Ok(())
}

async fn pushed_latency(target: &Target, inbox: &Inbox, options: &Options, progress: &Watch) -> Result<Percentiles> {
    let tasks = (options.per_second * options.seconds).round().max(1.0) as usize + WARM_UP;
    progress.begin("pushing at a steady rate", tasks as u64);
    let epoch = Instant::now();
    let (mut worker, taken) = (target.connect().await?, inbox.clone());
    let advance = Arc::clone(progress);
    let arrivals = tokio::spawn(async move {
        let mut samples = Samples::default();
        for _ in 0..tasks {
            let next = taken.next(Duration::from_secs(60)).await;
            let (envelope, at) = next.context("a task was not pushed within a minute")?;
            complete(&mut worker, &envelope, "bench-light").await?;
            let stamp: Stamp = serde_json::from_str(envelope.payload.as_str())?;
            if stamp.n >= WARM_UP {
                samples.push(at.duration_since(epoch).saturating_sub(Duration::from_nanos(stamp.at)));
            }
            advance.advance(1);
        }
        Ok::<_, anyhow::Error>(samples)
    });
    let mut control = target.connect().await?;
    let first = Instant::now();
    for n in 0..tasks {
        let due = first + Duration::from_secs_f64(n as f64 / options.per_second);
        tokio::time::sleep_until(due.into()).await;
        let stamp = Stamp { n, at: u64::try_from(epoch.elapsed().as_nanos())? };
        let body = json!({"queue": LIGHT, "operator": "noop", "payload": stamp});
        control.post("/api/v1/tasks", body.to_string().into_bytes()).await?;
    }
    Ok(arrivals.await??.percentiles())
}

/// When the task was submitted, and which one it is.
#[derive(Serialize, Deserialize)]
struct Stamp {
    n: usize,
    at: u64,
}

/// Where pushes arrive: each is accepted at once, and taken up by whichever worker is free.
#[derive(Debug, Clone)]
struct Inbox {
    url: String,
    arrived: Arc<Mutex<mpsc::UnboundedReceiver<(TaskEnvelope, Instant)>>>,
}

impl Inbox {
    async fn listen() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/dispatch", listener.local_addr()?);
        let (sender, arrived) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                let sender = sender.clone();
                let service = service_fn(move |request| accept(request, sender.clone()));
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
                );
            }
        });
        Ok(Self { url, arrived: Arc::new(Mutex::new(arrived)) })
    }

    /// The next push, unless none comes for so long.
    async fn next(&self, wait: Duration) -> Option<(TaskEnvelope, Instant)> {
        let take = async { self.arrived.lock().await.recv().await };
        tokio::time::timeout(wait, take).await.ok().flatten()
    }
}

async fn accept(
    request: Request<Incoming>,
    sender: mpsc::UnboundedSender<(TaskEnvelope, Instant)>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let at = Instant::now();
    let body = request.into_body().collect().await.map(http_body_util::Collected::to_bytes);
    let envelope = body.ok().and_then(|body| serde_json::from_slice::<TaskEnvelope>(&body).ok());
    let mut response = Response::new(Full::default());
    *response.status_mut() = match envelope.map(|envelope| sender.send((envelope, at)).is_ok()) {
        Some(true) => StatusCode::ACCEPTED,
        _ => StatusCode::BAD_REQUEST,
    };
    Ok(response)
}

impl PushReport {
    fn ratio(&self) -> f64 {
        self.pushed_run_seconds / self.pulled_run_seconds.max(f64::EPSILON)
    }
}

impl Report for PushReport {
    fn table(&self) -> Table {
        let row = |what: &str, found: &Percentiles| {
            let mut cells = vec![what.to_owned()];
            cells.extend(report::cells(found));
            cells
        };
        let Options { tasks, workers, rounds, per_second, .. } = &self.settings;
        Table {
            header: vec!["FROM SUBMIT SENT TO TASK AT THE WORKER", "P50", "P90", "P99", "MAX"],
            rows: vec![row("pulled by long polls", &self.pulled_start_ms), row("pushed", &self.pushed_start_ms)],
            notes: vec![
                format!("{per_second} tasks a second on {}", self.store),
                format!(
                    "a run of {tasks} tasks over {workers} workers, median of {rounds}: {:.2} s pulled, {:.2} s pushed, {:.2} times as long",
                    self.pulled_run_seconds,
                    self.pushed_run_seconds,
                    self.ratio()
                ),
            ],
        }
    }

    fn picture(&self) -> Picture {
        let bar = |label: &str, value: f64| Bar { label: label.to_owned(), value, kind: BarKind::Ours, note: None };
        let panel =
            |title: String, unit: &str, bars: Vec<Bar>| Panel::Bars(Bars { title, unit: unit.to_owned(), bars });
        Picture {
            title: format!("Pushed beside pulled on {}", self.store),
            subtitle: "every answer durable".to_owned(),
            panels: vec![
                panel(
                    format!("A run of {} tasks over {} workers", self.settings.tasks, self.settings.workers),
                    "s",
                    vec![bar("pulled", self.pulled_run_seconds), bar("pushed", self.pushed_run_seconds)],
                ),
                panel(
                    "From submit to the task at the worker, p50".to_owned(),
                    "ms",
                    vec![bar("pulled", self.pulled_start_ms.p50), bar("pushed", self.pushed_start_ms.p50)],
                ),
            ],
            notes: vec![self.machine.line()],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_run_has_one_task_before_all_and_one_after_all() {
        let run: serde_json::Value = serde_json::from_slice(&run_body("q", 4)).unwrap();
        let depends: Vec<String> =
            run["tasks"].as_array().unwrap().iter().map(|task| task["depends_on"].to_string()).collect();
        assert_eq!(depends, ["[]", "[\"t0\"]", "[\"t0\"]", "[\"t1\",\"t2\"]"]);
    }
}
