//! The client.

use std::error::Error;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::Full;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Body, Certificate, Client, Identity, Method, StatusCode, redirect};

use crate::address::Policy;
use crate::error::{OutboundError, Refused};
use crate::resolve::{Guard, Resolver, SystemResolver};
use crate::target::Target;

/// How much of an answer is read unless a request says otherwise.
const ANSWER_BYTES: usize = 64 * 1024;
const CONNECT: Duration = Duration::from_secs(10);
const IDLE: Duration = Duration::from_secs(60);
const IDLE_PER_HOST: usize = 32;

/// The CAs that servers' certificates may come from.
#[derive(Debug, Clone, Default)]
pub enum Trust {
    /// Those of the operating system.
    #[default]
    System,
    /// Those of a PEM bundle, and no others.
    Only(Vec<u8>),
}

/// A certificate that the client shows, with its private key. Both in PEM.
#[derive(Clone)]
pub struct ClientCert {
    pub chain: Vec<u8>,
    pub key: Vec<u8>,
}

impl fmt::Debug for ClientCert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientCert(***)")
    }
}

/// A client for URLs that others chose. Cheap to clone; keeps connections open.
#[derive(Clone)]
pub struct Outbound {
    client: Client,
    guard: Guard,
}

impl fmt::Debug for Outbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbound").field("policy", &self.guard.policy).finish_non_exhaustive()
    }
}

impl Outbound {
    pub fn new(policy: Policy, trust: &Trust) -> Result<Self, OutboundError> {
        Self::with_resolver(policy, trust, SystemResolver)
    }

    /// With another source of addresses. They are checked all the same.
    pub fn with_resolver(policy: Policy, trust: &Trust, resolver: impl Resolver) -> Result<Self, OutboundError> {
        Self::build(Guard { policy: Arc::new(policy), resolver: Arc::new(resolver) }, trust, None)
    }

    /// Another client under the same guard: with these CAs, and with a certificate of its own.
    pub fn with_tls(&self, trust: &Trust, cert: Option<&ClientCert>) -> Result<Self, OutboundError> {
        Self::build(self.guard.clone(), trust, cert)
    }

    fn build(guard: Guard, trust: &Trust, cert: Option<&ClientCert>) -> Result<Self, OutboundError> {
        let setup = |error: reqwest::Error| OutboundError::Setup(error.into());
        let mut builder = Client::builder()
            .no_proxy()
            // Another crate may turn on HTTP/2, and nobody would have asked for it here.
            .http1_only()
            .redirect(redirect::Policy::none())
            .referer(false)
            .dns_resolver(guard.clone())
            .connect_timeout(CONNECT)
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(IDLE_PER_HOST)
            .user_agent(concat!("tenure/", env!("CARGO_PKG_VERSION")));
        if let Some(cert) = cert {
            let pem = [&cert.chain[..], b"\n", &cert.key].concat();
            builder = builder.identity(Identity::from_pem(&pem).map_err(setup)?);
        }
        if let Trust::Only(pem) = trust {
            builder = builder.tls_certs_only(Certificate::from_pem_bundle(pem).map_err(setup)?);
        }
        let client = builder.build().map_err(setup)?;
        Ok(Self { client, guard })
    }

    /// Judges a URL without resolving its name: for configuration. A request does it again, with the name resolved.
    pub fn check_url(&self, url: &str) -> Result<Target, Refused> {
        Target::check(url, &self.guard.policy)
    }

    /// Judges a URL and what its name resolves to now.
    pub async fn check_address(&self, url: &str) -> Result<Target, OutboundError> {
        Ok(self.resolve(url).await?.0)
    }

    /// The same, with the addresses that were judged.
    pub async fn resolve(&self, url: &str) -> Result<(Target, Vec<IpAddr>), OutboundError> {
        let target = self.check_url(url)?;
        let addresses = match target.literal() {
            Some(address) => vec![address],
            None => self.guard.addresses(target.host()).await?,
        };
        Ok((target, addresses))
    }

    pub async fn get(&self, url: &str, timeout: Duration) -> Result<Answer, OutboundError> {
        self.request(Request::new(Method::GET, url, timeout)).await
    }

    pub async fn post(
        &self,
        url: &str,
        headers: HeaderMap,
        body: impl Into<Bytes>,
        timeout: Duration,
    ) -> Result<Answer, OutboundError> {
        let mut request = Request::new(Method::POST, url, timeout);
        request.headers = headers;
        request.body = body.into();
        self.request(request).await
    }

    /// Makes one request. A redirect is an answer like others; nothing is sent a second time.
    pub async fn request(&self, request: Request<'_>) -> Result<Answer, OutboundError> {
        let answer_bytes = request.answer_bytes;
        let Opened { status, headers, mut response, host } = self.open(request).await?;
        let mut body = BytesMut::new();
        let mut truncated = false;
        while let Some(chunk) = response.chunk().await.map_err(|error| failure(&host, error))? {
            let room = answer_bytes - body.len();
            body.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if chunk.len() > room {
                // The rest stays unread, and the connection is closed.
                truncated = true;
                break;
            }
        }
        Ok(Answer { status, headers, body: body.freeze(), truncated })
    }

    /// The same up to the head of the answer. Its body is still to come, or not.
    pub async fn open(&self, request: Request<'_>) -> Result<Opened, OutboundError> {
        let target = self.check_url(request.url)?;
        let mut response = self
            .client
            .request(request.method, target.url())
            .headers(request.headers)
            // In a form that cannot be sent twice: then it is not kept until the answer comes either.
            .body(Body::wrap(Full::new(request.body)))
            .timeout(request.timeout)
            .send()
            .await
            .map_err(|error| failure(target.host(), error))?;
        let (status, headers) = (response.status(), std::mem::take(response.headers_mut()));
        Ok(Opened { status, headers, response, host: target.host().to_owned() })
    }
}

/// An answer whose body was not read yet. Dropping it ends the exchange.
#[derive(Debug)]
pub struct Opened {
    pub status: StatusCode,
    pub headers: HeaderMap,
    response: reqwest::Response,
    host: String,
}

impl Opened {
    /// Waits for the end of the body, however it ends, and looks at none of it. One that is longer than
    /// 64 KiB is read no further: it stays open, and the wait has no end.
    pub async fn drain(mut self) {
        let mut room = ANSWER_BYTES;
        while let Ok(Some(chunk)) = self.response.chunk().await {
            match room.checked_sub(chunk.len()) {
                Some(less) => room = less,
                None => std::future::pending().await,
            }
        }
    }
}

/// One request.
pub struct Request<'a> {
    pub method: Method,
    pub url: &'a str,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// From the look-up of the name to the last byte of the answer.
    pub timeout: Duration,
    /// How much of the answer is read.
    pub answer_bytes: usize,
}

impl<'a> Request<'a> {
    pub fn new(method: Method, url: &'a str, timeout: Duration) -> Self {
        Self { method, url, headers: HeaderMap::new(), body: Bytes::new(), timeout, answer_bytes: ANSWER_BYTES }
    }

    #[must_use]
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }
}

impl fmt::Debug for Request<'_> {
    /// Without URL, headers and body: each can hold a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("method", &self.method).field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

/// What came back.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// The answer was longer than what was read of it.
    pub truncated: bool,
}

fn failure(host: &str, error: reqwest::Error) -> OutboundError {
    if let Some(word) = word_of_the_guard(&error, host) {
        return word;
    }
    let host = host.to_owned();
    if error.is_timeout() {
        return OutboundError::Timeout { host };
    }
    let connecting = error.is_connect();
    // The URL can hold secrets.
    let source = error.without_url().into();
    if connecting { OutboundError::Connect { host, source } } else { OutboundError::Failed { host, source } }
}

/// What the guard said, which the HTTP client has wrapped into errors of its own.
fn word_of_the_guard(error: &reqwest::Error, host: &str) -> Option<OutboundError> {
    let mut next: Option<&(dyn Error + 'static)> = error.source();
    while let Some(error) = next {
        match error.downcast_ref() {
            Some(OutboundError::Refused(refused)) => return Some(refused.clone().into()),
            Some(OutboundError::Unresolved { .. }) => {
                return Some(OutboundError::Unresolved { host: host.to_owned(), source: None });
            }
            _ => next = error.source(),
        }
    }
    None
}
