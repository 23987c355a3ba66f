//! Requests in a worker's name, and what their answers mean.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Certificate, RequestBuilder, Url};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::error::WorkerError;
use super::token::Token;
use crate::http::{self, AnswerBody, BodyError, chain};

/// How long an answer that may take more time may stand still.
const SILENCE: Duration = Duration::from_secs(15);
/// Refusals of what a request says, with a status that is otherwise about who sends it.
const NOT_OF_THE_CALLER: [&str; 2] = ["dataset_not_granted", "prefix_not_granted"];

/// By what a worker is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KnownBy {
    /// An id and a token of its own.
    Itself,
    /// The token that all workers share.
    SharedToken,
}

/// Who is calling, and where.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) server: Url,
    pub(crate) token: Token,
    /// Instead of those of the system.
    pub(crate) roots: Option<Vec<Certificate>>,
    pub(crate) worker_id: String,
    pub(crate) known_by: KnownBy,
}

/// A set of connections. Each tokio runtime needs its own.
#[derive(Debug)]
pub(crate) struct Caller {
    http: reqwest::Client,
    identity: Identity,
    /// What every request has.
    headers: HeaderMap,
    token_header: HeaderName,
    /// The server has let this worker in once: a later refusal of its token is likely a rotation going on.
    admitted: AtomicBool,
}

/// Why a request has no answer that counts.
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

impl Caller {
    pub(crate) fn new(identity: Identity) -> Result<Self, WorkerError> {
        let worker_id = HeaderValue::from_str(&identity.worker_id)
            .map_err(|_| WorkerError::Setup(format!("`{}` cannot be a worker name", identity.worker_id)))?;
        let http = http::new_client(identity.roots.clone()).map_err(WorkerError::Setup)?;
        let (headers, token_header) = match identity.known_by {
            KnownBy::Itself => {
                let own = HeaderMap::from_iter([(HeaderName::from_static("x-worker-id"), worker_id)]);
                (own, HeaderName::from_static("x-worker-token"))
            }
            KnownBy::SharedToken => (HeaderMap::new(), HeaderName::from_static("x-trace-worker-token")),
        };
        Ok(Self { http, identity, headers, token_header, admitted: AtomicBool::new(false) })
    }

    pub(crate) fn worker_id(&self) -> &str {
        &self.identity.worker_id
    }

    pub(crate) fn url(&self, path: &[&str]) -> Url {
        http::join(&self.identity.server, path)
    }

    /// Posts JSON. The answer may go on for `more` after `timeout`, as long as it does not stand still.
    pub(crate) async fn post(
        &self,
        url: &Url,
        body: &impl Serialize,
        timeout: Duration,
        more: Duration,
    ) -> Result<Answer, ExchangeError> {
        self.call(|| self.http.post(url.clone()).json(body), timeout, more).await
    }

    pub(crate) async fn get(&self, url: &Url, timeout: Duration) -> Result<Answer, ExchangeError> {
        self.call(|| self.http.get(url.clone()), timeout, Duration::ZERO).await
    }

    /// Posts JSON with another credential than the worker's.
    pub(crate) async fn post_as(
        &self,
        credential: (&'static str, HeaderValue),
        url: &Url,
        body: &impl Serialize,
        timeout: Duration,
    ) -> Result<Answer, ExchangeError> {
        let post = self.http.post(url.clone()).header(credential.0, credential.1).json(body);
        let answer = exchange(post, Instant::now() + timeout, Duration::ZERO).await?;
        if answer.is_good() { Ok(answer) } else { Err(self.refusal(&answer)) }
    }

    /// Sends a request and returns an answer that is not a refusal.
    ///
    /// A token that is refused is replaced once, if it can be: it may have been revoked, or signed with a key that was
    /// taken away.
    async fn call(
        &self,
        request: impl Fn() -> RequestBuilder,
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
        let send = |token: Option<&HeaderValue>| {
            let mut request = request().headers(self.headers.clone());
            if let Some(token) = token {
                request = request.header(self.token_header.clone(), token.clone());
            }
            exchange(request, until, more)
        };
        let mut answer = send(token.as_ref()).await?;
        if answer.status == 401 {
            let renewed = tokio::time::timeout_at(until, self.identity.token.renewed(token.as_ref())).await;
            if let Ok(Some(renewed)) = renewed {
                answer = send(Some(&renewed)).await?;
            }
        }
        if answer.is_good() {
            self.admitted.store(true, Ordering::Relaxed);
            return Ok(answer);
        }
        Err(self.refusal(&answer))
    }

    /// Keeps a token that is issued fresh, for all callers of this identity. Ends only with an error.
    pub(crate) async fn keep_token(&self) -> WorkerError {
        let Token::Issued(issued) = &self.identity.token else { return std::future::pending().await };
        issued.keep(&self.http, &self.identity.server, &self.identity.worker_id).await
    }

    /// Once the worker was let in, only what the server says itself is a refusal: a proxy in between can answer anything.
    fn refusal(&self, answer: &Answer) -> ExchangeError {
        #[derive(Deserialize)]
        struct Said {
            error: String,
            message: String,
        }
        let Answer { status, retry_after, is_tenures, .. } = *answer;
        let Said { error, message } = serde_json::from_slice(&answer.body)
            .unwrap_or_else(|_| Said { error: format!("http_{status}"), message: "no further explanation".to_owned() });
        if error == STALE_INCARNATION {
            return self.superseded().into();
        }
        let of_the_caller = matches!(status, 401 | 403) && !NOT_OF_THE_CALLER.contains(&error.as_str());
        // What is too large for a proxy is so each time.
        let may_pass = of_the_caller || (!is_tenures && status != 413);
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

/// Sends a request and reads the answer, whatever it is.
async fn exchange(request: RequestBuilder, until: Instant, more: Duration) -> Result<Answer, ExchangeError> {
    let sent = tokio::time::timeout_at(until, request.send());
    let response = sent.await.map_err(|_| too_slow())?.map_err(unanswered)?;
    let status = response.status().as_u16();
    let retry_after = http::retry_after(response.headers());
    let is_tenures = response.headers().contains_key(http::CONTRACT);
    let mut body = AnswerBody::of(response);
    loop {
        let next = if more.is_zero() { until } else { (until + more).min(Instant::now() + SILENCE) };
        match tokio::time::timeout_at(next, body.more()).await {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => return Ok(Answer { status, retry_after, is_tenures, body: body.into_bytes() }),
            Ok(Err(error)) => return Err(broken_off(error)),
            Err(_) => return Err(too_slow()),
        }
    }
}

pub(crate) struct Answer {
    status: u16,
    retry_after: Option<Duration>,
    /// It comes from the server and not from something in between.
    is_tenures: bool,
    body: Vec<u8>,
}

impl Answer {
    fn is_good(&self) -> bool {
        (200..300).contains(&self.status)
    }

    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, ExchangeError> {
        self.read_with(|body| serde_json::from_slice(body))
    }

    pub(crate) fn read_with<T>(
        &self,
        parse: impl FnOnce(&[u8]) -> Result<T, serde_json::Error>,
    ) -> Result<T, ExchangeError> {
        parse(&self.body).map_err(|error| {
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

/// An answer that is too large is not shorter for another request.
pub(crate) fn broken_off(error: BodyError) -> ExchangeError {
    match error {
        BodyError::Broken(error) => unanswered(error),
        too_large @ BodyError::TooLarge(_) => again(too_large.to_string()),
    }
}

/// A connection that breaks off may do so for what was sent.
pub(crate) fn unanswered(error: reqwest::Error) -> ExchangeError {
    let own_fault = !error.is_connect();
    ExchangeError::Again { reason: chain(&error.without_url()), retry_after: None, own_fault }
}
