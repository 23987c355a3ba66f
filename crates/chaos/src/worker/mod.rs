//! A worker process that behaves as badly as workers do: it forgets heartbeats, dies, sleeps beyond its lease, reports
//! late, twice, and against its own word.

mod direct;
mod exchange;
mod job;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::sleep;

use super::history::{Answer, Call, Granted, Recorder};
use super::http::{Http, Reply};
use super::ledger::{Effect, Ledger};
use super::rng::Rng;

/// How long a claim waits for work.
const WAIT: Duration = Duration::from_millis(1_000);

/// How one worker process is set up.
#[derive(Debug, Clone, clap::Args)]
pub struct WorkerArgs {
    /// The worker id.
    #[arg(long)]
    pub name: String,
    /// Names this process in the history.
    #[arg(long)]
    pub process: String,
    #[arg(long)]
    pub incarnation: Option<String>,
    #[arg(long)]
    pub seed: u64,
    #[arg(long = "server", required = true)]
    pub servers: Vec<String>,
    #[arg(long = "queue", required = true)]
    pub queues: Vec<String>,
    /// Folder of the histories.
    #[arg(long)]
    pub history: PathBuf,
    #[arg(long)]
    pub ledger: PathBuf,
    #[arg(long)]
    pub token: String,
    /// Jobs at a time.
    #[arg(long)]
    pub slots: usize,
    /// Read the streams of this Redis instead of asking for work.
    #[arg(long)]
    pub redis: Option<String>,
}

/// What the parts of a worker share.
struct Worker {
    args: WorkerArgs,
    http: Http,
    recorder: Recorder,
    ledger: Arc<Mutex<Ledger>>,
    rng: Mutex<Rng>,
    slots: Arc<Semaphore>,
    /// What goes to the control plane together with others.
    turns: mpsc::Sender<exchange::Item>,
}

/// A job that this worker holds.
#[derive(Debug, Clone)]
struct Held {
    job: Granted,
    token: String,
    stream: String,
    message_id: String,
    /// The stream and the message that named it, when this worker reads streams itself.
    read: Option<(String, String)>,
}

/// Works until it is killed.
pub async fn run(args: WorkerArgs) -> Result<()> {
    let parent = nix::unistd::getppid();
    let (turns, items) = mpsc::channel(exchange::WAITING);
    let worker = Arc::new(Worker {
        http: Http::new(args.servers.clone(), &args.token)?,
        recorder: Recorder::create(&args.history, &args.process)?,
        ledger: Arc::new(Mutex::new(Ledger::open(&args.ledger)?)),
        rng: Mutex::new(Rng::fork(args.seed, &args.process)),
        slots: Arc::new(Semaphore::new(args.slots)),
        turns,
        args,
    });
    let orphaned = async {
        while nix::unistd::getppid() == parent {
            sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::select! {
        ended = work(&worker) => ended,
        () = exchange::run(&worker, items) => Ok(()),
        () = orphaned => Ok(()),
    }
}

async fn work(worker: &Arc<Worker>) -> Result<()> {
    match worker.args.redis.clone() {
        Some(url) => direct::run(worker, &url).await,
        None => loop {
            let slot = Arc::clone(&worker.slots).acquire_owned().await.context("slots are never closed")?;
            worker.poll(slot).await;
        },
    }
}

impl Worker {
    fn draw<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.rng.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Any control plane: they are all the same.
    fn server(&self) -> usize {
        self.draw(|rng| rng.index(self.http.servers()))
    }

    /// Claims into this slot and whatever other slots are free.
    async fn poll(self: &Arc<Self>, slot: OwnedSemaphorePermit) {
        let mut slots = vec![slot];
        let wanted = self.draw(|rng| rng.between(1, 5));
        while (slots.len() as u64) < wanted {
            match Arc::clone(&self.slots).try_acquire_owned() {
                Ok(slot) => slots.push(slot),
                Err(_) => break,
            }
        }
        let mut queues = self.args.queues.clone();
        let first = self.draw(|rng| rng.index(queues.len()));
        queues.rotate_left(first);
        let claim_id = self.draw(|rng| rng.chance(60).then(|| format!("c{:x}", rng.draw())));
        // The shorter it waits, the better it is known when a grant was made.
        let wait_ms = self.draw(|rng| [0, 100, WAIT.as_millis() as u64][rng.index(3)]);
        let mut body = json!({"worker_id": self.args.name, "streams": queues, "max_jobs": slots.len(),
            "max_wait_ms": wait_ms});
        if let Some(claim_id) = &claim_id {
            body["claim_id"] = json!(claim_id);
        }
        // Without an id a lost answer is a lost job. With one it can be asked for again.
        let tries = if claim_id.is_some() { 4 } else { 1 };
        for _ in 0..tries {
            let (answer, jobs, _) = self.claim(&body, claim_id.as_deref(), None).await;
            for held in jobs {
                // A repeat cannot give more than was asked for.
                let slot = slots.pop();
                tokio::spawn(job::run(Arc::clone(self), held, slot));
            }
            match answer {
                Answer::Unknown { .. } | Answer::NotSent => sleep(Duration::from_millis(200)).await,
                // Nothing there, and it did not wait for it.
                Answer::Granted { jobs } if jobs.is_empty() && wait_ms < 100 => {
                    sleep(Duration::from_millis(50)).await;
                    return;
                }
                Answer::Granted { .. } if claim_id.is_some() && self.draw(|rng| rng.chance(3)) => {
                    // Once more, for nothing: the same jobs must come back.
                    self.claim(&body, claim_id.as_deref(), None).await;
                    return;
                }
                _ => return,
            }
        }
    }

    /// One claim, noted in the history.
    async fn claim(&self, body: &Value, claim_id: Option<&str>, job: Option<&str>) -> (Answer, Vec<Held>, Reply) {
        let mut body = body.clone();
        if let Some(incarnation) = &self.args.incarnation {
            body["incarnation"] = json!(incarnation);
        }
        let op = self.recorder.ask(Call::Claim {
            worker: self.args.name.clone(),
            incarnation: self.args.incarnation.clone(),
            claim_id: claim_id.map(ToOwned::to_owned),
            job: job.map(ToOwned::to_owned),
        });
        // Which process it is would be checked for all parts of an exchange.
        let together = job.is_none() && self.args.incarnation.is_none() && self.draw(|rng| rng.chance(25));
        let reply = if together {
            self.exchange("claim", &body).await
        } else {
            self.http.post(self.server(), "/internal/worker/claim", &body, WAIT).await
        };
        let mut held = Vec::new();
        let answer = reply.answer(|body| {
            held = jobs(body)?;
            Some(Answer::Granted { jobs: held.iter().map(|held| held.job.clone()).collect() })
        });
        self.recorder.answer(&op, &answer);
        (answer, held, reply)
    }

    /// Any other request of the contract, noted in the history.
    async fn send(
        &self,
        path: &str,
        body: &Value,
        call: Call,
        read: impl Fn(&Value) -> Option<Answer>,
    ) -> (Answer, Reply) {
        let op = self.recorder.ask(call);
        let reply = if self.draw(|rng| rng.chance(40)) {
            self.exchange(path.rsplit('/').next().unwrap_or_default(), body).await
        } else {
            self.http.post(self.server(), path, body, Duration::ZERO).await
        };
        let answer = reply.answer(read);
        self.recorder.answer(&op, &answer);
        (answer, reply)
    }

    /// Does the work. `None` when the ledger could not be written.
    async fn write_effect(&self, job: &Granted) -> Option<bool> {
        let effect = Effect {
            task: job.task.clone(),
            fence: job.fence,
            attempt: job.attempt,
            worker: self.args.process.clone(),
        };
        let ledger = Arc::clone(&self.ledger);
        let written =
            tokio::task::spawn_blocking(move || ledger.lock().unwrap_or_else(PoisonError::into_inner).write(&effect));
        written.await.ok()?.ok()
    }
}

/// The jobs of a claim's answer. `None` when it makes no sense.
fn jobs(body: &Value) -> Option<Vec<Held>> {
    if !body["claimed"].as_bool()? {
        return Some(Vec::new());
    }
    match body["jobs"].as_array() {
        Some(jobs) => jobs.iter().map(one_job).collect(),
        None => Some(vec![one_job(body)?]),
    }
}

fn one_job(job: &Value) -> Option<Held> {
    let text = |name: &str| job[name].as_str().map(ToOwned::to_owned);
    Some(Held {
        job: Granted {
            task: text("job_id")?,
            nonce: job["payload"]["nonce"].as_str()?.to_owned(),
            attempt: u32::try_from(job["attempt"].as_u64()?).ok()?,
            attempt_id: text("attempt_id")?,
            fence: job["fence"].as_u64()?,
            ttl_ms: job["lease_ttl_seconds"].as_u64()? * 1_000,
        },
        token: text("lease_token")?,
        stream: text("stream")?,
        message_id: text("message_id")?,
        read: None,
    })
}
