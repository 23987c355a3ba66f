//! Doing work that is pushed: the control plane posts each task to the worker's address, the worker reports back.
//!
//! The handlers are those of the pull [`Worker`](crate::Worker): one handler serves both.
//!
//! ```no_run
//! use tenure_client::callback::Worker;
//! use tenure_client::{TaskContext, TaskError};
//!
//! async fn extract(task: TaskContext) -> Result<u64, TaskError> {
//!     let day: String = task.payload()?;
//!     task.report_progress(50, format!("reading {day}"));
//!     Ok(10)
//! }
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let worker = Worker::new()
//!     .callback_url("https://tenure.example")
//!     .secret(std::env::var("DISPATCH_SECRET")?)
//!     .operator("extract", extract);
//! worker.run(tokio::net::TcpListener::bind("0.0.0.0:8080").await?).await?;
//! # Ok(())
//! # }
//! ```
//!
//! All calls to the control plane are made on a thread with a runtime and connections of its own, so that a handler that
//! blocks every thread of the caller's runtime stops neither heartbeats nor the killing of what has lost its lease.

// `service` takes what is pushed, and decides what is taken at all. `attempt` is the life of one attempt: started,
// handler, completed.
mod attempt;
mod calls;
mod error;
mod gate;
mod seen;
mod service;
mod usage;
mod worker;

pub use error::Refusal;
pub use service::Service;
pub use tenure_contract::callback::{
    CallbackError, Category, CompletedRequest, CompletedResponse, Disposition, ErrorCode, HeartbeatRequest,
    HeartbeatResponse, Metrics, Outcome, Resources, StartedRequest, StartedResponse, TaskEnvelope,
};
pub use worker::{Ended, Reported, Worker};

/// The header that carries the secret which a queue and its worker share.
pub const SECRET_HEADER: &str = "x-tenure-dispatch-secret";
