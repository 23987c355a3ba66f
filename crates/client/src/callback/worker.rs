use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use serde::Serialize;
use tenure_contract::callback::CompletedResponse;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::error::Refusal;
use super::gate::{Gate, plain};
use super::service::Service;
use crate::TaskContext;
use crate::http::{self, Roots};
use crate::worker::OUTAGE_TOLERANCE;
use crate::worker::error::{TaskError, WorkerError};
use crate::worker::execute::{Handler, erase};
use crate::worker::id;

/// After everything was reported, how long connections may take to end.
const LAST_CONNECTIONS: Duration = Duration::from_secs(5);
/// Tenant and workspace of tasks that name none.
const DEFAULT_SCOPE: &str = "default";

/// A worker that tasks are pushed to: takes envelopes, runs the handlers they name, keeps the attempts alive, reports.
///
/// Its id is unique to each process, as the contract wants it.
#[derive(Clone)]
#[must_use = "a worker does nothing until it runs"]
pub struct Worker {
    name: Option<String>,
    roots: Roots,
    secret: Secret,
    scopes: Vec<(String, String)>,
    callback_urls: Vec<String>,
    options: Options,
}

/// What was said about the dispatch secret.
#[derive(Clone)]
enum Secret {
    Unsaid,
    None,
    Any(Vec<String>),
}

#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) gate: Gate,
    pub(crate) path: String,
    pub(crate) concurrency: usize,
    pub(crate) remember: usize,
    pub(crate) drain_timeout: Duration,
    pub(crate) stop_grace: Duration,
    pub(crate) outage_tolerance: Duration,
    pub(crate) handlers: HashMap<String, Handler>,
    pub(crate) on_ended: Option<EndedHook>,
}

pub(crate) type EndedHook = Arc<dyn Fn(&Ended) + Send + Sync>;

/// An attempt that this worker is done with.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Ended {
    /// A UUID, as in [`TaskContext::task_id`](crate::TaskContext::task_id).
    pub task_id: String,
    pub dispatch_id: String,
    pub attempt: u32,
    pub reported: Reported,
}

/// What the control plane knows of an attempt's end.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Reported {
    /// It took the report, now or before.
    Acknowledged(CompletedResponse),
    /// It refused a callback: the attempt is not this worker's, or no longer.
    Refused(Refusal),
    /// Nothing was acknowledged while the token was good, or while the lease could be alive.
    Unanswered(String),
}

impl Default for Worker {
    fn default() -> Self {
        Self::new()
    }
}

impl Worker {
    pub fn new() -> Self {
        Self {
            name: None,
            roots: Roots::System,
            secret: Secret::Unsaid,
            scopes: Vec::new(),
            callback_urls: Vec::new(),
            options: Options {
                gate: Gate::default(),
                path: "/dispatch".to_owned(),
                concurrency: 256,
                remember: 10_000,
                drain_timeout: Duration::from_secs(30),
                stop_grace: Duration::from_secs(5),
                outage_tolerance: OUTAGE_TOLERANCE,
                handlers: HashMap::new(),
                on_ended: None,
            },
        }
    }

    /// The `callbackBaseUrl` of a control plane that this worker reports to. An envelope that names another one is
    /// refused, and no token ever leaves for anywhere else. Say it once for each control plane.
    pub fn callback_url(mut self, url: impl Into<String>) -> Self {
        self.callback_urls.push(url.into());
        self
    }

    /// What `X-Tenure-Dispatch-Secret` must be. Said more than once, any of them will do, as while one replaces another.
    pub fn secret(mut self, secret: impl Into<String>) -> Self {
        match &mut self.secret {
            Secret::Any(secrets) => secrets.push(secret.into()),
            Secret::Unsaid | Secret::None => self.secret = Secret::Any(vec![secret.into()]),
        }
        self
    }

    /// Accepts pushes without a secret: something else guards the address, such as client certificates.
    pub fn without_secret(mut self) -> Self {
        self.secret = Secret::None;
        self
    }

    /// A tenant and workspace to work for, `default` and `default` unless this is said. An envelope of another scope is
    /// refused.
    pub fn scope(mut self, tenant: impl Into<String>, workspace: impl Into<String>) -> Self {
        self.scopes.push((tenant.into(), workspace.into()));
        self
    }

    /// The start of the worker's id; the host's name unless this is said.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Where tasks are pushed to, default `/dispatch`.
    pub fn path(mut self, path: impl Into<String>) -> Self {
        self.options.path = path.into();
        self
    }

    /// How many attempts may be in flight, default 256. Further pushes are asked to come again later. The queue's
    /// `push.concurrency` is the better place to say less.
    pub fn concurrency(mut self, attempts: usize) -> Self {
        self.options.concurrency = attempts;
        self
    }

    /// Certificates in PEM. Only a control plane whose certificate they sign is trusted, and no longer those that the
    /// system trusts.
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.roots = Roots::Pem(pem.into());
        self
    }

    /// [`root_certificate`](Self::root_certificate) from a file.
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.roots = Roots::File(path.into());
        self
    }

    /// On shutdown, how long running tasks may go on before they are told to stop, default 30 s.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.options.drain_timeout = timeout;
        self
    }

    /// On shutdown, how long tasks that were told to stop may take for it, default 5 s.
    pub fn stop_grace(mut self, grace: Duration) -> Self {
        self.options.stop_grace = grace;
        self
    }

    /// How long a handler goes on after its lease ran out by the local clock because the control plane did not answer,
    /// default 5 minutes. See [`Worker::outage_tolerance`](crate::Worker::outage_tolerance).
    pub fn outage_tolerance(mut self, tolerance: Duration) -> Self {
        self.options.outage_tolerance = tolerance;
        self
    }

    /// Runs tasks whose `assetId` is `name` with `handler`: the `asset_id` of the submission, else its operator.
    pub fn operator<F, Fut, T>(mut self, name: impl Into<String>, handler: F) -> Self
    where
        F: Fn(TaskContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, TaskError>> + Send + 'static,
        T: Serialize,
    {
        self.options.handlers.insert(name.into(), erase(handler));
        self
    }

    /// Calls `hook` whenever the worker is done with an attempt. It must be short.
    pub fn on_ended(mut self, hook: impl Fn(&Ended) + Send + Sync + 'static) -> Self {
        self.options.on_ended = Some(Arc::new(hook));
        self
    }

    /// Starts the heartbeat thread. What comes back has the route to serve, and the end of it all.
    pub fn start(self) -> Result<Service, WorkerError> {
        let (options, roots, worker_id) = self.check()?;
        Service::start(options, roots, worker_id)
    }

    /// The route alone, for a worker that ends with its process.
    pub fn router(self) -> Result<Router, WorkerError> {
        self.start().map(|service| service.router())
    }

    /// Serves the route on this listener, for good.
    pub async fn run(self, listener: TcpListener) -> Result<(), WorkerError> {
        self.run_until(listener, std::future::pending()).await
    }

    /// Serves until `shutdown` ends; then takes nothing more, lets tasks finish, reports, and returns.
    pub async fn run_until(self, listener: TcpListener, shutdown: impl Future<Output = ()>) -> Result<(), WorkerError> {
        let service = self.start()?;
        let done = CancellationToken::new();
        let serving = axum::serve(listener, service.router())
            .with_graceful_shutdown(done.clone().cancelled_owned())
            .into_future();
        // In a task of its own: what a handler does in the other must not hold it up.
        let mut serving = tokio::spawn(serving);
        tokio::select! {
            ended = &mut serving => return served(ended),
            () = shutdown => {}
        }
        // What is pushed meanwhile is told to come again.
        let drained = service.drain().await;
        done.cancel();
        // A connection that says nothing more must not keep the process.
        match tokio::time::timeout(LAST_CONNECTIONS, &mut serving).await {
            Ok(ended) => drained.and(served(ended)),
            Err(_) => {
                serving.abort();
                drained
            }
        }
    }

    fn check(mut self) -> Result<(Options, Option<Vec<reqwest::Certificate>>, String), WorkerError> {
        let wrong = |message: &str| Err(WorkerError::Setup(message.to_owned()));
        if self.options.handlers.is_empty() {
            return wrong("a worker needs at least one operator");
        }
        if self.options.concurrency == 0 {
            return wrong("a worker must be allowed to run at least one task at a time");
        }
        if !self.options.path.starts_with('/') {
            return wrong("the path that tasks are pushed to begins with a slash");
        }
        if self.callback_urls.is_empty() {
            return wrong("set the callback URL that this worker reports to");
        }
        self.options.gate.secrets = match self.secret {
            Secret::Unsaid => return wrong("set a dispatch secret, or declare that the worker has none"),
            Secret::None => None,
            Secret::Any(secrets) if secrets.iter().any(String::is_empty) => {
                return wrong("an empty dispatch secret protects nothing");
            }
            Secret::Any(secrets) => Some(secrets.into_iter().map(String::into_bytes).collect()),
        };
        if self.scopes.is_empty() {
            self.scopes.push((DEFAULT_SCOPE.to_owned(), DEFAULT_SCOPE.to_owned()));
        }
        self.options.gate.scopes = self.scopes.into_iter().collect();
        self.options.gate.callback_urls = callback_urls(&self.callback_urls)?;
        let roots = self.roots.load().map_err(WorkerError::Setup)?;
        Ok((self.options, roots, id::worker_id_of(self.name.as_deref())))
    }
}

fn callback_urls(texts: &[String]) -> Result<HashSet<String>, WorkerError> {
    let read = |text: &String| {
        let url = http::parse_server(text).map_err(WorkerError::Setup)?;
        plain(&url).ok_or_else(|| {
            WorkerError::Setup(format!("`{text}` cannot be a callback URL: no user, query or fragment may be in it"))
        })
    };
    texts.iter().map(read).collect()
}

fn served(ended: Result<std::io::Result<()>, tokio::task::JoinError>) -> Result<(), WorkerError> {
    ended.unwrap_or_else(|error| Err(std::io::Error::other(error))).map_err(WorkerError::Listener)
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("name", &self.name)
            .field("callback_urls", &self.callback_urls)
            .field("path", &self.options.path)
            .field("concurrency", &self.options.concurrency)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker() -> Worker {
        Worker::new().callback_url("http://127.0.0.1:1").secret("s").operator("op", async |_| Ok(()))
    }

    #[test]
    fn a_worker_that_cannot_work_says_why() {
        let why = |worker: Worker| worker.start().unwrap_err().to_string();
        assert!(worker().start().is_ok());
        assert!(why(Worker::new().callback_url("http://h").secret("s")).contains("operator"));
        assert!(why(worker().concurrency(0)).contains("at least one task"));
        assert!(why(worker().path("dispatch")).contains("slash"));
        assert!(why(worker().callback_url("h:1")).contains("h:1"));
        assert!(why(worker().callback_url("http://me:pw@h")).contains("user"));
        let bare = || Worker::new().operator("op", async |_| Ok(()));
        assert!(why(bare().secret("s")).contains("callback URL"));
        assert!(why(bare().callback_url("http://h")).contains("secret"));
        assert!(why(bare().callback_url("http://h").secret("")).contains("empty"));
        assert!(bare().callback_url("http://h").without_secret().start().is_ok());
    }

    #[test]
    fn no_secret_is_printed() {
        assert!(!format!("{:?}", worker().secret("hush")).contains("hush"));
    }

    #[test]
    fn two_starts_have_two_ids() {
        let (one, two) = (worker().name("etl").start().unwrap(), worker().name("etl").start().unwrap());
        assert!(one.worker_id().starts_with("etl-"));
        assert_ne!(one.worker_id(), two.worker_id());
    }
}
