//! A plain HTTP client of the contract, apart from the SDK: what is wrong there must not hide what is wrong elsewhere.

use std::time::Duration;

use anyhow::Result;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;

use super::history::Answer;
use super::system::ADMIN_KEY;

/// Beyond what a request may take by itself.
const PATIENCE: Duration = Duration::from_secs(4);

/// What came back.
#[derive(Debug, Clone)]
pub enum Reply {
    /// The server has spoken: 2xx, or a refusal.
    Told { status: u16, body: Value },
    /// Nobody can say whether it happened. The status, if an answer came that says so.
    Unknown { why: String, status: Option<u16> },
    /// It did not even get there.
    NotSent,
}

impl Reply {
    /// The server answered that it cannot say.
    pub fn failed(status: u16, error: &str) -> Self {
        Self::Unknown { why: format!("{status} {error}"), status: Some(status) }
    }

    fn lost(error: &reqwest::Error) -> Self {
        Self::Unknown { why: short(error), status: None }
    }

    /// What to put into the history: `read` says what a 2xx body means, `None` for one that makes no sense.
    pub fn answer(&self, read: impl FnOnce(&Value) -> Option<Answer>) -> Answer {
        match self {
            Self::NotSent => Answer::NotSent,
            Self::Unknown { why, status } => Answer::Unknown { why: why.clone(), status: *status },
            Self::Told { status, body } if *status < 300 => {
                let unreadable = || Answer::Unknown { why: format!("cannot be read: {body}"), status: Some(*status) };
                read(body).unwrap_or_else(unreadable)
            }
            Self::Told { status, body } => {
                Answer::Refused { status: *status, error: body["error"].as_str().unwrap_or_default().to_owned() }
            }
        }
    }
}

/// Speaks to control planes, one at a time.
#[derive(Debug, Clone)]
pub struct Http {
    client: reqwest::Client,
    servers: Vec<String>,
}

impl Http {
    pub fn new(servers: Vec<String>, worker_token: &str) -> Result<Self> {
        let mut headers = HeaderMap::new();
        headers.insert(HeaderName::from_static("x-worker-token"), HeaderValue::from_str(worker_token)?);
        headers.insert(HeaderName::from_static("x-api-key"), HeaderValue::from_static(ADMIN_KEY));
        let client =
            reqwest::Client::builder().default_headers(headers).connect_timeout(Duration::from_secs(2)).build()?;
        Ok(Self { client, servers })
    }

    /// Without a credential: each request brings its own.
    pub fn plain(servers: Vec<String>) -> Result<Self> {
        let client = reqwest::Client::builder().connect_timeout(Duration::from_secs(2)).build()?;
        Ok(Self { client, servers })
    }

    /// A request with this header, and a body if it has one.
    pub async fn send(&self, server: usize, path: &str, header: (&str, &str), body: Option<&Value>) -> Reply {
        let url = format!("{}{path}", self.servers[server]);
        let request = match body {
            Some(body) => self.client.post(url).json(body),
            None => self.client.get(url),
        };
        told(request.header(header.0, header.1).timeout(PATIENCE).send().await).await
    }

    pub async fn delete(&self, server: usize, path: &str, header: (&str, &str)) -> Reply {
        let request = self.client.delete(format!("{}{path}", self.servers[server])).header(header.0, header.1);
        told(request.timeout(PATIENCE).send().await).await
    }

    /// A text as the body.
    pub async fn post_text(&self, server: usize, path: &str, body: &'static str) -> Reply {
        let request = self.client.post(format!("{}{path}", self.servers[server])).body(body);
        told(request.timeout(PATIENCE * 5).send().await).await
    }

    pub fn servers(&self) -> usize {
        self.servers.len()
    }

    pub async fn post(&self, server: usize, path: &str, body: &Value, takes: Duration) -> Reply {
        let request = self.client.post(format!("{}{path}", self.servers[server])).json(body);
        told(request.timeout(PATIENCE + takes).send().await).await
    }

    pub async fn put(&self, server: usize, path: &str, body: &Value) -> Reply {
        let request = self.client.put(format!("{}{path}", self.servers[server])).json(body);
        told(request.timeout(PATIENCE).send().await).await
    }

    pub async fn get(&self, server: usize, path: &str) -> Reply {
        let request = self.client.get(format!("{}{path}", self.servers[server]));
        told(request.timeout(PATIENCE * 5).send().await).await
    }
}

async fn told(sent: reqwest::Result<reqwest::Response>) -> Reply {
    let response = match sent {
        Ok(response) => response,
        Err(error) if error.is_connect() => return Reply::NotSent,
        Err(error) => return Reply::lost(&error),
    };
    let status = response.status().as_u16();
    // A control plane that cannot reach its store does not know either.
    if status >= 500 || status == 429 {
        let text = response.text().await.unwrap_or_default();
        let body: Value = serde_json::from_str(&text).unwrap_or_default();
        return Reply::failed(status, body["error"].as_str().unwrap_or_default());
    }
    if status == 204 {
        return Reply::Told { status, body: Value::Null };
    }
    match response.json().await {
        Ok(body) => Reply::Told { status, body },
        Err(error) => Reply::lost(&error),
    }
}

fn short(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "time-out".to_owned();
    }
    let mut root: &dyn std::error::Error = error;
    while let Some(source) = root.source() {
        root = source;
    }
    root.to_string()
}
