//! Doing work: the claim loop, the heartbeat supervisor and what a handler sees of them.
//!
//! Two threads of control share a [`registry::Registry`] of leases. The [`runtime`] lives in the caller's tokio
//! runtime: it claims, runs handlers and reports. The [`supervisor`] has an OS thread, a runtime and connections of
//! its own, so that a handler that blocks every thread of the caller's runtime stops neither heartbeats nor the
//! killing of what has lost its lease.

mod about;
mod aside;
pub(crate) mod beat;
mod builder;
pub(crate) mod caller;
mod calls;
pub(crate) mod closing;
mod context;
pub(crate) mod error;
pub(crate) mod execute;
pub(crate) mod id;
mod issued;
pub(crate) mod lease;
mod link;
pub(crate) mod logs;
pub(crate) mod pulse;
pub(crate) mod registry;
mod report;
mod runtime;
mod supervisor;
mod testing;
pub(crate) mod token;
mod turn;
mod wake;

pub use builder::{OUTAGE_TOLERANCE, Worker};
pub use calls::{CallAnswer, WorkerCalls, WorkerToken};
pub use context::{FENCE_HEADER, IDEMPOTENCY_HEADER, LostGuard, TaskContext};
pub use error::{TaskError, WorkerError};
pub use lease::CancelReason;
pub use logs::{LogStream, OutputLog};
pub use testing::TestLease;
pub use wake::WakeBy;

/// Items in one part of an exchange.
const EXCHANGE_ITEMS: usize = 1_000;
/// Bytes of results, errors or checkpoints in one exchange. The server takes 32 MiB; the rest is room for what
/// surrounds them.
const EXCHANGE_BYTES: usize = 16 << 20;
/// A result.
const RESULT_BYTES: usize = 1 << 20;
/// What an attempt hands to the next one.
const CHECKPOINT_BYTES: usize = 64 << 10;
/// The server cuts longer messages and stacks; they are not worth sending.
const MESSAGE_BYTES: usize = 4 << 10;
const STACK_BYTES: usize = 64 << 10;
const ERROR_CODE_BYTES: usize = 256;

/// Locks also after a panic elsewhere: no lock here is held while foreign code runs.
pub(crate) fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Cuts at a character boundary.
fn cut(text: &mut String, bytes: usize) {
    text.truncate(text.floor_char_boundary(bytes));
}
