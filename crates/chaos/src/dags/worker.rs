//! A worker process of the dispatch contract that behaves as badly as workers do.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, sleep_until};

use super::TTL_MS;
use super::history::{Answer, Call, Recorder, range};
use crate::http::{Http, Reply};
use crate::rng::Rng;

/// How often a report without an answer is sent again.
const TRIES: usize = 8;

/// How one worker process is set up.
#[derive(Debug, Clone, clap::Args)]
pub struct DispatchArgs {
    /// Names this process in the history, and is its worker id.
    #[arg(long)]
    pub process: String,
    #[arg(long)]
    pub seed: u64,
    #[arg(long = "server", required = true)]
    pub servers: Vec<String>,
    /// Folder of the histories.
    #[arg(long)]
    pub history: PathBuf,
    #[arg(long)]
    pub token: String,
    /// Tasks at a time.
    #[arg(long)]
    pub slots: usize,
}

struct Worker {
    args: DispatchArgs,
    http: Http,
    recorder: Recorder,
    rng: Mutex<Rng>,
}

/// What will happen to a task, drawn when it starts.
#[derive(Debug, Clone, Copy)]
struct Manners {
    works_for: Duration,
    beats: bool,
    /// Goes on although it was told that the attempt is not its own any longer.
    deaf: bool,
    tells: bool,
    /// Says nothing at the end.
    silent: bool,
    /// Sends the same again, after this time.
    again: Option<Duration>,
    /// Speaks as the code of the task, not as the wrapper.
    as_task: bool,
}

impl Manners {
    fn draw(rng: &mut Rng) -> Self {
        let works_for = match rng.between(0, 100) {
            0..70 => rng.between(1, 60),
            70..90 => rng.between(60, TTL_MS),
            _ => rng.between(TTL_MS, TTL_MS * 2),
        };
        Self {
            works_for: Duration::from_millis(works_for),
            beats: rng.chance(80),
            deaf: rng.chance(40),
            tells: rng.chance(40),
            silent: rng.chance(4),
            again: rng.chance(20).then(|| Duration::from_millis(rng.between(0, TTL_MS * 2))),
            as_task: rng.chance(50),
        }
    }
}

/// Works until it is killed.
pub async fn run(args: DispatchArgs) -> Result<()> {
    let parent = nix::unistd::getppid();
    let worker = Arc::new(Worker {
        http: Http::plain(args.servers.clone())?,
        recorder: Recorder::create(&args.history, &args.process)?,
        rng: Mutex::new(Rng::fork(args.seed, &args.process)),
        args,
    });
    let orphaned = async {
        while nix::unistd::getppid() == parent {
            sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::select! {
        ended = worker.work() => ended,
        () = orphaned => Ok(()),
    }
}

impl Worker {
    fn draw<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.rng.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn server(&self) -> usize {
        self.draw(|rng| rng.index(self.http.servers()))
    }

    async fn as_wrapper(&self, path: &str, body: Option<&Value>) -> Reply {
        self.http.send(self.server(), path, ("X-Trace-Worker-Token", &self.args.token), body).await
    }

    async fn work(self: &Arc<Self>) -> Result<()> {
        let slots = Arc::new(Semaphore::new(self.args.slots));
        loop {
            let woken = self.as_wrapper("/internal/task-wakeups?queue=worker&max=10&wait_seconds=1", None).await;
            let tasks = match &woken {
                Reply::Told { status: 200, body } => body["messages"].as_array().cloned().unwrap_or_default(),
                _ => {
                    sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            for task in tasks.iter().filter_map(|message| message["task_id"].as_str()) {
                let slot = Arc::clone(&slots).acquire_owned().await.context("slots are never closed")?;
                let (worker, task) = (Arc::clone(self), task.to_owned());
                tokio::spawn(async move {
                    worker.run_task(&task).await;
                    drop(slot);
                });
            }
        }
    }

    async fn run_task(&self, task: &str) {
        let Some(claim) = self.claim(task).await else { return };
        let manners = self.draw(Manners::draw);
        let body = json!({"task_id": task, "attempt": claim["attempt"], "lease_token": claim["lease_token"]});
        if manners.tells {
            self.tell(&claim, &body, &manners).await;
        }
        if !self.hold(&claim, &body, &manners).await && !manners.deaf || manners.silent {
            return;
        }
        let done = self.complete(&claim, &body, &manners, TRIES).await;
        if let Some(pause) = manners.again {
            sleep(pause).await;
            self.complete(&claim, &body, &manners, 1).await;
            if manners.tells && !done.is_open() {
                self.tell(&claim, &body, &manners).await;
            }
        }
    }

    async fn claim(&self, task: &str) -> Option<Value> {
        let claim_id = format!("c{:x}", self.draw(Rng::draw));
        let body = json!({"task_id": task, "worker_id": self.args.process, "claim_id": claim_id});
        for _ in 0..4 {
            let call = Call::Claim { task: task.to_owned(), worker: self.args.process.clone() };
            let op = self.recorder.ask(call);
            let reply = self.as_wrapper("/internal/task-claim", Some(&body)).await;
            let answer = Answer::of(&reply, |body| match body["status"].as_str()? {
                "Claimed" => {
                    Some(Answer::Claimed { attempt: body["attempt"].as_u64()?, fence: body["fence"].as_u64()? })
                }
                _ => Some(Answer::NotClaimed { reason: body["reason"].as_str()?.to_owned() }),
            });
            self.recorder.answer(&op, &answer);
            match (&answer, reply) {
                (Answer::Claimed { .. }, Reply::Told { body, .. }) => return Some(body),
                (open, _) if open.is_open() => sleep(Duration::from_millis(200)).await,
                _ => return None,
            }
        }
        None
    }

    /// Sends what the holder of an attempt says, by one of the two ways.
    async fn say(&self, claim: &Value, what: (&str, &str), body: &Value, manners: &Manners) -> Reply {
        let capability = claim["capability_token"].as_str().unwrap_or_default();
        if manners.as_task {
            let path = format!("/v1/task/{}", what.0);
            return self.http.send(self.server(), &path, ("X-Trace-Task-Capability", capability), Some(body)).await;
        }
        self.as_wrapper(&format!("/internal/{}", what.1), Some(body)).await
    }

    /// Tells of something that no other attempt writes.
    async fn tell(&self, claim: &Value, body: &Value, manners: &Manners) {
        let Some(output) = claim["task"]["outputs"].as_array().and_then(|outputs| outputs.last()) else { return };
        let (task, attempt) = (claim["task_id"].as_str().unwrap_or_default().to_owned(), number(&claim["attempt"]));
        let mut body = body.clone();
        body["events"] = json!([{"dataset_uuid": output["dataset_uuid"], "dataset_version": output["dataset_version"],
            "partition_key": format!("{task}.{attempt}")}]);
        let op = self.recorder.ask(Call::Tell { task, attempt });
        let reply = self.say(claim, ("events", "events"), &body, manners).await;
        self.recorder.answer(&op, &Answer::of(&reply, |_| Some(Answer::Told)));
    }

    /// Works and, unless it forgets to, sends heartbeats. Whether it still holds the attempt as far as it knows.
    async fn hold(&self, claim: &Value, body: &Value, manners: &Manners) -> bool {
        let end = Instant::now() + manners.works_for;
        let beat = Duration::from_millis(TTL_MS / 4);
        let mut next = Instant::now() + beat;
        while manners.beats && next < end {
            sleep_until(next).await;
            next += beat;
            if let Reply::Told { status: 409, body } = self.say(claim, ("heartbeat", "heartbeat"), body, manners).await
                && body["error"] != "lease_expired"
            {
                return false;
            }
        }
        sleep_until(end).await;
        true
    }

    async fn complete(&self, claim: &Value, body: &Value, manners: &Manners, tries: usize) -> Answer {
        let mut body = body.clone();
        body["status"] = json!("Completed");
        body["outputs"] = json!(written(&claim["task"]));
        let (task, attempt) = (claim["task_id"].as_str().unwrap_or_default().to_owned(), number(&claim["attempt"]));
        let mut last = Answer::NotSent;
        for turn in 0..tries {
            let op = self.recorder.ask(Call::Complete { task: task.clone(), attempt });
            let reply = self.say(claim, ("complete", "task-complete"), &body, manners).await;
            last = Answer::of(&reply, |body| (body["status"] == "Completed").then_some(Answer::Completed));
            self.recorder.answer(&op, &last);
            if !last.is_open() {
                break;
            }
            sleep(Duration::from_millis(100 << turn.min(4))).await;
        }
        last
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

/// The outputs of a task, which follow from its input alone.
fn written(task: &Value) -> Vec<Value> {
    let output = |index: usize, at: (&str, Value)| {
        let output = &task["outputs"][index];
        json!({"output_index": index, "dataset_uuid": output["dataset_uuid"], "dataset_version": output["dataset_version"],
            "location": "none:", at.0: at.1})
    };
    let input = &task["inputs"][0];
    match task["operator"].as_str() {
        Some("import") => {
            let n = number(&task["trigger"]["input"]["n"]);
            vec![output(0, ("partition_key", json!(range(n)))), output(1, ("cursor", json!(n)))]
        }
        Some("decode") => vec![output(0, ("partition_key", input["partition"]["partition_key"].clone()))],
        Some("tail") => vec![output(0, ("cursor", input["cursor"]["upto"].clone()))],
        _ => Vec::new(),
    }
}
