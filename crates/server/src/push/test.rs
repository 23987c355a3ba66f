//! A push by hand: one envelope that stands for no task, and what came back.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_auth::{Secret, TaskClaims, TaskKeys};
use tenure_core::command::claim::Grant;
use tenure_core::id::{AttemptId, Fence, LeaseToken, RunId, TaskId};
use tenure_core::queue::{Push, QueueId, Transport};
use tenure_core::run::InRun;
use tenure_core::task::{Body, Spec};
use tenure_core::time::Timestamp;
use tenure_engine::random_bits;
use tenure_outbound::header::{HeaderName, HeaderValue};
use tenure_outbound::{Outbound, OutboundError, Refused};

use super::answer::Verdict;
use super::courier::headers;
use super::envelope::{self, Around};
use super::targets::Route;
use crate::access::guard::unix_now;
use crate::request::new_request_id;

/// Says that no task stands behind the envelope.
pub const TEST: HeaderName = HeaderName::from_static("x-tenure-test");
/// What the test is called in place of an operator.
const NAME: &str = "tenure.push-test";
/// The run of every test. Callbacks with a token of it are acknowledged and change nothing.
const RUN: RunId = RunId::from_u128(0);
/// How much of the answer is shown.
const SHOWN_BYTES: usize = 512;

/// What is sent, and where to.
#[derive(Debug)]
pub struct PushTest<'a> {
    pub url: &'a str,
    pub client: &'a Outbound,
    pub secret: Option<&'a Secret>,
    /// Headers that carry the secret. None: the usual one.
    pub secret_headers: &'a [String],
    pub keys: &'a TaskKeys,
    pub base_url: &'a str,
    pub timeout: Duration,
}

/// What came of it.
#[derive(Debug)]
pub struct PushTestReport {
    /// Scheme, host and port.
    pub target: Option<String>,
    /// What the name resolved to. All were judged.
    pub addresses: Vec<IpAddr>,
    /// Why nothing was sent.
    pub refused: Option<Refused>,
    pub dispatch_id: String,
    pub request_id: String,
    pub answer: Option<TestAnswer>,
    /// Why there was no answer.
    pub failure: Option<String>,
}

#[derive(Debug)]
pub struct TestAnswer {
    pub status: u16,
    pub verdict: Verdict,
    pub took: Duration,
    pub content_type: Option<String>,
    pub location: bool,
    /// The beginning of the body.
    pub body: String,
    pub truncated: bool,
}

impl PushTest<'_> {
    pub async fn run(&self) -> Result<PushTestReport, tenure_auth::IssueError> {
        let mut report = PushTestReport {
            target: None,
            addresses: Vec::new(),
            refused: None,
            dispatch_id: String::new(),
            request_id: new_request_id(),
            answer: None,
            failure: None,
        };
        let target = match self.client.resolve(self.url).await {
            Ok((target, addresses)) => {
                report.addresses = addresses;
                target
            }
            Err(OutboundError::Refused(refused)) => {
                report.refused = Some(refused);
                return Ok(report);
            }
            Err(error) => {
                report.failure = Some(error.to_string());
                return Ok(report);
            }
        };
        report.target = Some(target.to_string());
        let (grant, body, push) = self.made_up();
        let (token, expires_s) = envelope::token(self.keys, &grant, &body, &push, unix_now())?;
        let token_expires_at = Timestamp::from_millis(expires_s.saturating_mul(1000));
        let around = Around { queue: NAME, base_url: self.base_url, token: &token, token_expires_at };
        let envelope = envelope::envelope(&grant, &body, &around);
        report.dispatch_id.clone_from(&envelope.dispatch_id);
        let secret_headers = push.secret_headers().collect();
        let route = Route { client: self.client, secret: self.secret, secret_headers, base_url: self.base_url, target };
        let mut headers = headers(&route, &envelope.dispatch_id, 1, &report.request_id, None);
        headers.insert(TEST, HeaderValue::from_static("true"));
        let Ok(bytes) = serde_json::to_vec(&envelope) else { return Ok(report) };
        let started = Instant::now();
        match self.client.post(self.url, headers, bytes, self.timeout).await {
            Ok(answer) => {
                let text = String::from_utf8_lossy(&answer.body).into_owned();
                report.answer = Some(TestAnswer {
                    status: answer.status.as_u16(),
                    verdict: Verdict::of(answer.status, &answer.headers),
                    took: started.elapsed(),
                    content_type: answer.headers.get("content-type").and_then(|v| v.to_str().ok()).map(Into::into),
                    location: answer.headers.contains_key("location"),
                    body: tenure_core::limits::cut(&text, SHOWN_BYTES).to_owned(),
                    truncated: answer.truncated,
                });
            }
            Err(OutboundError::Refused(refused)) => report.refused = Some(refused),
            Err(error) => report.failure = Some(chain(&error)),
        }
        Ok(report)
    }

    /// A grant of a task that nobody submitted.
    fn made_up(&self) -> (Grant, Body, Push) {
        let now = Timestamp::from_millis(unix_now().saturating_mul(1000));
        let secret_header = self.secret_headers.iter().map(|name| name.as_str().into()).collect();
        let push = Push { secret_header, ..Push::to(self.url.into()) };
        let id = TaskId::from_u128(random_bits());
        let payload = r#"{"test":true,"message":"A test of tenure push test. No task stands behind it."}"#;
        let body = Body {
            id,
            queue: QueueId(0),
            operator: NAME.into(),
            tenant: "default".into(),
            owner: None,
            workspace: "default".into(),
            priority: tenure_core::limits::PRIORITY_DEFAULT,
            payload: payload.into(),
            spec: Spec::default(),
            tags: Default::default(),
            idempotency: None,
            traceparent: None,
            submitted_by: None,
            envelope: None,
            created_at: now,
            run_at: now,
            run: Some(InRun { run: RUN, key: NAME.into() }),
        };
        let settings = tenure_core::queue::QueueSettings {
            push: Some(Arc::new(push.clone())),
            ..tenure_core::queue::QueueSettings::default()
        };
        let grant = Grant {
            task: id,
            queue: QueueId(0),
            attempt: 1,
            attempt_id: AttemptId::from_u128(random_bits()),
            token: LeaseToken::from_u128(0),
            fence: Fence(1),
            message: 0,
            lease_ttl_ms: body.spec.lease_ttl_ms(&settings),
            heartbeat_ms: body.spec.heartbeat_ms(&settings),
            deadline: None,
            checkpoint: None,
            transport: Transport::Embedded,
            receipt: None,
            repeatable: false,
            granted_at: now,
            expires_at: now.plus(push.dispatch_timeout_ms),
            delivery: None,
            body: None,
        };
        (grant, body, push)
    }
}

/// Whether a task token was made for a test. There is no task for it.
pub fn is_of_test(claims: &TaskClaims) -> bool {
    RunId::parse(&claims.run_id).is_ok_and(|run| run == RUN)
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text += &format!(": {error}");
        next = error.source();
    }
    text
}
