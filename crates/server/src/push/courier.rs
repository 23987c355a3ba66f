//! Tasks that are pushed over HTTP: what is posted, and what the exchange comes to.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tenure_core::queue::{Push, QueueSettings};
use tenure_core::time::Timestamp;
use tenure_engine::delivery::{Courier, Handover, Outcome, Parcel};
use tenure_outbound::header::{
    AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST, HeaderMap, HeaderName,
    HeaderValue, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use tenure_outbound::{Bytes, Method, OutboundError, Request};

use super::answer::Verdict;
use super::envelope::{self, Around};
use super::targets::{PushTargets, Route};
use crate::access::guard::unix_now;
use crate::identity::task_keys::SharedTaskKeys;
use crate::live::Live;
use crate::request::new_request_id;

const DISPATCH_ID: HeaderName = HeaderName::from_static("x-tenure-dispatch-id");
const DELIVERY_COUNT: HeaderName = HeaderName::from_static("x-tenure-delivery-count");
const CONTRACT: HeaderName = HeaderName::from_static("x-tenure-contract");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Posts tasks to workers of the callback contract.
#[derive(Debug)]
pub struct HttpCourier {
    targets: Live<PushTargets>,
    keys: Arc<SharedTaskKeys>,
}

impl HttpCourier {
    pub fn new(targets: Live<PushTargets>, keys: Arc<SharedTaskKeys>) -> Self {
        Self { targets, keys }
    }

    async fn post(&self, parcel: Parcel) -> Handover {
        if parcel.body.spec.sandbox {
            // The queue was changed between the grant and this delivery. A worker would run the task without a sandbox.
            return Outcome::Withheld.into();
        }
        let targets = self.targets.get();
        let (queue, push) = (Arc::clone(&parcel.queue), Arc::clone(&parcel.push));
        let letter = targets.route(&push).and_then(|route| Ok((self.letter(&route, &parcel)?, route)));
        let (letter, route) = match letter {
            Ok(letter) => letter,
            Err(why) => {
                tracing::error!(queue.name = %queue, task.id = %parcel.grant.task, reason = why, "cannot push a task");
                return Outcome::Withheld.into();
            }
        };
        let longest = parcel.longest();
        // The exchange may last as long as the attempt; the task need not be kept for so long.
        drop(parcel);
        send(&route, &push, letter, longest).await
    }

    fn letter(&self, route: &Route<'_>, parcel: &Parcel) -> Result<Letter, String> {
        let Parcel { queue, push, grant, body } = parcel;
        let (token, expires_s) =
            envelope::token(&self.keys.get(), grant, body, push, unix_now()).map_err(|error| error.to_string())?;
        let token_expires_at = Timestamp::from_millis(expires_s.saturating_mul(1000));
        let around = Around { queue, base_url: route.base_url, token: &token, token_expires_at };
        let envelope = envelope::envelope(grant, body, &around);
        let request_id = new_request_id();
        let traceparent = envelope.traceparent.as_deref();
        let headers = headers(route, &envelope.dispatch_id, parcel.number(), &request_id, traceparent);
        let body = serde_json::to_vec(&envelope).map_err(|error| error.to_string())?.into();
        Ok(Letter { delivery_id: envelope.dispatch_id, request_id, headers, body })
    }
}

impl Courier for HttpCourier {
    fn serves(&self, settings: &QueueSettings) -> bool {
        settings.push.is_some() && settings.dispatch.is_none() && !settings.runs_sandboxes()
    }

    fn check(&self, push: &Push) -> Result<(), String> {
        self.targets.get().route(push).map(drop)
    }

    fn deliver(&self, parcel: Parcel) -> BoxFuture<'_, Handover> {
        self.post(parcel).boxed()
    }
}

/// What one push sends.
#[derive(Debug)]
struct Letter {
    delivery_id: String,
    request_id: String,
    headers: HeaderMap,
    body: Bytes,
}

/// Whether a push says something else in this header.
pub fn is_taken(name: &HeaderName) -> bool {
    let own = [CONTENT_TYPE, DISPATCH_ID, DELIVERY_COUNT, CONTRACT, REQUEST_ID, TRACEPARENT, super::test::TEST];
    let of_http = [CONTENT_LENGTH, CONTENT_ENCODING, TRANSFER_ENCODING, HOST, CONNECTION, UPGRADE, TE, TRAILER, EXPECT];
    own.contains(name) || of_http.contains(name)
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
    for name in &route.secret_headers {
        let name = HeaderName::from_bytes(name.as_bytes());
        let (Some(secret), Ok(name)) = (route.secret, name) else { continue };
        let value =
            if name == AUTHORIZATION { format!("Bearer {}", secret.reveal()) } else { secret.reveal().to_owned() };
        if let Ok(mut value) = HeaderValue::from_str(&value) {
            value.set_sensitive(true);
            headers.insert(name, value);
        }
    }
    let texts = [(DISPATCH_ID, Some(dispatch_id)), (REQUEST_ID, Some(request_id)), (TRACEPARENT, traceparent)];
    for (name, text) in texts {
        if let Some(value) = text.and_then(|text| HeaderValue::from_str(text).ok()) {
            headers.insert(name, value);
        }
    }
    headers
}

/// Posts the letter. `longest` is how long the exchange can last: a worker may execute inside of it.
async fn send(route: &Route<'_>, push: &Push, letter: Letter, longest: Duration) -> Handover {
    let Letter { delivery_id, request_id, headers, body } = letter;
    let mut request = Request::new(Method::POST, &push.url, longest);
    (request.headers, request.body) = (headers, body);
    let origin = route.target.to_string();
    match route.client.open(request).await {
        Ok(answer) => {
            tracing::debug!(
                delivery.id = delivery_id,
                request.id = request_id,
                target.origin = origin,
                status = answer.status.as_u16(),
                "push answered"
            );
            let outcome = Verdict::of(answer.status, &answer.headers).outcome(answer.status, &origin);
            Handover { outcome, rest: Some(answer.drain().boxed()) }
        }
        Err(OutboundError::Refused(refused)) => {
            tracing::error!(delivery.id = delivery_id, target.origin = origin, reason = %refused, "push blocked by the outbound rules");
            Outcome::Withheld.into()
        }
        Err(error) => {
            tracing::debug!(delivery.id = delivery_id, request.id = request_id, target.origin = origin, %error,
                "push failed");
            if !matches!(error, OutboundError::Unresolved { .. } | OutboundError::Connect { .. }) {
                // The worker may have it.
                return Outcome::Failed.into();
            }
            Outcome::Unreachable { why: format!("the worker at {origin} cannot be reached: {error}").into() }.into()
        }
    }
}
