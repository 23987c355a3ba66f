//! One connection: plain or TLS, HTTP/1.1 or HTTP/2, timed at every stage.

use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;

use axum::Router;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::rt::{Read, Write};
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tenure_s3::is_signed;
use tenure_tls::LiveServer;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::address::Peer;
use crate::front::Front;
use crate::limits;
use crate::stall::Stalling;

/// What every connection needs.
#[derive(Clone)]
pub struct Serving {
    pub router: Router,
    pub tls: Option<Arc<LiveServer>>,
    pub graceful: Arc<Draining>,
    pub front: Arc<Front>,
    pub s3: Option<S3Face>,
}

/// The S3 endpoint on a listener.
#[derive(Debug, Clone)]
pub struct S3Face {
    pub service: tenure_s3::Service,
    /// The listener serves nothing else.
    pub is_alone: bool,
}

impl S3Face {
    /// Whether a request is for the endpoint: it is about the bucket, or signed as S3 wants it.
    fn takes<B>(&self, request: &hyper::Request<B>) -> bool {
        self.is_alone || self.service.owns(request.uri().path()) || is_signed(request.uri(), request.headers())
    }
}

/// Connections that are open, and whether they should come to an end. Not the one of `hyper-util`: it knows no connections
/// that can be upgraded.
#[derive(Default)]
pub struct Draining {
    stop: CancellationToken,
    open: TaskTracker,
}

impl Draining {
    /// Serves a connection to its end. Once the server stops, `finish` ends it after its current request; one that comes
    /// so late is not served.
    async fn watch<C: Future>(&self, connection: C, finish: impl FnOnce(Pin<&mut C>)) {
        if self.stop.is_cancelled() {
            return;
        }
        let _open = self.open.token();
        let mut connection = pin!(connection);
        tokio::select! {
            _ = connection.as_mut() => return,
            () = self.stop.cancelled() => {}
        }
        finish(connection.as_mut());
        connection.await;
    }
}

impl Serving {
    /// Serves a connection to its end. One that breaks is the client's affair.
    pub async fn connection(self, stream: TcpStream, peer: SocketAddr) {
        let stream = Stalling::new(stream, limits::WRITE_STALL);
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
        // Commands and ports of sandboxes are also reached over WebSockets.
        let connection = http.serve_connection(stream, self.service(peer)).with_upgrades();
        self.graceful.watch(connection, |connection| connection.graceful_shutdown()).await;
    }

    async fn http2<I: Read + Write + Unpin + Send + 'static>(self, stream: I, peer: SocketAddr) {
        let mut http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        http.timer(TokioTimer::new())
            .keep_alive_interval(limits::PING_EVERY)
            .keep_alive_timeout(limits::PING_TIMEOUT)
            .max_concurrent_streams(limits::HTTP2_STREAMS)
            .max_header_list_size(limits::HTTP2_HEAD_BYTES);
        let connection = http.serve_connection(stream, self.service(peer));
        self.graceful.watch(connection, |connection| connection.graceful_shutdown()).await;
    }

    fn service(&self, peer: SocketAddr) -> WithPeer {
        let router = TowerToHyperService::new(self.router.clone());
        WithPeer { router, peer: Peer(peer), front: Arc::clone(&self.front), s3: self.s3.clone() }
    }

    /// Lets open requests finish and closes what is idle.
    pub async fn drain(&self) {
        self.graceful.stop.cancel();
        self.graceful.open.close();
        self.graceful.open.wait().await;
    }
}

/// Tells handlers who is at the other end.
struct WithPeer {
    router: TowerToHyperService<Router>,
    peer: Peer,
    front: Arc<Front>,
    s3: Option<S3Face>,
}

impl Service<hyper::Request<Incoming>> for WithPeer {
    type Response = Response;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Self::Error>> + Send>>;

    fn call(&self, mut request: hyper::Request<Incoming>) -> Self::Future {
        if let Some(s3) = self.s3.as_ref().filter(|s3| s3.takes(&request)) {
            let service = s3.service.clone();
            return Box::pin(async move { Ok(service.handle(request).await.map(axum::body::Body::new)) });
        }
        request.extensions_mut().insert(self.peer);
        let headers = std::mem::take(request.headers_mut());
        if let Some(by_host) = self.front.receive(request.uri_mut(), &headers) {
            request.extensions_mut().insert(by_host);
        }
        *request.headers_mut() = headers;
        Box::pin(self.router.call(request))
    }
}
