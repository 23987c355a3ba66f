//! Opening connections.

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustix::net::sockopt;
use tenure_tls::LiveClient;
use tenure_tls::rustls;
use tenure_tls::rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::Error;
use crate::address::Address;
use crate::error::chain;
use crate::upload::RequestBody;

/// The most that the head of an answer may take.
const MAX_HEAD_BYTES: usize = 64 << 10;
const MAX_HEADERS: usize = 100;
/// What a connection reads or writes ahead.
const BUFFER_BYTES: usize = 256 << 10;
/// Addresses of one name that are tried.
const MAX_ADDRESSES: usize = 8;
/// A dead machine is noticed after a minute, also by a call that only waits.
const KEEP_ALIVE: (Duration, Duration, u32) = (Duration::from_secs(15), Duration::from_secs(15), 3);
const UNACKNOWLEDGED_MS: u32 = 60_000;

pub(crate) type Sender = http1::SendRequest<RequestBody>;
pub(crate) type Driver = http1::Connection<TokioIo<Socket>, RequestBody>;

/// A connection to a worker that has nothing on it yet. With TLS the worker's certificate has been judged.
pub(crate) async fn dial(
    address: &Address,
    worker_id: &str,
    tls: Option<&LiveClient>,
    within: Duration,
) -> Result<(Sender, Driver), Error> {
    let deadline = Instant::now() + within;
    let opening = async {
        let stream = connect(address, deadline).await?;
        let socket = match tls {
            None => Socket::Plain(stream),
            Some(tls) => Socket::Tls(Box::new(encrypt(stream, address, worker_id, tls).await?)),
        };
        http1::Builder::new()
            .max_buf_size(BUFFER_BYTES)
            .max_header_size(MAX_HEAD_BYTES)
            .max_headers(MAX_HEADERS)
            .handshake(TokioIo::new(socket))
            .await
            .map_err(|error| Error::unsent(chain(&error)))
    };
    let too_long = || Error::unsent(format!("no connection to {} within {} s", shown(address), within.as_secs_f32()));
    timeout_at(deadline, opening).await.map_err(|_| too_long())?
}

async fn connect(address: &Address, deadline: Instant) -> Result<TcpStream, Error> {
    let failed = |error: &io::Error| Error::unsent(format!("cannot connect to {}: {error}", shown(address)));
    let addresses: Vec<SocketAddr> = match address.host.parse::<IpAddr>() {
        Ok(ip) => vec![(ip, address.port).into()],
        Err(_) => {
            let found = lookup_host((address.host.as_str(), address.port)).await;
            found.map_err(|error| failed(&error))?.take(MAX_ADDRESSES).collect()
        }
    };
    let mut last = Error::unsent(format!("{} has no address", address.host));
    for (tried, one) in addresses.iter().enumerate() {
        // One address that does not answer must not use up the time for the others.
        let left = deadline.saturating_duration_since(Instant::now());
        let rest = u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
        match tokio::time::timeout(left / rest, TcpStream::connect(one)).await {
            Ok(Ok(stream)) => {
                tune(&stream);
                return Ok(stream);
            }
            Ok(Err(error)) => last = failed(&error),
            Err(_) => last = Error::unsent(format!("{one} does not answer")),
        }
    }
    Err(last)
}

/// Without these a connection works too.
fn tune(stream: &TcpStream) {
    let (idle, interval, count) = KEEP_ALIVE;
    // Calls are small: waiting to fill a packet only delays them.
    let _ = stream.set_nodelay(true);
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, idle);
    let _ = sockopt::set_tcp_keepintvl(stream, interval);
    let _ = sockopt::set_tcp_keepcnt(stream, count);
    let _ = sockopt::set_tcp_user_timeout(stream, UNACKNOWLEDGED_MS);
}

async fn encrypt(
    stream: TcpStream,
    address: &Address,
    worker_id: &str,
    tls: &LiveClient,
) -> Result<TlsStream<TcpStream>, Error> {
    let mut config = tls.for_worker(worker_id).map_err(|error| Error::unsent(chain(&error)))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let name = ServerName::try_from(address.host.clone())
        .map_err(|_| Error::unsent(format!("{} cannot be the name of a server", address.host)))?;
    let connected = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    connected.map_err(|error| {
        let refused = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        let why = refused.map_or_else(|| error.to_string(), tenure_tls::explain);
        Error::unsent(format!("TLS with {} failed: {why}", shown(address)))
    })
}

/// Whether the worker ended the connection with a TLS alert. With TLS 1.3 it refuses this side's certificate when this
/// side has already sent its request, which the worker then does not read.
pub(crate) fn is_tls_alert(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        // An `io::Error` hides its own cause from `source`.
        let inner = error.downcast_ref::<io::Error>().and_then(|error| error.get_ref());
        let inner = inner.and_then(|inner| inner.downcast_ref::<rustls::Error>());
        if let Some(rustls::Error::AlertReceived(_)) = inner.or_else(|| error.downcast_ref()) {
            return true;
        }
        cause = error.source();
    }
    false
}

fn shown(address: &Address) -> String {
    address.authority.to_str().unwrap_or_default().to_owned()
}

/// A connection, encrypted or not.
#[derive(Debug)]
pub(crate) enum Socket {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(context, parts),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(context, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
