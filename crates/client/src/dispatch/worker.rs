use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::attempt::erase;
use super::output::IntoOutputs;
use super::runtime::{Options, Site};
use super::task::Task;
use crate::http::{self, Roots};
use crate::worker::caller::{Identity, KnownBy};
use crate::worker::error::{TaskError, WorkerError};
use crate::worker::id;
use crate::worker::token::Token;
use crate::worker::{OUTAGE_TOLERANCE, WorkerToken};

/// How long a request for wake-ups may wait at the server.
const POLL_MAX: Duration = Duration::from_secs(20);
const WORKER_ID_BYTES: usize = 256;
/// How long a handler may take to stop after its task was canceled. The server gives it no more either.
const CANCEL_GRACE: Duration = Duration::from_secs(30);

/// A worker for the jobs of DAGs: is woken with the ids of tasks, claims them, runs the handlers of their operators, keeps
/// the leases alive, reports what was written.
///
/// The code of handlers runs in this process: let it be code that you trust.
#[derive(Clone)]
#[must_use = "a worker does nothing until it runs"]
pub struct Worker {
    server: String,
    token: Token,
    known_by: KnownBy,
    worker_id: Option<String>,
    roots: Roots,
    options: Options,
}

impl Worker {
    /// `server` is the address of the control plane, or of its `dispatch.internal_listen`.
    pub fn new(server: impl Into<String>) -> Self {
        Self {
            server: server.into(),
            token: Token::None,
            known_by: KnownBy::SharedToken,
            worker_id: None,
            roots: Roots::System,
            options: Options {
                queue: "worker".to_owned(),
                concurrency: 1,
                poll_wait: POLL_MAX,
                drain_timeout: Duration::from_secs(30),
                stop_grace: Duration::from_secs(5),
                cancel_grace: CANCEL_GRACE,
                outage_tolerance: OUTAGE_TOLERANCE,
                operators: HashMap::new(),
                any: None,
            },
        }
    }

    /// The token that all workers share, sent as `X-Trace-Worker-Token`. Handlers do not get it.
    pub fn shared_token(mut self, token: impl Into<String>) -> Self {
        (self.token, self.known_by) = (Token::Text(token.into()), KnownBy::SharedToken);
        self
    }

    /// [`shared_token`](Self::shared_token) from a file, read again for every request.
    pub fn shared_token_file(mut self, path: impl Into<PathBuf>) -> Self {
        (self.token, self.known_by) = (Token::File(path.into()), KnownBy::SharedToken);
        self
    }

    /// A token of this worker's own, sent with its id as `X-Worker-ID` and `X-Worker-Token`.
    pub fn identity(mut self, worker_id: impl Into<String>, token: WorkerToken) -> Self {
        self.worker_id = Some(worker_id.into());
        (self.token, self.known_by) = (token.into_inner(), KnownBy::Itself);
        self
    }

    /// How the control plane knows this worker, such as `ecs:cluster/service/task`. Unless this is said, the id is unique to
    /// each run.
    pub fn worker_id(mut self, id: impl Into<String>) -> Self {
        self.worker_id = Some(id.into());
        self
    }

    /// Certificates in PEM. Only a server whose certificate they sign is trusted, and no longer those that the system
    /// trusts.
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.roots = Roots::Pem(pem.into());
        self
    }

    /// [`root_certificate`](Self::root_certificate) from a file.
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.roots = Roots::File(path.into());
        self
    }

    /// Whose wake-ups are asked for: `worker` unless this is said, `worker.{pool}` for jobs with `scaling.worker_pool`.
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.options.queue = queue.into();
        self
    }

    /// How many tasks run at a time, default 1.
    pub fn concurrency(mut self, tasks: usize) -> Self {
        self.options.concurrency = tasks;
        self
    }

    /// How long a request for wake-ups waits at the server, in whole seconds, default 20 s, which is the most.
    pub fn poll_wait(mut self, wait: Duration) -> Self {
        self.options.poll_wait = wait;
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

    /// How long a handler may take to stop after its task was canceled, default 30 s, which is what the control plane waits by
    /// default. A handler that takes longer is dropped shortly before.
    pub fn cancel_grace(mut self, grace: Duration) -> Self {
        self.options.cancel_grace = grace;
        self
    }

    /// How long a handler goes on after its lease ran out by the local clock because the control plane did not answer, or
    /// says that the lease has expired and nobody else has claimed the task; default 5 minutes. See
    /// [`Worker::outage_tolerance`](crate::Worker::outage_tolerance).
    pub fn outage_tolerance(mut self, tolerance: Duration) -> Self {
        self.options.outage_tolerance = tolerance;
        self
    }

    /// Runs tasks of jobs with the operator `name` with `handler`, which returns nothing, an
    /// [`Output`](super::Output) or several.
    pub fn operator<F, Fut, T>(mut self, name: impl Into<String>, handler: F) -> Self
    where
        F: Fn(Task) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, TaskError>> + Send + 'static,
        T: IntoOutputs + Send,
    {
        self.options.operators.insert(name.into(), erase(handler));
        self
    }

    /// Runs tasks of jobs with any operator that has no handler of its own.
    pub fn any_operator<F, Fut, T>(mut self, handler: F) -> Self
    where
        F: Fn(Task) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, TaskError>> + Send + 'static,
        T: IntoOutputs + Send,
    {
        self.options.any = Some(erase(handler));
        self
    }

    /// Works until the worker is refused.
    pub async fn run(self) -> Result<(), WorkerError> {
        self.run_until(std::future::pending()).await
    }

    /// Works until `shutdown` ends; then claims nothing more, lets tasks finish, reports, and returns.
    ///
    /// Dropping the future instead ends all at once: handlers are dropped and their leases run out.
    pub async fn run_until(self, shutdown: impl Future<Output = ()>) -> Result<(), WorkerError> {
        let (identity, options) = self.check()?;
        Site::start(identity, options)?.run(shutdown).await
    }

    fn check(self) -> Result<(Identity, Options), WorkerError> {
        let wrong = |message: &str| Err(WorkerError::Setup(message.to_owned()));
        if self.options.operators.is_empty() && self.options.any.is_none() {
            return wrong("a worker needs at least one operator");
        }
        if self.options.concurrency == 0 {
            return wrong("a worker must be allowed to run at least one task at a time");
        }
        if self.options.queue.is_empty() {
            return wrong("a wake-up queue has a name");
        }
        if self.options.poll_wait > POLL_MAX {
            return wrong("a request for wake-ups may wait for 20 s at most");
        }
        let worker_id = self.worker_id.unwrap_or_else(id::worker_id);
        if worker_id.is_empty() || worker_id.len() > WORKER_ID_BYTES {
            return Err(WorkerError::Setup(format!("a worker id has from 1 to {WORKER_ID_BYTES} bytes")));
        }
        let identity = Identity {
            server: http::parse_server(&self.server).map_err(WorkerError::Setup)?,
            token: self.token,
            roots: self.roots.load().map_err(WorkerError::Setup)?,
            worker_id,
            known_by: self.known_by,
        };
        Ok((identity, self.options))
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("server", &self.server)
            .field("worker_id", &self.worker_id)
            .field("queue", &self.options.queue)
            .field("concurrency", &self.options.concurrency)
            .finish_non_exhaustive()
    }
}
