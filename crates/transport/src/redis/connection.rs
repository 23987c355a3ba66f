//! The connections to Redis: one for commands, and one for each wait.

use std::path::Path;
use std::sync::{Mutex as Lock, PoisonError};
use std::time::{Duration, Instant};

use redis::{Cmd, FromRedisValue, Pipeline, RedisError, RedisResult, Value};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::error;
use super::link::{Connection, Link};
use crate::TransportError;

/// How long an answer may take.
const RESPONSE: Duration = Duration::from_secs(5);

/// How much longer than asked for a wait may take.
const GRACE: Duration = Duration::from_secs(2);

/// Connections for waits that are kept for later ones.
const IDLE: usize = 8;

pub(super) struct Connections {
    link: Link,
    shared: Mutex<Shared>,
    /// Each is used by one wait at a time: Redis answers nothing else on a connection that is blocked.
    waiting: Lock<Vec<Connection>>,
}

#[derive(Default)]
struct Shared {
    connection: Option<Connection>,
    /// When the last attempt to connect ended, and why it failed.
    failure: Option<(Instant, TransportError)>,
}

impl Connections {
    pub(super) fn new(url: &str, ca_file: Option<&Path>) -> Result<Self, TransportError> {
        let link = Link::parse(url, ca_file)?;
        Ok(Self { link, shared: Mutex::default(), waiting: Lock::default() })
    }

    /// Runs many commands, pipelined.
    pub(super) async fn run<T: FromRedisValue>(&self, pipeline: &Pipeline) -> Result<T, TransportError> {
        let mut connection = self.shared().await?;
        let answer = timeout(RESPONSE, pipeline.query_async(&mut connection.commands)).await;
        self.judge(connection, answer.ok()).await?.map_err(|error| error::of(&error))
    }

    /// Runs one command. What the server answers may be an error, which is the caller's to judge.
    pub(super) async fn ask(&self, command: &Cmd) -> Result<RedisResult<Value>, TransportError> {
        let mut connection = self.shared().await?;
        let answer = timeout(RESPONSE, command.query_async(&mut connection.commands)).await;
        self.judge(connection, answer.ok()).await
    }

    /// Runs a command that waits at the server. If the caller gives up the connection ends, and with it the wait.
    pub(super) async fn wait(&self, command: &Cmd, wait: Duration) -> Result<Value, TransportError> {
        let idle = self.idle().pop().filter(Connection::is_open);
        let mut connection = match idle {
            Some(connection) => connection,
            None => self.link.connect().await?,
        };
        let answer = timeout(wait + GRACE, command.query_async(&mut connection.commands)).await;
        let answer = answer.map_err(|_| error::unreachable("it does not answer in time"))?;
        let answer = answer.map_err(|error| error::of(&error))?;
        let mut idle = self.idle();
        if idle.len() < IDLE {
            idle.push(connection);
        }
        Ok(answer)
    }

    /// The connection for commands. Those who ask while it is being made share what comes of it: a Redis that does not
    /// answer costs them one time limit and not one after the other.
    async fn shared(&self) -> Result<Connection, TransportError> {
        let asked = Instant::now();
        let mut shared = self.shared.lock().await;
        if let Some(connection) = shared.connection.as_ref().filter(|connection| connection.is_open()) {
            return Ok(connection.clone());
        }
        if let Some((when, error)) = &shared.failure
            && *when >= asked
        {
            return Err(error.clone());
        }
        match self.link.connect().await {
            Ok(connection) => Ok(shared.connection.insert(connection).clone()),
            Err(error) => {
                shared.failure = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    /// Takes an answer apart. `None` is one that did not come in time.
    async fn judge<T>(
        &self,
        used: Connection,
        answer: Option<RedisResult<T>>,
    ) -> Result<RedisResult<T>, TransportError> {
        let error = match answer {
            Some(answer) if !answer.as_ref().is_err_and(is_of_the_connection) => return Ok(answer),
            Some(Err(error)) => error::of(&error),
            _ => error::unreachable("it does not answer in time"),
        };
        // Nobody can tell what becomes of it: the next call makes another one.
        let mut shared = self.shared.lock().await;
        if shared.connection.as_ref().is_some_and(|current| current.is(&used)) {
            shared.connection = None;
        }
        Err(error)
    }

    /// The next call makes another connection.
    pub(super) async fn forget(&self) {
        self.shared.lock().await.connection = None;
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn is_of_the_connection(error: &RedisError) -> bool {
    let code = matches!(error.code(), Some("READONLY" | "NOAUTH" | "EXECABORT"));
    error.is_io_error() || error.is_unrecoverable_error() || code
}
