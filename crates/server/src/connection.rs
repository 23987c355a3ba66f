//! One connection: plain or TLS, HTTP/1.1 or HTTP/2, timed at every stage.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::rt::{Read, Write};
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tenure_tls::LiveServer;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use crate::access::address::Peer;
use crate::limits;

/// What every connection needs.
#[derive(Clone)]
pub struct Serving {
    pub router: Router,
    pub tls: Option<Arc<LiveServer>>,
    pub graceful: Arc<Draining>,
}

/// Connections that are open, and whether they should come to an end.
pub struct Draining(Mutex<Option<GracefulShutdown>>);

impl Default for Draining {
    fn default() -> Self {
        Self(Mutex::new(Some(GracefulShutdown::new())))
    }
}

impl Draining {
    /// `None` once the server stops: a connection that comes so late is not served.
    fn watcher(&self) -> Option<Watcher> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(GracefulShutdown::watcher)
    }
}

impl Serving {
    /// Serves a connection to its end. One that breaks is the client's affair.
    pub async fn connection(self, stream: TcpStream, peer: SocketAddr) {
        let Some(tls) = &self.tls else {
            return self.http1(TokioIo::new(stream), peer).await;
        };
        let handshake =
            tokio::time::timeout(limits::TLS_HANDSHAKE, TlsAcceptor::from(tls.config()).accept(stream)).await;
        let Ok(Ok(stream)) = handshake else {
            metrics::counter!("tenure_tls_handshake_failures_total").increment(1);
            return;
        };
        if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
            self.http2(TokioIo::new(stream), peer).await;
        } else {
            self.http1(TokioIo::new(stream), peer).await;
        }
    }

    async fn http1<I: Read + Write + Unpin + Send + 'static>(self, stream: I, peer: SocketAddr) {
        let mut http = hyper::server::conn::http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(limits::HEAD_TIMEOUT).max_headers(100).half_close(false);
        if let Some(watcher) = self.graceful.watcher() {
            let _ = watcher.watch(http.serve_connection(stream, self.service(peer))).await;
        }
    }

    async fn http2<I: Read + Write + Unpin + Send + 'static>(self, stream: I, peer: SocketAddr) {
        let mut http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        http.timer(TokioTimer::new())
            .keep_alive_interval(limits::PING_EVERY)
            .keep_alive_timeout(limits::PING_TIMEOUT)
            .max_concurrent_streams(limits::HTTP2_STREAMS)
            .max_header_list_size(limits::HTTP2_HEAD_BYTES);
        if let Some(watcher) = self.graceful.watcher() {
            let _ = watcher.watch(http.serve_connection(stream, self.service(peer))).await;
        }
    }

    fn service(&self, peer: SocketAddr) -> WithPeer {
        WithPeer { router: TowerToHyperService::new(self.router.clone()), peer: Peer(peer) }
    }

    /// Lets open requests finish and closes what is idle.
    pub async fn drain(&self) {
        let graceful = self.graceful.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(graceful) = graceful {
            graceful.shutdown().await;
        }
    }
}

/// Tells handlers who is at the other end.
struct WithPeer {
    router: TowerToHyperService<Router>,
    peer: Peer,
}

impl Service<hyper::Request<Incoming>> for WithPeer {
    type Response = Response;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Self::Error>> + Send>>;

    fn call(&self, mut request: hyper::Request<Incoming>) -> Self::Future {
        request.extensions_mut().insert(self.peer);
        Box::pin(self.router.call(request))
    }
}
