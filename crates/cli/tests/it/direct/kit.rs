use std::sync::Arc;
use std::time::Duration;

use redis::FromRedisValue;
use tenure_client::{Client, TaskContext, TaskError, TaskSubmission, Worker, WorkerError};
use tenure_testkit::{Redis, Tenure, wait_until};
use tenure_transport::redis::{RedisConfig, RedisTransport};
use tenure_transport::{Transport, WakeUp};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub const PATIENCE: Duration = Duration::from_secs(60);

/// A control plane that knows nothing of the Redis beside it: the test publishes wake-ups as it likes.
pub struct Site {
    pub server: Tenure,
    pub redis: Redis,
    pub client: Client,
}

impl Site {
    pub async fn start() -> Self {
        let (server, redis) = tokio::join!(Tenure::serve(&[]), Redis::start());
        let client = Client::builder(server.url()).build().unwrap();
        Self { server, redis, client }
    }

    /// A control plane that publishes to the Redis, with these variables more.
    pub async fn start_publishing(variables: &[(&str, &str)]) -> Self {
        let redis = Redis::start().await;
        let server = Tenure::serve_with(&[], |command| {
            command.env("TENURE_REDIS__URL", redis.url()).env("TENURE_TRANSPORT__DEFAULT", "redis");
            command.envs(variables.iter().copied());
        })
        .await;
        let client = Client::builder(server.url()).build().unwrap();
        Self { server, redis, client }
    }

    pub fn token(&self) -> String {
        std::fs::read_to_string(self.server.data().join("worker-token")).unwrap().trim().to_owned()
    }

    pub fn transport(&self, consumer: &str) -> Arc<RedisTransport> {
        let config = RedisConfig { url: self.redis.url(), consumer: consumer.to_owned(), ..RedisConfig::default() };
        Arc::new(RedisTransport::new(config).unwrap())
    }

    /// A worker of the queue `q` that is woken by the Redis.
    pub fn worker(&self) -> Worker {
        Worker::new(self.server.url())
            .token(self.token())
            .queues(["q"])
            .poll_wait(Duration::from_secs(60))
            .wake_by(self.transport("worker"))
            .operator("echo", echo)
    }

    pub async fn submit(&self, operator: &str, lease_ttl_seconds: i64) -> String {
        let task = TaskSubmission {
            queue: "q".into(),
            operator: operator.into(),
            payload: Some(serde_json::json!({"ms": 600_000}).into()),
            lease_ttl_seconds: Some(lease_ttl_seconds),
            ..TaskSubmission::default()
        };
        self.client.submit(&task).await.unwrap().task_id
    }

    pub async fn publish(&self, tasks: &[&str]) {
        let wakes: Vec<_> =
            tasks.iter().map(|task| WakeUp { queue: "q".into(), task: (*task).into(), enqueue: 1 }).collect();
        for published in self.transport("test").publish(&wakes).await.unwrap() {
            published.unwrap();
        }
    }

    pub async fn state(&self, task: &str) -> String {
        self.client.get(task).await.unwrap().state.to_string()
    }

    pub async fn until(&self, task: &str, state: &str) {
        wait_until(&format!("task {task} is {state}"), PATIENCE, async || self.state(task).await == state).await;
    }

    /// Runs a command, its words as given.
    pub fn run<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let mut connection = redis::Client::open(self.redis.url()).unwrap().get_connection().unwrap();
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query(&mut connection).unwrap()
    }

    /// How many entries the stream has, and how many of them were delivered and not settled.
    pub fn entries(&self) -> (usize, usize) {
        let length: usize = self.run(&["XLEN", "q"]);
        // Without a group nothing was delivered.
        let groups: Vec<redis::Value> = if length == 0 { Vec::new() } else { self.run(&["XINFO", "GROUPS", "q"]) };
        let pending: Vec<redis::Value> = match groups.is_empty() {
            true => Vec::new(),
            false => self.run(&["XPENDING", "q", "tenure", "-", "+", "1000"]),
        };
        (length, pending.len())
    }

    pub async fn until_entries(&self, expected: (usize, usize)) {
        let what = format!("the stream has {expected:?} entries");
        wait_until(&what, PATIENCE, async || self.entries() == expected).await;
    }
}

pub async fn echo(task: TaskContext) -> Result<u32, TaskError> {
    Ok(task.attempt())
}

/// Runs a worker beside the test; sending shuts it down.
pub fn spawn(worker: Worker) -> (oneshot::Sender<()>, JoinHandle<Result<(), WorkerError>>) {
    let (stop, stopped) = oneshot::channel::<()>();
    let run = worker.run_until(async { drop(stopped.await) });
    (stop, tokio::spawn(run))
}
