//! A server with a worker that holds sandboxes, and the calls of a user.

use std::sync::Arc;
use std::time::Duration;

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

use crate::harness::{Home, SOON, Server, TOKEN, database};

const CAPABILITIES: [&str; 10] = [
    "lease_renewal",
    "inventory",
    "rpc_code",
    "rpc_replay",
    "stream_terminal",
    "stream_files",
    "undrain",
    "stats",
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
    let sandboxes = SandboxConfig::new(Client::new(Settings::default(), Arc::new(workers.clone()), None));
    sandboxes.offer.update(|offer| offer.settings.defaults.provider = "process".to_owned());
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
    running: tokio::task::JoinHandle<std::io::Result<()>>,
    line: tokio::task::JoinHandle<()>,
    _folder: TempDir,
}

/// Passes connections on to `to`. Aborted, it cuts them all.
async fn line(listener: TcpListener, to: std::net::SocketAddr) {
    let mut open = tokio::task::JoinSet::new();
    loop {
        let (mut near, _) = listener.accept().await.unwrap();
        open.spawn(async move {
            let Ok(mut far) = tokio::net::TcpStream::connect(to).await else { return };
            drop(tokio::io::copy_bidirectional(&mut near, &mut far).await);
        });
    }
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
        let outside = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let rpc_url = format!("http://{}", outside.local_addr().unwrap());
        let line = tokio::spawn(line(outside, listener.local_addr().unwrap()));
        let capacity = Capacity { max_sandboxes: 50, rpc_url: Some(rpc_url), ..Capacity::default() };
        let face = Face::new("host".to_owned(), CAPABILITIES.map(ToOwned::to_owned).to_vec(), capacity);
        let stop = CancellationToken::new();
        let running = tokio::spawn(async move {
            let serve = |stop: CancellationToken| rpc::run(listener, rpc, stop.cancelled_owned());
            node.run(&face, serve, stop).await
        });
        Self { running, line, _folder: folder }
    }

    /// Cuts its line, as a power cut would: nothing is said to anybody.
    pub fn cut(&self) {
        self.running.abort();
        self.line.abort();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.running.abort();
        self.line.abort();
    }
}
