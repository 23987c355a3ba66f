//! The way to the server: the exchange, and the claim of one job by its id.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Url;
use serde::Deserialize;
use tenure_contract::pull::{
    ClaimRequest, ExchangeRequest, ExchangeResponse, Job, JobLogs, LogsRequest, LogsResponse, WorkerAbout,
};

use super::about::About;
use super::caller::{Caller, ExchangeError, Identity};
use super::error::WorkerError;
use super::logs::{self, LogSink, LogsSent};

/// For the answer to a claim that does not wait.
const CLAIM_WAIT: Duration = Duration::from_secs(15);
/// For an answer that is large, beyond the time for its beginning.
const LARGE_ANSWER: Duration = Duration::from_secs(300);

/// Which process of a worker is calling, and what it promises.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    pub(crate) identity: Identity,
    pub(crate) incarnation: String,
    pub(crate) kills_on_expiry: bool,
    pub(crate) about: Arc<About>,
}

/// What came of the claim of one job.
pub(crate) struct JobClaim {
    pub(crate) job: Option<Box<Job>>,
    /// The wake-up that named it is over.
    pub(crate) is_over: bool,
    /// The worker gets no new work.
    pub(crate) drained: bool,
}

/// A set of connections. Each tokio runtime needs its own.
#[derive(Debug)]
pub(crate) struct Link {
    caller: Caller,
    exchange: Url,
    claim: Url,
    logs: Url,
    incarnation: String,
    kills_on_expiry: bool,
    about: Arc<About>,
}

impl Link {
    pub(crate) fn new(process: Process) -> Result<Self, WorkerError> {
        let Process { identity, incarnation, kills_on_expiry, about } = process;
        let caller = Caller::new(identity)?;
        let url = |name| caller.url(&["internal", "worker", name]);
        let (exchange, claim, logs) = (url("exchange"), url("claim"), url("logs"));
        Ok(Self { caller, exchange, claim, logs, incarnation, kills_on_expiry, about })
    }

    /// A request in this worker's name, still without parts.
    pub(crate) fn request(&self) -> ExchangeRequest {
        ExchangeRequest {
            worker_id: self.caller.worker_id().to_owned(),
            incarnation: Some(self.incarnation.clone()),
            ..ExchangeRequest::default()
        }
    }

    /// A claim in this worker's name, of nothing yet.
    pub(crate) fn claim_request(&self) -> ClaimRequest {
        ClaimRequest {
            worker_id: self.caller.worker_id().to_owned(),
            incarnation: Some(self.incarnation.clone()),
            kills_on_expiry: self.kills_on_expiry,
            worker: self.about.due(),
            ..ClaimRequest::default()
        }
    }

    /// What this process says about itself with its next claim, if it is time.
    pub(crate) fn about(&self) -> Option<WorkerAbout> {
        self.about.due()
    }

    /// Claims one job by its id.
    pub(crate) async fn claim(&self, request: &ClaimRequest) -> Result<JobClaim, ExchangeError> {
        #[derive(Deserialize)]
        struct Claimed {
            claimed: bool,
            #[serde(default)]
            ack: bool,
            #[serde(default)]
            drained: bool,
        }
        let answer = self.caller.post(&self.claim, request, CLAIM_WAIT, Duration::ZERO).await?;
        let Claimed { claimed, ack, drained } = answer.read()?;
        let job = if claimed { Some(Box::new(answer.read()?)) } else { None };
        Ok(JobClaim { job, is_over: ack, drained })
    }

    /// Sends an exchange and waits for the answer, for `timeout` in all.
    pub(crate) async fn exchange(
        &self,
        request: &ExchangeRequest,
        timeout: Duration,
    ) -> Result<ExchangeResponse, ExchangeError> {
        self.caller.post(&self.exchange, request, timeout, Duration::ZERO).await?.read()
    }

    /// The same for an answer that may be large: once it has begun it has more time, as long as it goes on.
    pub(crate) async fn exchange_large(
        &self,
        request: &ExchangeRequest,
        timeout: Duration,
    ) -> Result<ExchangeResponse, ExchangeError> {
        self.caller.post(&self.exchange, request, timeout, LARGE_ANSWER).await?.read()
    }

    pub(crate) fn worker_id(&self) -> &str {
        self.caller.worker_id()
    }

    async fn logs(&self, request: &LogsRequest) -> Result<LogsResponse, ExchangeError> {
        self.caller.post(&self.logs, request, logs::ANSWER_WAIT, Duration::ZERO).await?.read()
    }

    /// Keeps a token that is issued fresh, for all links of this identity. Ends only with an error.
    pub(crate) async fn keep_token(&self) -> WorkerError {
        self.caller.keep_token().await
    }

    pub(crate) fn is_admitted(&self) -> bool {
        self.caller.is_admitted()
    }

    pub(crate) fn superseded(&self) -> WorkerError {
        self.caller.superseded()
    }
}

impl LogSink for Link {
    async fn send(&self, items: Vec<(u64, JobLogs)>) -> LogsSent {
        let logs = items.into_iter().map(|(_, logs)| logs).collect();
        match self.logs(&LogsRequest { worker_id: self.worker_id().to_owned(), logs }).await {
            Ok(LogsResponse { .. }) => LogsSent::Done,
            Err(ExchangeError::Fatal(error)) => {
                tracing::info!(%error, "the server takes no logs of tasks");
                LogsSent::Off
            }
            Err(ExchangeError::Again { reason, retry_after, .. }) => {
                tracing::debug!(reason, "log lines of tasks did not get through");
                LogsSent::Lost { retry_after }
            }
        }
    }
}
