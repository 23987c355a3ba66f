//! What `tenure worker` runs: tasks as commands and a few built-in operators, on top of the SDK's [`Worker`].
//!
//! Claiming, heartbeats, cancellation and reports are the SDK's. This crate adds what happens in a task: processes and
//! their end, their results and exit codes, and HTTP calls.
//!
//! [`Worker`]: tenure_client::Worker

mod builtin;
mod bundles;
mod command;
mod config;
mod metrics;
pub mod node;
mod operators;
pub mod rpc;
mod run;

pub use bundles::{BundleConfig, run_bundles};
pub use command::{SandboxError, SandboxSettings, Sandboxes};
pub use config::{TokenSource, WorkerConfig};
pub use metrics::{Exporter, ExporterError};
pub use operators::{OperatorError, Operators};
pub use run::{RunError, run};
