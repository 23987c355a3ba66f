//! One push: the envelope goes out, and what comes back is told to the engine.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_core::command::claim::Grant;
use tenure_core::command::push::{PushOutcome, Pushed};
use tenure_core::command::{Answer, Command, Reach};
use tenure_core::queue::Push;
use tenure_core::task::Body;
use tenure_core::time::{DurationMs, Timestamp};
use tenure_engine::store::AttemptView;
use tenure_outbound::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use tenure_outbound::{Bytes, Method, Opened, OutboundError, Request};
use tokio::sync::OwnedSemaphorePermit;

use super::answer::{Health, Verdict};
use super::circuit::{Name, Probe};
use super::dispatcher::{Lane, Pusher};
use super::envelope::{self, Around};
use super::targets::Route;
use crate::access::guard::unix_now;
use crate::request::new_request_id;

pub const SECRET: HeaderName = HeaderName::from_static("x-tenure-dispatch-secret");
pub const DISPATCH_ID: HeaderName = HeaderName::from_static("x-tenure-dispatch-id");
pub const DELIVERY_COUNT: HeaderName = HeaderName::from_static("x-tenure-delivery-count");
pub const CONTRACT: HeaderName = HeaderName::from_static("x-tenure-contract");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// When the control plane stops, an answer that is on its way may still come.
const LAST_WAIT: Duration = Duration::from_secs(2);
/// How often an exchange that outlives its acknowledgement is looked after.
const HELD_LOOK: Duration = Duration::from_secs(15);

/// What one push sends.
#[derive(Debug)]
struct Letter {
    headers: HeaderMap,
    body: Bytes,
}

/// What one push is known by in logs.
#[derive(Debug)]
struct Mark {
    dispatch_id: String,
    request_id: String,
}

/// The headers that every push has. A secret is marked as one: it is never logged, nor kept in tables of HTTP/2.
pub fn headers(
    route: &Route<'_>,
    dispatch_id: &str,
    deliveries: u32,
    request_id: &str,
    traceparent: Option<&str>,
) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CONTRACT, HeaderValue::from_static("callback/1"));
    headers.insert(DELIVERY_COUNT, deliveries.into());
    let secret = route.secret.and_then(|secret| HeaderValue::from_str(secret.reveal()).ok());
    if let Some(mut secret) = secret {
        secret.set_sensitive(true);
        headers.insert(SECRET, secret);
    }
    let texts = [(DISPATCH_ID, Some(dispatch_id)), (REQUEST_ID, Some(request_id)), (TRACEPARENT, traceparent)];
    for (name, text) in texts {
        if let Some(value) = text.and_then(|text| HeaderValue::from_str(text).ok()) {
            headers.insert(name, value);
        }
    }
    headers
}

/// How a push ended.
#[derive(Debug)]
enum End {
    /// The worker answered, or there was no way to it.
    Told { outcome: PushOutcome, health: Health, word: &'static str, rest: Option<Box<Opened>> },
    /// Neither an answer nor a start in time.
    Silent,
    /// The control plane stops; others repeat it.
    Stopped,
}

impl Pusher {
    pub(super) async fn push(
        self: Arc<Self>,
        lane: Arc<Lane>,
        mut grant: Grant,
        slot: OwnedSemaphorePermit,
        probe: Option<Probe>,
    ) {
        let queue = lane.queue();
        let (Some(push), Some(body)) = (queue.settings.push.clone(), grant.body.take()) else { return };
        let targets = self.targets.get();
        let route = match targets.route(&push) {
            Ok(route) => route,
            // The loop of the queue says it; the push is repeated when the time has come.
            Err(why) => return tracing::debug!(queue.name = %queue.name, reason = why, "cannot push a task"),
        };
        let (mark, letter) = match self.letter(&route, &queue.name, &grant, &body, &push) {
            Ok(letter) => letter,
            Err(why) => return tracing::error!(queue.name = %queue.name, reason = why, "cannot build an envelope"),
        };
        let origin: Arc<str> = route.target.to_string().into();
        let started = Instant::now();
        let longest = body.spec.timeout_ms().saturating_add(push.dispatch_timeout_ms);
        // The exchange may last as long as the attempt; what was sent need not be kept for so long.
        drop(body);
        let mut exchange = pin!(send(&route, &push, letter, millis(longest)));
        let ack = millis(push.ack_timeout_ms);
        let stopped = async {
            self.stop.cancelled().await;
            tokio::time::sleep(LAST_WAIT).await;
        };
        let end = tokio::select! {
            end = &mut exchange => end,
            () = tokio::time::sleep(ack) => End::Silent,
            () = stopped => End::Stopped,
        };
        let (outcome, health, word, rest) = match end {
            End::Stopped => return,
            End::Told { outcome, health, word, rest } => (outcome, health, word, rest),
            End::Silent => (PushOutcome::Again { after_ms: None }, Health::Down, "silent", None),
        };
        let silent = word == "silent";
        let repeats = matches!(outcome, PushOutcome::Again { .. });
        let rejected = matches!(outcome, PushOutcome::Rejected { .. });
        let accepted = !repeats && !rejected;
        let counted = self.tell(&grant, outcome).await;
        // A worker that has taken the attempt up is well, whatever became of the exchange. An attempt can also be over
        // because nobody did.
        let taken_up = !counted && (health == Health::Alive || self.was_taken_up(&grant).await);
        let (health, word) = if taken_up { (Health::Alive, "started") } else { (health, word) };
        match probe {
            Some(probe) => probe.report(health, Instant::now()),
            None => self.circuits.report(&Name::of(&queue.name, &push), health, Instant::now()),
        }
        metrics::counter!("tenure_pushes_total", "outcome" => word).increment(1);
        metrics::histogram!("tenure_push_seconds").record(started.elapsed());
        let deliveries = deliveries(&grant);
        tracing::debug!(queue.name = %queue.name, task.id = %grant.task, dispatch.id = mark.dispatch_id,
            request.id = mark.request_id, deliveries, outcome = word, target.origin = %origin, "pushed");
        if rejected && counted {
            tracing::warn!(queue.name = %queue.name, task.id = %grant.task, target.origin = %origin,
                "the worker rejected a task: the attempt failed");
        }
        drop(slot);
        if counted && repeats {
            self.again.notify_one();
        }
        // A worker may execute inside the request, before its answer or while it answers: to drop it could end what runs.
        match rest {
            Some(rest) if accepted || taken_up => self.hold(&grant, pin!(rest.drain())).await,
            None if silent && taken_up => self.hold(&grant, exchange).await,
            _ => {}
        }
    }

    fn letter(
        &self,
        route: &Route<'_>,
        queue: &str,
        grant: &Grant,
        body: &Body,
        push: &Push,
    ) -> Result<(Mark, Letter), String> {
        let (token, expires_s) =
            envelope::token(&self.keys.get(), grant, body, push, unix_now()).map_err(|error| error.to_string())?;
        let token_expires_at = Timestamp::from_millis(expires_s.saturating_mul(1000));
        let around = Around { queue, base_url: route.base_url, token: &token, token_expires_at };
        let envelope = envelope::envelope(grant, body, &around);
        let request_id = new_request_id();
        let headers =
            headers(route, &envelope.dispatch_id, deliveries(grant), &request_id, envelope.traceparent.as_deref());
        let body = serde_json::to_vec(&envelope).map_err(|error| error.to_string())?.into();
        Ok((Mark { dispatch_id: envelope.dispatch_id, request_id }, Letter { headers, body }))
    }

    /// Gives whether it counted: not if the attempt has started or ended meanwhile, or if another push of it is on its way.
    async fn tell(&self, grant: &Grant, outcome: PushOutcome) -> bool {
        let (row, attempt_id, delivery) = (grant.seq(), grant.attempt_id, deliveries(grant));
        let command = Command::Pushed(Pushed { row, attempt_id, delivery, outcome });
        match self.engine.one(command, 0).await {
            Ok(Ok(Answer::Done(counted))) => counted,
            Ok(_) => false,
            Err(error) => {
                // It is repeated when the time of this push is over.
                tracing::warn!(task.id = %grant.task, %error, "cannot record the outcome of a push");
                true
            }
        }
    }

    /// Whether a worker has started the attempt, or has ended it.
    async fn was_taken_up(&self, grant: &Grant) -> bool {
        if let Ok(Some(running)) = self.engine.store().in_flight(grant.task).await
            && running.attempt_id == grant.attempt_id
        {
            return running.started_at().is_some();
        }
        let attempts = self.engine.attempts(grant.task, &Reach::All).await;
        attempts.ok().flatten().unwrap_or_default().iter().any(|attempt| match attempt {
            AttemptView::Open(running) => running.attempt_id == grant.attempt_id && running.started_at().is_some(),
            AttemptView::Closed(closed) => closed.id == grant.attempt_id && closed.worker.is_some(),
        })
    }

    /// Keeps an exchange open as long as its attempt is.
    async fn hold<T>(&self, grant: &Grant, mut exchange: Pin<&mut impl Future<Output = T>>) {
        loop {
            tokio::select! {
                _ = &mut exchange => return,
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(HELD_LOOK) => {}
            }
            match self.engine.store().in_flight(grant.task).await {
                Ok(Some(running)) if running.attempt_id == grant.attempt_id => {}
                Ok(_) => return,
                Err(_) => {}
            }
        }
    }
}

/// Which push of its attempt this is.
fn deliveries(grant: &Grant) -> u32 {
    grant.delivery.as_ref().map_or(1, |delivery| delivery.deliveries)
}

/// Posts the letter. `longest` is the time of the longest exchange: a worker may execute inside of it.
async fn send(route: &Route<'_>, push: &Push, letter: Letter, longest: Duration) -> End {
    let mut request = Request::new(Method::POST, &push.url, longest);
    (request.headers, request.body) = (letter.headers, letter.body);
    let sent = route.client.open(request).await;
    let origin = route.target.to_string();
    match sent {
        Ok(answer) => {
            let verdict = Verdict::of(answer.status, &answer.headers);
            let outcome = verdict.outcome(answer.status, &origin);
            End::Told {
                outcome,
                health: verdict.health(answer.status),
                word: verdict.word(),
                rest: Some(Box::new(answer)),
            }
        }
        Err(error) => {
            let word = match &error {
                OutboundError::Refused(refused) => {
                    tracing::error!(target.origin = origin, reason = %refused, "push blocked by the outbound rules");
                    "refused"
                }
                _ => "unreachable",
            };
            tracing::debug!(target.origin = origin, %error, "push failed");
            End::Told { outcome: PushOutcome::Again { after_ms: None }, health: Health::Down, word, rest: None }
        }
    }
}

fn millis(ms: DurationMs) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}
