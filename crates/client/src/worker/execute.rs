//! Running one handler for one lease.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::Serialize;
use tenure_contract::Json;

use super::RESULT_BYTES;
use super::context::TaskContext;
use super::error::{TaskError, UNKNOWN_OPERATOR, WORKER_SHUTDOWN};
use super::lease::{CancelReason, Lease, Phase};
use super::registry::Registry;
use super::report::{Outcome, Report};

/// How long a failure is held back for the checkpoint that belongs before it.
const FLUSH_WAIT: Duration = Duration::from_secs(5);

pub(crate) type Handler = Arc<dyn Fn(TaskContext) -> BoxFuture<'static, Result<Json, TaskError>> + Send + Sync>;

/// A handler as every worker keeps it.
pub(crate) fn erase<F, Fut, T>(handler: F) -> Handler
where
    F: Fn(TaskContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T, TaskError>> + Send + 'static,
    T: Serialize,
{
    let handler = Arc::new(handler);
    Arc::new(move |context| {
        let handler = Arc::clone(&handler);
        // The call itself is inside, so that its panic is one of the future.
        async move { Ok(Json::of(&handler(context).await?)?) }.boxed()
    })
}

/// Runs the handler and says what to report: nothing, if the lease was lost.
pub(crate) async fn execute(lease: Arc<Lease>, registry: Arc<Registry>, handler: Option<Handler>) -> Option<Report> {
    let mut held = Held { lease: &lease, registry: &registry, reported: false };
    lease.confirmed().await;
    let context = TaskContext::new(Arc::clone(&lease), Arc::clone(&registry));
    let started = Instant::now();
    tracing::info!(operator.name = lease.job.operator, queue.name = lease.job.stream, "attempt started");
    let outcome = run(&lease, context, handler).await;
    registry.logs.flush(&lease).await;
    if outcome.is_err() && lease.begin_flush() {
        registry.wake_by(Instant::now());
        let _ = tokio::time::timeout(FLUSH_WAIT, lease.flushed()).await;
    }
    let outcome = match lease.end() {
        Phase::Lost => {
            let reason = lease.reason().map(|reason| reason.to_string()).unwrap_or_default();
            tracing::warn!(duration_seconds = started.elapsed().as_secs_f64(), reason, "attempt lost its lease");
            return None;
        }
        Phase::Abandoned => Err(shut_down(None)),
        Phase::Held | Phase::Ended => outcome.map_err(|error| blame(error, lease.reason())),
    };
    held.reported = true;
    let duration_seconds = started.elapsed().as_secs_f64();
    match &outcome {
        Ok(_) => tracing::info!(duration_seconds, "attempt succeeded"),
        Err(error) => tracing::info!(duration_seconds, error.code = error.code(), "attempt failed"),
    }
    let outcome = match outcome {
        Ok(result) => Outcome::Complete(result),
        Err(error) => Outcome::Fail(error.into_wire()),
    };
    Some(Report { lease: Arc::clone(&lease), outcome })
}

/// Lets a lease go that will have no report: it must not be renewed for ever.
struct Held<'a> {
    lease: &'a Lease,
    registry: &'a Registry,
    reported: bool,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if !self.reported {
            self.registry.remove(self.lease);
        }
    }
}

/// Runs the handler until it ends, or is ended. A result that is too large is a failure too.
pub(crate) async fn run(lease: &Lease, context: TaskContext, handler: Option<Handler>) -> Result<Json, TaskError> {
    let Some(handler) = handler else { return Err(unknown_operator(context.operator())) };
    let result = guard(lease, async move { handler(context).await }).await?;
    if result.len() > RESULT_BYTES {
        let message = format!("the result has {} bytes, the limit is {RESULT_BYTES}", result.len());
        return Err(TaskError::permanent("RESULT_TOO_LARGE", message));
    }
    Ok(result)
}

/// Another worker of the queue may know the operator, as during a roll-out.
pub(crate) fn unknown_operator(name: &str) -> TaskError {
    TaskError::retryable(UNKNOWN_OPERATOR, format!("this worker has no operator `{name}`"))
}

/// Does the work of a handler until it ends, or is ended. A panic, and a result that was returned after the handler was
/// told to stop, are failures.
pub(crate) async fn guard<T>(lease: &Lease, work: impl Future<Output = Result<T, TaskError>>) -> Result<T, TaskError> {
    // The handler's future is also dropped in here, so that a panic in its drop is caught too.
    let guarded = AssertUnwindSafe(async {
        tokio::select! {
            biased;
            () = lease.stop.cancelled() => Err(shut_down(None)),
            result = work => result,
        }
    });
    let result = guarded.catch_unwind().await.unwrap_or_else(|panic| Err(panicked(&*panic)))?;
    match lease.reason() {
        // Most handlers that stop in time return normally. Work that is done twice is better than work that is not done.
        Some(_) if !lease.is_result_kept() => Err(TaskError::cancelled("the handler returned early")),
        _ => Ok(result),
    }
}

/// Waits until a handler that was told to stop has used up most of its grace: the rest is for the report.
pub(crate) async fn out_of_grace(lease: &Lease, grace: Duration) -> TaskError {
    lease.cancel.cancelled().await;
    match lease.reason() {
        Some(CancelReason::Requested(_)) => tokio::time::sleep(grace * 4 / 5).await,
        _ => std::future::pending().await,
    }
    TaskError::cancelled("the handler did not stop in its grace")
}

/// A failure after a request to stop is the answer to that request.
pub(crate) fn blame(error: TaskError, reason: Option<CancelReason>) -> TaskError {
    match reason {
        Some(CancelReason::Requested(reason)) => {
            TaskError::cancelled(format!("stopped after cancel ({reason}): {error}"))
        }
        Some(CancelReason::Shutdown) => shut_down(Some(error)),
        Some(CancelReason::LeaseLost(_)) | None => error,
    }
}

pub(crate) fn shut_down(error: Option<TaskError>) -> TaskError {
    let message = match error {
        Some(error) => format!("the worker was shut down: {error}"),
        None => "the worker was shut down".to_owned(),
    };
    TaskError::retryable(WORKER_SHUTDOWN, message)
}

fn panicked(panic: &(dyn Any + Send)) -> TaskError {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    TaskError::retryable("PANIC", format!("the handler panicked: {}", text.unwrap_or("no message")))
}
