//! The callbacks of one attempt.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use reqwest::Url;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tenure_contract::callback::{
    CallbackError, CompletedRequest, CompletedResponse, HeartbeatRequest, HeartbeatResponse, LogsRequest, LogsResponse,
    StartedRequest, StartedResponse, TaskEnvelope,
};
use tenure_contract::pull::JobLogs;
use tokio_util::sync::CancellationToken;

use super::error::{CallError, Refusal};
use crate::http::{self, Backoff, chain};
use crate::worker::beat::News;
use crate::worker::lease::Lease;
use crate::worker::lock;
use crate::worker::logs::ANSWER_WAIT as LOGS_WAIT;
use crate::worker::pulse::{Beaten, Heart};
use crate::worker::token::secret_header;

/// For the answer to one call.
const ANSWER_WAIT: Duration = Duration::from_secs(15);
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// The longest that a `Retry-After` is followed.
const ASKED_WAIT_MAX: Duration = Duration::from_secs(60);
/// A token is not given up sooner than this after it came, whatever this machine's clock says of its end.
const TOKEN_LIFE_MIN: Duration = Duration::from_secs(60);
/// An attempt that has lasted this long is watched.
const HINT_AFTER: Duration = Duration::from_millis(250);
/// How long the control plane holds an answer back, and how long that answer is waited for.
const HINT_MS: i64 = 20_000;
const HINT_PATIENCE: Duration = Duration::from_secs(30);
/// After a wait that failed.
const HINT_PAUSE: Duration = Duration::from_secs(5);
/// Of an answer.
const ANSWER_BYTES: usize = 256 << 10;

#[derive(Debug)]
pub(crate) struct Calls {
    http: reqwest::Client,
    base: Url,
    task_id: String,
    worker_id: String,
    attempt: u32,
    attempt_id: String,
    traceparent: Option<String>,
    token: Mutex<Token>,
    /// The control plane takes no logs of this attempt.
    no_logs: AtomicBool,
}

#[derive(Debug, Clone)]
struct Token {
    header: HeaderValue,
    expires_at: jiff::Timestamp,
    /// The same moment by the local clock that only goes forward.
    until: Instant,
}

impl Calls {
    /// The error is what is wrong with the envelope.
    pub(crate) fn new(
        http: reqwest::Client,
        base: Url,
        worker_id: &str,
        envelope: &TaskEnvelope,
    ) -> Result<Self, String> {
        let now = Instant::now();
        let mut token = Token::new(&envelope.task_token, &envelope.token_expires_at, jiff::Timestamp::now(), now)?;
        token.until = token.until.max(now + TOKEN_LIFE_MIN);
        Ok(Self {
            http,
            base,
            task_id: envelope.task_id.clone(),
            worker_id: worker_id.to_owned(),
            attempt: envelope.attempt,
            attempt_id: envelope.attempt_id.clone(),
            traceparent: envelope.traceparent.clone(),
            token: Mutex::new(token),
            no_logs: AtomicBool::new(false),
        })
    }

    /// Says that the work begins, until there is an answer, the token has expired or the worker stops. An answer that is on
    /// its way is waited for: the control plane may count on this worker by then. Gives when the try was sent that was
    /// answered.
    pub(crate) async fn started(&self, stopping: &CancellationToken) -> Result<Instant, CallError> {
        let request = StartedRequest {
            attempt: self.attempt,
            attempt_id: Some(self.attempt_id.clone()),
            worker_id: self.worker_id.clone(),
            started_at: Some(wall_clock()),
            traceparent: self.traceparent.clone(),
        };
        let (answer, sent_at): (StartedResponse, _) = self.until_answered("started", &request, stopping).await?;
        self.learn_time(&answer.server_time, sent_at);
        Ok(sent_at)
    }

    /// One heartbeat. A renewed token is used from now on.
    async fn heartbeat(
        &self,
        news: News,
        wait_ms: Option<i64>,
        patience: Duration,
    ) -> Result<HeartbeatResponse, CallError> {
        let (progress_pct, message) = news.progress.unzip();
        let request = HeartbeatRequest {
            attempt: self.attempt,
            attempt_id: Some(self.attempt_id.clone()),
            worker_id: self.worker_id.clone(),
            heartbeat_at: Some(wall_clock()),
            progress_pct: progress_pct.map(i64::from),
            message: message.filter(|message| !message.is_empty()),
            checkpoint: news.checkpoint,
            wait_ms,
            traceparent: self.traceparent.clone(),
        };
        let sent_at = Instant::now();
        let answer: HeartbeatResponse = self.once("heartbeat", &body(&request)?, patience).await?;
        self.adopt(&answer, sent_at);
        Ok(answer)
    }

    /// The request of this attempt's end, still without an outcome's details.
    pub(crate) fn completion(&self, outcome: tenure_contract::callback::Outcome) -> CompletedRequest {
        CompletedRequest {
            attempt: self.attempt,
            attempt_id: Some(self.attempt_id.clone()),
            worker_id: self.worker_id.clone(),
            outcome,
            completed_at: Some(wall_clock()),
            output: None,
            error: None,
            metrics: None,
            cancelled_during_phase: None,
            partial_progress: None,
            traceparent: self.traceparent.clone(),
        }
    }

    /// Reports the end, until there is an answer or the token has expired. A duplicate is a success.
    pub(crate) async fn completed(&self, request: &CompletedRequest) -> Result<CompletedResponse, CallError> {
        self.until_answered("completed", request, &CancellationToken::new()).await.map(|(answer, _)| answer)
    }

    /// Makes the same call with the same body again and again. Gives the answer and when the try was sent that got it.
    async fn until_answered<A: DeserializeOwned>(
        &self,
        call: &str,
        request: &impl Serialize,
        stopping: &CancellationToken,
    ) -> Result<(A, Instant), CallError> {
        let body = body(request)?;
        let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
        loop {
            let sent_at = Instant::now();
            let (reason, retry_after) = match self.once(call, &body, ANSWER_WAIT).await {
                Err(CallError::Again { reason, retry_after }) => (reason, retry_after),
                decided => return decided.map(|answer| (answer, sent_at)),
            };
            let wait = backoff.next(None).max(retry_after.unwrap_or_default().min(ASKED_WAIT_MAX));
            if Instant::now() + wait >= self.token().until {
                return Err(CallError::Expired { reason: format!("the task token has expired: {reason}") });
            }
            tracing::warn!(task.id = %self.task_id, call, wait_seconds = wait.as_secs_f64(), reason, "callback not answered, trying again");
            if stopping.run_until_cancelled(tokio::time::sleep(wait)).await.is_none() {
                return Err(CallError::Expired { reason: "the worker is shutting down".to_owned() });
            }
        }
    }

    async fn once<A: DeserializeOwned>(&self, call: &str, body: &[u8], timeout: Duration) -> Result<A, CallError> {
        let sent = self.send(call, body);
        tokio::time::timeout(timeout, sent).await.unwrap_or_else(|_| Err(CallError::again("no answer in time")))
    }

    async fn send<A: DeserializeOwned>(&self, call: &str, body: &[u8]) -> Result<A, CallError> {
        let request = self
            .http
            .post(http::join(&self.base, &["v1", "tasks", &self.task_id, call]))
            .header(AUTHORIZATION, self.token().header)
            .header(CONTENT_TYPE, "application/json")
            .body(body.to_vec());
        let mut response = request.send().await.map_err(unanswered)?;
        let status = response.status().as_u16();
        let retry_after = http::retry_after(response.headers());
        let is_tenures = response.headers().contains_key(http::CONTRACT);
        let mut answer = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(unanswered)? {
            answer.extend_from_slice(&chunk);
            if answer.len() > ANSWER_BYTES {
                return Err(CallError::again("the answer is too long"));
            }
        }
        if (200..300).contains(&status) {
            return serde_json::from_slice(&answer)
                .map_err(|error| CallError::again(format!("the answer could not be read: {error}")));
        }
        Err(judge(status, retry_after, is_tenures, &answer))
    }

    fn token(&self) -> Token {
        lock(&self.token).clone()
    }

    fn adopt(&self, answer: &HeartbeatResponse, sent_at: Instant) {
        if let (Some(text), Some(expires_at)) = (&answer.task_token, &answer.token_expires_at)
            && let Ok(server_time) = answer.server_time.parse()
        {
            match Token::new(text, expires_at, server_time, sent_at) {
                Ok(token) => *lock(&self.token) = token,
                Err(error) => tracing::warn!(task.id = %self.task_id, error, "cannot use a renewed token"),
            }
            return;
        }
        self.learn_time(&answer.server_time, sent_at);
    }

    /// What the server's clock says at `sent_at` or a little later tells how long the token is good, whatever ours says.
    fn learn_time(&self, server_time: &str, sent_at: Instant) {
        if let Ok(server_time) = server_time.parse() {
            let mut token = lock(&self.token);
            token.until = sent_at + time_between(server_time, token.expires_at);
        }
    }
}

impl Heart for Calls {
    async fn logs(&self, logs: JobLogs) {
        if self.no_logs.load(Ordering::Relaxed) {
            return;
        }
        let request = LogsRequest {
            attempt: self.attempt,
            attempt_id: Some(self.attempt_id.clone()),
            worker_id: self.worker_id.clone(),
            lines: logs.lines,
            dropped: logs.dropped,
        };
        let Ok(body) = body(&request) else { return };
        if let Err(error) = self.once::<LogsResponse>("logs", &body, LOGS_WAIT).await {
            // The attempt is over, or the control plane has no route for logs.
            self.no_logs.store(matches!(error, CallError::Refused(_)), Ordering::Relaxed);
            tracing::debug!(task.id = %self.task_id, %error, "log lines did not get through");
        }
    }

    async fn beat(&self, lease: &Lease, news: News, patience: Duration) -> Beaten {
        let (reason, retry_after) = match self.heartbeat(news, None, patience).await {
            Ok(answer) => {
                let cancel = answer.should_cancel.then(|| answer.cancel_reason.unwrap_or_default());
                return Beaten::Renewed { cancel };
            }
            Err(CallError::Refused(refusal)) if refusal.ends_the_attempt() => {
                let reason = format!("the server answered {}", refusal.error());
                lease.note_refusal(refusal);
                return Beaten::Lost(reason);
            }
            Err(CallError::Refused(refusal)) => {
                tracing::error!(task.id = %self.task_id, error = %refusal, "heartbeat refused");
                return Beaten::Refused;
            }
            Err(CallError::Again { reason, retry_after }) => (reason, retry_after),
            Err(CallError::Expired { reason }) => (reason, None),
        };
        tracing::warn!(task.id = %self.task_id, reason, "heartbeat not answered, trying again");
        Beaten::Again(retry_after)
    }

    /// By a heartbeat whose answer the control plane holds back until the attempt is to stop.
    async fn hint(&self) {
        loop {
            tokio::time::sleep(HINT_AFTER).await;
            let sent_at = Instant::now();
            match self.heartbeat(News::default(), Some(HINT_MS), HINT_PATIENCE).await {
                Ok(answer) if answer.should_cancel => return,
                // A control plane that does not wait: heartbeats have to do.
                Ok(_) if sent_at.elapsed() < HINT_AFTER => std::future::pending().await,
                Ok(_) => {}
                Err(CallError::Refused(_)) => return,
                Err(_) => tokio::time::sleep(HINT_PAUSE).await,
            }
        }
    }
}

impl Token {
    fn new(text: &str, expires_at: &str, now: jiff::Timestamp, at: Instant) -> Result<Self, String> {
        let header = secret_header(&format!("Bearer {text}"), "task token").map_err(|error| error.to_string())?;
        let expires_at: jiff::Timestamp =
            expires_at.parse().map_err(|_| "tokenExpiresAt is not an RFC 3339 time".to_owned())?;
        Ok(Self { header, expires_at, until: at + time_between(now, expires_at) })
    }
}

fn time_between(from: jiff::Timestamp, to: jiff::Timestamp) -> Duration {
    // More than a day is as good as more than any token lives, and no addition to a moment overflows.
    Duration::try_from(to.duration_since(from)).unwrap_or_default().min(Duration::from_secs(86_400))
}

/// What an unsuccessful answer means. Only what the control plane says itself is a refusal: a proxy in between can
/// answer anything, as while the control plane is rolled out.
fn judge(status: u16, retry_after: Option<Duration>, is_tenures: bool, answer: &[u8]) -> CallError {
    let body: CallbackError = serde_json::from_slice(answer).unwrap_or_else(|_| CallbackError {
        error: format!("http_{status}"),
        message: "no further explanation".to_owned(),
        ..CallbackError::default()
    });
    // What is too large for a proxy is so each time.
    let is_refusal = is_tenures || status == 413 || body.code().is_some();
    if !is_refusal || matches!(status, 408 | 429 | 500..) {
        let retry_after = retry_after.or(body.retry_after_ms.map(Duration::from_millis));
        let reason = format!("the control plane answered {status} {}: {}", body.error, body.message);
        return CallError::Again { reason, retry_after };
    }
    CallError::Refused(Refusal::new(status, body))
}

fn body(request: &impl Serialize) -> Result<Vec<u8>, CallError> {
    serde_json::to_vec(request).map_err(|error| CallError::again(format!("the request could not be written: {error}")))
}

fn unanswered(error: reqwest::Error) -> CallError {
    CallError::again(chain(&error.without_url()))
}

/// For the fields that only tell what the worker's clock showed.
fn wall_clock() -> String {
    format!("{:.3}", jiff::Timestamp::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_answers_are_tried_again_and_others_decide() {
        for status in [408, 429, 500, 503] {
            assert!(matches!(judge(status, None, true, b""), CallError::Again { .. }), "{status}");
        }
        for status in [301, 400, 401, 404, 409, 410, 413, 415, 422] {
            assert!(matches!(judge(status, None, true, b""), CallError::Refused(_)), "{status}");
            for page in ["", "<html>", "{}", r#"{"error":"no route","message":"m"}"#] {
                let of_a_proxy = judge(status, None, false, page.as_bytes());
                assert_eq!(matches!(of_a_proxy, CallError::Refused(_)), status == 413, "{status} {page}");
            }
        }
        let asked = judge(503, None, true, br#"{"error":"store_unavailable","message":"m","retryAfterMs":1500}"#);
        assert!(
            matches!(asked, CallError::Again { retry_after: Some(wait), .. } if wait == Duration::from_millis(1500))
        );
    }

    #[test]
    fn a_refusal_keeps_what_was_said() {
        let answer = br#"{"error":"attempt_mismatch","message":"Attempt 2 is current","expectedAttempt":2}"#;
        let CallError::Refused(refusal) = judge(409, None, false, answer) else { panic!("a refusal") };
        assert_eq!(refusal.code(), Some(tenure_contract::callback::ErrorCode::AttemptMismatch));
        assert_eq!((refusal.status(), refusal.body().expected_attempt), (409, Some(2)));
        assert!(refusal.ends_the_attempt());
        assert_eq!(refusal.to_string(), "Attempt 2 is current (attempt_mismatch, HTTP 409)");
    }

    #[test]
    fn the_end_of_a_token_is_counted_by_the_servers_clock() {
        let now = Instant::now();
        let server: jiff::Timestamp = "2025-01-15T10:00:00Z".parse().unwrap();
        let token = Token::new("t", "2025-01-15T11:00:00Z", server, now).unwrap();
        assert_eq!(token.until, now + Duration::from_secs(3600));
        // One that is over, or absurdly far, is no reason to panic.
        assert_eq!(Token::new("t", "2025-01-15T09:00:00Z", server, now).unwrap().until, now);
        assert!(Token::new("t", "9999-01-15T09:00:00Z", server, now).is_ok());
        assert!(Token::new("t", "soon", server, now).is_err());
        assert!(Token::new("t\n", "2025-01-15T09:00:00Z", server, now).is_ok(), "white space around it is cut");
        assert!(Token::new("t\u{7}t", "2025-01-15T09:00:00Z", server, now).is_err());
    }
}
