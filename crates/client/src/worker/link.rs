//! The way to the server: the exchange, and the claim of one job by its id.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use reqwest::header::HeaderValue;
use reqwest::{Certificate, Url};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tenure_contract::error::WorkerError as ErrorBody;
use tenure_contract::pull::{ClaimRequest, ExchangeRequest, ExchangeResponse, Job};
use tokio::time::Instant;

use super::error::WorkerError;
use super::token::Token;
use crate::http::{self, chain};

/// For the answer to a claim that does not wait.
const CLAIM_WAIT: Duration = Duration::from_secs(15);
/// For an answer that is large, beyond the time for its beginning.
const LARGE_ANSWER: Duration = Duration::from_secs(300);
/// How long such an answer may stand still.
const SILENCE: Duration = Duration::from_secs(15);

/// Who is calling, and where.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) server: Url,
    pub(crate) token: Token,
    /// Instead of those of the system.
    pub(crate) roots: Option<Vec<Certificate>>,
    pub(crate) worker_id: String,
    pub(crate) incarnation: String,
    pub(crate) kills_on_expiry: bool,
}

/// A set of connections. Each tokio runtime needs its own.
#[derive(Debug)]
pub(crate) struct Link {
    http: reqwest::Client,
    exchange: Url,
    claim: Url,
    worker_id: HeaderValue,
    identity: Identity,
    /// The server has let this worker in once: a later refusal of its token is likely a rotation going on.
    admitted: AtomicBool,
}

/// Why an exchange has no answer that counts.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExchangeError {
    /// It may have taken effect, or may later: send the same request again.
    #[error("{reason}")]
    Again {
        reason: String,
        retry_after: Option<Duration>,
        /// What was sent may be the cause: it took too long, or something in between does not let it through.
        own_fault: bool,
    },
    #[error(transparent)]
    Fatal(#[from] WorkerError),
}

impl Link {
    pub(crate) fn new(identity: Identity) -> Result<Self, WorkerError> {
        let worker_id = HeaderValue::from_str(&identity.worker_id)
            .map_err(|_| WorkerError::Setup(format!("`{}` cannot be a worker name", identity.worker_id)))?;
        let http = http::new_client(identity.roots.clone()).map_err(WorkerError::Setup)?;
        let url = |name| http::join(&identity.server, &["internal", "worker", name]);
        let (exchange, claim) = (url("exchange"), url("claim"));
        Ok(Self { http, exchange, claim, worker_id, identity, admitted: AtomicBool::new(false) })
    }

    /// A request in this worker's name, still without parts.
    pub(crate) fn request(&self) -> ExchangeRequest {
        ExchangeRequest {
            worker_id: self.identity.worker_id.clone(),
            incarnation: Some(self.identity.incarnation.clone()),
            ..ExchangeRequest::default()
        }
    }

    /// A claim in this worker's name, of nothing yet.
    pub(crate) fn claim_request(&self) -> ClaimRequest {
        ClaimRequest {
            worker_id: self.identity.worker_id.clone(),
            incarnation: Some(self.identity.incarnation.clone()),
            kills_on_expiry: self.identity.kills_on_expiry,
            ..ClaimRequest::default()
        }
    }

    /// Claims one job by its id. Gives the job, or whether the wake-up that named it is over.
    pub(crate) async fn claim(&self, request: &ClaimRequest) -> Result<(Option<Job>, bool), ExchangeError> {
        #[derive(Deserialize)]
        struct Claimed {
            claimed: bool,
            #[serde(default)]
            ack: bool,
        }
        let answer = self.call(&self.claim, request, CLAIM_WAIT, Duration::ZERO).await?;
        let Claimed { claimed, ack } = answer.read()?;
        Ok((if claimed { Some(answer.read()?) } else { None }, ack))
    }

    /// Sends an exchange and waits for the answer, for `timeout` in all.
    pub(crate) async fn exchange(
        &self,
        request: &ExchangeRequest,
        timeout: Duration,
    ) -> Result<ExchangeResponse, ExchangeError> {
        self.call(&self.exchange, request, timeout, Duration::ZERO).await?.read()
    }

    /// The same for an answer that may be large: once it has begun it has more time, as long as it goes on.
    pub(crate) async fn exchange_large(
        &self,
        request: &ExchangeRequest,
        timeout: Duration,
    ) -> Result<ExchangeResponse, ExchangeError> {
        self.call(&self.exchange, request, timeout, LARGE_ANSWER).await?.read()
    }

    /// Sends a request and gives an answer that is none of refusal.
    ///
    /// A token that is refused is replaced once, if it can be: it may have been revoked, or signed with a key that was
    /// taken away.
    async fn call(
        &self,
        url: &Url,
        request: &impl Serialize,
        timeout: Duration,
        more: Duration,
    ) -> Result<Answer, ExchangeError> {
        let until = Instant::now() + timeout;
        let token = match tokio::time::timeout_at(until, self.identity.token.header()).await {
            Ok(Ok(token)) => token,
            Ok(Err(error)) if self.is_admitted() => return Err(again(chain(&error))),
            Ok(Err(error)) => return Err(error.into()),
            Err(_) => return Err(again("the worker has no token yet".to_owned())),
        };
        let mut answer = self.post(url, request, token.as_ref(), until, more).await?;
        if answer.status == 401 {
            let renewed = tokio::time::timeout_at(until, self.identity.token.renewed(token.as_ref())).await;
            if let Ok(Some(renewed)) = renewed {
                answer = self.post(url, request, Some(&renewed), until, more).await?;
            }
        }
        if (200..300).contains(&answer.status) {
            self.admitted.store(true, Ordering::Relaxed);
            return Ok(answer);
        }
        Err(self.refusal(&answer))
    }

    async fn post(
        &self,
        url: &Url,
        request: &impl Serialize,
        token: Option<&HeaderValue>,
        until: Instant,
        more: Duration,
    ) -> Result<Answer, ExchangeError> {
        let mut post = self.http.post(url.clone()).header("x-worker-id", self.worker_id.clone());
        if let Some(token) = token {
            post = post.header("x-worker-token", token.clone());
        }
        let sent = tokio::time::timeout_at(until, post.json(request).send());
        let mut response = sent.await.map_err(|_| too_slow())?.map_err(unanswered)?;
        let status = response.status().as_u16();
        let retry_after = http::retry_after(response.headers());
        let is_tenures = response.headers().contains_key(http::CONTRACT);
        let mut body = Vec::new();
        loop {
            let next = if more.is_zero() { until } else { (until + more).min(Instant::now() + SILENCE) };
            match tokio::time::timeout_at(next, response.chunk()).await {
                Ok(Ok(Some(chunk))) => body.extend_from_slice(&chunk),
                Ok(Ok(None)) => return Ok(Answer { status, retry_after, is_tenures, body }),
                Ok(Err(error)) => return Err(unanswered(error)),
                Err(_) => return Err(too_slow()),
            }
        }
    }

    /// Keeps a token that is issued fresh, for all links of this identity. Ends only with an error.
    pub(crate) async fn keep_token(&self) -> WorkerError {
        let Token::Issued(issued) = &self.identity.token else { return std::future::pending().await };
        issued.keep(&self.http, &self.identity.server, &self.identity.worker_id).await
    }

    /// Once the worker was let in, only what the server says itself is a refusal: a proxy in between can answer anything.
    fn refusal(&self, answer: &Answer) -> ExchangeError {
        let Answer { status, retry_after, is_tenures, .. } = *answer;
        let (error, message) = match serde_json::from_slice::<ErrorBody>(&answer.body) {
            Ok(body) => (body.error, body.message),
            Err(_) => (format!("http_{status}"), "no further explanation".to_owned()),
        };
        if error == STALE_INCARNATION {
            return self.superseded().into();
        }
        // What is too large for a proxy is so each time.
        let may_pass = matches!(status, 401 | 403) || (!is_tenures && status != 413);
        if (may_pass && self.is_admitted()) || is_temporary(status) {
            let reason = format!("the server answered {status} {error}: {message}");
            let own_fault = !is_tenures && !is_temporary(status);
            return ExchangeError::Again { reason, retry_after, own_fault };
        }
        WorkerError::Refused { status, error, message }.into()
    }

    pub(crate) fn is_admitted(&self) -> bool {
        self.admitted.load(Ordering::Relaxed)
    }

    pub(crate) fn superseded(&self) -> WorkerError {
        WorkerError::Superseded { worker_id: self.identity.worker_id.clone() }
    }
}

struct Answer {
    status: u16,
    retry_after: Option<Duration>,
    /// It comes from the server and not from something in between.
    is_tenures: bool,
    body: Vec<u8>,
}

impl Answer {
    fn read<T: DeserializeOwned>(&self) -> Result<T, ExchangeError> {
        serde_json::from_slice(&self.body).map_err(|error| {
            let reason = format!("the answer could not be read: {error}");
            ExchangeError::Again { reason, retry_after: None, own_fault: !self.is_tenures }
        })
    }
}

/// Said of a whole request or of one item, when a newer process has the worker's name.
pub(crate) const STALE_INCARNATION: &str = "stale_incarnation";

/// Statuses after which the same request, or the same item, may be accepted.
pub(crate) fn is_temporary(status: u16) -> bool {
    matches!(status, 408 | 429 | 500..)
}

pub(crate) fn again(reason: String) -> ExchangeError {
    ExchangeError::Again { reason, retry_after: None, own_fault: false }
}

fn too_slow() -> ExchangeError {
    ExchangeError::Again { reason: "no answer in time".to_owned(), retry_after: None, own_fault: true }
}

/// A connection that breaks off may do so for what was sent.
pub(crate) fn unanswered(error: reqwest::Error) -> ExchangeError {
    let own_fault = !error.is_connect();
    ExchangeError::Again { reason: chain(&error.without_url()), retry_after: None, own_fault }
}
