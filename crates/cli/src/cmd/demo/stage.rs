//! What the demo runs on: a server in this process, workers in processes of their own.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tempfile::TempDir;
use tenure_auth::{Secret, TaskKeys, WorkerAuth};
use tenure_client::Client;
use tenure_engine::Engine;
use tenure_objects::{Place, Settings};
use tenure_server::{Access, DispatchConfig, Live, ServerConfig, SharedTaskKeys};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use tenure_config::StoreUrl;

/// Tasks that a worker runs at a time.
pub const CONCURRENCY: usize = 6;
const WORKER_STOP: Duration = Duration::from_secs(10);

/// A control plane that goes away with this value, and its folder too.
#[derive(Debug)]
pub struct Stage {
    pub url: String,
    pub client: Client,
    folder: TempDir,
    stop: CancellationToken,
    server: JoinHandle<std::io::Result<()>>,
}

impl Stage {
    /// Starts a server on a free port. Without a store it has one in a folder of its own.
    pub async fn open(store: Option<&StoreUrl>) -> anyhow::Result<Self> {
        let folder = TempDir::with_prefix("tenure-demo-").context("the temporary folder could not be created")?;
        let own = StoreUrl::sqlite(&folder.path().join("tenure.db"));
        let token = Secret::random();
        // The folder is only for its owner. Workers must not pick up a configuration that lies around.
        std::fs::write(folder.path().join("worker-token"), token.reveal())?;
        std::fs::write(folder.path().join("tenure.yaml"), "")?;

        let engine = Engine::open(store.unwrap_or(&own).reveal()).await.context("the store could not be opened")?;
        let listener = TcpListener::bind("127.0.0.1:0").await.context("no free port")?;
        let url = format!("http://{}", listener.local_addr()?);
        let workers = WorkerAuth { shared: Some(token), ..WorkerAuth::default() };
        let access = Live::new(Access { workers, ..Access::default() });
        let objects = Place::Folder { path: folder.path().join("objects"), allow_file: true };
        let objects = Settings::new(objects).open().context("the folder for objects could not be created")?;
        let dispatch = DispatchConfig { objects: Some(Arc::new(objects)), ..DispatchConfig::default() };
        let key = TaskKeys::generate().context("a task key could not be created")?;
        let task_keys = TaskKeys::new("tenure-demo", &key)
            .map_err(|error| anyhow::anyhow!("the key for task tokens cannot be used: {error}"))?;
        let config = ServerConfig {
            access,
            dispatch,
            task_keys: Some(Arc::new(SharedTaskKeys::new(engine.clone(), task_keys))),
            drain_timeout: Duration::from_secs(2),
            ..ServerConfig::default()
        };
        let stop = CancellationToken::new();
        let server = tokio::spawn(tenure_server::run(listener, engine, config, stop.clone().cancelled_owned()));
        Ok(Self { client: Client::new(&url)?, url, folder, stop, server })
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Starts a worker that pulls.
    pub fn start_worker(&self, name: &str, queues: [&str; 2]) -> anyhow::Result<Worker> {
        self.spawn(name, |command| {
            command
                .args(["worker", "--drain", "1s", "--grace", "1s", "--until-eof"])
                .args(["--concurrency", &CONCURRENCY.to_string()])
                .args(queues.map(|queue| format!("--queue={queue}")))
                .arg("--config")
                .arg(self.folder().join("tenure.yaml"));
        })
    }

    /// Starts a worker for the jobs of the DAG.
    pub fn start_dag_worker(&self, name: &str) -> anyhow::Result<Worker> {
        self.spawn(name, |command| {
            command.args(["demo", "dag-worker"]);
        })
    }

    /// Starts a worker as a process of its own, with its log in the folder.
    fn spawn(&self, name: &str, kind: impl FnOnce(&mut Command)) -> anyhow::Result<Worker> {
        let at = |file: &str| self.folder().join(file);
        let log = std::fs::File::create(at(&format!("{name}.log")))?;
        let mut command = Command::new(std::env::current_exe().context("cannot find the path of this program")?);
        kind(&mut command);
        command.args(["--server", &self.url, "--name", name]).arg("--token-file").arg(at("worker-token"));
        let settings = std::env::vars_os().map(|(name, _)| name);
        for name in settings.filter(|name| name.to_string_lossy().starts_with("TENURE_")) {
            command.env_remove(name);
        }
        // Ctrl-C is for the demo, which then ends its workers; they also end when their standard input does, so that
        // not even a kill of the demo leaves them behind.
        command.process_group(0).kill_on_drop(true).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log);
        let child = command.spawn().context("a worker could not be started")?;
        Ok(Worker { name: name.to_owned(), killed: false, child })
    }

    /// Stops the server. The folder goes unless it is to be kept.
    pub async fn close(self, keep: bool) -> anyhow::Result<Option<std::path::PathBuf>> {
        self.stop.cancel();
        self.server.await.context("the server failed")??;
        Ok(keep.then(|| self.folder.keep()))
    }
}

/// A worker process. Dropped, it is killed.
#[derive(Debug)]
pub struct Worker {
    pub name: String,
    killed: bool,
    child: Child,
}

impl Worker {
    pub fn pid(&self) -> u32 {
        self.child.id().unwrap_or_default()
    }

    /// SIGKILL: nothing is handed back, nothing is said.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        self.killed = true;
        self.child.kill().await.with_context(|| format!("{} could not be killed", self.name))
    }

    /// Fails if the worker ended by itself.
    pub fn check(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            _ if self.killed => Ok(()),
            None => Ok(()),
            Some(status) => anyhow::bail!("{} ended by itself with {status}", self.name),
        }
    }

    /// Lets it drain, and kills it if it does not.
    pub async fn stop(mut self) {
        drop(self.child.stdin.take());
        if tokio::time::timeout(WORKER_STOP, self.child.wait()).await.is_err() {
            let _ = self.child.kill().await;
        }
    }
}
