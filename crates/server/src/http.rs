//! Connections: accepted up to a cap, timed at every stage, drained at the end.

use std::future::Future;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::extract::{Extension, MatchedPath, Request};
use axum::handler::Handler;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use axum::routing::{MethodFilter, MethodRouter, on};
use axum::{Router, middleware};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tenure_engine::Engine;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower_http::cors::{AllowOrigin, CorsLayer};

use crate::access::Access;
use crate::api::whoami;
use crate::connection::{S3Face, Serving};
use crate::contracts::Contract;
use crate::error::{Fault, Thing};
use crate::front::Front;
use crate::live::Live;
use crate::memory::Memory;
use crate::per_address::{self, PerAddress};
use crate::request::RequestId;
use crate::state::{App, ServerConfig};
use crate::{access, contracts, limits};

/// Upper bounds of the buckets for durations of calls to workers. Those of workers are the same.
/// Of requests, batches and pushes.
const REQUEST_SECONDS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 20.0, 60.0];
/// Of tasks, which may wait and run for hours.
const TASK_SECONDS: [f64; 14] =
    [0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 86_400.0];
const MILLISECONDS: [f64; 12] = [1.0, 5.0, 10.0, 50.0, 100.0, 500.0, 1e3, 5e3, 1e4, 6e4, 3e5, 6e5];
const RPC_SECONDS: [f64; 12] = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 120.0, 600.0];

/// Where a server listens.
#[derive(Debug)]
pub struct Listeners {
    pub public: TcpListener,
    /// For the dispatch contract, which is then absent from the public one.
    pub internal: Option<TcpListener>,
    /// For the S3 endpoint. Without it, it is where the dispatch contract is.
    pub s3: Option<TcpListener>,
}

impl From<TcpListener> for Listeners {
    fn from(public: TcpListener) -> Self {
        Self { public, internal: None, s3: None }
    }
}

/// Serves until `shutdown` ends. Then no connection is accepted any more, long polls end, requests that were accepted
/// finish, and the engine is shut down.
///
/// The future is boxed so that all of it is compiled here, and not again by everyone who calls this.
pub fn run(
    listeners: impl Into<Listeners>,
    engine: Engine,
    config: ServerConfig,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> BoxFuture<'static, std::io::Result<()>> {
    serve(listeners.into(), engine, config, Box::pin(shutdown)).boxed()
}

async fn serve(
    listeners: Listeners,
    engine: Engine,
    config: ServerConfig,
    mut shutdown: BoxFuture<'static, ()>,
) -> std::io::Result<()> {
    let app = App::start(engine.clone(), &config, recorder()).await;
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    // Before the first connection is accepted. If the store cannot be asked, the server is not ready until it can.
    app.identity.revocations().refresh().await;
    app.identity.keep_fresh(&tasks, stop.clone());
    tasks.spawn(forget_idle(app.clone(), stop.clone()));
    let doors = Doors {
        connections: Arc::new(Semaphore::new(config.max_connections)),
        per_address: PerAddress::new(config.max_connections_per_address),
        access: config.access.clone(),
    };
    let front = Arc::new(Front::new(config.sandboxes.as_ref().map(|sandboxes| sandboxes.offer.clone())));
    let Listeners { public, internal, s3 } = listeners;
    let is_public = |contract| internal.is_none() || contract != Contract::Dispatch;
    let router_of = |routes| router(routes, app.clone());
    let counted = |service: &tenure_s3::Service| {
        let memory = Arc::clone(&app.memory);
        service.with_memory(move |org, bytes| Memory::taken(&memory, org, bytes).map(|room| Box::new(room) as Box<_>))
    };
    let face = config.s3.as_ref().map(|service| S3Face { service: counted(service), is_alone: false });
    let own_face = face.clone().filter(|_| s3.is_some()).map(|face| S3Face { is_alone: true, ..face });
    let face = face.filter(|_| s3.is_none());
    if let Some(service) = config.s3 {
        tasks.spawn(sweep_uploads(service, stop.clone()));
    }
    let serving = Serving {
        router: router_of(contracts::router(is_public)),
        tls: config.tls,
        graceful: Arc::default(),
        front,
        s3: face.clone().filter(|_| internal.is_none()),
        write_timeout: config.write_timeout,
    };
    let aside = |listener: TcpListener, routes: Router, s3: Option<S3Face>| {
        let inside = Serving { router: routes, front: Arc::new(Front::new(None)), s3, ..serving.clone() };
        tokio::spawn(accept_all(listener, inside, doors.clone()))
    };
    let mut accepting = Vec::new();
    if let Some(listener) = internal {
        let routes = contracts::router(|contract| contract == Contract::Dispatch).merge(whoami::keys());
        accepting.push(aside(listener, router_of(routes), face));
    }
    if let Some(listener) = s3 {
        accepting.push(aside(listener, Router::new(), own_face));
    }
    tokio::select! {
        () = accept_all(public, serving.clone(), doors.clone()) => {}
        () = &mut shutdown => {}
    }
    accepting.iter().for_each(tokio::task::JoinHandle::abort);
    tracing::info!("stopping: ending long polls, finishing accepted requests");
    engine.begin_shutdown();
    stop.cancel();
    if tokio::time::timeout(config.drain_timeout, serving.drain()).await.is_err() {
        tracing::warn!("some requests did not finish before the drain time-out");
    }
    tasks.close();
    tasks.wait().await;
    engine.shutdown().await;
    Ok(())
}

/// Removes parts of uploads that nobody completes, and what crashes have left.
async fn sweep_uploads(service: tenure_s3::Service, stop: CancellationToken) {
    let work = async {
        loop {
            service.sweep().await;
            tokio::time::sleep(limits::UPLOAD_SWEEP).await;
        }
    };
    stop.run_until_cancelled(work).await;
}

/// Forgets who has not called for a while.
async fn forget_idle(app: App, stop: CancellationToken) {
    let work = async {
        loop {
            let limit = app.access.get().rate_limit;
            tokio::time::sleep(limit.map_or(limits::RATE_CLEANUP, |limit| limit.cleanup_interval)).await;
            let idle = limit.map_or(limits::RATE_CLEANUP, |limit| limit.bucket_ttl);
            app.limiter.clean(idle, Instant::now());
            app.failures.clean(limits::RATE_CLEANUP * 2, Instant::now());
            app.credentials.clean(limits::RATE_CLEANUP * 2, Instant::now());
        }
    };
    stop.run_until_cancelled(work).await;
}

/// How many connections are let in.
#[derive(Clone)]
struct Doors {
    connections: Arc<Semaphore>,
    per_address: Arc<PerAddress>,
    access: Live<Access>,
}

impl Doors {
    /// Whether this address may have one more connection. Proxies speak for many.
    fn let_in(&self, peer: SocketAddr) -> Result<Option<per_address::Counted>, ()> {
        if access::address::is_within(peer.ip(), &self.access.get().trusted_proxies) {
            return Ok(None);
        }
        self.per_address.enter(peer.ip()).map(Some).ok_or(())
    }
}

async fn accept_all(listener: TcpListener, serving: Serving, doors: Doors) {
    loop {
        // Beyond the cap connections wait in the listener's backlog.
        let Some((stream, peer, permit)) = accept(&listener, &doors.connections).await else { continue };
        let Ok(counted) = doors.let_in(peer) else {
            metrics::counter!("tenure_connections_refused_total").increment(1);
            continue;
        };
        let serving = serving.clone();
        tokio::spawn(async move {
            serving.connection(stream, peer).await;
            drop((permit, counted));
        });
    }
}

async fn accept(
    listener: &TcpListener,
    connections: &Arc<Semaphore>,
) -> Option<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let permit = Arc::clone(connections).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, peer)) => {
            // Answers are small: waiting to fill a packet only delays them.
            let _ = stream.set_nodelay(true);
            metrics::counter!("tenure_connections_total").increment(1);
            Some((stream, peer, permit))
        }
        Err(error) => {
            tracing::warn!(%error, "cannot accept a connection");
            tokio::time::sleep(Duration::from_millis(50)).await;
            None
        }
    }
}

fn router(routes: Router<App>, app: App) -> Router {
    routes
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        // One layer made of three: each layer of a router is boxed, and copied with all that it holds for every request.
        .layer((
            middleware::from_fn(around),
            cors(app.clone()),
            middleware::from_fn_with_state(app.clone(), access::guard::guard),
        ))
        .with_state(app)
}

/// Browsers may call from the origins that the configuration names; by default from none.
fn cors(app: App) -> CorsLayer {
    let allowed = move |origin: &HeaderValue, _: &axum::http::request::Parts| {
        let access = app.access.get();
        access.cors_allowed_origins.iter().any(|allowed| allowed == "*" || allowed.as_bytes() == origin.as_bytes())
    };
    let headers = ["content-type", "x-api-key", "x-admin-api-key", "x-user-id", "x-tenant-id", "x-request-id"];
    CorsLayer::new()
        .allow_origin(AllowOrigin::predicate(allowed))
        .allow_methods([Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS])
        .allow_headers(
            headers.map(HeaderName::from_static).into_iter().chain([header::AUTHORIZATION]).collect::<Vec<_>>(),
        )
        .expose_headers(["x-request-id", "x-ratelimit-limit", "x-ratelimit-remaining"].map(HeaderName::from_static))
}

async fn unknown_path(Extension(contract): Extension<Contract>, Extension(id): Extension<RequestId>) -> Response {
    contract.refuse(Fault::NotFound(Thing::Path), &id)
}

/// A route for every method but those that nothing behind it should see, such as TRACE, which sends headers back.
pub fn any_method<H: Handler<T, App>, T: 'static>(handler: H) -> MethodRouter<App> {
    let methods =
        [MethodFilter::POST, MethodFilter::PUT, MethodFilter::PATCH, MethodFilter::DELETE, MethodFilter::OPTIONS];
    on(methods.into_iter().fold(MethodFilter::GET, MethodFilter::or), handler)
}

async fn wrong_method(Extension(contract): Extension<Contract>, Extension(id): Extension<RequestId>) -> Response {
    contract.refuse(Fault::MethodNotAllowed, &id)
}

/// What every request and every answer has: an id, a contract, protection from panics, a place in the metrics, and the
/// headers of each answer. One function, because each layer copies all layers inside it for every request.
async fn around(path: Option<MatchedPath>, mut request: Request, next: middleware::Next) -> Response {
    let started = Instant::now();
    let (id, contract) = (RequestId::of(request.headers()), Contract::of(request.uri().path()));
    let method = request.method().clone();
    request.extensions_mut().insert(id.clone());
    request.extensions_mut().insert(contract);
    let mut response = answer(request, next, contract, &id).await;
    let is_verbatim = response.extensions().get::<Verbatim>().is_some();
    let headers = response.headers_mut();
    contract.sign(headers);
    if !is_verbatim {
        secure(headers);
    }
    measure(path.as_ref(), response.status(), started, &method, &id);
    id.show(response.headers_mut());
    response
}

/// A panic fails its own request and no other. Not the layer of `tower-http`: the answer is in the words of the contract
/// and has the id of the request.
async fn answer(request: Request, next: middleware::Next, contract: Contract, id: &RequestId) -> Response {
    let path = request.uri().path().to_owned();
    match AssertUnwindSafe(next.run(request)).catch_unwind().await {
        Ok(response) => response,
        Err(_) => {
            tracing::error!(request.id = id.0, http.path = path, "handler panicked");
            contract.refuse(Fault::Internal, id)
        }
    }
}

/// Counts and times requests by route, never by path: ids would make a series each.
fn measure(path: Option<&MatchedPath>, status: StatusCode, started: Instant, method: &Method, id: &RequestId) {
    let route = path.map_or("unknown", MatchedPath::as_str).to_owned();
    if ACCESS_LOG.load(Ordering::Relaxed) {
        let duration_seconds = started.elapsed().as_secs_f64();
        tracing::info!(request.id = id.0, http.method = %method, http.route = route, http.status = status.as_u16(), duration_seconds, "request");
    }
    let status = status.as_u16().to_string();
    metrics::counter!("tenure_http_requests_total", "route" => route.clone(), "status" => status).increment(1);
    metrics::histogram!("tenure_http_request_seconds", "route" => route).record(started.elapsed());
}

/// In the extensions of an answer that is another's, and goes out as it is.
#[derive(Debug, Clone, Copy)]
pub struct Verbatim;

fn secure(headers: &mut HeaderMap) {
    if !headers.contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN) {
        headers.remove(header::ACCESS_CONTROL_EXPOSE_HEADERS);
    }
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-resource-policy", "same-origin"),
        ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
        ("cache-control", "no-store"),
    ] {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
}

/// Durations are histograms, so that those of several control planes can be added.
fn with_buckets() -> PrometheusBuilder {
    let full = |name: &str| Matcher::Full(name.to_owned());
    let buckets: [(Matcher, &[f64]); 5] = [
        (full("tenure_rpc_duration_seconds"), &RPC_SECONDS),
        (full("tenure_task_wait_seconds"), &TASK_SECONDS),
        (full("tenure_attempt_seconds"), &TASK_SECONDS),
        (Matcher::Suffix("_seconds".to_owned()), &REQUEST_SECONDS),
        (Matcher::Suffix("_milliseconds".to_owned()), &MILLISECONDS),
    ];
    buckets.into_iter().fold(PrometheusBuilder::new(), |builder, (matcher, values)| {
        builder.set_buckets_for_metric(matcher, values).unwrap_or_else(|_| PrometheusBuilder::new())
    })
}

static ACCESS_LOG: AtomicBool = AtomicBool::new(false);

/// Whether this process writes a line for each request, from now on.
pub fn log_access(on: bool) {
    ACCESS_LOG.store(on, Ordering::Relaxed);
}

/// One recorder serves the whole process.
fn recorder() -> PrometheusHandle {
    static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();
    RECORDER
        .get_or_init(|| {
            let recorder = with_buckets().build_recorder();
            let handle = recorder.handle();
            if metrics::set_global_recorder(recorder).is_err() {
                tracing::warn!("another metrics recorder is installed: /metrics shows queue counts only");
            }
            handle
        })
        .clone()
}
