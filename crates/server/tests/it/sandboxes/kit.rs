//! A server with a worker that holds sandboxes, and the calls of a user.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;
use tenure_auth::{Secret, WorkerAuth};
use tenure_client::WorkerCalls;
use tenure_contract::worker_plane::Capacity;
use tenure_engine::store::{Clock, Retention};
use tenure_rpc::{Client, Settings};
use tenure_sandbox::{ProcessProvider, ProcessSettings, Provider};
use tenure_server::{Access, Live, SandboxConfig, ServerConfig};
use tenure_testkit::wait_until;
use tenure_worker::TokenSource;
use tenure_worker::node::{Face, Holdings, Node, NodeSettings, Plane as WayBack, Providers};
use tenure_worker::rpc::{self, Credentials, Rpc, RpcSettings};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::harness::{Answer, Home, SOON, Server, TOKEN, database};

const CAPABILITIES: [&str; 11] = [
    "lease_renewal",
    "inventory",
    "rpc_code",
    "rpc_replay",
    "stream_terminal",
    "stream_files",
    "undrain",
    "stats",
    "snapshots",
    "interactive",
    "proxy",
];

/// A server and a worker that it knows.
pub struct Plane {
    pub server: Server,
    pub worker: Worker,
}

impl Plane {
    pub async fn sqlite() -> Self {
        Self::on(Home::Sqlite(tempfile::tempdir().unwrap())).await
    }

    pub async fn postgres() -> Self {
        Self::on(Home::Postgres(database().await)).await
    }

    pub async fn on(home: Home) -> Self {
        Self::with(home, |_| {}).await
    }

    pub async fn with(home: Home, change: impl FnOnce(&mut ServerConfig)) -> Self {
        let server = server(home, change).await;
        let worker = Worker::start(&server, "worker-a").await;
        Self { server, worker }
    }

    /// Creates a sandbox that runs, and returns it.
    pub async fn create(&self, extra: Value) -> Value {
        let answer = self.server.post("/api/v1/sandboxes", extra).await;
        assert_eq!(answer.status, 201, "{}", answer.body);
        assert_eq!(answer.body["state"], "running", "{}", answer.body);
        answer.body
    }

    /// The id of a new sandbox.
    pub async fn sandbox(&self) -> String {
        id(&self.create(json!({})).await)
    }

    pub async fn exec(&self, sandbox: &str, command: &str) -> Value {
        let answer = self.server.post(&format!("/api/v1/sandboxes/{sandbox}/exec"), json!({"command": command})).await;
        answer.ok()
    }
}

/// A server that offers sandboxes, without a worker.
pub async fn server(home: Home, change: impl FnOnce(&mut ServerConfig)) -> Server {
    let workers = WorkerAuth { shared: Secret::new(TOKEN), ..WorkerAuth::default() };
    let mut sandboxes = SandboxConfig::new(Client::new(Settings::default(), Arc::new(workers.clone()), None));
    sandboxes.settings.defaults.provider = "process".to_owned();
    let access = Live::new(Access { workers, ..Access::default() });
    let mut config = ServerConfig { access, sandboxes: Some(sandboxes), ..ServerConfig::default() };
    change(&mut config);
    Server::start_with(Arc::new(home), Retention::default(), Arc::<Clock>::default(), |_| config).await
}

pub fn id(sandbox: &Value) -> String {
    sandbox["id"].as_str().unwrap_or_else(|| panic!("no id: {sandbox}")).to_owned()
}

pub async fn workers(server: &Server) -> Vec<Value> {
    server.get("/api/v1/workers").await.ok().as_array().unwrap().clone()
}

/// A worker of this process, with a folder of its own.
pub struct Worker {
    pub id: String,
    pub node: Arc<Node>,
    stop: CancellationToken,
    running: tokio::task::JoinHandle<std::io::Result<()>>,
    _folder: TempDir,
}

impl Worker {
    /// Starts a worker, and waits until the server has heard of it.
    pub async fn start(server: &Server, id: &str) -> Self {
        let worker = Self::start_unheard(&server.url, id).await;
        let heard = async || {
            let known = workers(server).await;
            known.iter().any(|known| known["id"] == id && known["status"] == "online").then_some(())
        };
        wait_until("the first heartbeat", SOON, heard).await;
        worker
    }

    pub async fn start_unheard(url: &str, id: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let settings =
            ProcessSettings { data_dir: folder.path().join("process"), max_sandboxes: None, ignore_limits: true };
        let provider: Arc<dyn Provider> = Arc::new(ProcessProvider::open(settings).unwrap());
        let holdings = Holdings::open(&folder.path().join("node"), id).unwrap();
        let token = TokenSource::Text(TOKEN.to_owned()).for_worker(id);
        let node_settings = NodeSettings {
            heartbeat_interval: Duration::from_millis(500),
            retry_wait: (Duration::from_millis(50), Duration::from_secs(1)),
            ..NodeSettings::default()
        };
        let way_back = WayBack::new(WorkerCalls::new(url, id, token, None).unwrap(), node_settings.call_timeout);
        let node = Node::new(holdings, Providers::new("process", vec![provider]), Some(way_back), node_settings);
        let auth = WorkerAuth { shared: Secret::new(TOKEN), ..WorkerAuth::default() };
        let mut settings = RpcSettings::new(folder.path());
        settings.drain_timeout = Duration::from_millis(200);
        let rpc = Rpc::new(Arc::clone(&node), Arc::new(Credentials::new(auth)), None, settings).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let rpc_url = format!("http://{}", listener.local_addr().unwrap());
        let capacity = Capacity { max_sandboxes: 50, rpc_url: Some(rpc_url), ..Capacity::default() };
        let face = Face::new("host".to_owned(), CAPABILITIES.map(ToOwned::to_owned).to_vec(), capacity);
        let stop = CancellationToken::new();
        let running = {
            let (node, stop) = (Arc::clone(&node), stop.clone());
            tokio::spawn(async move {
                let serve = |stop: CancellationToken| rpc::run(listener, rpc, stop.cancelled_owned());
                node.run(&face, serve, stop).await
            })
        };
        Self { id: id.to_owned(), node, stop, running, _folder: folder }
    }

    /// Ends it as a power cut would: nothing is said to anybody.
    pub fn kill(&self) {
        self.running.abort();
    }

    /// Ends it in peace.
    pub async fn stop(&mut self) {
        self.stop.cancel();
        let _ = (&mut self.running).await;
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.running.abort();
    }
}

/// Calls with headers.
pub async fn call(server: &Server, method: &str, path: &str, headers: &[(&str, &str)], body: Option<&Value>) -> Answer {
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    server.call(method, path, headers, body).await
}
