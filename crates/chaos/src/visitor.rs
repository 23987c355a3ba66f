//! One that knocks at doors: tasks of another tenant, keys that were revoked, and runs whose last task depends on the others.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::history::{Accepted, Answer, Call, MAX_BACKOFF_MS, Recorder, Submission};
use super::http::{Http, Reply};
use super::rng::Rng;
use super::system::{ADMIN_KEY, QUEUES};

/// Between two visits.
const PAUSE: Duration = Duration::from_millis(250);

/// Nobody works on this queue: its tasks are canceled.
pub const OWN_QUEUE: &str = "chaos-visits";

/// Tasks of a run before its last one.
const FIRST: usize = 2;

/// How often something is tried that has to be known, at most: longer than any fault.
const TRIES: usize = 400;

pub struct Visitor {
    /// Without a credential of its own.
    pub http: Http,
    pub recorder: Recorder,
    pub rng: Mutex<Rng>,
    pub ttl_s: u64,
}

impl Visitor {
    pub async fn run(self, end: Instant) {
        let server = self.draw(|rng| rng.index(self.http.servers()));
        let (Some((_, red)), Some((_, blue))) = (self.key(server, "red").await, self.key(server, "blue").await) else {
            return;
        };
        for number in 0.. {
            if Instant::now() > end {
                return;
            }
            self.trespass(server, &red, &blue, number).await;
            self.knock(server).await;
            self.submit_run(number).await;
            sleep(PAUSE).await;
        }
    }

    fn draw<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.rng.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sends it until the server has spoken.
    async fn told(&self, server: usize, path: &str, key: &str, body: Option<&Value>) -> Option<(u16, Value)> {
        for _ in 0..TRIES {
            if let Reply::Told { status, body } = self.http.send(server, path, ("x-api-key", key), body).await {
                return Some((status, body));
            }
            sleep(PAUSE).await;
        }
        None
    }

    /// A new key of a tenant: its id, and the key.
    async fn key(&self, server: usize, tenant: &str) -> Option<(String, String)> {
        let wanted = json!({"name": "chaos", "role": "api", "tenant": tenant});
        let (_, made) = self.told(server, "/api/v1/admin/api-keys", ADMIN_KEY, Some(&wanted)).await?;
        Some((made["id"].as_str()?.to_owned(), made["key"].as_str()?.to_owned()))
    }

    /// A task of one tenant, which another tries to see and to cancel.
    async fn trespass(&self, server: usize, red: &str, blue: &str, number: u64) {
        let submission = Submission { nonce: format!("visit-{number}"), max_attempts: 1, ..Submission::default() };
        let body = json!({"queue": OWN_QUEUE, "operator": "chaos", "payload": {"nonce": submission.nonce},
            "idempotency_key": submission.nonce, "max_attempts": 1, "delay_ms": 600_000});
        let submission = Submission { key: Some(submission.nonce.clone()), delay_ms: 600_000, ..submission };
        let op = self.recorder.ask(Call::Submit { tasks: vec![submission] });
        let Some((status, told)) = self.told(server, "/api/v1/tasks", red, Some(&body)).await else { return };
        let (Some(task), Some(created)) = (told["task_id"].as_str(), told["created"].as_bool()) else {
            let error = told["error"].as_str().unwrap_or_default().to_owned();
            self.recorder.answer(&op, &Answer::Refused { status, error });
            return;
        };
        self.recorder.answer(&op, &Answer::Submitted { tasks: vec![Accepted { task: task.to_owned(), created }] });
        let path = format!("/api/v1/tasks/{task}");
        let cancel = format!("{path}/cancel");
        let cancels = json!({"reason": "chaos", "mode": "immediate"});
        for (path, body) in [(&path, None), (&cancel, Some(&cancels))] {
            let op = self.recorder.ask(Call::Trespass { task: task.to_owned() });
            let reply = self.http.send(server, path, ("x-api-key", blue), body).await;
            self.recorder.answer(&op, &reply.answer(|body| Some(Answer::Reported { body: body.clone() })));
        }
        let op = self.recorder.ask(Call::Cancel { task: task.to_owned(), immediate: true });
        if let Some((status, told)) = self.told(server, &cancel, red, Some(&cancels)).await {
            let error = told["error"].as_str().unwrap_or_default().to_owned();
            let canceled = told["state"].as_str().map(|state| Answer::Canceled { state: state.to_owned() });
            self.recorder.answer(&op, &canceled.unwrap_or(Answer::Refused { status, error }));
        }
    }

    /// A key that works, and does not after it was revoked.
    async fn knock(&self, server: usize) {
        let Some((id, key)) = self.key(server, "green").await else { return };
        let path = "/api/v1/tasks?limit=1";
        if !matches!(self.told(server, path, &key, None).await, Some((200, _))) {
            return;
        }
        let revoked = self.http.delete(server, &format!("/api/v1/admin/api-keys/{id}"), ("x-api-key", ADMIN_KEY)).await;
        if !matches!(revoked, Reply::Told { status, .. } if status < 300) {
            return;
        }
        let op = self.recorder.ask(Call::Knock);
        let reply = self.http.send(server, path, ("x-api-key", &key), None).await;
        self.recorder.answer(&op, &reply.answer(|body| Some(Answer::Reported { body: body.clone() })));
    }

    /// Some tasks, and one that depends on all of them.
    async fn submit_run(&self, number: u64) {
        let member = |index: usize| Submission {
            nonce: format!("run-{number}-{index}"),
            max_attempts: 4,
            backoff_ms: 50,
            ..Submission::default()
        };
        let tasks: Vec<Submission> = (0..=FIRST).map(member).collect();
        let bodies: Vec<Value> = tasks.iter().enumerate().map(|(index, task)| self.member(index, task)).collect();
        let body = json!({"run_key": format!("run-{number}"), "tasks": bodies});
        let op = self.recorder.ask(Call::Run { tasks });
        let server = self.draw(|rng| rng.index(self.http.servers()));
        let reply = self.http.send(server, "/api/v1/runs", ("x-api-key", ADMIN_KEY), Some(&body)).await;
        self.recorder.answer(&op, &reply.answer(|_| Some(Answer::Submitted { tasks: Vec::new() })));
    }

    fn member(&self, index: usize, task: &Submission) -> Value {
        let queue = QUEUES[self.draw(|rng| rng.index(QUEUES.len()))];
        let before: Vec<String> = if index == FIRST { (0..FIRST).map(|n| n.to_string()).collect() } else { Vec::new() };
        json!({"key": index.to_string(), "depends_on": before, "queue": queue, "operator": "chaos",
            "payload": {"nonce": task.nonce}, "max_attempts": task.max_attempts, "lease_ttl_seconds": self.ttl_s,
            "retry": {"initial_backoff_ms": task.backoff_ms, "max_backoff_ms": MAX_BACKOFF_MS, "jitter": "none"}})
    }
}
