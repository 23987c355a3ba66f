//! The user API of sandboxes, as a client without an SDK calls it.

use std::time::Duration;

use anyhow::Result;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use super::history::{Answer, Call, Journal, Row};

/// For an answer. Longer than a spawn may take.
const PATIENCE: Duration = Duration::from_secs(12);

/// A new sandbox.
#[derive(Debug, Clone)]
pub struct Wanted {
    pub nonce: String,
    pub key: Option<String>,
    pub owner: String,
    pub ttl_ms: u64,
    pub memory_mb: u64,
    pub vcpus: u64,
}

/// Calls control planes, and notes what was asked and answered.
#[derive(Debug, Clone)]
pub struct Api<'a> {
    client: reqwest::Client,
    servers: Vec<String>,
    journal: &'a Journal,
}

/// What came back.
enum Reply {
    Told { status: u16, body: Vec<u8> },
    Unknown(String),
    NotSent,
}

impl<'a> Api<'a> {
    pub fn new(servers: Vec<String>, journal: &'a Journal) -> Result<Self> {
        let client = reqwest::Client::builder().connect_timeout(Duration::from_secs(2)).timeout(PATIENCE).build()?;
        Ok(Self { client, servers, journal })
    }

    pub fn servers(&self) -> usize {
        self.servers.len()
    }

    fn request(&self, server: usize, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}/api/v1/sandboxes{path}", self.servers[server]))
    }

    async fn call(
        &self,
        call: Call,
        request: RequestBuilder,
        read: impl FnOnce(u16, &[u8]) -> Option<Answer>,
    ) -> Answer {
        let op = self.journal.ask(call);
        let answer = match told(request.send().await).await {
            Reply::NotSent => Answer::NotSent,
            Reply::Unknown(why) => Answer::Unknown { why },
            Reply::Told { status, body } if status < 300 => read(status, &body).unwrap_or_else(|| Answer::Unknown {
                why: format!("cannot be read: {}", String::from_utf8_lossy(&body)),
            }),
            Reply::Told { status, body } => refused(status, &body),
        };
        self.journal.answer(op, &answer);
        answer
    }

    pub async fn create(&self, server: usize, wanted: &Wanted) -> Answer {
        let body = json!({"image": "host", "provider": "process", "memory_mb": wanted.memory_mb, "vcpus": wanted.vcpus,
            "ttl": format!("{}ms", wanted.ttl_ms), "metadata": {"nonce": wanted.nonce}});
        let mut request = self.request(server, Method::POST, "").header("X-User-ID", &wanted.owner).json(&body);
        if let Some(key) = &wanted.key {
            request = request.header("Idempotency-Key", key);
        }
        let Wanted { nonce, key, owner, ttl_ms, .. } = wanted.clone();
        let call = Call::Create { nonce, key, owner, ttl_ms };
        self.call(call, request, |_, body| Some(Answer::Created { row: row(&json_of(body)?)? })).await
    }

    /// Runs a command that says where it is, and may leave a process behind.
    pub async fn exec(&self, server: usize, sandbox: &str, leave: bool) -> Answer {
        let command = if leave { "pwd; sleep 600 >/dev/null 2>&1 </dev/null &" } else { "pwd" };
        let request = self.request(server, Method::POST, &format!("/{sandbox}/exec"));
        let request = request.json(&json!({"command": command, "timeout": "8s"}));
        let call = Call::Exec { sandbox: sandbox.to_owned() };
        self.call(call, request, |_, body| {
            let body = json_of(body)?;
            let runtime = body["stdout"].as_str()?.split('/').find(|part| part.starts_with("prc-"))?.to_owned();
            (body["exit_code"] == 0).then_some(Answer::Ran { runtime })
        })
        .await
    }

    pub async fn write(&self, server: usize, sandbox: &str, path: &str, value: &str) -> Answer {
        let request = self.request(server, Method::POST, &format!("/{sandbox}/files"));
        let request = request.json(&json!({"path": path, "content": value}));
        let (sandbox, path, value) = (sandbox.to_owned(), path.to_owned(), value.to_owned());
        self.call(Call::Write { sandbox, path, value }, request, |_, _| Some(Answer::Written)).await
    }

    pub async fn read(&self, server: usize, sandbox: &str, path: &str) -> Answer {
        let request = self.request(server, Method::GET, &format!("/{sandbox}/files?path={path}"));
        let call = Call::Read { sandbox: sandbox.to_owned(), path: path.to_owned() };
        let content = |_: u16, body: &[u8]| Some(Answer::Content { value: String::from_utf8_lossy(body).into_owned() });
        self.call(call, request, content).await
    }

    pub async fn extend(&self, server: usize, sandbox: &str, ttl_ms: u64) -> Answer {
        let request = self.request(server, Method::POST, &format!("/{sandbox}/extend"));
        let request = request.json(&json!({"ttl": format!("{ttl_ms}ms")}));
        let call = Call::Extend { sandbox: sandbox.to_owned(), ttl_ms };
        self.call(call, request, |_, _| Some(Answer::Extended)).await
    }

    pub async fn destroy(&self, server: usize, sandbox: &str) -> Answer {
        let request = self.request(server, Method::DELETE, &format!("/{sandbox}"));
        let call = Call::Destroy { sandbox: sandbox.to_owned() };
        self.call(call, request, |status, _| Some(Answer::Destroyed { done: status == 200 })).await
    }

    pub async fn show(&self, server: usize, sandbox: &str) -> Answer {
        let request = self.request(server, Method::GET, &format!("/{sandbox}"));
        let call = Call::Show { sandbox: sandbox.to_owned() };
        self.call(call, request, |_, body| Some(Answer::Seen { row: row(&json_of(body)?)? })).await
    }

    pub async fn list(&self, server: usize, owner: Option<&str>) -> Answer {
        let mut request = self.request(server, Method::GET, "");
        if let Some(owner) = owner {
            request = request.header("X-User-ID", owner);
        }
        let call = Call::List { owner: owner.map(ToOwned::to_owned) };
        self.call(call, request, |_, body| {
            let rows = json_of(body)?.as_array()?.iter().map(row).collect::<Option<_>>()?;
            Some(Answer::Listed { rows })
        })
        .await
    }
}

fn json_of(body: &[u8]) -> Option<Value> {
    serde_json::from_slice(body).ok()
}

fn row(value: &Value) -> Option<Row> {
    let text = |value: &Value| value.as_str().map(ToOwned::to_owned);
    Some(Row {
        sandbox: text(&value["id"])?,
        nonce: text(&value["metadata"]["nonce"]),
        owner: text(&value["owner_id"]),
        state: text(&value["state"])?,
        worker: text(&value["worker_id"]),
        runtime: text(&value["vm_id"]),
        memory_mb: value["memory_mb"].as_u64().unwrap_or_default(),
        vcpus: value["vcpus"].as_u64().unwrap_or_default(),
    })
}

fn refused(status: u16, body: &[u8]) -> Answer {
    let body = json_of(body).unwrap_or_default();
    let part = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
    Answer::Refused { status, what: format!("{}: {}", part("code"), part("message")) }
}

async fn told(sent: reqwest::Result<reqwest::Response>) -> Reply {
    let response = match sent {
        Ok(response) => response,
        Err(error) if error.is_connect() => return Reply::NotSent,
        Err(error) if error.is_timeout() => return Reply::Unknown("time-out".to_owned()),
        Err(error) => return Reply::Unknown(error.to_string()),
    };
    let status = response.status().as_u16();
    let body = response.bytes().await;
    // A control plane that does not hear from its store or from a worker does not know either.
    if status >= 500 || status == 408 {
        let text = body.map(|body| String::from_utf8_lossy(&body).into_owned()).unwrap_or_default();
        return Reply::Unknown(format!("{status} {text}"));
    }
    match body {
        Ok(body) => Reply::Told { status, body: body.to_vec() },
        Err(error) => Reply::Unknown(error.to_string()),
    }
}
