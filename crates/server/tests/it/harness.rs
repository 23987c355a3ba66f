//! A real server on a real store, and the calls that a worker and a user make.

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_sqs::config::{BehaviorVersion, Credentials, Region};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tenure_auth::{Secret, WorkerAuth};
use tenure_core::queue::Transport;
use tenure_core::time::Timestamp;
use tenure_engine::store::{self, Clock, Retention};
use tenure_engine::{Engine, EngineConfig, Transports};
use tenure_server::{Access, Live, ServerConfig};
use tenure_testkit::{Database, Moto, Postgres, Redis, wait_until};
use tenure_transport::redis::{RedisConfig, RedisTransport};
use tenure_transport::sqs::{SqsConfig, SqsTransport};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Longer than anything here takes, on a busy machine too.
/// Long: it only decides how late a failure is noticed.
pub const SOON: Duration = Duration::from_secs(60);

/// The longest wait that a claim may ask for, `max_wait_ms` 60,000. What is answered sooner was not waited for.
pub const LONGEST_WAIT: Duration = Duration::from_secs(60);

pub const TOKEN: &str = "worker-token-of-the-tests";

/// Makes a test of each case for each store that it runs on, with the server that a function `sqlite`, `postgres` or
/// `redis` of the kit starts.
///
/// A rule of the wire is the same on every store, so its cases run `on_sqlite`. What depends on the store runs
/// `on_both_stores`. A few cases of each kind run `everywhere`, which adds wake-ups over Redis.
#[macro_export]
macro_rules! cases {
    (
        $kit:ident,
        $(on_sqlite: [$($sqlite:ident),+ $(,)?],)?
        $(on_both_stores: [$($both:ident),+ $(,)?],)?
        $(everywhere: [$($all:ident),+ $(,)?],)?
    ) => {
        mod sqlite {
            $($($crate::case!($kit::sqlite, $sqlite);)+)?
            $($($crate::case!($kit::sqlite, $both);)+)?
            $($($crate::case!($kit::sqlite, $all);)+)?
        }
        mod postgres {
            $($($crate::case!($kit::postgres, $both);)+)?
            $($($crate::case!($kit::postgres, $all);)+)?
        }
        mod redis {
            $($($crate::case!($kit::redis, $all);)+)?
        }
    };
}

#[macro_export]
macro_rules! case {
    ($kit:ident::$home:ident, $case:ident) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $case() {
            super::$case(super::$kit::$home().await).await;
        }
    };
}

/// A database that has the tables of the store. They are copied, which takes less time than making them.
pub async fn database() -> Database {
    let prepare = async |url: &str| drop(store::postgres::Postgres::open(url, Arc::default()).await.unwrap());
    Postgres::shared().await.prepared_database(prepare).await
}

/// Where the tasks are; kept as long as the test.
pub enum Home {
    Sqlite(tempfile::TempDir),
    Postgres(Database),
    /// With a Redis over which wake-ups go.
    Redis(Database, tokio::sync::Mutex<Redis>),
    /// With a server that speaks as SQS does.
    Sqs(Database, tokio::sync::Mutex<Moto>),
}

impl Home {
    pub fn url(&self) -> String {
        match self {
            Self::Sqlite(folder) => format!("sqlite:{}", folder.path().join("tenure.db").display()),
            Self::Postgres(database) | Self::Redis(database, _) | Self::Sqs(database, _) => database.url().to_owned(),
        }
    }

    pub fn is_sqlite(&self) -> bool {
        matches!(self, Self::Sqlite(_))
    }

    /// What the engine needs to know about where wake-ups go. A sweep comes every second: real time passes until then.
    async fn engine_config(&self) -> EngineConfig {
        let mut transports = Transports::default();
        let default_transport = match self {
            Self::Sqlite(_) | Self::Postgres(_) => return EngineConfig::default(),
            Self::Redis(_, redis) => {
                let config = RedisConfig { url: redis.lock().await.url(), ..RedisConfig::default() };
                transports.redis = Some(Arc::new(RedisTransport::new(config).unwrap()));
                Transport::Redis
            }
            Self::Sqs(_, moto) => {
                transports.sqs = Some(Arc::new(sqs_transport(&moto.lock().await.url())));
                Transport::Sqs
            }
        };
        let sweep_every = Duration::from_secs(1);
        EngineConfig { transports, default_transport, sweep_every, ..EngineConfig::default() }
    }

    /// Runs SQL behind the server's back.
    pub async fn execute(&self, sql: &str) {
        match self {
            Self::Sqlite(folder) => {
                let file = rusqlite::Connection::open(folder.path().join("tenure.db")).unwrap();
                file.busy_timeout(SOON).unwrap();
                file.execute_batch(sql).unwrap();
            }
            Self::Postgres(database) | Self::Redis(database, _) | Self::Sqs(database, _) => {
                let (client, connection) =
                    tokio_postgres::connect(database.url(), tokio_postgres::NoTls).await.unwrap();
                let connection = tokio::spawn(connection);
                client.batch_execute(sql).await.unwrap();
                drop(client);
                connection.await.unwrap().unwrap();
            }
        }
    }
}

pub struct Server {
    pub clock: Arc<Clock>,
    pub engine: Engine,
    pub home: Arc<Home>,
    pub url: String,
    pub config: ServerConfig,
    retention: Retention,
    http: reqwest::Client,
    stop: CancellationToken,
    served: Option<tokio::task::JoinHandle<std::io::Result<()>>>,
}

/// An answer, decoded.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: reqwest::header::HeaderMap,
    pub body: Value,
}

impl Answer {
    pub async fn of(response: reqwest::Response) -> Self {
        let (status, headers) = (response.status(), response.headers().clone());
        let text = response.text().await.unwrap();
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Self { status, headers, body }
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The body of a 2xx answer.
    #[track_caller]
    pub fn ok(self) -> Value {
        assert!(self.status.is_success(), "{} {}", self.status, self.body);
        self.body
    }

    /// The `error` of an answer with this status.
    #[track_caller]
    pub fn refused(self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", self.body);
        self.body
    }
}

impl Server {
    pub async fn sqlite() -> Self {
        Self::on(Home::Sqlite(tempfile::tempdir().unwrap())).await
    }

    pub async fn postgres() -> Self {
        Self::on(Home::Postgres(database().await)).await
    }

    /// Postgres, and wake-ups over Redis.
    pub async fn redis() -> Self {
        let (database, redis) = (database().await, Redis::start().await);
        Self::on(Home::Redis(database, tokio::sync::Mutex::new(redis))).await
    }

    /// Postgres, and wake-ups over SQS.
    pub async fn sqs() -> Self {
        let (database, moto) = (database().await, Moto::start().await);
        Self::on(Home::Sqs(database, tokio::sync::Mutex::new(moto))).await
    }

    pub async fn on(home: Home) -> Self {
        let workers = WorkerAuth { shared: Secret::new(TOKEN), ..WorkerAuth::default() };
        let access = Live::new(Access { workers, ..Access::default() });
        let transports = tenure_server::Transports { redis: matches!(home, Home::Redis(..)), sqs: None };
        let config = ServerConfig { access, transports, ..ServerConfig::default() };
        Self::start_at(Arc::new(home), config, Retention::default(), Arc::default()).await
    }

    /// Another server on the same store at the same time: Postgres only. Nothing but the store connects the two.
    pub async fn beside(&self) -> Self {
        let (home, clock) = (Arc::clone(&self.home), Arc::clone(&self.clock));
        Self::start_at(home, self.config.clone(), self.retention.clone(), clock).await
    }

    /// Another server on the same store that knows no Redis: its wake-ups stay where they are.
    pub async fn beside_mute(&self) -> Self {
        let engine = EngineConfig {
            clock: Arc::clone(&self.clock),
            default_transport: Transport::Redis,
            ..EngineConfig::default()
        };
        let config = self.config.clone();
        Self::start_engine(Arc::clone(&self.home), engine, |_| config).await
    }

    /// The same store behind a server that is set up differently.
    pub async fn restart_with(mut self, change: impl FnOnce(&mut ServerConfig, &mut Retention)) -> Self {
        change(&mut self.config, &mut self.retention);
        self.restart().await
    }

    async fn start_at(home: Arc<Home>, config: ServerConfig, retention: Retention, clock: Arc<Clock>) -> Self {
        Self::start_with(home, retention, clock, |_| config).await
    }

    /// A server whose set-up needs the engine.
    pub async fn start_with(
        home: Arc<Home>,
        retention: Retention,
        clock: Arc<Clock>,
        config: impl FnOnce(&Engine) -> ServerConfig,
    ) -> Self {
        let engine_config = EngineConfig { retention, clock, ..home.engine_config().await };
        Self::start_engine(home, engine_config, config).await
    }

    async fn start_engine(
        home: Arc<Home>,
        engine_config: EngineConfig,
        config: impl FnOnce(&Engine) -> ServerConfig,
    ) -> Self {
        let (clock, retention) = (Arc::clone(&engine_config.clock), engine_config.retention.clone());
        let engine = Engine::open_with(&home.url(), engine_config).await.unwrap();
        let config = config(&engine);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        let served = tokio::spawn(tenure_server::run(listener, engine.clone(), config.clone(), stopped));
        let http = reqwest::Client::builder().timeout(Duration::from_secs(90)).build().unwrap();
        Self { clock, engine, home, url, config, retention, http, stop, served: Some(served) }
    }

    /// Stops it as SIGTERM would, and waits until it is gone.
    pub async fn stop(&mut self) {
        self.stop.cancel();
        if let Some(served) = self.served.take() {
            served.await.unwrap().unwrap();
        }
    }

    /// Another server on the same store and with the same clock, after this one was stopped.
    pub async fn restart(mut self) -> Self {
        self.stop().await;
        let (home, clock) = (Arc::clone(&self.home), Arc::clone(&self.clock));
        let (config, retention) = (self.config.clone(), self.retention.clone());
        drop(self);
        Self::start_at(home, config, retention, clock).await
    }

    /// Stops it, lets time pass in which no control plane is alive, and starts it again.
    pub async fn outage(mut self, ms: i64) -> Self {
        self.stop().await;
        self.clock.advance_through_outage(ms);
        self.restart().await
    }

    /// Sends bytes as they are, with the worker's token.
    pub async fn send(&self, path: &str, headers: &[(&str, &str)], body: impl Into<reqwest::Body>) -> Answer {
        let mut request = self.http.post(format!("{}{path}", self.url)).body(body).header("X-Worker-Token", TOKEN);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Answer::of(request.send().await.unwrap()).await
    }

    pub async fn call(&self, method: Method, path: &str, headers: &[(&str, &str)], body: Option<&Value>) -> Answer {
        let mut request = self.http.request(method, format!("{}{path}", self.url));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        Answer::of(request.send().await.unwrap()).await
    }

    /// As a user.
    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.call(Method::POST, path, &[], Some(&body)).await
    }

    pub async fn put(&self, path: &str, body: Value) -> Answer {
        self.call(Method::PUT, path, &[], Some(&body)).await
    }

    pub async fn patch(&self, path: &str, body: Value) -> Answer {
        self.call(Method::PATCH, path, &[], Some(&body)).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.call(Method::DELETE, path, &[], None).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.call(Method::GET, path, &[], None).await
    }

    /// As a worker with the shared token.
    pub async fn worker(&self, call: &str, body: Value) -> Answer {
        self.call(Method::POST, &format!("/internal/worker/{call}"), &[("X-Worker-Token", TOKEN)], Some(&body)).await
    }

    /// Submits a task of queue `q` and gives its id.
    pub async fn submit(&self, extra: Value) -> String {
        let mut task = json!({"queue": "q", "operator": "op"});
        merge(&mut task, extra);
        self.post("/api/v1/tasks", task).await.ok()["task_id"].as_str().unwrap().to_owned()
    }

    /// Claims one job of queue `q` without waiting; null if there is none.
    pub async fn claim(&self, worker: &str) -> Value {
        let claim = json!({"worker_id": worker, "streams": ["q"], "max_wait_ms": 0});
        let answer = self.worker("claim", claim).await.ok();
        if answer["claimed"] == true { answer } else { Value::Null }
    }

    pub async fn heartbeat(&self, worker: &str, job: &Value) -> Answer {
        let beat = json!({"worker_id": worker, "job_id": job["job_id"], "lease_token": job["lease_token"]});
        self.worker("heartbeat", beat).await
    }

    pub async fn complete(&self, worker: &str, job: &Value, result: Value) -> Answer {
        let mut report = report(worker, job);
        report["result"] = result;
        self.worker("complete", report).await
    }

    pub async fn fail(&self, worker: &str, job: &Value, error: Value) -> Answer {
        let mut report = report(worker, job);
        report["error"] = error;
        self.worker("fail", report).await
    }

    pub async fn task(&self, id: &str) -> Value {
        self.get(&format!("/api/v1/tasks/{id}")).await.ok()
    }

    pub async fn state(&self, id: &str) -> String {
        self.task(id).await["state"].as_str().unwrap().to_owned()
    }

    /// Waits until the task is in this state, and gives the task.
    pub async fn until(&self, id: &str, state: &str) -> Value {
        wait_until(state, SOON, async || Some(self.task(id).await).filter(|task| task["state"] == state)).await
    }

    /// From now on time passes only by [`Self::advance`], however slow the machine is. Not for what takes its time by
    /// itself: rates, sweeps, pushes that nobody answers.
    pub async fn still(&self) {
        self.clock.freeze(self.engine.now().await.unwrap());
    }

    /// Time passes while the server is alive.
    pub fn advance(&self, ms: i64) {
        self.clock.advance(ms);
    }

    pub async fn queue(&self, name: &str) -> Value {
        self.get(&format!("/api/v1/queues/{name}")).await.ok()
    }

    pub async fn attempts(&self, id: &str) -> Vec<Value> {
        self.get(&format!("/api/v1/tasks/{id}/attempts")).await.ok()["items"].as_array().unwrap().clone()
    }
}

/// SQS at this address, which takes any credentials. What was received comes again after two seconds.
pub fn sqs_transport(url: &str) -> SqsTransport {
    let config = SqsConfig { create_queues: true, visibility: Duration::from_secs(2), ..SqsConfig::default() };
    SqsTransport::from_client(&sqs_client(url), config).unwrap()
}

pub fn sqs_client(url: &str) -> aws_sdk_sqs::Client {
    let config = aws_sdk_sqs::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("eu-central-1"))
        .credentials_provider(Credentials::new("test", "test", None, None, "test"))
        .endpoint_url(url);
    aws_sdk_sqs::Client::from_conf(config.build())
}

/// A time as the wire has it.
pub fn time(value: &Value) -> Timestamp {
    let text = value.as_str().unwrap_or_else(|| panic!("no time: {value}"));
    assert!(text.ends_with('Z'), "{text}");
    Timestamp::parse(text).unwrap()
}

/// Milliseconds between two times of the wire.
pub fn between(earlier: &Value, later: &Value) -> i64 {
    time(later).since(time(earlier))
}

/// A retry that does not come by itself while a test looks.
pub fn later() -> Value {
    json!({"initial_backoff_ms": 60_000, "jitter": "none"})
}

pub fn retryable() -> Value {
    json!({"code": "HTTP_503", "message": "service busy", "retryable": true})
}

pub fn fatal() -> Value {
    json!({"code": "BAD_INPUT", "message": "no such day", "retryable": false})
}

pub fn report(worker: &str, job: &Value) -> Value {
    json!({"worker_id": worker, "job_id": job["job_id"], "attempt_id": job["attempt_id"],
           "lease_token": job["lease_token"], "stream": job["stream"], "message_id": job["message_id"]})
}

pub fn merge(into: &mut Value, from: Value) {
    if let (Value::Object(into), Value::Object(from)) = (into, from) {
        into.extend(from);
    }
}
