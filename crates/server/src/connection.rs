//! One connection: plain or TLS, HTTP/1.1 or HTTP/2, timed at every stage.

use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Version, header};
use axum::response::Response;
use bytes::Bytes;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::rt::{Read, Write};
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tenure_s3::is_signed;
use tenure_tls::LiveServer;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::address::Peer;
use crate::front::Front;
use crate::limits;
use crate::stall::Stalling;
use crate::well_formed;

/// What every connection needs.
#[derive(Clone)]
pub struct Serving {
    pub router: Router,
    pub tls: Option<Arc<LiveServer>>,
    pub graceful: Arc<Draining>,
    pub front: Arc<Front>,
    pub s3: Option<S3Face>,
    /// A client that reads nothing for this long is disconnected.
    pub write_timeout: Duration,
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

/// Whether somebody who uses an HTTP/2 connection has shown a valid credential. Until then few of its requests are served at a
/// time, also those whose answers are not read.
#[derive(Debug, Clone)]
pub struct Acquaintance {
    places: Arc<Semaphore>,
    known: Arc<AtomicBool>,
}

impl Acquaintance {
    fn new() -> Self {
        Self { places: Arc::new(Semaphore::new(limits::HTTP2_STREAMS_OF_STRANGERS)), known: Arc::default() }
    }

    /// From now on as many requests are served as there are streams.
    pub fn is_known(&self) {
        if !self.known.swap(true, Ordering::Relaxed) {
            self.places.add_permits(limits::HTTP2_STREAMS as usize);
        }
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
        let stream = Stalling::new(stream, self.write_timeout);
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
        http.timer(TokioTimer::new())
            .header_read_timeout(limits::HEAD_TIMEOUT)
            .max_headers(100)
            .max_buf_size(limits::HTTP1_BUFFER_BYTES)
            .half_close(false);
        // Commands and ports of sandboxes are also reached over WebSockets.
        let connection = http.serve_connection(stream, self.service(peer, None)).with_upgrades();
        self.graceful.watch(connection, |connection| connection.graceful_shutdown()).await;
    }

    async fn http2<I: Read + Write + Unpin + Send + 'static>(self, stream: I, peer: SocketAddr) {
        let mut http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        http.timer(TokioTimer::new())
            .keep_alive_interval(limits::PING_EVERY)
            .keep_alive_timeout(limits::PING_TIMEOUT)
            .max_concurrent_streams(limits::HTTP2_STREAMS)
            .max_header_list_size(limits::HTTP2_HEAD_BYTES)
            .initial_stream_window_size(limits::HTTP2_STREAM_WINDOW)
            .initial_connection_window_size(limits::HTTP2_CONNECTION_WINDOW)
            .max_send_buf_size(limits::HTTP2_SEND_BYTES);
        let connection = http.serve_connection(stream, self.service(peer, Some(Acquaintance::new())));
        self.graceful.watch(connection, |connection| connection.graceful_shutdown()).await;
    }

    fn service(&self, peer: SocketAddr, acquaintance: Option<Acquaintance>) -> WithPeer {
        let router = TowerToHyperService::new(self.router.clone());
        WithPeer { router, peer: Peer(peer), front: Arc::clone(&self.front), s3: self.s3.clone(), acquaintance }
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
    acquaintance: Option<Acquaintance>,
}

type Answering = Pin<Box<dyn Future<Output = Result<Response, std::convert::Infallible>> + Send>>;

impl Service<hyper::Request<Incoming>> for WithPeer {
    type Response = Response;
    type Error = std::convert::Infallible;
    type Future = Answering;

    fn call(&self, request: hyper::Request<Incoming>) -> Self::Future {
        let (request, unread) = Unread::watch(request);
        let answering = self.answer(request);
        let Some(unread) = unread else { return answering };
        Box::pin(async move { answering.await.map(|response| unread.close(response)) })
    }
}

impl WithPeer {
    fn answer(&self, mut request: hyper::Request<Body>) -> Answering {
        if let Some(refusal) = well_formed::refusal(&request) {
            return Box::pin(async move { Ok(refusal) });
        }
        if let Some(s3) = self.s3.as_ref().filter(|s3| s3.takes(&request)) {
            let service = s3.service.clone();
            return Box::pin(async move { Ok(service.handle(request).await.map(Body::new)) });
        }
        request.extensions_mut().insert(self.peer);
        let headers = std::mem::take(request.headers_mut());
        if let Some(by_host) = self.front.receive(request.uri_mut(), &headers) {
            request.extensions_mut().insert(by_host);
        }
        *request.headers_mut() = headers;
        let Some(acquaintance) = self.acquaintance.clone() else { return Box::pin(self.router.call(request)) };
        let places = Arc::clone(&acquaintance.places);
        request.extensions_mut().insert(acquaintance);
        let router = self.router.clone();
        Box::pin(async move {
            let place = places.acquire_owned().await.ok();
            let response = router.call(request).await?;
            // An answer that nobody reads keeps its place.
            Ok(response.map(|body| Body::new(Placed { body, _place: place })))
        })
    }
}

/// Whether the body of a request has not been asked for yet, of a client that waits until it is (`Expect: 100-continue`).
///
/// Such a client does not send its body after an answer. Its next request must not be taken for that body.
struct Unread(Arc<AtomicBool>);

impl Unread {
    fn watch(request: hyper::Request<Incoming>) -> (hyper::Request<Body>, Option<Self>) {
        if request.version() > Version::HTTP_11 || !request.headers().contains_key(header::EXPECT) {
            return (request.map(Body::new), None);
        }
        let unread = Arc::new(AtomicBool::new(true));
        let own = Self(Arc::clone(&unread));
        (request.map(|body| Body::new(Awaited { body, unread })), Some(own))
    }

    fn close(self, mut response: Response) -> Response {
        if self.0.load(Ordering::Relaxed) {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// A body that a client sends when it is asked for.
struct Awaited {
    body: Incoming,
    unread: Arc<AtomicBool>,
}

impl hyper::body::Body for Awaited {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        self.unread.store(false, Ordering::Relaxed);
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of an answer that has a place among those of its connection.
struct Placed {
    body: Body,
    _place: Option<OwnedSemaphorePermit>,
}

impl hyper::body::Body for Placed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
