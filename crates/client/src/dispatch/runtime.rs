//! Wake-ups and claims.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tenure_contract::dispatch::ClaimRequest;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::attempt::{Attempt, Operator};
use super::calls::{AttemptCalls, Calls, backoff};
use crate::http::jittered;
use crate::worker::caller::{Caller, ExchangeError, Identity};
use crate::worker::closing::Closing;
use crate::worker::error::WorkerError;
use crate::worker::id;
use crate::worker::pulse::Pulse;

/// Of one answer.
const WAKEUPS_MAX: usize = 10;
/// How long a claim is sent again that is not answered. After that the task is left to the next wake-up.
const CLAIMED_FOR: Duration = Duration::from_secs(120);
/// After a poll that brought nothing and did not wait.
const BUSY_PAUSE: Duration = Duration::from_millis(200);

#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) queue: String,
    pub(crate) concurrency: usize,
    pub(crate) poll_wait: Duration,
    pub(crate) drain_timeout: Duration,
    pub(crate) stop_grace: Duration,
    pub(crate) cancel_grace: Duration,
    pub(crate) outage_tolerance: Duration,
    pub(crate) operators: HashMap<String, Operator>,
    /// For those that have none of their own.
    pub(crate) any: Option<Operator>,
}

/// What all parts of a running worker share.
pub(crate) struct Site {
    pub(crate) options: Options,
    pub(crate) calls: Arc<Calls>,
    pub(crate) pulse: Arc<Pulse<AttemptCalls>>,
    pub(crate) closing: Closing,
    slots: Arc<Semaphore>,
    draining: CancellationToken,
}

impl Site {
    pub(crate) fn start(identity: Identity, options: Options) -> Result<Arc<Self>, WorkerError> {
        let calls = Arc::new(Calls::new(Caller::new(identity)?));
        let pulse = Arc::new(Pulse::start()?);
        tracing::info!(worker.id = calls.worker_id(), queue.names = options.queue, "worker started");
        let closing = Closing::new(options.drain_timeout, options.stop_grace);
        let slots = Arc::new(Semaphore::new(options.concurrency));
        Ok(Arc::new(Self { options, calls, pulse, closing, slots, draining: CancellationToken::new() }))
    }

    /// Works until `shutdown` ends, or the server refuses the worker; then lets tasks finish.
    pub(crate) async fn run(self: Arc<Self>, shutdown: impl Future<Output = ()>) -> Result<(), WorkerError> {
        let _ended = Ended(&self.pulse);
        let mut polling = std::pin::pin!(self.poll());
        let ended = tokio::select! {
            refused = &mut polling => {
                let closed = self.closing.close(&self.pulse.registry).await;
                return refused.and(closed);
            }
            error = self.keep_token() => Err(error),
            () = shutdown => Ok(()),
        };
        self.draining.cancel();
        // A claim that is on its way may be granted: it is waited for.
        let (_, closed) = tokio::join!(polling, self.closing.close(&self.pulse.registry));
        ended.and(closed)
    }

    async fn keep_token(&self) -> WorkerError {
        let calls = Arc::clone(&self.calls);
        self.pulse.run(async move { calls.keep_token().await }).await.unwrap_or_else(gone)
    }

    /// Takes tasks until the worker drains. The error is for good.
    async fn poll(self: &Arc<Self>) -> Result<(), WorkerError> {
        let mut backoff = backoff();
        loop {
            let Some(permits) = self.draining.run_until_cancelled(self.free_slots()).await else { return Ok(()) };
            let asked_at = Instant::now();
            match self.wakeups(permits.len()).await? {
                Some(Ok(ids)) => {
                    backoff = super::calls::backoff();
                    let claims = ids.into_iter().zip(permits).map(|(task_id, permit)| self.claim(task_id, permit));
                    let mut granted = false;
                    for claimed in join_all(claims).await {
                        granted |= claimed?;
                    }
                    if !granted && asked_at.elapsed() < (self.options.poll_wait / 2).max(BUSY_PAUSE) {
                        // Hints that led to nothing, or a server that is shutting down: do not hammer it.
                        self.pause(jittered(BUSY_PAUSE)).await;
                    }
                }
                Some(Err(ExchangeError::Again { reason, retry_after, .. })) => {
                    let wait = backoff.next(retry_after);
                    tracing::warn!(wait_seconds = wait.as_secs_f64(), reason, "the server did not answer");
                    self.pause(wait).await;
                }
                Some(Err(ExchangeError::Fatal(error))) => return Err(error),
                None => return Ok(()),
            }
        }
    }

    async fn pause(&self, wait: Duration) {
        self.draining.run_until_cancelled(tokio::time::sleep(wait)).await;
    }

    /// Waits for a slot, and takes what else is free.
    async fn free_slots(&self) -> Vec<OwnedSemaphorePermit> {
        let slots = || Arc::clone(&self.slots);
        let mut permits = Vec::from_iter(slots().acquire_owned().await);
        while permits.len() < WAKEUPS_MAX
            && let Ok(permit) = slots().try_acquire_owned()
        {
            permits.push(permit);
        }
        permits
    }

    /// Asks which tasks may be there to claim. `None` if the worker drains meanwhile.
    async fn wakeups(&self, max: usize) -> Result<Option<Result<Vec<String>, ExchangeError>>, WorkerError> {
        let (calls, draining) = (Arc::clone(&self.calls), self.draining.clone());
        let (queue, wait) = (self.options.queue.clone(), self.options.poll_wait);
        let asking = async move { draining.run_until_cancelled(calls.wakeups(&queue, max, wait)).await };
        self.pulse.run(asking).await.ok_or_else(gone)
    }

    /// Claims a task and starts on it. Says whether it was granted.
    async fn claim(self: &Arc<Self>, task_id: String, permit: OwnedSemaphorePermit) -> Result<bool, WorkerError> {
        // Counts as running from here on, so that a drain that begins now waits for it.
        let _entered = self.closing.running.token();
        let claiming = Arc::clone(self).claim_until_answered(task_id);
        let Some(attempt) = self.pulse.run(claiming).await.ok_or_else(gone)?? else { return Ok(false) };
        let task = attempt.task();
        let span = tracing::info_span!(
            "task",
            task.id = %task.task_id(),
            attempt.number = task.attempt(),
            lease.fence = task.fence()
        );
        let run = async move {
            attempt.run().await;
            drop(permit);
        };
        self.closing.running.spawn(run.instrument(span));
        Ok(true)
    }

    /// Sent again, a claim has the same `claim_id`: an answer that got lost is repeated by the server.
    ///
    /// It runs on the heartbeat thread, so that the lease is kept alive from the answer on.
    async fn claim_until_answered(self: Arc<Self>, task_id: String) -> Result<Option<Attempt>, WorkerError> {
        let request = ClaimRequest {
            task_id,
            worker_id: Some(self.calls.worker_id().to_owned()),
            claim_id: Some(id::claim_id()),
        };
        let sent_at = Instant::now();
        let mut backoff = backoff();
        loop {
            match self.calls.claim(&request).await {
                Ok(Ok(claimed)) => return Ok(Some(Attempt::begin(self, *claimed, sent_at))),
                Ok(Err(reason)) => {
                    tracing::debug!(task.id = %request.task_id, ?reason, "not claimed");
                    return Ok(None);
                }
                Err(ExchangeError::Fatal(error @ WorkerError::Refused { status, .. }))
                    if !matches!(status, 401 | 403) =>
                {
                    tracing::error!(%error, task.id = %request.task_id, "claim of a wake-up refused");
                    return Ok(None);
                }
                Err(ExchangeError::Fatal(error)) => return Err(error),
                Err(ExchangeError::Again { reason, retry_after, .. }) => {
                    let wait = backoff.next(retry_after);
                    tracing::warn!(task.id = %request.task_id, wait_seconds = wait.as_secs_f64(), reason, "the server did not answer");
                    self.pause(wait).await;
                }
            }
            if self.draining.is_cancelled() || sent_at.elapsed() > CLAIMED_FOR {
                return Ok(None);
            }
        }
    }
}

/// Ends what is left when the worker goes away without a drain.
struct Ended<'a>(&'a Pulse<AttemptCalls>);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.registry.lose_all("the worker has ended");
    }
}

fn gone() -> WorkerError {
    WorkerError::Supervisor("it is not there".to_owned())
}
