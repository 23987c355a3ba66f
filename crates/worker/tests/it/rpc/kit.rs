//! A worker with the provider `process`, and a control plane that calls it.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use reqwest::StatusCode;
use serde_json::{Value, json};
use tempfile::TempDir;
use tenure_auth::{Secret, WorkerAuth};
use tenure_sandbox::{ProcessProvider, ProcessSettings, Provider};
use tenure_tls::LiveServer;
use tenure_worker::node::{Holdings, Node, NodeSettings, Plane, Providers};
use tenure_worker::rpc::{Credentials, Rpc, RpcSettings, run};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub const WORKER: &str = "worker-a";
pub const TOKEN: &str = "the-worker-s-own-token";

pub struct Options {
    pub auth: WorkerAuth,
    pub settings: Box<dyn FnOnce(&mut RpcSettings) + Send>,
    pub node: NodeSettings,
    pub plane: Option<Plane>,
    pub providers: bool,
    pub tls: Option<Arc<LiveServer>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            auth: WorkerAuth { shared: Secret::new(TOKEN), ..WorkerAuth::default() },
            settings: Box::new(|_| {}),
            node: NodeSettings::default(),
            plane: None,
            providers: true,
            tls: None,
        }
    }
}

impl Options {
    pub fn settings(change: impl FnOnce(&mut RpcSettings) + Send + 'static) -> Self {
        Self { settings: Box::new(change), ..Self::default() }
    }
}

pub struct Worker {
    pub address: SocketAddr,
    pub node: Arc<Node>,
    pub credentials: Arc<Credentials>,
    pub http: reqwest::Client,
    stop: Option<oneshot::Sender<()>>,
    served: JoinHandle<std::io::Result<()>>,
    folder: Arc<TempDir>,
}

impl Worker {
    pub async fn start() -> Self {
        Self::with(Options::default()).await
    }

    pub async fn with(options: Options) -> Self {
        Self::in_folder(Arc::new(TempDir::new().unwrap()), options).await
    }

    pub async fn in_folder(folder: Arc<TempDir>, options: Options) -> Self {
        let provider =
            ProcessSettings { data_dir: folder.path().join("process"), max_sandboxes: None, ignore_limits: true };
        let loaded: Vec<Arc<dyn Provider>> = match options.providers {
            true => vec![Arc::new(opened(provider).await)],
            false => vec![],
        };
        let holdings = Holdings::open(&folder.path().join("node"), WORKER).unwrap();
        let node = Node::new(holdings, Providers::new("process", loaded), options.plane, options.node);
        let credentials = Arc::new(Credentials::new(options.auth));
        let mut settings = RpcSettings::new(folder.path());
        settings.drain_timeout = Duration::from_millis(200);
        (options.settings)(&mut settings);
        let rpc = Rpc::new(Arc::clone(&node), Arc::clone(&credentials), options.tls, settings).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let served = tokio::spawn(run(listener, rpc, async move { drop(stopped.await) }));
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let stop = Some(stop);
        Self { address, node, credentials, http, stop, served, folder }
    }

    /// Ends the listener and everything that belongs to it. The folder stays.
    pub async fn stop(mut self) -> Arc<TempDir> {
        drop(self.stop.take());
        (&mut self.served).await.unwrap().unwrap();
        self.http = reqwest::Client::new();
        let folder = Arc::clone(&self.folder);
        // Detached calls may still hold the node for a moment.
        wait_until("the node is released", || Arc::strong_count(&self.node) == 1).await;
        folder
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Never used before, also not by a worker with the same folder.
    pub fn new_id(&self) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        format!("req-{}", NEXT.fetch_add(1, Ordering::SeqCst))
    }

    pub fn envelope(&self, method: &str, params: Value) -> Value {
        json!({"id": self.new_id(), "method": method, "worker_id": WORKER, "params": params})
    }

    /// Headers of an honest control plane.
    pub fn post(&self, path: &str) -> reqwest::RequestBuilder {
        self.signed(self.http.post(self.url(path)))
    }

    pub fn signed(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        request.header("x-worker-id", WORKER).header("x-worker-token", TOKEN)
    }

    /// Sends an envelope as it is.
    pub async fn send(&self, envelope: &Value) -> (StatusCode, Value) {
        answer(self.post("/rpc").body(envelope.to_string()).send().await.unwrap()).await
    }

    pub async fn call(&self, method: &str, params: Value) -> (StatusCode, Value) {
        self.send(&self.envelope(method, params)).await
    }

    /// The result of a call that must succeed.
    pub async fn ok(&self, method: &str, params: Value) -> Value {
        let (status, body) = self.call(method, params).await;
        assert_eq!(status, 200, "{method}: {body}");
        assert!(body.get("error").is_none(), "{body}");
        body["result"].clone()
    }

    pub async fn leased(&self, method: &str, params: Value, generation: i64) -> (StatusCode, Value) {
        let sandbox_id = params["sandbox_id"].as_str().unwrap().to_owned();
        let mut envelope = self.envelope(method, params);
        envelope["lease"] = lease(&sandbox_id, generation);
        self.send(&envelope).await
    }

    /// Creates a sandbox and returns its runtime.
    pub async fn spawn(&self, sandbox_id: &str) -> String {
        let (status, body) = self.leased("worker.spawn", spawn_params(sandbox_id), 1).await;
        assert_eq!(status, 200, "{body}");
        body["result"]["runtime_id"].as_str().unwrap().to_owned()
    }

    pub async fn exec(&self, sandbox_id: &str, command: &str) -> Value {
        self.ok("worker.exec", json!({"sandbox_id": sandbox_id, "provider": "mock", "command": command})).await
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.served.abort();
    }
}

/// After a restart the former provider may take a moment to let go of its folder.
async fn opened(settings: ProcessSettings) -> ProcessProvider {
    for _ in 0..3000 {
        match ProcessProvider::open(settings.clone()) {
            Ok(provider) => return provider,
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
    ProcessProvider::open(settings).unwrap()
}

pub async fn answer(response: reqwest::Response) -> (StatusCode, Value) {
    let status = response.status();
    let body = response.bytes().await.unwrap();
    (status, serde_json::from_slice(&body).unwrap_or_else(|_| json!(String::from_utf8_lossy(&body))))
}

pub fn spawn_params(sandbox_id: &str) -> Value {
    json!({"sandbox_id": sandbox_id, "image": "alpine", "provider": "mock", "memory_mb": 64, "vcpus": 1, "ttl": "30m"})
}

pub fn lease(sandbox_id: &str, generation: i64) -> Value {
    lease_of(sandbox_id, WORKER, generation, 60)
}

pub fn lease_of(sandbox_id: &str, holder: &str, generation: i64, seconds: i64) -> Value {
    let expires_at = Timestamp::now() + Duration::from_secs(1000) - Duration::from_secs((1000 - seconds) as u64);
    json!({"resource_id": sandbox_id, "holder_id": holder, "generation": generation, "expires_at": expires_at.to_string()})
}

/// Polls a condition. A machine that stands still for a while does not fail it.
pub async fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..6000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("waited in vain until {what}");
}

/// Whether a process with this id runs.
pub fn runs(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}
