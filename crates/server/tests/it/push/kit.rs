//! A control plane that pushes, and a little worker with a mind of its own.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Response, StatusCode};
use serde_json::{Value, json};
use tenure_auth::{DEFAULT_ISSUER, Secret, TaskKeys, WorkerAuth};
use tenure_core::TaskId;
use tenure_core::command::Reach;
use tenure_core::task::{Place, Running};
use tenure_core::time::Timestamp;
use tenure_engine::store::{Clock, Retention};
use tenure_outbound::{Outbound, Policy, Trust};
use tenure_server::{Access, Live, PushTargets, ServerConfig, SharedTaskKeys, Transports};
use tenure_testkit::wait_until;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::harness::{Answer, Home, SOON, Server, TOKEN, database, merge};

pub const SECRET: &str = "dispatch-secret-of-the-tests";

pub async fn sqlite() -> Server {
    on(Arc::new(Home::Sqlite(tempfile::tempdir().unwrap())), Arc::default(), Some(dev_targets()), keys()).await
}

pub async fn postgres() -> Server {
    let home = Home::Postgres(database().await);
    on(Arc::new(home), Arc::default(), Some(dev_targets()), keys()).await
}

pub fn keys() -> TaskKeys {
    TaskKeys::new(DEFAULT_ISSUER, &TaskKeys::generate().unwrap()).unwrap()
}

/// As in dev mode: workers are on this machine, and speak http.
pub fn dev_targets() -> PushTargets {
    let policy = Policy { allow_http: true, allow_loopback: true, ..Policy::default() };
    targets(Outbound::new(policy, &Trust::System).unwrap())
}

pub fn targets(client: Outbound) -> PushTargets {
    let secrets = BTreeMap::from([("etl-dispatch".to_owned(), Secret::new(SECRET).unwrap())]);
    PushTargets { base_url: None, secrets, client, mtls: BTreeMap::new() }
}

/// A control plane on this store; without targets it pushes nothing.
pub async fn on(home: Arc<Home>, clock: Arc<Clock>, targets: Option<PushTargets>, keys: TaskKeys) -> Server {
    let push = targets.map(Live::new);
    let workers = WorkerAuth { shared: Secret::new(TOKEN), ..WorkerAuth::default() };
    let access = Live::new(Access { workers, ..Access::default() });
    // Queues can be set to it; nothing has to be there.
    let transports = Transports { redis: true, sqs: None };
    let config = ServerConfig { access, transports, push: push.clone(), ..ServerConfig::default() };
    let server = Server::start_with(home, Retention::default(), clock, |engine| ServerConfig {
        task_keys: Some(Arc::new(SharedTaskKeys::new(engine.clone(), keys))),
        ..config
    })
    .await;
    if let Some(push) = push {
        push.update(|targets| targets.base_url = Some(server.url.clone()));
    }
    server
}

/// What a worker was sent.
#[derive(Debug, Clone)]
pub struct Pushed {
    pub headers: HeaderMap,
    pub envelope: Value,
}

impl Pushed {
    pub fn task(&self) -> &str {
        self.envelope["taskId"].as_str().unwrap()
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// Reports about the attempt, at the address and with the token of the envelope.
    pub async fn call(&self, call: &str, extra: Value) -> (u16, Value) {
        let mut body = json!({"attempt": self.envelope["attempt"], "workerId": "w-1"});
        merge(&mut body, extra);
        let url = format!("{}/v1/tasks/{}/{call}", self.envelope["callbackBaseUrl"].as_str().unwrap(), self.task());
        let token = self.envelope["taskToken"].as_str().unwrap();
        let answer = client().post(url).bearer_auth(token).json(&body).send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }

    pub async fn start(&self) {
        let (status, body) = self.call("started", json!({})).await;
        assert_eq!(status, 200, "{body}");
    }

    pub async fn succeed(&self) {
        let (status, body) = self.call("completed", json!({"outcome": "SUCCEEDED", "output": {"rows": 7}})).await;
        assert_eq!((status, &body["finalState"]), (200, &json!("SUCCEEDED")), "{body}");
    }
}

fn client() -> reqwest::Client {
    static CLIENT: std::sync::OnceLock<reqwest::Client> = std::sync::OnceLock::new();
    // One per test process is enough; a runtime of its own per test would end its connections.
    CLIENT.get_or_init(|| reqwest::Client::builder().pool_max_idle_per_host(0).build().unwrap()).clone()
}

type Reply = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;
type Mind = Arc<dyn Fn(usize, Pushed) -> Reply + Send + Sync>;

/// A worker on this machine.
pub struct Worker {
    pub url: String,
    pub port: u16,
    pushed: Arc<Mutex<Vec<Pushed>>>,
    served: JoinHandle<()>,
}

impl Worker {
    /// It gets the number of the push, from 0, and the push.
    pub async fn start<F>(mind: impl Fn(usize, Pushed) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Response<Body>> + Send + 'static,
    {
        Self::at(0, mind).await
    }

    pub async fn at<F>(port: u16, mind: impl Fn(usize, Pushed) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Response<Body>> + Send + 'static,
    {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let pushed: Arc<Mutex<Vec<Pushed>>> = Arc::default();
        let mind: Mind = Arc::new(move |number, pushed| Box::pin(mind(number, pushed)) as Reply);
        let app = axum::Router::new()
            .route("/dispatch", axum::routing::post(receive))
            .layer(axum::extract::DefaultBodyLimit::max(8 << 20))
            .with_state((mind, Arc::clone(&pushed)));
        let served = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { url: format!("http://127.0.0.1:{port}/dispatch"), port, pushed, served }
    }

    /// One that answers all with this status.
    pub async fn answering(status: u16) -> Self {
        Self::start(move |_, _| async move { answer(status) }).await
    }

    pub fn pushed(&self) -> Vec<Pushed> {
        self.pushed.lock().unwrap().clone()
    }

    pub fn count(&self) -> usize {
        self.pushed.lock().unwrap().len()
    }

    /// Waits for so many pushes in all, and gives the last one of them.
    pub async fn nth(&self, count: usize) -> Pushed {
        wait_until("the push", SOON, async || self.pushed.lock().unwrap().get(count - 1).cloned()).await
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.served.abort();
    }
}

async fn receive(
    State((mind, pushed)): State<(Mind, Arc<Mutex<Vec<Pushed>>>)>,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let one = Pushed { headers, envelope: serde_json::from_slice(&body).unwrap() };
    let number = {
        let mut all = pushed.lock().unwrap();
        all.push(one.clone());
        all.len() - 1
    };
    mind(number, one).await
}

pub fn answer(status: u16) -> Response<Body> {
    Response::builder().status(StatusCode::from_u16(status).unwrap()).body(Body::from("{}")).unwrap()
}

pub fn with_header(status: u16, name: &str, value: &str) -> Response<Body> {
    let mut response = answer(status);
    response.headers_mut().insert(name.parse::<axum::http::HeaderName>().unwrap(), value.parse().unwrap());
    response
}

/// Sets queue `q` to push to this address.
pub async fn push_to(server: &Server, url: &str, extra: Value) -> Answer {
    push_queue(server, "q", url, extra).await
}

pub async fn push_queue(server: &Server, queue: &str, url: &str, extra: Value) -> Answer {
    let mut push = json!({"url": url});
    merge(&mut push, extra);
    server.put(&format!("/api/v1/queues/{queue}"), json!({"push": push})).await
}

/// Retries at once, so that nothing has to be waited for.
pub fn at_once(max_attempts: u32) -> Value {
    json!({"max_attempts": max_attempts, "retry": {"initial_backoff_ms": 0}})
}

/// The attempt in flight, if there is one.
pub async fn running(server: &Server, task: &str) -> Option<Running> {
    let id = TaskId::parse(task).unwrap();
    match server.engine.task(id, &Reach::All).await.unwrap()?.place {
        Place::Running(running) => Some(running),
        _ => None,
    }
}

/// When the attempt in flight is to be pushed again, if that is known for sure: the time that a push has while nothing
/// came of it is not meant.
pub async fn next_push_in_ms(server: &Server, task: &str) -> i64 {
    let known = async || {
        let running = running(server, task).await?;
        let delivery = running.carry.delivery.as_ref()?;
        let now: Timestamp = server.engine.now().await.unwrap();
        let left = delivery.next_at?.since(now);
        // While the push is on its way it is the time for an answer and some seconds more.
        (!(10_001..=15_000).contains(&left)).then_some(left)
    };
    wait_until("the outcome of the push", SOON, known).await
}

pub async fn deliveries(server: &Server, task: &str) -> u32 {
    running(server, task).await.and_then(|running| running.carry.delivery).map_or(0, |delivery| delivery.deliveries)
}

pub const A_WHILE: Duration = Duration::from_secs(120);
