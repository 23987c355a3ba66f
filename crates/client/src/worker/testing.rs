use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use tenure_contract::Json;
use tenure_contract::pull::{Job, JobMetrics};

use super::context::TaskContext;
use super::lease::{CancelReason, Lease};
use super::registry::Registry;

/// A lease that belongs to no server, to test handlers with.
///
/// ```
/// # use tenure_client::{TaskContext, TaskError, TestLease};
/// async fn double(task: TaskContext) -> Result<u32, TaskError> {
///     Ok(task.payload::<u32>()? * 2)
/// }
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let lease = TestLease::new("double", &21);
/// assert_eq!(double(lease.context()).await, Ok(42));
/// # });
/// ```
#[derive(Debug)]
pub struct TestLease {
    lease: Arc<Lease>,
    registry: Arc<Registry>,
}

impl TestLease {
    /// The first attempt of a task.
    ///
    /// # Panics
    /// If the payload cannot be written as JSON.
    pub fn new(operator: &str, payload: &impl Serialize) -> Self {
        Self::of(Job {
            job_id: "018c385a-9fb1-9509-0e89-33fe3b7b1aa9".into(),
            attempt_id: "att_01HGW5P0Q2Z3M4N5P6Q7R8S9T0".into(),
            lease_token: "lt_test".into(),
            stream: "test".into(),
            message_id: "1".into(),
            payload: Json::of(payload).expect("the payload of a test is JSON"),
            lease_ttl_seconds: 3600,
            heartbeat_interval_seconds: 1200,
            attempt: 1,
            fence: 1,
            operator: operator.into(),
            deadline: None,
            traceparent: None,
            previous_progress: None,
        })
    }

    /// A job of one's own making.
    pub fn of(job: Job) -> Self {
        let lease = Lease::new(job, Instant::now(), Duration::ZERO);
        Self { lease: Arc::new(lease), registry: Arc::default() }
    }

    /// The same task at another attempt, with what the attempt before it left.
    #[must_use]
    pub fn attempt(&self, attempt: u32, checkpoint: Option<Json>) -> Self {
        Self::of(Job { attempt, fence: u64::from(attempt), previous_progress: checkpoint, ..self.lease.job.clone() })
    }

    /// What the handler gets.
    pub fn context(&self) -> TaskContext {
        TaskContext::new(Arc::clone(&self.lease), Arc::clone(&self.registry))
    }

    /// As if somebody cancelled the task.
    pub fn cancel(&self, reason: &str) {
        self.lease.request_cancel(CancelReason::Requested(reason.into()));
    }

    /// As if the server had refused a heartbeat. Runs the hooks on the calling thread.
    pub fn lose(&self) {
        self.lease.lose("lost by the test".into());
    }

    /// What the handler last said of its progress.
    pub fn progress(&self) -> Option<(u8, String)> {
        self.lease.beat(|beat| beat.untold().progress.clone())
    }

    /// What the handler last left for the next attempt.
    pub fn checkpoint(&self) -> Option<Json> {
        self.lease.beat(|beat| beat.untold().checkpoint.clone())
    }

    /// What the handler says it used.
    pub fn metrics(&self) -> Option<JobMetrics> {
        self.lease.metrics()
    }

    #[cfg(test)]
    pub(crate) fn into_lease(self) -> Arc<Lease> {
        self.lease
    }
}
