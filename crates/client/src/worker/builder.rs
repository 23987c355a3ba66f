use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::about::About;
use super::caller::{Identity, KnownBy};
use super::calls::WorkerToken;
use super::context::TaskContext;
use super::error::{TaskError, WorkerError};
use super::execute::erase;
use super::id;
use super::issued::{BootstrapKey, Issued, Issuer};
use super::link::Process;
use super::runtime::{Options, Runtime};
use super::token::Token;
use super::wake::WakeBy;
use crate::http::{self, Roots};

/// Streams of a claim.
const QUEUES_MAX: usize = 64;
/// `max_wait_ms` of a claim.
const POLL_MAX: Duration = Duration::from_secs(60);
/// How long work goes on without a word from the control plane, unless set otherwise.
pub const OUTAGE_TOLERANCE: Duration = Duration::from_secs(5 * 60);

/// A worker: claims tasks from queues, runs the handlers of their operators, keeps the leases alive, reports.
///
/// Unless it is given a name its id is unique to each run. Under a name, a new process takes over from an old one: what
/// the old one held is void, and the old one ends with [`WorkerError::Superseded`] if it is still there.
#[derive(Clone)]
#[must_use = "a worker does nothing until it runs"]
pub struct Worker {
    server: String,
    token: Source,
    name: Option<String>,
    roots: Roots,
    options: Options,
}

/// Where the token comes from, as it was set.
#[derive(Clone)]
enum Source {
    Given(Token),
    Issued { key: BootstrapKey, ttl: Option<Duration> },
}

impl Worker {
    pub fn new(server: impl Into<String>) -> Self {
        let token = Source::Given(Token::None);
        Self { server: server.into(), token, name: None, roots: Roots::System, options: Options::default() }
    }

    /// Sent as `X-Worker-Token`.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Source::Given(Token::Text(token.into()));
        self
    }

    /// A file with the token, read again for every request.
    pub fn token_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.token = Source::Given(Token::File(path.into()));
        self
    }

    /// Has the server issue the token: this key says that it may, and it is good for this worker's name only.
    ///
    /// The token is renewed at two thirds of its life, and at once when it is refused. `ttl` is how long each lasts, up
    /// to 15 minutes; without it the server chooses.
    pub fn bootstrap_key(mut self, key: impl Into<String>, ttl: Option<Duration>) -> Self {
        self.token = Source::Issued { key: BootstrapKey::Text(key.into()), ttl };
        self
    }

    /// [`bootstrap_key`](Self::bootstrap_key) from a file, read again whenever a token is asked for.
    pub fn bootstrap_key_file(mut self, path: impl Into<PathBuf>, ttl: Option<Duration>) -> Self {
        self.token = Source::Issued { key: BootstrapKey::File(path.into()), ttl };
        self
    }

    /// A token from elsewhere.
    pub fn credential(mut self, token: WorkerToken) -> Self {
        self.token = Source::Given(token.into_inner());
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

    /// A fixed worker id. Only one process at a time may use it.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The queues to take tasks from: one of the second only when the first has none, and so on.
    pub fn queues<Q: Into<String>>(mut self, queues: impl IntoIterator<Item = Q>) -> Self {
        self.options.queues = queues.into_iter().map(Into::into).collect();
        self
    }

    /// How many tasks run at a time, default 1.
    pub fn concurrency(mut self, tasks: usize) -> Self {
        self.options.concurrency = tasks;
        self
    }

    /// How long a claim waits at the server for work, default 5 s, up to 60 s.
    pub fn poll_wait(mut self, wait: Duration) -> Self {
        self.options.poll_wait = wait;
        self
    }

    /// How the worker learns of work; by default it asks the server.
    ///
    /// With a transport it receives wake-ups itself and claims the jobs that they name. While the transport cannot be
    /// reached it asks the server, and goes back by itself.
    pub fn wake_by(mut self, by: impl Into<WakeBy>) -> Self {
        self.options.wake_by = by.into();
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

    /// How long a handler goes on after its lease ran out by the local clock because the server did not answer, default
    /// 5 minutes.
    ///
    /// An outage of the control plane must not abort running work: after it, leases are judged leniently and the next
    /// heartbeat renews. A worker that is merely cut off looks the same from here, and then the task may run twice at a
    /// time until the server can say so; the fence keeps the older one from changing anything. With zero the handler is
    /// stopped the moment the lease is certain to have run out. A lease that was given to somebody else ends the handler
    /// in any case, as soon as the server says so.
    pub fn outage_tolerance(mut self, tolerance: Duration) -> Self {
        self.options.outage_tolerance = tolerance;
        self
    }

    /// Promises the server that everything an attempt started is dead when its lease expires, so that queues with
    /// `strict` grant their tasks to this worker. Sets the [`outage_tolerance`](Self::outage_tolerance) to zero.
    ///
    /// The promise is the caller's to keep, also if this process is killed: run handlers in something with a supervisor of
    /// its own that ends them at [`TaskContext::lease_end`].
    pub fn kills_on_expiry(mut self) -> Self {
        self.options.kills_on_expiry = true;
        self.options.outage_tolerance = Duration::ZERO;
        self
    }

    /// Runs tasks of the operator `name` with `handler`.
    pub fn operator<F, Fut, T>(mut self, name: impl Into<String>, handler: F) -> Self
    where
        F: Fn(TaskContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, TaskError>> + Send + 'static,
        T: Serialize,
    {
        self.options.handlers.insert(name.into(), erase(handler));
        self
    }

    /// Works until the worker is superseded or refused.
    pub async fn run(self) -> Result<(), WorkerError> {
        self.run_until(std::future::pending()).await
    }

    /// Works until `shutdown` ends; then claims nothing more, lets tasks finish, reports, and returns.
    ///
    /// Dropping the future instead ends all at once: handlers are dropped and their leases run out.
    pub async fn run_until(self, shutdown: impl Future<Output = ()>) -> Result<(), WorkerError> {
        let (process, options) = self.check()?;
        Runtime::start(process, options)?.run(shutdown).await
    }

    fn check(self) -> Result<(Process, Options), WorkerError> {
        let wrong = |message: String| Err(WorkerError::Setup(message));
        let queues = self.options.queues.len();
        if queues == 0 || queues > QUEUES_MAX {
            return wrong(format!("a worker takes from 1 to {QUEUES_MAX} queues, not {queues}"));
        }
        if self.options.concurrency == 0 {
            return wrong("a worker must be allowed to run at least one task at a time".into());
        }
        if self.options.handlers.is_empty() {
            return wrong("a worker needs at least one operator".into());
        }
        if self.options.poll_wait > POLL_MAX {
            return wrong("a claim may wait for 60 s at most".into());
        }
        let token = match self.token {
            Source::Given(token) => token,
            Source::Issued { .. } if self.name.is_none() => {
                return wrong("a bootstrap key needs a worker id: give the worker a name".into());
            }
            Source::Issued { key, ttl } => Token::Issued(Arc::new(Issued::new(key, Issuer::Worker, ttl))),
        };
        let identity = Identity {
            server: http::parse_server(&self.server).map_err(WorkerError::Setup)?,
            token,
            roots: self.roots.load().map_err(WorkerError::Setup)?,
            worker_id: self.name.unwrap_or_else(id::worker_id),
            known_by: KnownBy::Itself,
        };
        let kills_on_expiry = self.options.kills_on_expiry;
        let about = Arc::new(About::new(self.options.concurrency, self.options.handlers.keys().cloned()));
        Ok((Process { identity, incarnation: id::ulid(), kills_on_expiry, about }, self.options))
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            queues: Vec::new(),
            concurrency: 1,
            poll_wait: Duration::from_secs(5),
            drain_timeout: Duration::from_secs(30),
            stop_grace: Duration::from_secs(5),
            outage_tolerance: OUTAGE_TOLERANCE,
            kills_on_expiry: false,
            wake_by: WakeBy::Pull,
            handlers: HashMap::new(),
        }
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("server", &self.server)
            .field("name", &self.name)
            .field("queues", &self.options.queues)
            .field("concurrency", &self.options.concurrency)
            .field("wake_by", &self.options.wake_by)
            .finish_non_exhaustive()
    }
}
