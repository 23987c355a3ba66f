//! The load: tasks are submitted, claimed and completed over HTTP, as workers do it.

use std::collections::HashSet;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use crate::http::{Connection, Target};
use crate::progress::Watch;
use crate::samples::Samples;

/// Connections that submit side by side.
const SUBMITTERS: usize = 4;
/// Tasks in one submit request.
pub const SUBMIT_BATCH: usize = 1_000;
/// How long a claim waits when there is nothing.
const WAIT_MS: u32 = 200;
/// How long there may be nothing while tasks are missing.
const PATIENCE: Duration = Duration::from_secs(60);

/// How workers talk to the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// One request completes what is held and claims the next ones.
    Exchange,
    /// One request claims a task, one completes it.
    Single,
}

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Self::Exchange => "exchange",
            Self::Single => "single",
        }
    }
}

/// A number of things that took some time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    pub tasks: usize,
    pub seconds: f64,
    pub per_second: f64,
}

impl Pace {
    pub fn of(tasks: usize, time: Duration) -> Self {
        let seconds = time.as_secs_f64();
        Self { tasks, seconds, per_second: if seconds > 0.0 { tasks as f64 / seconds } else { 0.0 } }
    }
}

/// Submits `count` tasks in batches over a few connections.
pub async fn submit(target: &Target, queue: &str, count: usize, batch: usize, progress: &Watch) -> Result<Pace> {
    progress.begin("submitting", count as u64);
    let next = Arc::new(AtomicUsize::new(0));
    let mut connections = target.connect_many(SUBMITTERS.min(count.div_ceil(batch)).max(1)).await?;
    let started = Instant::now();
    let mut submitters = JoinSet::new();
    for mut connection in connections.drain(..) {
        let (next, queue, progress) = (Arc::clone(&next), queue.to_owned(), Arc::clone(progress));
        submitters.spawn(async move {
            loop {
                let first = next.fetch_add(batch, Ordering::Relaxed);
                if first >= count {
                    return Ok(());
                }
                let size = batch.min(count - first);
                let answer = connection.post("/api/v1/tasks/batch", submission(&queue, first, size)).await?;
                let answer: Created = serde_json::from_slice(&answer)?;
                ensure!(answer.created == size, "{size} tasks were submitted and {} created", answer.created);
                progress.advance(size as u64);
            }
        });
    }
    all(submitters).await?;
    Ok(Pace::of(count, started.elapsed()))
}

#[derive(Deserialize)]
struct Created {
    created: usize,
}

fn submission(queue: &str, first: usize, size: usize) -> Vec<u8> {
    let mut text = String::with_capacity(size * 64);
    text.push_str("{\"tasks\":[");
    for number in first..first + size {
        let comma = if number == first { "" } else { "," };
        // Writing to a text does not fail.
        let _ = write!(text, "{comma}{{\"queue\":\"{queue}\",\"operator\":\"noop\",\"payload\":{{\"n\":{number}}}}}");
    }
    text.push_str("]}");
    text.into_bytes()
}

/// Waits for all; the first error ends the others.
pub async fn all<T: 'static>(mut work: JoinSet<Result<T>>) -> Result<Vec<T>> {
    let mut results = Vec::new();
    while let Some(done) = work.join_next().await {
        results.push(done.context("a part of the load ended early")??);
    }
    Ok(results)
}

/// A task that a worker holds.
#[derive(Debug, Clone)]
pub struct Held {
    pub job: String,
    pub attempt: String,
    pub token: String,
}

#[derive(Deserialize)]
struct Granted<'a> {
    #[serde(borrow)]
    job_id: &'a str,
    attempt_id: &'a str,
    lease_token: &'a str,
}

impl Granted<'_> {
    fn hold(&self) -> Held {
        Held { job: self.job_id.to_owned(), attempt: self.attempt_id.to_owned(), token: self.lease_token.to_owned() }
    }
}

#[derive(Deserialize)]
struct Exchanged<'a> {
    #[serde(default)]
    complete: Vec<Item>,
    #[serde(default)]
    heartbeat: Vec<Item>,
    #[serde(default, borrow)]
    jobs: Vec<Granted<'a>>,
}

#[derive(Deserialize)]
struct Item {
    ok: bool,
}

#[derive(Deserialize)]
struct Claimed<'a> {
    claimed: bool,
    #[serde(default, borrow)]
    job_id: Option<&'a str>,
    #[serde(default)]
    attempt_id: Option<&'a str>,
    #[serde(default)]
    lease_token: Option<&'a str>,
}

/// One worker with a connection of its own.
#[derive(Debug)]
pub struct Worker {
    name: String,
    queue: String,
    connection: Connection,
}

impl Worker {
    pub async fn connect(target: &Target, name: String, queue: &str) -> Result<Self> {
        Ok(Self { name, queue: queue.to_owned(), connection: target.connect().await? })
    }

    /// Completes what is held and claims up to `max` more. Every report must be accepted.
    pub async fn exchange(&mut self, done: &[Held], max: usize, wait_ms: u32) -> Result<Vec<Held>> {
        let mut text = String::with_capacity(256 + done.len() * 192);
        let _ = write!(text, "{{\"worker_id\":\"{}\",\"complete\":[", self.name);
        for (index, held) in done.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let Held { job, attempt, token } = held;
            let _ = write!(
                text,
                "{comma}{{\"job_id\":\"{job}\",\"attempt_id\":\"{attempt}\",\"lease_token\":\"{token}\",\
                 \"result\":{{\"ok\":true}}}}"
            );
        }
        text.push(']');
        if max > 0 {
            let queue = &self.queue;
            let _ =
                write!(text, ",\"claim\":{{\"streams\":[\"{queue}\"],\"max_jobs\":{max},\"max_wait_ms\":{wait_ms}}}");
        }
        text.push('}');
        let answer = self.connection.post("/internal/worker/exchange", text.into_bytes()).await?;
        let answer: Exchanged<'_> = serde_json::from_slice(&answer).context("an exchange was answered strangely")?;
        let accepted = answer.complete.iter().filter(|item| item.ok).count();
        ensure!(accepted == done.len(), "{} of {} reports were refused", done.len() - accepted, done.len());
        Ok(answer.jobs.iter().map(Granted::hold).collect())
    }

    /// Renews the leases. Every one must be renewed.
    pub async fn heartbeat(&mut self, held: &[Held]) -> Result<()> {
        let mut text = String::with_capacity(64 + held.len() * 128);
        let _ = write!(text, "{{\"worker_id\":\"{}\",\"heartbeat\":[", self.name);
        for (index, Held { job, token, .. }) in held.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let _ = write!(text, "{comma}{{\"job_id\":\"{job}\",\"lease_token\":\"{token}\"}}");
        }
        text.push_str("]}");
        let answer = self.connection.post("/internal/worker/exchange", text.into_bytes()).await?;
        let answer: Exchanged<'_> = serde_json::from_slice(&answer).context("an exchange was answered strangely")?;
        let renewed = answer.heartbeat.iter().filter(|item| item.ok).count();
        ensure!(renewed == held.len(), "{} of {} leases were not renewed", held.len() - renewed, held.len());
        Ok(())
    }

    /// Renews one lease by the request that workers of the contract send.
    pub async fn heartbeat_one(&mut self, Held { job, token, .. }: &Held) -> Result<()> {
        let name = &self.name;
        let text = format!("{{\"worker_id\":\"{name}\",\"job_id\":\"{job}\",\"lease_token\":\"{token}\"}}");
        let answer = self.connection.post("/internal/worker/heartbeat", text.into_bytes()).await?;
        let answer: Item = serde_json::from_slice(&answer)?;
        ensure!(answer.ok, "a lease was not renewed");
        Ok(())
    }

    /// Claims one task by a request of its own, and hands out its body as it came.
    pub async fn claim_raw(&mut self, wait_ms: u32) -> Result<(Option<Held>, bytes::Bytes)> {
        let Self { name, queue, connection } = self;
        let text = format!("{{\"worker_id\":\"{name}\",\"streams\":[\"{queue}\"],\"max_wait_ms\":{wait_ms}}}");
        let answer = connection.post("/internal/worker/claim", text.into_bytes()).await?;
        let claimed: Claimed<'_> = serde_json::from_slice(&answer).context("a claim was answered strangely")?;
        let held = match (claimed.claimed, claimed.job_id, claimed.attempt_id, claimed.lease_token) {
            (true, Some(job_id), Some(attempt_id), Some(lease_token)) => {
                Some(Granted { job_id, attempt_id, lease_token }.hold())
            }
            _ => None,
        };
        Ok((held, answer))
    }

    pub async fn claim(&mut self, wait_ms: u32) -> Result<Option<Held>> {
        Ok(self.claim_raw(wait_ms).await?.0)
    }

    /// Completes one task by a request of its own.
    pub async fn complete(&mut self, Held { job, attempt, token }: &Held) -> Result<()> {
        let name = &self.name;
        let text = format!(
            "{{\"worker_id\":\"{name}\",\"job_id\":\"{job}\",\"attempt_id\":\"{attempt}\",\
             \"lease_token\":\"{token}\",\"result\":{{\"ok\":true}}}}"
        );
        let answer = self.connection.post("/internal/worker/complete", text.into_bytes()).await?;
        let answer: Item = serde_json::from_slice(&answer)?;
        ensure!(answer.ok, "a report was refused");
        Ok(())
    }
}

/// How a queue is emptied.
#[derive(Debug, Clone, Copy)]
pub struct Drain {
    pub mode: Mode,
    pub workers: usize,
    /// Tasks in one exchange.
    pub batch: usize,
}

/// What emptying a queue came to.
#[derive(Debug)]
pub struct Drained {
    pub pace: Pace,
    /// How long each request took.
    pub requests: Samples,
    /// How many tasks were completed, and how many of them once.
    pub completed: usize,
    pub distinct: usize,
}

/// Claims and completes until `count` tasks are completed.
pub async fn drain(target: &Target, queue: &str, count: usize, how: Drain, progress: &Watch) -> Result<Drained> {
    progress.begin("claiming and completing", count as u64);
    let left = Arc::new(AtomicUsize::new(count));
    let mut workers = Vec::new();
    for number in 0..how.workers {
        workers.push(Worker::connect(target, format!("bench-{number}"), queue).await?);
    }
    let started = Instant::now();
    let mut running = JoinSet::new();
    for worker in workers {
        let mut shift = Shift {
            worker,
            left: Arc::clone(&left),
            progress: Arc::clone(progress),
            requests: Samples::default(),
            completed: Vec::new(),
            busy_until: started,
        };
        running.spawn(async move {
            match how.mode {
                Mode::Exchange => shift.exchange(how.batch).await?,
                Mode::Single => shift.single().await?,
            }
            Ok(shift)
        });
    }
    let results = all(running).await?;
    let mut end = started;
    let mut requests = Samples::default();
    let mut names = HashSet::with_capacity(count);
    let mut completed = 0;
    for shift in results {
        requests.extend(shift.requests);
        completed += shift.completed.len();
        names.extend(shift.completed);
        // The last answers tell that nothing is left; waiting for them is no work.
        end = end.max(shift.busy_until);
    }
    Ok(Drained { pace: Pace::of(completed, end - started), requests, completed, distinct: names.len() })
}

/// The work of one worker until nothing is left.
struct Shift {
    worker: Worker,
    /// Tasks that nobody has completed yet.
    left: Arc<AtomicUsize>,
    progress: Watch,
    requests: Samples,
    completed: Vec<String>,
    busy_until: Instant,
}

impl Shift {
    async fn exchange(&mut self, batch: usize) -> Result<()> {
        let mut held = Vec::new();
        loop {
            let started = Instant::now();
            let next = self.worker.exchange(&held, batch, WAIT_MS).await?;
            if held.is_empty() && next.is_empty() {
                self.check_patience()?;
            } else {
                self.requests.push(started.elapsed());
            }
            self.done(held);
            held = next;
            if held.is_empty() && self.left.load(Ordering::Relaxed) == 0 {
                return Ok(());
            }
        }
    }

    async fn single(&mut self) -> Result<()> {
        while self.left.load(Ordering::Relaxed) > 0 {
            let started = Instant::now();
            let Some(held) = self.worker.claim(WAIT_MS).await? else {
                self.check_patience()?;
                continue;
            };
            self.requests.push(started.elapsed());
            let started = Instant::now();
            self.worker.complete(&held).await?;
            self.requests.push(started.elapsed());
            self.done(vec![held]);
        }
        Ok(())
    }

    fn done(&mut self, tasks: Vec<Held>) {
        if tasks.is_empty() {
            return;
        }
        self.busy_until = Instant::now();
        self.left.fetch_sub(tasks.len(), Ordering::Relaxed);
        self.progress.advance(tasks.len() as u64);
        self.completed.extend(tasks.into_iter().map(|held| held.job));
    }

    fn check_patience(&self) -> Result<()> {
        ensure!(self.busy_until.elapsed() < PATIENCE, "no task came for {PATIENCE:?}, and some are missing");
        Ok(())
    }
}

/// What is left in a queue, by place: nothing, when all tasks were completed.
pub async fn left_over(target: &Target, queue: &str) -> Result<u64> {
    let answer = target.connect().await?.get(&format!("/api/v1/queues/{queue}")).await?;
    let queue: tenure_contract::user::Queue = serde_json::from_slice(&answer)?;
    let counts = queue.counts;
    Ok(counts.scheduled + counts.ready + counts.running + counts.dead_lettered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_submission_is_what_the_api_takes() {
        let batch: tenure_contract::user::BatchSubmission = serde_json::from_slice(&submission("q", 3, 2)).unwrap();
        assert_eq!(batch.tasks.len(), 2);
        assert_eq!((batch.tasks[1].queue.as_str(), batch.tasks[1].operator.as_str()), ("q", "noop"));
        assert_eq!(batch.tasks[1].payload.as_ref().map(tenure_contract::Json::as_str), Some(r#"{"n":4}"#));
    }
}
