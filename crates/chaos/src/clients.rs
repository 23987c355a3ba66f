//! Those who submit, cancel, retry and look.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::history::{Accepted, Answer, Call, MAX_BACKOFF_MS, Recorder, Submission, now};
use super::http::{Http, Reply};
use super::rng::Rng;
use super::system::QUEUES;

/// Requests of one client that wait for an answer at a time.
const OPEN: usize = 64;

/// How often a submit with a key is sent again.
const TRIES: usize = 12;

/// Ids that a client remembers to cancel, retry and look at.
const KNOWN: usize = 400;

/// Before the second attempt, without jitter: so it can be checked.
const BACKOFF_MS: u64 = 200;

/// Wall-clock time this many milliseconds from now.
fn wall_clock(in_ms: u64) -> String {
    let in_ms = i64::try_from(in_ms).unwrap_or(i64::MAX);
    jiff::Timestamp::now()
        .saturating_add(jiff::SignedDuration::from_millis(in_ms))
        .map_or_else(|error| error.to_string(), |at| format!("{at:.3}"))
}

/// A client in the process of the run.
#[derive(Debug)]
pub struct Client {
    pub name: String,
    pub http: Http,
    pub recorder: Recorder,
    pub rng: Mutex<Rng>,
    known: Mutex<Vec<String>>,
    count: AtomicU64,
    ttl_s: u64,
}

impl Client {
    pub fn new(name: &str, http: Http, recorder: Recorder, seed: u64, ttl_ms: u64) -> Arc<Self> {
        let rng = Mutex::new(Rng::fork(seed, name));
        let (known, count) = (Mutex::default(), AtomicU64::new(0));
        Arc::new(Self { name: name.to_owned(), http, recorder, rng, known, count, ttl_s: ttl_ms / 1_000 })
    }

    /// Submits `rate` tasks per second and does other things beside it, until `end`.
    pub async fn run(self: Arc<Self>, rate: f64, end: Instant, submitted: Arc<AtomicU64>) {
        let open = Arc::new(Semaphore::new(OPEN));
        let mut all = JoinSet::new();
        while Instant::now() < end {
            let count = self.draw(|rng| if rng.chance(85) { 1 } else { rng.between(2, 9) });
            submitted.fetch_add(count, Ordering::Relaxed);
            if let Ok(permit) = Arc::clone(&open).acquire_owned().await {
                let client = Arc::clone(&self);
                all.spawn(async move {
                    client.submit(count, end).await;
                    client.meddle().await;
                    drop(permit);
                });
            }
            while all.try_join_next().is_some() {}
            sleep(Duration::from_secs_f64(count as f64 / rate)).await;
        }
        while all.join_next().await.is_some() {}
    }

    fn draw<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.rng.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn server(&self) -> usize {
        self.draw(|rng| rng.index(self.http.servers()))
    }

    /// A new task: what goes into the history and what goes to the server.
    fn task(&self) -> (Submission, Value) {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let (keyed, max_attempts, delay_ms, queue, deadline_ms) = self.draw(|rng| {
            let delay_ms = if rng.chance(10) { rng.between(50, 2_000) } else { 0 };
            let deadline_ms = rng.chance(8).then(|| rng.between(300, 5_000));
            (rng.chance(60), rng.between(2, 6), delay_ms, QUEUES[rng.index(QUEUES.len())], deadline_ms)
        });
        let nonce = format!("{}-{number}", self.name);
        let key = keyed.then(|| format!("key-{nonce}"));
        let max_attempts = max_attempts as u32;
        let submission =
            Submission { nonce, key, max_attempts, delay_ms, backoff_ms: BACKOFF_MS, ..Submission::default() };
        let mut body = self.body(&submission, queue);
        let deadline = deadline_ms.map(|ms| {
            body["deadline"] = json!(wall_clock(ms));
            now() + ms * 1_000_000
        });
        (Submission { deadline, ..submission }, body)
    }

    fn body(&self, submission: &Submission, queue: &str) -> Value {
        let mut body = json!({"queue": queue, "operator": "chaos", "payload": {"nonce": submission.nonce},
            "max_attempts": submission.max_attempts, "lease_ttl_seconds": self.ttl_s,
            "retry": {"initial_backoff_ms": submission.backoff_ms, "max_backoff_ms": MAX_BACKOFF_MS, "factor": 2.0,
                "jitter": "none"}});
        if submission.delay_ms > 0 {
            body["delay_ms"] = json!(submission.delay_ms);
        }
        if let Some(key) = &submission.key {
            body["idempotency_key"] = json!(key);
        }
        body
    }

    async fn submit(&self, count: u64, end: Instant) {
        let (tasks, bodies): (Vec<Submission>, Vec<Value>) = (0..count).map(|_| self.task()).unzip();
        // Sent again without a key it would be another task.
        let keyed = tasks.iter().all(|task| task.key.is_some());
        let mut answer = Answer::NotSent;
        for attempt in 0..TRIES {
            answer = self.send_submit(&tasks, &bodies).await;
            let again = match answer {
                Answer::NotSent => true,
                Answer::Unknown { .. } => keyed,
                _ => false,
            };
            if !again || Instant::now() > end {
                break;
            }
            sleep(Duration::from_millis(100 << attempt.min(4))).await;
        }
        if let Answer::Submitted { tasks } = &answer {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            known.extend(tasks.iter().map(|accepted| accepted.task.clone()));
            let surplus = known.len().saturating_sub(KNOWN);
            known.drain(..surplus);
        }
        // The same key on purpose: with the same content it is the same task, with other content it is refused.
        if keyed && self.draw(|rng| rng.chance(6)) {
            self.send_submit(&tasks, &bodies).await;
        }
        if keyed && count == 1 && self.draw(|rng| rng.chance(3)) {
            let other = Submission { nonce: format!("{}-other", tasks[0].nonce), deadline: None, ..tasks[0].clone() };
            let body = self.body(&other, QUEUES[0]);
            self.send_submit(&[other], &[body]).await;
        }
    }

    async fn send_submit(&self, tasks: &[Submission], bodies: &[Value]) -> Answer {
        let op = self.recorder.ask(Call::Submit { tasks: tasks.to_vec() });
        let reply = match bodies {
            [body] => self.http.post(self.server(), "/api/v1/tasks", body, Duration::ZERO).await,
            _ => {
                let body = json!({"tasks": bodies});
                self.http.post(self.server(), "/api/v1/tasks/batch", &body, Duration::ZERO).await
            }
        };
        let answer = reply.answer(|body| {
            let accepted = |task: &Value| {
                Some(Accepted { task: task["task_id"].as_str()?.to_owned(), created: task["created"].as_bool()? })
            };
            let tasks: Vec<Accepted> = match body["tasks"].as_array() {
                Some(tasks) => tasks.iter().map(accepted).collect::<Option<_>>()?,
                None => vec![accepted(body)?],
            };
            (tasks.len() == bodies.len()).then_some(Answer::Submitted { tasks })
        });
        self.recorder.answer(&op, &answer);
        answer
    }

    /// Now and then something is done to a task that this client knows.
    async fn meddle(&self) {
        let task = self.draw(|rng| {
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            rng.pick(&known).cloned()
        });
        let Some(task) = task else { return };
        match self.draw(|rng| rng.between(0, 100)) {
            0..5 => self.cancel(task).await,
            5..8 => self.retry(task).await,
            8..28 => {
                let seen = self.read(task.clone()).await;
                let ended = matches!(&seen, Answer::Seen { state, .. } if state == "Failed" || state == "Canceled");
                match self.draw(|rng| rng.between(0, 100)) {
                    0..35 if ended => self.retry(task).await,
                    35..75 if ended => self.redrive(task).await,
                    _ => {}
                }
            }
            28..40 => self.revive().await,
            _ => {}
        }
    }

    /// Redrives a dead letter of its own.
    async fn revive(&self) {
        let queue = QUEUES[self.draw(|rng| rng.index(QUEUES.len()))];
        let list = self.http.get(self.server(), &format!("/api/v1/dead-letters?queue={queue}&limit=200")).await;
        let Reply::Told { status: 200, body } = list else { return };
        let dead = body["items"].as_array().into_iter().flatten().filter_map(|task| task["task_id"].as_str());
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let dead: Vec<String> = dead.map(ToOwned::to_owned).filter(|task| known.contains(task)).collect();
        let Some(task) = self.draw(|rng| rng.pick(&dead).cloned()) else { return };
        self.read(task.clone()).await;
        self.redrive(task).await;
    }

    async fn cancel(&self, task: String) {
        let immediate = self.draw(|rng| rng.chance(30));
        let mode = if immediate { "immediate" } else { "cooperative" };
        let path = format!("/api/v1/tasks/{task}/cancel");
        let op = self.recorder.ask(Call::Cancel { task, immediate });
        let body = json!({"reason": "chaos", "mode": mode});
        let reply = self.http.post(self.server(), &path, &body, Duration::ZERO).await;
        let answer = reply.answer(|body| Some(Answer::Canceled { state: body["state"].as_str()?.to_owned() }));
        self.recorder.answer(&op, &answer);
    }

    async fn retry(&self, task: String) {
        let path = format!("/api/v1/tasks/{task}/retry");
        let op = self.recorder.ask(Call::Retry { task });
        let reply = self.http.post(self.server(), &path, &json!({}), Duration::ZERO).await;
        let answer = reply.answer(|body| {
            let number = |name: &str| u32::try_from(body[name].as_u64()?).ok();
            Some(Answer::Retried { attempt: number("attempt")?, max_attempts: number("max_attempts")? })
        });
        self.recorder.answer(&op, &answer);
    }

    /// Of this task, and of some that may not be dead letters.
    async fn redrive(&self, task: String) {
        let mut tasks = vec![task];
        self.draw(|rng| {
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            tasks.extend((0..3).filter_map(|_| rng.pick(&known).cloned()));
        });
        tasks.sort_unstable();
        tasks.dedup();
        let body = json!({"filter": {"task_ids": tasks}});
        let op = self.recorder.ask(Call::Redrive { tasks });
        let reply = self.http.post(self.server(), "/api/v1/dead-letters/redrive", &body, Duration::ZERO).await;
        let answer = reply.answer(|body| Some(Answer::Redriving { redrive: body["redrive_id"].as_str()?.to_owned() }));
        self.recorder.answer(&op, &answer);
    }

    async fn read(&self, task: String) -> Answer {
        let path = format!("/api/v1/tasks/{task}");
        let op = self.recorder.ask(Call::Read { task });
        let answer = self.http.get(self.server(), &path).await.answer(|body| {
            let state = body["state"].as_str()?.to_owned();
            let attempt = u32::try_from(body["attempt"].as_u64()?).ok()?;
            Some(Answer::Seen { state, attempt, fence: body["fence"].as_u64()? })
        });
        self.recorder.answer(&op, &answer);
        answer
    }
}
