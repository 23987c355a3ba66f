//! The configuration: flags, then environment, then a file, then defaults.
//!
//! Not the crate `figment`: every value knows its origin down to the line, an unknown key is answered with the nearest one,
//! each key can be read from a file (`_file`), and reload, `tenure config show`, the lint and the reference page all come
//! from one table of keys. What a library would take over is the smaller part.

mod auth;
mod compat;
mod config;
mod data_store;
mod database;
mod defaults;
mod env;
mod error;
mod example;
mod file;
mod files;
mod functions;
mod keys;
mod limits;
mod lint;
mod net;
mod objects;
mod ports;
mod push;
mod query;
mod reference;
mod s3;
mod sandboxes;
mod server;
mod settings;
mod show;
mod store_url;
#[cfg(test)]
mod tests;
mod tokens;
mod transport;
mod watch;
mod worker;

pub use auth::{Auth, AuthSettings, OidcSettings, WorkerSettings, secret_digest};
pub use compat::{Compat, CompatReason, STACYVM, started_as_stacyvm};
pub use config::{Config, Flags, changed_keys, needs_restart};
pub use data_store::{DataPlace, DataStoreSettings};
pub use database::{Database, Driver};
pub use defaults::{Defaults, Leases, Scheduler, SpawnOverflow, Weights};
pub use error::{ConfigError, Origin};
pub use example::example;
pub use functions::{LambdaSettings, RuntimeSettings};
pub use keys::{Change, Key, Kind, all as keys};
pub use limits::{AuditCommands, RateKey, RateLimit, Retention, Tenants};
pub use lint::{Check, Level, lint};
pub use objects::{ObjectPlace, ObjectStoreSettings};
pub use ports::Ports;
pub use push::{MtlsFiles, PushSettings};
pub use query::QuerySettings;
pub use reference::reference;
pub use s3::{CredentialSettings, StsSettings};
pub use sandboxes::{DockerSettings, NamespaceSettings, ProcessSettings, ProviderSettings};
pub use server::{LogFormat, Logging, Preview, PreviewAuth, Server};
pub use show::{Shown, show};
pub use store_url::StoreUrl;
pub use tokens::{Outbound, Tokens};
pub use transport::{RedisSettings, SqsSettings, TransportName, TransportSettings};
pub use watch::Watcher;
pub use worker::{TaskSandbox, Worker, WorkerCapacity};
