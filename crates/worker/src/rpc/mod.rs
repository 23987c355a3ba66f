//! The worker's side of the worker RPC contract: a listener for control planes.
//!
//! [`run`] serves `GET /health`, `POST /rpc` and the additive routes. What a call does is the [`Node`]'s and the
//! provider's; here are the checks before it, the repetition of answers, and the streams.
//!
//! [`Node`]: crate::node::Node

mod answer;
mod body;
mod budget;
mod call;
mod check;
mod connection;
mod credentials;
mod files;
mod listener;
mod methods;
mod output;
mod proxy;
mod refusal;
mod replay;
mod request;
mod router;
mod settings;
mod snapshots;
mod socket;
mod state;
mod stream;

pub use credentials::Credentials;
pub use listener::run;
pub(crate) use listener::run_aside;
pub use settings::{ExecTimes, RpcSettings, RpcTimes};
pub use state::{Rpc, StartError};
