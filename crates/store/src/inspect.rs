//! Looks at a store without opening it for work: nothing is created or changed.

use tenure_core::queue::Queue;
use tenure_core::time::Timestamp;

use crate::error::StoreError;
use crate::{postgres, sqlite};

#[derive(Debug)]
pub struct Inspection {
    /// 0 if there are no tables yet. Compare with [`SCHEMA`](crate::SCHEMA).
    pub schema: i64,
    /// Whether a server has the file open. Always `false` for Postgres, which serves many.
    pub in_use: bool,
    /// Empty if the schema is of another version.
    pub queues: Vec<Queue>,
    pub server: Option<PostgresServer>,
    /// The worker token that control planes without a configured one share.
    pub worker_token: Option<SharedSecret>,
    /// What tells this store from others. An SQLite store has its own record beside the file.
    pub store_id: Option<String>,
}

/// A secret that is never printed.
pub struct SharedSecret(pub String);

impl std::fmt::Debug for SharedSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SharedSecret(***)")
    }
}

/// The name of the worker token among the shared secrets.
pub const SHARED_WORKER_TOKEN: &str = "worker_token";

/// The name of the identity of a Postgres store among the shared secrets. It is not a secret.
pub const STORE_ID: &str = "store_id";

/// What the Postgres server says about itself.
#[derive(Debug)]
pub struct PostgresServer {
    pub now: Timestamp,
    pub fsync: String,
    pub synchronous_commit: String,
    pub autovacuum_naptime: String,
}

/// `None` if the file of an SQLite store does not exist.
pub async fn inspect(url: &str) -> Result<Option<Inspection>, StoreError> {
    match url.strip_prefix("sqlite:") {
        Some(path) => sqlite::inspect(path.as_ref()),
        None => postgres::inspect(url).await.map(Some),
    }
}
