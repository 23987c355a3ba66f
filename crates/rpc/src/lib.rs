//! Calls to workers: the control plane's side of the worker RPC contract.
//!
//! A [`Client`] is cheap to clone and shared by the whole process. It keeps connections to each worker, chooses the
//! credential that a worker accepts, and bounds what an answer may cost in time and memory. Each call names its
//! [`Target`], the worker, and its [`Call`], the request id and the lease that it carries.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use tenure_auth::WorkerAuth;
//! # use tenure_rpc::{Call, Capabilities, Client, ExecEvent, Settings, Target, new_request_id, wire};
//! # async fn example(auth: WorkerAuth, lease: wire::LeaseToken) -> Result<(), tenure_rpc::Error> {
//! let client = Client::new(Settings::default(), Arc::new(auth), None);
//! let worker = Target {
//!     worker_id: "worker-a".to_owned(),
//!     rpc_url: "http://worker-a.internal:7430".to_owned(),
//!     capabilities: Capabilities::of(["stream_terminal", "stream_files"]),
//! };
//! let id = new_request_id();
//! let exec = wire::ExecParams { sandbox_id: "sb-1".into(), command: "make".into(), ..wire::ExecParams::default() };
//! let mut output = client.exec_stream(&worker, Call::new(&id).with_lease(&lease), &exec).await?;
//! while let Some(event) = output.next().await {
//!     match event? {
//!         ExecEvent::Output { stream, bytes } => drop((stream, bytes)),
//!         ExecEvent::End { exit_code, .. } => println!("{exit_code:?}"),
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A failed call says whether the worker may have executed it: see [`Error::may_have_run`]. The caller repeats such a call
//! with the same request id, and a worker with the capability `rpc_replay` executes it once.

mod address;
mod answer;
mod budget;
mod client;
mod content;
mod credentials;
mod dial;
mod error;
mod exchange;
mod files;
mod methods;
mod pool;
mod proxy;
mod settings;
mod snapshots;
mod socket;
mod stream;
mod target;
mod upload;

pub use client::Client;
pub use content::Content;
pub use error::Error;
pub use proxy::{Forwarded, Port, Upgraded};
pub use settings::{Settings, Times};
pub use snapshots::Snapshot;
pub use socket::{ExecSocket, SocketReceiver, SocketSender};
pub use stream::{ExecEvent, ExecStream, OutputStream};
pub use target::{Call, Capabilities, Target, new_request_id};
/// The messages of the contract.
pub use tenure_contract::worker_rpc as wire;
