//! A worker with the provider `process`, and a client that calls it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tenure_auth::{Secret, WorkerAuth};
use tenure_rpc::wire::{ExecParams, FilePathParams, LeaseToken, SpawnParams, TargetParams, Timestamp};
use tenure_rpc::{
    Call, Capabilities, Client, Error, ExecEvent, ExecStream, OutputStream, Settings, Target, new_request_id,
};
use tenure_sandbox::{ProcessProvider, ProcessSettings, Provider};
use tenure_tls::LiveServer;
use tenure_worker::node::{Holdings, Node, NodeSettings, Plane, Providers};
use tenure_worker::rpc::{Credentials, Rpc, RpcSettings, run};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

pub const WORKER: &str = "worker-a";
pub const TOKEN: &str = "the-worker-s-own-token";

pub struct Options {
    pub auth: WorkerAuth,
    pub settings: Box<dyn FnOnce(&mut RpcSettings) + Send>,
    pub plane: Option<Plane>,
    pub tls: Option<Arc<LiveServer>>,
}

impl Default for Options {
    fn default() -> Self {
        Self { auth: shared(TOKEN), settings: Box::new(|_| {}), plane: None, tls: None }
    }
}

/// A worker that listens on this machine.
pub struct Worker {
    pub address: SocketAddr,
    pub node: Arc<Node>,
    pub credentials: Arc<Credentials>,
    tls: bool,
    served: JoinHandle<std::io::Result<()>>,
    /// Removed with it.
    _folder: TempDir,
}

impl Worker {
    pub async fn start() -> Self {
        Self::with(Options::default()).await
    }

    pub async fn with(options: Options) -> Self {
        let folder = TempDir::new().unwrap();
        let provider =
            ProcessSettings { data_dir: folder.path().join("process"), max_sandboxes: None, ignore_limits: true };
        let loaded: Vec<Arc<dyn Provider>> = vec![Arc::new(ProcessProvider::open(provider).unwrap())];
        let holdings = Holdings::open(&folder.path().join("node"), WORKER).unwrap();
        let node = Node::new(holdings, Providers::new("process", loaded), options.plane, NodeSettings::default());
        let credentials = Arc::new(Credentials::new(options.auth));
        let mut settings = RpcSettings::new(folder.path());
        settings.drain_timeout = Duration::from_millis(200);
        (options.settings)(&mut settings);
        let tls = options.tls.is_some();
        let rpc = Rpc::new(Arc::clone(&node), Arc::clone(&credentials), options.tls, settings).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let served = tokio::spawn(run(listener, rpc, std::future::pending()));
        Self { address, node, credentials, tls, served, _folder: folder }
    }

    /// With everything that it knows.
    pub fn target(&self) -> Target {
        let scheme = if self.tls { "https" } else { "http" };
        at(&format!("{scheme}://localhost:{}", self.address.port()), Capabilities::all())
    }

    /// As a worker that knows nothing but the contract.
    pub fn plain_target(&self) -> Target {
        Target { capabilities: Capabilities::default(), ..self.target() }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.served.abort();
    }
}

pub fn at(rpc_url: &str, capabilities: Capabilities) -> Target {
    Target { worker_id: WORKER.to_owned(), rpc_url: rpc_url.to_owned(), capabilities }
}

pub fn shared(token: &str) -> WorkerAuth {
    WorkerAuth { shared: Secret::new(token), ..WorkerAuth::default() }
}

pub fn client() -> Client {
    client_with(|_| {})
}

pub fn client_with(change: impl FnOnce(&mut Settings)) -> Client {
    let mut settings = Settings::default();
    change(&mut settings);
    Client::new(settings, Arc::new(shared(TOKEN)), None)
}

/// A worker with a sandbox `sb-1`, and a client.
pub async fn stage() -> (Worker, Client, Target) {
    let (worker, client) = (Worker::start().await, client());
    let target = worker.target();
    spawn(&client, &target, "sb-1").await;
    (worker, client, target)
}

/// Returns the runtime.
pub async fn spawn(client: &Client, target: &Target, sandbox_id: &str) -> String {
    let (id, lease) = (new_request_id(), lease(sandbox_id, 1));
    let spawned = client.spawn(target, Call::new(&id).with_lease(&lease), &spawn_params(sandbox_id)).await;
    spawned.unwrap().runtime_id
}

pub fn spawn_params(sandbox_id: &str) -> SpawnParams {
    SpawnParams {
        sandbox_id: sandbox_id.to_owned(),
        image: "alpine".to_owned(),
        provider: "mock".to_owned(),
        memory_mb: 64,
        vcpus: 1,
        ttl: "30m".to_owned(),
        ..SpawnParams::default()
    }
}

pub fn lease(sandbox_id: &str, generation: i64) -> LeaseToken {
    LeaseToken {
        resource_id: sandbox_id.to_owned(),
        holder_id: WORKER.to_owned(),
        generation,
        expires_at: Timestamp::now() + Duration::from_secs(60),
    }
}

pub fn sandbox(sandbox_id: &str) -> TargetParams {
    TargetParams { sandbox_id: sandbox_id.to_owned(), provider: "mock".to_owned(), ..TargetParams::default() }
}

pub fn command(text: &str) -> ExecParams {
    ExecParams {
        sandbox_id: "sb-1".to_owned(),
        provider: "mock".to_owned(),
        command: text.to_owned(),
        ..ExecParams::default()
    }
}

pub fn file(path: &str) -> FilePathParams {
    FilePathParams {
        sandbox_id: "sb-1".to_owned(),
        provider: "mock".to_owned(),
        path: path.to_owned(),
        ..FilePathParams::default()
    }
}

/// The output of a command that must succeed.
pub async fn exec(client: &Client, target: &Target, text: &str) -> String {
    client.exec(target, Call::new(&new_request_id()), &command(text)).await.unwrap().stdout
}

/// Everything of a stream: stdout, stderr, and how it ended.
pub async fn drain(stream: &mut ExecStream) -> (Vec<u8>, Vec<u8>, Option<Result<Option<i32>, Error>>) {
    let (mut stdout, mut stderr, mut end) = (Vec::new(), Vec::new(), None);
    while let Some(event) = stream.next().await {
        match event {
            Ok(ExecEvent::Output { stream: OutputStream::Stdout, bytes }) => stdout.extend_from_slice(&bytes),
            Ok(ExecEvent::Output { stream: OutputStream::Stderr, bytes }) => stderr.extend_from_slice(&bytes),
            Ok(ExecEvent::End { exit_code, .. }) => end = Some(Ok(exit_code)),
            Err(error) => end = Some(Err(error)),
        }
    }
    (stdout, stderr, end)
}

/// Whether a process with this id runs.
pub fn runs(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}
