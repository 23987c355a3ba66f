//! Calls in a worker's name to routes of the control plane other than the exchange.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use reqwest::Url;
use reqwest::header::{DATE, HeaderMap, HeaderValue};
use serde::Serialize;
use tokio::time::Instant;

use super::error::WorkerError;
use super::issued::{BootstrapKey, Issued, Issuer, http_date};
use super::token::Token;
use crate::http::{self, Roots};

/// What a worker shows to the control plane.
#[derive(Debug, Clone, Default)]
pub struct WorkerToken(Token);

impl WorkerToken {
    pub fn text(token: impl Into<String>) -> Self {
        Self(Token::Text(token.into()))
    }

    /// Read for every request, so that a rotated token is used at once.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self(Token::File(path.into()))
    }

    /// Issued by the control plane for the key in this file. Needs [`WorkerCalls::keep_token`].
    pub fn bootstrap_key_file(path: impl Into<PathBuf>, ttl: Option<Duration>) -> Self {
        Self(Token::Issued(Arc::new(Issued::new(BootstrapKey::File(path.into()), Issuer::Worker, ttl))))
    }

    /// Issued by the control plane for a key of an admin. A bootstrap key can do less, and is safer. Needs
    /// [`WorkerCalls::keep_token`].
    pub fn admin_key(key: impl Into<String>, ttl: Option<Duration>) -> Self {
        Self(Token::Issued(Arc::new(Issued::new(BootstrapKey::Text(key.into()), Issuer::Admin, ttl))))
    }

    /// The same with the key in a file, which is read whenever a token is asked for.
    pub fn admin_key_file(path: impl Into<PathBuf>, ttl: Option<Duration>) -> Self {
        Self(Token::Issued(Arc::new(Issued::new(BootstrapKey::File(path.into()), Issuer::Admin, ttl))))
    }

    pub(crate) fn into_inner(self) -> Token {
        self.0
    }

    /// Made by this function for every request.
    pub fn made(make: impl Fn() -> Result<String, String> + Send + Sync + 'static) -> Self {
        Self(Token::Made(Arc::new(make)))
    }
}

/// The connections of a worker to the control plane.
#[derive(Debug)]
pub struct WorkerCalls {
    http: reqwest::Client,
    server: Url,
    id: String,
    worker_id: HeaderValue,
    token: Token,
}

/// An answer of the control plane, whatever its status.
#[derive(Debug)]
pub struct CallAnswer {
    pub status: u16,
    pub body: Vec<u8>,
    /// The `Date` header of the answer: the time of the sender, in whole seconds.
    pub date: Option<Timestamp>,
    /// What `Retry-After` asks for.
    pub retry_after: Option<Duration>,
}

impl WorkerCalls {
    /// `ca_file` has the certificates that count instead of those of the system.
    pub fn new(server: &str, worker_id: &str, token: WorkerToken, ca_file: Option<&Path>) -> Result<Self, WorkerError> {
        let roots = ca_file.map_or(Roots::System, |path| Roots::File(path.to_owned()));
        let http = roots.load().and_then(http::new_client).map_err(WorkerError::Setup)?;
        let server = http::parse_server(server).map_err(WorkerError::Setup)?;
        let header = HeaderValue::from_str(worker_id)
            .map_err(|_| WorkerError::Setup(format!("`{worker_id}` cannot be a worker id")))?;
        Ok(Self { http, server, id: worker_id.to_owned(), worker_id: header, token: token.0 })
    }

    /// Posts JSON to a path, and reads at most `limit` bytes of the answer, all within `timeout`. After a
    /// refused token it tries once more with a new one, if there is a source for it. The error explains a missing answer.
    pub async fn post(
        &self,
        path: &[&str],
        headers: HeaderMap,
        body: &impl Serialize,
        timeout: Duration,
        limit: usize,
    ) -> Result<CallAnswer, String> {
        let until = Instant::now() + timeout;
        let url = http::join(&self.server, path);
        let token = tokio::time::timeout_at(until, self.token.header())
            .await
            .map_err(|_| "the worker has no token yet".to_owned())?
            .map_err(|error| http::chain(&error))?;
        let answer = self.send(&url, &headers, body, token.as_ref(), until, limit).await?;
        if answer.status == 401
            && let Ok(Some(renewed)) = tokio::time::timeout_at(until, self.token.renewed(token.as_ref())).await
        {
            return self.send(&url, &headers, body, Some(&renewed), until, limit).await;
        }
        Ok(answer)
    }

    async fn send(
        &self,
        url: &Url,
        headers: &HeaderMap,
        body: &impl Serialize,
        token: Option<&HeaderValue>,
        until: Instant,
        limit: usize,
    ) -> Result<CallAnswer, String> {
        let unanswered = |error: reqwest::Error| http::chain(&error.without_url());
        let mut post =
            self.http.post(url.clone()).headers(headers.clone()).header("x-worker-id", self.worker_id.clone());
        if let Some(token) = token {
            post = post.header("x-worker-token", token.clone());
        }
        let exchange = async {
            let mut response = post.json(body).send().await.map_err(unanswered)?;
            let (status, headers) = (response.status().as_u16(), response.headers().clone());
            let mut body = Vec::new();
            while let Some(chunk) = response.chunk().await.map_err(unanswered)? {
                if body.len() + chunk.len() > limit {
                    return Err(format!("the answer is larger than {limit} bytes"));
                }
                body.extend_from_slice(&chunk);
            }
            let date = headers.get(DATE).and_then(|date| http_date(date.to_str().ok()?));
            Ok(CallAnswer { status, body, date, retry_after: http::retry_after(&headers) })
        };
        tokio::time::timeout_at(until, exchange).await.unwrap_or_else(|_| Err("no answer in time".to_owned()))
    }

    /// Keeps a token fresh that is issued for a bootstrap key; without one it never ends. Ends only if the key is
    /// refused before there was a token.
    pub async fn keep_token(&self) -> WorkerError {
        let Token::Issued(issued) = &self.token else { return std::future::pending().await };
        issued.keep(&self.http, &self.server, &self.id).await
    }
}
