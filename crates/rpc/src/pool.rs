//! Connections to one worker.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use crate::address::Address;
use crate::credentials::Memory;
use crate::dial::{Driver, Sender};
use crate::{Error, Settings};

/// Connections to one worker that wait for the next call.
const MAX_IDLE: usize = 32;
/// How long a connection may take to be ready after its answer was read.
const SETTLES: Duration = Duration::from_millis(5);

/// A worker that is called.
#[derive(Debug)]
pub(crate) struct Worker {
    pub id: String,
    /// As it was given, to notice a change.
    pub rpc_url: String,
    pub address: Address,
    pub memory: Mutex<Memory>,
    idle: Mutex<Vec<Connection>>,
    calls: Arc<Semaphore>,
    sessions: Arc<Semaphore>,
    used: Mutex<Instant>,
}

/// What kind of work has room of its own, so that long sessions do not hold up calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    Call,
    Session,
}

/// Room for one of them, until the last clone is dropped.
pub(crate) type Permit = Arc<OwnedSemaphorePermit>;

/// A connection. Dropping it closes it at once, whatever is on it.
#[derive(Debug)]
pub(crate) struct Connection {
    pub sender: Sender,
    driver: Option<AbortHandle>,
    /// Of the TLS configuration that the worker was judged by.
    pub generation: u64,
    /// Whether another call was on it before.
    pub reused: bool,
    since: Instant,
}

impl Connection {
    pub(crate) fn new(sender: Sender, driver: Driver, generation: u64) -> Self {
        let driver = tokio::spawn(async move {
            if let Err(error) = driver.with_upgrades().await {
                tracing::trace!(%error, "a connection to a worker ended");
            }
        });
        Self { sender, driver: Some(driver.abort_handle()), generation, reused: false, since: Instant::now() }
    }

    /// Lets the connection go on without this handle, because something else holds it now.
    pub(crate) fn release(mut self) {
        self.driver = None;
    }

    fn is_usable(&self, generation: u64, pooled: Duration) -> bool {
        self.generation == generation && !self.sender.is_closed() && self.since.elapsed() < pooled
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(driver) = self.driver.take() {
            driver.abort();
        }
    }
}

impl Worker {
    pub(crate) fn new(id: &str, rpc_url: &str, settings: &Settings) -> Result<Self, Error> {
        Ok(Self {
            id: id.to_owned(),
            rpc_url: rpc_url.to_owned(),
            address: Address::parse(rpc_url)?,
            memory: Mutex::default(),
            idle: Mutex::default(),
            calls: Arc::new(Semaphore::new(settings.max_calls)),
            sessions: Arc::new(Semaphore::new(settings.max_sessions)),
            used: Mutex::new(Instant::now()),
        })
    }

    /// Waits for room among the calls to this worker.
    pub(crate) async fn room(&self, lane: Lane, wait: Duration) -> Result<Permit, Error> {
        *lock(&self.used) = Instant::now();
        let semaphore = match lane {
            Lane::Call => &self.calls,
            Lane::Session => &self.sessions,
        };
        match timeout(wait, Arc::clone(semaphore).acquire_owned()).await {
            Ok(Ok(permit)) => Ok(Arc::new(permit)),
            _ => Err(Error::unsent(format!("as many calls to worker {} as may are in progress", self.id))),
        }
    }

    /// A connection that waits for a call, the latest one first.
    pub(crate) async fn take(&self, generation: u64, pooled: Duration) -> Option<Connection> {
        loop {
            let mut found = {
                let mut idle = lock(&self.idle);
                idle.retain(|connection| connection.is_usable(generation, pooled));
                let ready = idle.iter().rposition(|connection| connection.sender.is_ready());
                match ready.or(idle.len().checked_sub(1)) {
                    Some(index) => idle.remove(index),
                    None => return None,
                }
            };
            // The end of the former answer may not have been seen yet by the task that reads the connection.
            if matches!(timeout(SETTLES, found.sender.ready()).await, Ok(Ok(()))) {
                found.reused = true;
                return Some(found);
            }
        }
    }

    /// Keeps a connection whose answer was read to its end.
    pub(crate) fn put(&self, mut connection: Connection) {
        if connection.sender.is_closed() {
            return;
        }
        connection.since = Instant::now();
        let mut idle = lock(&self.idle);
        if idle.len() < MAX_IDLE {
            idle.push(connection);
        }
    }

    /// Closes the connections that nobody has used for a while. Whether the worker itself was used lately.
    pub(crate) fn sweep(&self, generation: u64, pooled: Duration, kept: Duration) -> bool {
        lock(&self.idle).retain(|connection| connection.is_usable(generation, pooled));
        lock(&self.used).elapsed() < kept
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
