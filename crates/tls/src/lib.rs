//! TLS: certificates that are checked when they are loaded and re-read without a restart.
//!
//! One place for the listener ([`ServerTls`]), for calls to workers ([`ClientTls`], [`RpcTls`]) and for connections to
//! other servers ([`ServerTrust`]). TLS 1.2 and 1.3 with aws-lc-rs, which is always named and never taken from the process.

mod client;
#[cfg(feature = "dev-certs")]
mod dev_certs;
mod error;
mod identity;
mod names;
mod provider;
mod roots;
mod rpc;
mod server;
mod trust;
mod verify;

pub use client::{ClientTls, LiveClient};
#[cfg(feature = "dev-certs")]
pub use dev_certs::{DEV_CERTS_DAYS, dev_certs};
pub use error::{TlsError, explain};
pub use identity::Identity;
pub use names::{PeerNames, check_worker_binding, peer_names};
pub use roots::Roots;
pub use rpc::RpcTls;
pub use rustls;
pub use server::{ClientAuth, LiveServer, ServerTls};
pub use tokio_rustls;
pub use trust::ServerTrust;
pub use verify::BindWorkerId;
