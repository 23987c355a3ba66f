//! Connections: accepted up to a cap, timed at every stage, drained at the end.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::extract::{Extension, MatchedPath, Request};
use axum::http::{HeaderValue, Uri};
use axum::response::Response;
use axum::{Router, middleware};
use futures_util::FutureExt;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tenure_engine::Engine;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::error::Fault;
use crate::request::{RequestId, with_request_id};
use crate::state::{App, ServerConfig};
use crate::{api, contracts, limits};

/// Serves until `shutdown` ends. Then no connection is accepted any more, long polls end, requests that were accepted
/// finish, and the engine is shut down.
pub async fn run(
    listener: TcpListener,
    engine: Engine,
    config: ServerConfig,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let app = App::new(engine.clone(), &config, recorder());
    let service = TowerToHyperService::new(router(app));
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits::HEAD_TIMEOUT).max_headers(100).half_close(false);
    let connections = Arc::new(Semaphore::new(config.max_connections));
    let graceful = GracefulShutdown::new();
    tokio::pin!(shutdown);
    loop {
        // Beyond the cap connections wait in the listener's backlog.
        let accepted = tokio::select! {
            accepted = accept(&listener, &connections) => accepted,
            () = &mut shutdown => break,
        };
        let Some((stream, permit)) = accepted else { continue };
        let connection = http.serve_connection(TokioIo::new(stream), service.clone());
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            // A broken connection is the client's affair.
            let _ = connection.await;
            drop(permit);
        });
    }
    drop(listener);
    tracing::info!("stopping: long polls end, accepted requests finish");
    engine.begin_shutdown();
    if tokio::time::timeout(config.drain_timeout, graceful.shutdown()).await.is_err() {
        tracing::warn!("some requests did not finish in time");
    }
    engine.shutdown().await;
    Ok(())
}

async fn accept(
    listener: &TcpListener,
    connections: &Arc<Semaphore>,
) -> Option<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let permit = Arc::clone(connections).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => {
            // Answers are small: waiting to fill a packet only delays them.
            let _ = stream.set_nodelay(true);
            metrics::counter!("tenure_connections_total").increment(1);
            Some((stream, permit))
        }
        Err(error) => {
            tracing::warn!(%error, "cannot accept a connection");
            tokio::time::sleep(Duration::from_millis(50)).await;
            None
        }
    }
}

fn router(app: App) -> Router {
    Router::new()
        .merge(contracts::pull::router())
        .merge(api::router())
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn(catch_panics))
        .layer(middleware::from_fn(contracts::pull::name_contract))
        .layer(middleware::from_fn(security_headers))
        .layer(middleware::from_fn(measure))
        .layer(middleware::from_fn(with_request_id))
        .with_state(app)
}

async fn unknown_path(Extension(id): Extension<RequestId>, uri: Uri) -> Response {
    say(Fault::NotFound { what: "not_found" }, &uri, &id)
}

async fn wrong_method(Extension(id): Extension<RequestId>, uri: Uri) -> Response {
    say(Fault::MethodNotAllowed, &uri, &id)
}

/// In the words of the contract that the path belongs to.
fn say(fault: Fault, uri: &Uri, id: &RequestId) -> Response {
    if contracts::pull::owns(uri.path()) { fault.for_worker(id) } else { fault.for_user(id) }
}

/// A panic costs its own request and no other.
async fn catch_panics(Extension(id): Extension<RequestId>, request: Request, next: middleware::Next) -> Response {
    let uri = request.uri().clone();
    match AssertUnwindSafe(next.run(request)).catch_unwind().await {
        Ok(response) => response,
        Err(_) => {
            tracing::error!(request.id = id.0, path = uri.path(), "a handler panicked");
            say(Fault::Internal, &uri, &id)
        }
    }
}

/// Counts and times requests by route, never by path: ids would make a series each.
async fn measure(path: Option<MatchedPath>, request: Request, next: middleware::Next) -> Response {
    let route = path.as_ref().map_or("unknown", MatchedPath::as_str).to_owned();
    let started = Instant::now();
    let response = next.run(request).await;
    let status = response.status().as_u16().to_string();
    metrics::counter!("tenure_http_requests_total", "route" => route.clone(), "status" => status).increment(1);
    metrics::histogram!("tenure_http_request_seconds", "route" => route).record(started.elapsed());
    response
}

async fn security_headers(request: Request, next: middleware::Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    headers.entry("cache-control").or_insert(HeaderValue::from_static("no-store"));
    response
}

/// One recorder serves the whole process.
fn recorder() -> PrometheusHandle {
    static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();
    RECORDER
        .get_or_init(|| {
            let recorder = PrometheusBuilder::new().build_recorder();
            let handle = recorder.handle();
            if metrics::set_global_recorder(recorder).is_err() {
                tracing::warn!("another metrics recorder is installed; /metrics shows queue depths only");
            }
            handle
        })
        .clone()
}
