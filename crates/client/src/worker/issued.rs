//! A token that the server gives out for a bootstrap key.
//!
//! One task, on the heartbeat thread, asks for it and keeps it fresh: a handler that blocks the caller's runtime must
//! not let it run out. All connections of the worker wait for it here and say here that it was refused.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use reqwest::Url;
use reqwest::header::{DATE, HeaderMap, HeaderValue};
use serde::Deserialize;
use tenure_contract::admin::{BootstrapRequest, WorkerToken, WorkerTokenRequest};
use tenure_contract::duration;
use tokio::sync::watch;

use super::caller::{ExchangeError, again, broken_off, is_temporary, unanswered};
use super::error::WorkerError;
use super::token::secret_header;
use crate::http::{self, AnswerBody, Backoff};

const ANSWER_WAIT: Duration = Duration::from_secs(10);
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// However short the life of a token is, the next one is not asked for sooner, unless this one is refused.
const RENEW_MIN: Duration = Duration::from_millis(500);

/// What a worker has to show to be given a token.
#[derive(Clone)]
pub(crate) enum BootstrapKey {
    Text(String),
    /// Read whenever a token is asked for, so that a rotated key is used at once.
    File(PathBuf),
}

impl BootstrapKey {
    async fn header(&self) -> Result<HeaderValue, WorkerError> {
        let text = match self {
            Self::Text(text) => text.clone(),
            Self::File(path) => tokio::fs::read_to_string(path)
                .await
                .map_err(|source| WorkerError::BootstrapKeyFile { path: path.clone(), source })?,
        };
        secret_header(&text, "bootstrap key")
    }
}

/// Whose key it is, and so which route gives out the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Issuer {
    /// The worker's own bootstrap key.
    Worker,
    /// A key of an admin, for installations that start workers with one.
    Admin,
}

pub(crate) struct Issued {
    key: BootstrapKey,
    issuer: Issuer,
    /// Absent: as long as the server likes.
    ttl: Option<Duration>,
    held: watch::Sender<Held>,
}

#[derive(Default)]
struct Held {
    token: Option<HeaderValue>,
    /// The server did not take it.
    refused: bool,
}

impl Issued {
    pub(crate) fn new(key: BootstrapKey, issuer: Issuer, ttl: Option<Duration>) -> Self {
        Self { key, issuer, ttl, held: watch::Sender::default() }
    }

    /// The token; waits for the first.
    pub(crate) async fn token(&self) -> HeaderValue {
        self.wait_for(|_| true).await
    }

    /// The token, once it is another one than `refused`. If it is not, it is renewed at once.
    pub(crate) async fn other_than(&self, refused: &HeaderValue) -> HeaderValue {
        self.held.send_if_modified(|held| {
            let news = held.token.as_ref() == Some(refused) && !held.refused;
            held.refused |= news;
            news
        });
        self.wait_for(|token| token != refused).await
    }

    async fn wait_for(&self, good: impl Fn(&HeaderValue) -> bool) -> HeaderValue {
        let mut held = self.held.subscribe();
        let found = held.wait_for(|held| held.token.as_ref().is_some_and(&good)).await;
        match found.ok().and_then(|held| held.token.clone()) {
            Some(token) => token,
            // The sender lives as long as `self`.
            None => std::future::pending().await,
        }
    }

    /// Gets tokens, one after the other, each well before the last one ends. Returns only if the first is refused.
    pub(crate) async fn keep(&self, http: &reqwest::Client, server: &Url, worker_id: &str) -> WorkerError {
        let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
        let mut had_one = false;
        loop {
            let asked_at = Instant::now();
            let (reason, retry_after) = match self.ask(http, server, worker_id).await {
                Ok((token, life)) => {
                    tracing::debug!(valid_seconds = life.as_secs_f64(), "worker token issued");
                    backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
                    had_one = true;
                    self.held.send_replace(Held { token: Some(token), refused: false });
                    tokio::select! {
                        () = tokio::time::sleep_until((asked_at + renew_after(life)).into()) => {}
                        () = self.refused() => tracing::info!("worker token refused, asking for another"),
                    }
                    continue;
                }
                Err(ExchangeError::Fatal(error)) if !had_one => return error,
                Err(ExchangeError::Fatal(error)) => (http::chain(&error), None),
                Err(ExchangeError::Again { reason, retry_after, .. }) => (reason, retry_after),
            };
            let wait = backoff.next(retry_after);
            tracing::warn!(wait_seconds = wait.as_secs_f64(), reason, "cannot get a worker token, trying again");
            tokio::time::sleep(wait).await;
        }
    }

    async fn refused(&self) {
        let mut held = self.held.subscribe();
        if held.wait_for(|held| held.refused).await.is_err() {
            std::future::pending().await
        }
    }

    async fn ask(
        &self,
        http: &reqwest::Client,
        server: &Url,
        worker_id: &str,
    ) -> Result<(HeaderValue, Duration), ExchangeError> {
        let key = self.key.header().await?;
        let asked_at = Timestamp::now();
        let ttl = self.ttl.map(duration::canonical);
        let request = match self.issuer {
            Issuer::Worker => {
                let id = HeaderValue::from_str(worker_id)
                    .map_err(|_| WorkerError::Setup(format!("`{worker_id}` cannot be a worker id")))?;
                http.post(http::join(server, &["api", "v1", "worker", worker_id, "token"]))
                    .header("x-worker-bootstrap-key", key)
                    .header("x-worker-id", id)
                    .json(&BootstrapRequest { ttl })
            }
            Issuer::Admin => {
                let body = WorkerTokenRequest { worker_id: worker_id.to_owned(), ttl, scopes: None, audience: None };
                http.post(http::join(server, &["api", "v1", "admin", "worker-tokens"]))
                    .header("x-admin-api-key", key)
                    .json(&body)
            }
        };
        let request = request.timeout(ANSWER_WAIT);
        let response = request.send().await.map_err(unanswered)?;
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        let body = AnswerBody::of(response).whole().await.map_err(broken_off)?;
        if !(200..300).contains(&status) {
            return Err(refusal(status, &headers, &body));
        }
        let issued: WorkerToken =
            serde_json::from_slice(&body).map_err(|error| again(format!("the answer could not be read: {error}")))?;
        let now = headers.get(DATE).and_then(|date| http_date(date.to_str().ok()?)).unwrap_or(asked_at);
        let life = life(&issued.expires_at, now)
            .ok_or_else(|| again("the issued token has expired, or has no expiry".to_owned()))?;
        Ok((secret_header(&issued.token, "issued worker token")?, life))
    }
}

/// What is said besides the status. Neither of the words needs to be there.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Refusal {
    error: Option<String>,
    code: Option<String>,
    message: Option<String>,
}

fn refusal(status: u16, headers: &HeaderMap, body: &[u8]) -> ExchangeError {
    let said: Refusal = serde_json::from_slice(body).unwrap_or_default();
    let error = said.error.or(said.code).unwrap_or_else(|| format!("http_{status}"));
    let message = said.message.unwrap_or_else(|| "no further explanation".to_owned());
    if is_temporary(status) {
        let reason = format!("the server answered {status} {error}: {message}");
        return ExchangeError::Again { reason, retry_after: http::retry_after(headers), own_fault: false };
    }
    WorkerError::Refused { status, error, message }.into()
}

pub(crate) fn http_date(text: &str) -> Option<Timestamp> {
    jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text).ok()
}

/// How long a token lasts. `now` is the time of the answer by the clock that `expires_at` is of, if the server tells
/// it: the clocks of worker and server need not agree.
fn life(expires_at: &str, now: Timestamp) -> Option<Duration> {
    let left = expires_at.parse::<Timestamp>().ok()?.duration_since(now);
    Duration::try_from(left).ok().filter(|life| !life.is_zero())
}

/// With a third of its life left there is time for some failures.
fn renew_after(life: Duration) -> Duration {
    (life * 2 / 3).max(RENEW_MIN)
}

impl fmt::Debug for Issued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issued").field("ttl", &self.ttl).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_renewed_at_two_thirds_of_its_life() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let five_minutes = life("2026-01-01T00:05:00Z", now).unwrap();
        assert_eq!(renew_after(five_minutes), Duration::from_secs(200));
        assert_eq!(renew_after(Duration::from_millis(3)), RENEW_MIN);
        for text in ["2026-01-01T00:00:00Z", "2025-12-31T23:00:00Z", "soon", ""] {
            assert_eq!(life(text, now), None, "{text}");
        }
    }

    #[test]
    fn the_date_of_an_answer_is_read() {
        assert_eq!(http_date("Wed, 15 Jan 2025 10:00:00 GMT").unwrap().to_string(), "2025-01-15T10:00:00Z");
        assert_eq!(http_date("yesterday"), None);
    }

    #[test]
    fn both_kinds_of_refusal_are_read() {
        let words = |body: &[u8]| match refusal(403, &HeaderMap::new(), body) {
            ExchangeError::Fatal(WorkerError::Refused { error, .. }) => error,
            other => panic!("{other:?}"),
        };
        assert_eq!(words(br#"{"code":"FORBIDDEN","message":"m"}"#), "FORBIDDEN");
        assert_eq!(words(br#"{"code":"FORBIDDEN","error":"no_scope","message":"m"}"#), "no_scope");
        assert_eq!(words(b"<html>"), "http_403");
        for status in [429, 500, 503] {
            assert!(matches!(refusal(status, &HeaderMap::new(), b""), ExchangeError::Again { .. }), "{status}");
        }
    }
}
