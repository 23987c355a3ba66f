use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderMap};
use reqwest::{Method, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tenure_contract::user::{
    Attempt, BatchSubmission, BatchSubmitted, CancelRequest, Canceled, Health, Page, Retried, Submitted, Task,
    TaskLogs, TaskSubmission, Why,
};

use crate::builder::ClientBuilder;
use crate::error::ClientError;
use crate::filter::{self, TaskFilter, TaskLogFilter};
use crate::http::{self, AnswerBody, Backoff};

const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// For an answer with logs, and for one that waits for more.
const LOGS_TIMEOUT: Duration = Duration::from_secs(30);
const FOLLOW_TIMEOUT: Duration = Duration::from_secs(50);

/// A user of the control plane: submits tasks, looks at them, steers queues and dead letters.
///
/// Cloning is cheap and shares the connections. Calls are repeated a few times where that is safe: if the server says that
/// it did nothing, and otherwise only if the call can be made twice.
#[derive(Clone)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) http: reqwest::Client,
    pub(crate) server: Url,
    /// Who calls: on every request.
    pub(crate) headers: HeaderMap,
    pub(crate) timeout: Duration,
    pub(crate) retries: u32,
}

impl Client {
    /// A client without an API key.
    pub fn new(server: impl Into<String>) -> Result<Self, ClientError> {
        Self::builder(server).build()
    }

    pub fn builder(server: impl Into<String>) -> ClientBuilder {
        ClientBuilder::new(server.into())
    }

    /// Submits one task. With an `idempotency_key` the call is repeated when no answer comes.
    pub async fn submit(&self, task: &TaskSubmission) -> Result<Submitted, ClientError> {
        let call = Call::new(Method::POST, self.url(&["tasks"])).json(task)?;
        self.call(call.repeatable(task.idempotency_key.is_some())).await
    }

    /// Submits up to 10,000 tasks, all or none. Repeated when no answer comes if every task has an `idempotency_key`.
    pub async fn submit_batch(&self, tasks: Vec<TaskSubmission>) -> Result<BatchSubmitted, ClientError> {
        let keyed = tasks.iter().all(|task| task.idempotency_key.is_some());
        let call = Call::new(Method::POST, self.url(&["tasks", "batch"])).json(&BatchSubmission { tasks })?;
        self.call(call.repeatable(keyed)).await
    }

    pub async fn get(&self, task_id: &str) -> Result<Task, ClientError> {
        self.call(Call::new(Method::GET, self.url(&["tasks", task_id]))).await
    }

    /// One page of tasks; `next_cursor` goes into the filter of the next.
    pub async fn list(&self, filter: &TaskFilter) -> Result<Page<Task>, ClientError> {
        let mut url = self.url(&["tasks"]);
        filter.write(&mut url);
        self.call(Call::new(Method::GET, url)).await
    }

    /// The attempts of a task, oldest first.
    pub async fn attempts(&self, task_id: &str, cursor: Option<String>) -> Result<Page<Attempt>, ClientError> {
        let mut url = self.url(&["tasks", task_id, "attempts"]);
        filter::write(&mut url, &[("cursor", &cursor)]);
        self.call(Call::new(Method::GET, url)).await
    }

    /// What a task printed and logged. With `follow`, the answer waits up to 20 s for more.
    pub async fn task_logs(&self, task_id: &str, which: &TaskLogFilter) -> Result<TaskLogs, ClientError> {
        let mut url = self.url(&["tasks", task_id, "logs"]);
        let follow = which.follow.then(|| "true".to_owned());
        let attempt = filter::text(&which.attempt);
        filter::write(&mut url, &[("attempt", &attempt), ("cursor", &which.cursor), ("follow", &follow)]);
        let timeout = if which.follow { FOLLOW_TIMEOUT } else { LOGS_TIMEOUT };
        self.call(Call::new(Method::GET, url).timeout(timeout)).await
    }

    /// Why a task is in the state it is in.
    pub async fn why(&self, task_id: &str) -> Result<Why, ClientError> {
        self.call(Call::new(Method::GET, self.url(&["tasks", task_id, "why"]))).await
    }

    pub async fn cancel(&self, task_id: &str, request: &CancelRequest) -> Result<Canceled, ClientError> {
        let call = Call::new(Method::POST, self.url(&["tasks", task_id, "cancel"])).json(request)?;
        self.call(call.repeatable(true)).await
    }

    /// Gives a Failed or Canceled task a new budget of attempts.
    pub async fn retry(&self, task_id: &str) -> Result<Retried, ClientError> {
        self.call(Call::new(Method::POST, self.url(&["tasks", task_id, "retry"]))).await
    }

    /// How the control plane is. A control plane that reports that it is unavailable has answered: that is not an error here.
    pub async fn health(&self) -> Result<Health, ClientError> {
        let call = Call::new(Method::GET, self.url(&["health"]));
        let answer = self.send(&call).await?;
        match (answer.status, serde_json::from_slice(&answer.body)) {
            (200 | 503, Ok(health)) => Ok(health),
            (200, Err(source)) => Err(ClientError::Decode { operation: call.operation(), source }),
            (status, _) => Err(ClientError::from_answer(&call.operation(), status, &answer.body)),
        }
    }

    /// The address of a path below `/api/v1`.
    pub(crate) fn url(&self, segments: &[&str]) -> Url {
        http::join(&self.inner.server, &[&["api", "v1"], segments].concat())
    }

    /// A request with the key on it and without a time limit.
    pub(crate) fn request(&self, method: Method, url: Url) -> reqwest::RequestBuilder {
        self.inner.http.request(method, url).headers(self.inner.headers.clone())
    }

    pub(crate) async fn call<T: DeserializeOwned>(&self, call: Call) -> Result<T, ClientError> {
        let answer = self.answer(&call).await?;
        serde_json::from_slice(&answer.body)
            .map_err(|source| ClientError::Decode { operation: call.operation(), source })
    }

    /// Sends a call until it is accepted, refused for good, or was repeated often enough.
    pub(crate) async fn answer(&self, call: &Call) -> Result<Answer, ClientError> {
        let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
        let mut retries_left = self.inner.retries;
        loop {
            let (error, again, asked) = match self.send(call).await {
                Ok(answer) if (200..300).contains(&answer.status) => return Ok(answer),
                Ok(answer) => {
                    let error = ClientError::from_answer(&call.operation(), answer.status, &answer.body);
                    let again = nothing_was_done(&error) || (call.repeatable && matches!(answer.status, 502..=504));
                    (error, again, answer.retry_after)
                }
                Err(error) => {
                    let again = call.repeatable || never_sent(&error);
                    (error, again, None)
                }
            };
            if !again || retries_left == 0 {
                return Err(error);
            }
            retries_left -= 1;
            tokio::time::sleep(backoff.next(asked)).await;
        }
    }

    async fn send(&self, call: &Call) -> Result<Answer, ClientError> {
        let unanswered = |source: reqwest::Error| ClientError::Network {
            operation: call.operation(),
            source: Box::new(source.without_url()),
        };
        let timeout = call.timeout.unwrap_or(self.inner.timeout).max(self.inner.timeout);
        let mut request = self.request(call.method.clone(), call.url.clone()).timeout(timeout);
        for (name, value) in &call.headers {
            request = request.header(*name, value);
        }
        if let Some(body) = &call.body {
            request = request.header(CONTENT_TYPE, call.media).body(body.clone());
        }
        let response = request.send().await.map_err(unanswered)?;
        let status = response.status().as_u16();
        let retry_after = http::retry_after(response.headers());
        let next_cursor = response.headers().get("x-next-cursor").and_then(|value| value.to_str().ok());
        let next_cursor = next_cursor.map(str::to_owned);
        let body = AnswerBody::of(response).whole().await;
        let body =
            body.map_err(|source| ClientError::Network { operation: call.operation(), source: Box::new(source) })?;
        Ok(Answer { status, retry_after, next_cursor, body })
    }
}

/// Whether the server says that it turned the call away. Other temporary answers leave open what happened: a store that
/// went away in the middle of a commit, or a proxy that heard nothing more.
fn nothing_was_done(error: &ClientError) -> bool {
    match (error.status(), error.word()) {
        // No room for a sandbox: that may last, and waiting for it is up to the caller.
        (Some(429), Some(word)) if word.starts_with("max_") || word.ends_with("worker_unavailable") => false,
        (Some(429), Some("remote_worker_rpc_unavailable")) => false,
        (Some(429), _) | (Some(503), Some("overloaded" | "shutting_down" | "query_busy")) => true,
        _ => false,
    }
}

/// A call whose connection could not even be made took no effect.
fn never_sent(error: &ClientError) -> bool {
    let ClientError::Network { source, .. } = error else { return false };
    source.downcast_ref::<reqwest::Error>().is_some_and(reqwest::Error::is_connect)
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    retry_after: Option<Duration>,
    /// Of a list whose form has no room for it.
    pub(crate) next_cursor: Option<String>,
    pub(crate) body: Vec<u8>,
}

/// One call of the API, ready to be sent more than once.
pub(crate) struct Call {
    method: Method,
    url: Url,
    body: Option<Vec<u8>>,
    /// The type of the body.
    media: &'static str,
    headers: Vec<(&'static str, String)>,
    /// Whether a second time does no harm.
    repeatable: bool,
    /// For a call that may take longer than others.
    timeout: Option<Duration>,
}

impl Call {
    pub(crate) fn new(method: Method, url: Url) -> Self {
        let repeatable = matches!(method, Method::GET | Method::PUT | Method::DELETE);
        let media = "application/json";
        Self { method, url, body: None, media, headers: Vec::new(), repeatable, timeout: None }
    }

    pub(crate) fn json(mut self, body: &impl Serialize) -> Result<Self, ClientError> {
        let body =
            serde_json::to_vec(body).map_err(|source| ClientError::Encode { operation: self.operation(), source })?;
        self.body = Some(body);
        Ok(self)
    }

    pub(crate) fn text(self, media: &'static str, text: &str) -> Self {
        self.bytes(media, text.as_bytes().to_vec())
    }

    pub(crate) fn bytes(mut self, media: &'static str, bytes: Vec<u8>) -> Self {
        self.body = Some(bytes);
        self.media = media;
        self
    }

    pub(crate) fn repeatable(mut self, repeatable: bool) -> Self {
        self.repeatable = repeatable;
        self
    }

    pub(crate) fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Bounds one request, if that is longer than what the client was set to.
    pub(crate) fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    pub(crate) fn operation(&self) -> String {
        format!("{} {}", self.method, self.url.path())
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("server", &self.inner.server.as_str()).finish_non_exhaustive()
    }
}
