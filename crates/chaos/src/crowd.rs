//! Tasks of queues with limits: a crowd at a time, and one that must not wait until the crowd has gone.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::history::{Accepted, Answer, Call, Limited, MAX_BACKOFF_MS, Recorder, Submission};
use super::http::{Http, Reply};
use super::rng::Rng;
use super::system::{LIMITED, PACED};

/// Between two crowds.
const PAUSE: Duration = Duration::from_millis(3_500);

/// Tasks of a crowd.
const CROWD: usize = 12;

/// Tasks of a crowd in the queue with a rate.
const PACED_CROWD: usize = 7;

/// No crowd is submitted while this many tasks wait: under faults, tasks are served more slowly than they arrive.
const WAITING: u64 = 40;

pub struct Crowd {
    pub http: Http,
    pub recorder: Recorder,
    pub rng: Mutex<Rng>,
    pub ttl_s: u64,
}

impl Crowd {
    pub async fn run(self, end: Instant) {
        for number in 0.. {
            if Instant::now() > end {
                return;
            }
            if self.has_room(LIMITED).await {
                self.submit(number, Limited::Crowd, CROWD).await;
                self.submit(number, Limited::Loner, 1).await;
            }
            if self.has_room(PACED).await {
                self.submit(number, Limited::Paced, PACED_CROWD).await;
            }
            sleep(PAUSE).await;
        }
    }

    fn server(&self) -> usize {
        self.rng.lock().unwrap_or_else(PoisonError::into_inner).index(self.http.servers())
    }

    async fn has_room(&self, queue: &str) -> bool {
        match self.http.get(self.server(), &format!("/api/v1/queues/{queue}")).await {
            Reply::Told { status: 200, body } => body["counts"]["ready"].as_u64().is_some_and(|ready| ready < WAITING),
            _ => false,
        }
    }

    async fn submit(&self, number: u64, who: Limited, count: usize) {
        let (name, queue) = match who {
            Limited::Crowd => ("crowd", LIMITED),
            Limited::Loner => ("loner", LIMITED),
            Limited::Paced => ("paced", PACED),
        };
        let task = |index: usize| Submission {
            nonce: format!("{name}-{number}-{index}"),
            max_attempts: 4,
            backoff_ms: 50,
            limited: Some(who),
            ..Submission::default()
        };
        let tasks: Vec<Submission> = (0..count).map(task).collect();
        let body = |task: &Submission| {
            json!({"queue": queue, "operator": "chaos", "payload": {"nonce": task.nonce}, "tags": {"who": name},
                "max_attempts": task.max_attempts, "lease_ttl_seconds": self.ttl_s,
                "retry": {"initial_backoff_ms": task.backoff_ms, "max_backoff_ms": MAX_BACKOFF_MS, "jitter": "none"}})
        };
        let bodies: Vec<Value> = tasks.iter().map(body).collect();
        let op = self.recorder.ask(Call::Submit { tasks });
        let body = json!({"tasks": bodies});
        let reply = self.http.post(self.server(), "/api/v1/tasks/batch", &body, Duration::ZERO).await;
        let answer = reply.answer(|body| {
            let accepted = |task: &Value| {
                Some(Accepted { task: task["task_id"].as_str()?.to_owned(), created: task["created"].as_bool()? })
            };
            let tasks: Vec<Accepted> = body["tasks"].as_array()?.iter().map(accepted).collect::<Option<_>>()?;
            (tasks.len() == count).then_some(Answer::Submitted { tasks })
        });
        self.recorder.answer(&op, &answer);
    }
}
