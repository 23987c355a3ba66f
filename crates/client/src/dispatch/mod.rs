//! Doing tasks of DAGs: the worker is woken with the id of a task, claims it, and reports what it wrote.
//!
//! ```no_run
//! use tenure_client::TaskError;
//! use tenure_client::dispatch::{Output, Task, Worker};
//!
//! async fn decode(task: Task) -> Result<Output, TaskError> {
//!     let raw = task.partition("raw_logs")?;
//!     let folder = task.writer(0).await?;
//!     tokio::fs::write(folder.path().join("rows.parquet"), b"...").await?;
//!     folder.finish().await?;
//!     Ok(Output::new(0, raw.partition_key.as_str()))
//! }
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let worker = Worker::new("http://127.0.0.1:7423").shared_token_file("worker-token").operator("decode_logs", decode);
//! worker.run_until(tenure_client::stop_signal()).await?;
//! # Ok(())
//! # }
//! ```
//!
//! All calls to the control plane are made on a thread with a runtime and connections of its own, so that a handler that
//! blocks every thread of the caller's runtime stops neither heartbeats nor the killing of what has lost its lease.

// `runtime` asks for wake-ups and claims. `attempt` is the life of one attempt after its claim: handler, events,
// completion. `calls` is what is sent.
mod attempt;
mod calls;
mod outbox;
mod output;
mod runtime;
mod task;
mod worker;

pub use output::{Completion, IntoOutputs, Output, Position};
pub use task::{Task, Writer};
pub use tenure_contract::dispatch::{CursorRange, JobName, Partition, TaskInput, TaskOutput};
pub use worker::Worker;
