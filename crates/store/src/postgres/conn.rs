//! Connections, and what their errors mean.

use std::ops::Deref;
use std::time::Duration;

use deadpool_postgres::{
    ClientWrapper, Hook, HookError, Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime,
};
use tenure_tls::{PostgresAddress, explain_postgres};
use tokio_postgres::error::SqlState;

use crate::error::StoreError;

/// Connections that run `settings` when they are made.
pub fn pool(address: &PostgresAddress, size: usize, settings: &'static [&'static str]) -> Result<Pool, StoreError> {
    let PostgresAddress { config, tls } = address.clone();
    let manager = Manager::from_config(config, tls, ManagerConfig { recycling_method: RecyclingMethod::Fast });
    Pool::builder(manager)
        .max_size(size)
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(Duration::from_secs(10)))
        .create_timeout(Some(Duration::from_secs(5)))
        .recycle_timeout(Some(Duration::from_secs(5)))
        .post_create(Hook::async_fn(move |client: &mut ClientWrapper, _| {
            Box::pin(async move {
                for settings in settings {
                    client.batch_execute(settings).await.map_err(HookError::Backend)?;
                }
                Ok(())
            })
        }))
        .build()
        .map_err(|error| StoreError::Failed { operation: "set up connections", source: error.into() })
}

/// A connection that goes back to its pool only when it is told to: one that is dropped in the middle of a transaction
/// is closed, and the server rolls back.
pub struct Conn(Option<Object>);

impl Conn {
    pub async fn get(pool: &Pool) -> Result<Self, StoreError> {
        let object = pool.get().await.map_err(|error| {
            let source = explain_postgres(&error).map_or_else(|| error.into(), Into::into);
            StoreError::Unavailable { operation: "connect", source }
        })?;
        Ok(Self(Some(object)))
    }

    /// The transaction has ended: the connection can serve others.
    pub fn give_back(mut self) {
        drop(self.0.take());
    }
}

impl Deref for Conn {
    type Target = Object;
    fn deref(&self) -> &Object {
        match &self.0 {
            Some(object) => object,
            None => unreachable!("a connection is given back only by value"),
        }
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        if let Some(object) = self.0.take() {
            // Taken out of the pool and dropped: this closes it.
            drop(Object::take(object));
        }
    }
}

/// Names the operation and sorts errors into those that pass and those that do not.
pub fn failed(operation: &'static str, error: tokio_postgres::Error) -> StoreError {
    match error.code() {
        Some(code) if is_contention(code) => StoreError::Contention,
        Some(code) if is_passing(code) => StoreError::Unavailable { operation, source: error.into() },
        Some(_) => StoreError::Failed { operation, source: error.into() },
        // Without a code the server did not answer: the connection is gone.
        None if error.is_closed() || is_io(&error) => StoreError::Unavailable { operation, source: error.into() },
        None => StoreError::Failed { operation, source: error.into() },
    }
}

/// At the commit a lost connection leaves open whether it happened.
pub fn commit_failed(error: tokio_postgres::Error) -> StoreError {
    match failed("commit", error) {
        StoreError::Unavailable { source, .. } => StoreError::CommitUnknown { source },
        other => other,
    }
}

fn is_io(error: &tokio_postgres::Error) -> bool {
    std::error::Error::source(error).is_some_and(|source| source.is::<std::io::Error>())
}

fn is_contention(code: &SqlState) -> bool {
    [
        SqlState::T_R_SERIALIZATION_FAILURE,
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::UNIQUE_VIOLATION,
        SqlState::LOCK_NOT_AVAILABLE,
    ]
    .contains(code)
}

fn is_passing(code: &SqlState) -> bool {
    // Resources, shutdown and connection trouble, and a primary that became a standby.
    ["53", "57", "08"].iter().any(|class| code.code().starts_with(class))
        || *code == SqlState::READ_ONLY_SQL_TRANSACTION
}
