//! The side that is pushed to.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use tenure_contract::callback::TaskEnvelope;
use tokio::sync::oneshot;
use tracing::Instrument;

use super::SECRET_HEADER;
use super::attempt::{Admitted, Attempt, Start};
use super::calls::Calls;
use super::error::CallError;
use super::seen::{Admission, Seen};
use super::worker::Options;
use crate::http;
use crate::worker::closing::Closing;
use crate::worker::error::WorkerError;
use crate::worker::lock;
use crate::worker::pulse::Pulse;

/// An envelope: a payload of 1 MiB, as much of progress, and what surrounds them.
const ENVELOPE_BYTES: usize = 4 << 20;
/// How long it may take to come.
const ENVELOPE_WAIT: Duration = Duration::from_secs(30);
/// Ids of dispatches are remembered by the thousand.
const DISPATCH_ID_BYTES: usize = 128;
/// How long the answer to a dispatch waits for `started`, so that it can say what became of it.
const START_WAIT: Duration = Duration::from_secs(5);

/// What all parts of a running worker share.
pub(crate) struct Site {
    pub(crate) options: Options,
    pub(crate) worker_id: String,
    pub(crate) pulse: Arc<Pulse<Calls>>,
    /// Its connections belong to the runtime of the heartbeat thread.
    http: reqwest::Client,
    pub(crate) seen: Mutex<Seen>,
    pub(crate) closing: Closing,
    draining: AtomicBool,
}

impl Site {
    /// Makes a call on the heartbeat thread.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        call: impl Future<Output = Result<T, CallError>> + Send + 'static,
    ) -> Result<T, CallError> {
        let gone = || Err(CallError::Expired { reason: "the heartbeat thread ended".to_owned() });
        self.pulse.run(call).await.unwrap_or_else(gone)
    }
}

/// A worker that is ready to be pushed to. Clones are the same worker.
#[derive(Clone)]
pub struct Service {
    site: Arc<Site>,
}

impl Service {
    pub(crate) fn start(
        options: Options,
        roots: Option<Vec<reqwest::Certificate>>,
        worker_id: String,
    ) -> Result<Self, WorkerError> {
        let http = http::new_client(roots).map_err(WorkerError::Setup)?;
        let pulse = Arc::new(Pulse::start()?);
        tracing::info!(worker.id = worker_id, "worker started");
        let seen = Mutex::new(Seen::new(options.remember));
        let closing = Closing::new(options.drain_timeout, options.stop_grace);
        let site = Site { options, worker_id, pulse, http, seen, closing, draining: AtomicBool::new(false) };
        Ok(Self { site: Arc::new(site) })
    }

    /// The id under which this process reports.
    pub fn worker_id(&self) -> &str {
        &self.site.worker_id
    }

    /// How many attempts are in flight.
    pub fn in_flight(&self) -> usize {
        lock(&self.site.seen).in_flight()
    }

    /// The route that tasks are pushed to, to be merged into a service of one's own.
    ///
    /// Handlers run in the runtime that serves the router.
    pub fn router(&self) -> Router {
        Router::new().route(&self.site.options.path, post(dispatch)).with_state(Arc::clone(&self.site))
    }

    /// Takes nothing more, lets tasks finish, reports. What does not end in time is told to stop, then given up.
    pub async fn drain(&self) -> Result<(), WorkerError> {
        self.site.draining.store(true, Ordering::SeqCst);
        self.site.closing.close(&self.site.pulse.registry).await
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("worker_id", &self.site.worker_id).finish_non_exhaustive()
    }
}

/// What a dispatch is answered with, other than that it was taken.
struct Refused {
    status: StatusCode,
    error: &'static str,
    message: String,
}

impl Refused {
    fn new(status: StatusCode, error: &'static str, message: impl Into<String>) -> Self {
        Self { status, error, message: message.into() }
    }

    /// To be pushed again soon.
    fn later(error: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, error, message)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let body = serde_json::json!({"error": self.error, "message": self.message}).to_string();
        let mut response = (self.status, [(header::CONTENT_TYPE, "application/json")], body).into_response();
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

async fn dispatch(State(site): State<Arc<Site>>, headers: HeaderMap, body: Body) -> Response {
    match take(site, &headers, body).await {
        Ok(status) => status.into_response(),
        Err(refused) => {
            tracing::warn!(status = refused.status.as_u16(), error = refused.error, "dispatch refused");
            refused.into_response()
        }
    }
}

async fn take(site: Arc<Site>, headers: &HeaderMap, body: Body) -> Result<StatusCode, Refused> {
    if !site.options.gate.admits_secret(headers.get(SECRET_HEADER).map(HeaderValue::as_bytes)) {
        return Err(Refused::new(StatusCode::UNAUTHORIZED, "wrong_secret", "the dispatch secret is missing or wrong"));
    }
    let envelope = read(body).await?;
    // Counts as running from here on, so that a drain that begins now waits for it.
    let entered = site.closing.running.token();
    let attempt = admit(site, envelope)?;
    let site = Arc::clone(&attempt.site);
    let span = tracing::info_span!(
        "task",
        task.id = %attempt.envelope.task_id,
        run.id = %attempt.envelope.run_id,
        attempt.number = attempt.envelope.attempt,
        lease.fence = attempt.envelope.fence,
        delivery.id = %attempt.envelope.dispatch_id
    );
    let (tell, told) = oneshot::channel();
    site.closing.running.spawn(attempt.run(tell).instrument(span));
    drop(entered);
    match tokio::time::timeout(START_WAIT, told).await {
        // No answer yet: the attempt goes on trying, and what was pushed is in good hands.
        Ok(Ok(Start::Acknowledged)) | Err(_) => Ok(StatusCode::ACCEPTED),
        // Nothing is left to be done, and another push would change nothing.
        Ok(Ok(Start::Refused(refusal))) if matches!(refusal.status(), 404 | 409 | 410) => Ok(StatusCode::OK),
        // A token that is not good: the next push brings a fresh one.
        Ok(Ok(Start::Refused(refusal))) => {
            Err(Refused::new(StatusCode::BAD_GATEWAY, "start_refused", format!("started was refused: {refusal}")))
        }
        Ok(Ok(Start::Unanswered) | Err(_)) => {
            Err(Refused::new(StatusCode::BAD_GATEWAY, "start_unanswered", "started was not answered"))
        }
    }
}

async fn read(body: Body) -> Result<TaskEnvelope, Refused> {
    let reading = tokio::time::timeout(ENVELOPE_WAIT, axum::body::to_bytes(body, ENVELOPE_BYTES));
    let bytes = reading
        .await
        .map_err(|_| Refused::new(StatusCode::REQUEST_TIMEOUT, "too_slow", "the envelope did not come in time"))?
        .map_err(|_| malformed(format!("the envelope could not be read, or has more than {ENVELOPE_BYTES} bytes")))?;
    serde_json::from_slice(&bytes).map_err(|error| malformed(format!("not an envelope: {error}")))
}

fn malformed(message: String) -> Refused {
    Refused::new(StatusCode::BAD_REQUEST, "malformed_envelope", message)
}

/// Takes an attempt in, if it is for this worker, is not known, and there is room.
fn admit(site: Arc<Site>, envelope: TaskEnvelope) -> Result<Attempt, Refused> {
    let forbidden = |error, message: &str| Err(Refused::new(StatusCode::FORBIDDEN, error, message));
    if !site.options.gate.admits_scope(&envelope.tenant_id, &envelope.workspace_id) {
        return forbidden("foreign_scope", "this worker does not work for that tenant and workspace");
    }
    let Some(base) = site.options.gate.callback_url(&envelope.callback_base_url) else {
        return forbidden("foreign_callback_url", "this worker does not report to that callbackBaseUrl");
    };
    if envelope.dispatch_id.is_empty() || envelope.dispatch_id.len() > DISPATCH_ID_BYTES {
        return Err(malformed(format!("dispatchId must have from 1 to {DISPATCH_ID_BYTES} bytes")));
    }
    let calls = Calls::new(site.http.clone(), base, &site.worker_id, &envelope).map_err(malformed)?;
    if site.draining.load(Ordering::SeqCst) || !site.pulse.is_alive() {
        return Err(Refused::later("shutting_down", "this worker is shutting down"));
    }
    let admission = lock(&site.seen).admit(&envelope.dispatch_id, site.options.concurrency);
    match admission {
        Admission::New => {}
        Admission::InFlight => return Err(Refused::later("in_flight", "this dispatch is being worked on")),
        Admission::Full => return Err(Refused::later("busy", "this worker is busy")),
        Admission::Finished => {
            return Err(Refused::new(StatusCode::CONFLICT, "duplicate", "this dispatch was worked on"));
        }
    }
    let dispatch_id = envelope.dispatch_id.clone();
    let admitted = Admitted { site: Arc::clone(&site), dispatch_id, finished: false };
    Ok(Attempt { site, envelope, calls: Arc::new(calls), admitted })
}
