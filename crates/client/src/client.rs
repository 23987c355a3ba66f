use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::{Method, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tenure_contract::user::{
    Attempt, BatchSubmission, BatchSubmitted, CancelRequest, Cancelled, Health, Page, Retried, Submitted, Task,
    TaskSubmission, Why,
};

use crate::error::ClientError;
use crate::filter::{self, TaskFilter};
use crate::http::{self, Backoff};

const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);
const RETRIES_DEFAULT: u32 = 4;
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// A user of the control plane: submits tasks, looks at them, steers queues and dead letters.
///
/// Cloning is cheap and shares the connections. Calls are repeated a few times where that is safe: on 429 and 503
/// always, without an answer only if the call can be made twice.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    http: reqwest::Client,
    server: Url,
    api_key: Option<HeaderValue>,
    timeout: Duration,
    retries: u32,
}

/// Settings of a [`Client`].
#[derive(Clone)]
pub struct ClientBuilder {
    server: String,
    api_key: Option<String>,
    timeout: Duration,
    retries: u32,
}

impl ClientBuilder {
    /// Sent as `X-API-Key`.
    #[must_use]
    pub fn api_key(mut self, key: impl Into<String>) -> Self {
        self.api_key = Some(key.into());
        self
    }

    /// Bounds one request, default 30 s.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How often a call is repeated at most, default 4.
    #[must_use]
    pub fn retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    pub fn build(self) -> Result<Client, ClientError> {
        let server = http::parse_server(&self.server).map_err(ClientError::Setup)?;
        let api_key = self.api_key.as_deref().map(secret_header).transpose()?;
        let http = http::new_client()
            .map_err(|error| ClientError::Setup(format!("the HTTP client could not be set up: {error}")))?;
        let inner = Inner { http, server, api_key, timeout: self.timeout, retries: self.retries };
        Ok(Client { inner: Arc::new(inner) })
    }
}

fn secret_header(key: &str) -> Result<HeaderValue, ClientError> {
    let mut value = HeaderValue::from_str(key.trim())
        .map_err(|_| ClientError::Setup("the API key has characters that a header cannot carry".into()))?;
    value.set_sensitive(true);
    Ok(value)
}

impl Client {
    /// A client without an API key.
    pub fn new(server: impl Into<String>) -> Result<Self, ClientError> {
        Self::builder(server).build()
    }

    pub fn builder(server: impl Into<String>) -> ClientBuilder {
        ClientBuilder { server: server.into(), api_key: None, timeout: TIMEOUT_DEFAULT, retries: RETRIES_DEFAULT }
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

    /// Why a task is in the state it is in.
    pub async fn why(&self, task_id: &str) -> Result<Why, ClientError> {
        self.call(Call::new(Method::GET, self.url(&["tasks", task_id, "why"]))).await
    }

    pub async fn cancel(&self, task_id: &str, request: &CancelRequest) -> Result<Cancelled, ClientError> {
        let call = Call::new(Method::POST, self.url(&["tasks", task_id, "cancel"])).json(request)?;
        self.call(call.repeatable(true)).await
    }

    /// Gives a Failed or Canceled task a new budget of attempts.
    pub async fn retry(&self, task_id: &str) -> Result<Retried, ClientError> {
        self.call(Call::new(Method::POST, self.url(&["tasks", task_id, "retry"]))).await
    }

    /// How the control plane is. A control plane that says it is unavailable has answered: that is no error here.
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
        let request = self.inner.http.request(method, url);
        match &self.inner.api_key {
            Some(key) => request.header("x-api-key", key.clone()),
            None => request,
        }
    }

    pub(crate) async fn call<T: DeserializeOwned>(&self, call: Call) -> Result<T, ClientError> {
        let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
        let mut retries_left = self.inner.retries;
        loop {
            let (error, again, asked) = match self.send(&call).await {
                Ok(answer) if (200..300).contains(&answer.status) => {
                    return serde_json::from_slice(&answer.body)
                        .map_err(|source| ClientError::Decode { operation: call.operation(), source });
                }
                Ok(answer) => {
                    // 429 and 503 say that nothing was done; the other temporary answers leave it open.
                    let again =
                        matches!(answer.status, 429 | 503) || (call.repeatable && matches!(answer.status, 502 | 504));
                    let error = ClientError::from_answer(&call.operation(), answer.status, &answer.body);
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
        let mut request = self.request(call.method.clone(), call.url.clone()).timeout(self.inner.timeout);
        if let Some(body) = &call.body {
            request = request.header(CONTENT_TYPE, "application/json").body(body.clone());
        }
        let response = request.send().await.map_err(unanswered)?;
        let status = response.status().as_u16();
        let retry_after = http::retry_after(response.headers());
        let body = response.bytes().await.map_err(unanswered)?.to_vec();
        Ok(Answer { status, retry_after, body })
    }
}

/// A call whose connection could not even be made took no effect.
fn never_sent(error: &ClientError) -> bool {
    let ClientError::Network { source, .. } = error else { return false };
    source.downcast_ref::<reqwest::Error>().is_some_and(reqwest::Error::is_connect)
}

struct Answer {
    status: u16,
    retry_after: Option<Duration>,
    body: Vec<u8>,
}

/// One call of the API, ready to be sent more than once.
pub(crate) struct Call {
    method: Method,
    url: Url,
    body: Option<Vec<u8>>,
    /// Whether a second time does no harm.
    repeatable: bool,
}

impl Call {
    pub(crate) fn new(method: Method, url: Url) -> Self {
        let repeatable = method == Method::GET || method == Method::PUT;
        Self { method, url, body: None, repeatable }
    }

    pub(crate) fn json(mut self, body: &impl Serialize) -> Result<Self, ClientError> {
        let body =
            serde_json::to_vec(body).map_err(|source| ClientError::Encode { operation: self.operation(), source })?;
        self.body = Some(body);
        Ok(self)
    }

    pub(crate) fn repeatable(mut self, repeatable: bool) -> Self {
        self.repeatable = repeatable;
        self
    }

    fn operation(&self) -> String {
        format!("{} {}", self.method, self.url.path())
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("server", &self.inner.server.as_str()).finish_non_exhaustive()
    }
}

impl fmt::Debug for ClientBuilder {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder").field("server", &self.server).finish_non_exhaustive()
    }
}
