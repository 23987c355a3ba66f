//! One that watches the stream of events, goes away, and comes back with the last id that it got.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::checker::{Seen, Stream};
use super::history::{Accepted, Answer, Call, Recorder, Submission};
use super::http::Http;
use super::rng::Rng;
use super::system::ADMIN_KEY;
use super::visitor::OWN_QUEUE;

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(2);

/// Before it tries again.
const PAUSE: Duration = Duration::from_millis(100);

/// How long a mark may take to be seen while nothing is broken, on a busy machine.
const MARK: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Watcher {
    name: String,
    client: reqwest::Client,
    servers: Vec<String>,
    /// How long it stays connected, at most.
    stays: Duration,
    rng: Mutex<Rng>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last: Option<String>,
    seen: Vec<Seen>,
    problems: Vec<String>,
}

impl Watcher {
    pub fn new(name: &str, servers: Vec<String>, stays: Duration, seed: u64) -> Arc<Self> {
        let (rng, state) = (Mutex::new(Rng::fork(seed, name)), Mutex::default());
        let client = reqwest::Client::new();
        Arc::new(Self { name: name.to_owned(), client, servers, stays, rng, state })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches for ever.
    pub async fn run(self: Arc<Self>) {
        loop {
            let (server, stays_ms) = {
                let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
                let longest = self.stays.as_millis() as u64;
                (rng.index(self.servers.len()), rng.between(longest / 4, longest))
            };
            // A stream that breaks in the middle of an event is one more reason to come back.
            let _ = self.watch(server, Duration::from_millis(stays_ms)).await;
            sleep(PAUSE).await;
        }
    }

    async fn watch(&self, server: usize, stays: Duration) -> Result<()> {
        let mut request =
            self.client.get(format!("{}/api/v1/events", self.servers[server])).header("x-api-key", ADMIN_KEY);
        if let Some(last) = &self.state().last {
            request = request.header("last-event-id", last);
        }
        let mut response = timeout(CONNECT, request.send()).await??;
        let status = response.status().as_u16();
        // Connections that were left open count until the control plane notices.
        if (400..500).contains(&status) && status != 429 {
            self.state().problems.push(format!("it was refused with {status}"));
        }
        if status != 200 {
            bail!("refused with {status}");
        }
        let until = Instant::now() + stays;
        let mut text = Vec::new();
        while let Ok(chunk) = timeout_at(until, response.chunk()).await {
            let Some(chunk) = chunk? else { break };
            text.extend_from_slice(&chunk);
            while let Some(end) = text.windows(2).position(|two| two == b"\n\n") {
                let event: Vec<u8> = text.drain(..end + 2).collect();
                self.take(&String::from_utf8_lossy(&event));
            }
        }
        Ok(())
    }

    /// One event, or a comment that keeps the connection alive.
    fn take(&self, event: &str) {
        let field =
            |name: &str| event.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
        let Some(id) = field("id") else { return };
        let mut state = self.state();
        state.last = Some(id.to_owned());
        let data: Value = field("data").and_then(|data| serde_json::from_str(data).ok()).unwrap_or_default();
        let number = id.split_once('-').and_then(|(batch, index)| Some((batch.parse().ok()?, index.parse().ok()?)));
        let (Some(id), Some(name)) = (number, field("event")) else {
            state.problems.push(format!("cannot be read: {event:?}"));
            return;
        };
        let text = |name: &str| data[name].as_str().unwrap_or_default().into();
        let attempt = data["attempt"].as_u64().and_then(|attempt| u32::try_from(attempt).ok()).unwrap_or_default();
        let kind = if name == "reset" { "reset".into() } else { text("kind") };
        state.seen.push(Seen { id, kind, task: text("task_id"), state: text("state"), attempt });
    }

    fn has_seen(&self, task: &str) -> bool {
        self.state().seen.iter().rev().any(|seen| &*seen.task == task && &*seen.kind == "submitted")
    }

    /// What it has seen so far. `complete`: whether the last thing that happened is among it.
    pub fn stream(&self, complete: bool) -> Stream {
        let mut state = self.state();
        let (seen, problems) = (std::mem::take(&mut state.seen), std::mem::take(&mut state.problems));
        Stream { name: self.name.clone(), seen, problems, complete }
    }
}

/// Makes something happen, and waits until every watcher has seen it. Whether each of them has.
pub async fn mark(http: &Http, recorder: &Recorder, name: &str, watchers: &[Arc<Watcher>]) -> Vec<bool> {
    let until = Instant::now() + MARK;
    let mut marks: Vec<String> = Vec::new();
    loop {
        // One that was made before a watcher had its first connection is not seen by it.
        if marks.len() < MARK.as_secs() as usize && Instant::now() < until {
            marks.extend(make(http, recorder, &format!("{name}-{}", marks.len())).await);
        }
        let again = Instant::now() + Duration::from_secs(1);
        loop {
            let seen: Vec<bool> =
                watchers.iter().map(|watcher| marks.iter().any(|mark| watcher.has_seen(mark))).collect();
            if seen.iter().all(|seen| *seen) || Instant::now() > until {
                return seen;
            }
            if Instant::now() > again {
                break;
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
}

/// A task that is submitted and canceled.
async fn make(http: &Http, recorder: &Recorder, name: &str) -> Option<String> {
    let key = Some(name.to_owned());
    let submission =
        Submission { nonce: name.to_owned(), key, max_attempts: 1, delay_ms: 600_000, ..Submission::default() };
    let body = json!({"queue": OWN_QUEUE, "operator": "chaos", "payload": {"nonce": name}, "idempotency_key": name,
        "max_attempts": 1, "delay_ms": submission.delay_ms});
    let op = recorder.ask(Call::Submit { tasks: vec![submission] });
    let reply = http.post(0, "/api/v1/tasks", &body, Duration::ZERO).await;
    let mut id = None;
    let answer = reply.answer(|body| {
        let task = body["task_id"].as_str()?.to_owned();
        id = Some(task.clone());
        Some(Answer::Submitted { tasks: vec![Accepted { task, created: body["created"].as_bool()? }] })
    });
    recorder.answer(&op, &answer);
    let task = id?;
    let op = recorder.ask(Call::Cancel { task: task.clone(), immediate: true });
    let body = json!({"reason": "chaos", "mode": "immediate"});
    let reply = http.post(0, &format!("/api/v1/tasks/{task}/cancel"), &body, Duration::ZERO).await;
    let answer = reply.answer(|body| Some(Answer::Canceled { state: body["state"].as_str()?.to_owned() }));
    recorder.answer(&op, &answer);
    Some(task)
}
