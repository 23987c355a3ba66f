//! What a worker sends, and how it keeps one attempt alive.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tenure_contract::Json;
use tenure_contract::dispatch::{
    AttemptRef, ClaimRequest, Claimed, CompleteAnswer, CompleteBody, EventsAnswer, EventsBody, HeartbeatAnswer,
    LogsRequest, LogsResponse, NotClaimed, NotClaimedReason, TaskStatus, Wakeups,
};
use tenure_contract::pull::JobLogs;
use tenure_contract::query::{QueryAnswer, QueryRequest, TaskQueryRequest};

use crate::http::Backoff;
use crate::worker::beat::News;
use crate::worker::caller::{Caller, ExchangeError};
use crate::worker::error::WorkerError;
use crate::worker::lease::Lease;
use crate::worker::lock;
use crate::worker::logs::ANSWER_WAIT as LOGS_WAIT;
use crate::worker::pulse::{Beaten, Heart};
use crate::worker::token::secret_header;

/// For the answer to one call.
const ANSWER_WAIT: Duration = Duration::from_secs(15);
/// What a query of a task may take at the server if it does not say.
const QUERY_SECONDS: u32 = 300;
/// How often a query is sent again after no answer: the handler may have better to do than to wait for ever.
const QUERY_TRIES: u32 = 5;
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);
const CAPABILITY_HEADER: &str = "x-trace-task-capability";
/// The holder may finish and report as long as nobody else has claimed the task.
const LEASE_EXPIRED: &str = "lease_expired";

/// The calls of a worker.
#[derive(Debug)]
pub(crate) struct Calls {
    caller: Caller,
}

impl Calls {
    pub(crate) fn new(caller: Caller) -> Self {
        Self { caller }
    }

    pub(crate) fn worker_id(&self) -> &str {
        self.caller.worker_id()
    }

    pub(crate) async fn keep_token(&self) -> WorkerError {
        self.caller.keep_token().await
    }

    /// The ids of tasks that may be there to claim.
    pub(crate) async fn wakeups(&self, queue: &str, max: usize, wait: Duration) -> Result<Vec<String>, ExchangeError> {
        let mut url = self.caller.url(&["internal", "task-wakeups"]);
        url.query_pairs_mut()
            .append_pair("queue", queue)
            .append_pair("max", &max.to_string())
            .append_pair("wait_seconds", &wait.as_secs().to_string());
        let answer: Wakeups = self.caller.get(&url, ANSWER_WAIT + wait).await?.read()?;
        Ok(answer.messages.into_iter().map(|wakeup| wakeup.task_id).collect())
    }

    pub(crate) async fn claim(
        &self,
        request: &ClaimRequest,
    ) -> Result<Result<Box<Claimed>, NotClaimedReason>, ExchangeError> {
        #[derive(Deserialize)]
        struct Said {
            status: String,
        }
        let url = self.caller.url(&["internal", "task-claim"]);
        let answer = self.caller.post(&url, request, ANSWER_WAIT, Duration::ZERO).await?;
        let said: Said = answer.read()?;
        match said.status.as_str() {
            "NotClaimed" => answer.read().map(|not: NotClaimed| Err(not.reason)),
            _ => answer.read().map(|claimed| Ok(Box::new(claimed))),
        }
    }

    async fn internal<A: DeserializeOwned>(
        &self,
        name: &str,
        body: &impl Serialize,
        timeout: Duration,
    ) -> Result<A, ExchangeError> {
        self.caller.post(&self.caller.url(&["internal", name]), body, timeout, Duration::ZERO).await?.read()
    }
}

/// The calls of one attempt.
#[derive(Debug)]
pub(crate) struct AttemptCalls {
    calls: Arc<Calls>,
    at: AttemptRef,
    capability: Mutex<String>,
    /// A source that runs for ever. Its capability token is renewed, which only the bearer of it can ask for.
    is_endless: bool,
    /// The control plane takes no logs of this attempt.
    no_logs: AtomicBool,
}

/// What ends the attempt, or the call.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The attempt is not this worker's any longer.
    Gone(WorkerError),
    /// What was said is wrong, and would be so the next time.
    Wrong(WorkerError),
    /// Nothing more is tried, for this reason.
    GivenUp(String),
}

impl AttemptCalls {
    pub(crate) fn new(calls: Arc<Calls>, claimed: &Claimed) -> Self {
        let at = AttemptRef {
            task_id: claimed.task_id.clone(),
            attempt: claimed.attempt,
            lease_token: Some(claimed.lease_token.clone()),
            worker_id: None,
        };
        let capability = Mutex::new(claimed.capability_token.clone());
        let is_endless = claimed.task.timeout_seconds.is_none();
        Self { calls, at, capability, is_endless, no_logs: AtomicBool::new(false) }
    }

    pub(crate) fn capability_token(&self) -> String {
        lock(&self.capability).clone()
    }

    pub(crate) fn lease_token(&self) -> &str {
        self.at.lease_token.as_deref().unwrap_or_default()
    }

    /// A completion of this attempt, still without what it says.
    pub(crate) fn completion(&self, status: &str) -> CompleteBody {
        CompleteBody {
            task_id: self.at.task_id.clone(),
            attempt: self.at.attempt,
            lease_token: self.at.lease_token.clone(),
            status: status.to_owned(),
            ..CompleteBody::default()
        }
    }

    /// Events of this attempt, still without any.
    pub(crate) fn events_body(&self) -> EventsBody {
        EventsBody {
            task_id: self.at.task_id.clone(),
            attempt: self.at.attempt,
            lease_token: self.at.lease_token.clone(),
            ..EventsBody::default()
        }
    }

    pub(crate) async fn complete(&self, body: &Json, until: Instant) -> Result<CompleteAnswer, Refused> {
        self.until_answered("task-complete", body, || Instant::now() < until).await
    }

    pub(crate) async fn events(
        &self,
        body: &EventsBody,
        wanted: impl Fn() -> bool + Send,
    ) -> Result<EventsAnswer, Refused> {
        self.until_answered("events", body, wanted).await
    }

    /// Runs a query by the capability token, which says what it may read.
    pub(crate) async fn query(
        &self,
        query: QueryRequest,
        wanted: impl Fn() -> bool + Send,
    ) -> Result<QueryAnswer, Refused> {
        let seconds = query.timeout_seconds.unwrap_or(QUERY_SECONDS);
        let timeout = Duration::from_secs(seconds.into()) + 2 * ANSWER_WAIT;
        let body = TaskQueryRequest {
            task_id: Some(self.at.task_id.clone()),
            attempt: Some(self.at.attempt),
            lease_token: self.at.lease_token.clone(),
            query,
        };
        let (mut backoff, mut tries) = (backoff(), 1);
        loop {
            let (reason, retry_after) = match self.query_once(&body, timeout).await {
                Ok(answer) => return Ok(answer),
                Err(ExchangeError::Fatal(error)) => return Err(judged(error)),
                Err(ExchangeError::Again { reason, retry_after, .. }) => (reason, retry_after),
            };
            if tries == QUERY_TRIES || !wanted() {
                return Err(Refused::GivenUp(reason));
            }
            tries += 1;
            tokio::time::sleep(backoff.next(retry_after)).await;
        }
    }

    async fn query_once(&self, body: &TaskQueryRequest, timeout: Duration) -> Result<QueryAnswer, ExchangeError> {
        let token = secret_header(&self.capability_token(), "capability token")?;
        let caller = &self.calls.caller;
        let url = caller.url(&["v1", "task", "query"]);
        let answer = caller.post_as((CAPABILITY_HEADER, token), &url, body, timeout).await?;
        answer.read_with(|body| QueryAnswer::parse(&String::from_utf8_lossy(body)))
    }

    /// Makes the same call with the same body again and again, as long as the answer is wanted.
    async fn until_answered<A: DeserializeOwned>(
        &self,
        name: &str,
        body: &(impl Serialize + Sync),
        wanted: impl Fn() -> bool + Send,
    ) -> Result<A, Refused> {
        let mut backoff = backoff();
        loop {
            let (reason, retry_after) = match self.calls.internal(name, body, ANSWER_WAIT).await {
                Ok(answer) => return Ok(answer),
                Err(ExchangeError::Fatal(error)) => return Err(judged(error)),
                Err(ExchangeError::Again { reason, retry_after, .. }) => (reason, retry_after),
            };
            if !wanted() {
                return Err(Refused::GivenUp(reason));
            }
            let wait = backoff.next(retry_after);
            tracing::warn!(
                task.id = %self.at.task_id,
                call = name,
                wait_seconds = wait.as_secs_f64(),
                reason,
                "the server did not answer"
            );
            tokio::time::sleep(wait).await;
        }
    }

    async fn heartbeat(&self, patience: Duration) -> Result<HeartbeatAnswer, ExchangeError> {
        if self.is_endless
            && let Ok(token) = secret_header(&self.capability_token(), "capability token")
        {
            let caller = &self.calls.caller;
            let url = caller.url(&["v1", "task", "heartbeat"]);
            match caller.post_as((CAPABILITY_HEADER, token), &url, &self.at, patience).await {
                Ok(answer) => return answer.read(),
                Err(refused @ ExchangeError::Fatal(WorkerError::Refused { status: 404 | 409 | 410, .. })) => {
                    return Err(refused);
                }
                // As a worker the heartbeat may pass.
                Err(error) => tracing::debug!(task.id = %self.at.task_id, %error, "no heartbeat by capability token"),
            }
        }
        self.calls.internal("heartbeat", &self.at, patience).await
    }
}

/// What a refusal of events or of a completion is about.
fn judged(error: WorkerError) -> Refused {
    match &error {
        // The dataset has a newer version. The attempt itself is still valid.
        WorkerError::Refused { error: word, .. } if word == "dataset_version_conflict" => Refused::Wrong(error),
        WorkerError::Refused { status: 404 | 409 | 410, .. } => Refused::Gone(error),
        _ => Refused::Wrong(error),
    }
}

impl Heart for AttemptCalls {
    async fn logs(&self, logs: JobLogs) {
        if self.no_logs.load(Ordering::Relaxed) {
            return;
        }
        let request = LogsRequest { attempt: self.at.clone(), lines: logs.lines, dropped: logs.dropped };
        if let Err(error) = self.calls.internal::<LogsResponse>("task-logs", &request, LOGS_WAIT).await {
            // The attempt is over, or the control plane has no route for logs.
            self.no_logs.store(matches!(error, ExchangeError::Fatal(_)), Ordering::Relaxed);
            tracing::debug!(task.id = %self.at.task_id, %error, "log lines did not get through");
        }
    }

    async fn beat(&self, _: &Lease, _: News, patience: Duration) -> Beaten {
        let task_id = &self.at.task_id;
        match self.heartbeat(patience).await {
            Ok(answer) => {
                if let Some(token) = answer.capability_token {
                    *lock(&self.capability) = token;
                }
                let cancel = (answer.status == TaskStatus::Canceled).then(|| "canceled".to_owned());
                Beaten::Renewed { cancel }
            }
            Err(ExchangeError::Again { reason, retry_after, .. }) => {
                tracing::warn!(task.id = %task_id, reason, "heartbeat not answered, trying again");
                Beaten::Again(retry_after)
            }
            Err(ExchangeError::Fatal(WorkerError::Refused { error, .. })) if error == LEASE_EXPIRED => {
                tracing::warn!(task.id = %task_id, "the lease has expired, and nobody else has claimed the task");
                Beaten::Again(None)
            }
            Err(ExchangeError::Fatal(WorkerError::Refused { status: 404 | 409 | 410, error, .. })) => {
                Beaten::Lost(format!("the server answered {error}"))
            }
            Err(ExchangeError::Fatal(error)) => {
                tracing::error!(task.id = %task_id, %error, "heartbeat refused");
                Beaten::Refused
            }
        }
    }
}

/// Between two tries of the same call.
pub(crate) fn backoff() -> Backoff {
    Backoff::new(FIRST_WAIT, LONGEST_WAIT)
}
