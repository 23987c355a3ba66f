//! The life of one attempt after its claim: handler, events, completion.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tenure_contract::Json;
use tenure_contract::dispatch::{Claimed, CompleteBody, Failure};
use tenure_contract::pull::Job;

use super::calls::{AttemptCalls, Refused};
use super::outbox::Outbox;
use super::output::{IntoOutputs, Output};
use super::runtime::Site;
use super::task::Task;
use crate::TaskContext;
use crate::worker::beat::Beat;
use crate::worker::error::{CANCELLED, TaskError};
use crate::worker::execute::{blame, guard, out_of_grace, shut_down, unknown_operator};
use crate::worker::lease::{Lease, Phase};
use crate::worker::pulse::Held;

/// Bounds of the interval of heartbeats, whatever a server advises.
const EVERY_LEAST: Duration = Duration::from_millis(50);
const EVERY_MOST: Duration = Duration::from_secs(24 * 3600);
/// For how long a completion is sent. It counts until somebody else has claimed the task.
const REPORTED_FOR: Duration = Duration::from_secs(15 * 60);

pub(crate) type Operator = Arc<dyn Fn(Task) -> BoxFuture<'static, Result<Returned, TaskError>> + Send + Sync>;

/// What a handler returned.
pub(crate) struct Returned {
    outputs: Vec<Output>,
    completion: Option<Json>,
}

/// A handler as the worker keeps it.
pub(crate) fn erase<F, Fut, T>(handler: F) -> Operator
where
    F: Fn(Task) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T, TaskError>> + Send + 'static,
    T: IntoOutputs + Send,
{
    let handler = Arc::new(handler);
    Arc::new(move |task| {
        let handler = Arc::clone(&handler);
        // The call itself is inside, so that its panic is one of the future.
        async move {
            let returned = handler(task).await?;
            let completion = returned.completion();
            Ok(Returned { outputs: returned.into_outputs(), completion })
        }
        .boxed()
    })
}

/// An attempt that this worker holds.
pub(crate) struct Attempt {
    site: Arc<Site>,
    calls: Arc<AttemptCalls>,
    held: Held<AttemptCalls>,
    task: Task,
}

impl Attempt {
    /// From the answer to a claim that was first sent at `sent_at`. Its heartbeats begin.
    pub(crate) fn begin(site: Arc<Site>, claimed: Claimed, sent_at: Instant) -> Self {
        let calls = Arc::new(AttemptCalls::new(Arc::clone(&site.calls), &claimed));
        let lease = Arc::new(lease(&claimed, &site.options.queue, sent_at, site.options.outage_tolerance));
        let held = site.pulse.hold(Arc::clone(&lease), Arc::clone(&calls));
        // Tasks may have been told to stop just before this one could be.
        site.closing.tell(&lease);
        let outbox = Outbox::new(Arc::clone(&calls), Arc::clone(&lease), Arc::clone(&site.pulse));
        let context = TaskContext::new(lease, Arc::clone(&site.pulse.registry));
        let task = Task::new(context, claimed, Arc::clone(&calls), Arc::new(outbox));
        Self { site, calls, held, task }
    }

    pub(crate) fn task(&self) -> &Task {
        &self.task
    }

    /// Runs the handler and reports. The lease is kept until the report is answered.
    pub(crate) async fn run(self) {
        let lease = &self.held.lease;
        lease.confirmed().await;
        let options = &self.site.options;
        let started = Instant::now();
        tracing::info!(operator.name = lease.job.operator, queue.name = lease.job.stream, "attempt started");
        let result = match options.operators.get(self.task.operator()).or(options.any.as_ref()) {
            Some(operator) => guard(lease, self.work(operator)).await,
            None => Err(unknown_operator(self.task.operator())),
        };
        self.site.pulse.registry.logs.flush(lease).await;
        let duration_seconds = || started.elapsed().as_secs_f64();
        let result = match lease.end() {
            Phase::Lost => {
                let reason = lease.reason().map(|reason| reason.to_string()).unwrap_or_default();
                tracing::warn!(duration_seconds = duration_seconds(), reason, "attempt lost its lease");
                return;
            }
            Phase::Abandoned => Err(shut_down(None)),
            Phase::Held | Phase::Ended => result.map_err(|error| blame(error, lease.reason())),
        };
        match &result {
            Ok(_) => tracing::info!(duration_seconds = duration_seconds(), "attempt succeeded"),
            Err(error) => {
                tracing::info!(duration_seconds = duration_seconds(), error.code = error.code(), "attempt failed");
            }
        }
        match result {
            Ok(body) => self.report(body).await,
            Err(error) => self.report(self.failure(error)).await,
        }
    }

    /// What the handler does, and then its events. The completion comes after all of them.
    async fn work(&self, operator: &Operator) -> Result<Json, TaskError> {
        let work = async {
            let Returned { outputs, completion } = operator(self.task.clone()).await?;
            let body = match completion {
                Some(said) => self.task.fenced(&said)?,
                None => Json::of(&self.task.completion(outputs)?)?,
            };
            self.task.flush().await?;
            Ok(body)
        };
        tokio::select! {
            biased;
            result = work => result,
            late = out_of_grace(&self.held.lease, self.site.options.cancel_grace) => Err(late),
        }
    }

    fn failure(&self, error: TaskError) -> Json {
        let body = self.failed(error);
        // It has only text and flags.
        Json::of(&body).unwrap_or_else(|_| Json::empty_object())
    }

    fn failed(&self, error: TaskError) -> CompleteBody {
        if error.code() == CANCELLED {
            return self.calls.completion("Canceled");
        }
        let error = error.into_categorised();
        let failure = Failure {
            category: Some(error.category.as_str().to_owned()),
            message: error.message,
            stack: error.stack_trace,
            handed_back: error.handed_back,
        };
        CompleteBody { retryable: error.retryable, error: Some(failure), ..self.calls.completion("Failed") }
    }

    /// Reports the end. A report that is refused for what it says is followed by one that says so.
    async fn report(&self, body: Json) {
        let Err(refused) = self.send(body).await else { return };
        let refused = match refused {
            Refused::Wrong(error) => {
                tracing::error!(task.id = %self.task.task_id(), %error, "report refused");
                let message = format!("the control plane did not take the report of this attempt: {error}");
                self.send(self.failure(TaskError::permanent("USER_CODE", message))).await
            }
            other => Err(other),
        };
        match refused {
            Ok(()) => {}
            Err(Refused::Gone(error) | Refused::Wrong(error)) => {
                tracing::warn!(task.id = %self.task.task_id(), %error, "report refused, dropping it");
            }
            Err(Refused::GivenUp(reason)) => {
                tracing::error!(task.id = %self.task.task_id(), reason, "cannot deliver the report");
            }
        }
    }

    async fn send(&self, body: Json) -> Result<(), Refused> {
        let calls = Arc::clone(&self.calls);
        let until = Instant::now() + REPORTED_FOR;
        let sent = self.site.pulse.run(async move { calls.complete(&body, until).await }).await;
        sent.unwrap_or_else(|| Err(Refused::GivenUp("the heartbeat thread ended".to_owned()))).map(|_| ())
    }
}

fn lease(claimed: &Claimed, queue: &str, sent_at: Instant, tolerance: Duration) -> Lease {
    // A quarter of the lease.
    let every = Duration::try_from_secs_f64(claimed.heartbeat_interval_seconds).unwrap_or_default();
    let every = every.clamp(EVERY_LEAST, EVERY_MOST);
    let ttl = every * 4;
    let job = Job {
        job_id: claimed.task_id.clone(),
        attempt_id: format!("{}:{}", claimed.task_id, claimed.attempt),
        lease_token: String::new(),
        stream: queue.to_owned(),
        message_id: String::new(),
        payload: claimed.work_payload.clone(),
        lease_ttl_seconds: ttl.as_secs(),
        heartbeat_interval_seconds: every.as_secs(),
        attempt: claimed.attempt,
        fence: claimed.fence,
        operator: claimed.task.operator.clone(),
        deadline: claimed.deadline_at.clone(),
        traceparent: None,
        previous_progress: None,
    };
    Lease::with(job, Beat::of(ttl, every, sent_at, Instant::now(), tolerance), None)
}
