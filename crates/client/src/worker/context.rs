use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tenure_contract::Json;
use tenure_contract::pull::JobMetrics;
use tokio_util::sync::CancellationToken;

use super::beat::News;
use super::error::TaskError;
use super::lease::{CancelReason, Lease};
use super::logs::{LogStream, OutputLog};
use super::registry::Registry;
use super::{CHECKPOINT_BYTES, MESSAGE_BYTES, cut};
#[cfg(feature = "callback")]
use crate::callback::Refusal;
use crate::fence::Fence;

/// The header that carries the fence to another system.
pub const FENCE_HEADER: &str = "Tenure-Fence";
/// The header under which other systems recognise the same task.
pub const IDEMPOTENCY_HEADER: &str = "Idempotency-Key";

/// A task as its handler sees it. Clones speak of the same task.
#[derive(Clone)]
pub struct TaskContext {
    lease: Arc<Lease>,
    registry: Arc<Registry>,
}

impl TaskContext {
    pub(crate) fn new(lease: Arc<Lease>, registry: Arc<Registry>) -> Self {
        Self { lease, registry }
    }

    /// The id as a hyphenated UUID: the same for all attempts, for pull and for push.
    pub fn task_id(&self) -> &str {
        &self.lease.job.job_id
    }

    /// 1 for the first attempt.
    pub fn attempt(&self) -> u32 {
        self.lease.job.attempt
    }

    /// Grows with every grant of the task. Send it with each write to another system, and have that system refuse a
    /// write with a lower fence than it has seen: then an attempt that lost its lease cannot overwrite its successor.
    ///
    /// In SQL: `UPDATE report SET rows = $1, fence = $2 WHERE day = $3 AND fence <= $2`.
    pub fn fence(&self) -> u64 {
        self.lease.job.fence
    }

    /// The fence with what the guards of [`fence`](crate::fence) need to know of it.
    pub fn guard(&self) -> Fence {
        Fence::new(self.task_id(), self.fence())
    }

    /// Headers for an HTTP call to a system that knows fences or idempotency keys.
    pub fn guard_headers(&self) -> [(&'static str, String); 2] {
        [(FENCE_HEADER, self.fence().to_string()), (IDEMPOTENCY_HEADER, self.task_id().to_owned())]
    }

    pub fn operator(&self) -> &str {
        &self.lease.job.operator
    }

    pub fn queue(&self) -> &str {
        &self.lease.job.stream
    }

    /// The run that a pushed task belongs to; one that was submitted alone has a run of its own.
    pub fn run_id(&self) -> Option<&str> {
        self.lease.origin.as_ref().map(|origin| origin.run_id.as_str())
    }

    /// The key of a pushed task within its run.
    pub fn task_key(&self) -> Option<&str> {
        self.lease.origin.as_ref().map(|origin| origin.task_key.as_str())
    }

    /// Tenant and workspace of a pushed task.
    pub fn scope(&self) -> Option<(&str, &str)> {
        self.lease.origin.as_ref().map(|origin| (origin.tenant.as_str(), origin.workspace.as_str()))
    }

    /// When the whole task must have ended, by the server's clock.
    pub fn deadline(&self) -> Option<&str> {
        self.lease.job.deadline.as_deref()
    }

    /// The trace that the task was submitted in.
    pub fn traceparent(&self) -> Option<&str> {
        self.lease.job.traceparent.as_deref()
    }

    /// Decodes the payload. One that does not fit is a permanent failure, code `DATA_QUALITY`.
    pub fn payload<T: DeserializeOwned>(&self) -> Result<T, TaskError> {
        self.lease
            .job
            .payload
            .decode()
            .map_err(|error| TaskError::data_quality(format!("the payload does not fit: {error}")))
    }

    pub fn raw_payload(&self) -> &Json {
        &self.lease.job.payload
    }

    /// Says how far the task is, in percent. Sent with a heartbeat, within about a second; the latest call wins.
    pub fn report_progress(&self, pct: u8, message: impl Into<String>) {
        let mut message = message.into();
        cut(&mut message, MESSAGE_BYTES);
        self.registry.wake_by(self.lease.tell(News { progress: Some((pct.min(100), message)), checkpoint: None }));
    }

    /// Keeps a line in the log of the task, as `tenure task logs` shows it. Logs are bounded in size and rate: what is over
    /// is dropped, and none of it ever fails the task. Known secrets are removed; do not log others.
    pub fn log(&self, line: impl Into<String>) {
        self.registry.logs.add(&self.lease, LogStream::Log, line);
    }

    /// Keeps the output of a process in the log of the task, line by line.
    pub fn log_output(&self, stream: LogStream) -> OutputLog {
        let (lease, logs) = (Arc::clone(&self.lease), Arc::clone(&self.registry.logs));
        OutputLog { lease, logs, stream, line: Vec::new() }
    }

    /// Leaves something for the next attempt, up to 64 KiB of JSON; the latest call wins.
    ///
    /// Sent with a heartbeat, within about a second, or at once with [`flush`](Self::flush). If the handler fails, its last
    /// checkpoint is sent before the failure is reported.
    pub fn save_checkpoint(&self, value: &impl Serialize) -> Result<(), TaskError> {
        let checkpoint = Json::of(value)?;
        if checkpoint.len() > CHECKPOINT_BYTES {
            let size = checkpoint.len();
            let message = format!("a checkpoint of {size} bytes is too large, the limit is {CHECKPOINT_BYTES}");
            return Err(TaskError::permanent("CHECKPOINT_TOO_LARGE", message));
        }
        self.registry.wake_by(self.lease.tell(News { progress: None, checkpoint: Some(checkpoint) }));
        Ok(())
    }

    /// Sends progress and checkpoint now, and waits until the server has them: what a crash after this would not lose.
    ///
    /// Fails if the lease is lost before. While the server does not answer, it waits.
    pub async fn flush(&self) -> Result<(), TaskError> {
        // A lease of a test has nobody who would send anything.
        if self.registry.holds(&self.lease) && self.lease.beat(|beat| beat.has_untold_news()) {
            let now = Instant::now();
            self.lease.beat(|beat| beat.hurry(now));
            self.registry.wake_by(now);
            self.lease.told_all().await;
        }
        match self.lease.is_held() {
            true => Ok(()),
            false => Err(TaskError::infrastructure("the lease was lost before the server had the checkpoint")),
        }
    }

    /// What the attempt before this one left.
    pub fn checkpoint<T: DeserializeOwned>(&self) -> Result<Option<T>, TaskError> {
        let Some(checkpoint) = &self.lease.job.previous_progress else { return Ok(None) };
        checkpoint.decode().map_err(|error| TaskError::data_quality(format!("the checkpoint does not fit: {error}")))
    }

    pub fn raw_checkpoint(&self) -> Option<&Json> {
        self.lease.job.previous_progress.as_ref()
    }

    /// Says what the handler is at: told with the report if the task is cancelled meanwhile.
    pub fn enter_phase(&self, name: impl Into<String>) {
        self.lease.enter_stage(name.into());
    }

    /// Says what the attempt used, for its history. Told with the report; the latest call wins.
    pub fn report_metrics(&self, metrics: JobMetrics) {
        self.lease.measured(metrics);
    }

    /// Says that the result counts although the handler was told to stop.
    ///
    /// Most handlers that stop in time return normally, so what is returned after a cancel is no result: the task is
    /// cancelled. After the worker's shutdown told the handler to stop, the task goes back to its queue. A handler that
    /// has finished its work all the same says so here.
    pub fn keep_result(&self) {
        self.lease.keep_result();
    }

    /// What the control plane said when it refused a callback and so took the lease away.
    #[cfg(feature = "callback")]
    pub fn refusal(&self) -> Option<Refusal> {
        self.lease.refusal()
    }

    /// Fires when the handler is to stop; [`TaskContext::cancel_reason`] says why.
    pub fn cancellation(&self) -> &CancellationToken {
        &self.lease.cancel
    }

    /// Waits until the handler is to stop.
    pub async fn cancelled(&self) -> CancelReason {
        self.lease.cancel.cancelled().await;
        self.cancel_reason().unwrap_or(CancelReason::Shutdown)
    }

    pub fn cancel_reason(&self) -> Option<CancelReason> {
        self.lease.reason()
    }

    /// When the lease ends by the local clock, unless it is renewed: no other worker is granted the task before.
    ///
    /// The time is counted from when the request was sent that obtained or renewed the lease, so it is never later than the
    /// server's.
    pub fn lease_end(&self) -> Instant {
        self.lease.lease_end()
    }

    /// Waits until the lease ends later than `end`, and returns when it does. `None` if the lease is over.
    ///
    /// With [`lease_end`](Self::lease_end) it keeps a deadline up to date that is enforced elsewhere, for example by the
    /// supervisor of a sandbox.
    pub async fn lease_renewed(&self, end: Instant) -> Option<Instant> {
        self.lease.renewed(end).await
    }

    /// Runs `hook` when the lease is lost, or the worker gives the handler up at the end of its shutdown.
    ///
    /// It runs on the heartbeat thread, also while the handler blocks every thread of its runtime, so it can stop what
    /// the future's end cannot: a process, a thread. It must be short, since heartbeats wait for it. If the lease is
    /// already lost it runs at once. Dropping the guard takes it back.
    pub fn on_lease_lost(&self, hook: impl FnOnce() + Send + 'static) -> LostGuard {
        LostGuard { id: self.lease.add_hook(Box::new(hook)), lease: Arc::clone(&self.lease) }
    }
}

impl fmt::Debug for TaskContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskContext")
            .field("task_id", &self.task_id())
            .field("attempt", &self.attempt())
            .field("fence", &self.fence())
            .finish_non_exhaustive()
    }
}

/// Keeps a hook of [`TaskContext::on_lease_lost`] in place.
#[derive(Debug)]
#[must_use = "dropping the guard removes the hook"]
pub struct LostGuard {
    lease: Arc<Lease>,
    id: u64,
}

impl Drop for LostGuard {
    fn drop(&mut self) {
        self.lease.remove_hook(self.id);
    }
}
