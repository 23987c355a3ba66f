//! TLS: certificates that are checked when they are loaded and re-read without a restart.
//!
//! One place for the listener ([`ServerTls`]), for calls to workers ([`ClientTls`], [`RpcTls`]) and for Postgres
//! ([`PostgresAddress`]). TLS 1.2 and 1.3 with aws-lc-rs, which is always named and never taken from the process.

mod client;
mod dev_certs;
mod error;
mod identity;
mod names;
mod postgres;
mod provider;
mod roots;
mod rpc;
mod server;
mod verify;

pub use client::{ClientTls, LiveClient};
pub use dev_certs::{DEV_CERTS_DAYS, dev_certs};
pub use error::{TlsError, explain};
pub use identity::Identity;
pub use names::{PeerNames, check_worker_binding, peer_names};
pub use postgres::{PostgresAddress, PostgresTrust, explain_postgres};
pub use roots::Roots;
pub use rpc::RpcTls;
pub use rustls;
pub use server::{ClientAuth, LiveServer, ServerTls};
pub use tokio_rustls;
pub use verify::BindWorkerId;
