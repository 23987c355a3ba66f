//! The Rust SDK of Tenure: submit and watch work with [`Client`], do work with [`Worker`].
//!
//! ```no_run
//! use tenure_client::{Client, TaskContext, TaskError, TaskSubmission, Worker};
//!
//! async fn extract(task: TaskContext) -> Result<u64, TaskError> {
//!     let day: String = task.payload()?;
//!     task.report_progress(50, format!("reading {day}"));
//!     Ok(10)
//! }
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::builder("http://127.0.0.1:7423").api_key("key").build()?;
//! let task = TaskSubmission {
//!     queue: "etl".into(),
//!     operator: "extract".into(),
//!     payload: Some(serde_json::json!("2025-01-15").into()),
//!     ..TaskSubmission::default()
//! };
//! let submitted = client.submit(&task).await?;
//!
//! let worker = Worker::new("http://127.0.0.1:7423").token("token").queues(["etl"]).operator("extract", extract);
//! worker.run_until(tenure_client::stop_signal()).await?;
//! println!("{}", client.get(&submitted.task_id).await?.state);
//! # Ok(())
//! # }
//! ```
//!
//! Workers that tasks are pushed to are in the module `callback`, which needs the feature of that name. Workers for the
//! jobs of DAGs are in the module [`dispatch`].
//!
//! A task runs at least once. What must happen once is written in Tenure's own transaction (the result) or guarded
//! with [`TaskContext::fence`] where it is written.

mod administer;
mod builder;
#[cfg(feature = "callback")]
pub mod callback;
mod client;
mod dag;
pub mod dispatch;
mod error;
pub mod fence;
mod filter;
mod http;
mod operate;
mod queries;
mod runs;
pub mod sandboxes;
mod schedules;
mod signal;
mod sse;
mod watch;
mod worker;

pub use administer::CsvPage;
pub use builder::ClientBuilder;
pub use client::Client;
pub use dag::{DatasetFilter, DeployOptions, PartitionFilter};
pub use error::ClientError;
pub use filter::{AdminAuditFilter, DeadLetterFilter, OperationAuditFilter, OutboxFilter, TaskFilter, TaskLogFilter};
pub use queries::{ExportFormat, ExportStream};
pub use runs::{RunFilter, RunWatch};
pub use sandboxes::{Sandbox, Sandboxes};
pub use signal::stop_signal;
pub use tenure_contract::{
    Json, admin, dags,
    error::ErrorClass,
    events::TaskEvent,
    pull, query, run, user,
    user::TaskSubmission,
    words,
    words::{AttemptState, RunState, TaskState},
};
/// Services that carry wake-ups; need the features `redis` and `sqs`.
pub use tenure_transport as transport;
pub use watch::Watch;
pub use worker::{
    CallAnswer, CancelReason, FENCE_HEADER, IDEMPOTENCY_HEADER, LogStream, LostGuard, OUTAGE_TOLERANCE, OutputLog,
    TaskContext, TaskError, TestLease, WakeBy, Worker, WorkerCalls, WorkerError, WorkerToken,
};
