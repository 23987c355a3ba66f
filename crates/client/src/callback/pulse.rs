//! The heartbeat thread of a worker that is pushed to.
//!
//! It renews leases, passes on cancellations, adopts renewed tokens, and decides that a lease is lost: when the control
//! plane says so, or when the lease has run out by the local clock because no heartbeat was answered. What it does to a
//! lost lease happens on this thread and needs nothing from the caller's runtime.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::calls::Calls;
use super::error::CallError;
use crate::http;
use crate::worker::error::WorkerError;
use crate::worker::lease::{CancelReason, Lease};
use crate::worker::lock;
use crate::worker::registry::Registry;

/// Bounds of the time that an answer is waited for.
const ANSWER_MIN: Duration = Duration::from_millis(200);
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// The running thread. Dropping it stops the heartbeats.
#[derive(Debug)]
pub(crate) struct Pulse {
    pub(crate) registry: Arc<Registry>,
    /// Its connections belong to the thread's runtime.
    pub(crate) http: reqwest::Client,
    calls: Arc<CallsOf>,
    runtime: Handle,
    stop: CancellationToken,
    ended: CancellationToken,
}

/// How each lease is reported on.
type CallsOf = Mutex<HashMap<u64, Arc<Calls>>>;

impl Drop for Pulse {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Pulse {
    pub(crate) fn start(roots: Option<Vec<reqwest::Certificate>>) -> Result<Self, WorkerError> {
        let failed = |error: std::io::Error| WorkerError::Supervisor(error.to_string());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let pulse = Self {
            registry: Arc::default(),
            http: http::new_client(roots).map_err(WorkerError::Setup)?,
            calls: Arc::default(),
            runtime: runtime.handle().clone(),
            stop: CancellationToken::new(),
            ended: CancellationToken::new(),
        };
        let end = End { registry: Arc::clone(&pulse.registry), ended: pulse.ended.clone() };
        let (calls, stop) = (Arc::clone(&pulse.calls), pulse.stop.clone());
        let beats = move || {
            runtime.block_on(beat_all(&end.registry, &calls, &stop));
        };
        std::thread::Builder::new().name("tenure-heartbeat".into()).spawn(beats).map_err(failed)?;
        Ok(pulse)
    }

    /// Whether the thread is still there. Without it nothing may be held.
    pub(crate) fn is_alive(&self) -> bool {
        !self.ended.is_cancelled()
    }

    /// Makes a call on this thread's runtime.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        call: impl Future<Output = Result<T, CallError>> + Send + 'static,
    ) -> Result<T, CallError> {
        let gone = || Err(CallError::Expired { reason: "the heartbeat thread ended".to_owned() });
        let calling = self.runtime.spawn(call);
        tokio::select! {
            result = calling => result.unwrap_or_else(|_| gone()),
            // A runtime that nobody drives any more would never answer.
            () = self.ended.cancelled() => gone(),
        }
    }

    /// Keeps a lease alive from now on.
    pub(crate) fn add(&self, lease: &Arc<Lease>, calls: Arc<Calls>) {
        lock(&self.calls).insert(lease.id, calls);
        self.registry.add(std::slice::from_ref(lease));
        if !self.is_alive() {
            self.registry.lose_all("the heartbeat thread ended");
        }
    }

    pub(crate) fn remove(&self, lease: &Lease) {
        self.registry.remove(lease);
        lock(&self.calls).remove(&lease.id);
    }
}

/// Says that the thread is over, however it ended.
struct End {
    registry: Arc<Registry>,
    ended: CancellationToken,
}

impl Drop for End {
    fn drop(&mut self) {
        self.ended.cancel();
        self.registry.lose_all("the heartbeat thread ended");
    }
}

async fn beat_all(registry: &Arc<Registry>, calls: &CallsOf, stop: &CancellationToken) {
    loop {
        let now = Instant::now();
        let tick = registry.tick(now);
        for lease in tick.expired {
            tracing::warn!(task.id = %lease.job.job_id, lease.fence = lease.job.fence, "lease expired without a renewal");
            lease.lose("no heartbeat was answered in its time".into());
        }
        // A request that hangs must not delay the heartbeats of other leases, so each goes its own way.
        for lease in tick.beats {
            let calls = lock(calls).get(&lease.id).cloned();
            match calls {
                Some(calls) => drop(tokio::spawn(beat(Arc::clone(registry), lease, calls))),
                None => registry.remove(&lease),
            }
        }
        let wake_at = tick.wake_at.unwrap_or(now + Duration::from_secs(3600));
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = registry.woken() => {}
            () = tokio::time::sleep_until(wake_at.into()) => {}
        }
    }
}

async fn beat(registry: Arc<Registry>, lease: Arc<Lease>, calls: Arc<Calls>) {
    let sent_at = Instant::now();
    let (news, patience) = lease.beat(|beat| (beat.sent(sent_at), beat.patience(sent_at)));
    let answer = calls.heartbeat(news, patience.clamp(ANSWER_MIN, ANSWER_MAX)).await;
    let task_id = &lease.job.job_id;
    match answer {
        Ok(answer) => {
            lease.beat(|beat| beat.answered(sent_at));
            if answer.should_cancel {
                lease.request_cancel(CancelReason::Requested(answer.cancel_reason.unwrap_or_default()));
            }
        }
        Err(CallError::Refused(refusal)) if refusal.ends_the_attempt() => {
            tracing::warn!(task.id = %task_id, error = refusal.error(), "heartbeat refused: the attempt is over");
            registry.remove(&lease);
            lease.lose_by(refusal);
            return;
        }
        Err(CallError::Refused(refusal)) => {
            tracing::error!(task.id = %task_id, error = %refusal, "heartbeat refused");
            lease.beat(|beat| beat.refused(Instant::now()));
        }
        Err(CallError::Again { reason, retry_after }) => {
            tracing::warn!(task.id = %task_id, reason, "heartbeat not answered, trying again");
            lease.beat(|beat| beat.failed(Instant::now(), retry_after));
        }
        Err(CallError::Expired { reason }) => {
            tracing::warn!(task.id = %task_id, reason, "heartbeat not answered, trying again");
            lease.beat(|beat| beat.failed(Instant::now(), None));
        }
    }
    registry.wake_by(lease.beat(|beat| beat.next_at()));
}
