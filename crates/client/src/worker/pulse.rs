//! The heartbeat thread of a worker whose attempts have calls of their own.
//!
//! It renews leases, passes on cancellations, and decides that a lease is lost: when the control plane says so, or when
//! the lease has run out by the local clock because no heartbeat was answered. What it does to a lost lease happens on
//! this thread and needs nothing from the caller's runtime. All other calls are made on it too.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tenure_contract::pull::JobLogs;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::beat::News;
use super::error::WorkerError;
use super::lease::{CancelReason, Lease};
use super::lock;
use super::logs::{LogSink, LogsSent};
use super::registry::Registry;

/// Bounds of the time that an answer is waited for.
const ANSWER_MIN: Duration = Duration::from_millis(200);
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Between a hint and the wait for the next.
const HINT_PAUSE: Duration = Duration::from_secs(1);

/// What keeps one lease alive.
pub(crate) trait Heart: Send + Sync + 'static {
    /// One heartbeat. The answer is waited for as long as `patience`.
    fn beat(&self, lease: &Lease, news: News, patience: Duration) -> impl Future<Output = Beaten> + Send;

    /// Sends log lines of the attempt. What does not get through is lost.
    fn logs(&self, logs: JobLogs) -> impl Future<Output = ()> + Send;

    /// Waits until the control plane has something to say about the lease, as far as it can be waited for.
    fn hint(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }
}

/// What became of a heartbeat.
#[derive(Debug)]
pub(crate) enum Beaten {
    /// The lease is extended. With a reason, the handler is to stop.
    Renewed { cancel: Option<String> },
    /// There was no answer that decides: another one follows, not before this time if the server asks for it.
    Again(Option<Duration>),
    /// What it told was refused.
    Refused,
    /// The attempt is over, for this reason.
    Lost(String),
}

/// The running thread. Dropping it stops the heartbeats.
#[derive(Debug)]
pub(crate) struct Pulse<H> {
    pub(crate) registry: Arc<Registry>,
    hearts: Arc<Hearts<H>>,
    runtime: Handle,
    stop: CancellationToken,
    ended: CancellationToken,
}

/// How each lease is kept alive.
type Hearts<H> = Mutex<HashMap<u64, Arc<H>>>;

impl<H> Drop for Pulse<H> {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl<H: Heart> Pulse<H> {
    pub(crate) fn start() -> Result<Self, WorkerError> {
        let failed = |error: std::io::Error| WorkerError::Supervisor(error.to_string());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let pulse = Self {
            registry: Arc::new(Registry::with_logs()),
            hearts: Arc::default(),
            runtime: runtime.handle().clone(),
            stop: CancellationToken::new(),
            ended: CancellationToken::new(),
        };
        let end = End { registry: Arc::clone(&pulse.registry), ended: pulse.ended.clone() };
        let (hearts, stop) = (Arc::clone(&pulse.hearts), pulse.stop.clone());
        let (logs, sink) = (Arc::clone(&pulse.registry.logs), ByHeart(Arc::clone(&pulse.hearts)));
        pulse.spawn(async move { logs.send(&sink).await });
        let beats = move || {
            runtime.block_on(beat_all(&end.registry, &hearts, &stop));
        };
        std::thread::Builder::new().name("tenure-heartbeat".into()).spawn(beats).map_err(failed)?;
        Ok(pulse)
    }

    /// Whether the thread is still there. Without it nothing may be held.
    pub(crate) fn is_alive(&self) -> bool {
        !self.ended.is_cancelled()
    }

    /// Makes a call on this thread's runtime. `None` if the thread is gone.
    pub(crate) async fn run<T: Send + 'static>(&self, call: impl Future<Output = T> + Send + 'static) -> Option<T> {
        let calling = self.runtime.spawn(call);
        tokio::select! {
            result = calling => result.ok(),
            // A runtime that nobody drives any more would never answer.
            () = self.ended.cancelled() => None,
        }
    }

    /// Starts something on this thread's runtime that nobody waits for.
    pub(crate) fn spawn(&self, call: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(call);
    }

    /// Keeps a lease alive from now on, until what is returned is dropped.
    pub(crate) fn hold(self: &Arc<Self>, lease: Arc<Lease>, heart: Arc<H>) -> Held<H> {
        lock(&self.hearts).insert(lease.id, Arc::clone(&heart));
        self.registry.add(std::slice::from_ref(&lease));
        self.spawn(hinted(Arc::clone(&self.registry), Arc::clone(&lease), heart));
        if !self.is_alive() {
            self.registry.lose_all("the heartbeat thread ended");
        }
        Held { pulse: Arc::clone(self), lease }
    }
}

/// Lines of each attempt go the way of its heartbeats.
struct ByHeart<H>(Arc<Hearts<H>>);

impl<H: Heart> LogSink for ByHeart<H> {
    async fn send(&self, items: Vec<(u64, JobLogs)>) -> LogsSent {
        let calls = items.into_iter().map(|(lease, logs)| {
            let heart = lock(&self.0).get(&lease).cloned();
            async move {
                if let Some(heart) = heart {
                    heart.logs(logs).await;
                }
            }
        });
        join_all(calls).await;
        LogsSent::Done
    }
}

/// Ends the heartbeats of an attempt, however it ends.
#[derive(Debug)]
pub(crate) struct Held<H> {
    pulse: Arc<Pulse<H>>,
    pub(crate) lease: Arc<Lease>,
}

impl<H> Drop for Held<H> {
    fn drop(&mut self) {
        self.lease.end();
        self.pulse.registry.remove(&self.lease);
        lock(&self.pulse.hearts).remove(&self.lease.id);
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

/// Asks at once when the control plane has something to say, as long as the lease is held.
async fn hinted<H: Heart>(registry: Arc<Registry>, lease: Arc<Lease>, heart: Arc<H>) {
    loop {
        tokio::select! {
            () = heart.hint() => {}
            () = lease.over() => return,
        }
        lease.beat(|beat| beat.hurry(Instant::now()));
        registry.wake_by(Instant::now());
        // The heartbeat says what there is; a cancel is said once.
        tokio::select! {
            () = tokio::time::sleep(HINT_PAUSE) => {}
            () = lease.cancel.cancelled() => return,
        }
    }
}

async fn beat_all<H: Heart>(registry: &Arc<Registry>, hearts: &Hearts<H>, stop: &CancellationToken) {
    loop {
        let now = Instant::now();
        let tick = registry.tick(now);
        for lease in tick.expired {
            tracing::warn!(task.id = %lease.job.job_id, lease.fence = lease.job.fence, "lease expired without a renewal");
            lease.lose("no heartbeat was answered in its time".into());
        }
        // A request that hangs must not delay the heartbeats of other leases, so each goes its own way.
        for lease in tick.beats {
            let heart = lock(hearts).get(&lease.id).cloned();
            match heart {
                Some(heart) => drop(tokio::spawn(beat(Arc::clone(registry), lease, heart))),
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

async fn beat<H: Heart>(registry: Arc<Registry>, lease: Arc<Lease>, heart: Arc<H>) {
    let sent_at = Instant::now();
    let (news, patience) = lease.beat(|beat| (beat.sent(sent_at), beat.patience(sent_at)));
    match heart.beat(&lease, news, patience.clamp(ANSWER_MIN, ANSWER_MAX)).await {
        Beaten::Renewed { cancel } => {
            lease.beat(|beat| beat.answered(sent_at));
            if let Some(reason) = cancel {
                lease.request_cancel(CancelReason::Requested(reason));
            }
        }
        Beaten::Again(retry_after) => lease.beat(|beat| beat.failed(Instant::now(), retry_after)),
        Beaten::Refused => lease.beat(|beat| beat.refused(Instant::now())),
        Beaten::Lost(reason) => {
            tracing::warn!(task.id = %lease.job.job_id, reason, "heartbeat refused: the attempt is over");
            registry.remove(&lease);
            lease.lose(reason);
            return;
        }
    }
    registry.wake_by(lease.beat(|beat| beat.next_at()));
}
