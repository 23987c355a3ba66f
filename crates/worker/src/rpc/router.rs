//! Routes, and the way of a call through the checks.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Extension, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Json, Router};
use futures_util::FutureExt;
use jiff::Timestamp;
use sha2::{Digest, Sha256};
use tenure_auth::worker::Scopes;
use tenure_contract::duration;
use tenure_contract::worker_rpc::{Code, ERROR_HEADER, Health, Method, STREAM_HEADER};

use super::answer::{Answer, api_error};
use super::body::{self, ReadBody};
use super::budget::Reserved;
use super::call::{Action, Call};
use super::check;
use super::methods::within;
use super::refusal::Refusal;
use super::replay::{self, BodyHash, Claim, Kind, Ticket};
use super::request::{RequestId, text, with_request_id};
use super::state::Rpc;
use super::{files, proxy, snapshots, socket, stream};
use crate::node;

/// Larger bodies are parsed on a thread of their own.
const INLINE_BODY_BYTES: usize = 256 << 10;

pub(super) fn router(rpc: Arc<Rpc>) -> Router {
    let raw = Router::new()
        .route("/rpc/files", get(files::read).put(files::write).fallback(wrong_verb))
        .route("/rpc/exec/ws", get(socket::exec).fallback(wrong_verb))
        .route("/rpc/snapshots/{snapshot_id}", get(snapshots::get).put(snapshots::put).fallback(wrong_verb))
        .route("/rpc/proxy/{runtime_id}/{port}", any(proxy::forward))
        .route("/rpc/proxy/{runtime_id}/{port}/", any(proxy::forward))
        .route("/rpc/proxy/{runtime_id}/{port}/{*path}", any(proxy::forward))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&rpc), counted));
    Router::new()
        .route("/health", get(health).fallback(wrong_verb))
        .route("/rpc", post(call).fallback(wrong_verb))
        .merge(raw)
        .fallback(unknown_path)
        .layer(DefaultBodyLimit::disable())
        .layer(middleware::from_fn(catch_panics))
        .layer(middleware::from_fn(with_request_id))
        .with_state(rpc)
}

/// Counts requests on routes without an envelope, as calls are counted. The time is that until the answer begins.
async fn counted(State(rpc): State<Arc<Rpc>>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let method = raw_method(request.uri().path(), request.method());
    let response = next.run(request).await;
    let refused = response.headers().get(ERROR_HEADER).and_then(|code| code.to_str().ok());
    let outcome = match refused {
        Some(code) => code.to_owned(),
        // What a port answers is its own affair.
        None if method != "proxy" && response.status().is_client_error() => "BAD_REQUEST".to_owned(),
        None => "ok".to_owned(),
    };
    measure(&rpc, method, outcome, started);
    response
}

/// What a request on such a route is called in metrics.
fn raw_method(path: &str, verb: &axum::http::Method) -> &'static str {
    let is_read = *verb == axum::http::Method::GET;
    match path {
        "/rpc/files" if is_read => "files.read",
        "/rpc/files" => "files.write",
        "/rpc/exec/ws" => "exec.ws",
        path if path.starts_with("/rpc/snapshots/") && is_read => "snapshots.get",
        path if path.starts_with("/rpc/snapshots/") => "snapshots.put",
        _ => "proxy",
    }
}

fn measure(rpc: &Rpc, method: &'static str, outcome: String, started: Instant) {
    let worker = rpc.worker_id().to_owned();
    metrics::counter!("tenure_rpc_requests_total", "worker" => worker.clone(), "method" => method, "code" => outcome)
        .increment(1);
    metrics::histogram!("tenure_rpc_duration_seconds", "worker" => worker, "method" => method)
        .record(started.elapsed());
}

async fn health(State(rpc): State<Arc<Rpc>>) -> Json<Health> {
    Json(Health { status: "ok".to_owned(), worker_id: rpc.worker_id().to_owned() })
}

/// Check 1.
async fn wrong_verb() -> Response {
    api_error(StatusCode::METHOD_NOT_ALLOWED, "BAD_REQUEST", "method not allowed")
}

async fn unknown_path() -> Response {
    api_error(StatusCode::NOT_FOUND, "NOT_FOUND", "there is nothing at this path: calls go to POST /rpc")
}

/// A panic fails its own request and no other.
async fn catch_panics(Extension(id): Extension<RequestId>, request: Request, next: Next) -> Response {
    match AssertUnwindSafe(next.run(request)).catch_unwind().await {
        Ok(response) => response,
        Err(_) => {
            tracing::error!(request.id = id.0, "handler panicked");
            api_error(StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL_ERROR", "the worker failed: see its log")
        }
    }
}

/// What is known of a call for metrics and logs.
#[derive(Debug, Default)]
struct Seen {
    method: Option<Method>,
    sandbox_id: String,
}

/// `POST /rpc`.
async fn call(State(rpc): State<Arc<Rpc>>, Extension(id): Extension<RequestId>, request: Request) -> Response {
    let started = Instant::now();
    let (parts, body) = request.into_parts();
    let mut seen = Seen::default();
    let (outcome, response) = match rpc.serve(&parts.headers, body, &mut seen).await {
        Ok(answer) => (answer.outcome, answer.into_response()),
        Err(Short::Stream(response)) => ("ok", *response),
        Err(Short::Refused(answer)) => (answer.outcome, answer.into_response()),
    };
    let method = seen.method.map_or("unknown", Method::as_str);
    measure(&rpc, method, outcome.to_owned(), started);
    let status = response.status().as_u16();
    if outcome == Code::Internal.as_str() {
        tracing::warn!(request.id = id.0, rpc.method = method, sandbox.id = seen.sandbox_id, status, "call failed");
    } else {
        tracing::debug!(
            request.id = id.0,
            rpc.method = method,
            sandbox.id = seen.sandbox_id,
            status,
            outcome,
            "call answered"
        );
    }
    response
}

/// What ends a request before its call ends, or in place of an answer.
enum Short {
    Refused(Answer),
    Stream(Box<Response>),
}

impl Rpc {
    async fn serve(self: &Arc<Self>, headers: &HeaderMap, body: Body, seen: &mut Seen) -> Result<Answer, Short> {
        let refused = |id: &str, refusal: &Refusal| Short::Refused(Answer::refused(id, self.worker_id(), refusal));
        let early = |refusal: Refusal| refused("", &refusal);
        let scopes = self.caller(headers).map_err(early)?;
        let body = body::read(headers, body, &self.budget, &self.settings.times).await.map_err(early)?;
        let (id, call, reserved) = self.decode(body, scopes, seen).await;
        let call = call.map_err(|refusal| refused(&id, &refusal))?;
        seen.sandbox_id.clone_from(&call.target.sandbox_id);

        let is_stream = call.method == Method::ExecStream
            && text(headers, STREAM_HEADER).is_some_and(|wanted| wanted.trim().eq_ignore_ascii_case("ndjson"));
        let ticket = match self.claim(&call, is_stream).await {
            Ok(ticket) => ticket,
            Err(Ok(answer)) => return Ok(answer),
            Err(Err(refusal)) => return Err(refused(&id, &refusal)),
        };
        self.permit(&call).await.map_err(|refusal| refused(&id, &refusal))?;
        if is_stream {
            let response = self.stream(call).await.map_err(|refusal| refused(&id, &refusal))?;
            ticket.into_iter().for_each(Ticket::keep_stream);
            return Err(Short::Stream(Box::new(response)));
        }
        Ok(self.run(call, ticket, reserved).await)
    }

    /// Checks 3 to 8 on a body. The id is that of the request, as far as it could be read.
    async fn decode(
        self: &Arc<Self>,
        body: ReadBody,
        scopes: Scopes,
        seen: &mut Seen,
    ) -> (String, Result<Call, Refusal>, Reserved) {
        let ReadBody { bytes, mut reserved } = body;
        let rpc = Arc::clone(self);
        let decode = move || {
            let request = match check::envelope(&bytes) {
                Ok(request) => request,
                Err(refusal) => return (String::new(), None, Err(refusal)),
            };
            let (id, method) = (request.id.trim().chars().take(512).collect(), Method::parse(request.method.trim()));
            let hash: BodyHash = Sha256::digest(&bytes).into();
            (id, method, rpc.call(request, scopes, bytes.len(), hash))
        };
        let (id, method, call) = if body_is_large(&reserved) {
            match tokio::task::spawn_blocking(decode).await {
                Ok(decoded) => decoded,
                Err(_) => (String::new(), None, Err(Refusal::call(Code::Internal, "the request was not decoded"))),
            }
        } else {
            decode()
        };
        seen.method = method;
        let kept = match &call {
            Ok(Call { action: Action::FileWrite { content, .. }, .. }) => content.len(),
            _ => 0,
        };
        reserved.shrink_to(kept);
        (id, call, reserved)
    }

    /// Check 9. A ticket to run the call, if its answer can be repeated; else the answer, or why there is none.
    async fn claim(self: &Arc<Self>, call: &Call, is_stream: bool) -> Result<Option<Ticket>, Result<Answer, Refusal>> {
        if !call.is_replayable() {
            return Ok(None);
        }
        let kind = match call.method {
            _ if is_stream => Kind::Stream,
            method if method.is_read_only() => Kind::ReadOnly,
            _ => Kind::Mutating,
        };
        match self.replay.claim(&call.id, call.hash, kind).await {
            Claim::Run(ticket) => Ok(Some(ticket)),
            Claim::RunUnkept => Ok(None),
            Claim::Repeat(answer) => Err(Ok(answer)),
            Claim::Conflict => {
                Err(Err(Refusal::invalid("the request id was used for another request or for a stream: use a new one")
                    .with_status(StatusCode::CONFLICT)))
            }
            Claim::Full => Err(Err(Refusal::call(
                Code::ProviderUnavailable,
                "this worker keeps as many answers as it may: try again later",
            ))),
        }
    }

    /// Runs a call. One whose answer can be repeated goes on when its caller is lost: the caller may ask again.
    async fn run(self: &Arc<Self>, call: Call, ticket: Option<Ticket>, reserved: Reserved) -> Answer {
        let Some(ticket) = ticket else { return self.execute(call).await };
        if call.method.is_read_only() {
            let answer = self.execute(call).await;
            ticket.finish(&answer);
            return answer;
        }
        let rpc = Arc::clone(self);
        let id = call.id.clone();
        let running = tokio::spawn(async move {
            let (id, method, hash) = (call.id.clone(), call.method, call.hash);
            let answer = rpc.execute(call).await;
            if answer.executed && matches!(method, Method::Spawn | Method::Destroy) {
                rpc.keep_on_disk(id, &hash, &answer);
            }
            ticket.finish(&answer);
            drop(reserved);
            answer
        });
        running.await.unwrap_or_else(|_| {
            tracing::error!(request.id = id, "a call panicked");
            Answer::refused(&id, self.worker_id(), &Refusal::call(Code::Internal, "the worker failed: see its log"))
        })
    }

    /// So that a repeated request also gets it after a restart.
    fn keep_on_disk(&self, request_id: String, hash: &BodyHash, answer: &Answer) {
        self.node.holdings().keep_answer(node::Answer {
            request_id,
            body_sha256: replay::hex(hash),
            status: answer.status.as_u16(),
            body: String::from_utf8_lossy(&answer.body).into_owned(),
            answered_at: Timestamp::now(),
        });
    }

    async fn stream(&self, call: Call) -> Result<Response, Refusal> {
        let held = self.held(call.lease.as_ref(), &call.target).await?;
        let Action::Exec(command) = call.action else { return Err(Refusal::invalid("not a command")) };
        let timeout = command.timeout.map(duration::canonical).unwrap_or_default();
        let starting = held.provider.exec(&held.runtime_id, command);
        let execution = within(self.settings.times.call, "the start of the command", starting).await?;
        let execution = execution.map_err(|error| stream::failed(error, &timeout))?;
        Ok(stream::response(&call.id, self.worker_id(), execution, timeout, &self.settings.times))
    }
}

/// Twice its size is reserved for a body.
fn body_is_large(reserved: &Reserved) -> bool {
    reserved.bytes() > 2 * INLINE_BODY_BYTES
}
