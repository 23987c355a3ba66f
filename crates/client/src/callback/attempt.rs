//! The life of one attempt: started, handler, completed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tenure_contract::Json;
use tenure_contract::callback::{CompletedRequest, Outcome, TaskEnvelope};
use tenure_contract::pull::Job;
use tokio::sync::oneshot;

use super::calls::Calls;
use super::error::{CallError, Refusal};
use super::service::Site;
use super::usage::CpuTime;
use super::worker::{Ended, Reported};
use crate::TaskContext;
use crate::worker::beat::Beat;
use crate::worker::error::{CANCELLED, TaskError};
use crate::worker::execute::{Handler, blame, out_of_grace, run, shut_down};
use crate::worker::id::canonical_task_id;
use crate::worker::lease::{Lease, Origin, Phase};
use crate::worker::lock;
use crate::worker::pulse::Held;

/// What became of `started`.
#[derive(Debug)]
pub(crate) enum Start {
    Acknowledged,
    Refused(Refusal),
    Unanswered,
}

/// An attempt that was taken in.
pub(crate) struct Attempt {
    pub(crate) site: Arc<Site>,
    pub(crate) envelope: TaskEnvelope,
    pub(crate) calls: Arc<Calls>,
    pub(crate) admitted: Admitted,
}

/// Holds the place of a dispatch. Unless it is finished, the dispatch may come again.
pub(crate) struct Admitted {
    pub(crate) site: Arc<Site>,
    pub(crate) dispatch_id: String,
    pub(crate) finished: bool,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut seen = lock(&self.site.seen);
        match self.finished {
            true => seen.finish(&self.dispatch_id),
            false => seen.forget(&self.dispatch_id),
        }
    }
}

impl Attempt {
    /// `tell` learns what became of `started`; the rest goes on without it.
    pub(crate) async fn run(mut self, tell: oneshot::Sender<Start>) {
        let started = self.site.call(self.start()).await;
        // Only the answer to `completed`, and not one to `started` or a heartbeat, says that the dispatch is finished.
        let (reported, of_completed) = match started {
            Ok((held, sent_at)) => {
                // Whoever pushed may have stopped listening.
                let _ = tell.send(Start::Acknowledged);
                self.work(held, sent_at).await
            }
            Err(error) => {
                tracing::warn!(%error, "cannot start the attempt");
                let (start, reported) = match error {
                    CallError::Refused(refusal) => (Start::Refused(refusal.clone()), Reported::Refused(refusal)),
                    other => (Start::Unanswered, Reported::Unanswered(other.to_string())),
                };
                let _ = tell.send(start);
                (reported, false)
            }
        };
        self.admitted.finished = of_completed
            && match &reported {
                Reported::Acknowledged(_) => true,
                Reported::Refused(refusal) => refusal.status() == 409,
                Reported::Unanswered(_) => false,
            };
        let Self { site, envelope, admitted, .. } = self;
        drop(admitted);
        if let Some(hook) = &site.options.on_ended {
            hook(&Ended {
                task_id: canonical_task_id(&envelope.task_id),
                dispatch_id: envelope.dispatch_id,
                attempt: envelope.attempt,
                reported,
            });
        }
    }

    /// Says that the work begins, and keeps the lease alive from the answer on. All of it happens on the heartbeat thread:
    /// handlers that block the caller's runtime hold up no attempt that was started. The clock of the attempt begins with
    /// the try that was answered, however many went before it.
    fn start(&self) -> impl Future<Output = Result<(Held<Calls>, Instant), CallError>> + Send + 'static {
        let (calls, site, lease) = (Arc::clone(&self.calls), Arc::clone(&self.site), self.lease());
        async move {
            let sent_at = calls.started(&site.closing.stopping).await?;
            let held = site.pulse.hold(Arc::new(lease(sent_at)), calls);
            // Tasks may have been told to stop just before this one could be.
            site.closing.tell(&held.lease);
            Ok((held, sent_at))
        }
    }

    /// From `started` to the answer to `completed`; says whether it came to that.
    async fn work(&self, held: Held<Calls>, sent_at: Instant) -> (Reported, bool) {
        let lease = Arc::clone(&held.lease);
        let cpu = CpuTime::default();
        let Some(mut request) = self.execute(&lease, &cpu, sent_at).await else {
            let lost = match lease.refusal() {
                Some(refusal) => Reported::Refused(refusal),
                None => Reported::Unanswered("the lease is lost: no heartbeat was answered in its time".to_owned()),
            };
            return (lost, false);
        };
        let mut metrics = cpu.metrics();
        if let Some(told) = lease.metrics() {
            metrics.cpu_time_ms = told.cpu_time_ms.or(metrics.cpu_time_ms);
            metrics.peak_memory_bytes = told.peak_memory_bytes.or(metrics.peak_memory_bytes);
        }
        request.metrics = Some(metrics);
        let reported = self.report(request).await;
        drop(held);
        (reported, true)
    }

    /// What makes the lease, once it is known from when on it counts.
    fn lease(&self) -> impl FnOnce(Instant) -> Lease + Send + 'static {
        let envelope = &self.envelope;
        let ms = |ms: u32| Duration::from_millis(u64::from(ms));
        let job = Job {
            job_id: envelope.task_id.clone(),
            attempt_id: envelope.attempt_id.clone(),
            lease_token: String::new(),
            stream: envelope.worker_queue.clone().unwrap_or_default(),
            message_id: envelope.dispatch_id.clone(),
            payload: envelope.payload.clone(),
            lease_ttl_seconds: u64::from(envelope.heartbeat_timeout_ms / 1000),
            heartbeat_interval_seconds: u64::from(envelope.heartbeat_interval_ms / 1000),
            attempt: envelope.attempt,
            fence: envelope.fence,
            operator: envelope.asset_id.clone(),
            deadline: envelope.deadline.clone(),
            traceparent: envelope.traceparent.clone(),
            previous_progress: envelope.previous_progress.clone(),
        };
        let origin = Origin {
            run_id: envelope.run_id.clone(),
            task_key: envelope.task_key.clone(),
            tenant: envelope.tenant_id.clone(),
            workspace: envelope.workspace_id.clone(),
        };
        let (ttl, every) = (ms(envelope.heartbeat_timeout_ms.max(1)), ms(envelope.heartbeat_interval_ms));
        let tolerance = self.site.options.outage_tolerance;
        move |sent_at| Lease::with(job, Beat::of(ttl, every, sent_at, Instant::now(), tolerance), Some(origin))
    }

    /// Runs the handler and says what to report: nothing, if the lease was lost.
    async fn execute(&self, lease: &Arc<Lease>, cpu: &CpuTime, sent_at: Instant) -> Option<CompletedRequest> {
        lease.confirmed().await;
        let handler = self.site.options.handlers.get(&self.envelope.asset_id).cloned();
        let handler = handler.map(|handler| self.bounded(handler, lease, cpu, sent_at));
        let registry = &self.site.pulse.registry;
        let context = TaskContext::new(Arc::clone(lease), Arc::clone(registry));
        let started = Instant::now();
        tracing::info!(operator.name = lease.job.operator, queue.name = lease.job.stream, "attempt started");
        let result = run(lease, context, handler).await;
        registry.logs.flush(lease).await;
        let result = match lease.end() {
            Phase::Lost => {
                let reason = lease.reason().map(|reason| reason.to_string()).unwrap_or_default();
                tracing::warn!(duration_seconds = started.elapsed().as_secs_f64(), reason, "attempt lost its lease");
                return None;
            }
            Phase::Abandoned => Err(shut_down(None)),
            Phase::Held | Phase::Ended => result,
        };
        let duration_seconds = started.elapsed().as_secs_f64();
        match &result {
            Ok(_) => tracing::info!(duration_seconds, "attempt succeeded"),
            Err(error) => tracing::info!(duration_seconds, error.code = error.code(), "attempt failed"),
        }
        Some(self.completion(lease, result))
    }

    /// A handler that is taken away when its time is over, or when it does not stop after a cancel.
    fn bounded(&self, handler: Handler, lease: &Arc<Lease>, cpu: &CpuTime, sent_at: Instant) -> Handler {
        let bound = Duration::from_millis(self.envelope.resources.timeout_ms);
        let grace = Duration::from_millis(u64::from(self.envelope.cancel_grace_period_ms));
        let (lease, cpu) = (Arc::clone(lease), cpu.clone());
        Arc::new(move |context| {
            let work = cpu.measure(handler(context));
            let lease = Arc::clone(&lease);
            async move {
                tokio::select! {
                    biased;
                    result = work => result,
                    () = at(sent_at.checked_add(bound)) => {
                        Err(TaskError::timeout(format!("the attempt took longer than its {} ms", bound.as_millis())))
                    }
                    late = out_of_grace(&lease, grace) => Err(late),
                }
            }
            .boxed()
        })
    }

    fn completion(&self, lease: &Lease, result: Result<Json, TaskError>) -> CompletedRequest {
        let (outcome, output, error) = match result {
            // What is absent is left out, and so is the result of a handler that has none.
            Ok(result) => (Outcome::Succeeded, Some(result).filter(|result| result.as_str() != "null"), None),
            Err(error) => {
                let stopped = error.code() == CANCELLED;
                let error = blame(error, lease.reason());
                match error.code() == CANCELLED {
                    // That it stopped is all there is to say.
                    true => (Outcome::Cancelled, None, (!stopped).then(|| error.into_categorised())),
                    false => (Outcome::Failed, None, Some(error.into_categorised())),
                }
            }
        };
        let mut request = self.calls.completion(outcome);
        request.output = output;
        request.error = error;
        if outcome != Outcome::Succeeded {
            request.partial_progress = lease.last_checkpoint();
        }
        if outcome == Outcome::Cancelled {
            request.cancelled_during_phase = lease.stage();
        }
        request
    }

    /// Reports the end. A report that is refused for its form is followed by one that says so.
    async fn report(&self, request: CompletedRequest) -> Reported {
        let refusal = match self.send(request).await {
            Err(CallError::Refused(refusal)) if refusal.is_of_the_call() => refusal,
            decided => return reported(decided),
        };
        tracing::error!(task.id = %self.envelope.task_id, error = %refusal, "report refused");
        let mut instead = self.calls.completion(Outcome::Failed);
        let message = format!("the control plane did not take the report of this attempt: {refusal}");
        instead.error = Some(TaskError::permanent("USER_CODE", message).into_categorised());
        reported(self.send(instead).await)
    }

    async fn send(&self, request: CompletedRequest) -> Result<tenure_contract::callback::CompletedResponse, CallError> {
        let calls = Arc::clone(&self.calls);
        self.site.call(async move { calls.completed(&request).await }).await
    }
}

fn reported(answer: Result<tenure_contract::callback::CompletedResponse, CallError>) -> Reported {
    match answer {
        Ok(answer) => Reported::Acknowledged(answer),
        Err(CallError::Refused(refusal)) => {
            tracing::warn!(error = %refusal, "report refused, dropping it");
            Reported::Refused(refusal)
        }
        Err(error) => {
            tracing::error!(%error, "cannot deliver the report");
            Reported::Unanswered(error.to_string())
        }
    }
}

async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}
