//! The end of a worker, in stages.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::error::WorkerError;
use super::lease::{CancelReason, Lease};
use super::registry::Registry;

/// On shutdown, how long the last reports may take.
const LAST_REPORTS: Duration = Duration::from_secs(10);

/// The attempts of a worker, and how far its end is.
#[derive(Debug)]
pub(crate) struct Closing {
    pub(crate) running: TaskTracker,
    drain_timeout: Duration,
    stop_grace: Duration,
    /// Tasks are told to stop; later, they are given up.
    pub(crate) stopping: CancellationToken,
    given_up: CancellationToken,
}

impl Closing {
    pub(crate) fn new(drain_timeout: Duration, stop_grace: Duration) -> Self {
        Self {
            running: TaskTracker::new(),
            drain_timeout,
            stop_grace,
            stopping: CancellationToken::new(),
            given_up: CancellationToken::new(),
        }
    }

    /// Tells a lease what all others were told.
    pub(crate) fn tell(&self, lease: &Lease) {
        if self.stopping.is_cancelled() {
            lease.request_cancel(CancelReason::Shutdown);
        }
        if self.given_up.is_cancelled() {
            lease.abandon();
        }
    }

    fn tell_all(&self, registry: &Registry) {
        registry.all().iter().for_each(|lease| self.tell(lease));
    }

    /// Lets tasks finish and report. What does not end in time is told to stop, then given up.
    pub(crate) async fn close(&self, registry: &Registry) -> Result<(), WorkerError> {
        tracing::info!(running = self.running.len(), "worker draining");
        self.running.close();
        if self.ended_within(self.drain_timeout).await {
            return Ok(());
        }
        tracing::warn!(running = self.running.len(), "drain time-out: telling tasks to stop");
        self.stopping.cancel();
        self.tell_all(registry);
        if self.ended_within(self.stop_grace).await {
            return Ok(());
        }
        tracing::warn!(running = self.running.len(), "tasks did not stop: giving them up");
        self.given_up.cancel();
        self.tell_all(registry);
        match self.ended_within(LAST_REPORTS).await {
            true => Ok(()),
            false => Err(WorkerError::Unreported { count: self.running.len() }),
        }
    }

    async fn ended_within(&self, time: Duration) -> bool {
        tokio::time::timeout(time, self.running.wait()).await.is_ok()
    }
}
