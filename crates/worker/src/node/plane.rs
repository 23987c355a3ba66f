//! Calls to the control plane.

use std::time::Duration;

use jiff::Timestamp;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tenure_client::{CallAnswer, WorkerCalls, WorkerError};
use tenure_contract::duration;

use super::clock::Moment;
use super::error::NodeError;
use super::lease::{Lease, LeaseRefusal};

const ANSWER_BYTES: usize = 4 << 20;

/// The way to the control plane.
#[derive(Debug)]
pub struct Plane {
    calls: WorkerCalls,
    timeout: Duration,
}

/// Why a call had no success.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlaneError {
    /// No answer, or one that says nothing about the call.
    #[error("{reason}")]
    Unanswered { reason: String, retry_after: Option<Duration> },
    #[error("the control plane answered {status} {code}: {message}")]
    Refused { status: u16, code: String, message: String, reason: Option<String> },
}

/// A renewed lease.
#[derive(Debug)]
pub(crate) struct Renewed {
    pub(crate) lease: Lease,
    /// Measured from when the request was sent, so it never is too late.
    pub(crate) held_until: Moment,
    pub(crate) sandbox_expires: Option<(Moment, Timestamp)>,
}

#[derive(Deserialize)]
struct RenewReply {
    lease: WireLease,
    sandbox_expires_at: Option<Timestamp>,
}

#[derive(Deserialize)]
struct WireLease {
    #[serde(default)]
    resource_id: String,
    #[serde(default)]
    holder_id: String,
    generation: i64,
    expires_at: Timestamp,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Refusal {
    code: Option<String>,
    error: Option<String>,
    message: Option<String>,
    reason: Option<String>,
}

impl Plane {
    pub fn new(calls: WorkerCalls, timeout: Duration) -> Self {
        Self { calls, timeout }
    }

    /// Keeps a token fresh that is issued for a bootstrap key. See [`WorkerCalls::keep_token`].
    pub(crate) async fn keep_token(&self) -> WorkerError {
        self.calls.keep_token().await
    }

    pub(crate) async fn renew(&self, worker_id: &str, resource_id: &str, ttl: Duration) -> Result<Renewed, PlaneError> {
        #[derive(Serialize)]
        struct Body {
            ttl: String,
        }
        let (sent, sent_at) = (Moment::now(), Timestamp::now());
        let path = ["api", "v1", "worker", worker_id, "leases", resource_id, "renew"];
        let answer = self.post(&path, &Body { ttl: duration::canonical(ttl) }).await?;
        let date = answer.date;
        let reply: RenewReply = read(answer)?;
        let WireLease { resource_id: resource, holder_id, generation, expires_at } = reply.lease;
        if (!resource.is_empty() && resource != resource_id) || (!holder_id.is_empty() && holder_id != worker_id) {
            let reason = format!("the answer renews {resource:?} for {holder_id:?}");
            return Err(PlaneError::Unanswered { reason, retry_after: None });
        }
        // By the clock that `expires_at` is of, if the answer tells it. Its seconds are whole, and the true time is later.
        let left = |until: Timestamp| match date {
            Some(date) => duration_from(date, until).saturating_sub(Duration::from_secs(1)),
            None => duration_from(sent_at, until),
        };
        let granted = match duration_from(date.unwrap_or(sent_at), expires_at) {
            granted if granted >= ttl => ttl,
            _ => left(expires_at),
        };
        Ok(Renewed {
            held_until: sent.after(granted),
            sandbox_expires: reply.sandbox_expires_at.map(|at| {
                let asked_at = date.unwrap_or(sent_at);
                // A time that has passed stays where it is: the grace after it does not begin anew with every renewal.
                (sent.after(duration_from(asked_at, at)).before(duration_from(at, asked_at)), at)
            }),
            lease: Lease {
                resource_id: resource_id.to_owned(),
                holder_id: worker_id.to_owned(),
                generation,
                expires_at,
            },
        })
    }

    /// Posts a heartbeat, and returns the answer with its `Date`.
    pub(crate) async fn heartbeat<T: DeserializeOwned>(
        &self,
        worker_id: &str,
        body: &impl Serialize,
    ) -> Result<(T, Option<Timestamp>), PlaneError> {
        let answer = self.post(&["api", "v1", "worker", worker_id, "heartbeat"], body).await?;
        let date = answer.date;
        Ok((read(answer)?, date))
    }

    async fn post(&self, path: &[&str], body: &impl Serialize) -> Result<CallAnswer, PlaneError> {
        let request_id = super::request_id();
        let mut headers = HeaderMap::new();
        if let Ok(value) = HeaderValue::from_str(&request_id) {
            headers.insert(HeaderName::from_static("x-request-id"), value);
        }
        let answer = self.calls.post(path, headers, body, self.timeout, ANSWER_BYTES).await;
        let answer = answer.map_err(|reason| PlaneError::Unanswered { reason, retry_after: None })?;
        tracing::debug!(
            request.id = request_id,
            status = answer.status,
            http.path = path.join("/"),
            "called the control plane"
        );
        if (200..300).contains(&answer.status) {
            return Ok(answer);
        }
        Err(refused(&answer))
    }
}

fn refused(answer: &CallAnswer) -> PlaneError {
    let status = answer.status;
    let said: Refusal = serde_json::from_slice(&answer.body).unwrap_or_default();
    let code = said.code.or(said.error).unwrap_or_else(|| format!("http_{status}"));
    let message = said.message.unwrap_or_else(|| "no further explanation".to_owned());
    if matches!(status, 408 | 429 | 500..) {
        let reason = format!("the control plane answered {status} {code}: {message}");
        return PlaneError::Unanswered { reason, retry_after: answer.retry_after };
    }
    PlaneError::Refused { status, code, message, reason: said.reason }
}

fn read<T: DeserializeOwned>(answer: CallAnswer) -> Result<T, PlaneError> {
    serde_json::from_slice(&answer.body).map_err(|error| PlaneError::Unanswered {
        reason: format!("the answer could not be read: {error}"),
        retry_after: None,
    })
}

fn duration_from(from: Timestamp, until: Timestamp) -> Duration {
    Duration::try_from(until.duration_since(from)).unwrap_or_default()
}

impl PlaneError {
    /// What a refused renewal says about the lease. A conflict without a reason says nothing.
    pub(crate) fn lease_refusal(&self) -> Option<LeaseRefusal> {
        let Self::Refused { status: 409, message, reason: Some(reason), .. } = self else { return None };
        match reason.as_str() {
            "lease_stale" => Some(LeaseRefusal::Stale(message.clone())),
            "lease_expired" => Some(LeaseRefusal::Expired(message.clone())),
            _ => None,
        }
    }

    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Unanswered { retry_after, .. } => *retry_after,
            Self::Refused { .. } => None,
        }
    }
}

impl From<PlaneError> for NodeError {
    fn from(error: PlaneError) -> Self {
        match &error {
            PlaneError::Refused { status: 409, message, .. } => {
                Self::Refused { lease: error.lease_refusal(), message: message.clone() }
            }
            _ => Self::Unreachable(error.to_string()),
        }
    }
}
