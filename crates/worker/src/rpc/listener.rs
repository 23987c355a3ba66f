//! Connections: accepted up to a cap, plain or TLS, timed at every stage.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use futures_util::future::BoxFuture;
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tenure_tls::LiveServer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::{TlsAcceptor, rustls};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connection::{Clock, Timed};
use super::request::Guarded;
use super::router::router;
use super::settings::RpcTimes;
use super::state::Rpc;

/// Heads above this are refused.
const MAX_HEAD_BYTES: usize = 64 << 10;
const MAX_HEADERS: usize = 100;
/// What a connection reads or writes ahead.
const BUFFER_BYTES: usize = 256 << 10;
/// Metrics are read by one or two.
const ASIDE_CONNECTIONS: usize = 16;
const ASIDE_DRAIN: Duration = Duration::from_secs(1);

/// Serves until `shutdown` ends. Then no connection is accepted any more, and calls may go on for the drain time.
///
/// HTTP/1.1 only: a call has its connection to itself, so that a lost caller is seen at once.
///
/// Boxed, so that all of it is compiled here, and not again by everyone who calls this.
pub fn run(
    listener: TcpListener,
    rpc: Rpc,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> BoxFuture<'static, io::Result<()>> {
    Box::pin(serve_rpc(listener, rpc, Box::pin(shutdown)))
}

async fn serve_rpc(listener: TcpListener, rpc: Rpc, shutdown: BoxFuture<'static, ()>) -> io::Result<()> {
    let settings = &rpc.settings;
    let (connections, drain_timeout) = (settings.max_connections, settings.drain_timeout);
    let (times, tls) = (settings.times.clone(), rpc.tls.clone());
    let serving = Serving { router: router(Arc::new(rpc)), tls, times, stop: CancellationToken::new() };
    serve(listener, serving, connections, drain_timeout, shutdown).await;
    Ok(())
}

/// Serves routes beside worker RPC, without TLS and to few at a time.
pub(crate) async fn run_aside(listener: TcpListener, router: Router, shutdown: impl Future<Output = ()> + Send) {
    let serving = Serving { router, tls: None, times: RpcTimes::default(), stop: CancellationToken::new() };
    serve(listener, serving, ASIDE_CONNECTIONS, ASIDE_DRAIN, shutdown).await;
}

async fn serve(
    listener: TcpListener,
    serving: Serving,
    connections: usize,
    drain_timeout: Duration,
    shutdown: impl Future<Output = ()> + Send,
) {
    let connections = Arc::new(Semaphore::new(connections));
    let open = TaskTracker::new();
    tokio::pin!(shutdown);
    loop {
        // Beyond the cap connections wait in the listener's backlog.
        let accepted = tokio::select! {
            accepted = accept(&listener, &connections) => accepted,
            () = &mut shutdown => break,
        };
        let Some((stream, permit)) = accepted else { continue };
        let serving = serving.clone();
        open.spawn(async move {
            serving.connection(stream).await;
            drop(permit);
        });
    }
    drop(listener);
    serving.stop.cancel();
    open.close();
    if tokio::time::timeout(drain_timeout, open.wait()).await.is_err() {
        tracing::warn!("some calls did not finish before the shutdown timeout");
    }
}

async fn accept(listener: &TcpListener, connections: &Arc<Semaphore>) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let permit = Arc::clone(connections).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => {
            // Answers are small: waiting to fill a packet only delays them.
            let _ = stream.set_nodelay(true);
            Some((stream, permit))
        }
        Err(error) => {
            tracing::warn!(%error, "cannot accept a connection");
            tokio::time::sleep(Duration::from_millis(50)).await;
            None
        }
    }
}

#[derive(Clone)]
struct Serving {
    router: Router,
    tls: Option<Arc<LiveServer>>,
    times: RpcTimes,
    /// Connections end after the request that they serve.
    stop: CancellationToken,
}

/// Whoever runs this worker wants to know which certificate it refused, and why. Other failures are noise.
fn log_failure(error: &io::Error) {
    match error.get_ref().and_then(|error| error.downcast_ref()) {
        Some(refused @ rustls::Error::InvalidCertificate(_)) => {
            tracing::warn!(error = tenure_tls::explain(refused), "the certificate of a caller was refused");
        }
        _ => tracing::debug!(%error, "a TLS handshake failed"),
    }
}

impl Serving {
    /// Serves a connection to its end. One that breaks is the caller's affair.
    async fn connection(self, stream: TcpStream) {
        let Some(tls) = &self.tls else { return self.http(stream).await };
        let handshake = TlsAcceptor::from(tls.config()).accept(stream);
        match tokio::time::timeout(self.times.head, handshake).await {
            Ok(Ok(stream)) => self.http(stream).await,
            Ok(Err(error)) => {
                metrics::counter!("tenure_tls_handshake_failures_total").increment(1);
                log_failure(&error);
            }
            Err(_) => metrics::counter!("tenure_tls_handshake_failures_total").increment(1),
        }
    }

    async fn http<S>(self, stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let clock = Clock::new(&self.times);
        let stream = TokioIo::new(Timed::new(stream, clock.clone(), self.times.stalled));
        let mut http = hyper::server::conn::http1::Builder::new();
        // The clock tells a head that takes long from a connection that is idle; hyper does not.
        http.timer(TokioTimer::new())
            .header_read_timeout(None)
            .max_headers(MAX_HEADERS)
            .max_header_size(MAX_HEAD_BYTES)
            .max_buf_size(BUFFER_BYTES)
            .half_close(false);
        let service = Watched { router: TowerToHyperService::new(self.router.clone()), clock: clock.clone() };
        let connection = http.serve_connection(stream, service).with_upgrades();
        tokio::pin!(connection);
        tokio::select! {
            _ = &mut connection => return,
            () = clock.expired() => return,
            () = self.stop.cancelled() => connection.as_mut().graceful_shutdown(),
        }
        tokio::select! {
            _ = &mut connection => {}
            () = clock.expired() => {}
        }
    }
}

/// Tells the clock of the connection when a request is served.
struct Watched {
    router: TowerToHyperService<Router>,
    clock: Clock,
}

impl Service<hyper::Request<Incoming>> for Watched {
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn call(&self, request: hyper::Request<Incoming>) -> Self::Future {
        let busy = self.clock.busy();
        let answering = self.router.call(request);
        Box::pin(async move { Ok(answering.await?.map(|body| Body::new(Guarded::new(body, busy)))) })
    }
}
