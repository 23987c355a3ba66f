//! Connections, and what their errors mean.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use deadpool_postgres::{ClientWrapper, Hook, HookError, Manager, ManagerConfig, Object, RecyclingMethod, Runtime};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row, Statement, ToStatement};

use super::address::{PostgresAddress, explain_tls};
use super::hosts::EachHost;
use crate::error::StoreError;

/// How long a request waits for a free connection.
const FREE_WITHIN: Duration = Duration::from_secs(5);
/// How long a new connection may take, over all hosts of the address.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// How long its settings may take.
const SET_UP_WITHIN: Duration = Duration::from_secs(3);
/// How long an answer may take. The server gives up after 10 s by itself, so who hears nothing for longer has nobody at
/// the other end: a server that stands still, or a network that lost it without a word.
const ANSWER_WITHIN: Duration = Duration::from_secs(12);

/// The connections of one kind.
#[derive(Debug, Clone)]
pub struct Pool {
    connections: deadpool_postgres::Pool,
    family: Arc<Family>,
}

/// All pools to one address.
#[derive(Debug, Default)]
struct Family {
    pools: Mutex<Vec<deadpool_postgres::Pool>>,
    /// How often what was open turned out to lead to the wrong place.
    moves: AtomicU64,
}

/// Makes pools to one address.
pub struct Pools<'a> {
    address: &'a PostgresAddress,
    family: Arc<Family>,
}

impl<'a> Pools<'a> {
    pub fn new(address: &'a PostgresAddress) -> Self {
        Self { address, family: Arc::default() }
    }

    /// Connections that run `settings` when they are made.
    pub fn pool(&self, size: usize, settings: &'static [&'static str]) -> Result<Pool, StoreError> {
        let connections = connections(self.address, size, settings)?;
        self.family.pools.lock().unwrap_or_else(PoisonError::into_inner).push(connections.clone());
        Ok(Pool { connections, family: Arc::clone(&self.family) })
    }
}

impl Pool {
    /// What is open leads to the wrong place: whoever asks next connects anew, and what is in use now is closed after.
    fn move_on(&self) {
        self.family.moves.fetch_add(1, Ordering::SeqCst);
        for pool in &*self.family.pools.lock().unwrap_or_else(PoisonError::into_inner) {
            pool.retain(|_, _| false);
        }
    }

    fn moves(&self) -> u64 {
        self.family.moves.load(Ordering::SeqCst)
    }
}

fn connections(
    address: &PostgresAddress,
    size: usize,
    settings: &'static [&'static str],
) -> Result<deadpool_postgres::Pool, StoreError> {
    let PostgresAddress { config, tls } = address.clone();
    let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let manager = Manager::from_connect(config, EachHost::new(tls), recycling);
    deadpool_postgres::Pool::builder(manager)
        .max_size(size)
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(FREE_WITHIN))
        .create_timeout(Some(CONNECT_WITHIN))
        .recycle_timeout(Some(CONNECT_WITHIN))
        .post_create(Hook::async_fn(move |client: &mut ClientWrapper, _| {
            Box::pin(async move {
                for settings in settings {
                    let set = tokio::time::timeout(SET_UP_WITHIN, client.batch_execute(settings)).await;
                    set.unwrap_or_else(|_| Err(no_answer())).map_err(HookError::Backend)?;
                }
                Ok(())
            })
        }))
        .build()
        .map_err(|error| StoreError::Failed { operation: "set up connections", source: error.into() })
}

/// A connection that goes back to its pool only when it is told to: one that is dropped in the middle of a transaction
/// is closed, and the server rolls back. What it is asked has to be answered in time.
pub struct Conn {
    object: Option<Object>,
    pool: Pool,
    moves: u64,
}

impl Conn {
    pub async fn get(pool: &Pool) -> Result<Self, StoreError> {
        let moves = pool.moves();
        let object = pool.connections.get().await.map_err(|error| {
            let source = explain_tls(&error).map_or_else(|| error.into(), Into::into);
            StoreError::Unavailable { operation: "connect", source }
        })?;
        Ok(Self { object: Some(object), pool: pool.clone(), moves })
    }

    /// The transaction has ended: the connection can serve others.
    pub fn give_back(mut self) {
        if self.moves == self.pool.moves() {
            drop(self.object.take());
        }
    }

    pub async fn prepare_cached(&self, sql: &str) -> Result<Statement, Error> {
        self.in_time(self.unbounded().prepare_cached(sql)).await
    }

    pub async fn query<T>(&self, statement: &T, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Error>
    where
        T: ?Sized + ToStatement + Sync,
    {
        self.in_time(self.unbounded().query(statement, params)).await
    }

    pub async fn query_one<T>(&self, statement: &T, params: &[&(dyn ToSql + Sync)]) -> Result<Row, Error>
    where
        T: ?Sized + ToStatement + Sync,
    {
        self.in_time(self.unbounded().query_one(statement, params)).await
    }

    pub async fn batch_execute(&self, sql: &str) -> Result<(), Error> {
        self.in_time(self.unbounded().batch_execute(sql)).await
    }

    /// For what may take as long as it takes.
    pub fn unbounded(&self) -> &ClientWrapper {
        match &self.object {
            Some(object) => object,
            None => unreachable!("a connection is given back only by value"),
        }
    }

    async fn in_time<T>(&self, answer: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let answer = match tokio::time::timeout(ANSWER_WITHIN, answer).await {
            Ok(answer) => answer,
            Err(_) => Err(no_answer()),
        };
        if let Err(error) = &answer
            && is_elsewhere(error)
        {
            self.pool.move_on();
        }
        answer
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        if let Some(object) = self.object.take() {
            // Taken out of the pool and dropped: this closes it.
            drop(Object::take(object));
        }
    }
}

/// The error of the crate itself, which only its blocking sister has a use for.
fn no_answer() -> Error {
    Error::__private_api_timeout()
}

fn is_no_answer(error: &Error) -> bool {
    error.to_string() == no_answer().to_string()
}

/// Whether the server that one should talk to is another, or none: this one says nothing, goes away, or only reads.
fn is_elsewhere(error: &Error) -> bool {
    error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION) || error.is_closed() || is_no_answer(error)
}

/// Names the operation and sorts errors into those that pass and those that do not.
pub fn failed(operation: &'static str, error: Error) -> StoreError {
    match error.code() {
        Some(code) if is_contention(code) => StoreError::Contention,
        Some(code) if is_passing(code) => StoreError::Unavailable { operation, source: error.into() },
        Some(_) => StoreError::Failed { operation, source: error.into() },
        // Without a code the server did not answer: the connection is gone.
        None if error.is_closed() || is_io(&error) || is_no_answer(&error) => {
            StoreError::Unavailable { operation, source: error.into() }
        }
        None => StoreError::Failed { operation, source: error.into() },
    }
}

/// At the commit a lost connection leaves open whether it happened.
pub fn commit_failed(error: Error) -> StoreError {
    match failed("commit", error) {
        StoreError::Unavailable { source, .. } => StoreError::CommitUnknown { source },
        other => other,
    }
}

fn is_io(error: &Error) -> bool {
    std::error::Error::source(error).is_some_and(|source| source.is::<std::io::Error>())
}

fn is_contention(code: &SqlState) -> bool {
    [
        SqlState::T_R_SERIALIZATION_FAILURE,
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::UNIQUE_VIOLATION,
        // The queue of a task was deleted.
        SqlState::FOREIGN_KEY_VIOLATION,
        SqlState::LOCK_NOT_AVAILABLE,
    ]
    .contains(code)
}

fn is_passing(code: &SqlState) -> bool {
    // Resources, shutdown and connection trouble, and a primary that became a standby.
    ["53", "57", "08"].iter().any(|class| code.code().starts_with(class))
        || *code == SqlState::READ_ONLY_SQL_TRANSACTION
}
