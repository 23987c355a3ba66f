//! One lease as its holder sees it.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tenure_contract::Json;
use tenure_contract::pull::{Job, JobMetrics};
use tenure_transport::Receipt;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::beat::{Beat, News};
use super::id::canonical_task_id;
use super::lock;
#[cfg(feature = "callback")]
use crate::callback::Refusal;

/// Why a handler is to stop.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CancelReason {
    /// Somebody cancelled the task, with these words.
    Requested(String),
    /// The worker is shutting down.
    Shutdown,
    /// The lease is gone, for this reason: the task may already run elsewhere, and no result will be reported.
    LeaseLost(String),
}

impl fmt::Display for CancelReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requested(reason) => write!(f, "cancelled: {reason}"),
            Self::Shutdown => f.write_str("the worker is shutting down"),
            Self::LeaseLost(reason) => write!(f, "the lease is lost: {reason}"),
        }
    }
}

/// Runs on the heartbeat thread when the lease is lost.
pub(crate) type Hook = Box<dyn FnOnce() + Send>;

pub(crate) struct Lease {
    pub(crate) id: u64,
    /// When this process learned of it.
    pub(crate) since: Instant,
    pub(crate) job: Job,
    /// Of the wake-up that led to it, if the worker received one itself.
    pub(crate) receipt: Option<Receipt>,
    /// More of a task that was pushed.
    pub(crate) origin: Option<Origin>,
    /// Tells the handler to stop.
    pub(crate) cancel: CancellationToken,
    /// Takes the handler's future away from it.
    pub(crate) stop: CancellationToken,
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    phase: Phase,
    reason: Option<CancelReason>,
    beat: Beat,
    hooks: Vec<(u64, Hook)>,
    /// The last checkpoint, told or not.
    checkpoint: Option<Json>,
    /// What the handler says it is at.
    stage: Option<String>,
    /// The result counts also after a cancel.
    kept: bool,
    /// What the handler says it used.
    metrics: Option<JobMetrics>,
    /// What the control plane said when it took the lease away.
    #[cfg(feature = "callback")]
    refusal: Option<Refusal>,
}

/// Where a pushed task belongs.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    pub(crate) run_id: String,
    pub(crate) task_key: String,
    pub(crate) tenant: String,
    pub(crate) workspace: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The handler runs, or is about to.
    Held,
    /// The handler ended; what it gave is reported.
    Ended,
    /// Nothing of the handler is reported.
    Lost,
    /// The worker shuts down and does not wait for the handler any longer.
    Abandoned,
}

impl Lease {
    /// A lease from the answer to a claim that was first sent at `sent_at`.
    pub(crate) fn new(job: Job, sent_at: Instant, tolerance: Duration) -> Self {
        let beat = Beat::new(&job, sent_at, Instant::now(), tolerance);
        Self::with(job, beat, None)
    }

    pub(crate) fn with(mut job: Job, beat: Beat, origin: Option<Origin>) -> Self {
        job.job_id = canonical_task_id(&job.job_id);
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let state = State {
            phase: Phase::Held,
            reason: None,
            beat,
            hooks: Vec::new(),
            checkpoint: None,
            stage: None,
            kept: false,
            metrics: None,
            #[cfg(feature = "callback")]
            refusal: None,
        };
        Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            since: Instant::now(),
            job,
            receipt: None,
            origin,
            cancel: CancellationToken::new(),
            stop: CancellationToken::new(),
            state: Mutex::new(state),
            changed: Notify::new(),
        }
    }

    pub(crate) fn woken_by(mut self, receipt: Receipt) -> Self {
        self.receipt = Some(receipt);
        self
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Looks at or changes when heartbeats are due, and wakes those who wait for a change.
    pub(crate) fn beat<T>(&self, change: impl FnOnce(&mut Beat) -> T) -> T {
        let result = change(&mut self.state().beat);
        self.changed.notify_waiters();
        result
    }

    /// Tells the handler to stop. The first reason stays, unless the lease is lost.
    pub(crate) fn request_cancel(&self, reason: CancelReason) {
        let mut state = self.state();
        if state.phase == Phase::Held && state.reason.is_none() {
            state.reason = Some(reason);
            drop(state);
            self.cancel.cancel();
        }
    }

    /// The lease is gone: kills what the handler started, tells it, takes its future away.
    pub(crate) fn lose(&self, reason: String) {
        self.leave(Phase::Lost, CancelReason::LeaseLost(reason));
    }

    /// Keeps the answer by which the control plane takes the lease away. The first one stays.
    #[cfg(feature = "callback")]
    pub(crate) fn note_refusal(&self, refusal: Refusal) {
        self.state().refusal.get_or_insert(refusal);
    }

    #[cfg(feature = "callback")]
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        self.state().refusal.clone()
    }

    /// The worker no longer waits for the handler.
    pub(crate) fn abandon(&self) {
        self.leave(Phase::Abandoned, CancelReason::Shutdown);
    }

    fn leave(&self, phase: Phase, reason: CancelReason) {
        let mut state = self.state();
        if state.phase != Phase::Held {
            return;
        }
        state.phase = phase;
        state.reason = Some(reason);
        let hooks = std::mem::take(&mut state.hooks);
        drop(state);
        for (_, hook) in hooks {
            if catch_unwind(AssertUnwindSafe(hook)).is_err() {
                tracing::error!(task.id = %self.job.job_id, "the hook for a lost lease panicked");
            }
        }
        self.cancel.cancel();
        self.stop.cancel();
        self.changed.notify_waiters();
    }

    pub(crate) fn measured(&self, metrics: JobMetrics) {
        self.state().metrics = Some(metrics);
    }

    pub(crate) fn metrics(&self) -> Option<JobMetrics> {
        self.state().metrics
    }

    /// The handler is done. Its outcome may be reported only if the answer is [`Phase::Ended`].
    pub(crate) fn end(&self) -> Phase {
        let mut state = self.state();
        state.hooks.clear();
        if state.phase == Phase::Held {
            state.phase = Phase::Ended;
        }
        let phase = state.phase;
        drop(state);
        self.changed.notify_waiters();
        phase
    }

    /// Whether the handler runs, or is about to, and its lease is not known to be lost.
    pub(crate) fn is_held(&self) -> bool {
        self.state().phase == Phase::Held
    }

    pub(crate) fn reason(&self) -> Option<CancelReason> {
        self.state().reason.clone()
    }

    /// Keeps news for the next heartbeat. Returns when that is to be.
    pub(crate) fn tell(&self, news: News) -> Instant {
        let mut state = self.state();
        state.checkpoint = news.checkpoint.clone().or(state.checkpoint.take());
        state.beat.tell(news)
    }

    #[cfg_attr(not(feature = "callback"), allow(dead_code, reason = "only callbacks send it"))]
    pub(crate) fn last_checkpoint(&self) -> Option<Json> {
        self.state().checkpoint.clone()
    }

    pub(crate) fn enter_stage(&self, stage: String) {
        self.state().stage = Some(stage);
    }

    #[cfg_attr(not(feature = "callback"), allow(dead_code, reason = "only callbacks send it"))]
    pub(crate) fn stage(&self) -> Option<String> {
        self.state().stage.clone()
    }

    pub(crate) fn keep_result(&self) {
        self.state().kept = true;
    }

    pub(crate) fn is_result_kept(&self) -> bool {
        self.state().kept
    }

    /// Waits until the lease is known to be ours, or not to be.
    pub(crate) async fn confirmed(&self) {
        self.until(|beat| beat.is_confirmed()).await;
    }

    pub(crate) fn lease_end(&self) -> Instant {
        self.state().beat.lease_end()
    }

    /// Waits until the lease ends later than `end`, and returns when. `None` if the lease is over.
    pub(crate) async fn renewed(&self, end: Instant) -> Option<Instant> {
        self.until(|beat| beat.lease_end() > end).await;
        let state = self.state();
        (state.phase == Phase::Held).then(|| state.beat.lease_end())
    }

    /// Waits until the handler has ended or the lease is lost.
    pub(crate) async fn over(&self) {
        self.until(|_| false).await;
    }

    /// Asks for a heartbeat now if a checkpoint is still untold.
    pub(crate) fn begin_flush(&self) -> bool {
        let mut state = self.state();
        let untold = state.phase == Phase::Held && state.beat.has_untold_checkpoint();
        if untold {
            state.beat.flush(Instant::now());
        }
        untold
    }

    /// Waits until the server knows all that the handler said, or the lease is lost. A heartbeat should be on its way.
    pub(crate) async fn told_all(&self) {
        self.until(|beat| !beat.has_untold_news()).await;
    }

    pub(crate) async fn flushed(&self) {
        self.until(|beat| !beat.has_untold_checkpoint()).await;
    }

    /// Waits for a change of the heartbeats, or the loss of the lease.
    async fn until(&self, done: impl Fn(&Beat) -> bool) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.is_settled(&done) {
                return;
            }
            changed.await;
        }
    }

    fn is_settled(&self, done: impl Fn(&Beat) -> bool) -> bool {
        let state = self.state();
        state.phase != Phase::Held || done(&state.beat)
    }

    /// Adds a hook, or runs it now if the lease is already gone.
    pub(crate) fn add_hook(&self, hook: Hook) -> u64 {
        static NEXT_HOOK: AtomicU64 = AtomicU64::new(0);
        let id = NEXT_HOOK.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state();
        match state.phase {
            Phase::Held => state.hooks.push((id, hook)),
            Phase::Ended => {}
            Phase::Lost | Phase::Abandoned => {
                drop(state);
                hook();
            }
        }
        id
    }

    pub(crate) fn remove_hook(&self, id: u64) {
        self.state().hooks.retain(|(other, _)| *other != id);
    }
}

impl fmt::Debug for Lease {
    /// Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Lease");
        debug.field("job_id", &self.job.job_id).field("fence", &self.job.fence).finish_non_exhaustive()
    }
}
