//! One query process, over a Unix socket or TCP.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use tenure_auth::Secret;
use tenure_contract::query::process::{ASK_BYTES, Ask, Failed, Failure, Frame, Frames, PATH};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::{Queries, QueryPlace};
use crate::dispatch::DispatchFault;
use crate::error::Fault;

const CONNECT: Duration = Duration::from_secs(2);
/// How long a process that is being started is waited for.
const STARTING: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(50);

/// Where a query process listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    Unix(PathBuf),
    /// `HOST:PORT`
    Tcp(String),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "http://{address}"),
        }
    }
}

impl FromStr for Endpoint {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.starts_with('/') {
                Ok(Self::Unix(path.into()))
            } else {
                Err("unix: needs an absolute path")
            };
        }
        let address = text.strip_prefix("http://").map(|address| address.trim_end_matches('/'));
        let has_port = |address: &&str| {
            let (host, port) = address.rsplit_once(':').unwrap_or_default();
            !host.is_empty() && !address.contains('/') && port.parse::<u16>().is_ok_and(|port| port > 0)
        };
        match address.filter(has_port) {
            Some(address) => Ok(Self::Tcp(address.to_owned())),
            None => Err("must be unix:/path or http://host:port"),
        }
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

impl Endpoint {
    async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        let connect = async {
            Ok::<Box<dyn Stream>, io::Error>(match self {
                Self::Unix(path) => Box::new(UnixStream::connect(path).await?),
                Self::Tcp(address) => {
                    let stream = TcpStream::connect(address).await?;
                    stream.set_nodelay(true)?;
                    Box::new(stream)
                }
            })
        };
        tokio::time::timeout(CONNECT, connect).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Sends a query. Dropping what comes back ends it.
    async fn ask(&self, token: Option<&Secret>, body: Bytes) -> Result<Running, Trouble> {
        let stream = self.connect().await.map_err(|_| Trouble::Away)?;
        let lost = |_: hyper::Error| Trouble::Lost;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(lost)?;
        let connection = AbortOnDropHandle::new(tokio::spawn(async move {
            let _ = connection.await;
        }));
        let host = match self {
            Self::Unix(_) => "query",
            Self::Tcp(address) => address,
        };
        let mut request = Request::post(PATH).header(header::HOST, host);
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", token.reveal()));
        }
        let request = request.body(Full::new(body)).map_err(|_| Trouble::Lost)?;
        let answer = sender.send_request(request).await.map_err(lost)?;
        match answer.status() {
            StatusCode::OK => {
                Ok(Running { body: answer.into_body(), frames: Frames::default(), _connection: connection })
            }
            status => {
                tracing::error!(endpoint = %self, status = status.as_u16(), "a query process refuses this server: check its version and query.token_file");
                Err(Trouble::Lost)
            }
        }
    }
}

/// Why a process has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    /// Nothing was sent.
    Away,
    Lost,
}

/// A query on its way. It ends when this is dropped.
#[derive(Debug)]
pub struct Running {
    body: Incoming,
    frames: Frames,
    _connection: AbortOnDropHandle<()>,
}

impl Running {
    /// The next frame. A body that ends without a last frame was cut off.
    pub async fn next(&mut self) -> Result<Frame<Vec<u8>>, Fault> {
        loop {
            if let Some(frame) = self.frames.take().map_err(|_| lost())? {
                return Ok(frame);
            }
            match self.body.frame().await {
                Some(Ok(piece)) => {
                    if let Some(bytes) = piece.data_ref() {
                        self.frames.push(bytes);
                    }
                }
                Some(Err(_)) | None => return Err(lost()),
            }
        }
    }
}

fn lost() -> Fault {
    let message = "the query process ended while it ran the query: try again";
    DispatchFault::fault("query_unavailable", message)
}

impl Queries {
    /// Sends a query to a process that takes it.
    pub async fn ask(&self, ask: &Ask, deadline: Instant) -> Result<Running, Fault> {
        if let QueryPlace::Nowhere(message) = &self.config.place {
            return Err(DispatchFault::fault("query_unavailable", message));
        }
        let body = serde_json::to_vec(ask).map_err(|_| Fault::Internal)?;
        if body.len() > ASK_BYTES {
            let message = "the datasets of the query have too many files: name fewer datasets, or compact them";
            return Err(DispatchFault::fault("query_failed", message));
        }
        let body = Bytes::from(body);
        let give_up = deadline.min(Instant::now() + STARTING);
        let first = self.turn.fetch_add(1, Ordering::Relaxed);
        loop {
            for at in 0..self.endpoints.len() {
                let endpoint = &self.endpoints[(first.wrapping_add(at)) % self.endpoints.len()];
                match endpoint.ask(self.token.as_ref(), body.clone()).await {
                    Ok(running) => return Ok(running),
                    // It may have begun: another one must not begin too.
                    Err(Trouble::Lost) => return Err(lost()),
                    Err(Trouble::Away) => {}
                }
            }
            if Instant::now() + PAUSE >= give_up || self.endpoints.is_empty() {
                let message = "no query process answers: try again, and see the log of the server";
                return Err(DispatchFault::fault("query_unavailable", message));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// A query that has no result, as its caller is told.
pub fn failed(failed: Failed) -> Fault {
    match failed.error {
        // Both sides are of one version, or the answer is of no use to the caller.
        Failure::MalformedRequest => {
            tracing::error!(reason = failed.message, "a query process does not understand this server");
            Fault::Internal
        }
        error => DispatchFault::fault(error.code(), failed.message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read() {
        assert_eq!("unix:/run/q.sock".parse(), Ok(Endpoint::Unix("/run/q.sock".into())));
        assert_eq!("http://10.0.0.1:7500/".parse(), Ok(Endpoint::Tcp("10.0.0.1:7500".into())));
        for text in ["", "unix:q", "https://h:1", "http://h", "http://h:0", "http://:1", "http://h:1/x", "h:1"] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }
}
